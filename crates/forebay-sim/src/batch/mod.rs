//! A batch queue: jobs that want nodes, and room in burst buffers with them.
//!
//! A job moves its input from the PFS to its room (*stage-in*), computes, may write checkpoints to
//! its room, which drain to the PFS while it continues, and moves its output to the PFS
//! (*stage-out*). All transfers share the PFS and the burst buffers. The machine of
//! [`forebay_policy::batch_queue`] decides which job begins and where its room is.
//!
//! | room | what it holds |
//! | --- | --- |
//! | [`world`] | the events |
//! | [`workload`] | jobs of given distributions |
//! | [`swf`] | jobs of a log |
//! | [`view`] | rows, records, a timeline |

use forebay_policy::batch_queue::{Config, Demand};
use serde::{Deserialize, Serialize};

use crate::transfer_ns;

pub mod swf;
pub mod view;
pub mod workload;
mod world;

pub use world::simulate;

/// Name of this kind of scenario, and of its machine in traces.
pub const KIND: &str = "batch";

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its name.
    pub name: String,
    /// When it is submitted, in ns.
    pub submit_ns: u64,
    /// Its nodes.
    pub nodes: u32,
    /// How long it computes, in ns.
    pub run_ns: u64,
    /// Limit on how long it may have its nodes, in ns; it is killed then.
    pub estimate_ns: u64,
    /// Room in burst buffers for each node, in bytes.
    pub bytes_per_node: u64,
    /// What a node stages in, in bytes.
    pub stage_in_bytes: u64,
    /// What a node stages out, in bytes.
    pub stage_out_bytes: u64,
}

/// Checkpoints that all jobs write.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// Computing time from one checkpoint to the next, approximately: a job has a whole number of
    /// equal phases.
    pub every_ns: u64,
    /// The most phases.
    pub phases_max: u32,
    /// Size, as a fraction of the job's room.
    pub part: f64,
}

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Name of the queue's policy.
    pub policy: String,
    /// Compute nodes.
    pub nodes: u32,
    /// Burst buffers.
    pub buffers: u32,
    /// Room on each, in bytes.
    pub buffer_bytes: u64,
    /// Bandwidth of each, in bytes per second.
    pub buffer_bytes_per_s: f64,
    /// Bandwidth of the PFS, in bytes per second.
    pub pfs_bytes_per_s: f64,
    /// Whether jobs hold their nodes while they stage in and out.
    pub holds_nodes: bool,
    /// Checkpoints, if jobs write them.
    pub checkpoints: Option<Checkpoints>,
    /// Least time that a job counts with in slowdowns, in ns.
    pub bound_ns: u64,
    /// The jobs, by time of submission.
    pub jobs: Vec<JobSpec>,
    /// Seed of the jobs.
    pub seed: u64,
}

impl Setup {
    /// What the machine is built from.
    pub fn config(&self) -> Config {
        let room_bytes = vec![self.buffer_bytes; self.buffers as usize];
        Config { policy: self.policy.clone(), nodes: self.nodes, room_bytes }
    }

    /// What a job asks for. Times of transfers are those without any others, on as many burst
    /// buffers as it has nodes.
    pub fn demand(&self, job: &JobSpec) -> Demand {
        let rate = self.pfs_bytes_per_s.min(self.buffer_bytes_per_s * f64::from(job.nodes.min(self.buffers)));
        let alone_ns = |bytes: u64| match self.holds_nodes {
            true => 0,
            false => transfer_ns(bytes as f64 * f64::from(job.nodes), rate).unwrap_or(0),
        };
        Demand {
            nodes: job.nodes,
            bytes_per_node: job.bytes_per_node,
            stage_in_ns: alone_ns(job.stage_in_bytes),
            run_ns: job.estimate_ns,
            stage_out_ns: alone_ns(job.stage_out_bytes),
        }
    }
}

/// What became of a job; moments in seconds from the start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ran {
    /// The job's name.
    pub name: String,
    /// Number of its nodes.
    pub nodes: u32,
    /// Its total room, in bytes.
    pub bytes: u64,
    /// When it was submitted.
    pub submit_s: f64,
    /// When it got room.
    pub begin_s: f64,
    /// When it got nodes.
    pub run_s: f64,
    /// When it released its nodes.
    pub ran_s: f64,
    /// When it released its room.
    pub end_s: f64,
    /// Whether it was killed at its estimate.
    pub killed: bool,
}

impl Ran {
    /// Returns the time from submission until it has nodes, in seconds.
    pub fn wait_s(&self) -> f64 {
        self.run_s - self.submit_s
    }

    /// Bounded slowdown: from submission to end, by the time from its nodes to its end, which
    /// counts as `bound_s` at least (Feitelson, *Metrics for Parallel Job Scheduling and Their
    /// Convergence*, JSSPP 2001).
    pub fn slowdown(&self, bound_s: f64) -> f64 {
        ((self.end_s - self.submit_s) / (self.end_s - self.run_s).max(bound_s)).max(1.0)
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The jobs, in the order of the setup.
    pub jobs: Vec<Ran>,
    /// Mean wait, in seconds.
    pub mean_wait_s: f64,
    /// Longest wait, in seconds.
    pub worst_wait_s: f64,
    /// Mean bounded slowdown.
    pub mean_slowdown: f64,
    /// Fraction of the nodes in use, from the first submission to the last end.
    pub nodes_used: f64,
    /// Fraction of the room in use in that time.
    pub room_used: f64,
    /// Number of events.
    pub events: u64,
    /// When the last job ended, in seconds.
    pub end_s: f64,
}

impl Outcome {
    fn of(setup: &Setup, jobs: Vec<Ran>, events: u64) -> Self {
        let mean = |of: &dyn Fn(&Ran) -> f64| jobs.iter().map(of).sum::<f64>() / jobs.len().max(1) as f64;
        let first_s = jobs.iter().map(|j| j.submit_s).fold(f64::INFINITY, f64::min);
        let end_s = jobs.iter().map(|j| j.end_s).fold(0.0, f64::max);
        let all_s = (end_s - first_s).max(f64::MIN_POSITIVE);
        let room = setup.buffer_bytes as f64 * f64::from(setup.buffers);
        let nodes_s: f64 = jobs.iter().map(|j| f64::from(j.nodes) * (j.ran_s - j.run_s)).sum();
        let bytes_s: f64 = jobs.iter().map(|j| j.bytes as f64 * (j.end_s - j.begin_s)).sum();
        let bound_s = setup.bound_ns as f64 * 1e-9;
        Outcome {
            mean_wait_s: mean(&Ran::wait_s),
            worst_wait_s: jobs.iter().map(Ran::wait_s).fold(0.0, f64::max),
            mean_slowdown: mean(&|job| job.slowdown(bound_s)),
            nodes_used: nodes_s / all_s / f64::from(setup.nodes),
            room_used: if room > 0.0 { bytes_s / all_s / room } else { 0.0 },
            events,
            end_s,
            jobs,
        }
    }
}
