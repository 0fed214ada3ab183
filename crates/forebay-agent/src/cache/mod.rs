//! The index of cached versions, and how memory is found and released.
//!
//! One lock covers the index, the eviction policy and the pins; it is held for lookups and
//! decisions, never while the PFS or the kernel moves bytes.
//!
//! | file | what it does |
//! | --- | --- |
//! | `entry` | one cached version, and the fetches under way for it |
//! | `page_fetch` | the fetch of one page, and who waits for it |
//! | `fill` | a page on its way into the tier |
//! | `evict` | gives memory back |
//! | `disk` | what is evicted goes to a disk, if there is a directory for it |
//! | `pins`, `held` | what may not be evicted, and whose it is |
//! | `announced` | when its pages are read next, as jobs have announced |
//! | `adopt` | takes over the copies of an earlier agent |

use crate::counters::Counters;
use crate::lock::lock;
use entry::{Entry, FileId, Stale};
use forebay_pfs::{FileFacts, FileVersion};
use forebay_policy::eviction::{EvictionKind, EvictionPolicy, Fill, Orders};
use forebay_store::copy::{CopyFile, CopyIdentity, release_bytes};
use forebay_store::ring::PAGES_MAX;
use forebay_store::{Budget, Class, Reservation, State, Tier, Word, blocks_bytes};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::ops::{Bound, Range};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

mod adopt;
pub mod announced;
pub mod disk;
pub mod entry;
mod evict;
pub mod fill;
pub mod held;
mod mapped;
pub mod page_fetch;
mod pins;

pub use pins::{Lent, NoMap, NoPin};

/// What a copy costs besides its blocks and those of its record. The agent's own entry is about 730
/// bytes (`make bench`, `agent.memory_per_file`). The kernel takes 2.6 KiB for two inodes, two
/// directory entries and the index of the blocks, which no counter shows by file: the growth of its
/// slabs over 30,000 files of 20 KiB (Linux 6.18).
const ENTRY_BYTES: u64 = 3584;

/// Share of the capacity that remote pages (of other nodes) may take: one in four.
const REMOTE_PAGES_SHARE: u64 = 4;

/// Fraction (one in 16) of the room for pages that is left to the copies' headers and to new
/// clients.
const ROOM_BESIDE: u64 = 16;

/// Most bytes over the capacity that a caller that needs room evicts.
const EVICT_AT_ONCE_BYTES: u64 = 4 << 20;

/// The cached versions of one tier.
#[derive(Debug)]
pub struct Cache {
    /// Where the copies are.
    pub tier: Tier,
    /// The budget of the whole agent.
    pub budget: Budget,
    counters: Arc<Counters>,
    index: Mutex<Index>,
    pages: Mutex<Reservation>,
    /// Held while what is over the capacity is evicted: two threads at the same time would evict
    /// twice as much.
    settling: Mutex<()>,
    metadata: Mutex<Reservation>,
    open_files: Mutex<VecDeque<Weak<Entry>>>,
    open_files_max: usize,
    disk: OnceLock<Arc<disk::Disk>>,
    next_copy: AtomicU64,
    /// A small page may take a huge page of the tmpfs, see [`Cache::trim`].
    needs_trim: bool,
}

/// What a copy costs besides its pages.
fn metadata_bytes(identity: &CopyIdentity) -> u64 {
    identity.record_bytes() + ENTRY_BYTES
}

/// A page of the smallest size that is likely, to try what one takes.
const SMALL_PAGE_BYTES: u64 = 16 << 10;

