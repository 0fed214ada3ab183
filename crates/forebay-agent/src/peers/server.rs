//! Serving pages to peers.
//!
//! A page that is whole in the tier is sent by `sendfile`, without a copy, and is *lent* meanwhile:
//! it stays in place until the asker reports that it has it, or until its deadline has passed here;
//! in the latter case the connection is reset first, so that nothing of what is queued is sent any
//! more, and only then is the page let go. A page that is not there is fetched from the PFS for all
//! that ask, once, as for a local reader: opened by its path with this agent's own rights. It is
//! sent as it comes, from a buffer: a fetch may fail half way, and takes its bytes back then.
//!
//! Two agents whose views differ may each mistake the other for the owner. So a request of a peer
//! is never passed on to another peer, and a page that waits for a peer here is not promised to
//! one.
//!
//! One thread per connection, as for clients, bounded in number and within the budget.

use super::files::OpenFiles;
use crate::cache::entry::Entry;
use crate::cache::page_fetch::{FetchError, FetchState, PageFetch};
use crate::cache::{Cache, Lent};
use crate::cluster::Cluster;
use crate::config::SMALL_PAGE_BYTES;
use crate::counters::{Counters, add};
use crate::fetch::find::NoEntry;
use crate::fetch::{AtPeer, Fetch, Requested};
use crate::lock::lock;
use crate::mounts::MountState;
use crate::mounts::admit::Admitted;
use crate::phases::board::Phases;
use crate::prefetch::requests::Requests;
use crate::shuffle::Shuffles;
use crate::stop::Stop;
use crate::user_limits::PfsFile;
use crate::write_back::guests::{Guest, Waits};
use crate::write_back::{ContentNow, Drained, WriteBack};
use forebay_policy::fetch_order::Urgency;
use forebay_policy::machine::Nanos;
use forebay_policy::placement::node_number;
use forebay_policy::spread::{Source, Spread};
use forebay_store::copy::CopyFile;
use forebay_store::full_io::write_all_at;
use forebay_store::{BLOCK_BYTES, Class, State};
use forebay_wire::link::{Listener, Stream};
use forebay_wire::peer::{
    CHECKED_MAX, KeptFile, PEER_PROTOCOL, PageRef, PeerReply, PeerRequest, Role, Wanted,
};
use forebay_wire::proving::{Place, Proving};
use forebay_wire::shuffle::{App, Block};
use forebay_wire::{FileRef, JobName, Refusal, frame};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most connections at a time: eight of each of 250 peers, or two of each of 1,000. More are
/// refused, and the peer reads the PFS.
const CONNECTIONS_MAX: usize = 2048;

/// How long a new connection has to prove itself and say who it is.
pub(super) const HELLO_TIME: Duration = Duration::from_secs(5);

/// How long a node that is not in the view yet is looked for in it.
const JOIN_TIME: Duration = Duration::from_secs(2);

/// How long a connection stays open on which nothing is asked; askers close theirs well before.
const IDLE: Duration = Duration::from_secs(60);

/// The same for a guest, which writes when its program does. It connects again if it is closed.
const GUEST_IDLE: Duration = Duration::from_secs(600);

/// What a connection costs: its thread and its buffer.
const CONNECTION_BYTES: u64 = (64 << 10) + BUFFER_BYTES as u64;

/// Bytes that are sent from the buffer at a time.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// Bytes of a second copy that are received at a time.
const COPY_PIPE_BYTES: usize = 1 << 20;
const COPY_BUFFER_BYTES: usize = 256 << 10;

const STACK_BYTES: usize = 256 << 10;

/// Longest deadline that an asker can set: until then a page may be kept in place for it.
const DEADLINE_MAX: Duration = Duration::from_secs(600);

/// Fraction of the asker's deadline (three of four) that may pass before it gets "not yet": the
/// answer must not be late.
const PATIENCE: (u32, u32) = (3, 4);

/// How soon an asker that does not wait for the page is notified; it can then ask for what is more
/// urgent.
pub(super) const PATIENCE_AHEAD: Duration = Duration::from_millis(20);

/// Most connections proving themselves at a time. They are among all connections, and strangers
/// cannot take more.
const PROVING_MAX: usize = 64;

/// What serves peers.
#[derive(Debug)]
pub struct PeerServer {
    pub(super) fetch: Arc<Fetch>,
    pub(super) requests: Arc<Requests>,
    pub(super) write_back: Arc<WriteBack>,
    shuffles: Arc<Shuffles>,
    phases: Arc<Phases>,
    cluster: Arc<Cluster>,
    stop: Arc<Stop>,
    mounts: Arc<[MountState]>,
    pub(super) cache: Arc<Cache>,
    pub(super) counters: Arc<Counters>,
    connections: AtomicUsize,
    proving: Proving,
    /// Files open for them.
    pub(super) files: Arc<OpenFiles>,
    /// Which node has requested which page from this one, and since when that is counted.
    spread: Mutex<Spread>,
    started: Instant,
}

