//! Asking peers for the pages they own.
//!
//! A page that is missed here and owned by another node is received from that node's tier instead
//! of being read from the PFS: so the PFS serves it once for the whole cluster. It stays here as a
//! *remote page* ([`forebay_policy::eviction::RemotePages`]). Whatever goes wrong ends in the PFS,
//! in the same fetch: the reader notices nothing but time.
//!
//! **Queues and threads.** Each peer has a queue of its own and up to [`links_per_peer`] threads,
//! each with one connection; they start when there is work and end when there is none. So a peer
//! that hangs holds its own threads and nobody else's, and no thread that reads the PFS ever waits
//! for a peer.
//!
//! **Time.** The deadline of a page is taken before anything is asked. What arrives is copied into
//! the tier, then the clock is looked at, and only if the deadline is still to come are the bytes
//! shown to readers: until then the owner has kept them in place (see `forebay_wire::peer`). That
//! holds for each piece by itself, so a reader need not wait for a whole page. A peer that misses a
//! deadline is avoided, and all connections to it are cut, so that every other thread that waits
//! for it reads the PFS immediately. One that answers "not yet" is alive: a reader reads the PFS,
//! read-ahead asks again later.

use super::completions::Completions;
use super::owners::Owners;
use super::peer_link::{Answer, Link};
use super::pfs::Pfs;
use super::thread_queue::{Popped, ThreadQueue};
use crate::cache::Cache;
use crate::cache::entry::{Entry, Task};
use crate::cache::page_fetch::{Begun, FetchError, Watcher};
use crate::cluster::Cluster;
use crate::config::{Config, Live};
use crate::counters::{Counters, add};
use crate::lock::lock;
use crate::mounts::MountState;
use crate::user_limits::PfsFile;
use forebay_pfs::FileVersion;
use forebay_policy::eviction::Fill;
use forebay_policy::fetch_order::Urgency;
use forebay_policy::placement::node_number;
use forebay_policy::spread::links_per_peer;
use forebay_store::Class;
use forebay_wire::link::Security;
use forebay_wire::peer::{PageRef, Role, Wanted};
use forebay_wire::{FileRef, NodeInfo};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often an owner is asked for a page, if the nodes that it names do not send it. It names none
/// to a node that asks a second time, unless that has just died or was slow for others as well.
const ASKS_MAX: usize = 3;

/// Idle connections to nodes that pass pages on.
const RELAY_LINKS: usize = 64;

/// How long a thread is without work before it ends, and its connection with it.
const IDLE: Duration = Duration::from_secs(10);

/// How long a peer may say "not yet" before read-ahead is given up; a reader that comes to the page
/// asks again.
const AHEAD_PATIENCE: Duration = Duration::from_secs(10);

/// What a thread with its connection and pipe costs.
const LINK_BYTES: u64 = 128 << 10;

const STACK_BYTES: usize = 256 << 10;

/// All peers of this agent.
#[derive(Debug)]
pub struct Peers {
    /// Fetches what no peer serves.
    pub(super) pfs: Arc<Pfs>,
    pub(super) completions: Arc<Completions>,
    pub(super) owners: Arc<Owners>,
    mounts: Arc<[MountState]>,
    pub(super) cache: Arc<Cache>,
    pub(super) counters: Arc<Counters>,
    cluster: Arc<Cluster>,
    security: Security,
    /// Has the time within which a peer must answer; one that does not is avoided.
    live: Arc<Live<Config>>,
    peers: Mutex<BTreeMap<String, Arc<Peer>>>,
    /// Connections to nodes that pass pages on, the oldest first, by number of the node.
    relays: Mutex<VecDeque<(u64, Link)>>,
}

/// One peer: what it is to be asked for, and who asks.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: String,
    queue: ThreadQueue<Job>,
    workers: Mutex<Workers>,
}

#[derive(Debug, Default)]
struct Workers {
    /// Numbers of the threads.
    threads: BTreeSet<usize>,
    /// Their sockets, to be cut.
    sockets: BTreeMap<usize, TcpStream>,
}