#[derive(Debug)]
struct Index {
    /// The newest version seen of each file, by mount and inode.
    newest: HashMap<(usize, u64), Arc<Entry>>,
    by_copy: BTreeMap<u64, Arc<Entry>>,
    /// Versions that were superseded, oldest first: they go before anything else. The policy knows
    /// their pages until they are walked.
    stale: VecDeque<Stale>,
    policy: Box<dyn EvictionPolicy>,
    /// Pages that programs map, including those that an earlier agent let them map.
    mapped: BTreeMap<mapped::MappedKey, mapped::Mapped>,
    /// What jobs have announced to read.
    orders: Orders<FileId>,
    /// Pages mapped by clients or on their way to peers: key to count.
    page_pins: HashMap<u64, u32>,
    client_pinned_bytes: u64,
    lent_bytes: u64,
    pinned_bytes: u64,
}

/// Why a copy could not be made.
#[derive(Debug)]
pub enum NoCopy {
    /// No room in the budget or on the tmpfs.
    NoRoom,
    /// More pages than a key can number.
    TooLarge,
    /// The tier failed.
    Tier(io::Error),
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Cached versions.
    pub files: u64,
    /// Bytes of pinned files.
    pub pinned_bytes: u64,
    /// Bytes mapped by clients.
    pub client_pinned_bytes: u64,
    /// Bytes on their way to peers.
    pub lent_bytes: u64,
    /// Bytes of pages that belong to other nodes.
    pub remote_page_bytes: u64,
    /// Bytes of pages that jobs will read.
    pub planned_bytes: u64,
    /// Bytes of pages in announced orders.
    pub announced_bytes: u64,
}

/// What was released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Bytes of pages.
    pub bytes: u64,
    /// Pages.
    pub pages: u64,
}

impl Freed {
    fn add(&mut self, more: Freed) {
        self.bytes += more.bytes;
        self.pages += more.pages;
    }
}

impl Cache {
    /// An empty cache over `tier`. Keeps at most `open_files_max` copies open.
    pub fn new(
        tier: Tier,
        budget: Budget,
        eviction: EvictionKind,
        open_files_max: usize,
        counters: Arc<Counters>,
    ) -> Self {
        let index = Index {
            newest: HashMap::new(),
            by_copy: BTreeMap::new(),
            stale: VecDeque::new(),
            mapped: BTreeMap::new(),
            policy: eviction.build(budget.capacity_bytes()),
            orders: Orders::default(),
            page_pins: HashMap::new(),
            client_pinned_bytes: 0,
            lent_bytes: 0,
            pinned_bytes: 0,
        };
        Cache {
            pages: Mutex::new(budget.reserve_existing(Class::Pages, 0)),
            settling: Mutex::new(()),
            metadata: Mutex::new(budget.reserve_existing(Class::Metadata, 0)),
            // A tmpfs that is full does not report it; then trimming is only needless.
            needs_trim: !tier.holds_pages_of(SMALL_PAGE_BYTES).unwrap_or(false),
            tier,
            budget,
            counters,
            index: Mutex::new(index),
            open_files: Mutex::new(VecDeque::new()),
            open_files_max,
            disk: OnceLock::new(),
            next_copy: AtomicU64::new(1),
        }
    }

    /// Makes evicted pages go to `disk` from now on.
    pub fn set_disk(&self, disk: Arc<disk::Disk>) {
        // There is one directory.
        let _ = self.disk.set(disk);
    }

    /// The level below, if there is one.
    pub fn disk(&self) -> Option<&Arc<disk::Disk>> {
        self.disk.get()
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }

    /// The copy of `entry`, opened if need be.
    ///
    /// # Errors
    /// The tier failed.
    pub fn file(&self, entry: &Arc<Entry>) -> io::Result<Arc<CopyFile>> {
        let (file, opened) = entry.file(|copy| Ok(CopyFile::open(&self.tier, copy)?.1))?;
        if opened {
            self.note_open(entry);
        }
        Ok(file)
    }

    fn note_open(&self, entry: &Arc<Entry>) {
        let mut open = lock(&self.open_files);
        open.push_back(Arc::downgrade(entry));
        while open.len() > self.open_files_max {
            if let Some(oldest) = open.pop_front().and_then(|w| w.upgrade()) {
                oldest.close_file();
            }
        }
    }

