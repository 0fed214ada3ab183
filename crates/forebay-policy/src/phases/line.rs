//! How far a phase should be, and how much of the time that it has in hand is left.
//!
//! A phase that takes `alone_ns` without interference and may take until its deadline has the
//! difference in hand. The bytes that it has moved determine what it still needs alone; the rest of
//! the time to the deadline is its *slack*. Prefetches cost slack, and the planners spend it on
//! purpose. The phase is *behind* once the slack is down to the time that the brake needs to take
//! effect.
//!
//! Clients of parallel file systems buffer writes, so a program may have written all of its bytes
//! long before they are on the servers. Progress that is faster than the phase runs alone is
//! ignored: the rest is then unknown, as it is for a phase without any reports. Such a phase counts
//! as on time for as long as it takes alone, and as behind afterwards.

use crate::machine::Nanos;

/// The news that a phase is behind takes up to 100 ms to reach every node.
const KEPT_NS: u64 = 100_000_000;

/// Returns the part of a phase's time in hand that is kept for the brake, while planners spend the
/// rest; for phases with little in hand, half.
pub fn kept_ns(in_hand_ns: u64) -> u64 {
    (in_hand_ns / 2).min(KEPT_NS)
}

/// A phase may exceed its declared bytes by one part in this many before the declaration counts as
/// wrong.
const OVERRUN_PARTS: u64 = 32;

/// Reports may be ahead of the time alone by one part in this many of it before they count as
/// reports of buffered bytes: that time is only an estimate.
const AHEAD_PARTS: u64 = 8;

/// First guess at the bytes between two reports, as a fraction of the phase.
const STEP_PARTS: u64 = 20;

/// A phase and its progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// When it began.
    pub began: Nanos,
    /// Bytes that were declared; 0: unknown.
    pub bytes: u64,
    /// Its time alone; `None`: unknown.
    pub alone_ns: Option<u64>,
    /// By when it has to be done; `None`: unknown.
    pub deadline: Option<Nanos>,
    /// Bytes moved, as last reported.
    pub done: u64,
    /// When that was; the start of the phase before the first report.
    pub reported: Nanos,
    /// Whether the program reports progress, here or in an earlier phase.
    pub reports: bool,
    /// Bytes between two reports: up to this many may have been moved since the last.
    step: u64,
    /// Whether reports were faster than the phase is alone.
    is_buffered: bool,
}

impl Line {
    /// Creates the line of a phase that begins at `now`. `reports`: the job has reported progress
    /// before.
    pub fn new(
        now: Nanos,
        bytes: u64,
        alone_ns: Option<u64>,
        deadline: Option<Nanos>,
        reports: bool,
    ) -> Self {
        let step = (bytes / STEP_PARTS).max(1);
        Line {
            began: now,
            bytes,
            alone_ns,
            deadline,
            done: 0,
            reported: now,
            reports,
            step,
            is_buffered: false,
        }
    }

    /// Records that `bytes` of the phase have been moved; fewer than before change nothing.
    pub fn progress(&mut self, now: Nanos, bytes: u64) {
        let more = bytes.saturating_sub(self.done);
        if more == 0 {
            return;
        }
        // The first report ends the guess.
        self.step = if self.reports && self.done > 0 { self.step.max(more) } else { more };
        (self.done, self.reported, self.reports) = (bytes, now, true);
        self.is_buffered |= self.is_ahead(now);
    }

    /// Returns whether the last report includes bytes that cannot be on the servers yet.
    fn is_ahead(&self, now: Nanos) -> bool {
        let Some(alone_ns) = self.alone_ns.filter(|_| self.bytes > 0) else { return false };
        let elapsed_ns = now.saturating_since(self.began).saturating_add(alone_ns / AHEAD_PARTS);
        u128::from(self.done.min(self.bytes)) * u128::from(alone_ns)
            > u128::from(elapsed_ns) * u128::from(self.bytes)
    }

    /// Returns whether reports determine what is left.
    fn is_seen(&self) -> bool {
        self.reports && self.bytes > 0 && !self.is_buffered
    }

    /// Returns whether more was moved than was declared: then its end is unknown.
    pub fn is_overrun(&self) -> bool {
        self.bytes > 0 && self.done > self.bytes.saturating_add(self.bytes / OVERRUN_PARTS)
    }

    /// Returns the I/O time alone that is left at `now`; `None` if unknown.
    pub fn left_ns(&self, now: Nanos) -> Option<u64> {
        let alone_ns = self.alone_ns?;
        if self.is_overrun() {
            return None;
        }
        if !self.is_seen() {
            return alone_ns.checked_sub(now.saturating_since(self.began)).filter(|left_ns| *left_ns > 0);
        }
        // What may have been moved since the last report, but no more than a report's worth.
        let since = now.saturating_since(self.reported) as f64 / alone_ns as f64 * self.bytes as f64;
        let done = self.done as f64 + since.min(self.step as f64);
        let left = 1.0 - (done / self.bytes as f64).min(1.0);
        Some((left * alone_ns as f64 + 0.5) as u64)
    }

