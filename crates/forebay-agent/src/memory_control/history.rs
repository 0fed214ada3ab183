//! The last minutes of the node's memory and the tier's capacity, for display.

use forebay_policy::machine::Nanos;
use forebay_policy::memory::Reason;
use forebay_wire::MemoryPoint;
use std::collections::VecDeque;

/// Most points that are kept; with one per second, ten minutes.
const POINTS_MAX: usize = 600;

/// Time after the last point at which one that shows nothing new is added.
const QUIET_NS: u64 = 1_000_000_000;

/// Least time between two points that show something new; of more, the last is kept.
const NEWS_NS: u64 = 50_000_000;

/// See the module.
#[derive(Debug)]
pub struct History {
    points: VecDeque<MemoryPoint>,
    last: Option<Nanos>,
}

impl Default for History {
    fn default() -> Self {
        History { points: VecDeque::with_capacity(POINTS_MAX), last: None }
    }
}

impl History {
    /// Takes note of the node's use and memory, and of what the tier holds and may hold, in bytes;
    /// and of why the capacity has changed, if it has.
    pub fn note(
        &mut self,
        now: Nanos,
        (used_bytes, total_bytes): (u64, u64),
        (tier_bytes, capacity_bytes): (u64, u64),
        reason: Option<Reason>,
    ) {
        let since = self.last.map_or(u64::MAX, |last| now.saturating_since(last));
        if reason.is_none() && since < QUIET_NS {
            return;
        }
        if since < NEWS_NS {
            self.points.pop_back();
        } else {
            self.last = Some(now);
        }
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        let at_ms = now.0 / 1_000_000;
        self.points.push_back(MemoryPoint {
            at_ms,
            used_bytes,
            total_bytes,
            tier_bytes,
            capacity_bytes,
            reason,
        });
    }

    /// All points, the oldest first.
    pub fn points(&self) -> Vec<MemoryPoint> {
        self.points.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_is_kept_in_its_time_and_the_oldest_points_go() {
        let mut history = History::default();
        for ms in 0..10_000u64 {
            let reason = (ms == 5_500).then_some(Reason::Above);
            history.note(Nanos(ms * 1_000_000), (1, 2), (0, 1), reason);
        }
        let at: Vec<u64> = history.points().iter().map(|point| point.at_ms).collect();
        assert_eq!(at, [0, 1000, 2000, 3000, 4000, 5000, 5500, 6500, 7500, 8500, 9500]);
        for s in 10..2_000u64 {
            history.note(Nanos(s * 1_000_000_000), (1, 2), (0, 1), None);
        }
        assert_eq!(history.points().len(), POINTS_MAX);
        assert_eq!(history.points()[0].at_ms, 1_400_000);
    }
}
