//! Loads: bringing whole files into the tier because somebody asked for it.
//!
//! A load belongs to the connection that began it and ends with it. A thread of its own feeds pages to the fetch queue,
//! at the asked rate and a bounded number at a time, behind every reader and all read-ahead. A file counts as done when
//! each of its pages has been seen in the tier, all of one version; otherwise it is reported with its reason.

use crate::agent::Shared;
use crate::cache::NoCopy;
use crate::entry::{Boarding, Entry, FlightError, Task, Urgency, Watcher, lock};
use crate::fetch;
use crate::mounts::{Admitted, NoFile, admit, display_path};
use crate::peer_client::{self, Place};
use forebay_policy::machine::Nanos;
use forebay_policy::token_bucket::TokenBucket;
use forebay_store::State;
use forebay_wire::LoadProgress;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Files waiting in one load; each holds a descriptor.
const QUEUE_MAX: usize = 512;

/// Pages of one load in the fetch queue: enough for every fetch thread to find the next one waiting.
const PAGES_IN_FLIGHT: u64 = 64;

/// Burst of a limited load: one page's worth at least, so that a page is never split over two refills.
const BURST_BYTES: u64 = 4 << 20;

/// One load.
#[derive(Debug)]
pub struct LoadJob {
    state: Mutex<JobState>,
    changed: Condvar,
    cancelled: AtomicBool,
    rate_bytes_per_s: u64,
}

#[derive(Debug, Default)]
struct JobState {
    waiting: VecDeque<(u64, OwnedFd)>,
    feeding: bool,
    files_under_way: u64,
    pages_in_flight: u64,
    progress: LoadProgress,
}

