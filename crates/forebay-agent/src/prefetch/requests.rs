//! Prefetch requests of the coordinator: fetching what a wave will read into this node's tier, and
//! keeping it there.
//!
//! A request names files by their paths, parts of them in the order in which they will be read, and
//! a pace. A thread of its own opens one file after the other with the agent's rights
//! ([`crate::mounts::by_path`]) and offers its reads to the node machine, which says when each may
//! go ([`crate::scheduler`]). A page that another node owns belongs here if its task will run here:
//! it comes by way of its owner, so that the PFS serves it once for the cluster, and then it is the
//! owner's fetch threads that are spared ([`Requests::pass`]). What has come is kept for the
//! request until its first use or the request's end (`forebay_policy::eviction::Planned`).
//!
//! A request lives until it is cancelled, even when all of it has come. All of them go when the
//! coordinator is lost for longer than it waits for this node, or after a new connection: it
//! requests again what is still wanted.

use super::feeder::{FetchFor, Next, Source, entry_again, feed};
use crate::cache::entry::Entry;
use crate::cache::page_fetch::{FetchError, Watcher};
use crate::counters::add;
use crate::fetch::Fetch;
use crate::fetch::find::NoEntry;
use crate::fetch::pfs::READ_BYTES;
use crate::lock::lock;
use crate::mounts::by_path::{ByPath, NoPath, open_by_path};
use crate::mounts::seal::Unsettled;
use crate::scheduler::{Permit, Scheduler};
use crate::stop::Stop;
use crate::traffic::account::Account;
use crate::user_limits::PfsFile;
use forebay_pfs::lease::Opened;
use forebay_policy::fetch_order::Urgency;
use forebay_policy::merge_gap::{self, goes_on};
use forebay_policy::node::{By, Event, ReadId};
use forebay_policy::stage::event::{Priority, Progress};
use forebay_store::{Class, Reservation};
use forebay_wire::FileRef;
use forebay_wire::cluster::{Part, PrefetchRequest, RequestProgress};
use rustix::fs::{Advice, fadvise};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often a feeder whose job has moved as much as it may looks whether its request is over.
const HELD_LOOK: Duration = Duration::from_secs(1);

/// Most requests at a time; each has a thread while it is fed. A stage of a job has a few.
const REQUESTS_MAX: usize = 256;

/// How often a racily clean file is looked at again before it is given up; each time after its
/// stamps could have been believed.
const RACY_LOOKS: usize = 3;

/// What a file and a part of a request take, roughly.
const FILE_BYTES: u64 = 256;
const PART_BYTES: u64 = 24;

/// Stack of a feeding thread.
const STACK_BYTES: usize = 256 << 10;

/// The requests of this agent.
#[derive(Debug)]
pub struct Requests {
    state: Mutex<State>,
    fetch: Arc<Fetch>,
    stop: Arc<Stop>,
}

#[derive(Debug, Default)]
struct State {
    /// By the coordinator's number.
    requests: BTreeMap<u64, Run>,
    /// The serial number of the last ticket.
    serial: u64,
    /// All requests of the cluster are paused.
    all_pause: bool,
}

/// Names a request as it was begun here; the node machine knows it by its serial number. Its own
/// number alone does not: a coordinator that has been started again counts from one, and what is
/// under way for a request of its predecessor is not for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket {
    id: u64,
    serial: u64,
}

/// One request.
#[derive(Debug)]
struct Run {
    /// See [`Ticket`].
    serial: u64,
    /// Nothing more will be fed.
    fed: bool,
    /// Its end has been reported.
    reported: bool,
    /// What its files and parts take, until it is fed.
    room: Option<Reservation>,
}

impl Requests {
    /// No requests yet.
    pub fn new(fetch: Arc<Fetch>, stop: Arc<Stop>) -> Self {
        Requests { state: Mutex::default(), fetch, stop }
    }

    fn scheduler(&self) -> &Scheduler {
        &self.fetch.scheduler
    }

