//! Reading: into direct buffers, into arrays, and mapped.
//!
//! A read into an array in the heap has two ways. What is resident is copied straight into the
//! array, which the JVM lends for the ten or so microseconds that takes; its garbage collector may
//! have to wait for them, so nothing that could block is done meanwhile, and long reads are split
//! into pieces. Everything else goes through a buffer of this thread: a second copy, out of the
//! processor's cache, which next to a wait for the agent or the PFS does not count.

use crate::client::{CLIENTS, offset_of, path};
use crate::env::{Failure, Jni, Outcome, Span};
use crate::handles::Handles;
use forebay_client::{File, MappedRange, ReadMode};
use jni_sys::{jbyteArray, jint, jlong, jobject};
use rustix::fs::{FileType, fstat};
use std::cell::RefCell;
use std::io;

/// Longest piece for which an array is lent by the JVM, and the size of a thread's buffer: copied
/// in about a tenth of a millisecond.
const PIECE_BYTES: usize = 1 << 20;

static FILES: Handles<File> = Handles::new();
static MAPPINGS: Handles<MappedRange> = Handles::new();

thread_local! {
    /// Holds what cannot be copied straight into an array. Threads of a JVM come and go with their
    /// memory.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn read_mode(mode: jint) -> Outcome<ReadMode> {
    match mode {
        0 => Ok(ReadMode::Cached),
        1 => Ok(ReadMode::TierOnly),
        2 => Ok(ReadMode::PfsOnly),
        other => Err(Failure::Errno(libc::EINVAL, format!("{other} is no read mode"))),
    }
}

/// A directory can be opened, though not read. Java expects the error now. (No agent serves one.)
fn refuse_directory(file: &File) -> io::Result<()> {
    if let Some(fd) = file.pfs_fd().filter(|_| !file.is_tiered())
        && FileType::from_raw_mode(fstat(fd)?.st_mode).is_dir()
    {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    Ok(())
}

/// Opens a file. `mode`: 0 cached, 1 the tier only, 2 the PFS only.
pub fn open(jni: &Jni, client: jlong, file: jbyteArray, mode: jint) -> Outcome<jlong> {
    let file = path(jni, file)?;
    let mode = read_mode(mode)?;
    let open = CLIENTS.get(client)?.open_with(&file, mode).map_err(Failure::about(&file))?;
    refuse_directory(&open).map_err(Failure::about(&file))?;
    Ok(FILES.put(open))
}

/// Closes a file; a read under way in another thread is finished first.
pub fn close(_: &Jni, file: jlong) -> Outcome<()> {
    FILES.take(file);
    Ok(())
}

/// Length of a file in bytes: of the version opened, or without an agent now.
pub fn size(_: &Jni, file: jlong) -> Outcome<jlong> {
    let file = FILES.get(file)?;
    let size = file.size().map_err(Failure::about(file.path()))?;
    Ok(i64::try_from(size).unwrap_or(i64::MAX))
}

/// Bytes of a file that are in the tier now.
pub fn resident_bytes(_: &Jni, file: jlong) -> Outcome<jlong> {
    Ok(i64::try_from(FILES.get(file)?.resident_bytes()).unwrap_or(i64::MAX))
}

/// Reads at `offset` into `length` bytes of a direct buffer from `start` on; returns the bytes
/// read, fewer only at the end of the file.
pub fn read_direct(
    jni: &Jni,
    file: jlong,
    offset: jlong,
    buffer: jobject,
    start: jint,
    length: jint,
) -> Outcome<jint> {
    let (file, offset) = (FILES.get(file)?, offset_of(offset)?);
    // SAFETY: used in this call only.
    let target = unsafe { jni.direct(buffer, Span { start, length }) }?;
    // Not more than `length`, a jint.
    Ok(file.read_at(target, offset).map_err(Failure::about(file.path()))? as jint)
}

/// As `readDirect`, into an array.
pub fn read_array(
    jni: &Jni,
    file: jlong,
    offset: jlong,
    array: jbyteArray,
    start: jint,
    length: jint,
) -> Outcome<jint> {
    read_pieces(jni, (file, offset), array, Span { start, length }, true)
}

fn read_pieces(
    jni: &Jni,
    (file, offset): (jlong, jlong),
    array: jbyteArray,
    Span { start, length }: Span,
    may_wait: bool,
) -> Outcome<jint> {
    let (file, offset) = (FILES.get(file)?, offset_of(offset)?);
    let mut done = 0;
    while done < length {
        let piece = Span { start: start + done, length: (length - done).min(PIECE_BYTES as jint) };
        let at = offset + done as u64;
        let n = match jni.with_array(array, piece, |target| file.read_resident(target, at))? {
            Some(n) => n as jint,
            None if may_wait => read_piece(jni, &file, at, array, piece)?,
            None => return Ok(-1),
        };
        done += n;
        if n < piece.length {
            break;
        }
    }
    Ok(done)
}

fn read_piece(jni: &Jni, file: &File, offset: u64, array: jbyteArray, piece: Span) -> Outcome<jint> {
    BUFFER.with_borrow_mut(|buffer| {
        // `piece.length` is neither negative, or it could not have been lent, nor larger than a
        // piece.
        let length = piece.length as usize;
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        let n = file.read_at(&mut buffer[..length], offset).map_err(Failure::about(file.path()))?;
        jni.copy_in(array, piece.start, &buffer[..n])?;
        Ok(n as jint)
    })
}

/// As `readDirect`, but only if nobody has to be asked or waited for; -1 otherwise.
pub fn read_resident_direct(
    jni: &Jni,
    file: jlong,
    offset: jlong,
    buffer: jobject,
    start: jint,
    length: jint,
) -> Outcome<jint> {
    let (file, offset) = (FILES.get(file)?, offset_of(offset)?);
    // SAFETY: used in this call only.
    let target = unsafe { jni.direct(buffer, Span { start, length }) }?;
    Ok(file.read_resident(target, offset).map_or(-1, |n| n as jint))
}

/// As `readResidentDirect`, into an array.
pub fn read_resident_array(
    jni: &Jni,
    file: jlong,
    offset: jlong,
    array: jbyteArray,
    start: jint,
    length: jint,
) -> Outcome<jint> {
    read_pieces(jni, (file, offset), array, Span { start, length }, false)
}

/// Maps `length` bytes at `offset` out of the tier; 0 if not all of them are resident, or no more
/// may be held.
pub fn map(_: &Jni, file: jlong, offset: jlong, length: jlong) -> Outcome<jlong> {
    let (file, offset, length) = (FILES.get(file)?, offset_of(offset)?, offset_of(length)?);
    Ok(file.map(offset, length).map_or(0, |range| MAPPINGS.put(range)))
}

/// A direct buffer over a mapping, good until `unmap`.
pub fn mapped(jni: &Jni, mapping: jlong) -> Outcome<jobject> {
    let range = MAPPINGS.get(mapping)?;
    // SAFETY: the range stays until `unmap`, which `io.forebay.core.Mapping` calls when no
    // buffer on it is left or its owner has given it back; Java only ever hands it out
    // read-only.
    unsafe { jni.new_direct(&range) }
}

/// Ends a mapping.
pub fn unmap(_: &Jni, mapping: jlong) -> Outcome<()> {
    MAPPINGS.take(mapping);
    Ok(())
}
