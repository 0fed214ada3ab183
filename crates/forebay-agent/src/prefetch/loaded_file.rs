//! One file of a load, from its first page on its way until all of its pages have been seen where
//! they belong.

use super::feeder::{FetchFor, Next, Source, feed};
use crate::cache::entry::Entry;
use crate::cache::page_fetch::{FetchError, Watcher};
use crate::counters::add;
use crate::fetch::Fetch;
use crate::fetch::peers::{Check, Place, Placing};
use crate::lock::lock;
use crate::scheduler::Permit;
use crate::user_limits::PfsFile;
use forebay_policy::fetch_order::{self, Urgency};
use forebay_policy::node::{By, ReadId};
use forebay_store::State;
use forebay_wire::NodeInfo;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How often what has gone from other nodes is fetched again before the file is given up.
const AGAIN_MAX: u32 = 3;

/// How often a load whose job has moved as much as it may looks whether it was cancelled.
const HELD_LOOK: Duration = Duration::from_secs(1);

/// What is loaded of a file.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The pages that hold data; `None`: all.
    pub(super) pages: Option<Vec<Range<u32>>>,
    pub(super) bytes: u64,
}

/// The load that a file belongs to.
pub(super) trait Load: std::fmt::Debug + Send + Sync {
    /// Marks the entries that it has loaded.
    fn id(&self) -> u64;

    /// Has the feeder fetch these pages again; `false` if the load was cancelled.
    fn fetch_again(&self, load: Arc<FileLoad>, pages: Vec<u32>) -> bool;

    /// Whether it was cancelled.
    fn is_cancelled(&self) -> bool;

    /// Notes the end of a file that had taken `bytes` of room.
    fn file_ended(&self, index: u64, bytes: u64, failure: Option<(i32, String)>);

    /// Records that a page has come: the bytes fetched from the PFS, or those that were there.
    fn page_landed(&self, bytes_fetched: u64, bytes_resident: u64);
}

/// One file of a load.
#[derive(Debug)]
pub struct FileLoad {
    job: Arc<dyn Load>,
    index: u64,
    entry: Arc<Entry>,
    pfs: Arc<PfsFile>,
    wanted: Wanted,
    /// Pages not landed yet, or nodes that have not said what they have, and one for the thread
    /// that sends or asks.
    left: AtomicU64,
    elsewhere: Mutex<Elsewhere>,
    failure: Mutex<Option<(i32, String)>>,
    /// Permits of pages that are on their way; those of one read share one.
    permits: Mutex<HashMap<u32, Arc<Permit>>>,
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
    /// The pages that are gone, as far as that is known.
    gone: BTreeSet<u32>,
    /// How often such pages have been fetched again.
    again: u32,
}

impl Watcher for FileLoad {
    fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }

    fn page_done(&self, page: u32, outcome: &Result<u64, FetchError>) {
        lock(&self.permits).remove(&page);
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
        lock(&self.permits).remove(&page);
        lock(&self.elsewhere).placed.entry(node.to_owned()).or_default().insert(page);
        let bytes = self.entry.geometry().page_len(page);
        let (fetched_bytes, resident_bytes) = if fetched { (bytes, 0) } else { (0, bytes) };
        self.page_landed(fetched_bytes, resident_bytes);
        self.one_less();
    }

    fn fetch_here(&self, page: u32) {
        let watcher = self.me.upgrade().map(|load| load as Arc<dyn Watcher>);
        if self.fetch.request(&self.entry, page, &self.pfs, Urgency::Load, watcher).is_none() {
            self.page_done(page, &Err(FetchError::NoRoom));
        }
    }

    fn checked(&self, gone: &[u32]) {
        lock(&self.elsewhere).gone.extend(gone);
        self.one_less();
    }
}

impl FetchFor for Arc<FileLoad> {
    const URGENCY: Urgency = Urgency::Load;
    const WAITS_LONG: bool = true;

    fn wait_to_read(&self, next: &Next) -> Option<ReadId> {
        if lock(&self.failure).is_some() {
            return None;
        }
        let is_over = || self.job.is_cancelled();
        if let Some(account) = self.pfs.account() {
            while !account.take(next.fetch_bytes(), Instant::now() + HELD_LOOK, is_over) {
                if is_over() {
                    return None;
                }
            }
        }
        let (scheduler, by) = (&self.fetch.scheduler, By::Load(self.job.id()));
        let read = scheduler.wait_to_read(by, next.mount(), next.fetch_bytes(), false, None)?;
        let permit = Arc::new(Permit::new(scheduler.clone(), read));
        lock(&self.permits).extend(next.pages.clone().map(|page| (page, permit.clone())));
        self.left.fetch_add(u64::from(next.pages.end - next.pages.start), Ordering::AcqRel);
        Some(read)
    }

    fn watcher(&self, _next: &Next, _read: ReadId) -> Arc<dyn Watcher> {
        self.clone()
    }

