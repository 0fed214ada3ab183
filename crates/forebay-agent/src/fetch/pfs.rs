//! Fetching pages from the PFS.
//!
//! A page whose owner is another node goes to a queue of that peer (see `peer_client`), all others
//! to the mount's.
//!
//! Each mount has a few fetch threads and a queue with one lane per urgency: a waiting reader goes
//! before read-ahead, read-ahead before what jobs will read, and that before loads. A mount that
//! hangs holds its own threads and nobody else's. A page is fetched in chunks; after each the
//! file's version is looked at again, and only then do readers see the chunk. So bytes of two
//! versions never meet in one copy, and a reader of the page's front does not wait for its end.
//!
//! Where one server has many pages in a row and the PFS's client reads ahead by itself
//! (`stream_of`), pages of such a row are fetched one after the other, as long as a page takes its
//! time. Side by side they would come no sooner, the first of them as late as the last, and the
//! client would throw away what it has read ahead of each whenever it is asked for another. On a
//! PFS so fast that latency counts they go side by side.

use crate::agent::Shared;
use crate::cache::entry::{FlightError, FlightState, Task, Urgency, lock};
use crate::cache::fill::{Begun, tier_failed};
use crate::counters::add;
use crate::fetch::peers;
use forebay_pfs::FileFacts;
use forebay_policy::eviction::Fill;
use forebay_store::Class;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// First chunk of a page: small, since somebody may be waiting for the page's first bytes.
const FIRST_CHUNK_BYTES: usize = 256 << 10;

/// Later chunks of a page that somebody waits for.
const DEMAND_CHUNK_BYTES: usize = 1 << 20;

/// Chunks of other pages, and the buffer of a fetch thread: a page of 2 MiB in one read, so that
/// the file system asks all the servers it is striped over at the same time.
const CHUNK_BYTES: usize = 2 << 20;

/// Chunks of a page that only random reads want: small, so that one of them waits little behind it
/// at its server.
const REFILL_CHUNK_BYTES: usize = 64 << 10;

/// Pages waiting to be fetched ahead, per mount; more are refused. 1024 pages of 2 MiB are 32 full
/// windows.
const AHEAD_MAX: usize = 1024;

/// A task that takes longer keeps others of its stream waiting no longer: it may hang.
const STREAM_PATIENCE: Duration = Duration::from_secs(10);

/// As [`STREAM_PATIENCE`], for what a reader waits for.
const DEMAND_PATIENCE: Duration = Duration::from_secs(4);

/// How often it is looked whether it does.
const STREAM_LOOK: Duration = Duration::from_millis(500);

const LANES: usize = 5;

/// Tasks by urgency, and how long the threads have been at theirs.
#[derive(Debug)]
pub struct Queue<T> {
    lanes: Mutex<Lanes<T>>,
    ready: Condvar,
}

#[derive(Debug)]
struct Lanes<T> {
    waiting: [VecDeque<Waiting<T>>; LANES],
    /// The task each busy thread is at.
    running: Vec<Option<Running>>,
    /// Threads in [`Queue::pop_within`].
    idle: usize,
    closed: bool,
}

/// One of several tasks that are not to be taken up side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InStream {
    /// Of all of them the same.
    pub stream: u64,
    /// Those of one urgency are taken up in this order.
    pub place: u32,
}

#[derive(Debug)]
struct Waiting<T> {
    task: T,
    at: Option<InStream>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    since: Instant,
    stream: Option<u64>,
}

/// What came of waiting for a task.
#[derive(Debug)]
pub enum Popped<T> {
    /// A task.
    Task(T),
    /// None in time.
    Nothing,
    /// There will be no more.
    Closed,
}

impl<T> Lanes<T> {
    /// The thread is at no task.
    fn rest(&mut self, thread: usize) {
        if self.running.len() <= thread {
            self.running.resize(thread + 1, None);
        }
        self.running[thread] = None;
    }

