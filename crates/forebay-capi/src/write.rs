//! Writing: create, write, sync, close, remove.

use crate::error::{guard, named};
use crate::{invalid, path_of};
use forebay_client::{Client, FileWriter, Hint, WriteMode, WriteOptions};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::{self, Write};
use std::path::PathBuf;
use std::ptr;

/// A file open for writing.
#[derive(Debug)]
pub struct ForebayWriter {
    writer: FileWriter,
    path: PathBuf,
}

const EXCLUSIVE: c_uint = 1;
const APPEND: c_uint = 2;

fn options(mode: c_int, flags: c_uint, permissions: c_uint) -> io::Result<WriteOptions> {
    let mode = match mode {
        0 => WriteMode::Bypass,
        1 => WriteMode::Through,
        2 => WriteMode::MemoryOnly,
        3 => WriteMode::Back,
        other => return Err(invalid(&format!("{other} is not a write mode: use a FOREBAY_WRITE_ constant"))),
    };
    if flags & !(EXCLUSIVE | APPEND) != 0 {
        return Err(invalid(&format!(
            "flags {flags:#x}: only FOREBAY_EXCLUSIVE and FOREBAY_APPEND are known"
        )));
    }
    if permissions & !0o7777 != 0 {
        return Err(invalid(&format!("permissions {permissions:#o}: more than the bits of chmod")));
    }
    let (exclusive, append) = (flags & EXCLUSIVE != 0, flags & APPEND != 0);
    if append && mode == WriteMode::MemoryOnly {
        return Err(invalid("memory-only files cannot be appended to"));
    }
    Ok(WriteOptions { mode, exclusive, append, permissions })
}

/// Opens `path` for writing; makes it if need be, empties it unless asked to append.
///
/// # Safety
/// `path` is NULL or ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_create(
    path: *const c_char,
    mode: c_int,
    flags: c_uint,
    permissions: c_uint,
) -> *mut ForebayWriter {
    guard(ptr::null_mut(), || {
        let options = options(mode, flags, permissions)?;
        // SAFETY: the caller's promise.
        let path = unsafe { path_of(path) }?.to_owned();
        let writer = Client::from_env().create_with(&path, options).map_err(|e| named(&path, e))?;
        Ok(Box::into_raw(Box::new(ForebayWriter { writer, path })))
    })
}

/// As [`forebay_create`], with a layout for a new file, written as for `forebay run --layout`.
///
/// # Safety
/// `path` and `layout` are NULL or end in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_create_layout(
    path: *const c_char,
    mode: c_int,
    flags: c_uint,
    permissions: c_uint,
    layout: *const c_char,
) -> *mut ForebayWriter {
    guard(ptr::null_mut(), || {
        let options = options(mode, flags, permissions)?;
        if layout.is_null() {
            return Err(invalid("the layout is NULL"));
        }
        // SAFETY: not NULL, and the caller vouches for the rest.
        let layout = unsafe { CStr::from_ptr(layout) }.to_string_lossy();
        let hint: Hint = layout.parse().map_err(|e: String| invalid(&e))?;
        // SAFETY: the caller's promise.
        let path = unsafe { path_of(path) }?.to_owned();
        let created = Client::from_env().create_laid_out(&path, options, &hint);
        let writer = created.map_err(|e| named(&path, e))?;
        Ok(Box::into_raw(Box::new(ForebayWriter { writer, path })))
    })
}

/// The writer that `writer` points at.
///
/// # Safety
/// NULL, or open and used by nobody else.
unsafe fn exclusive<'a>(writer: *mut ForebayWriter) -> io::Result<&'a mut ForebayWriter> {
    // SAFETY: the caller vouches for it.
    unsafe { writer.as_mut() }.ok_or_else(|| invalid("the handle is NULL"))
}

/// Writes all of `length` bytes after what was written.
///
/// # Safety
/// `writer` is NULL or open and used by nobody else; `buffer` holds `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_write(
    writer: *mut ForebayWriter,
    buffer: *const c_void,
    length: usize,
) -> isize {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let open = unsafe { exclusive(writer) }?;
        if length == 0 {
            return Ok(0);
        }
        let written = isize::try_from(length).ok().filter(|_| !buffer.is_null());
        let written =
            written.ok_or_else(|| invalid("the buffer is NULL or larger than half of the address space"))?;
        // SAFETY: the caller vouches for `length` bytes at `buffer`.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) };
        open.writer.write_all(bytes).map_err(|e| named(&open.path, e))?;
        Ok(written)
    })
}

/// Makes durable what was written.
///
/// # Safety
/// `writer` is NULL or open and used by nobody else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_sync(writer: *mut ForebayWriter) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let open = unsafe { exclusive(writer) }?;
        open.writer.sync().map_err(|e| named(&open.path, e))?;
        Ok(0)
    })
}

/// Writes what is left and closes; the handle is gone even if that fails.
///
/// # Safety
/// `writer` is NULL or open and used by nobody else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_close_writer(writer: *mut ForebayWriter) -> c_int {
    guard(-1, || {
        if writer.is_null() {
            return Ok(0);
        }
        // SAFETY: it came from Box::into_raw, and the caller gives it back once.
        let ForebayWriter { writer, path } = *unsafe { Box::from_raw(writer) };
        writer.close().map_err(|e| named(&path, e))?;
        Ok(0)
    })
}

/// Removes a file, memory-only or on the PFS.
///
/// # Safety
/// `path` is NULL or ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_remove(path: *const c_char) -> c_int {
    guard(-1, || {
        // SAFETY: the caller's promise.
        let path = unsafe { path_of(path) }?;
        Client::from_env().remove(path).map_err(|e| named(path, e))?;
        Ok(0)
    })
}
