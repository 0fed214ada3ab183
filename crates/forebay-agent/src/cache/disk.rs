//! The disk level: owned pages that leave the memory go to a disk, and come back from there.
//!
//! Giving memory back never waits for the disk. A page that is evicted is copied into a queue of
//! bounded length, which a thread writes down; if the queue is full, the page is only evicted, and
//! the PFS is read for it again. Reads go through threads of their own too: a disk that does not
//! answer in time is left alone for a while, and the PFS is read.

use super::entry::Entry;
use crate::counters::{Counters, add};
use crate::lock::lock;
use crate::stop::Stop;
use forebay_policy::disk_level::{Place, Ring, Speed};
use forebay_store::copy::{CopyFile, CopyIdentity};
use forebay_store::disk_level::{Aligned, PageName, Segments, record_bytes};
use forebay_store::{Budget, Class, Reservation};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Limit on the bytes of evicted pages that wait to be written.
const QUEUE_BYTES_MAX: u64 = 32 << 20;

/// The same as a fraction of the tier.
const QUEUE_PARTS: u64 = 16;

/// A segment is this fraction of the capacity, within these bounds.
const SEGMENTS: u64 = 64;
const SEGMENT_BYTES: (u64, u64) = (4 << 20, 1 << 30);

/// The agent's memory for one page on the disk, and the most pages.
const PAGE_ENTRY_BYTES: u64 = 48;
const PAGES_MAX: u64 = 4 << 20;

/// Threads that read.
pub const READERS: usize = 4;

/// Most pages that wait for one of them: a few turns, after which the PFS is faster.
const WAITING_MAX: usize = 4 * READERS;

/// Pages in the memory of its threads: a buffer and an answer of each reader, and the writer's.
const PAGES_OF_THREADS: u64 = 2 * READERS as u64 + 1;

/// Time after which a read counts as failed.
const READ_MAX: Duration = Duration::from_secs(2);

/// How long the disk is left alone after a failure.
const REST: Duration = Duration::from_secs(30);

/// How often the writer looks whether the agent is ending.
const LOOK: Duration = Duration::from_millis(200);

/// An evicted page.
#[derive(Debug)]
struct Evicted {
    name: PageName,
    data: Vec<u8>,
}

#[derive(Debug, Default)]
struct Queue {
    pages: VecDeque<Evicted>,
    bytes: u64,
}

/// A page that is to be read.
struct Wanted {
    name: PageName,
    place: Place,
    len: u64,
    /// First `None`, when a thread takes it.
    answer: SyncSender<Option<io::Result<Vec<u8>>>>,
}

/// See the module.
#[derive(Debug)]
pub struct Disk {
    segments: Segments,
    ring: Mutex<Ring>,
    speed: Mutex<Speed>,
    queue: Mutex<Queue>,
    queue_bytes: u64,
    queued: Condvar,
    wanted: (SyncSender<Wanted>, Mutex<Receiver<Wanted>>),
    /// Its entries, the queue, and what its threads work with.
    memory: Mutex<Reservation>,
    /// Bytes of the longest page so far.
    longest: AtomicU64,
    budget: Budget,
    /// Until when it is left alone.
    rests_until: Mutex<Option<Instant>>,
    /// A page is being written.
    writing: Mutex<()>,
    /// Everything is being removed: what is evicted is not taken.
    is_closed: AtomicBool,
    counters: Arc<Counters>,
}

fn key_of(name: &PageName) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn page_name(identity: &CopyIdentity, page: u32) -> PageName {
    let CopyIdentity { mount, version, page_bytes, .. } = identity;
    PageName { mount: mount.clone(), version: *version, page_bytes: *page_bytes, page }
}

impl Disk {
    /// Opens the level in the directory `path`, with at most `capacity_bytes`.
    ///
    /// # Errors
    /// Another agent uses the directory, or it cannot be used.
    pub fn open(
        path: &Path,
        capacity_bytes: u64,
        budget: &Budget,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let segments = Segments::open(path)?;
        let segment_bytes = (capacity_bytes / SEGMENTS).clamp(SEGMENT_BYTES.0, SEGMENT_BYTES.1);
        let segments_max = (capacity_bytes / segment_bytes).max(1) as usize;
        let mut ring = Ring::new(segments_max, segment_bytes, PAGES_MAX as usize);
        // Longer ones are of an agent with a larger capacity.
        let (kept, mut gone): (Vec<u32>, Vec<u32>) = segments
            .numbers()?
            .into_iter()
            .partition(|number| segments.bytes(*number).is_ok_and(|bytes| bytes <= segment_bytes));
        gone.extend(ring.adopt(&kept));
        gone.into_iter().try_for_each(|segment| segments.remove(segment))?;
        let wanted = sync_channel(WAITING_MAX);
        let queue_bytes = (budget.capacity_bytes() / QUEUE_PARTS).min(QUEUE_BYTES_MAX);
        Ok(Disk {
            segments,
            ring: Mutex::new(ring),
            speed: Mutex::default(),
            queue: Mutex::default(),
            queue_bytes,
            queued: Condvar::new(),
            wanted: (wanted.0, Mutex::new(wanted.1)),
            memory: Mutex::new(budget.reserve_existing(Class::Buffers, queue_bytes)),
            longest: AtomicU64::new(0),
            budget: budget.clone(),
            rests_until: Mutex::new(None),
            writing: Mutex::new(()),
            is_closed: AtomicBool::new(false),
            counters,
        })
    }

