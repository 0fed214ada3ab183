//! A client misses pages: wait for them, fetch them ahead, or remember that they were missed.

use super::session::{Answer, Connection, refuse, reply};
use crate::cache::entry::Entry;
use crate::cache::flight::{FlightError, FlightState, Urgency};
use crate::counters::add;
use crate::fetch::find::NoEntry;
use crate::mounts::admit::{Admitted, admit, identify};
use crate::shares::{Kind, PfsFile};
use forebay_pfs::FileVersion;
use forebay_pfs::lease::Opened;
use forebay_store::{BLOCK_BYTES, State};
use forebay_wire::{Refusal, Reply};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Most pages one prefetch may ask for; a window of 64 MiB in pages of 64 KiB.
const PREFETCH_PAGES_MAX: u32 = 1024;

/// A share of the capacity, one in four, that pages fetched ahead and not yet read may take in one
/// request.
const AHEAD_SHARE: u64 = 4;

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
}

/// Brings a range and waits for it.
pub fn fetch(connection: &Connection, file: Admitted, fd: OwnedFd, wanted: &Wanted) -> Answer {
    let node = &connection.node;
    add(&node.counters.fetch_requests_total, 1);
    if file.facts.version != wanted.version {
        add(&node.counters.changed_total, 1);
        return reply(Reply::Changed(file.facts));
    }
    let size = file.facts.version.size;
    let page_bytes = node.mounts[file.mount].config.page_bytes;
    if wanted.len / page_bytes >= u64::from(PREFETCH_PAGES_MAX) {
        return refuse(Refusal::Invalid("too much at a time".into()));
    }
    if wanted.offset >= size || wanted.len == 0 {
        return refuse(Refusal::Invalid("nothing to fetch there".into()));
    }
    let last = wanted.offset.saturating_add(wanted.len - 1).min(size - 1) / page_bytes;
    let pages = last - wanted.offset / page_bytes + 1;
    let pfs = match keep_file(connection, Kind::Fetching, &file, fd, pages * page_bytes) {
        Ok(pfs) => pfs,
        Err(refusal) => return refuse(refusal),
    };
    // Twice: an entry can be removed between being found and being boarded.
    for _ in 0..2 {
        let entry = match entry_for(connection, &file, &pfs) {
            Ok(entry) => entry,
            Err(why) => return reply(why.reply()),
        };
        match bring(connection, &entry, &pfs, wanted) {
            Outcome::Ready => return ready(connection, &entry, wanted.copy),
            Outcome::Gone => {}
            Outcome::Late => return reply(Reply::TimedOut),
            Outcome::Failed(e) => return failed(&file, e),
        }
    }
    refuse(Refusal::NoRoom)
}

/// Keeps a client's file for as long as pages of it are under way, `bytes` at most.
fn keep_file(
    connection: &Connection,
    kind: Kind,
    file: &Admitted,
    fd: OwnedFd,
    bytes: u64,
) -> Result<Arc<PfsFile>, Refusal> {
    let (node, uid) = (&connection.node, connection.peer.uid);
    let fetching = node.shares.share(kind, uid, bytes)?;
    let kept = node.shares.keep_file(uid, fd)?.for_fetching(&node.mounts[file.mount]);
    Ok(Arc::new(kept.with(fetching)))
}

fn entry_for(connection: &Connection, file: &Admitted, pfs: &Arc<PfsFile>) -> Result<Arc<Entry>, NoEntry> {
    connection.node.fetch.sealed_entry(file, pfs.as_fd(), Opened::Elsewhere)
}

enum Outcome {
    Ready,
    Gone,
    Late,
    Failed(FlightError),
}

