//! A client misses pages: wait for them, fetch them ahead, or remember that they were missed.

use crate::cache::NoCopy;
use crate::cache::entry::{Boarding, Entry, Flight, FlightError, FlightState, Task, Urgency, lock};
use crate::counters::add;
use crate::mounts::seal::{NoEntry, sealed_entry};
use crate::mounts::{Admitted, admit, identify};
use crate::serve::connection::{Answer, Connection, PagePins, reply};
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
    let shared = &connection.shared;
    add(&shared.counters.fetch_requests_total, 1);
    if file.facts.version != wanted.version {
        add(&shared.counters.changed_total, 1);
        return reply(Reply::Changed(file.facts));
    }
    let size = file.facts.version.size;
    let page_bytes = shared.mounts[file.mount].config.page_bytes;
    if wanted.len / page_bytes >= u64::from(PREFETCH_PAGES_MAX) {
        return reply(Reply::Refused(Refusal::Invalid("too much at a time".into())));
    }
    if wanted.offset >= size || wanted.len == 0 {
        return reply(Reply::Refused(Refusal::Invalid("nothing to fetch there".into())));
    }
    let last = wanted.offset.saturating_add(wanted.len - 1).min(size - 1) / page_bytes;
    let pages = last - wanted.offset / page_bytes + 1;
    let pfs = match keep_file(connection, &file, fd, pages * page_bytes) {
        Ok(pfs) => pfs,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    // Twice: an entry can be removed between being found and being boarded.
    for _ in 0..2 {
        let entry = match entry_for(connection, &file, &pfs) {
            Ok(entry) => entry,
            Err(answer) => return answer,
        };
        match bring(connection, &entry, &pfs, wanted) {
            Outcome::Ready => return ready(connection, &entry, wanted.copy),
            Outcome::Gone => {}
            Outcome::Late => return reply(Reply::TimedOut),
            Outcome::Failed(e) => return failed(&file, e),
        }
    }
    reply(Reply::Refused(Refusal::NoRoom))
}

/// Keeps a client's file for as long as pages of it are under way, `bytes` at most.
fn keep_file(
    connection: &Connection,
    file: &Admitted,
    fd: OwnedFd,
    bytes: u64,
) -> Result<Arc<PfsFile>, Refusal> {
    let (shared, uid) = (&connection.shared, connection.peer.uid);
    let fetching = shared.share(Kind::Fetching, uid, bytes)?;
    let kept = shared.keep_file(uid, fd)?.for_fetching(&shared.mounts[file.mount]);
    Ok(Arc::new(kept.with(fetching)))
}

