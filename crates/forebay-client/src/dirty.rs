//! Writes to the tier first: the agent writes the bytes to the PFS later (write-back).
//!
//! A program opens its file on the PFS and offers the descriptor to the agent. It gets another in
//! its place, of the *content*: a file in memory that the kernel writes as any other. Before each
//! write it announces the bytes ([`Absorbed::begin`]). If the tier has no room, or the agent wants
//! the file, it continues on the PFS once that has what was written before.
//!
//! If the agent dies, the writer continues in memory: the next agent finds the content there.

use crate::error::{errno, no_agent, with_message};
use crate::guest::GuestFile;
use crate::session::{Client, NO_AGENT_MAX, NO_AGENT_PAUSE, unexpected};
use forebay_pfs::read::reopen_as;
use forebay_store::dirty::{Begun, Words};
pub use forebay_store::dirty_index::{DirtyIndex, path_beside as dirty_index_beside};
use forebay_wire::{DirtyStatus, GuestMode, RECENT, Reply, Request, SecondPlace};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Rounds of asking for room; others may take it in between.
const ROOM_TRIES: usize = 8;

/// The agent answers within a second that it needs more time.
const ANSWER: Duration = Duration::from_secs(30);

/// Whether newer bytes may be in memory, here or on another node, of a file for which the PFS shows
/// this length and mtime (nanoseconds since 1970).
pub fn may_be_elsewhere(size: u64, mtime_ns: i64) -> bool {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    size == 0 || since_1970.as_nanos() as i64 - mtime_ns < RECENT.as_nanos() as i64
}

fn is_suspect(stat: &rustix::fs::Stat) -> bool {
    let mtime_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64);
    may_be_elsewhere(stat.st_size as u64, mtime_ns)
}

/// Patterns of the files that are to be written to the tier first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(Vec<glob::Pattern>);

impl Patterns {
    /// Reads a list with one pattern per line, or with ASCII record separators between them, where
    /// a list has to be one line itself. What is not a pattern is left out.
    pub fn from_lines(lines: &str) -> Self {
        Patterns(lines.split(['\n', '\x1e']).filter_map(|pattern| glob::Pattern::new(pattern).ok()).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them matches the file at this path.
    pub fn match_path(&self, path: &[u8]) -> bool {
        self.0.iter().any(|pattern| is_match(pattern, path))
    }
}

/// Whether a pattern matches a path: `*` and `?` match no slash, `**` matches any directories.
pub fn is_match(pattern: &glob::Pattern, path: &[u8]) -> bool {
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::default() };
    pattern.matches_with(&String::from_utf8_lossy(path), options)
}

/// What the PFS shows of a file: its length, and times in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Length in bytes.
    pub size: u64,
    /// Last change of the content.
    pub mtime_ns: i64,
    /// Last change of the attributes.
    pub ctime_ns: i64,
}

/// Attributes of a dirty file that are newer than those on the PFS.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    /// Length in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Last write, nanoseconds since 1970.
    pub mtime_ns: i64,
}

impl Newest {
    /// Takes over the mtime that a program has set on the PFS after the last write, if it has. The
    /// PFS had `left_mtime_ns` before.
    pub fn with_time_set(mut self, shown: Shown, left_mtime_ns: i64) -> Self {
        let is_set = shown.size == 0 && shown.mtime_ns != left_mtime_ns && shown.ctime_ns >= self.mtime_ns;
        if is_set {
            self.mtime_ns = shown.mtime_ns;
        }
        self
    }
}

/// A file whose writes go to the tier.
#[derive(Debug)]
pub struct Absorbed {
    copy: u64,
    words: Arc<Words>,
}

/// Where the bytes of such a file are.
#[derive(Debug)]
pub enum Bytes {
    /// In this file, open as the program has opened its own.
    Here(OwnedFd),
    /// On another node.
    Away(GuestFile),
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the content. [`Absorbed::end`] follows.
    Tier,
    /// To the PFS, as do all that follow; it has what was written before.
    Pfs,
}

