//! W-LFU: exact use counts, a memory of evicted pages, and a window that is as large as it pays.
//! The default.
//!
//! It is based on W-TinyLFU (Einziger, Friedman, Manes, ACM ToS 2017): newcomers enter a small
//! *window*; a page that drops out of it must have been used more often than the weakest page of
//! the *main* part to take its place. Three things are different, because a tier holds some 10^5
//! pages of 2 MiB and not 10^8 objects of 100 bytes, so that 40 bytes per page are negligible:
//!
//! - **Exact counts instead of a sketch.** Every resident page has its count, and evicted pages
//!   keep theirs as *ghosts*, two per resident page. The main part is ordered by count (one list
//!   per count, the lowest leaves first), not by recency: on a fixed popularity law that is what
//!   LFU does, and with ghosts more, as a page that comes back does not start at one again. Ghosts
//!   that were used once go first when there are too many, so that a scan cannot wash out the rest.
//! - **A margin.** A newcomer needs [`MARGIN`] more uses than the weakest page. In a loop over more
//!   data than the tier holds, all counts differ by one at most; without the margin the page that
//!   was just read (k uses) would displace one that is about to be read (k - 1), page after page,
//!   and hit nothing, as LRU does. With it the tier keeps its part of the loop. For the same reason
//!   a page that enters the main part without a contest is the first to leave among its equals.
//! - **The window follows marginal utility.** Would a larger window have served more? A miss on a
//!   page that dropped out of the window lately (within 1/20 of the capacity) would have been a
//!   hit; a hit on the main part's weakest pages (the same share) would have been a miss. Each of
//!   the former moves the bound one way by twice the page's size, each of the latter the other way
//!   by four times. W-TinyLFU's hill climbing needs whole sample periods of hit ratios, which an
//!   agent that sees sampled touches cannot have, and walks at random where the slope is flat.
//!   Where popularity moves on, the window grows until the policy is LRU; in a loop or a scan it
//!   stays at its smallest.
//!
//! **Ageing.** After [`AGEING_USES_PER_PAGE`] counted uses per page all counts are halved, at the
//! same time, so that counts that differ by one never differ by more. The lists are joined pairwise
//! in O(64); entries and ghosts carry the *era* of their count and are halved when they are next
//! examined.
//!
//! **Bursts.** A page is read in pieces, and each piece may be a touch. Uses of one page within
//! len/8 counted uses of each other count once. A page that is used more often than that loses
//! nothing: there are len/8 such pages at most, all of them far from leaving.
//!
//! **Job change.** The counts of a job that has ended would hold the tier for as long as it takes
//! to age them. When evicted pages come back and resident ones are not used, the longest unused
//! lose their counts (see `stale.rs`).
//!
//! **Read-ahead.** Pages filled ahead wait in a queue of their own, outside the contest they could
//! not win, until their first touch moves them to the window. The queue releases pages, oldest
//! first, when it holds more than a quarter of the capacity or its oldest page has waited for as
//! many uses as there are pages.
//!
//! Cost: 40 bytes for a page or ghost and about 8 for the index. Page sizes are not weighed.

use crate::arena::{Arena, List};
use crate::eviction::{Dump, EvictionPolicy, Fill, Victim};
use alloc::{format, vec, vec::Vec};

mod stale;
#[cfg(test)]
mod tests;
mod window;

/// Counts stop here: there is one list per count, and one word marks the lists that hold pages.
/// Ageing keeps the counts of pages that are near leaving far below.
const MAX_USES: u8 = 63;
/// How many uses more than the weakest page a newcomer needs: the least that holds a loop.
const MARGIN: u8 = 1;
/// Evicted pages remembered per resident page. On zipf 0.7 with a tier of 5 %: one 0.343, two
/// 0.354, four 0.359.
const GHOSTS_PER_PAGE: usize = 2;
/// Counted uses per page between two halvings. 10 (W-TinyLFU's) loses up to 0.015 on zipf; 100
/// adapts too late.
const AGEING_USES_PER_PAGE: u64 = 32;
/// Uses of a page closer together than len/8 counted uses count once.
const BURST_DIVISOR: usize = 8;
/// Pages filled ahead and not read yet may hold a quarter of the capacity.
const AHEAD_DIVISOR: u64 = 4;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Filled ahead, not read yet.
    Ahead,
    Window,
    Main,
    GhostOfWindow,
    GhostOfMain,
}

impl Place {
    fn is_ghost(self) -> bool {
        matches!(self, Place::GhostOfWindow | Place::GhostOfMain)
    }
}

