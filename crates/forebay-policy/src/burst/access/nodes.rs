//! Sets of nodes as bits: each decision checks a thousand times whether two steps share a node.

use alloc::vec;
use alloc::vec::Vec;

use serde::Serialize;

/// A set of node numbers. It keeps the range of words that its members are in: most steps are on
/// neighbouring nodes, and a comparison then reads one word or two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeSet {
    words: Vec<u64>,
    first: usize,
    end: usize,
}

impl NodeSet {
    /// An empty set with room for the numbers below `nodes`.
    pub fn empty(nodes: u32) -> Self {
        NodeSet { words: vec![0; nodes.div_ceil(64) as usize], first: 0, end: 0 }
    }

    /// The set of `members`, each below `nodes`.
    pub fn of(nodes: u32, members: &[u32]) -> Self {
        let mut set = Self::empty(nodes);
        for &node in members {
            assert!(node < nodes, "node {node} does not exist, there are {nodes}");
            let word = node as usize / 64;
            set.words[word] |= 1 << (node % 64);
            set.reach(word, word + 1);
        }
        set
    }

    /// All numbers below `nodes`.
    pub fn all(nodes: u32) -> Self {
        let mut set = Self::empty(nodes);
        (0..nodes).for_each(|node| set.words[node as usize / 64] |= 1 << (node % 64));
        set.reach(0, set.words.len());
        set
    }

    /// Whether all its members are in `other`.
    pub fn is_within(&self, other: &NodeSet) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| a & !b == 0)
    }

    fn reach(&mut self, first: usize, end: usize) {
        if self.first == self.end {
            (self.first, self.end) = (first, end);
        } else if first < end {
            (self.first, self.end) = (self.first.min(first), self.end.max(end));
        }
    }

    /// Whether they have a node in common.
    pub fn overlaps(&self, other: &NodeSet) -> bool {
        let (first, end) = (self.first.max(other.first), self.end.min(other.end));
        (first..end).any(|i| self.words[i] & other.words[i] != 0)
    }

    /// Adds the members of `other`.
    pub fn add(&mut self, other: &NodeSet) {
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a |= b);
        self.reach(other.first, other.end);
    }

    /// Removes all members.
    pub fn clear(&mut self) {
        self.words.fill(0);
        (self.first, self.end) = (0, 0);
    }

    /// Number of members.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// Its members, ascending.
    pub fn members(&self) -> impl Iterator<Item = u32> {
        let words = (0u32..).zip(&self.words);
        words.flat_map(|(i, word)| (0..64).filter(move |b| (word >> b) & 1 == 1).map(move |b| 64 * i + b))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn like_a_set_of_numbers(
            a in prop::collection::btree_set(0u32..200, 0..20), b in prop::collection::btree_set(0u32..200, 0..20)
        ) {
            let of = |s: &std::collections::BTreeSet<u32>| NodeSet::of(200, &s.iter().copied().collect::<Vec<_>>());
            let (mut x, y) = (of(&a), of(&b));
            prop_assert_eq!(x.overlaps(&y), !a.is_disjoint(&b));
            prop_assert_eq!(x.is_within(&y), a.is_subset(&b));
            prop_assert!(x.is_within(&NodeSet::all(200)) && NodeSet::all(200).len() == 200);
            x.add(&y);
            let both: std::collections::BTreeSet<u32> = a.union(&b).copied().collect();
            prop_assert_eq!((x.len() as usize, x.is_empty()), (both.len(), both.is_empty()));
            prop_assert_eq!(&x, &of(&both));
            x.clear();
            prop_assert!(x.is_empty() && !x.overlaps(&y));
        }
    }
}