    /// The entry of the version that `facts` show, if it is cached. A different version of the same
    /// file that is cached is superseded from now on.
    pub fn find(&self, mount: usize, facts: &FileFacts) -> Option<Arc<Entry>> {
        let mut index = self.index();
        let entry = index.newest.get(&(mount, facts.version.ino))?.clone();
        if entry.identity.version == facts.version {
            if entry.changed.load(Ordering::Relaxed) {
                entry.changed.store(false, Ordering::Relaxed);
            }
            return Some(entry);
        }
        index.newest.remove(&(mount, facts.version.ino));
        index.overtake(entry);
        None
    }

    /// The entry of exactly this version, if it is cached. Nothing is superseded: that somebody
    /// asks for a version does not prove that it is the newest.
    pub fn find_version(&self, mount: usize, version: &FileVersion) -> Option<Arc<Entry>> {
        let index = self.index();
        index.newest.get(&(mount, version.ino)).filter(|e| e.identity.version == *version).cloned()
    }

    /// The entry with number `copy`.
    pub fn by_copy(&self, copy: u64) -> Option<Arc<Entry>> {
        self.index().by_copy.get(&copy).cloned()
    }

    /// A number for a new copy.
    pub fn next_copy(&self) -> u64 {
        self.next_copy.fetch_add(1, Ordering::Relaxed)
    }

    /// Marks the number `copy` as taken: no new copy gets it.
    pub fn skip_copy(&self, copy: u64) {
        self.next_copy.fetch_max(copy + 1, Ordering::Relaxed);
    }

    /// The entry for the version that `facts` show, made if need be.
    ///
    /// # Errors
    /// See [`NoCopy`].
    pub fn find_or_create(
        &self,
        mount: usize,
        label: &str,
        page_bytes: u64,
        facts: &FileFacts,
        path: impl FnOnce() -> Vec<u8>,
    ) -> Result<Arc<Entry>, NoCopy> {
        if let Some(entry) = self.find(mount, facts) {
            return Ok(entry);
        }
        let identity = CopyIdentity {
            copy: self.next_copy(),
            mount: label.to_owned(),
            path: path(),
            owner_uid: facts.uid,
            version: facts.version,
            page_bytes,
        };
        let metadata = self.reserve_metadata(&identity)?;
        let file = CopyFile::create(&self.tier, &identity).map_err(no_copy)?;
        let entry = self.insert_entry(identity, mount, metadata, file);
        Ok(entry)
    }

    /// Reserves what a copy costs besides its pages.
    ///
    /// # Errors
    /// Too many pages, or no room.
    pub fn reserve_metadata(&self, identity: &CopyIdentity) -> Result<Reservation, NoCopy> {
        if identity.geometry().pages() >= PAGES_MAX {
            return Err(NoCopy::TooLarge);
        }
        self.reserve(Class::Metadata, metadata_bytes(identity)).ok_or(NoCopy::NoRoom)
    }

    /// Adds a finished copy to the index; if another thread was faster with the same version, that
    /// one's entry.
    pub fn insert_entry(
        &self,
        identity: CopyIdentity,
        mount: usize,
        metadata: Reservation,
        file: CopyFile,
    ) -> Arc<Entry> {
        let copy = identity.copy;
        let entry = Arc::new(Entry::new(identity, mount, metadata.bytes(), file));
        let key = (mount, entry.identity.version.ino);
        let mut index = self.index();
        if let Some(other) = index.newest.get(&key).cloned() {
            if other.identity.version == entry.identity.version {
                drop(index);
                drop(metadata);
                self.unlink(copy);
                return other;
            }
            index.overtake(other);
        }
        // Before others see the entry: an eviction that drops it right away releases its charge.
        lock(&self.metadata).merge(metadata);
        index.newest.insert(key, entry.clone());
        index.by_copy.insert(copy, entry.clone());
        drop(index);
        self.note_open(&entry);
        entry
    }

