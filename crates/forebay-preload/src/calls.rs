//! The system calls of the C library that open, close, duplicate, write, read and synchronize
//! files. `control.rs` has those that only change what the library may do.
//!
//! Each function has the C library's name and type, and its unwinding ABI: a thread that is
//! cancelled inside leaves through ours. `open` and `fcntl` have a variable number of arguments in
//! C; on the supported processors, a third argument that was not passed is only garbage that
//! nobody reads.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{AT_FDCWD, iovec, mode_t, off_t, size_t, ssize_t};

use crate::absorb::{self, Access};
use crate::mapping::Call;
use crate::next::next;
use crate::tier::before_open;
use crate::tier::{self, At};
use crate::{descriptors, inside, observer, own_files};

/// Bytes of a result that is negative on failure.
#[inline]
fn count(result: ssize_t) -> u64 {
    u64::try_from(result).unwrap_or(0)
}

/// Notes that a number that a call has handed out stands for a new file.
#[inline]
fn opened(fd: c_int, access: Access) -> c_int {
    descriptors::forget(fd);
    if tier::opened(fd, access) {
        return fd;
    }
    // SAFETY: the program has not got it yet.
    unsafe { close(fd) };
    refused(libc::EIO)
}

/// Whether a call that gave `result` has found no free descriptor, and may find one now.
#[inline]
pub fn may_try_again(is_failed: bool) -> bool {
    // SAFETY: `errno` is the calling thread's.
    is_failed && unsafe { *libc::__errno_location() } == libc::EMFILE && tier::make_room()
}

/// Refuses a descriptor that is this library's.
pub fn refused(errno: c_int) -> c_int {
    // SAFETY: `errno` is the calling thread's.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Defines functions under the C library's names. The name after the return type is another one of
/// the same function, without its attributes: on 64-bit Linux, `fstat64` is `fstat`.
macro_rules! take_place {
    ($($(#[$meta:meta])* fn $name:ident $args:tt -> $ret:ty $(, $twin:ident)? $body:block)*) => {$(
        /// Takes the place of the C library's function.
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        $(#[$meta])*
        pub unsafe extern "C-unwind" fn $name $args -> $ret $body

        $(
            /// The same function under its other name.
            ///
            /// # Safety
            /// As for the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $twin $args -> $ret $body
        )?
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

/// Functions that hand out a descriptor, what the program may do with the file behind it, and what
/// takes the place of an argument before.
macro_rules! opens {
    ($(fn $name:ident($($arg:ident: $type:ty),*), $access:expr $(, $changed:ident = $before:expr)?;)*) => { take_place! {$(
        fn $name($($arg: $type),*) -> c_int {
            $(let $changed = $before;)?
            opens(|| next!($name($($arg => $type),*) -> c_int, else -1), $access)
        }
    )*} };
}

/// Runs a call that hands out a descriptor.
#[inline]
pub fn opens(call: impl Fn() -> c_int, access: Access) -> c_int {
    let fd = call();
    opened(if may_try_again(fd < 0) { call() } else { fd }, access)
}

/// What `creat` passes to `open`.
const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

opens! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t),
        Access::of(flags), flags = before_open(AT_FDCWD, path, flags, mode);
    fn open64(path: *const c_char, flags: c_int, mode: mode_t),
        Access::of(flags), flags = before_open(AT_FDCWD, path, flags, mode);
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t),
        Access::of(flags), flags = before_open(dir, path, flags, mode);
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t),
        Access::of(flags), flags = before_open(dir, path, flags, mode);
    fn __open_2(path: *const c_char, flags: c_int), Access::of(flags);
    fn __open64_2(path: *const c_char, flags: c_int), Access::of(flags);
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int), Access::of(flags);
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int), Access::of(flags);
    fn creat(path: *const c_char, mode: mode_t),
        Access::Truncate, _made = before_open(AT_FDCWD, path, CREAT, mode);
    fn creat64(path: *const c_char, mode: mode_t),
        Access::Truncate, _made = before_open(AT_FDCWD, path, CREAT, mode);
    fn shm_open(name: *const c_char, flags: c_int, mode: mode_t), Access::of(flags);
    // The functions for other files are listed so that a number closed unseen does not keep its
    // handle.
    fn socket(domain: c_int, kind: c_int, protocol: c_int), Access::Read;
    fn memfd_create(name: *const c_char, flags: c_uint), Access::Read;
}

