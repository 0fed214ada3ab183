//! How often a job writes a checkpoint, where all jobs share one PFS.
//!
//! A checkpoint blocks its job for `blocks_ns` and occupies the PFS for `pfs_ns`. They are the same
//! if the job writes to the PFS itself. A tier that takes the checkpoint blocks the job for less.
//!
//! | policy | period of a job |
//! | --- | --- |
//! | `fixed` | the same for all jobs |
//! | `daly` | sqrt(2 m a), failures every m, blocked for a: best for a job alone |
//! | `cooperative` | sqrt(2 m (a + l c / q)), q nodes, c on the PFS: best for all together |
//!
//! `cooperative` minimises the sum over jobs of q (a / P + P / 2 m) while the sum of c / P is at
//! most what the PFS has for checkpoints. The multiplier l is 0 if `daly` leaves the PFS
//! that time, and the least that does otherwise. With a = c this is equation (8) of Herault et
//! al., *Optimal Cooperative Checkpointing for Shared High-Performance Computing Platforms*,
//! IPDPSW 2018.

use alloc::vec::Vec;

/// A job that writes checkpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// Its nodes, or those of all such jobs divided by their number.
    pub nodes: f64,
    /// How many such jobs run.
    pub count: f64,
    /// Mean time between failures after which it needs this checkpoint, in ns; infinite for never.
    pub fails_ns: f64,
    /// How long a checkpoint blocks its job, in ns.
    pub blocks_ns: f64,
    /// How long a checkpoint occupies the PFS, with nothing beside it, in ns.
    pub pfs_ns: f64,
}

/// A rule for periods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// The same for all jobs, in ns.
    Fixed(u64),
    /// For each job alone.
    Daly,
    /// For all jobs together; checkpoints may have this share of the PFS's time.
    Cooperative(f64),
}

/// Steps of the search for the multiplier: more than the number of bits of a double.
const STEPS: u32 = 64;

/// A square root that is the same on every machine; the integer part only.
fn root(square: f64) -> f64 {
    // A period beyond the range of 128 bits is not a period.
    (square as u128).isqrt() as f64
}

impl Job {
    fn period_ns(&self, multiplier: f64) -> f64 {
        root(2.0 * self.fails_ns * (self.blocks_ns + multiplier * self.pfs_ns / self.nodes))
    }
}

/// The share of the PFS's time that checkpoints take.
pub fn demand(jobs: &[Job], periods_ns: &[f64]) -> f64 {
    jobs.iter().zip(periods_ns).map(|(job, period)| job.count * job.pfs_ns / period.max(1.0)).sum()
}

/// The period of each job, from the start of one checkpoint to that of the next, in ns.
pub fn periods_ns(policy: Policy, jobs: &[Job]) -> Vec<f64> {
    let with = |multiplier: f64| -> Vec<f64> { jobs.iter().map(|job| job.period_ns(multiplier)).collect() };
    let share = match policy {
        Policy::Fixed(period_ns) => return jobs.iter().map(|_| period_ns as f64).collect(),
        Policy::Daly => return with(0.0),
        Policy::Cooperative(share) => share,
    };
    let fits = |multiplier: f64| demand(jobs, &with(multiplier)) <= share;
    if fits(0.0) || share <= 0.0 {
        return with(0.0);
    }
    let (mut low, mut high) = (0.0, 1.0);
    while !fits(high) {
        (low, high) = (high, high * 4.0);
    }
    for _ in 0..STEPS {
        let middle = 0.5 * (low + high);
        if fits(middle) { high = middle } else { low = middle }
    }
    with(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: f64 = 1e9;

    fn job(nodes: f64, count: f64, node_fails_s: f64, blocks_s: f64, pfs_s: f64) -> Job {
        let fails_ns = node_fails_s * S / nodes;
        Job { nodes, count, fails_ns, blocks_ns: blocks_s * S, pfs_ns: pfs_s * S }
    }

    #[test]
    fn a_job_alone_has_the_period_of_daly() {
        let jobs = [job(100.0, 1.0, 3.6e6, 72.0, 72.0)];
        let period = periods_ns(Policy::Cooperative(1.0), &jobs)[0];
        assert_eq!(period, periods_ns(Policy::Daly, &jobs)[0]);
        assert!((period / S - (2.0f64 * 36_000.0 * 72.0).sqrt()).abs() < 1e-6);
    }

    #[test]
    fn together_they_take_the_share_that_there_is_and_no_more() {
        let jobs = [job(100.0, 8.0, 1e6, 300.0, 300.0), job(10.0, 20.0, 1e6, 100.0, 100.0)];
        assert!(demand(&jobs, &periods_ns(Policy::Daly, &jobs)) > 1.0);
        for share in [1.0, 0.7] {
            let periods = periods_ns(Policy::Cooperative(share), &jobs);
            assert!((demand(&jobs, &periods) - share).abs() < 1e-6);
        }
    }

    /// Compares with all pairs of periods on a fine grid, for jobs that are blocked for less than
    /// the PFS is occupied.
    #[test]
    fn no_other_periods_waste_less() {
        let jobs = [job(100.0, 8.0, 1e6, 30.0, 300.0), job(10.0, 20.0, 1e6, 100.0, 100.0)];
        let waste = |periods: &[f64]| -> f64 {
            let of = |(j, p): (&Job, &f64)| j.count * j.nodes * (j.blocks_ns / p + p / 2.0 / j.fails_ns);
            jobs.iter().zip(periods).map(of).sum()
        };
        let ours = periods_ns(Policy::Cooperative(1.0), &jobs);
        let grid: Vec<f64> = (0..400).map(|i| 100.0 * S * 1.02f64.powi(i)).collect();
        let pairs = grid.iter().flat_map(|a| grid.iter().map(|b| [*a, *b]));
        let best = pairs.filter(|p| demand(&jobs, p) <= 1.0).map(|p| waste(&p)).fold(f64::MAX, f64::min);
        assert!(waste(&ours) <= best * (1.0 + 1e-9), "{} {best}", waste(&ours));
        assert!(waste(&ours) > best * 0.99);
    }
}
