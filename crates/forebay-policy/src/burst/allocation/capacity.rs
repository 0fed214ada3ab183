//! `1x` (`interference`) and `2x`: the fewest nodes with room for one or two outputs of the job,
//! round robin.
//!
//! Few nodes are shared with few other jobs, which keeps interference low, and bandwidth with it.

use super::{Board, Choice, Demand, Policy};

/// Room for `times` outputs.
pub struct Capacity {
    pub times: u64,
}

impl Policy for Capacity {
    fn choose(&mut self, board: &Board, demand: &Demand) -> Option<Choice> {
        let bytes = demand.bytes.checked_mul(self.times)?;
        (1..=board.nodes.len()).find_map(|count| {
            let per_node = bytes.div_ceil(count as u64);
            board.round_robin(count, per_node).map(|nodes| (nodes, per_node))
        })
    }
}
