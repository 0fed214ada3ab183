//! The system calls of the C library that open, close, duplicate, write, read and synchronize.
//!
//! Each function has the C library's name and type, and its unwinding ABI: a thread that is
//! cancelled inside leaves through ours. `open` and `fcntl` have a variable number of arguments in
//! C; on the processors that are built for, a third argument that was not passed is only garbage
//! that nobody looks at.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{iovec, mode_t, off_t, size_t, ssize_t};

use crate::descriptors;
use crate::next::next;
use crate::observer;

/// Bytes of a result that is negative on failure.
#[inline]
fn count(result: ssize_t) -> u64 {
    u64::try_from(result).unwrap_or(0)
}

/// A number that a call has handed out stands for a new file.
#[inline]
fn opened(fd: c_int) -> c_int {
    descriptors::forget(fd);
    fd
}

/// Defines functions under the C library's names.
macro_rules! take_place {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty $body:block)*) => {$(
        /// Takes the place of the C library's function.
        ///
        /// # Safety
        /// As of the C library's.
        #[unsafe(no_mangle)]
        $(#[$meta])*
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret $body
    )*};
}
pub(crate) use take_place;

/// Functions that hand out a descriptor.
macro_rules! opens {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => { take_place! {$(
        fn $name($($arg: $type),*) -> c_int {
            opened(next!($name($($arg => $type),*) -> c_int, else -1))
        }
    )*} };
}

opens! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t);
    fn open64(path: *const c_char, flags: c_int, mode: mode_t);
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    fn __open_2(path: *const c_char, flags: c_int);
    fn __open64_2(path: *const c_char, flags: c_int);
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int);
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int);
    fn creat(path: *const c_char, mode: mode_t);
    fn creat64(path: *const c_char, mode: mode_t);
    fn mkstemp(template: *mut c_char);
    fn mkstemp64(template: *mut c_char);
    fn mkostemp(template: *mut c_char, flags: c_int);
    fn mkostemp64(template: *mut c_char, flags: c_int);
    fn dup(fd: c_int);
    // Those of other files are named so that a number closed unseen does not stay the PFS's.
    fn socket(domain: c_int, kind: c_int, protocol: c_int);
    fn memfd_create(name: *const c_char, flags: c_uint);
}

take_place! {
    fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        let result = next!(fcntl(fd => c_int, command => c_int, argument => *mut c_void) -> c_int, else -1);
        duplicated(command, result)
    }

    fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        let result = next!(fcntl64(fd => c_int, command => c_int, argument => *mut c_void) -> c_int, else -1);
        duplicated(command, result)
    }

    fn dup2(from: c_int, to: c_int) -> c_int {
        let result = next!(dup2(from => c_int, to => c_int) -> c_int, else -1);
        if from == to { result } else { opened(result) }
    }

    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        opened(next!(dup3(from => c_int, to => c_int, flags => c_int) -> c_int, else -1))
    }

    fn close(fd: c_int) -> c_int {
        observer::close(fd, || next!(close(fd => c_int) -> c_int, else -1))
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        const CLOSE_ON_EXEC_ONLY: c_int = 4;
        if flags & CLOSE_ON_EXEC_ONLY == 0 {
            descriptors::forget_range(first, last);
        }
        next!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int, else -1)
    }

    fn closefrom(first: c_int) -> () {
        descriptors::forget_range(first.max(0).unsigned_abs(), c_uint::MAX);
        next!(closefrom(first => c_int) -> (), else ())
    }
}

fn duplicated(command: c_int, result: c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { opened(result) } else { result }
}

/// Functions that write to `fd` and return how many bytes.
macro_rules! writes {
    ($(fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)*);)*) => { take_place! {$(
        fn $name($fd: c_int $(, $arg: $type)*) -> ssize_t {
            observer::write($fd, || next!($name($fd => c_int $(, $arg => $type)*) -> ssize_t, else -1), count)
        }
    )*} };
}

writes! {
    fn write(fd: c_int, buffer: *const c_void, bytes: size_t);
    fn pwrite(fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t);
    fn pwrite64(fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t);
    fn writev(fd: c_int, parts: *const iovec, len: c_int);
    fn pwritev(fd: c_int, parts: *const iovec, len: c_int, offset: off_t);
    fn pwritev64(fd: c_int, parts: *const iovec, len: c_int, offset: off_t);
    fn pwritev2(fd: c_int, parts: *const iovec, len: c_int, offset: off_t, flags: c_int);
    fn pwritev64v2(fd: c_int, parts: *const iovec, len: c_int, offset: off_t, flags: c_int);
}

/// Functions that read from `fd`; `wanted` says how many bytes at most.
macro_rules! reads {
    ($(fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)*), $wanted:expr;)*) => { take_place! {$(
        fn $name($fd: c_int $(, $arg: $type)*) -> ssize_t {
            let call = || next!($name($fd => c_int $(, $arg => $type)*) -> ssize_t, else -1);
            observer::read($fd, $wanted, call, count)
        }
    )*} };
}

reads! {
    fn read(fd: c_int, buffer: *mut c_void, bytes: size_t), bytes;
    fn pread(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t), bytes;
    fn pread64(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t), bytes;
    // The lengths are in the caller's memory, which a wrong caller may not have: not looked at.
    fn readv(fd: c_int, parts: *const iovec, len: c_int), usize::MAX;
    fn preadv(fd: c_int, parts: *const iovec, len: c_int, offset: off_t), usize::MAX;
    fn preadv64(fd: c_int, parts: *const iovec, len: c_int, offset: off_t), usize::MAX;
    fn preadv2(fd: c_int, parts: *const iovec, len: c_int, offset: off_t, flags: c_int), usize::MAX;
    fn preadv64v2(fd: c_int, parts: *const iovec, len: c_int, offset: off_t, flags: c_int), usize::MAX;
    fn __read_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, room: size_t), bytes;
    fn __pread_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t, room: size_t), bytes;
    fn __pread64_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t, room: size_t), bytes;
}

/// Functions that move bytes from one file to another within the kernel.
macro_rules! moves {
    ($(fn $name:ident($($arg:ident: $type:ty),*), $from:ident to $to:ident;)*) => { take_place! {$(
        fn $name($($arg: $type),*) -> ssize_t {
            let call = || next!($name($($arg => $type),*) -> ssize_t, else -1);
            observer::write($to, || observer::read($from, usize::MAX, call, count), count)
        }
    )*} };
}

moves! {
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t), from to to;
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t), from to to;
    fn copy_file_range(from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, bytes: size_t, flags: c_uint), from to to;
    fn splice(from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, bytes: size_t, flags: c_uint), from to to;
}

/// Functions that wait until the storage has what was written to `fd`.
macro_rules! syncs {
    ($(fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)*);)*) => { take_place! {$(
        fn $name($fd: c_int $(, $arg: $type)*) -> c_int {
            observer::sync($fd, || next!($name($fd => c_int $(, $arg => $type)*) -> c_int, else -1))
        }
    )*} };
}

syncs! {
    fn fsync(fd: c_int);
    fn fdatasync(fd: c_int);
    fn syncfs(fd: c_int);
    fn sync_file_range(fd: c_int, offset: off_t, bytes: off_t, flags: c_uint);
}

/// `off_t` and `long` have the size that these declarations assume.
const _: () = assert!(size_of::<off_t>() == 8 && size_of::<c_long>() == 8);