    /// Begins to carry out `request`. One that cannot be carried out ends immediately, with all of
    /// it failed.
    pub fn begin(self: &Arc<Self>, request: PrefetchRequest) {
        let id = request.request;
        let bytes = request.files.len() as u64 * FILE_BYTES + request.parts.len() as u64 * PART_BYTES;
        let room = self.fetch.cache.reserve(Class::Clients, bytes);
        let mut state = lock(&self.state);
        let accepted = room.is_some() && state.requests.values().filter(|r| !r.fed).count() < REQUESTS_MAX;
        state.serial += 1;
        let ticket = Ticket { id, serial: state.serial };
        let run = Run { serial: ticket.serial, fed: false, reported: false, room };
        if let Some(replaced) = state.requests.insert(id, run) {
            self.scheduler().hear(Event::Release { requests: vec![replaced.serial] });
        }
        self.scheduler().hear(Event::Request {
            request: ticket.serial,
            threads: request.threads,
            rate_bytes_per_s: request.rate_bytes_per_s,
            priority: if request.ahead { Priority::Ahead } else { Priority::Planned },
        });
        drop(state);
        let all: u64 = request.parts.iter().map(|p| p.len).sum();
        let requests = self.clone();
        let account = self.fetch.traffic.account(request.job.user, &request.job.job);
        let spawned = accepted.then(|| {
            let feed = move || Feeder { requests, ticket, account }.feed(&request);
            std::thread::Builder::new().name("request".into()).stack_size(STACK_BYTES).spawn(feed)
        });
        if !matches!(spawned, Some(Ok(_))) {
            tracing::warn!(request = id, "cannot execute a prefetch request: too many, or no memory");
            self.scheduler().settled(ticket.serial, all);
            self.end_feeding(ticket);
        }
    }

    /// Changes the pace of a request; no pages at a time pause it.
    pub fn adjust(&self, id: u64, threads: u32, rate_bytes_per_s: u64) {
        let state = lock(&self.state);
        if let Some(run) = state.requests.get(&id) {
            self.scheduler().hear(Event::Adjust { request: run.serial, threads, rate_bytes_per_s });
        }
    }

    /// Whether all requests of the cluster are paused.
    pub fn pause_all(&self, on: bool) {
        lock(&self.state).all_pause = on;
        self.scheduler().hear(Event::Pause { on });
    }

    /// Forgets requests: what is not fetched is not fetched any more, and what came may go.
    pub fn cancel(&self, ids: &[u64]) {
        let mut state = lock(&self.state);
        let requests = ids.iter().filter_map(|id| Some(state.requests.remove(id)?.serial)).collect();
        self.scheduler().hear(Event::Release { requests });
        drop(state);
        self.fetch.cache.unplan(Some(&ids.iter().copied().collect()));
    }

    /// Forgets all requests.
    pub fn drop_all(&self) {
        let mut state = lock(&self.state);
        let dropped: Vec<u64> = std::mem::take(&mut state.requests).values().map(|run| run.serial).collect();
        let count = dropped.len();
        if std::mem::take(&mut state.all_pause) {
            self.scheduler().hear(Event::Pause { on: false });
        }
        if count > 0 {
            self.scheduler().hear(Event::Release { requests: dropped });
            drop(state);
            tracing::info!(requests = count, "prefetch requests are void without their coordinator");
            self.fetch.cache.unplan(None);
        }
    }

    /// Whether any request has something left to report.
    pub fn are_busy(&self) -> bool {
        lock(&self.state).requests.values().any(|run| !run.reported)
    }

    /// What is to be reported of requests now: those that have ended, and with `all` those that
    /// have moved.
    pub fn take_progress(&self, all: bool) -> Vec<RequestProgress> {
        let mut state = lock(&self.state);
        let moved: BTreeMap<u64, Progress> = self.scheduler().take_moved(all).into_iter().collect();
        let of_request = |(id, run): (&u64, &mut Run)| {
            let progress = moved.get(&run.serial)?;
            run.reported = progress.done;
            Some(RequestProgress {
                request: *id,
                fetched_bytes: progress.fetched_bytes,
                resident_bytes: progress.resident_bytes,
                failed_bytes: progress.failed_bytes,
                done: progress.done,
            })
        };
        state.requests.iter_mut().filter_map(of_request).collect()
    }

    fn end_feeding(&self, ticket: Ticket) {
        let mut state = lock(&self.state);
        if let Some(run) = state.requests.get_mut(&ticket.id).filter(|run| run.serial == ticket.serial) {
            run.fed = true;
            run.room = None;
        }
        self.scheduler().hear(Event::Fed { request: ticket.serial });
    }

