//! What a miss does: a page comes into the tier, from the peer that owns it or from the PFS.
//!
//! | file | what it does |
//! | --- | --- |
//! | `completions` | ends the way of a page: readers are woken, and it is counted |
//! | `find` | finds or creates the entry of a version; says why there is none |
//! | `owners` | who is asked: the peer that owns the page, or the PFS |
//! | `peers`, `peer_link` | requests pages from peers; from the PFS where that fails |
//! | `peer_run` | requests adjacent small pages from a peer, as one |
//! | `pfs` | the fetch threads of a mount |
//! | `thread_queue` | what waits for the threads of a peer, by urgency |
//! | `run` | adjacent pages that are one read of the PFS, or one request to a peer |
//! | `pfs_client` | whether the client of a PFS reads ahead by itself |
//!
//! [`Fetch::request`] is the way in, for peers [`Fetch::request_for_peer`]. A request for a page
//! joins the fetch of it that is under way, or starts one.

pub mod completions;
pub mod find;
pub mod owners;
pub mod peer_link;
mod peer_run;
pub mod peers;
pub mod pfs;
pub mod pfs_client;
mod run;
pub mod thread_queue;

use crate::cache::Cache;
use crate::cache::entry::{Entry, Task};
use crate::cache::page_fetch::{FetchError, PageFetch, Watched, Watcher};
use crate::counters::Counters;
use crate::mounts::MountState;
use crate::scheduler::Scheduler;
use crate::traffic::jobs::Traffic;
use crate::user_limits::PfsFile;
use completions::Completions;
use forebay_policy::fetch_order::Urgency;
use forebay_wire::NodeInfo;
use owners::Owners;
use peers::Peers;
use pfs::Pfs;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at whether a fetch that was given up has gone.
const GIVEN_UP_PAUSE: Duration = Duration::from_micros(100);

/// What fetches pages into the tier.
#[derive(Debug)]
pub struct Fetch {
    /// From where.
    pub mounts: Arc<[MountState]>,
    /// To where.
    pub cache: Arc<Cache>,
    /// Counters.
    pub counters: Arc<Counters>,
    /// What ends fetches.
    pub completions: Arc<Completions>,
    /// Who is asked for a page.
    pub owners: Arc<Owners>,
    /// Fetches from the PFS.
    pub pfs: Arc<Pfs>,
    /// Fetches from peers.
    pub peers: Arc<Peers>,
    /// What is fetched from the PFS, and when.
    pub scheduler: Arc<Scheduler>,
    /// For which jobs, and how fast.
    pub traffic: Arc<Traffic>,
}

/// A page that is on its way.
#[derive(Debug)]
pub struct Requested {
    /// Its fetch.
    pub page_fetch: Arc<PageFetch>,
    /// It was not on its way before.
    pub is_new: bool,
    /// This request has queued it, at its own urgency: it was not as urgent before.
    pub is_queued: bool,
}

/// The page waits for another peer, and is not promised to one.
#[derive(Debug)]
pub struct AtPeer;

/// Boards the fetch of a page with its watcher. Also returns whether the fetch continues: a reader
/// may have joined it, had it fetched and seen it end before `watcher` came. One that others have
/// given up is over in a moment, and the next one is boarded.
fn board(
    entry: &Entry,
    page: u32,
    mut watcher: Option<Arc<dyn Watcher>>,
) -> Option<(Arc<PageFetch>, bool, bool)> {
    loop {
        let (page_fetch, is_new) = entry.board(page)?;
        let Some(watched) = watcher.take().map(|watcher| page_fetch.watch(watcher)) else {
            return Some((page_fetch, is_new, true));
        };
        match watched {
            Watched::Joined => return Some((page_fetch, is_new, true)),
            Watched::Ended => return Some((page_fetch, is_new, false)),
            Watched::GivenUp(back) => watcher = Some(back),
        }
        std::thread::sleep(GIVEN_UP_PAUSE);
    }
}

