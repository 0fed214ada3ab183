//! Fetching pages from the PFS.
//!
//! Each mount has a few fetch threads and a queue by urgency. A mount that hangs holds its own
//! threads and nobody else's. A page is fetched in chunks; after each the file's version is looked
//! at again, and only then do readers see the chunk. So bytes of two versions never meet in one
//! copy, and a reader of the page's front does not wait for its end.

use super::completions::Completions;
use super::pfs_client::PfsClient;
use super::run;
use crate::cache::Cache;
use crate::cache::entry::{Entry, Task};
use crate::cache::fill::tier_failed;
use crate::cache::page_fetch::{Begun, FetchError, PageFetch};
use crate::counters::{Counters, add};
use crate::lock::lock;
use crate::mounts::MountState;
use crate::scheduler::Scheduler;
use crate::traffic::account::Way;
use forebay_pfs::read::PageCache;
use forebay_policy::eviction::Fill;
use forebay_policy::fetch_order::{self, Urgency};
use forebay_policy::merge_gap::ReadCost;
use forebay_policy::node::{Pages, chunk};
use forebay_store::Class;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The longest read of the PFS. Reads end at its multiples.
pub const READ_BYTES: u64 = chunk::MAX_BYTES as u64;

/// What fetches pages from the PFS.
#[derive(Debug)]
pub struct Pfs {
    mounts: Arc<[MountState]>,
    cache: Arc<Cache>,
    counters: Arc<Counters>,
    completions: Arc<Completions>,
    scheduler: Arc<Scheduler>,
    /// In the order of the mounts.
    waiting: Vec<Waiting>,
}

/// Whether `fetch`, of the same file as `task`, is the page behind those of `task` and may be one
/// read with them. A read ends at a multiple of its longest, where stripes of a PFS end too.
pub fn goes_with(task: &Task, page_fetch: &PageFetch) -> bool {
    let page_bytes = task.entry.geometry().page_bytes;
    let next = u64::from(task.page_fetch.page) + task.behind.len() as u64 + 1;
    u64::from(page_fetch.page) == next && !(next * page_bytes).is_multiple_of(READ_BYTES)
}

/// What waits for one mount.
#[derive(Debug)]
struct Waiting {
    client: PfsClient,
    cost: Mutex<ReadCost>,
}

impl Pfs {
    /// A `Pfs` for which nothing waits yet.
    pub fn new(completions: Arc<Completions>, scheduler: Arc<Scheduler>) -> Self {
        let (mounts, cache, counters) =
            (completions.mounts.clone(), completions.cache.clone(), completions.counters.clone());
        let waiting_of =
            |m: &MountState| Waiting { client: PfsClient::of(m.source.traits()), cost: Mutex::default() };
        let waiting = mounts.iter().map(waiting_of).collect();
        Pfs { mounts, cache, counters, completions, scheduler, waiting }
    }

    /// A fetch thread of mount `mount`: works until the queue is closed.
    pub fn work(&self, mount: usize, thread: usize) {
        let mut buffer = Vec::new();
        while let Some(task) = self.scheduler.pop(mount, thread) {
            if !task.behind.is_empty() {
                self.fetch_run(&task, &mut buffer);
            } else if !self.fetch_alone(&task, thread, &mut buffer) {
                continue;
            }
            self.completions.refilled(&task);
        }
    }

    /// Fetches one page and ends its fetch. A page that was queued again as more urgent is fetched
    /// by the thread that comes first. `false` if the brake has stopped it: it continues from there
    /// when the brake is off, or when a reader comes.
    fn fetch_alone(&self, task: &Task, thread: usize, buffer: &mut Vec<u8>) -> bool {
        if task.page_fetch.take() {
            let outcome = match is_unwanted(task.urgency, &task.page_fetch) {
                true => Err(FetchError::Cancelled),
                false => self.fetch_page(task, thread, buffer),
            };
            return self.finish_unless_stopped(task, outcome);
        }
        true
    }

    /// Ends a fetch, or queues it again if the brake has stopped it (`None`); returns whether it
    /// has ended.
    fn finish_unless_stopped(&self, task: &Task, outcome: Result<Option<u64>, FetchError>) -> bool {
        match outcome {
            Ok(Some(bytes)) => self.completions.finish(task, Ok(bytes)),
            Ok(None) => {
                let mut task = task.clone();
                // A reader that came meanwhile found the fetch taken, and has not queued it.
                if task.page_fetch.is_demanded() && task.urgency != Urgency::Demand {
                    self.completions.refilled(&task);
                    task.urgency = Urgency::Demand;
                }
                self.send(task);
                return false;
            }
            Err(e) => self.completions.finish(task, Err(e)),
        }
        true
    }

