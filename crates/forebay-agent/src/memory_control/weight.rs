//! The size by which other nodes place extents on this one.
//!
//! An extent that changes its owner is fetched again, so a capacity that goes up and down must not
//! move extents. The size follows the capacity only once that has been out of its range for a
//! while: below half of the size, above twice the size, or at the maximum again. What the operator
//! sets counts immediately.

use forebay_policy::machine::Nanos;

/// How long the capacity has to be out of range.
const LASTS_NS: u64 = 30_000_000_000;

/// See the module.
pub struct Weight {
    bytes: u64,
    max_bytes: u64,
    /// Since when the capacity has been out of range, and whether above it.
    out: Option<(Nanos, bool)>,
}

impl Weight {
    /// Follows a capacity that is `bytes` now.
    pub fn new(bytes: u64) -> Self {
        Weight { bytes, max_bytes: bytes, out: None }
    }

    /// The size, where the capacity is `capacity_bytes` of `max_bytes`.
    pub fn of(&mut self, now: Nanos, capacity_bytes: u64, max_bytes: u64) -> u64 {
        if max_bytes != self.max_bytes {
            *self = Weight { bytes: max_bytes, max_bytes, out: None };
        }
        let is_full_again = capacity_bytes == max_bytes && self.bytes != max_bytes;
        let is_out = capacity_bytes < self.bytes / 2 || capacity_bytes / 2 > self.bytes || is_full_again;
        let is_above = capacity_bytes > self.bytes;
        match self.out {
            _ if !is_out => self.out = None,
            Some((since, above)) if above == is_above => {
                if now.saturating_since(since) >= LASTS_NS {
                    (self.bytes, self.out) = (capacity_bytes, None);
                }
            }
            _ => self.out = Some((now, is_above)),
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(weight: &mut Weight, s: u64, capacity: u64) -> u64 {
        weight.of(Nanos(s * 1_000_000_000), capacity, 100)
    }

    #[test]
    fn a_capacity_that_swings_moves_nothing_and_one_that_stays_does() {
        let mut weight = Weight::new(100);
        for s in 0..320 {
            let capacity = if (s / 20) % 2 == 0 { 10 } else { 80 };
            assert_eq!(at(&mut weight, s, capacity), 100, "at {s} s");
        }
        at(&mut weight, 320, 20);
        assert_eq!(at(&mut weight, 349, 20), 100);
        assert_eq!(at(&mut weight, 350, 20), 20);
        assert_eq!(at(&mut weight, 400, 39), 20, "less than twice");
        for s in 0..100 {
            let capacity = if s % 2 == 0 { 5 } else { 80 };
            assert_eq!(at(&mut weight, 400 + s, capacity), 20, "from one side to the other, {s}");
        }
        at(&mut weight, 501, 100);
        assert_eq!(at(&mut weight, 531, 100), 100, "all of it again");
        assert_eq!(weight.of(Nanos(532_000_000_000), 50, 50), 50, "the operator has set it");
    }
}
