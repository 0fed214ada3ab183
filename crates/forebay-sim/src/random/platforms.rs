//! Random platforms whose nodes fail, which no strategy was tuned on.
//!
//! | drawn | from |
//! | --- | --- |
//! | nodes | 2,000 to 20,000, each of which fails every 2 to 25 years |
//! | failures | programs 0 to 30 %, groups of nodes 1 to 10 %; of the others half are restarts |
//! | classes of jobs | 2 to 5 |
//! | nodes of a job | 1 to 15 % of all |
//! | work of a job | 10 to 100 of its periods by Daly |
//! | share of a class | 0.2 to 1, of their sum |
//! | checkpoint | 8 to 128 GB per node |
//! | input and output | 0 to 0.5 of that, each |
//! | PFS | checkpoints at Young's and Daly's periods take 0.3 to 2 of its time |
//! | tier | a node writes 0.25 to 4 GB/s |
//!
//! Where two values are given, the distribution is log-uniform, except for shares, input and
//! output. The bound is for jobs that are long compared with their periods, as these are. No
//! checkpoint takes the PFS more than a fifth of the time between failures of its job: beyond that
//! a job makes hardly any progress, and to first order the bound says nothing.

use forebay_model::rng::Rng;
use forebay_policy::burst::period::{Policy, demand, periods_ns};

use super::{between, by_order};
use crate::error::{Error, Result};
use crate::waste::{Class, Outcome, Platform, Strategy, Window, bound, simulate, strategy};

const GB: f64 = 1e9;
const DAY_S: f64 = 86_400.0;
const YEAR_S: f64 = 365.0 * DAY_S;
const CHECKPOINT_PART: f64 = 0.2;

/// Length of the start of a run that is not measured, and the least length that is.
const FROM_S: f64 = 5.0 * DAY_S;
const FOR_S: f64 = 30.0 * DAY_S;

/// Properties common to all platforms of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Seed of all platforms.
    pub seed: u64,
    /// Mean number of failures of the platform in a run, which lasts at least 30 days.
    pub failures: u32,
}

/// A run, beside the least waste of the jobs that it had.
#[derive(Clone, Debug)]
pub struct Made {
    /// What became of the nodes' time.
    pub outcome: Outcome,
    /// The least waste, by the paper's formula.
    pub bound: f64,
    /// The least waste to all orders.
    pub exact: f64,
    /// Fractions of the PFS's time that checkpoints at Young's and Daly's periods take, and that
    /// input and output take.
    pub demands: [f64; 2],
}

impl Family {
    /// Platform `number`.
    pub fn platform(&self, number: u64) -> Platform {
        platform(&mut Rng::new(self.seed).fork(number))
    }

    /// Runs platform `number` under the strategy of this name.
    ///
    /// # Errors
    /// If there is no such strategy, or the run was interrupted.
    pub fn run(&self, number: u64, name: &str) -> Result<Made> {
        let platform = self.platform(number);
        let strategy = strategy::find(name)
            .ok_or_else(|| Error::Usage(format!("no strategy for checkpoints is called '{name}'")))?;
        let fails_s = platform.node_fails_s / f64::from(platform.nodes);
        let for_s = FOR_S.max(fails_s * f64::from(self.failures));
        let seed = Rng::new(self.seed).fork(number).next_u64();
        Made::of(&platform, strategy, &Window { seed, from_s: FROM_S, for_s })
    }
}

impl Made {
    /// Runs a platform.
    ///
    /// # Errors
    /// If the run was interrupted.
    pub fn of(platform: &Platform, strategy: &Strategy, window: &Window) -> Result<Self> {
        let outcome = simulate(platform, strategy, window)?;
        let jobs = platform.jobs(&outcome.counts);
        let checkpoints = demand(&jobs, &periods_ns(Policy::Daly, &jobs));
        Ok(Made {
            bound: bound::printed(&jobs),
            exact: bound::exact(&jobs),
            demands: [checkpoints, strategy::other_share(platform, &outcome.counts)],
            outcome,
        })
    }

    /// Waste as a multiple of the paper's bound.
    pub fn of_bound(&self) -> f64 {
        self.outcome.waste() / self.bound
    }
}

fn platform(rng: &mut Rng) -> Platform {
    let nodes = by_order(rng, 2_000.0, 20_000.0) as u32;
    let node_fails_s = by_order(rng, 2.0, 25.0) * YEAR_S;
    let (programs, groups) = (between(rng, 0.0, 0.3), by_order(rng, 0.01, 0.1));
    let others = 0.5 * (1.0 - programs - groups);
    let mut classes: Vec<Class> = (0..2 + rng.below(4)).map(|i| class(rng, i, nodes)).collect();
    let shares: f64 = classes.iter().map(|class| class.share).sum();
    classes.iter_mut().for_each(|class| class.share /= shares);
    let mut platform = Platform {
        nodes,
        pfs_bytes_per_s: GB,
        tier_bytes_per_s: by_order(rng, 0.25, 4.0) * GB,
        node_fails_s,
        failures: [programs, others, others, groups],
        classes,
    };
    platform.pfs_bytes_per_s *= bandwidth_for(&platform, by_order(rng, 0.3, 2.0));
    let periods_ns = periods_ns(Policy::Daly, &platform.jobs(&platform.counts()));
    platform.classes.iter_mut().zip(periods_ns).for_each(|(class, ns)| class.work_s *= ns / 1e9);
    platform
}

fn class(rng: &mut Rng, i: u64, nodes: u32) -> Class {
    let on = (f64::from(nodes) * by_order(rng, 0.01, 0.15)).max(1.0) as u32;
    let bytes = by_order(rng, 8.0, 128.0) * GB * f64::from(on);
    Class {
        name: format!("class {i}"),
        nodes: on,
        share: between(rng, 0.2, 1.0),
        // In periods, until the periods are known.
        work_s: by_order(rng, 10.0, 100.0),
        input_bytes: bytes * between(rng, 0.0, 0.5),
        output_bytes: bytes * between(rng, 0.0, 0.5),
        checkpoint_bytes: bytes,
    }
}

/// How many times as fast the PFS has to be for checkpoints to take this fraction of its time: the
/// fraction falls with the root of the bandwidth.
fn bandwidth_for(platform: &Platform, part: f64) -> f64 {
    let jobs = platform.jobs(&platform.counts());
    let now = demand(&jobs, &periods_ns(Policy::Daly, &jobs));
    let longest = jobs.iter().map(|job| job.pfs_ns / job.fails_ns).fold(0.0, f64::max);
    (now / part).powi(2).max(longest / CHECKPOINT_PART)
}
