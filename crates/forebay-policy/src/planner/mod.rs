//! The prefetch planner: when to copy the next wave of a Big Data job, with how many nodes and
//! threads, at what rate.
//!
//! A Big Data job reads its input in waves; while one wave computes, the next is copied from the
//! parallel file system (PFS) into the burst buffer nodes' memory. HPC jobs on the same PFS have
//! I/O phases with deadlines. The planner is notified of phases and waves, and decides for each
//! wave how its prefetch is carried out; an HPC deadline always comes first.
//!
//! One machine, [`Planner`], keeps the books ([`board`]), asks a *policy* for a [`Plan`] and
//! carries it out step by step. A policy is one file here and one line in [`POLICIES`]:
//!
//! | policy | what it does |
//! | --- | --- |
//! | `naive-bb` | no prefetch: tasks read the PFS, burst buffers are for intermediate data |
//! | `no-action` | always immediately, with the default nodes and threads |
//! | `full-delay` | immediately, or when the phase is over (Eley 2017) |
//! | `eley` | the best of five actions by the paper's rule (Eley 2018) |
//! | `eley-direct` | the same, and waiting tasks read directly between phases if that is sooner |
//! | `forebay` | searches start, nodes, threads, rate and distance, again at every event |

use alloc::boxed::Box;
use alloc::vec::Vec;

use forebay_model::forecast::Division;
use forebay_model::profile::{Profile, Setting, Strain};
use serde::{Deserialize, Serialize};

use crate::machine::{Nanos, UnknownPolicy, is_default, named};

pub mod board;
mod carry_out;
mod direct;
mod eley;
mod forebay;
mod full_delay;
mod naive_bb;
mod no_action;
mod plan;
#[cfg(test)]
mod tests;

pub use board::Board;
pub use carry_out::Planner;
pub use forebay::SpeedCurve;
pub use plan::{ActionKind, Decision, Estimate, Plan, PlannedStep};

/// Names an HPC job.
pub type HpcId = u32;
/// Names a Big Data job.
pub type JobId = u32;

/// What the planner receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// An HPC job has joined, with what is known of it.
    HpcJoins {
        /// Its id.
        hpc: HpcId,
        /// I/O time of a phase alone, in ns.
        io_ns: u64,
        /// Compute time between phases, in ns.
        compute_ns: u64,
        /// Number of phases that it will have.
        phases: u32,
        /// How much longer than alone a phase may take: 0.05 for 5 %.
        allowance: f64,
        /// Its weight where phases share the file system (processes).
        weight: f64,
        /// When its first phase is expected, in ns from now.
        first_in_ns: u64,
    },
    /// An I/O phase begins.
    PhaseBegins {
        /// The job of the phase.
        hpc: HpcId,
        /// Its I/O time alone, in ns.
        alone_ns: u64,
        /// By when it has to be done.
        deadline: Nanos,
    },
    /// By its progress, the I/O time alone that the phase still needs.
    PhaseLeft {
        /// The job of the phase.
        hpc: HpcId,
        /// In ns.
        left_ns: u64,
    },
    /// The expected next phases of the job, from observation.
    HpcExpects {
        /// Its id.
        hpc: HpcId,
        /// I/O time of a phase alone, in ns.
        io_ns: u64,
        /// Compute time between phases, in ns.
        compute_ns: u64,
        /// Number of phases that are expected.
        phases: u32,
        /// When the next begins, in ns from now.
        next_in_ns: u64,
    },
    /// The phase of this HPC job is over.
    PhaseEnds {
        /// The job of the phase.
        hpc: HpcId,
    },
    /// The HPC job is gone.
    HpcLeaves {
        /// Its id.
        hpc: HpcId,
    },
    /// A Big Data job has joined and wants its first wave, or will.
    JobJoins {
        /// Its id.
        job: JobId,
        /// Number of waves.
        waves: u32,
        /// Bytes in a wave.
        wave_bytes: u64,
        /// Time that a wave needs once it is in the tier, reading it from there included, in ns.
        compute_ns: u64,
        /// The part of `compute_ns` that reading a whole wave from the tier takes.
        tier_read_ns: u64,
        /// How long it still computes what came before, in ns; `None` if it waits.
        computing_ns: Option<u64>,
    },
    /// The compute of a wave begins.
    WaveStarts {
        /// Its job.
        job: JobId,
        /// Which wave, from 0.
        wave: u32,
        /// How long it will take, in ns: less than the job's `compute_ns` if a part was read
        /// directly.
        compute_ns: u64,
    },
    /// The job has nothing to compute until this wave is fetched.
    WaveWanted {
        /// Its job.
        job: JobId,
        /// Which wave, from 0.
        wave: u32,
    },
    /// A wave is in the tier (or was read directly).
    Fetched {
        /// Its job.
        job: JobId,
        /// Which wave, from 0.
        wave: u32,
        /// Its bytes that were in the tier before they were requested.
        resident_bytes: u64,
    },
    /// Parts of waves were fetched before they were planned ([`Action::Ahead`]).
    FetchedAhead {
        /// The job.
        job: JobId,
        /// Waves that no plan fetches, and the bytes of each that were fetched up to now.
        waves: Vec<(u32, u64)>,
    },
    /// The Big Data job is done.
    JobLeaves {
        /// Its id.
        job: JobId,
    },
    /// The tier's memory has changed: a node came, went, or released memory.
    Memory {
        /// Bytes of the tier in all.
        bytes: u64,
    },
    /// The speed in the profile was a guess; prefetches by all nodes together have reached this.
    Speed {
        /// Bytes per second.
        bytes_per_s: f64,
    },
    /// A node left, and with it a part of what the tier held of this job. Its fetch under way has
    /// stopped.
    Lost {
        /// The job.
        job: JobId,
        /// Waves that have not begun to compute, ascending, and the bytes of each that are lost.
        waves: Vec<(u32, u64)>,
    },
}

