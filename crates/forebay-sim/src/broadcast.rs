//! Many nodes that read one file at the same time, from their tiers' owners and from each other.
//!
//! The nodes and the owners are those of the agents: placement, connections, windows and the
//! decision which node sends a page ([`Spread`]) come from `forebay-policy`. Each node has a link,
//! with its own bandwidth in each direction, and the file system sends at a rate of its own. An
//! owner reads a page from the file system when it is first requested.
//!
//! A transfer gets an even share of its sender's link or of its receiver's, whichever is less. That
//! is less than max-min fairness gives, which hands on what one end cannot use; but all transfers
//! of a broadcast are linked, so each of a million changes would compute thousands of rates again.
//! A page that a node passes on while it receives it arrives at the next node later, by the time
//! that one part of the page takes.

use crate::error::Result;
use crate::event_loop::{self, Limits, World};
use crate::queue::EventQueue;
use crate::transfer_ns;
use forebay_model::rng::Rng;
use forebay_policy::machine::Nanos;
use forebay_policy::placement::{Member, extent_key, owners};
use forebay_policy::spread::{Source, Spread, links_per_peer};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Each request goes to the owner, and each copy leaves through its link.
pub const OWNER: &str = "owner";
/// The owner names nodes that have the page.
pub const SPREAD: &str = "spread";

/// Bytes of a page that a node passes on at a time while the page arrives: the buffer of a
/// connection.
const PART_BYTES: f64 = (64 << 10) as f64;

/// A moment that never comes.
const NEVER: Nanos = Nanos(u64::MAX);

/// The only file.
const FILE: u64 = 1;

/// Everything that a run depends on.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    /// [`OWNER`] or [`SPREAD`].
    pub policy: String,
    /// Nodes that read the file; each also owns a part of it.
    pub nodes: usize,
    /// Bandwidth of a node's link in each direction, in bytes per second.
    pub link_bytes_per_s: f64,
    /// Time of a request and its answer, in ns.
    pub request_ns: u64,
    /// Bandwidth of the file system to all nodes together, in bytes per second.
    pub pfs_bytes_per_s: f64,
    /// Pages that an owner reads from the file system at a time.
    pub fetches: usize,
    /// Size of the file.
    pub file_bytes: u64,
    /// Size of a page.
    pub page_bytes: u64,
    /// Size of an extent.
    pub extent_bytes: u64,
    /// How far a reader's window goes beyond the first page that it does not have.
    pub window_bytes: u64,
    /// The nodes begin at random moments within this time from the start, in ns.
    pub start_ns: u64,
    /// Seed of these moments.
    pub seed: u64,
}