impl Client {
    /// Offers a file of the PFS that is open for writing with `flags`; `truncated` if that open has
    /// emptied it. Returns the content, open as `file` is. A file that is not dirty becomes so only
    /// if that `is_wanted`.
    ///
    /// # Errors
    /// The program is to write to the PFS: no agent, no room, or the file is not empty.
    pub fn absorb(
        &self,
        file: BorrowedFd<'_>,
        is_wanted: bool,
        (flags, truncated): (OFlags, bool),
    ) -> io::Result<(Absorbed, OwnedFd)> {
        match self.absorb_for(
            (None, 0),
            self.reopen_to_write(file)?.as_fd(),
            is_wanted,
            (flags, truncated),
        )? {
            (absorbed, Bytes::Here(content)) => Ok((absorbed, content)),
            (_, Bytes::Away(_)) => Err(io::Error::other("programs of another node write the file")),
        }
    }

    fn be_guest(&self, anew: BorrowedFd<'_>, how: (bool, u32)) -> io::Result<(Absorbed, Bytes)> {
        let (guest, copy, words) = GuestFile::open(self.session.clone(), anew, how)?;
        Ok((Absorbed { copy, words }, Bytes::Away(guest)))
    }

    /// Opens a file once more, as [`Client::absorb_for`] wants it: the agent writes at any offset,
    /// even where the program only appends, and checks the attributes; and it must not move the
    /// program's position.
    ///
    /// # Errors
    /// The rights for that are missing.
    pub fn reopen_to_write(&self, file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        Ok((self.session.config.place)(reopen_as(file, OFlags::RDWR | OFlags::NONBLOCK)?))
    }

    /// As [`Client::absorb`], for a file that user `owner` has opened, if that is not this
    /// process's user, by the thread `caller`; `anew` is from [`Client::reopen_to_write`].
    ///
    /// # Errors
    /// As [`Client::absorb`].
    pub fn absorb_for(
        &self,
        (owner, caller): (Option<u32>, u32),
        anew: BorrowedFd<'_>,
        is_wanted: bool,
        (flags, truncated): (OFlags, bool),
    ) -> io::Result<(Absorbed, Bytes)> {
        let (job, guest) = (self.session.config.job_name.clone(), self.session.config.guest);
        let request = Request::Absorb { is_wanted, flags: flags.bits(), truncated, job, owner, guest };
        let fds = [anew, anew];
        let stat = rustix::fs::fstat(anew)?;
        let is_dirty = self.dirty_index().is_some_and(|index| index.may_have(stat.st_dev, stat.st_ino));
        let limit = match is_suspect(&stat) && self.has_other_nodes() {
            // Wait for what another node has of it: to write past that would be worse.
            true => self.session.config.deadline.max(ANSWER),
            false => self.session.config.deadline,
        };
        // Wait also for an agent that is restarting, if the file may be dirty somewhere.
        let may_be = is_dirty || is_wanted && self.has_other_nodes();
        let answer = match may_be && is_suspect(&stat) {
            true => self.session.call_about_dirty(&request, &fds, limit)?,
            false => self.session.call_that_waits(&request, &fds, limit)?,
        };
        let sent: Result<[OwnedFd; 2], _> = answer.fds.try_into();
        match (answer.message, sent) {
            (Reply::Dirty { copy, .. }, Ok([content, words])) => {
                let words = Arc::new(Words::received(&words)?);
                Ok((Absorbed { copy, words }, Bytes::Here(content)))
            }
            (Reply::Elsewhere, _) if guest == GuestMode::RequestsOnly => {
                self.be_guest(anew, (truncated, caller))
            }
            (Reply::Elsewhere, _) => match self.be_guest(anew, (truncated, 0)) {
                Ok(taken) => Ok(taken),
                Err(e) => {
                    // Its other writers continue on the PFS, as does this one.
                    let flags = flags.bits();
                    let request =
                        Request::Absorb { is_wanted: false, flags, truncated, job: None, owner, guest };
                    let _ = self.session.call_that_waits(&request, &fds, limit);
                    Err(e)
                }
            },
            (reply, _) => Err(unexpected(&reply)),
        }
    }

