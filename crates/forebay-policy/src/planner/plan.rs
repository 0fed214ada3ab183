//! A plan for one wave, and the record that explains it.

use alloc::string::String;
use alloc::vec::Vec;

use forebay_model::forecast::Chain;
use forebay_model::profile::Setting;
use serde::Serialize;

use super::{HpcId, JobId};
use crate::machine::Nanos;

/// The papers' names for what a plan does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// Start immediately with the default setting.
    NoAction,
    /// Start when the phase is over.
    FullDelay,
    /// Start some time before the phase is over.
    PartialDelay,
    /// Start immediately with more threads per node.
    ScaleUp,
    /// Start immediately with fewer threads in all.
    ScaleDown,
    /// Tasks read the PFS themselves.
    Direct,
    /// A point of the whole space that is none of the above.
    Search,
    /// Not now: another job needs the bandwidth sooner.
    Wait,
}

/// From `at` on, fetch with `setting`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlannedStep {
    /// When it begins.
    pub at: Nanos,
    /// How to fetch; paused if it has no nodes.
    pub setting: Setting,
    /// Whether to pause while any phase is under way.
    pub yields: bool,
}

/// What a policy expects of its plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// When the wave is fetched, in seconds from now; `None` if unknown.
    pub fetched_in_s: Option<f64>,
    /// Equation (5): the part of it that compute does not hide, in seconds.
    pub cost_s: Option<f64>,
    /// Time that the tightest phase has left before its deadline, in seconds; `None` if no phase is
    /// touched.
    pub margin_s: Option<f64>,
}

/// How to fetch one wave.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The papers' name for what it does.
    pub kind: ActionKind,
    /// Missing waves before the one that is fetched, which are left for later or for the tasks to
    /// read themselves.
    pub skips: u32,
    /// In ascending `at`, the first one not later than now; empty for [`ActionKind::Direct`].
    pub steps: Vec<PlannedStep>,
    /// Its estimate.
    pub estimate: Estimate,
    /// How many alternatives were examined.
    pub candidates: u32,
    /// Why it was chosen.
    pub reason: String,
}

/// An HPC job as the planner saw it, for the record.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SeenPhase {
    /// The job.
    pub hpc: HpcId,
    /// Whether a phase was under way.
    pub in_phase: bool,
    /// I/O time alone that was left, or time to the next phase, in seconds; `None` if no more
    /// comes.
    pub left_s: Option<f64>,
    /// Time to the deadline of the phase under way, in seconds.
    pub deadline_s: Option<f64>,
}

impl SeenPhase {
    /// Creates the record from a forecast's view of job `hpc`.
    pub fn new(hpc: HpcId, chain: &Chain) -> Self {
        SeenPhase {
            hpc,
            in_phase: chain.in_phase,
            left_s: chain.left_s.is_finite().then_some(chain.left_s),
            deadline_s: chain.in_phase.then_some(chain.deadline_s),
        }
    }
}

/// The record of a plan: what was seen, what was chosen, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Number of the decision, from 1.
    pub id: u64,
    /// The job.
    pub job: JobId,
    /// The wave.
    pub wave: u32,
    /// What it does.
    pub kind: ActionKind,
    /// Its steps.
    pub steps: Vec<PlannedStep>,
    /// Its estimate.
    pub estimate: Estimate,
    /// Seconds of compute that hide the prefetch.
    pub hidden_s: f64,
    /// Waves in the tier that wait for compute.
    pub buffered: u32,
    /// Bytes of the wave that were still to fetch.
    pub left_bytes: f64,
    /// The HPC jobs at that moment.
    pub phases: Vec<SeenPhase>,
    /// How many alternatives were examined.
    pub candidates: u32,
    /// Why it was chosen.
    pub reason: String,
}
