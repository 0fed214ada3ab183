//! Orders of the coordinator: fetching what a wave will read into this node's tier, and keeping it
//! there.
//!
//! An order names files by their paths, parts of them in the order in which they will be read, and
//! a pace. A thread of its own opens one file after the other with the agent's rights
//! ([`crate::mounts::by_path`]) and feeds pages to the mount's fetch queue, behind every reader and
//! all read-ahead and before loads; `threads` pages at a time, at the order's rate, and over all
//! orders never more than half of the mount's fetch threads, so that a reader does not even wait
//! for a page that is being fetched. Reads of columnar files, which are short, may be half as many
//! again ([`InFlight::has_room`]). A page that another node owns is here because its task will
//! be: it comes by way of its owner, so that the PFS serves it once for the cluster, and then it is
//! the owner's fetch threads that are spared ([`Orders::pass`]). What has come is kept for the
//! order until its first use or the order's end (`forebay_policy::eviction::Planned`).
//!
//! An order lives until it is cancelled, also when all of it has come. All of them go when the
//! coordinator is lost for longer than it waits for this node, or met anew: it orders again what is
//! still wanted.

use super::feeder::{Errand, Next, Source, entry_again, feed};
use crate::brake::LOOK;
use crate::cache::entry::Entry;
use crate::cache::flight::{FlightError, Watcher};
use crate::counters::add;
use crate::fetch::Fetch;
use crate::fetch::find::NoEntry;
use crate::fetch::pfs::READ_BYTES;
use crate::lock::lock;
use crate::mounts::by_path::{ByPath, NoPath, open_by_path};
use crate::mounts::seal::Unsettled;
use crate::stop::{Stop, Wake};
use forebay_pfs::lease::Opened;
use forebay_policy::fetch_order::{self, InFlight, Urgency};
use forebay_policy::machine::Nanos;
use forebay_policy::merge_gap::{self, goes_on};
use forebay_policy::stage::event::Priority;
use forebay_policy::token_bucket::TokenBucket;
use forebay_store::{Class, Reservation};
use forebay_wire::FileRef;
use forebay_wire::cluster::{Order, OrderProgress, Part};
use rustix::fs::{Advice, fadvise};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Orders at a time; each has a thread while it is fed. A stage of a job has a few.
const ORDERS_MAX: usize = 256;

/// Burst of a limited order: a page is never split over two refills.
const BURST_BYTES: u64 = 4 << 20;

/// How often a racily clean file is looked at again before it is given up; each time after its
/// stamps could have been believed.
const RACY_LOOKS: usize = 3;

/// What a file and a part of an order take, roughly.
const FILE_BYTES: u64 = 256;
const PART_BYTES: u64 = 24;

/// Stack of a feeding thread.
const STACK_BYTES: usize = 256 << 10;

/// The orders of this agent.
#[derive(Debug)]
pub struct Orders {
    state: Mutex<State>,
    changed: Condvar,
    fetch: Arc<Fetch>,
    stop: Arc<Stop>,
    /// Calls the thread that reports progress.
    reporting: Arc<Wake>,
    started: Instant,
}

#[derive(Debug, Default)]
struct State {
    orders: BTreeMap<u64, Run>,
    /// Pages under way from the PFS, by mount: those of orders here, and those passed on to peers
    /// for theirs.
    in_flight: BTreeMap<usize, InFlight>,
    /// Pages that are fetched for orders of peers.
    passed: usize,
    /// Peers that wait to have a page fetched for an order of theirs, by mount.
    waiting_peers: BTreeMap<usize, usize>,
    /// The coordinator has paused all orders of the cluster.
    all_rest: bool,
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

/// A read of a mount for an order.
#[derive(Clone, Copy, Debug)]
struct Read {
    mount: usize,
    bytes: u64,
    /// Of small pages.
    is_short: bool,
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
    in_flight: InFlight,
    /// The read of a mount that is its next one, and waits.
    waits_for: Option<Read>,
    progress: OrderProgress,
    /// Nothing more will be fed.
    fed: bool,
    /// There is something to tell.
    dirty: bool,
    /// Its end has been told.
    reported: bool,
    /// What its files and parts take, until it is fed.
    room: Option<Reservation>,
}

impl Orders {
    /// None yet. An order that has ended calls `reporting`.
    pub fn new(fetch: Arc<Fetch>, stop: Arc<Stop>, reporting: Arc<Wake>) -> Self {
        let (state, changed, started) = (Mutex::default(), Condvar::new(), Instant::now());
        Orders { state, changed, fetch, stop, reporting, started }
    }