    /// The newest content of a file of the PFS that is open for reading, with its number, if the
    /// PFS does not have it yet.
    ///
    /// # Errors
    /// No agent answers, and the file [`may_be_elsewhere`].
    pub fn dirty_content(&self, file: BorrowedFd<'_>) -> io::Result<Option<(u64, OwnedFd)>> {
        let (request, fds, limit) = (Request::Open, [file], self.session.config.deadline);
        let answer = match is_suspect(&rustix::fs::fstat(file)?) {
            true => self.session.call_about_dirty(&request, &fds, limit)?,
            // Another file has its place in the table, most likely.
            false => match self.session.call(&request, &fds, limit) {
                Ok(answer) => answer,
                Err(_) => return Ok(None),
            },
        };
        match answer.message {
            Reply::Dirty { copy, .. } => Ok(answer.fds.into_iter().next().map(|fd| (copy, fd))),
            _ => Ok(None),
        }
    }

    /// Waits for an agent that is restarting, if the last one has left dirty files: without it,
    /// programs would see what is on the PFS. Returns whether there is one.
    pub fn await_agent_of_dirty_files(&self) -> bool {
        let until = Instant::now() + self.session.patience();
        loop {
            let is_there = self.session.connect_to_agent().is_ok();
            let is_over = !self.dirty_index().is_some_and(DirtyIndex::any) || Instant::now() >= until;
            if is_there || is_over {
                self.session.note_agent(is_there);
                return is_there;
            }
            std::thread::sleep(NO_AGENT_PAUSE);
        }
    }

    /// Whether any file of this node may be dirty, or of another one.
    pub fn any_may_be_dirty(&self) -> bool {
        self.dirty_index().is_some_and(|index| index.any() || index.has_others())
    }

    /// Whether the file with this device and inode may be dirty on this node.
    pub fn may_be_dirty(&self, (dev, ino): (u64, u64)) -> bool {
        self.dirty_index().is_some_and(|index| index.may_have(dev, ino))
    }

    fn dirty_index(&self) -> Option<&DirtyIndex> {
        let socket = || self.session.config.socket.as_deref();
        self.session.dirty.get_or_init(|| DirtyIndex::open(&dirty_index_beside(socket()?))).as_ref()
    }

    /// Whether other nodes may have dirty files.
    pub fn has_other_nodes(&self) -> bool {
        self.dirty_index().is_some_and(DirtyIndex::has_others)
    }

