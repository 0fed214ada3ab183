//! Allocation: which burst buffer nodes a job's files are striped over.
//!
//! A job asks with its bytes, and may request a number of nodes. One machine, [`Allocator`], keeps
//! the free space of each node and what is booked on it; a *policy* chooses the nodes. A policy is
//! one file here and a line in [`POLICIES`]:
//!
//! | policy | nodes |
//! | --- | --- |
//! | `1x` (`interference`) | the fewest whose free space holds the job's output; round robin |
//! | `2x` | the same for twice the output |
//! | `full` (`bandwidth`) | all |
//! | `striped` | as many as the job wants, round robin |
//!
//! Source: *Managing I/O Interference in a Shared Burst Buffer System*, ICPP 2016, sections II-D
//! and IV-A.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Nanos, UnknownPolicy, named};

mod capacity;
mod full;
mod striped;

/// Names a job.
pub type JobId = u64;

/// What a job asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    /// Bytes of one step; the space is reserved for as long as the job holds the allocation.
    pub bytes: u64,
    /// Number of nodes that it requests, if any.
    pub nodes: Option<u32>,
}

/// What the machine receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// A job asks.
    Asks {
        /// Its id.
        job: JobId,
        /// Its demand.
        demand: Demand,
    },
    /// A job releases its allocation.
    Frees {
        /// Its id.
        job: JobId,
    },
    /// A node fails and loses its data. Jobs keep their allocations on it until they release them.
    NodeFails {
        /// The node.
        node: u32,
    },
    /// A failed node is available again, empty.
    NodeReturns {
        /// The node.
        node: u32,
    },
}

/// What it decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// The job has these nodes, in ascending order, with `bytes_per_node` reserved on each.
    Allocate {
        /// The job.
        job: JobId,
        /// The nodes.
        nodes: Vec<u32>,
        /// Space on each.
        bytes_per_node: u64,
    },
    /// There is no room for it.
    Refuse {
        /// The job.
        job: JobId,
        /// What was requested, and what is available.
        why: String,
    },
}

/// A node as a policy sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Whether it can be given out.
    pub up: bool,
    /// Free space; none while it is down.
    pub free_bytes: u64,
    /// The jobs that hold it, ascending.
    pub jobs: Vec<JobId>,
}

/// The system as a policy sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Board {
    /// All nodes.
    pub nodes: Vec<Node>,
    /// Where round robin continues.
    pub cursor: usize,
}

impl Board {
    /// Number of nodes that can be given out.
    pub fn up(&self) -> usize {
        self.nodes.iter().filter(|n| n.up).count()
    }

    /// Returns how many nodes a job gets that wants `count`: no more than are up. More than the
    /// system has are refused instead.
    pub fn at_hand(&self, count: usize) -> usize {
        if count <= self.nodes.len() { count.min(self.up()) } else { count }
    }

    /// Returns the next `count` nodes from the cursor on that have `bytes` free, or `None` if there
    /// are fewer.
    pub fn round_robin(&self, count: usize, bytes: u64) -> Option<Vec<u32>> {
        let n = self.nodes.len();
        let ring = (0..n).map(|i| (self.cursor + i) % n);
        let found: Vec<u32> =
            ring.filter(|&i| self.nodes[i].free_bytes >= bytes).map(|i| i as u32).take(count).collect();
        (found.len() == count && count > 0).then_some(found)
    }
}

/// The policy's choice: nodes, in the order in which it came upon them, and the space to reserve on
/// each.
pub type Choice = (Vec<u32>, u64);

/// The part that differs between policies.
pub trait Policy: Send {
    /// The nodes for `demand`, each with enough free space; `None` if there is no room.
    fn choose(&mut self, board: &Board, demand: &Demand) -> Option<Choice>;
}

/// Makes a policy.
pub type MakePolicy = fn() -> Box<dyn Policy>;

/// Every policy: its name and how to make it. A new one needs a file in this folder and a line
/// here.
pub const POLICIES: &[(&str, MakePolicy)] = &[
    ("1x", || Box::new(capacity::Capacity { times: 1 })),
    ("interference", || Box::new(capacity::Capacity { times: 1 })),
    ("2x", || Box::new(capacity::Capacity { times: 2 })),
    ("full", || Box::new(full::Full)),
    ("bandwidth", || Box::new(full::Full)),
    ("striped", || Box::new(striped::Striped)),
];