/// What a peer is asked for.
#[derive(Debug)]
enum Job {
    /// A page and those behind it, to be sent here.
    Page(Task, Instant),
    /// A page of a load, to be fetched where it belongs.
    Place(Place),
    /// Pages of a load that should be there by now.
    Check(Check),
}

/// A file whose pages are fetched into the tiers of their owners.
pub trait Placing: Watcher {
    /// The file's copy on this node.
    fn entry(&self) -> &Entry;

    /// The file on the PFS.
    fn pfs(&self) -> &Arc<PfsFile>;

    /// Records that one of its pages is where it belongs, on `node`, and whether it was fetched
    /// from the PFS for that.
    fn page_placed(&self, page: u32, node: &str, fetched: bool);

    /// Has one of its pages fetched to this node.
    fn fetch_here(&self, page: u32);

    /// Records which of the pages placed with a node are gone; if nobody knows, all of them count
    /// as gone.
    fn checked(&self, gone: &[u32]);
}

/// Pages that a load has placed with one peer.
#[derive(Debug)]
pub struct Check {
    /// The file.
    pub of: Arc<dyn Placing>,
    /// The pages.
    pub pages: Vec<u32>,
}

/// A page that a load wants in its owner's tier.
#[derive(Debug)]
pub struct Place {
    /// The file.
    pub of: Arc<dyn Placing>,
    /// The page.
    pub page: u32,
    /// The peer has begun to fetch it because of this load.
    pub begun: bool,
}

/// Path of an open file below its mount's root, as peers can find it; empty if it is not below it
/// as this agent sees it.
fn path_below(mount: &MountState, fd: &OwnedFd) -> Vec<u8> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
    path.strip_prefix(mount.root()).map(|p| p.as_os_str().as_bytes().to_vec()).unwrap_or_default()
}

impl Peers {
    /// Peers of which none was asked yet.
    pub fn new(
        pfs: Arc<Pfs>,
        completions: Arc<Completions>,
        owners: Arc<Owners>,
        cluster: Arc<Cluster>,
        security: Security,
        live: Arc<Live<Config>>,
    ) -> Self {
        Peers {
            mounts: completions.mounts.clone(),
            cache: completions.cache.clone(),
            counters: completions.counters.clone(),
            pfs,
            completions,
            owners,
            cluster,
            security,
            live,
            peers: Mutex::default(),
            relays: Mutex::default(),
        }
    }

    /// When a peer that is asked now has to have answered.
    fn deadline(&self) -> Instant {
        Instant::now() + self.live.get(|config| config.cluster.peer_deadline)
    }

    /// Queues a page that `node` owns, and those behind it.
    pub fn send(self: &Arc<Self>, node: &NodeInfo, task: Task) {
        let pushed = self.push_job(&node.name, task.urgency, Job::Page(task, Instant::now()));
        if let Err(Job::Page(task, _)) = pushed {
            self.pfs.refuse(&task);
        }
    }

    /// Sends what waited for a peer where it belongs now.
    pub(super) fn send_anew(self: &Arc<Self>, task: Task) {
        match self.owners.route(&task) {
            Some(node) => self.send(&node, task),
            None => self.pfs.send(task),
        }
    }

    pub(super) fn page_ref(&self, entry: &Entry, pfs: &OwnedFd, page: u32) -> PageRef {
        let mount = &self.mounts[entry.mount];
        let file = FileRef {
            mount: mount.label().to_owned(),
            path: path_below(mount, pfs),
            version: entry.identity.version,
        };
        PageRef { file, page_bytes: entry.identity.page_bytes, page }
    }

    /// Queues a page of a load; hands it back if nobody could ask.
    ///
    /// # Errors
    /// The page.
    pub fn place(self: &Arc<Self>, node: &NodeInfo, place: Place) -> Result<(), Place> {
        self.push_job(&node.name, Urgency::Load, Job::Place(place)).map_err(|job| match job {
            Job::Place(place) => place,
            Job::Page(..) | Job::Check(_) => unreachable!("what was pushed comes back"),
        })
    }

