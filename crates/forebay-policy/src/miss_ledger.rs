//! Whether, and when, a page that small random reads keep missing is worth filling.
//!
//! Filling a 2 MiB page for a 4 KiB read moves 512 times the bytes; done by reflex, a random reader
//! of a large file gets a fraction of the file system's speed and empties the tier besides. It is
//! the ski-rental problem: each miss pays rent, filling buys. So a page is bought once the rent
//! paid for it has reached its price, which never costs more than twice as much as the best
//! decision made with hindsight. Rent and price are counted in bytes; a small read costs the file
//! system as much as [`LEAST_RENT_BYTES`], since its time goes into the request and not into the
//! bytes.
//!
//! Twice the cost is still too much for a tier that must not slow down any program while it warms
//! up. So filling has a budget of its own, into which every miss pays a share of its rent and from
//! which every fill is paid: misses lose no more than that share of the file system to fills, and
//! the first fill has to be saved for.
//!
//! The memory is the last `capacity` missed pages. It ages by other misses and not by time: a page
//! that came back after fewer misses than the tier has pages would have been a hit had it been
//! filled, which is the criterion here.

use crate::arena::{Arena, List};

/// Least cost of a small read: the bytes a file system moves in the time of one request.
pub const LEAST_RENT_BYTES: u64 = 64 << 10;

/// A bounded memory of missed pages and the rent paid for each.
#[derive(Debug)]
pub struct MissLedger {
    arena: Arena<u64>,
    /// Slots, the oldest first.
    missed: List,
    capacity: usize,
    /// Hundredths of the misses' rent that fills may cost, 0 to 100.
    share_percent: u32,
    /// Hundredths of bytes saved for fills; never more than the next one costs, so that a long time
    /// of misses on pages that do not pay is not followed by a burst of fills.
    budget: u64,
    /// A fill is under way.
    filling: bool,
}

impl MissLedger {
    /// Creates a ledger of up to `capacity` pages; fills may cost `share_percent` of the misses.
    /// With 0 for either no page is ever filled.
    pub fn new(capacity: usize, share_percent: u32) -> Self {
        MissLedger {
            arena: Arena::default(),
            missed: List::default(),
            capacity,
            share_percent: share_percent.min(100),
            budget: 0,
            filling: false,
        }
    }

    /// Reports a miss of `read_bytes` on a page of `page_bytes`. `true`: fill the page now, and
    /// call [`MissLedger::filled`] when that has ended, whether it succeeded or not.
    pub fn missed(&mut self, key: u64, read_bytes: u64, page_bytes: u64) -> bool {
        let rent = read_bytes.max(LEAST_RENT_BYTES);
        let paid = match self.forget(key) {
            Some(paid) => paid.saturating_add(rent),
            None => rent,
        };
        let price = page_bytes.saturating_mul(100);
        self.budget = self.budget.saturating_add(rent.saturating_mul(self.share_percent.into())).min(price);
        if paid >= page_bytes && self.budget == price && !self.filling && self.capacity > 0 {
            self.filling = true;
            self.budget = 0;
            return true;
        }
        if self.capacity > 0 {
            self.shrink_to(self.capacity - 1);
            let slot = self.arena.add(key, 0, paid);
            self.missed.push_back(&mut self.arena, slot);
        }
        false
    }

    /// Reports that the requested fill has ended.
    pub fn filled(&mut self) {
        self.filling = false;
    }

    /// Forgets a page; returns the rent paid for it.
    fn forget(&mut self, key: u64) -> Option<u64> {
        let slot = self.arena.find(key)?;
        let paid = self.arena.at(slot).data;
        self.missed.unlink(&mut self.arena, slot);
        self.arena.discard(slot);
        Some(paid)
    }

    /// Number of pages remembered.
    pub fn len(&self) -> usize {
        self.missed.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.missed.is_empty()
    }

    fn shrink_to(&mut self, len: usize) {
        while self.missed.len() > len {
            let Some(oldest) = self.missed.front() else { return };
            self.missed.unlink(&mut self.arena, oldest);
            self.arena.discard(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn a_page_is_filled_when_the_rent_has_reached_its_price() {
        let mut ledger = MissLedger::new(8, 100);
        let small = (0..40).position(|_| ledger.missed(1, 4096, PAGE));
        assert_eq!(small, Some((PAGE / LEAST_RENT_BYTES) as usize - 1));
        ledger.filled();
        let large = (0..40).position(|_| ledger.missed(2, PAGE / 4, PAGE));
        assert_eq!(large, Some(3));
    }

    #[test]
    fn fills_cost_their_share_of_the_misses_and_the_first_is_saved_for() {
        let mut ledger = MissLedger::new(8, 5);
        let mut fills = Vec::new();
        for miss in 1..=1000 {
            if ledger.missed(miss % 3, PAGE / 2, PAGE) {
                fills.push(miss);
                ledger.filled();
            }
        }
        assert_eq!(fills[..3], [40, 80, 120], "20 pages' worth of misses for each");
    }

    #[test]
    fn one_fill_at_a_time() {
        let mut ledger = MissLedger::new(8, 100);
        assert!(ledger.missed(1, PAGE, PAGE));
        assert!(!ledger.missed(2, PAGE, PAGE));
        ledger.filled();
        assert!(ledger.missed(2, PAGE, PAGE), "what was missed meanwhile is not forgotten");
    }

    #[test]
    fn the_memory_is_bounded_and_the_oldest_goes_first() {
        let mut ledger = MissLedger::new(3, 100);
        (0..4).for_each(|key| assert!(!ledger.missed(key, PAGE / 2, PAGE)));
        assert_eq!(ledger.len(), 3);
        assert!(!ledger.missed(0, PAGE / 2, PAGE), "0 was the oldest of four and is forgotten");
        assert!(ledger.missed(3, PAGE / 2, PAGE));
        for never in [MissLedger::new(0, 50), MissLedger::new(8, 0)] {
            let mut never = never;
            assert!(!(0..99).any(|_| never.missed(5, PAGE, PAGE)));
        }
    }
}