    /// Returns the time in hand at `now`, negative if the deadline will be missed; `None` if
    /// unknown.
    pub fn slack_ns(&self, now: Nanos) -> Option<i64> {
        let left_ns = self.left_ns(now)?;
        let to_deadline = i128::from(self.deadline?.0) - i128::from(now.0);
        let slack = to_deadline - i128::from(left_ns);
        Some(slack.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }

    /// Returns the slack that is kept for the brake.
    fn kept_ns(&self) -> i64 {
        let (Some(alone_ns), Some(deadline)) = (self.alone_ns, self.deadline) else { return 0 };
        let in_hand = deadline.saturating_since(self.began).saturating_sub(alone_ns);
        kept_ns(in_hand) as i64
    }

    /// Returns whether prefetches must stop for it. What is unknown counts as behind: if unsure,
    /// wait. A phase that was behind has caught up once it has half as much again in hand.
    pub fn is_behind(&self, now: Nanos, was_behind: bool) -> bool {
        let kept = self.kept_ns();
        let needed = if was_behind { kept + kept / 2 } else { kept };
        self.slack_ns(now).is_none_or(|slack| slack <= needed)
    }

    /// Returns whether neither its time alone nor its deadline is known.
    pub fn is_unknown(&self) -> bool {
        self.alone_ns.is_none() && self.deadline.is_none()
    }

    /// Returns when the phase will be behind if nothing more is reported; `None` if it is by `now`,
    /// or if that is unknown.
    pub fn behind_at(&self, now: Nanos) -> Option<Nanos> {
        let (slack, alone_ns) = (self.slack_ns(now)?, self.alone_ns?);
        let spare = u64::try_from(slack - self.kept_ns()).ok().filter(|spare| *spare > 0)?;
        if !self.is_seen() {
            return Some(self.began + alone_ns);
        }
        // While it is assumed to move, its slack stays as it is.
        let step_ns = (self.step as f64 / self.bytes as f64 * alone_ns as f64 + 0.5) as u64;
        Some(now + (self.reported + step_ns).saturating_since(now) + spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// 100 bytes in 10 s alone, with 500 ms in hand.
    fn line(reports: bool) -> Line {
        Line::new(Nanos(0), 100, Some(10_000 * MS), Some(Nanos(10_500 * MS)), reports)
    }

    #[test]
    fn a_phase_on_its_line_keeps_what_it_has_in_hand() {
        let mut line = line(true);
        for second in 1..=10 {
            let now = Nanos(second * 1000 * MS);
            line.progress(now, second * 10);
            assert_eq!(line.slack_ns(now), Some(500 * MS as i64));
            assert!(!line.is_behind(now, false));
        }
    }

    #[test]
    fn a_phase_is_behind_when_its_slack_is_down_to_what_the_brake_takes() {
        let mut line = line(true);
        line.progress(Nanos(1000 * MS), 10);
        line.progress(Nanos(2399 * MS), 20);
        assert_eq!(line.slack_ns(Nanos(2399 * MS)), Some(101 * MS as i64));
        assert!(!line.is_behind(Nanos(2399 * MS), false) && line.is_behind(Nanos(2399 * MS), true));
        // It is assumed to move as far as the last report went, and no further.
        assert!(!line.is_behind(Nanos(3399 * MS), false));
        assert!(line.is_behind(Nanos(3401 * MS), false));
        assert_eq!(line.behind_at(Nanos(2399 * MS)), Some(Nanos(3400 * MS)));
        line.progress(Nanos(4000 * MS), 45);
        assert!(!line.is_behind(Nanos(4000 * MS), true), "it has caught up");
    }

    #[test]
    fn without_reports_it_is_behind_when_it_lasts_longer_than_alone() {
        let line = line(false);
        assert!(!line.is_behind(Nanos(9_999 * MS), false) && line.is_behind(Nanos(10_000 * MS), false));
        assert_eq!(line.behind_at(Nanos(7)), Some(Nanos(10_000 * MS)));
    }

    #[test]
    fn bytes_that_a_client_buffers_are_not_on_the_servers() {
        let mut line = line(true);
        // All is written immediately, and a sync waits for it.
        line.progress(Nanos(100 * MS), 100);
        assert_eq!(line.left_ns(Nanos(4000 * MS)), Some(6000 * MS));
        assert!(!line.is_behind(Nanos(9_999 * MS), false));
        assert_eq!(line.behind_at(Nanos(4000 * MS)), Some(Nanos(10_000 * MS)));
        assert!(line.is_behind(Nanos(10_000 * MS), false), "nobody knows what is left");
    }

    #[test]
    fn a_phase_that_is_somewhat_faster_than_alone_is_believed() {
        let mut line = line(true);
        line.progress(Nanos(4000 * MS), 50);
        assert_eq!(line.left_ns(Nanos(4000 * MS)), Some(5000 * MS));
        line.progress(Nanos(5000 * MS), 70);
        assert_eq!(line.left_ns(Nanos(5000 * MS)), Some(5000 * MS), "not any more");
    }

    #[test]
    fn what_is_unknown_or_declared_too_small_counts_as_behind() {
        assert!(Line::new(Nanos(0), 100, None, None, true).is_behind(Nanos(1), false));
        let mut line = line(true);
        line.progress(Nanos(MS), 103);
        assert!(!line.is_behind(Nanos(MS), false), "a little more is rounding");
        line.progress(Nanos(2 * MS), 104);
        assert!(line.is_overrun() && line.is_behind(Nanos(2 * MS), false));
    }

    #[test]
    fn no_time_in_hand_means_no_prefetch_beside_it() {
        let line = Line::new(Nanos(0), 100, Some(10_000 * MS), Some(Nanos(10_000 * MS)), true);
        assert!(line.is_behind(Nanos(0), false));
    }
}