    /// The thread takes up the most urgent task that may be.
    fn begin(&mut self, thread: usize) -> Option<T> {
        let busy = |patience| -> Vec<u64> {
            let running = self.running.iter().flatten();
            running.filter(|r| r.since.elapsed() <= patience).filter_map(|r| r.stream).collect()
        };
        let (for_demand, for_others) = (busy(DEMAND_PATIENCE), busy(STREAM_PATIENCE));
        let next = self.waiting.iter_mut().enumerate().find_map(|(lane, waiting)| {
            let busy = if lane == Urgency::Demand as usize { &for_demand } else { &for_others };
            let is_free = |w: &Waiting<T>| w.at.is_none_or(|at| !busy.contains(&at.stream));
            let first = waiting.iter().position(is_free)?;
            let place = |index: &usize| waiting[*index].at.map(|at| at.place);
            let stream = |index: &usize| waiting[*index].at.map(|at| at.stream);
            let of_stream = (first..waiting.len()).filter(|i| stream(i) == stream(&first));
            let next = if stream(&first).is_some() { of_stream.min_by_key(place)? } else { first };
            waiting.remove(next)
        })?;
        self.running[thread] = Some(Running { since: Instant::now(), stream: next.at.map(|at| at.stream) });
        Some(next.task)
    }

    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn drain(&mut self) -> Vec<T> {
        self.waiting.iter_mut().flat_map(|lane| lane.drain(..)).map(|w| w.task).collect()
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new() -> Self {
        let lanes = Lanes { waiting: Default::default(), running: Vec::new(), idle: 0, closed: false };
        Queue { lanes: Mutex::new(lanes), ready: Condvar::new() }
    }

    /// Adds a task; hands it back if its lane is full or the queue is closed.
    pub fn push(&self, urgency: Urgency, task: T) -> Result<(), T> {
        self.push_in(None, urgency, task)
    }

    /// As [`Queue::push`]. Of the tasks of one stream the next is taken up when the one before has
    /// ended: the most urgent, and of those the first by its place.
    pub fn push_in(&self, at: Option<InStream>, urgency: Urgency, task: T) -> Result<(), T> {
        let mut lanes = lock(&self.lanes);
        let lane = &mut lanes.waiting[urgency as usize];
        if urgency == Urgency::Ahead && lane.len() >= AHEAD_MAX {
            return Err(task);
        }
        if lanes.closed {
            return Err(task);
        }
        lanes.waiting[urgency as usize].push_back(Waiting { task, at });
        self.ready.notify_one();
        Ok(())
    }

    /// The most urgent task, waiting for one; `None` once the queue is closed. `thread` is the
    /// caller's number.
    pub fn pop(&self, thread: usize) -> Option<T> {
        let mut lanes = lock(&self.lanes);
        lanes.rest(thread);
        loop {
            if lanes.closed {
                return None;
            }
            if let Some(task) = lanes.begin(thread) {
                self.wake_next(&lanes);
                return Some(task);
            }
            if lanes.len() == 0 {
                lanes = self.ready.wait(lanes).unwrap_or_else(PoisonError::into_inner);
            } else {
                let look = self.ready.wait_timeout(lanes, STREAM_LOOK);
                lanes = look.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// A thread that has ended a task may have taken up one of another stream: what waits for the
    /// first is for others.
    fn wake_next(&self, lanes: &Lanes<T>) {
        if lanes.len() > 0 {
            self.ready.notify_one();
        }
    }

    /// No more tasks; returns those that were waiting.
    pub fn close(&self) -> Vec<T> {
        let mut lanes = lock(&self.lanes);
        lanes.closed = true;
        self.ready.notify_all();
        lanes.drain()
    }

    /// As [`Queue::pop`], but waits no longer than `limit`.
    pub fn pop_within(&self, thread: usize, limit: Duration) -> Popped<T> {
        let deadline = Instant::now() + limit;
        let mut lanes = lock(&self.lanes);
        lanes.rest(thread);
        lanes.idle += 1;
        let popped = loop {
            if lanes.closed {
                break Popped::Closed;
            }
            if let Some(task) = lanes.begin(thread) {
                self.wake_next(&lanes);
                break Popped::Task(task);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Popped::Nothing;
            }
            lanes = self.ready.wait_timeout(lanes, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        lanes.idle -= 1;
        popped
    }

    /// Whether more tasks wait than there are threads in [`Queue::pop_within`]. One that has a task
    /// is not among them, from the moment on in which it took it.
    pub fn is_short_of_threads(&self) -> bool {
        let lanes = lock(&self.lanes);
        lanes.len() > lanes.idle
    }

    /// Takes out all that wait.
    pub fn take_all(&self) -> Vec<T> {
        lock(&self.lanes).drain()
    }

    /// Tasks waiting.
    pub fn waiting(&self) -> usize {
        lock(&self.lanes).len()
    }

    /// Tasks waiting or running, and the age in milliseconds of the oldest running one.
    pub fn load(&self) -> (u64, u64) {
        let lanes = lock(&self.lanes);
        let running = lanes.running.iter().flatten();
        let oldest = running.clone().map(|r| r.since.elapsed()).max().unwrap_or_default();
        ((lanes.len() + running.count()) as u64, oldest.as_millis() as u64)
    }
}

/// A fetch thread of mount `mount`: works until the queue is closed.
pub fn run(shared: &Arc<Shared>, mount: usize, thread: usize) {
    let mut buffer = Vec::new();
    while let Some(task) = shared.mounts[mount].queue.pop(thread) {
        // A flight that somebody in more of a hurry has queued again is fetched by whoever comes
        // first.
        if task.flight.take() {
            let cancelled = matches!(task.urgency, Urgency::Load | Urgency::Plan)
                && !task.flight.is_demanded()
                && all_cancelled(&task);
            let outcome =
                if cancelled { Err(FlightError::Cancelled) } else { fetch_page(shared, &task, &mut buffer) };
            finish(shared, &task, outcome);
        }
        if task.urgency == Urgency::Refill {
            lock(&shared.mounts[mount].ledger).filled();
        }
    }
}

/// Whether all who have asked for the page have gone since.
pub fn all_cancelled(task: &Task) -> bool {
    let watchers = lock(&task.flight.watchers);
    !watchers.is_empty() && watchers.iter().all(|w| w.is_cancelled())
}

/// Puts a page on its way: to the peer that owns it, or to the PFS. One that cannot be queued ends
/// at once, so that nobody waits for it.
pub fn send(shared: &Arc<Shared>, task: Task) {
    if task.urgency == Urgency::Demand {
        let _ = task.flight.demand();
    }
    let refused = match peers::route(shared, &task) {
        Some(peer) => shared.peers.push(shared, &peer, task),
        None => shared.mounts[task.entry.mount].queue.push_in(stream_of(shared, &task), task.urgency, task),
    };
    let Err(task) = refused else { return };
    if task.urgency == Urgency::Ahead {
        add(&shared.counters.ahead_refused_total, 1);
    }
    if task.flight.take() {
        finish(shared, &task, Err(FlightError::Cancelled));
    }
}

/// Which tasks are not to be taken up beside `task`: those for pages of the same row.
fn stream_of(shared: &Shared, task: &Task) -> Option<InStream> {
    // Small reads in no order, for which nobody waits, have nothing to do with whoever reads on.
    if task.urgency == Urgency::Refill {
        return None;
    }
    let mount = &shared.mounts[task.entry.mount];
    let row = mount.row_of(task.entry.geometry().page_bytes, task.flight.page)?;
    Some(InStream { stream: task.entry.key(row), place: task.flight.page })
}

/// Ends a flight: readers are woken, loads are told.
pub fn finish(shared: &Shared, task: &Task, outcome: Result<u64, FlightError>) {
    let counters = &shared.counters;
    if let Some(begun) = task.flight.take_begun() {
        begun.abandon(shared, task);
    }
    match &outcome {
        Ok(_) => match task.urgency {
            Urgency::Demand => add(&counters.pages_demanded_total, 1),
            Urgency::Ahead => add(&counters.pages_ahead_total, 1),
            Urgency::Plan => add(&counters.pages_planned_total, 1),
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
    let begun = match task.flight.take_begun() {
        Some(begun) => Some(begun),
        None => Begun::begin(shared, task)?,
    };
    let Some(mut begun) = begun else { return Ok(0) };
    let (before, started) = (begun.done(), Instant::now());
    match fill(shared, task, &mut begun, buffer) {
        Ok(()) => {
            let is_full = begun.done() - before == task.entry.geometry().page_bytes;
            if is_full && task.urgency != Urgency::Refill {
                shared.mounts[task.entry.mount].page_took(started.elapsed());
            }
            let unused = matches!(task.urgency, Urgency::Ahead | Urgency::Plan);
            let fill = if unused { Fill::Ahead } else { Fill::Demand };
            let len = begun.done();
            begun.land(shared, task, fill);
            Ok(len - before)
        }
        Err(e) => {
            begun.abandon(shared, task);
            Err(e)
        }
    }
}

/// Reads what is missing of the page chunk by chunk and shows each to readers.
fn fill(shared: &Shared, task: &Task, begun: &mut Begun, buffer: &mut Vec<u8>) -> Result<(), FlightError> {
    let geometry = task.entry.geometry();
    let page_len = geometry.page_len(task.flight.page);
    let start = u64::from(task.flight.page) * geometry.page_bytes;
    if buffer.is_empty() {
        *buffer = vec![0; CHUNK_BYTES];
        // Kept by the thread until it ends; one chunk more cannot be refused when the page itself
        // had room.
        std::mem::forget(shared.budget.reserve_existing(Class::Buffers, CHUNK_BYTES as u64));
    }
    while begun.done() < page_len {
        let done = begun.done();
        let bound = match task.urgency {
            Urgency::Refill => REFILL_CHUNK_BYTES,
            Urgency::Demand if done == 0 => FIRST_CHUNK_BYTES,
            Urgency::Demand => DEMAND_CHUNK_BYTES,
            _ => CHUNK_BYTES,
        };
        // Chunks end at multiples of their size, so that every read of the PFS but the last is
        // aligned.
        let to_boundary = DEMAND_CHUNK_BYTES.max(bound) as u64 - done % DEMAND_CHUNK_BYTES.max(bound) as u64;
        let chunk = (page_len - done).min(bound as u64).min(to_boundary) as usize;
        read_chunk(shared, task, &mut buffer[..chunk], start + done)?;
        begun.file().write_at(&buffer[..chunk], start + done).map_err(tier_failed)?;
        begun.show(task, chunk as u64);
    }
    Ok(())
}

/// Reads one chunk and makes sure that it is of the entry's version.
///
/// By the descriptor that has come so far, where the PFS's client reads ahead; all who have a task
/// have shown that they may read the file.
fn read_chunk(shared: &Shared, task: &Task, buffer: &mut [u8], offset: u64) -> Result<(), FlightError> {
    if shared.mounts[task.entry.mount].row_bytes.is_none() {
        return read_chunk_by(shared, task, &task.pfs, buffer, offset);
    }
    let readers = &task.entry.readers;
    let mut reader = readers.at(offset, &task.pfs);
    let mut read = read_chunk_by(shared, task, &reader, buffer, offset);
    if !Arc::ptr_eq(&reader, &task.pfs) && matches!(read, Err(FlightError::Pfs { .. })) {
        // Another descriptor of the same file may do better.
        readers.forget(&reader);
        reader = task.pfs.clone();
        read = read_chunk_by(shared, task, &reader, buffer, offset);
    }
    if read.is_ok() {
        readers.moved(&reader, offset + buffer.len() as u64);
    }
    read
}

fn read_chunk_by(
    shared: &Shared,
    task: &Task,
    pfs: &OwnedFd,
    buffer: &mut [u8],
    offset: u64,
) -> Result<(), FlightError> {
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
    // Small files are not worth a request of their own.
    let stripe_bytes = if want > FIRST_CHUNK_BYTES { task.entry.stripe_bytes(pfs.as_fd()) } else { 0 };
    let read = mount.reader.read_full_at(pfs.as_fd(), buffer, offset, stripe_bytes);
    let got = read.map_err(|e| failed("read", e))?;
    mount.fetched_bytes.fetch_add(got as u64, Ordering::Relaxed);
    add(&shared.counters.fetched_bytes, got as u64);
    let facts = FileFacts::of(pfs.as_fd(), mount.config.revalidate).map_err(|e| failed("look at", e))?;
    if facts.version != task.entry.identity.version || got != want {
        return Err(FlightError::Changed);
    }
    Ok(())
}

fn buffer_len(task: &Task, offset: u64) -> u64 {
    (task.entry.identity.version.size - offset).min(CHUNK_BYTES as u64)
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

    #[test]
    fn tasks_of_one_stream_are_taken_up_one_after_the_other() {
        let queue = Queue::new();
        let at = |stream, place| Some(InStream { stream, place });
        for (at, urgency, task) in [
            (at(7, 3), Urgency::Plan, 3),
            (at(7, 2), Urgency::Ahead, 2),
            (at(7, 1), Urgency::Ahead, 1),
            (at(8, 0), Urgency::Plan, 4),
            (None, Urgency::Load, 5),
        ] {
            queue.push_in(at, urgency, task).unwrap();
        }
        assert_eq!(queue.pop(0), Some(1), "the most urgent of the one, and the first of those");
        assert_eq!(queue.pop(1), Some(4), "of another, though less urgent ones of the first wait");
        assert_eq!(queue.pop(2), Some(5), "of none");
        queue.push_in(at(7, 0), Urgency::Demand, 0).unwrap();
        assert!(
            !matches!(queue.pop_within(3, Duration::ZERO), Popped::Task(_)),
            "the rest waits for its stream"
        );
        queue.push_in(at(9, 0), Urgency::Demand, 6).unwrap();
        assert_eq!(queue.pop(3), Some(6), "and holds up nobody else");
        assert_eq!([queue.pop(0), queue.pop(0), queue.pop(0)], [Some(0), Some(2), Some(3)]);
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn a_page_that_hangs_holds_its_stream_up_for_a_while_only() {
        let queue = Queue::new();
        let at = |place| Some(InStream { stream: 7, place });
        let age = |thread: usize, by: Duration| {
            lock(&queue.lanes).running[thread].as_mut().unwrap().since -= by + Duration::from_millis(1);
        };
        queue.push_in(at(0), Urgency::Plan, 0).unwrap();
        assert_eq!(queue.pop(0), Some(0));
        queue.push_in(at(1), Urgency::Plan, 1).unwrap();
        queue.push_in(at(2), Urgency::Demand, 2).unwrap();
        age(0, DEMAND_PATIENCE);
        assert!(matches!(queue.pop_within(1, Duration::ZERO), Popped::Task(2)), "for readers");
        age(1, DEMAND_PATIENCE);
        assert!(!matches!(queue.pop_within(2, Duration::ZERO), Popped::Task(_)), "others wait longer");
        [0, 1].into_iter().for_each(|thread| age(thread, STREAM_PATIENCE));
        assert!(matches!(queue.pop_within(2, Duration::ZERO), Popped::Task(1)));
    }

    #[test]
    fn a_thread_that_has_taken_a_task_is_not_idle_any_more() {
        let queue = Queue::new();
        assert!(!queue.is_short_of_threads());
        queue.push(Urgency::Load, 1).unwrap();
        assert!(queue.is_short_of_threads(), "nobody is there");
        assert!(matches!(queue.pop_within(0, Duration::from_secs(9)), Popped::Task(1)));
        assert!(!queue.is_short_of_threads());
        queue.push(Urgency::Load, 2).unwrap();
        assert!(queue.is_short_of_threads(), "the one that was there is at its task");
        assert_eq!(queue.take_all(), [2]);
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| queue.pop_within(0, Duration::from_secs(60)));
            while lock(&queue.lanes).idle == 0 {
                std::thread::yield_now();
            }
            queue.push(Urgency::Load, 3).unwrap();
            assert!(matches!(waits.join().unwrap(), Popped::Task(3)));
        });
    }
}
