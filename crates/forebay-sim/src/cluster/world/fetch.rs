//! What nodes fetch into the tier: pages that readers miss, and what the stage machine requests.
//!
//! The node machine of [`forebay_policy::node`], which agents run as well, says what each node
//! fetches next. Here is what that takes: the descriptors through which pages are read, and the
//! time until their bytes have come.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_policy::fetch_order::{self, Urgency};
use forebay_policy::machine::Nanos;
use forebay_policy::node::{self, By, Node, Pages, ReadId, TaskId};
use forebay_policy::stage::event::{Event, Part, Priority, RequestId};

use super::map::Map;
use super::page::{Page, Waiter, page_range};
use super::pfs::Reader;
use super::tier_contents::Rooms;
use super::{Cluster, Happening, number};
use crate::cluster::{Activity, Fetched, Setup};
use crate::driver::Driver;
use crate::queue::Agenda;

/// The only mount of a simulated node.
const MOUNT: node::MountId = 0;

/// A page in the tier, or on its way.
pub(super) struct Fetch {
    node: usize,
    urgency: Urgency,
    state: State,
    waiting: Vec<Waiter>,
}

enum State {
    Queued,
    /// `is_in_order`: through the descriptor that has read the page before.
    Fetched {
        reader: Reader,
        is_in_order: bool,
        thread: usize,
        since: Nanos,
    },
    There,
}

/// What one node fetches.
struct Fetcher {
    machine: Driver<Node>,
    /// Pages of its requests that were not offered yet, and the bytes of each that are wanted.
    requests: BTreeMap<RequestId, VecDeque<(Page, u64)>>,
    /// Reads that were offered.
    offered: Map<ReadId, (RequestId, Page, u64)>,
    tasks: Map<TaskId, Page>,
    /// Descriptors through which files were read, each of which has read ahead of its position.
    readers: Map<(usize, u32), Vec<Reader>>,
}

/// The tier of all nodes.
pub(super) struct Tier {
    pub(super) fetches: Map<Page, Fetch>,
    nodes: Vec<Fetcher>,
    /// How often each node has failed.
    failures: Vec<u32>,
    /// The node of each request.
    node_of: BTreeMap<RequestId, usize>,
    /// Requests that are not done.
    open: BTreeSet<RequestId>,
    /// Events that nodes are to receive.
    inbox: VecDeque<(usize, node::Event)>,
    is_notifying: bool,
    /// Number of the last task or read.
    serial: u64,
    /// What tiers hold, where that changes.
    pub rooms: Option<Rooms>,
    /// Number of requests,
    pub asked: u64,
    /// and the bytes that came for them.
    pub prefetched_bytes: u64,
    /// Bytes of all pages that have come, from servers.
    pub read_bytes: u64,
    pub activity: Activity,
}

impl Fetcher {
    fn new(setup: &Setup, node: usize, failures: u32) -> Self {
        Fetcher {
            machine: Driver::new(Setup::fetcher_name(node, failures), Node::new(&setup.node_config())),
            requests: BTreeMap::new(),
            offered: Map::default(),
            tasks: Map::default(),
            readers: Map::default(),
        }
    }

    /// The reader of a page: one that has read its file up to there, or a new one. A client reads
    /// ahead as far as the file goes.
    fn reader_of(&mut self, setup: &Setup, page: Page, is_in_order: bool) -> Reader {
        let (job, file, _) = page;
        let (from, end) = page_range(setup, page);
        if !is_in_order {
            return Reader::new((job, file), (from, end), setup.page_window_bytes());
        }
        let readers = self.readers.entry((job, file)).or_default();
        if let Some(at) = readers.iter().position(|reader| (from..end).contains(&reader.at())) {
            return readers.remove(at);
        }
        Reader::new((job, file), (from, setup.jobs[job].bytes_of(file)), setup.page_window_bytes())
    }
}

impl Tier {
    /// Starts with nothing fetched.
    pub fn new(setup: &Setup) -> Self {
        let nodes = setup.nodes as usize;
        Tier {
            fetches: Map::default(),
            nodes: (0..nodes).map(|node| Fetcher::new(setup, node, 0)).collect(),
            failures: vec![0; nodes],
            node_of: BTreeMap::new(),
            open: BTreeSet::new(),
            inbox: VecDeque::new(),
            is_notifying: false,
            serial: 0,
            rooms: None,
            asked: 0,
            prefetched_bytes: 0,
            read_bytes: 0,
            activity: Activity::default(),
        }
    }

