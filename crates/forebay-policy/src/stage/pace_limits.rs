//! Checks that nodes keep to the pace of their prefetch requests.
//!
//! Planners keep deadlines by pausing requests and limiting their rate. An agent that ignores this
//! spends slack that no plan accounts for. The machine excludes it from new requests for a minute
//! and reports it.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::waves::Pace;
use crate::machine::Nanos;

/// How long after a change of the pace a node may take to finish the pages under way and report
/// them.
const SETTLE_NS: u64 = 2_000_000_000;

/// Bytes by which a node may exceed its paces: about the pages under way at its fetch threads.
pub const TOLERATED_BYTES: u64 = 16 << 20;

/// Bytes that a thread of a request may have under way when its pace changes: a page, unless
/// `mount.page_size` is larger. Pages stop in their middle in a pause, and are completed whenever
/// any request of the node continues.
const UNDER_WAY_BYTES: u64 = 4 << 20;

/// Factor by which a node may exceed a rate: bursts and differences of clocks.
const TOLERATED_TIMES: u64 = 2;

/// How long a node is excluded, and how long bytes beyond its paces count.
pub const EXCLUSION_NS: u64 = 60_000_000_000;

/// The bytes that one request may fetch at its pace.
#[derive(Clone, Copy, Debug)]
pub struct PaceLimit {
    /// When the request got this pace.
    since: Nanos,
    /// Bytes per second; `None` for no limit.
    rate_bytes_per_s: Option<u64>,
    /// Bytes reported up to now.
    fetched_bytes: u64,
    /// The part of `fetched_bytes` that was reported before the pace had to take effect.
    settled_bytes: u64,
    /// Bytes beyond the pace that are in the node's account.
    counted_bytes: u64,
    /// Pages at a time.
    threads: u32,
    /// Bytes of pages that were under way when the pace changed.
    under_way_bytes: u64,
}

impl PaceLimit {
    /// Creates the limit of a new request.
    pub fn new(now: Nanos, pace: Pace) -> Self {
        PaceLimit {
            since: now,
            rate_bytes_per_s: limit(pace),
            fetched_bytes: 0,
            settled_bytes: 0,
            counted_bytes: 0,
            threads: pace.threads,
            under_way_bytes: 0,
        }
    }

    /// Changes the pace.
    pub fn adjust(&mut self, now: Nanos, pace: Pace) {
        let fetched_bytes = self.fetched_bytes;
        // What was under way before an earlier pause may still come.
        let came = fetched_bytes.saturating_sub(self.settled_bytes);
        let left = self.under_way_bytes.saturating_sub(came);
        let under_way_bytes = left.max(u64::from(self.threads) * UNDER_WAY_BYTES);
        *self = PaceLimit {
            fetched_bytes,
            settled_bytes: fetched_bytes,
            under_way_bytes,
            ..PaceLimit::new(now, pace)
        };
    }

    /// Records that the request has fetched `fetched_bytes` by now. Returns the additional bytes
    /// beyond its pace.
    fn observe(&mut self, now: Nanos, fetched_bytes: u64) -> u64 {
        self.fetched_bytes = fetched_bytes;
        let Some(rate) = self.rate_bytes_per_s else { return 0 };
        let for_ns = now.saturating_since(self.since);
        if for_ns < SETTLE_NS {
            let came = fetched_bytes.saturating_sub(self.settled_bytes);
            self.under_way_bytes = self.under_way_bytes.saturating_sub(came);
            self.settled_bytes = fetched_bytes;
            return 0;
        }
        let allowed = u128::from(rate) * u128::from(TOLERATED_TIMES) * u128::from(for_ns) / 1_000_000_000;
        let beyond = fetched_bytes.saturating_sub(self.settled_bytes.saturating_add(self.under_way_bytes));
        let too_much = beyond.saturating_sub(u64::try_from(allowed).unwrap_or(u64::MAX));
        let more = too_much.saturating_sub(self.counted_bytes);
        self.counted_bytes += more;
        more
    }
}

/// Returns the rate of a pace, 0 in a pause.
fn limit(pace: Pace) -> Option<u64> {
    match pace {
        Pace { threads: 0, .. } => Some(0),
        Pace { rate_bytes_per_s: 0, .. } => None,
        Pace { rate_bytes_per_s, .. } => Some(rate_bytes_per_s),
    }
}

/// The bytes that nodes have fetched beyond their paces.
#[derive(Debug, Default)]
pub struct PaceLimits {
    by_node: BTreeMap<String, Account>,
    /// Nodes to report, with their bytes.
    found: Vec<(String, u64)>,
}

#[derive(Debug)]
struct Account {
    since: Nanos,
    bytes: u64,
    until: Option<Nanos>,
}

impl PaceLimits {
    /// Records that a request of `node` has fetched `fetched_bytes`. Returns whether this excludes
    /// the node.
    pub fn observe(
        &mut self,
        now: Nanos,
        node: &str,
        pace_limit: &mut PaceLimit,
        fetched_bytes: u64,
    ) -> bool {
        let more = pace_limit.observe(now, fetched_bytes);
        if more == 0 {
            return false;
        }
        self.by_node.retain(|_, account| now.saturating_since(account.since) < EXCLUSION_NS);
        let new = || Account { since: now, bytes: 0, until: None };
        let account = self.by_node.entry(node.to_string()).or_insert_with(new);
        account.bytes += more;
        if account.bytes <= TOLERATED_BYTES || account.until.is_some() {
            return false;
        }
        (account.since, account.until) = (now, Some(now + EXCLUSION_NS));
        self.found.push((node.to_string(), account.bytes));
        true
    }