    /// Fetches adjacent pages in as few reads as there may be, and ends their fetches.
    fn fetch_run(&self, task: &Task, buffer: &mut Vec<u8>) {
        let page_bytes = task.entry.geometry().page_bytes;
        let page_fetches: Vec<_> = task.page_fetches().cloned().collect();
        let (mut at, mut done) = (0, 0);
        let (started, mut read_bytes) = (Instant::now(), 0);
        while at < page_fetches.len() {
            let rest = &page_fetches[at..];
            let is_demanded = rest[0].is_demanded();
            // What a reader waits for is in a task of its own.
            if self.scheduler.stops(task.urgency) && task.urgency != Urgency::Demand {
                let (first, behind) = (&rest[0], rest[1..].to_vec());
                return self.send(Task { behind, ..task.of(first) });
            }
            let page_ns = self.page_time(task.entry.mount).as_nanos() as u64;
            let page = chunk::Page { urgency: task.urgency, is_demanded, done, page_ns };
            let bound = chunk::bound(page, self.scheduler.is_gentle());
            let pages = rest.len().min((bound as u64 / page_bytes).max(1) as usize);
            read_bytes += self.fetch_together(task, &rest[..pages], buffer);
            at += pages;
            done += pages as u64 * page_bytes;
        }
        if task.urgency != Urgency::Refill {
            let usual_bytes = self.mounts[task.entry.mount].config.page_bytes;
            if let Some(took) = page_time_of(usual_bytes, read_bytes, started.elapsed()) {
                self.waiting[task.entry.mount].client.page_took(took);
            }
        }
    }

    /// Fetches those of these pages that are neither taken nor resident. A page that is partly
    /// filled already, or cannot be begun, is fetched or ended by itself. Returns the bytes that
    /// were read together.
    fn fetch_together(&self, task: &Task, page_fetches: &[Arc<PageFetch>], buffer: &mut Vec<u8>) -> u64 {
        let mut run = run::Run::default();
        let mut read_bytes = 0;
        for page_fetch in page_fetches {
            let alone = task.of(page_fetch);
            if !page_fetch.take() {
                continue;
            }
            if is_unwanted(task.urgency, page_fetch) {
                self.completions.finish(&alone, Err(FetchError::Cancelled));
                continue;
            }
            let begun = match page_fetch.take_begun() {
                Some(begun) => Ok(Some(begun)),
                None => self.begin(&alone),
            };
            match begun {
                Ok(Some(begun)) if run.takes(&begun, page_fetch.page) => run.add(alone, begun),
                Ok(Some(begun)) => {
                    read_bytes += self.fetch_begun_run(std::mem::take(&mut run), buffer);
                    if begun.done() == 0 {
                        run.add(alone, begun);
                    } else {
                        let outcome = self.fill_begun(&alone, begun, None, buffer);
                        self.finish_unless_stopped(&alone, outcome);
                    }
                }
                Ok(None) => self.completions.finish(&alone, Ok(0)),
                Err(e) => self.completions.finish(&alone, Err(e)),
            }
        }
        read_bytes + self.fetch_begun_run(run, buffer)
    }

    /// Reads the pages of a run, shows them and ends their fetches; returns the bytes that were
    /// read. If the read fails, it reads them once more, each by itself: a page that cannot be read
    /// must not take its neighbours along.
    fn fetch_begun_run(&self, run: run::Run, buffer: &mut Vec<u8>) -> u64 {
        let Some((task, offset, len)) = run.range() else { return 0 };
        self.make_buffer(buffer);
        let read = self.read_chunk(task, &mut buffer[..len], offset);
        if matches!(read, Err(FetchError::Pfs { .. })) && run.is_of_several() {
            let alone =
                run.into_pages().map(|(task, begun)| self.fetch_begun_run(run::Run::of(task, begun), buffer));
            return alone.sum();
        }
        let read_bytes = if read.is_ok() { len as u64 } else { 0 };
        let written = read.and_then(|()| run.file().write_at(&buffer[..len], offset).map_err(tier_failed));
        run.trim(&self.cache);
        for (task, mut begun) in run.into_pages() {
            let page_len = task.entry.geometry().page_len(task.page_fetch.page);
            let outcome = match &written {
                Ok(()) => {
                    begun.show(&task, page_len);
                    begun.land_trimmed(&self.cache, &task, fill_of(task.urgency));
                    Ok(page_len)
                }
                Err(e) => {
                    begun.abandon(&self.cache, &task);
                    Err(e.clone())
                }
            };
            self.completions.finish(&task, outcome);
        }
        read_bytes
    }

