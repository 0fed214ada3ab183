//! Preferred nodes: on which node the task that reads an extent should run.
//!
//! Owners are random ([`crate::placement`]): of 30 extents on two nodes one may own 19. Ownership
//! of pages may be uneven, but tasks are run by slots, and the node with 19 is still at work long
//! after the other has finished. So a task is not always sent to the owner. Each extent has two
//! candidates, its owner and the next of its ranking that runs tasks; the owner is preferred unless
//! the other, with this extent added, would still have been assigned no more bytes. That is the
//! power of two choices: with n nodes the fullest is about ln ln n extents above the mean, where
//! one choice alone leaves it some sqrt(ln n) deviations above.
//!
//! Assigned bytes are divided by the node's weight in ownership, so that where the load is even the
//! owner stays the preferred node. A choice is remembered: a second question about an extent gets
//! the same answer, and the extent counts once. Both are forgotten when the nodes change, and when
//! there is more to remember than [`EXTENTS_MAX`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::placement::{Member, owner_and_next};

/// Extents remembered: 32 TiB in extents of 128 MiB, and some 6 MB of memory.
pub const EXTENTS_MAX: usize = 1 << 18;

/// A node that may be preferred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its number and weight in the placement.
    pub member: Member,
    /// Whether tasks may run there. A node that runs none is preferred only for what it owns.
    pub runs_tasks: bool,
}

/// The preferred nodes assigned up to now on one mount.
#[derive(Clone, Debug, Default)]
pub struct PreferredNodes {
    nodes: Vec<Candidate>,
    /// Bytes assigned to each of them.
    given_bytes: Vec<u64>,
    /// Places of the preferred nodes, by the extents' keys.
    chosen: BTreeMap<u64, u32>,
}

impl PreferredNodes {
    /// Returns the place among `nodes` of the preferred node of the extent with key `extent`, of
    /// which the file has `bytes`; `None` if no node can own it.
    pub fn choose(&mut self, nodes: &[Candidate], extent: u64, bytes: u64) -> Option<usize> {
        if self.nodes != nodes {
            self.forget();
            self.nodes = nodes.to_vec();
            self.given_bytes.resize(nodes.len(), 0);
        }
        if let Some(place) = self.chosen.get(&extent) {
            return Some(*place as usize);
        }
        let (owner, next) =
            owner_and_next(extent, nodes.iter().map(|n| &n.member), |place| nodes[place].runs_tasks)?;
        let place = match next {
            Some(next) if nodes[owner].runs_tasks && self.is_emptier(next, owner, bytes) => next,
            _ => owner,
        };
        if self.chosen.len() >= EXTENTS_MAX {
            let nodes = core::mem::take(&mut self.nodes);
            self.forget();
            self.given_bytes.resize(nodes.len(), 0);
            self.nodes = nodes;
        }
        self.given_bytes[place] = self.given_bytes[place].saturating_add(bytes);
        self.chosen.insert(extent, place as u32);
        Some(place)
    }

    /// Returns whether `this`, with `bytes` more, has been assigned no more than `that` has now.
    fn is_emptier(&self, this: usize, that: usize, bytes: u64) -> bool {
        let share = |place: usize, bytes: u64| bytes as f64 / self.nodes[place].member.weight;
        share(this, self.given_bytes[this].saturating_add(bytes)) <= share(that, self.given_bytes[that])
    }

