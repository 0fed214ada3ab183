//! Buffered I/O of the C library, which writes without calling `write` by name.
//!
//! So bytes count when the program hands them over: at most a buffer of the stream earlier than the
//! PFS gets them. `fclose` and `fflush` wait for the storage as `close` and `fsync` do.

use core::ffi::{c_char, c_int, c_void};

use libc::{FILE, size_t, ssize_t};

use crate::absorb::{self, Access};
use crate::calls::{exports, may_try_again, take_place};
use crate::next::next;
use crate::tier::before_open;
use crate::{descriptors, observer, tier};

/// The descriptor of a stream, or -1 if it has none.
#[inline]
fn descriptor(stream: *mut FILE) -> c_int {
    if stream.is_null() {
        return -1;
    }
    // SAFETY: the caller passed a stream to stdio, and `errno` is the calling thread's.
    unsafe {
        let errno = *libc::__errno_location();
        let fd = libc::fileno(stream);
        *libc::__errno_location() = errno;
        fd
    }
}

/// As [`descriptor`], for the observer: programs write single lines and bytes with these calls, and
/// without an observed job they cost no more than a jump.
#[inline]
fn observed(stream: *mut FILE) -> c_int {
    if observer::is_on() { descriptor(stream) } else { -1 }
}

/// Handles a stream that was opened: its descriptor stands for a new file. Its reads are the C
/// library's own and do not come here.
fn opened(stream: *mut FILE, mode: *const c_char) -> *mut FILE {
    let fd = descriptor(stream);
    descriptors::forget(fd);
    // SAFETY: the caller passed a C string to stdio.
    let access = match unsafe { (*mode.cast::<u8>(), libc::strchr(mode, c_int::from(b'+')).is_null()) } {
        (b'w', _) => Access::Truncate,
        (b'r', true) => Access::Read,
        _ => Access::Write,
    };
    if tier::opened(fd, access) {
        // SAFETY: as above; nothing has been written to the stream yet.
        unsafe {
            if fd >= 0
                && absorb::may_matter(access)
                && *mode.cast::<u8>() == b'a'
                && libc::strchr(mode, c_int::from(b'+')).is_null()
            {
                // The C library has looked for the end on the PFS, maybe before the end of a pass.
                let errno = *libc::__errno_location();
                // A pipe has no end.
                libc::fseeko(stream, 0, libc::SEEK_END);
                *libc::__errno_location() = errno;
            }
        }
        return stream;
    }
    // SAFETY: the program has not got it yet.
    unsafe {
        fclose(stream);
        *libc::__errno_location() = libc::EIO;
    }
    core::ptr::null_mut()
}

/// Prepares for the open of a stream of `path`, which may create the file.
fn before_stream(path: *const c_char, mode: *const c_char) {
    // SAFETY: the caller passed C strings to stdio, of which the first may be anything.
    let creates = unsafe {
        !mode.is_null()
            && matches!(*mode.cast::<u8>(), b'w' | b'a')
            && libc::strchr(mode, c_int::from(b'x')).is_null()
    };
    if creates {
        const STREAM_MODE: libc::mode_t = 0o666;
        let _has_no_flags = before_open(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY, STREAM_MODE);
    }
}

/// Passes on what a stream has gathered.
fn flushes(stream: *mut FILE) -> c_int {
    let fd = descriptor(stream);
    if !absorb::has(fd) {
        return 0;
    }
    absorb::write(fd, LINE_BYTES, || next!(fflush(stream => *mut FILE) -> c_int, else -1))
        .unwrap_or(libc::EOF)
}

/// The most bytes that a formatted line takes, as far as is known before.
const LINE_BYTES: u64 = 64 << 10;

/// Runs a call that hands `bytes` to a stream, and may pass on what it has gathered before.
#[inline]
fn writes<R: Copy>(
    stream: *mut FILE,
    bytes: impl FnOnce() -> u64,
    call: impl Fn() -> R,
    written: impl FnOnce(R) -> u64,
) -> R {
    if !absorb::any() {
        return observer::write(observed(stream), call, written);
    }
    // What the PFS does not take stays in memory with what was written before.
    absorb::write(descriptor(stream), bytes(), &call).unwrap_or_else(call)
}