/// The policy called `name`.
///
/// # Errors
/// If `name` is unknown; lists the known names.
pub fn policy(name: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    Ok(named(POLICIES, "allocation policy", name)?())
}

/// The allocation of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Held {
    nodes: Vec<u32>,
    reserved_bytes: u64,
}

/// The allocator.
pub struct Allocator {
    policy: Box<dyn Policy>,
    board: Board,
    space_bytes: u64,
    held: BTreeMap<JobId, Held>,
}

impl Allocator {
    /// An allocator for `nodes` equal nodes.
    pub fn new(policy: Box<dyn Policy>, nodes: u32, space_bytes: u64) -> Self {
        assert!(nodes > 0, "no nodes cannot hold anything");
        let node = Node { up: true, free_bytes: space_bytes, jobs: Vec::new() };
        let board = Board { nodes: vec![node; nodes as usize], cursor: 0 };
        Allocator { policy, board, space_bytes, held: BTreeMap::new() }
    }

    fn allocate(&mut self, job: JobId, demand: &Demand) -> Action {
        let refuse = |why| Action::Refuse { job, why };
        if self.held.contains_key(&job) {
            return refuse(alloc::format!("job {job} has an allocation already; free it first"));
        }
        let Some((mut nodes, bytes_per_node)) = self.policy.choose(&self.board, demand) else {
            let free: u64 = self.board.nodes.iter().map(|n| n.free_bytes).sum();
            let all = self.board.up();
            let wanted = demand.nodes.map_or(String::new(), |n| alloc::format!(" on {n} nodes"));
            return refuse(alloc::format!(
                "job {job} asks for {} bytes{wanted}, and {free} bytes are free on {all} nodes; ask for less, or wait",
                demand.bytes
            ));
        };
        if let Some(&last) = nodes.last() {
            self.board.cursor = (last as usize + 1) % self.board.nodes.len();
        }
        nodes.sort_unstable();
        assert!(nodes.windows(2).all(|w| w[0] < w[1]), "an allocation policy chose a node twice: {nodes:?}");
        for &i in &nodes {
            let node = &mut self.board.nodes[i as usize];
            assert!(node.free_bytes >= bytes_per_node, "an allocation policy chose node {i}, which is full");
            node.free_bytes -= bytes_per_node;
            let at = node.jobs.partition_point(|&j| j < job);
            node.jobs.insert(at, job);
        }
        self.held.insert(job, Held { nodes: nodes.clone(), reserved_bytes: bytes_per_node });
        Action::Allocate { job, nodes, bytes_per_node }
    }

    fn free(&mut self, job: JobId) {
        let Some(held) = self.held.remove(&job) else { return };
        for i in held.nodes {
            let node = &mut self.board.nodes[i as usize];
            if node.up {
                node.free_bytes += held.reserved_bytes;
            }
            node.jobs.retain(|&j| j != job);
        }
    }

    fn node_fails(&mut self, node: u32) {
        if let Some(n) = self.board.nodes.get_mut(node as usize) {
            (n.up, n.free_bytes) = (false, 0);
        }
    }

    fn node_returns(&mut self, node: u32) {
        let Some(n) = self.board.nodes.get_mut(node as usize).filter(|n| !n.up) else { return };
        // Reservations survive the failure until their jobs release them.
        let reserved: u64 = n.jobs.iter().filter_map(|j| self.held.get(j)).map(|h| h.reserved_bytes).sum();
        (n.up, n.free_bytes) = (true, self.space_bytes.saturating_sub(reserved));
    }
}

