//! One cached version as the agent knows it, and the fetches under way for it.
//!
//! The residency words in the copy are the truth about pages; an entry adds what clients need not
//! see: which pages are being fetched and who waits for them. A page has at most one fetch, so
//! however many ask, the PFS is read once.

use super::page_fetch::PageFetch;
use crate::lock::lock;
use crate::user_limits::{PfsFile, Share};
use forebay_pfs::Source;
use forebay_pfs::layout::Layout;
use forebay_policy::fetch_order::Urgency;
use forebay_store::copy::{CopyFile, CopyIdentity, Geometry};
use forebay_store::ring::page_key;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The descriptors with which a file is read from the PFS, and the offset that each has come to.
///
/// Clients of a PFS read ahead for each descriptor. So a read that continues where another one
/// ended uses the same descriptor: that of a reader after another, or of a reader's next window
/// after the one before. They stay open while pages of the file are on their way.
#[derive(Debug, Default)]
pub struct Readers(Mutex<Vec<(Arc<PfsFile>, u64)>>);

/// Most descriptors of one file that are kept; the one used longest ago is closed first.
const READERS_MAX: usize = 8;

impl Readers {
    /// The descriptor to read at `offset` with: one that would continue there, or `own`.
    pub fn at(&self, offset: u64, own: &Arc<PfsFile>) -> Arc<PfsFile> {
        let readers = lock(&self.0);
        let going_on = readers.iter().find(|(_, next)| *next == offset);
        going_on.map_or(own, |(reader, _)| reader).clone()
    }

    /// Forgets `reader`: no read continues with it.
    pub fn forget(&self, reader: &PfsFile) {
        lock(&self.0).retain(|(other, _)| !other.is_same(reader));
    }

    /// Records that a read with `reader` has come to `next`.
    pub fn moved(&self, reader: &PfsFile, next: u64) {
        let mut readers = lock(&self.0);
        let before = readers.iter().position(|(other, _)| other.is_same(reader));
        let kept = before.map_or_else(|| Arc::new(reader.kept()), |at| readers.remove(at).0);
        readers.push((kept, next));
        if readers.len() > READERS_MAX {
            readers.remove(0);
        }
    }

    /// Closes all that are not in use.
    fn close(&self) {
        lock(&self.0).clear();
    }
}

/// Length below which the PFS is not asked for a file's layout: what jobs move of shorter files
/// counts as from an unknown server.
const LAYOUT_BYTES_MIN: u64 = 1 << 20;

/// A file, whatever its version: index of its mount, and inode.
pub type FileId = (usize, u64);

/// One cached version.
#[derive(Debug)]
pub struct Entry {
    /// Which version.
    pub identity: CopyIdentity,
    /// Index of its mount.
    pub mount: usize,
    /// Bytes of whole pages.
    pub resident_bytes: AtomicU64,
    /// The operator wants all of it kept.
    pub pinned: AtomicBool,
    /// What the pin takes of the share of the user who has asked for it.
    pin: Mutex<Option<Share>>,
    /// The load that has loaded it last, or is about to; 0: none. Loads evict nothing of their own.
    pub loader: AtomicU64,
    /// A newer version was seen.
    pub stale: AtomicBool,
    /// The PFS has shown another version in its place while it was read, and not this one since: no
    /// read would be of use.
    pub changed: AtomicBool,
    /// See [`crate::mounts::seal`]. Nothing is fetched before.
    sealed: AtomicBool,
    /// Bytes reserved for the copy besides its pages.
    pub metadata_bytes: u64,
    /// Bytes after which the file continues on another server; 0 if the PFS does not report it, or
    /// has only one. Asked once.
    stripe_bytes: OnceLock<u64>,
    /// What of the file is on storage servers of this host, if anything is.
    own_stripes: OnceLock<Layout>,
    /// Its servers, if that was asked and the PFS reports them.
    servers: OnceLock<Option<Box<Layout>>>,
    /// The descriptors that it is read with from the PFS.
    pub readers: Readers,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: Option<Arc<CopyFile>>,
    /// By page.
    page_fetches: BTreeMap<u32, Arc<PageFetch>>,
    /// Removed from the cache: no fetch may start any more.
    removed: bool,
}

