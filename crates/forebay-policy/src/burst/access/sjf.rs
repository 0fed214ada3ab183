//! `sys-sjf`, `sa-sjf`: the shortest step first, with ageing.
//!
//! With ageing a, a step of p seconds that has waited w counts as p - a w. What has to be compared
//! is then p + a * arrival for all of them, which does not change as time goes by: the queue need
//! not be sorted again. A step can only be overtaken in the order by steps that come less than p /
//! a after it, so with a > 0 none is overtaken forever.

use super::{Policy, Scope};
use crate::machine::Nanos;

/// Orders steps by time alone, less the ageing of the wait.
pub struct Sjf {
    pub scope: Scope,
    pub ageing: f64,
}

impl Policy for Sjf {
    fn scope(&self) -> Scope {
        self.scope
    }

    fn key(&self, arrived: Nanos, alone_ns: u64) -> u64 {
        alone_ns.saturating_add((self.ageing * arrived.0 as f64) as u64)
    }
}
