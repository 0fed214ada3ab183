//! Nodes that fetch although their requests are paused, or faster than they may.
//!
//! Planners keep deadlines by pausing requests and limiting their rate. An agent that does not
//! follow, be it by a fault or because it hangs, spends slack that no plan knows of. Its own board
//! still stops it when a phase falls behind. Here it gets no further requests for a while, and is
//! named.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::waves::Pace;
use crate::machine::Nanos;

/// What was under way when a pace changed is read and reported within this time.
const SETTLE_NS: u64 = 2_000_000_000;

/// A node may have fetched so much more than it should: pages under way at all of its threads for
/// requests, and rounding.
pub const TOLERATED_BYTES: u64 = 16 << 20;

/// A rate is exceeded by more than bursts and clocks explain if it is exceeded so many times.
const TOLERATED_TIMES: u64 = 2;

/// A node that does not follow gets no requests for this time, and what it has fetched too much is
/// forgotten after it.
pub const PENALTY_NS: u64 = 60_000_000_000;

/// What a request may fetch at its pace.
#[derive(Clone, Copy, Debug)]
pub struct Leash {
    /// Since when this is its pace.
    since: Nanos,
    /// Bytes per second; `None` for no limit.
    rate_bytes_per_s: Option<u64>,
    /// Bytes that were reported so far.
    fetched_bytes: u64,
    /// Of these, what it had fetched when the pace was settled.
    settled_bytes: u64,
    /// Bytes beyond what it may, as far as they were counted.
    counted_bytes: u64,
}

impl Leash {
    /// A new request.
    pub fn new(now: Nanos, pace: Pace) -> Self {
        let rate_bytes_per_s = limit(pace);
        Leash { since: now, rate_bytes_per_s, fetched_bytes: 0, settled_bytes: 0, counted_bytes: 0 }
    }

    /// Its pace changes.
    pub fn adjust(&mut self, now: Nanos, pace: Pace) {
        let fetched_bytes = self.fetched_bytes;
        *self = Leash { fetched_bytes, settled_bytes: fetched_bytes, ..Leash::new(now, pace) };
    }

    /// It has fetched so much by now. Returns by how much more than before it has fetched too much.
    fn observe(&mut self, now: Nanos, fetched_bytes: u64) -> u64 {
        self.fetched_bytes = fetched_bytes;
        let Some(rate) = self.rate_bytes_per_s else { return 0 };
        let for_ns = now.saturating_since(self.since);
        if for_ns < SETTLE_NS {
            self.settled_bytes = fetched_bytes;
            return 0;
        }
        let allowed = u128::from(rate) * u128::from(TOLERATED_TIMES) * u128::from(for_ns) / 1_000_000_000;
        let beyond = fetched_bytes.saturating_sub(self.settled_bytes);
        let too_much = beyond.saturating_sub(u64::try_from(allowed).unwrap_or(u64::MAX));
        let more = too_much.saturating_sub(self.counted_bytes);
        self.counted_bytes += more;
        more
    }
}

/// The rate of a pace, 0 in a pause.
fn limit(pace: Pace) -> Option<u64> {
    match pace {
        Pace { threads: 0, .. } => Some(0),
        Pace { rate_bytes_per_s: 0, .. } => None,
        Pace { rate_bytes_per_s, .. } => Some(rate_bytes_per_s),
    }
}

/// What nodes have fetched beyond what they may.
#[derive(Debug, Default)]
pub struct Obedience {
    by_node: BTreeMap<String, Account>,
    /// Nodes to name, with their bytes.
    found: Vec<(String, u64)>,
}

#[derive(Debug)]
struct Account {
    since: Nanos,
    bytes: u64,
    until: Option<Nanos>,
}

