//! Writing.
//!
//! An array is copied piece by piece through a buffer of the thread: a write may wait for the PFS,
//! so the array cannot be lent by the JVM for as long as that takes. What is appended is copied as
//! a whole: an append in two parts could have another program's bytes between them.

use crate::client::{CLIENTS, path};
use crate::env::{Failure, Jni, Outcome, Span};
use crate::handles::Handles;
use forebay_client::{FileWriter, WriteMode, WriteOptions};
use jni_sys::{jboolean, jbyteArray, jint, jlong};
use std::cell::RefCell;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// As the client core gathers: a piece of this size goes to the PFS without being gathered again.
const PIECE_BYTES: usize = 1 << 20;

/// A file open for writing; `None` once it is closed.
struct Open {
    path: PathBuf,
    append: bool,
    writer: Mutex<Option<FileWriter>>,
}

static WRITERS: Handles<Open> = Handles::new();

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn write_mode(mode: jint) -> Outcome<WriteMode> {
    match mode {
        0 => Ok(WriteMode::Through),
        1 => Ok(WriteMode::Bypass),
        2 => Ok(WriteMode::MemoryOnly),
        other => Err(Failure::Errno(libc::EINVAL, format!("{other} is no write mode"))),
    }
}

impl Open {
    fn with<T>(&self, body: impl FnOnce(&mut FileWriter) -> io::Result<T>) -> Outcome<T> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match writer.as_mut() {
            Some(writer) => body(writer).map_err(Failure::about(&self.path)),
            None => Err(io::Error::from_raw_os_error(libc::EBADF).into()),
        }
    }
}

/// Opens a file for writing. `mode`: 0 through, 1 bypass, 2 memory-only; `permissions`: bits of a
/// new file, before the umask of the process.
pub fn create(
    jni: &Jni,
    client: jlong,
    file: jbyteArray,
    mode: jint,
    exclusive: jboolean,
    append: jboolean,
    permissions: jint,
) -> Outcome<jlong> {
    let file = path(jni, file)?;
    let mode = write_mode(mode)?;
    let options = WriteOptions { mode, exclusive, append, permissions: permissions as u32 & 0o7777 };
    let writer = CLIENTS.get(client)?.create_with(&file, options).map_err(Failure::about(&file))?;
    Ok(WRITERS.put(Open { path: file, append, writer: Mutex::new(Some(writer)) }))
}

/// Writes `length` bytes of an array from `start` on.
pub fn write(jni: &Jni, writer: jlong, array: jbyteArray, start: jint, length: jint) -> Outcome<()> {
    let open = WRITERS.get(writer)?;
    let most = if open.append { length } else { length.min(PIECE_BYTES as jint) };
    let mut done = 0;
    while done < length {
        let piece = Span { start: start + done, length: (length - done).min(most) };
        BUFFER.with_borrow_mut(|buffer| {
            let n = piece.length as usize;
            if buffer.len() < n {
                buffer.resize(n, 0);
            }
            jni.copy_out(array, piece, &mut buffer[..n])?;
            let written = open.with(|writer| writer.write_all(&buffer[..n]));
            buffer.truncate(PIECE_BYTES);
            buffer.shrink_to(PIECE_BYTES);
            written
        })?;
        done += piece.length;
    }
    Ok(())
}

/// Sends what is gathered to the PFS; with `durable` also waits until the PFS has made it durable.
pub fn flush(_: &Jni, writer: jlong, durable: jboolean) -> Outcome<()> {
    WRITERS.get(writer)?.with(|writer| if durable { writer.sync() } else { writer.flush() })
}

/// Writes what is left and closes; a second time does nothing.
pub fn close_writer(_: &Jni, writer: jlong) -> Outcome<()> {
    let Some(open) = WRITERS.take(writer) else { return Ok(()) };
    let ended = open.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
    ended.map_or(Ok(()), FileWriter::close).map_err(Failure::about(&open.path))
}
