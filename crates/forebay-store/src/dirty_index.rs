//! Which files may be dirty: a small table that every program of the node can look into without a
//! call.
//!
//! It counts dirty files by a hash of device and inode. A program that finds a count asks the
//! agent; two files of one hash cost a needless question. The table is next to the agent's socket
//! and is never replaced, because programs keep it mapped over the life of an agent.

use crate::map::Map;
use rustix::fs::{CWD, Mode, OFlags, fchmod, fstat, ftruncate, openat};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::{Mutex, PoisonError};

const SLOTS: u64 = 65_536;
/// Bytes before the first slot. The first word counts all dirty files; the second is 1 while there
/// are other nodes; the third counts files that have become clean.
const HEAD_BYTES: usize = 64;
const OTHERS_AT: usize = 4;
const CLEANED_AT: usize = 8;
const BYTES: usize = HEAD_BYTES + SLOTS as usize * 4;

/// The table.
#[derive(Debug)]
pub struct DirtyIndex {
    map: Map,
    /// What an earlier agent has left in it, by slot: the first one, then all.
    left: Mutex<Vec<u32>>,
}

/// Where the table of the agent with this socket is.
pub fn path_beside(socket: &Path) -> PathBuf {
    socket.with_extension("dirty")
}

/// Where the counts are: that of all files, and those of slots.
fn counts() -> impl Iterator<Item = usize> {
    std::iter::once(0).chain((HEAD_BYTES..BYTES).step_by(4))
}

fn slot(dev: u64, ino: u64) -> usize {
    let mixed = (dev.rotate_left(32) ^ ino).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    HEAD_BYTES + (mixed >> 32) as usize % SLOTS as usize * 4
}

impl DirtyIndex {
    /// Makes the table, or takes over that of an earlier agent, whose dirty files stay in it until
    /// [`DirtyIndex::forget_earlier`]: programs wait for an agent that is restarting. `has_others`:
    /// other nodes may have dirty files, too.
    ///
    /// # Errors
    /// The file cannot be made or mapped.
    pub fn create(path: &Path, has_others: bool) -> io::Result<Self> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(CWD, path, flags, Mode::from(0o644))?;
        fchmod(&file, Mode::from(0o644))?;
        if fstat(&file)?.st_size as usize != BYTES {
            ftruncate(&file, BYTES as u64)?;
        }
        let map = Map::new(file.as_fd(), 0, BYTES, true)?;
        map.half(OTHERS_AT).store(has_others.into(), SeqCst);
        let left = counts().map(|at| map.half(at).load(SeqCst)).collect();
        Ok(DirtyIndex { map, left: Mutex::new(left) })
    }

    /// Agent: those files of an earlier agent that are still dirty have been counted again.
    pub fn forget_earlier(&self) {
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        for (at, left) in counts().zip(left) {
            self.map.half(at).fetch_sub(left, SeqCst);
        }
    }

    /// Opens the table for looking; `None` if there is none that belongs to root or this user.
    pub fn open(path: &Path) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat(CWD, path, flags, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        // A user who can shorten it can end programs that look.
        let is_trusted = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
        let is_whole = stat.st_size as usize == BYTES && stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        let map = (is_trusted && is_whole).then(|| Map::new(file.as_fd(), 0, BYTES, false).ok())??;
        Some(DirtyIndex { map, left: Mutex::default() })
    }

    /// Whether any file is dirty.
    pub fn any(&self) -> bool {
        self.map.half(0).load(Acquire) != 0
    }

    /// Whether this file may be dirty.
    pub fn may_have(&self, dev: u64, ino: u64) -> bool {
        self.any() && self.map.half(slot(dev, ino)).load(Acquire) != 0
    }

    /// Files that have become clean. If it has changed since, a file that is not dirty may have
    /// been.
    pub fn cleaned(&self) -> u32 {
        self.map.half(CLEANED_AT).load(Acquire)
    }

    /// Whether other nodes may have dirty files.
    pub fn has_others(&self) -> bool {
        self.map.half(OTHERS_AT).load(Acquire) != 0
    }

    /// Agent: counts one dirty file more, or less.
    pub fn count(&self, dev: u64, ino: u64, is_dirty: bool) {
        if !is_dirty {
            self.map.half(CLEANED_AT).fetch_add(1, SeqCst);
        }
        for at in [slot(dev, ino), 0] {
            match is_dirty {
                true => self.map.half(at).fetch_add(1, SeqCst),
                false => self.map.half(at).fetch_sub(1, SeqCst),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_found_and_a_new_agent_counts_it_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_beside(&dir.path().join("agent.sock"));
        assert!(DirtyIndex::open(&path).is_none());
        let agent = DirtyIndex::create(&path, false).unwrap();
        let program = DirtyIndex::open(&path).unwrap();
        agent.count(1, 2, true);
        agent.count(1, 2, true);
        agent.count(1, 2, false);
        assert!(program.may_have(1, 2) && !program.may_have(1, 3));
        // One that dies while it starts changes nothing.
        DirtyIndex::create(&path, false).unwrap().count(1, 2, true);
        let next = DirtyIndex::create(&path, false).unwrap();
        next.count(1, 3, true);
        assert!(program.may_have(1, 2), "the file is not dirty while agents change");
        next.forget_earlier();
        assert!(program.may_have(1, 3) && !program.may_have(1, 2) && program.any());
        next.count(1, 3, false);
        assert!(!program.any());
    }
}
