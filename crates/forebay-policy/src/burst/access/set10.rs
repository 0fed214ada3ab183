//! `set-10`: of the jobs whose periods have the same order of magnitude, one writes at a time, in
//! order of arrival (IO-Sets; see [`crate::bandwidth`]).
//!
//! Steps of such a set exclude each other from a place of the set's own, not from their nodes:
//! steps of other sets write beside them wherever their data goes.

use super::{NodeSet, Policy, Scope};
use crate::bandwidth::set_of;

/// Admits one step of each set.
pub struct Set10 {
    /// Numbers that stand for sets.
    pub nodes: u32,
}

impl Policy for Set10 {
    fn scope(&self) -> Scope {
        Scope::Disjoint
    }

    /// Jobs of unknown period are a set of their own.
    fn claims(&self, _nodes: NodeSet, period_ns: u64) -> NodeSet {
        let set = if period_ns == 0 { 0 } else { set_of(period_ns).rem_euclid(16) as u32 + 1 };
        NodeSet::of(self.nodes, &[set % self.nodes])
    }
}