    fn is_live(&self, ticket: Ticket) -> bool {
        self.scheduler().progress(ticket.serial).is_some()
    }

    /// Waits until `deadline` for permission to fetch a page of `mount` that a peer has a request
    /// for; `None` if there was none.
    pub fn pass(&self, mount: usize, deadline: Instant) -> Option<Passed> {
        let scheduler = &self.fetch.scheduler;
        let read = scheduler.wait_to_read(By::Peer, Some(mount), READ_BYTES, false, Some(deadline))?;
        Some(Passed { _permit: Permit::new(scheduler.clone(), read) })
    }

    /// Protects a page of a request that has landed until it was read.
    fn protect(&self, of: &RequestedPages, page: u32, has_landed: bool) {
        if has_landed {
            // A request that is cancelled now takes its claim back afterwards.
            let key = of.entry.key(page);
            self.scheduler().while_known(of.request.serial, || self.fetch.cache.plan(key, of.request.id));
        }
    }
}

/// Permission to fetch a page for a request of a peer. Watches the fetch, and with its end makes
/// room for the next.
#[derive(Debug)]
pub struct Passed {
    _permit: Permit,
}

impl Watcher for Passed {
    fn page_done(&self, _page: u32, _outcome: &Result<u64, FetchError>) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// A page under way for a request, or adjacent small ones that are one read.
#[derive(Debug)]
struct RequestedPages {
    requests: Arc<Requests>,
    request: Ticket,
    entry: Arc<Entry>,
    pages: Range<u32>,
    /// The bytes of each that the request asks for.
    bytes: Vec<u64>,
    /// The read that was let go for them.
    read: ReadId,
    ends: Mutex<PageEnds>,
}

/// What has become of pages of one read so far, and of the bytes requested of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PageEnds {
    pages: u32,
    resident_bytes: u64,
    fetched_bytes: u64,
    failed_bytes: u64,
}

impl PageEnds {
    /// Adds the end of a page of which `bytes` were requested.
    fn add(&mut self, bytes: u64, outcome: &Result<u64, FetchError>) {
        self.pages += 1;
        *match outcome {
            Ok(0) => &mut self.resident_bytes,
            Ok(_) => &mut self.fetched_bytes,
            Err(_) => &mut self.failed_bytes,
        } += bytes;
    }
}

impl Watcher for RequestedPages {
    fn page_done(&self, page: u32, outcome: &Result<u64, FetchError>) {
        let all = {
            let mut ends = lock(&self.ends);
            let number = page.checked_sub(self.pages.start).map_or(usize::MAX, |number| number as usize);
            ends.add(self.bytes.get(number).copied().unwrap_or(0), outcome);
            if ends.pages < self.pages.end - self.pages.start {
                // It may be read before the last of them has come.
                drop(ends);
                return self.requests.protect(self, page, outcome.is_ok());
            }
            *ends
        };
        self.requests.protect(self, page, outcome.is_ok());
        let PageEnds { resident_bytes, fetched_bytes, failed_bytes, .. } = all;
        self.requests.scheduler().read_ended(self.read, resident_bytes, fetched_bytes, failed_bytes);
    }

    fn is_cancelled(&self) -> bool {
        !self.requests.is_live(self.request)
    }
}

/// Feeds the pages of one request.
struct Feeder {
    requests: Arc<Requests>,
    ticket: Ticket,
    /// The account of the job that will read them.
    account: Arc<Account>,
}

/// A file of a request, open.
struct File<'a> {
    feeder: &'a Feeder,
    number: u32,
    source: Source,
    /// See [`Feeder::failed_bytes`].
    failed_before: u64,
}

impl Feeder {
    fn feed(&self, request: &PrefetchRequest) {
        let mut open: Option<File<'_>> = None;
        let mut bad: Option<u32> = None;
        let mut parts = &request.parts[..];
        while let Some(part) = parts.first() {
            if !self.requests.is_live(self.ticket) {
                break;
            }
            if open.as_ref().is_none_or(|s| s.number != part.file) && bad != Some(part.file) {
                self.close(open.take());
                match request.files.get(part.file as usize).and_then(|file| self.open(part.file, file)) {
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
                    self.requests.scheduler().settled(self.ticket.serial, part.len);
                    1
                }
            };
            parts = &parts[count..];
        }
        self.close(open);
        self.requests.end_feeding(self.ticket);
    }

