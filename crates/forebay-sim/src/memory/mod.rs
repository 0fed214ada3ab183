//! A node whose memory tier gives way to compute.
//!
//! Compute holds memory as a curve over time says. The controller of `forebay_policy::memory`
//! decides how much the tier may hold; the world holds bytes only. The tier releases and refills
//! its pages at given speeds and always has something to fill with, so what is seen is the law.
//! Time advances in steps of a millisecond: the controller gets a sample when it has requested one,
//! or when use passes its alarm.

use forebay_policy::memory::{Config, Reason};
use serde::{Deserialize, Serialize};

mod clairvoyant;
mod load;
pub mod view;
mod world;

pub use load::{Load, Noise, Pulse, STEP_NS};
pub(crate) use world::Node;
pub use world::{controller, simulate};

/// Name of this kind of scenario.
pub const KIND: &str = "memory";
/// Steps from one recorded point to the next.
pub const POINT_STEPS: usize = 20;

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Name of the law.
    pub policy: String,
    /// Configuration of the controller.
    pub config: Config,
    /// Capacity of the tier at the start, and what it holds then.
    pub start_bytes: u64,
    /// How fast the tier refills, in bytes per second; `None`: immediately.
    pub refill_bytes_per_s: Option<f64>,
    /// How fast it releases memory, in bytes per second; `None`: immediately.
    pub release_bytes_per_s: Option<f64>,
    /// Whether the controller is notified of use above [`Config::alarm_bytes`] without a request.
    pub has_alarm: bool,
    /// Memory of compute.
    pub load: Load,
    /// Length of the run, in ns.
    pub duration_ns: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Setup {
    /// Memory of compute at every step, in bytes.
    pub fn compute(&self) -> Vec<f64> {
        self.load.steps(self.seed, self.duration_ns)
    }

    /// The tier starts with what compute leaves at the start; under a law that never changes it,
    /// with what compute leaves at its worst moment, the size that an operator who knows that
    /// moment would choose.
    pub fn start_full(&mut self) {
        let compute = self.compute();
        let first = compute.first().copied().unwrap_or(0.0);
        let most = compute.iter().copied().fold(0.0, f64::max);
        let room = self.config.target_bytes() - if self.policy == "static" { most } else { first };
        let blocks = room.max(0.0) as u64 / self.config.block_bytes;
        self.start_bytes =
            (blocks * self.config.block_bytes).clamp(self.config.min_bytes, self.config.max_bytes);
    }
}

/// A decision that changed the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resize {
    /// When, in ns.
    pub at_ns: u64,
    /// The new capacity.
    pub capacity_bytes: u64,
    /// Why.
    pub why: Reason,
}

/// The node at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// When, in seconds.
    pub at_s: f64,
    /// Memory of compute.
    pub compute_bytes: f64,
    /// What the tier holds.
    pub tier_bytes: f64,
    /// What it may hold.
    pub capacity_bytes: u64,
    /// What the clairvoyant's tier holds.
    pub clairvoyant_bytes: f64,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Mean of what the tier holds, in bytes.
    pub tier_bytes: f64,
    /// Mean of what the clairvoyant's tier holds, in bytes.
    pub clairvoyant_bytes: f64,
    /// Memory in use at the worst moment, as a fraction of the memory; above 1 the node swaps.
    pub peak: f64,
    /// Time with use above r0, in seconds.
    pub above_s: f64,
    /// Time with use above r0 + 2 % of the memory.
    pub far_above_s: f64,
    /// Bytes that were fetched into the tier.
    pub fetched_bytes: f64,
    /// Samples that the controller received.
    pub samples: u64,
    /// Changes of the capacity.
    pub resizes: Vec<Resize>,
    /// The node every [`POINT_STEPS`] steps.
    pub points: Vec<Point>,
    /// Length of the run, in seconds.
    pub end_s: f64,
}

impl Outcome {
    /// The tier's mean size, in percent of the clairvoyant's. Two empty tiers are equal.
    pub fn tier_percent(&self) -> f64 {
        match self.clairvoyant_bytes > 0.0 {
            true => 100.0 * self.tier_bytes / self.clairvoyant_bytes,
            false => 100.0,
        }
    }
}
