//! Writes a file.
//!
//! Every mode states its promise:
//!
//! - **bypass**: the PFS and nothing else. What a program gets without Forebay.
//! - **through**: the PFS, and the tier beside it, so that the next reader finds it in memory. The
//!   promise is the PFS's: a write that returned is where the PFS put it, and an error of the PFS
//!   is the program's error. The tier can only miss pages, never fail a write.
//! - **memory-only**: this node's memory. Gone with the job, the agent or the node; never on the
//!   PFS. Known by its path to the processes of the job.
//!
//! - **back**: the tier first; the agent writes it to the PFS after the close ([`crate::dirty`]). A
//!   write that returned is in this node's memory, and survives the program and the agent, not the
//!   node. Where the tier cannot take the file, the PFS does.
//!
//! Small writes are gathered to one megabyte, as a C library gathers them to blocks; `sync` and
//! `close` send what is left. An appender opens the file with `O_APPEND` and lets the PFS place
//! each write, since others may append as well; it sends whole calls only, so that no record of one
//! appender is cut by a record of another. Pages reach the tier only if they were written in one go
//! from the start; a file that somebody else changes meanwhile is noticed by its time stamps and
//! not kept.

use crate::dirty::{Absorbed, Target};
use crate::error::{errno, out_of_files, with_message};
use crate::session::{Client, Session, unexpected};
use forebay_pfs::{FileFacts, Revalidate};
use forebay_store::staging::Staging;
use forebay_wire::{Channel, Reply, Request};
use rustix::fs::{Mode, OFlags, SeekFrom, fsync, open, seek};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Small writes gather to this much before they go to the PFS.
const GATHER_BYTES: usize = 1 << 20;

/// Room of a memory-only file is requested in steps, so that most writes need not ask.
const RESERVE_STEP_BYTES: u64 = 64 << 20;

/// How long a writer waits for a free slot of the staging buffer before it leaves the page out.
const SLOT_PATIENCE: Duration = Duration::from_millis(20);

/// A file that was checked less than this time ago needs no check before the next write.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Where written bytes go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMode {
    /// The PFS only.
    Bypass,
    /// The PFS and the tier.
    #[default]
    Through,
    /// This node's memory, for this job.
    MemoryOnly,
    /// This node's memory, and the PFS after the close.
    Back,
}

/// How a file is opened for writing.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// Where the bytes go.
    pub mode: WriteMode,
    /// Fail if the file exists.
    pub exclusive: bool,
    /// Keep the existing content and write at its end, wherever that is at each write (`O_APPEND`).
    /// What is appended is not kept in the tier: the writer does not know its place in the file.
    pub append: bool,
    /// Permission bits of a new file, before the process's umask.
    pub permissions: u32,
}

impl Default for WriteOptions {
    fn default() -> Self {
        WriteOptions { mode: WriteMode::Through, exclusive: false, append: false, permissions: 0o666 }
    }
}

/// A file open for writing, at its end; one thread at a time.
#[derive(Debug)]
pub struct FileWriter {
    path: PathBuf,
    gathered: Vec<u8>,
    /// The PFS places each write at the end that the file has by then.
    append: bool,
    /// Where the next byte goes that leaves `gathered`.
    position: u64,
    sink: Sink,
    closed: bool,
    /// The process that opened it: what is gathered is written once, not by every forked child as
    /// well.
    pid: u32,
}

#[derive(Debug)]
enum Sink {
    Pfs { file: OwnedFd, tier: Option<Box<TierWriter>>, client: Client },
    Scratch { file: OwnedFd, copy: u64, reserved: u64, client: Client },
    Back { content: OwnedFd, absorbed: Absorbed, pfs: OwnedFd, client: Client },
}