    /// The newest content of a file of the PFS that is open for reading and [`may_be_elsewhere`],
    /// if another node has it. Waits until it is here. Without an agent that answers, the file is
    /// what the PFS shows, as for any program.
    ///
    /// # Errors
    /// Another node has newer bytes, and they cannot be had.
    pub fn newest_content(&self, file: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, u64)>> {
        match self.session.unless_left_alone(|| self.ask_for_newest(file)) {
            Ok((Reply::Dirty { size, .. }, content)) => Ok(content.map(|content| (content, size))),
            Ok((reply @ Reply::Failed { .. }, _)) => Err(unexpected(&reply)),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    fn ask_for_newest(&self, file: BorrowedFd<'_>) -> io::Result<(Reply, Option<OwnedFd>)> {
        // The agent may set flags of what it gets.
        let anew = reopen_as(file, OFlags::RDONLY | OFlags::NONBLOCK)?;
        // A connection of its own: others of this process are not to wait.
        let channel = self.session.connect_to_agent()?;
        let mut fds = vec![anew.as_fd()];
        loop {
            channel.send(&Request::OpenNewest, &fds)?;
            fds.clear();
            // It says within a second that it needs more time.
            let mut answer = channel.recv::<Reply>(Some(Instant::now() + self.session.config.deadline))?;
            if answer.message != Reply::Waits {
                return Ok((answer.message, answer.fds.pop()));
            }
        }
    }

    /// The attributes of a file that are newer than those that the PFS has `shown`. If the file is
    /// empty there, waits for an agent that is restarting.
    pub fn dirty_stat(&self, (dev, ino): (u64, u64), shown: Shown) -> Option<Newest> {
        let request = Request::DirtyStat { dev, ino };
        let limit = self.session.config.deadline;
        let answer = match shown.size == 0 {
            true => self.session.call_about_dirty(&request, &[], limit),
            false => self.session.call(&request, &[], limit),
        };
        match answer.ok()?.message {
            Reply::DirtyStat { size, blocks, mtime_ns, left_mtime_ns } => {
                Some(Newest { size, blocks, mtime_ns }.with_time_set(shown, left_mtime_ns))
            }
            _ => None,
        }
    }

    /// Reports that a program is about to set the times of a dirty file: its mtime to `mtime_ns`,
    /// or to now. Without an agent that hears this, the file may count as changed by somebody else.
    pub fn note_times(&self, (dev, ino): (u64, u64), mtime_ns: Option<i64>) {
        let request = Request::DirtyTimes { dev, ino, mtime_ns };
        let _ = self.session.call_about_dirty(&request, &[], self.session.config.deadline);
    }

    /// Waits until the PFS has what was written before: to the file at `path`, or to all files of
    /// this user. `progress` is called about once a second; it ends the wait by returning `false`.
    ///
    /// # Errors
    /// No agent; the PFS has failed, and the bytes are kept in memory.
    pub fn sync_dirty(&self, path: Option<&Path>, progress: impl FnMut() -> bool) -> io::Result<bool> {
        let file = match path {
            Some(path) => Some(openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?),
            None => None,
        };
        self.sync_dirty_file(file.as_ref().map(AsFd::as_fd), progress)
    }

    /// As [`Client::sync_dirty`], for an open file.
    ///
    /// # Errors
    /// As [`Client::sync_dirty`].
    pub fn sync_dirty_file(
        &self,
        file: Option<BorrowedFd<'_>>,
        mut progress: impl FnMut() -> bool,
    ) -> io::Result<bool> {
        let ended = self.wait_for_answer(&Request::DirtySync, file, &mut progress);
        ended.map_err(|e| self.session.in_words(&e))?
    }

    /// Waits until the PFS has a dirty file that is about to get the name of another one, so that a
    /// good file there is not lost for one that is in memory only. `is_empty`: the PFS has nothing
    /// of it. Without an agent nobody knows what is dirty, but for such a file.
    ///
    /// # Errors
    /// The PFS does not take it; or no agent writes it there.
    pub fn sync_before_rename(&self, file: Option<BorrowedFd<'_>>, is_empty: bool) -> io::Result<()> {
        let mut until = Instant::now() + NO_AGENT_MAX;
        while Instant::now() < until && self.await_agent_of_dirty_files() {
            let mut has_answered = false;
            let mut goes_on = || {
                has_answered = true;
                true
            };
            match self.wait_for_answer(&Request::DirtySync, file, &mut goes_on) {
                // The table of dirty files has mistaken it for another one.
                Ok(Err(e)) if e.kind() == io::ErrorKind::CrossesDevices => return Ok(()),
                Ok(ended) => return ended.map(|_| ()),
                // It has died meanwhile: wait as long for the next one.
                Err(_) if has_answered => until = Instant::now() + NO_AGENT_MAX,
                Err(_) => std::thread::sleep(NO_AGENT_PAUSE),
            }
        }
        match is_empty {
            true => Err(no_agent(libc::EIO, "its bytes are in memory, and no agent brings them to the PFS")),
            false => Ok(()),
        }
    }

    /// As [`Client::sync_before_rename`], for a file that may be dirty on another node.
    ///
    /// # Errors
    /// That node has newer bytes, and cannot write them to the PFS.
    pub fn sync_elsewhere_before_rename(&self, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if file.is_none() {
            return Ok(());
        }
        match self.wait_for_answer(&Request::DirtySync, file, &mut || true) {
            // Nobody knows of another node.
            Ok(Err(e)) if errno(&e) == libc::EAGAIN || e.kind() == io::ErrorKind::CrossesDevices => Ok(()),
            Ok(ended) => ended.map(drop),
            Err(_) => Ok(()),
        }
    }

    /// Asks over a connection of its own, and again for as long as the agent says that it needs
    /// more time; false if `progress` has ended that.
    ///
    /// # Errors
    /// No agent. Inside: what the agent has answered.
    fn wait_for_answer(
        &self,
        request: &Request,
        file: Option<BorrowedFd<'_>>,
        progress: &mut impl FnMut() -> bool,
    ) -> io::Result<io::Result<bool>> {
        let channel = self.session.connect(false)?;
        let mut fds: Vec<_> = file.into_iter().collect();
        loop {
            channel.send(request, &fds)?;
            fds.clear();
            match channel.recv::<Reply>(Some(Instant::now() + ANSWER))?.message {
                Reply::Done => return Ok(Ok(true)),
                Reply::Waits if progress() => {}
                Reply::Waits => return Ok(Ok(false)),
                reply => return Ok(Err(unexpected(&reply))),
            }
        }
    }

    /// See [`ClientConfig::guest`](crate::ClientConfig::guest).
    pub fn guest_mode(&self) -> GuestMode {
        self.session.config.guest
    }

    /// See [`ClientConfig::second`](crate::ClientConfig::second).
    pub fn second(&self) -> Option<SecondPlace> {
        self.session.config.second
    }

    /// Waits until what was written before is in the second place, or on the PFS: to the dirty file
    /// `copy`, or to all files of this user. `progress` is as in [`Client::sync_dirty`].
    ///
    /// # Errors
    /// No agent; the second place does not take it, and the PFS has failed. The bytes stay in
    /// memory.
    pub fn keep_dirty(
        &self,
        copy: Option<u64>,
        second: SecondPlace,
        mut progress: impl FnMut() -> bool,
    ) -> io::Result<bool> {
        let until = Instant::now() + NO_AGENT_MAX;
        loop {
            let kept = self.wait_for_answer(&Request::DirtyKeep { copy, second }, None, &mut progress);
            match kept {
                Ok(kept) => return kept,
                Err(e) if Instant::now() >= until => return Err(self.session.in_words(&e)),
                Err(_) => std::thread::sleep(NO_AGENT_PAUSE),
            }
        }
    }

    /// Files that the PFS does not have yet; those of other users only for the operator.
    ///
    /// # Errors
    /// No agent.
    pub fn dirty_files(&self) -> io::Result<Vec<DirtyStatus>> {
        let channel = self.session.connect_to_agent()?;
        let mut all: Vec<DirtyStatus> = Vec::new();
        loop {
            let after = all.last().map_or(0, |file| file.copy);
            channel.send(&Request::DirtyList { after }, &[])?;
            match channel.recv::<Reply>(Some(Instant::now() + ANSWER))?.message {
                Reply::DirtyList { files, more } => {
                    all.extend(files);
                    if !more {
                        return Ok(all);
                    }
                }
                reply => return Err(unexpected(&reply)),
            }
        }
    }

    /// The content of a dirty file by its number, open for reading.
    ///
    /// # Errors
    /// No agent; no such file of this user.
    pub fn export_dirty(&self, copy: u64) -> io::Result<OwnedFd> {
        let channel = self.session.connect_to_agent()?;
        channel.send(&Request::DirtyExport(copy), &[])?;
        let answer = channel.recv::<Reply>(Some(Instant::now() + ANSWER))?;
        match (answer.message, answer.fds.into_iter().next()) {
            (Reply::Dirty { .. }, Some(content)) => Ok(content),
            (reply, _) => Err(unexpected(&reply)),
        }
    }

    /// Gives up a parked file by its number.
    ///
    /// # Errors
    /// No agent; the file is not parked, or not this user's.
    pub fn drop_dirty(&self, copy: u64) -> io::Result<()> {
        let channel = self.session.connect_to_agent()?;
        channel.send(&Request::DirtyDrop(copy), &[])?;
        match channel.recv::<Reply>(Some(Instant::now() + ANSWER))?.message {
            Reply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }
}

impl Absorbed {
    /// Whether the file is dirty on another node.
    pub fn is_guest(&self) -> bool {
        self.words.is_guest()
    }

    /// Announces a write of `bytes`, which may wait for room.
    ///
    /// # Errors
    /// The write has to go to the PFS, which does not take what was written before. That is still
    /// in memory.
    pub fn begin(&self, client: &Client, bytes: u64) -> io::Result<Target> {
        for _ in 0..ROOM_TRIES {
            match self.words.begin_write(bytes) {
                Begun::Yes => return Ok(Target::Tier),
                Begun::CalledIn => break,
                Begun::NoRoom => {
                    let request = Request::DirtyRoom { copy: self.copy, bytes };
                    match client.session.call(&request, &[], client.session.config.deadline) {
                        Ok(answer) if answer.message == Reply::Done => {}
                        // Others store to it through mappings, and cannot continue elsewhere.
                        Ok(_) if self.words.is_mapped() => return Ok(self.begin_without_agent()),
                        Ok(_) => break,
                        Err(_) => return Ok(self.begin_without_agent()),
                    }
                }
            }
        }
        match self.leave(client) {
            Ok(()) => Ok(Target::Pfs),
            Err(Left::NoAgent) => Ok(self.begin_without_agent()),
            Err(Left::Failed(e)) => Err(e),
        }
    }

    fn begin_without_agent(&self) -> Target {
        self.words.begin_anyway();
        Target::Tier
    }

    /// Number of the dirty file.
    pub fn copy(&self) -> u64 {
        self.copy
    }

    /// Whether the PFS has all that was written, to a file that the agent wants. Waits for a second
    /// at most.
    pub fn has_come_to_pfs(&self, client: &Client) -> bool {
        let answer = client.session.call_that_waits(&Request::CallIn(self.copy), &[], ANSWER);
        answer.is_ok_and(|answer| answer.message == Reply::Done)
    }

    /// Notes that the program maps the content to store to it: it stays in the tier until it is
    /// closed.
    pub fn note_mapped(&self) {
        self.words.note_mapped();
    }

    /// Notes that the program has closed the file.
    pub fn note_closed(&self) {
        self.words.note_closed();
    }

    /// Notes that the write is over.
    pub fn end(&self) {
        self.words.end_write();
    }

    /// Waits until what this process has written is in the second place, or on the PFS, if
    /// [`ClientConfig::second`](crate::ClientConfig::second) wants that.
    ///
    /// # Errors
    /// As [`Client::keep_dirty`].
    pub fn keep(&self, client: &Client) -> io::Result<()> {
        let Some(second) = client.second() else { return Ok(()) };
        // Always asked: another thread or process may have written, and the agent knows.
        client.keep_dirty(Some(self.copy), second, || true).map(|_| ())
    }

    /// Whether the agent wants the file: the next call goes to the PFS.
    pub fn is_called_in(&self) -> bool {
        self.words.is_called_in()
    }

    /// Waits until the PFS has all that was written; from then on everything goes there.
    fn leave(&self, client: &Client) -> Result<(), Left> {
        loop {
            let answer = client.session.call(&Request::CallIn(self.copy), &[], ANSWER);
            match answer.map_err(|_| Left::NoAgent)?.message {
                Reply::Done => return Ok(()),
                Reply::Waits => {}
                reply @ Reply::Failed { .. } => return Err(Left::Failed(unexpected(&reply))),
                _ => return Err(Left::NoAgent),
            }
        }
    }

    /// As [`Absorbed::begin`], for a program that continues on the PFS by its own choice.
    ///
    /// # Errors
    /// The PFS does not take what was written; or no agent answers.
    pub fn go_on_at_pfs(&self, client: &Client) -> io::Result<()> {
        self.leave(client).map_err(|left| match left {
            Left::Failed(e) => e,
            Left::NoAgent => with_message(libc::EIO, "no agent brings what was written to the file system"),
        })
    }
}

/// Why a writer cannot continue on the PFS.
enum Left {
    NoAgent,
    Failed(io::Error),
}
