//! Orders of the coordinator: bringing what a wave will read into this node's tier, and keeping it
//! there.
//!
//! An order names files by their paths, parts of them in the order in which they will be read, and
//! a pace. A thread of its own opens one file after the other with the agent's rights
//! ([`crate::mounts::by_path`]) and feeds pages to the mount's fetch queue, behind every reader and
//! all read-ahead and before loads; `threads` pages at a time, but of a row (`MountState::row_of`)
//! one, at the order's rate, and over all orders never more than half of the mount's fetch threads,
//! so that a reader does not even wait for a page that is being fetched. A page that another node
//! owns is here because its task will be: it comes by way of its owner, so that the PFS serves it
//! once for the cluster, and then it is the owner's fetch threads that are spared
//! ([`Orders::pass`]). What has come is kept for the order until its first use or the order's end
//! (`forebay_policy::eviction::Planned`).
//!
//! An order lives until it is cancelled, also when all of it has come. All of them go when the
//! coordinator is lost for longer than it waits for this node, or met anew: it orders again what is
//! still wanted.

use crate::agent::Shared;
use crate::cache::entry::{Boarding, Entry, FlightError, Task, Urgency, Watcher, lock};
use crate::counters::add;
use crate::fetch::peers;
use crate::fetch::pfs;
use crate::mounts::Admitted;
use crate::mounts::by_path::{ByPath, NoPath, open_by_path};
use crate::mounts::seal::{NoEntry, Unsettled, sealed_entry};
use crate::shares::PfsFile;
use forebay_pfs::FileFacts;
use forebay_pfs::lease::Opened;
use forebay_policy::machine::Nanos;
use forebay_policy::token_bucket::TokenBucket;
use forebay_store::{Class, Reservation, State as PageState};
use forebay_wire::cluster::{Order, OrderProgress, Part};
use forebay_wire::{FileRef, Refusal};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Orders at a time; each has a thread while it is fed. A stage of a job has a few.
const ORDERS_MAX: usize = 256;

/// Burst of a limited order: a page is never split over two refills.
const BURST_BYTES: u64 = 4 << 20;

/// How often a young file is looked at again before it is given up; each time after its stamps
/// could have been believed.
const YOUNG_LOOKS: usize = 3;

/// What a file and a part of an order take, roughly.
const FILE_BYTES: u64 = 256;
const PART_BYTES: u64 = 24;

/// Stack of a feeding thread.
const STACK_BYTES: usize = 256 << 10;

/// The orders of this agent.
#[derive(Debug, Default)]
pub struct Orders {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    orders: BTreeMap<u64, Run>,
    /// Pages under way from the PFS, by mount: those of orders here, and those passed on to peers
    /// for theirs.
    in_flight: BTreeMap<usize, usize>,
    /// Peers that wait to have a page fetched for an order of theirs, by mount.
    waiting_peers: BTreeMap<usize, usize>,
    /// Of the ticket given last.
    serial: u64,
}

/// Names an order as it was begun here. Its number alone does not: a coordinator that has been
/// started again counts from one, and what is under way for an order of its predecessor is not for
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket {
    id: u64,
    serial: u64,
}

/// One order.
#[derive(Debug)]
struct Run {
    /// See [`Ticket`].
    serial: u64,
    threads: u32,
    /// Others go first.
    ahead: bool,
    bucket: TokenBucket,
    in_flight: u32,
    /// The row of its last page, by key (`MountState::row_of`), and how many of it are under way:
    /// one has to have come before the next is sent, or they would wait for each other in places
    /// that others could have.
    row: Option<u64>,
    in_row: u32,
    /// The row of the page that waits.
    next_row: Option<u64>,
    /// For which mount its next page waits, if for one.
    waits_for: Option<usize>,
    progress: OrderProgress,
    /// Nothing more will be fed.
    fed: bool,
    /// There is something to tell.
    dirty: bool,
    /// Its end has been told.
    told: bool,
    /// What its files and parts take, until it is fed.
    room: Option<Reservation>,
}

