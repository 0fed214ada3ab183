//! The outcome of a run.

use serde::Serialize;

use crate::colocate::HpcOutcome;
use crate::{burst, cluster, memory};

/// What the horizon left undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// Tasks of Big Data jobs that had not ended.
    pub tasks: u64,
    /// Steps that were not written.
    pub steps: u64,
    /// Bytes of steps that were written and not drained.
    pub undrained_bytes: u64,
    /// I/O phases that had not ended.
    pub phases: u64,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Big Data jobs, and what servers have sent.
    pub cluster: cluster::Outcome,
    /// Steps, and how they were drained.
    pub buffers: Option<burst::Outcome>,
    /// I/O phases.
    pub hpc: Vec<HpcOutcome>,
    /// Memory of each node, where it changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<memory::Outcome>,
    /// Bytes of phases that servers have.
    pub phase_bytes: u64,
    /// Bytes that servers were sent: by phases, tasks and drains.
    pub written_bytes: u64,
    /// When the last thing happened, or the horizon, in ns.
    pub end_ns: u64,
    /// Events handled.
    pub events: u64,
    /// What is missing, if the run ended at its horizon before all was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<Unfinished>,
}

impl Outcome {
    /// When the last thing that is drawn ends, in seconds.
    pub fn end_s(&self) -> f64 {
        let phases = self.hpc.iter().flat_map(|hpc| &hpc.phases).map(|phase| phase.end_ns);
        let drains = self.buffers.iter().flat_map(|buffers| &buffers.drains).map(|drain| drain.to_ns);
        let last_s = phases.chain(drains).max().unwrap_or(0) as f64 * 1e-9;
        let steps_s = self.buffers.as_ref().map_or(0.0, burst::Outcome::end_s);
        self.cluster.end_s().max(steps_s).max(last_s)
    }
}
