//! Turns of the I/O phases of HPC jobs that agree to share the file system: decides when a program
//! that asks may begin its phase.
//!
//! The division of the cluster decides ([`forebay_policy::bandwidth`], which the simulator runs as
//! well): a phase to which it gives no bandwidth has to wait. A phase takes part from the moment a
//! program of its job asks, or begins without asking, until the last program has ended it. No
//! program waits forever: its agent lets it begin after a time limit.

use crate::hpc::Owner;
use forebay_policy::bandwidth::{Divider, Event, POLICIES, Shares};
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::stage::Division;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// See the module.
pub struct Turns {
    divider: Divider,
    jobs: BTreeMap<u32, Job>,
    /// Jobs whose phases get a share of the file system.
    served: BTreeSet<u32>,
}

/// A job that shares.
#[derive(Debug, Default)]
struct Job {
    weight: f64,
    /// From phase to phase, as declared, in ns; 0: unknown.
    declared_period_ns: u64,
    /// When its first phase took part, and how many have.
    first: Nanos,
    phases: u64,
    /// Programs that have asked and have not begun; `true`: they may.
    asking: BTreeMap<Owner, bool>,
    in_phase: bool,
    takes_part: bool,
}

impl Job {
    /// Time from phase to phase: as declared, or else the mean so far; 0 if unknown. Phases of
    /// which nothing is known make up a set of their own.
    fn period_ns(&self, now: Nanos) -> u64 {
        match (self.declared_period_ns, self.phases) {
            (0, 0) => 0,
            (0, phases) => now.saturating_since(self.first) / phases,
            (declared, _) => declared,
        }
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

impl Turns {
    /// Nobody takes part yet.
    pub fn new(division: Division) -> Self {
        let policies = POLICIES.iter().map(|(_, make)| make());
        let policy = policies.into_iter().find(|policy| policy.division() == division);
        let policy = policy.expect("each division is that of a policy");
        Turns { divider: Divider::new(policy), jobs: BTreeMap::new(), served: BTreeSet::new() }
    }

    /// Job `id` shares; it has so many processes, and a phase each `period_ns` (0: unknown).
    pub fn joins(&mut self, id: u32, processes: u32, period_ns: u64) {
        let weight = f64::from(processes.max(1));
        self.jobs.entry(id).or_insert(Job { weight, declared_period_ns: period_ns, ..Job::default() });
    }

    /// A program of job `id` asks. Returns who may begin now.
    pub fn asks(&mut self, now: Nanos, id: u32, owner: &Owner) -> Vec<Owner> {
        let Some(job) = self.jobs.get_mut(&id) else { return vec![owner.clone()] };
        job.asking.insert(owner.clone(), false);
        self.settle(now, id)
    }

    /// A program of job `id` has begun or ended a phase, or has gone, and the job is in a phase or
    /// not. Returns who may begin now.
    pub fn changed(&mut self, now: Nanos, id: u32, owner: &Owner, in_phase: bool) -> Vec<Owner> {
        let Some(job) = self.jobs.get_mut(&id) else { return Vec::new() };
        job.asking.remove(owner);
        job.in_phase = in_phase;
        self.settle(now, id)
    }

    /// Job `id` is gone. Returns who may begin now.
    pub fn leaves(&mut self, now: Nanos, id: u32) -> Vec<Owner> {
        let takes_part = self.jobs.remove(&id).is_some_and(|job| job.takes_part);
        if takes_part { self.tell(now, Event::PhaseEnds { hpc: id }) } else { Vec::new() }
    }

    fn settle(&mut self, now: Nanos, id: u32) -> Vec<Owner> {
        let Some(job) = self.jobs.get_mut(&id) else { return Vec::new() };
        let takes_part = job.in_phase || !job.asking.is_empty();
        if takes_part == job.takes_part {
            return self.let_in();
        }
        job.takes_part = takes_part;
        if !takes_part {
            return self.tell(now, Event::PhaseEnds { hpc: id });
        }
        let period_ns = job.period_ns(now);
        if job.phases == 0 {
            job.first = now;
        }
        job.phases += 1;
        let weight = job.weight;
        self.tell(now, Event::PhaseBegins { hpc: id, weight, period_ns })
    }

    fn tell(&mut self, now: Nanos, event: Event) -> Vec<Owner> {
        let mut out = Vec::new();
        self.divider.handle(now, event, &mut out);
        if let Some(Shares { shares }) = out.pop() {
            self.served = shares.into_iter().filter(|(_, share)| *share > 0.0).map(|(id, _)| id).collect();
        }
        self.let_in()
    }

    fn let_in(&mut self) -> Vec<Owner> {
        let mut let_in = Vec::new();
        for (_, job) in self.jobs.iter_mut().filter(|(id, _)| self.served.contains(id)) {
            for (owner, may) in job.asking.iter_mut().filter(|(_, may)| !**may) {
                *may = true;
                let_in.push(owner.clone());
            }
        }
        let_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn owner(node: &str) -> Owner {
        (node.into(), 1)
    }

    /// Jobs 1 and 2 with a phase every 10 s, and job 3 with one every 1000 s.
    fn turns(division: Division) -> Turns {
        let mut turns = Turns::new(division);
        [(1, 10), (2, 12), (3, 1000)].iter().for_each(|(id, period_s)| turns.joins(*id, 1, period_s * S));
        turns
    }

    #[test]
    fn jobs_of_like_period_take_turns_and_others_do_not_wait() {
        let mut turns = turns(Division::Set10);
        let now = Nanos(S);
        assert_eq!(turns.asks(now, 1, &owner("a")), [owner("a")]);
        assert!(turns.asks(now, 2, &owner("b")).is_empty());
        assert_eq!(turns.asks(now, 3, &owner("c")), [owner("c")], "another set");
        assert_eq!(turns.asks(now, 1, &owner("d")), [owner("d")], "of the job whose turn it is");
        assert!(turns.changed(now, 1, &owner("a"), true).is_empty(), "begins");
        assert!(turns.changed(now, 1, &owner("d"), true).is_empty());
        assert_eq!(turns.changed(now, 1, &owner("a"), false), [owner("b")], "the last has ended");
        assert_eq!(turns.asks(now, 9, &owner("e")), [owner("e")], "does not share");
    }

    #[test]
    fn fair_shares_make_nobody_wait() {
        let mut turns = turns(Division::FairShare);
        assert_eq!(turns.asks(Nanos(S), 1, &owner("a")), [owner("a")]);
        assert_eq!(turns.asks(Nanos(S), 2, &owner("b")), [owner("b")]);
    }

    #[test]
    fn one_that_goes_or_gives_up_makes_room_and_one_that_begins_anyway_holds_the_next() {
        let mut turns = turns(Division::Set10);
        turns.joins(4, 1, 9 * S);
        let now = Nanos(S);
        turns.asks(now, 1, &owner("a"));
        assert!(turns.asks(now, 2, &owner("b")).is_empty() && turns.asks(now, 4, &owner("d")).is_empty());
        assert!(turns.changed(now, 2, &owner("b"), false).is_empty(), "it gives up");
        assert_eq!(turns.leaves(now, 1), [owner("d")]);
        // A phase that was observed, or one that has waited for too long.
        assert!(turns.changed(now, 2, &owner("b"), true).is_empty());
        turns.joins(1, 1, 10 * S);
        assert!(turns.asks(now, 1, &owner("a")).is_empty());
        assert!(turns.leaves(now, 4).is_empty(), "the one that began is first");
        assert_eq!(turns.changed(now, 2, &owner("b"), false), [owner("a")]);
    }

    #[test]
    fn the_period_is_what_phases_show() {
        let mut turns = Turns::new(Division::Set10);
        turns.joins(1, 1, 0);
        turns.joins(2, 1, 100 * S);
        for phase in 0..4 {
            let now = Nanos((1 + phase * 100) * S);
            assert_eq!(turns.asks(now, 1, &owner("a")), [owner("a")]);
            turns.changed(now, 1, &owner("a"), true);
            let waits = turns.asks(now, 2, &owner("b")).is_empty();
            assert_eq!(waits, phase > 0, "phase {phase}: nothing was known of the first");
            turns.changed(now, 2, &owner("b"), false);
            turns.changed(now, 1, &owner("a"), false);
        }
    }
}