impl Client {
    /// Creates (or truncates) `path` for writing.
    ///
    /// # Errors
    /// What the PFS returns. For memory-only files `NotConnected` without an agent, and `ENOSPC`
    /// without room.
    pub fn create(&self, path: impl AsRef<Path>, mode: WriteMode) -> io::Result<FileWriter> {
        self.create_with(path, WriteOptions { mode, ..WriteOptions::default() })
    }

    /// Opens `path` for writing.
    ///
    /// # Errors
    /// As [`Client::create`]; `EEXIST` with [`WriteOptions::exclusive`]; `EINVAL`:
    /// [`WriteOptions::append`] to a memory-only file.
    pub fn create_with(&self, path: impl AsRef<Path>, options: WriteOptions) -> io::Result<FileWriter> {
        let path = path.as_ref();
        if options.append && options.mode == WriteMode::MemoryOnly {
            let why = format!("{}: memory-only files cannot be appended to", path.display());
            return Err(with_message(libc::EINVAL, why));
        }
        let (sink, position) = match options.mode {
            WriteMode::MemoryOnly => (self.create_scratch(path, &options)?, 0),
            mode => self.create_on_pfs(path, mode, &options)?,
        };
        Ok(FileWriter {
            path: path.to_owned(),
            gathered: Vec::new(),
            append: options.append,
            position,
            sink,
            closed: false,
            pid: std::process::id(),
        })
    }

    fn create_on_pfs(&self, path: &Path, mode: WriteMode, options: &WriteOptions) -> io::Result<(Sink, u64)> {
        let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        flags |= if options.append { OFlags::APPEND } else { OFlags::TRUNC };
        if options.exclusive {
            flags |= OFlags::EXCL;
        }
        let file = open(path, flags, Mode::from(options.permissions))?;
        if mode == WriteMode::Back
            && let Ok((absorbed, content)) = self.absorb(file.as_fd(), true, (flags, !options.append))
        {
            let position = if options.append { seek(&content, SeekFrom::End(0))? } else { 0 };
            let client = self.clone();
            return Ok((Sink::Back { content, absorbed, pfs: file, client }, position));
        }
        let position = if options.append { seek(&file, SeekFrom::End(0))? } else { 0 };
        let keep = mode == WriteMode::Through && !options.append;
        let tier =
            if keep { TierWriter::begin(&self.session, path, file.as_fd()).map(Box::new) } else { None };
        Ok((Sink::Pfs { file, tier, client: self.clone() }, position))
    }

    fn create_scratch(&self, path: &Path, options: &WriteOptions) -> io::Result<Sink> {
        let session = &self.session;
        let job = session.job().map_err(|e| {
            let number = out_of_files(&e).map_or(libc::ENOTCONN, |_| errno(&e));
            let why = format!("{}: memory-only files need an agent: {e}", path.display());
            with_message(number, why)
        })?;
        let request = Request::ScratchCreate { job, name: scratch_name(path)?, exclusive: options.exclusive };
        let answer = session.call(&request, &[], session.config.deadline)?;
        match (answer.message, answer.fds.into_iter().next()) {
            (Reply::Scratch { copy, .. }, Some(file)) => {
                Ok(Sink::Scratch { file, copy, reserved: 0, client: self.clone() })
            }
            (reply, _) => Err(in_words(path, unexpected(&reply))),
        }
    }

    /// Removes a file: the memory-only one of that path if this job has one, else the one on the
    /// PFS.
    ///
    /// # Errors
    /// What the PFS returns.
    pub fn remove(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        if let Some(job) = self.session.known_job() {
            let request = Request::ScratchRemove { job, name: scratch_name(path)? };
            let answer = self.session.call(&request, &[], self.session.config.deadline);
            if answer.is_ok_and(|a| a.message == Reply::Done) {
                return Ok(());
            }
        }
        std::fs::remove_file(path)
    }

