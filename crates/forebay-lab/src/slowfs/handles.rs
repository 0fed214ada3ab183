//! Open files and directories: one backing descriptor each, so that what was opened stays what it is after unlink and rename.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::rate::WriteBehind;

/// One open file.
#[derive(Debug)]
pub struct OpenFile {
    fd: OwnedFd,
    ino: u64,
    writable: bool,
    /// Writes must not run ahead: the file was opened with `O_SYNC`, `O_DSYNC` or `O_DIRECT`.
    pub synchronous: bool,
    /// Path below the mount when it was opened; fault patterns are matched against it.
    pub path: Vec<u8>,
    /// Writes acknowledged before the servers have them.
    pub behind: Mutex<WriteBehind>,
}

impl OpenFile {
    /// `flags` are those of the opening program.
    pub fn new(fd: OwnedFd, ino: u64, flags: i32, path: Vec<u8>) -> Self {
        Self {
            fd,
            ino,
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

/// What is open, by the number given to the kernel. Numbers are never reused.
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

    /// What is open under this number.
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
