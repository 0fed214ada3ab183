//! Locks that show which pages of a copy programs map.
//!
//! A lock belongs to an open file description, and a mapping keeps the one that it was made of. So
//! the kernel holds the lock for as long as anybody has the mapping, even a part of it, moved, or
//! inherited by a fork, and releases it at the last `munmap`, `exec` or end, however that comes.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Looks for locks in one call: a few milliseconds at most, however many locks a stranger has.
const LOOKS_MAX: usize = 4096;

/// Locks bytes of the file, for the description behind `file`.
///
/// # Errors
/// What `fcntl` returns.
pub(super) fn lock(file: BorrowedFd<'_>, bytes: &Range<u64>) -> io::Result<()> {
    control(file, libc::F_OFD_SETLK, &mut request(libc::F_RDLCK, bytes)?)
}

/// Parts of `bytes` that no other description has locked: all of them, unless there are very many.
///
/// # Errors
/// What `fcntl` returns.
pub(super) fn unlocked(file: BorrowedFd<'_>, bytes: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let (mut free, mut left) = (Vec::new(), vec![bytes]);
    for _ in 0..LOOKS_MAX {
        let Some(part) = left.pop() else { break };
        let mut found = request(libc::F_WRLCK, &part)?;
        control(file, libc::F_OFD_GETLK, &mut found)?;
        if i32::from(found.l_type) == libc::F_UNLCK {
            free.push(part);
            continue;
        }
        // One of the locks in the part, in no order.
        let start = found.l_start.unsigned_abs();
        let end = if found.l_len == 0 { part.end } else { start + found.l_len.unsigned_abs() };
        let beside = [part.start..start.max(part.start), end.min(part.end)..part.end];
        left.extend(beside.into_iter().filter(|part| !part.is_empty()));
    }
    Ok(free)
}

fn request(kind: libc::c_int, bytes: &Range<u64>) -> io::Result<libc::flock> {
    let number = |bytes| libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput);
    Ok(libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: number(bytes.start)?,
        l_len: number(bytes.end - bytes.start)?,
        l_pid: 0,
    })
}

fn control(file: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: both commands take a lock, which lives on the caller's stack.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