/// Notes that a stream is closed: its number no longer stands for a file.
pub fn closed(stream: *mut FILE) -> c_int {
    let fd = descriptor(stream);
    tier::closed(fd);
    fd
}

fn stdout() -> *mut FILE {
    unsafe extern "C" {
        static mut stdout: *mut FILE;
    }
    // SAFETY: the C library's variable, which programs set before they start threads, if at all.
    unsafe { stdout }
}

/// Bytes that a count of items stands for.
fn items(size: size_t) -> impl FnOnce(size_t) -> u64 {
    move |count| (size as u64).saturating_mul(count as u64)
}

/// One byte, unless the result is the end-of-file value.
fn one(result: c_int) -> u64 {
    u64::from(result >= 0)
}

/// Printed bytes of a result that is negative on failure.
fn printed(result: c_int) -> u64 {
    u64::try_from(result).unwrap_or(0)
}

/// Length of a C string, unless writing it failed.
fn text(text: *const c_char) -> impl FnOnce(c_int) -> u64 {
    // SAFETY: it was written as a C string by the time that this is called.
    move |result| if result < 0 { 0 } else { unsafe { libc::strlen(text) as u64 } }
}

take_place! {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, fopen64 {
        before_stream(path, mode);
        let call = || next!(
            fopen(path => *const c_char, mode => *const c_char) -> *mut FILE, else core::ptr::null_mut()
        );
        let stream = call();
        opened(if may_try_again(stream.is_null()) { call() } else { stream }, mode)
    }

    fn tmpfile() -> *mut FILE, tmpfile64 {
        opened(next!(tmpfile() -> *mut FILE, else core::ptr::null_mut()), c"w+".as_ptr())
    }

    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, freopen64 {
        descriptors::forget(closed(stream));
        let stream = next!(
            freopen(path => *const c_char, mode => *const c_char, stream => *mut FILE) -> *mut FILE,
            else core::ptr::null_mut()
        );
        opened(stream, mode)
    }

    fn fclose(stream: *mut FILE) -> c_int {
        if absorb::any() {
            flushes(stream);
        }
        let is_kept = absorb::keep(descriptor(stream));
        let result = observer::close(closed(stream), || next!(fclose(stream => *mut FILE) -> c_int, else -1));
        if is_kept { result } else { libc::EOF }
    }

    fn fflush(stream: *mut FILE) -> c_int {
        let call = || next!(fflush(stream => *mut FILE) -> c_int, else -1);
        if absorb::has(descriptor(stream)) {
            return flushes(stream);
        }
        observer::flush(descriptor(stream), call)
    }

    fn fwrite(from: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
        let call = || next!(
            fwrite(from => *const c_void, size => size_t, count => size_t, stream => *mut FILE) -> size_t,
            else 0
        );
        writes(stream, || size.saturating_mul(count) as u64, call, items(size))
    }

    fn fwrite_unlocked(from: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
        let call = || next!(
            fwrite_unlocked(from => *const c_void, size => size_t, count => size_t, stream => *mut FILE) -> size_t,
            else 0
        );
        writes(stream, || size.saturating_mul(count) as u64, call, items(size))
    }

    fn fread(to: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
        let call = || next!(
            fread(to => *mut c_void, size => size_t, count => size_t, stream => *mut FILE) -> size_t,
            else 0
        );
        let got = observer::read(observed(stream), size.saturating_mul(count), call, items(size));
        tier::heard();
        got
    }

    fn fread_unlocked(to: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
        let call = || next!(
            fread_unlocked(to => *mut c_void, size => size_t, count => size_t, stream => *mut FILE) -> size_t,
            else 0
        );
        let got = observer::read(observed(stream), size.saturating_mul(count), call, items(size));
        tier::heard();
        got
    }

    fn fgets(line: *mut c_char, room: c_int, stream: *mut FILE) -> *mut c_char {
        let got = next!(
            fgets(line => *mut c_char, room => c_int, stream => *mut FILE) -> *mut c_char,
            else core::ptr::null_mut()
        );
        tier::heard();
        got
    }

    fn getdelim(line: *mut *mut c_char, room: *mut size_t, end: c_int, stream: *mut FILE) -> ssize_t {
        let call = || next!(
            getdelim(line => *mut *mut c_char, room => *mut size_t, end => c_int, stream => *mut FILE) -> ssize_t,
            else -1
        );
        let got = observer::read(observed(stream), 0, call, |n| u64::try_from(n).unwrap_or(0));
        tier::heard();
        got
    }

    fn getline(line: *mut *mut c_char, room: *mut size_t, stream: *mut FILE) -> ssize_t {
        let call = || next!(
            getline(line => *mut *mut c_char, room => *mut size_t, stream => *mut FILE) -> ssize_t,
            else -1
        );
        let got = observer::read(observed(stream), 0, call, |n| u64::try_from(n).unwrap_or(0));
        tier::heard();
        got
    }

    fn fputs(from: *const c_char, stream: *mut FILE) -> c_int {
        let call = || next!(fputs(from => *const c_char, stream => *mut FILE) -> c_int, else -1);
        writes(stream, || text(from)(0), call, text(from))
    }

    fn fputs_unlocked(from: *const c_char, stream: *mut FILE) -> c_int {
        let call = || next!(fputs_unlocked(from => *const c_char, stream => *mut FILE) -> c_int, else -1);
        writes(stream, || text(from)(0), call, text(from))
    }

    fn puts(from: *const c_char) -> c_int {
        let call = || next!(puts(from => *const c_char) -> c_int, else -1);
        writes(stdout(), || text(from)(0) + 1, call, |result| text(from)(result) + one(result))
    }

    fn fputc(byte: c_int, stream: *mut FILE) -> c_int {
        writes(stream, || 1, || next!(fputc(byte => c_int, stream => *mut FILE) -> c_int, else -1), one)
    }

    fn putc(byte: c_int, stream: *mut FILE) -> c_int {
        writes(stream, || 1, || next!(putc(byte => c_int, stream => *mut FILE) -> c_int, else -1), one)
    }

    fn putchar(byte: c_int) -> c_int {
        writes(stdout(), || 1, || next!(putchar(byte => c_int) -> c_int, else -1), one)
    }

    // A list of arguments is passed by a pointer on the supported processors.
    fn vfprintf(stream: *mut FILE, format: *const c_char, arguments: *mut c_void) -> c_int {
        // SAFETY: the caller's own arguments.
        unsafe { forebay_preload_vfprintf(stream, format, arguments) }
    }

    fn __vfprintf_chk(stream: *mut FILE, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        // SAFETY: the caller's own arguments.
        unsafe { forebay_preload_vfprintf_chk(stream, flag, format, arguments) }
    }

    fn forebay_preload_vfprintf(stream: *mut FILE, format: *const c_char, arguments: *mut c_void) -> c_int {
        let call = || next!(
            vfprintf(stream => *mut FILE, format => *const c_char, arguments => *mut c_void) -> c_int,
            else -1
        );
        writes(stream, || LINE_BYTES, call, printed)
    }

    fn forebay_preload_vfprintf_chk(
        stream: *mut FILE, flag: c_int, format: *const c_char, arguments: *mut c_void
    ) -> c_int {
        let call = || next!(
            __vfprintf_chk(
                stream => *mut FILE, flag => c_int, format => *const c_char, arguments => *mut c_void
            ) -> c_int,
            else -1
        );
        writes(stream, || LINE_BYTES, call, printed)
    }
}

// The definitions are in print.c.
exports! {
    fprintf by forebay_preload_fprintf;
    printf by forebay_preload_printf;
    __fprintf_chk by forebay_preload_fprintf_chk;
    __printf_chk by forebay_preload_printf_chk;
}