    /// Whether a page is in the tier.
    pub fn has(&self, page: Page) -> bool {
        self.fetches.get(&page).is_some_and(|fetch| matches!(fetch.state, State::There))
    }

    /// Whether a page is in the tier or on its way.
    pub fn knows(&self, page: Page) -> bool {
        self.fetches.contains_key(&page)
    }

    fn next_number(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A node is gone, and returns empty. Returns the waiters for pages that it was to fetch;
    /// nobody fetches those now.
    pub fn lose(&mut self, now: Nanos, setup: &Setup, node: usize) -> Vec<(Page, Waiter)> {
        self.failures[node] += 1;
        let lost = std::mem::replace(&mut self.nodes[node], Fetcher::new(setup, node, self.failures[node]));
        self.node_of.retain(|_, of| *of != node);
        self.open.retain(|id| self.node_of.contains_key(id));
        if let Some(rooms) = &mut self.rooms {
            for page in rooms.lose(node) {
                let (from, to) = page_range(setup, page);
                self.activity.gone(node, now.0, to - from);
                self.fetches.remove(&page);
            }
        }
        let is_of_it = |waiter: &Waiter| matches!(waiter, Waiter::Request { node: at, .. } if *at == node);
        self.fetches.values_mut().for_each(|fetch| fetch.waiting.retain(|waiter| !is_of_it(waiter)));
        let queued: BTreeSet<Page> = lost.tasks.into_values().collect();
        let lost = self.fetches.iter().filter(|(page, fetch)| match &fetch.state {
            State::Queued => queued.contains(page),
            State::Fetched { .. } => fetch.node == node,
            State::There => false,
        });
        let mut lost: Vec<Page> = lost.map(|(page, _)| *page).collect();
        lost.sort_unstable();
        let fetches = lost.into_iter().filter_map(|page| Some((page, self.fetches.remove(&page)?)));
        fetches.flat_map(|(page, fetch)| fetch.waiting.into_iter().map(move |w| (page, w))).collect()
    }
}

impl Cluster<'_> {
    // The conversation with the machines of the nodes.

    /// Queues an event for a node, after those that are queued already.
    fn notify_node(
        &mut self,
        now: Nanos,
        node: usize,
        event: node::Event,
        queue: &mut impl Agenda<Happening>,
    ) {
        self.tier.inbox.push_back((node, event));
        if std::mem::replace(&mut self.tier.is_notifying, true) {
            return;
        }
        while let Some((node, event)) = self.tier.inbox.pop_front() {
            let actions = self.tier.nodes[node].machine.handle(now, event, self.record);
            self.obey_node(now, node, actions, queue);
        }
        self.tier.is_notifying = false;
    }

    /// The machine of a node requested a wake-up.
    pub fn node_wakes(&mut self, now: Nanos, node: usize, queue: &mut impl Agenda<Happening>) {
        let actions = self.tier.nodes[node].machine.wake(now, self.record);
        self.obey_node(now, node, actions, queue);
    }

    fn obey_node(
        &mut self,
        now: Nanos,
        node: usize,
        actions: Vec<node::Action>,
        queue: &mut impl Agenda<Happening>,
    ) {
        for action in actions {
            match action {
                node::Action::Send { read } => self.send(now, node, read, queue),
                node::Action::Read { thread, task, .. } => self.read(now, node, thread, task, queue),
                node::Action::Report { request, progress } => {
                    if progress.done {
                        self.tier.open.remove(&request);
                    }
                    let node = self.names[node].clone();
                    self.reports.push_back(Event::Request { request, node, progress });
                }
                // Only the client reads ahead here; nothing brakes, and no file is dirty.
                node::Action::Refuse { .. }
                | node::Action::Hold { .. }
                | node::Action::Gentle { .. }
                | node::Action::Drain { .. } => {}
            }
        }
        self.tier.nodes[node].machine.arm(queue, Happening::NodeWakes(node));
    }

