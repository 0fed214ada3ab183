//! Time stamps that a file system would move only after a close.
//!
//! The client of MooseFS reports the stamps of an overwrite about once a second, and a close does
//! not wait for that. Until then an open on another node finds the old version, and may read it
//! from the tier. The servers learn immediately of a truncation, of a new length and of times that
//! a program sets, so files that are created and written from their start have no such gap. A
//! writer that has written an existing file at any position therefore sets its times before the
//! close.

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

/// Sets the times of a file that was overwritten through this descriptor to now, where another node
/// would see the change only some time after the close: on MooseFS. Elsewhere it does nothing.
///
/// # Errors
/// The error of the file system. The bytes are written; other nodes may still find the old version
/// for a second.
pub fn stamp_written(file: BorrowedFd<'_>) -> io::Result<()> {
    // The link of a file that was deleted meanwhile still names its directory, which is enough.
    let path = std::fs::read_link(Path::new("/proc/self/fd").join(file.as_raw_fd().to_string()))?;
    if !forebay_pfs::Traits::of(&path).stamps_late {
        return Ok(());
    }
    // Both: a user who may write a file but does not own it may set nothing else.
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Ok(futimens(file.as_fd(), &Timestamps { last_access: now, last_modification: now })?)
}