/// Whether a page has become more urgent, so that it has to be queued at that urgency, or is to be
/// queued `again`.
fn is_to_be_queued(page_fetch: &PageFetch, is_new: bool, urgency: Urgency, again: bool) -> bool {
    // A full queue ends what is fetched ahead, and must not end what others wait for.
    let may = is_new || urgency != Urgency::Ahead;
    may && (page_fetch.raise(urgency) || again)
}

impl Fetch {
    /// Bytes of pages of the mount that the tier can hold: of this node, or of all.
    pub fn room_bytes(&self, mount_label: &str) -> u64 {
        self.owners.room_bytes(mount_label).unwrap_or_else(|| self.cache.room_bytes())
    }

    /// Puts a page on its way, or joins those who wait for it; `watcher` hears of its end. `None`
    /// if the entry was removed meanwhile.
    pub fn request(
        &self,
        entry: &Arc<Entry>,
        page: u32,
        pfs: &Arc<PfsFile>,
        urgency: Urgency,
        watcher: Option<Arc<dyn Watcher>>,
    ) -> Option<Requested> {
        let (page_fetch, is_new, goes_on) = board(entry, page, watcher)?;
        let is_queued = goes_on && self.queue(entry, (&page_fetch, is_new), pfs, urgency, false);
        Some(Requested { page_fetch, is_new, is_queued })
    }

    /// Puts adjacent pages on their way, or joins those who wait for them; `watcher` hears of the
    /// end of each. Small ones are one read of the PFS, or one request to the peer that owns them,
    /// as far as a read may be long.
    /// `None` if the entry was removed meanwhile.
    pub fn request_run(
        &self,
        entry: &Arc<Entry>,
        pages: Range<u32>,
        pfs: &Arc<PfsFile>,
        urgency: Urgency,
        watcher: Option<&Arc<dyn Watcher>>,
    ) -> Option<Vec<Arc<PageFetch>>> {
        // All before the first is queued: a thread that took one immediately would read it by
        // itself.
        let mut boarded = Vec::with_capacity(pages.len());
        for page in pages {
            match (board(entry, page, watcher.cloned()), watcher) {
                (Some(page_fetch), _) => boarded.push(page_fetch),
                (None, _) if boarded.is_empty() => return None,
                // Removed within this loop: all before it had ended. A caller that asks again gets
                // it.
                (None, Some(watcher)) => watcher.page_done(page, &Err(FetchError::NoRoom)),
                (None, None) => {}
            }
        }
        let queued = boarded.iter().filter(|(page_fetch, is_new, goes_on)| {
            *goes_on && is_to_be_queued(page_fetch, *is_new, urgency, false) && !page_fetch.is_taken()
        });
        self.send_together(entry, queued.map(|(page_fetch, _, _)| page_fetch.clone()), pfs, urgency);
        Some(boarded.into_iter().map(|(page_fetch, _, _)| page_fetch).collect())
    }

    /// Sends pages where they come from; adjacent small ones of one origin as one task.
    fn send_together(
        &self,
        entry: &Arc<Entry>,
        page_fetches: impl Iterator<Item = Arc<PageFetch>>,
        pfs: &Arc<PfsFile>,
        urgency: Urgency,
    ) {
        let has_small_pages = self.has_small_pages(entry);
        let mut run: Option<(Option<Arc<NodeInfo>>, Task)> = None;
        for page_fetch in page_fetches {
            let (entry, pfs) = (entry.clone(), pfs.clone());
            let task = Task { entry, page_fetch, behind: Vec::new(), pfs, urgency };
            let node = self.owners.route(&task);
            match &mut run {
                Some((of, run))
                    if has_small_pages
                        && of.as_ref().map(|n| &n.name) == node.as_ref().map(|n| &n.name)
                        && pfs::goes_with(run, &task.page_fetch) =>
                {
                    run.behind.push(task.page_fetch);
                }
                run => {
                    if let Some((node, full)) = run.replace((node, task)) {
                        self.send(node, full);
                    }
                }
            }
        }
        if let Some((node, run)) = run {
            self.send(node, run);
        }
    }

