//! First come, first served, with or without letting jobs pass those that do not fit.

use super::profile::{Placement, Profile};
use super::{Decision, Policy, Waiting};
use crate::machine::Nanos;

/// Jobs begin in the order in which they came.
pub struct Fcfs {
    /// Whether jobs that fit pass those that do not.
    pub passes: bool,
}

impl Policy for Fcfs {
    fn decide(&mut self, now: Nanos, waiting: &[Waiting], mut profile: Profile) -> Decision {
        let mut decision = Decision::default();
        let order: alloc::vec::Vec<usize> = (0..waiting.len()).collect();
        begin(now, waiting, &order, &mut profile, self.passes, &mut decision);
        decision
    }
}

/// Begins jobs in `order`, and returns how many it has examined: all of them, or those before the
/// first that does not fit.
pub fn begin(
    now: Nanos,
    waiting: &[Waiting],
    order: &[usize],
    profile: &mut Profile,
    passes: bool,
    decision: &mut Decision,
) -> usize {
    let mut placement = Placement::new();
    for (looked_at, &i) in order.iter().enumerate() {
        let demand = &waiting[i].demand;
        let start = profile.earliest(now, demand, &mut placement);
        if start == now {
            profile.take(now, demand, &placement);
            decision.begin.push((i, placement.clone()));
            continue;
        }
        decision.look_again(start);
        if !passes {
            return looked_at;
        }
    }
    order.len()
}
