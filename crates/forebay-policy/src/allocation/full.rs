//! `full` (`bandwidth`): every job on all nodes. The most bandwidth alone, and everybody in everybody's way.

use super::{Board, Choice, Demand, Policy};

/// All nodes.
pub struct Full;

impl Policy for Full {
    fn choose(&mut self, board: &Board, demand: &Demand) -> Option<Choice> {
        let per_node = demand.bytes.div_ceil(board.nodes.len() as u64);
        board.round_robin(board.nodes.len(), per_node).map(|nodes| (nodes, per_node))
    }
}