/// What the planner decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Action {
    /// A plan was made. The driver need not act; it explains the actions that name its id.
    Decided(Box<Decision>),
    /// From now on, fetch this wave with this setting; paused if it has no nodes.
    Fetch {
        /// The job.
        job: JobId,
        /// Its wave.
        wave: u32,
        /// The setting.
        setting: Setting,
        /// The decision behind it.
        decision: u64,
    },
    /// From now on, let the tasks read (the rest of) this wave from the PFS themselves; only while
    /// they wait for it.
    Direct {
        /// The job.
        job: JobId,
        /// Its wave.
        wave: u32,
        /// The decision behind it.
        decision: u64,
    },
    /// From now on, also prefetch waves after the planned one opportunistically, from servers that
    /// it leaves idle; or stop this. Initially off.
    Ahead {
        /// The job.
        job: JobId,
        /// Whether it is permitted.
        may: bool,
    },
}

/// What a planner has to know from the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Measured profile of prefetches.
    pub profile: Profile,
    /// Setting of *No Action*: the default of the system.
    pub default_setting: Setting,
    /// Tasks that read the PFS directly: their speed together, and how they and phases slow each
    /// other down.
    pub direct: DirectStrain,
    /// Bandwidth of the PFS for all prefetches together, in bytes per second.
    pub pfs_bytes_per_s: f64,
    /// Memory of the tier, in bytes.
    pub ram_bytes: u64,
    /// Weight of a new observation in the correction of the model, in (0, 1]; 0 to trust the
    /// profile.
    pub learning: f64,
    /// How phases divide the file system. Older records do not contain it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub division: Division,
    /// Time within which nodes start and stop, in seconds: a setting that costs a phase something
    /// is not used for a shorter time.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reaction_s: f64,
}

/// Direct reads as one flow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectStrain {
    /// Speed of all tasks together, alone, in bytes per second.
    pub speed_bytes_per_s: f64,
    /// By how much they stretch a phase.
    pub i_hpc: f64,
    /// By how much a phase stretches them.
    pub i_bd: f64,
    /// Whether tasks compute between their reads, as real ones do: they read a wave for as long as
    /// they compute it.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub with_compute: bool,
}

impl DirectStrain {
    /// Returns this as a strain.
    pub fn strain(self) -> Strain {
        Strain { speed_bytes_per_s: self.speed_bytes_per_s, rate: 1.0, i_hpc: self.i_hpc, i_bd: self.i_bd }
    }
}

/// How far ahead of compute a policy fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchDistance {
    /// Only when the job waits for the wave.
    OnDemand,
    /// This many waves ahead of the one that computes.
    Waves(u32),
    /// As many as the memory holds.
    Memory,
}

/// How waves are prefetched: the part that differs between policies.
pub trait Policy: Send {
    /// How far ahead it fetches.
    fn prefetch_distance(&self) -> PrefetchDistance;

    /// Whether this event makes it plan again for `job`, rather than only a new wave.
    fn replans(&self, _board: &Board, _job: JobId) -> bool {
        false
    }

    /// Whether nodes also fetch later waves where the wave that is fetched leaves gaps, as far as
    /// memory goes. Only for policies that ignore phases: no plan takes these fetches into account.
    fn opportunistic(&self) -> bool {
        false
    }

    /// Whether nodes do so between phases: for a single job, while its planned wave is fetched. The
    /// planner is notified of the bytes ([`Event::FetchedAhead`]).
    fn fills_gaps(&self) -> bool {
        false
    }

    /// Called before plans are made for the current board.
    fn begin(&mut self, _board: &Board) {}

    /// Returns a plan for `wave` of `job`, which is the next to fetch (and may be fetched in part
    /// already).
    fn plan(&mut self, board: &Board, job: JobId, wave: u32) -> Plan;
}

/// Makes a policy.
pub type MakePolicy = fn(&Config) -> Box<dyn Policy>;

/// Every policy: its name and how to make it. A new one needs a file in this folder and a line
/// here.
pub const POLICIES: &[(&str, MakePolicy)] = &[
    (naive_bb::NAME, |_| Box::new(naive_bb::NaiveBb)),
    (no_action::NAME, |_| Box::new(no_action::NoAction)),
    ("full-delay", |_| Box::new(full_delay::FullDelay)),
    ("eley", |_| Box::new(eley::Eley { reads_directly: false })),
    ("eley-direct", |_| Box::new(eley::Eley { reads_directly: true })),
    ("forebay", |config| Box::new(forebay::Forebay::new(config))),
];

/// Returns whether the policy called `name` ever fetches. Tasks of a job for which nothing is
/// fetched read past the tier.
pub fn fetches(name: &str) -> bool {
    name != naive_bb::NAME
}

/// Returns whether tasks wait for a wave that the policy called `name` delays for a phase, as in
/// the papers. Where they read it themselves instead, the phase is disturbed as if nothing had been
/// delayed.
pub fn tasks_wait(name: &str) -> bool {
    fetches(name) && name != no_action::NAME
}

/// The policy called `name`.
///
/// # Errors
/// If `name` is unknown; lists the known names.
pub fn policy(name: &str, config: &Config) -> Result<Box<dyn Policy>, UnknownPolicy> {
    Ok(named(POLICIES, "planner", name)?(config))
}
