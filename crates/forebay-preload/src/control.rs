//! Functions after which the library serves reads differently, or not at all: those that lock
//! files, receive messages from other processes, change files by path, leave signal handlers,
//! forbid system calls, load libraries, and pass any system call on.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{FILE, id_t, idtype_t, off_t, pid_t, rusage, siginfo_t, sigset_t, size_t, ssize_t, timespec};

use crate::absorb::{self, Access};
use crate::calls::{self, exports, take_place};
use crate::next::next;
use crate::{bare_calls, inside, observer, stdio, tier};

/// Functions after which the program expects to see what others have written before: those that
/// lock files, and those that receive messages from other processes.
macro_rules! synchronizes {
    ($($after:ident: $(#[$first:ident($fd:ident)])? fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => { take_place! {$(
        fn $name($($arg: $type),*) -> $ret {
            $(
                tier::$first($fd);
                let $fd = absorb::to_lock($fd);
            )?
            let result = next!($name($($arg => $type),*) -> $ret, else -1);
            tier::$after();
            result
        }
    )*} };
}

synchronizes! {
    locked: #[locks_file(fd)] fn flock(fd: c_int, operation: c_int) -> c_int;
    locked: #[locks(fd)] fn lockf(fd: c_int, command: c_int, bytes: off_t) -> c_int;
    locked: #[locks(fd)] fn lockf64(fd: c_int, command: c_int, bytes: off_t) -> c_int;
    heard: fn wait(status: *mut c_int) -> pid_t;
    heard: fn waitpid(child: pid_t, status: *mut c_int, options: c_int) -> pid_t;
    heard: fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t;
    heard: fn wait4(child: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t;
    heard: fn waitid(kind: idtype_t, child: id_t, info: *mut siginfo_t, options: c_int) -> c_int;
    heard: fn system(command: *const c_char) -> c_int;
    heard: fn pause() -> c_int;
    heard: fn sigsuspend(mask: *const sigset_t) -> c_int;
    heard: fn sigwait(set: *const sigset_t, number: *mut c_int) -> c_int;
    heard: fn sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int;
    heard: fn sigtimedwait(set: *const sigset_t, info: *mut siginfo_t, time: *const timespec) -> c_int;
    heard: fn recv(fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t;
    heard: fn recvfrom(fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int, from: *mut c_void, room: *mut c_void) -> ssize_t;
    heard: fn recvmsg(fd: c_int, message: *mut c_void, flags: c_int) -> ssize_t;
}

/// Functions that change a file by its path. For a dirty file, that means its content.
macro_rules! truncates {
    ($(fn $name:ident by $by_descriptor:ident;)*) => { take_place! {$(
        fn $name(path: *const c_char, bytes: off_t) -> c_int {
            let result = match calls::opened_if_dirty(path) {
                Some(fd) => {
                    // SAFETY: it was just opened, for this.
                    unsafe {
                        let result = calls::$by_descriptor(fd, bytes);
                        let errno = *libc::__errno_location();
                        calls::close(fd);
                        *libc::__errno_location() = errno;
                        result
                    }
                }
                None => next!($name(path => *const c_char, bytes => off_t) -> c_int, else -1),
            };
            tier::heard();
            result
        }
    )*} };
}

truncates! {
    fn truncate by ftruncate;
    fn truncate64 by ftruncate64;
}

take_place! {
    fn pclose(stream: *mut FILE) -> c_int {
        stdio::closed(stream);
        let result = next!(pclose(stream => *mut FILE) -> c_int, else -1);
        tier::heard();
        result
    }

    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        if option == libc::PR_SET_SECCOMP {
            restricted();
        }
        next!(prctl(option => c_int, a => c_ulong, b => c_ulong, c => c_ulong, d => c_ulong) -> c_int, else -1)
    }
}

/// Functions that jump to an earlier place of the program.
macro_rules! jumps {
    ($($name:ident;)*) => { take_place! {$(
        fn $name(place: *mut c_void, value: c_int) -> () {
            inside::jumps();
            next!($name(place => *mut c_void, value => c_int) -> (), else ());
        }
    )*} };
}

jumps! {
    longjmp;
    _longjmp;
    siglongjmp;
    __longjmp_chk;
}

// The definitions are in jumps.c.
exports! {
    syscall by forebay_preload_syscall;
    clone by forebay_preload_clone;
    dlopen by forebay_preload_dlopen;
    dlmopen by forebay_preload_dlmopen;
}

/// Notes that the program loads a library; if it is `apart`, with a C library of its own.
#[unsafe(no_mangle)]
extern "C" fn forebay_preload_loads(is_apart: c_int) {
    if is_apart != 0 {
        bare_calls::found();
    }
    bare_calls::loads();
}

/// Notes that the program starts a child that shares its descriptors, but not its memory.
#[unsafe(no_mangle)]
extern "C" fn forebay_preload_shares_descriptors() {
    bare_calls::found();
}

/// Notes that the program forbids itself system calls, perhaps some that only the library makes.
fn restricted() {
    tier::restricted();
    observer::restricted();
}

/// Whether `syscall` with this number matters to the library.
#[unsafe(no_mangle)]
extern "C" fn forebay_preload_is_watched(number: c_long) -> c_int {
    #[cfg(target_arch = "x86_64")]
    let is_old = matches!(number, libc::SYS_dup2 | libc::SYS_open | libc::SYS_creat);
    #[cfg(not(target_arch = "x86_64"))]
    let is_old = false;
    let is_watched = matches!(
        number,
        libc::SYS_close
            | libc::SYS_close_range
            | libc::SYS_dup3
            | libc::SYS_openat
            | libc::SYS_openat2
            | libc::SYS_io_uring_setup
            | libc::SYS_seccomp
            | libc::SYS_prctl
    );
    c_int::from(is_old || is_watched)
}

type Bare = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// Does what the C library's function of the same name would have the library do.
///
/// # Safety
/// `next` is the next `syscall`, for which the program has passed these arguments.
#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_preload_watched(next: Bare, arguments: *const [c_long; 7]) -> c_long {
    // SAFETY: the caller's promise.
    let [number, a, b, c, d, e, f] = unsafe { *arguments };
    // SAFETY: the program's own arguments.
    let call = || unsafe { next(number, a, b, c, d, e, f) };
    // The kernel uses the lower half of a number of a descriptor and of flags.
    let [first, second, third] = [a, b, c].map(|argument| argument as c_int);
    let descriptor = || call() as c_int;
    let result = match number {
        libc::SYS_close => calls::closes(first, descriptor),
        libc::SYS_dup3 => calls::replaces(first, second, descriptor),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => calls::replaces(first, second, descriptor),
        // SAFETY: no pointers.
        libc::SYS_close_range => unsafe { calls::close_range(a as c_uint, b as c_uint, third) },
        libc::SYS_openat => calls::opens(descriptor, Access::of(third)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => calls::opens(descriptor, Access::of(second)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => calls::opens(descriptor, Access::Truncate),
        libc::SYS_openat2 => {
            // The structure is the program's, and perhaps none.
            let mut fd = descriptor();
            if calls::may_try_again(fd < 0) {
                fd = descriptor();
            }
            let access = match fd {
                ..0 => Access::Read,
                // SAFETY: the flags come first in a structure that the kernel has just read.
                _ => Access::of(unsafe { *(c as *const u64) } as c_int),
            };
            calls::opens(|| fd, access)
        }
        _ => {
            match number {
                libc::SYS_io_uring_setup => bare_calls::found(),
                libc::SYS_prctl if first != libc::PR_SET_SECCOMP => {}
                _ => restricted(),
            }
            return call();
        }
    };
    c_long::from(result)
}