impl PeerServer {
    /// A server to which nobody is connected.
    pub fn new(
        fetch: Arc<Fetch>,
        requests: Arc<Requests>,
        write_back: Arc<WriteBack>,
        shuffles: Arc<Shuffles>,
        phases: Arc<Phases>,
        cluster: Arc<Cluster>,
        stop: Arc<Stop>,
    ) -> Self {
        let (mounts, cache) = (fetch.mounts.clone(), fetch.cache.clone());
        PeerServer {
            files: Arc::new(OpenFiles::new(mounts.clone(), cache.clone())),
            mounts,
            cache,
            counters: fetch.counters.clone(),
            fetch,
            requests,
            write_back,
            shuffles,
            phases,
            cluster,
            stop,
            connections: AtomicUsize::new(0),
            spread: Mutex::default(),
            started: Instant::now(),
            proving: Proving::new(PROVING_MAX),
        }
    }

    /// Closes files that no peer has requested recently. Called when there is time.
    pub fn keep_house(&self) {
        self.files.keep_house();
    }
}

/// Takes connections until the agent ends.
pub fn accept_loop(server: &Arc<PeerServer>, listener: Listener) {
    let listener = Arc::new(listener);
    while !server.stop.is_stopping() {
        match listener.accept() {
            Ok(socket) => start(server, &listener, socket),
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(e) => {
                tracing::warn!(error = %e, "cannot accept a connection of a peer");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Counts as one of the connections for as long as it lives.
struct Counted(Arc<PeerServer>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection before its thread has begun.
enum Proved {
    Yes(Stream),
    NotYet(TcpStream, Place),
}

/// Strangers on loopback are refused before they cost a thread or a place among the connections.
fn prove_at_once(server: &PeerServer, listener: &Listener, socket: TcpStream) -> io::Result<Proved> {
    if listener.proves_at_once() {
        return listener.prove(socket, Instant::now() + HELLO_TIME).map(Proved::Yes);
    }
    let place = server.proving.enter(&socket)?;
    Ok(Proved::NotYet(socket, place))
}

fn start(server: &Arc<PeerServer>, listener: &Arc<Listener>, socket: TcpStream) {
    let proved = match prove_at_once(server, listener, socket) {
        Ok(proved) => proved,
        Err(e) => return tracing::debug!(error = %e, "a connection of a peer is refused"),
    };
    let over = server.connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX;
    let counted = Counted(server.clone());
    let cost = server.cache.reserve(Class::Clients, CONNECTION_BYTES);
    let (Some(cost), false) = (cost, over) else {
        // Closed without a word: the peer reads the PFS and comes back later.
        add(&server.counters.refusals_total, 1);
        return;
    };
    let listener = listener.clone();
    let body = move || {
        let stream = match proved {
            Proved::Yes(stream) => Ok(stream),
            Proved::NotYet(socket, place) => {
                let proved = listener.prove(socket, Instant::now() + HELLO_TIME);
                drop(place);
                proved
            }
        };
        let served = stream.and_then(|stream| Serving::new(&counted.0, stream).greet()?.serve());
        if let Err(e) = served {
            tracing::debug!(error = %e, "the connection of a peer has ended");
        }
        drop(cost);
    };
    let spawned = std::thread::Builder::new().name("for-peer".into()).stack_size(STACK_BYTES).spawn(body);
    if let Err(e) = spawned {
        tracing::warn!(error = %e, "no thread for the connection of a peer");
    }
}

/// One connection.
pub(super) struct Serving<'a> {
    pub(super) server: &'a Arc<PeerServer>,
    pub(super) stream: Stream,
    pub(super) buffer: Vec<u8>,
    /// The node at the other end.
    pub(super) node: String,
    /// The program there that writes a file of this node.
    pub(super) guest: Option<Guest>,
    /// What it waits for.
    pub(super) waits: Option<Waits>,
}

/// A page found or on its way.
enum Found {
    /// Whole, and it stays.
    Whole(Arc<Entry>),
    /// Being fetched; whether it is because of this request.
    Coming(Arc<Entry>, Arc<PageFetch>, bool),
}

impl<'a> Serving<'a> {
    fn new(server: &'a Arc<PeerServer>, stream: Stream) -> Self {
        Serving { server, stream, buffer: Vec::new(), node: String::new(), guest: None, waits: None }
    }

    fn greet(mut self) -> io::Result<Self> {
        self.stream.set_timeout(Some(HELLO_TIME))?;
        let PeerRequest::Hello { protocol, node } = frame::receive(&mut self.stream)? else {
            add(&self.server.counters.garbage_total, 1);
            return Err(io::ErrorKind::InvalidData.into());
        };
        let refusal = match protocol {
            PEER_PROTOCOL if self.stream.may_speak_for(&node) => self.membership(&node),
            PEER_PROTOCOL => format!("its certificate does not name node {node:?}"),
            _ => format!("forebay {} speaks peer protocol {PEER_PROTOCOL}", env!("CARGO_PKG_VERSION")),
        };
        let welcome = PeerReply::Welcome { protocol: PEER_PROTOCOL, refusal: refusal.clone() };
        frame::send(&mut self.stream, &welcome)?;
        tracing::debug!(node, protocol, refusal, "a peer has connected");
        self.node = node;
        if refusal.is_empty() { Ok(self) } else { Err(io::Error::other(refusal)) }
    }

    /// Why `node` is not served; empty if it is. A certificate proves a name; the view says whether
    /// the name is a member. A node that has just joined may know it before this one does. Without
    /// TLS a name proves nothing, and nobody but this user and root is here at all.
    fn membership(&self, node: &str) -> String {
        let until = Instant::now() + JOIN_TIME;
        while self.stream.peer_name().is_some() {
            let view = self.server.cluster.view();
            if view.cluster.nodes.iter().any(|member| member.name.eq_ignore_ascii_case(node)) {
                break;
            }
            if Instant::now() >= until || self.server.stop.is_stopping() {
                add(&self.server.counters.refusals_total, 1);
                return format!("node {node:?} is no member of the cluster; only members are served");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        String::new()
    }

    fn serve(mut self) -> io::Result<()> {
        loop {
            self.stream.set_timeout(Some(if self.guest.is_some() { GUEST_IDLE } else { IDLE }))?;
            let request = frame::receive(&mut self.stream)?;
            if self.answer_guest(&request)? {
                continue;
            }
            match request {
                PeerRequest::Page { page, from, wanted, role, job, deadline_ms } => {
                    let deadline = deadline_of(deadline_ms);
                    self.stream.set_timeout(Some(left(deadline)?))?;
                    if let Err(refusal) = self.page((&page, &job), from, (wanted, role), deadline)? {
                        frame::send(&mut self.stream, &refusal)?;
                    }
                }
                PeerRequest::Pages { first, count, wanted, job, deadline_ms } => {
                    let deadline = deadline_of(deadline_ms);
                    self.stream.set_timeout(Some(left(deadline)?))?;
                    if let Err(refusal) = self.pages((&first, &job), count, wanted, deadline)? {
                        frame::send(&mut self.stream, &refusal)?;
                    }
                }
                PeerRequest::Fetch { page, job, deadline_ms } => {
                    let deadline = deadline_of(deadline_ms);
                    self.stream.set_timeout(Some(left(deadline)?))?;
                    let reply = self.fetch(&page, &job, deadline).unwrap_or_else(|reply| reply);
                    frame::send(&mut self.stream, &reply)?;
                }
                PeerRequest::Check { file, page_bytes, pages } => {
                    let reply = self.check(&file, page_bytes, &pages);
                    frame::send(&mut self.stream, &reply)?;
                }
                PeerRequest::Phases { lease_ms, phases } => {
                    let (lease, board) = (Duration::from_millis(lease_ms.into()), &self.server.phases);
                    board.heard(self.node.clone(), lease, phases);
                    let (fetched_bytes, since_read_ms) = (board.fetched_bytes(), board.since_read_ms());
                    let reply = PeerReply::Heard { fetched_bytes, since_read_ms };
                    frame::send(&mut self.stream, &reply)?;
                }
                PeerRequest::Dirty { file, shown, born_ns, known } => {
                    let found = self.server.write_back.content(&file, shown, born_ns);
                    self.dirty(found, known)?;
                }
                PeerRequest::CallIn { file, truncated, gives_up } => {
                    let called = self.server.write_back.call_in_by_name(&file, truncated, gives_up);
                    frame::send(&mut self.stream, &drained(called))?;
                }
                PeerRequest::Blocks { token, uid, blocks } => self.blocks(&token, uid, &blocks)?,
                PeerRequest::Shuffles { app, uid, shuffles } => {
                    let answer = match self.server.shuffles.asked(uid, &app, &shuffles) {
                        Ok((lives, removed)) => PeerReply::Shuffles { lives, removed },
                        Err(e) => PeerReply::Refused(e.to_string()),
                    };
                    frame::send(&mut self.stream, &answer)?;
                }
                PeerRequest::KeepOutput { app, uid, shuffle, map, bytes } => {
                    self.keep_output((&app, uid), (shuffle, map), bytes)?;
                }
                PeerRequest::Keep(kept) => self.keep(&kept)?,
                PeerRequest::Release { file, generation } => {
                    self.server.write_back.release_copy(&self.node, &file, generation);
                    frame::send(&mut self.stream, &PeerReply::Fetched { fetched_bytes: 0 })?;
                }
                PeerRequest::Pass { file, number, left } => {
                    self.server.write_back.note_pass(&self.node, &file, number, left);
                    frame::send(&mut self.stream, &PeerReply::Fetched { fetched_bytes: 0 })?;
                }
                PeerRequest::AskCustody { file, generation } => {
                    let custody = self.server.write_back.custody(&self.node, &file, generation);
                    frame::send(&mut self.stream, &PeerReply::Custody(custody))?;
                }
                // The answer to a page that was sent from the buffer, or half of which was sent.
                PeerRequest::Taken => {}
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Takes in the second copy of a file that is dirty at the asking node.
    fn keep(&mut self, kept: &KeptFile) -> io::Result<()> {
        let write_back = &self.server.write_back;
        let coming = match write_back.begin_copy(&self.node, kept) {
            Ok(coming) => coming,
            Err(why) => return frame::send(&mut self.stream, &PeerReply::Refused(why)),
        };
        let done = || PeerReply::Fetched { fetched_bytes: 0 };
        frame::send(&mut self.stream, &done())?;
        self.stream.set_timeout(Some(HELLO_TIME))?;
        let pipe = self.stream.plain().map(|_| pipe_with(PipeFlags::CLOEXEC)).transpose()?;
        if let Some((read, _)) = &pipe {
            // Users who have many pipes may not enlarge one.
            let _ = fcntl_setpipe_size(read, COPY_PIPE_BYTES);
        }
        for (from, to) in &kept.ranges {
            let mut at = *from;
            while at < *to {
                if let (Some(pipe), Some(socket)) = (&pipe, self.stream.plain()) {
                    match coming.take(socket, pipe, at, *to - at)? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        taken => at += taken,
                    }
                    continue;
                }
                self.buffer.resize(COPY_BUFFER_BYTES, 0);
                let part = &mut self.buffer[..(to - at).min(COPY_BUFFER_BYTES as u64) as usize];
                let read = io::Read::read(&mut self.stream, part)?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                coming.write(&part[..read], at)?;
                at += read as u64;
            }
        }
        let reply = match write_back.end_copy(&self.node, kept, coming) {
            Ok(()) => done(),
            Err(e) => PeerReply::Refused(format!("the tier failed: {e}")),
        };
        frame::send(&mut self.stream, &reply)
    }

    /// Takes in the second copy of a map output.
    fn keep_output(&mut self, (app, uid): (&App, u32), output: (u32, u64), bytes: u64) -> io::Result<()> {
        let shuffles = &self.server.shuffles;
        let coming = match shuffles.begin_copy(uid, app, bytes) {
            Ok(coming) => coming,
            Err(why) => return frame::send(&mut self.stream, &PeerReply::Refused(why)),
        };
        let done = || PeerReply::Fetched { fetched_bytes: 0 };
        frame::send(&mut self.stream, &done())?;
        self.stream.set_timeout(Some(HELLO_TIME))?;
        let file = coming.file.for_writing()?;
        self.buffer.resize(COPY_BUFFER_BYTES, 0);
        let mut at = 0;
        while at < bytes {
            let part = &mut self.buffer[..(bytes - at).min(COPY_BUFFER_BYTES as u64) as usize];
            io::Read::read_exact(&mut self.stream, part)?;
            write_all_at(file.as_fd(), part, at)?;
            at += part.len() as u64;
        }
        let ended = shuffles.end_copy(uid, &app.token, output, coming);
        frame::send(&mut self.stream, &ended.map_or_else(PeerReply::Refused, |()| done()))
    }

    /// Sends the content of a dirty file as it is now.
    fn dirty(&mut self, found: Option<ContentNow>, known: Option<(u64, i64)>) -> io::Result<()> {
        let Some(ContentNow { size, mtime_ns, is_settled, content }) = found else {
            return frame::send(&mut self.stream, &PeerReply::Refused("it is not dirty here".into()));
        };
        let is_known = known == Some((size, mtime_ns)) && is_settled;
        frame::send(&mut self.stream, &PeerReply::Dirty { size, mtime_ns, is_known, is_settled })?;
        self.send_range(&content, if is_known { size } else { 0 }..size)
    }

    /// Sends blocks of map outputs. They are copied: a file that is removed meanwhile is an error,
    /// and never zeros.
    fn blocks(&mut self, token: &str, uid: u32, blocks: &[Block]) -> io::Result<()> {
        let found = match self.server.shuffles.blocks_here(uid, token, blocks) {
            Ok(found) => found,
            Err(e) => {
                let errno = e.raw_os_error().unwrap_or(libc::ENOENT);
                return frame::send(&mut self.stream, &PeerReply::Failed { errno, message: e.to_string() });
            }
        };
        let lengths = found.iter().map(|(_, part, total)| (part.end - part.start, *total)).collect();
        frame::send(&mut self.stream, &PeerReply::Blocks { lengths })?;
        for (file, range, _) in found {
            add(&self.server.counters.shuffle_to_peers_bytes, range.end - range.start);
            self.send_range(&file, range)?;
        }
        Ok(())
    }

    /// Sends bytes of a file from the buffer.
    fn send_range(&mut self, file: &OwnedFd, range: Range<u64>) -> io::Result<()> {
        self.buffer.resize(BUFFER_BYTES, 0);
        let mut done = range.start;
        while done < range.end {
            let part = &mut self.buffer[..(range.end - done).min(BUFFER_BYTES as u64) as usize];
            let read = rustix::io::pread(file, &mut *part, done)?;
            if read == 0 {
                // A program has shortened it: the asker asks again.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            io::Write::write_all(&mut self.stream, &part[..read])?;
            done += read as u64;
        }
        Ok(())
    }

    /// Sends a page; the inner error is the answer to give instead of the next piece.
    fn page(
        &mut self,
        (page, job): (&PageRef, &JobName),
        mut from: u64,
        (wanted, role): (Wanted, Role),
        deadline: Instant,
    ) -> io::Result<Result<(), PeerReply>> {
        let (found, patience) = match role {
            Role::Owner => {
                let (urgency, patience) = hurry(wanted, deadline);
                (self.find(page, job, urgency, patience), patience)
            }
            // The owner has made all of them wait.
            Role::Relay => (self.passed_on(page), patience(deadline)),
        };
        let (entry, page_fetch) = match found {
            Err(refusal) => return Ok(Err(refusal)),
            Ok(Found::Whole(entry)) => (entry, None),
            Ok(Found::Coming(entry, page_fetch, _)) => (entry, Some(page_fetch)),
        };
        let page_len = entry.geometry().page_len(page.page);
        if from >= page_len || !from.is_multiple_of(BLOCK_BYTES) {
            return Ok(Err(PeerReply::Refused(format!("nothing at byte {from} of a page of {page_len}"))));
        }
        if role == Role::Owner
            && let Source::Relay(node) = self.source(entry.key(page.page))
        {
            return Ok(Err(PeerReply::Relay(node)));
        }
        // The fetch for this request has counted that as its first use. Passing it on to where a
        // task will read it is not a use, and must not end the protection that a request here gives
        // it.
        let is_use = wanted != Wanted::Plan && role == Role::Owner;
        if is_use && (page_fetch.is_none() || wanted == Wanted::Ahead) {
            self.server.cache.touch(&[entry.key(page.page)]);
        }
        if let Some(page_fetch) = page_fetch
            && let Err(refusal) = self.send_coming(&entry, &page_fetch, &mut from, patience)?
        {
            return Ok(Err(refusal));
        }
        if from < page_len {
            let sent = match self.server.cache.lend(&entry, page.page) {
                Some(lent) if self.stream.plain().is_some() => {
                    let start = u64::from(page.page) * entry.geometry().page_bytes;
                    let bytes = start + from..start + page_len;
                    return self.send_lent(self.server, vec![lent], bytes, deadline).map(Ok);
                }
                _ => self.send_valid(&entry, page.page, &mut from, page_len)?,
            };
            if !sent {
                return Ok(Err(PeerReply::Busy("the page was evicted meanwhile".into())));
            }
        }
        add(&self.server.counters.pages_to_peers_total, 1);
        Ok(Ok(()))
    }

    /// Sends bytes of adjacent pages straight out of the tier, and keeps the pages there until the
    /// asker has them.
    ///
    /// # Panics
    /// There are no pages.
    pub(super) fn send_lent(
        &mut self,
        server: &PeerServer,
        lent: Vec<Lent<'_>>,
        bytes: Range<u64>,
        deadline: Instant,
    ) -> io::Result<()> {
        let len = bytes.end - bytes.start;
        let sent = self.send_and_wait(&lent[0].file, len, bytes.start, deadline);
        match &sent {
            Ok(()) => {
                add(&server.counters.pages_to_peers_total, lent.len() as u64);
                add(&server.counters.to_peers_bytes, len);
            }
            // Before the page is let go of: what is still queued here must not be sent any more.
            Err(_) => reset(&self.stream),
        }
        drop(lent);
        sent
    }

    fn send_and_wait(&mut self, file: &CopyFile, len: u64, offset: u64, deadline: Instant) -> io::Result<()> {
        frame::send(&mut self.stream, &PeerReply::Piece { len })?;
        let mut done = 0;
        while done < len {
            self.stream.set_timeout(Some(left(deadline)?))?;
            let sent = match self.stream.plain() {
                Some(socket) => file.send_to(socket, offset + done, len - done)?,
                None => self.send_copied(file, offset + done, len - done)?,
            };
            if sent == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += sent;
        }
        self.stream.set_timeout(Some(left(deadline)?))?;
        match frame::receive(&mut self.stream)? {
            PeerRequest::Taken => Ok(()),
            other => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{other:?} before the page was taken"),
            )),
        }
    }

    /// Sends up to `len` bytes of pages that stay, from the buffer; returns how many.
    fn send_copied(&mut self, file: &CopyFile, offset: u64, len: u64) -> io::Result<u64> {
        self.buffer.resize(BUFFER_BYTES, 0);
        let bytes = &mut self.buffer[..len.min(BUFFER_BYTES as u64) as usize];
        file.read_unproved(bytes, offset)?;
        io::Write::write_all(&mut self.stream, bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Sends a page as it is fetched, until it is whole; the inner error is why it does not
    /// continue.
    fn send_coming(
        &mut self,
        entry: &Arc<Entry>,
        page_fetch: &PageFetch,
        from: &mut u64,
        patience: Instant,
    ) -> io::Result<Result<(), PeerReply>> {
        loop {
            match page_fetch.wait(*from + 1, patience) {
                FetchState::Landed => return Ok(Ok(())),
                FetchState::Under(valid) if valid > *from => {
                    if !self.send_valid(entry, page_fetch.page, from, valid)? {
                        return Ok(Err(PeerReply::Busy("the page was taken back".into())));
                    }
                }
                FetchState::Under(_) => return Ok(Err(PeerReply::NotYet)),
                FetchState::Failed(e) => return Ok(Err(failed(e))),
            }
        }
    }

    /// Sends the bytes up to `valid` of a page from the buffer; `false` if they went away
    /// meanwhile.
    pub(super) fn send_valid(
        &mut self,
        entry: &Arc<Entry>,
        page: u32,
        from: &mut u64,
        valid: u64,
    ) -> io::Result<bool> {
        let Ok(file) = self.server.cache.file(entry) else { return Ok(false) };
        self.buffer.resize(BUFFER_BYTES, 0);
        let start = u64::from(page) * entry.geometry().page_bytes;
        while *from < valid {
            let piece = (valid - *from).min(BUFFER_BYTES as u64);
            let bytes = &mut self.buffer[..piece as usize];
            let before = file.word(page);
            if !before.covers(*from + piece) {
                return Ok(false);
            }
            file.read_unproved(bytes, start + *from)?;
            if file.word(page).generation != before.generation {
                return Ok(false);
            }
            frame::send(&mut self.stream, &PeerReply::Piece { len: piece })?;
            io::Write::write_all(&mut self.stream, bytes)?;
            add(&self.server.counters.to_peers_bytes, piece);
            *from += piece;
        }
        Ok(true)
    }

    /// Fetches a page into this tier.
    fn fetch(&self, page: &PageRef, job: &JobName, deadline: Instant) -> Result<PeerReply, PeerReply> {
        let until = patience(deadline).min(Instant::now() + PATIENCE_AHEAD);
        let (entry, page_fetch, mine) = match self.find(page, job, Urgency::Load, until)? {
            Found::Whole(_) => return Ok(PeerReply::Fetched { fetched_bytes: 0 }),
            Found::Coming(entry, page_fetch, mine) => (entry, page_fetch, mine),
        };
        let page_len = entry.geometry().page_len(page.page);
        match page_fetch.wait(page_len, until) {
            FetchState::Landed => Ok(PeerReply::Fetched { fetched_bytes: if mine { page_len } else { 0 } }),
            FetchState::Under(_) => Err(PeerReply::NotYet),
            FetchState::Failed(e) => Err(failed(e)),
        }
    }

    /// Reports which pages are not here. Nothing is opened for that, and nothing counts as used.
    fn check(&self, file: &FileRef, page_bytes: u64, pages: &[u32]) -> PeerReply {
        if pages.len() > CHECKED_MAX {
            return PeerReply::Refused(format!("at most {CHECKED_MAX} pages are looked for at a time"));
        }
        let cache = &self.server.cache;
        let mount = self.server.mounts.iter().position(|m| m.label() == file.mount);
        let entry = mount.and_then(|mount| cache.find_version(mount, &file.version));
        let copy = entry.filter(|e| e.identity.page_bytes == page_bytes).and_then(|e| cache.file(&e).ok());
        let is_here = |page: u32| {
            let copy = copy.as_ref().filter(|copy| u64::from(page) < copy.geometry().pages());
            copy.is_some_and(|copy| copy.word(page).state == State::Resident)
        };
        PeerReply::Missing { pages: pages.iter().copied().filter(|page| !is_here(*page)).collect() }
    }

    /// The mount of a page and of those up to `last` of its file, if they may be served.
    pub(super) fn mount_of(&self, page: &PageRef, last: u32) -> Result<usize, PeerReply> {
        let server = self.server;
        let refuse = |why: String| Err(PeerReply::Refused(why));
        let Some(mount) = server.mounts.iter().position(|m| m.label() == page.file.mount) else {
            return refuse(format!("no mount is called {:?} here", page.file.mount));
        };
        let config = &server.mounts[mount].config;
        let page_bytes = match page.file.path.is_empty() && page.page_bytes == SMALL_PAGE_BYTES {
            // The asker does not know its name.
            true => page.page_bytes,
            false => config.page_bytes_of(&page.file.path, page.file.version.size),
        };
        if page.page_bytes != page_bytes {
            return refuse(format!(
                "pages of such files on {:?} have {page_bytes} bytes here",
                page.file.mount
            ));
        }
        if u64::from(last) >= page.file.version.size.div_ceil(page_bytes) {
            return refuse(format!("the file has no page {last}"));
        }
        if !server.mounts[mount].is_believed() {
            return refuse(Refusal::StampsUnproved.to_string());
        }
        Ok(mount)
    }

    /// The node that sends a page to this connection's node.
    fn source(&self, page: u64) -> Source {
        let now = Nanos(self.server.started.elapsed().as_nanos() as u64);
        lock(&self.server.spread).source(now, page, node_number(&self.node))
    }

    /// The page, if it is here or comes here; nothing is fetched for it.
    fn passed_on(&self, page: &PageRef) -> Result<Found, PeerReply> {
        let (cache, mount) = (&self.server.cache, self.mount_of(page, page.page)?);
        let known = cache.find_version(mount, &page.file.version);
        let entry = known.filter(|entry| entry.identity.page_bytes == page.page_bytes);
        let absent = || PeerReply::Busy("the page is not here".into());
        let entry = entry.ok_or_else(absent)?;
        // In this order: it may arrive in between.
        if let Some(page_fetch) = entry.page_fetch(page.page) {
            return Ok(Found::Coming(entry, page_fetch, false));
        }
        let is_here = cache.file(&entry).is_ok_and(|file| file.word(page.page).state == State::Resident);
        if is_here { Ok(Found::Whole(entry)) } else { Err(absent()) }
    }

    /// Finds the page or puts it on its way; waits until `until` for its file to be opened.
    fn find(
        &self,
        page: &PageRef,
        job: &JobName,
        urgency: Urgency,
        until: Instant,
    ) -> Result<Found, PeerReply> {
        let (server, page_bytes) = (self.server, page.page_bytes);
        let mount = self.mount_of(page, page.page)?;
        let known = server.cache.find_version(mount, &page.file.version);
        let known = known.filter(|e| e.identity.page_bytes == page_bytes);
        let on_its_way = known.as_ref().is_some_and(|e| e.is_being_fetched(page.page));
        if let Some(entry) = known
            && server.cache.file(&entry).is_ok_and(|f| f.word(page.page).state == State::Resident)
        {
            return Ok(Found::Whole(entry));
        }
        let pfs = self.open_for(&page.file, job, until)?;
        let leave = match urgency {
            Urgency::Plan if !on_its_way => {
                let leave = server.requests.pass(mount, Instant::now() + PATIENCE_AHEAD);
                Some(Arc::new(leave.ok_or(PeerReply::NotYet)?))
            }
            _ => None,
        };
        // Twice: an entry can be removed between being found and being boarded.
        for _ in 0..2 {
            let entry = self.entry(mount, page, &pfs)?;
            if let Some(found) = self.board(entry, page.page, &pfs, urgency)? {
                // Kept until it has come, or released immediately if it has.
                if let (Some(leave), Found::Coming(_, page_fetch, true)) = (leave, &found) {
                    page_fetch.watch(leave);
                }
                return Ok(found);
            }
        }
        Err(PeerReply::Busy("the copy is being removed".into()))
    }

    /// A file, to be read for a job of the asking node. The job's limit is that node's to keep.
    pub(super) fn open_for(
        &self,
        file: &FileRef,
        job: &JobName,
        until: Instant,
    ) -> Result<Arc<PfsFile>, PeerReply> {
        let account = self.server.fetch.traffic.account(job.user, &job.job);
        Ok(Arc::new(self.server.files.open(file, until)?.of_job(account)))
    }

    pub(super) fn entry(
        &self,
        mount: usize,
        page: &PageRef,
        pfs: &Arc<PfsFile>,
    ) -> Result<Arc<Entry>, PeerReply> {
        let server = self.server;
        // `OpenFiles` has sealed the version.
        if let Some(entry) = server.cache.find_version(mount, &page.file.version) {
            entry.seal();
            return in_pages_of(page.page_bytes, entry);
        }
        let state = &server.mounts[mount];
        let facts = state.facts(pfs.as_fd()).map_err(|e| PeerReply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: e.to_string(),
        })?;
        if facts.version != page.file.version {
            server.files.forget(&page.file);
            return Err(PeerReply::Changed);
        }
        let made = server.fetch.entry(&Admitted { mount, facts }, pfs.as_fd());
        let made = made.map_err(NoEntry::peer_reply)?;
        made.seal();
        in_pages_of(page.page_bytes, made)
    }

    /// Joins the page's fetch or starts one; `None` if the entry is gone.
    fn board(
        &self,
        entry: Arc<Entry>,
        page: u32,
        pfs: &Arc<PfsFile>,
        urgency: Urgency,
    ) -> Result<Option<Found>, PeerReply> {
        match self.server.fetch.request_for_peer(&entry, page, pfs, urgency) {
            Ok(Some(Requested { page_fetch, is_new, .. })) => {
                Ok(Some(Found::Coming(entry, page_fetch, is_new)))
            }
            Ok(None) => Ok(None),
            Err(AtPeer) => Err(PeerReply::Busy("the page is being asked of another peer here".into())),
        }
    }
}

/// The answer to what a peer waits for.
pub(super) fn drained(drained: Drained) -> PeerReply {
    match drained {
        Drained::Yes => PeerReply::Fetched { fetched_bytes: 0 },
        Drained::NotYet => PeerReply::NotYet,
        Drained::Failed(errno, message) => PeerReply::Failed { errno, message },
    }
}

pub(super) fn failed(e: FetchError) -> PeerReply {
    match e {
        FetchError::Changed => PeerReply::Changed,
        FetchError::NoRoom => PeerReply::Busy("no room in the tier".into()),
        FetchError::Pfs { errno, message } => PeerReply::Failed { errno, message },
        FetchError::Cancelled => PeerReply::Busy("too much to fetch".into()),
    }
}

/// The urgency of a fetch for an asker, and the time of the answer that the page is not there yet.
pub(super) fn hurry(wanted: Wanted, deadline: Instant) -> (Urgency, Instant) {
    let soon = patience(deadline).min(Instant::now() + PATIENCE_AHEAD);
    match wanted {
        Wanted::Now => (Urgency::Demand, patience(deadline)),
        Wanted::Ahead => (Urgency::Ahead, soon),
        Wanted::Plan => (Urgency::Plan, soon),
        Wanted::Refill => (Urgency::Refill, soon),
    }
}

fn deadline_of(deadline_ms: u32) -> Instant {
    Instant::now() + Duration::from_millis(deadline_ms.into()).min(DEADLINE_MAX)
}

/// When an asker with this deadline is notified that the page is not there yet.
fn patience(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) * PATIENCE.0 / PATIENCE.1
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Ends the connection so that nothing queued is sent any more: without lingering, closing throws
/// it away. The socket itself is disconnected immediately, since other owners of the descriptor
/// could keep it open.
fn reset(stream: &Stream) {
    let socket = stream.socket();
    // Best effort: the asker's own deadline holds without it.
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
    disconnect(socket);
}

/// `connect` to nowhere: the kernel resets a connected TCP socket and empties its queue.
fn disconnect(socket: &TcpStream) {
    use std::os::fd::AsRawFd;
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    let len = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the address lives for the whole call and is as long as it is said to be.
    let _ = unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, len) };
}

/// The copy, if its pages are of the requested size. A copy from before the mount got another page
/// size has different ones, in which the same page number is other bytes.
fn in_pages_of(page_bytes: u64, entry: Arc<Entry>) -> Result<Arc<Entry>, PeerReply> {
    if entry.identity.page_bytes == page_bytes {
        return Ok(entry);
    }
    Err(PeerReply::Refused(format!("the copy here has pages of {} bytes", entry.identity.page_bytes)))
}
