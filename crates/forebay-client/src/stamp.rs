//! Time stamps that a file system would move only after a close.
//!
//! The client of MooseFS reports the stamps of an overwrite about once a second, and a close does
//! not wait for that. Until then an open on another node finds the old version, and may read it
//! from the tier. The servers learn at once of a truncation, of a new length and of times that a
//! program sets, so files that are created and written from their start have no such gap. Who
//! writes an existing file at any position sets its times before it closes it.

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

/// Sets the times of a file that was overwritten by this descriptor to now, where another node
/// would see the change only some time after the close: on MooseFS. Elsewhere it does nothing.
///
/// # Errors
/// What the file system returns. The bytes are written; other nodes may take them for the old
/// version for a second.
pub fn stamp_written(file: BorrowedFd<'_>) -> io::Result<()> {
    // What was deleted meanwhile keeps the name of its directory, and that is enough.
    let path = std::fs::read_link(Path::new("/proc/self/fd").join(file.as_raw_fd().to_string()))?;
    if !forebay_pfs::mount::is_moosefs(&path) {
        return Ok(());
    }
    // Both: whoever may write a file but does not own it may set nothing else.
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Ok(futimens(file.as_fd(), &Timestamps { last_access: now, last_modification: now })?)
}