    /// Asks a node whether it still has pages that a load has placed with it; the load is notified
    /// in any case.
    pub fn check(self: &Arc<Self>, node: &str, check: Check) {
        if let Err(job) = self.push_job(node, Urgency::Load, Job::Check(check)) {
            self.turn_away(job);
        }
    }

    fn push_job(self: &Arc<Self>, node: &str, urgency: Urgency, job: Job) -> Result<(), Job> {
        let peer = lock(&self.peers)
            .entry(node.to_owned())
            .or_insert_with(|| {
                let (queue, workers) = (ThreadQueue::default(), Mutex::default());
                Arc::new(Peer { name: node.to_owned(), queue, workers })
            })
            .clone();
        peer.queue.push(urgency, job)?;
        peer.staff(self);
        Ok(())
    }

    /// Greets peers whose back-off has ended. Called when there is time.
    pub fn keep_house(self: &Arc<Self>) {
        for node in self.cluster.to_greet() {
            let (peers, name) = (self.clone(), node.name.clone());
            let body =
                move || match Link::connect(&peers.security, peers.cluster.node(), &node, peers.deadline()) {
                    Ok(_) => peers.cluster.believe(&node.name),
                    Err(_) => peers.cluster.avoid(&node.name),
                };
            let greeting = std::thread::Builder::new().name("greet".into()).stack_size(STACK_BYTES);
            if greeting.spawn(body).is_err() {
                self.cluster.avoid(&name);
            }
        }
    }

    /// Ends all that waits. Called at the end of the agent.
    pub fn close(&self) {
        for peer in lock(&self.peers).values() {
            for job in peer.queue.close() {
                if let Job::Page(task, _) = job {
                    for page_fetch in task.page_fetches().filter(|page_fetch| page_fetch.take()) {
                        self.completions.finish(&task.of(page_fetch), Err(FetchError::Cancelled));
                    }
                }
            }
            peer.cut();
        }
    }
}

impl Peer {
    /// Starts a thread if there is more to do than there are threads without work.
    fn staff(self: &Arc<Self>, peers: &Arc<Peers>) {
        let nodes = peers.cluster.view().cluster.nodes.len();
        let mut workers = lock(&self.workers);
        if !self.queue.is_short_of_threads() || workers.threads.len() >= links_per_peer(nodes) {
            return;
        }
        let cost = LINK_BYTES + peers.security.buffer_bytes();
        let room = peers.cache.reserve(Class::Clients, cost);
        let number = (0..).find(|n| !workers.threads.contains(n)).unwrap_or_default();
        let spawned = room.and_then(|room| {
            let (peer, peers) = (self.clone(), peers.clone());
            let builder = std::thread::Builder::new().name(format!("peer-{number}")).stack_size(STACK_BYTES);
            let body = move || {
                peer.work(&peers, number);
                drop(room);
            };
            builder.spawn(body).ok()
        });
        match spawned {
            Some(_) => {
                workers.threads.insert(number);
            }
            // The existing threads do it all; if there are none, the PFS does.
            None if workers.threads.is_empty() => {
                drop(workers);
                for job in self.queue.take_all() {
                    peers.turn_away(job);
                }
            }
            None => {}
        }
    }

    fn work(self: &Arc<Self>, peers: &Arc<Peers>, number: usize) {
        let mut link = None;
        loop {
            let popped = self.queue.pop_within(number, IDLE);
            let mut workers = lock(&self.workers);
            match popped {
                Popped::Task(job) => {
                    drop(workers);
                    self.serve(peers, number, &mut link, job);
                }
                // Under the lock: a thread that pushes now sees that this thread is gone, or this
                // thread sees what was pushed.
                Popped::Nothing if self.queue.waiting() > 0 => {}
                Popped::Nothing | Popped::Closed => {
                    workers.threads.remove(&number);
                    workers.sockets.remove(&number);
                    return;
                }
            }
        }
    }