/// Boards the flights of every missing page first, then waits for each: several pages come at the
/// same time.
fn bring(connection: &Connection, entry: &Arc<Entry>, pfs: &Arc<PfsFile>, wanted: &Wanted) -> Outcome {
    let geometry = entry.geometry();
    let end = wanted.offset.saturating_add(wanted.len).min(geometry.size);
    let first = (wanted.offset / geometry.page_bytes) as u32;
    let last = ((end - 1) / geometry.page_bytes) as u32;
    let Ok(file) = connection.node.cache.file(entry) else { return Outcome::Gone };
    let mut flights = Vec::new();
    for page in first..=last {
        let needed = (end - u64::from(page) * geometry.page_bytes).min(geometry.page_len(page));
        if file.word(page).covers(needed) {
            continue;
        }
        let requested = connection.node.fetch.request(entry, page, pfs, Urgency::Demand, None);
        let Some(requested) = requested else { return Outcome::Gone };
        flights.push((requested.flight, needed));
    }
    for (flight, needed) in flights {
        match flight
            .wait(needed.next_multiple_of(BLOCK_BYTES).min(geometry.page_len(flight.page)), wanted.deadline)
        {
            FlightState::Landed => {}
            FlightState::Under(valid) if valid >= needed => {}
            FlightState::Under(_) => return Outcome::Late,
            FlightState::Failed(e) => return Outcome::Failed(e),
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
        Ok(fd) => Some((answer, vec![fd])),
        Err(_) => refuse(Refusal::NoRoom),
    }
}

fn failed(file: &Admitted, e: FlightError) -> Answer {
    reply(match e {
        FlightError::Changed => Reply::Changed(file.facts),
        FlightError::NoRoom => Reply::Refused(Refusal::NoRoom),
        FlightError::Pfs { errno, message } => Reply::Failed { errno, message },
        FlightError::Cancelled => Reply::Refused(Refusal::TooMany("fetches at a time".into())),
    })
}

/// Puts pages on their way without waiting, if there is room for them.
pub fn prefetch(
    connection: &Connection,
    file: Admitted,
    fd: OwnedFd,
    version: &FileVersion,
    first: u32,
    pages: u32,
) {
    let node = &connection.node;
    if file.facts.version != *version || file.facts.version.size == 0 {
        return;
    }
    let page_bytes = node.mounts[file.mount].config.page_bytes;
    let room = node.cache.budget.capacity_bytes() / AHEAD_SHARE / page_bytes;
    let count = pages.min(PREFETCH_PAGES_MAX).min(room.min(u64::from(u32::MAX)) as u32);
    let Ok(pfs) = keep_file(connection, Kind::Ahead, &file, fd, u64::from(count) * page_bytes) else {
        return add(&node.counters.ahead_refused_total, 1);
    };
    let Ok(entry) = entry_for(connection, &file, &pfs) else { return };
    let Ok(copy) = node.cache.file(&entry) else { return };
    let in_file = entry.geometry().pages() as u32;
    for page in first..first.saturating_add(count).min(in_file) {
        if copy.word(page).state != State::Absent {
            continue;
        }
        if node.fetch.request(&entry, page, &pfs, Urgency::Ahead, None).is_none() {
            return;
        }
    }
    // Nothing of it may have been put on its way.
    node.cache.drop_if_empty(&entry);
}

/// A small read has missed a page and gone to the PFS: once that has happened often enough, the
/// page is fetched, behind everything else and within its share of the PFS's time.
pub fn missed(connection: &Connection, fd: OwnedFd, version: &FileVersion, page: u32, bytes: u32) {
    let node = &connection.node;
    let Ok((mount, ino)) = identify(&node.mounts, fd.as_fd()) else { return };
    // The version is part of the key's meaning, but a file that changes between two misses only
    // costs one fetch.
    let key = ino << 24 ^ u64::from(page);
    if !node.fetch.pfs.missed(mount, key, bytes.into()) {
        return;
    }
    let started =
        admit(&node.mounts, fd.as_fd()).is_ok_and(|file| start_refill(connection, &file, fd, version, page));
    if !started {
        node.fetch.pfs.missed_page_ended(mount);
    }
}

/// Puts one page on its way at the lowest urgency; the fetch thread tells the ledger when it has
/// ended.
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
    let page_bytes = connection.node.mounts[file.mount].config.page_bytes;
    let Ok(pfs) = keep_file(connection, Kind::Ahead, file, fd, page_bytes) else { return false };
    let Ok(entry) = entry_for(connection, file, &pfs) else { return false };
    if u64::from(page) >= entry.geometry().pages() {
        connection.node.cache.drop_if_empty(&entry);
        return false;
    }
    let requested = connection.node.fetch.request(&entry, page, &pfs, Urgency::Refill, None);
    requested.is_some_and(|requested| requested.is_queued)
}
