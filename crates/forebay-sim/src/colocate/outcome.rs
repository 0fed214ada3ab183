//! The outcome of a run: every phase, wave and fetch with its times.

use forebay_model::profile::Setting;
use forebay_policy::machine::is_default;
use forebay_policy::planner::{ActionKind, Decision};
use serde::Serialize;

/// One I/O phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PhaseOutcome {
    /// Begin, in ns.
    pub begin_ns: u64,
    /// End, in ns.
    pub end_ns: u64,
    /// I/O time alone, in ns.
    pub alone_ns: u64,
    /// Deadline, in ns.
    pub deadline_ns: u64,
}

impl PhaseOutcome {
    /// How much longer than alone it took: 0.05 for 5 %.
    pub fn slowdown(&self) -> f64 {
        (self.end_ns - self.begin_ns) as f64 / self.alone_ns as f64 - 1.0
    }

    /// Whether it ended after its deadline.
    pub fn missed(&self) -> bool {
        self.end_ns > self.deadline_ns
    }
}

/// An HPC job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HpcOutcome {
    /// Name for people.
    pub name: String,
    /// Its phases in order.
    pub phases: Vec<PhaseOutcome>,
}

impl HpcOutcome {
    /// Mean slowdown over its phases.
    pub fn slowdown(&self) -> f64 {
        mean(self.phases.iter().map(PhaseOutcome::slowdown))
    }

    /// Number of deadlines missed.
    pub fn missed(&self) -> usize {
        self.phases.iter().filter(|p| p.missed()).count()
    }
}

/// One wave of a Big Data job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WaveOutcome {
    /// When it was there, in ns.
    pub fetched_ns: u64,
    /// When its compute began, in ns.
    pub begin_ns: u64,
    /// When its compute ended, in ns.
    pub end_ns: u64,
    /// How long compute waited for it, in ns: the cost of equation (5).
    pub stall_ns: u64,
    /// Bytes of it that tasks read from the PFS themselves.
    pub direct_bytes: f64,
    /// What the first plan for it did.
    pub kind: Option<ActionKind>,
}

/// A Big Data job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Name for people.
    pub name: String,
    /// From its begin to the end of its last wave, in ns; 0 if waves are left.
    pub map_ns: u64,
    /// Its waves in order.
    pub waves: Vec<WaveOutcome>,
    /// Bytes of it that were lost with nodes before they were computed.
    pub lost_bytes: f64,
    /// Waves that were not computed at the horizon.
    #[serde(skip_serializing_if = "is_default")]
    pub waves_left: u32,
}

impl JobOutcome {
    /// Mean cost of a wave after the first (which nothing can hide), in seconds.
    pub fn mean_cost_s(&self) -> f64 {
        let computed = self.waves.len() - self.waves_left as usize;
        mean(self.waves.iter().take(computed).skip(1).map(|w| w.stall_ns as f64 * 1e-9))
    }
}

/// A stretch of a fetch at one setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FetchSpan {
    /// Index of the job.
    pub job: usize,
    /// Its wave.
    pub wave: u32,
    /// Begin, in ns.
    pub from_ns: u64,
    /// End, in ns.
    pub to_ns: u64,
    /// How it was fetched; `None` for direct reads.
    pub setting: Option<Setting>,
    /// What the plan in force did.
    pub kind: ActionKind,
}

/// A node that was down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DownSpan {
    /// Which.
    pub node: u16,
    /// Start, in ns.
    pub from_ns: u64,
    /// End, in ns; `None` if it did not return.
    pub to_ns: Option<u64>,
}

/// What the horizon left undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// The horizon, in ns.
    pub horizon_ns: u64,
    /// Waves that were not computed.
    pub waves: u32,
    /// Phases that had not ended.
    pub phases: u32,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// HPC jobs in the order of the setup.
    pub hpc: Vec<HpcOutcome>,
    /// Big Data jobs in the order of the setup.
    pub jobs: Vec<JobOutcome>,
    /// Every stretch in which something was fetched.
    pub fetches: Vec<FetchSpan>,
    /// Every decision of the planner.
    pub decisions: Vec<Decision>,
    /// Events handled.
    pub events: u64,
    /// Most bytes that the tier held at the same time.
    pub peak_bytes: u64,
    /// Most bytes that it held beyond its memory when room was taken: only after memory was
    /// released to compute.
    pub overbooked_bytes: u64,
    /// Every time that a node was down.
    pub down: Vec<DownSpan>,
    /// What is missing, if the run ended at its horizon before all had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<Unfinished>,
}

impl Outcome {
    /// When the last Big Data job or phase is over, in seconds.
    pub fn end_s(&self) -> f64 {
        let jobs = self.jobs.iter().flat_map(|j| &j.waves).map(|w| w.end_ns);
        let phases = self.hpc.iter().filter_map(|h| h.phases.last()).map(|p| p.end_ns);
        jobs.chain(phases).max().unwrap_or(0) as f64 * 1e-9
    }

    /// Deadlines missed by all HPC jobs.
    pub fn missed(&self) -> usize {
        self.hpc.iter().map(HpcOutcome::missed).sum()
    }
}

/// The mean of `values`, 0 if there are none.
pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(s, n), v| (s + v, n + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}
