//! Reads and writes at an offset that continue until all bytes are done.

use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;

/// Writes all of `data`.
///
/// # Errors
/// What `pwrite` returns, but for `EINTR`.
pub fn write_all_at(fd: BorrowedFd<'_>, mut data: &[u8], mut offset: u64) -> io::Result<()> {
    while !data.is_empty() {
        match rustix::io::pwrite(fd, data, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                data = &data[n..];
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Fills all of `buffer`.
///
/// # Errors
/// What `pread` returns, but for `EINTR`; `UnexpectedEof`: the file ends before.
pub fn read_exact_at(fd: BorrowedFd<'_>, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match rustix::io::pread(fd, &mut *buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
