//! Turns what the observer counts of a job's I/O into phases.
//!
//! A burst of I/O becomes a phase once it has moved a megabyte; it ends when the job has been quiet
//! for longer than it ever is within a burst, and counts to its last byte. Where phases are seconds
//! apart that takes seconds, in which nobody fetches. So a burst that has moved what each of the
//! last three has moved ends after a moment of quiet.

use alloc::vec::Vec;

use super::bursts::{Burst, Bursts};
use crate::machine::Nanos;

/// Less is not worth a phase: configuration files, logs.
pub const LEAST_BYTES: u64 = 1 << 20;

/// Quiet for as long, a burst that has moved what it should is over.
const QUIET_NS: u64 = 200_000_000;

/// Volumes are the same if they differ by less than one part in so many.
const SAME_PARTS: u64 = 64;

/// What happens to the phase of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A phase begins, which will move about so many bytes; 0: unknown.
    Begins {
        /// Its first byte.
        at: Nanos,
        /// Those of the last one.
        bytes: u64,
    },
    /// It has moved so many bytes.
    Progress {
        /// Since its begin.
        bytes: u64,
    },
    /// It was over then.
    Ended {
        /// Its last byte.
        at: Nanos,
    },
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    bursts: Bursts,
    in_phase: bool,
    /// Of the last bursts, the newest last.
    last_bytes: [u64; 3],
    /// Begin and bytes of a burst under way whose phase has ended early.
    ended_early: Option<(u64, u64)>,
}

impl Watch {
    /// Nothing observed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The job has moved `total_bytes` by `now`, and `busy`: a call is in progress.
    pub fn look(&mut self, now: Nanos, total_bytes: u64, busy: bool) -> Vec<Seen> {
        let mut seen = Vec::new();
        if let Some(burst) = self.bursts.progress(now.0, total_bytes, busy) {
            self.last_bytes = [self.last_bytes[1], self.last_bytes[2], burst.bytes];
            self.end(&burst, &mut seen);
            self.ended_early = self.ended_early.filter(|(start_ns, _)| *start_ns != burst.start_ns);
        }
        if let Some(burst) = self.bursts.ongoing().filter(|burst| burst.bytes >= LEAST_BYTES) {
            self.follow(&burst, now, &mut seen);
        }
        seen
    }

    /// A burst is under way.
    fn follow(&mut self, burst: &Burst, now: Nanos, seen: &mut Vec<Seen>) {
        let early = self.ended_early.filter(|(start_ns, _)| *start_ns == burst.start_ns);
        let is_more = |(_, bytes): (u64, u64)| burst.bytes > bytes + bytes / SAME_PARTS;
        if early.is_some_and(|early| !is_more(early)) {
            return;
        }
        if !core::mem::replace(&mut self.in_phase, true) {
            // What goes on after its end is a phase of its own, which began just now.
            let at = early.map_or(Nanos(burst.start_ns), |_| Nanos(burst.end_ns));
            let bytes = if early.is_some() { 0 } else { self.last_bytes[2] };
            seen.push(Seen::Begins { at, bytes });
        }
        seen.push(Seen::Progress { bytes: burst.bytes - early.map_or(0, |(_, bytes)| bytes) });
        let is_quiet = now.0.saturating_sub(burst.end_ns) >= QUIET_NS;
        if early.is_none() && is_quiet && self.is_whole(burst.bytes) {
            self.end(burst, seen);
            self.ended_early = Some((burst.start_ns, burst.bytes));
        }
    }

    /// Whether the last bursts were the same, and one of `bytes` is as well.
    fn is_whole(&self, bytes: u64) -> bool {
        let all = self.last_bytes.into_iter().chain([bytes]);
        let (least, most) = all.fold((u64::MAX, 0), |(low, high), bytes| (low.min(bytes), high.max(bytes)));
        least > 0 && most - least <= least / SAME_PARTS
    }

    fn end(&mut self, burst: &Burst, seen: &mut Vec<Seen>) {
        if core::mem::take(&mut self.in_phase) {
            let before = self.ended_early.filter(|(start_ns, _)| *start_ns == burst.start_ns);
            seen.push(Seen::Progress { bytes: burst.bytes - before.map_or(0, |(_, bytes)| bytes) });
            seen.push(Seen::Ended { at: Nanos(burst.end_ns) });
        }
    }