    /// The fetch threads of a node become available.
    pub(super) fn node_begins(&mut self, now: Nanos, node: usize, queue: &mut impl Agenda<Happening>) {
        for thread in 0..self.setup.fetch_threads as usize {
            self.notify_node(now, node, node::Event::Idle { mount: MOUNT, thread }, queue);
        }
    }

    // Pages.

    /// A node fetches a page unless it is there or on its way; `waiter` continues when it is there.
    pub(super) fn want(
        &mut self,
        now: Nanos,
        node: usize,
        page: Page,
        urgency: Urgency,
        waiter: Option<Waiter>,
        queue: &mut impl Agenda<Happening>,
    ) {
        let new = || Fetch { node, urgency, state: State::Queued, waiting: Vec::new() };
        let is_new = !self.tier.knows(page);
        let fetch = self.tier.fetches.entry(page).or_insert_with(new);
        fetch.waiting.extend(waiter);
        if is_new || urgency < fetch.urgency {
            // Its earlier place in the queue is skipped later.
            fetch.urgency = urgency;
            let task = self.tier.next_number();
            self.tier.nodes[node].tasks.insert(task, page);
            let is_in_order = self.setup.streams && fetch_order::is_in_order(urgency);
            let pages = is_in_order.then(|| pages_of_task(page));
            self.notify_node(now, node, node::Event::Queue { task, mount: MOUNT, urgency, pages }, queue);
        }
    }

    /// A fetch thread of a node takes up a page.
    fn read(
        &mut self,
        now: Nanos,
        node: usize,
        thread: usize,
        task: TaskId,
        queue: &mut impl Agenda<Happening>,
    ) {
        let page = self.tier.nodes[node].tasks.remove(&task);
        let fetch = page.and_then(|page| Some((page, self.tier.fetches.get_mut(&page)?)));
        let Some((page, fetch)) = fetch.filter(|(_, fetch)| matches!(fetch.state, State::Queued)) else {
            return self.notify_node(now, node, node::Event::Idle { mount: MOUNT, thread }, queue);
        };
        let is_in_order = self.setup.streams && fetch_order::is_in_order(fetch.urgency);
        let mut reader = self.tier.nodes[node].reader_of(self.setup, page, is_in_order);
        reader.request(now, &mut self.pfs);
        reader.come_at().for_each(|at| queue.at(at.max(now), Happening::PageGrows(page)));
        fetch.node = node;
        fetch.state = State::Fetched { reader, is_in_order, thread, since: now };
    }

    /// A window of a page may have come.
    pub fn page_grows(&mut self, now: Nanos, page: Page, queue: &mut impl Agenda<Happening>) {
        let Some(fetch) = self.tier.fetches.get_mut(&page) else { return };
        let State::Fetched { reader, is_in_order, thread, since } = &mut fetch.state else { return };
        let (node, is_in_order, thread, since) = (fetch.node, *is_in_order, *thread, *since);
        let (start, end) = page_range(self.setup, page);
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
        fetch.state = State::There;
        let (urgency, waiting) = (fetch.urgency, std::mem::take(&mut fetch.waiting));
        self.tier.read_bytes += end - start;
        self.tier.activity.came(Fetched {
            node: node as u32,
            is_planned: urgency >= Urgency::Plan,
            bytes: (end - start) as u32,
            begin_ns: since.0,
            end_ns: now.0,
        });
        if let Some(rooms) = &mut self.tier.rooms {
            rooms.came(node, page, end - start, urgency, &waiting);
        }
        if is_in_order && !reader.is_done() {
            self.tier.nodes[node].readers.entry((page.0, page.1)).or_default().push(reader);
        }
        for waiter in waiting {
            match waiter {
                Waiter::Slot(slot) => self.go_on(now, slot, queue),
                Waiter::Request { read, node, bytes, .. } => {
                    self.read_ended(now, node, read, [0, bytes], queue);
                }
            }
        }
        // The waiters have taken what has come.
        self.evict_excess(now, node);
        self.notify_node(now, node, node::Event::Idle { mount: MOUNT, thread }, queue);
    }

    // Requests.

