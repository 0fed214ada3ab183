//! EASY backfilling: the first job that does not fit gets a reservation, and others may begin
//! before it if they do not delay it (Mu'alem and Feitelson, *Utilization, Predictability,
//! Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling*, TPDS 2001).

use alloc::vec::Vec;

use super::fcfs::begin;
use super::profile::{Placement, Profile};
use super::{Decision, Policy, Waiting};
use crate::machine::Nanos;

/// Backfilling with one reservation.
pub struct Easy {
    /// Whether burst buffers are reserved too. Without that, nodes are reserved from the moment at
    /// which they are free, and may stand idle until there is room.
    pub reserves_room: bool,
    /// Whether, among the jobs that pass the first one, the shortest estimate goes first.
    pub shortest_first: bool,
}

impl Policy for Easy {
    fn decide(&mut self, now: Nanos, waiting: &[Waiting], mut profile: Profile) -> Decision {
        let mut decision = Decision::default();
        let order: Vec<usize> = (0..waiting.len()).collect();
        let head = begin(now, waiting, &order, &mut profile, false, &mut decision);
        let Some(first) = waiting.get(head) else { return decision };
        let demand = &first.demand;
        let start = if self.reserves_room {
            let mut placement = Placement::new();
            let start = profile.earliest(now, demand, &mut placement);
            profile.take(start, demand, &placement);
            start
        } else {
            let runs = profile.earliest_nodes(now + demand.stage_in_ns, demand.nodes, demand.run_ns);
            profile.take_nodes(runs, runs + demand.run_ns, demand.nodes);
            runs - demand.stage_in_ns
        };
        decision.promise = Some((first.job, start));
        let mut rest = order[head + 1..].to_vec();
        if self.shortest_first {
            rest.sort_by_key(|&i| waiting[i].demand.run_ns);
        }
        begin(now, waiting, &rest, &mut profile, true, &mut decision);
        decision
    }
}
