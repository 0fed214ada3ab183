//! What prefetch requests, loads and peers want to read, and when each may.
//!
//! All requests together, with the pages that peers have fetched here for theirs, take no more than
//! half of a mount's fetch threads, so that a reader does not even wait for a page that is being
//! fetched. Short reads, of columnar files, may be half as many again ([`InFlight::has_room`]).
//! Pages that peers wait for go first, or two busy nodes would wait for each other; then the
//! planned requests, and then what is fetched ahead of the planned waves, the earliest first.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::brake::Brake;
use super::event::{Action, By, Config, LoadId, MountId, ReadId};
use super::task_queue::Held;
use crate::fetch_order::{self, InFlight, Urgency};
use crate::machine::Nanos;
use crate::stage::event::{Priority, Progress, RequestId};
use crate::token_bucket::{FOREVER_NS, TokenBucket};

/// Burst of a limited request or load: a page is never split over two refills.
const BURST_BYTES: u64 = 4 << 20;

/// Reads that a load has under way: enough for every fetch thread to find the next one waiting.
const LOAD_READS: usize = 64;

/// A waiting read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub read: ReadId,
    pub mount: Option<MountId>,
    pub bytes: u64,
    pub is_short: bool,
}

/// A read that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    by: By,
    mount: Option<MountId>,
    bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Reads {
    threads: Vec<usize>,
    read_bytes: u64,
    requests: BTreeMap<RequestId, Request>,
    /// Requests that are not complete, in the order in which they are served.
    open: BTreeSet<(Priority, RequestId)>,
    loads: BTreeMap<LoadId, Load>,
    /// Reads that peers wait for, by mount.
    peers: Vec<VecDeque<Offer>>,
    /// Reads that were sent for peers.
    passed: usize,
    sent: BTreeMap<ReadId, Sent>,
    /// Reads of each mount's file system that were sent for requests and peers.
    in_flight: Vec<InFlight>,
    /// Whether the coordinator has paused all requests of the cluster.
    all_pause: bool,
}

#[derive(Debug)]
struct Request {
    threads: usize,
    pace: Pace,
    in_flight: InFlight,
    offer: Option<Offer>,
    progress: Progress,
    /// Whether it offers nothing more.
    fed: bool,
}

#[derive(Debug)]
struct Load {
    pace: Pace,
    reads_in_flight: usize,
    offer: Option<Offer>,
}

/// A rate, and when it lets the next read go.
#[derive(Debug, Default)]
struct Pace {
    /// `None`: no limit.
    bucket: Option<TokenBucket>,
    goes_at: Option<Nanos>,
}

impl Pace {
    /// Sets the rate. At first there is a burst; later on what the old rate has left.
    fn set(&mut self, now: Nanos, rate_bytes_per_s: u64) {
        match &mut self.bucket {
            _ if rate_bytes_per_s == 0 => self.bucket = None,
            Some(bucket) => bucket.set_rate(now, rate_bytes_per_s),
            None => self.bucket = Some(TokenBucket::new(now, rate_bytes_per_s, BURST_BYTES)),
        }
    }

    fn new(now: Nanos, rate_bytes_per_s: u64) -> Self {
        let mut pace = Pace::default();
        pace.set(now, rate_bytes_per_s);
        pace
    }

    /// Takes `bytes`, or notes when to try again and returns `false`.
    fn take(&mut self, now: Nanos, bytes: u64) -> bool {
        let wait_ns = self.bucket.as_mut().map_or(0, |bucket| bucket.take(now, bytes));
        self.goes_at = (wait_ns != 0 && wait_ns != FOREVER_NS).then(|| now + wait_ns);
        wait_ns == 0
    }
}

impl Request {
    /// Returns whether its pace has room for one more read.
    fn may_send(&self, offer: &Offer, read_bytes: u64) -> bool {
        let reads = if offer.is_short { fetch_order::short_reads(self.threads) } else { self.threads };
        self.in_flight.has_room(offer.bytes, self.threads, read_bytes, reads)
    }
}

impl Reads {
    pub fn new(config: &Config) -> Self {
        let mounts = config.fetch_threads.len();
        Reads {
            threads: config.fetch_threads.clone(),
            read_bytes: config.read_bytes,
            requests: BTreeMap::new(),
            open: BTreeSet::new(),
            loads: BTreeMap::new(),
            peers: alloc::vec![VecDeque::new(); mounts],
            passed: 0,
            sent: BTreeMap::new(),
            in_flight: alloc::vec![InFlight::default(); mounts],
            all_pause: false,
        }
    }

    pub fn begin(&mut self, now: Nanos, id: RequestId, threads: u32, rate: u64, priority: Priority) {
        let request = Request {
            threads: threads as usize,
            pace: Pace::new(now, rate),
            in_flight: InFlight::default(),
            offer: None,
            progress: Progress::default(),
            fed: false,
        };
        self.requests.insert(id, request);
        self.open.insert(fetch_order::rank(priority, id));
    }