impl Machine for Allocator {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, _now: Nanos, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Asks { job, demand } => out.push(self.allocate(job, &demand)),
            Event::Frees { job } => self.free(job),
            Event::NodeFails { node } => self.node_fails(node),
            Event::NodeReturns { node } => self.node_returns(node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand(bytes: u64, nodes: Option<u32>) -> Demand {
        Demand { bytes, nodes }
    }

    fn ask(a: &mut Allocator, job: JobId, demand: Demand) -> Action {
        let mut out = Vec::new();
        a.handle(Nanos(0), Event::Asks { job, demand }, &mut out);
        out.pop().expect("an answer")
    }

    fn nodes(action: Action) -> Vec<u32> {
        match action {
            Action::Allocate { nodes, .. } => nodes,
            Action::Refuse { why, .. } => panic!("{why}"),
        }
    }

    fn allocator(name: &str, nodes: u32) -> Allocator {
        Allocator::new(policy(name).expect("it exists"), nodes, 100)
    }

    #[test]
    fn counts_of_the_papers_policies() {
        for (name, want) in [("1x", vec![0, 1, 2]), ("2x", vec![0, 1, 2, 3, 4]), ("full", (0..8).collect())] {
            assert_eq!(nodes(ask(&mut allocator(name, 8), 1, demand(250, None))), want, "{name}");
        }
        assert_eq!(nodes(ask(&mut allocator("striped", 8), 1, demand(250, Some(4)))), [0, 1, 2, 3]);
    }

    #[test]
    fn round_robin_goes_on_where_it_stopped_and_passes_full_nodes() {
        let mut a = allocator("striped", 4);
        assert_eq!(nodes(ask(&mut a, 1, demand(300, Some(3)))), [0, 1, 2]);
        assert_eq!(nodes(ask(&mut a, 2, demand(50, Some(1)))), [3]);
        assert_eq!(nodes(ask(&mut a, 3, demand(50, Some(1)))), [3]);
        let Action::Refuse { why, .. } = ask(&mut a, 4, demand(1, None)) else { panic!("there is no room") };
        assert_eq!(why, "job 4 asks for 1 bytes, and 0 bytes are free on 4 nodes; ask for less, or wait");
        a.handle(Nanos(1), Event::Frees { job: 1 }, &mut Vec::new());
        assert_eq!(nodes(ask(&mut a, 5, demand(200, Some(2)))), [0, 1]);
    }

    /// A failed node is not allocated, requests for more nodes than are up are reduced, and it
    /// returns empty but for what is still reserved there.
    #[test]
    fn a_failed_node_is_out_of_reach_until_it_returns() {
        for name in ["striped", "full"] {
            let mut a = allocator(name, 4);
            assert_eq!(nodes(ask(&mut a, 1, demand(40, Some(4)))), [0, 1, 2, 3], "{name}");
            a.handle(Nanos(0), Event::NodeFails { node: 2 }, &mut Vec::new());
            assert_eq!(nodes(ask(&mut a, 2, demand(30, Some(4)))), [0, 1, 3], "{name}");
            a.handle(Nanos(0), Event::NodeReturns { node: 2 }, &mut Vec::new());
            let free: Vec<u64> = a.board.nodes.iter().map(|n| n.free_bytes).collect();
            assert_eq!(free, [80, 80, 90, 80], "{name}");
            a.handle(Nanos(0), Event::NodeFails { node: 2 }, &mut Vec::new());
            a.handle(Nanos(0), Event::Frees { job: 1 }, &mut Vec::new());
            assert_eq!(a.board.nodes[2].free_bytes, 0, "{name}: freed space of a node that is gone");
            a.handle(Nanos(0), Event::NodeReturns { node: 2 }, &mut Vec::new());
            assert_eq!(a.board.nodes[2].free_bytes, 100, "{name}");
        }
    }

    proptest! {
        /// Capacity is never exceeded, books balance, and all space is released.
        #[test]
        fn space_is_never_given_out_twice(
            which in 0usize..POLICIES.len(),
            jobs in prop::collection::vec((1u64..600, prop::option::of(1u32..=12), any::<bool>()), 1..40)
        ) {
            let mut a = allocator(POLICIES[which].0, 12);
            let mut held: BTreeMap<JobId, (Vec<u32>, u64)> = BTreeMap::new();
            for (job, (bytes, count, frees)) in (0..).zip(jobs) {
                if let Action::Allocate { nodes, bytes_per_node, .. } = ask(&mut a, job, demand(bytes, count)) {
                    prop_assert!(bytes_per_node * nodes.len() as u64 >= bytes, "it does not hold the output");
                    held.insert(job, (nodes, bytes_per_node));
                }
                if let Some((&first, _)) = held.iter().next().filter(|_| frees) {
                    held.remove(&first);
                    a.handle(Nanos(0), Event::Frees { job: first }, &mut Vec::new());
                }
                for (i, node) in a.board.nodes.iter().enumerate() {
                    let on_it = held.values().filter(|h| h.0.contains(&(i as u32)));
                    let reserved: u64 = on_it.map(|h| h.1).sum();
                    prop_assert_eq!(node.free_bytes + reserved, 100);
                }
            }
            for job in held.into_keys() {
                a.handle(Nanos(0), Event::Frees { job }, &mut Vec::new());
            }
            prop_assert!(a.board.nodes.iter().all(|n| n.free_bytes == 100 && n.jobs.is_empty()));
        }
    }
}
