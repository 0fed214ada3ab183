//! `least-waste`: one step at a time, and next the one after which the others have lost least.
//!
//! While the step i writes for v, each other step j that waits costs its job
//!
//! - q (d + v), if the job waits with it: q nodes have been idle for d already;
//! - q v (r + d + v / 2) / m, if the job computes meanwhile: it fails every m, takes r to recover,
//!   and then loses what it has computed for d since its last checkpoint.
//!
//! The step with the least sum goes next (Herault et al., IPDPSW 2018, *Least-Waste*). The sums
//! differ by the step's own terms only, so that a decision costs one pass over the queue.
//!
//! A step without a [`Stake`] counts as that of a job of one node that waits with it.

use super::{Pending, Policy, Scope, Stake};
use crate::machine::Nanos;

/// By what others lose.
pub struct LeastWaste;

/// Coefficients of 1, v and v^2 in what a step costs its job.
fn costs(now: Nanos, step: &Pending) -> [f64; 3] {
    let alone = Stake { nodes: 1, since: step.arrived, is_blocked: true, recovery_ns: 0, fails_ns: u64::MAX };
    let stake = step.stake.unwrap_or(alone);
    let (nodes, since_ns) = (f64::from(stake.nodes), now.saturating_since(stake.since) as f64);
    if stake.is_blocked {
        return [nodes * since_ns, nodes, 0.0];
    }
    let rate = nodes / stake.fails_ns as f64;
    [0.0, rate * (stake.recovery_ns as f64 + since_ns), 0.5 * rate]
}

impl Policy for LeastWaste {
    fn scope(&self) -> Scope {
        Scope::One
    }

    fn key(&self, arrived: Nanos, _alone_ns: u64) -> u64 {
        arrived.0
    }

    fn first(&self, now: Nanos, pending: &[Pending]) -> Option<usize> {
        let each = || pending.iter().map(|step| (step.alone_ns as f64, costs(now, step)));
        let all = each().fold([0.0; 3], |sum, (_, c)| [sum[0] + c[0], sum[1] + c[1], sum[2] + c[2]]);
        let others = |(v, c): (f64, [f64; 3])| {
            all[0] - c[0] + v * (all[1] - c[1]) + v * v * (all[2] - c[2])
        };
        let best = each().map(others).enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        best.map(|(i, _)| i)
    }
}