    pub fn adjust(&mut self, now: Nanos, id: RequestId, threads: u32, rate: u64) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.threads = threads as usize;
            request.pace.set(now, rate);
        }
    }

    pub fn pause_all(&mut self, on: bool) {
        self.all_pause = on;
    }

    /// Returns whether the coordinator has paused all requests of the cluster.
    pub fn all_pause(&self) -> bool {
        self.all_pause
    }

    pub fn release(&mut self, ids: &[RequestId]) {
        for id in ids {
            self.requests.remove(id);
            self.close(*id);
        }
    }

    fn close(&mut self, id: RequestId) {
        self.open.remove(&fetch_order::rank(Priority::Planned, id));
        self.open.remove(&fetch_order::rank(Priority::Ahead, id));
    }

    pub fn load_begins(&mut self, now: Nanos, id: LoadId, rate: u64) {
        self.loads.insert(id, Load { pace: Pace::new(now, rate), reads_in_flight: 0, offer: None });
    }

    pub fn load_ends(&mut self, id: LoadId) {
        self.loads.remove(&id);
    }

    pub fn offer(&mut self, by: By, offer: Offer) {
        match by {
            By::Request(id) => {
                if let Some(request) = self.requests.get_mut(&id) {
                    request.offer = Some(offer);
                }
            }
            By::Load(id) => {
                if let Some(load) = self.loads.get_mut(&id) {
                    load.offer = Some(offer);
                }
            }
            By::Peer => {
                if let Some(peers) = offer.mount.and_then(|mount| self.peers.get_mut(mount)) {
                    peers.push_back(offer);
                }
            }
        }
    }

    pub fn withdraw(&mut self, read: ReadId) {
        self.peers.iter_mut().for_each(|peers| peers.retain(|offer| offer.read != read));
        let requests = self.requests.values_mut().map(|request| &mut request.offer);
        let offers = requests.chain(self.loads.values_mut().map(|load| &mut load.offer));
        for offer in offers {
            offer.take_if(|offer| offer.read == read);
        }
    }

    /// Records that a read has ended, with the bytes that were resident, fetched and failed.
    pub fn ended(&mut self, read: ReadId, bytes: [u64; 3], out: &mut Vec<Action>) {
        let Some(sent) = self.sent.remove(&read) else { return };
        if let (Some(mount), false) = (sent.mount, matches!(sent.by, By::Load(_))) {
            self.in_flight[mount].end(sent.bytes);
        }
        match sent.by {
            By::Peer => self.passed -= 1,
            By::Load(id) => {
                if let Some(load) = self.loads.get_mut(&id) {
                    load.reads_in_flight -= 1;
                }
            }
            By::Request(id) => {
                if let Some(request) = self.requests.get_mut(&id) {
                    request.in_flight.end(sent.bytes);
                    self.settled(id, bytes);
                    self.end_if_done(id);
                    self.report(id, out);
                }
            }
        }
    }

    pub fn settled(&mut self, id: RequestId, [resident, fetched, failed]: [u64; 3]) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.progress.resident_bytes += resident;
            request.progress.fetched_bytes += fetched;
            request.progress.failed_bytes += failed;
        }
    }

    pub fn fed(&mut self, id: RequestId, out: &mut Vec<Action>) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        (request.fed, request.offer) = (true, None);
        if self.end_if_done(id) {
            self.report(id, out);
        }
    }

    fn end_if_done(&mut self, id: RequestId) -> bool {
        let Some(request) = self.requests.get_mut(&id) else { return false };
        request.progress.done = request.fed && request.in_flight.reads == 0;
        let done = request.progress.done;
        if done {
            self.close(id);
        }
        done
    }

    fn report(&self, request: RequestId, out: &mut Vec<Action>) {
        if let Some(progress) = self.progress(request) {
            out.push(Action::Report { request, progress });
        }
    }

    pub fn progress(&self, id: RequestId) -> Option<Progress> {
        self.requests.get(&id).map(|request| request.progress)
    }

    pub fn knows(&self, by: By) -> bool {
        match by {
            By::Request(id) => self.requests.contains_key(&id),
            By::Load(id) => self.loads.contains_key(&id),
            By::Peer => true,
        }
    }

    /// Returns whether all requests are paused here, so that their pages stop as well: one of 2 MiB
    /// may take a slow file system a second, and the phase for which they pause has begun. If only
    /// all requests of this node are paused, their pages continue while a peer has a page fetched
    /// here for a request of its own.
    pub fn do_requests_pause(&self) -> bool {
        let is_for_peers = self.passed > 0 || self.peers.iter().any(|peers| !peers.is_empty());
        let is_paused = |(_, id): &(Priority, RequestId)| self.requests[id].threads == 0;
        let here = !self.open.is_empty() && !is_for_peers && self.open.iter().all(is_paused);
        self.all_pause || here
    }

    /// Returns whether nothing is wanted.
    pub fn is_idle(&self) -> bool {
        let no_peer = self.peers.iter().all(VecDeque::is_empty);
        self.sent.is_empty()
            && no_peer
            && self.requests.is_empty()
            && self.loads.is_empty()
            && !self.all_pause
    }

    /// Returns whether one more read may go to a mount beside those that are under way.
    fn has_thread(&self, mount: MountId, under_way: InFlight, bytes: u64, is_short: bool) -> bool {
        let threads = self.threads[mount];
        let pages = fetch_order::request_threads(threads);
        let reads = if is_short { fetch_order::short_request_threads(threads) } else { pages };
        under_way.has_room(bytes, pages, self.read_bytes, reads)
    }

    /// Sends the reads that may go.
    pub fn dispatch(&mut self, now: Nanos, brake: &Brake, out: &mut Vec<Action>) {
        if !brake.held().holds(Urgency::Plan) {
            self.dispatch_peers(out);
        }
        if !brake.holds_requests() {
            self.dispatch_requests(now, out);
        }
        if brake.held() != Held::AllButDemand {
            self.dispatch_loads(now, out);
        }
    }

    fn send(&mut self, by: By, offer: &Offer, out: &mut Vec<Action>) {
        if let (Some(mount), false) = (offer.mount, matches!(by, By::Load(_))) {
            self.in_flight[mount].begin(offer.bytes);
        }
        self.sent.insert(offer.read, Sent { by, mount: offer.mount, bytes: offer.bytes });
        out.push(Action::Send { read: offer.read });
    }

    fn dispatch_peers(&mut self, out: &mut Vec<Action>) {
        for mount in 0..self.peers.len() {
            while let Some(offer) = self.peers[mount].front().copied() {
                if !self.has_thread(mount, self.in_flight[mount], offer.bytes, false) {
                    break;
                }
                self.peers[mount].pop_front();
                self.passed += 1;
                self.send(By::Peer, &offer, out);
            }
        }
    }

    fn dispatch_requests(&mut self, now: Nanos, out: &mut Vec<Action>) {
        let wants = |(_, id): &(Priority, RequestId)| {
            let request = &self.requests[id];
            request.offer.filter(|offer| request.may_send(offer, self.read_bytes)).map(|offer| (*id, offer))
        };
        let waiting: Vec<(RequestId, Offer)> = self.open.iter().filter_map(wants).collect();
        if waiting.is_empty() {
            return;
        }
        // Where a page of the usual size waits, more short reads would never let it in.
        let mut has_page: Vec<bool> = self.peers.iter().map(|peers| !peers.is_empty()).collect();
        for (_, offer) in waiting.iter().filter(|(_, offer)| !offer.is_short) {
            if let Some(mount) = offer.mount {
                has_page[mount] = true;
            }
        }
        // Requests wait for those that go before them to the same mount.
        let mut is_outranked = alloc::vec![false; self.peers.len()];
        for (id, offer) in waiting {
            if let Some(mount) = offer.mount {
                let mut taken = self.in_flight[mount];
                if !self.peers[mount].is_empty() {
                    taken.begin(self.read_bytes);
                }
                let is_ahead = self.open.contains(&fetch_order::rank(Priority::Ahead, id));
                let is_short = offer.is_short && !has_page[mount];
                if is_ahead && is_outranked[mount] || !self.has_thread(mount, taken, offer.bytes, is_short) {
                    is_outranked[mount] = true;
                    continue;
                }
            }
            let Some(request) = self.requests.get_mut(&id) else { continue };
            if request.pace.take(now, offer.bytes) {
                request.in_flight.begin(offer.bytes);
                request.offer = None;
                self.send(By::Request(id), &offer, out);
            }
        }
    }

    fn dispatch_loads(&mut self, now: Nanos, out: &mut Vec<Action>) {
        let mut sent = Vec::new();
        for (id, load) in &mut self.loads {
            if let Some(offer) = load.offer.filter(|_| load.reads_in_flight < LOAD_READS)
                && load.pace.take(now, offer.bytes)
            {
                load.reads_in_flight += 1;
                load.offer = None;
                sent.push((*id, offer));
            }
        }
        sent.iter().for_each(|(id, offer)| self.send(By::Load(*id), offer, out));
    }

    /// The earliest time when a rate lets a read go that waits for nothing else.
    pub fn next_deadline(&self) -> Option<Nanos> {
        // Requests that are complete offer nothing, and are many.
        let requests = self.open.iter().filter_map(|(_, id)| self.requests.get(id));
        let requests = requests.filter(|request| request.offer.is_some());
        let loads = self.loads.values().filter(|load| load.offer.is_some());
        requests
            .filter_map(|request| request.pace.goes_at)
            .chain(loads.filter_map(|load| load.pace.goes_at))
            .min()
    }

    /// Clears the waits for a rate that are over at `now`.
    pub fn look(&mut self, now: Nanos) {
        let requests = self.requests.values_mut().map(|request| &mut request.pace.goes_at);
        for goes_at in requests.chain(self.loads.values_mut().map(|load| &mut load.pace.goes_at)) {
            goes_at.take_if(|at| *at <= now);
        }
    }
}