    /// Puts a page on its way from the PFS.
    pub fn send(&self, task: Task) {
        let (mount, urgency, pages) = (task.entry.mount, task.urgency, self.pages_of(&task));
        if let Err(task) = self.scheduler.push(mount, urgency, pages, task) {
            self.refuse(&task);
        }
    }

    /// Ends the pages of a task that cannot be queued, so that nobody waits for them; queues again
    /// those that a reader demands by now.
    pub fn refuse(&self, task: &Task) {
        if task.urgency == Urgency::Ahead {
            add(&self.counters.ahead_refused_total, 1);
        }
        for page_fetch in task.page_fetches().filter(|page_fetch| page_fetch.take()) {
            let alone = task.of(page_fetch);
            if task.urgency != Urgency::Demand && page_fetch.is_demanded() {
                // A reader waits for it by now, with what was filled so far.
                page_fetch.hand_over(page_fetch.take_begun());
                self.send(Task { urgency: Urgency::Demand, ..alone });
            } else {
                self.completions.finish(&alone, Err(FetchError::Cancelled));
            }
        }
    }

    /// Tasks waiting or running for a mount, and the age in milliseconds of the oldest running one.
    pub fn load(&self, mount: usize) -> (u64, u64) {
        self.scheduler.load(mount)
    }

    /// How long a whole page from the PFS has taken recently; zero before the first.
    pub fn page_time(&self, mount: usize) -> Duration {
        self.waiting[mount].client.page_time()
    }

    /// Adjacent pages of a copy that are on one server of the PFS, if its files lie in chunks of
    /// many pages.
    pub fn chunk_pages(&self, entry: &Entry) -> Option<u32> {
        let chunk_bytes = self.waiting[entry.mount].client.traits().chunk_bytes?;
        Some((chunk_bytes / entry.geometry().page_bytes) as u32)
    }

    /// The gap between two parts of a file over which one read is cheaper than two, in bytes.
    pub fn merge_gap_bytes(&self, mount: usize) -> u64 {
        let measured = || lock(&self.waiting[mount].cost).gap_bytes();
        self.mounts[mount].live.get(|config| config.merge_gap_bytes).unwrap_or_else(measured)
    }

    /// Ends all that waits. Called at the end of the agent.
    pub fn close(&self) {
        for task in self.scheduler.close() {
            for page_fetch in task.page_fetches() {
                self.completions.finish(&task.of(page_fetch), Err(FetchError::Cancelled));
            }
        }
    }

    /// The pages of a task, if they wait for those before them.
    fn pages_of(&self, task: &Task) -> Option<Pages> {
        let is_in_order = fetch_order::is_in_order(task.urgency)
            && self.waiting[task.entry.mount].client.traits().reads_ahead;
        let end = task.page_fetch.page + 1 + task.behind.len() as u32;
        is_in_order.then(|| Pages { file: task.entry.copy(), range: task.page_fetch.page..end })
    }

    /// Begins to fill a page; `None` if it is there already, or came from the disk level just now.
    fn begin(&self, task: &Task) -> Result<Option<Begun>, FetchError> {
        if task.entry.changed.load(Ordering::Relaxed) {
            return Err(FetchError::Changed);
        }
        let Some(mut begun) = Begun::begin(&self.cache, task)? else { return Ok(None) };
        let (entry, page) = (&task.entry, task.page_fetch.page);
        let from_disk =
            self.cache.disk().and_then(|disk| disk.read(entry, page, self.page_time(entry.mount)));
        let Some(data) = from_disk else { return Ok(Some(begun)) };
        match begun.file().write_at(&data, u64::from(page) * entry.geometry().page_bytes) {
            Ok(()) => {
                begun.show(task, data.len() as u64);
                begun.land(&self.cache, task, fill_of(task.urgency));
                Ok(None)
            }
            Err(e) => {
                begun.abandon(&self.cache, task);
                Err(tier_failed(e))
            }
        }
    }

