//! Reading: open, pread, map, close.

use crate::error::{guard, named};
use crate::{handle, invalid, path_of};
use forebay_client::error::with_message;
use forebay_client::{Client, File, MappedRange, ReadMode};
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::ptr;

/// A file open for reading.
#[derive(Debug)]
pub struct ForebayFile {
    file: File,
    mode: ReadMode,
}

/// Pinned bytes of the tier in the program's address space.
#[derive(Debug)]
pub struct ForebayMapping {
    /// Kept for its end, which unmaps and lets the pages go.
    _range: MappedRange,
}

/// Opens `path` for reading, cached.
///
/// # Safety
/// `path` is NULL or ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_open(path: *const c_char) -> *mut ForebayFile {
    // SAFETY: the caller's promise is the same.
    unsafe { forebay_open_mode(path, 0) }
}

fn read_mode(mode: c_int) -> io::Result<ReadMode> {
    match mode {
        0 => Ok(ReadMode::Cached),
        1 => Ok(ReadMode::TierOnly),
        2 => Ok(ReadMode::PfsOnly),
        other => Err(invalid(&format!("{other} is not a read mode: use a FOREBAY_READ_ constant"))),
    }
}

/// Opens `path` for reading in the given mode.
///
/// # Safety
/// `path` is NULL or ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_open_mode(path: *const c_char, mode: c_int) -> *mut ForebayFile {
    guard(ptr::null_mut(), || {
        let mode = read_mode(mode)?;
        // SAFETY: the caller's promise.
        let path = unsafe { path_of(path) }?;
        let file = Client::from_env().open_with(path, mode).map_err(|e| named(path, e))?;
        Ok(Box::into_raw(Box::new(ForebayFile { file, mode })))
    })
}

fn offset_of(offset: i64) -> io::Result<u64> {
    u64::try_from(offset).map_err(|_| invalid(&format!("the offset {offset} is negative")))
}

/// Reads up to `length` bytes at `offset`.
///
/// # Safety
/// `file` is NULL or open; `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pread(
    file: *mut ForebayFile,
    buffer: *mut c_void,
    length: usize,
    offset: i64,
) -> isize {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let open = unsafe { handle(file) }?;
        let offset = offset_of(offset)?;
        if length == 0 {
            return Ok(0);
        }
        if buffer.is_null() || isize::try_from(length).is_err() {
            return Err(invalid("the buffer is NULL or larger than half of the address space"));
        }
        // SAFETY: the caller vouches for `length` bytes at `buffer` that nobody else uses during
        // the call.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        let n = open.file.read_at(buffer, offset).map_err(|e| open.not_in_tier(e))?;
        Ok(n as isize)
    })
}

impl ForebayFile {
    /// "Not in the tier" has no [`io::ErrorKind`] of its own. In the tier-only mode it is the only
    /// failure that has neither a kind nor a number of the operating system.
    fn not_in_tier(&self, e: io::Error) -> io::Error {
        let nameless = e.kind() == io::Error::from_raw_os_error(libc::ENODATA).kind();
        if self.mode == ReadMode::TierOnly && nameless && e.raw_os_error().is_none() {
            return with_message(libc::ENODATA, e.to_string());
        }
        named(self.file.path(), e)
    }
}

/// Length of the file in bytes, as it was when opened.
///
/// # Safety
/// `file` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_size(file: *const ForebayFile) -> i64 {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let open = unsafe { handle(file) }?;
        let size = open.file.size().map_err(|e| named(open.file.path(), e))?;
        i64::try_from(size).map_err(|_| with_message(libc::EOVERFLOW, format!("a size of {size} bytes")))
    })
}

/// Bytes of the file that are in the tier now.
///
/// # Safety
/// `file` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_resident(file: *const ForebayFile) -> i64 {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let bytes = unsafe { handle(file) }?.file.resident_bytes();
        // No more than the size, which the PFS keeps in an i64.
        Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
    })
}

/// Maps bytes of the tier without a copy.
///
/// # Safety
/// `file` is NULL or open; `mapping` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_map(
    file: *mut ForebayFile,
    offset: i64,
    length: usize,
    mapping: *mut *mut ForebayMapping,
) -> *const c_void {
    guard(ptr::null(), || {
        // SAFETY: the caller's promise.
        let open = unsafe { handle(file) }?;
        if mapping.is_null() {
            return Err(invalid("there is no place for the mapping's handle"));
        }
        let offset = offset_of(offset)?;
        let size = open.file.size()?;
        if length == 0 || offset.checked_add(length as u64).is_none_or(|end| end > size) {
            return Err(invalid(&format!(
                "{}: {length} bytes at {offset} are not within its {size} bytes",
                open.file.path().display()
            )));
        }
        let range = open.file.map(offset, length as u64).ok_or_else(|| {
            let path = open.file.path().display();
            let why =
                format!("{path}: {length} bytes at {offset} are not all in the tier; read them instead");
            with_message(libc::ENODATA, why)
        })?;
        let address = range.as_ptr();
        // SAFETY: not NULL, and the caller vouches that a pointer fits there.
        unsafe { mapping.write(Box::into_raw(Box::new(ForebayMapping { _range: range }))) };
        Ok(address.cast())
    })
}

/// Ends a mapping; its address must not be used any more.
///
/// # Safety
/// `mapping` is NULL or was given out by [`forebay_map`] and not ended yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_unmap(mapping: *mut ForebayMapping) -> c_int {
    guard(-1, || {
        if !mapping.is_null() {
            // SAFETY: it came from Box::into_raw, and the caller gives it back once.
            drop(unsafe { Box::from_raw(mapping) });
        }
        Ok(0)
    })
}

/// Closes a file.
///
/// # Safety
/// `file` is NULL or open, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_close(file: *mut ForebayFile) -> c_int {
    guard(-1, || {
        if !file.is_null() {
            // SAFETY: it came from Box::into_raw, and the caller gives it back once.
            drop(unsafe { Box::from_raw(file) });
        }
        Ok(0)
    })
}