    /// Lets another agent have the directory, for a process about to end.
    pub fn release(&self) {
        self.segments.release();
    }

    fn rests(&self) -> bool {
        lock(&self.rests_until).is_some_and(|until| Instant::now() < until)
    }

    /// Leaves the disk alone for a while after a failure.
    fn rest(&self, what: &str, error: &io::Error) {
        add(&self.counters.disk_failed_total, 1);
        let before = lock(&self.rests_until).replace(Instant::now() + REST);
        if before.is_none_or(|until| until < Instant::now()) {
            tracing::warn!(%error, "{what}; the disk level is left alone for {} s", REST.as_secs());
        }
    }

    /// Takes an evicted page, whose memory is released when this returns.
    pub fn take(&self, entry: &Entry, file: &CopyFile, page: u32) {
        let name = page_name(&entry.identity, page);
        let len = entry.geometry().page_len(page);
        if self.is_closed.load(Relaxed) || self.rests() || !lock(&self.ring).wants(key_of(&name)) {
            return;
        }
        let mut queue = lock(&self.queue);
        if queue.bytes + len > self.queue_bytes {
            add(&self.counters.disk_missed_total, 1);
            return;
        }
        queue.bytes += len;
        drop(queue);
        let mut data = vec![0; len as usize];
        let read = file.read_withdrawn(page, &mut data);
        let mut queue = lock(&self.queue);
        match read {
            Ok(()) => queue.pages.push_back(Evicted { name, data }),
            Err(e) => {
                queue.bytes -= len;
                tracing::error!(copy = entry.copy(), page, error = %e, "cannot read a page that is evicted");
            }
        }
        self.queued.notify_one();
    }

    /// Writes what is evicted to the disk, until the agent ends.
    pub fn write_down(&self, stop: &Stop) {
        self.adopt(stop);
        let mut buffer = Aligned::default();
        while !stop.is_stopping() {
            let evicted = {
                let queue = lock(&self.queue);
                let wait = self.queued.wait_timeout_while(queue, LOOK, |queue| queue.pages.is_empty());
                let mut queue = wait.unwrap_or_else(PoisonError::into_inner).0;
                queue.pages.pop_front()
            };
            if let Some(Evicted { name, data }) = evicted {
                let len = data.len() as u64;
                if !self.rests()
                    && let Err(e) = self.write(name, &data, &mut buffer)
                {
                    self.rest("cannot write to the directory tier.disk", &e);
                }
                lock(&self.queue).bytes -= len;
            }
        }
    }