    /// Fetches one page into the tier. Returns the bytes read from the PFS, 0 if the page was
    /// there; `None` if the brake has stopped it, and it was handed over.
    fn fetch_page(
        &self,
        task: &Task,
        thread: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<u64>, FetchError> {
        let begun = match task.page_fetch.take_begun() {
            Some(begun) => Some(begun),
            None => self.begin(task)?,
        };
        let Some(begun) = begun else { return Ok(Some(0)) };
        self.fill_begun(task, begun, Some(thread), buffer)
    }

    /// Fetches the rest of a page that was begun, the last of the task of `thread`. Returns the
    /// bytes read from the PFS; `None` if the brake has stopped it.
    fn fill_begun(
        &self,
        task: &Task,
        mut begun: Begun,
        thread: Option<usize>,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<u64>, FetchError> {
        let (before, started) = (begun.done(), Instant::now());
        match self.fill(task, &mut begun, thread, buffer) {
            Ok(false) => {
                task.page_fetch.hand_over(Some(begun));
                Ok(None)
            }
            Ok(true) => {
                let page_bytes = self.mounts[task.entry.mount].config.page_bytes;
                let is_full = begun.done() - before == page_bytes;
                if is_full && task.urgency != Urgency::Refill {
                    self.waiting[task.entry.mount].client.page_took(started.elapsed());
                }
                let len = begun.done();
                begun.land(&self.cache, task, fill_of(task.urgency));
                Ok(Some(len - before))
            }
            Err(e) => {
                begun.abandon(&self.cache, task);
                Err(e)
            }
        }
    }

    /// Reads what is missing of the page chunk by chunk and shows each to readers; `false` if the
    /// brake has stopped it.
    fn fill(
        &self,
        task: &Task,
        begun: &mut Begun,
        thread: Option<usize>,
        buffer: &mut Vec<u8>,
    ) -> Result<bool, FetchError> {
        let geometry = task.entry.geometry();
        let page_len = geometry.page_len(task.page_fetch.page);
        let start = u64::from(task.page_fetch.page) * geometry.page_bytes;
        self.make_buffer(buffer);
        // All servers of a page that is on several are asked at the same time.
        let is_striped = (1..READ_BYTES).contains(&self.stripe_bytes(task));
        while begun.done() < page_len {
            let done = begun.done();
            let page_time = if is_striped { Duration::ZERO } else { self.page_time(task.entry.mount) };
            let page_ns = page_time.as_nanos() as u64;
            let is_demanded = task.page_fetch.is_demanded();
            if self.scheduler.stops(task.urgency) && !is_demanded {
                return Ok(false);
            }
            let page = chunk::Page { urgency: task.urgency, is_demanded, done, page_ns };
            let bound = chunk::bound(page, self.scheduler.is_gentle());
            // Chunks end at multiples of their size, so that every read of the PFS but the last is
            // aligned.
            let unit = chunk::DEMAND_BYTES.max(bound) as u64;
            let to_boundary = unit - done % unit;
            let chunk = (page_len - done).min(bound as u64).min(to_boundary) as usize;
            self.read_chunk(task, &mut buffer[..chunk], start + done)?;
            if let Some(thread) = thread.filter(|_| done + chunk as u64 == page_len) {
                // The page behind it may be read while this one is copied into the tier.
                self.scheduler.pages_read(task.entry.mount, thread);
            }
            begun.file().write_at(&buffer[..chunk], start + done).map_err(tier_failed)?;
            begun.show(task, chunk as u64);
        }
        Ok(true)
    }

    /// Makes the buffer of a fetch thread.
    fn make_buffer(&self, buffer: &mut Vec<u8>) {
        if buffer.is_empty() {
            *buffer = vec![0; chunk::MAX_BYTES];
            // Kept by the thread until it ends; one chunk more cannot be refused when the page
            // itself had room.
            std::mem::forget(self.cache.budget.reserve_existing(Class::Buffers, READ_BYTES));
        }
    }

    /// Stripe size of a task's file; 0 if it is not known, or all is on one server.
    fn stripe_bytes(&self, task: &Task) -> u64 {
        task.entry.stripe_bytes(&*self.mounts[task.entry.mount].source, task.pfs.as_fd())
    }

    /// Reads one chunk and makes sure that it is of the entry's version.
    ///
    /// Where the PFS's client reads ahead, reads continue with the descriptor that has come to
    /// `offset`; the owner of each task has shown that it may read the file.
    fn read_chunk(&self, task: &Task, buffer: &mut [u8], offset: u64) -> Result<(), FetchError> {
        if !self.waiting[task.entry.mount].client.traits().reads_ahead {
            return self.read_chunk_by(task, &task.pfs, buffer, offset);
        }
        if matches!(task.urgency, Urgency::Plan | Urgency::Load) {
            return self.read_chunk_only(task, buffer, offset);
        }
        let readers = &task.entry.readers;
        let mut reader = readers.at(offset, &task.pfs);
        let mut read = self.read_chunk_by(task, &reader, buffer, offset);
        if !reader.is_same(&task.pfs) && matches!(read, Err(FetchError::Pfs { .. })) {
            // Another descriptor of the same file may do better.
            readers.forget(&reader);
            reader = task.pfs.clone();
            read = self.read_chunk_by(task, &reader, buffer, offset);
        }
        if read.is_ok() {
            readers.moved(&reader, offset + buffer.len() as u64);
        }
        read
    }

    /// Reads one chunk so that the PFS's client reads nothing behind it: that would arrive after
    /// requests have been paused for a job's I/O phase.
    ///
    /// MooseFS's client reads ahead for a descriptor that is read from the beginning of the file,
    /// or with which 10 MiB have been read in order. So the descriptor is a new one, and the
    /// beginning of a file is not what is read first.
    fn read_chunk_only(&self, task: &Task, buffer: &mut [u8], offset: u64) -> Result<(), FetchError> {
        let source = &self.mounts[task.entry.mount].source;
        let opened = source.reopen(task.pfs.as_fd(), PageCache::Keep);
        let pfs: &OwnedFd = opened.as_ref().unwrap_or_else(|_| &task.pfs);
        let half = buffer.len() / 2;
        if offset == 0 && half > 0 {
            let (first, second) = buffer.split_at_mut(half);
            self.read_chunk_by(task, pfs, second, half as u64)?;
            return self.read_chunk_by(task, pfs, first, 0);
        }
        self.read_chunk_by(task, pfs, buffer, offset)
    }

    fn read_chunk_by(
        &self,
        task: &Task,
        pfs: &OwnedFd,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<(), FetchError> {
        let mount = &self.mounts[task.entry.mount];
        let failed = |what: &str, e: io::Error| FetchError::Pfs {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!(
                "cannot {what} {} bytes at {offset} of {}: {e}",
                buffer_len(task, offset),
                String::from_utf8_lossy(&task.entry.identity.path)
            ),
        };
        let want = buffer.len();
        // Small files are not worth a request of their own.
        let stripe_bytes = if want > chunk::FIRST_BYTES { self.stripe_bytes(task) } else { 0 };
        let began = Instant::now();
        let read = mount.source.read_full_at(pfs.as_fd(), buffer, offset, stripe_bytes, mount.page_cache());
        let got = read.map_err(|e| failed("read", e))?;
        // One that is divided among servers says little about one that is not.
        if stripe_bytes == 0 {
            lock(&self.waiting[task.entry.mount].cost).observe(got as u64, began.elapsed().as_nanos() as u64);
        }
        if let Some(account) = task.pfs.account() {
            let layout =
                mount.config.layout.then(|| task.entry.layout(&*mount.source, pfs.as_fd())).flatten();
            account.moved(task.entry.mount, layout, Way::Read, (offset, got as u64), began.elapsed());
        }
        mount.fetched_bytes.fetch_add(got as u64, Ordering::Relaxed);
        add(&self.counters.fetched_bytes, got as u64);
        self.scheduler.note_read();
        let facts = mount.facts(pfs.as_fd()).map_err(|e| failed("look at", e))?;
        let is_same = facts.version == task.entry.identity.version;
        if !is_same {
            task.entry.changed.store(true, Ordering::Relaxed);
        }
        if !is_same || got != want {
            return Err(FetchError::Changed);
        }
        Ok(())
    }
}

/// What a page of `page_bytes` takes, if `read_bytes` took `took`; `None` if they are too few to
/// say.
fn page_time_of(page_bytes: u64, read_bytes: u64, took: Duration) -> Option<Duration> {
    (read_bytes * 2 >= page_bytes).then(|| took.mul_f64(page_bytes as f64 / read_bytes as f64))
}

/// Whether all who wanted a page have gone.
fn is_unwanted(urgency: Urgency, page_fetch: &PageFetch) -> bool {
    matches!(urgency, Urgency::Load | Urgency::Plan)
        && !page_fetch.is_demanded()
        && page_fetch.give_up_unwanted()
}

/// How the eviction policy treats a page that was fetched with this urgency.
fn fill_of(urgency: Urgency) -> Fill {
    let unused = matches!(urgency, Urgency::Ahead | Urgency::Plan);
    if unused { Fill::Ahead } else { Fill::Demand }
}

fn buffer_len(task: &Task, offset: u64) -> u64 {
    (task.entry.identity.version.size - offset).min(READ_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_shows_what_a_page_takes() {
        let time_of = |read_bytes| page_time_of(2 << 20, read_bytes, Duration::from_millis(300));
        assert_eq!([0, (1 << 20) - 1].map(time_of), [None; 2]);
        assert_eq!([1 << 20, 2 << 20].map(time_of), [600, 300].map(|ms| Some(Duration::from_millis(ms))));
    }
}
