//! Steps on their way from burst buffers to the file system.

use forebay_policy::machine::Nanos;

use super::Happening;
use super::Together;
use crate::burst::{self, Round};
use crate::queue::EventQueue;

/// Bytes of the node with this place among all when `bytes` are divided evenly.
fn part(bytes: u64, nodes: u64, node: u64) -> u64 {
    bytes / nodes + u64::from(node < bytes % nodes)
}

impl Together<'_> {
    /// Sends to the servers what burst buffer nodes have sent.
    pub fn carry(&mut self, now: Nanos, queue: &mut EventQueue<Happening>) {
        let Some(draining) = self.buffers.as_mut().and_then(|buffers| buffers.draining.as_mut()) else {
            return;
        };
        for round in std::mem::take(&mut draining.sent) {
            let there_at = self.carry_round(now, &round);
            queue.at(there_at, Happening::Buffers(burst::Happening::Landed(round.drain, round.bytes)));
        }
    }

    /// Each node of a step has a file of its own; returns when all have what the nodes send.
    fn carry_round(&mut self, now: Nanos, round: &Round) -> Nanos {
        let mut there_at = now;
        for node in 0..round.nodes {
            let from = part(round.from, round.nodes, node);
            let to = part(round.from + round.bytes, round.nodes, node);
            there_at = there_at.max(self.cluster.pfs.write_in_turn(now, round.drain + node, (from, to)));
        }
        there_at
    }
}
