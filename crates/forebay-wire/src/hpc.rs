//! HPC jobs and their I/O phases: what programs declare, what agents report to each other and the
//! coordinator, and the log of what was planned around them.

use crate::counted::sequence;
pub use forebay_policy::phases::bursts::Burst;
pub use forebay_policy::phases::{Declared, HpcPhase, Report};
use serde::{Deserialize, Serialize};

/// An HPC job as people see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HpcStatus {
    /// Its name.
    pub name: String,
    /// Its user.
    pub user: u32,
    /// The node that reports it.
    pub node: String,
    /// The phase under way.
    pub phase: Option<HpcPhase>,
    /// How long that has lasted, in milliseconds.
    pub lasted_ms: u64,
    /// Phases that have ended. For a job of another node, neither this nor what follows is known
    /// here.
    pub ended: u32,
    /// Phases that have ended in time.
    pub in_time: u32,
    /// Phases that have ended late.
    pub late: u32,
    /// Phases that never ended, until the agent ended them.
    pub cut_off: u32,
    /// I/O time of a phase alone, as declared; `None`: to be learnt.
    pub io_ms: Option<u64>,
    /// Its speed alone, as learnt; 0: unknown.
    pub alone_bytes_per_s: u64,
    /// Time to the next phase that is expected.
    pub next_in_ms: Option<u64>,
    /// How long its program has waited to begin a phase; `None`: it is not waiting.
    pub waits_ms: Option<u64>,
}

/// A step of a job that shares, as the coordinator sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepStatus {
    /// Name of its job.
    pub name: String,
    /// User id of the job.
    pub user: u32,
    /// It writes; if not, it waits.
    pub writes: bool,
    /// For how long it has done so, in milliseconds.
    pub since_ms: u64,
    /// How long it is expected to write alone, in milliseconds; `None`: unknown.
    pub alone_ms: Option<u64>,
    /// The servers that it writes to; none: not known.
    #[serde(deserialize_with = "sequence")]
    pub servers: Vec<String>,
    /// Jobs that hold what it waits for, as `NAME of user UID`.
    #[serde(deserialize_with = "sequence")]
    pub waits_for: Vec<String>,
    /// Its fraction of the time, in thousandths, under a policy that ranks steps, where all write
    /// at the same time.
    pub pace_permille: u16,
}

/// What the coordinator remembers of plans and phases, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanLog {
    /// Decisions of planners.
    #[serde(deserialize_with = "sequence")]
    pub plans: Vec<PlanEntry>,
    /// I/O phases of HPC jobs.
    #[serde(deserialize_with = "sequence")]
    pub phases: Vec<PhaseEntry>,
}

/// A decision: what was known, what was chosen and why, and what came of it. Times are
/// milliseconds; `at_ms` counts from the start of the coordinator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanEntry {
    /// When.
    pub at_ms: u64,
    /// The planner.
    pub planner: String,
    /// The analytics job.
    pub job: String,
    /// Its stage.
    pub stage: u32,
    /// First task of the wave.
    pub task: u32,
    /// What the plan does, in the papers' terms.
    pub action: String,
    /// Its steps.
    pub steps: Vec<PlanStep>,
    /// The HPC jobs at that moment.
    pub phases: Vec<PlanPhase>,
    /// Bytes of the wave that were still to fetch.
    pub left_bytes: u64,
    /// Compute that hides the prefetch.
    pub hidden_ms: u64,
    /// When the wave is expected in the tier, from the decision.
    pub fetched_in_ms: Option<u64>,
    /// What the tightest phase is expected to have left before its deadline.
    pub margin_ms: Option<i64>,
    /// Alternatives that were compared.
    pub candidates: u32,
    /// Why this one.
    pub reason: String,
    /// Bytes that its requests have fetched.
    pub came_bytes: u64,
    /// When the last of them came, from the decision.
    pub came_in_ms: Option<u64>,
    /// When the first of them came, from the decision.
    pub began_in_ms: Option<u64>,
}

/// A step of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// From the decision.
    pub after_ms: u64,
    /// Nodes that fetch; 0: it pauses.
    pub nodes: u16,
    /// Pages at a time on each.
    pub threads: u16,
    /// Part of the speed of these threads, in thousandths.
    pub rate_permille: u32,
    /// It pauses while any phase is under way.
    pub yields: bool,
}

/// An HPC job, as a decision saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanPhase {
    /// Name of the job.
    pub name: String,
    /// A phase was under way.
    pub in_phase: bool,
    /// I/O time alone that was left, or time to the next phase.
    pub left_ms: Option<u64>,
    /// Time to the deadline of the phase under way.
    pub deadline_ms: Option<i64>,
}

/// A phase: what was expected, and how long it took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseEntry {
    /// When it began.
    pub at_ms: u64,
    /// Name of the job.
    pub name: String,
    /// Bytes declared, 0 if unknown.
    pub bytes: u64,
    /// I/O time alone; `None`: unknown.
    pub alone_ms: Option<u64>,
    /// Time to its deadline; `None`: unknown.
    pub deadline_ms: Option<u64>,
    /// How long it was expected to take with what was planned beside it, when that was last
    /// planned.
    pub estimated_ms: Option<u64>,
    /// How long it took; `None`: it is under way, or its job is gone.
    pub observed_ms: Option<u64>,
    /// Bytes that prefetches moved meanwhile.
    pub beside_bytes: u64,
    /// I/O time alone that is left, by the latest report of progress; `None`: none was made.
    pub left_ms: Option<u64>,
}
