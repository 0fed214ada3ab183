//! The path under which a descriptor was opened.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

/// The path under which `fd` was opened, as this agent sees it; empty if the kernel does not say.
/// It chooses the size of pages and is shown to people. It proves nothing about access.
pub fn opened_path(fd: BorrowedFd<'_>) -> Vec<u8> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .map(|path| path.as_os_str().as_bytes().to_vec())
        .unwrap_or_default()
}