impl Obedience {
    /// A request of `node` has fetched so much.
    pub fn observe(&mut self, now: Nanos, node: &str, leash: &mut Leash, fetched_bytes: u64) {
        let more = leash.observe(now, fetched_bytes);
        if more == 0 {
            return;
        }
        self.by_node.retain(|_, account| now.saturating_since(account.since) < PENALTY_NS);
        let new = || Account { since: now, bytes: 0, until: None };
        let account = self.by_node.entry(node.to_string()).or_insert_with(new);
        account.bytes += more;
        if account.bytes > TOLERATED_BYTES && account.until.is_none() {
            // The time of the penalty begins now.
            account.since = now;
            account.until = Some(now + PENALTY_NS);
            self.found.push((node.to_string(), account.bytes));
        }
    }

    /// Whether the node gets no requests now.
    pub fn is_barred(&self, node: &str, now: Nanos) -> bool {
        self.by_node.get(node).and_then(|account| account.until).is_some_and(|until| now < until)
    }

    /// Nodes that were found since the last call, and what they had fetched too much.
    pub fn take_found(&mut self) -> Vec<(String, u64)> {
        core::mem::take(&mut self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const PAUSED: Pace = Pace { threads: 0, rate_bytes_per_s: 0, setting: None };

    fn at_s(s: u64) -> Nanos {
        Nanos(s * 1_000_000_000)
    }

    #[test]
    fn a_node_that_fetches_on_in_a_pause_is_barred_for_a_minute_and_named_once() {
        let unlimited = Pace { threads: 1, ..Pace::default() };
        let (mut obedience, mut leash) = (Obedience::default(), Leash::new(Nanos(0), unlimited));
        obedience.observe(at_s(10), "a", &mut leash, 500 * MIB);
        leash.adjust(at_s(10), PAUSED);
        // What was under way.
        obedience.observe(at_s(11), "a", &mut leash, 540 * MIB);
        for s in 12..28 {
            obedience.observe(at_s(s), "a", &mut leash, (540 + s - 11) * MIB);
        }
        assert!(!obedience.is_barred("a", at_s(28)) && obedience.take_found().is_empty());
        obedience.observe(at_s(28), "a", &mut leash, 557 * MIB);
        assert!(obedience.is_barred("a", at_s(28)) && !obedience.is_barred("b", at_s(28)));
        assert_eq!(obedience.take_found(), [("a".to_string(), 17 * MIB)]);
        obedience.observe(at_s(80), "a", &mut leash, 900 * MIB);
        assert!(obedience.take_found().is_empty() && obedience.is_barred("a", at_s(87)));
        assert!(!obedience.is_barred("a", at_s(88)));
        obedience.observe(at_s(90), "a", &mut leash, 950 * MIB);
        assert!(obedience.is_barred("a", at_s(91)), "it still does");
    }

    #[test]
    fn several_requests_of_a_node_count_together() {
        let mut obedience = Obedience::default();
        for _ in 0..5 {
            let mut leash = Leash::new(Nanos(0), PAUSED);
            obedience.observe(at_s(3), "a", &mut leash, 4 * MIB);
        }
        assert_eq!(obedience.take_found(), [("a".to_string(), 20 * MIB)]);
    }

    proptest! {
        /// Whoever keeps to its pace is never barred, whatever that is and however it changes.
        #[test]
        fn who_keeps_to_its_pace_is_never_barred(
            paces in prop::collection::vec((0u32..3, prop::sample::select(vec![0u64, 1, MIB, 100 * MIB]), 0u64..30_000), 1..20)
        ) {
            let (mut obedience, mut now, mut fetched) = (Obedience::default(), Nanos(0), 0u64);
            let mut leash = Leash::new(now, PAUSED);
            for (threads, rate_bytes_per_s, for_ms) in paces {
                let pace = Pace { threads, rate_bytes_per_s, setting: None };
                leash.adjust(now, pace);
                for _ in 0..10 {
                    let step_ms = for_ms / 10;
                    now = now + step_ms * 1_000_000;
                    fetched += match limit(pace) {
                        None => 50 * MIB,
                        Some(rate) => rate * step_ms / 1000,
                    };
                    obedience.observe(now, "a", &mut leash, fetched);
                }
            }
            prop_assert!(obedience.take_found().is_empty());
        }
    }
}
