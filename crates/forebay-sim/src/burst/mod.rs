//! Jobs that write their steps to shared burst buffer nodes.
//!
//! A job computes and writes a step (a checkpoint), over and over. The allocation machine of
//! `forebay-policy` decides which nodes it has, the access machine when a step may write; the world
//! holds bandwidth and data only. A node divides its bandwidth over the processes of the steps that
//! write to it (or, if the access scheduler ranks them, by their order); a step ends when the last
//! of its nodes has its data.
//!
//! Things break: a job dies or stands still while it holds its token, a node goes away with what
//! was on it. The consequences are those of a real system: a holder that is not heard of loses its
//! lease; a job whose node has gone releases its token, asks for other nodes and writes its step
//! again.

use forebay_policy::burst::access;
use serde::{Deserialize, Deserializer, Serialize};

use crate::arrivals::Arrivals;

mod drain_rounds;
mod drain_state;
mod events;
mod fabric;
mod faults;
pub mod icpp;
mod machines;
mod outcome;
mod room;
pub mod view;
mod world;

pub(crate) use drain_state::Round;
pub use events::simulate;
pub use machines::machines;
pub use outcome::{
    Death, DrainOutcome, Ended, Hold, JobOutcome, NodeOutcome, Outcome, StepOutcome, Unfinished, ranges,
};
pub(crate) use world::{Burst, Happening};

/// Renewals per lease of a healthy holder: two may be lost.
pub const RENEWALS_PER_LEASE: u64 = 3;

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Name for people.
    pub name: String,
    /// Processes that write, spread evenly over its nodes.
    pub processes: f64,
    /// Bytes of a step.
    pub step_bytes: u64,
    /// Number of nodes that it wants, if it says.
    pub nodes: Option<u32>,
    /// Nodes given by hand; the allocator is not asked, and reserves nothing.
    pub on: Option<Vec<u32>>,
    /// The most that its clients can send, in bytes per second; infinity for no bound.
    #[serde(deserialize_with = "or_infinity")]
    pub client_bytes_per_s: f64,
    /// Number of steps.
    pub steps: u32,
    /// Mean compute time between steps, in ns.
    pub compute_ns: u64,
    /// When it asks for its nodes, in ns from the start.
    pub starts_ns: u64,
    /// Whether it begins with a step rather than with compute.
    pub io_first: bool,
    /// When its steps begin.
    pub arrivals: Arrivals,
}

impl JobSpec {
    /// One step, which asks for access at `arrives_ns`.
    pub fn one_step(
        arrives_ns: u64,
        processes: f64,
        bytes: u64,
        nodes: Option<u32>,
        client_bytes_per_s: f64,
    ) -> Self {
        JobSpec {
            name: String::new(),
            processes,
            step_bytes: bytes,
            nodes,
            on: None,
            client_bytes_per_s,
            steps: 1,
            compute_ns: 0,
            starts_ns: 0,
            io_first: true,
            arrivals: Arrivals::Trace { at_ns: vec![arrives_ns] },
        }
    }
}

/// JSON has no infinity: it is written as null, and has to be read as infinity again.
fn or_infinity<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Broken {
    /// A node, with all that is on it.
    Node {
        /// Which.
        node: u32,
    },
    /// A job: all of its processes.
    Job {
        /// Its index.
        job: usize,
    },
}

/// Something breaks at a moment, for a time or for ever.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// What.
    pub what: Broken,
    /// When, in ns from the start.
    pub at_ns: u64,
    /// For how long, in ns; `None`: for ever. A job that returns continues where it stood.
    pub for_ns: Option<u64>,
}

/// Nodes that fail at random, each by itself, at exponential intervals.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomFailures {
    /// Mean time from one failure of a node to its next, in ns.
    pub node_mean_ns: u64,
    /// How long it is down, in ns.
    pub node_down_ns: u64,
}

/// How steps move from the nodes to a file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainSetup {
    /// Name of the drain policy.
    pub policy: String,
    /// Configuration of the machine.
    pub config: forebay_policy::drain::Config,
    /// Steps for which a job has room on its nodes.
    pub keeps: u32,
    /// Bytes that a node reads and sends at a time.
    pub piece_bytes: u64,
}

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Burst buffer nodes.
    pub nodes: u32,
    /// Space of a node, in bytes.
    pub node_bytes: u64,
    /// Bandwidth of a node, in bytes per second.
    pub node_bytes_per_s: f64,
    /// Name of the allocation policy.
    pub allocation: String,
    /// Name of the access policy.
    pub access: String,
    /// Configuration of the access scheduler.
    pub config: access::Config,
    /// Jobs; among jobs that start at the same moment, the first asks first.
    pub jobs: Vec<JobSpec>,
    /// What breaks.
    pub faults: Vec<Fault>,
    /// What breaks at random.
    pub random: Option<RandomFailures>,
    /// How steps are drained; `None` where there is no file system to drain to: a step overwrites
    /// the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainSetup>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// When the run ends, in ns from the start, whatever is left to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub horizon_ns: Option<u64>,
}

/// A configuration under which no lease ends within a run.
pub fn lasting_leases() -> access::Config {
    access::Config { lease_ns: u64::MAX / 4, ..access::Config::default() }
}

impl Setup {
    /// The plain case, as in the papers' workloads: nothing breaks, nothing is drained, and all
    /// jobs hold their nodes to the end.
    pub fn plain(
        nodes: u32,
        node_bytes: u64,
        node_bytes_per_s: f64,
        allocation: &str,
        access: &str,
        jobs: Vec<JobSpec>,
    ) -> Self {
        Setup {
            nodes,
            node_bytes,
            node_bytes_per_s,
            allocation: allocation.into(),
            access: access.into(),
            config: access::Config { nodes, ..lasting_leases() },
            jobs,
            faults: Vec::new(),
            random: None,
            drain: None,
            seed: 0,
            horizon_ns: None,
        }
    }

    /// Bytes to each of `nodes` nodes, and the most that the clients of `job` send to each, in
    /// bytes per second.
    pub fn per_node(&self, job: usize, nodes: usize) -> (f64, f64) {
        let (spec, n) = (&self.jobs[job], nodes as f64);
        (spec.step_bytes as f64 / n, spec.client_bytes_per_s / n)
    }

    /// Bytes that a job wants on its nodes.
    pub fn room_bytes(&self, spec: &JobSpec) -> u64 {
        spec.step_bytes.saturating_mul(self.drain.as_ref().map_or(1, |drain| drain.keeps.into()))
    }

    /// Time of a step of `job` with `nodes` nodes to itself, in ns.
    pub fn alone_ns(&self, job: usize, nodes: usize) -> u64 {
        let (bytes, cap) = self.per_node(job, nodes);
        crate::transfer_ns(bytes, cap.min(self.node_bytes_per_s)).unwrap_or(u64::MAX)
    }
}