#[derive(Clone, Debug)]
struct Entry {
    /// The count as of `era`; every era since has halved it.
    uses: u8,
    place: Place,
    /// For a ghost of the window: the trail's mark when it left.
    mark: u16,
    era: u32,
    /// The clock at the last counted use.
    stamp: u32,
}

/// W-LFU; see the head of the file.
#[derive(Debug)]
pub struct WindowedLfu {
    arena: Arena<Entry>,
    ahead: List,
    window: List,
    /// One list per count.
    main: Vec<List>,
    /// Bit n is set if `main[n]` is not empty.
    filled: u64,
    main_bytes: u64,
    main_len: usize,
    ghosts: List,
    capacity_bytes: u64,
    /// What the window has earned beyond its smallest size.
    earned_bytes: u64,
    era: u32,
    uses_in_era: u64,
    /// Counted uses up to now; wraps.
    clock: u32,
    /// Bytes that have left the window up to now.
    trail_bytes: u64,
    /// Evidence that the tier holds pages that are no longer used.
    staleness: u32,
    misses_since_hit: u32,
    /// How many counted uses ago the pages that come back were used; rises immediately, falls
    /// slowly.
    return_age: u32,
    refused: Vec<u32>,
}

impl WindowedLfu {
    /// An empty policy for a tier of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            arena: Arena::default(),
            ahead: List::default(),
            window: List::default(),
            main: vec![List::default(); usize::from(MAX_USES) + 1],
            filled: 0,
            main_bytes: 0,
            main_len: 0,
            ghosts: List::default(),
            capacity_bytes,
            earned_bytes: 0,
            era: 0,
            uses_in_era: 0,
            clock: 0,
            trail_bytes: 0,
            staleness: 0,
            misses_since_hit: 0,
            return_age: 0,
            refused: Vec::new(),
        }
    }

    /// Number of evicted pages remembered.
    pub fn ghosts(&self) -> usize {
        self.ghosts.len()
    }

    /// The use count of a resident or remembered page, as aged by now.
    pub fn uses(&self, key: u64) -> Option<u8> {
        self.arena.find(key).map(|slot| self.uses_at(slot))
    }

    fn uses_at(&self, slot: u32) -> u8 {
        let entry = &self.arena.at(slot).data;
        entry.uses >> (self.era - entry.era).min(7)
    }

    fn place(&self, slot: u32) -> Place {
        self.arena.at(slot).data.place
    }

    // --- lists ---

    /// Puts an entry into the list of `place`, at the end that leaves last.
    fn link(&mut self, slot: u32, place: Place) {
        self.arena.at_mut(slot).data.place = place;
        match place {
            Place::Ahead => self.ahead.push_back(&mut self.arena, slot),
            Place::Window => self.window.push_back(&mut self.arena, slot),
            Place::GhostOfWindow | Place::GhostOfMain => self.ghosts.push_back(&mut self.arena, slot),
            Place::Main => {
                let uses = self.uses_at(slot);
                self.main[usize::from(uses)].push_back(&mut self.arena, slot);
                self.count_in(slot, uses);
            }
        }
    }

    /// Puts an entry into the main part as the first to leave among its equals.
    fn link_on_trial(&mut self, slot: u32) {
        let uses = self.uses_at(slot);
        self.arena.at_mut(slot).data.place = Place::Main;
        self.main[usize::from(uses)].push_front(&mut self.arena, slot);
        self.count_in(slot, uses);
    }

    fn count_in(&mut self, slot: u32, uses: u8) {
        self.filled |= 1 << uses;
        self.main_bytes += u64::from(self.arena.at(slot).bytes);
        self.main_len += 1;
    }

    fn unlink(&mut self, slot: u32) {
        match self.place(slot) {
            Place::Ahead => self.ahead.unlink(&mut self.arena, slot),
            Place::Window => self.window.unlink(&mut self.arena, slot),
            Place::GhostOfWindow | Place::GhostOfMain => self.ghosts.unlink(&mut self.arena, slot),
            Place::Main => {
                let uses = self.uses_at(slot);
                let list = &mut self.main[usize::from(uses)];
                list.unlink(&mut self.arena, slot);
                self.filled &= !(u64::from(list.is_empty()) << uses);
                self.main_bytes -= u64::from(self.arena.at(slot).bytes);
                self.main_len -= 1;
            }
        }
    }

    /// The first page of the lowest of the lists in `filled`.
    fn first_of(&self, filled: u64) -> Option<u32> {
        (filled != 0).then(|| self.main[filled.trailing_zeros() as usize].front()).flatten()
    }

    /// The page of the main part that leaves after `slot`.
    fn following(&self, slot: u32) -> Option<u32> {
        let uses = self.uses_at(slot);
        let higher = self.filled & !(u64::MAX >> (u32::from(MAX_USES - uses)));
        self.main[usize::from(uses)].after(&self.arena, slot).or_else(|| self.first_of(higher))
    }

    // --- counting ---

    /// Counts one use of an unlinked entry.
    fn count(&mut self, slot: u32) {
        let (uses, era, clock) = (self.uses_at(slot), self.era, self.clock);
        let entry = &mut self.arena.at_mut(slot).data;
        (entry.uses, entry.era, entry.stamp) = ((uses + 1).min(MAX_USES), era, clock);
        self.tick();
    }

    fn tick(&mut self) {
        self.clock = self.clock.wrapping_add(1);
        self.uses_in_era += 1;
    }

    fn age_if_due(&mut self) {
        // A small tier would age all the time, so it counts as one of 64 pages.
        if self.uses_in_era < AGEING_USES_PER_PAGE * (self.len() as u64).max(64) {
            return;
        }
        self.uses_in_era = 0;
        self.era += 1;
        self.filled = 0;
        for uses in 0..=MAX_USES {
            let pages = core::mem::take(&mut self.main[usize::from(uses)]);
            self.main[usize::from(uses / 2)].append(&mut self.arena, pages);
            self.filled |= u64::from(!self.main[usize::from(uses / 2)].is_empty()) << (uses / 2);
        }
    }

    fn use_resident(&mut self, slot: u32) {
        self.note_hit();
        let place = self.place(slot);
        if place == Place::Main {
            self.value_main(slot);
        }
        let burst = (self.len() / BURST_DIVISOR) as u32;
        let is_counted = self.clock.wrapping_sub(self.arena.at(slot).data.stamp) >= burst;
        if place == Place::Main && !is_counted {
            // It keeps its turn: the touch that follows a page's insertion would otherwise move
            // what was just read behind all that was read as often before.
            return;
        }
        self.unlink(slot);
        if place == Place::Ahead {
            self.arena.at_mut(slot).data.stamp = self.clock;
        } else if is_counted {
            self.count(slot);
        }
        self.link(slot, if place == Place::Ahead { Place::Window } else { place });
    }

    // --- eviction ---

    /// Turns a resident page into a ghost.
    fn expel(&mut self, slot: u32) -> Victim {
        self.unlink(slot);
        let node = self.arena.at(slot);
        let victim = Victim { key: node.key, bytes: node.bytes };
        let place = if node.data.place == Place::Window {
            self.trail_bytes += u64::from(victim.bytes);
            self.arena.at_mut(slot).data.mark = self.trail_mark();
            Place::GhostOfWindow
        } else {
            Place::GhostOfMain
        };
        self.link(slot, place);
        victim
    }

    fn bound_ghosts(&mut self) {
        let bound = GHOSTS_PER_PAGE * self.len().max(64);
        while self.ghosts.len() > bound {
            let Some(slot) = self.ghosts.front() else { return };
            let (uses, era) = (self.uses_at(slot), self.era);
            self.unlink(slot);
            if uses < 2 {
                self.arena.discard(slot);
                continue;
            }
            let entry = &mut self.arena.at_mut(slot).data;
            (entry.uses, entry.era) = (uses / 2, era);
            self.link(slot, Place::GhostOfMain);
        }
    }

    /// Returns whether a page filled ahead has waited too long, or too many of them wait.
    fn overdue(&self, slot: u32) -> bool {
        let waited = self.clock.wrapping_sub(self.arena.at(slot).data.stamp);
        self.ahead.bytes() > self.capacity_bytes / AHEAD_DIVISOR || waited as usize > self.len()
    }
}

