//! Sets of nodes as bits: whether two steps share a node is asked a thousand times per decision.

use alloc::vec;
use alloc::vec::Vec;

use serde::Serialize;

/// A set of node numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct NodeSet {
    words: Vec<u64>,
}

impl NodeSet {
    /// An empty set with room for the numbers below `nodes`.
    pub fn empty(nodes: u32) -> Self {
        NodeSet { words: vec![0; nodes.div_ceil(64) as usize] }
    }

    /// The set of `members`, each below `nodes`.
    pub fn of(nodes: u32, members: &[u32]) -> Self {
        let mut set = Self::empty(nodes);
        for &node in members {
            assert!(node < nodes, "node {node} does not exist, there are {nodes}");
            set.words[node as usize / 64] |= 1 << (node % 64);
        }
        set
    }

    /// Whether they have a node in common.
    pub fn overlaps(&self, other: &NodeSet) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// Adds the members of `other`.
    pub fn add(&mut self, other: &NodeSet) {
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a |= b);
    }

    /// Takes all members away.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Number of members.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// The bits, 64 nodes a word, node 0 lowest in the first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}