    fn write(&self, name: PageName, data: &[u8], buffer: &mut Aligned) -> io::Result<()> {
        let _one = lock(&self.writing);
        if self.is_closed.load(Relaxed) {
            return Ok(());
        }
        let (key, len) = (key_of(&name), data.len() as u64);
        let Some((place, gone)) = lock(&self.ring).place(record_bytes(len)) else { return Ok(()) };
        for segment in gone {
            self.segments.remove(segment)?;
        }
        let written = self.segments.write((place.segment, place.offset()), name, data, buffer);
        if written.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::StorageFull) {
            // Others need the disk as well.
            let oldest = lock(&self.ring).drop_oldest();
            oldest.map_or(Ok(()), |oldest| self.segments.remove(oldest))?;
        }
        written?;
        let mut ring = lock(&self.ring);
        ring.landed(key, place);
        self.longest.fetch_max(len, Relaxed);
        self.count_memory(ring.len());
        drop(ring);
        add(&self.counters.pages_to_disk_total, 1);
        add(&self.counters.to_disk_bytes, len);
        Ok(())
    }

    /// Adopts what an earlier agent has left, the newest first: pages are found by reading the
    /// block before each.
    fn adopt(&self, stop: &Stop) {
        let Ok(numbers) = self.segments.numbers() else { return };
        for number in numbers.into_iter().rev() {
            let found = self.segments.pages(number, |name, offset, len| {
                self.longest.fetch_max(len, Relaxed);
                let mut ring = lock(&self.ring);
                let key = key_of(&name);
                if ring.find(key).is_none() && ring.len() < PAGES_MAX as usize {
                    ring.landed(key, Place::new(number, offset));
                }
            });
            if let Err(e) = found {
                tracing::warn!(number, error = %e, "cannot read a segment of the disk level");
            }
            self.count_memory(lock(&self.ring).len());
            if stop.is_stopping() {
                return;
            }
        }
        let pages = lock(&self.ring).len();
        if pages > 0 {
            tracing::info!(pages, "adopted the disk level of an earlier agent");
        }
    }

    fn count_memory(&self, pages: usize) {
        let wanted = self.queue_bytes
            + pages as u64 * PAGE_ENTRY_BYTES
            + PAGES_OF_THREADS * self.longest.load(Relaxed);
        let mut memory = lock(&self.memory);
        let has = memory.bytes();
        if wanted > has {
            memory.merge(self.budget.reserve_existing(Class::Buffers, wanted - has));
        } else {
            memory.shrink(has - wanted);
        }
    }

    /// Runs a thread that reads.
    pub fn serve(&self, stop: &Stop) {
        let mut buffer = Aligned::default();
        while !stop.is_stopping() {
            let Ok(Wanted { name, place, len, answer }) = lock(&self.wanted.1).recv_timeout(LOOK) else {
                continue;
            };
            if answer.try_send(None).is_err() {
                continue;
            }
            let begun = Instant::now();
            let read = self.segments.read((place.segment, place.offset()), (&name, len), &mut buffer);
            if read.is_ok() {
                // Without the wait for a thread: the time of the PFS excludes it as well.
                lock(&self.speed).observe(len, begun.elapsed().as_nanos() as u64);
            }
            // The thread that asked may have given up.
            let _ = answer.try_send(Some(read.map(<[u8]>::to_vec)));
        }
    }

    /// Reads the page if it is there, is what was written, and comes faster than from the PFS,
    /// which takes `pfs_time` (zero: not known).
    pub fn read(&self, entry: &Entry, page: u32, pfs_time: Duration) -> Option<Vec<u8>> {
        let name = page_name(&entry.identity, page);
        let (key, len) = (key_of(&name), entry.geometry().page_len(page));
        let place = lock(&self.ring).find(key)?;
        let mut speed = lock(&self.speed);
        if self.rests() || !speed.is_worth(len, pfs_time.as_nanos() as u64) {
            tracing::debug!(
                ?pfs_time,
                disk_ns = speed.time_ns(len),
                "the disk is slower than the file system, or rests"
            );
            return None;
        }
        drop(speed);
        let (answer, answered) = sync_channel(2);
        // With so many waiting, or so long a wait, the PFS may be faster.
        self.wanted.0.try_send(Wanted { name, place, len, answer }).ok()?;
        answered.recv_timeout(READ_MAX).ok()?;
        match answered.recv_timeout(READ_MAX).map(|read| read.unwrap_or(Err(io::ErrorKind::NotFound.into())))
        {
            Ok(Ok(data)) => {
                add(&self.counters.pages_from_disk_total, 1);
                add(&self.counters.from_disk_bytes, len);
                Some(data)
            }
            Ok(Err(e)) if e.kind() == io::ErrorKind::NotFound => None,
            Ok(Err(e)) => {
                lock(&self.ring).forget(key);
                add(&self.counters.disk_failed_total, 1);
                tracing::warn!(copy = entry.copy(), page, error = %e, "a page on the disk is damaged; the file system is read");
                None
            }
            Err(_) => {
                self.rest("the directory tier.disk does not answer", &io::ErrorKind::TimedOut.into());
                None
            }
        }
    }

    /// Removes everything that is kept of this version.
    pub fn forget(&self, entry: &Entry) {
        let mut ring = lock(&self.ring);
        if !ring.is_empty() {
            for page in 0..entry.geometry().pages() as u32 {
                ring.forget(key_of(&page_name(&entry.identity, page)));
            }
        }
    }

    /// Removes everything, and keeps nothing of what `evict` evicts.
    pub fn clear_after<T>(&self, evict: impl FnOnce() -> T) -> T {
        self.is_closed.store(true, Relaxed);
        let evicted = evict();
        let begun = Instant::now();
        // The disk may hang.
        let mut writing = self.writing.try_lock();
        while writing.is_err() && begun.elapsed() < READ_MAX {
            std::thread::sleep(Duration::from_millis(1));
            writing = self.writing.try_lock();
        }
        let mut queue = lock(&self.queue);
        queue.bytes -= queue.pages.iter().map(|page| page.data.len() as u64).sum::<u64>();
        queue.pages.clear();
        drop(queue);
        let gone = lock(&self.ring).clear();
        for segment in gone {
            if let Err(e) = self.segments.remove(segment) {
                tracing::warn!(segment, error = %e, "cannot remove a segment of the disk level");
            }
        }
        self.is_closed.store(false, Relaxed);
        evicted
    }
}
