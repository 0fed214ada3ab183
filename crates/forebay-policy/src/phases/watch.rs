//! Turns what the observer counts of a job's I/O into phases.
//!
//! A burst of I/O becomes a phase once it has moved a megabyte; it ends when the job has been quiet
//! for longer than it ever is within a burst, and counts to its last byte. Where phases are seconds
//! apart that takes seconds, in which no node fetches. So a burst that has moved what each of the
//! last three has moved ends after a moment of quiet.

use alloc::vec::Vec;

use super::bursts::{Burst, Bursts};
use crate::machine::Nanos;

/// Less is not worth a phase: configuration files, logs.
pub const LEAST_BYTES: u64 = 1 << 20;

/// How long a burst that has moved the expected bytes must be quiet until it is over, in ns.
const QUIET_NS: u64 = 200_000_000;

/// Volumes are the same if they differ by less than one part in this many.
const SAME_PARTS: u64 = 64;

/// A change of the phase of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A phase begins.
    Begins {
        /// When its first byte moved.
        at: Nanos,
        /// Bytes of the last phase, as an estimate; 0: unknown.
        bytes: u64,
    },
    /// The phase has moved bytes.
    Progress {
        /// Bytes since its start.
        bytes: u64,
    },
    /// The phase is over.
    Ended {
        /// When its last byte moved.
        at: Nanos,
    },
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    bursts: Bursts,
    in_phase: bool,
    /// When the phase under way, or the last one, began.
    begun_ns: u64,
    /// Bytes of the last bursts, the newest last.
    last_bytes: [u64; 3],
    /// Start and bytes of a burst under way whose phase has ended early.
    ended_early: Option<(u64, u64)>,
}

impl Watch {
    /// Creates a watch that has observed nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that the job has moved `total_bytes` by `now`, and whether a call is in progress
    /// (`busy`). Returns what has changed of its phase.
    pub fn look(&mut self, now: Nanos, total_bytes: u64, busy: bool) -> Vec<Seen> {
        let mut seen = Vec::new();
        if let Some(burst) = self.bursts.progress(now.0, total_bytes, busy) {
            self.last_bytes = [self.last_bytes[1], self.last_bytes[2], burst.bytes];
            // Otherwise the gap has become shorter, and a later part of the burst is the phase.
            if burst.end_ns >= self.begun_ns {
                self.end(&burst, &mut seen);
            }
            self.ended_early = self.ended_early.filter(|(start_ns, _)| *start_ns != burst.start_ns);
        }
        if let Some(burst) = self.bursts.ongoing().filter(|burst| burst.bytes >= LEAST_BYTES) {
            self.follow(&burst, now, &mut seen);
        }
        seen
    }

    /// Follows a burst under way.
    fn follow(&mut self, burst: &Burst, now: Nanos, seen: &mut Vec<Seen>) {
        let before = self.bytes_of_early_end(burst);
        let is_more = |before: u64| burst.bytes >= before + (before / SAME_PARTS).max(LEAST_BYTES);
        if before.is_some_and(|before| !is_more(before)) {
            return;
        }
        if !core::mem::replace(&mut self.in_phase, true) {
            // What continues after its end is a phase of its own, which has only now begun.
            let begin = before.map_or((burst.start_ns, self.last_bytes[2]), |_| (burst.end_ns, 0));
            self.begun_ns = begin.0;
            seen.push(Seen::Begins { at: Nanos(begin.0), bytes: begin.1 });
        }
        seen.push(Seen::Progress { bytes: burst.bytes.saturating_sub(before.unwrap_or(0)) });
        let is_quiet = now.0.saturating_sub(burst.end_ns) >= QUIET_NS;
        if before.is_none() && is_quiet && self.is_whole(burst.bytes) {
            self.end(burst, seen);
            self.ended_early = Some((burst.start_ns, burst.bytes));
        }
    }

    /// Returns what `burst` had moved when its phase ended early.
    fn bytes_of_early_end(&self, burst: &Burst) -> Option<u64> {
        self.ended_early.filter(|(start_ns, _)| *start_ns == burst.start_ns).map(|(_, bytes)| bytes)
    }

    /// Returns whether the last bursts had the same volume, and `bytes` is the same as well.
    fn is_whole(&self, bytes: u64) -> bool {
        let all = self.last_bytes.into_iter().chain([bytes]);
        let (least, most) = all.fold((u64::MAX, 0), |(low, high), bytes| (low.min(bytes), high.max(bytes)));
        least > 0 && most - least <= least / SAME_PARTS
    }