    fn serve(self: &Arc<Self>, peers: &Arc<Peers>, number: usize, link: &mut Option<Link>, job: Job) {
        match job {
            Job::Page(task, since) if task.behind.is_empty() => {
                self.fetch(peers, number, link, task, since);
            }
            Job::Page(task, since) => self.fetch_run(peers, (number, link), &task, since),
            Job::Place(place) => self.place(peers, number, link, place),
            Job::Check(check) => self.check(peers, number, link, check),
        }
    }

    /// This peer as the view has it now, if it may be asked.
    fn node(&self, peers: &Peers) -> Option<NodeInfo> {
        let view = peers.cluster.view();
        let node = view.cluster.nodes.iter().find(|n| n.name == self.name);
        node.filter(|_| !peers.cluster.is_avoided(&self.name)).cloned()
    }

    /// Fetches one page here.
    fn fetch(
        self: &Arc<Self>,
        peers: &Arc<Peers>,
        number: usize,
        link: &mut Option<Link>,
        task: Task,
        since: Instant,
    ) {
        // Owner and view may have changed while the task waited.
        let node = peers.owners.route(&task).filter(|node| node.name == self.name);
        let Some(node) = node else { return peers.send_anew(task) };
        if !task.page_fetch.take() {
            return peers.completions.refilled(&task);
        }
        let ordered = task.urgency == Urgency::Plan && !task.page_fetch.is_demanded();
        if ordered && task.page_fetch.give_up_unwanted() {
            return peers.finish(&task, Err(FetchError::Cancelled));
        }
        let mut begun = match peers.begin(&task) {
            Ok(Some(begun)) => begun,
            Ok(None) => return peers.finish(&task, Ok(0)),
            Err(e) => return peers.finish(&task, Err(e)),
        };
        task.page_fetch.ask_peer();
        let wanted = wanted(task.urgency, task.page_fetch.is_demanded());
        let page = peers.page_ref(&task.entry, &task.pfs, task.page_fetch.page);
        let (before, asked_at) = (begun.done(), Instant::now());
        let (mut answer, mut is_shared) = (Answer::NotYet, false);
        for _ in 0..ASKS_MAX {
            let link = (number, &mut *link);
            answer = self.with_link(peers, &node, link, &page.file.version, |link, deadline| {
                add(&peers.counters.peer_requests_total, 1);
                link.page(&peers.counters, &task, &page, (wanted, Role::Owner), &mut begun, deadline)
            });
            let Answer::Relay(relay) = answer else { break };
            is_shared = true;
            answer = match peers.relay(relay, &task, &page, wanted, &mut begun) {
                answer @ (Answer::Done(_) | Answer::Tier(_)) => answer,
                _ => Answer::NotYet,
            };
            if answer != Answer::NotYet {
                break;
            }
        }
        match answer {
            Answer::Done(_) => {
                add(&peers.counters.pages_from_peers_total, 1);
                let len = begun.done();
                begun.land(&peers.cache, &task, Fill::Remote);
                peers.finish(&task, Ok(len));
            }
            Answer::Tier(e) => {
                begun.abandon(&peers.cache, &task);
                peers.finish(&task, Err(e));
            }
            answer => {
                let came = begun.done() - before;
                let rest = task.entry.geometry().page_len(task.page_fetch.page) - begun.done();
                // The PFS is not to be read by each of many nodes.
                let is_coming = is_shared && since.elapsed() < AHEAD_PATIENCE
                    || comes_in_time((came, asked_at.elapsed()), rest, peers.pfs.page_time(task.entry.mount));
                match peers.onward(Asked { task, begun, wanted, since, is_coming }, &answer) {
                    Onward::Again(task) => self.ask_again(peers, task, since),
                    Onward::Pfs(task) => peers.pfs.send(task),
                    Onward::Ended => {}
                }
            }
        }
    }

