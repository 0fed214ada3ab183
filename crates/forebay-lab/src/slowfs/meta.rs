//! Names and attributes: each operation is carried out when it arrives and answered one latency
//! later.
//!
//! [`run`] is the one way through: it asks the fault set, holds, refuses or carries out, and
//! answers. The operations themselves are plain functions from the shared state to a result, in the
//! order of the POSIX calls they serve.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{
    Errno as FuseErrno, FileAttr, INodeNo, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, TimeOrNow,
};
use rustix::fs::{AtFlags, Dev, FileType, Gid, Mode, OFlags, RawDir, SeekFrom, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::backing::{self, Caller, self_path};
use super::data::errno;
use super::fault::Op;
use super::handles::OpenFile;
use super::state::State;

type Result<T> = std::result::Result<T, Errno>;

/// A reply that can carry an error.
pub trait Refuse: Send + 'static {
    /// Answers with an error.
    fn refuse(self, errno: FuseErrno);
}

macro_rules! refuse {
    ($($reply:ty),*) => { $(impl Refuse for $reply {
        fn refuse(self, errno: FuseErrno) {
            self.error(errno);
        }
    })* };
}
refuse!(ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen);
refuse!(ReplyStatfs, ReplyXattr);

/// What an operation works on, for the fault patterns.
#[derive(Clone, Copy)]
pub enum On<'a> {
    /// A known inode.
    Inode(u64),
    /// A name in a directory.
    Name(u64, &'a OsStr),
    /// The attributes of the root. Every walk to a control attribute asks for them, and a fault
    /// that could not be cleared would be a trap: so they are free of faults and of latency.
    RootAttributes,
}

/// Carries out `act` and answers with `answer`, one latency later; or does what the faults in force
/// say instead.
pub fn run<R: Refuse, T: Send + 'static>(
    state: &Arc<State>,
    op: Op,
    on: On<'_>,
    reply: R,
    act: impl FnOnce(&State) -> Result<T> + Send + 'static,
    answer: impl FnOnce(R, T) + Send + 'static,
) {
    state.counters.meta_ops.fetch_add(1, Relaxed);
    let decision = match on {
        On::RootAttributes => Default::default(),
        On::Inode(ino) => state.decide(op, || state.path_of(ino)),
        On::Name(parent, name) => state.decide(op, || state.nodes.child_path(parent, name)),
    };
    let latency_ns = if matches!(on, On::RootAttributes) { 0 } else { state.latency_ns };
    let delay_ns = latency_ns.saturating_add(decision.delay_ns);
    if let Some(code) = decision.errno {
        return state.after(delay_ns, move || reply.refuse(FuseErrno::from_i32(code)));
    }
    let later = state.clone();
    let start = move || match act(&later) {
        Ok(value) => later.after(delay_ns, move || answer(reply, value)),
        Err(error) => later.after(delay_ns, move || reply.refuse(errno(error))),
    };
    match decision.hang_ns {
        Some(hang_ns) => state.hang(hang_ns, start),
        None => start(),
    }
}

/// Attributes of `name` in `parent`; the kernel holds one more reference to it afterwards.
pub fn lookup(state: &State, parent: u64, name: &OsStr) -> Result<FileAttr> {
    state.counters.lookups.fetch_add(1, Relaxed);
    let dir = state.locate(parent)?;
    let attr = state.attributes(&state.backing.stat_child(dir.as_fd(), name)?)?;
    state.nodes.remember(attr.ino.0, parent, name);
    Ok(attr)
}

/// Attributes of a known inode.
pub fn getattr(state: &State, ino: u64) -> Result<FileAttr> {
    state.counters.getattrs.fetch_add(1, Relaxed);
    state.attributes(&rustix::fs::fstat(state.locate(ino)?)?)
}

/// Attributes to set; `None` leaves one alone.
#[derive(Default)]
pub struct Changes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeOrNow>,
    pub mtime: Option<TimeOrNow>,
}