fn entry_for(connection: &Connection, file: &Admitted, pfs: &Arc<PfsFile>) -> Result<Arc<Entry>, Answer> {
    sealed_entry(&connection.shared, file, pfs.as_fd(), Opened::Elsewhere).map_err(|e| match e {
        NoEntry::Unsettled(why) => reply(Reply::Refused(why.refusal())),
        NoEntry::Copy(NoCopy::NoRoom) => reply(Reply::Refused(Refusal::NoRoom)),
        NoEntry::Copy(NoCopy::TooLarge) => {
            reply(Reply::Refused(Refusal::Invalid("the file has too many pages of mount.page_size".into())))
        }
        NoEntry::Copy(NoCopy::Tier(e)) => reply(Reply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!("the tier failed: {e}"),
        }),
    })
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
    let Ok(file) = connection.shared.cache.file(entry) else { return Outcome::Gone };
    let mut flights = Vec::new();
    for page in first..=last {
        let needed = (end - u64::from(page) * geometry.page_bytes).min(geometry.page_len(page));
        if file.word(page).covers(needed) {
            continue;
        }
        match entry.board(page) {
            Boarding::Gone => return Outcome::Gone,
            Boarding::New(flight) => {
                send(connection, entry, &flight, pfs, Urgency::Demand);
                flights.push((flight, needed));
            }
            Boarding::Joined(flight) => {
                if flight.demand() && !flight.is_taken() {
                    // It may be waiting behind read-ahead or a load; a second task for it moves it
                    // to the front. One is enough, however often readers give up and come back.
                    send(connection, entry, &flight, pfs, Urgency::Demand);
                }
                flights.push((flight, needed));
            }
        }
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

/// Puts a flight on its way.
fn send(
    connection: &Connection,
    entry: &Arc<Entry>,
    flight: &Arc<Flight>,
    pfs: &Arc<PfsFile>,
    urgency: Urgency,
) {
    let task = Task { entry: entry.clone(), flight: flight.clone(), pfs: pfs.clone(), urgency };
    crate::fetch::pfs::send(&connection.shared, task);
}

fn ready(connection: &Connection, entry: &Arc<Entry>, has: u64) -> Answer {
    let shared = &connection.shared;
    let answer = Reply::Ready { copy: entry.copy(), page_bytes: entry.identity.page_bytes };
    if has == entry.copy() {
        return reply(answer);
    }
    match shared.cache.file(entry).and_then(|f| f.share(&shared.cache.tier, entry.copy())) {
        Ok(fd) => Some((answer, vec![fd])),
        Err(_) => reply(Reply::Refused(Refusal::NoRoom)),
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
    let shared = &connection.shared;
    if file.facts.version != *version || file.facts.version.size == 0 {
        return;
    }
    let page_bytes = shared.mounts[file.mount].config.page_bytes;
    let room = shared.budget.capacity_bytes() / AHEAD_SHARE / page_bytes;
    let count = pages.min(PREFETCH_PAGES_MAX).min(room.min(u64::from(u32::MAX)) as u32);
    let Ok(pfs) = keep_file(connection, &file, fd, u64::from(count) * page_bytes) else {
        return add(&shared.counters.ahead_refused_total, 1);
    };
    let Ok(entry) = entry_for(connection, &file, &pfs) else { return };
    let Ok(copy) = shared.cache.file(&entry) else { return };
    let in_file = entry.geometry().pages() as u32;
    for page in first..first.saturating_add(count).min(in_file) {
        if copy.word(page).state != State::Absent {
            continue;
        }
        match entry.board(page) {
            Boarding::New(flight) => send(connection, &entry, &flight, &pfs, Urgency::Ahead),
            Boarding::Joined(_) => {}
            Boarding::Gone => return,
        }
    }
    // Nothing of it may have been put on its way.
    shared.cache.drop_if_empty(&entry);
}

/// A small read has missed a page and gone to the PFS: once that has happened often enough, the
/// page is fetched, behind everything else and within its share of the PFS's time.
pub fn missed(connection: &Connection, fd: OwnedFd, version: &FileVersion, page: u32, bytes: u32) {
    let shared = &connection.shared;
    let Ok((mount, ino)) = identify(&shared.mounts, fd.as_fd()) else { return };
    let mount = &shared.mounts[mount];
    // The version is part of the key's meaning, but a file that changes between two misses only
    // costs one fetch.
    let key = ino << 24 ^ u64::from(page);
    if !lock(&mount.ledger).missed(key, bytes.into(), mount.config.page_bytes) {
        return;
    }
    let started = admit(&shared.mounts, fd.as_fd())
        .is_ok_and(|file| start_refill(connection, &file, fd, version, page));
    if !started {
        lock(&mount.ledger).filled();
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
    let page_bytes = connection.shared.mounts[file.mount].config.page_bytes;
    let Ok(pfs) = keep_file(connection, file, fd, page_bytes) else { return false };
    let Ok(entry) = entry_for(connection, file, &pfs) else { return false };
    if u64::from(page) >= entry.geometry().pages() {
        connection.shared.cache.drop_if_empty(&entry);
        return false;
    }
    match entry.board(page) {
        Boarding::New(flight) => {
            send(connection, &entry, &flight, &pfs, Urgency::Refill);
            true
        }
        Boarding::Joined(_) | Boarding::Gone => false,
    }
}

/// Pins pages that the client maps, if it shows the copy.
pub fn pin_pages(connection: &mut Connection, fds: &[OwnedFd], copy: u64, first: u32, pages: u32) -> Answer {
    let Some(entry) = connection.shared.cache.by_copy(copy) else {
        return reply(Reply::Refused(Refusal::Invalid("no such copy any more".into())));
    };
    // Only who was given the copy may hold its pages; and a copy of an earlier agent may have had
    // the same number.
    let held = connection.shared.cache.file(&entry);
    if !matches!((fds, held), ([shown], Ok(copy)) if copy.is_same_file(shown.as_fd())) {
        return reply(Reply::Refused(Refusal::NoDescriptor));
    }
    let page_bytes = entry.identity.page_bytes;
    let share = match connection.shared.share(
        Kind::Mapped,
        connection.peer.uid,
        u64::from(pages).saturating_mul(page_bytes),
    ) {
        Ok(share) => share,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    if pages == 0 || !connection.shared.cache.pin_pages(&entry, first, pages) {
        return reply(Reply::Refused(Refusal::TooMany("pinned pages, or they are not all resident".into())));
    }
    connection.pins.push(PagePins { copy, page_bytes, first, count: pages, share });
    reply(Reply::Done)
}

/// Undoes one pin of this connection; others are ignored.
pub fn unpin_pages(connection: &mut Connection, copy: u64, first: u32, pages: u32) {
    let found = connection.pins.iter().position(|p| (p.copy, p.first, p.count) == (copy, first, pages));
    if let Some(pins) = found.map(|i| connection.pins.swap_remove(i)) {
        connection.shared.cache.unpin_pages(copy, pins.page_bytes, first, pages);
    }
}