    /// Queues it again, behind what is more urgent.
    pub(super) fn ask_again(self: &Arc<Self>, peers: &Arc<Peers>, task: Task, since: Instant) {
        match self.queue.push(task.urgency, Job::Page(task, since)) {
            Ok(()) => self.staff(peers),
            Err(job) => peers.turn_away(job),
        }
    }

    /// Has one page fetched where it belongs.
    fn place(self: &Arc<Self>, peers: &Arc<Peers>, number: usize, link: &mut Option<Link>, place: Place) {
        if place.of.is_cancelled() {
            return place.of.page_done(place.page, &Err(FetchError::Cancelled));
        }
        let Some(node) = self.node(peers) else { return place.of.fetch_here(place.page) };
        let page = peers.page_ref(place.of.entry(), place.of.pfs(), place.page);
        let link = (number, link);
        let job = place.of.pfs().account().map(|account| account.name.clone()).unwrap_or_default();
        let fetch = |link: &mut Link, deadline| link.fetch(&page, job.clone(), deadline);
        match self.with_link(peers, &node, link, &page.file.version, fetch) {
            Answer::Done(fetched_bytes) => {
                add(&peers.counters.pages_placed_total, 1);
                place.of.page_placed(place.page, &self.name, place.begun || fetched_bytes > 0);
            }
            // It is at it, and a load can wait.
            Answer::NotYet => {
                match self.queue.push(Urgency::Load, Job::Place(Place { begun: true, ..place })) {
                    Ok(()) => self.staff(peers),
                    Err(job) => peers.turn_away(job),
                }
            }
            _ => place.of.fetch_here(place.page),
        }
    }

    /// Asks whether pages are where they were placed. A peer that cannot be asked has none as far
    /// as anybody can see.
    fn check(self: &Arc<Self>, peers: &Arc<Peers>, number: usize, link: &mut Option<Link>, check: Check) {
        let Check { of: load, pages } = check;
        let Some(node) = self.node(peers) else { return load.checked(&pages) };
        let page = peers.page_ref(load.entry(), load.pfs(), 0);
        let mut missing = Vec::new();
        let of = (&page.file, page.page_bytes);
        match self.with_link(peers, &node, (number, link), &page.file.version, |link, deadline| {
            link.check(of, &pages, &mut missing, deadline)
        }) {
            Answer::Done(_) => load.checked(&missing),
            _ => load.checked(&pages),
        }
    }

    /// Asks over this thread's connection, made if need be, and draws the conclusions about the
    /// peer.
    pub(super) fn with_link(
        &self,
        peers: &Arc<Peers>,
        node: &NodeInfo,
        (number, link): (usize, &mut Option<Link>),
        version: &FileVersion,
        mut ask: impl FnMut(&mut Link, Instant) -> Answer,
    ) -> Answer {
        // Before the request: what the owner promises to keep in place until the deadline it keeps
        // for longer than this.
        let deadline = peers.deadline();
        loop {
            let fresh = link.is_none();
            let answer = match self.linked(peers, node, (number, &mut *link), deadline) {
                Ok(link) => ask(link, deadline),
                Err(_) if Instant::now() >= deadline => Answer::Late,
                Err(_) => Answer::Broken,
            };
            if matches!(answer, Answer::Broken | Answer::Late | Answer::Tier(_)) {
                *link = None;
                lock(&self.workers).sockets.remove(&number);
            }
            // A connection from before may have ended with the peer's last process: once more with
            // a new one.
            if !matches!(answer, Answer::Broken) || fresh || peers.cluster.is_avoided(&self.name) {
                self.conclude(peers, version, &answer);
                return answer;
            }
        }
    }