    /// A pinned file is wanted on this node; others are best placed where all nodes look for them.
    fn place(&self, owner: &NodeInfo, page: u32) -> bool {
        let place = || Place { of: self.clone(), page, begun: false };
        !self.entry.pinned.load(Ordering::Relaxed) && self.fetch.peers.place(owner, place()).is_ok()
    }
}

impl FileLoad {
    /// A file of which nothing is on its way yet.
    pub(super) fn new(
        job: Arc<dyn Load>,
        index: u64,
        entry: Arc<Entry>,
        pfs: PfsFile,
        wanted: Wanted,
        fetch: Arc<Fetch>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| FileLoad {
            job,
            index,
            entry,
            pfs: Arc::new(pfs),
            wanted,
            left: AtomicU64::new(1),
            elsewhere: Mutex::default(),
            failure: Mutex::new(None),
            permits: Mutex::default(),
            fetch,
            me: me.clone(),
        })
    }

    /// The wanted pages of the file, in the order in which they are fetched. Small ones are read
    /// together with those beside them.
    pub(super) fn order(&self) -> impl Iterator<Item = u32> + use<'_> {
        let pages = self.entry.geometry().pages() as u32;
        let in_chunks = || self.fetch.pfs.chunk_pages(&self.entry);
        let chunk_pages = if self.fetch.has_small_pages(&self.entry) { None } else { in_chunks() };
        fetch_order::load_order(pages, chunk_pages.unwrap_or(pages)).filter(|page| self.wants(*page))
    }

    fn wants(&self, page: u32) -> bool {
        let runs = self.wanted.pages.as_ref();
        runs.is_none_or(|runs| {
            let behind = runs.partition_point(|run| run.start <= page);
            behind > 0 && page < runs[behind - 1].end
        })
    }

    /// Puts these pages on their way; the file is counted on for as long as that takes.
    pub(super) fn send_all(self: &Arc<Self>, pages: impl Iterator<Item = u32>) {
        let mut source = Source { entry: self.entry.clone(), pfs: self.pfs.clone() };
        let geometry = self.entry.geometry();
        let pages = pages.map(|page| (page, geometry.page_len(page)));
        if !feed(&self.fetch, self, &mut source, pages) {
            lock(&self.failure).get_or_insert_with(|| explain(&FetchError::Cancelled));
        }
        self.one_less();
    }

    /// Records the landing of a page. A page that had to be fetched again counts once.
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

    /// Checks, when all pages have come to where they belong, whether they are still there.
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

    /// Fetches again what is gone, when all nodes have said what they have, or ends the file.
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
            self.end(Some(explain(&FetchError::Cancelled)));
        }
    }

    pub(super) fn end(&self, failure: Option<(i32, String)>) {
        if failure.is_some() {
            // Its pages may be evicted for other files of the load.
            let _another_load_has_it =
                self.entry.loader.compare_exchange(self.job.id(), 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        // A load that was cancelled may have fetched nothing of it.
        self.fetch.cache.drop_if_empty(&self.entry);
        self.job.file_ended(self.index, self.wanted.bytes, failure);
    }

    /// Whether all of it is there; pages loaded first may have been evicted for those loaded last.
    fn missing(&self) -> Option<(i32, String)> {
        let pages = self.entry.geometry().pages() as u32;
        let elsewhere = lock(&self.elsewhere);
        let is_placed = |page: u32| elsewhere.placed.values().any(|pages| pages.contains(&page));
        let file = self.fetch.cache.file(&self.entry).ok();
        let is_here = |page: u32| file.as_ref().is_some_and(|file| file.word(page).state == State::Resident);
        let is_missing = |page: &u32| self.wants(*page) && !is_placed(*page) && !is_here(*page);
        let here = (0..pages).filter(is_missing).count();
        why_missing(pages, here, elsewhere.gone.iter().filter(|page| !is_here(**page)).count())
    }
}

/// The error of a file of `pages` pages, of which some were evicted here, and some are gone from
/// other nodes.
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

/// The end of a fetch, as it is reported of the file.
pub(super) fn explain(e: &FetchError) -> (i32, String) {
    match e {
        FetchError::Changed => (libc::ESTALE, "changed while it was loaded".into()),
        FetchError::NoRoom => (libc::ENOSPC, "no room in the tier".into()),
        FetchError::Pfs { errno, message } => (*errno, message.clone()),
        FetchError::Cancelled => (libc::ECANCELED, "cancelled".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_reported_by_where_it_should_be() {
        assert_eq!(why_missing(9, 0, 0), None);
        let why = |here, elsewhere| why_missing(9, here, elsewhere).unwrap().1;
        assert!(why(2, 0).starts_with("2 of 9 pages were evicted again"), "{}", why(2, 0));
        assert!(why(0, 3).starts_with("3 of 9 pages are gone from the nodes"), "{}", why(0, 3));
        assert!(why(2, 3).contains("too small for it; 3 of 9"), "{}", why(2, 3));
    }
}