    /// Begins to carry out `order`. One that cannot be carried out ends at once, with all of it
    /// failed.
    pub fn begin(self: &Arc<Self>, order: Order) {
        let id = order.order;
        let bytes = order.files.len() as u64 * FILE_BYTES + order.parts.len() as u64 * PART_BYTES;
        let room = self.fetch.cache.reserve(Class::Clients, bytes);
        let fits = room.is_some();
        let run = Run {
            serial: 0,
            threads: order.threads,
            ahead: order.ahead,
            bucket: TokenBucket::new(self.now(), limit(order.rate_bytes_per_s), BURST_BYTES),
            in_flight: InFlight::default(),
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
            reported: false,
            room,
        };
        let (accepted, ticket) = {
            let mut state = lock(&self.state);
            let accepted = fits && state.orders.values().filter(|r| !r.fed).count() < ORDERS_MAX;
            state.serial += 1;
            let ticket = Ticket { id, serial: state.serial };
            state.orders.insert(id, Run { serial: ticket.serial, ..run });
            self.rest_if_paused(&state);
            (accepted, ticket)
        };
        let all: u64 = order.parts.iter().map(|p| p.len).sum();
        let orders = self.clone();
        let spawned = accepted.then(|| {
            let feed = move || Feeder { orders, ticket }.feed(&order);
            std::thread::Builder::new().name("order".into()).stack_size(STACK_BYTES).spawn(feed)
        });
        if !matches!(spawned, Some(Ok(_))) {
            tracing::warn!(order = id, "cannot execute a prefetch request: too many, or no memory");
            self.note(ticket, |p| p.failed_bytes += all);
            self.end_feeding(ticket);
        }
    }