impl Orders {
    /// Begins to carry out `order`. One that cannot be carried out ends at once, with all of it
    /// failed.
    pub fn begin(shared: &Arc<Shared>, order: Order) {
        let id = order.order;
        let bytes = order.files.len() as u64 * FILE_BYTES + order.parts.len() as u64 * PART_BYTES;
        let room = shared.cache.reserve(Class::Clients, bytes, &shared.counters);
        let started = started_ns(shared);
        let fits = room.is_some();
        let run = Run {
            serial: 0,
            threads: order.threads,
            ahead: order.ahead,
            bucket: TokenBucket::new(started, limit(order.rate_bytes_per_s), BURST_BYTES),
            in_flight: 0,
            row: None,
            in_row: 0,
            next_row: None,
            waits_for: None,
            progress: OrderProgress {
                order: id,
                fetched_bytes: 0,
                resident_bytes: 0,
                failed_bytes: 0,
                done: false,
            },
            fed: false,
            dirty: false,
            told: false,
            room,
        };
        let (accepted, ticket) = {
            let mut state = lock(&shared.orders.state);
            let accepted = fits && state.orders.values().filter(|r| !r.fed).count() < ORDERS_MAX;
            state.serial += 1;
            let ticket = Ticket { id, serial: state.serial };
            state.orders.insert(id, Run { serial: ticket.serial, ..run });
            (accepted, ticket)
        };
        let all: u64 = order.parts.iter().map(|p| p.len).sum();
        let feeding = shared.clone();
        let spawned = accepted.then(|| {
            let feed = move || Feeder { shared: feeding, ticket }.feed(&order);
            std::thread::Builder::new().name("order".into()).stack_size(STACK_BYTES).spawn(feed)
        });
        if !matches!(spawned, Some(Ok(_))) {
            tracing::warn!(order = id, "cannot execute a prefetch request: too many, or no memory");
            shared.orders.note(shared, ticket, |p| p.failed_bytes += all);
            shared.orders.end_feeding(shared, ticket);
        }
    }

    /// Changes the pace of an order; no pages at a time pause it.
    pub fn adjust(&self, shared: &Shared, id: u64, threads: u32, rate_bytes_per_s: u64) {
        if let Some(run) = lock(&self.state).orders.get_mut(&id) {
            run.threads = threads;
            // One that has more than a page at a time by now has become a planned one, and one that
            // has one is behind those.
            run.ahead = threads == 1;
            run.bucket.set_rate(started_ns(shared), limit(rate_bytes_per_s));
        }
        self.changed.notify_all();
    }

    /// Forgets orders: what is not fetched is not fetched any more, and what came may go.
    pub fn cancel(&self, shared: &Shared, ids: &[u64]) {
        let ids: BTreeSet<u64> = ids.iter().copied().collect();
        lock(&self.state).orders.retain(|id, _| !ids.contains(id));
        self.changed.notify_all();
        shared.cache.unplan(Some(&ids));
    }

    /// Forgets all orders.
    pub fn drop_all(&self, shared: &Shared) {
        let dropped = std::mem::take(&mut lock(&self.state).orders);
        self.changed.notify_all();
        if !dropped.is_empty() {
            tracing::info!(orders = dropped.len(), "prefetch requests are void without their coordinator");
            shared.cache.unplan(None);
        }
    }

    /// Whether any order has something left to tell.
    pub fn are_busy(&self) -> bool {
        lock(&self.state).orders.values().any(|run| !run.told)
    }

    /// What is to be told of orders now: those that have ended, and with `all` those that have
    /// moved.
    pub fn take_progress(&self, all: bool) -> Vec<OrderProgress> {
        let mut state = lock(&self.state);
        let moved = state.orders.values_mut().filter(|run| run.dirty && (all || run.progress.done));
        moved
            .map(|run| {
                run.dirty = false;
                run.told = run.progress.done;
                run.progress
            })
            .collect()
    }

    fn note(&self, shared: &Shared, ticket: Ticket, change: impl FnOnce(&mut OrderProgress)) {
        if let Some(run) = lock(&self.state).run_mut(ticket) {
            change(&mut run.progress);
            run.dirty = true;
            run.end_if_done(shared);
        }
    }

    fn end_feeding(&self, shared: &Shared, ticket: Ticket) {
        if let Some(run) = lock(&self.state).run_mut(ticket) {
            run.fed = true;
            run.room = None;
            run.end_if_done(shared);
        }
    }

