//! Loads: fetching whole files into the tier on request.
//!
//! A load belongs to the connection that began it and ends with it. A thread of its own feeds pages
//! to the fetch queue, at the requested rate and a bounded number at a time, behind every reader
//! and all read-ahead. A file counts as done when each of its pages has been seen in the tier it
//! belongs to, all of one version; otherwise the load reports the file with the reason. A file that
//! has just been changed or is open for writing is tried again while the others are loaded.
//!
//! A load takes no more files than the tier has room for, and evicts no page of a file that it has
//! loaded itself.
//!
//! A remote page counts as seen when its owner has seen it. By the end of a file, owners may have
//! evicted some of these pages, or have died. So at the end the load asks all owners at the same
//! time which pages they still have ([`crate::fetch::peers::Peers::check`]), and the current owners
//! fetch the missing pages again. The load repeats this only a few times: in a cluster that is too
//! small for the file, it would never end.

use super::loaded_file::{FileLoad, Load, Wanted, explain};
use crate::cache::entry::Entry;
use crate::cache::page_fetch::FetchError;
use crate::fetch::Fetch;
use crate::fetch::find::NoEntry;
use crate::lock::lock;
use crate::mounts::admit::{NoFile, admit};
use crate::mounts::seal::Unsettled;
use crate::scheduler::Scheduler;
use crate::units::Human;
use crate::user_limits::{PfsFile, Share};
use forebay_pfs::holes::data_pages;
use forebay_pfs::lease::Opened;
use forebay_policy::node::Event;
use forebay_wire::LoadProgress;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Files waiting in one load; each holds a descriptor.
const QUEUE_MAX: usize = 512;

/// How long a load with nothing else to do waits for files that programs write or keep changing.
/// The time starts over when one of them can be loaded.
const UNSETTLED_MAX: Duration = Duration::from_secs(5);

/// Time between two checks whether a file is still open for writing; and the shortest time between
/// two such checks of any files.
const WRITTEN_LOOK: Duration = Duration::from_millis(50);
const PUT_OFF_LOOK: Duration = Duration::from_millis(2);

/// Time between two lines in the log about the progress of a load.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// Limit on the failures in one answer; the others follow in the next.
const FAILURE_BYTES_MAX: usize = 32 << 10;

/// One load.
#[derive(Debug)]
pub struct LoadJob {
    /// Marks the entries that it has loaded.
    id: u64,
    state: Mutex<JobState>,
    changed: Condvar,
    cancelled: AtomicBool,
    scheduler: Arc<Scheduler>,
}

#[derive(Debug, Default)]
struct JobState {
    waiting: VecDeque<(u64, PfsFile)>,
    /// Files that could not be loaded yet.
    put_off: Vec<PutOff>,
    /// Since when only those files are left; `None` as soon as a file can be loaded.
    waits_since: Option<Instant>,
    /// When the last file ended.
    ended: Option<Instant>,
    /// When its first page landed, or the log had its progress.
    logged: Option<Instant>,
    /// Bytes of the files that it has loaded or begun to load.
    taken_bytes: u64,
    /// Files with pages that must be fetched again.
    again: VecDeque<(Arc<FileLoad>, Vec<u32>)>,
    feeding: bool,
    files_under_way: u64,
    progress: LoadProgress,
}

/// A file that could not be loaded yet.
#[derive(Debug)]
struct PutOff {
    index: u64,
    pfs: PfsFile,
    /// When it is tried again.
    due: Instant,
}

/// Why a file is not loaded.
#[derive(Debug)]
enum NotLoaded {
    /// It has no bytes.
    Empty,
    /// It may be loaded later. If it does not change again, its wait takes at most this long.
    Unsettled(Unsettled, Duration),
    /// It cannot be loaded.
    Failed(i32, String),
}

impl NotLoaded {
    fn too_large(bytes: u64, room: u64) -> Self {
        NotLoaded::Failed(
            libc::EFBIG,
            format!(
                "its {} do not fit into the tier, which holds {}; raise tier.capacity, or do not load this file: \
                 the tier caches the parts that programs read",
                Human(bytes),
                Human(room)
            ),
        )
    }
}

