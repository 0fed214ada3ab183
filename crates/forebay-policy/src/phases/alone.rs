//! What a job's phases take without interference, learnt from those that ran undisturbed.
//!
//! Interference only slows a phase down. So a phase beside prefetches, or beside the phase of
//! another job, counts only if it was faster than what is known. What is known from disturbed
//! phases alone is a bound, as the job is at least that fast, until the first undisturbed phase
//! replaces it.

/// Weight of a new phase.
const WEIGHT: f64 = 0.3;

/// Disturbed phases in a row after which the fastest of them is taken: two jobs may always meet.
const DISTURBED_MAX: u32 = 3;

/// Shorter phases only measure the clock.
const SHORTEST_NS: u64 = 1_000_000;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alone {
    /// Bytes per ns, of phases that moved bytes.
    rate: Option<f64>,
    /// Length in ns, of phases whose bytes are unknown.
    length_ns: Option<f64>,
    disturbed: u32,
    fastest: Option<f64>,
    /// Whether what is known was learnt from disturbed phases alone.
    is_bound: bool,
}

impl Alone {
    /// Records that a phase that moved `bytes` (0 if unknown) took `ns`.
    pub fn observe(&mut self, bytes: u64, ns: u64, is_undisturbed: bool) {
        if ns < SHORTEST_NS {
            return;
        }
        // Both are speeds: what is greater was faster.
        let seen = if bytes > 0 { bytes as f64 / ns as f64 } else { 1.0 / ns as f64 };
        let known = if bytes > 0 { self.rate } else { self.length_ns.map(|length| 1.0 / length) };
        let taken = match known {
            Some(_) if is_undisturbed && self.is_bound => {
                self.is_bound = false;
                Some(seen)
            }
            Some(known) if self.is_bound => Some(known.max(seen)),
            Some(known) if is_undisturbed || seen > known => Some(known + WEIGHT * (seen - known)),
            Some(_) => None,
            None if is_undisturbed => Some(seen),
            None => {
                self.disturbed += 1;
                self.fastest = Some(self.fastest.map_or(seen, |fastest| fastest.max(seen)));
                let taken = self.fastest.filter(|_| self.disturbed >= DISTURBED_MAX);
                self.is_bound |= taken.is_some();
                taken
            }
        };
        if let Some(taken) = taken {
            if bytes > 0 {
                self.rate = Some(taken);
            } else {
                self.length_ns = Some(1.0 / taken);
            }
        }
    }

    /// Returns the time of a phase of `bytes` (0 if unknown) alone, in ns.
    pub fn time_ns(&self, bytes: u64) -> Option<u64> {
        let ns = match bytes {
            0 => self.length_ns?,
            bytes => bytes as f64 / self.rate?,
        };
        Some(((ns + 0.5) as u64).clamp(SHORTEST_NS, super::LONGEST_NS))
    }

    /// Returns whether phases may be shorter alone than what is known.
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Returns the bytes per second alone; 0 if nothing is known.
    pub fn rate_bytes_per_s(&self) -> u64 {
        self.rate.map_or(0, |rate| (rate * 1e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn undisturbed_phases_teach_the_rate_and_disturbed_ones_only_that_it_is_higher() {
        let mut alone = Alone::default();
        assert_eq!(alone.time_ns(100), None);
        alone.observe(1000 * S, S, true);
        assert_eq!((alone.time_ns(500 * S), alone.rate_bytes_per_s()), (Some(S / 2), 1000 * S));
        alone.observe(500 * S, S, false);
        assert_eq!(alone.rate_bytes_per_s(), 1000 * S, "slower beside others");
        alone.observe(2000 * S, S, false);
        assert_eq!(alone.rate_bytes_per_s(), 1300 * S, "faster even beside others");
        alone.observe(300 * S, S, true);
        assert_eq!(alone.rate_bytes_per_s(), 1000 * S);
    }

    #[test]
    fn a_job_that_is_always_disturbed_is_known_by_its_fastest_phase() {
        let mut alone = Alone::default();
        for (bytes, known) in [(10, None), (30, None), (20, Some(S / 30 * 60))] {
            alone.observe(bytes * S, S, false);
            assert_eq!(alone.time_ns(60 * S).is_some(), known.is_some());
        }
        assert_eq!(alone.rate_bytes_per_s(), 30 * S);
        alone.observe(40 * S, S, false);
        assert_eq!((alone.rate_bytes_per_s(), alone.is_bound()), (40 * S, true));
        alone.observe(60 * S, S, true);
        assert_eq!((alone.rate_bytes_per_s(), alone.is_bound()), (60 * S, false));
    }

    #[test]
    fn phases_without_bytes_teach_their_length() {
        let mut alone = Alone::default();
        alone.observe(0, 4 * S, true);
        alone.observe(0, 100, true);
        assert_eq!((alone.time_ns(0), alone.time_ns(1)), (Some(4 * S), None));
    }
}