/// The state of an eviction: the next page to examine in each part.
struct Walk {
    ahead: Option<u32>,
    newcomer: Option<u32>,
    resident: Option<u32>,
}

impl WindowedLfu {
    /// Returns the next page to go, and the newcomer that takes its place in the main part, if one
    /// does.
    fn pick(&self, walk: &mut Walk, freed_bytes: u64) -> Option<(u32, Option<u32>)> {
        if let Some(slot) = walk
            .ahead
            .filter(|&slot| self.overdue(slot) || (walk.newcomer.is_none() && walk.resident.is_none()))
        {
            walk.ahead = self.ahead.after(&self.arena, slot);
            return Some((slot, None));
        }
        // What is freed will be filled by newcomers, which push out the window's front: that page
        // contests.
        let due = self.window.bytes() + freed_bytes >= self.window_target_bytes();
        let winner = match (walk.newcomer, walk.resident) {
            (Some(newcomer), Some(resident)) if due => {
                // In an idle tier a page without uses gives way to anyone, else a first pass over
                // new data leaves no trace.
                let bar = match self.uses_at(resident) {
                    0 if self.is_idle() => 0,
                    uses => uses.saturating_add(MARGIN),
                };
                Some(newcomer).filter(|&newcomer| self.uses_at(newcomer) > bar)
            }
            _ => None,
        };
        let newcomer_goes = walk.resident.is_none() || (due && walk.newcomer.is_some() && winner.is_none());
        if newcomer_goes {
            let slot = walk.newcomer?;
            walk.newcomer = self.window.after(&self.arena, slot);
            Some((slot, None))
        } else {
            let slot = walk.resident?;
            walk.resident = self.following(slot);
            Some((slot, winner))
        }
    }
}

