//! A client misses pages: wait for them, fetch them ahead, or remember that they were missed.

use super::closer::Sent;
use super::session::{Answer, Connection, refuse, reply};
use crate::cache::entry::Entry;
use crate::cache::page_fetch::{FetchError, FetchState};
use crate::counters::add;
use crate::fetch::find::NoEntry;
use crate::mounts::admit::{Admitted, admit_at, require_reader};
use crate::user_limits::{Kind, PfsFile};
use forebay_pfs::FileVersion;
use forebay_pfs::lease::Opened;
use forebay_policy::fetch_order::Urgency;
use forebay_store::copy::CopyFile;
use forebay_store::{BLOCK_BYTES, State};
use forebay_wire::{PageRun, Refusal, Reply};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most pages one prefetch may ask for; a window of 64 MiB in pages of 64 KiB.
const PREFETCH_PAGES_MAX: u64 = 1024;

/// Most bytes one prefetch may ask for, where pages are smaller.
const PREFETCH_BYTES_MAX: u64 = 64 << 20;

/// Most pages of `page_bytes` that one request may ask for.
fn most_pages(page_bytes: u64) -> u64 {
    PREFETCH_PAGES_MAX.max(PREFETCH_BYTES_MAX / page_bytes)
}

/// Fraction of the capacity, one in four, that pages fetched ahead and not yet read may take in one
/// request.
const AHEAD_SHARE: u64 = 4;

/// Time within which a reader whose job has moved as much as it may hears of that, and asks again.
const HELD_MAX: Duration = Duration::from_secs(1);

/// What a fetch asks for.
pub struct Wanted {
    /// The version the client opened.
    pub version: FileVersion,
    /// The copy it has.
    pub copy: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// When the client stops waiting.
    pub deadline: Instant,
    /// Pages that the client will probably read on, without waiting now.
    pub ahead: Vec<PageRun>,
}

impl Wanted {
    /// Pages of its range in a file of `size` bytes.
    fn pages(&self, size: u64, page_bytes: u64) -> Result<u64, Refusal> {
        if self.len / page_bytes >= most_pages(page_bytes) {
            return Err(Refusal::Invalid("too much at a time".into()));
        }
        if self.offset >= size || self.len == 0 {
            return Err(Refusal::Invalid("nothing to fetch there".into()));
        }
        let last = self.offset.saturating_add(self.len - 1).min(size - 1) / page_bytes;
        Ok(last - self.offset / page_bytes + 1)
    }
}

/// Fetches a range and waits for it.
pub fn fetch(connection: &Connection, file: Admitted, fd: OwnedFd, wanted: &Wanted) -> Answer {
    let node = &connection.node;
    add(&node.counters.fetch_requests_total, 1);
    if file.facts.version != wanted.version {
        add(&node.counters.changed_total, 1);
        return reply(Reply::Changed(file.facts));
    }
    let page_bytes = node.mounts[file.mount].page_bytes_of(fd.as_fd(), file.facts.version.size);
    let under_way = wanted
        .pages(file.facts.version.size, page_bytes)
        .and_then(|pages| node.shares.share(Kind::Fetching, connection.peer.uid, pages * page_bytes));
    let under_way = match under_way {
        Ok(share) => share,
        Err(refusal) => return refuse(refusal),
    };
    let kept = match keep_file(connection, &file, fd) {
        Ok(kept) => kept,
        Err(refusal) => return refuse(refusal),
    };
    let ahead = Ahead::of(connection, page_bytes, &kept, &wanted.ahead);
    let pfs = Arc::new(kept.with(under_way));
    // Twice: an entry can be removed between being found and being boarded.
    for _ in 0..2 {
        let entry = match entry_for(connection, &file, &pfs) {
            Ok(entry) => entry,
            Err(why) => return reply(why.reply()),
        };
        match fetch_and_wait(connection, &entry, &pfs, wanted, ahead.as_ref()) {
            Outcome::Ready => return ready(connection, &entry, wanted.copy),
            Outcome::Gone => {}
            Outcome::Held => {
                node.cache.drop_if_empty(&entry);
                return reply(Reply::Waits);
            }
            Outcome::Late => return reply(Reply::TimedOut),
            Outcome::Failed(e) => return failed(&file, e),
        }
    }
    refuse(Refusal::NoRoom)
}

/// Keeps a client's file for as long as pages of it are under way.
fn keep_file(connection: &Connection, file: &Admitted, fd: OwnedFd) -> Result<PfsFile, Refusal> {
    let node = &connection.node;
    let kept = node.shares.keep_file(connection.peer.uid, fd)?.of_job(connection.account.clone());
    Ok(kept.for_fetching(&node.mounts[file.mount]))
}

/// Pages to fetch for which nobody waits.
struct Ahead<'a> {
    runs: &'a [PageRun],
    /// Most pages of all runs together.
    count: usize,
    pfs: Arc<PfsFile>,
}

impl<'a> Ahead<'a> {
    /// The pages of `runs`; `None` if there are none, or if the user has too many under way.
    fn of(connection: &Connection, page_bytes: u64, kept: &PfsFile, runs: &'a [PageRun]) -> Option<Self> {
        Self::of_at_most(connection, page_bytes, kept, runs, most_pages(page_bytes))
    }

