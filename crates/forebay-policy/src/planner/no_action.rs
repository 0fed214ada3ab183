//! `no-action` (Eley-NoAction): the next wave is prefetched immediately, with the default nodes and
//! threads, whatever the HPC jobs do.

use super::eley::Search;
use super::plan::{ActionKind, Plan};
use super::{Board, JobId, Policy, PrefetchDistance};

/// Its name.
pub const NAME: &str = "no-action";

/// Prefetching without regard.
pub struct NoAction;

impl Policy for NoAction {
    fn prefetch_distance(&self) -> PrefetchDistance {
        PrefetchDistance::Waves(1)
    }

    fn opportunistic(&self) -> bool {
        true
    }

    fn plan(&mut self, board: &Board, job: JobId, wave: u32) -> Plan {
        let mut search = Search::new(board, job, wave);
        let candidate = search.at_once(ActionKind::NoAction, board.config.default_setting);
        search.plan(candidate, "prefetch always, at once")
    }
}