/// truncate, chown, chmod, utimens, in the order in which each leaves the next one's effect alone.
pub fn setattr(state: &State, ino: u64, changes: &Changes) -> Result<FileAttr> {
    let at = state.locate(ino)?;
    if let Some(size) = changes.size {
        state.backing.truncate(&state.nodes, ino, at.as_fd(), size)?;
    }
    if changes.uid.is_some() || changes.gid.is_some() {
        let (uid, gid) = (changes.uid.map(Uid::from_raw), changes.gid.map(Gid::from_raw));
        rustix::fs::chownat(&at, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = changes.mode {
        rustix::fs::chmod(self_path(at.as_fd()), Mode::from_raw_mode(mode & 0o7777))?;
    }
    if changes.atime.is_some() || changes.mtime.is_some() {
        let times = Timestamps {
            last_access: timespec(changes.atime.as_ref()),
            last_modification: timespec(changes.mtime.as_ref()),
        };
        rustix::fs::utimensat(rustix::fs::CWD, self_path(at.as_fd()), &times, AtFlags::empty())?;
    }
    state.attributes(&rustix::fs::fstat(&at)?)
}

fn timespec(time: Option<&TimeOrNow>) -> Timespec {
    let special = |nsec| Timespec { tv_sec: 0, tv_nsec: nsec };
    match time {
        None => special(rustix::fs::UTIME_OMIT),
        Some(TimeOrNow::Now) => special(rustix::fs::UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => exact(*time),
    }
}

fn exact(time: SystemTime) -> Timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() },
        Err(before) => {
            let before = before.duration();
            let borrow = i64::from(before.subsec_nanos() > 0);
            let nanos = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
            Timespec { tv_sec: -(before.as_secs() as i64) - borrow, tv_nsec: nanos.into() }
        }
    }
}

/// The target of a symbolic link.
pub fn readlink(state: &State, ino: u64) -> Result<OsString> {
    backing::read_link(state.locate(ino)?.as_fd())
}

/// Makes a directory.
pub fn mkdir(state: &State, parent: u64, name: &OsStr, mode: u32, caller: Caller) -> Result<FileAttr> {
    let dir = state.locate(parent)?;
    rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o700))?;
    state.backing.settle(dir.as_fd(), name, mode, caller)?;
    lookup(state, parent, name)
}

/// Makes a file, a pipe, a socket or a device.
pub fn mknod(
    state: &State,
    parent: u64,
    name: &OsStr,
    mode: u32,
    rdev: u32,
    caller: Caller,
) -> Result<FileAttr> {
    let dir = state.locate(parent)?;
    let private = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(&dir, name, FileType::from_raw_mode(mode), private, Dev::from(rdev))?;
    state.backing.settle(dir.as_fd(), name, mode, caller)?;
    lookup(state, parent, name)
}

