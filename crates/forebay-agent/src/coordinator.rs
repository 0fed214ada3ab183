//! The coordinator's membership, embedded in the agent's process.
//!
//! A cluster has one coordinator; a single node is a cluster of one and runs it in its agent's process (`forebay up`).
//! It holds only what can be rebuilt from the next heartbeats, and no read waits for it. Membership has a version, the
//! *epoch*, that moves on whenever a node joins, leaves or changes its capacity, since placement depends on all three.

use forebay_wire::ClusterStatus;
use std::collections::BTreeMap;

/// Who is in the cluster.
#[derive(Debug, Default)]
pub struct Membership {
    epoch: u64,
    /// Capacity in bytes by node name.
    nodes: BTreeMap<String, u64>,
}

impl Membership {
    /// A node says that it is there, with so many bytes of tier. Returns the epoch.
    pub fn heartbeat(&mut self, node: &str, capacity_bytes: u64) -> u64 {
        if self.nodes.insert(node.to_owned(), capacity_bytes) != Some(capacity_bytes) {
            self.epoch += 1;
        }
        self.epoch
    }

    /// What is known.
    pub fn status(&self) -> ClusterStatus {
        ClusterStatus { epoch: self.epoch, nodes: self.nodes.clone().into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_moves_only_when_something_changed() {
        let mut members = Membership::default();
        assert_eq!(members.heartbeat("a", 10), 1);
        assert_eq!(members.heartbeat("a", 10), 1);
        assert_eq!(members.heartbeat("a", 20), 2);
        assert_eq!(members.heartbeat("b", 20), 3);
        assert_eq!(members.status().nodes, [("a".to_owned(), 20), ("b".to_owned(), 20)]);
    }
}
