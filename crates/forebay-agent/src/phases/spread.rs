//! Notifies the other nodes of the phases of this one.
//!
//! Each peer has a thread and a connection of its own while there are phases here, so that one that
//! hangs delays nobody else. The connection is made when the first phase begins; news of a brake is
//! then one message. News is valid for a lease and is sent again after a third of it, so that
//! a message that is lost costs little, and a node that dies brakes nobody for long. Where a peer
//! is follows from the view at that moment: it may have been started again at another port.

use crate::cluster::Cluster;
use crate::fetch::peer_link::Link;
use crate::lock::lock;
use crate::stop::Stop;
use forebay_wire::link::Security;
use forebay_wire::{HpcPhase, NodeInfo};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most peers that a node notifies; each takes a thread.
const PEERS_MAX: usize = 512;

/// How long a thread has nothing to report before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Longest time to connect, or for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);

const STACK_BYTES: usize = 192 << 10;

/// What a file system's client has read ahead arrives within this time after a read.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// Whether bytes may still be on their way this long after a read.
pub fn is_under_way(since_read: Duration) -> bool {
    since_read < UNDER_WAY
}

/// See the module.
#[derive(Debug)]
pub struct Spread {
    cluster: Arc<Cluster>,
    security: Security,
    stop: Arc<Stop>,
    lease: Duration,
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes that peers have read from the PFS while phases were under way here.
    beside_bytes: AtomicU64,
    /// A peer had read from the PFS just before it heard of the phase that began last here.
    under_way: AtomicBool,
    /// Counts the phases that have begun here: bytes that peers fetched before are not counted.
    begun: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Counts the changes of `phases`.
    generation: u64,
    phases: Vec<HpcPhase>,
    /// Peers that have a thread.
    peers: BTreeSet<String>,
    /// The log has said that there are more peers than threads.
    has_warned: bool,
}

impl Spread {
    /// A `Spread` with nothing to report yet.
    pub fn new(cluster: Arc<Cluster>, security: Security, stop: Arc<Stop>, lease: Duration) -> Self {
        Spread {
            cluster,
            security,
            stop,
            lease,
            state: Mutex::default(),
            changed: Condvar::new(),
            beside_bytes: AtomicU64::new(0),
            under_way: AtomicBool::new(false),
            begun: AtomicU64::new(0),
        }
    }

    /// How long news is valid.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Records that a phase begins here.
    pub fn begins(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.beside_bytes.store(0, Ordering::SeqCst);
        self.under_way.store(false, Ordering::SeqCst);
    }

    /// Bytes that peers have read from the PFS since this was asked last.
    pub fn take_beside_bytes(&self) -> u64 {
        self.beside_bytes.swap(0, Ordering::SeqCst)
    }

    /// Whether this is the first call since a peer answered that it had read from the PFS just
    /// before.
    pub fn take_under_way(&self) -> bool {
        self.under_way.swap(false, Ordering::SeqCst)
    }

    /// Notifies all peers. Does not wait for them. Returns whether only the coordinator can notify
    /// some member.
    pub fn notify(self: &Arc<Self>, phases: Vec<HpcPhase>) -> bool {
        let view = self.cluster.view();
        let others = || view.cluster.nodes.iter().filter(|node| node.name != self.cluster.node());
        {
            let mut state = lock(&self.state);
            state.generation += 1;
            state.phases = phases;
            for node in others().filter(|node| !node.address.is_empty()) {
                if state.peers.len() < PEERS_MAX && state.peers.insert(node.name.clone()) {
                    self.start(&mut state, node.name.clone());
                }
            }
            let is_left_out =
                |node: &&NodeInfo| !node.address.is_empty() && !state.peers.contains(&node.name);
            let left_out = others().filter(is_left_out).count();
            if left_out > 0 && !std::mem::replace(&mut state.has_warned, true) {
                tracing::warn!(
                    left_out,
                    "a node notifies at most {PEERS_MAX} peers of its I/O phases: prefetches on the others do not stop for \
                     the phases of this node"
                );
            }
        }
        self.changed.notify_all();
        others().any(|node| node.address.is_empty())
    }

    fn start(self: &Arc<Self>, state: &mut State, name: String) {
        let (spread, peer) = (self.clone(), name.clone());
        let body = move || spread.keep_notifying(&peer);
        let spawned =
            std::thread::Builder::new().name("phases-to".into()).stack_size(STACK_BYTES).spawn(body);
        if let Err(e) = spawned {
            tracing::warn!(peer = name, error = %e, "no thread to report I/O phases to a peer");
            state.peers.remove(&name);
        }
    }

    /// The thread of a peer.
    fn keep_notifying(&self, name: &str) {
        let (mut link, mut reported, mut fetched) = (None, 0, None);
        while let Some((generation, phases)) = self.next(name, reported) {
            reported = generation;
            let begun = self.begun.load(Ordering::SeqCst);
            let view = self.cluster.view();
            let Some(node) = view.cluster.nodes.iter().find(|node| node.name == name) else {
                // It has left: this thread would take a place of others as long as there are
                // phases. If the peer comes back, `notify` starts another one.
                lock(&self.state).peers.remove(name);
                return;
            };
            match self.notify_one(&mut link, node, phases) {
                Ok((bytes, since_read_ms)) => {
                    match fetched.filter(|(of, _)| *of == begun) {
                        Some((_, before)) => {
                            self.beside_bytes.fetch_add(bytes.saturating_sub(before), Ordering::SeqCst);
                        }
                        None if is_under_way(Duration::from_millis(since_read_ms.into())) => {
                            self.under_way.store(true, Ordering::SeqCst);
                        }
                        None => {}
                    }
                    fetched = Some((begun, bytes));
                }
                Err(e) => {
                    tracing::debug!(peer = node.name, error = %e, "cannot report I/O phases to a peer");
                    (link, fetched) = (None, None);
                }
            }
        }
    }

    /// Waits for news; `None` if the thread is no longer needed, and then it is no longer listed.
    fn next(&self, name: &str, reported: u64) -> Option<(u64, Vec<HpcPhase>)> {
        let deadline = Instant::now() + IDLE;
        let mut state = lock(&self.state);
        while state.generation == reported {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stop.is_stopping() {
                state.peers.remove(name);
                return None;
            }
            let wait = left.min(Duration::from_millis(500));
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some((state.generation, state.phases.clone()))
    }

    fn notify_one(
        &self,
        link: &mut Option<Link>,
        node: &NodeInfo,
        phases: Vec<HpcPhase>,
    ) -> std::io::Result<(u64, u32)> {
        let deadline = Instant::now() + ANSWER_TIME;
        let link = match link {
            Some(link) => link,
            none => none.insert(Link::connect(&self.security, self.cluster.node(), node, deadline)?),
        };
        link.report_phases(self.lease.as_millis() as u32, phases, deadline)
    }
}
