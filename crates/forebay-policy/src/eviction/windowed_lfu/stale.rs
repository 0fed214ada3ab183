//! Noticing that the job has changed.
//!
//! Counts only reflect the past. When one job ends and the next reads other data, the tier is full
//! of high counts that will not be used again, and ageing takes 32 uses per page to halve them. The
//! sign of this: evicted pages keep coming back while the pages that stayed are not used. There are
//! two ghosts per resident page, so even if the tier had chosen no better than by chance, ghosts
//! would be used at most twice as often as residents. Beyond four times, over an eighth of the
//! tier, the tier is *stale*: pages unused for half as long again as those that come back had been,
//! and for as many uses as there are pages at least, lose their count and are the next to leave,
//! the longest unused first. The age is what keeps a loop over more data than the tier safe: there,
//! what is kept is used once a round, and a round is the age at which pages come back.
//!
//! Data of more than three times the tier returns after its ghosts are forgotten. There the tier is
//! stale after misses of eight times its pages without one hit (long enough for a scan to pass),
//! and a page that has lost its count gives way to any newcomer.

use super::{Place, WindowedLfu};
use crate::eviction::EvictionPolicy;

/// Returns of ghosts that one use of a resident page outweighs.
const RETURNS_PER_HIT: u32 = 4;
/// The tier is stale when returns outweigh hits by this part of its pages.
const STALE_DIVISOR: usize = 8;
/// The tier is idle, and stale too, after misses of this many times its pages without one hit.
const IDLE_TIERS: usize = 8;
/// With each return, the age of the pages that come back falls by one part in this many of the
/// difference.
const AGE_MEMORY: u32 = 64;

impl WindowedLfu {
    /// Records the use of a resident page.
    pub(super) fn note_hit(&mut self) {
        self.staleness = self.staleness.saturating_sub(RETURNS_PER_HIT);
        self.misses_since_hit = 0;
    }

    /// Records that a page that was not resident was filled.
    pub(super) fn note_miss(&mut self) {
        self.misses_since_hit = self.misses_since_hit.saturating_add(1);
    }

    /// Returns whether there was no hit for long enough that the tier seems unused.
    pub(super) fn is_idle(&self) -> bool {
        self.misses_since_hit as usize > IDLE_TIERS * self.len().max(64)
    }

    fn is_stale(&self) -> bool {
        self.is_idle() || self.staleness as usize > self.len().max(64) / STALE_DIVISOR
    }

    /// Records that an evicted page is back.
    pub(super) fn note_return(&mut self, slot: u32) {
        // At most the number of pages in the tier, so that it is over soon when residents are used
        // again.
        self.staleness = (self.staleness + 1).min(self.len() as u32);
        let age = self.clock.wrapping_sub(self.arena.at(slot).data.stamp);
        self.return_age =
            age.max(self.return_age - (self.return_age.saturating_sub(age)).div_ceil(AGE_MEMORY));
    }

    /// If the tier is stale: takes the count of the longest unused pages, up to `want_bytes` of
    /// them.
    pub(super) fn demote_stale(&mut self, want_bytes: u64) {
        if !self.is_stale() {
            return;
        }
        let stale_age = (self.return_age / 2).saturating_add(self.return_age).max(self.len() as u32);
        while self.main[0].bytes() < want_bytes {
            let Some((age, slot)) = self.longest_unused() else { return };
            if age <= stale_age {
                return;
            }
            self.unlink(slot);
            let era = self.era;
            let entry = &mut self.arena.at_mut(slot).data;
            (entry.uses, entry.era) = (0, era);
            self.link(slot, Place::Main);
        }
    }

    /// Returns, among the first pages of the lists with a count, the longest unused one and its
    /// age. Joined lists are in order only piece by piece, so it may not be the oldest of all; the
    /// next call comes closer.
    fn longest_unused(&self) -> Option<(u32, u32)> {
        let lists = self.main[1..].iter();
        let age = |slot: u32| self.clock.wrapping_sub(self.arena.at(slot).data.stamp);
        lists.filter_map(|list| list.front()).map(|slot| (age(slot), slot)).max()
    }
}
