//! Functions after which the library serves reads differently, or not at all: those that lock
//! files, receive messages from other processes, change files by path, leave signal handlers, and
//! forbid system calls.

use core::ffi::{c_char, c_int, c_ulong, c_void};

use libc::{FILE, id_t, idtype_t, off_t, pid_t, rusage, siginfo_t, sigset_t, size_t, ssize_t, timespec};

use crate::calls::take_place;
use crate::next::next;
use crate::{inside, observer, stdio, tier};

/// Functions after which the program expects to see what others have written before: those that
/// lock files, and those that receive messages from other processes.
macro_rules! synchronizes {
    ($($after:ident: $(#[$first:ident])? fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => { take_place! {$(
        fn $name($($arg: $type),*) -> $ret {
            $( tier::$first(); )?
            let result = next!($name($($arg => $type),*) -> $ret, else -1);
            tier::$after();
            result
        }
    )*} };
}

synchronizes! {
    locked: fn flock(fd: c_int, operation: c_int) -> c_int;
    locked: #[locks] fn lockf(fd: c_int, command: c_int, bytes: off_t) -> c_int;
    locked: #[locks] fn lockf64(fd: c_int, command: c_int, bytes: off_t) -> c_int;
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
    // Changes that the process makes itself, but not through a descriptor.
    heard: fn truncate(path: *const c_char, bytes: off_t) -> c_int;
    heard: fn truncate64(path: *const c_char, bytes: off_t) -> c_int;
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
            tier::restricted();
            observer::restricted();
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
