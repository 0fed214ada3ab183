//! One connection to a peer, as the asker sees it: what is said on it, and where the bytes go.

use crate::cache::entry::Task;
use crate::cache::fill::tier_failed;
use crate::cache::page_fetch::{Begun, FetchError};
use crate::counters::{Counters, add};
use forebay_store::BLOCK_BYTES;
use forebay_store::copy::CopyFile;
use forebay_store::full_io::write_all_at;
use forebay_wire::cluster::DirtyFile;
use forebay_wire::link::{Security, Stream};
use forebay_wire::peer::{
    CHECKED_MAX, Custody, GuestOpening, KeptFile, PEER_PROTOCOL, PageRef, PeerReply, PeerRequest, Role,
    Wanted, Welcomed, deadline_ms,
};
use forebay_wire::shuffle::{App, Block};
use forebay_wire::{FileRef, GUEST_BYTES, GuestCall, HpcPhase, JobName, NodeInfo, frame};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io::{self, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// First bytes of a page that are shown to readers, as with a page from the PFS: somebody may be
/// waiting for them.
const FIRST_SHOWN_BYTES: u64 = 256 << 10;

/// Bytes shown at a time after that.
const SHOWN_BYTES: u64 = 1 << 20;

/// Room of the pipe between socket and tier; what an ordinary user may have. It holds references,
/// not bytes.
const PIPE_BYTES: usize = 1 << 20;

/// Bytes of a dirty file that one call sends: the deadline is looked at in between.
const SENT_AT_ONCE_BYTES: u64 = 4 << 20;

/// What a stream that is not plain is read into.
const BUFFER_BYTES: usize = 256 << 10;

/// What came of asking a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The page is there; for [`Link::fetch`], the bytes that the PFS was read for, and for
    /// [`Link::pages`], those that came.
    Done(u64),
    /// The file is another version at the peer.
    Changed,
    /// The peer will not serve the file.
    Refused,
    /// The peer cannot serve the page at this moment.
    Busy,
    /// The peer has not got it yet.
    NotYet,
    /// The node of this number has it or gets it.
    Relay(u64),
    /// The PFS failed at the peer.
    Failed,
    /// The deadline has passed without an answer.
    Late,
    /// The connection could not be made, or has ended.
    Broken,
    /// The tier here failed.
    Tier(FetchError),
}

/// A connection.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
    way: Way,
}

/// A dirty file as the peer has it. The fields are those of [`PeerReply::Dirty`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "see above")]
pub struct Sent {
    pub size: u64,
    pub mtime_ns: i64,
    pub is_known: bool,
    pub is_settled: bool,
}

/// What the place for a second copy did with it.
#[derive(Debug, PartialEq, Eq)]
pub enum CopySent {
    /// It keeps the copy.
    Done,
    /// It does not want the copy, and why.
    Refused(String),
}

/// How bytes get from the socket into the tier.
#[derive(Debug)]
enum Way {
    /// Through a pipe, by reference, reading end first.
    Pipe(OwnedFd, OwnedFd),
    /// Through a buffer: what is in the socket is not what was sent.
    Buffer(Vec<u8>),
}

/// Reads that end at a deadline.
struct Until<'a>(&'a mut Stream, Instant);

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.set_timeout(Some(left(self.1)?))?;
        self.0.read(buffer)
    }
}

/// Time left until `deadline`, at least a microsecond; an error if it has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left.max(Duration::from_micros(1))) }
}

fn answer_of(e: &io::Error) -> Answer {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Answer::Late,
        _ => Answer::Broken,
    }
}

fn unexpected(reply: &PeerReply, to: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{reply:?} in answer to {to}"))
}

fn failed(errno: i32, message: String) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(errno).kind(), message)
}

fn copy_sent(reply: PeerReply) -> io::Result<CopySent> {
    match reply {
        PeerReply::Fetched { .. } => Ok(CopySent::Done),
        PeerReply::Refused(why) => Ok(CopySent::Refused(why)),
        other => Err(unexpected(&other, "a copy")),
    }
}

/// The job that a page is fetched for.
pub fn job_of(task: &Task) -> JobName {
    task.pfs.account().map(|account| account.name.clone()).unwrap_or_default()
}

