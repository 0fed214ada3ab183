//! The system calls of the C library that open, close, duplicate, write, read and synchronize
//! files. `control.rs` has those that only change what the library may do.
//!
//! Each function has the C library's name and type, and its unwinding ABI: a thread that is
//! cancelled inside leaves through ours. `open` and `fcntl` have a variable number of arguments in
//! C; on the supported processors, a third argument that was not passed is only garbage that
//! nobody reads.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{iovec, mode_t, off_t, size_t, ssize_t};

use crate::next::next;
use crate::tier::{self, At};
use crate::{descriptors, inside, observer, own_files};

/// Bytes of a result that is negative on failure.
#[inline]
fn count(result: ssize_t) -> u64 {
    u64::try_from(result).unwrap_or(0)
}

/// A number that a call has handed out stands for a new file.
#[inline]
fn opened(fd: c_int, may_write: bool) -> c_int {
    descriptors::forget(fd);
    tier::opened(fd, may_write);
    fd
}

/// Whether a call that gave `result` has found no free descriptor, and may find one now.
#[inline]
pub fn may_try_again(is_failed: bool) -> bool {
    // SAFETY: `errno` is the calling thread's.
    is_failed && unsafe { *libc::__errno_location() } == libc::EMFILE && tier::make_room()
}

/// Whether a file that is opened with these flags may be written, or is changed by that.
#[inline]
pub fn writes(flags: c_int) -> bool {
    flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY
}

/// Refuses a descriptor that is this library's.
pub fn refused(errno: c_int) -> c_int {
    // SAFETY: `errno` is the calling thread's.
    unsafe { *libc::__errno_location() = errno };
    -1
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

/// Exports C's functions under the names of the C library, by a jump.
macro_rules! exports {
    ($($name:ident by $target:ident;)*) => {$(
        unsafe extern "C" { fn $target(); }

        /// Takes the place of the C library's function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!("jmp {}", sym $target);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!("b {}", sym $target);
        }
    )*};
}
pub(crate) use exports;

/// Functions that hand out a descriptor, and whether the file behind it may be written.
macro_rules! opens {
    ($(fn $name:ident($($arg:ident: $type:ty),*), $may_write:expr;)*) => { take_place! {$(
        fn $name($($arg: $type),*) -> c_int {
            opens(|| next!($name($($arg => $type),*) -> c_int, else -1), $may_write)
        }
    )*} };
}

/// Runs a call that hands out a descriptor.
#[inline]
pub fn opens(call: impl Fn() -> c_int, may_write: bool) -> c_int {
    let fd = call();
    opened(if may_try_again(fd < 0) { call() } else { fd }, may_write)
}

opens! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t), writes(flags);
    fn open64(path: *const c_char, flags: c_int, mode: mode_t), writes(flags);
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t), writes(flags);
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t), writes(flags);
    fn __open_2(path: *const c_char, flags: c_int), writes(flags);
    fn __open64_2(path: *const c_char, flags: c_int), writes(flags);
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int), writes(flags);
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int), writes(flags);
    fn creat(path: *const c_char, mode: mode_t), true;
    fn creat64(path: *const c_char, mode: mode_t), true;
    fn shm_open(name: *const c_char, flags: c_int, mode: mode_t), writes(flags);
    // Those of other files are listed so that a number closed unseen does not keep its handle.
    fn socket(domain: c_int, kind: c_int, protocol: c_int), false;
    fn memfd_create(name: *const c_char, flags: c_uint), false;
}

/// Functions that create a file to write, and its name: a failed call has used up the template.
macro_rules! makes {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => { take_place! {$(
        fn $name($($arg: $type),*) -> c_int {
            opened(next!($name($($arg => $type),*) -> c_int, else -1), true)
        }
    )*} };
}

makes! {
    fn mkstemp(template: *mut c_char);
    fn mkstemp64(template: *mut c_char);
    fn mkostemp(template: *mut c_char, flags: c_int);
    fn mkostemp64(template: *mut c_char, flags: c_int);
}

take_place! {
    fn dup(fd: c_int) -> c_int {
        let call = || next!(dup(fd => c_int) -> c_int, else -1);
        let result = call();
        duplicated(fd, if may_try_again(result < 0) { call() } else { result })
    }

    fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        before_lock(command);
        let result = next!(fcntl(fd => c_int, command => c_int, argument => *mut c_void) -> c_int, else -1);
        after_fcntl(fd, command, result)
    }

    fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        before_lock(command);
        let result = next!(fcntl64(fd => c_int, command => c_int, argument => *mut c_void) -> c_int, else -1);
        after_fcntl(fd, command, result)
    }

    fn dup2(from: c_int, to: c_int) -> c_int {
        replaces(from, to, || next!(dup2(from => c_int, to => c_int) -> c_int, else -1))
    }

    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        replaces(from, to, || next!(dup3(from => c_int, to => c_int, flags => c_int) -> c_int, else -1))
    }

    fn close(fd: c_int) -> c_int {
        closes(fd, || next!(close(fd => c_int) -> c_int, else -1))
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        const CLOSE_ON_EXEC_ONLY: c_int = 4;
        if flags & CLOSE_ON_EXEC_ONLY == 0 {
            descriptors::forget_range(first, last);
            tier::closed_range(first, last);
        }
        let mut from = first;
        while let Some(own) = own_files::next_own(from).filter(|own| *own <= last) {
            let call = |end| next!(
                close_range(from => c_uint, end => c_uint, flags => c_int) -> c_int, else -1
            );
            if own > from && call(own - 1) != 0 {
                return -1;
            }
            if own == last {
                return 0;
            }
            from = own + 1;
        }
        next!(close_range(from => c_uint, last => c_uint, flags => c_int) -> c_int, else -1)
    }

    fn closefrom(first: c_int) -> () {
        let from = first.max(0).unsigned_abs();
        descriptors::forget_range(from, c_uint::MAX);
        tier::closed_range(from, c_uint::MAX);
        if own_files::next_own(from).is_none() {
            return next!(closefrom(first => c_int) -> (), else ());
        }
        // SAFETY: no pointers.
        if unsafe { close_range(from, c_uint::MAX, 0) } != 0 {
            // A kernel before 5.9.
            own_files::others(from).for_each(|fd| {
                next!(close(fd => c_int) -> c_int, else -1);
            });
        }
    }

    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        let position = next!(lseek(fd => c_int, offset => off_t, whence => c_int) -> off_t, else -1);
        tier::sought(fd, position);
        position
    }

    fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        let position = next!(lseek64(fd => c_int, offset => off_t, whence => c_int) -> off_t, else -1);
        tier::sought(fd, position);
        position
    }
}

