//! The source of a page that several nodes request from its owner at the same time.
//!
//! If all nodes read one file together, each copy of a page would leave through the owner's link:
//! with N readers the last one ends N times later than one alone. So the nodes that request a page
//! form a chain: the owner sends it to the first, and names to each other one the node before it,
//! which passes the page on while it arrives. Each node then sends a page once and receives it
//! once, so all links are busy, and the file system is read once.
//!
//! The order is that of the requests. A node that is slow or late is at the end, where it delays no
//! other, and no node gets a page that it has not requested. A node that gets nothing from the one
//! before it asks the owner again, which begins a new chain with it. So no node waits for itself:
//! each waits for one that has joined its chain before.
//!
//! A tree would be less deep, but half of its nodes would send two copies: twice the time.

use crate::machine::Nanos;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

/// Requests for a page that are further apart are not from nodes that read together: the other node
/// may have evicted the page, and the owner is not busy.
const TOGETHER_NS: u64 = 1_000_000_000;

/// Chains remembered. A page of 2 MiB needs one for as long as its requests come in.
const CHAINS_MAX: usize = 4096;

/// Limit on the connections of a node to another one: as many as a mount has fetch threads by
/// default, so that a stream of pages from one owner keeps as many servers of the PFS busy as a
/// node's own.
const LINKS_PER_PEER: usize = 8;

/// Limit on the connections of all nodes together to one node, unless there are more nodes: it
/// accepts 2048.
const LINKS_OF_ALL: usize = 2000;

/// Returns the connections of a node to each other one in a cluster of `nodes`, which is also the
/// number of pages that it requests from an owner at a time.
pub fn links_per_peer(nodes: usize) -> usize {
    (LINKS_OF_ALL / nodes.max(1)).clamp(1, LINKS_PER_PEER)
}

/// The sender of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The owner itself.
    Owner,
    /// The node of this number, which has the page or gets it.
    Relay(u64),
}

#[derive(Clone, Debug)]
struct Chain {
    /// Nodes in the order of their requests.
    nodes: Vec<u64>,
    /// The time of the last request.
    at: Nanos,
}

/// An owner's record of the nodes that request its pages.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    chains: BTreeMap<u64, Chain>,
    /// Pages of the chains, in the order of the first requests.
    order: VecDeque<u64>,
}

impl Spread {
    /// Returns the node that sends `page`, whose number is unique among all files, to `node`.
    pub fn source(&mut self, now: Nanos, page: u64, node: u64) -> Source {
        let Some(chain) = self.chains.get_mut(&page) else {
            if self.order.len() >= CHAINS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.chains.remove(&oldest);
            }
            self.order.push_back(page);
            self.chains.insert(page, Chain { nodes: vec![node], at: now });
            return Source::Owner;
        };
        let is_over = now.saturating_since(chain.at) > TOGETHER_NS;
        chain.at = now;
        // The first node asks again if the owner itself has not got the page in time.
        if chain.nodes.first() == Some(&node) {
            return Source::Owner;
        }
        if is_over || chain.nodes.contains(&node) {
            chain.nodes = vec![node];
            return Source::Owner;
        }
        chain.nodes.push(node);
        Source::Relay(chain.nodes[chain.nodes.len() - 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Source::{Owner, Relay};
    use proptest::prelude::*;

    const NOW: Nanos = Nanos(0);

    #[test]
    fn each_node_gets_a_page_from_the_one_that_has_requested_it_before() {
        let mut spread = Spread::default();
        let sources: Vec<Source> = (0..4).map(|node| spread.source(NOW, 7, node)).collect();
        assert_eq!(sources, [Owner, Relay(0), Relay(1), Relay(2)]);
        assert_eq!(spread.source(NOW, 8, 3), Owner, "another page");
        assert_eq!(spread.source(NOW, 7, 0), Owner, "the owner was not ready");
        assert_eq!(spread.source(NOW, 7, 4), Relay(3));
    }

    #[test]
    fn when_a_node_dies_those_behind_it_are_a_new_chain() {
        let mut spread = Spread::default();
        for node in 0..5 {
            spread.source(NOW, 7, node);
        }
        // Node 1 is gone.
        let again: Vec<Source> = (2..5).map(|node| spread.source(NOW, 7, node)).collect();
        assert_eq!(again, [Owner, Relay(2), Relay(3)]);
    }

    #[test]
    fn nodes_that_do_not_read_together_get_a_page_from_its_owner() {
        let mut spread = Spread::default();
        assert_eq!(spread.source(NOW, 7, 0), Owner);
        assert_eq!(spread.source(NOW + 2 * TOGETHER_NS, 7, 1), Owner);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut spread = Spread::default();
        for page in 0..2 * CHAINS_MAX as u64 {
            spread.source(NOW, page, 0);
        }
        assert_eq!((spread.chains.len(), spread.order.len()), (CHAINS_MAX, CHAINS_MAX));
    }

    proptest! {
        /// Whichever node asks again, and however often: from each node the way to the owner ends.
        #[test]
        fn no_node_waits_for_itself(nodes in prop::collection::vec((0u64..8, 0..TOGETHER_NS), 1..100)) {
            let (mut spread, mut now, mut source_of) = (Spread::default(), NOW, BTreeMap::new());
            for (node, later) in nodes {
                now = now + later;
                source_of.insert(node, spread.source(now, 7, node));
                let (mut at, mut steps) = (node, 0);
                while let Some(Relay(next)) = source_of.get(&at) {
                    (at, steps) = (*next, steps + 1);
                    prop_assert!(steps <= 8, "a circle: {source_of:?}");
                }
            }
        }
    }
}
