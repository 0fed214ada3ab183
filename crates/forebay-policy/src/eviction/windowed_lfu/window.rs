//! How large the window is: what it would have gained by being larger against what the main part
//! would have lost.

use super::{Place, WindowedLfu};

/// The smallest window, in thousandths of the capacity: W-TinyLFU's 1 %.
const MIN_WINDOW_PERMILLE: u64 = 10;
/// The largest window. Some of the main part must remain, or there is nothing to measure it by.
const MAX_WINDOW_PERMILLE: u64 = 990;
/// The window's gain and the main part's loss are measured over 1/20 of the capacity.
const MARGINAL_DIVISOR: u64 = 20;
/// Bytes by which the window's bound moves per byte that a larger window would have served.
pub(super) const WINDOW_GAIN: u64 = 2;
/// ... and per byte that it would have lost. More than the gain, since misses are all seen and
/// touches are sampled: with one touch in four reported, equal weights lose to LFU on scans by up
/// to 0.007 and these do not. Where popularity moves it costs up to 0.04.
const WINDOW_LOSS: u64 = 4;
/// The distance between a page's leaving the window and its return is measured in 1/64 of the
/// marginal part, by marks of 16 bits: they wrap after 51 times the capacity, when a ghost is long
/// forgotten.
const MARKS_PER_MARGIN: u64 = 64;

impl WindowedLfu {
    /// Returns the current size of the window for newcomers.
    pub fn window_target_bytes(&self) -> u64 {
        self.permille(MIN_WINDOW_PERMILLE) + self.earned_bytes
    }

    fn permille(&self, permille: u64) -> u64 {
        (u128::from(self.capacity_bytes) * u128::from(permille) / 1000) as u64
    }

    fn marginal_bytes(&self) -> u64 {
        self.capacity_bytes / MARGINAL_DIVISOR
    }

    pub(super) fn trail_mark(&self) -> u16 {
        (self.trail_bytes / (self.marginal_bytes() / MARKS_PER_MARGIN).max(1)) as u16
    }

    /// Values the return of a remembered page: if it left the window only shortly before, a larger
    /// window would have kept it.
    pub(super) fn value_window(&mut self, slot: u32) {
        let node = self.arena.at(slot);
        let marks = self.trail_mark().wrapping_sub(node.data.mark);
        if node.data.place == Place::GhostOfWindow && u64::from(marks) <= MARKS_PER_MARGIN {
            self.earned_bytes += u64::from(node.bytes) * WINDOW_GAIN;
            self.bound_window();
        }
    }

    /// Values the use of a page of the main part: if it is among the weakest, a larger window would
    /// have lost it.
    pub(super) fn value_main(&mut self, slot: u32) {
        let uses = self.uses_at(slot);
        let mut rest_bytes = self.marginal_bytes();
        let mut lower = self.filled & ((1 << uses) - 1);
        while lower != 0 {
            let bytes = self.main[lower.trailing_zeros() as usize].bytes();
            if bytes >= rest_bytes {
                return;
            }
            rest_bytes -= bytes;
            lower &= lower - 1;
        }
        // The page's place within its list is unknown, so it counts by the share of the list that
        // is marginal.
        let (bytes, list_bytes) =
            (u64::from(self.arena.at(slot).bytes), self.main[usize::from(uses)].bytes());
        let share_bytes =
            u128::from(bytes) * u128::from(rest_bytes.min(list_bytes)) / u128::from(list_bytes.max(1));
        self.earned_bytes = self.earned_bytes.saturating_sub(share_bytes as u64 * WINDOW_LOSS);
    }

    pub(super) fn bound_window(&mut self) {
        self.earned_bytes = self.earned_bytes.min(self.permille(MAX_WINDOW_PERMILLE - MIN_WINDOW_PERMILLE));
    }

    /// Moves the window's oldest pages into the main part while that has room.
    pub(super) fn settle(&mut self) {
        let window_bytes = self.window_target_bytes();
        let room_bytes = self.capacity_bytes - window_bytes;
        while self.window.bytes() > window_bytes && self.window.len() > 1 {
            let Some(slot) = self.window.front() else { return };
            if self.main_bytes + u64::from(self.arena.at(slot).bytes) > room_bytes {
                return;
            }
            self.unlink(slot);
            self.link_on_trial(slot);
        }
    }
}
