//! Locks of programs, taken on the PFS: so they hold against programs that use the PFS itself, and
//! against other nodes where the PFS's locks do.
//!
//! A lock of a file (`flock`) is taken on the descriptor of the open file. A lock of a range
//! belongs to an owner, which may be a process or an open file; each owner gets a descriptor of its
//! own for the file, and the lock is that descriptor's (an OFD lock). To release all locks of an
//! owner is to close its descriptor.

use crate::abi::{LK_FLOCK, LkIn, LkOut};
use crate::fs::{Done, Effect, Fs, Out, last_error};
use crate::handles::Handle;
use crate::nodes::FileId;
use crate::request::Request;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

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
