//! Loads: fetching whole files into the tier because somebody asked for it.
//!
//! A load belongs to the connection that began it and ends with it. A thread of its own feeds pages
//! to the fetch queue, at the asked rate and a bounded number at a time, behind every reader and
//! all read-ahead. A file counts as done when each of its pages has been seen in the tier it
//! belongs to, all of one version; otherwise it is reported with its reason.
//!
//! Pages that belong to other nodes are seen by those. By the end of a file they may have evicted
//! some of them, or have died; so at the end each is asked what it still has
//! ([`crate::fetch::peers::Peers::check`]), all of them at the same time, and what is gone is
//! fetched again, to whoever owns it by then. That is done a few times: a cluster that is too small
//! for the file would go on for ever.

use super::feeder::{Errand, Next, Source, feed, open_settled};
use crate::brake::{Brake, LOOK};
use crate::cache::entry::Entry;
use crate::cache::flight::{FlightError, Watcher};
use crate::counters::add;
use crate::fetch::Fetch;
use crate::fetch::peers::{Check, Place, Placing};
use crate::fetch::pfs::READ_BYTES;
use crate::lock::lock;
use crate::mounts::admit::{NoFile, admit};
use crate::mounts::seal::Unsettled;
use crate::user_limits::{PfsFile, Share};
use forebay_pfs::lease::Opened;
use forebay_policy::fetch_order::{self, Urgency};
use forebay_policy::machine::Nanos;
use forebay_policy::token_bucket::TokenBucket;
use forebay_store::State;
use forebay_wire::{LoadProgress, NodeInfo};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Files waiting in one load; each holds a descriptor.
const QUEUE_MAX: usize = 512;

/// Pages of one load in the fetch queue, or as many reads of the PFS that small pages make: enough
/// for every fetch thread to find the next one waiting, unless they are of one stream.
const PAGES_IN_FLIGHT: u64 = 64;

/// Burst of a limited load: one page's worth at least, so that a page is never split over two
/// refills.
const BURST_BYTES: u64 = 4 << 20;

/// How often what has gone from other nodes is fetched again before the file is given up.
const AGAIN_MAX: u32 = 3;

/// A load waits so long for programs to close the files they write, and for files that keep
/// changing.
const UNSETTLED_MAX: Duration = Duration::from_secs(5);

/// How often it is looked whether a file is still open for writing.
const WRITTEN_LOOK: Duration = Duration::from_millis(50);

/// One load.
#[derive(Debug)]
pub struct LoadJob {
    state: Mutex<JobState>,
    changed: Condvar,
    cancelled: AtomicBool,
    /// How fast it may be; `None`: as fast as it can.
    pace: Option<Mutex<TokenBucket>>,
    started: Instant,
    waited_for_writers_ms: AtomicU64,
    brake: Arc<Brake>,
}

#[derive(Debug, Default)]
struct JobState {
    waiting: VecDeque<(u64, PfsFile)>,
    /// Files of which some pages are to be fetched once more.
    again: VecDeque<(Arc<FileLoad>, Vec<u32>)>,
    feeding: bool,
    files_under_way: u64,
    pages_in_flight: u64,
    progress: LoadProgress,
}