    fn unlink(&self, copy: u64) {
        if let Err(e) = self.tier.remove_copy(copy) {
            tracing::warn!(copy, error = %e, "cannot remove a copy; the next start checks it again");
        }
    }

    /// Bytes of pages that there is room for, besides what copies and clients take.
    pub fn room_bytes(&self) -> u64 {
        let budget = &self.budget;
        let cached = budget.class_bytes(Class::Pages) + budget.class_bytes(Class::Metadata);
        let room = budget.capacity_bytes().saturating_sub(budget.used_bytes().saturating_sub(cached));
        room - room / ROOM_BESIDE
    }

    /// Holds `bytes` of the budget, evicting as needed; `None` if there is nothing left to evict.
    pub fn reserve(&self, class: Class, bytes: u64) -> Option<Reservation> {
        self.reserve_sparing(class, bytes, 0)
    }

    /// As [`Cache::reserve`], for the load `load`: evicts nothing that it has loaded.
    pub fn reserve_sparing(&self, class: Class, bytes: u64, load: u64) -> Option<Reservation> {
        // Others may take what was just freed, so more than one round can be needed; a few are
        // enough to give up after.
        for _ in 0..16 {
            match self.budget.reserve(class, bytes) {
                Ok(reservation) => return Some(reservation),
                Err(over) => {
                    // A new client may have taken the budget over its capacity by many small pages.
                    // More than that is for `settle_excess`.
                    let most = bytes.max(EVICT_AT_ONCE_BYTES);
                    if self.evict_sparing(over.missing_bytes.min(most), load).bytes == 0 {
                        return self.budget.reserve(class, bytes).ok();
                    }
                }
            }
        }
        None
    }

    /// Adds the page's memory, reserved before, to the cache's.
    pub fn keep_pages(&self, reservation: Reservation) {
        lock(&self.pages).merge(reservation);
    }

    /// Releases what [`Cache::keep_pages`] took for pages that were not kept after all.
    pub fn release_pages(&self, bytes: u64) {
        lock(&self.pages).shrink(bytes);
    }

    /// Makes a page resident: its word goes from `from` to `to`, and from now on it can be evicted.
    /// Its memory must have been handed over by [`Cache::keep_pages`] before. Word, accounts and
    /// policy change under one hold of the lock: an eviction that saw the word first would deduct
    /// bytes from the accounts that are not on them yet. `false`: the word was not `from`, and
    /// nothing has changed.
    pub fn note_resident(
        &self,
        entry: &Arc<Entry>,
        file: &CopyFile,
        page: u32,
        (from, to): (Word, Word),
        fill: Fill,
    ) -> bool {
        let bytes = blocks_bytes(entry.geometry().page_len(page));
        let mut index = self.index();
        if !file.change(page, from, to) {
            return false;
        }
        entry.resident_bytes.fetch_add(bytes, Ordering::Relaxed);
        if !entry.stale.load(Ordering::Relaxed) {
            index.policy.insert(entry.key(page), bytes as u32, fill);
            index.announce_page(entry, page);
        }
        true
    }

    /// Makes sure that remote pages take no more than their share of the capacity when `bytes` more
    /// of them come.
    pub fn bound_remote_pages(&self, bytes: u64) {
        let remote = self.index().policy.remote_page_bytes() + bytes;
        let most = self.budget.capacity_bytes() / REMOTE_PAGES_SHARE;
        if remote > most {
            // The policy evicts remote pages before anything else while there are so many.
            self.evict(remote - most);
        }
    }

    /// Keeps a resident page for `request` until it is used, unless plans have their share of the
    /// tier already.
    pub fn plan(&self, key: u64, request: u64) {
        self.index().policy.plan(key, request);
    }

