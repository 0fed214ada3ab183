//! Fetching pages from the PFS.
//!
//! Each mount has a few fetch threads and a queue with one lane per urgency: a waiting reader goes before read-ahead,
//! read-ahead before loads. A mount that hangs holds its own threads and nobody else's. A page is fetched in chunks;
//! after each the file's version is looked at again, and only then do readers see the chunk. So bytes of two versions
//! never meet in one copy, and a reader of the page's front does not wait for its end.

use crate::agent::Shared;
use crate::cache::no_copy;
use crate::counters::add;
use crate::entry::{FlightError, FlightState, Task, Urgency, lock};
use forebay_pfs::FileFacts;
use forebay_policy::eviction::Fill;
use forebay_store::copy::CopyFile;
use forebay_store::{BLOCK_BYTES, Class, State, Word, blocks_bytes};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// First chunk of a page: small, since somebody may be waiting for the page's first bytes.
const FIRST_CHUNK_BYTES: usize = 256 << 10;

/// Later chunks of a page that somebody waits for.
const DEMAND_CHUNK_BYTES: usize = 1 << 20;

/// Chunks of other pages, and the buffer of a fetch thread: a page of 2 MiB in one read, so that the file system asks all
/// the servers it is striped over at the same time.
const CHUNK_BYTES: usize = 2 << 20;

/// Chunks of a page that only random reads want: small, so that one of them waits little behind it at its server.
const REFILL_CHUNK_BYTES: usize = 128 << 10;

/// Pages waiting to be fetched ahead, per mount; more are refused. 1024 pages of 2 MiB are 32 full windows.
const AHEAD_MAX: usize = 1024;

const LANES: usize = 4;

/// Tasks by urgency, and how long the threads have been at theirs.
#[derive(Debug)]
pub struct Queue<T> {
    lanes: Mutex<Lanes<T>>,
    ready: Condvar,
}

#[derive(Debug)]
struct Lanes<T> {
    waiting: [VecDeque<T>; LANES],
    /// Start of the task each busy thread is at.
    running: Vec<Option<Instant>>,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new() -> Self {
        let lanes = Lanes { waiting: Default::default(), running: Vec::new(), closed: false };
        Queue { lanes: Mutex::new(lanes), ready: Condvar::new() }
    }

    /// Adds a task; hands it back if its lane is full or the queue is closed.
    pub fn push(&self, urgency: Urgency, task: T) -> Result<(), T> {
        let mut lanes = lock(&self.lanes);
        let lane = &mut lanes.waiting[urgency as usize];
        if urgency == Urgency::Ahead && lane.len() >= AHEAD_MAX {
            return Err(task);
        }
        if lanes.closed {
            return Err(task);
        }
        lanes.waiting[urgency as usize].push_back(task);
        self.ready.notify_one();
        Ok(())
    }