impl Setup {
    /// The least time in which a node can get all of the file: through its link, or from a file
    /// system that sends it once.
    pub fn bound_s(&self) -> f64 {
        self.file_bytes as f64 / self.link_bytes_per_s.min(self.pfs_bytes_per_s)
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// When each node had all of the file since the start of the run, in seconds, ascending.
    pub ends_s: Vec<f64>,
    /// When the last node began, in seconds.
    pub last_start_s: f64,
    /// [`Setup::bound_s`].
    pub bound_s: f64,
    /// Bytes that the file system sent, as copies of the file.
    pub pfs_copies: f64,
    /// Transfers from nodes other than the owner.
    pub relayed: u64,
    /// What the busiest node sent, as copies of the file.
    pub most_sent_copies: f64,
    /// Events and completions.
    pub events: u64,
}

impl Outcome {
    /// Returns the time of the last node.
    pub fn last_s(&self) -> f64 {
        self.ends_s.last().copied().unwrap_or(0.0)
    }
}

/// Runs the setup to the end.
///
/// # Errors
/// If it was interrupted. A node that has not got all of the file is a panic.
pub fn simulate(setup: &Setup) -> Result<Outcome> {
    let (mut nodes, mut queue) = (Nodes::new(setup.clone()), EventQueue::new());
    let mut random = Rng::new(setup.seed);
    for node in 0..setup.nodes {
        let at_ns = (random.unit() * setup.start_ns as f64) as u64;
        nodes.outcome.last_start_s = nodes.outcome.last_start_s.max(at_ns as f64 * 1e-9);
        queue.at(Nanos(at_ns), Event::Read(node));
    }
    let stats = event_loop::run(&mut nodes, &mut queue, Limits::of(None))?;
    let mut outcome = nodes.outcome;
    assert_eq!(outcome.ends_s.len(), setup.nodes, "a node has not got all of the file");
    let file_bytes = setup.file_bytes as f64;
    outcome.bound_s = setup.bound_s();
    outcome.pfs_copies = nodes.pfs_bytes / file_bytes;
    outcome.most_sent_copies = nodes.sent_bytes.iter().copied().fold(0.0, f64::max) / file_bytes;
    outcome.events = stats.events;
    Ok(outcome)
}

enum Event {
    /// A node requests as many pages as its window allows.
    Read(usize),
    /// A request has reached the owner of a page.
    Arrive(usize, u32),
    /// A node begins to send a page to another one.
    Send(Copy),
    /// All of a page has arrived.
    Got(Copy),
}

/// A page that goes from one node to another.
#[derive(Clone, Copy)]
struct Copy {
    page: u32,
    from: usize,
    to: usize,
}

#[derive(Clone, Copy)]
enum What {
    /// An owner reads a page from the file system.
    Fetch(u32),
    /// A page goes from one node to another.
    Page(Copy),
}

struct Transfer {
    what: What,
    /// `None`: the file system.
    from: Option<usize>,
    to: usize,
    left_bytes: f64,
    rate: f64,
    since: Nanos,
    ends: Nanos,
}

#[derive(Clone, Default)]
struct Reader {
    started: bool,
    /// When each page came; [`NEVER`] if it has not.
    got: Vec<Nanos>,
    missing: usize,
    /// The first page that the node does not have.
    front: u32,
    /// Pages pending, by owner.
    asked: BTreeSet<u32>,
    of_owner: BTreeMap<usize, usize>,
}

#[derive(Default)]
struct Owner {
    spread: Spread,
    /// Pages to be read from the file system, and how many are being read.
    to_fetch: BTreeSet<u32>,
    fetches: usize,
}

struct Nodes {
    setup: Setup,
    owner_of: Vec<usize>,
    /// Whether the owner of a page has begun to read it.
    is_fetched: Vec<bool>,
    /// Copies that have been sent as far as the sender has the page, by sender and page.
    behind: BTreeMap<(usize, u32), Vec<Copy>>,
    readers: Vec<Reader>,
    owners: Vec<Owner>,
    transfers: BTreeMap<u64, Transfer>,
    next: BTreeSet<(Nanos, u64)>,
    next_id: u64,
    sending: Vec<BTreeSet<u64>>,
    receiving: Vec<BTreeSet<u64>>,
    from_pfs: BTreeSet<u64>,
    sent_bytes: Vec<f64>,
    pfs_bytes: f64,
    outcome: Outcome,
    /// Time of [`PART_BYTES`] on a link.
    part_ns: u64,
}

impl Nodes {
    fn new(setup: Setup) -> Self {
        let pages = setup.file_bytes.div_ceil(setup.page_bytes);
        let members: Vec<_> = (0..setup.nodes as u64).map(|node| Member { node, weight: 1.0 }).collect();
        let owner = |page: u64| {
            let key = extent_key("pfs", FILE, page * setup.page_bytes / setup.extent_bytes);
            owners::<1>(key, &members).next().unwrap_or(0)
        };
        let missing = pages as usize;
        let reader = Reader { got: vec![NEVER; missing], missing, ..Reader::default() };
        Nodes {
            owner_of: (0..pages).map(owner).collect(),
            is_fetched: vec![false; missing],
            behind: BTreeMap::new(),
            readers: vec![reader; setup.nodes],
            owners: (0..setup.nodes).map(|_| Owner::default()).collect(),
            transfers: BTreeMap::new(),
            next: BTreeSet::new(),
            next_id: 0,
            sending: vec![BTreeSet::new(); setup.nodes],
            receiving: vec![BTreeSet::new(); setup.nodes],
            from_pfs: BTreeSet::new(),
            sent_bytes: vec![0.0; setup.nodes],
            pfs_bytes: 0.0,
            outcome: Outcome::default(),
            part_ns: transfer_ns(PART_BYTES, setup.link_bytes_per_s).unwrap_or(0),
            setup,
        }
    }

    fn page_bytes(&self, page: u32) -> f64 {
        let start = u64::from(page) * self.setup.page_bytes;
        (self.setup.file_bytes - start).min(self.setup.page_bytes) as f64
    }

    /// Requests pages in their order, as far as the window and the connections to owners go.
    fn read(&mut self, node: usize, queue: &mut EventQueue<Event>) {
        let links = links_per_peer(self.setup.nodes);
        let window = (self.setup.window_bytes / self.setup.page_bytes) as u32;
        let reader = &mut self.readers[node];
        let end = (reader.front + window).min(reader.got.len() as u32);
        for page in reader.front..end {
            let owner = self.owner_of[page as usize];
            if reader.got[page as usize] != NEVER || reader.asked.contains(&page) {
                continue;
            }
            let under_way = reader.of_owner.entry(owner).or_default();
            if owner != node && *under_way >= links {
                continue;
            }
            *under_way += 1;
            reader.asked.insert(page);
            let delay_ns = if owner == node { 0 } else { self.setup.request_ns };
            queue.after(delay_ns, Event::Arrive(node, page));
        }
    }

    fn arrive(&mut self, now: Nanos, node: usize, page: u32, queue: &mut EventQueue<Event>) {
        let owner = self.owner_of[page as usize];
        if !self.is_fetched[page as usize] {
            self.is_fetched[page as usize] = true;
            self.owners[owner].to_fetch.insert(page);
            self.fetch(now, owner);
        }
        if owner == node {
            return;
        }
        let source = match self.setup.policy == SPREAD {
            true => self.owners[owner].spread.source(now, page.into(), node as u64),
            false => Source::Owner,
        };
        let (from, delay_ns) = match source {
            Source::Owner => (owner, 0),
            Source::Relay(relay) => {
                self.outcome.relayed += 1;
                (relay as usize, self.setup.request_ns)
            }
        };
        self.sent_bytes[from] += self.page_bytes(page);
        queue.after(delay_ns, Event::Send(Copy { page, from, to: node }));
    }

