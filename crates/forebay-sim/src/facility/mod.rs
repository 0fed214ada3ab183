//! A facility over weeks: thousands of nodes with a tier, before a PFS of many servers, and the
//! jobs of its batch queue.
//!
//! A job reads its input, computes, and writes steps: small ones, and now and then a whole
//! checkpoint. A job that writes back has its steps absorbed by the memory of its nodes, from where
//! they drain to the PFS; the others write to the PFS themselves, when they are let in. All nodes
//! of a job do the same at the same time, so one machine of [`forebay_policy::drain`] decides for
//! all of them, and an event is the beginning or end of a phase and not of a page.
//! [`forebay_policy::batch_queue`] decides which job gets nodes, [`forebay_policy::burst::access`]
//! which job is let in.
//!
//! | room | what it holds |
//! | --- | --- |
//! | [`world`] | jobs, from their submission to their end |
//! | [`drains`] | steps in the tier, and on their way to the PFS |
//! | [`servers`] | the bandwidth of the PFS |
//! | [`tally`] | values over time |
//! | [`view`] | rows, records, a timeline |

use forebay_policy::burst::access;
use forebay_policy::{batch_queue, drain};
use serde::{Deserialize, Serialize};

use crate::batch::JobSpec;

mod drains;
pub mod servers;
pub mod tally;
pub mod view;
mod world;

pub use tally::Summary;
pub use world::simulate;

/// Name of this kind of scenario.
pub const KIND: &str = "facility";
/// The machine of the batch queue in traces.
pub const QUEUE: &str = "queue";
/// The machines of nodes that drain, one for each job: `drain/JOB`.
pub const DRAIN: &str = "drain";

/// The tier of each node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// Its room for steps, in bytes.
    pub bytes: u64,
    /// How fast it takes them, in bytes per second.
    pub bytes_per_s: f64,
    /// The fraction of all jobs that write back.
    pub share: f64,
    /// Checkpoints of each job that stay in it, the newest ones.
    pub keeps: usize,
    /// Bytes of each node that a drain writes at a time.
    pub chunk_bytes: u64,
}

/// Steps that jobs write.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steps {
    /// Computing time from one step to the next, approximately: a job has a whole number of equal
    /// phases.
    pub every_ns: u64,
    /// One step in this many is a whole checkpoint.
    pub whole_every: u32,
    /// Size of the other steps, as a fraction of a whole checkpoint.
    pub part: f64,
}

/// What nodes report to the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reports {
    /// Time from one heartbeat to the next.
    pub heartbeat_ns: u64,
    /// Time from one report on the health of a node to the next.
    pub health_ns: u64,
    /// Time from one report on what jobs move to the next, while they do.
    pub traffic_ns: u64,
    /// Files of a step that each node writes.
    pub files: u32,
}

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// What the batch queue is built from.
    pub queue: batch_queue::Config,
    /// Bandwidth of the link of a node, in bytes per second.
    pub link_bytes_per_s: f64,
    /// Servers of the PFS.
    pub servers: u32,
    /// Bandwidth of each, in bytes per second.
    pub server_bytes_per_s: f64,
    /// Servers that a node writes to.
    pub stripes: u32,
    /// The tier.
    pub tier: Tier,
    /// What the machines of drains are built from.
    pub drain: drain::Config,
    /// What lets steps in.
    pub access: access::Setup,
    /// How long a step waits for a token before it writes without one.
    pub wait_max_ns: u64,
    /// What jobs write.
    pub steps: Steps,
    /// What nodes report.
    pub reports: Reports,
    /// Time from one sample to the next.
    pub sample_ns: u64,
    /// When the run ends, if not with the last job before.
    pub horizon_ns: Option<u64>,
    /// The jobs, by time of submission. The room of a node is its checkpoint.
    pub jobs: Vec<JobSpec>,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Setup {
    /// Name of the policies.
    pub fn policy(&self) -> String {
        let name = drain::POLICIES.iter().find(|policy| policy.1 == self.drain.yields);
        format!("{}/{}", name.map_or("", |policy| policy.0), self.access.policy)
    }

    /// Number of servers that a job of `nodes` nodes writes to.
    pub fn width(&self, nodes: u32) -> u32 {
        nodes.saturating_mul(self.stripes).min(self.servers)
    }

    /// The most that `nodes` nodes can move to and from the PFS, in bytes per second.
    pub fn alone_bytes_per_s(&self, nodes: u32) -> f64 {
        let servers = self.server_bytes_per_s * f64::from(self.width(nodes));
        servers.min(self.link_bytes_per_s * f64::from(nodes))
    }
}

/// The state at one moment, and rates since the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// When, in seconds from the start.
    pub at_s: f64,
    /// Nodes that jobs have.
    pub nodes: f64,
    /// Jobs that wait for nodes.
    pub waiting: usize,
    /// What jobs have read, written themselves and drained, in bytes per second.
    pub pfs_bytes_per_s: [f64; 3],
    /// What tiers have taken, in bytes per second.
    pub absorbed_bytes_per_s: f64,
    /// Bytes in tiers that the PFS does not have.
    pub dirty_bytes: f64,
    /// The most bytes of steps on one node.
    pub tier_bytes: f64,
    /// Jobs that read or write the PFS.
    pub phases: f64,
    /// Tokens that are held, and steps that wait for one.
    pub tokens: [f64; 2],
    /// Messages to the coordinator per second.
    pub messages_per_s: f64,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Jobs that have ended.
    pub jobs: u64,
    /// Jobs that have not ended.
    pub unfinished: u64,
    /// Steps that a tier has taken.
    pub absorbed: u64,
    /// Steps that jobs have written to the PFS themselves.
    pub written: u64,
    /// Steps among these for which the tier was too small.
    pub past_tier: u64,
    /// What jobs have read, written themselves and drained.
    pub moved_bytes: [f64; 3],
    /// Tokens that were granted, and tokens that were taken back or not waited for.
    pub tokens: [u64; 2],
    /// Summaries of what [`view::MEASURES`] names.
    pub measures: Vec<Summary>,
    /// States over time.
    pub samples: Vec<Sample>,
    /// Events.
    pub events: u64,
    /// The end of the run, in seconds.
    pub end_s: f64,
}