/// Functions that create a file to write, and its name: a failed call has used up the template.
macro_rules! makes {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => { take_place! {$(
        fn $name($($arg: $type),*) -> c_int {
            opened(next!($name($($arg => $type),*) -> c_int, else -1), Access::Truncate)
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

    fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int, fcntl64 {
        let file = before_fcntl(fd, command);
        let result = next!(fcntl(file => c_int, command => c_int, argument => *mut c_void) -> c_int, else -1);
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

    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t, lseek64 {
        absorb::before_read(fd);
        let position = next!(lseek(fd => c_int, offset => off_t, whence => c_int) -> off_t, else -1);
        tier::sought(fd, position);
        position
    }
}

/// Functions that map a file.
macro_rules! maps {
    ($($function:literal fn $name:ident;)*) => { take_place! {$(
        fn $name(at: *mut c_void, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
            let call = Call { function: $function, at, bytes, protection, flags, fd, offset };
            if call.may_be_served()
                && let Some(at) = tier::map(fd, |handle| call.of_copy(handle))
            {
                return at;
            }
            if absorb::has(fd)
                && flags & libc::MAP_SHARED != 0
                && let Err(errno) = absorb::before_sharing(fd)
            {
                refused(errno);
                return libc::MAP_FAILED;
            }
            if absorb::has(fd) && call.stores() {
                // Stores take room of the content, or go to the PFS.
                // SAFETY: the program's own arguments.
                let map = || {
                    absorb::note_mapped(fd);
                    // SAFETY: as above.
                    unsafe { call.of(fd) }
                };
                return absorb::write(fd, bytes as u64, map).unwrap_or(libc::MAP_FAILED);
            }
            // SAFETY: the program's own arguments.
            unsafe { call.of(fd) }
        }
    )*} };
}

maps! {
    0 fn mmap;
    1 fn mmap64;
}

/// Runs a call that closes `fd`.
pub fn closes(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if own_files::is_own(fd) {
        if !inside::is_inside() {
            return refused(libc::EBADF);
        }
        own_files::unmark(fd);
    }
    let is_kept = absorb::keep(fd);
    tier::closed(fd);
    let result = observer::close(fd, call);
    if is_kept { result } else { refused(libc::EIO) }
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

/// Which number a call of `fcntl` means: locks are those of the file on the PFS, where programs on
/// other nodes see them. This is noted before the lock is there, because from then on no descriptor
/// of the file may be closed.
#[inline]
fn before_fcntl(fd: c_int, command: c_int) -> c_int {
    match command {
        libc::F_SETLK | libc::F_SETLKW => tier::locks(fd),
        libc::F_OFD_SETLK | libc::F_OFD_SETLKW => tier::locks_file(fd),
        libc::F_GETLK | libc::F_OFD_GETLK => {}
        _ => return fd,
    }
    absorb::to_lock(fd)
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
    ($(fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)*), $bytes:expr;)*) => { take_place! {$(
        fn $name($fd: c_int $(, $arg: $type)*) -> ssize_t {
            let call = || next!($name($fd => c_int $(, $arg => $type)*) -> ssize_t, else -1);
            let observed = || observer::write($fd, call, count);
            if absorb::has($fd) { absorb::write($fd, $bytes, observed).unwrap_or(-1) } else { observed() }
        }
    )*} };
}

/// Bytes of a list in the caller's memory; 0 if the kernel will refuse it.
fn sum(parts: *const iovec, len: c_int) -> u64 {
    let len = usize::try_from(len).unwrap_or(0);
    if len == 0 || len > tier::MOST_PARTS || !tier::is_readable(parts, len) {
        return 0;
    }
    // SAFETY: a list of that length, which can be read.
    let parts = unsafe { core::slice::from_raw_parts(parts, len) };
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len as u64))
}

writes! {
    fn write(fd: c_int, buffer: *const c_void, bytes: size_t), bytes as u64;
    fn pwrite(fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t), bytes as u64;
    fn pwrite64(fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t), bytes as u64;
    fn writev(fd: c_int, parts: *const iovec, len: c_int), sum(parts, len);
    fn pwritev(fd: c_int, parts: *const iovec, len: c_int, offset: off_t), sum(parts, len);
    fn pwritev64(fd: c_int, parts: *const iovec, len: c_int, offset: off_t), sum(parts, len);
    fn pwritev2(fd: c_int, parts: *const iovec, len: c_int, offset: off_t, flags: c_int), sum(parts, len);
    fn pwritev64v2(fd: c_int, parts: *const iovec, len: c_int, offset: off_t, flags: c_int), sum(parts, len);
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
                absorb::before_read($fd);
                let $kernel = || observer::read($fd, $wanted, call, count);
                // SAFETY: the program's own memory for this call; nothing here has a destructor.
                unsafe { $serve }
            }
        )*}
    };
}

