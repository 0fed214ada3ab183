//! How often the programs of a user may change the board, and how often the log says so.
//!
//! Each change is a message to the coordinator and news for the other nodes, and nothing that waits
//! for them may grow with what a program sends. So a user has a number of changes per second and a
//! burst; a program beyond that waits for its turn in the thread of its own connection.

use crate::lock::lock;
use forebay_policy::machine::Nanos;
use forebay_policy::token_bucket::TokenBucket;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// Changes per second of one user: a user's 64 jobs may have a phase each second.
const CHANGES_PER_S: u64 = 200;

/// Burst of changes of one user: its 64 jobs may open, begin and end.
const CHANGES_AT_ONCE: u64 = 256;

/// Number of users beyond which those that could make a whole burst now are forgotten.
const USERS_KEPT: usize = 64;

/// Least time between two log lines of one kind that a program can cause, in ns.
const LOG_NS: u64 = 10_000_000_000;

/// The changes of all users.
#[derive(Debug, Default)]
pub struct Pace(Mutex<BTreeMap<u32, TokenBucket>>);

impl Pace {
    /// Returns how long `user` has to wait before it makes this many changes.
    pub fn wait(&self, now: Nanos, user: u32, changes: u64) -> Duration {
        let mut users = lock(&self.0);
        if users.len() >= USERS_KEPT && !users.contains_key(&user) {
            users.retain(|_, bucket| bucket.clone().take(now, CHANGES_AT_ONCE) > 0);
        }
        let full = || TokenBucket::new(now, CHANGES_PER_S, CHANGES_AT_ONCE);
        Duration::from_nanos(users.entry(user).or_insert_with(full).reserve(now, changes))
    }
}

/// A line of the log that is not to fill it.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<Nanos>>);

impl Seldom {
    /// Whether it is time for the line again.
    pub fn is_due(&self, now: Nanos) -> bool {
        let mut last = lock(&self.0);
        let is_due = last.is_none_or(|last| now.saturating_since(last) >= LOG_NS);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_waits_for_its_own_changes_only_and_quiet_users_are_forgotten() {
        let (pace, second) = (Pace::default(), 1_000_000_000);
        assert_eq!(pace.wait(Nanos(0), 1, CHANGES_AT_ONCE), Duration::ZERO);
        assert_eq!(pace.wait(Nanos(0), 1, CHANGES_PER_S), Duration::from_secs(1));
        for user in 2..1000 {
            assert_eq!(pace.wait(Nanos(u64::from(user) * 3 * second), user, 1), Duration::ZERO);
        }
        assert!(lock(&pace.0).len() <= USERS_KEPT);
    }

    #[test]
    fn a_line_comes_once_in_its_time() {
        let seldom = Seldom::default();
        let due = [0, 1, LOG_NS - 1, LOG_NS, LOG_NS + 1].map(|at| seldom.is_due(Nanos(at)));
        assert_eq!(due, [true, false, false, true, false]);
    }
}
