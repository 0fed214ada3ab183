//! The outcome of a run: every step and every token with its times.

use forebay_policy::burst::access::Token;
use forebay_policy::machine::is_default;
use serde::Serialize;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepOutcome {
    /// When it was due, in ns.
    pub due_ns: u64,
    /// When it was let in for the last time, in ns.
    pub granted_ns: u64,
    /// When its last byte was written, in ns.
    pub end_ns: u64,
    /// Its time with its nodes to itself, in ns.
    pub alone_ns: u64,
    /// How often it asked: more than once if a node or the token was lost.
    pub attempts: u32,
}

impl StepOutcome {
    /// The paper's I/O time, waiting and writing, in seconds.
    pub fn io_s(&self) -> f64 {
        (self.end_ns - self.due_ns) as f64 * 1e-9
    }

    /// Returns the time that it waited before it was let in (for the last time), in seconds.
    pub fn wait_s(&self) -> f64 {
        (self.granted_ns - self.due_ns) as f64 * 1e-9
    }
}

/// The end of a job before its time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Death {
    /// When, in ns.
    pub at_ns: u64,
    /// What the job was doing.
    pub was: &'static str,
}

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Name for people.
    pub name: String,
    /// When it first had nodes, in ns.
    pub room_ns: Option<u64>,
    /// When its last step was written, in ns; `None` if it died or lost its nodes before.
    pub end_ns: Option<u64>,
    /// Its steps in order, as far as they were written.
    pub steps: Vec<StepOutcome>,
    /// Its death, if it died.
    pub died: Option<Death>,
    /// Whether the run left it without nodes because none that can hold its step were left.
    pub without_nodes: bool,
    /// Whether the horizon came before its end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
    /// Leases that it lost, dead or alive.
    pub leases_lost: u32,
    /// Nodes of its own that it lost.
    pub nodes_lost: u32,
    /// Whole steps on nodes that were lost.
    pub steps_lost: u32,
    /// Bytes that were written in vain, since their step had to be written again.
    pub wasted_bytes: f64,
}

impl JobOutcome {
    /// Sum of the I/O times of its steps in seconds.
    pub fn io_s(&self) -> f64 {
        self.steps.iter().map(StepOutcome::io_s).sum()
    }
}

/// How a token came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All was written.
    Written,
    /// A node was lost, and the job released the token.
    NodeLost,
    /// It was not renewed in time.
    Revoked,
    /// The run was over before.
    Open,
}

/// A token from its grant to its end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hold {
    /// Index of the job.
    pub job: usize,
    /// Which of its steps, from 0.
    pub index: u32,
    /// Its token.
    pub token: Token,
    /// Its nodes, as first and last of each run of neighbours.
    pub nodes: Vec<(u32, u32)>,
    /// Granted, in ns.
    pub from_ns: u64,
    /// Released or revoked, in ns.
    pub to_ns: u64,
    /// When its holder fell silent, if it did.
    pub silent_ns: Option<u64>,
    /// How it ended.
    pub ended: Ended,
}

/// A node that was down.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NodeOutcome {
    /// Which.
    pub node: u32,
    /// Start, in ns.
    pub from_ns: u64,
    /// End, in ns; `None` if it did not return.
    pub to_ns: Option<u64>,
    /// Jobs that had it.
    pub jobs: u32,
}

/// A step that was drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DrainOutcome {
    /// Index of the job.
    pub job: usize,
    /// Which of its steps, from 0.
    pub index: u32,
    /// When it was on its nodes, in ns.
    pub from_ns: u64,
    /// When all of it was on the file system, in ns.
    pub to_ns: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// What the horizon left undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// The horizon, in ns.
    pub horizon_ns: u64,
    /// Jobs that had not ended.
    pub jobs: usize,
    /// Their steps that were not written.
    pub steps: u64,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Jobs in the order of the setup.
    pub jobs: Vec<JobOutcome>,
    /// Every token, in the order in which they were granted.
    pub holds: Vec<Hold>,
    /// Every time that a node was down.
    pub down: Vec<NodeOutcome>,
    /// Most bytes that were reserved on a node at the same time.
    pub peak_reserved_bytes: u64,
    /// Requests for nodes that the allocator refused.
    pub refusals: u64,
    /// Steps that were drained.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drains: Vec<DrainOutcome>,
    /// Bytes that were drained, including those of steps that were lost meanwhile.
    #[serde(skip_serializing_if = "is_default")]
    pub drained_bytes: u64,
    /// Bytes of whole steps that were lost before they were drained.
    #[serde(skip_serializing_if = "is_default")]
    pub lost_bytes: u64,
    /// Bytes of whole steps that were not drained when the run ended.
    #[serde(skip_serializing_if = "is_default")]
    pub undrained_bytes: u64,
    /// Events handled.
    pub events: u64,
    /// What is missing, if the run ended at its horizon before all had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<Unfinished>,
}

impl Outcome {
    /// Sum of I/O times over all steps, in seconds: the paper's aggregate.
    pub fn aggregate_s(&self) -> f64 {
        self.jobs.iter().map(JobOutcome::io_s).sum()
    }

    /// When the last thing that is drawn ends, in seconds.
    pub fn end_s(&self) -> f64 {
        let deaths = self.jobs.iter().filter_map(|j| j.died).map(|d| d.at_ns);
        let ends = self.jobs.iter().filter_map(|j| j.end_ns).chain(deaths);
        ends.chain(self.holds.iter().map(|h| h.to_ns)).max().unwrap_or(0) as f64 * 1e-9
    }
}

/// `nodes`, ascending, as first and last of each run of neighbours.
pub fn ranges(nodes: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &n in nodes {
        match runs.last_mut() {
            Some(last) if last.1 + 1 == n => last.1 = n,
            _ => runs.push((n, n)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    #[test]
    fn neighbours_are_taken_together() {
        assert_eq!(super::ranges(&[0, 1, 2, 5, 7, 8]), [(0, 2), (5, 5), (7, 8)]);
        assert_eq!(super::ranges(&[]), []);
    }
}