impl EvictionPolicy for WindowedLfu {
    fn insert(&mut self, key: u64, bytes: u32, fill: Fill) {
        let known = self.arena.find(key);
        if let Some(slot) = known.filter(|&slot| !self.place(slot).is_ghost()) {
            let place = self.place(slot);
            self.unlink(slot);
            self.arena.at_mut(slot).bytes = bytes;
            self.link(slot, place);
            self.use_resident(slot);
            return self.age_if_due();
        }
        self.note_miss();
        let place = if fill == Fill::Ahead { Place::Ahead } else { Place::Window };
        let slot = match known {
            Some(slot) => {
                self.value_window(slot);
                self.note_return(slot);
                self.unlink(slot);
                self.arena.at_mut(slot).bytes = bytes;
                slot
            }
            None => {
                let entry = Entry { uses: 0, place, mark: 0, era: self.era, stamp: 0 };
                self.arena.add(key, bytes, entry)
            }
        };
        // A page filled ahead is counted now and not at its first touch: read-ahead is rarely
        // wrong, and its turn in the contest comes after that touch anyway.
        self.count(slot);
        self.link(slot, place);
        self.age_if_due();
        self.settle();
    }

    fn touch(&mut self, key: u64) {
        let Some(slot) = self.arena.find(key).filter(|&slot| !self.place(slot).is_ghost()) else { return };
        self.use_resident(slot);
        self.age_if_due();
    }

    fn remove(&mut self, key: u64) -> Option<u32> {
        let slot = self.arena.find(key)?;
        let resident = !self.place(slot).is_ghost();
        self.unlink(slot);
        let bytes = self.arena.discard(slot);
        resident.then_some(bytes)
    }

    fn evict(
        &mut self,
        want_bytes: u64,
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        let mut freed_bytes = 0;
        self.demote_stale(want_bytes);
        let mut refused = core::mem::take(&mut self.refused);
        let mut walk = Walk {
            ahead: self.ahead.front(),
            newcomer: self.window.front(),
            resident: self.first_of(self.filled),
        };
        let mut again = false;
        while freed_bytes < want_bytes {
            let Some((slot, winner)) = self.pick(&mut walk, freed_bytes) else {
                // A winner may have entered the main part behind the walk. Check there once more,
                // then give up.
                if !core::mem::take(&mut again) {
                    break;
                }
                walk.resident = self.first_of(self.filled);
                continue;
            };
            if !may_evict(self.arena.at(slot).key) {
                refused.push(slot);
                continue;
            }
            let victim = self.expel(slot);
            freed_bytes += u64::from(victim.bytes);
            victims.push(victim);
            if let Some(winner) = winner {
                walk.newcomer = self.window.after(&self.arena, winner);
                self.unlink(winner);
                self.link(winner, Place::Main);
                again = true;
            }
        }
        // Counted as used, else every later call would walk over the same pinned pages again.
        for slot in refused.drain(..) {
            let place = self.place(slot);
            self.unlink(slot);
            self.count(slot);
            self.link(slot, place);
        }
        self.refused = refused;
        self.bound_ghosts();
        freed_bytes
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
        self.bound_window();
        self.settle();
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn contains(&self, key: u64) -> bool {
        self.arena.find(key).is_some_and(|slot| !self.place(slot).is_ghost())
    }

    fn len(&self) -> usize {
        self.ahead.len() + self.window.len() + self.main_len
    }

    fn bytes(&self) -> u64 {
        self.ahead.bytes() + self.window.bytes() + self.main_bytes
    }

    fn dump(&self) -> Dump {
        let mut queues = vec![
            ("ahead".into(), self.ahead.keys(&self.arena)),
            ("window".into(), self.window.keys(&self.arena)),
        ];
        for (uses, list) in self.main.iter().enumerate().filter(|(_, list)| !list.is_empty()) {
            queues.push((format!("main, uses {uses}"), list.keys(&self.arena)));
        }
        queues.push(("ghosts".into(), self.ghosts.keys(&self.arena)));
        Dump { queues }
    }
}