    /// The most urgent task, waiting for one; `None` once the queue is closed. `thread` is the caller's number.
    pub fn pop(&self, thread: usize) -> Option<T> {
        let mut lanes = lock(&self.lanes);
        if lanes.running.len() <= thread {
            lanes.running.resize(thread + 1, None);
        }
        lanes.running[thread] = None;
        loop {
            if lanes.closed {
                return None;
            }
            if let Some(task) = lanes.waiting.iter_mut().find_map(VecDeque::pop_front) {
                lanes.running[thread] = Some(Instant::now());
                return Some(task);
            }
            lanes = self.ready.wait(lanes).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// No more tasks; returns those that were waiting.
    pub fn close(&self) -> Vec<T> {
        let mut lanes = lock(&self.lanes);
        lanes.closed = true;
        self.ready.notify_all();
        lanes.waiting.iter_mut().flat_map(|lane| lane.drain(..)).collect()
    }

    /// Tasks waiting or running, and the age in milliseconds of the oldest running one.
    pub fn load(&self) -> (u64, u64) {
        let lanes = lock(&self.lanes);
        let waiting: usize = lanes.waiting.iter().map(VecDeque::len).sum();
        let running = lanes.running.iter().flatten();
        let oldest = running.clone().map(Instant::elapsed).max().unwrap_or_default();
        ((waiting + running.count()) as u64, oldest.as_millis() as u64)
    }
}

/// A fetch thread of mount `mount`: works until the queue is closed.
pub fn run(shared: &Arc<Shared>, mount: usize, thread: usize) {
    let mut buffer = Vec::new();
    while let Some(task) = shared.mounts[mount].queue.pop(thread) {
        let started = Instant::now();
        // A flight that somebody in more of a hurry has queued again is fetched by whoever comes first.
        let taken = task.flight.take();
        if taken {
            let cancelled = task.urgency == Urgency::Load && all_cancelled(&task);
            let outcome =
                if cancelled { Err(FlightError::Cancelled) } else { fetch_page(shared, &task, &mut buffer) };
            finish(shared, &task, outcome);
        }
        if task.urgency == Urgency::Refill {
            let took_ns = if taken { started.elapsed().as_nanos() as u64 } else { 0 };
            lock(&shared.mounts[mount].ledger).filled(shared.now(), took_ns);
        }
    }
}

fn all_cancelled(task: &Task) -> bool {
    let watchers = lock(&task.flight.watchers);
    !watchers.is_empty() && watchers.iter().all(|w| w.is_cancelled())
}

/// Ends a flight: readers are woken, loads are told.
pub fn finish(shared: &Shared, task: &Task, outcome: Result<u64, FlightError>) {
    let counters = &shared.counters;
    match &outcome {
        Ok(_) => match task.urgency {
            Urgency::Demand => add(&counters.pages_demanded_total, 1),
            Urgency::Ahead => add(&counters.pages_ahead_total, 1),
            Urgency::Load => add(&counters.pages_loaded_total, 1),
            Urgency::Refill => add(&counters.pages_refilled_total, 1),
        },
        Err(FlightError::Cancelled) => {}
        Err(e) => {
            add(&counters.pages_failed_total, 1);
            if let FlightError::Pfs { message, .. } = e {
                shared.mounts[task.entry.mount].fetch_errors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("{message}");
            }
            if *e == FlightError::Changed {
                add(&counters.changed_total, 1);
            }
        }
    }
    task.entry.land(&task.flight);
    let state = match &outcome {
        Ok(_) => FlightState::Landed,
        Err(e) => FlightState::Failed(e.clone()),
    };
    task.flight.set(state);
    // After landing: who adds itself to the watchers of an ended flight sees that it has ended.
    for watcher in lock(&task.flight.watchers).drain(..) {
        watcher.page_done(task.flight.page, &outcome);
    }
    if outcome.is_err() {
        shared.cache.drop_if_empty(&task.entry);
    }
}

/// Brings one page into the tier. Returns the bytes read from the PFS, 0 if the page was there.
fn fetch_page(shared: &Shared, task: &Task, buffer: &mut Vec<u8>) -> Result<u64, FlightError> {
    let page = task.flight.page;
    let len = task.entry.geometry().page_len(page);
    let file = shared.cache.file(&task.entry).map_err(tier_failed)?;
    if file.word(page).state == State::Resident {
        return Ok(0);
    }
    let room =
        shared.cache.reserve(Class::Pages, blocks_bytes(len), &shared.counters).ok_or(FlightError::NoRoom)?;
    if !shared.cache.wait_absent(&file, page) {
        return Err(FlightError::NoRoom);
    }
    let absent = file.word(page);
    let filling = Word { state: State::Filling, valid_blocks: 0, ..absent };
    assert!(file.change(page, absent, filling), "page {page} of copy {} has two fetchers", task.entry.copy());
    match fill(shared, task, &file, filling, buffer) {
        Ok(last) => {
            let whole = Word { state: State::Resident, ..last };
            shared.cache.keep_pages(room);
            let fill = if task.urgency == Urgency::Ahead { Fill::Ahead } else { Fill::Demand };
            let ours = shared.cache.note_resident(&task.entry, &file, page, (last, whole), fill);
            assert!(ours, "a page being filled has one owner");
            Ok(len)
        }
        Err(e) => {
            let now = file.word(page);
            file.change(page, now, now.withdrawn(State::Leaving));
            if let Err(e) = file.punch(page, 1) {
                tracing::error!(copy = task.entry.copy(), page, error = %e, "cannot give back a page that was not filled");
                // It takes memory that nobody will give back: it stays counted.
                shared.cache.keep_pages(room);
            }
            Err(e)
        }
    }
}

/// Reads the page chunk by chunk and shows each to readers; returns the last word.
fn fill(
    shared: &Shared,
    task: &Task,
    file: &CopyFile,
    mut word: Word,
    buffer: &mut Vec<u8>,
) -> Result<Word, FlightError> {
    let geometry = task.entry.geometry();
    let (page, page_len) = (task.flight.page, geometry.page_len(task.flight.page));
    let start = u64::from(page) * geometry.page_bytes;
    if buffer.is_empty() {
        *buffer = vec![0; CHUNK_BYTES];
        // Kept by the thread until it ends; one chunk more cannot be refused when the page itself had room.
        std::mem::forget(shared.budget.reserve_existing(Class::Buffers, CHUNK_BYTES as u64));
    }
    let mut done = 0;
    while done < page_len {
        let bound = match task.urgency {
            Urgency::Refill => REFILL_CHUNK_BYTES,
            Urgency::Demand if done == 0 => FIRST_CHUNK_BYTES,
            Urgency::Demand => DEMAND_CHUNK_BYTES,
            _ => CHUNK_BYTES,
        };
        // Chunks end at multiples of their size, so that every read of the PFS but the last is aligned.
        let to_boundary = DEMAND_CHUNK_BYTES.max(bound) as u64 - done % DEMAND_CHUNK_BYTES.max(bound) as u64;
        let chunk = (page_len - done).min(bound as u64).min(to_boundary) as usize;
        read_chunk(shared, task, &mut buffer[..chunk], start + done)?;
        file.write_at(&buffer[..chunk], start + done).map_err(tier_failed)?;
        done += chunk as u64;
        if done < page_len {
            let more = Word { valid_blocks: (done / BLOCK_BYTES) as u32, ..word };
            assert!(file.change(page, word, more), "a page being filled has one owner");
            word = more;
            task.flight.set(FlightState::Under(done));
        }
    }
    let all = Word { valid_blocks: page_len.div_ceil(BLOCK_BYTES) as u32, ..word };
    assert!(file.change(page, word, all), "a page being filled has one owner");
    Ok(all)
}

/// Reads one chunk and makes sure that it is of the entry's version.
fn read_chunk(shared: &Shared, task: &Task, buffer: &mut [u8], offset: u64) -> Result<(), FlightError> {
    let mount = &shared.mounts[task.entry.mount];
    let failed = |what: &str, e: io::Error| FlightError::Pfs {
        errno: e.raw_os_error().unwrap_or(libc::EIO),
        message: format!(
            "cannot {what} {} bytes at {offset} of {}: {e}",
            buffer_len(task, offset),
            String::from_utf8_lossy(&task.entry.identity.path)
        ),
    };
    let want = buffer.len();
    let got = mount.reader.read_full_at(task.pfs.as_fd(), buffer, offset).map_err(|e| failed("read", e))?;
    mount.fetched_bytes.fetch_add(got as u64, Ordering::Relaxed);
    add(&shared.counters.fetched_bytes, got as u64);
    let facts = FileFacts::of(task.pfs.as_fd(), mount.config.revalidate).map_err(|e| failed("look at", e))?;
    if facts.version != task.entry.identity.version || got != want {
        return Err(FlightError::Changed);
    }
    Ok(())
}

fn buffer_len(task: &Task, offset: u64) -> u64 {
    (task.entry.identity.version.size - offset).min(CHUNK_BYTES as u64)
}

fn tier_failed(e: io::Error) -> FlightError {
    match no_copy(e) {
        crate::cache::NoCopy::Tier(e) => FlightError::Pfs {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!("the tier failed: {e}"),
        },
        _ => FlightError::NoRoom,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_readers_go_first_and_read_ahead_is_bounded() {
        let queue = Queue::new();
        queue.push(Urgency::Load, 1).unwrap();
        queue.push(Urgency::Ahead, 2).unwrap();
        queue.push(Urgency::Demand, 3).unwrap();
        assert_eq!([queue.pop(0), queue.pop(0), queue.pop(0)], [Some(3), Some(2), Some(1)]);
        for i in 0..AHEAD_MAX as i32 {
            queue.push(Urgency::Ahead, i).unwrap();
        }
        assert_eq!(queue.push(Urgency::Ahead, -1), Err(-1));
        assert_eq!(queue.close().len(), AHEAD_MAX);
        assert_eq!(queue.pop(0), None);
        assert_eq!(queue.push(Urgency::Demand, 1), Err(1));
    }
}
