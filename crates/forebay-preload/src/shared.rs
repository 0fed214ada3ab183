//! Memory that this process shares with the program that started it.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;

/// Maps the file at `path`, of `bytes` or more, for the life of the process.
///
/// # Safety
/// `path` is a C string.
pub unsafe fn map(path: *const c_char, bytes: usize) -> Option<*mut c_void> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // Past our own functions, which are not ready.
    // SAFETY: a C string and flags; the descriptor is closed below.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) } as i32;
    if fd < 0 {
        return None;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of an open file, and `stat` of the right type; a file that is shorter
    // than it should be is not touched.
    let mapped = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        let is_whole = libc::fstat(fd, &mut stat) == 0 && stat.st_size >= bytes as i64;
        let mapped = match is_whole {
            true => libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0),
            false => libc::MAP_FAILED,
        };
        libc::syscall(libc::SYS_close, fd);
        mapped
    };
    (mapped != libc::MAP_FAILED).then_some(mapped)
}
