//! Whether this node may fetch what no reader waits for.
//!
//! The brake is on while an I/O phase of an HPC job, here or on another node, is behind. It stops
//! the pages of prefetch requests, loads, read-ahead and refills, from the next chunk on; pages
//! that a reader waits for continue. When the coordinator pauses all prefetch requests of this
//! node, their pages stop in the same way.

use super::task_queue::Held;
use crate::machine::Nanos;

/// How long after a phase another is expected at any time, in ns: until then chunks are small, so
/// that it waits only for a short one.
const PHASES_REMEMBERED_NS: u64 = 600_000_000_000;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Brake {
    pub on: bool,
    /// Whether a phase is under way on any node.
    phases: bool,
    /// When a phase was last under way.
    last_phase: Option<Nanos>,
    /// Whether the coordinator is silent: then it does not know the state of the phases.
    pub is_coordinator_silent: bool,
    /// Whether all prefetch requests of the coordinator are paused.
    pub requests_pause: bool,
}

impl Brake {
    pub fn set_phases(&mut self, now: Nanos, under_way: bool) {
        if self.phases || under_way {
            self.last_phase = Some(now);
        }
        self.phases = under_way;
    }

    /// Returns whether a phase is under way.
    pub fn has_phases(&self) -> bool {
        self.phases
    }

    /// Returns what is not fetched now.
    pub fn held(&self) -> Held {
        match (self.on, self.requests_pause) {
            (true, _) => Held::AllButDemand,
            (false, true) => Held::Plans,
            (false, false) => Held::Nothing,
        }
    }

    /// Returns whether the coordinator's prefetch requests stop, including because it cannot follow
    /// the phases.
    pub fn holds_requests(&self) -> bool {
        self.on || self.phases && self.is_coordinator_silent
    }

    /// Returns whether what no reader waits for is fetched in small chunks, since it may have to
    /// stop: a phase is under way, or may begin.
    pub fn is_gentle(&self, now: Nanos) -> bool {
        self.phases || self.gentle_until().is_some_and(|until| now < until)
    }

    /// Returns when [`Self::is_gentle`] ends, if no phase is under way.
    pub fn gentle_until(&self) -> Option<Nanos> {
        self.last_phase.filter(|_| !self.phases).map(|at| at + PHASES_REMEMBERED_NS)
    }

    /// Returns whether the state is as if there had never been a phase.
    pub fn is_off(&self, now: Nanos) -> bool {
        !self.is_gentle(now) && !self.on && !self.is_coordinator_silent && !self.requests_pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_coordinator_stops_its_requests_only_while_there_are_phases() {
        let mut brake = Brake { is_coordinator_silent: true, ..Brake::default() };
        assert!(!brake.holds_requests() && brake.held() == Held::Nothing);
        brake.set_phases(Nanos(5), true);
        assert!(brake.holds_requests() && brake.held() == Held::Nothing);
        brake.is_coordinator_silent = false;
        assert!(!brake.holds_requests() && brake.is_gentle(Nanos(6)));
        brake.on = true;
        assert!(brake.holds_requests() && brake.held() == Held::AllButDemand);
    }

    #[test]
    fn paused_requests_stop_alone_and_chunks_stay_small_after_a_phase() {
        let mut brake = Brake::default();
        brake.set_phases(Nanos(1), false);
        assert!(!brake.is_gentle(Nanos(2)), "there was no phase yet");
        brake.requests_pause = true;
        assert_eq!(brake.held(), Held::Plans);
        brake.on = true;
        assert_eq!(brake.held(), Held::AllButDemand);
        brake.set_phases(Nanos(3), true);
        brake.set_phases(Nanos(9), false);
        let until = Nanos(9) + PHASES_REMEMBERED_NS;
        assert_eq!(brake.gentle_until(), Some(until));
        assert!(brake.is_gentle(until - 1) && !brake.is_gentle(until));
    }
}