/// Where a call with an offset reads: -1 means the position.
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

/// The most bytes that a call moves from a file. Programs pass far more, to mean all.
fn moved(from: c_int, bytes: size_t) -> u64 {
    const PIPE_BYTES: u64 = 1 << 20;
    let most = own_files::regular(from).map_or(PIPE_BYTES, |(size, _)| size);
    (bytes as u64).min(most)
}

/// Functions that move bytes from one file to another within the kernel.
macro_rules! moves {
    ($(fn $name:ident($($arg:ident: $type:ty),*), $from:ident to $to:ident by $bytes:ident;)*) => { take_place! {$(
        fn $name($($arg: $type),*) -> ssize_t {
            let call = || next!($name($($arg => $type),*) -> ssize_t, else -1);
            let observed = || observer::write($to, || observer::read($from, usize::MAX, call, count), count);
            if absorb::has($to) { absorb::write($to, moved($from, $bytes), observed).unwrap_or(-1) } else { observed() }
        }
    )*} };
}

moves! {
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t), from to to by bytes;
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t), from to to by bytes;
    fn copy_file_range(from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, bytes: size_t, flags: c_uint), from to to by bytes;
    fn splice(from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, bytes: size_t, flags: c_uint), from to to by bytes;
}

/// Functions that wait until the storage has what was written to `fd`.
macro_rules! syncs {
    ($(fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)*);)*) => { take_place! {$(
        fn $name($fd: c_int $(, $arg: $type)*) -> c_int {
            let result =
                observer::sync($fd, || next!($name($fd => c_int $(, $arg => $type)*) -> c_int, else -1));
            if result == 0 && !absorb::keep($fd) { -1 } else { result }
        }
    )*} };
}

syncs! {
    fn fsync(fd: c_int);
    fn fdatasync(fd: c_int);
    fn syncfs(fd: c_int);
    fn sync_file_range(fd: c_int, offset: off_t, bytes: off_t, flags: c_uint);
}

/// Functions that give a file another length, or memory for it: what they take of a file that is
/// written to the tier first.
macro_rules! resizes {
    ($(fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)*), $bytes:expr;)*) => { take_place! {$(
        fn $name($fd: c_int $(, $arg: $type)*) -> c_int {
            let call = || next!($name($fd => c_int $(, $arg => $type)*) -> c_int, else -1);
            if absorb::has($fd) { absorb::write($fd, $bytes, call).unwrap_or(-1) } else { call() }
        }
    )*} };
}

