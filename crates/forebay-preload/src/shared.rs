//! What this process has from the program that started it: variables, and memory that both share.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::{null, null_mut};

use crate::kernel;

/// A variable of the environment; null if it is not set, or in a program that has more rights than
/// its caller.
///
/// # Safety
/// No other thread changes the environment.
pub unsafe fn variable(name: &CStr) -> *const c_char {
    // SAFETY: it reads what the kernel has passed to the program.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return null();
    }
    // SAFETY: the caller's promise.
    unsafe { libc::getenv(name.as_ptr()) }
}

/// Maps the file at `path`, of `bytes` or more, for the life of the process.
///
/// # Safety
/// `path` is a C string.
pub unsafe fn map(path: *const c_char, bytes: usize) -> Option<*mut c_void> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: a C string and flags; the descriptor is closed below.
    let fd = unsafe { kernel::sys!(SYS_openat, libc::AT_FDCWD, path, flags) } as i32;
    if fd < 0 {
        return None;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of an open file, and `stat` of the right type; a file that is shorter
    // than it should be is not touched.
    let mapped = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        let is_whole = kernel::sys!(SYS_fstat, fd, &raw mut stat) == 0 && stat.st_size >= bytes as i64;
        let mapped = match is_whole {
            true => libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0),
            false => libc::MAP_FAILED,
        };
        kernel::sys!(SYS_close, fd);
        mapped
    };
    (mapped != libc::MAP_FAILED).then_some(mapped)
}
