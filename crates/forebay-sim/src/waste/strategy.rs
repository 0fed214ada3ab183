//! When jobs write checkpoints, in which order, and whether they wait for the PFS.

use forebay_policy::burst::period::{Job, Policy, periods_ns};

use super::{Failure, Platform};

/// The period that `fixed` in a name stands for, as in the paper.
const FIXED_NS: u64 = 3_600_000_000_000;

/// Which failures a checkpoint in the tier survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// It is in the memory of each node.
    Memory,
    /// It is also in the memory of another node.
    TwoCopies,
    /// It is on a disk of each node.
    Disk,
}

impl Level {
    /// Whether a job can continue from the tier. What the PFS has is safe from all failures.
    pub fn survives(self, failure: Failure) -> bool {
        match (self, failure) {
            (_, Failure::Program) => true,
            (Level::Memory, _) => false,
            (Level::TwoCopies, failure) => failure != Failure::Group,
            (Level::Disk, failure) => failure != Failure::Node,
        }
    }
}

/// How long a checkpoint holds up its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// The job waits for the PFS, and until the PFS has it.
    Blocking,
    /// The job computes until the PFS is free, and waits until the PFS has it.
    Waiting,
    /// The job waits until the tier has it. The newest one continues to the PFS when the PFS is
    /// free.
    Absorbed(Level),
}

/// A strategy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strategy {
    /// Its name.
    pub name: &'static str,
    /// The rule for periods; [`Policy::Cooperative`] leaves input and output their share.
    pub period: Policy,
    /// The order of all transfers with the PFS: a policy of `burst::access`.
    pub access: &'static str,
    /// How checkpoints hold up jobs.
    pub writes: Writes,
}

const fn new(name: &'static str, period: Policy, access: &'static str, writes: Writes) -> Strategy {
    Strategy { name, period, access, writes }
}

const FIXED: Policy = Policy::Fixed(FIXED_NS);
const DALY: Policy = Policy::Daly;
const TOGETHER: Policy = Policy::Cooperative(1.0);

/// The paper's seven, and ours: without a tier, and with checkpoints in memory, on disks, and in
/// two memories. What follows the level in a name is an order other than ours.
pub const STRATEGIES: [Strategy; 14] = [
    new("oblivious-fixed", FIXED, "none", Writes::Blocking),
    new("oblivious-daly", DALY, "none", Writes::Blocking),
    new("ordered-fixed", FIXED, "sys-fcfs", Writes::Blocking),
    new("ordered-daly", DALY, "sys-fcfs", Writes::Blocking),
    new("ordered-nb-fixed", FIXED, "sys-fcfs", Writes::Waiting),
    new("ordered-nb-daly", DALY, "sys-fcfs", Writes::Waiting),
    new("least-waste", DALY, "least-waste", Writes::Waiting),
    new("waste-rate", TOGETHER, "waste-rate", Writes::Waiting),
    new("memory/none", TOGETHER, "none", Writes::Absorbed(Level::Memory)),
    new("memory/sys-fcfs", TOGETHER, "sys-fcfs", Writes::Absorbed(Level::Memory)),
    new("memory/least-waste", TOGETHER, "least-waste", Writes::Absorbed(Level::Memory)),
    new("memory", TOGETHER, "waste-rate", Writes::Absorbed(Level::Memory)),
    new("disk", TOGETHER, "waste-rate", Writes::Absorbed(Level::Disk)),
    new("two-copies", TOGETHER, "waste-rate", Writes::Absorbed(Level::TwoCopies)),
];

/// The strategy of this name.
pub fn find(name: &str) -> Option<&'static Strategy> {
    STRATEGIES.iter().find(|strategy| strategy.name == name)
}

impl Strategy {
    /// The tier's part of the strategy.
    pub fn level(&self) -> Option<Level> {
        match self.writes {
            Writes::Absorbed(level) => Some(level),
            Writes::Blocking | Writes::Waiting => None,
        }
    }

    /// How long a checkpoint holds up a job of each class, if it waits for no other job, in ns.
    pub fn blocks_ns(&self, platform: &Platform) -> Vec<f64> {
        let of = |class| match self.level() {
            Some(_) => platform.tier_s(class),
            None => platform.pfs_s(class.checkpoint_bytes),
        };
        platform.classes.iter().map(|class| of(class) * 1e9).collect()
    }

    /// The period of each class, if `counts` jobs of each run, in ns.
    ///
    /// Checkpoints in the tier guard against the failures that these survive, and each job takes
    /// them as if it were alone. Checkpoints that continue to the PFS guard against the other
    /// failures, and all jobs share it. The shorter period holds: the PFS gets the newest one each
    /// time.
    pub fn periods_ns(&self, platform: &Platform, counts: &[f64]) -> Vec<f64> {
        let blocks_ns = self.blocks_ns(platform);
        let jobs = |of: &dyn Fn(Failure) -> bool| -> Vec<Job> {
            let with = |((class, job), blocks_ns): ((_, Job), &f64)| Job {
                blocks_ns: *blocks_ns,
                fails_ns: platform.fails_s(class, of) * 1e9,
                ..job
            };
            platform.classes.iter().zip(platform.jobs(counts)).zip(&blocks_ns).map(with).collect()
        };
        let period = match self.period {
            Policy::Cooperative(share) => Policy::Cooperative(share - other_share(platform, counts)),
            other => other,
        };
        let Some(level) = self.level() else { return periods_ns(period, &jobs(&|_| true)) };
        let to_tier = periods_ns(Policy::Daly, &jobs(&|failure| level.survives(failure)));
        let to_pfs = periods_ns(period, &jobs(&|failure| !level.survives(failure)));
        to_tier.into_iter().zip(to_pfs).map(|(a, b)| a.min(b)).collect()
    }
}

/// Share of the PFS's time that input and output take.
pub fn other_share(platform: &Platform, counts: &[f64]) -> f64 {
    let each = platform.classes.iter().zip(counts);
    each.map(|(class, count)| count * platform.pfs_s(class.input_bytes + class.output_bytes) / class.work_s)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waste::FAILURES;

    #[test]
    fn levels_are_those_of_the_documents() {
        let survives = |level: Level| FAILURES.map(|failure| level.survives(failure));
        assert_eq!(survives(Level::Memory), [true, false, false, false]);
        assert_eq!(survives(Level::TwoCopies), [true, true, true, false]);
        assert_eq!(survives(Level::Disk), [true, true, false, true]);
    }
}