    fn is_live(&self, ticket: Ticket) -> bool {
        lock(&self.state).run_mut(ticket).is_some()
    }

    /// Waits until the order may send another page of `bytes` on its way, with `mount` to the PFS
    /// of that mount; `false` if it is not wanted any more. Pages that peers wait for go first, or
    /// two nodes with much to do would wait for each other.
    fn take_off(
        &self,
        shared: &Shared,
        ticket: Ticket,
        mount: Option<usize>,
        row: Option<u64>,
        bytes: u64,
    ) -> bool {
        let mut state = lock(&self.state);
        loop {
            let busy = mount.is_some_and(|mount| {
                let peer = usize::from(state.waiting_peers.contains_key(&mount));
                state.outranked(ticket.id, mount)
                    || state.under_way(mount) + peer >= most_under_way(shared, mount)
            });
            let Some(run) = state.run_mut(ticket).filter(|_| !shared.is_stopping()) else { return false };
            run.next_row = row;
            let may_send = run.in_flight < run.threads && !run.waits_for_row();
            let wait_ns =
                if may_send && !busy { run.bucket.take(started_ns(shared), bytes) } else { u64::MAX };
            let has_waited = run.waits_for.is_some();
            // Not if it is its own rate that holds it up.
            run.waits_for = mount.filter(|_| wait_ns == u64::MAX);
            if wait_ns == 0 {
                run.in_flight += 1;
                if row.is_some() {
                    if run.row != row {
                        (run.row, run.in_row) = (row, 0);
                    }
                    run.in_row += 1;
                }
                if let Some(mount) = mount {
                    *state.in_flight.entry(mount).or_default() += 1;
                }
                // There may be room for a later order as well, which has waited for this one.
                self.changed.notify_all();
                return true;
            }
            if has_waited && run.waits_for.is_none() {
                self.changed.notify_all();
            }
            // Woken when a page lands, the pace changes or the order goes; at the latest to look
            // whether the agent ends.
            let wait = Duration::from_nanos(wait_ns).min(Duration::from_millis(500));
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until `deadline` for leave to fetch a page of `mount` that a peer has an order for;
    /// `None` if none came.
    pub fn pass(shared: &Arc<Shared>, mount: usize, deadline: Instant) -> Option<Passed> {
        let orders = &shared.orders;
        let mut state = lock(&orders.state);
        *state.waiting_peers.entry(mount).or_default() += 1;
        let free = loop {
            if state.under_way(mount) < most_under_way(shared, mount) {
                *state.in_flight.entry(mount).or_default() += 1;
                break true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break false;
            }
            state = orders.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        take_one(&mut state.waiting_peers, mount);
        drop(state);
        // Orders here may have waited for this one.
        orders.changed.notify_all();
        free.then(|| Passed { shared: shared.clone(), mount })
    }

    /// A page that was under way has ended.
    fn landed(&self, shared: &Shared, page: &OrderedPage, outcome: &Result<u64, FlightError>) {
        let mut state = lock(&self.state);
        if page.from_pfs {
            take_one(&mut state.in_flight, page.entry.mount);
        }
        if let Some(run) = state.run_mut(page.order) {
            run.in_flight = run.in_flight.saturating_sub(1);
            if page.row.is_some() && run.row == page.row {
                run.in_row = run.in_row.saturating_sub(1);
            }
            match outcome {
                Ok(0) => run.progress.resident_bytes += page.bytes,
                Ok(_) => run.progress.fetched_bytes += page.bytes,
                Err(_) => run.progress.failed_bytes += page.bytes,
            }
            if outcome.is_ok() {
                // Under the lock: an order that is cancelled now takes its claim back afterwards.
                shared.cache.plan(page.entry.key(page.page), page.order.id);
            }
            run.dirty = true;
            run.end_if_done(shared);
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    fn run_mut(&mut self, ticket: Ticket) -> Option<&mut Run> {
        self.orders.get_mut(&ticket.id).filter(|run| run.serial == ticket.serial)
    }

    /// Whether a page of another order has to go before those of `id` to the PFS of `mount`: what
    /// is brought ahead of the planned waves waits for planned orders of several pages, and for all
    /// that were given before. (Those of one page are pieces, which are given in the order in which
    /// they are needed.)
    fn outranked(&self, id: u64, mount: usize) -> bool {
        if !self.orders.get(&id).is_some_and(|run| run.ahead) {
            return false;
        }
        let may_go =
            |run: &Run| run.waits_for == Some(mount) && run.in_flight < run.threads && !run.waits_for_row();
        self.orders
            .iter()
            .any(|(other, run)| *other != id && may_go(run) && (*other < id || !run.ahead && run.threads > 1))
    }

    fn under_way(&self, mount: usize) -> usize {
        self.in_flight.get(&mount).copied().unwrap_or(0)
    }
}

/// Pages of orders that may be under way from the PFS of a mount.
fn most_under_way(shared: &Shared, mount: usize) -> usize {
    (shared.mounts[mount].config.fetch_threads / 2).max(1)
}

fn take_one(counts: &mut BTreeMap<usize, usize>, mount: usize) {
    if let Some(n) = counts.get_mut(&mount) {
        *n = n.saturating_sub(1);
        if *n == 0 {
            counts.remove(&mount);
        }
    }
}

/// Leave to fetch a page for an order of a peer. Watches the flight, and with its end makes room
/// for the next.
#[derive(Debug)]
pub struct Passed {
    shared: Arc<Shared>,
    mount: usize,
}

impl Watcher for Passed {
    fn page_done(&self, _page: u32, _outcome: &Result<u64, FlightError>) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        take_one(&mut lock(&self.shared.orders.state).in_flight, self.mount);
        self.shared.orders.changed.notify_all();
    }
}

impl Run {
    /// Whether the page before has to come first.
    fn waits_for_row(&self) -> bool {
        self.next_row.is_some() && self.next_row == self.row && self.in_row > 0
    }

    fn end_if_done(&mut self, shared: &Shared) {
        if self.fed && self.in_flight == 0 && !self.progress.done {
            self.progress.done = true;
            self.dirty = true;
            shared.link.wake();
        }
    }
}

/// A rate of 0 stands for no limit, which no bucket has.
fn limit(rate_bytes_per_s: u64) -> u64 {
    if rate_bytes_per_s == 0 { 1 << 50 } else { rate_bytes_per_s }
}

fn started_ns(shared: &Shared) -> Nanos {
    Nanos(shared.started.elapsed().as_nanos() as u64)
}

/// A page under way for an order.
#[derive(Debug)]
struct OrderedPage {
    shared: Arc<Shared>,
    order: Ticket,
    entry: Arc<Entry>,
    page: u32,
    /// Of it, bytes that the order asks for.
    bytes: u64,
    /// It is fetched from the PFS here, not asked of a peer.
    from_pfs: bool,
    /// See [`Run`].
    row: Option<u64>,
}

impl Watcher for OrderedPage {
    fn page_done(&self, _page: u32, outcome: &Result<u64, FlightError>) {
        self.shared.orders.landed(&self.shared, self, outcome);
    }

    fn is_cancelled(&self) -> bool {
        !self.shared.orders.is_live(self.order)
    }
}

/// Feeds the pages of one order.
struct Feeder {
    shared: Arc<Shared>,
    ticket: Ticket,
}

/// A file of an order, open.
struct Source {
    number: u32,
    entry: Arc<Entry>,
    pfs: Arc<PfsFile>,
    /// See [`Feeder::failed_bytes`].
    failed_before: u64,
}

impl Feeder {
    fn feed(&self, order: &Order) {
        let mut source: Option<Source> = None;
        let mut bad: Option<u32> = None;
        for part in &order.parts {
            if !self.shared.orders.is_live(self.ticket) {
                break;
            }
            if source.as_ref().is_none_or(|s| s.number != part.file) && bad != Some(part.file) {
                self.close(source.take());
                match order.files.get(part.file as usize).and_then(|file| self.open(part.file, file)) {
                    Some(opened) => source = Some(opened),
                    None => bad = Some(part.file),
                }
            }
            match &mut source {
                Some(source) if source.number == part.file => self.feed_part(source, part),
                _ => self.shared.orders.note(&self.shared, self.ticket, |p| p.failed_bytes += part.len),
            }
        }
        self.close(source);
        self.shared.orders.end_feeding(&self.shared, self.ticket);
    }

    /// Nothing of it may have come.
    fn close(&self, source: Option<Source>) {
        if let Some(source) = source {
            self.shared.cache.drop_if_empty(&source.entry);
        }
    }

    fn open(&self, number: u32, file: &FileRef) -> Option<Source> {
        let path = String::from_utf8_lossy(&file.path);
        let (fd, entry) = match self.open_settled(file) {
            Ok(opened) => opened,
            Err(NoPath::Changed) => {
                add(&self.shared.counters.changed_total, 1);
                tracing::info!(path = &*path, "has changed since it was planned; it is not fetched");
                return None;
            }
            Err(NoPath::Refused(why)) => {
                tracing::info!(path = &*path, %why, "is not fetched");
                return None;
            }
            Err(NoPath::Pfs(e)) => {
                tracing::warn!(path = &*path, error = %e, "cannot be opened to be fetched");
                return None;
            }
        };
        let failed_before = self.failed_bytes();
        Some(Source { number, entry, pfs: Arc::new(fd.into()), failed_before })
    }

    /// A file that was changed a moment ago is looked at again when its stamps can be believed.
    fn open_settled(&self, file: &FileRef) -> Result<(OwnedFd, Arc<Entry>), NoPath> {
        let mut refused = NoPath::Changed;
        for _ in 0..YOUNG_LOOKS {
            let ByPath { fd, file: opened } = open_by_path(&self.shared.mounts, file)?;
            let left = match sealed_entry(&self.shared, &opened, fd.as_fd(), Opened::Here) {
                Ok(entry) => return Ok((fd, entry)),
                Err(NoEntry::Unsettled(Unsettled::Young(left))) => left,
                Err(NoEntry::Unsettled(why)) => return Err(NoPath::Refused(why.refusal())),
                Err(NoEntry::Copy(_)) => return Err(NoPath::Refused(Refusal::NoRoom)),
            };
            if left > self.shared.mounts[opened.mount].settling(&opened.facts) {
                // From the future: clocks differ, and waiting might not end.
                break;
            }
            refused = NoPath::Refused(Refusal::Young);
            self.pause(left);
        }
        Err(refused)
    }

    /// Sleeps, but not through the order's end.
    fn pause(&self, length: Duration) {
        let deadline = Instant::now() + length;
        while self.shared.orders.is_live(self.ticket) && !self.shared.is_stopping() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    fn feed_part(&self, source: &mut Source, part: &Part) {
        let geometry = source.entry.geometry();
        let end = part.offset.saturating_add(part.len).min(geometry.size);
        let mut at = part.offset;
        while at < end {
            let page = at / geometry.page_bytes;
            let next = ((page + 1) * geometry.page_bytes).min(end);
            // Pages of a copy fit 32 bits, or it would not have been made.
            self.feed_page(source, page as u32, next - at);
            at = next;
        }
    }

    fn feed_page(&self, source: &mut Source, page: u32, bytes: u64) {
        let shared = &self.shared;
        let entry = source.entry.clone();
        let resident =
            shared.cache.file(&entry).is_ok_and(|file| file.word(page).state == PageState::Resident);
        let geometry = entry.geometry();
        let len = if resident { 0 } else { geometry.page_len(page) };
        let version = &entry.identity.version;
        let owner = peers::owner_of(shared, entry.mount, version, geometry.page_bytes, page);
        let mount = (owner.is_none() && !resident).then_some(entry.mount);
        let row = shared.mounts[entry.mount].row_of(geometry.page_bytes, page).filter(|_| mount.is_some());
        let row = row.map(|first| entry.key(first));
        if !shared.orders.take_off(shared, self.ticket, mount, row, len) {
            return;
        }
        let ordered = |entry: Arc<Entry>| OrderedPage {
            shared: shared.clone(),
            order: self.ticket,
            entry,
            page,
            bytes,
            from_pfs: mount.is_some(),
            row,
        };
        if resident {
            return ordered(entry).page_done(page, &Ok(0));
        }
        // Twice: while this waited the copy may have gone from the tier with the last of its pages.
        for _ in 0..2 {
            let entry = source.entry.clone();
            let (flight, is_new) = match entry.board(page) {
                Boarding::New(flight) => (flight, true),
                Boarding::Joined(flight) => (flight, false),
                Boarding::Gone => match self.entry_again(source) {
                    Some(entry) => {
                        source.entry = entry;
                        continue;
                    }
                    None => break,
                },
            };
            // One that is under way may be waiting behind a load; a second task for it moves it to
            // its place.
            if flight.watch(Arc::new(ordered(entry.clone()))) && (is_new || !flight.is_taken()) {
                let pfs = source.pfs.clone();
                pfs::send(shared, Task { entry, flight, pfs, urgency: Urgency::Plan });
            }
            return;
        }
        ordered(entry).page_done(page, &Err(FlightError::NoRoom));
    }

    /// Bytes of the order that could not be brought.
    fn failed_bytes(&self) -> u64 {
        lock(&self.shared.orders.state).run_mut(self.ticket).map_or(u64::MAX, |run| run.progress.failed_bytes)
    }

    /// The file's entry, made anew; `None` if the file has changed or the tier has no room, or if
    /// something has failed since the file was opened: then it may have gone for that, and a server
    /// that does not answer is not asked page by page.
    fn entry_again(&self, source: &Source) -> Option<Arc<Entry>> {
        if self.failed_bytes() > source.failed_before {
            return None;
        }
        let mount = &self.shared.mounts[source.entry.mount];
        let facts = FileFacts::of(source.pfs.as_fd(), mount.config.revalidate).ok()?;
        if facts.version != source.entry.identity.version {
            return None;
        }
        let file = Admitted { mount: source.entry.mount, facts };
        sealed_entry(&self.shared, &file, source.pfs.as_fd(), Opened::Here).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An order of so many pages at a time whose next page waits for mount 0.
    fn run(threads: u32, ahead: bool) -> Run {
        let progress =
            OrderProgress { order: 0, fetched_bytes: 0, resident_bytes: 0, failed_bytes: 0, done: false };
        Run {
            serial: 1,
            threads,
            ahead,
            bucket: TokenBucket::new(Nanos(0), limit(0), BURST_BYTES),
            in_flight: 0,
            row: None,
            in_row: 0,
            next_row: None,
            waits_for: Some(0),
            progress,
            fed: false,
            dirty: false,
            told: false,
            room: None,
        }
    }

    fn of(orders: Vec<(u64, Run)>) -> State {
        State { orders: orders.into_iter().collect(), ..State::default() }
    }

    #[test]
    fn what_is_brought_ahead_waits_for_what_is_needed_before() {
        let outranked = |other: (u64, Run)| of(vec![(5, run(1, true)), other]).outranked(5, 0);
        assert!(outranked((4, run(1, true))), "given before");
        assert!(!outranked((6, run(1, true))));
        assert!(outranked((6, run(4, false))), "a planned wave");
        assert!(!outranked((6, run(1, false))), "a piece that is needed later");
        assert!(!outranked((4, Run { waits_for: None, ..run(4, false) })), "it has no page to send");
        assert!(!outranked((4, Run { waits_for: Some(1), ..run(4, false) })), "to another mount");
        assert!(!outranked((4, Run { in_flight: 4, ..run(4, false) })), "or may not");
        assert!(!of(vec![(5, run(1, false)), (4, run(4, false))]).outranked(5, 0), "planned ones share");
    }

    #[test]
    fn who_waits_for_its_row_holds_nobody_up() {
        let in_a_row = |next_row| Run { row: Some(7), in_row: 1, in_flight: 1, next_row, ..run(4, false) };
        assert!(in_a_row(Some(7)).waits_for_row());
        assert!(!in_a_row(Some(8)).waits_for_row() && !in_a_row(None).waits_for_row());
        assert!(!Run { in_row: 0, ..in_a_row(Some(7)) }.waits_for_row());
        let outranked = |other| of(vec![(5, run(1, true)), (4, other)]).outranked(5, 0);
        assert!(!outranked(in_a_row(Some(7))) && outranked(in_a_row(Some(8))));
    }

    #[test]
    fn what_is_under_way_for_an_order_of_a_coordinator_before_is_not_for_its_successor_s() {
        let mut state = of(vec![(1, Run { serial: 2, ..run(1, false) })]);
        assert!(state.run_mut(Ticket { id: 1, serial: 1 }).is_none());
        assert!(state.run_mut(Ticket { id: 1, serial: 2 }).is_some());
    }
}