    fn of_at_most(
        connection: &Connection,
        page_bytes: u64,
        kept: &PfsFile,
        runs: &'a [PageRun],
        most: u64,
    ) -> Option<Self> {
        let node = &connection.node;
        let room = node.cache.budget.capacity_bytes() / AHEAD_SHARE / page_bytes;
        let wanted = runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.pages.into()));
        let count = wanted.min(most).min(room);
        if count == 0 {
            return None;
        }
        // A phase of an HPC job is behind: only what a reader waits for is fetched.
        if node.fetch.scheduler.is_braked() {
            add(&node.counters.ahead_refused_total, 1);
            return None;
        }
        match node.shares.share(Kind::Ahead, connection.peer.uid, count * page_bytes) {
            Ok(share) => Some(Ahead { runs, count: count as usize, pfs: Arc::new(kept.with(share)) }),
            Err(_) => {
                add(&node.counters.ahead_refused_total, 1);
                None
            }
        }
    }

    /// Puts them on their way; what is in the tier, or on its way, stays as it is.
    fn request(&self, connection: &Connection, entry: &Arc<Entry>, copy: &CopyFile) {
        let in_file = entry.geometry().pages();
        let run = |run: &PageRun| run.first_page..run.first_page.saturating_add(run.pages);
        let pages = self.runs.iter().flat_map(run).take(self.count);
        let absent = |page: &u32| u64::from(*page) < in_file && copy.word(*page).state == State::Absent;
        let pages: Vec<u32> = pages.filter(absent).collect();
        let afforded = connection.account.afford(pages.len(), entry.geometry().page_bytes);
        for pages in adjacent(pages.into_iter().take(afforded)) {
            if connection.node.fetch.request_run(entry, pages, &self.pfs, Urgency::Ahead, None).is_none() {
                return;
            }
        }
    }
}

/// Pages in runs of adjacent ones, in their order.
fn adjacent(pages: impl Iterator<Item = u32>) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(run) if run.end == page => run.end += 1,
            _ => runs.push(page..page + 1),
        }
    }
    runs
}

fn entry_for(connection: &Connection, file: &Admitted, pfs: &Arc<PfsFile>) -> Result<Arc<Entry>, NoEntry> {
    connection.node.fetch.sealed_entry(file, pfs.as_fd(), Opened::Elsewhere)
}

enum Outcome {
    Ready,
    Gone,
    /// Stopped by the rate limit of the job.
    Held,
    Late,
    Failed(FetchError),
}

/// Boards the fetches of every missing page first, then those ahead, then waits for each of the
/// first: several pages come at the same time, and what is waited for before the rest.
fn fetch_and_wait(
    connection: &Connection,
    entry: &Arc<Entry>,
    pfs: &Arc<PfsFile>,
    wanted: &Wanted,
    ahead: Option<&Ahead<'_>>,
) -> Outcome {
    let geometry = entry.geometry();
    let end = wanted.offset.saturating_add(wanted.len).min(geometry.size);
    let first = (wanted.offset / geometry.page_bytes) as u32;
    let last = ((end - 1) / geometry.page_bytes) as u32;
    let Ok(file) = connection.node.cache.file(entry) else { return Outcome::Gone };
    let needed = |page: u32| (end - u64::from(page) * geometry.page_bytes).min(geometry.page_len(page));
    let missing: Vec<u32> = (first..=last).filter(|page| !file.word(*page).covers(needed(*page))).collect();
    // A request that joins a fetch that is under way moves nothing.
    let moved = missing.iter().filter(|page| !entry.is_being_fetched(**page));
    let bytes = moved.map(|page| geometry.page_len(*page)).sum();
    let left = wanted.deadline.saturating_duration_since(Instant::now());
    if !connection.account.take(bytes, Instant::now() + HELD_MAX.min(left / 2), || false) {
        return Outcome::Held;
    }
    let mut page_fetches = Vec::new();
    for pages in adjacent(missing.into_iter()) {
        match connection.node.fetch.request_run(entry, pages, pfs, Urgency::Demand, None) {
            Some(run) => {
                page_fetches.extend(run.into_iter().map(|page_fetch| (needed(page_fetch.page), page_fetch)))
            }
            None => return Outcome::Gone,
        }
    }
    if let Some(ahead) = ahead {
        ahead.request(connection, entry, &file);
    }
    for (needed, page_fetch) in page_fetches {
        match page_fetch.wait(
            needed.next_multiple_of(BLOCK_BYTES).min(geometry.page_len(page_fetch.page)),
            wanted.deadline,
        ) {
            FetchState::Landed => {}
            FetchState::Under(valid) if valid >= needed => {}
            FetchState::Under(_) => return Outcome::Late,
            FetchState::Failed(e) => return Outcome::Failed(e),
        }
    }
    Outcome::Ready
}