/// Runs a call that closes `fd`.
pub fn closes(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if own_files::is_own(fd) {
        if !inside::is_inside() {
            return refused(libc::EBADF);
        }
        own_files::unmark(fd);
    }
    tier::closed(fd);
    observer::close(fd, call)
}

/// Runs a call that makes `to` a duplicate of `from`.
pub fn replaces(from: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if is_taken(to) {
        return refused(libc::EBUSY);
    }
    let result = call();
    if from == to { result } else { duplicated(from, result) }
}

/// Whether the number `to` is this library's, and cannot be freed.
fn is_taken(to: c_int) -> bool {
    if own_files::is_own(to) {
        tier::make_way();
    }
    own_files::is_own(to)
}

/// Before the lock is there, because from then on no descriptor of the file may be closed.
#[inline]
fn before_lock(command: c_int) {
    if matches!(command, libc::F_SETLK | libc::F_SETLKW) {
        tier::locks();
    }
}

#[inline]
fn after_fcntl(fd: c_int, command: c_int, result: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return duplicated(fd, result),
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => tier::locked(),
        _ => {}
    }
    result
}

fn duplicated(from: c_int, to: c_int) -> c_int {
    descriptors::forget(to);
    tier::duplicated(from, to);
    to
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

/// Functions that read from `fd`: how many bytes at most, and how the tier serves them, which
/// leaves to `kernel` what it cannot serve. Only what the kernel reads is observed.
macro_rules! reads {
    ($(fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)*), $wanted:expr, $kernel:ident => $serve:expr;)*) => {
        take_place! {$(
            fn $name($fd: c_int $(, $arg: $type)*) -> ssize_t {
                let call = || next!($name($fd => c_int $(, $arg => $type)*) -> ssize_t, else -1);
                if own_files::is_own($fd) && !inside::is_inside() {
                    return refused(libc::EBADF) as ssize_t;
                }
                let $kernel = || observer::read($fd, $wanted, call, count);
                // SAFETY: the program's own memory for this call; nothing here has a destructor.
                unsafe { $serve }
            }
        )*}
    };
}

/// Where a call with an offset reads that may mean the position.
fn at(offset: off_t) -> At {
    if offset == -1 { At::Position } else { At::Offset(offset) }
}

reads! {
    fn read(fd: c_int, buffer: *mut c_void, bytes: size_t), bytes,
        kernel => tier::read_one(fd, buffer, bytes, At::Position, kernel);
    fn pread(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t), bytes,
        kernel => tier::read_one(fd, buffer, bytes, At::Offset(offset), kernel);
    fn pread64(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t), bytes,
        kernel => tier::read_one(fd, buffer, bytes, At::Offset(offset), kernel);
    // The lengths are in the caller's memory, which may be invalid: the observer does not read
    // them.
    fn readv(fd: c_int, parts: *const iovec, len: c_int), usize::MAX,
        kernel => tier::read_list(fd, (parts, len), At::Position, kernel);
    fn preadv(fd: c_int, parts: *const iovec, len: c_int, offset: off_t), usize::MAX,
        kernel => tier::read_list(fd, (parts, len), At::Offset(offset), kernel);
    fn preadv64(fd: c_int, parts: *const iovec, len: c_int, offset: off_t), usize::MAX,
        kernel => tier::read_list(fd, (parts, len), At::Offset(offset), kernel);
    fn preadv2(fd: c_int, parts: *const iovec, len: c_int, offset: off_t, flags: c_int), usize::MAX,
        kernel => if flags == 0 { tier::read_list(fd, (parts, len), at(offset), kernel) } else { kernel() };
    fn preadv64v2(fd: c_int, parts: *const iovec, len: c_int, offset: off_t, flags: c_int), usize::MAX,
        kernel => if flags == 0 { tier::read_list(fd, (parts, len), at(offset), kernel) } else { kernel() };
    // The C library ends a program whose buffer is smaller than the read.
    fn __read_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, room: size_t), bytes,
        kernel => if bytes <= room { tier::read_one(fd, buffer, bytes, At::Position, kernel) } else { kernel() };
    fn __pread_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t, room: size_t), bytes,
        kernel => if bytes <= room { tier::read_one(fd, buffer, bytes, At::Offset(offset), kernel) } else { kernel() };
    fn __pread64_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t, room: size_t), bytes,
        kernel => if bytes <= room { tier::read_one(fd, buffer, bytes, At::Offset(offset), kernel) } else { kernel() };
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
