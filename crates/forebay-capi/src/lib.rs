//! The C library: `include/forebay.h` over the client core, and nothing more.
//!
//! The header is written by hand, because it is the manual of the C programmer; `tests/header.rs`
//! compares it with the functions here, name by name and type by type. Handles are opaque boxes.
//! Whatever goes wrong comes back as -1 or NULL with `errno` set and a text for this thread
//! (`error`); a panic is a failure like any other and never unwinds into C.

mod error;
mod load;
mod phase;
mod read;
mod write;

pub use error::forebay_last_error;
pub use load::forebay_load;
pub use phase::{
    ForebayJob, forebay_job_close, forebay_job_open, forebay_phase_begin, forebay_phase_end,
    forebay_phase_progress,
};
pub use read::{
    ForebayFile, ForebayMapping, forebay_close, forebay_map, forebay_open, forebay_open_mode, forebay_pread,
    forebay_resident, forebay_size, forebay_unmap,
};
pub use write::{
    ForebayWriter, forebay_close_writer, forebay_create, forebay_create_layout, forebay_remove, forebay_sync,
    forebay_write,
};

use std::ffi::{CStr, OsStr, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The version of the library as text that is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(text) => text,
            Err(_) => panic!("a version holds no zero byte"),
        };
    VERSION.as_ptr()
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.to_owned())
}

/// The path that `path` points at; names are bytes and need not be UTF-8.
///
/// # Safety
/// NULL, or a string that ends in a zero byte and stays as it is while the result is used.
unsafe fn path_of<'a>(path: *const c_char) -> io::Result<&'a Path> {
    if path.is_null() {
        return Err(invalid("the path is NULL"));
    }
    // SAFETY: not NULL, and the caller vouches for the rest.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// What a handle points at.
///
/// # Safety
/// NULL, or a handle this library gave out and has not taken back.
unsafe fn handle<'a, T>(handle: *const T) -> io::Result<&'a T> {
    // SAFETY: the caller vouches that it is NULL or alive.
    unsafe { handle.as_ref() }.ok_or_else(|| invalid("the handle is NULL"))
}
