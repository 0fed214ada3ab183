//! System calls of this library itself, past every function that anybody has replaced.
//!
//! Another preloaded library may replace `fstat`, `readlink` or `syscall` (fakeroot, sandboxes),
//! and would then answer for the program, or wait for a lock that the program holds. These calls
//! neither set `errno` nor end a cancelled thread.

use core::arch::asm;
#[cfg(not(test))]
use core::ffi::c_int;
use core::ffi::c_long;

/// Calls the kernel: its result, or the error number as a negative one.
///
/// # Safety
/// As for the system call.
#[inline]
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the kernel changes these registers only, and memory by the caller's promise.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc #0",
            in("x8") number as isize,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    result
}

/// [`call`] with fewer arguments, each an integer or a pointer.
macro_rules! sys {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        let mut all = [0_usize; 6];
        let given: &[usize] = &[$($argument as usize),*];
        all[..given.len()].copy_from_slice(given);
        $crate::kernel::call(libc::$number, all)
    }};
}
pub(crate) use sys;

/// `fcntl`.
///
/// # Safety
/// The argument fits the command.
#[cfg(not(test))]
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe { sys!(SYS_fcntl, fd, command, argument) }
}