    fn forget(&mut self) {
        self.nodes.clear();
        self.given_bytes.clear();
        self.chosen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{extent_key, owner};
    use proptest::prelude::*;

    fn nodes(weights: &[f64]) -> Vec<Candidate> {
        let node = |(weight, node): (&f64, u64)| Candidate {
            member: Member { node, weight: *weight },
            runs_tasks: true,
        };
        weights.iter().zip(100..).map(node).collect()
    }

    fn given(preferred: &[usize], nodes: usize) -> Vec<usize> {
        (0..nodes).map(|n| preferred.iter().filter(|h| **h == n).count()).collect()
    }

    #[test]
    fn thirty_extents_are_fifteen_and_fifteen() {
        let nodes = nodes(&[1.0, 1.0]);
        let members: Vec<Member> = nodes.iter().map(|n| n.member).collect();
        let key = |extent| extent_key("pfs", 7, extent);
        let uneven = (0..30).filter(|e| owner(key(*e), &members) == Some(100)).count();
        assert_ne!(uneven, 15, "nothing to even out");
        let mut preferred = PreferredNodes::default();
        let found: Vec<usize> = (0..30).map(|e| preferred.choose(&nodes, key(e), 1 << 27).unwrap()).collect();
        assert_eq!(given(&found, 2), [15, 15]);
    }

    #[test]
    fn a_node_that_runs_no_tasks_is_preferred_for_what_it_owns_and_nothing_else() {
        let mut nodes = nodes(&[1.0, 1.0, 1.0]);
        nodes[1].runs_tasks = false;
        let members: Vec<Member> = nodes.iter().map(|n| n.member).collect();
        let mut preferred = PreferredNodes::default();
        for extent in 0..300 {
            let chosen = preferred.choose(&nodes, extent, 1).unwrap();
            assert_eq!(chosen == 1, owner(extent, &members) == Some(101), "extent {extent}");
        }
        assert_eq!(preferred.choose(&[], 1, 1), None);
        let alone = [nodes[1]];
        assert_eq!(preferred.choose(&alone, 1, 1), Some(0));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_begins_anew_with_the_nodes() {
        let mut preferred = PreferredNodes::default();
        for extent in 0..EXTENTS_MAX as u64 + 10 {
            preferred.choose(&nodes(&[1.0, 1.0]), extent, 1);
        }
        assert_eq!(preferred.chosen.len(), 10);
        assert_eq!(preferred.given_bytes.iter().sum::<u64>(), 10);
        preferred.choose(&nodes(&[1.0, 2.0]), 5, 3);
        assert_eq!((preferred.chosen.len(), preferred.given_bytes.iter().sum::<u64>()), (1, 3));
    }

    proptest! {
        /// Two equal nodes: whatever is requested, in whatever order and however often, they differ
        /// by two of the largest extents at most, and a second question gets the same answer.
        #[test]
        fn two_equal_nodes_are_even_after_any_sequence(
            asked in prop::collection::vec((0u64..500, 1u64..=100), 1..400)
        ) {
            let nodes = nodes(&[1.0, 1.0]);
            let (mut preferred, mut reported) = (PreferredNodes::default(), BTreeMap::new());
            let mut given = [0u64; 2];
            for (extent, bytes) in asked {
                let chosen = preferred.choose(&nodes, extent, bytes).unwrap();
                if let Some(before) = reported.insert(extent, chosen) {
                    prop_assert_eq!(before, chosen);
                } else {
                    given[chosen] += bytes;
                }
                prop_assert!(given[0].abs_diff(given[1]) <= 200, "{given:?}");
            }
        }

        /// Many nodes: the preferred node is always one of the first two of the ranking, equal
        /// nodes get equal numbers but for a few extents, weights are respected, and the same
        /// questions have the same answers.
        #[test]
        fn many_nodes_get_their_shares(
            count in 2usize..40, heavy in any::<prop::sample::Index>(), seed in any::<u64>()
        ) {
            let mut weights = vec![1.0; count];
            weights[heavy.index(count)] = 2.0;
            let nodes = nodes(&weights);
            let members: Vec<Member> = nodes.iter().map(|n| n.member).collect();
            let each = 50;
            let all = (count as u64 + 1) * each;
            let run = || {
                let mut preferred = PreferredNodes::default();
                (0..all).map(|e| preferred.choose(&nodes, extent_key("pfs", seed, e), 1).unwrap()).collect::<Vec<_>>()
            };
            let found = run();
            prop_assert_eq!(&found, &run());
            for (extent, chosen) in found.iter().enumerate() {
                let key = extent_key("pfs", seed, extent as u64);
                prop_assert!(crate::placement::owners::<2>(key, &members).any(|place| place == *chosen));
            }
            for (got, weight) in given(&found, count).iter().zip(&weights) {
                let want = each as f64 * weight;
                // A binomial of one choice has a standard deviation of 7 and 10 here, so its
                // extremes are beyond 20; two choices stay within a quarter.
                prop_assert!((*got as f64 - want).abs() <= 12.0 * weight, "{got} of {want}");
            }
        }
    }
}
