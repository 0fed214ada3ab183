//! The range locks of programs: one descriptor for each owner and file.

use crate::handles::Handle;
use crate::nodes::FileId;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks of ranges.
#[derive(Debug, Default)]
pub struct Locks(Mutex<HashMap<(FileId, u64), Owned>>);

/// The locks of one owner on one file.
#[derive(Debug)]
struct Owned {
    fd: Arc<OwnedFd>,
    /// The process that took the last one.
    pid: u32,
    /// The open file through which it did.
    handle: usize,
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, HashMap<(FileId, u64), Owned>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        self.lock().is_empty()
    }

    /// Releases the locks of an owner on a file.
    pub fn drop_owner(&self, file: FileId, owner: u64) {
        let owned = self.lock().remove(&(file, owner));
        drop(owned);
    }

    /// Releases the locks that belong to an open file. Those that belong to a process have been
    /// released before.
    pub fn drop_handle(&self, handle: &Arc<Handle>) {
        let mut locks = self.lock();
        let address = Arc::as_ptr(handle) as usize;
        let keys: Vec<_> =
            locks.iter().filter(|(_, owned)| owned.handle == address).map(|(key, _)| *key).collect();
        let ended: Vec<_> = keys.iter().filter_map(|key| locks.remove(key)).collect();
        drop(locks);
        // Their descriptors close here, which may ask the PFS.
        drop(ended);
    }

    /// The descriptor of an owner, made if there is none.
    ///
    /// # Errors
    /// What the PFS returns.
    pub fn of_owner(
        &self,
        key: (FileId, u64),
        handle: &Arc<Handle>,
        pid: u32,
    ) -> Result<Arc<OwnedFd>, Errno> {
        let address = Arc::as_ptr(handle) as usize;
        if let Some(owned) = self.lock().get_mut(&key) {
            (owned.pid, owned.handle) = (pid, address);
            return Ok(owned.fd.clone());
        }
        // Without the lock: a PFS that hangs at this file must not hold up other closes.
        let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
        // The kernel has checked that the program's own descriptor suffices for the lock.
        let open = |flags| rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty());
        let fd =
            Arc::new(open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)).or_else(|_| open(OFlags::WRONLY))?);
        let mut locks = self.lock();
        // Another thread of the owner may have been faster.
        let owned = locks.entry(key).or_insert(Owned { fd, pid, handle: address });
        (owned.pid, owned.handle) = (pid, address);
        Ok(owned.fd.clone())
    }

    /// The descriptor of an owner, if it has locks.
    pub fn known(&self, key: (FileId, u64)) -> Option<Arc<OwnedFd>> {
        self.lock().get(&key).map(|owned| owned.fd.clone())
    }

    /// The process of the only other owner, if there is one.
    pub fn other(&self, key: (FileId, u64)) -> Option<u32> {
        let locks = self.lock();
        let mut others = locks.iter().filter(|((file, owner), _)| *file == key.0 && *owner != key.1);
        let pid = others.next()?.1.pid;
        others.next().is_none().then_some(pid)
    }
}
