//! `least-waste` and `waste-rate`: one step at a time, by what jobs lose while steps wait.
//!
//! While the PFS is busy for v, a step that waits costs its job
//!
//! - q (d + v), if the job is blocked by it: q nodes have been idle for d already;
//! - q v (r + d + v / 2) / m, if the job computes meanwhile: it fails every m, takes r to recover,
//!   and then loses what it has computed for d since its last checkpoint.
//!
//! | policy | next is the step i, which writes for v, with |
//! | --- | --- |
//! | `least-waste` | the least sum over all other steps of what they cost meanwhile |
//! | `waste-rate` | the greatest own cost meanwhile (without q d), for each second of v |
//!
//! The first is *Least-Waste* of Herault et al., IPDPSW 2018. It compares sums over times that
//! differ, so a long step goes only after all short ones. The second is the rule that Smith (1956)
//! shows to be optimal for weights that do not change: exchanging two neighbours gains nothing.
//!
//! A step without a [`Stake`] counts as that of a job of one node that is blocked by it.

use super::{Pending, Policy, Scope, Stake};
use crate::machine::Nanos;

/// Orders steps by what the others lose.
pub struct LeastWaste;

/// Orders steps by what each saves per second.
pub struct WasteRate;

/// Coefficients of 1, v and v^2 in what a step costs its job.
fn costs(now: Nanos, step: &Pending) -> [f64; 3] {
    let alone = Stake { nodes: 1, since: step.arrived, is_blocked: true, recovery_ns: 0, fails_ns: u64::MAX };
    let stake = step.stake.unwrap_or(alone);
    let (nodes, since_ns) = (f64::from(stake.nodes), now.saturating_since(stake.since) as f64);
    if stake.is_blocked {
        return [nodes * since_ns, nodes, 0.0];
    }
    let rate = nodes / stake.fails_ns.max(1) as f64;
    [0.0, rate * (stake.recovery_ns as f64 + since_ns), 0.5 * rate]
}

/// The step with the least value; of equal ones the first.
fn least(values: impl Iterator<Item = f64>) -> Option<usize> {
    values.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
}

impl Policy for LeastWaste {
    fn scope(&self) -> Scope {
        Scope::One
    }

    /// The sums differ by the step's own terms only, so one pass computes them.
    fn first(&self, now: Nanos, pending: &[Pending]) -> Option<usize> {
        let each = || pending.iter().map(|step| (step.alone_ns as f64, costs(now, step)));
        let all = each().fold([0.0; 3], |sum, (_, c)| [sum[0] + c[0], sum[1] + c[1], sum[2] + c[2]]);
        let others = |(v, c): (f64, [f64; 3])| all[0] - c[0] + v * (all[1] - c[1]) + v * v * (all[2] - c[2]);
        least(each().map(others))
    }
}

impl Policy for WasteRate {
    fn scope(&self) -> Scope {
        Scope::One
    }

    fn first(&self, now: Nanos, pending: &[Pending]) -> Option<usize> {
        let rate = |step: &Pending| {
            let (v, [_, linear, square]) = (step.alone_ns.max(1) as f64, costs(now, step));
            -(linear + square * v) / v
        };
        least(pending.iter().map(rate))
    }
}
