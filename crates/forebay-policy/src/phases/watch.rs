//! Turns what the observer counts of a job's I/O into phases.
//!
//! A burst of I/O becomes a phase once it has moved a megabyte; it ends when the job has been quiet
//! for longer than it ever is within a burst, and counts to its last byte.

use alloc::vec::Vec;

use super::bursts::Bursts;
use crate::machine::Nanos;

/// Less is not worth a phase: configuration files, logs.
pub const LEAST_BYTES: u64 = 1 << 20;

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
    last_bytes: u64,
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
            self.last_bytes = burst.bytes;
            if core::mem::take(&mut self.in_phase) {
                seen.push(Seen::Progress { bytes: burst.bytes });
                seen.push(Seen::Ended { at: Nanos(burst.end_ns) });
            }
        }
        if let Some(burst) = self.bursts.ongoing().filter(|burst| burst.bytes >= LEAST_BYTES) {
            if !core::mem::replace(&mut self.in_phase, true) {
                seen.push(Seen::Begins { at: Nanos(burst.start_ns), bytes: self.last_bytes });
            }
            seen.push(Seen::Progress { bytes: burst.bytes });
        }
        seen
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

    #[test]
    fn a_few_kilobytes_are_no_phase() {
        let mut watch = Watch::new();
        let seen: Vec<_> = (0..100).flat_map(|tick| watch.look(Nanos(tick * S), tick << 10, false)).collect();
        assert!(seen.is_empty() && !watch.is_in_phase(), "{seen:?}");
    }
}