impl LoadJob {
    /// A load limited to `rate_bytes_per_s` (0: not at all), and the thread that feeds it.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(shared: &Arc<Shared>, rate_bytes_per_s: u64) -> std::io::Result<Arc<Self>> {
        let job = Arc::new(LoadJob {
            state: Mutex::default(),
            changed: Condvar::new(),
            cancelled: AtomicBool::new(false),
            rate_bytes_per_s,
        });
        let (shared, feeding) = (shared.clone(), job.clone());
        std::thread::Builder::new().name("load".into()).spawn(move || feeding.feed(&shared))?;
        Ok(job)
    }

    /// Adds files, numbered from `first_index`; `false` if the load has enough to do for now.
    pub fn add(&self, first_index: u64, files: Vec<OwnedFd>) -> bool {
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
        self.cancelled.store(true, Ordering::Relaxed);
        lock(&self.state).waiting.clear();
        self.changed.notify_all();
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn feed(self: Arc<Self>, shared: &Arc<Shared>) {
        let started = Instant::now();
        let mut bucket = TokenBucket::new(Nanos(0), self.rate_bytes_per_s, BURST_BYTES);
        while let Some((index, fd)) = self.next_file() {
            let file = Feeder { job: &self, shared, index };
            if let Err((errno, message)) = file.feed(fd, &mut bucket, started) {
                self.file_ended(index, Some((errno, message)));
            }
            lock(&self.state).feeding = false;
            self.changed.notify_all();
        }
    }

    fn next_file(&self) -> Option<(u64, OwnedFd)> {
        let mut state = lock(&self.state);
        loop {
            if self.is_cancelled() {
                return None;
            }
            if let Some(next) = state.waiting.pop_front() {
                state.feeding = true;
                state.files_under_way += 1;
                return Some(next);
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

    /// Waits until fewer than [`PAGES_IN_FLIGHT`] are; `false` if the load was cancelled.
    fn take_off(&self) -> bool {
        let mut state = lock(&self.state);
        while state.pages_in_flight >= PAGES_IN_FLIGHT && !self.is_cancelled() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.pages_in_flight += 1;
        !self.is_cancelled()
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

/// One file of a load.
#[derive(Debug)]
pub struct FileLoad {
    job: Arc<LoadJob>,
    index: u64,
    entry: Arc<Entry>,
    /// Pages not landed yet, and one for the feeder.
    left: AtomicU64,
    /// Pages that are in the tiers of the nodes that own them.
    placed: AtomicU64,
    failure: Mutex<Option<(i32, String)>>,
    shared: Arc<Shared>,
}

impl Watcher for FileLoad {
    fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }

    fn page_done(&self, page: u32, outcome: &Result<u64, FlightError>) {
        match outcome {
            Ok(0) => self.job.page_landed(0, self.entry.geometry().page_len(page)),
            Ok(bytes) => self.job.page_landed(*bytes, 0),
            Err(e) => {
                self.job.page_landed(0, 0);
                lock(&self.failure).get_or_insert_with(|| explain(e));
            }
        }
        self.one_less();
    }
}

impl FileLoad {
    /// The file's copy on this node.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// One of its pages is where it belongs, on another node; whether it was fetched from the PFS for that.
    pub fn page_placed(&self, page: u32, fetched: bool) {
        self.placed.fetch_add(1, Ordering::Relaxed);
        let bytes = self.entry.geometry().page_len(page);
        let (fetched_bytes, resident_bytes) = if fetched { (bytes, 0) } else { (0, bytes) };
        self.job.page_landed(fetched_bytes, resident_bytes);
        self.one_less();
    }

    /// Brings one of its pages here.
    pub fn fetch_here(self: &Arc<Self>, page: u32, pfs: &Arc<OwnedFd>) {
        match self.entry.board(page) {
            Boarding::New(flight) => {
                // A reader may have joined it by now, had it fetched and seen it end.
                if flight.watch(self.clone()) {
                    let (entry, pfs) = (self.entry.clone(), pfs.clone());
                    fetch::send(&self.shared, Task { entry, flight, pfs, urgency: Urgency::Load });
                }
            }
            Boarding::Joined(flight) => {
                flight.watch(self.clone());
            }
            Boarding::Gone => self.page_done(page, &Err(FlightError::NoRoom)),
        }
    }

    fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let failure = lock(&self.failure).take().or_else(|| self.missing());
            // A load that was cancelled may have brought nothing of it.
            self.shared.cache.drop_if_empty(&self.entry);
            self.job.file_ended(self.index, failure);
        }
    }

    /// Whether all of it is there; pages loaded first may have been evicted for those loaded last.
    fn missing(&self) -> Option<(i32, String)> {
        let pages = self.entry.geometry().pages() as u32;
        let missing = match self.shared.cache.file(&self.entry) {
            Ok(file) => (0..pages).filter(|p| file.word(*p).state != State::Resident).count(),
            // The whole copy is gone.
            Err(_) => pages as usize,
        };
        let missing = missing.saturating_sub(self.placed.load(Ordering::Relaxed) as usize);
        (missing > 0).then(|| {
            let why = "were evicted again while the load went on: the tier is too small for it";
            (libc::ENOSPC, format!("{missing} of {pages} pages {why}"))
        })
    }
}

fn explain(e: &FlightError) -> (i32, String) {
    match e {
        FlightError::Changed => (libc::ESTALE, "changed while it was loaded".into()),
        FlightError::NoRoom => (libc::ENOSPC, "no room in the tier".into()),
        FlightError::Pfs { errno, message } => (*errno, message.clone()),
        FlightError::Cancelled => (libc::ECANCELED, "cancelled".into()),
    }
}

/// Puts the pages of one file on their way.
struct Feeder<'a> {
    job: &'a Arc<LoadJob>,
    shared: &'a Arc<Shared>,
    index: u64,
}

impl Feeder<'_> {
    /// # Errors
    /// The file cannot be loaded at all; once it is under way, its [`FileLoad`] reports for it.
    fn feed(&self, fd: OwnedFd, bucket: &mut TokenBucket, started: Instant) -> Result<(), (i32, String)> {
        let admitted = self.admit(&fd)?;
        if admitted.facts.version.size == 0 {
            self.job.file_ended(self.index, None);
            return Ok(());
        }
        let pfs = Arc::new(fd);
        let load = self.begin(admitted, &pfs)?;
        for page in 0..load.entry.geometry().pages() as u32 {
            if !self.job.take_off() {
                self.job.page_landed(0, 0);
                lock(&load.failure).get_or_insert_with(|| explain(&FlightError::Cancelled));
                break;
            }
            load.left.fetch_add(1, Ordering::AcqRel);
            self.send(&load, page, &pfs, bucket, started);
        }
        load.one_less();
        Ok(())
    }

    fn admit(&self, fd: &OwnedFd) -> Result<Admitted, (i32, String)> {
        loop {
            let admitted = admit(&self.shared.mounts, fd.as_fd()).map_err(|e| match e {
                NoFile::Refused(refusal) => (libc::EINVAL, refusal.to_string()),
                NoFile::Pfs(e) => (e.raw_os_error().unwrap_or(libc::EIO), e.to_string()),
            })?;
            let mount = &self.shared.mounts[admitted.mount];
            if !mount.is_young(&admitted.facts) || self.job.is_cancelled() {
                return Ok(admitted);
            }
            // A load can wait until the stamps can be believed; a file that never stops changing fails as changed.
            self.job.pause(Duration::from_nanos(mount.config.stamp_granularity_ns.unsigned_abs()));
        }
    }

    fn begin(&self, admitted: Admitted, pfs: &Arc<OwnedFd>) -> Result<Arc<FileLoad>, (i32, String)> {
        let mount = &self.shared.mounts[admitted.mount];
        let path = || display_path(pfs.as_fd());
        let entry = self
            .shared
            .cache
            .find_or_create(
                admitted.mount,
                mount.label(),
                mount.config.page_bytes,
                &admitted.facts,
                path,
                &self.shared.counters,
            )
            .map_err(|e| match e {
                NoCopy::NoRoom => explain(&FlightError::NoRoom),
                NoCopy::TooLarge => (libc::EFBIG, "too many pages; use a larger mount.page_size".into()),
                NoCopy::Tier(e) => (libc::EIO, format!("the tier failed: {e}")),
            })?;
        Ok(Arc::new(FileLoad {
            job: self.job.clone(),
            index: self.index,
            entry,
            left: AtomicU64::new(1),
            placed: AtomicU64::new(0),
            failure: Mutex::new(None),
            shared: self.shared.clone(),
        }))
    }

    fn send(
        &self,
        load: &Arc<FileLoad>,
        page: u32,
        pfs: &Arc<OwnedFd>,
        bucket: &mut TokenBucket,
        started: Instant,
    ) {
        let resident =
            self.shared.cache.file(&load.entry).is_ok_and(|f| f.word(page).state == State::Resident);
        if resident {
            return load.page_done(page, &Ok(0));
        }
        if self.job.rate_bytes_per_s > 0 {
            let wait_ns = bucket
                .reserve(Nanos(started.elapsed().as_nanos() as u64), load.entry.geometry().page_len(page));
            self.job.pause(Duration::from_nanos(wait_ns));
        }
        // A pinned file is wanted on this node; others are best where all nodes look for them.
        let owner = match load.entry.pinned.load(Ordering::Relaxed) {
            true => None,
            false => {
                let (version, page_bytes) = (&load.entry.identity.version, load.entry.identity.page_bytes);
                peer_client::owner_of(self.shared, load.entry.mount, version, page_bytes, page)
            }
        };
        let here = match owner {
            None => true,
            Some(node) => {
                let place = Place { load: load.clone(), page, pfs: pfs.clone(), begun: false };
                self.shared.peers.place(self.shared, &node, place).is_err()
            }
        };
        if here {
            load.fetch_here(page, pfs);
        }
    }
}
