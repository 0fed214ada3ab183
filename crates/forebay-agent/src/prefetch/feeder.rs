//! The feeder of loads and of requests of the coordinator: takes the pages of files in order, waits
//! until each may go, and puts it on its way.
//!
//! What differs between the two is a [`FetchFor`]: how many pages it may have under way, where they
//! belong, and who hears of them.

use crate::cache::entry::Entry;
use crate::cache::page_fetch::{FetchError, Watcher};
use crate::fetch::Fetch;
use crate::fetch::pfs::READ_BYTES;
use crate::mounts::admit::admit;
use crate::user_limits::PfsFile;
use forebay_pfs::lease::Opened;
use forebay_policy::fetch_order::Urgency;
use forebay_policy::node::ReadId;
use forebay_wire::NodeInfo;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

/// A file whose pages are fed.
#[derive(Debug)]
pub struct Source {
    /// Its copy on this node.
    pub entry: Arc<Entry>,
    /// The file on the PFS.
    pub pfs: Arc<PfsFile>,
}

/// Adjacent pages whose turn it is: one of the usual size, or as many small ones, which are one
/// read of the PFS. All of them are in the tier, or none; all have the same owner.
#[derive(Debug)]
pub struct Next {
    /// The copy that they belong to.
    pub entry: Arc<Entry>,
    /// Their numbers.
    pub pages: Range<u32>,
    /// Bytes of each that are wanted.
    pub wanted_bytes: Vec<u64>,
    /// They are in the tier already.
    pub is_resident: bool,
    /// The peer that owns them.
    pub owner: Option<Arc<NodeInfo>>,
}

impl Next {
    /// Bytes that have to be fetched for them.
    pub fn fetch_bytes(&self) -> u64 {
        let geometry = self.entry.geometry();
        if self.is_resident { 0 } else { self.pages.clone().map(|page| geometry.page_len(page)).sum() }
    }

    /// The mount from which they have to be fetched here.
    pub fn mount(&self) -> Option<usize> {
        (self.owner.is_none() && !self.is_resident).then_some(self.entry.mount)
    }
}

/// What pages of one file are fed for.
pub trait FetchFor {
    /// How urgent its pages are.
    const URGENCY: Urgency;

    /// Whether pages may wait so long before they go that others have fetched or evicted them.
    const WAITS_LONG: bool = false;

    /// Waits until the pages may go; `None` if nothing is wanted any more.
    fn wait_to_read(&self, next: &Next) -> Option<ReadId>;

    /// The watcher that hears of the end of each of the pages, as one read that was let go.
    fn watcher(&self, next: &Next, read: ReadId) -> Arc<dyn Watcher>;

    /// Has a page fetched into the tier of its owner; `false` if it is to be fetched to this
    /// node.
    fn place(&self, _owner: &NodeInfo, _page: u32) -> bool {
        false
    }

    /// Returns the entry to continue with, if there is one, when the file's entry was removed while
    /// a page waited, with the last of its pages.
    fn entry_again(&self, _source: &Source) -> Option<Arc<Entry>> {
        None
    }
}

/// Feeds these pages of `source`, each with the bytes that are wanted of it. A page without any is
/// fetched only within a read of pages on both sides of it. `false` if `fetch_for` wants nothing
/// any more.
pub fn feed<E: FetchFor>(
    fetch: &Fetch,
    fetch_for: &E,
    source: &mut Source,
    pages: impl Iterator<Item = (u32, u64)>,
) -> bool {
    let mut pages = pages.peekable();
    while let Some((first, wanted_bytes)) = pages.next() {
        if wanted_bytes == 0 {
            continue;
        }
        let entry = source.entry.clone();
        let is_resident = fetch.is_resident(&entry, first);
        let owner = origin::<E>(fetch, &entry, first);
        let pages_of = first..first + 1;
        let wanted_bytes = vec![wanted_bytes];
        let mut next = Next { entry, pages: pages_of, wanted_bytes, is_resident, owner };
        while let Some((_, wanted_bytes)) = pages.next_if(|(page, _)| goes_with::<E>(fetch, &next, *page)) {
            next.pages.end += 1;
            next.wanted_bytes.push(wanted_bytes);
        }
        while next.wanted_bytes.last() == Some(&0) {
            next.wanted_bytes.pop();
            next.pages.end -= 1;
        }
        let Some(read) = fetch_for.wait_to_read(&next) else { return false };
        send(fetch, fetch_for, source, next, read);
    }
    true
}

/// The peer that a page comes from, or to whose tier it is loaded.
fn origin<E: FetchFor>(fetch: &Fetch, entry: &Entry, page: u32) -> Option<Arc<NodeInfo>> {
    // A reader of what was loaded asks its owner.
    if E::URGENCY == Urgency::Load {
        return fetch.owners.owner_of(entry, page);
    }
    fetch.owners.source_of(entry, page)
}

/// Whether `page` is one read of the PFS with those of `next`.
fn goes_with<E: FetchFor>(fetch: &Fetch, next: &Next, page: u32) -> bool {
    let geometry = next.entry.geometry();
    let ends_read = (u64::from(page) * geometry.page_bytes).is_multiple_of(READ_BYTES);
    page == next.pages.end
        && !ends_read
        && fetch.has_small_pages(&next.entry)
        && fetch.is_resident(&next.entry, page) == next.is_resident
        && origin::<E>(fetch, &next.entry, page).map(|owner| owner.name.clone())
            == next.owner.as_ref().map(|owner| owner.name.clone())
}

fn send<E: FetchFor>(fetch: &Fetch, fetch_for: &E, source: &mut Source, mut next: Next, read: ReadId) {
    let first = next.pages.start;
    if E::WAITS_LONG {
        next.is_resident = next.pages.clone().all(|page| fetch.is_resident(&next.entry, page));
        next.owner = origin::<E>(fetch, &next.entry, first);
    }
    if next.is_resident {
        let watcher = fetch_for.watcher(&next, read);
        return next.pages.clone().for_each(|page| watcher.page_done(page, &Ok(0)));
    }
    if let Some(owner) = next.owner.clone() {
        while !next.pages.is_empty() && fetch_for.place(&owner, next.pages.start) {
            next.pages.start += 1;
        }
        if next.pages.is_empty() {
            return;
        }
    }
    // Twice: while this waited the copy may have gone from the tier with the last of its pages.
    for _ in 0..2 {
        let (watcher, pages) = (fetch_for.watcher(&next, read), next.pages.clone());
        if fetch.request_run(&next.entry, pages, &source.pfs, E::URGENCY, Some(&watcher)).is_some() {
            return;
        }
        let Some(entry) = fetch_for.entry_again(source) else { break };
        (source.entry, next.entry) = (entry.clone(), entry);
    }
    let watcher = fetch_for.watcher(&next, read);
    next.pages.clone().for_each(|page| watcher.page_done(page, &Err(FetchError::NoRoom)));
}

/// The entry of an open file, made again; `None` if the file has changed or the tier has no room.
pub fn entry_again(fetch: &Fetch, source: &Source, opened: Opened) -> Option<Arc<Entry>> {
    // What is mounted there may be another file system by now.
    let file = admit(&fetch.mounts, source.pfs.as_fd()).ok()?;
    if file.mount != source.entry.mount || file.facts.version != source.entry.identity.version {
        return None;
    }
    fetch.sealed_entry(&file, source.pfs.as_fd(), opened).ok()
}