    /// Closes a file. Nothing of it may have come.
    fn close(&self, file: Option<File<'_>>) {
        if let Some(file) = file {
            self.requests.fetch.cache.drop_if_empty(&file.source.entry);
        }
    }

    fn open(&self, number: u32, file: &FileRef) -> Option<File<'_>> {
        let path = String::from_utf8_lossy(&file.path);
        let (opened, entry) = match self.open_settled(file) {
            Ok(opened) => opened,
            Err(NoPath::Changed) => {
                add(&self.requests.fetch.counters.changed_total, 1);
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
        // The kernel's read-ahead would fetch what follows the requested parts, and no brake stops
        // what it has begun: megabytes for each open file. Advice: no harm if it is not taken.
        let _ = fadvise(&opened, 0, None, Advice::Random);
        let pfs = PfsFile::from(opened).of_job(self.account.clone());
        let source = Source { entry, pfs: Arc::new(pfs) };
        Some(File { feeder: self, number, source, failed_before: self.failed_bytes() })
    }

    /// A file that was changed a moment ago is looked at again when its stamps can be believed.
    fn open_settled(&self, file: &FileRef) -> Result<(OwnedFd, Arc<Entry>), NoPath> {
        let fetch = &self.requests.fetch;
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

    /// Sleeps for `length`, or until the request ends.
    fn pause(&self, length: Duration) {
        let deadline = Instant::now() + length;
        while self.requests.is_live(self.ticket) && !self.requests.stop.is_stopping() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Bytes of the request that could not be fetched.
    fn failed_bytes(&self) -> u64 {
        self.requests.scheduler().progress(self.ticket.serial).map_or(u64::MAX, |p| p.failed_bytes)
    }
}

impl File<'_> {
    /// How many of `parts`, the first of which is of this file, are better read together, with what
    /// is between them.
    fn one_read(&self, parts: &[Part]) -> usize {
        let fetch = &self.feeder.requests.fetch;
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
        let fetch_for = RequestedFile { feeder: self.feeder, failed_before: self.failed_before };
        feed(&self.feeder.requests.fetch, &fetch_for, &mut self.source, pages);
    }
}

/// The pages of a file of a request.
struct RequestedFile<'a> {
    feeder: &'a Feeder,
    failed_before: u64,
}

impl FetchFor for RequestedFile<'_> {
    const URGENCY: Urgency = Urgency::Plan;

    fn wait_to_read(&self, next: &Next) -> Option<ReadId> {
        let Feeder { requests, ticket, account } = self.feeder;
        let is_over = || !requests.is_live(*ticket) || requests.stop.is_stopping();
        while !account.take(next.fetch_bytes(), Instant::now() + HELD_LOOK, is_over) {
            if is_over() {
                return None;
            }
        }
        let is_short = requests.fetch.has_small_pages(&next.entry);
        let (by, bytes) = (By::Request(ticket.serial), next.fetch_bytes());
        requests.scheduler().wait_to_read(by, next.mount(), bytes, is_short, None)
    }

    fn watcher(&self, next: &Next, read: ReadId) -> Arc<dyn Watcher> {
        Arc::new(RequestedPages {
            requests: self.feeder.requests.clone(),
            request: self.feeder.ticket,
            entry: next.entry.clone(),
            pages: next.pages.clone(),
            bytes: next.wanted_bytes.clone(),
            read,
            ends: Mutex::default(),
        })
    }

    /// `None` if something has failed since the file was opened: it may be gone because of that,
    /// and a server that does not answer is not asked page by page.
    fn entry_again(&self, source: &Source) -> Option<Arc<Entry>> {
        if self.feeder.failed_bytes() > self.failed_before {
            return None;
        }
        entry_again(&self.feeder.requests.fetch, source, Opened::Here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_of_a_run_counts_as_it_has_ended() {
        let mut ends = PageEnds::default();
        ends.add(10, &Ok(16));
        ends.add(16, &Ok(0));
        ends.add(7, &Err(FetchError::NoRoom));
        let (resident_bytes, fetched_bytes, failed_bytes) = (16, 10, 7);
        assert_eq!(ends, PageEnds { pages: 3, resident_bytes, fetched_bytes, failed_bytes });
    }
}