    /// Names and lengths in bytes of this job's memory-only files.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn scratch_files(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let Some(job) = self.session.known_job() else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        let mut after = Vec::new();
        loop {
            let request = Request::ScratchList { job: job.clone(), after: after.clone() };
            match self.session.call(&request, &[], self.session.config.deadline)?.message {
                Reply::ScratchList { files, more } => {
                    after = files.last().map(|f| f.0.clone()).unwrap_or_default();
                    let named =
                        |(name, size): (Vec<u8>, u64)| (std::ffi::OsStr::from_bytes(&name).into(), size);
                    // Others are not files: see `is_first_in_job`.
                    let files = files.into_iter().filter(|(name, _)| name.first() == Some(&b'/'));
                    all.extend(files.map(named));
                    if !more {
                        return Ok(all);
                    }
                }
                reply => return Err(unexpected(&reply)),
            }
        }
    }

    /// Whether this process belongs to a job that has begun. If not, its first memory-only file
    /// begins one, which ends with the process.
    pub fn in_scratch_job(&self) -> bool {
        self.session.known_job().is_some()
    }

    /// Whether no process of this job has asked this about `what` before. Waits up to `limit`.
    ///
    /// # Errors
    /// No job, no agent, or it refused.
    pub fn is_first_in_job(&self, what: &str, limit: Duration) -> io::Result<bool> {
        let job = self.session.known_job().ok_or(io::ErrorKind::NotFound)?;
        // A memory-only file that no path names.
        let request = Request::ScratchCreate { job, name: what.into(), exclusive: true };
        match self.session.ask_once(&request, limit)? {
            Reply::Scratch { .. } => Ok(true),
            Reply::Failed { errno: libc::EEXIST, .. } => Ok(false),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Begins a job with memory-only files for this process and its children, who find it in the
    /// environment variable `FOREBAY_JOB`. Returns its token. The job ends with this process.
    ///
    /// # Errors
    /// No agent, or it refused.
    pub fn begin_scratch_job(&self) -> io::Result<String> {
        self.session.job()
    }

    /// As [`Client::begin_scratch_job`], for the program that this process is about to execute.
    /// Returns also whether the job then outlives the connection; if not, another process must keep
    /// the connection.
    ///
    /// # Errors
    /// No agent, or it refused.
    pub fn begin_scratch_job_of_program(&self) -> io::Result<(String, bool)> {
        match self.session.known_job() {
            Some(token) => Ok((token, true)),
            None => self.session.begin_job(true),
        }
    }
}

/// A memory-only file is known by its absolute path.
fn scratch_name(path: &Path) -> io::Result<Vec<u8>> {
    Ok(std::path::absolute(path)?.as_os_str().as_bytes().to_vec())
}

/// Opens the memory-only file of this job with that path, if there is one.
pub(crate) fn open_scratch(session: &Session, path: &Path) -> Option<(OwnedFd, u64)> {
    let job = session.known_job()?;
    let request = Request::ScratchOpen { job, name: scratch_name(path).ok()? };
    let answer = session.call(&request, &[], session.config.deadline).ok()?;
    match (answer.message, answer.fds.into_iter().next()) {
        (Reply::Scratch { size, .. }, Some(file)) => Some((file, size)),
        _ => None,
    }
}

fn in_words(path: &Path, e: io::Error) -> io::Error {
    with_message(errno(&e), format!("{}: {e}", path.display()))
}

impl FileWriter {
    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes written so far, those still gathered included. An appender adds the length that the
    /// file had when it was opened; what others append meanwhile is not counted.
    pub fn position(&self) -> u64 {
        self.position + self.gathered.len() as u64
    }

    /// Sends what was gathered. After an error the rest stays: the program counts on its being
    /// written, so the next call tries again.
    fn send_gathered(&mut self) -> io::Result<()> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let mut sent = Ok(());
        while sent.is_ok() && !gathered.is_empty() {
            sent = self.send(&gathered).map(|n| drop(gathered.drain(..n)));
        }
        self.gathered = gathered;
        sent
    }

    /// Sends `data`, or its front if an error stopped the rest; returns the bytes sent.
    fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.pid != std::process::id() {
            let path = self.path.display();
            return Err(with_message(
                libc::EINVAL,
                format!("{path}: opened by another process; open it in this one"),
            ));
        }
        let at = (!self.append).then_some(self.position);
        self.go_on_where_there_is_room(data.len() as u64)?;
        let sent = match &mut self.sink {
            Sink::Pfs { file, tier, client } => {
                if let Some(tier) = tier {
                    tier.before_write(file.as_fd());
                }
                client.pace(data.len() as u64);
                let sent = write_some(file.as_fd(), data, at)?;
                if let Some(tier) = tier {
                    tier.after_write(file.as_fd(), &data[..sent], self.position);
                }
                sent
            }
            Sink::Scratch { file, copy, reserved, client } => {
                let end = self.position + data.len() as u64;
                if end > *reserved {
                    *reserved = reserve_scratch(client, *copy, end).map_err(|e| in_words(&self.path, e))?;
                }
                write_some(file.as_fd(), data, at)?
            }
            Sink::Back { content, absorbed, .. } => {
                let sent = write_some(content.as_fd(), data, at);
                absorbed.end();
                sent?
            }
        };
        self.position += sent as u64;
        Ok(sent)
    }

    /// Announces a write to the tier; from the first one that cannot go there on, the PFS gets all.
    fn go_on_where_there_is_room(&mut self, bytes: u64) -> io::Result<()> {
        if let Sink::Back { absorbed, client, .. } = &self.sink
            && absorbed.begin(client, bytes)? == Target::Pfs
        {
            self.leave_tier()?;
        }
        Ok(())
    }

    fn leave_tier(&mut self) -> io::Result<()> {
        if let Sink::Back { pfs, client, .. } = &self.sink {
            self.sink = Sink::Pfs { file: pfs.try_clone()?, tier: None, client: client.clone() };
        }
        Ok(())
    }

    /// Hands what was gathered to the PFS and returns a descriptor of the file, for a program that
    /// continues by itself, at any position. The tier keeps nothing of the file: it can no longer
    /// know what was written.
    ///
    /// # Errors
    /// What the PFS returns; `EINVAL` for memory-only files, whose room is reserved as they grow.
    pub fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.send_gathered()?;
        if let Sink::Back { absorbed, client, .. } = &self.sink {
            absorbed.go_on_at_pfs(client)?;
            self.leave_tier()?;
        }
        match &mut self.sink {
            Sink::Pfs { file, tier, .. } => {
                *tier = None;
                Ok(rustix::io::fcntl_dupfd_cloexec(file, 0)?)
            }
            Sink::Scratch { .. } => {
                let path = self.path.display();
                let why = format!(
                    "{path}: a memory-only file is written from its start to its end and has no descriptor"
                );
                Err(with_message(libc::EINVAL, why))
            }
            Sink::Back { .. } => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Makes what was written durable, as the PFS promises for `fsync`. For files that are written
    /// back it waits for a second node, if that is configured; [`Client::sync_dirty`] waits for the
    /// PFS.
    ///
    /// # Errors
    /// What the PFS returns.
    pub fn sync(&mut self) -> io::Result<()> {
        self.send_gathered()?;
        match &self.sink {
            Sink::Pfs { file, .. } => Ok(fsync(file)?),
            Sink::Back { absorbed, client, .. } => absorbed.keep(client),
            Sink::Scratch { .. } => Ok(()),
        }
    }

    /// Writes what is left and closes. After it has returned, the next open finds the file in the
    /// tier (through mode, if there was room).
    ///
    /// # Errors
    /// What the PFS returns for the last write; only a file closed without error is surely all
    /// there.
    pub fn close(mut self) -> io::Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.closed, true) || self.pid != std::process::id() {
            return Ok(());
        }
        let sent = self.send_gathered();
        match &mut self.sink {
            Sink::Pfs { file, tier, .. } => {
                if let Some(tier) = tier.take().filter(|_| sent.is_ok()) {
                    tier.commit(&self.path, file.as_fd(), self.position);
                }
            }
            Sink::Scratch { copy, client, .. } => {
                // Release the part of the last step that was not used; if it fails it goes with
                // the job.
                let request = Request::ScratchReserve { copy: *copy, bytes: self.position };
                let _ = client.session.call(&request, &[], client.session.config.deadline);
            }
            // The agent sees the close of the content.
            Sink::Back { absorbed, client, .. } => {
                let kept = sent.and_then(|()| absorbed.keep(client));
                absorbed.note_closed();
                return kept;
            }
        }
        sent
    }
}

