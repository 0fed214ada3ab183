//! What nodes fetch into the tier: pages that readers miss, and what the machine requests.
//!
//! The rules of [`forebay_policy::fetch_order`], which agents follow as well, say which page is
//! next and how many threads requests may have. Adjacent pages that readers want are fetched by one
//! descriptor.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use forebay_policy::fetch_order::{self, Urgency};
use forebay_policy::machine::Nanos;
use forebay_policy::stage::event::{Event, Part, Priority, Progress, RequestId};
use forebay_policy::token_bucket::{FOREVER_NS, TokenBucket};

use super::page::{Page, Waiter};
use super::pfs::Reader;
use super::room::Rooms;
use super::{Cluster, Happening, name};
use crate::cluster::Setup;
use crate::queue::Agenda;

/// Burst of a request with a rate: a page at least.
const BURST_BYTES: u64 = 4 << 20;
/// Stands for no limit.
const NO_LIMIT_BYTES_PER_S: u64 = 1 << 50;

/// A page in the tier, or on its way.
pub(super) struct Flight {
    node: usize,
    urgency: Urgency,
    state: State,
    waiting: Vec<Waiter>,
}

enum State {
    Queued,
    /// `is_in_order`: by the descriptor that has read the page before.
    Fetched {
        reader: Reader,
        is_in_order: bool,
    },
    There,
}

/// The fetch threads of a node.
#[derive(Default)]
struct Threads {
    /// By the order in which they were asked for.
    queued: BTreeMap<Urgency, BTreeMap<u64, Page>>,
    busy: u32,
    /// Pages under way for requests.
    for_requests: u32,
    /// Descriptors that files were read by, each of which has read ahead of where it is.
    readers: HashMap<(usize, u32), Vec<Reader>>,
    /// When the next [`Happening::Feeds`] comes, if one is under way.
    feeds_at: Option<Nanos>,
}

/// What a node was asked for.
struct Request {
    node: usize,
    pages: VecDeque<(Page, u64)>,
    under_way: u32,
    threads: u32,
    priority: Priority,
    bucket: TokenBucket,
    progress: Progress,
}

/// The tier of all nodes.
#[derive(Default)]
pub(super) struct Tier {
    /// Never gone through in its order.
    pub(super) flights: HashMap<Page, Flight>,
    /// By node.
    threads: Vec<Threads>,
    /// Pages that were next in a queue and wait for the page before, the key: the node, and the
    /// place in its queue. So no page is looked at again until the one before has changed.
    behind: HashMap<Page, Vec<(usize, Urgency, u64)>>,
    /// Pages queued so far.
    queued: u64,
    requests: BTreeMap<RequestId, Request>,
    /// What tiers hold, where that changes.
    pub rooms: Option<Rooms>,
    /// Requests so far.
    pub asked: u64,
    /// Those of which something is to come, by node, in the order in which they are served.
    open: BTreeSet<(usize, (Priority, RequestId))>,
}

impl Tier {
    /// Nothing was fetched.
    pub fn new(nodes: u32) -> Self {
        Tier { threads: (0..nodes).map(|_| Threads::default()).collect(), ..Tier::default() }
    }

    /// Whether a page is in the tier.
    pub fn has(&self, page: Page) -> bool {
        self.flights.get(&page).is_some_and(|flight| matches!(flight.state, State::There))
    }

    /// Whether a page is in the tier or on its way.
    pub fn knows(&self, page: Page) -> bool {
        self.flights.contains_key(&page)
    }

    /// Whether nodes fetch for a request.
    pub fn is_prefetching(&self) -> bool {
        !self.open.is_empty()
    }

    /// A node takes up the most urgent page that does not wait for the one before.
    fn next_of(&mut self, setup: &Setup, node: usize) -> Option<Page> {
        let Tier { flights, threads, behind, .. } = self;
        for (&urgency, pages) in &mut threads[node].queued {
            while let Some((at, page)) = pages.pop_first() {
                if !flights.get(&page).is_some_and(|flight| matches!(flight.state, State::Queued)) {
                    continue;
                }
                if !waits(setup, flights, page, urgency) {
                    return Some(page);
                }
                behind.entry((page.0, page.1, page.2 - 1)).or_default().push((node, urgency, at));
            }
        }
        None
    }

    /// Nobody waits for a page any more: the next one in the file is back in its place.
    fn let_next_go(&mut self, page: Page) {
        for (node, urgency, at) in self.behind.remove(&page).unwrap_or_default() {
            let next = (page.0, page.1, page.2 + 1);
            self.threads[node].queued.entry(urgency).or_default().insert(at, next);
        }
    }

