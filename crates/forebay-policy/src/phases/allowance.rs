//! Limits how long something may continue: without a break for a while, and for a share of the time
//! after that.
//!
//! Time that it is on is owed, and paid back while it is not. Once too much is owed it rests, until
//! enough is paid back for [`PERIOD_NS`] of both. So the brake rests from time to time, however
//! many phases are behind, and phases of unknown length of one user do not brake forever.

use crate::machine::Nanos;

/// Length of on and rest together while it is wanted without a break, in ns.
pub(super) const PERIOD_NS: u64 = 10_000_000_000;

/// Parts into which the time is divided.
const PARTS: u64 = 10;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Parts of the time in which it may be on.
    on_parts: u64,
    /// Limit on what may be owed: parts that rest, times ns.
    most_owed: u64,
    owed: u64,
    at: Nanos,
    is_on: bool,
    is_resting: bool,
}

impl Allowance {
    /// Creates an allowance of `on_parts` of ten of the time, after `burst_ns`.
    pub fn new(on_parts: u64, burst_ns: u64) -> Self {
        let most_owed = burst_ns * (PARTS - on_parts);
        Allowance { on_parts, most_owed, owed: 0, at: Nanos(0), is_on: false, is_resting: false }
    }

    /// Returns whether it may be on from now on, if it is `wanted`.
    pub fn grant(&mut self, now: Nanos, wanted: bool) -> bool {
        let passed_ns = now.saturating_since(self.at);
        self.at = now;
        self.owed = match self.is_on {
            // A late call owes no more than the most.
            true => {
                let more = passed_ns.saturating_mul(PARTS - self.on_parts);
                self.owed.saturating_add(more).min(self.most_owed)
            }
            false => self.owed.saturating_sub(passed_ns.saturating_mul(self.on_parts)),
        };
        self.is_resting = match self.is_resting {
            true => self.owed > self.end_of_rest(),
            false => self.owed >= self.most_owed,
        };
        self.is_on = wanted && !self.is_resting;
        self.is_on
    }

    fn end_of_rest(&self) -> u64 {
        self.most_owed.saturating_sub(PERIOD_NS / PARTS * self.on_parts * (PARTS - self.on_parts))
    }

    /// Returns when it will rest or may be on again, if what is wanted stays as it is.
    pub fn changes_at(&self) -> Option<Nanos> {
        match (self.is_on, self.is_resting) {
            (true, _) => {
                Some(self.at + self.most_owed.saturating_sub(self.owed).div_ceil(PARTS - self.on_parts))
            }
            (false, true) => {
                Some(self.at + self.owed.saturating_sub(self.end_of_rest()).div_ceil(self.on_parts))
            }
            (false, false) => None,
        }
    }

    /// Returns whether nothing is owed any more.
    pub fn is_forgotten(&self, now: Nanos) -> bool {
        !self.is_on && self.owed <= now.saturating_since(self.at).saturating_mul(self.on_parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Returns the seconds for which it was on between `from_s` and `to_s`, when it was wanted
    /// throughout.
    fn on_s(allowance: &mut Allowance, from_s: u64, to_s: u64) -> u64 {
        (from_s * 10..to_s * 10).filter(|tenth| allowance.grant(Nanos(tenth * S / 10), true)).count() as u64
            / 10
    }

    #[test]
    fn after_its_burst_it_goes_on_for_its_share_of_the_time() {
        for (parts, burst_s) in [(9, 30), (1, 300)] {
            let mut allowance = Allowance::new(parts, burst_s * S);
            assert_eq!(on_s(&mut allowance, 0, burst_s), burst_s);
            let on = on_s(&mut allowance, burst_s, burst_s + 1000);
            assert!((parts * 100 - 10..=parts * 100 + 10).contains(&on), "{on} of 1000 s");
            // A pause pays all back.
            assert!(!allowance.grant(Nanos(2000 * S), false));
            assert!(allowance.is_forgotten(Nanos(9000 * S)));
            assert!(!allowance.grant(Nanos(9000 * S), false));
            assert_eq!(on_s(&mut allowance, 9000, 9000 + burst_s), burst_s);
        }
    }

    #[test]
    fn it_returns_when_it_changes() {
        let mut allowance = Allowance::new(9, 30 * S);
        assert!(allowance.grant(Nanos(5 * S), true));
        assert_eq!(allowance.changes_at(), Some(Nanos(35 * S)));
        assert!(!allowance.grant(Nanos(35 * S), true));
        assert_eq!(allowance.changes_at(), Some(Nanos(36 * S)));
        assert!(allowance.grant(Nanos(36 * S), true));
        assert_eq!(allowance.changes_at(), Some(Nanos(45 * S)));
        allowance.grant(Nanos(37 * S), false);
        assert_eq!(allowance.changes_at(), None);
    }
}
