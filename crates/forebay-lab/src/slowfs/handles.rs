//! Open files and directories: one backing descriptor each, so that what was opened stays what it
//! is after unlink and rename.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::fs::Stat;

use super::rate::WriteBehind;

/// What distinguishes one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Version {
    fn of(stat: &Stat) -> Self {
        Self {
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }
}

/// One open file.
#[derive(Debug)]
pub struct OpenFile {
    fd: OwnedFd,
    ino: u64,
    writable: bool,
    /// Whether writes must wait for the servers: the file was opened with `O_SYNC`, `O_DSYNC` or
    /// `O_DIRECT`.
    pub synchronous: bool,
    /// Path below the mount when it was opened; fault patterns are matched against it.
    pub path: Vec<u8>,
    version: Version,
    /// The thread that opened it.
    opener: u32,
    closed: AtomicBool,
    /// Writes acknowledged before the servers have them.
    pub behind: Mutex<WriteBehind>,
}

impl OpenFile {
    /// `flags` and `opener` (a thread's number) come from the opening program, `stat` is of the
    /// file as it was opened.
    pub fn new(fd: OwnedFd, stat: &Stat, flags: i32, opener: u32, path: Vec<u8>) -> Self {
        Self {
            fd,
            ino: stat.st_ino,
            version: Version::of(stat),
            opener,
            closed: AtomicBool::new(false),
            writable: flags & libc::O_ACCMODE != libc::O_RDONLY,
            synchronous: flags & (libc::O_SYNC | libc::O_DSYNC | libc::O_DIRECT) != 0,
            path,
            behind: Mutex::default(),
        }
    }

    /// The backing file's inode number.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Notes that the thread `closer` has closed a descriptor of this open file.
    ///
    /// The kernel's release comes only when nobody waits for it any more; a second pass over a file
    /// may have opened it by then. The flush is in time, but it also comes when a child closes what
    /// it inherited (each fork and exec does): that is not the end, so a flush counts only from the
    /// opener's own process, or when the opener has gone.
    pub fn flushed(&self, closer: u32) {
        let threads = format!("/proc/{}/task", self.opener);
        let elsewhere = closer != self.opener
            && std::fs::exists(&threads).unwrap_or(false)
            && !std::fs::exists(format!("{threads}/{closer}")).unwrap_or(false);
        if !elsewhere {
            self.closed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the kernel's cached content of the file since this open is good for `other`, opened
    /// later: somebody still has it open, and nothing has changed in between.
    pub fn vouches_for(&self, other: &OpenFile) -> bool {
        !self.closed.load(Ordering::Relaxed) && self.version == other.version
    }

    /// Whether the descriptor can be written.
    pub fn writable(&self) -> bool {
        self.writable
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What is open, by the number that the kernel knows. Numbers are never reused.
#[derive(Debug)]
pub struct Handles<T> {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), open: RwLock::default() }
    }
}

impl<T> Handles<T> {
    /// Keeps `item` and returns its number.
    pub fn insert(&self, item: Arc<T>) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, item);
        handle
    }

    /// The open file or directory with this number.
    pub fn get(&self, handle: u64) -> Option<Arc<T>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }

    /// Forgets this number.
    pub fn remove(&self, handle: u64) -> Option<Arc<T>> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}