    /// A node is gone. Returns who waits for pages that it was to fetch; nobody fetches those now.
    pub fn lose(&mut self, node: usize) -> Vec<(Page, Waiter)> {
        let before: Vec<Page> = self.behind.keys().copied().collect();
        before.into_iter().for_each(|page| self.let_next_go(page));
        self.requests.retain(|_, request| request.node != node);
        self.open.retain(|(of, ..)| *of != node);
        if let Some(rooms) = &mut self.rooms {
            rooms.lose(node).iter().for_each(|page| {
                self.flights.remove(page);
            });
        }
        let is_of_it = |waiter: &Waiter| matches!(waiter, Waiter::Request { node: at, .. } if *at == node);
        self.flights.values_mut().for_each(|flight| flight.waiting.retain(|waiter| !is_of_it(waiter)));
        let queued = std::mem::take(&mut self.threads[node]).queued;
        let queued: BTreeSet<Page> = queued.into_values().flat_map(BTreeMap::into_values).collect();
        let lost = self.flights.iter().filter(|(page, flight)| match &flight.state {
            State::Queued => queued.contains(page),
            State::Fetched { .. } => flight.node == node,
            State::There => false,
        });
        let mut lost: Vec<Page> = lost.map(|(page, _)| *page).collect();
        lost.sort_unstable();
        let flights = lost.into_iter().filter_map(|page| Some((page, self.flights.remove(&page)?)));
        flights.flat_map(|(page, flight)| flight.waiting.into_iter().map(move |w| (page, w))).collect()
    }

    /// Who reads a page for a node: who has read its file up to there, or a new one. A client reads
    /// ahead as far as the file goes.
    fn reader_of(&mut self, setup: &Setup, node: usize, page: Page, is_in_order: bool) -> Reader {
        let (job, file, _) = page;
        let (from, end) = page_range(setup, page);
        if !is_in_order {
            return Reader::new((job, file), (from, end), setup.page_window_bytes());
        }
        let readers = self.threads[node].readers.entry((job, file)).or_default();
        if let Some(at) = readers.iter().position(|reader| (from..end).contains(&reader.at())) {
            return readers.remove(at);
        }
        Reader::new((job, file), (from, setup.jobs[job].bytes_of(file)), setup.page_window_bytes())
    }
}

impl Request {
    /// What is to be reported of it now.
    fn report(&mut self, id: RequestId) -> Event {
        self.progress.done = self.pages.is_empty() && self.under_way == 0;
        Event::Request { request: id, node: name(self.node), progress: self.progress }
    }
}

/// A limit of 0 is none.
fn limit(rate_bytes_per_s: u64) -> u64 {
    if rate_bytes_per_s == 0 { NO_LIMIT_BYTES_PER_S } else { rate_bytes_per_s }
}