    fn end(&mut self, burst: &Burst, seen: &mut Vec<Seen>) {
        if core::mem::take(&mut self.in_phase) {
            let before = self.bytes_of_early_end(burst).unwrap_or(0);
            seen.push(Seen::Progress { bytes: burst.bytes.saturating_sub(before) });
            seen.push(Seen::Ended { at: Nanos(burst.end_ns) });
        }
    }

    /// Returns whether a phase is under way.
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

    /// For each phase of a job: how long after its end (ms) the end was known, and its bytes. The
    /// phases take two seconds of every twelve; `writes` is the number of bytes that each moves.
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
        assert!(known.iter().all(|(_, bytes)| *bytes == 160 << 20), "{known:?}");
        // With other volumes it is not, and it works again when volumes are the same again.
        let known = known_after(&[160, 160, 160, 120, 160, 160, 160, 160].map(|mib| mib << 20));
        let early = known.iter().map(|(ms, _)| *ms == 200).collect::<Vec<_>>();
        assert_eq!(early, [false, false, false, false, false, false, false, true], "{known:?}");
    }

    #[test]
    fn what_follows_after_a_phase_has_ended_early_is_another_phase() {
        let mut watch = Watch::new();
        let (mut total, mut all) = (0, Vec::new());
        for tick in 0..1200u64 {
            // The fourth phase continues after half a second.
            let busy = tick % 240 >= 200 || (970..980).contains(&tick);
            total += if busy { 4 << 20 } else { 0 };
            all.extend(watch.look(Nanos(tick * S / 20), total, busy));
        }
        let ends: Vec<u64> =
            all.iter().filter_map(|s| if let Seen::Ended { at } = s { Some(at.0) } else { None }).collect();
        assert_eq!(ends, [239, 479, 719, 959, 979].map(|tick| tick * S / 20));
        let begins: Vec<_> = all.iter().filter(|s| matches!(s, Seen::Begins { .. })).collect();
        assert_eq!(begins[4], &Seen::Begins { at: Nanos(970 * S / 20), bytes: 0 }, "{begins:?}");
        let end = all.iter().position(|s| *s == Seen::Ended { at: Nanos(979 * S / 20) }).unwrap();
        assert_eq!(all[end - 1], Seen::Progress { bytes: 40 << 20 });
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

        /// Phases of two parts, one after the other, and then shorter writes that come soon after
        /// an early end. The gap may become shorter meanwhile, so that the first part of a burst is
        /// returned alone: it is not the phase under way.
        #[test]
        fn a_burst_that_falls_apart_ends_no_later_phase(
            within in 2u64..10,
            between in 10u64..60,
            phases in 4u64..8,
            soon in 5u64..20,
            pause in 1u64..6,
        ) {
            let part = |ticks: u64, bytes: u64| core::iter::repeat_n(bytes, ticks as usize);
            let mut moved: Vec<u64> = Vec::new();
            for phase in 0..phases {
                moved.extend(part(10, 4 << 20).chain(part(within, 0)).chain(part(10, 4 << 20)));
                moved.extend(part(if phase + 1 < phases { between } else { soon }, 0));
            }
            (0..8).for_each(|_| moved.extend(part(2, 4 << 20).chain(part(pause, 0))));
            moved.extend(part(5000, 0));
            let (mut watch, mut total, mut began) = (Watch::new(), 0, None);
            for (tick, bytes) in (0..).zip(moved) {
                total += bytes;
                for seen in watch.look(Nanos(tick * S / 20), total, false) {
                    match seen {
                        Seen::Begins { at, .. } => assert!(began.replace(at).is_none(), "within another"),
                        Seen::Progress { bytes } => assert!(bytes <= total, "{bytes} of {total}"),
                        Seen::Ended { at } => assert!(at >= began.take().unwrap()),
                    }
                }
            }
            assert!(began.is_none());
        }
    }

    #[test]
    fn a_line_of_a_log_after_an_early_end_is_no_phase() {
        let (mut watch, mut total, mut begins) = (Watch::new(), 0, 0);
        for tick in 0..1200u64 {
            // 2 MiB in two seconds, and later a line.
            total += if tick % 240 >= 200 { 52_429 } else { 0 };
            total += if tick % 240 == 10 { 40_000 } else { 0 };
            let seen = watch.look(Nanos(tick * S / 20), total, tick % 240 >= 200);
            begins += seen.iter().filter(|s| matches!(s, Seen::Begins { .. })).count();
        }
        assert_eq!(begins, 5);
    }

    #[test]
    fn a_few_kilobytes_are_no_phase() {
        let mut watch = Watch::new();
        let seen: Vec<_> = (0..100).flat_map(|tick| watch.look(Nanos(tick * S), tick << 10, false)).collect();
        assert!(seen.is_empty() && !watch.is_in_phase(), "{seen:?}");
    }
}