    /// Changes the pace of an order; no pages at a time pause it.
    pub fn adjust(&self, id: u64, threads: u32, rate_bytes_per_s: u64) {
        let mut state = lock(&self.state);
        if let Some(run) = state.orders.get_mut(&id) {
            run.threads = threads;
            run.bucket.set_rate(self.now(), limit(rate_bytes_per_s));
        }
        self.rest_if_paused(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// Whether all orders of the cluster are paused.
    pub fn rest(&self, on: bool) {
        let mut state = lock(&self.state);
        state.all_rest = on;
        self.rest_if_paused(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// If the coordinator has paused all orders, their pages stop as well: one of 2 MiB may take a
    /// slow file system a second, and the phase for which they pause has begun. If only all of this
    /// node are paused, they go on while a peer has a page fetched here for an order of its own.
    fn rest_if_paused(&self, state: &State) {
        let mut open = state.orders.values().filter(|run| !run.progress.done).peekable();
        let is_for_peers = state.passed > 0 || !state.waiting_peers.is_empty();
        let here = open.peek().is_some() && open.all(|run| run.threads == 0) && !is_for_peers;
        let rest = state.all_rest || here;
        let brake = &self.fetch.brake;
        if brake.do_requests_rest() != rest {
            brake.set_requests_rest(rest);
            self.fetch.pfs.follow_brake();
        }
    }

    /// Forgets orders: what is not fetched is not fetched any more, and what came may go.
    pub fn cancel(&self, ids: &[u64]) {
        let ids: BTreeSet<u64> = ids.iter().copied().collect();
        let mut state = lock(&self.state);
        state.orders.retain(|id, _| !ids.contains(id));
        self.rest_if_paused(&state);
        drop(state);
        self.changed.notify_all();
        self.fetch.cache.unplan(Some(&ids));
    }

    /// Forgets all orders.
    pub fn drop_all(&self) {
        let mut state = lock(&self.state);
        let dropped = std::mem::take(&mut state.orders);
        state.all_rest = false;
        self.rest_if_paused(&state);
        drop(state);
        self.changed.notify_all();
        if !dropped.is_empty() {
            tracing::info!(orders = dropped.len(), "prefetch requests are void without their coordinator");
            self.fetch.cache.unplan(None);
        }
    }

    /// Whether any order has something left to tell.
    pub fn are_busy(&self) -> bool {
        lock(&self.state).orders.values().any(|run| !run.reported)
    }

    /// What is to be told of orders now: those that have ended, and with `all` those that have
    /// moved.
    pub fn take_progress(&self, all: bool) -> Vec<OrderProgress> {
        let mut state = lock(&self.state);
        let moved = state.orders.values_mut().filter(|run| run.dirty && (all || run.progress.done));
        moved
            .map(|run| {
                run.dirty = false;
                run.reported = run.progress.done;
                run.progress
            })
            .collect()
    }

    fn note(&self, ticket: Ticket, change: impl FnOnce(&mut OrderProgress)) {
        let mut state = lock(&self.state);
        if let Some(run) = state.run_mut(ticket) {
            change(&mut run.progress);
            run.dirty = true;
            run.end_if_done(&self.reporting);
        }
        self.rest_if_paused(&state);
    }

    fn end_feeding(&self, ticket: Ticket) {
        let mut state = lock(&self.state);
        if let Some(run) = state.run_mut(ticket) {
            run.fed = true;
            run.room = None;
            run.end_if_done(&self.reporting);
        }
        self.rest_if_paused(&state);
    }

    fn is_live(&self, ticket: Ticket) -> bool {
        lock(&self.state).run_mut(ticket).is_some()
    }

    /// Waits until the order may send another page of `bytes` on its way, with `mount` to the PFS
    /// of that mount; `false` if it is not wanted any more. Pages that peers wait for go first, or
    /// two nodes with much to do would wait for each other.
    fn take_off(&self, ticket: Ticket, next: &Next) -> bool {
        let (mount, bytes) = (next.mount(), next.fetch_bytes());
        let is_short = self.fetch.has_small_pages(&next.entry);
        let mut state = lock(&self.state);
        loop {
            let busy = mount.is_some_and(|mount| {
                // More of the short ones would never let a page in.
                let is_short = is_short && !state.has_page_waiting(mount);
                let taken = state.taken(mount);
                state.outranked(ticket.id, mount) || !self.has_thread(mount, taken, bytes, is_short)
            });
            let Some(run) = state.run_mut(ticket).filter(|_| !self.stop.is_stopping()) else { return false };
            let held = self.fetch.brake.holds_orders();
            let may_send = run.may_send(bytes, is_short) && !held;
            let wait_ns = if may_send && !busy { run.bucket.take(self.now(), bytes) } else { u64::MAX };
            let has_waited = run.waits_for.is_some();
            // Not if it is its own rate that holds it up.
            let waits_for = mount.filter(|_| wait_ns == u64::MAX);
            run.waits_for = waits_for.map(|mount| Read { mount, bytes, is_short });
            if wait_ns == 0 {
                run.in_flight.begin(bytes);
                if let Some(mount) = mount {
                    state.in_flight.entry(mount).or_default().begin(bytes);
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
            let look = if held { LOOK } else { Duration::from_millis(500) };
            let wait = Duration::from_nanos(wait_ns).min(look);
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until `deadline` for leave to fetch a page of `mount` that a peer has an order for;
    /// `None` if none came.
    pub fn pass(self: &Arc<Self>, mount: usize, deadline: Instant) -> Option<Passed> {
        let mut state = lock(&self.state);
        *state.waiting_peers.entry(mount).or_default() += 1;
        self.rest_if_paused(&state);
        let free = loop {
            let held = self.fetch.brake.stops(Urgency::Plan);
            if !held && self.has_thread(mount, state.under_way(mount), READ_BYTES, false) {
                state.in_flight.entry(mount).or_default().begin(READ_BYTES);
                state.passed += 1;
                break true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break false;
            }
            let wait = if held { left.min(LOOK) } else { left };
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        };
        take_one(&mut state.waiting_peers, mount);
        self.rest_if_paused(&state);
        drop(state);
        // Orders here may have waited for this one.
        self.changed.notify_all();
        free.then(|| Passed { orders: self.clone(), mount })
    }

    /// A page of an order has landed: it is protected until it was read.
    fn protect(&self, of: &OrderedPages, page: u32, has_landed: bool) {
        let mut state = lock(&self.state);
        if has_landed && state.run_mut(of.order).is_some() {
            // Under the lock: an order that is cancelled now takes its claim back afterwards.
            self.fetch.cache.plan(of.entry.key(page), of.order.id);
        }
    }

    /// Pages that were under way have ended.
    fn landed(&self, page: &OrderedPages, ends: PageEnds) {
        let mut state = lock(&self.state);
        if page.from_pfs {
            state.read_ended(page.entry.mount, page.read_bytes);
        }
        if let Some(run) = state.run_mut(page.order) {
            run.in_flight.end(page.read_bytes);
            run.progress.resident_bytes += ends.resident_bytes;
            run.progress.fetched_bytes += ends.fetched_bytes;
            run.progress.failed_bytes += ends.failed_bytes;
            run.dirty = true;
            run.end_if_done(&self.reporting);
        }
        self.rest_if_paused(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// Whether one more read of so many bytes may go to the PFS of a mount beside those of orders
    /// that are under way.
    fn has_thread(&self, mount: usize, under_way: InFlight, bytes: u64, is_short: bool) -> bool {
        let threads = self.fetch.mounts[mount].config.fetch_threads;
        let pages = fetch_order::request_threads(threads);
        let reads = if is_short { fetch_order::short_request_threads(threads) } else { pages };
        under_way.has_room(bytes, pages, READ_BYTES, reads)
    }

    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }
}

impl State {
    fn run_mut(&mut self, ticket: Ticket) -> Option<&mut Run> {
        self.orders.get_mut(&ticket.id).filter(|run| run.serial == ticket.serial)
    }

    /// Whether a page of another order has to go before those of `id` to the PFS of `mount`: what
    /// is fetched ahead of the planned waves waits for planned orders, and for all that were given
    /// before.
    fn outranked(&self, id: u64, mount: usize) -> bool {
        if !self.orders.get(&id).is_some_and(|run| run.ahead) {
            return false;
        }
        let may_go = |run: &Run| run.waiting_for(mount).is_some();
        let rank = |ahead, id| fetch_order::rank(if ahead { Priority::Ahead } else { Priority::Planned }, id);
        let goes_before = |other: u64, run: &Run| rank(run.ahead, other) < rank(true, id);
        self.orders.iter().any(|(other, run)| may_go(run) && goes_before(*other, run))
    }

    /// What orders have to leave room for at the PFS of the mount: what is under way, and a page
    /// for which a peer waits.
    fn taken(&self, mount: usize) -> InFlight {
        let mut taken = self.under_way(mount);
        if self.waiting_peers.contains_key(&mount) {
            taken.begin(READ_BYTES);
        }
        taken
    }

    /// Whether a peer or an order waits that may send a page of the usual size to the PFS of the
    /// mount.
    fn has_page_waiting(&self, mount: usize) -> bool {
        self.waiting_peers.contains_key(&mount)
            || self.orders.values().filter_map(|run| run.waiting_for(mount)).any(|read| !read.is_short)
    }

    fn under_way(&self, mount: usize) -> InFlight {
        self.in_flight.get(&mount).copied().unwrap_or_default()
    }

    /// A read of the PFS of a mount has ended.
    fn read_ended(&mut self, mount: usize, bytes: u64) {
        if let Some(under_way) = self.in_flight.get_mut(&mount) {
            under_way.end(bytes);
        }
    }
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
    orders: Arc<Orders>,
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
        let mut state = lock(&self.orders.state);
        state.read_ended(self.mount, READ_BYTES);
        state.passed -= 1;
        self.orders.rest_if_paused(&state);
        drop(state);
        self.orders.changed.notify_all();
    }
}

impl Run {
    /// Whether its threads have room for one more read.
    fn may_send(&self, bytes: u64, is_short: bool) -> bool {
        let pages = self.threads as usize;
        let reads = if is_short { fetch_order::short_reads(pages) } else { pages };
        self.in_flight.has_room(bytes, pages, READ_BYTES, reads)
    }

    /// What it would read of the PFS of the mount if that had a thread for it.
    fn waiting_for(&self, mount: usize) -> Option<Read> {
        self.waits_for.filter(|read| read.mount == mount && self.may_send(read.bytes, read.is_short))
    }

    fn end_if_done(&mut self, reporting: &Wake) {
        if self.fed && self.in_flight.reads == 0 && !self.progress.done {
            self.progress.done = true;
            self.dirty = true;
            reporting.call();
        }
    }
}

/// A rate of 0 stands for no limit, which no bucket has.
fn limit(rate_bytes_per_s: u64) -> u64 {
    if rate_bytes_per_s == 0 { 1 << 50 } else { rate_bytes_per_s }
}

/// A page under way for an order, or adjacent small ones that are one read.
#[derive(Debug)]
struct OrderedPages {
    orders: Arc<Orders>,
    order: Ticket,
    entry: Arc<Entry>,
    pages: Range<u32>,
    /// Of each, bytes that the order asks for.
    bytes: Vec<u64>,
    /// They are fetched from the PFS here, not asked of a peer.
    from_pfs: bool,
    /// As counted when they went on their way.
    read_bytes: u64,
    ends: Mutex<PageEnds>,
}

/// What has become of pages of one read so far, and of the bytes that were asked for of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PageEnds {
    pages: u32,
    resident_bytes: u64,
    fetched_bytes: u64,
    failed_bytes: u64,
}

impl PageEnds {
    /// A page of which `bytes` were asked for has ended.
    fn add(&mut self, bytes: u64, outcome: &Result<u64, FlightError>) {
        self.pages += 1;
        *match outcome {
            Ok(0) => &mut self.resident_bytes,
            Ok(_) => &mut self.fetched_bytes,
            Err(_) => &mut self.failed_bytes,
        } += bytes;
    }
}

impl Watcher for OrderedPages {
    fn page_done(&self, page: u32, outcome: &Result<u64, FlightError>) {
        let all = {
            let mut ends = lock(&self.ends);
            let number = page.checked_sub(self.pages.start).map_or(usize::MAX, |number| number as usize);
            ends.add(self.bytes.get(number).copied().unwrap_or(0), outcome);
            if ends.pages < self.pages.end - self.pages.start {
                // It may be read before the last of them has come.
                drop(ends);
                return self.orders.protect(self, page, outcome.is_ok());
            }
            *ends
        };
        self.orders.protect(self, page, outcome.is_ok());
        self.orders.landed(self, all);
    }

    fn is_cancelled(&self) -> bool {
        !self.orders.is_live(self.order)
    }
}

/// Feeds the pages of one order.
struct Feeder {
    orders: Arc<Orders>,
    ticket: Ticket,
}

/// A file of an order, open.
struct File<'a> {
    feeder: &'a Feeder,
    number: u32,
    source: Source,
    /// See [`Feeder::failed_bytes`].
    failed_before: u64,
}

impl Feeder {
    fn feed(&self, order: &Order) {
        let mut open: Option<File<'_>> = None;
        let mut bad: Option<u32> = None;
        let mut parts = &order.parts[..];
        while let Some(part) = parts.first() {
            if !self.orders.is_live(self.ticket) {
                break;
            }
            if open.as_ref().is_none_or(|s| s.number != part.file) && bad != Some(part.file) {
                self.close(open.take());
                match order.files.get(part.file as usize).and_then(|file| self.open(part.file, file)) {
                    Some(opened) => open = Some(opened),
                    None => bad = Some(part.file),
                }
            }
            let count = match &mut open {
                Some(file) if file.number == part.file => {
                    let count = file.one_read(parts);
                    file.feed(&parts[..count]);
                    count
                }
                _ => {
                    self.orders.note(self.ticket, |p| p.failed_bytes += part.len);
                    1
                }
            };
            parts = &parts[count..];
        }
        self.close(open);
        self.orders.end_feeding(self.ticket);
    }

    /// Nothing of it may have come.
    fn close(&self, file: Option<File<'_>>) {
        if let Some(file) = file {
            self.orders.fetch.cache.drop_if_empty(&file.source.entry);
        }
    }

    fn open(&self, number: u32, file: &FileRef) -> Option<File<'_>> {
        let path = String::from_utf8_lossy(&file.path);
        let (opened, entry) = match self.open_settled(file) {
            Ok(opened) => opened,
            Err(NoPath::Changed) => {
                add(&self.orders.fetch.counters.changed_total, 1);
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
        // The kernel's read-ahead would fetch what lies behind the requested parts, and no brake
        // stops what it has begun: megabytes for each open file. Advice: no harm if it is not
        // taken.
        let _ = fadvise(&opened, 0, None, Advice::Random);
        let source = Source { entry, pfs: Arc::new(opened.into()) };
        Some(File { feeder: self, number, source, failed_before: self.failed_bytes() })
    }

    /// A file that was changed a moment ago is looked at again when its stamps can be believed.
    fn open_settled(&self, file: &FileRef) -> Result<(OwnedFd, Arc<Entry>), NoPath> {
        let fetch = &self.orders.fetch;
        for look in 1.. {
            let ByPath { fd, file } = open_by_path(&fetch.mounts, file)?;
            let settling = fetch.mounts[file.mount].settling(&file.facts);
            match fetch.sealed_entry(&file, fd.as_fd(), Opened::Here) {
                Ok(entry) => return Ok((fd, entry)),
                // Of a change in the future: clocks differ, and waiting might not end.
                Err(NoEntry::Unsettled(Unsettled::RacilyClean(left)))
                    if look < RACY_LOOKS && left <= settling =>
                {
                    self.pause(left);
                }
                Err(e) => return Err(e.no_path()),
            }
        }
        unreachable!("a look returns, or another one follows")
    }

    /// Sleeps, but not through the order's end.
    fn pause(&self, length: Duration) {
        let deadline = Instant::now() + length;
        while self.orders.is_live(self.ticket) && !self.orders.stop.is_stopping() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Bytes of the order that could not be fetched.
    fn failed_bytes(&self) -> u64 {
        lock(&self.orders.state).run_mut(self.ticket).map_or(u64::MAX, |run| run.progress.failed_bytes)
    }
}

impl File<'_> {
    /// How many of `parts`, the first of which is of this file, are better read together, with what
    /// lies between them.
    fn one_read(&self, parts: &[Part]) -> usize {
        let fetch = &self.feeder.orders.fetch;
        let entry = &self.source.entry;
        if !fetch.has_small_pages(entry) {
            return 1;
        }
        let gap_bytes = fetch.pfs.merge_gap_bytes(entry.mount);
        let follows = |two: &&[Part]| {
            let end = two[0].offset.saturating_add(two[0].len);
            two[1].file == self.number && goes_on(end, two[1].offset, gap_bytes)
        };
        1 + parts.windows(2).take_while(follows).count()
    }

    fn feed(&mut self, parts: &[Part]) {
        let geometry = self.source.entry.geometry();
        let ranges = parts.iter().map(|part| (part.offset, part.len));
        // Pages of a copy fit 32 bits, or it would not have been made.
        let pages = merge_gap::pages(ranges, geometry.page_bytes, geometry.size)
            .map(|(page, wanted_bytes)| (page as u32, wanted_bytes));
        let errand = Ordered { feeder: self.feeder, failed_before: self.failed_before };
        feed(&self.feeder.orders.fetch, &errand, &mut self.source, pages);
    }
}

/// The pages of a file of an order.
struct Ordered<'a> {
    feeder: &'a Feeder,
    failed_before: u64,
}

impl Errand for Ordered<'_> {
    const URGENCY: Urgency = Urgency::Plan;

    fn take_off(&self, next: &Next) -> bool {
        self.feeder.orders.take_off(self.feeder.ticket, next)
    }

    fn watcher(&self, next: &Next) -> Arc<dyn Watcher> {
        Arc::new(OrderedPages {
            orders: self.feeder.orders.clone(),
            order: self.feeder.ticket,
            entry: next.entry.clone(),
            pages: next.pages.clone(),
            bytes: next.wanted_bytes.clone(),
            from_pfs: next.mount().is_some(),
            read_bytes: next.fetch_bytes(),
            ends: Mutex::default(),
        })
    }

    /// Not if something has failed since the file was opened: then it may have gone for that, and a
    /// server that does not answer is not asked page by page.
    fn entry_again(&self, source: &Source) -> Option<Arc<Entry>> {
        if self.feeder.failed_bytes() > self.failed_before {
            return None;
        }
        entry_again(&self.feeder.orders.fetch, source, Opened::Here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(mount: usize) -> Read {
        Read { mount, bytes: READ_BYTES, is_short: false }
    }

    /// An order of so many pages at a time whose next page waits for mount 0.
    fn run(threads: u32, ahead: bool) -> Run {
        let progress =
            OrderProgress { order: 0, fetched_bytes: 0, resident_bytes: 0, failed_bytes: 0, done: false };
        Run {
            serial: 1,
            threads,
            ahead,
            bucket: TokenBucket::new(Nanos(0), limit(0), BURST_BYTES),
            in_flight: InFlight::default(),
            waits_for: Some(page(0)),
            progress,
            fed: false,
            dirty: false,
            reported: false,
            room: None,
        }
    }

    fn of(orders: Vec<(u64, Run)>) -> State {
        State { orders: orders.into_iter().collect(), ..State::default() }
    }

    #[test]
    fn what_is_fetched_ahead_waits_for_what_is_needed_before() {
        let outranked = |other: (u64, Run)| of(vec![(5, run(1, true)), other]).outranked(5, 0);
        assert!(outranked((4, run(1, true))), "given before");
        assert!(!outranked((6, run(1, true))));
        assert!(outranked((6, run(4, false))), "a planned wave");
        assert!(outranked((6, run(1, false))), "and one of a page at a time");
        assert!(!outranked((4, Run { waits_for: None, ..run(4, false) })), "it has no page to send");
        assert!(!outranked((4, Run { waits_for: Some(page(1)), ..run(4, false) })), "to another mount");
        let in_flight = InFlight { reads: 4, bytes: 4 * READ_BYTES };
        assert!(!outranked((4, Run { in_flight, ..run(4, false) })), "or may not");
        assert!(!of(vec![(5, run(1, false)), (4, run(4, false))]).outranked(5, 0), "planned ones share");
    }

    #[test]
    fn short_reads_give_way_to_a_page_that_waits() {
        let short = Read { is_short: true, bytes: 16 << 10, ..page(0) };
        let waits = |read: Read| of(vec![(4, Run { waits_for: Some(read), ..run(1, false) })]);
        assert!(waits(page(0)).has_page_waiting(0) && !waits(page(0)).has_page_waiting(1));
        assert!(!waits(short).has_page_waiting(0));
        let mut with_peer = waits(short);
        with_peer.in_flight.entry(0).or_default().begin(READ_BYTES);
        with_peer.waiting_peers.insert(0, 1);
        assert!(with_peer.has_page_waiting(0) && !with_peer.has_page_waiting(1));
        assert_eq!(with_peer.taken(0), InFlight { reads: 2, bytes: 2 * READ_BYTES });
        assert_eq!(with_peer.taken(1), InFlight::default());
        let mut busy = run(1, false);
        busy.in_flight.begin(short.bytes);
        assert!(busy.may_send(short.bytes, true) && !busy.may_send(short.bytes, false));
        busy.in_flight.begin(short.bytes);
        assert!(!busy.may_send(short.bytes, true), "three of one thread");
        busy.threads = 0;
        assert!(!busy.may_send(0, true), "it rests");
        assert!(!of(vec![(4, Run { waits_for: Some(page(0)), ..busy })]).has_page_waiting(0));
    }

    #[test]
    fn each_page_of_a_run_counts_as_it_has_ended() {
        let mut ends = PageEnds::default();
        ends.add(10, &Ok(16));
        ends.add(16, &Ok(0));
        ends.add(7, &Err(FlightError::NoRoom));
        let (resident_bytes, fetched_bytes, failed_bytes) = (16, 10, 7);
        assert_eq!(ends, PageEnds { pages: 3, resident_bytes, fetched_bytes, failed_bytes });
    }

    #[test]
    fn what_is_under_way_for_an_order_of_a_coordinator_before_is_not_for_its_successor_s() {
        let mut state = of(vec![(1, Run { serial: 2, ..run(1, false) })]);
        assert!(state.run_mut(Ticket { id: 1, serial: 1 }).is_none());
        assert!(state.run_mut(Ticket { id: 1, serial: 2 }).is_some());
    }
}