impl Cluster<'_> {
    // Pages.

    /// A node fetches a page unless it is there or on its way; `waiter` goes on when it is there.
    pub(super) fn want(
        &mut self,
        now: Nanos,
        node: usize,
        page: Page,
        urgency: Urgency,
        waiter: Option<Waiter>,
        queue: &mut impl Agenda<Happening>,
    ) {
        let new = || Flight { node, urgency, state: State::Queued, waiting: Vec::new() };
        let is_new = !self.tier.knows(page);
        let flight = self.tier.flights.entry(page).or_insert_with(new);
        flight.waiting.extend(waiter);
        if is_new || urgency < flight.urgency {
            // Where it waited before it is passed over later.
            flight.urgency = urgency;
            self.tier.queued += 1;
            let at = self.tier.queued;
            self.tier.threads[node].queued.entry(urgency).or_default().insert(at, page);
        }
        self.fetch_some(now, node, queue);
    }

    /// Free threads of a node take up the most urgent pages.
    fn fetch_some(&mut self, now: Nanos, node: usize, queue: &mut impl Agenda<Happening>) {
        while self.tier.threads[node].busy < self.setup.fetch_threads {
            let Some(page) = self.tier.next_of(self.setup, node) else { return };
            let urgency = self.tier.flights.get(&page).map(|flight| flight.urgency);
            let is_in_order = self.setup.streams && urgency.is_some_and(fetch_order::is_in_order);
            let mut reader = self.tier.reader_of(self.setup, node, page, is_in_order);
            reader.request(now, &mut self.pfs);
            reader.come_at().for_each(|at| queue.at(at.max(now), Happening::PageGrows(page)));
            self.tier.threads[node].busy += 1;
            let Some(flight) = self.tier.flights.get_mut(&page) else { continue };
            let of = std::mem::replace(&mut flight.node, node);
            flight.state = State::Fetched { reader, is_in_order };
            if of != node {
                self.tier.let_next_go(page);
            }
        }
    }

    /// A window of a page may have come.
    pub fn page_grows(&mut self, now: Nanos, page: Page, queue: &mut impl Agenda<Happening>) {
        let Some(flight) = self.tier.flights.get_mut(&page) else { return };
        let State::Fetched { reader, is_in_order } = &mut flight.state else { return };
        let (node, is_in_order, end) = (flight.node, *is_in_order, page_range(self.setup, page).1);
        while reader.at() < end && reader.there(now).is_some() {
            let ahead = reader.request(now, &mut self.pfs);
            reader.take();
            let comes_to_next = reader.at() < end;
            let next = comes_to_next.then(|| reader.request(now, &mut self.pfs)).flatten();
            ahead.into_iter().chain(next).for_each(|at| queue.at(at, Happening::PageGrows(page)));
        }
        if reader.at() < end {
            return;
        }
        let reader = std::mem::take(reader);
        flight.state = State::There;
        let (urgency, waiting) = (flight.urgency, std::mem::take(&mut flight.waiting));
        self.tier.let_next_go(page);
        if let Some(rooms) = &mut self.tier.rooms {
            rooms.came(node, page, end - page_range(self.setup, page).0, urgency, &waiting);
        }
        let threads = &mut self.tier.threads[node];
        threads.busy -= 1;
        if is_in_order && !reader.is_done() {
            threads.readers.entry((page.0, page.1)).or_default().push(reader);
        }
        for waiter in waiting {
            match waiter {
                Waiter::Slot(slot) => self.go_on(now, slot, queue),
                Waiter::Request { id, node, bytes } => self.landed(now, id, node, bytes, queue),
            }
        }
        // What has come was taken by those who waited for it.
        self.evict_excess(node);
        self.fetch_some(now, node, queue);
        // What waits for this page may be at a node that was to fetch this one as well.
        let next = self.tier.flights.get(&(page.0, page.1, page.2 + 1)).map(|flight| flight.node);
        if let Some(next) = next.filter(|next| *next != node) {
            self.fetch_some(now, next, queue);
        }
    }

    // Requests.

    /// The machine requests parts of files from a node.
    pub fn asked(
        &mut self,
        now: Nanos,
        id: RequestId,
        (node, job): (&str, usize),
        (threads, rate_bytes_per_s, priority): (u32, u64, Priority),
        parts: &[Part],
        queue: &mut impl Agenda<Happening>,
    ) {
        let Some(node) = (0..self.tier.threads.len()).find(|number| name(*number) == node) else { return };
        let request = Request {
            node,
            pages: parts.iter().flat_map(|part| pages_of(self.setup, job, part)).collect(),
            under_way: 0,
            threads,
            priority,
            bucket: TokenBucket::new(now, limit(rate_bytes_per_s), BURST_BYTES),
            progress: Progress::default(),
        };
        self.tier.requests.insert(id, request);
        self.tier.open.insert((node, fetch_order::rank(priority, id)));
        self.tier.asked += 1;
        self.feed(now, node, queue);
    }

    /// A request goes on at another pace.
    pub fn adjusted(
        &mut self,
        now: Nanos,
        id: RequestId,
        (threads, rate_bytes_per_s): (u32, u64),
        queue: &mut impl Agenda<Happening>,
    ) {
        let Some(request) = self.tier.requests.get_mut(&id) else { return };
        request.threads = threads;
        request.bucket.set_rate(now, limit(rate_bytes_per_s));
        let node = request.node;
        self.feed(now, node, queue);
    }

    /// Nothing more is fetched for a request.
    pub fn released(&mut self, id: RequestId) {
        let Some(request) = self.tier.requests.remove(&id) else { return };
        self.tier.open.remove(&(request.node, fetch_order::rank(request.priority, id)));
        if let Some(rooms) = &mut self.tier.rooms {
            rooms.release(request.node, id);
        }
    }

    /// A request of a node may go on at this moment. One that comes before another replaces it: of
    /// two that wait, each would else schedule both again.
    fn feed_at(&mut self, node: usize, at: Nanos, queue: &mut impl Agenda<Happening>) {
        let next = &mut self.tier.threads[node].feeds_at;
        if next.is_none_or(|next| at < next) {
            *next = Some(at);
            queue.at(at, Happening::Feeds(node));
        }
    }

    /// The moment of [`Cluster::feed_at`] has come, unless an earlier one has replaced it.
    pub fn feeds(&mut self, now: Nanos, node: usize, queue: &mut impl Agenda<Happening>) {
        let next = &mut self.tier.threads[node].feeds_at;
        if next.take_if(|at| *at <= now).is_some() {
            self.feed(now, node, queue);
        }
    }

    /// The requests of a node put pages on their way, as far as they may.
    pub fn feed(&mut self, now: Nanos, node: usize, queue: &mut impl Agenda<Happening>) {
        let first = fetch_order::rank(Priority::Planned, 0);
        let of_node = self.tier.open.range((node, first)..(node + 1, first));
        let open: Vec<RequestId> = of_node.map(|(_, (_, id))| *id).collect();
        for id in open {
            while let Some((page, bytes)) = self.next_page(now, id, queue) {
                self.tier.threads[node].for_requests += 1;
                let waiter = Waiter::Request { id, node, bytes };
                self.want(now, node, page, Urgency::Plan, Some(waiter), queue);
            }
        }
    }

    /// The next page of a request that is not there, if it may go now.
    fn next_page(
        &mut self,
        now: Nanos,
        id: RequestId,
        queue: &mut impl Agenda<Happening>,
    ) -> Option<(Page, u64)> {
        let most = fetch_order::request_threads(self.setup.fetch_threads as usize) as u32;
        let request = self.tier.requests.get_mut(&id)?;
        let flights = &self.tier.flights;
        let is_there = |page: &Page| flights.get(page).is_some_and(|f| matches!(f.state, State::There));
        while let Some((_, bytes)) = request.pages.front().copied().filter(|(page, _)| is_there(page)) {
            request.progress.resident_bytes += bytes;
            request.pages.pop_front();
        }
        let Some((_, bytes)) = request.pages.front().copied() else {
            if request.under_way == 0 && !request.progress.done {
                self.reports.push_back(request.report(id));
                self.tier.open.remove(&(request.node, fetch_order::rank(request.priority, id)));
            }
            return None;
        };
        let for_requests = self.tier.threads[request.node].for_requests;
        if request.under_way >= request.threads || for_requests >= most {
            return None;
        }
        let node = request.node;
        match request.bucket.take(now, bytes) {
            0 => {}
            FOREVER_NS => return None,
            wait_ns => {
                self.feed_at(node, now + wait_ns, queue);
                return None;
            }
        }
        request.under_way += 1;
        request.pages.pop_front()
    }

    /// A page has come for a request, which may have been released since.
    fn landed(
        &mut self,
        now: Nanos,
        id: RequestId,
        node: usize,
        bytes: u64,
        queue: &mut impl Agenda<Happening>,
    ) {
        self.tier.threads[node].for_requests -= 1;
        if let Some(request) = self.tier.requests.get_mut(&id) {
            request.under_way -= 1;
            request.progress.fetched_bytes += bytes;
            let report = request.report(id);
            if request.progress.done {
                self.tier.open.remove(&(node, fetch_order::rank(request.priority, id)));
            }
            self.reports.push_back(report);
        }
        self.feed(now, node, queue);
    }
}

