//! The least waste of checkpoints that keep their jobs until the PFS has them.
//!
//! [`printed`] is the paper's: to first order in P / m, with the periods of `cooperative`. Where a
//! checkpoint takes a large part of the time between failures, the first order is too high:
//! [`exact`] uses the expected time of a period with exponential failures,
//! E = m e^(r / m) (e^(P / m) - 1), of which P - c is work. Both limit the checkpoints to the time
//! that the PFS has, and leave out all other transfers and all waits.

use forebay_policy::burst::period::{Job, Policy, periods_ns};

/// Equation (7) of Herault et al., 2018, with a recovery as long as a checkpoint.
pub fn printed(jobs: &[Job]) -> f64 {
    let periods = periods_ns(Policy::Cooperative(1.0), jobs);
    mean(jobs, &periods, |job, p| job.blocks_ns / p + (0.5 * p + job.blocks_ns) / job.fails_ns)
}

/// The same for exponential failures, to all orders.
pub fn exact(jobs: &[Job]) -> f64 {
    let with = |price: f64| -> Vec<f64> { jobs.iter().map(|job| best_ns(job, price)).collect() };
    let demand = |price: f64| -> f64 {
        jobs.iter().zip(with(price)).map(|(job, p)| job.count * job.pfs_ns / expected_ns(job, p)).sum()
    };
    let (mut low, mut high) = (0.0, 1.0);
    if demand(0.0) > 1.0 {
        while demand(high) > 1.0 {
            (low, high) = (high, high * 4.0);
        }
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if demand(middle) > 1.0 { low = middle } else { high = middle }
        }
        low = high;
    }
    mean(jobs, &with(low), |job, p| 1.0 - (p - job.blocks_ns) / expected_ns(job, p))
}

/// The mean over the nodes of all jobs.
fn mean(jobs: &[Job], periods: &[f64], of: impl Fn(&Job, f64) -> f64) -> f64 {
    let nodes: f64 = jobs.iter().map(|job| job.count * job.nodes).sum();
    jobs.iter().zip(periods).map(|(job, p)| job.count * job.nodes / nodes * of(job, *p)).sum()
}

/// The time of a period, with its failures and recoveries.
fn expected_ns(job: &Job, period_ns: f64) -> f64 {
    let m = job.fails_ns;
    m * (job.blocks_ns / m).exp() * (period_ns / m).exp_m1()
}

/// The period with the most work in its time, where a checkpoint additionally costs `price` seconds
/// of each node: the only maximum between the checkpoint itself and 30 failures.
fn best_ns(job: &Job, price: f64) -> f64 {
    let costs_ns = job.blocks_ns + price * job.pfs_ns / job.nodes;
    let gain = |p: f64| (p - costs_ns) / expected_ns(job, p);
    let (mut low, mut high) = (job.blocks_ns, job.blocks_ns.max(30.0 * job.fails_ns) + costs_ns);
    for _ in 0..100 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if gain(a) < gain(b) { low = a } else { high = b }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(nodes: f64, count: f64, fails_ns: f64, takes_ns: f64) -> Job {
        Job { nodes, count, fails_ns, blocks_ns: takes_ns, pfs_ns: takes_ns }
    }

    #[test]
    fn both_agree_where_failures_are_rare() {
        let jobs = [job(10.0, 3.0, 1e15, 1e10), job(20.0, 2.0, 5e14, 2e10)];
        let (printed, exact) = (printed(&jobs), exact(&jobs));
        assert!((printed / exact - 1.0).abs() < 0.01 && exact < printed, "{printed} {exact}");
    }

    /// Against all pairs of periods on a grid, where the PFS has too little time.
    #[test]
    fn no_pair_of_periods_wastes_less() {
        let jobs = [job(100.0, 8.0, 1e13, 3e11), job(10.0, 20.0, 1e14, 2e11)];
        let waste =
            |periods: &[f64]| mean(&jobs, periods, |job, p| 1.0 - (p - job.blocks_ns) / expected_ns(job, p));
        let busy = |periods: &[f64]| -> f64 {
            jobs.iter().zip(periods).map(|(j, p)| j.count * j.pfs_ns / expected_ns(j, *p)).sum()
        };
        let grid: Vec<f64> = (0..300).map(|i| 3.1e11 * 1.02f64.powi(i)).collect();
        let pairs = grid.iter().flat_map(|a| grid.iter().map(|b| [*a, *b]));
        let best = pairs.filter(|p| busy(p) <= 1.0).map(|p| waste(&p)).fold(f64::MAX, f64::min);
        let ours = exact(&jobs);
        assert!(ours <= best + 1e-9 && ours > 0.99 * best, "{ours} {best}");
    }
}
