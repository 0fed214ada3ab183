//! Whether compute's memory goes up and down in equal times, and when it rises next.
//!
//! A rise is seen when memory has gone up from its lowest point by a swing, the end of a rise when
//! it has come down from its highest by as much. Two times from rise to rise that differ by less
//! than a quarter are a period. It is believed until twice that time has passed without a rise.

use crate::machine::Nanos;

/// The oscillation, if there is one.
#[derive(Default)]
pub struct Rhythm {
    is_rising: bool,
    /// Highest point of this rise, or lowest since it has ended.
    extreme: f64,
    /// Highest point of the last rise.
    high: f64,
    rise: Option<Nanos>,
    period_ns: u64,
    is_steady: bool,
}

impl Rhythm {
    /// Records the memory of compute; `swing` bytes are a change of direction.
    pub fn observe(&mut self, now: Nanos, compute: f64, swing: f64) {
        if self.is_rising {
            self.extreme = self.extreme.max(compute);
            if compute < self.extreme - swing {
                self.high = self.extreme;
                (self.is_rising, self.extreme) = (false, compute);
            }
        } else {
            self.extreme = self.extreme.min(compute);
            if compute > self.extreme + swing {
                (self.is_rising, self.extreme) = (true, compute);
                self.rises(now);
            }
        }
    }

    fn rises(&mut self, now: Nanos) {
        if let Some(before) = self.rise {
            let period_ns = now.saturating_since(before);
            self.is_steady = period_ns.abs_diff(self.period_ns) <= self.period_ns / 4;
            self.period_ns = period_ns;
        }
        self.rise = Some(now);
    }

    /// Returns the last rise, if there is a period that still holds.
    fn last(&self, now: Nanos) -> Option<Nanos> {
        let rise = self.rise.filter(|_| self.is_steady && self.period_ns > 0)?;
        let since_ns = now.saturating_since(rise);
        (now >= rise && since_ns <= self.period_ns.saturating_mul(2)).then_some(rise)
    }

    /// Returns whether the next rise is at most `within_ns` away, or late by no more than that.
    pub fn is_due(&self, now: Nanos, within_ns: u64) -> bool {
        let next = self.last(now).map(|rise| rise + self.period_ns);
        next.is_some_and(|next| now + within_ns >= next && now <= next + within_ns)
    }

    /// Returns where the last rise ended of an oscillation of a period shorter than `short_ns`, if
    /// there is one.
    pub fn top(&self, now: Nanos, short_ns: u64) -> Option<f64> {
        self.last(now).filter(|_| self.period_ns < short_ns).map(|_| self.high)
    }

    /// Returns how high an oscillation of a period shorter than `short_ns` goes, if there is one.
    pub fn ceiling(&self, now: Nanos, short_ns: u64) -> Option<f64> {
        let high = if self.is_rising { self.high.max(self.extreme) } else { self.high };
        self.last(now).filter(|_| self.period_ns < short_ns).map(|_| high)
    }
}
