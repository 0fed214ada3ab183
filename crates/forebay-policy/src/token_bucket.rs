//! A rate limit in exact integers.
//!
//! A bucket holds at most `burst_bytes` of tokens and fills at `rate_bytes_per_s`. Tokens are
//! counted in byte-nanoseconds per second (bytes x 10^9), so that `elapsed_ns * rate` is added
//! without any rounding: a bucket asked a million times per second for a year has not drifted by a
//! byte. The usual bucket with floating-point or whole-byte tokens loses a fraction at each refill,
//! always to the same side, and the more often it is asked the more it loses.
//!
//! There are two ways to ask. [`TokenBucket::take`] grants now or returns when to ask again;
//! nothing is booked meanwhile, so a brake (a lower rate, or 0) acts immediately.
//! [`TokenBucket::reserve`] books immediately and returns how long to wait before going; callers
//! are served in the order in which they asked, but a booked wait does not see a later change of
//! rate.
//!
//! Promise, for any interval: granted bytes <= rate * (interval + 1 ns) + burst. A request above
//! the burst is granted too, and counts as the burst in the intervals it is in (use one of the two
//! ways for such requests; mixed, the excess of one of each kind may meet). The nanosecond is
//! necessary because waits are whole ones, rounded up, and what flows in during the rounding is
//! kept: dropped, it would be a drift again. And the bucket is work conserving: a caller that asks
//! again after the wait that `take` returned is granted, if there was no other in between.

use crate::machine::Nanos;

/// Byte-nanoseconds per second in one byte.
const SCALE: i128 = 1_000_000_000;

/// A wait with the meaning "not before the rate changes".
pub const FOREVER_NS: u64 = u64::MAX;

/// A rate limit with a burst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate_bytes_per_s: u64,
    burst_bytes: u64,
    /// Tokens in bytes x 10^9 at `settled_at`; negative while a reservation or a request above the
    /// burst is being paid.
    level: i128,
    settled_at: Nanos,
}

impl TokenBucket {
    /// Creates a full bucket. A rate of 0 grants only the burst. A burst of 0 is treated as 1 byte,
    /// else nothing could ever be granted.
    pub fn new(now: Nanos, rate_bytes_per_s: u64, burst_bytes: u64) -> Self {
        let burst_bytes = burst_bytes.max(1);
        Self { rate_bytes_per_s, burst_bytes, level: i128::from(burst_bytes) * SCALE, settled_at: now }
    }

    /// Grants `bytes` and returns 0, or grants nothing and returns the nanoseconds after which to
    /// ask again ([`FOREVER_NS`] at rate 0). A request above the burst is granted by a full bucket,
    /// which then is in debt.
    pub fn take(&mut self, now: Nanos, bytes: u64) -> u64 {
        self.settle(now);
        let needed = i128::from(bytes.min(self.burst_bytes)) * SCALE;
        if self.level < needed {
            return self.wait_ns(needed - self.level);
        }
        self.level -= i128::from(bytes) * SCALE;
        0
    }

    /// Books `bytes` and returns how long to wait before using them; reservations are paid in the
    /// order they were made. At rate 0 with too few tokens nothing is booked and the answer is
    /// [`FOREVER_NS`].
    pub fn reserve(&mut self, now: Nanos, bytes: u64) -> u64 {
        self.settle(now);
        let level = self.level - i128::from(bytes) * SCALE;
        let wait_ns = if level >= 0 { 0 } else { self.wait_ns(-level) };
        if wait_ns != FOREVER_NS {
            self.level = level;
        }
        wait_ns
    }

    /// Takes back what was granted and not used (a short read, a cancelled transfer).
    pub fn give_back(&mut self, now: Nanos, bytes: u64) {
        self.settle(now);
        self.level = (self.level + i128::from(bytes) * SCALE).min(self.full());
    }

