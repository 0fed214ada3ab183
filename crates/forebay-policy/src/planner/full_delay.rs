//! `full-delay` (Eley 2017): immediately where that meets every deadline, otherwise when the phase
//! is over.

use super::eley::Search;
use super::plan::{ActionKind, Plan};
use super::{Board, JobId, Policy, PrefetchDistance};

/// *No Action* if it meets every deadline, otherwise *Full Delay*.
pub struct FullDelay;

impl Policy for FullDelay {
    fn prefetch_distance(&self) -> PrefetchDistance {
        PrefetchDistance::Waves(1)
    }

    fn plan(&mut self, board: &Board, job: JobId, wave: u32) -> Plan {
        let mut search = Search::new(board, job, wave);
        let at_once = search.at_once(ActionKind::NoAction, board.config.default_setting);
        if search.allows(&at_once) {
            return search.plan(at_once, "starting at once meets every deadline");
        }
        let delayed = search.full_delay();
        if search.allows(&delayed) {
            return search.plan(delayed, "starting at once would miss a deadline, after the phase does not");
        }
        search.yielding()
    }
}
