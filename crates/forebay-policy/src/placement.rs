//! Placement: which node keeps an extent.
//!
//! **Owners** by weighted rendezvous hashing: every node has a score for every extent, and the node
//! with the best score owns it. There is no table and no server to ask; all that know the epoch's
//! nodes agree. When a node comes or goes, only the extents that it wins or held move: a part w / W
//! of them, the least possible. A ring of hashes would need hundreds of points per node for the
//! same balance, and weights in whole points.
//!
//! With u the hash as a number in (0, 1), the score is -w / ln u (Schindelhauer and Schomaker,
//! 2005): node i wins with probability w_i / W exactly. Nodes are named by a stable number, not by
//! their place in a list.

use serde::{Deserialize, Serialize};

/// A node in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its stable number.
    pub node: u64,
    /// Its share of extents is its weight over the sum of weights; for example, the bytes of RAM
    /// that it lends.
    pub weight: f64,
}

/// The stable number of the node called `name`.
pub fn node_number(name: &str) -> u64 {
    hash_bytes(name.as_bytes())
}

/// The key of one extent: the same on every node, whatever the path under which the file was
/// opened. The version is not part of it, so that a rewritten file stays where it was.
pub fn extent_key(mount_label: &str, ino: u64, extent: u64) -> u64 {
    hash(hash(hash_bytes(mount_label.as_bytes()), ino), extent)
}

/// FNV-1a, mixed: short names that differ in one letter must not be near each other.
fn hash_bytes(bytes: &[u8]) -> u64 {
    let fnv =
        bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    hash(fnv, bytes.len() as u64)
}