impl LoadJob {
    /// A load limited to `rate_bytes_per_s` (0: not at all), and the thread that feeds it. The
    /// thread holds `share`: a load that was cancelled may hang in the PFS for a while.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(fetch: &Arc<Fetch>, rate_bytes_per_s: u64, share: Share) -> std::io::Result<Arc<Self>> {
        let job = Arc::new(LoadJob {
            state: Mutex::default(),
            changed: Condvar::new(),
            cancelled: AtomicBool::new(false),
            pace: (rate_bytes_per_s > 0)
                .then(|| Mutex::new(TokenBucket::new(Nanos(0), rate_bytes_per_s, BURST_BYTES))),
            started: Instant::now(),
            waited_for_writers_ms: AtomicU64::new(0),
            brake: fetch.brake.clone(),
        });
        let (fetch, feeding) = (fetch.clone(), job.clone());
        std::thread::Builder::new().name("load".into()).spawn(move || {
            feeding.feed(&fetch);
            drop(share);
        })?;
        Ok(job)
    }

    /// Adds files, numbered from `first_index`; `false` if the load has enough to do for now.
    pub fn add(&self, first_index: u64, files: Vec<PfsFile>) -> bool {
        let mut state = lock(&self.state);
        if self.is_cancelled() {
            return true;
        }
        if state.waiting.len() + files.len() > QUEUE_MAX {
            return false;
        }
        let numbered = files.into_iter().enumerate().map(|(i, fd)| (first_index + i as u64, fd));
        state.waiting.extend(numbered);
        self.changed.notify_all();
        true
    }

    /// How far it is; waits up to `limit` for it to have nothing to do. Failures are told once.
    pub fn poll(&self, limit: Duration) -> LoadProgress {
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.state);
        loop {
            let idle = state.waiting.is_empty() && !state.feeding && state.files_under_way == 0;
            let left = deadline.saturating_duration_since(Instant::now());
            if idle || left.is_zero() {
                let failures = std::mem::take(&mut state.progress.failures);
                return LoadProgress { idle, failures, ..state.progress.clone() };
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Forgets what is not fetched yet.
    pub fn cancel(&self) {
        let again = {
            let mut state = lock(&self.state);
            self.cancelled.store(true, Ordering::Relaxed);
            state.waiting.clear();
            std::mem::take(&mut state.again)
        };
        self.changed.notify_all();
        for (load, _) in again {
            load.end(Some(explain(&FlightError::Cancelled)));
        }
    }

    /// Has the feeder fetch these pages again; `false` if the load was cancelled.
    fn fetch_again(&self, load: Arc<FileLoad>, pages: Vec<u32>) -> bool {
        let mut state = lock(&self.state);
        if self.is_cancelled() {
            return false;
        }
        state.again.push_back((load, pages));
        self.changed.notify_all();
        true
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn feed(self: &Arc<Self>, fetch: &Arc<Fetch>) {
        while let Some(work) = self.next_work() {
            match work {
                Work::File(index, fd) => match self.begin(fetch, index, fd) {
                    Ok(load) => load.send_all(load.order()),
                    Err(failure) => self.file_ended(index, failure),
                },
                Work::Again(load, pages) => load.send_all(pages.into_iter()),
            }
            lock(&self.state).feeding = false;
            self.changed.notify_all();
        }
    }

    /// # Errors
    /// Why the file cannot be loaded at all, or nothing if it is empty. Once it is under way, its
    /// [`FileLoad`] reports for it.
    fn begin(
        self: &Arc<Self>,
        fetch: &Arc<Fetch>,
        index: u64,
        pfs: PfsFile,
    ) -> Result<Arc<FileLoad>, Option<(i32, String)>> {
        let entry = self.entry(fetch, pfs.as_fd())?;
        let pfs = pfs.opened_for_fetching(&fetch.mounts[entry.mount]).map_err(|e| {
            fetch.cache.drop_if_empty(&entry);
            Some((
                e.raw_os_error().unwrap_or(libc::EIO),
                format!("the agent cannot open it past the client's cache: {e}"),
            ))
        })?;
        Ok(Arc::new_cyclic(|me| FileLoad {
            job: self.clone(),
            index,
            entry,
            pfs: Arc::new(pfs),
            left: AtomicU64::new(1),
            elsewhere: Mutex::default(),
            failure: Mutex::new(None),
            fetch: fetch.clone(),
            me: me.clone(),
        }))
    }

    /// The copy to fill. A load waits until the stamps can be believed and writers have closed the
    /// file, within bounds.
    fn entry(&self, fetch: &Fetch, fd: BorrowedFd<'_>) -> Result<Arc<Entry>, Option<(i32, String)>> {
        let started = Instant::now();
        let open = || {
            if self.is_cancelled() {
                return Err(Some(explain(&FlightError::Cancelled)));
            }
            let admitted = admit(&fetch.mounts, fd).map_err(|e| match e {
                NoFile::Refused(refusal) => Some((libc::EINVAL, refusal.to_string())),
                NoFile::Pfs(e) => Some((e.raw_os_error().unwrap_or(libc::EIO), e.to_string())),
            })?;
            if admitted.facts.version.size == 0 { Err(None) } else { Ok((fd, admitted)) }
        };
        let wait = |why, settling| self.wait_settled(why, started, settling);
        let opened = open_settled(fetch, Opened::Elsewhere, open, wait, |e| Some(e.errno_and_message()));
        opened.map(|(_, entry)| entry)
    }

    /// Waits for a file that the load began to wait for at `started`; `false` if it may no more.
    fn wait_settled(&self, why: Unsettled, started: Instant, settling: Duration) -> bool {
        let pause = match why {
            Unsettled::RacilyClean(_) if started.elapsed() > settling + UNSETTLED_MAX => return false,
            Unsettled::RacilyClean(left) => left.min(settling),
            Unsettled::BeingWritten => {
                // Of all files together: there may be thousands.
                let look_ms = WRITTEN_LOOK.as_millis() as u64;
                let waited_ms = self.waited_for_writers_ms.fetch_add(look_ms, Ordering::Relaxed);
                if Duration::from_millis(waited_ms) >= UNSETTLED_MAX {
                    return false;
                }
                WRITTEN_LOOK
            }
            Unsettled::StampsUnproved => return false,
        };
        self.pause(pause);
        true
    }

    fn next_work(&self) -> Option<Work> {
        let mut state = lock(&self.state);
        loop {
            if self.is_cancelled() {
                return None;
            }
            if let Some((load, pages)) = state.again.pop_front() {
                state.feeding = true;
                return Some(Work::Again(load, pages));
            }
            if let Some((index, fd)) = state.waiting.pop_front() {
                state.feeding = true;
                state.files_under_way += 1;
                return Some(Work::File(index, fd));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn file_ended(&self, index: u64, failure: Option<(i32, String)>) {
        let mut state = lock(&self.state);
        state.files_under_way -= 1;
        state.progress.files_done += 1;
        if let Some((errno, message)) = failure {
            state.progress.failures.push((index, errno, message));
        }
        self.changed.notify_all();
    }

    /// Waits until fewer than `most` pages are under way, and until `bytes` may be fetched; `false`
    /// if the load was cancelled. So many `pages` are under way then as well.
    fn take_off(&self, pages: u64, most: u64, bytes: u64) -> bool {
        while self.brake.is_on() && !self.is_cancelled() {
            self.pause(LOOK);
        }
        let mut state = lock(&self.state);
        while state.pages_in_flight >= most && !self.is_cancelled() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if self.is_cancelled() {
            return false;
        }
        state.pages_in_flight += pages;
        drop(state);
        if let Some(pace) = self.pace.as_ref().filter(|_| bytes > 0) {
            let now = Nanos(self.started.elapsed().as_nanos() as u64);
            let wait_ns = lock(pace).reserve(now, bytes);
            self.pause(Duration::from_nanos(wait_ns));
        }
        true
    }

    fn page_landed(&self, bytes_fetched: u64, bytes_resident: u64) {
        let mut state = lock(&self.state);
        state.pages_in_flight -= 1;
        state.progress.bytes_fetched += bytes_fetched;
        state.progress.bytes_resident += bytes_resident;
        self.changed.notify_all();
    }

    /// Sleeps, but not through a cancellation.
    fn pause(&self, length: Duration) {
        let deadline = Instant::now() + length;
        let mut state = lock(&self.state);
        while !self.is_cancelled() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What the feeder does next.
enum Work {
    File(u64, PfsFile),
    Again(Arc<FileLoad>, Vec<u32>),
}

/// One file of a load.
#[derive(Debug)]
pub struct FileLoad {
    job: Arc<LoadJob>,
    index: u64,
    entry: Arc<Entry>,
    pfs: Arc<PfsFile>,
    /// Pages not landed yet, or nodes that have not said what they have, and one for whoever sends
    /// or asks.
    left: AtomicU64,
    elsewhere: Mutex<Elsewhere>,
    failure: Mutex<Option<(i32, String)>>,
    fetch: Arc<Fetch>,
    me: Weak<FileLoad>,
}

/// The pages of a file that are on other nodes.
#[derive(Debug, Default)]
struct Elsewhere {
    /// By the node that said it has them.
    placed: BTreeMap<String, BTreeSet<u32>>,
    /// The nodes are being asked whether they still have them.
    checking: bool,
    /// Those that are gone, as far as that is known.
    gone: BTreeSet<u32>,
    /// How often such pages have been fetched again.
    again: u32,
}

impl Watcher for FileLoad {
    fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }

    fn page_done(&self, page: u32, outcome: &Result<u64, FlightError>) {
        match outcome {
            Ok(0) => self.page_landed(0, self.entry.geometry().page_len(page)),
            Ok(bytes) => self.page_landed(*bytes, 0),
            Err(e) => {
                self.job.page_landed(0, 0);
                lock(&self.failure).get_or_insert_with(|| explain(e));
            }
        }
        self.one_less();
    }
}

impl Placing for FileLoad {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn pfs(&self) -> &Arc<PfsFile> {
        &self.pfs
    }

    fn page_placed(&self, page: u32, node: &str, fetched: bool) {
        lock(&self.elsewhere).placed.entry(node.to_owned()).or_default().insert(page);
        let bytes = self.entry.geometry().page_len(page);
        let (fetched_bytes, resident_bytes) = if fetched { (bytes, 0) } else { (0, bytes) };
        self.page_landed(fetched_bytes, resident_bytes);
        self.one_less();
    }

    fn fetch_here(&self, page: u32) {
        let watcher = self.me.upgrade().map(|load| load as Arc<dyn Watcher>);
        if self.fetch.request(&self.entry, page, &self.pfs, Urgency::Load, watcher).is_none() {
            self.page_done(page, &Err(FlightError::NoRoom));
        }
    }

    fn checked(&self, gone: &[u32]) {
        lock(&self.elsewhere).gone.extend(gone);
        self.one_less();
    }
}

impl Errand for Arc<FileLoad> {
    const URGENCY: Urgency = Urgency::Load;
    const WAITS_LONG: bool = true;

    fn take_off(&self, next: &Next) -> bool {
        let pages = u64::from(next.pages.end - next.pages.start);
        let small_pages = (READ_BYTES / next.entry.geometry().page_bytes).max(1);
        let goes = self.job.take_off(pages, PAGES_IN_FLIGHT * small_pages, next.fetch_bytes());
        if goes {
            self.left.fetch_add(pages, Ordering::AcqRel);
        }
        goes
    }

    fn watcher(&self, _next: &Next) -> Arc<dyn Watcher> {
        self.clone()
    }

    /// A pinned file is wanted on this node; others are best where all nodes look for them.
    fn place(&self, owner: &NodeInfo, page: u32) -> bool {
        let place = || Place { of: self.clone(), page, begun: false };
        !self.entry.pinned.load(Ordering::Relaxed) && self.fetch.peers.place(owner, place()).is_ok()
    }
}

impl FileLoad {
    /// All pages of the file, in the order in which they are fetched. Small ones are read together
    /// with those beside them.
    fn order(&self) -> impl Iterator<Item = u32> + use<> {
        let pages = self.entry.geometry().pages() as u32;
        let in_chunks = || self.fetch.pfs.chunk_pages(&self.entry);
        let chunk_pages = if self.fetch.has_small_pages(&self.entry) { None } else { in_chunks() };
        fetch_order::load_order(pages, chunk_pages.unwrap_or(pages))
    }

    /// Puts these pages on their way; the file is counted on for as long as that takes.
    fn send_all(self: &Arc<Self>, pages: impl Iterator<Item = u32>) {
        let mut source = Source { entry: self.entry.clone(), pfs: self.pfs.clone() };
        let geometry = self.entry.geometry();
        let pages = pages.map(|page| (page, geometry.page_len(page)));
        if !feed(&self.fetch, self, &mut source, pages) {
            lock(&self.failure).get_or_insert_with(|| explain(&FlightError::Cancelled));
        }
        self.one_less();
    }

    /// Progress is that of the file: a page that had to be fetched again counts once.
    fn page_landed(&self, fetched_bytes: u64, resident_bytes: u64) {
        let first = lock(&self.elsewhere).again == 0;
        self.job.page_landed(if first { fetched_bytes } else { 0 }, if first { resident_bytes } else { 0 });
    }

    fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        if let Some(failure) = lock(&self.failure).take() {
            return self.end(Some(failure));
        }
        let checked = std::mem::take(&mut lock(&self.elsewhere).checking);
        if checked {
            self.settle();
        } else {
            self.check();
        }
    }

    /// All pages have come to where they belong: looks whether they still are.
    fn check(&self) {
        let asked: Vec<(String, Vec<u32>)> = {
            let mut elsewhere = lock(&self.elsewhere);
            elsewhere.gone.clear();
            elsewhere.checking = !elsewhere.placed.is_empty();
            elsewhere
                .placed
                .iter()
                .map(|(node, pages)| (node.clone(), pages.iter().copied().collect()))
                .collect()
        };
        let Some(load) = self.me.upgrade().filter(|_| !asked.is_empty()) else {
            return self.end(self.missing());
        };
        self.left.store(asked.len() as u64 + 1, Ordering::Release);
        for (node, pages) in asked {
            self.fetch.peers.check(&node, Check { of: load.clone(), pages });
        }
        self.one_less();
    }

    /// All nodes have said what they have: what is gone is fetched again, or the file has ended.
    fn settle(&self) {
        let mut elsewhere = lock(&self.elsewhere);
        let gone = elsewhere.gone.clone();
        if gone.is_empty() || elsewhere.again >= AGAIN_MAX {
            drop(elsewhere);
            return self.end(self.missing());
        }
        elsewhere.again += 1;
        elsewhere.placed.retain(|_, pages| {
            pages.retain(|page| !gone.contains(page));
            !pages.is_empty()
        });
        drop(elsewhere);
        tracing::info!(
            path = %String::from_utf8_lossy(&self.entry.identity.path),
            pages = gone.len(),
            "pages are missing on the nodes to which they were loaded; they are fetched again"
        );
        add(&self.fetch.counters.pages_replaced_total, gone.len() as u64);
        let again = self.me.upgrade().is_some_and(|load| {
            load.left.store(1, Ordering::Release);
            self.job.fetch_again(load, gone.into_iter().collect())
        });
        if !again {
            self.end(Some(explain(&FlightError::Cancelled)));
        }
    }

    fn end(&self, failure: Option<(i32, String)>) {
        // A load that was cancelled may have fetched nothing of it.
        self.fetch.cache.drop_if_empty(&self.entry);
        self.job.file_ended(self.index, failure);
    }

    /// Whether all of it is there; pages loaded first may have been evicted for those loaded last.
    fn missing(&self) -> Option<(i32, String)> {
        let pages = self.entry.geometry().pages() as u32;
        let elsewhere = lock(&self.elsewhere);
        let is_placed = |page: u32| elsewhere.placed.values().any(|pages| pages.contains(&page));
        let file = self.fetch.cache.file(&self.entry).ok();
        let is_here = |page: u32| file.as_ref().is_some_and(|file| file.word(page).state == State::Resident);
        let here = (0..pages).filter(|page| !is_placed(*page) && !is_here(*page)).count();
        why_missing(pages, here, elsewhere.gone.iter().filter(|page| !is_here(**page)).count())
    }
}

/// In words: of so many pages, some were evicted here, and some are gone from other nodes.
fn why_missing(pages: u32, here: usize, elsewhere: usize) -> Option<(i32, String)> {
    let mut why = Vec::new();
    if here > 0 {
        why.push(format!(
            "{here} of {pages} pages were evicted again while the load went on: the tier is too small for it"
        ));
    }
    if elsewhere > 0 {
        why.push(format!(
            "{elsewhere} of {pages} pages are gone from the nodes that fetched them, although they were fetched again \
             {AGAIN_MAX} times: those nodes evict them, or leave and join again"
        ));
    }
    (!why.is_empty()).then(|| (libc::ENOSPC, why.join("; ")))
}

fn explain(e: &FlightError) -> (i32, String) {
    match e {
        FlightError::Changed => (libc::ESTALE, "changed while it was loaded".into()),
        FlightError::NoRoom => (libc::ENOSPC, "no room in the tier".into()),
        FlightError::Pfs { errno, message } => (*errno, message.clone()),
        FlightError::Cancelled => (libc::ECANCELED, "cancelled".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_by_where_it_should_be() {
        assert_eq!(why_missing(9, 0, 0), None);
        let why = |here, elsewhere| why_missing(9, here, elsewhere).unwrap().1;
        assert!(why(2, 0).starts_with("2 of 9 pages were evicted again"), "{}", why(2, 0));
        assert!(why(0, 3).starts_with("3 of 9 pages are gone from the nodes"), "{}", why(0, 3));
        assert!(why(2, 3).contains("too small for it; 3 of 9"), "{}", why(2, 3));
    }
}
