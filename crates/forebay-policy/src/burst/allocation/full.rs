//! `full` (`bandwidth`): every job on all nodes that are up. The most bandwidth alone, and every
//! job interferes with every other.

use super::{Board, Choice, Demand, Policy};

/// All nodes.
pub struct Full;

impl Policy for Full {
    fn choose(&mut self, board: &Board, demand: &Demand) -> Option<Choice> {
        let all = board.up();
        let per_node = demand.bytes.div_ceil(all.max(1) as u64);
        board.round_robin(all, per_node).map(|nodes| (nodes, per_node))
    }
}