resizes! {
    fn ftruncate(fd: c_int, bytes: off_t), 0;
    fn ftruncate64(fd: c_int, bytes: off_t), 0;
    fn fallocate(fd: c_int, mode: c_int, offset: off_t, bytes: off_t), bytes.unsigned_abs();
    fn fallocate64(fd: c_int, mode: c_int, offset: off_t, bytes: off_t), bytes.unsigned_abs();
}

take_place! {
    fn posix_fallocate(fd: c_int, offset: off_t, bytes: off_t) -> c_int, posix_fallocate64 {
        let call = || next!(posix_fallocate(fd => c_int, offset => off_t, bytes => off_t) -> c_int, else -1);
        absorb::write(fd, bytes.unsigned_abs(), call).unwrap_or(libc::ENOSPC)
    }
}

/// A file that may be dirty, opened for writing.
pub fn opened_if_dirty(path: *const c_char) -> Option<c_int> {
    if !absorb::is_any_dirty() || inside::is_inside() {
        return None;
    }
    // SAFETY: the program has passed a C string.
    let fd = unsafe { open(path, libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NONBLOCK, 0) };
    if fd < 0 || absorb::has(fd) {
        return (fd >= 0).then_some(fd);
    }
    // SAFETY: it was just opened.
    unsafe { close(fd) };
    None
}

/// Functions that mean the file of the PFS, whatever holds its bytes.
macro_rules! means_the_file {
    ($(fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)*) -> $ret:ty;)*) => { take_place! {$(
        fn $name($fd: c_int $(, $arg: $type)*) -> $ret {
            let fd = absorb::on_pfs($fd);
            next!($name(fd => c_int $(, $arg => $type)*) -> $ret, else -1)
        }
    )*} };
}

means_the_file! {
    fn fchmod(fd: c_int, mode: mode_t) -> c_int;
    fn fchown(fd: c_int, user: c_uint, group: c_uint) -> c_int;
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int) -> c_int;
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int;
    fn fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, bytes: size_t) -> ssize_t;
    fn flistxattr(fd: c_int, names: *mut c_char, bytes: size_t) -> ssize_t;
}

take_place! {
    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        if let Err(errno) = renames((libc::AT_FDCWD, from), (libc::AT_FDCWD, to)) {
            return refused(errno);
        }
        next!(rename(from => *const c_char, to => *const c_char) -> c_int, else -1)
    }

    fn renameat(in_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int {
        if let Err(errno) = renames((in_dir, from), (to_dir, to)) {
            return refused(errno);
        }
        next!(
            renameat(in_dir => c_int, from => *const c_char, to_dir => c_int, to => *const c_char) -> c_int,
            else -1
        )
    }

    fn renameat2(
        in_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint
    ) -> c_int {
        if let Err(errno) = renames((in_dir, from), (to_dir, to)) {
            return refused(errno);
        }
        next!(
            renameat2(
                in_dir => c_int, from => *const c_char, to_dir => c_int, to => *const c_char, flags => c_uint
            ) -> c_int,
            else -1
        )
    }
}

/// Prepares for a rename of these names in these directories.
fn renames(from: (c_int, *const c_char), to: (c_int, *const c_char)) -> Result<(), c_int> {
    if !absorb::is_any_dirty_anywhere() || inside::is_inside() || from.1.is_null() || to.1.is_null() {
        return Ok(());
    }
    let whole = |(dir, name): (c_int, *const c_char)| {
        // SAFETY: the program has passed a C string.
        let name = unsafe { core::ffi::CStr::from_ptr(name) }.to_bytes();
        if dir == libc::AT_FDCWD || name.first() == Some(&b'/') {
            return name.to_vec();
        }
        let mut path = format!("/proc/self/fd/{dir}/").into_bytes();
        path.extend_from_slice(name);
        path
    };
    tier::before_rename(&whole(from), &whole(to))
}

/// `off_t` and `long` have the size that these declarations assume.
const _: () = assert!(size_of::<off_t>() == 8 && size_of::<c_long>() == 8);
