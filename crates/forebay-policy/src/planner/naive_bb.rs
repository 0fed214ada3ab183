//! `naive-bb`: burst buffers for intermediate data only, as in the systems that Eley is compared
//! with. Every task reads its input from the PFS when it needs it; nothing is prefetched and phases
//! are ignored.

use alloc::vec::Vec;

use super::plan::{ActionKind, Estimate, Plan};
use super::{Board, JobId, Policy, PrefetchDistance};

/// Its name.
pub const NAME: &str = "naive-bb";

/// No prefetching.
pub struct NaiveBb;

impl Policy for NaiveBb {
    fn prefetch_distance(&self) -> PrefetchDistance {
        PrefetchDistance::OnDemand
    }

    fn plan(&mut self, _board: &Board, _job: JobId, _wave: u32) -> Plan {
        Plan {
            kind: ActionKind::Direct,
            skips: 0,
            steps: Vec::new(),
            estimate: Estimate { fetched_in_s: None, cost_s: None, margin_s: None },
            candidates: 1,
            reason: "tasks read their input from the file system".into(),
        }
    }
}