/// Makes a symbolic link.
pub fn symlink(state: &State, parent: u64, name: &OsStr, target: &OsStr, caller: Caller) -> Result<FileAttr> {
    let dir = state.locate(parent)?;
    rustix::fs::symlinkat(target, &dir, name)?;
    let link =
        rustix::fs::openat(&dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    state.backing.give_to(dir.as_fd(), link.as_fd(), caller)?;
    lookup(state, parent, name)
}

/// Makes a hard link.
pub fn link(state: &State, ino: u64, parent: u64, name: &OsStr) -> Result<FileAttr> {
    let (file, dir) = (state.locate(ino)?, state.locate(parent)?);
    rustix::fs::linkat(rustix::fs::CWD, self_path(file.as_fd()), &dir, name, AtFlags::SYMLINK_FOLLOW)?;
    lookup(state, parent, name)
}

/// Removes a name of a directory or of another object, as `directory` says.
pub fn remove(state: &State, parent: u64, name: &OsStr, directory: bool) -> Result<()> {
    let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    rustix::fs::unlinkat(state.locate(parent)?, name, flags)
}

/// Moves a name, over an existing one unless the flags forbid it.
pub fn rename(state: &State, from: (u64, &OsStr), to: (u64, &OsStr), flags: u32) -> Result<()> {
    let (from_dir, to_dir) = (state.locate(from.0)?, state.locate(to.0)?);
    let flags = rustix::fs::RenameFlags::from_bits_truncate(flags);
    rustix::fs::renameat_with(&from_dir, from.1, &to_dir, to.1, flags)?;
    if let Ok(stat) = state.backing.stat_child(to_dir.as_fd(), to.1) {
        state.nodes.renamed(stat.st_ino, to.0, to.1);
    }
    if flags.contains(rustix::fs::RenameFlags::EXCHANGE)
        && let Ok(stat) = state.backing.stat_child(from_dir.as_fd(), from.1)
    {
        state.nodes.renamed(stat.st_ino, from.0, from.1);
    }
    Ok(())
}

/// An open file as the kernel gets it.
pub struct Opened {
    /// Its number.
    pub handle: u64,
    /// Whether the kernel may keep what it has cached of the file.
    pub keep_cache: bool,
}

/// Opens a file.
pub fn open(state: &State, ino: u64, flags: i32, opener: u32) -> Result<Opened> {
    let at = state.locate(ino)?;
    let fd = state.backing.reopen(at.as_fd(), backing::backing_open_flags(flags) | OFlags::NONBLOCK)?;
    let stat = rustix::fs::fstat(&fd)?;
    let file = OpenFile::new(fd, &stat, flags, opener, state.path_of(ino));
    Ok(keep_open(state, file))
}

/// Creates and opens a file.
pub fn create(
    state: &State,
    parent: u64,
    name: &OsStr,
    mode: u32,
    flags: i32,
    caller: Caller,
) -> Result<(FileAttr, Opened)> {
    let dir = state.locate(parent)?;
    let fd = state.backing.create(dir.as_fd(), name, mode, flags, caller)?;
    let stat = rustix::fs::fstat(&fd)?;
    let attr = state.attributes(&stat)?;
    state.nodes.remember(attr.ino.0, parent, name);
    let path = state.nodes.child_path(parent, name);
    let file = OpenFile::new(fd, &stat, flags, caller.thread, path);
    Ok((attr, keep_open(state, file)))
}

fn keep_open(state: &State, file: OpenFile) -> Opened {
    let file = Arc::new(file);
    let keep_cache = state.nodes.opened(&file);
    state.counters.opens.fetch_add(1, Relaxed);
    Opened { handle: state.files.insert(file), keep_cache }
}

/// Closes a file for good.
pub fn release(state: &State, handle: u64) {
    if let Some(file) = state.files.remove(handle) {
        state.nodes.closed(&file);
    }
}

/// Opens a directory for reading; the result is its handle.
pub fn opendir(state: &State, ino: u64) -> Result<u64> {
    let fd = state.backing.reopen(state.locate(ino)?.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    Ok(state.dirs.insert(Arc::new(Mutex::new(fd))))
}

/// One entry of a directory.
pub struct DirEntry {
    ino: u64,
    next: u64,
    kind: fuser::FileType,
    name: Vec<u8>,
}

/// The entries after `offset`, about as many as one reply holds. Offsets are the backing file
/// system's own, so nothing is kept between two calls, however large the directory.
pub fn readdir(state: &State, handle: u64, offset: u64) -> Result<Vec<DirEntry>> {
    let dir = state.dirs.get(handle).ok_or(Errno::BADF)?;
    let fd = dir.lock().unwrap_or_else(PoisonError::into_inner);
    rustix::fs::seek(&*fd, SeekFrom::Start(offset))?;
    let mut buffer = Vec::with_capacity(8192); // one getdents: about what fits one reply of 4 to 8 KiB
    let mut entries = Vec::new();
    let mut raw = RawDir::new(&*fd, buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes().to_vec();
        let kind = match backing::kind(entry.file_type().as_raw_mode()) {
            Some(kind) => kind,
            None => kind_by_stat(&fd, &name).unwrap_or(fuser::FileType::RegularFile),
        };
        entries.push(DirEntry { ino: entry.ino(), next: entry.next_entry_cookie(), kind, name });
        if raw.is_buffer_empty() {
            break;
        }
    }
    Ok(entries)
}

fn kind_by_stat(dir: &OwnedFd, name: &[u8]) -> Option<fuser::FileType> {
    backing::kind(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_mode)
}

/// Fills a directory reply until it is full; the kernel asks again for the rest.
pub fn answer_entries(mut reply: ReplyDirectory, entries: Vec<DirEntry>) {
    for entry in entries {
        if reply.add(INodeNo(entry.ino), entry.next, entry.kind, OsStr::from_bytes(&entry.name)) {
            break;
        }
    }
    reply.ok();
}

/// Serves SEEK_DATA and SEEK_HOLE; the kernel handles the others itself.
pub fn lseek(file: &OpenFile, offset: i64, whence: i32) -> Result<i64> {
    let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
    let from = match whence {
        libc::SEEK_DATA => SeekFrom::Data(offset),
        libc::SEEK_HOLE => SeekFrom::Hole(offset),
        _ => return Err(Errno::INVAL),
    };
    Ok(rustix::fs::seek(file.as_fd(), from)? as i64)
}