    fn linked<'a>(
        &self,
        peers: &Arc<Peers>,
        node: &NodeInfo,
        (number, link): (usize, &'a mut Option<Link>),
        deadline: Instant,
    ) -> io::Result<&'a mut Link> {
        if link.is_none() {
            let made = Link::connect(&peers.security, peers.cluster.node(), node, deadline)?;
            lock(&self.workers).sockets.insert(number, made.socket()?);
            *link = Some(made);
        }
        link.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn conclude(&self, peers: &Peers, version: &FileVersion, answer: &Answer) {
        let counters = &peers.counters;
        match answer {
            Answer::Late => {
                add(&counters.peer_late_total, 1);
                if !peers.cluster.is_avoided(&self.name) {
                    tracing::warn!(
                        peer = self.name,
                        "does not answer; its pages are read from the PFS until it does"
                    );
                }
                peers.cluster.avoid(&self.name);
                self.cut();
                return;
            }
            Answer::Broken => {
                // Others may have cut this connection.
                if !peers.cluster.is_avoided(&self.name) {
                    add(&counters.peer_broken_total, 1);
                    tracing::warn!(
                        peer = self.name,
                        "cannot be reached; its pages are read from the PFS until it can"
                    );
                }
                return peers.cluster.avoid(&self.name);
            }
            Answer::Changed | Answer::Refused => {
                add(&counters.peer_refusals_total, 1);
                peers.owners.decline(&self.name, version);
            }
            Answer::NotYet => add(&counters.peer_not_yet_total, 1),
            Answer::Busy | Answer::Failed => add(&counters.peer_refusals_total, 1),
            Answer::Done(_) | Answer::Tier(_) | Answer::Relay(_) => {}
        }
        peers.cluster.believe(&self.name);
    }

