//! Bytes: what a read, a write or a sync costs, and when it is answered.
//!
//! A read is charged to its servers when it arrives and carried out when it is due: while it waits
//! it holds no data. A write is carried out immediately, straight from the request's buffer, and
//! only its acknowledgement waits; so memory does not grow with the pending requests in either
//! direction. The one exception is a write held by a hang, whose bytes must be kept:
//! [`HELD_WRITES_BYTES_MAX`] bounds them.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use fuser::{Errno as FuseErrno, ReplyData, ReplyEmpty, ReplyWrite};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use super::fault::Op;
use super::handles::OpenFile;
use super::state::State;

/// Bytes of writes that may be held by hangs; a write beyond them fails with ENOMEM.
const HELD_WRITES_BYTES_MAX: u64 = 256 << 20;

static HELD_WRITES_BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// One buffer per thread, as large as the largest request it has served (1 MiB): warm in the
    /// cache, never zeroed again.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A pending read.
pub struct Read {
    pub file: Arc<OpenFile>,
    pub offset: u64,
    pub size: u32,
    pub reply: ReplyData,
}

/// Serves a read.
pub fn read(state: &Arc<State>, read: Read) {
    let decision = state.decide(Op::Read, || read.file.path.clone());
    if let Some(errno) = decision.errno {
        let refuse = move || read.reply.error(FuseErrno::from_i32(errno));
        return state.after(state.latency_ns.saturating_add(decision.delay_ns), refuse);
    }
    let later = state.clone();
    let start = move || start_read(&later, read, decision.delay_ns);
    match decision.hang_ns {
        Some(hang_ns) => state.hang(hang_ns, start),
        None => start(),
    }
}

fn start_read(state: &Arc<State>, read: Read, delay_ns: u64) {
    // Only existing bytes are moved: a read beyond the end must not pay for bytes that do not
    // exist.
    let size_bytes = match rustix::fs::fstat(read.file.as_fd()) {
        Ok(stat) => stat.st_size as u64,
        Err(error) => return read.reply.error(errno(error)),
    };
    let len = u64::from(read.size).min(size_bytes.saturating_sub(read.offset));
    let share = state.striping.share(state.striping.first_server(read.file.ino()), read.offset, len);
    let due_ns = state.charge(&share).saturating_add(state.latency_ns).saturating_add(delay_ns);
    let later = state.clone();
    state.timer.at(due_ns, move || finish_read(&later, read));
}

fn finish_read(state: &State, read: Read) {
    BUFFER.with_borrow_mut(|buffer| {
        let size = read.size as usize;
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        match read_fully(read.file.as_fd(), read.offset, &mut buffer[..size]) {
            Ok(n) => {
                let first = state.striping.first_server(read.file.ino());
                state.counters.count_read(&state.striping.share(first, read.offset, n as u64));
                read.reply.data(&buffer[..n]);
            }
            Err(error) => read.reply.error(errno(error)),
        }
    });
}

fn read_fully(fd: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(fd, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Serves a write.
pub fn write(state: &Arc<State>, file: Arc<OpenFile>, offset: u64, data: &[u8], reply: ReplyWrite) {
    let decision = state.decide(Op::Write, || file.path.clone());
    if let Some(errno) = decision.errno {
        let refuse = move || reply.error(FuseErrno::from_i32(errno));
        return state.after(state.latency_ns.saturating_add(decision.delay_ns), refuse);
    }
    let Some(hang_ns) = decision.hang_ns else {
        return do_write(state, file, offset, data, decision.delay_ns, reply);
    };
    let Some(held) = HeldBytes::take(data) else { return reply.error(FuseErrno::ENOMEM) };
    let later = state.clone();
    state.hang(hang_ns, move || do_write(&later, file, offset, &held.data, decision.delay_ns, reply));
}

fn do_write(state: &State, file: Arc<OpenFile>, offset: u64, data: &[u8], delay_ns: u64, reply: ReplyWrite) {
    if let Err(error) = write_fully(file.as_fd(), offset, data) {
        return reply.error(errno(error));
    }
    let len = data.len() as u64;
    let share = state.striping.share(state.striping.first_server(file.ino()), offset, len);
    state.counters.count_write(&share);
    let done_ns = state.charge(&share).saturating_add(state.latency_ns);
    let window_bytes = if file.synchronous { 0 } else { state.write_behind_bytes };
    let mut behind = file.behind.lock().unwrap_or_else(PoisonError::into_inner);
    let acknowledged_ns = behind.write(state.timer.now_ns(), len, done_ns, window_bytes);
    drop(behind);
    state.timer.at(acknowledged_ns.saturating_add(delay_ns), move || reply.written(len as u32));
}

fn write_fully(fd: BorrowedFd<'_>, mut offset: u64, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::pwrite(fd, data, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => (data, offset) = (&data[n..], offset + n as u64),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Serves fsync and the flush at close: both wait until the servers have what was written through
/// this open file. `to_disk` is what fsync requests: `Some(true)` for the data only, `None` for a
/// flush, which requests nothing.
pub fn sync(state: &Arc<State>, file: Arc<OpenFile>, to_disk: Option<bool>, reply: ReplyEmpty) {
    state.counters.syncs.fetch_add(1, Ordering::Relaxed);
    let decision = state.decide(Op::Sync, || file.path.clone());
    if let Some(errno) = decision.errno {
        let refuse = move || reply.error(FuseErrno::from_i32(errno));
        return state.after(state.latency_ns.saturating_add(decision.delay_ns), refuse);
    }
    let later = state.clone();
    let start = move || finish_sync(&later, &file, to_disk, decision.delay_ns, reply);
    match decision.hang_ns {
        Some(hang_ns) => state.hang(hang_ns, start),
        None => start(),
    }
}

fn finish_sync(state: &State, file: &OpenFile, to_disk: Option<bool>, delay_ns: u64, reply: ReplyEmpty) {
    let synced = match to_disk {
        Some(true) => rustix::fs::fdatasync(file.as_fd()),
        Some(false) => rustix::fs::fsync(file.as_fd()),
        None => Ok(()),
    };
    let drained_ns = file.behind.lock().unwrap_or_else(PoisonError::into_inner).drained_ns();
    let asked_ns = if to_disk.is_some() { state.latency_ns } else { 0 };
    let due_ns = drained_ns.max(state.timer.now_ns().saturating_add(asked_ns)).saturating_add(delay_ns);
    state.timer.at(due_ns, move || match synced {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    });
}

/// The bytes of a held write; releases its part of the bound when dropped.
struct HeldBytes {
    data: Vec<u8>,
}

impl HeldBytes {
    fn take(data: &[u8]) -> Option<Self> {
        let len = data.len() as u64;
        let room = |held: u64| held.checked_add(len).filter(|sum| *sum <= HELD_WRITES_BYTES_MAX);
        HELD_WRITES_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        Some(Self { data: data.to_vec() })
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        HELD_WRITES_BYTES.fetch_sub(self.data.len() as u64, Ordering::Relaxed);
    }
}

/// The same error number in FUSE's type.
pub fn errno(error: Errno) -> FuseErrno {
    FuseErrno::from_i32(error.raw_os_error())
}
