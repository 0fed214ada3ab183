//! Rate limits of jobs, the same for all nodes of a cluster.
//!
//! A *rule* limits the jobs of one name: those of one user, or of all users, each job by itself.
//! Every node keeps all rules. Of two rules for the same jobs by the same side the later one counts
//! ([`Rules::merge`]), in whatever order they arrive, so that a coordinator that has no rules yet
//! learns them from its agents. A lifted rule is kept as one without a rate.
//!
//! The nodes on which a limited job moves bytes share its rate ([`shares`]): each gets what it
//! needs, and those that need more get the same.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// Rules of all users together, half of which are left to operators; each node keeps all of them.
pub const RULES_MAX: usize = 1024;

/// Rules that one ordinary user may have.
pub const USER_RULES_MAX: usize = 16;

/// A node that has just begun gets at least one part in this many of an equal share.
const LEAST_PARTS: u64 = 8;

/// A rate limit as it was set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Name of the jobs.
    pub job: String,
    /// Their user; `None`: any user.
    pub user: Option<u32>,
    /// An operator has set it: its user cannot lift it.
    pub is_operators: bool,
    /// The user who has set it.
    pub by: u32,
    /// The rate of each such job, of all nodes together; `None`: it was lifted.
    pub rate_bytes_per_s: Option<u64>,
    /// When it was set, in milliseconds since 1970: the later one counts.
    pub set_ms: u64,
}

impl Rule {
    fn is_for_same(&self, other: &Rule) -> bool {
        (&self.job, self.user, self.is_operators) == (&other.job, other.user, other.is_operators)
    }

    /// The key by which the later of two rules for the same jobs is found.
    fn rank(&self) -> (u64, u32, Option<u64>) {
        (self.set_ms, self.by, self.rate_bytes_per_s)
    }
}

/// All rules, including lifted ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Adds a rule. If there are too many, the one that was lifted first makes room. Returns
    /// `false` if a later one for the same jobs is known, or no lifted rule may make room.
    pub fn merge(&mut self, rule: Rule) -> bool {
        if let Some(known) = self.0.iter_mut().find(|known| known.is_for_same(&rule)) {
            let is_later = rule.rank() > known.rank();
            if is_later {
                *known = rule;
            }
            return is_later;
        }
        // There must always be room for a rule of an operator.
        let of_users = self.0.iter().filter(|known| !known.is_operators).count();
        if self.0.len() >= RULES_MAX || !rule.is_operators && of_users >= RULES_MAX / 2 {
            let may_go =
                |known: &Rule| known.rate_bytes_per_s.is_none() && (rule.is_operators || !known.is_operators);
            let lifted = self.0.iter().enumerate().filter(|(_, known)| may_go(known));
            let Some((first, _)) = lifted.min_by_key(|(_, known)| known.set_ms) else { return false };
            self.0.swap_remove(first);
        }
        self.0.push(rule);
        true
    }

    /// All rules, in no particular order.
    pub fn all(&self) -> &[Rule] {
        &self.0
    }

    /// The rules that limit.
    pub fn in_force(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter().filter(|rule| rule.rate_bytes_per_s.is_some())
    }

    /// The rate of a user's job; `None`: no limit.
    pub fn rate_of(&self, user: u32, job: &str) -> Option<u64> {
        let is_of = |rule: &&Rule| rule.job == job && rule.user.is_none_or(|of| of == user);
        self.0.iter().filter(is_of).filter_map(|rule| rule.rate_bytes_per_s).min()
    }

    /// Returns a time for a rule that is set at `now_ms`: later than that of any rule for the same
    /// jobs, even if the clock of the node that has set it is ahead.
    pub fn time_for(&self, rule: &Rule, now_ms: u64) -> u64 {
        let known = self.0.iter().find(|known| known.is_for_same(rule));
        known.map_or(now_ms, |known| now_ms.max(known.set_ms + 1))
    }
}

/// Activity of a limited job on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Bytes that it has moved in the last second.
    pub bytes_per_s: u64,
    /// Whether its limit has kept it waiting.
    pub is_held: bool,
}