    /// Ends all connections: every thread that waits on one hears of it immediately.
    fn cut(&self) {
        for socket in lock(&self.workers).sockets.values() {
            // Fails if it is cut already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Whether the `rest` of a page should come from its owner soon enough, given how many bytes came
/// in which time: as soon as these, or within twice the time that a whole page takes from the PFS.
/// To read it there as well would take about as long, from a PFS that is slow already.
fn comes_in_time((came, took): (u64, Duration), rest: u64, page_time: Duration) -> bool {
    let limit = took.max(2 * page_time);
    came > 0 && took.as_nanos() * u128::from(rest) <= limit.as_nanos() * u128::from(came)
}

/// A requested page, and how far it came.
pub(super) struct Asked {
    pub(super) task: Task,
    pub(super) begun: Begun,
    pub(super) wanted: Wanted,
    pub(super) since: Instant,
    /// The rest should come soon enough.
    pub(super) is_coming: bool,
}

/// Where a page goes that was requested from a peer in vain.
pub(super) enum Onward {
    /// To the peer again.
    Again(Task),
    /// To the PFS.
    Pfs(Task),
    /// Nowhere: it has ended.
    Ended,
}

/// The reason that a request to a peer gives for a page.
pub(super) fn wanted(urgency: Urgency, is_demanded: bool) -> Wanted {
    match urgency {
        _ if is_demanded => Wanted::Now,
        Urgency::Refill => Wanted::Refill,
        Urgency::Plan => Wanted::Plan,
        _ => Wanted::Ahead,
    }
}

impl Peers {
    /// Requests a page from a node that its owner has named. That this fails says nothing about the
    /// node: it may have evicted the page, or waits for another one.
    fn relay(&self, number: u64, task: &Task, page: &PageRef, wanted: Wanted, begun: &mut Begun) -> Answer {
        let deadline = self.deadline();
        let kept = {
            let mut relays = lock(&self.relays);
            relays.iter().position(|(of, _)| *of == number).and_then(|at| relays.remove(at))
        };
        let link = match kept {
            Some((_, link)) => Ok(link),
            None => {
                let view = self.cluster.view();
                let node = view.cluster.nodes.iter().find(|node| node_number(&node.name) == number);
                let Some(node) = node.filter(|node| !self.cluster.is_avoided(&node.name)) else {
                    return Answer::Busy;
                };
                Link::connect(&self.security, self.cluster.node(), node, deadline)
            }
        };
        let Ok(mut link) = link else { return Answer::Broken };
        let answer = link.page(&self.counters, task, page, (wanted, Role::Relay), begun, deadline);
        if matches!(answer, Answer::Done(_) | Answer::Busy | Answer::NotYet) {
            let mut relays = lock(&self.relays);
            relays.push_back((number, link));
            if relays.len() > RELAY_LINKS {
                relays.pop_front();
            }
        }
        if let Answer::Done(_) = answer {
            add(&self.counters.pages_from_relays_total, 1);
        }
        answer
    }

    /// Takes up what has come of the page so far, or makes room for it.
    pub(super) fn begin(&self, task: &Task) -> Result<Option<Begun>, FetchError> {
        if let Some(begun) = task.page_fetch.take_begun() {
            return Ok(Some(begun));
        }
        self.cache.bound_remote_pages(task.entry.geometry().page_len(task.page_fetch.page));
        Begun::begin(&self.cache, task)
    }

    /// Returns where a page goes that the peer has not fetched, or not completely.
    pub(super) fn onward(&self, asked: Asked, answer: &Answer) -> Onward {
        let Asked { mut task, begun, wanted, since, is_coming } = asked;
        task.page_fetch.hand_over(Some(begun));
        let waits = wanted == Wanted::Now || task.page_fetch.is_demanded();
        let nobody_waits = !waits
            && matches!(task.urgency, Urgency::Ahead | Urgency::Refill)
            && lock(&task.page_fetch.watchers).is_empty();
        if waits && task.urgency != Urgency::Demand {
            self.completions.refilled(&task);
            task.urgency = Urgency::Demand;
        }
        match answer {
            // A reader has come meanwhile, or nobody waits: ask again, behind what is more urgent.
            // A request waits as long as it lives: its turn comes, and the PFS is not to be read
            // twice. Nor by a reader, if the rest comes soon enough.
            Answer::NotYet
                if is_coming
                    || wanted == Wanted::Plan
                    || wanted != Wanted::Now && (waits || since.elapsed() < AHEAD_PATIENCE) =>
            {
                Onward::Again(task)
            }
            // A reader that comes to the page asks for it. The PFS is not to be read twice for what
            // may never be read.
            Answer::NotYet | Answer::Busy if nobody_waits => {
                if task.page_fetch.take() {
                    self.finish(&task, Err(FetchError::Cancelled));
                } else {
                    self.completions.refilled(&task);
                }
                Onward::Ended
            }
            _ => {
                task.page_fetch.keep_from_peers();
                Onward::Pfs(task)
            }
        }
    }

    /// Ends a fetch that no queue of the mount will see again.
    pub(super) fn finish(&self, task: &Task, outcome: Result<u64, FetchError>) {
        self.completions.finish(task, outcome);
        self.completions.refilled(task);
    }

    /// Gives up on asking the peer: pages come from the PFS instead.
    fn turn_away(&self, job: Job) {
        match job {
            Job::Page(task, _) => {
                task.page_fetches().for_each(|page_fetch| {
                    page_fetch.keep_from_peers();
                });
                self.pfs.send(task);
            }
            Job::Place(place) => place.of.fetch_here(place.page),
            Job::Check(check) => check.of.checked(&check.pages),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_waits_for_an_owner_that_is_about_as_fast_as_the_pfs() {
        let (mib, s) = (1 << 20, Duration::from_secs);
        assert!(comes_in_time((mib, s(1)), mib, s(0)), "as much as is left");
        assert!(!comes_in_time((mib / 4, s(1)), mib, s(0)), "nobody knows the PFS to be slow");
        assert!(comes_in_time((mib / 4, s(1)), mib, s(2)));
        assert!(!comes_in_time((mib / 4, s(1)), mib, s(1)), "the PFS brings it in half the time");
        assert!(!comes_in_time((0, s(1)), mib, s(60)), "nothing comes");
    }
}