/// As the owner gets it.
fn remaining_ms(deadline: Instant) -> u32 {
    deadline_ms(deadline.saturating_duration_since(Instant::now()))
}

impl Link {
    /// Connects, and names `from` as the node that asks.
    ///
    /// # Errors
    /// The peer is not there, not of this cluster, or does not want this node; or the deadline has
    /// passed.
    pub fn connect(security: &Security, from: &str, node: &NodeInfo, deadline: Instant) -> io::Result<Self> {
        let stream = security.connect(&node.address, deadline)?;
        if !stream.may_speak_for(&node.name) {
            let who = stream.peer_name().unwrap_or_default();
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("node {:?} answers at {}, where node {:?} should", who, node.address, node.name),
            ));
        }
        let way = match stream.plain() {
            None => Way::Buffer(vec![0; BUFFER_BYTES]),
            Some(_) => {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                // A user with many pipes gets smaller ones: more calls, no harm.
                let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
                Way::Pipe(read, write)
            }
        };
        let mut link = Link { stream, way };
        let hello = PeerRequest::Hello { protocol: PEER_PROTOCOL, node: from.to_owned() };
        match link.ask(&hello, deadline)? {
            PeerReply::Welcome { protocol: PEER_PROTOCOL, refusal } if refusal.is_empty() => Ok(link),
            PeerReply::Welcome { protocol, refusal } => Err(io::Error::other(format!(
                "the agent of node {} at {} (peer protocol {protocol}, here {PEER_PROTOCOL}) will not serve this one: {refusal}",
                node.name, node.address
            ))),
            other => Err(unexpected(&other, "a greeting")),
        }
    }

    /// The socket, for others to cut.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn socket(&self) -> io::Result<TcpStream> {
        self.stream.socket().try_clone()
    }

    /// Reports the I/O phases of this node, which count for `lease_ms`; returns what the peer has
    /// read from the PFS since its start, in bytes, and how many milliseconds ago it last did.
    ///
    /// # Errors
    /// The connection broke, or the peer did not answer by the deadline.
    pub fn report_phases(
        &mut self,
        lease_ms: u32,
        phases: Vec<HpcPhase>,
        deadline: Instant,
    ) -> io::Result<(u64, u32)> {
        match self.ask(&PeerRequest::Phases { lease_ms, phases }, deadline)? {
            PeerReply::Heard { fetched_bytes, since_read_ms } => Ok((fetched_bytes, since_read_ms)),
            other => Err(unexpected(&other, "phases")),
        }
    }

    /// Asks for a file that is dirty at the peer, of which the PFS shows length, mtime and birth
    /// time here, and which is known here as of `known`, length and mtime of its content. Unless
    /// the answer is that this is still so, [`Link::content`] follows. `None`: it is not dirty
    /// there.
    ///
    /// # Errors
    /// As [`Link::report_phases`].
    pub fn dirty(
        &mut self,
        file: &DirtyFile,
        (shown, born_ns): ((u64, i64), Option<i64>),
        known: Option<(u64, i64)>,
        deadline: Instant,
    ) -> io::Result<Option<Sent>> {
        match self.ask(&PeerRequest::Dirty { file: file.clone(), shown, born_ns, known }, deadline)? {
            PeerReply::Dirty { size, mtime_ns, is_known, is_settled } => {
                Ok(Some(Sent { size, mtime_ns, is_known, is_settled }))
            }
            PeerReply::Refused(_) => Ok(None),
            other => Err(unexpected(&other, "a question")),
        }
    }

    /// Takes the `size` bytes of a content into `file`; each part comes within `patience`.
    ///
    /// # Errors
    /// As [`Link::report_phases`]; the tier failed.
    pub fn content(&mut self, file: &OwnedFd, size: u64, patience: Duration) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut done = 0;
        while done < size {
            let part = &mut buffer[..(size - done).min(BUFFER_BYTES as u64) as usize];
            Until(&mut self.stream, Instant::now() + patience).read_exact(part)?;
            write_all_at(file.as_fd(), part, done)?;
            done += part.len() as u64;
        }
        Ok(())
    }

    /// Has the peer write a file that is dirty there to the PFS; returns whether that is done. Asks
    /// again while it is not.
    ///
    /// # Errors
    /// As [`Link::report_phases`]; the PFS does not take it.
    pub fn call_in(
        &mut self,
        file: &DirtyFile,
        truncated: bool,
        gives_up: bool,
        deadline: Instant,
    ) -> io::Result<bool> {
        self.ask_until_done(&PeerRequest::CallIn { file: file.clone(), truncated, gives_up }, deadline)
    }

    /// Asks for something that the peer may not have done by now; returns whether it has.
    ///
    /// # Errors
    /// As [`Link::call_in`].
    pub fn ask_until_done(&mut self, request: &PeerRequest, deadline: Instant) -> io::Result<bool> {
        match self.ask(request, deadline)? {
            PeerReply::Fetched { .. } => Ok(true),
            PeerReply::NotYet => Ok(false),
            PeerReply::Failed { errno, message } => Err(failed(errno, message)),
            other => Err(unexpected(&other, "a call")),
        }
    }

    /// Makes a program on this node a guest at the peer; returns the number of the peer's memory,
    /// and what came of it.
    ///
    /// # Errors
    /// As [`Link::report_phases`].
    pub fn guest(&mut self, opening: GuestOpening, deadline: Instant) -> io::Result<(u64, Welcomed)> {
        match self.ask(&PeerRequest::Guest(Box::new(opening)), deadline)? {
            PeerReply::Guest { life, welcomed } => Ok((life, welcomed)),
            other => Err(unexpected(&other, "a guest")),
        }
    }

    /// Makes a call of a guest. What it writes is the beginning of `buffer`; what it reads
    /// comes there. Each part goes within `patience`.
    ///
    /// # Errors
    /// As [`Link::report_phases`].
    pub fn call_as_guest(
        &mut self,
        call: GuestCall,
        buffer: &OwnedFd,
        patience: Duration,
    ) -> io::Result<PeerReply> {
        self.send(&PeerRequest::GuestCall(call), Instant::now() + patience)?;
        match call {
            GuestCall::Write { len, .. } => self.send_content(buffer, 0, u64::from(len), patience)?,
            GuestCall::Close => return Ok(PeerReply::GuestDone(0)),
            GuestCall::Read { .. } | GuestCall::Cut(_) | GuestCall::Stat => {}
        }
        match self.receive(Instant::now() + patience)? {
            PeerReply::Piece { len } if len <= GUEST_BYTES as u64 => {
                self.content(buffer, len, patience)?;
                Ok(PeerReply::GuestDone(len))
            }
            reply => Ok(reply),
        }
    }

    /// Asks for blocks of map outputs; returns the bytes of each, and of its partitions. The blocks
    /// follow, through [`Link::content`].
    ///
    /// # Errors
    /// As [`Link::report_phases`]; `NotFound`: one of them is not there.
    pub fn blocks(
        &mut self,
        token: &str,
        uid: u32,
        blocks: &[Block],
        deadline: Instant,
    ) -> io::Result<Vec<(u64, u64)>> {
        let request = PeerRequest::Blocks { token: token.to_owned(), uid, blocks: blocks.to_vec() };
        match self.ask(&request, deadline)? {
            PeerReply::Blocks { lengths } => Ok(lengths),
            PeerReply::Failed { errno, message } => Err(failed(errno, message)),
            other => Err(unexpected(&other, "a question")),
        }
    }

    /// Has the peer keep a second copy of a dirty file, whose bytes are in `content`. Each part
    /// goes within `patience`.
    ///
    /// # Errors
    /// As [`Link::report_phases`]. `UnexpectedEof`: the content has become shorter meanwhile.
    pub fn keep(&mut self, kept: KeptFile, content: &OwnedFd, patience: Duration) -> io::Result<CopySent> {
        let ranges = kept.ranges.clone();
        let reply = self.ask(&PeerRequest::Keep(Box::new(kept)), Instant::now() + patience)?;
        if let refused @ CopySent::Refused(_) = copy_sent(reply)? {
            return Ok(refused);
        }
        for (from, to) in ranges {
            self.send_content(content, from, to, patience)?;
        }
        copy_sent(self.receive(Instant::now() + patience)?)
    }

    /// Has the peer keep a second copy of a map output, whose bytes are in `content`, as
    /// [`Link::keep`] does for dirty files.
    ///
    /// # Errors
    /// As [`Link::report_phases`].
    pub fn keep_output(
        &mut self,
        (app, uid): (&App, u32),
        (shuffle, map): (u32, u64),
        (content, bytes): (&OwnedFd, u64),
        patience: Duration,
    ) -> io::Result<CopySent> {
        let request = PeerRequest::KeepOutput { app: app.clone(), uid, shuffle, map, bytes };
        if let refused @ CopySent::Refused(_) = copy_sent(self.ask(&request, Instant::now() + patience)?)? {
            return Ok(refused);
        }
        self.send_content(content, 0, bytes, patience)?;
        copy_sent(self.receive(Instant::now() + patience)?)
    }

    fn send_content(&mut self, content: &OwnedFd, from: u64, to: u64, patience: Duration) -> io::Result<()> {
        let (mut at, mut buffer) = (from, Vec::new());
        while at < to {
            self.stream.set_timeout(Some(patience))?;
            let sent = match self.stream.plain() {
                Some(socket) => {
                    let most = (to - at).min(SENT_AT_ONCE_BYTES) as usize;
                    rustix::fs::sendfile(socket, content, Some(&mut at), most)?
                }
                None => {
                    buffer.resize((to - at).min(BUFFER_BYTES as u64) as usize, 0);
                    let read = rustix::io::pread(content, &mut buffer[..], at)?;
                    io::Write::write_all(&mut self.stream, &buffer[..read])?;
                    at += read as u64;
                    read
                }
            };
            if sent == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Asks whether an application whose origin is the peer lives, and which of `shuffles` it has
    /// removed.
    ///
    /// # Errors
    /// As [`Link::report_phases`].
    pub fn shuffles(
        &mut self,
        app: &App,
        uid: u32,
        shuffles: &[u32],
        deadline: Instant,
    ) -> io::Result<(bool, Vec<u32>)> {
        let request = PeerRequest::Shuffles { app: app.clone(), uid, shuffles: shuffles.to_vec() };
        match self.ask(&request, deadline)? {
            PeerReply::Shuffles { lives, removed } => Ok((lives, removed)),
            other => Err(unexpected(&other, "a question")),
        }
    }

    /// Reports that the peer need no longer keep the second copy of a file.
    ///
    /// # Errors
    /// As [`Link::report_phases`].
    pub fn release(&mut self, file: &DirtyFile, generation: u64, deadline: Instant) -> io::Result<()> {
        self.ask(&PeerRequest::Release { file: file.clone(), generation }, deadline).map(|_| ())
    }

    /// Reports that a pass over a file whose copy the peer keeps begins, or has `left` this on the
    /// PFS.
    ///
    /// # Errors
    /// As [`Link::report_phases`].
    pub fn note_pass(
        &mut self,
        file: &DirtyFile,
        number: u64,
        left: Option<(u64, i64)>,
        deadline: Instant,
    ) -> io::Result<()> {
        self.ask(&PeerRequest::Pass { file: file.clone(), number, left }, deadline).map(|_| ())
    }

    /// Asks whether the copy that this node keeps of a dirty file of the peer still counts.
    ///
    /// # Errors
    /// As [`Link::report_phases`].
    pub fn ask_custody(
        &mut self,
        file: &DirtyFile,
        generation: u64,
        deadline: Instant,
    ) -> io::Result<Custody> {
        match self.ask(&PeerRequest::AskCustody { file: file.clone(), generation }, deadline)? {
            PeerReply::Custody(custody) => Ok(custody),
            other => Err(unexpected(&other, "a question")),
        }
    }

    fn send(&mut self, request: &PeerRequest, deadline: Instant) -> io::Result<()> {
        self.stream.set_timeout(Some(left(deadline)?))?;
        frame::send(&mut self.stream, request)
    }

    fn ask(&mut self, request: &PeerRequest, deadline: Instant) -> io::Result<PeerReply> {
        self.send(request, deadline)?;
        self.receive(deadline)
    }

    fn receive(&mut self, deadline: Instant) -> io::Result<PeerReply> {
        frame::receive(&mut Until(&mut self.stream, deadline))
    }

    /// Asks for what is missing of the page and shows it to readers as it comes. `deadline` was
    /// taken before anything was asked.
    pub fn page(
        &mut self,
        counters: &Counters,
        task: &Task,
        page: &PageRef,
        (wanted, role): (Wanted, Role),
        begun: &mut Begun,
        deadline: Instant,
    ) -> Answer {
        let (from, deadline_ms) = (begun.done(), remaining_ms(deadline));
        let job = job_of(task);
        let request = PeerRequest::Page { page: page.clone(), from, wanted, role, job, deadline_ms };
        if let Err(e) = self.send(&request, deadline) {
            return answer_of(&e);
        }
        let page_len = task.entry.geometry().page_len(task.page_fetch.page);
        while begun.done() < page_len {
            let len = match self.receive(deadline) {
                Ok(PeerReply::Piece { len }) => len,
                Ok(other) => return no_page(&other),
                Err(e) => return answer_of(&e),
            };
            let whole = len == page_len - begun.done();
            if len == 0 || len > page_len - begun.done() || !(whole || len.is_multiple_of(BLOCK_BYTES)) {
                return Answer::Broken;
            }
            if let Err(answer) = self.take_piece(task, begun, len, deadline) {
                return answer;
            }
            add(&counters.from_peers_bytes, len);
        }
        self.taken(deadline);
        Answer::Done(0)
    }

    /// Asks for adjacent pages, the first of which begins at the range's first byte in `file`, and
    /// moves those that come there. The bytes are those of whole pages, and none of them has been
    /// shown. `deadline` was taken before anything was asked, and has not passed.
    pub fn pages(
        &mut self,
        (counters, first): (&Counters, &PageRef),
        (wanted, job): (Wanted, JobName),
        file: &CopyFile,
        range: Range<u64>,
        deadline: Instant,
    ) -> Answer {
        let (page_bytes, most) = (first.page_bytes, range.end - range.start);
        let count = most.div_ceil(page_bytes) as u32;
        let deadline_ms = remaining_ms(deadline);
        let request = PeerRequest::Pages { first: first.clone(), count, wanted, job, deadline_ms };
        let len = match self.ask(&request, deadline) {
            Ok(PeerReply::Piece { len }) => len,
            Ok(other) => return no_page(&other),
            Err(e) => return answer_of(&e),
        };
        if len == 0 || len > most || !(len == most || len.is_multiple_of(page_bytes)) {
            return Answer::Broken;
        }
        let mut moved = 0;
        while moved < len {
            match self.move_some(file, range.start + moved, len - moved, deadline) {
                Ok(more) => moved += more,
                Err(answer) => return answer,
            }
        }
        // The proof: these bytes were copied before the owner may have let go of them.
        if Instant::now() >= deadline {
            return Answer::Late;
        }
        add(&counters.from_peers_bytes, len);
        self.taken(deadline);
        Answer::Done(len)
    }

    /// Reports that all of it is here: if that fails, only the connection is lost.
    fn taken(&mut self, deadline: Instant) {
        if self.send(&PeerRequest::Taken, deadline).is_err() {
            let _ = self.stream.socket().shutdown(std::net::Shutdown::Both);
        }
    }

    /// Moves `len` bytes into the copy. They are shown only if the deadline is still to come when
    /// they are there.
    fn take_piece(
        &mut self,
        task: &Task,
        begun: &mut Begun,
        len: u64,
        deadline: Instant,
    ) -> Result<(), Answer> {
        let geometry = task.entry.geometry();
        let page_len = geometry.page_len(task.page_fetch.page);
        let start = u64::from(task.page_fetch.page) * geometry.page_bytes;
        let (mut left, mut unseen) = (len, 0);
        while left > 0 {
            let moved = self.move_some(begun.file(), start + begun.done() + unseen, left, deadline)?;
            left -= moved;
            unseen += moved;
            let enough = if begun.done() == 0 { FIRST_SHOWN_BYTES } else { SHOWN_BYTES };
            if left > 0 && unseen < enough {
                continue;
            }
            // The proof: these bytes were copied before the owner may have let go of them.
            if Instant::now() >= deadline {
                return Err(Answer::Late);
            }
            let all = begun.done() + unseen == page_len;
            let shown = if all { unseen } else { unseen / BLOCK_BYTES * BLOCK_BYTES };
            begun.show(task, shown);
            unseen -= shown;
        }
        Ok(())
    }

    /// Moves what has arrived, up to `len` bytes, into the copy at `offset`; waits for the first of
    /// it.
    fn move_some(
        &mut self,
        file: &CopyFile,
        offset: u64,
        len: u64,
        deadline: Instant,
    ) -> Result<u64, Answer> {
        let lost = |e: io::Error| answer_of(&e);
        let tier = |e: io::Error| Answer::Tier(tier_failed(e));
        let time = left(deadline).map_err(lost)?;
        self.stream.set_timeout(Some(time)).map_err(lost)?;
        match &mut self.way {
            Way::Buffer(buffer) => {
                let want = len.min(buffer.len() as u64) as usize;
                let got = self.stream.read(&mut buffer[..want]).map_err(lost)?;
                file.write_at(&buffer[..got], offset).map_err(tier)?;
                if got == 0 { Err(Answer::Broken) } else { Ok(got as u64) }
            }
            Way::Pipe(read, write) => {
                let socket = self.stream.plain().ok_or(Answer::Broken)?;
                let got = splice(socket, None, write.as_fd(), None, len as usize, SpliceFlags::MOVE);
                let got = got.map_err(|e| lost(e.into()))? as u64;
                let mut moved = 0;
                while moved < got {
                    let n = file.splice_from(read.as_fd(), offset + moved, got - moved).map_err(tier)?;
                    if n == 0 {
                        return Err(Answer::Broken);
                    }
                    moved += n;
                }
                if got == 0 { Err(Answer::Broken) } else { Ok(got) }
            }
        }
    }

    /// Has the page fetched into the peer's tier.
    pub fn fetch(&mut self, page: &PageRef, job: JobName, deadline: Instant) -> Answer {
        let request = PeerRequest::Fetch { page: page.clone(), job, deadline_ms: remaining_ms(deadline) };
        match self.ask(&request, deadline) {
            Ok(PeerReply::Fetched { fetched_bytes }) => Answer::Done(fetched_bytes),
            Ok(other) => no_page(&other),
            Err(e) => answer_of(&e),
        }
    }

    /// Asks which of `pages` the peer has, and adds those it has not to `missing`.
    pub fn check(
        &mut self,
        (file, page_bytes): (&FileRef, u64),
        pages: &[u32],
        missing: &mut Vec<u32>,
        deadline: Instant,
    ) -> Answer {
        missing.clear();
        for pages in pages.chunks(CHECKED_MAX) {
            let request = PeerRequest::Check { file: file.clone(), page_bytes, pages: pages.to_vec() };
            match self.ask(&request, deadline) {
                Ok(PeerReply::Missing { pages }) => missing.extend(pages),
                Ok(other) => return no_page(&other),
                Err(e) => return answer_of(&e),
            }
        }
        Answer::Done(0)
    }
}

/// An answer that fetches nothing.
fn no_page(reply: &PeerReply) -> Answer {
    match reply {
        PeerReply::Changed => Answer::Changed,
        PeerReply::Refused(why) => {
            tracing::debug!(why, "a peer will not serve a file");
            Answer::Refused
        }
        PeerReply::Busy(why) => {
            tracing::debug!(why, "a peer cannot serve a page");
            Answer::Busy
        }
        PeerReply::NotYet => Answer::NotYet,
        PeerReply::Relay(node) => Answer::Relay(*node),
        PeerReply::Failed { errno, message } => {
            tracing::debug!(errno, message, "the PFS failed at a peer");
            Answer::Failed
        }
        PeerReply::Welcome { .. }
        | PeerReply::Piece { .. }
        | PeerReply::Fetched { .. }
        | PeerReply::Missing { .. }
        | PeerReply::Dirty { .. }
        | PeerReply::Blocks { .. }
        | PeerReply::Shuffles { .. }
        | PeerReply::Custody(_)
        | PeerReply::Guest { .. }
        | PeerReply::GuestDone(_)
        | PeerReply::GuestLeft
        | PeerReply::GuestReplaced
        | PeerReply::GuestStat { .. }
        | PeerReply::Heard { .. } => Answer::Broken,
    }
}