    /// Changes the rate from `now` on; tokens and debts stay.
    pub fn set_rate(&mut self, now: Nanos, rate_bytes_per_s: u64) {
        self.settle(now);
        self.rate_bytes_per_s = rate_bytes_per_s;
    }

    /// Changes the burst from `now` on; what is more than the new one is lost.
    pub fn set_burst(&mut self, now: Nanos, burst_bytes: u64) {
        self.settle(now);
        self.burst_bytes = burst_bytes.max(1);
        self.level = self.level.min(self.full());
    }

    /// The rate in force.
    pub fn rate_bytes_per_s(&self) -> u64 {
        self.rate_bytes_per_s
    }

    /// The burst in force.
    pub fn burst_bytes(&self) -> u64 {
        self.burst_bytes
    }

    /// Returns the level at which inflow is lost: the burst, and the extra inflow during a wait for
    /// it that is rounded up.
    fn full(&self) -> i128 {
        i128::from(self.burst_bytes) * SCALE + i128::from(self.rate_bytes_per_s.saturating_sub(1))
    }

    /// Adds what has flown in since the last call. A `now` that goes backwards adds nothing.
    fn settle(&mut self, now: Nanos) {
        let elapsed_ns = now.saturating_since(self.settled_at);
        let inflow = i128::from(elapsed_ns) * i128::from(self.rate_bytes_per_s);
        self.level = self.level.saturating_add(inflow).min(self.full());
        self.settled_at = self.settled_at.max(now);
    }