    fn send(&self, node: Option<Arc<NodeInfo>>, task: Task) {
        match node {
            Some(node) => self.peers.send(&node, task),
            None => self.pfs.send(task),
        }
    }

    /// As [`Fetch::request`], for a peer: never on to a third node, whatever the view here says.
    ///
    /// # Errors
    /// See [`AtPeer`].
    pub fn request_for_peer(
        &self,
        entry: &Arc<Entry>,
        page: u32,
        pfs: &Arc<PfsFile>,
        urgency: Urgency,
    ) -> Result<Option<Requested>, AtPeer> {
        let Some((page_fetch, is_new)) = entry.board(page) else { return Ok(None) };
        if page_fetch.is_at_peer() {
            return Err(AtPeer);
        }
        let waits_for_peer = page_fetch.keep_from_peers() && !is_new;
        let is_queued = self.queue(entry, (&page_fetch, is_new), pfs, urgency, waits_for_peer);
        Ok(Some(Requested { page_fetch, is_new, is_queued }))
    }

    /// As [`Fetch::request_run`], for a peer, of small pages in their order. It ends before a page
    /// that waits for another peer. `watcher` hears of the end of those that were not on their way.
    pub fn request_run_for_peer(
        &self,
        entry: &Arc<Entry>,
        pages: &[u32],
        pfs: &Arc<PfsFile>,
        urgency: Urgency,
        watcher: Option<&Arc<dyn Watcher>>,
    ) -> Option<Vec<Arc<PageFetch>>> {
        let (mut page_fetches, mut queued) = (Vec::new(), Vec::new());
        for page in pages {
            let Some((page_fetch, is_new)) = entry.board(*page) else {
                // Removed within this loop: all before it had ended.
                if page_fetches.is_empty() {
                    return None;
                }
                break;
            };
            if page_fetch.is_at_peer() {
                break;
            }
            let waits_for_peer = page_fetch.keep_from_peers() && !is_new;
            if is_to_be_queued(&page_fetch, is_new, urgency, waits_for_peer) && !page_fetch.is_taken() {
                queued.push(page_fetch.clone());
            }
            if let (true, Some(watcher)) = (is_new, watcher) {
                page_fetch.watch(watcher.clone());
            }
            page_fetches.push(page_fetch);
        }
        self.send_together(entry, queued.into_iter(), pfs, urgency);
        Some(page_fetches)
    }

    /// Queues a page that has become more urgent, or any page if `again`. Its earlier task stays in
    /// the queue: the second of the two finds the page taken. Returns whether it was to be queued.
    fn queue(
        &self,
        entry: &Arc<Entry>,
        (page_fetch, is_new): (&Arc<PageFetch>, bool),
        pfs: &Arc<PfsFile>,
        urgency: Urgency,
        again: bool,
    ) -> bool {
        if !is_to_be_queued(page_fetch, is_new, urgency, again) {
            return false;
        }
        if !page_fetch.is_taken() {
            let (entry, page_fetch, pfs) = (entry.clone(), page_fetch.clone(), pfs.clone());
            let task = Task { entry, page_fetch, behind: Vec::new(), pfs, urgency };
            self.send(self.owners.route(&task), task);
        }
        true
    }

    /// Whether the pages of a copy are smaller than is usual on its mount.
    pub fn has_small_pages(&self, entry: &Entry) -> bool {
        entry.identity.page_bytes < self.mounts[entry.mount].config.page_bytes
    }

    /// Whether a page is in the tier, whole.
    pub fn is_resident(&self, entry: &Arc<Entry>, page: u32) -> bool {
        let file = self.cache.file(entry);
        file.is_ok_and(|file| file.word(page).state == forebay_store::State::Resident)
    }
}
