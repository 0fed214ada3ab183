//! `striped`: as many nodes as the job wants, round robin; the fewest with room if it requests no
//! number.

use super::capacity::Capacity;
use super::{Board, Choice, Demand, Policy};

/// The job decides how many.
pub struct Striped;

impl Policy for Striped {
    fn choose(&mut self, board: &Board, demand: &Demand) -> Option<Choice> {
        let Some(count) = demand.nodes else { return Capacity { times: 1 }.choose(board, demand) };
        let count = board.at_hand(count as usize);
        let per_node = demand.bytes.div_ceil(count.max(1) as u64);
        board.round_robin(count, per_node).map(|nodes| (nodes, per_node))
    }
}