    /// Allows eviction of what was kept for `requests`, or for all requests.
    pub fn unplan(&self, requests: Option<&BTreeSet<u64>>) {
        self.index().policy.unplan(requests);
    }

    /// Records that pages were used, as clients report.
    pub fn touch(&self, keys: &[u64]) {
        let mut index = self.index();
        for key in keys {
            index.policy.touch(*key);
        }
    }

    /// Sets the budget's capacity and releases what is over it.
    pub fn set_capacity(&self, bytes: u64) -> Freed {
        {
            let mut index = self.index();
            self.budget.set_capacity_bytes(bytes);
            index.policy.set_capacity(bytes);
        }
        self.settle_excess()
    }

    /// As [`Cache::set_capacity`], for a while ([`Budget::give_way`]); `None` if the operator has
    /// set another capacity meanwhile.
    pub fn give_way(&self, most_bytes: u64, bytes: u64) -> Option<Freed> {
        {
            let mut index = self.index();
            if !self.budget.give_way(most_bytes, bytes) {
                return None;
            }
            index.policy.set_capacity(bytes.min(most_bytes));
        }
        Some(self.settle_excess())
    }

    /// Entries after copy number `after`, up to `max`.
    pub fn list(&self, after: u64, max: usize) -> Vec<Arc<Entry>> {
        self.index()
            .by_copy
            .range((Bound::Excluded(after), Bound::Unbounded))
            .take(max)
            .map(|(_, e)| e.clone())
            .collect()
    }

    /// What is held, for display.
    pub fn totals(&self) -> Totals {
        let index = self.index();
        Totals {
            files: index.by_copy.len() as u64,
            pinned_bytes: index.pinned_bytes,
            client_pinned_bytes: index.client_pinned_bytes,
            lent_bytes: index.lent_bytes,
            remote_page_bytes: index.policy.remote_page_bytes(),
            planned_bytes: index.policy.planned_bytes(),
            announced_bytes: index.policy.announced_bytes(),
        }
    }

    /// Releases what the tmpfs has allocated beside small pages that were just written. Where it
    /// has huge pages, it would otherwise hold many times as much as the budget says.
    pub fn trim(&self, file: &CopyFile, first: u32, count: u32) {
        if self.needs_trim
            && let Err(e) = file.trim_around(first, count)
        {
            tracing::error!(page = first, error = %e, "cannot release memory beside a small page");
        }
    }

    /// As [`Cache::trim`], of a file that is not a copy yet: `bytes` of it hold nothing.
    pub fn trim_unfinished(&self, file: BorrowedFd<'_>, bytes: Range<u64>) {
        if self.needs_trim
            && !bytes.is_empty()
            && let Err(e) = release_bytes(file, bytes.start, bytes.end - bytes.start)
        {
            tracing::error!(error = %e, "cannot release memory beside a staged page");
        }
    }

