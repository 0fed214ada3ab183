//! The feeder of loads and of requests of the coordinator: takes the pages of files in order, waits
//! until each may go, and puts it on its way.
//!
//! What differs between the two is an [`Errand`]: how many pages it may have under way, where they
//! belong, and who hears of them.

use crate::cache::entry::Entry;
use crate::cache::flight::{FlightError, Watcher};
use crate::fetch::Fetch;
use crate::fetch::find::NoEntry;
use crate::mounts::admit::Admitted;
use crate::mounts::seal::Unsettled;
use crate::user_limits::PfsFile;
use forebay_pfs::FileFacts;
use forebay_pfs::lease::Opened;
use forebay_policy::fetch_order::Urgency;
use forebay_wire::NodeInfo;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// A file whose pages are fed.
#[derive(Debug)]
pub struct Source {
    /// Its copy on this node.
    pub entry: Arc<Entry>,
    /// The file on the PFS.
    pub pfs: Arc<PfsFile>,
}

/// A page whose turn it is.
#[derive(Debug)]
pub struct Next {
    /// The copy that it belongs to.
    pub entry: Arc<Entry>,
    /// Its number.
    pub page: u32,
    /// Bytes of it that are wanted.
    pub wanted_bytes: u64,
    /// It is in the tier already.
    pub is_resident: bool,
    /// The peer that owns it.
    pub owner: Option<Arc<NodeInfo>>,
    /// The stream that it is fetched in order with, if it has to be fetched from the PFS here.
    pub stream: Option<u64>,
}

impl Next {
    /// Bytes that have to be fetched for it.
    pub fn fetch_bytes(&self) -> u64 {
        if self.is_resident { 0 } else { self.entry.geometry().page_len(self.page) }
    }

    /// The mount from which it has to be fetched here.
    pub fn mount(&self) -> Option<usize> {
        (self.owner.is_none() && !self.is_resident).then_some(self.entry.mount)
    }
}

/// What pages of one file are fed for.
pub trait Errand {
    /// How urgent its pages are.
    const URGENCY: Urgency;

    /// Before a page takes off it may have waited so long that others have fetched or evicted it.
    const WAITS_LONG: bool = false;

    /// Waits until the page may go; `false` if nothing is wanted any more.
    fn take_off(&self, next: &Next) -> bool;

    /// Who hears of the end of a page that has taken off.
    fn watcher(&self, next: &Next) -> Arc<dyn Watcher>;

    /// Has the page fetched into the tier of its owner; `false` if it is to be fetched to this
    /// node.
    fn place(&self, _owner: &NodeInfo, _next: &Next) -> bool {
        false
    }

    /// The entry of the file was removed while a page waited, with the last of its pages; the entry
    /// to go on with, if there is one.
    fn entry_again(&self, _source: &Source) -> Option<Arc<Entry>> {
        None
    }
}

/// Feeds these pages of `source`, each with the bytes that are wanted of it. `false` if the errand
/// is not wanted any more.
pub fn feed<E: Errand>(
    fetch: &Fetch,
    errand: &E,
    source: &mut Source,
    pages: impl Iterator<Item = (u32, u64)>,
) -> bool {
    for (page, wanted_bytes) in pages {
        let entry = source.entry.clone();
        let is_resident = fetch.is_resident(&entry, page);
        let owner = fetch.owners.owner_of(&entry, page);
        let mut next = Next { entry, page, wanted_bytes, is_resident, owner, stream: None };
        next.stream = next.mount().and_then(|_| fetch.pfs.stream(&next.entry, page));
        if !errand.take_off(&next) {
            return false;
        }
        send(fetch, errand, source, next);
    }
    true
}

fn send<E: Errand>(fetch: &Fetch, errand: &E, source: &mut Source, mut next: Next) {
    let page = next.page;
    if E::WAITS_LONG {
        next.is_resident = fetch.is_resident(&next.entry, page);
        next.owner = fetch.owners.owner_of(&next.entry, page);
    }
    if next.is_resident {
        return errand.watcher(&next).page_done(page, &Ok(0));
    }
    if let Some(owner) = &next.owner
        && errand.place(owner, &next)
    {
        return;
    }
    // Twice: while this waited the copy may have gone from the tier with the last of its pages.
    for _ in 0..2 {
        let watcher = errand.watcher(&next);
        if fetch.request(&next.entry, page, &source.pfs, E::URGENCY, Some(watcher)).is_some() {
            return;
        }
        let Some(entry) = errand.entry_again(source) else { break };
        (source.entry, next.entry) = (entry.clone(), entry);
    }
    errand.watcher(&next).page_done(page, &Err(FlightError::NoRoom));
}

/// Opens a file by `open`, and again as long as `wait` waits for it to settle; the open file and
/// its entry.
///
/// # Errors
/// Those of `open`; or `fail` of why there is no entry.
pub fn open_settled<F: AsFd, E>(
    fetch: &Fetch,
    opened: Opened,
    mut open: impl FnMut() -> Result<(F, Admitted), E>,
    mut wait: impl FnMut(Unsettled, Duration) -> bool,
    fail: impl Fn(NoEntry) -> E,
) -> Result<(F, Arc<Entry>), E> {
    loop {
        let (fd, file) = open()?;
        let settling = fetch.mounts[file.mount].settling(&file.facts);
        match fetch.sealed_entry(&file, fd.as_fd(), opened) {
            Ok(entry) => return Ok((fd, entry)),
            Err(NoEntry::Unsettled(why)) if wait(why, settling) => {}
            Err(e) => return Err(fail(e)),
        }
    }
}

/// The entry of an open file, made anew; `None` if the file has changed or the tier has no room.
pub fn entry_again(fetch: &Fetch, source: &Source, opened: Opened) -> Option<Arc<Entry>> {
    let mount = source.entry.mount;
    let facts = FileFacts::of(source.pfs.as_fd(), fetch.mounts[mount].config.revalidate).ok()?;
    if facts.version != source.entry.identity.version {
        return None;
    }
    fetch.sealed_entry(&Admitted { mount, facts }, source.pfs.as_fd(), opened).ok()
}
