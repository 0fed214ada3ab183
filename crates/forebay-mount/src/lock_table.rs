//! The range locks of programs: one descriptor for each owner and file.

use crate::abi::FileLock;
use crate::handles::Handle;
use crate::lock::lock;
use crate::nodes::FileId;
use crate::shares::Share;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// Locks of ranges.
#[derive(Debug, Default)]
pub struct Locks(Mutex<HashMap<(FileId, u64), Owned>>);

/// The locks of one owner on one file.
#[derive(Debug)]
struct Owned {
    fd: Arc<OwnedFd>,
    _share: Option<Share>,
    /// The process that took the last one.
    pid: u32,
    /// The open file through which it did.
    handle: usize,
    is_writable: bool,
    /// First and last bytes of its locks, as long as the descriptor is not writable.
    reads: Vec<(u64, u64)>,
}

/// Removes a range from ranges.
fn cut(ranges: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    let old = std::mem::take(ranges);
    for (first, last) in old {
        if first < start {
            ranges.push((first, last.min(start - 1)));
        }
        if last > end {
            ranges.push((first.max(end + 1), last));
        }
    }
}

/// Opens the file of `handle` again. The kernel has checked that the program's own descriptor
/// suffices for the lock.
fn open(handle: &Handle, is_writable: bool) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    let open = |flags| rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty());
    match is_writable {
        true => open(OFlags::RDWR).or_else(|_| open(OFlags::WRONLY)),
        false => open(OFlags::RDONLY),
    }
}

/// Sets or releases a lock of the bytes from `start` to `end`.
///
/// # Errors
/// What the PFS returns.
pub fn set(fd: &OwnedFd, command: i32, kind: i32, start: u64, end: u64) -> Result<(), Errno> {
    let lock = range(kind, start, end);
    // SAFETY: one `flock`.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw const lock) } {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// A lock as the C library has it.
pub fn range(kind: i32, start: u64, end: u64) -> libc::flock {
    let len = match end {
        // To the end of the file, even if the file grows.
        end if end >= i64::MAX as u64 => 0,
        end => end - start + 1,
    };
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start as i64,
        l_len: len as i64,
        l_pid: 0,
    }
}

impl Locks {
    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Releases the locks of an owner on a file.
    pub fn drop_owner(&self, file: FileId, owner: u64) {
        let owned = lock(&self.0).remove(&(file, owner));
        drop(owned);
    }

    /// Releases the locks that belong to an open file. Those that belong to a process have been
    /// released before.
    pub fn drop_handle(&self, handle: &Arc<Handle>) {
        let mut locks = lock(&self.0);
        let address = Arc::as_ptr(handle) as usize;
        let keys: Vec<_> =
            locks.iter().filter(|(_, owned)| owned.handle == address).map(|(key, _)| *key).collect();
        let ended: Vec<_> = keys.iter().filter_map(|key| locks.remove(key)).collect();
        drop(locks);
        // Their descriptors close here, which may ask the PFS.
        drop(ended);
    }

    /// The descriptor of an owner, made if there is none or if it does not suffice. Only programs
    /// that may write themselves get one that is open for writing: it keeps others from executing
    /// the file, and the tier from caching it.
    ///
    /// # Errors
    /// What the PFS returns.
    pub fn of_owner(
        &self,
        key: (FileId, u64),
        handle: &Arc<Handle>,
        pid: u32,
        writes: bool,
        keep: impl Fn() -> Result<Option<Share>, Errno>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        let address = Arc::as_ptr(handle) as usize;
        loop {
            let (old, reads) = match lock(&self.0).get_mut(&key) {
                Some(owned) if owned.is_writable || !writes => {
                    (owned.pid, owned.handle) = (pid, address);
                    return Ok(owned.fd.clone());
                }
                Some(owned) => (Some(owned.fd.clone()), owned.reads.clone()),
                None => (None, Vec::new()),
            };
            let share = keep()?;
            // Without the lock: a PFS that hangs at this file must not hold up other closes.
            let is_writable = handle.is_writable();
            let fd = Arc::new(open(handle, is_writable)?);
            for (start, end) in &reads {
                // Does not conflict with the old one, which excludes writers until it is released.
                set(&fd, libc::F_OFD_SETLK, libc::F_RDLCK, *start, *end)?;
            }
            let mut locks = lock(&self.0);
            let is_as_before = match (locks.get(&key), &old) {
                (Some(now), Some(old)) => Arc::ptr_eq(&now.fd, old) && now.reads == reads,
                (now, old) => now.is_none() && old.is_none(),
            };
            // Otherwise another thread of the owner was faster.
            if is_as_before {
                locks.insert(
                    key,
                    Owned { fd: fd.clone(), _share: share, pid, handle: address, is_writable, reads },
                );
                drop(locks);
                if let Some(old) = old {
                    set(&old, libc::F_OFD_SETLK, libc::F_UNLCK, 0, u64::MAX)?;
                }
                return Ok(fd);
            }
        }
    }

    /// Notes a lock that was taken or released through this descriptor. False if the owner has
    /// another one by now, to which it has to be applied as well.
    pub fn note(&self, key: (FileId, u64), fd: &Arc<OwnedFd>, noted: &FileLock) -> bool {
        let mut locks = lock(&self.0);
        let Some(owned) = locks.get_mut(&key) else { return true };
        if !Arc::ptr_eq(&owned.fd, fd) {
            return false;
        }
        if !owned.is_writable {
            cut(&mut owned.reads, noted.start, noted.end);
            if noted.kind == libc::F_RDLCK {
                owned.reads.push((noted.start, noted.end));
            }
        }
        true
    }

    /// The descriptor of an owner, if it has locks.
    pub fn known(&self, key: (FileId, u64)) -> Option<Arc<OwnedFd>> {
        lock(&self.0).get(&key).map(|owned| owned.fd.clone())
    }

    /// The process of the only other owner, if there is one.
    pub fn other(&self, key: (FileId, u64)) -> Option<u32> {
        let locks = lock(&self.0);
        let mut others = locks.iter().filter(|((file, owner), _)| *file == key.0 && *owner != key.1);
        let pid = others.next()?.1.pid;
        others.next().is_none().then_some(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_out_of_others() {
        let all = u64::MAX;
        for (start, end, left) in [
            (3, 4, vec![(0, 2), (5, 9), (20, all)]),
            (0, 9, vec![(20, all)]),
            (5, 30, vec![(0, 4), (31, all)]),
            (10, 19, vec![(0, 9), (20, all)]),
            (0, all, vec![]),
        ] {
            let mut ranges = vec![(0, 9), (20, all)];
            cut(&mut ranges, start, end);
            assert_eq!(ranges, left, "{start} to {end}");
        }
    }
}
