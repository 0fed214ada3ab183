//! Locks of programs, taken on the PFS: so they hold against programs that use the PFS itself, and
//! against other nodes where the PFS's locks do.
//!
//! A lock of a file (`flock`) is taken on the descriptor of the open file. A lock of a range
//! belongs to an owner, which may be a process or an open file; each owner gets a descriptor of its
//! own for the file, and the lock is that descriptor's (an OFD lock). To release all locks of an
//! owner is to close its descriptor.

use crate::abi::{LK_FLOCK, LkIn, LkOut};
use crate::fs::{Done, Effect, Fs, Out, last_error, self_path};
use crate::handles::Handle;
use crate::nodes::FileId;
use crate::request::Request;
use rustix::fs::{FlockOperation, Mode, OFlags};
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
    /// The process that has taken the last one.
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

    /// Releases what was locked through an open file by the file itself, not by a process: that
    /// has released its locks before.
    pub fn drop_handle(&self, handle: &Arc<Handle>) {
        let mut locks = self.lock();
        if !locks.is_empty() {
            let address = Arc::as_ptr(handle) as usize;
            locks.retain(|_, owned| owned.handle != address);
        }
    }

    /// The descriptor of an owner, made if there is none.
    fn of_owner(&self, key: (FileId, u64), handle: &Arc<Handle>, pid: u32) -> Result<Arc<OwnedFd>, Errno> {
        let mut locks = self.lock();
        let address = Arc::as_ptr(handle) as usize;
        if let Some(owned) = locks.get_mut(&key) {
            (owned.pid, owned.handle) = (pid, address);
            return Ok(owned.fd.clone());
        }
        let path = self_path(handle.as_fd());
        // The kernel has checked that the program's own descriptor suffices for the lock.
        let open = |flags| rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty());
        let fd =
            Arc::new(open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)).or_else(|_| open(OFlags::WRONLY))?);
        locks.insert(key, Owned { fd: fd.clone(), pid, handle: address });
        Ok(fd)
    }

    fn known(&self, key: (FileId, u64)) -> Option<Arc<OwnedFd>> {
        self.lock().get(&key).map(|owned| owned.fd.clone())
    }

    /// The process of the only other owner, if there is one.
    fn other(&self, key: (FileId, u64)) -> Option<u32> {
        let locks = self.lock();
        let mut others = locks.iter().filter(|((file, owner), _)| *file == key.0 && *owner != key.1);
        let pid = others.next()?.1.pid;
        others.next().is_none().then_some(pid)
    }
}

fn flock_of(arg: &LkIn) -> libc::flock {
    let len = match arg.lk.end {
        // To the end of the file, however long it becomes.
        end if end >= i64::MAX as u64 => 0,
        end => end - arg.lk.start + 1,
    };
    libc::flock {
        l_type: arg.lk.kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: arg.lk.start as i64,
        l_len: len as i64,
        l_pid: 0,
    }
}

impl Fs {
    /// GETLK: who would keep a lock from being taken.
    ///
    /// # Errors
    /// What the PFS returns; so for all operations.
    pub fn getlk(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: LkIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        self.callers.act_as_daemon();
        let key = self.lock_key(&handle, &arg)?;
        let known = self.locks.known(key);
        let mut lock = flock_of(&arg);
        let fd = match &known {
            Some(fd) => fd.as_raw_fd(),
            None => handle.as_fd().as_raw_fd(),
        };
        // SAFETY: one `flock`.
        if unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) } < 0 {
            return Err(last_error());
        }
        let mut found = arg.lk;
        found.kind = i32::from(lock.l_type);
        if found.kind != libc::F_UNLCK {
            found.start = lock.l_start as u64;
            found.end = match lock.l_len {
                0 => i64::MAX as u64,
                len => (lock.l_start + len - 1) as u64,
            };
            found.pid = match lock.l_pid {
                pid if pid > 0 => pid as u32,
                _ => self.locks.other(key).unwrap_or(0),
            };
        }
        out.put(&LkOut { lk: found });
        Ok(Effect::Nothing)
    }

    /// SETLK and SETLKW. A call that waits may last for ever: the thread is not one of those that
    /// serve others then.
    ///
    /// # Errors
    /// As for all operations; `EINTR` after a signal.
    pub fn setlk(&self, request: &mut Request<'_>, waits: bool) -> Done {
        let arg: LkIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        self.callers.act_as_daemon();
        match arg.lk_flags & LK_FLOCK {
            0 => self.set_range(&handle, &arg, waits)?,
            _ => set_whole(&handle, &arg, waits)?,
        }
        if arg.lk.kind != libc::F_UNLCK {
            // The program expects to see what others have written under their lock.
            self.nodes.handles_of_file(handle.node).iter().for_each(|other| other.served.doubt());
        }
        Ok(Effect::Nothing)
    }

    fn lock_key(&self, handle: &Handle, arg: &LkIn) -> Result<(FileId, u64), Errno> {
        Ok((self.nodes.file(handle.node).ok_or(Errno::STALE)?, arg.owner))
    }

    fn set_range(&self, handle: &Arc<Handle>, arg: &LkIn, waits: bool) -> Result<(), Errno> {
        let unlocks = arg.lk.kind == libc::F_UNLCK;
        let key = self.lock_key(handle, arg)?;
        let fd = match unlocks {
            true => match self.locks.known(key) {
                Some(fd) => fd,
                None => return Ok(()),
            },
            false => self.locks.of_owner(key, handle, arg.lk.pid)?,
        };
        let lock = flock_of(arg);
        let command = if waits { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
        // SAFETY: one `flock`.
        if unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw const lock) } < 0 {
            return Err(last_error());
        }
        Ok(())
    }
}

fn set_whole(handle: &Handle, arg: &LkIn, waits: bool) -> Result<(), Errno> {
    let operation = match (arg.lk.kind, waits) {
        (libc::F_RDLCK, true) => FlockOperation::LockShared,
        (libc::F_RDLCK, false) => FlockOperation::NonBlockingLockShared,
        (libc::F_WRLCK, true) => FlockOperation::LockExclusive,
        (libc::F_WRLCK, false) => FlockOperation::NonBlockingLockExclusive,
        _ => FlockOperation::Unlock,
    };
    rustix::fs::flock(handle.as_fd(), operation)
}