impl Entry {
    /// An entry for an open copy.
    pub fn new(identity: CopyIdentity, mount: usize, metadata_bytes: u64, file: CopyFile) -> Self {
        let inner = Inner { file: Some(Arc::new(file)), page_fetches: BTreeMap::new(), removed: false };
        Entry {
            identity,
            mount,
            resident_bytes: AtomicU64::new(0),
            pinned: AtomicBool::new(false),
            pin: Mutex::new(None),
            loader: AtomicU64::new(0),
            stale: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            metadata_bytes,
            stripe_bytes: OnceLock::new(),
            own_stripes: OnceLock::new(),
            servers: OnceLock::new(),
            readers: Readers::default(),
            inner: Mutex::new(inner),
        }
    }

    /// Stripe size of the file that `pfs` is open on; 0 if it is not known or all is on one server.
    pub fn stripe_bytes(&self, source: &dyn Source, pfs: BorrowedFd<'_>) -> u64 {
        let layout = || source.layout(pfs, false).filter(|layout| layout.servers.len() > 1);
        *self.stripe_bytes.get_or_init(|| layout().map_or(0, |layout| layout.stripe_bytes))
    }

    /// Records that part of the file is on storage servers of this host: where `layout` names one.
    pub fn set_own_stripes(&self, layout: Layout) {
        // A second answer is the same one.
        let _ = self.own_stripes.set(layout);
    }

    /// Whether the byte at `offset` is on a storage server of this host.
    pub fn is_stored_here(&self, offset: u64) -> bool {
        self.own_stripes.get().is_some_and(|layout| layout.server_of(offset).is_some())
    }

    /// The layout of the file that `pfs` is open on. Asked once, and not for a small file: a server
    /// would be asked for each.
    pub fn layout(&self, source: &dyn Source, pfs: BorrowedFd<'_>) -> Option<&Layout> {
        if self.identity.version.size < LAYOUT_BYTES_MIN {
            return None;
        }
        self.servers.get_or_init(|| source.layout(pfs, true).map(Box::new)).as_deref()
    }

    /// Records the proof that no write to its version is under way.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    /// Whether that was proved.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Whether its pages may be evicted, as far as the whole file is concerned, for pages of the
    /// load `spared_load`.
    pub fn may_go(&self, spared_load: u64) -> bool {
        let is_spared = spared_load != 0 && self.loader.load(Ordering::Relaxed) == spared_load;
        !self.pinned.load(Ordering::Relaxed) && !is_spared
    }

    /// Counts its pin as `share` from now on.
    pub fn set_pin(&self, share: Share) {
        *lock(&self.pin) = Some(share);
    }

    /// Records that it is no longer pinned.
    pub fn forget_pin(&self) {
        *lock(&self.pin) = None;
    }

    /// Who has pinned it.
    pub fn pinned_by(&self) -> Option<u32> {
        lock(&self.pin).as_ref().map(Share::uid)
    }

    /// Number of the copy.
    pub fn copy(&self) -> u64 {
        self.identity.copy
    }

    /// The pages of the copy.
    pub fn geometry(&self) -> Geometry {
        self.identity.geometry()
    }

    /// Key of a page of this copy.
    pub fn key(&self, page: u32) -> u64 {
        page_key(self.copy(), page)
    }

    /// The copy's file, opened by `open` if it is not open; the flag says whether it was.
    pub fn file(&self, open: impl FnOnce(u64) -> io::Result<CopyFile>) -> io::Result<(Arc<CopyFile>, bool)> {
        let mut inner = lock(&self.inner);
        if let Some(file) = &inner.file {
            return Ok((file.clone(), false));
        }
        let file = Arc::new(open(self.copy())?);
        inner.file = Some(file.clone());
        Ok((file, true))
    }

    /// Closes the copy's file until it is needed again.
    pub fn close_file(&self) {
        lock(&self.inner).file = None;
    }

    /// Joins the fetch of `page`, or starts one, which somebody has to fetch: the flag says so.
    /// `None` if the entry was removed meanwhile; look the file up again.
    pub fn board(&self, page: u32) -> Option<(Arc<PageFetch>, bool)> {
        let mut inner = lock(&self.inner);
        if inner.removed {
            return None;
        }
        if let Some(page_fetch) = inner.page_fetches.get(&page) {
            return Some((page_fetch.clone(), false));
        }
        let page_fetch = Arc::new(PageFetch::new(page));
        inner.page_fetches.insert(page, page_fetch.clone());
        Some((page_fetch, true))
    }