    /// Forgets a node that has joined again, without requests.
    pub fn forget(&mut self, node: &str) {
        self.by_node.remove(node);
    }

    /// Returns whether the node gets no requests now.
    pub fn is_excluded(&self, node: &str, now: Nanos) -> bool {
        self.by_node.get(node).and_then(|account| account.until).is_some_and(|until| now < until)
    }

    /// Returns the nodes that were excluded since the last call, and the bytes beyond their paces.
    pub fn take_violations(&mut self) -> Vec<(String, u64)> {
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
    fn a_node_that_fetches_on_in_a_pause_is_excluded_for_a_minute_and_reported_once() {
        let unlimited = Pace { threads: 1, ..Pace::default() };
        let (mut pace_limits, mut pace_limit) = (PaceLimits::default(), PaceLimit::new(Nanos(0), unlimited));
        pace_limits.observe(at_s(10), "a", &mut pace_limit, 500 * MIB);
        pace_limit.adjust(at_s(10), PAUSED);
        // What was under way.
        pace_limits.observe(at_s(11), "a", &mut pace_limit, 540 * MIB);
        for s in 12..28 {
            pace_limits.observe(at_s(s), "a", &mut pace_limit, (540 + s - 11) * MIB);
        }
        assert!(!pace_limits.is_excluded("a", at_s(28)) && pace_limits.take_violations().is_empty());
        pace_limits.observe(at_s(28), "a", &mut pace_limit, 557 * MIB);
        assert!(pace_limits.is_excluded("a", at_s(28)) && !pace_limits.is_excluded("b", at_s(28)));
        assert_eq!(pace_limits.take_violations(), [("a".to_string(), 17 * MIB)]);
        pace_limits.observe(at_s(80), "a", &mut pace_limit, 900 * MIB);
        assert!(pace_limits.take_violations().is_empty() && pace_limits.is_excluded("a", at_s(87)));
        assert!(!pace_limits.is_excluded("a", at_s(88)));
        pace_limits.observe(at_s(90), "a", &mut pace_limit, 950 * MIB);
        assert!(pace_limits.is_excluded("a", at_s(91)), "it still does");
        pace_limits.forget("a");
        assert!(!pace_limits.is_excluded("a", at_s(91)), "it was started again");
    }

    /// A planner fetches other waves for a while: the page of each request that was under way comes
    /// when the node's other requests continue.
    #[test]
    fn pages_that_were_stopped_in_a_pause_do_not_count() {
        let unlimited = Pace { threads: 1, ..Pace::default() };
        let mut pace_limits = PaceLimits::default();
        for switch in 0..20 {
            let mut pace_limit = PaceLimit::new(at_s(switch), unlimited);
            pace_limits.observe(at_s(switch), "a", &mut pace_limit, 8 * MIB);
            pace_limit.adjust(at_s(switch), PAUSED);
            pace_limits.observe(at_s(switch + 3), "a", &mut pace_limit, 10 * MIB);
            pace_limit.adjust(at_s(switch + 4), PAUSED);
            pace_limits.observe(at_s(switch + 7), "a", &mut pace_limit, 12 * MIB);
        }
        assert!(pace_limits.take_violations().is_empty());
        // Nor do two pauses in a row allow twice as much.
        let mut pace_limit = PaceLimit::new(at_s(30), unlimited);
        for s in 31..36 {
            pace_limit.adjust(at_s(3 * s), PAUSED);
            pace_limits.observe(at_s(3 * s + 2), "b", &mut pace_limit, (s - 30) * 4 * MIB);
        }
        assert!(pace_limits.take_violations().is_empty());
        pace_limits.observe(at_s(108), "b", &mut pace_limit, 21 * MIB);
        assert_eq!(pace_limits.take_violations(), [("b".to_string(), 17 * MIB)]);
    }

    #[test]
    fn several_requests_of_a_node_count_together() {
        let mut pace_limits = PaceLimits::default();
        for _ in 0..5 {
            let mut pace_limit = PaceLimit::new(Nanos(0), PAUSED);
            pace_limits.observe(at_s(3), "a", &mut pace_limit, 4 * MIB);
        }
        assert_eq!(pace_limits.take_violations(), [("a".to_string(), 20 * MIB)]);
    }

    proptest! {
        /// A node that keeps to its paces is never excluded, however they change.
        #[test]
        fn a_node_that_keeps_to_its_paces_is_never_excluded(
            paces in prop::collection::vec((0u32..3, prop::sample::select(vec![0u64, 1, MIB, 100 * MIB]), 0u64..30_000), 1..20)
        ) {
            let (mut pace_limits, mut now, mut fetched) = (PaceLimits::default(), Nanos(0), 0u64);
            let mut pace_limit = PaceLimit::new(now, PAUSED);
            for (threads, rate_bytes_per_s, for_ms) in paces {
                let pace = Pace { threads, rate_bytes_per_s, setting: None };
                pace_limit.adjust(now, pace);
                for _ in 0..10 {
                    let step_ms = for_ms / 10;
                    now = now + step_ms * 1_000_000;
                    fetched += match limit(pace) {
                        None => 50 * MIB,
                        Some(rate) => rate * step_ms / 1000,
                    };
                    pace_limits.observe(now, "a", &mut pace_limit, fetched);
                }
            }
            prop_assert!(pace_limits.take_violations().is_empty());
        }
    }
}
