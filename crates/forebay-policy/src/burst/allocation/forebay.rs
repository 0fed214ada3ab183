//! `forebay`, `forebay-placed`: the need for bandwidth weighed against the overlap with running
//! jobs.
//!
//! **Where.** Nodes are taken in ascending order of what is booked on them; among equals, those
//! that hold the same jobs stay together. So the load is even, and a step finds few others in its
//! way: two steps on eight common nodes wait for each other once, eight steps on a node each would
//! be eight times to wait.
//!
//! **How many.** A step of L bytes on k nodes of rate b takes t(k) = L / (k b), no less than its
//! clients need. With D the most that is booked on those nodes and j the number of jobs there, it
//! ends about D / b + t(k) after it is asked for, if it is served last, or holds up j others by
//! t(k) each, if it is served first; shortest-first does whichever is less. The policy takes the k
//! that makes
//!
//! ```text
//! t(k) + min(D(k) / b, j(k) t(k))
//! ```
//!
//! least; of equals the fewest nodes.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Board, Choice, Demand, JobId, Policy};

/// Which numbers of nodes come into question.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// What the job asks for, if it says.
    AsAsked,
    /// Any.
    Free,
}

/// Least booked, fewest in the way.
pub struct Forebay {
    pub counts: Counts,
}

/// All nodes, best first.
fn ranked(board: &Board) -> Vec<u32> {
    let mut nodes: Vec<u32> = (0..board.nodes.len() as u32).collect();
    nodes.sort_by(|&a, &b| {
        let (x, y) = (&board.nodes[a as usize], &board.nodes[b as usize]);
        (x.booked_bytes, x.jobs.len(), &x.jobs, a).cmp(&(y.booked_bytes, y.jobs.len(), &y.jobs, b))
    });
    nodes
}

/// The expected seconds of a step on `nodes`, in ranked order, with what it costs the `jobs` there
/// or waits for them.
fn cost_s(board: &Board, demand: &Demand, nodes: &[u32], jobs: usize) -> f64 {
    let rate = (nodes.len() as f64 * board.rate_bytes_per_s).min(demand.client_bytes_per_s);
    let alone_s = demand.bytes as f64 / rate;
    let booked = nodes.last().map_or(0, |&i| board.nodes[i as usize].booked_bytes);
    alone_s + (booked as f64 / board.rate_bytes_per_s).min(jobs as f64 * alone_s)
}

impl Policy for Forebay {
    fn choose(&mut self, board: &Board, demand: &Demand) -> Option<Choice> {
        let all = board.nodes.len();
        let counts = match demand.nodes.filter(|_| self.counts == Counts::AsAsked) {
            Some(n) => {
                let count = board.at_hand(n as usize);
                count..=count
            }
            None => 1..=all,
        };
        let ranked = ranked(board);
        let mut best: Option<(f64, Choice)> = None;
        let (mut jobs, mut counted, mut able): (BTreeSet<JobId>, usize, Vec<u32>) = Default::default();
        for count in counts {
            let per_node = demand.bytes.div_ceil(count.max(1) as u64);
            let before = able.len();
            able =
                ranked.iter().copied().filter(|&i| board.nodes[i as usize].free_bytes >= per_node).collect();
            if able.len() < count || count == 0 {
                continue;
            }
            // With the same nodes to choose from, one more of them is the only news.
            if able.len() != before {
                jobs.clear();
                counted = 0;
            }
            able[counted..count].iter().for_each(|&i| jobs.extend(&board.nodes[i as usize].jobs));
            counted = count;
            let cost = cost_s(board, demand, &able[..count], jobs.len());
            if best.as_ref().is_none_or(|b| cost < b.0 * (1.0 - 1e-9)) {
                best = Some((cost, (able[..count].to_vec(), per_node)));
            }
        }
        best.map(|b| b.1)
    }
}
