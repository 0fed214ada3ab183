//! Writes of programs, as calls on a file.

use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `RWF_NOAPPEND`, which is newer than the C library's header.
const RWF_NOAPPEND: i32 = 0x20;

/// Writes all of `data` in parts, or as much as can be written before an error.
pub fn write_all(
    data: &[u8],
    offset: u64,
    write: impl Fn(&[u8], u64) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        match write(&data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Writes with the program's current flags: it may have changed them since it opened the file.
pub fn write_once(
    file: BorrowedFd<'_>,
    data: &[u8],
    offset: u64,
    (opened_to_append, appends): (bool, bool),
) -> Result<usize, Errno> {
    let how = match (appends, opened_to_append) {
        (true, false) => libc::RWF_APPEND,
        (false, true) => RWF_NOAPPEND,
        _ => return rustix::io::pwrite(file, data, offset),
    };
    let part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    let fd = file.as_raw_fd();
    // SAFETY: one buffer, which is only read.
    let n = unsafe { libc::pwritev2(fd, &raw const part, 1, offset as libc::off_t, how) };
    if n < 0 {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(n as usize)
    }
}