/// A good mix of two numbers (the finaliser of MurmurHash3, twice).
fn hash(a: u64, b: u64) -> u64 {
    let mix = |mut x: u64| {
        x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        x ^ (x >> 33)
    };
    mix(mix(a.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ b.wrapping_mul(0x9fb2_1c65_1e98_df25))
}

/// Natural logarithm of a number in (0, 1]: the crate has none, and all machines must agree to the
/// last bit, which a system's mathematical library does not promise. Reduced to [sqrt(1/2),
/// sqrt(2)), then ln m = 2 artanh((m-1)/(m+1)).
fn ln(x: f64) -> f64 {
    const LN_2: f64 = core::f64::consts::LN_2;
    let (mut m, mut exponent) = (x, 0.0);
    while m < core::f64::consts::FRAC_1_SQRT_2 {
        m *= 2.0;
        exponent -= 1.0;
    }
    let z = (m - 1.0) / (m + 1.0);
    let square = z * z;
    let (mut term, mut sum) = (z, 0.0);
    // |z| is at most 0.172: eleven terms leave an error below 1e-16.
    for k in 0..11 {
        sum += term / (2 * k + 1) as f64;
        term *= square;
    }
    2.0 * sum + exponent * LN_2
}

/// The score of `member` for `extent`; greatest wins.
fn score(extent: u64, member: &Member) -> f64 {
    let u = ((hash(extent, member.node) >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64);
    -member.weight / ln(u)
}

/// Returns the places among `members` of the owners of `extent`, best first, at most `COUNT`;
/// members without weight own nothing. Called for every page that is fetched: nothing is sorted or
/// allocated.
pub fn owners<const COUNT: usize>(extent: u64, members: &[Member]) -> impl Iterator<Item = usize> {
    let mut best = [None::<(f64, u64, usize)>; COUNT];
    for (place, member) in members.iter().enumerate().filter(|(_, m)| m.weight > 0.0) {
        let mut falls = (score(extent, member), member.node, place);
        for held in &mut best {
            match held {
                Some(held) if falls.0.total_cmp(&held.0).then(held.1.cmp(&falls.1)).is_gt() => {
                    core::mem::swap(held, &mut falls);
                }
                Some(_) => {}
                None => {
                    *held = Some(falls);
                    break;
                }
            }
        }
    }
    best.into_iter().flatten().map(|(_, _, place)| place)
}

/// Returns the owner of `extent`, if any member can own it: the first of [`owners`].
pub fn owner(extent: u64, members: &[Member]) -> Option<u64> {
    let able = members.iter().filter(|m| m.weight > 0.0);
    let best =
        able.map(|m| (score(extent, m), m.node)).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    best.map(|b| b.1)
}

/// Returns the places of the owner of `extent` among `members`, and of the best of the others that
/// `may` accepts, in the ranking of [`owners`].
pub fn owner_and_next<'a>(
    extent: u64,
    members: impl Iterator<Item = &'a Member> + Clone,
    may: impl Fn(usize) -> bool,
) -> Option<(usize, Option<usize>)> {
    let scored = members
        .enumerate()
        .filter(|(_, m)| m.weight > 0.0)
        .map(|(place, m)| (score(extent, m), m.node, place));
    let best = |a: &(f64, u64, usize), b: &(f64, u64, usize)| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1));
    let owner = scored.clone().max_by(best)?.2;
    let next = scored.filter(|(_, _, place)| *place != owner && may(*place)).max_by(best);
    Some((owner, next.map(|n| n.2)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXTENTS: u64 = 4000;

    fn members(weights: &[f64]) -> Vec<Member> {
        weights.iter().zip(100..).map(|(&weight, node)| Member { node, weight }).collect()
    }

    #[test]
    fn the_logarithm_is_one() {
        for x in [1.0, 0.9, 0.75, 0.5, 0.1, 1e-3, 1e-9, 1.1e-16] {
            assert!(
                (ln(x) - f64::ln(x)).abs() <= 4e-15 * f64::ln(x).abs().max(0.05),
                "{x}: {} {}",
                ln(x),
                f64::ln(x)
            );
        }
    }

    #[test]
    fn shares_follow_weights() {
        let all = members(&[1.0, 2.0, 5.0, 0.0]);
        let mut got = [0.0f64; 4];
        (0..80_000u64).for_each(|e| got[(owner(e, &all).expect("there are nodes") - 100) as usize] += 1.0);
        // Deviations of a binomial are below 142; five of them.
        for (share, want) in got.iter().zip([10_000.0, 20_000.0, 50_000.0, 0.0]) {
            assert!((share - want).abs() <= 710.0, "{got:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// When a node leaves, its extents move and no other; when it joins, it takes its part and
        /// nothing else moves.
        #[test]
        fn a_change_of_one_node_moves_its_share_only(
            weights in prop::collection::vec(1.0f64..8.0, 2..24), which in any::<prop::sample::Index>()
        ) {
            let with = members(&weights);
            let gone = which.index(with.len());
            let mut without = with.clone();
            let leaver = without.remove(gone);
            let share = leaver.weight / weights.iter().sum::<f64>();
            let mut moved = 0u32;
            for e in 0..EXTENTS {
                let (a, b) = (owner(e, &with), owner(e, &without));
                if a != b {
                    moved += 1;
                    prop_assert_eq!(a, Some(leaver.node), "an extent moved between nodes that stayed");
                }
                let first = owners::<2>(e, &with).next().map(|place| with[place].node);
                prop_assert_eq!(first, a);
            }
            // Five deviations of a binomial, at most 5 * sqrt(1/4 / 4000) = 4 %.
            let epsilon = 5.0 * (share * (1.0 - share) / EXTENTS as f64).sqrt() + 1e-3;
            prop_assert!(f64::from(moved) / EXTENTS as f64 <= share + epsilon);
        }

        /// The order in which members are listed does not matter.
        #[test]
        fn everybody_agrees(
            extent in any::<u64>(), weights in prop::collection::vec(1.0f64..8.0, 1..20), turn in 0usize..20
        ) {
            let (all, n) = (members(&weights), weights.len());
            let mut turned = all.clone();
            turned.rotate_left(turn % n);
            let nodes = |of: &[Member]| owners::<3>(extent, of).map(|at| of[at].node).collect::<Vec<_>>();
            prop_assert_eq!(nodes(&all), nodes(&turned));
            // As if they were sorted.
            let mut sorted = all.clone();
            sorted.sort_by(|a, b| score(extent, b).total_cmp(&score(extent, a)).then(a.node.cmp(&b.node)));
            prop_assert_eq!(nodes(&all), sorted.iter().take(3).map(|m| m.node).collect::<Vec<_>>());
            prop_assert_eq!(owner(extent, &all), owner(extent, &turned));
        }
    }
}
