//! Locks of programs. They are taken on the PFS, so they also exclude programs that use the PFS
//! directly and, if the PFS's locks do so, programs on other nodes.
//!
//! A lock of a file (`flock`) is taken on the descriptor of the open file. A lock of a range
//! belongs to an owner, which may be a process or an open file. Each owner has its own descriptor
//! of the file, which holds the lock (an OFD lock). Closing the descriptor releases all locks of
//! the owner.

use crate::abi::{LK_FLOCK, LkIn, LkOut};
use crate::fs::{Done, Effect, Fs, Out, last_error};
use crate::handles::Handle;
use crate::lock_table::{range, set};
use crate::nodes::FileId;
use crate::request::Request;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

impl Fs {
    /// Serves GETLK: the lock that prevents another one.
    ///
    /// # Errors
    /// What the PFS returns, as for all operations.
    pub fn getlk(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: LkIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        self.callers.act_as_daemon();
        let key = self.lock_key(&handle, &arg)?;
        let known = self.locks.known(key);
        let mut lock = range(arg.lk.kind, arg.lk.start, arg.lk.end);
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

    /// Serves SETLK and SETLKW. A wait may last forever, so it has a thread of its own.
    ///
    /// # Errors
    /// As for all operations; `EINTR` after a signal.
    pub fn setlk(&self, request: &mut Request<'_>, waits: bool) -> Done {
        let arg: LkIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        self.callers.act_as_daemon();
        match arg.lk_flags & LK_FLOCK {
            0 => self.set_range(&handle, &arg, request.header.uid, waits)?,
            _ => set_whole(&handle, &arg, waits)?,
        }
        if arg.lk.kind != libc::F_UNLCK {
            // The program expects to see the writes of other lock holders.
            let others = self.nodes.handles(handle.node);
            others.iter().for_each(|other| other.doubt());
            if others.iter().any(|other| other.kept().is_some()) {
                // With the attributes: the next read asks for them.
                self.device.forget_content(handle.node);
            }
        }
        Ok(Effect::Nothing)
    }

    fn lock_key(&self, handle: &Handle, arg: &LkIn) -> Result<(FileId, u64), Errno> {
        Ok((self.nodes.file(handle.node).ok_or(Errno::STALE)?, arg.owner))
    }

    fn set_range(&self, handle: &Arc<Handle>, arg: &LkIn, uid: u32, waits: bool) -> Result<(), Errno> {
        let key = self.lock_key(handle, arg)?;
        let (kind, start, end) = (arg.lk.kind, arg.lk.start, arg.lk.end);
        // One of the errors that programs expect from locks.
        let keep = || self.keep_for(uid).map_err(|_| Errno::NOLCK);
        let command = if waits { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
        loop {
            let fd = match kind == libc::F_UNLCK {
                true => match self.locks.known(key) {
                    Some(fd) => fd,
                    None => return Ok(()),
                },
                false => self.locks.of_owner(key, handle, arg.lk.pid, kind == libc::F_WRLCK, keep)?,
            };
            set(&fd, command, kind, start, end)?;
            if self.locks.note(key, &fd, &arg.lk) {
                return Ok(());
            }
        }
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
