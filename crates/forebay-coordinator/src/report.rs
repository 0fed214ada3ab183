//! What the coordinator says of itself to people and to monitoring: one value with everything that
//! has changed since the last question.

use crate::plan_log::{Counts, Numbered};
use forebay_wire::hpc::{PhaseEntry, PlanEntry};
use forebay_wire::{JobStatus, JobTraffic, NodeHealth, Overview, Sample};
use serde::Serialize;

/// Which part of the past a question is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Since {
    /// Revision of the plan log that is known; 0: none.
    pub revision: u64,
    /// Time of the latest sample that is known; `None`: none.
    pub sample_ms: Option<u64>,
    /// The node whose [`NodeReport`] the answer has; `None`: none.
    pub node: Option<String>,
}

/// See the module. Times are milliseconds since the coordinator's start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Revision of the plan log.
    pub revision: u64,
    /// The nodes now.
    pub overview: Overview,
    /// The analytics jobs.
    pub jobs: Vec<JobStatus>,
    /// Decisions that are new or have changed, with their numbers.
    pub plans: Vec<Numbered<PlanEntry>>,
    /// I/O phases that are new or have changed, with their numbers.
    pub phases: Vec<Numbered<PhaseEntry>>,
    /// Samples since the last known.
    pub samples: Vec<Sample>,
    /// What the question asked of one node; `None` if that is not a member.
    pub node: Option<NodeReport>,
    /// Sums, for metrics.
    #[serde(skip)]
    pub totals: Totals,
}

/// What the page of one node shows besides the overview.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeReport {
    /// What its agent reported last.
    pub health: NodeHealth,
    /// What jobs move on this node alone, those that move most first.
    pub traffic: Vec<JobTraffic>,
}

/// What metrics count.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Time since the start, in nanoseconds.
    pub uptime_ns: u64,
    /// Time that the coordinator's thread did not wait, in nanoseconds.
    pub busy_ns: u64,
    /// Views that were published.
    pub views: u64,
    /// Nodes whose membership ended by silence.
    pub expired: u64,
    /// Open connections, and the bytes in their buffers.
    pub connections: usize,
    /// See `connections`.
    pub buffers_bytes: u64,
    /// Limit on `buffers_bytes`.
    pub buffers_bytes_max: u64,
    /// Connections that were closed because the buffers were full.
    pub buffers_closed: u64,
    /// Memory that the reports of jobs take.
    pub reports_bytes: u64,
    /// HPC jobs, and those of them in an I/O phase.
    pub hpc_jobs: (usize, usize),
    /// Steps of jobs that share.
    pub steps: crate::steps::Counts,
    /// Time that this report took, in nanoseconds.
    pub cost_ns: u64,
    /// The leader.
    pub leadership: Leadership,
    /// Sums of the plan log.
    pub counts: Counts,
}

/// The leader of several candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Leadership {
    /// There are several candidates.
    pub is_elected: bool,
    /// This one leads.
    pub leads: bool,
    /// Address and term of the leader; empty and 0 if there is none.
    pub leader: (String, u64),
    /// When that was noticed, in milliseconds since 1970.
    pub since_ms: u64,
    /// Why nobody leads.
    pub problem: String,
    /// Times that this candidate was elected.
    pub elections: u64,
}
