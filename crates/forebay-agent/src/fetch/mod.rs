//! What a miss does: a page comes into the tier, from the peer that owns it or from the PFS.
//!
//! | file | what it does |
//! | --- | --- |
//! | `ends` | ends the way of a page: readers are woken, and it is counted |
//! | `find` | finds or creates the entry of a version; says why there is none |
//! | `owners` | who is asked: the peer that owns the page, or the PFS |
//! | `peers`, `peer_link` | requests pages from peers; from the PFS where that fails |
//! | `pfs` | the fetch threads of a mount |
//! | `queue` | what waits for a thread, by urgency |
//! | `run` | adjacent pages that are one read of the PFS |
//! | `streams` | pages that one server sends faster one after the other |
//!
//! [`Fetch::request`] is the way in, for peers [`Fetch::request_for_peer`]. Whoever wants a page
//! joins the fetch of it that is under way, or starts one.

pub mod ends;
pub mod find;
pub mod owners;
pub mod peer_link;
pub mod peers;
pub mod pfs;
mod run;
pub mod streams;
pub mod thread_queue;

use crate::brake::Brake;
use crate::cache::Cache;
use crate::cache::entry::{Entry, Task};
use crate::cache::flight::{Flight, FlightError, Watched, Watcher};
use crate::counters::Counters;
use crate::mounts::MountState;
use crate::user_limits::PfsFile;
use ends::Ends;
use forebay_policy::fetch_order::Urgency;
use owners::Owners;
use peers::Peers;
use pfs::Pfs;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at whether a flight that was given up has gone.
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
    pub ends: Arc<Ends>,
    /// Who is asked for a page.
    pub owners: Arc<Owners>,
    /// Fetches from the PFS.
    pub pfs: Arc<Pfs>,
    /// Fetches from peers.
    pub peers: Arc<Peers>,
    /// Stops what no reader waits for.
    pub brake: Arc<Brake>,
}

/// A page that is on its way.
#[derive(Debug)]
pub struct Requested {
    /// Its fetch.
    pub flight: Arc<Flight>,
    /// It was not on its way before.
    pub is_new: bool,
    /// This request has queued it, at its own urgency: it was not as urgent before.
    pub is_queued: bool,
}

/// The page waits for another peer, and is not promised to one.
#[derive(Debug)]
pub struct AtPeer;

/// Boards the flight of a page with who watches it, and whether it goes on: a reader may have
/// joined it, had it fetched and seen it end before `watcher` came. One that others have given up
/// is over in a moment, and the next one is boarded.
fn board(
    entry: &Entry,
    page: u32,
    mut watcher: Option<Arc<dyn Watcher>>,
) -> Option<(Arc<Flight>, bool, bool)> {
    loop {
        let (flight, is_new) = entry.board(page)?;
        let Some(watched) = watcher.take().map(|watcher| flight.watch(watcher)) else {
            return Some((flight, is_new, true));
        };
        match watched {
            Watched::Joined => return Some((flight, is_new, true)),
            Watched::Ended => return Some((flight, is_new, false)),
            Watched::GivenUp(back) => watcher = Some(back),
        }
        std::thread::sleep(GIVEN_UP_PAUSE);
    }
}

/// Whether a page has become more urgent, so that it has to be queued at that urgency, or is to be
/// queued `again`.
fn is_to_be_queued(flight: &Flight, is_new: bool, urgency: Urgency, again: bool) -> bool {
    // A full queue ends what is fetched ahead, and must not end what others wait for.
    let may = is_new || urgency != Urgency::Ahead;
    may && (flight.raise(urgency) || again)
}

impl Fetch {
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
        let (flight, is_new, goes_on) = board(entry, page, watcher)?;
        let is_queued = goes_on && self.queue(entry, (&flight, is_new), pfs, urgency, false);
        Some(Requested { flight, is_new, is_queued })
    }

    /// Puts adjacent pages on their way, or joins those who wait for them; `watcher` hears of the
    /// end of each. Small ones that come from the PFS are one read of it, as far as a read may be
    /// long.
    /// `None` if the entry was removed meanwhile.
    pub fn request_run(
        &self,
        entry: &Arc<Entry>,
        pages: Range<u32>,
        pfs: &Arc<PfsFile>,
        urgency: Urgency,
        watcher: Option<&Arc<dyn Watcher>>,
    ) -> Option<Vec<Arc<Flight>>> {
        // All before the first is queued: a thread that took one at once would read it by itself.
        let mut boarded = Vec::with_capacity(pages.len());
        for page in pages {
            match (board(entry, page, watcher.cloned()), watcher) {
                (Some(flight), _) => boarded.push(flight),
                (None, _) if boarded.is_empty() => return None,
                // Removed within this loop: all before it had ended. Whoever asks again gets it.
                (None, Some(watcher)) => watcher.page_done(page, &Err(FlightError::NoRoom)),
                (None, None) => {}
            }
        }
        let has_small_pages = self.has_small_pages(entry);
        let mut run: Option<Task> = None;
        for (flight, is_new, goes_on) in &boarded {
            if !goes_on || !is_to_be_queued(flight, *is_new, urgency, false) || flight.is_taken() {
                continue;
            }
            let task = Task {
                entry: entry.clone(),
                flight: flight.clone(),
                behind: Vec::new(),
                pfs: pfs.clone(),
                urgency,
            };
            match (self.owners.route(&task), &mut run) {
                (Some(node), _) => self.peers.send(&node, task),
                (None, Some(run)) if has_small_pages && pfs::goes_with(run, flight) => {
                    run.behind.push(flight.clone());
                }
                (None, run) => {
                    if let Some(full) = run.replace(task) {
                        self.pfs.send(full);
                    }
                }
            }
        }
        if let Some(run) = run {
            self.pfs.send(run);
        }
        Some(boarded.into_iter().map(|(flight, _, _)| flight).collect())
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
        let Some((flight, is_new)) = entry.board(page) else { return Ok(None) };
        if flight.is_at_peer() {
            return Err(AtPeer);
        }
        let waits_for_peer = flight.keep_from_peers() && !is_new;
        let is_queued = self.queue(entry, (&flight, is_new), pfs, urgency, waits_for_peer);
        Ok(Some(Requested { flight, is_new, is_queued }))
    }

    /// Queues a page that has become more urgent, or if `again`. Behind what it waited for before
    /// it still waits: the second of the two tasks finds it taken. Whether it was to be queued.
    fn queue(
        &self,
        entry: &Arc<Entry>,
        (flight, is_new): (&Arc<Flight>, bool),
        pfs: &Arc<PfsFile>,
        urgency: Urgency,
        again: bool,
    ) -> bool {
        if !is_to_be_queued(flight, is_new, urgency, again) {
            return false;
        }
        if !flight.is_taken() {
            let (entry, flight, pfs) = (entry.clone(), flight.clone(), pfs.clone());
            let task = Task { entry, flight, behind: Vec::new(), pfs, urgency };
            match self.owners.route(&task) {
                Some(node) => self.peers.send(&node, task),
                None => self.pfs.send(task),
            }
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