/// Divides `rate` among the nodes of a job, in their order. A node that was held gets as much as
/// any other; one that was not gets twice what it has moved, so that it can grow.
pub fn shares(rate: u64, demands: &[Demand]) -> Vec<u64> {
    let count = demands.len() as u64;
    if count == 0 {
        return Vec::new();
    }
    let least = (rate / count / LEAST_PARTS).max(1);
    let wanted = |demand: &Demand| match demand.is_held {
        true => u64::MAX,
        false => demand.bytes_per_s.saturating_mul(2).max(least),
    };
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|at| wanted(&demands[*at]));
    let (mut left, mut others) = (rate, count);
    let mut shares = alloc::vec![0; demands.len()];
    for at in order {
        shares[at] = wanted(&demands[at]).min(left / others).max(1);
        left = left.saturating_sub(shares[at]);
        others -= 1;
    }
    // What is not requested goes to all, so that a node that begins need not wait for the next
    // second.
    let more = left / count;
    shares.iter_mut().for_each(|share| *share += more);
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(job: &str, user: Option<u32>, rate: Option<u64>, set_ms: u64) -> Rule {
        Rule { job: job.into(), user, is_operators: user.is_none(), by: 0, rate_bytes_per_s: rate, set_ms }
    }

    #[test]
    fn the_later_rule_counts_in_whatever_order_they_come_and_the_lowest_rate_limits() {
        let all = [
            rule("a", Some(7), Some(50), 1),
            rule("a", None, Some(100), 2),
            rule("a", Some(7), None, 3),
            rule("a", Some(7), Some(30), 2),
        ];
        for first in 0..all.len() {
            let mut rules = Rules::default();
            (0..all.len()).for_each(|at| {
                rules.merge(all[(first + at) % all.len()].clone());
            });
            assert_eq!(
                (rules.rate_of(7, "a"), rules.rate_of(8, "a"), rules.rate_of(7, "b")),
                (Some(100), Some(100), None)
            );
            assert_eq!((rules.all().len(), rules.in_force().count()), (2, 1));
        }
        let mut rules = Rules::default();
        assert!(rules.merge(all[0].clone()) && rules.merge(all[1].clone()) && !rules.merge(all[1].clone()));
        assert_eq!(rules.rate_of(7, "a"), Some(50), "a user may limit a job further");
        assert_eq!((rules.time_for(&all[0], 0), rules.time_for(&all[0], 9)), (2, 9));
    }

    #[test]
    fn rules_are_bounded_and_one_that_was_lifted_makes_room() {
        let mut rules = Rules::default();
        let by_operator = |user| Rule { is_operators: true, ..rule("a", Some(user), Some(1), 1) };
        for number in 0..RULES_MAX as u32 / 2 {
            assert!(rules.merge(rule("a", Some(number), Some(1), 1)));
        }
        assert!(!rules.merge(rule("b", Some(9), Some(1), 2)), "the other half is the operators'");
        for number in 0..RULES_MAX as u32 / 2 {
            assert!(rules.merge(by_operator(number)));
        }
        assert!(!rules.merge(by_operator(u32::MAX)));
        assert!(rules.merge(rule("a", Some(3), None, 2)) && rules.merge(rule("b", None, Some(1), 2)));
        assert_eq!((rules.all().len(), rules.rate_of(3, "b")), (RULES_MAX, Some(1)));
    }

    proptest::proptest! {
        #[test]
        fn shares_add_up_to_the_rate_and_who_is_held_has_no_less_than_others(
            rate in 64u64..1 << 40,
            demands in proptest::collection::vec((0u64..1 << 32, proptest::bool::ANY), 1..32),
        ) {
            let demands: Vec<_> =
                demands.into_iter().map(|(bytes_per_s, is_held)| Demand { bytes_per_s, is_held }).collect();
            let shares = shares(rate, &demands);
            proptest::prop_assert!(shares.iter().sum::<u64>() <= rate, "{shares:?}");
            let equal = rate / demands.len() as u64;
            for (share, demand) in shares.iter().zip(&demands) {
                proptest::prop_assert!(*share > 0 && (!demand.is_held || *share >= equal), "{shares:?}");
            }
        }
    }
}