    /// Reads the next page of the file from the file system, unless the limit on concurrent reads
    /// is reached.
    fn fetch(&mut self, now: Nanos, owner: usize) {
        let at = &mut self.owners[owner];
        if at.fetches >= self.setup.fetches {
            return;
        }
        let Some(page) = at.to_fetch.pop_first() else { return };
        at.fetches += 1;
        let bytes = self.page_bytes(page);
        self.pfs_bytes += bytes;
        self.start(now, What::Fetch(page), None, owner, bytes);
    }

    fn start(&mut self, now: Nanos, what: What, from: Option<usize>, to: usize, bytes: f64) {
        let id = self.next_id;
        self.next_id += 1;
        let transfer = Transfer { what, from, to, left_bytes: bytes, rate: 0.0, since: now, ends: now };
        match from {
            Some(from) => self.sending[from].insert(id),
            None => self.from_pfs.insert(id),
        };
        self.receiving[to].insert(id);
        self.transfers.insert(id, transfer);
        self.share(now, from, to);
    }

    /// Recomputes the rates of all transfers that share an end with one that begins or ends.
    fn share(&mut self, now: Nanos, from: Option<usize>, to: usize) {
        let link = self.setup.link_bytes_per_s;
        let sent = from.map_or(&self.from_pfs, |from| &self.sending[from]);
        let ids: BTreeSet<u64> = sent.union(&self.receiving[to]).copied().collect();
        for id in ids {
            let Some(transfer) = self.transfers.get_mut(&id) else { continue };
            let sends = match transfer.from {
                Some(from) => link / self.sending[from].len() as f64,
                None => self.setup.pfs_bytes_per_s / self.from_pfs.len() as f64,
            };
            let rate = sends.min(link / self.receiving[transfer.to].len() as f64);
            let passed_s = now.saturating_since(transfer.since) as f64 * 1e-9;
            transfer.left_bytes = (transfer.left_bytes - transfer.rate * passed_s).max(0.0);
            self.next.remove(&(transfer.ends, id));
            (transfer.rate, transfer.since) = (rate, now);
            transfer.ends = now + transfer_ns(transfer.left_bytes, rate).unwrap_or(u64::MAX);
            self.next.insert((transfer.ends, id));
        }
    }

    /// A node has received a page.
    fn got(&mut self, now: Nanos, node: usize, page: u32, queue: &mut EventQueue<Event>) {
        let reader = &mut self.readers[node];
        if reader.got[page as usize] != NEVER {
            return;
        }
        reader.got[page as usize] = now;
        reader.missing -= 1;
        for copy in self.behind.remove(&(node, page)).unwrap_or_default() {
            queue.after(self.part_ns, Event::Got(copy));
        }
        let reader = &mut self.readers[node];
        if reader.asked.remove(&page)
            && let Some(under_way) = reader.of_owner.get_mut(&self.owner_of[page as usize])
        {
            *under_way -= 1;
        }
        while reader.got.get(reader.front as usize).is_some_and(|at| *at != NEVER) {
            reader.front += 1;
        }
        if reader.missing == 0 {
            self.outcome.ends_s.push(now.as_secs_f64());
            return;
        }
        if self.readers[node].started {
            self.read(node, queue);
        }
    }
}

impl World for Nodes {
    type Event = Event;

    fn on_event(&mut self, now: Nanos, event: Event, queue: &mut EventQueue<Event>) {
        match event {
            Event::Read(node) => {
                self.readers[node].started = true;
                self.read(node, queue);
            }
            Event::Arrive(node, page) => self.arrive(now, node, page, queue),
            Event::Send(copy) => {
                let bytes = self.page_bytes(copy.page);
                self.start(now, What::Page(copy), Some(copy.from), copy.to, bytes);
            }
            Event::Got(copy) => self.got(now, copy.to, copy.page, queue),
        }
    }

    fn next_completion(&self) -> Option<Nanos> {
        self.next.first().map(|(at, _)| *at)
    }

    fn on_completion(&mut self, now: Nanos, queue: &mut EventQueue<Event>) {
        let Some((_, id)) = self.next.pop_first() else { return };
        let Some(done) = self.transfers.remove(&id) else { return };
        self.receiving[done.to].remove(&id);
        match done.from {
            Some(from) => self.sending[from].remove(&id),
            None => self.from_pfs.remove(&id),
        };
        self.share(now, done.from, done.to);
        match done.what {
            What::Fetch(page) => {
                self.owners[done.to].fetches -= 1;
                self.fetch(now, done.to);
                self.got(now, done.to, page, queue);
            }
            What::Page(copy) => match self.readers[copy.from].got[copy.page as usize] {
                NEVER => self.behind.entry((copy.from, copy.page)).or_default().push(copy),
                at => queue.at(now.max(at + self.part_ns), Event::Got(copy)),
            },
        }
    }
}