    /// Whether a phase is under way.
    pub fn is_in_phase(&self) -> bool {
        self.in_phase
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn bursts_become_phases_that_end_with_their_last_byte() {
        let mut watch = Watch::new();
        let (mut total, mut all) = (0, Vec::new());
        for tick in 0..1200u64 {
            // Ten seconds of compute, two of I/O, in steps of 50 ms.
            let busy = tick % 240 >= 200;
            total += if busy { 4 << 20 } else { 0 };
            all.extend(watch.look(Nanos(tick * S / 20), total, busy));
        }
        let begins: Vec<_> = all.iter().filter(|s| matches!(s, Seen::Begins { .. })).collect();
        assert_eq!(begins.len(), 5, "{begins:?}");
        assert_eq!(begins[0], &Seen::Begins { at: Nanos(199 * S / 20), bytes: 0 });
        assert_eq!(begins[4], &Seen::Begins { at: Nanos(1159 * S / 20), bytes: 160 << 20 });
        let ends: Vec<_> =
            all.iter().filter_map(|s| if let Seen::Ended { at } = s { Some(at.0) } else { None }).collect();
        assert_eq!(ends, [239, 479, 719, 959].map(|tick| tick * S / 20));
    }

    /// Of each phase of a job: how long after its end (ms) that was known, and its bytes. The
    /// phases take two seconds of every twelve; `writes` says how many bytes each moves.
    fn known_after(writes: &[u64]) -> Vec<(u64, u64)> {
        let (mut watch, mut total, mut bytes, mut found) = (Watch::new(), 0, 0, Vec::new());
        for tick in 0..240 * writes.len() as u64 + 200 {
            let phase = (tick / 240) as usize;
            let busy = phase < writes.len() && tick % 240 >= 200;
            total += if busy { writes[phase] / 40 } else { 0 };
            for seen in watch.look(Nanos(tick * S / 20), total, busy) {
                match seen {
                    Seen::Progress { bytes: now } => bytes = now,
                    Seen::Ended { at } => found.push(((tick * S / 20 - at.0) / 1_000_000, bytes)),
                    Seen::Begins { .. } => {}
                }
            }
        }
        found
    }

    #[test]
    fn phases_of_one_volume_are_known_to_be_over_at_once() {
        let known = known_after(&[160 << 20; 6]);
        assert_eq!(known.len(), 6);
        assert!(known[..3].iter().all(|(ms, _)| *ms >= 1000), "{known:?}");
        assert!(known[3..].iter().all(|(ms, _)| *ms == 200), "{known:?}");
        // Of others they are not, and it goes on when volumes are the same again.
        let known = known_after(&[160, 160, 160, 120, 160, 160, 160, 160].map(|mib| mib << 20));
        let early = known.iter().map(|(ms, _)| *ms == 200).collect::<Vec<_>>();
        assert_eq!(early, [false, false, false, false, false, false, false, true], "{known:?}");
    }

    #[test]
    fn what_follows_after_a_phase_has_ended_early_is_another_phase() {
        let mut watch = Watch::new();
        let (mut total, mut all) = (0, Vec::new());
        for tick in 0..1200u64 {
            // The fourth phase goes on after half a second.
            let busy = tick % 240 >= 200 || (970..980).contains(&tick);
            total += if busy { 4 << 20 } else { 0 };
            all.extend(watch.look(Nanos(tick * S / 20), total, busy));
        }
        let ends: Vec<u64> =
            all.iter().filter_map(|s| if let Seen::Ended { at } = s { Some(at.0) } else { None }).collect();
        assert_eq!(ends, [239, 479, 719, 959, 979].map(|tick| tick * S / 20));
        let begins: Vec<_> = all.iter().filter(|s| matches!(s, Seen::Begins { .. })).collect();
        assert_eq!(begins[4], &Seen::Begins { at: Nanos(970 * S / 20), bytes: 0 }, "{begins:?}");
        let last = all.iter().rev().find(|s| matches!(s, Seen::Progress { .. }));
        assert!(last.is_some(), "{all:?}");
    }

    #[test]
    fn a_few_kilobytes_are_no_phase() {
        let mut watch = Watch::new();
        let seen: Vec<_> = (0..100).flat_map(|tick| watch.look(Nanos(tick * S), tick << 10, false)).collect();
        assert!(seen.is_empty() && !watch.is_in_phase(), "{seen:?}");
    }
}