    /// Whether `page` is on its way.
    pub fn is_being_fetched(&self, page: u32) -> bool {
        lock(&self.inner).page_fetches.contains_key(&page)
    }

    /// The fetch of `page`, if it is on its way.
    pub fn page_fetch(&self, page: u32) -> Option<Arc<PageFetch>> {
        lock(&self.inner).page_fetches.get(&page).cloned()
    }

    /// Removes a fetch that has ended.
    pub fn land(&self, page_fetch: &Arc<PageFetch>) {
        let mut inner = lock(&self.inner);
        if inner.page_fetches.get(&page_fetch.page).is_some_and(|own| Arc::ptr_eq(own, page_fetch)) {
            inner.page_fetches.remove(&page_fetch.page);
        }
        if inner.page_fetches.is_empty() {
            self.readers.close();
        }
    }

    /// Marks the entry removed if nothing is under way; returns whether it is.
    pub fn try_remove(&self) -> bool {
        let mut inner = lock(&self.inner);
        if inner.page_fetches.is_empty() {
            inner.removed = true;
            inner.file = None;
        }
        inner.removed
    }
}

/// What a fetch needs: the fetch, the entry, and a descriptor of the file on the PFS.
#[derive(Clone, Debug)]
pub struct Task {
    /// The cached version.
    pub entry: Arc<Entry>,
    /// The page's fetch.
    pub page_fetch: Arc<PageFetch>,
    /// Fetches of the pages right behind it, which are one read of the PFS with it, or one request
    /// to a peer, unless a more urgent task has taken them.
    pub behind: Vec<Arc<PageFetch>>,
    /// The file on the PFS.
    pub pfs: Arc<PfsFile>,
    /// Why.
    pub urgency: Urgency,
}

impl Task {
    /// This task for only one of its fetches.
    pub fn of(&self, page_fetch: &Arc<PageFetch>) -> Task {
        Task {
            entry: self.entry.clone(),
            page_fetch: page_fetch.clone(),
            behind: Vec::new(),
            pfs: self.pfs.clone(),
            urgency: self.urgency,
        }
    }

    /// The load that it belongs to; 0: none.
    pub fn load(&self) -> u64 {
        if self.urgency == Urgency::Load { self.entry.loader.load(Ordering::Relaxed) } else { 0 }
    }

    /// Its fetches, in the order of their pages.
    pub fn page_fetches(&self) -> impl Iterator<Item = &Arc<PageFetch>> {
        std::iter::once(&self.page_fetch).chain(&self.behind)
    }
}

/// A superseded version whose pages are evicted.
#[derive(Debug)]
pub(super) struct Stale {
    pub(super) entry: Arc<Entry>,
    /// The first page that has not been looked at.
    pub(super) next: u32,
}

impl Stale {
    pub(super) fn new(entry: Arc<Entry>) -> Self {
        Stale { entry, next: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    #[test]
    fn who_goes_on_reads_by_the_same_descriptor_while_pages_are_under_way() {
        let open = || Arc::new(PfsFile::from(OwnedFd::from(tempfile::tempfile().unwrap())));
        let files = [open(), open(), open()];
        let [first, second, third] = &files;
        let readers = Readers::default();
        let at = |offset, own: &Arc<PfsFile>| {
            let reader = readers.at(offset, own);
            files.iter().position(|file| file.is_same(&reader))
        };
        assert_eq!(at(0, first), Some(0));
        readers.moved(first, 100);
        assert_eq!(at(100, second), Some(0), "whoever goes on there");
        assert_eq!([at(0, second), at(50, second)], [Some(1); 2], "but not elsewhere");
        readers.moved(second, 50);
        readers.moved(&readers.at(100, third), 200);
        assert_eq!([at(50, third), at(200, third), at(100, third)], [Some(1), Some(0), Some(2)]);
        readers.forget(second);
        assert_eq!(at(50, third), Some(2), "what has failed is given up");
        for number in 0..READERS_MAX as u64 {
            readers.moved(&open(), 1000 + number);
        }
        assert_eq!(at(200, third), Some(2), "the one that was read by longest ago is closed");
    }
}
