//! The mark that the PFS has a whole file.

use rustix::fs::fgetxattr;
use std::os::fd::BorrowedFd;

/// The extended attribute that says, as the last act of a pass, that the PFS has the whole file:
/// its length and mtime in nanoseconds, with a space between.
pub const MARK: &str = "user.forebay.complete";

/// Length and mtime that the mark of a file names.
pub fn marked_version(pfs: BorrowedFd<'_>) -> Option<(u64, i64)> {
    let mut mark = [0; 64];
    let len = fgetxattr(pfs, MARK, &mut mark[..]).ok()?;
    let (size, mtime_ns) = std::str::from_utf8(&mark[..len]).ok()?.split_once(' ')?;
    Some((size.parse().ok()?, mtime_ns.parse().ok()?))
}