    /// The stage machine requests parts of files from a node.
    pub fn asked(
        &mut self,
        now: Nanos,
        id: RequestId,
        (node, job): (&str, usize),
        (threads, rate_bytes_per_s, priority): (u32, u64, Priority),
        parts: &[Part],
        queue: &mut impl Agenda<Happening>,
    ) {
        let Some(node) = number(node).filter(|number| *number < self.tier.nodes.len()) else { return };
        let pages = parts.iter().flat_map(|part| pages_of(self.setup, job, part)).collect();
        self.tier.nodes[node].requests.insert(id, pages);
        self.tier.node_of.insert(id, node);
        self.tier.open.insert(id);
        self.tier.asked += 1;
        let request = node::Event::Request { request: id, threads, rate_bytes_per_s, priority };
        self.notify_node(now, node, request, queue);
        self.offer(now, node, id, queue);
    }

    /// A request continues at another pace.
    pub fn adjusted(
        &mut self,
        now: Nanos,
        id: RequestId,
        (threads, rate_bytes_per_s): (u32, u64),
        queue: &mut impl Agenda<Happening>,
    ) {
        if let Some(node) = self.tier.node_of.get(&id).copied() {
            let adjust = node::Event::Adjust { request: id, threads, rate_bytes_per_s };
            self.notify_node(now, node, adjust, queue);
        }
    }

    /// Nothing more is fetched for these requests.
    pub fn released(&mut self, now: Nanos, ids: Vec<RequestId>, queue: &mut impl Agenda<Happening>) {
        for id in ids {
            let Some(node) = self.tier.node_of.remove(&id) else { continue };
            self.tier.open.remove(&id);
            self.tier.nodes[node].requests.remove(&id);
            if let Some(rooms) = &mut self.tier.rooms {
                rooms.release(node, id);
            }
            self.notify_node(now, node, node::Event::Release { requests: vec![id] }, queue);
        }
    }

    /// A request offers its next page that is not in the tier, or nothing more.
    fn offer(&mut self, now: Nanos, node: usize, id: RequestId, queue: &mut impl Agenda<Happening>) {
        let mut resident_bytes = 0;
        let next = loop {
            let Some(pages) = self.tier.nodes[node].requests.get_mut(&id) else { return };
            let Some((page, bytes)) = pages.pop_front() else { break None };
            if !self.tier.has(page) {
                break Some((page, bytes));
            }
            resident_bytes += bytes;
        };
        if resident_bytes > 0 {
            let settled = node::Event::Settled { request: id, resident_bytes, failed_bytes: 0 };
            self.notify_node(now, node, settled, queue);
        }
        let event = match next {
            None => node::Event::Fed { request: id },
            Some((page, bytes)) => {
                let read = self.tier.next_number();
                self.tier.nodes[node].offered.insert(read, (id, page, bytes));
                let (by, mount) = (By::Request(id), Some(MOUNT));
                node::Event::Offer { read, by, mount, bytes, is_short: false }
            }
        };
        self.notify_node(now, node, event, queue);
    }

    /// A read of a request may begin.
    fn send(&mut self, now: Nanos, node: usize, read: ReadId, queue: &mut impl Agenda<Happening>) {
        let Some((id, page, bytes)) = self.tier.nodes[node].offered.remove(&read) else { return };
        if self.tier.has(page) {
            self.read_ended(now, node, read, [bytes, 0], queue);
        } else {
            let waiter = Waiter::Request { id, node, read, bytes };
            self.want(now, node, page, Urgency::Plan, Some(waiter), queue);
        }
        self.offer(now, node, id, queue);
    }

    fn read_ended(
        &mut self,
        now: Nanos,
        node: usize,
        read: ReadId,
        [resident_bytes, fetched_bytes]: [u64; 2],
        queue: &mut impl Agenda<Happening>,
    ) {
        self.tier.prefetched_bytes += fetched_bytes;
        let ended = node::Event::ReadEnded { read, resident_bytes, fetched_bytes, failed_bytes: 0 };
        self.notify_node(now, node, ended, queue);
    }
}

/// A page, as the machine of a node knows it.
fn pages_of_task((job, file, number): Page) -> Pages {
    Pages { file: (job as u64) << 32 | u64::from(file), range: number as u32..number as u32 + 1 }
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