/// The bytes of its file that a page has.
fn page_range(setup: &Setup, (job, file, number): Page) -> (u64, u64) {
    let from = number * setup.page_bytes;
    (from, (from + setup.page_bytes).min(setup.jobs[job].bytes_of(file)))
}

/// The pages of a part of a file, and the bytes of each.
fn pages_of(setup: &Setup, job: usize, part: &Part) -> Vec<(Page, u64)> {
    let (first, end) = (part.offset / setup.page_bytes, part.offset + part.len);
    let page = |number: u64| {
        let from = part.offset.max(number * setup.page_bytes);
        ((job, part.file, number), end.min((number + 1) * setup.page_bytes) - from)
    };
    (first..end.div_ceil(setup.page_bytes)).map(page).collect()
}

/// Whether a page of `urgency` waits for the page before it, which the same node is to fetch.
fn waits(setup: &Setup, flights: &HashMap<Page, Flight>, page: Page, urgency: Urgency) -> bool {
    let (job, file, number) = page;
    if !setup.streams || number == 0 {
        return false;
    }
    let node = flights.get(&page).map(|flight| flight.node);
    let before = flights.get(&(job, file, number - 1)).filter(|before| Some(before.node) == node);
    before.is_some_and(|before| match before.state {
        State::Queued => fetch_order::precedes(before.urgency, false, urgency),
        State::Fetched { .. } => fetch_order::precedes(before.urgency, true, urgency),
        State::There => false,
    })
}