impl LoadJob {
    /// A load limited to `rate_bytes_per_s` (0: no limit), and the thread that feeds it. The
    /// thread holds `share`: a load that was cancelled may hang in the PFS for a while.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(fetch: &Arc<Fetch>, rate_bytes_per_s: u64, share: Share) -> std::io::Result<Arc<Self>> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let job = Arc::new(LoadJob {
            state: Mutex::default(),
            changed: Condvar::new(),
            cancelled: AtomicBool::new(false),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            scheduler: fetch.scheduler.clone(),
        });
        fetch.scheduler.hear(Event::LoadBegins { load: job.id, rate_bytes_per_s });
        let (fetch, feeding) = (fetch.clone(), job.clone());
        let body = move || {
            feeding.feed(&fetch);
            drop(share);
        };
        let spawned = std::thread::Builder::new().name("load".into()).spawn(body);
        if let Err(e) = spawned {
            job.cancel();
            return Err(e);
        }
        Ok(job)
    }

    /// Adds files, numbered from `first_index`; `false` if the load has enough to do for now.
    pub fn add(&self, first_index: u64, files: Vec<PfsFile>) -> bool {
        let mut state = lock(&self.state);
        if self.is_cancelled() {
            return true;
        }
        if state.waiting.len() + state.put_off.len() + files.len() > QUEUE_MAX {
            return false;
        }
        let is_idle = state.waiting.is_empty() && state.files_under_way == 0;
        if is_idle && state.ended.is_some_and(|at| at.elapsed() > UNSETTLED_MAX) {
            state.waits_since = None;
        }
        let numbered = files.into_iter().enumerate().map(|(i, fd)| (first_index + i as u64, fd));
        state.waiting.extend(numbered);
        self.changed.notify_all();
        true
    }

    /// Its progress; waits up to `limit` until it has nothing to do. Reports each failure once.
    pub fn poll(&self, limit: Duration) -> LoadProgress {
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.state);
        loop {
            let idle = state.waiting.is_empty() && !state.feeding && state.files_under_way == 0;
            let left = deadline.saturating_duration_since(Instant::now());
            if idle || left.is_zero() {
                let failures = take_some(&mut state.progress.failures);
                let (waits_for, more) = (self.waits_for(&state), !state.progress.failures.is_empty());
                let progress =
                    LoadProgress { failures: Vec::new(), waits_for: String::new(), ..state.progress };
                return LoadProgress { idle: idle && !more, failures, waits_for, ..progress };
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
            state.put_off.clear();
            std::mem::take(&mut state.again)
        };
        self.changed.notify_all();
        self.scheduler.hear(Event::LoadEnds { load: self.id });
        for (load, _) in again {
            load.end(Some(explain(&FetchError::Cancelled)));
        }
    }

    fn feed(self: &Arc<Self>, fetch: &Arc<Fetch>) {
        while let Some(work) = self.next_work() {
            match work {
                Work::File(index, pfs) => self.begin(fetch, index, pfs),
                Work::Again(load, pages) => load.send_all(pages.into_iter()),
            }
            lock(&self.state).feeding = false;
            self.changed.notify_all();
        }
    }

    /// Requests the pages of a file; its [`FileLoad`] reports their end.
    fn begin(self: &Arc<Self>, fetch: &Arc<Fetch>, index: u64, pfs: PfsFile) {
        match self.entry(fetch, pfs.as_fd()) {
            Ok((entry, wanted)) => {
                lock(&self.state).waits_since = None;
                match pfs.opened_for_fetching(&fetch.mounts[entry.mount]) {
                    Ok(pfs) => {
                        let load = FileLoad::new(self.clone(), index, entry, pfs, wanted, fetch.clone());
                        load.send_all(load.order());
                    }
                    Err(e) => {
                        entry.loader.store(0, Ordering::Relaxed);
                        fetch.cache.drop_if_empty(&entry);
                        let errno = e.raw_os_error().unwrap_or(libc::EIO);
                        let why = format!("the agent cannot open it past the client's cache: {e}");
                        self.file_ended(index, wanted.bytes, Some((errno, why)));
                    }
                }
            }
            Err(NotLoaded::Empty) => self.file_ended(index, 0, None),
            Err(NotLoaded::Failed(errno, why)) => self.file_ended(index, 0, Some((errno, why))),
            Err(NotLoaded::Unsettled(why, settling)) => self.put_off(index, pfs, why, settling),
        }
    }

    /// The copy to fill, and what is to be loaded into it.
    fn entry(&self, fetch: &Fetch, fd: BorrowedFd<'_>) -> Result<(Arc<Entry>, Wanted), NotLoaded> {
        let file = admit(&fetch.mounts, fd).map_err(|e| match e {
            NoFile::Refused(refusal) => NotLoaded::Failed(libc::EINVAL, refusal.to_string()),
            NoFile::Pfs(e) => NotLoaded::Failed(e.raw_os_error().unwrap_or(libc::EIO), e.to_string()),
        })?;
        if file.facts.version.size == 0 {
            return Err(NotLoaded::Empty);
        }
        let room = fetch.room_bytes(fetch.mounts[file.mount].label());
        if file.facts.version.size > room && !fetch.mounts[file.mount].reports_holes() {
            return Err(NotLoaded::too_large(file.facts.version.size, room));
        }
        let entry = fetch.sealed_entry(&file, fd, Opened::Elsewhere).map_err(|e| match e {
            NoEntry::Unsettled(why) if why != Unsettled::StampsUnproved => {
                NotLoaded::Unsettled(why, fetch.mounts[file.mount].settling(&file.facts))
            }
            e => {
                let (errno, message) = e.errno_and_message();
                NotLoaded::Failed(errno, message)
            }
        })?;
        match self.take_room(fetch, &entry, fd, room) {
            Ok(wanted) => Ok((entry, wanted)),
            Err(why) => {
                fetch.cache.drop_if_empty(&entry);
                Err(why)
            }
        }
    }

    /// What is to be loaded of a file that nobody writes, if the tier has room for it besides what
    /// this load has loaded. While a write goes on, a look for holes would wait for its end.
    fn take_room(
        &self,
        fetch: &Fetch,
        entry: &Entry,
        fd: BorrowedFd<'_>,
        room: u64,
    ) -> Result<Wanted, NotLoaded> {
        let (size, page_bytes) = (entry.identity.version.size, entry.geometry().page_bytes);
        let pages = if fetch.mounts[entry.mount].reports_holes() {
            data_pages(fd, size, page_bytes).ok().flatten()
        } else {
            None
        };
        if entry.loader.load(Ordering::Relaxed) == self.id {
            // A file under two names takes the room once.
            return Ok(Wanted { pages, bytes: 0 });
        }
        let count =
            |pages: &Vec<Range<u32>>| pages.iter().map(|run| u64::from(run.end - run.start)).sum::<u64>();
        let bytes = pages.as_ref().map_or(size, |pages| size.min(count(pages) * page_bytes));
        if bytes > room {
            return Err(NotLoaded::too_large(bytes, room));
        }
        let mut state = lock(&self.state);
        if state.taken_bytes + bytes > room {
            return Err(NotLoaded::Failed(
                libc::ENOSPC,
                format!(
                    "no room beside the other files of this load: the tier holds {}, and this load has loaded {}; load less, or \
                     raise tier.capacity",
                    Human(room),
                    Human(state.taken_bytes)
                ),
            ));
        }
        state.taken_bytes += bytes;
        entry.loader.store(self.id, Ordering::Relaxed);
        Ok(Wanted { pages, bytes })
    }

    /// Tries a file again later, unless this load has waited long enough.
    fn put_off(&self, index: u64, pfs: PfsFile, why: Unsettled, settling: Duration) {
        let (pause, most) = match why {
            Unsettled::RacilyClean(left) => (left, settling + UNSETTLED_MAX),
            _ => (WRITTEN_LOOK, UNSETTLED_MAX),
        };
        let mut state = lock(&self.state);
        // This one is not put off yet.
        let only_waits = state.files_under_way == state.put_off.len() as u64 + 1;
        let waits_since = *state.waits_since.get_or_insert_with(Instant::now);
        let waits_since = if only_waits { waits_since } else { *state.waits_since.insert(Instant::now()) };
        if pause <= most && waits_since.elapsed() < most {
            // Many are looked at less often.
            let look = PUT_OFF_LOOK * state.put_off.len() as u32;
            let due = Instant::now() + pause.min(settling.max(WRITTEN_LOOK)).max(look);
            return state.put_off.push(PutOff { index, pfs, due });
        }
        drop(state);
        let (errno, mut message) = NoEntry::Unsettled(why).errno_and_message();
        if pause > most {
            message = format!(
                "its last change is dated {} s in the future; the agent caches it once that time has \
                 passed. Synchronize the clocks of this node and of the file system's servers (NTP)",
                pause.saturating_sub(settling).as_secs()
            );
        }
        self.file_ended(index, 0, Some((errno, message)));
    }

    /// What the load waits for, as text; empty if it does not wait.
    fn waits_for(&self, state: &JobState) -> String {
        match state.put_off.len() {
            _ if self.scheduler.is_braked() => {
                "I/O phases of HPC jobs that are behind or have an unknown length (`forebay jobs --hpc` lists them)".into()
            }
            0 => String::new(),
            files => format!("{files} files that were changed too recently or are open for writing"),
        }
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
            let now = Instant::now();
            if let Some(at) = state.put_off.iter().position(|file| file.due <= now) {
                let file = state.put_off.swap_remove(at);
                state.feeding = true;
                return Some(Work::File(file.index, file.pfs));
            }
            let due = state.put_off.iter().map(|file| file.due).min();
            state = match due {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let wait = self.changed.wait_timeout(state, due.saturating_duration_since(now));
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Load for LoadJob {
    fn id(&self) -> u64 {
        self.id
    }

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

    fn file_ended(&self, index: u64, bytes: u64, failure: Option<(i32, String)>) {
        let mut state = lock(&self.state);
        state.files_under_way -= 1;
        state.ended = Some(Instant::now());
        state.progress.files_done += 1;
        if let Some((errno, message)) = failure {
            state.taken_bytes -= bytes;
            state.progress.failures.push((index, errno, message));
        }
        self.changed.notify_all();
    }

    fn page_landed(&self, bytes_fetched: u64, bytes_resident: u64) {
        let mut state = lock(&self.state);
        state.progress.bytes_fetched += bytes_fetched;
        state.progress.bytes_resident += bytes_resident;
        if state.logged.get_or_insert_with(Instant::now).elapsed() >= LOGGED_EVERY {
            state.logged = Some(Instant::now());
            let LoadProgress { files_done, bytes_fetched, bytes_resident, .. } = state.progress;
            let files_left = state.waiting.len() as u64 + state.files_under_way;
            tracing::info!(
                load = self.id,
                files_done,
                files_left,
                bytes_fetched,
                bytes_resident,
                "a load goes on"
            );
        }
        self.changed.notify_all();
    }
}

/// Takes as many failures as fit one answer.
fn take_some(failures: &mut Vec<(u64, i32, String)>) -> Vec<(u64, i32, String)> {
    let mut bytes = 0;
    let fits = |(_, _, message): &&(u64, i32, String)| {
        bytes += message.len() + 16;
        bytes <= FAILURE_BYTES_MAX
    };
    let count = failures.iter().take_while(fits).count();
    failures.drain(..count.max(1).min(failures.len())).collect()
}

/// What the feeder does next.
enum Work {
    File(u64, PfsFile),
    Again(Arc<FileLoad>, Vec<u32>),
}
