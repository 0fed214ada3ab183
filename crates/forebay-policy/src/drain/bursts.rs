//! How much one writer will write next, and when: as much as its last bursts, as often.

use crate::machine::Nanos;

/// How long a writer writes nothing before its burst has ended, in ns. Longer than a program takes
/// between two files of one checkpoint.
const GAP_NS: u64 = 1_000_000_000;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bursts {
    begun: Option<Nanos>,
    last_growth: Nanos,
    bytes: u64,
    /// Bytes and period of the burst before.
    before: Option<(u64, u64)>,
}

impl Bursts {
    /// Records that `bytes` more are dirty.
    pub fn grow(&mut self, now: Nanos, bytes: u64) {
        match self.begun {
            Some(begun) if now.saturating_since(self.last_growth) > GAP_NS => {
                self.before = Some((self.bytes, now.saturating_since(begun)));
                (self.begun, self.bytes) = (Some(now), 0);
            }
            Some(_) => {}
            None => self.begun = Some(now),
        }
        self.last_growth = now;
        self.bytes += bytes;
    }

    /// Returns the bytes expected next, and when. For a burst under way (`is_open`), the rest of
    /// it. The first burst is expected to become twice as large as it is. After two periods without
    /// a burst nothing is expected.
    pub fn expected(&self, now: Nanos, is_open: bool) -> Option<(u64, Nanos)> {
        let begun = self.begun?;
        match self.before {
            None => is_open.then_some((self.bytes, now)),
            Some((bytes, _)) if is_open => Some((bytes.saturating_sub(self.bytes), now)),
            Some((bytes, period_ns)) => {
                (now < begun + 2 * period_ns).then_some((bytes.max(self.bytes), begun + period_ns))
            }
        }
    }

    /// The time from one burst to the next; 0 if unknown.
    pub fn period_ns(&self) -> u64 {
        self.before.map_or(0, |(_, period_ns)| period_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_next_burst_is_as_large_as_the_last_and_comes_a_period_later() {
        let mut bursts = Bursts::default();
        assert_eq!(bursts.expected(Nanos(0), true), None);
        bursts.grow(Nanos(0), 10);
        bursts.grow(Nanos(S), 10);
        assert_eq!(bursts.expected(Nanos(S), true), Some((20, Nanos(S))), "as much again");
        assert_eq!(bursts.expected(Nanos(2 * S), false), None, "no period is known");
        bursts.grow(Nanos(60 * S), 5);
        assert_eq!(bursts.expected(Nanos(60 * S), true), Some((15, Nanos(60 * S))), "the rest");
        assert_eq!(bursts.expected(Nanos(70 * S), false), Some((20, Nanos(120 * S))));
        assert_eq!(bursts.expected(Nanos(180 * S), false), None, "none came for two periods");
    }
}