fn ready(connection: &Connection, entry: &Arc<Entry>, has: u64) -> Answer {
    let node = &connection.node;
    let answer = Reply::Ready { copy: entry.copy(), page_bytes: entry.identity.page_bytes };
    if has == entry.copy() {
        return reply(answer);
    }
    match node.cache.file(entry).and_then(|f| f.share(&node.cache.tier, entry.copy())) {
        Ok(fds) => Some((answer, fds.into())),
        Err(_) => refuse(Refusal::NoRoom),
    }
}

fn failed(file: &Admitted, e: FetchError) -> Answer {
    reply(match e {
        FetchError::Changed => Reply::Changed(file.facts),
        FetchError::NoRoom => Reply::Refused(Refusal::NoRoom),
        FetchError::Pfs { errno, message } => Reply::Failed { errno, message },
        FetchError::Cancelled => Reply::Refused(Refusal::TooMany("fetches at a time".into())),
    })
}

/// Puts pages on their way without waiting, if there is room for them.
pub fn prefetch(
    connection: &Connection,
    file: Admitted,
    fd: OwnedFd,
    version: &FileVersion,
    runs: &[PageRun],
) {
    if file.facts.version != *version || file.facts.version.size == 0 {
        return;
    }
    prefetch_at_most(connection, &file, fd, |page_bytes| (most_pages(page_bytes), runs.to_vec()));
}

/// Puts all of a file on its way, if it has rested and if clients may map as much. A client has
/// mapped it whole, and wants to map it from the tier the next time.
pub fn fetch_to_map(connection: &Connection, file: Admitted, fd: OwnedFd, version: &FileVersion) {
    let (node, uid, bytes) = (&connection.node, connection.peer.uid, version.size);
    let fits = bytes <= node.cache.budget.capacity_bytes() / AHEAD_SHARE
        && node.shares.share(Kind::Mapped, uid, bytes).is_ok();
    if !fits || file.facts.version != *version || !node.mounts[file.mount].has_rested(&file.facts) {
        return;
    }
    prefetch_at_most(connection, &file, fd, |page_bytes| {
        let pages = bytes.div_ceil(page_bytes);
        (pages, vec![PageRun { first_page: 0, pages: pages as u32 }])
    });
}

fn prefetch_at_most(
    connection: &Connection,
    file: &Admitted,
    fd: OwnedFd,
    wanted: impl FnOnce(u64) -> (u64, Vec<PageRun>),
) {
    let node = &connection.node;
    let Ok(kept) = keep_file(connection, file, fd) else {
        return add(&node.counters.ahead_refused_total, 1);
    };
    let page_bytes = node.mounts[file.mount].page_bytes_of(kept.as_fd(), file.facts.version.size);
    let (most, runs) = wanted(page_bytes);
    let Some(ahead) = Ahead::of_at_most(connection, page_bytes, &kept, &runs, most) else { return };
    let Ok(entry) = entry_for(connection, file, &ahead.pfs) else { return };
    let Ok(copy) = node.cache.file(&entry) else { return };
    ahead.request(connection, &entry, &copy);
    // Nothing of it may have been put on its way.
    node.cache.drop_if_empty(&entry);
}

/// Counts a small read that has missed a page and gone to the PFS: once that has happened often
/// enough, the page is fetched, behind everything else and within its share of the PFS's time.
pub fn missed(connection: &Connection, sent: Sent, version: &FileVersion, page: u32, bytes: u32) {
    let (node, Sent { fd, place }) = (&connection.node, sent);
    let Ok(mount) = require_reader(&node.mounts, fd.as_fd(), &place) else { return };
    // The version is part of the key's meaning, but a file that changes between two misses only
    // costs one fetch.
    let key = place.ino << 24 ^ u64::from(page);
    let page_bytes = node.mounts[mount].page_bytes_of(fd.as_fd(), version.size);
    if !node.fetch.completions.missed(mount, key, bytes.into(), page_bytes) {
        return;
    }
    let admitted = admit_at(&node.mounts, fd.as_fd(), &place);
    let started = admitted.is_ok_and(|file| start_refill(connection, &file, fd, version, page));
    if !started {
        node.fetch.completions.missed_page_ended(mount);
    }
}

/// Puts one page on its way at the lowest urgency; the fetch thread reports to the ledger when it
/// has ended.
fn start_refill(
    connection: &Connection,
    file: &Admitted,
    fd: OwnedFd,
    version: &FileVersion,
    page: u32,
) -> bool {
    if file.facts.version != *version {
        return false;
    }
    let node = &connection.node;
    let page_bytes = node.mounts[file.mount].page_bytes_of(fd.as_fd(), file.facts.version.size);
    let Ok(share) = node.shares.share(Kind::Ahead, connection.peer.uid, page_bytes) else { return false };
    let Ok(pfs) = keep_file(connection, file, fd).map(|kept| Arc::new(kept.with(share))) else {
        return false;
    };
    let Ok(entry) = entry_for(connection, file, &pfs) else { return false };
    if u64::from(page) >= entry.geometry().pages() || connection.account.afford(1, page_bytes) == 0 {
        node.cache.drop_if_empty(&entry);
        return false;
    }
    let requested = node.fetch.request(&entry, page, &pfs, Urgency::Refill, None);
    requested.is_some_and(|requested| requested.is_queued)
}