    /// Waits until readers of a page's old content know: a withdrawn page that is asked for
    /// again has to be punched first. Bounded; returns whether the page is free.
    pub fn wait_absent(&self, file: &CopyFile, page: u32) -> bool {
        for _ in 0..2000 {
            if file.word(page).state != State::Leaving {
                return true;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        false
    }
}

impl Index {
    fn overtake(&mut self, entry: Arc<Entry>) {
        if entry.stale.swap(true, Ordering::Relaxed) {
            return;
        }
        if entry.pinned.swap(false, Ordering::Relaxed) {
            self.pinned_bytes -= entry.geometry().size;
            entry.forget_pin();
        }
        self.stale.push_back(Stale::new(entry));
    }
}

/// Sorts tier failures: a full tmpfs is want of room.
pub fn no_copy(e: io::Error) -> NoCopy {
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => NoCopy::NoRoom,
        _ => NoCopy::Tier(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user_limits::{Kind, PfsFile, Shares};
    use forebay_store::tier::{Backing, TierOptions};
    use std::os::fd::OwnedFd;

    impl Cache {
        /// An empty cache of `bytes` bytes, whose tier is in `dir`.
        pub fn for_tests(dir: &std::path::Path, bytes: u64) -> Self {
            let tier = Tier::open(&TierOptions {
                state_dir: dir.join("state"),
                backing: Backing::Directory,
                directory: Some(dir.join("tier")),
                limit_bytes: u64::MAX,
                huge_pages: false,
                program: None,
            });
            Cache::new(tier.unwrap(), Budget::new(bytes), EvictionKind::default(), 100, Arc::default())
        }
    }

    fn identity(copy: u64) -> CopyIdentity {
        CopyIdentity {
            copy,
            mount: "pfs".into(),
            path: b"f".to_vec(),
            owner_uid: 0,
            version: FileVersion { ino: copy, size: 1, mtime_ns: 0, ctime_ns: 0 },
            page_bytes: 1 << 21,
        }
    }

    fn insert(cache: &Cache, identity: CopyIdentity) -> Arc<Entry> {
        let metadata = cache.reserve_metadata(&identity).unwrap();
        let file = CopyFile::create(&cache.tier, &identity).unwrap();
        cache.insert_entry(identity, 0, metadata, file)
    }

    #[test]
    fn a_users_pin_replaces_that_of_a_checkpoint() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let cache = Cache::for_tests(dir.path(), 1 << 30);
        let shares = Shares::new(cache.budget.clone(), Arc::default(), 0);
        let share = |uid| shares.share(Kind::Held, uid, 1).unwrap();
        let entry = insert(&cache, identity(1));
        let (of_checkpoint, other) = (60_001, 60_002);
        cache.hold_entry(&entry, share(of_checkpoint)).unwrap();
        assert_eq!((entry.pinned_by(), cache.held().len()), (Some(of_checkpoint), 1));
        cache.pin_entry(&entry, share(other)).unwrap();
        let by = cache.file(&entry).unwrap().pinned_by();
        assert_eq!((entry.pinned_by(), by, cache.held().len()), (Some(other), other, 0));
        // Neither the checkpoint nor a third user changes that.
        cache.hold_entry(&entry, share(of_checkpoint)).unwrap();
        cache.pin_entry(&entry, share(60_003)).unwrap();
        cache.release_entry(&entry).unwrap();
        assert_eq!((entry.pinned_by(), cache.held().len()), (Some(other), 0));
        cache.unpin_entry(&entry).unwrap();
        assert_eq!(entry.pinned_by(), None);
    }

    #[test]
    fn what_a_file_is_read_by_is_closed_when_none_of_its_pages_is_on_its_way() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let cache = Cache::for_tests(dir.path(), 1 << 30);
        let entry = insert(&cache, identity(1));
        let open = || Arc::new(PfsFile::from(OwnedFd::from(tempfile::tempfile().unwrap())));
        let (file, other) = (open(), open());
        let page_fetches = [0, 1].map(|page| entry.board(page).unwrap().0);
        entry.readers.moved(&file, 100);
        let is_kept = || entry.readers.at(100, &other).is_same(&file);
        entry.land(&page_fetches[0]);
        assert!(is_kept(), "page 1 is on its way");
        entry.land(&page_fetches[1]);
        assert!(!is_kept());
    }

    #[test]
    fn a_copy_that_is_dropped_while_it_is_entered_gives_back_what_was_counted() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let cache = Cache::for_tests(dir.path(), 1 << 30);
        let copies = 20_000;
        let all_are_in = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !all_are_in.load(Ordering::SeqCst) || !cache.list(0, 1).is_empty() {
                    for entry in cache.list(0, 16) {
                        cache.drop_if_empty(&entry);
                    }
                }
            });
            for copy in 1..=copies {
                insert(&cache, identity(copy));
            }
            all_are_in.store(true, Ordering::SeqCst);
        });
        assert_eq!(cache.budget.class_bytes(Class::Metadata), 0);
    }
}