    /// Returns the time until `missing` (> 0) has flown in, rounded up to a nanosecond.
    fn wait_ns(&self, missing: i128) -> u64 {
        let rate = i128::from(self.rate_bytes_per_s);
        if rate == 0 {
            return FOREVER_NS;
        }
        u64::try_from((missing + rate - 1) / rate).unwrap_or(FOREVER_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn burst_then_rate() {
        let mut bucket = TokenBucket::new(Nanos(0), 100, 50);
        assert_eq!(bucket.take(Nanos(0), 50), 0);
        assert_eq!(bucket.take(Nanos(0), 25), SECOND / 4);
        assert_eq!(bucket.take(Nanos(SECOND / 4), 25), 0);
        assert_eq!(bucket.take(Nanos(10 * SECOND), 50), 0, "no more than the burst is kept");
        assert_eq!(bucket.take(Nanos(10 * SECOND), 1), SECOND / 100);
    }

    #[test]
    fn a_brake_acts_at_once_and_lets_go() {
        let mut bucket = TokenBucket::new(Nanos(0), 100, 10);
        assert_eq!(bucket.take(Nanos(0), 10), 0);
        bucket.set_rate(Nanos(0), 0);
        assert_eq!(bucket.take(Nanos(SECOND), 1), FOREVER_NS);
        assert_eq!(bucket.reserve(Nanos(SECOND), 1), FOREVER_NS);
        bucket.set_rate(Nanos(SECOND), 10);
        assert_eq!(bucket.take(Nanos(SECOND), 1), SECOND / 10);
    }

    #[test]
    fn a_request_above_the_burst_is_paid_afterwards() {
        let mut bucket = TokenBucket::new(Nanos(0), 100, 10);
        assert_eq!(bucket.take(Nanos(0), 110), 0);
        assert_eq!(bucket.take(Nanos(0), 10), SECOND + SECOND / 10);
    }

    #[test]
    fn many_tiny_steps_do_not_drift() {
        // 3 bytes per second, asked every 7 ns: each refill is 2.1e-8 bytes and must not be lost.
        let mut bucket = TokenBucket::new(Nanos(0), 3, 1);
        let mut granted = 0;
        let mut now = 0;
        while now < 2 * SECOND / 100 {
            granted += u64::from(bucket.take(Nanos(now), 1) == 0);
            now += 7;
        }
        let mut coarse = TokenBucket::new(Nanos(0), 3, 1);
        assert_eq!(coarse.take(Nanos(0), 1), 0);
        coarse.settle(Nanos(now - 7));
        assert_eq!((granted, bucket.level), (1, coarse.level));
    }

    #[test]
    fn reservations_keep_their_order() {
        let mut bucket = TokenBucket::new(Nanos(0), 100, 10);
        let waits: alloc::vec::Vec<u64> = (0..4).map(|_| bucket.reserve(Nanos(0), 10)).collect();
        assert_eq!(waits, [0, SECOND / 10, SECOND / 5, 3 * SECOND / 10]);
        bucket.give_back(Nanos(0), 10);
        assert_eq!(bucket.reserve(Nanos(0), 10), 3 * SECOND / 10);
    }

    proptest! {
        /// Over every interval between two grants: sum <= rate * (interval + 1 ns) + max(burst,
        /// largest request).
        #[test]
        fn never_above_the_rate(
            rate in 1u64..5_000_000_000,
            burst in 1u64..64_000_000,
            steps in prop::collection::vec((0u64..50_000_000, 0u64..8_000_000, any::<bool>()), 1..120),
            above_burst_by in prop::option::of(any::<bool>()),
        ) {
            let mut bucket = TokenBucket::new(Nanos(0), rate, burst);
            let mut now = 0u64;
            let mut grants = alloc::vec::Vec::new();
            for (pause_ns, bytes, reserve) in steps {
                now += pause_ns;
                let (bytes, reserve) = match above_burst_by {
                    Some(reserve) => (bytes, reserve),
                    None => (bytes % (burst + 1), reserve),
                };
                if reserve {
                    grants.push((now + bucket.reserve(Nanos(now), bytes), bytes));
                } else if bucket.take(Nanos(now), bytes) == 0 {
                    grants.push((now, bytes));
                }
            }
            grants.sort_unstable();
            let largest = grants.iter().map(|grant| grant.1).max().unwrap_or(0).max(burst);
            for first in 0..grants.len() {
                let mut sum = 0u128;
                for &(at, bytes) in &grants[first..] {
                    sum += u128::from(bytes);
                    let allowed = u128::from(rate) * u128::from(at - grants[first].0 + 1)
                        + u128::from(largest) * SCALE as u128;
                    prop_assert!(sum * SCALE as u128 <= allowed);
                }
            }
        }

        /// A caller that waits for the returned time is granted then, and does not wait a
        /// nanosecond too long.
        #[test]
        fn work_conserving(
            rate in 1u64..5_000_000_000,
            burst in 1u64..64_000_000,
            requests in prop::collection::vec(1u64..8_000_000, 1..60),
        ) {
            let mut bucket = TokenBucket::new(Nanos(0), rate, burst);
            let mut now = 0u64;
            let mut granted = 0u128;
            for bytes in requests {
                let wait_ns = bucket.take(Nanos(now), bytes);
                if wait_ns > 0 {
                    prop_assert!(bucket.clone().take(Nanos(now + wait_ns - 1), bytes) > 0);
                    now += wait_ns;
                    prop_assert_eq!(bucket.take(Nanos(now), bytes), 0);
                }
                granted += u128::from(bytes);
            }
            // Asked without pause, the bucket has let through all that flew in: nothing was lost to
            // rounding.
            let inflow = u128::from(rate) * u128::from(now) + u128::from(burst) * SCALE as u128;
            let level = bucket.level;
            prop_assert_eq!(inflow as i128 - (granted * SCALE as u128) as i128, level);
        }

        /// `reserve` and `take` agree on when a single request within the burst may go.
        #[test]
        fn both_ways_agree(rate in 1u64..1_000_000_000, spent in 0u64..1_000, bytes in 1u64..1_000, pause in 0u64..SECOND) {
            let mut taking = TokenBucket::new(Nanos(0), rate, 1_000);
            prop_assert_eq!(taking.take(Nanos(0), spent), 0);
            let mut reserving = taking.clone();
            prop_assert_eq!(taking.take(Nanos(pause), bytes), reserving.reserve(Nanos(pause), bytes));
        }
    }
}
