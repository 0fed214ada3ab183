//! HPC jobs and Big Data jobs on one parallel file system, with burst buffer nodes that prefetch.
//!
//! HPC jobs alternate compute and I/O phases; Big Data jobs compute wave after wave, each of which
//! has to be in the tier (or be read directly) first. The planner of `forebay_policy::planner`
//! decides every prefetch, the machine of `forebay_policy::bandwidth` how phases divide the file
//! system. The world knows only physics: how far each flow has come, at the paces that
//! `forebay_model::sharing` gives, with factors that need not be those the planner believes in.

use forebay_model::profile::Profile;
use forebay_policy::bandwidth;
use forebay_policy::machine::is_default;
use forebay_policy::planner::{self, ActionKind, Config, DirectStrain};
use forebay_policy::stage::{self, Rules, SPLIT_WORK_MAX};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use knowledge::Knowledge;

mod bound;
pub mod knowledge;
pub mod observer;
mod outcome;
pub mod view;
mod world;

pub use crate::arrivals::Arrivals;
pub use bound::lower_bound_s;
pub use outcome::{
    DownSpan, FetchSpan, HpcOutcome, JobOutcome, Outcome, PhaseOutcome, Unfinished, WaveOutcome,
};
pub use world::simulate;

/// An HPC job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HpcSpec {
    /// Name for people.
    pub name: String,
    /// Mean compute time between phases, in ns.
    pub compute_ns: u64,
    /// Mean I/O time of a phase alone, in ns.
    pub io_ns: u64,
    /// Number of phases.
    pub phases: u32,
    /// How much longer than alone a phase may take: 0.05 for 5 %.
    pub allowance: f64,
    /// Processes that do I/O; its weight among phases.
    pub processes: u32,
    /// When it begins, in ns from the start.
    pub starts_ns: u64,
    /// Whether it begins with a phase rather than with compute.
    pub io_first: bool,
    /// When its phases begin.
    pub arrivals: Arrivals,
    /// What planners know about them. Older records do not have this field.
    #[serde(default, skip_serializing_if = "is_default")]
    pub knowledge: Knowledge,
}

impl HpcSpec {
    /// I/O time of phase `number` (from 0) alone, in ns.
    pub fn io_of(&self, number: u32) -> u64 {
        self.arrivals.io_ns(number).unwrap_or(self.io_ns)
    }

    /// Fraction of the time that its phases take.
    pub fn busy(&self) -> f64 {
        self.io_ns as f64 / (self.io_ns + self.compute_ns).max(1) as f64
    }
}

/// A Big Data job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Name for people.
    pub name: String,
    /// Number of waves.
    pub waves: u32,
    /// Bytes in a wave.
    pub wave_bytes: u64,
    /// Compute of a wave, in ns.
    pub compute_ns: u64,
    /// Time to read a wave out of the tier, in ns; direct reads do not pay it.
    pub tier_read_ns: u64,
    /// When it begins, in ns from the start.
    pub starts_ns: u64,
}

impl JobSpec {
    /// The mount of the job at this place in the setup.
    fn mount(&self, place: usize) -> String {
        format!("job/{place}")
    }

    /// Size of extents so that waves are spread over `nodes` nodes: small enough that all get about
    /// as much.
    fn extent_bytes(&self, nodes: u64) -> u64 {
        self.wave_bytes.div_ceil(EXTENTS_PER_NODE * nodes).max(1)
    }
}

/// Extents of a wave for each node, on average.
const EXTENTS_PER_NODE: u64 = 8;

/// The machine examines each node for each extent of a wave, up to a bound: with more nodes it
/// would leave the rest of the wave without a plan.
pub const NODES_MAX: u64 = (SPLIT_WORK_MAX / EXTENTS_PER_NODE).isqrt();

/// The tier's memory changes: nodes release memory to compute, or take it back. Nothing is lost as
/// a result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryChange {
    /// When, in ns from the start.
    pub at_ns: u64,
    /// Bytes of the tier from then on. Waves already there stay; fetches that do not fit wait.
    pub bytes: u64,
}

/// A node of the tier goes away with its memory and what is in it.
///
/// Waves are spread evenly over all nodes that are up, so each loses the same part. What had not
/// begun to compute has to be fetched again; a wave in compute has been read from the tier already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFault {
    /// The node, below the profile's number of nodes.
    pub node: u16,
    /// When, in ns from the start.
    pub at_ns: u64,
    /// For how long, in ns; `None`: for ever. It returns empty.
    pub for_ns: Option<u64>,
}

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Name of the planner's policy.
    pub policy: String,
    /// Name of the bandwidth policy among phases.
    pub bandwidth: String,
    /// What the planner believes.
    pub planner: Config,
    /// What is true about prefetches.
    pub truth: Profile,
    /// What is true about direct reads.
    pub true_direct: DirectStrain,
    /// HPC jobs.
    pub hpc: Vec<HpcSpec>,
    /// Big Data jobs.
    pub jobs: Vec<JobSpec>,
    /// Changes of the tier's memory with all nodes up, ascending.
    pub memory: Vec<MemoryChange>,
    /// Nodes that fail. Older records do not have any.
    #[serde(default)]
    pub faults: Vec<NodeFault>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// When the run ends, in ns from the start, whatever is left to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub horizon_ns: Option<u64>,
}

impl Setup {
    /// Configuration of the stage machine. Some of its rules are those of the papers instead: a
    /// wave is fetched as a whole, only when a plan says so, into memory that the planner accounts
    /// for, its tasks wait until it is there, and nodes obey immediately.
    ///
    /// # Errors
    /// If the policy does not exist.
    pub fn stages(&self) -> Result<stage::Config> {
        planner::policy(&self.policy, &self.planner)?;
        let division = bandwidth::policy(&self.bandwidth)?.division();
        Ok(stage::Config {
            default_planner: self.policy.clone(),
            system: Some(Config { division, ..self.planner.clone() }),
            rules: Rules {
                plannable_per_10000: 10_000,
                opportunistic: false,
                whole_parts: true,
                tasks_wait: true,
                nodes_brake: false,
                ..Rules::default()
            },
            ..stage::Config::default()
        })
    }
}

/// Name of an action for people, as the papers write it.
pub fn action_name(kind: ActionKind) -> &'static str {
    match kind {
        ActionKind::NoAction => "No Action",
        ActionKind::FullDelay => "Full Delay",
        ActionKind::PartialDelay => "Partial Delay",
        ActionKind::ScaleUp => "Scale Up",
        ActionKind::ScaleDown => "Scale Down",
        ActionKind::Direct => "Direct",
        ActionKind::Search => "Search",
        ActionKind::Wait => "Wait",
    }
}