fn reserve_scratch(client: &Client, copy: u64, end: u64) -> io::Result<u64> {
    let session = &client.session;
    // A large step first; in a nearly full tier just what is needed.
    for bytes in [end.next_multiple_of(RESERVE_STEP_BYTES), end] {
        match session.call(&Request::ScratchReserve { copy, bytes }, &[], session.config.deadline)?.message {
            Reply::Done => return Ok(bytes),
            Reply::Refused(_) if bytes > end => {}
            reply => return Err(unexpected(&reply)),
        }
    }
    Err(io::ErrorKind::StorageFull.into())
}

impl Write for FileWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = GATHER_BYTES - self.gathered.len();
        // An appender takes the data of one call as a whole or not at all: another one may write in
        // between.
        if room == 0 || self.append && room < data.len() {
            // Before anything of `data` is taken, so that an error means that nothing of it was.
            self.send_gathered()?;
        }
        if self.gathered.is_empty() && data.len() >= GATHER_BYTES {
            return self.send(data);
        }
        let n = data.len().min(GATHER_BYTES - self.gathered.len());
        self.gathered.extend_from_slice(&data[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_gathered()
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        // As with a dropped std File, errors are lost; a program that needs them calls `close`.
        let _ = self.finish();
    }
}

/// Writes `data` at an offset, or where the kernel puts it; returns fewer bytes than there are if
/// an error came behind them.
fn write_some(fd: BorrowedFd<'_>, data: &[u8], at: Option<u64>) -> io::Result<usize> {
    let mut done = 0;
    while done < data.len() {
        let wrote = match at {
            Some(offset) => rustix::io::pwrite(fd, &data[done..], offset + done as u64),
            None => rustix::io::write(fd, &data[done..]),
        };
        match wrote {
            Ok(0) if done == 0 => return Err(io::ErrorKind::WriteZero.into()),
            Ok(0) => break,
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) if done == 0 => return Err(e.into()),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// The tier's half of a file written through. Nothing here can fail the write: a page that does not
/// fit is left out, and an agent that goes away ends it.
#[derive(Debug)]
struct TierWriter {
    channel: Channel,
    deadline: Duration,
    staging: Staging,
    page_bytes: u64,
    /// The page being gathered: number, slot, bytes so far.
    current: Option<(u32, u32, u64)>,
    /// What the file looked like after our last write.
    seen: Option<FileFacts>,
    /// When that was.
    seen_at: Instant,
    /// Somebody else has written too, or the agent is gone: nothing is kept.
    spoiled: bool,
}

impl TierWriter {
    fn begin(session: &Session, path: &Path, file: BorrowedFd<'_>) -> Option<Self> {
        let absolute = std::path::absolute(path).ok()?;
        session.may_ask().then(|| session.mount_of(&absolute))??;
        let begin = || {
            let channel = session.connect(false)?;
            channel.send(&Request::StageBegin, &[])?;
            let answer = channel.recv::<Reply>(Some(Instant::now() + session.config.deadline))?;
            Ok((channel, answer))
        };
        let (channel, answer) = session.unless_left_alone(begin).ok()?;
        let Reply::Staging { slots, page_bytes, .. } = answer.message else { return None };
        let staging = Staging::over(answer.fds.into_iter().next()?, slots, page_bytes).ok()?;
        let seen = FileFacts::of(file, Revalidate::AsStat).ok();
        let seen_at = Instant::now();
        Some(TierWriter {
            channel,
            deadline: session.config.deadline,
            staging,
            page_bytes,
            current: None,
            seen,
            seen_at,
            spoiled: false,
        })
    }

    /// Looks whether somebody else has changed the file since our last write. A look costs a round
    /// trip to the PFS; right after the last one it would show nothing new.
    fn before_write(&mut self, file: BorrowedFd<'_>) {
        if self.spoiled || self.seen_at.elapsed() < LOOK_AGAIN {
            return;
        }
        let now = FileFacts::of(file, Revalidate::AsStat).ok();
        if now.map(|f| f.version) != self.seen.map(|f| f.version) {
            self.spoiled = true;
        }
    }

    /// Looks after every write, whatever it ends with: any may be the last, and what is not seen
    /// right after it cannot be distinguished from writes of others.
    fn after_write(&mut self, file: BorrowedFd<'_>, data: &[u8], offset: u64) {
        if !self.spoiled {
            let end = offset + data.len() as u64;
            self.seen = FileFacts::of(file, Revalidate::AsStat).ok();
            self.seen_at = Instant::now();
            // Longer or shorter than we made it: somebody else writes too.
            self.spoiled |= self.seen.is_none_or(|facts| facts.version.size != end);
        }
        let mut done = 0;
        while done < data.len() && !self.spoiled {
            let at = offset + done as u64;
            let in_page = at % self.page_bytes;
            let n = (data.len() - done).min((self.page_bytes - in_page) as usize);
            self.stage(&data[done..done + n], (at / self.page_bytes) as u32, in_page);
            done += n;
        }
    }

    fn stage(&mut self, part: &[u8], page: u32, in_page: u64) {
        if in_page == 0 {
            self.flush_page();
            self.current = self.take_slot().map(|slot| (page, slot, 0));
        }
        let Some((current, slot, filled)) = self.current else { return };
        if current != page || filled != in_page || self.staging.fill(slot, part, in_page).is_err() {
            self.staging.release(slot);
            self.current = None;
            return;
        }
        self.current = Some((page, slot, filled + part.len() as u64));
        if filled + part.len() as u64 == self.page_bytes {
            self.flush_page();
        }
    }

    fn take_slot(&self) -> Option<u32> {
        let deadline = Instant::now() + SLOT_PATIENCE;
        loop {
            match self.staging.take() {
                None if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(200)),
                slot => return slot,
            }
        }
    }

    fn flush_page(&mut self) {
        if let Some((page, slot, len)) = self.current.take()
            && len > 0
            && self.channel.send(&Request::StagePage { slot, page, len }, &[]).is_err()
        {
            self.spoiled = true;
        }
    }

    /// Reports to the agent that the file is done. Waits for its answer, so that the next open
    /// finds the copy.
    fn commit(mut self, path: &Path, file: BorrowedFd<'_>, length: u64) {
        self.flush_page();
        let now = FileFacts::of(file, Revalidate::AsStat).ok();
        // Exactly what our last write has left: whatever happened since, and before this, was
        // somebody else's.
        let left = self.seen.map(|s| s.version);
        let Some(now) = now.filter(|n| !self.spoiled && n.version.size == length && Some(n.version) == left)
        else {
            return;
        };
        // The agent wants one descriptor open for reading and, as a proof, the one that was written
        // through.
        let Ok(reading) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return };
        let request = Request::StageCommit { version: now.version };
        if self.channel.send(&request, &[reading.as_fd(), file]).is_ok() {
            // Whatever it says: the file is on the PFS.
            let _ = self.channel.recv::<Reply>(Some(Instant::now() + self.deadline));
        }
    }
}
