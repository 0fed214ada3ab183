//! Finds a job's I/O phases in the progress of its bytes.
//!
//! The observer reports how many bytes a job has written by now, at every poll. Bytes come in
//! stretches with pauses between them. Some pauses are inside a phase (a rank computes a checksum,
//! a collective call waits), others separate phases, and only the job knows which. So the detector
//! learns the boundary, the *gap*: lengths of pauses form clusters, and the widest empty range
//! between two clusters, on a logarithmic scale, separates them. A fixed gap would be wrong for one
//! of two jobs: one pauses for 2 s inside a phase, another begins a phase every second.
//!
//! Stretches wait in a ring of fixed size until the gap decides that they end a burst. If the ring
//! is full, the two stretches with the shortest pause between them become one. So a gap that is
//! learned late still separates the phases that came before.

use serde::{Deserialize, Serialize};

/// One I/O phase as it was observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Burst {
    /// When its first bytes moved, in the observer's nanoseconds.
    pub start_ns: u64,
    /// When its last bytes moved.
    pub end_ns: u64,
    /// Bytes moved in it.
    pub bytes: u64,
}

impl Burst {
    /// Returns the time from its first to its last byte.
    pub fn length_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    /// Returns the pause from this burst to `next`.
    fn pause_to(&self, next: &Burst) -> u64 {
        next.start_ns.saturating_sub(self.end_ns)
    }

    fn join(&mut self, next: &Burst) {
        self.end_ns = self.end_ns.max(next.end_ns);
        self.bytes = self.bytes.saturating_add(next.bytes);
    }
}

/// Stretches that wait for a decision.
const STRETCHES: usize = 64;

/// The gap as long as a job is unknown: HPC phases are mostly seconds apart, and calls within one
/// are not.
pub const PRIOR_GAP_NS: u64 = 1_000_000_000;

/// Least gap: agents poll every 20 to 50 ms and react within 100 ms, so phases that are nearer
/// together cannot be acted on.
pub const MIN_GAP_NS: u64 = 100_000_000;

/// Greatest gap. A phase that pauses for longer is two.
pub const MAX_GAP_NS: u64 = 120_000_000_000;

/// Stretches below this share (one in this many) of the largest recent one are noise, such as lines
/// of a log. They belong to a burst beside them and form none of their own.
const NOISE_SHARE: u64 = 50;

/// Finds bursts. Fixed size, no allocation.
#[derive(Clone, Debug)]
pub struct Bursts {
    stretches: [Burst; STRETCHES],
    len: usize,
    pauses: Pauses,
    total_bytes: u64,
    /// Time of the last report; bytes that are reported next have moved since then.
    reported_ns: Option<u64>,
    /// Bytes of the largest recent stretch.
    largest_bytes: u64,
    /// End of the last burst that was returned.
    returned_ns: Option<u64>,
}

impl Default for Bursts {
    fn default() -> Self {
        Self::new()
    }
}

impl Bursts {
    /// Creates a detector that has observed nothing yet.
    pub fn new() -> Self {
        Bursts {
            stretches: [Burst::default(); STRETCHES],
            len: 0,
            pauses: Pauses::new(),
            total_bytes: 0,
            reported_ns: None,
            largest_bytes: 0,
            returned_ns: None,
        }
    }

    /// Records that the job has moved `total_bytes` by `now_ns`, and whether a call is in progress
    /// (`busy`). Returns the oldest burst that has ended and was not returned before.
    ///
    /// Reports that go back in time or in bytes count as no progress.
    pub fn progress(&mut self, now_ns: u64, total_bytes: u64, busy: bool) -> Option<Burst> {
        let since_ns = self.reported_ns.unwrap_or(now_ns).min(now_ns);
        let bytes = total_bytes.saturating_sub(self.total_bytes);
        self.total_bytes = self.total_bytes.max(total_bytes);
        self.reported_ns = Some(now_ns.max(since_ns));
        if bytes > 0 || busy {
            self.active(Burst { start_ns: since_ns, end_ns: now_ns, bytes });
        }
        self.take_ended(now_ns)
    }

    /// As [`Bursts::progress`], for bytes whose interval is known, as from a log. Intervals come in
    /// the order of their starts.
    pub fn interval(&mut self, moved: Burst) -> Option<Burst> {
        self.total_bytes = self.total_bytes.saturating_add(moved.bytes);
        let now_ns = self.reported_ns.unwrap_or(0).max(moved.end_ns);
        self.reported_ns = Some(now_ns);
        let ended = self.take_ended(moved.start_ns);
        self.active(moved);
        ended
    }

    /// Records that nothing has moved until `now_ns`. Returns as [`Bursts::progress`] does.
    pub fn quiet(&mut self, now_ns: u64) -> Option<Burst> {
        self.take_ended(now_ns)
    }

    /// Returns the burst under way: its start, its last progress and its bytes up to now.
    pub fn ongoing(&self) -> Option<Burst> {
        let gap_ns = self.gap_ns();
        let stretches = &self.stretches[..self.len];
        let (last, before) = stretches.split_last()?;
        let mut burst = *last;
        for stretch in before.iter().rev() {
            if stretch.pause_to(&burst) > gap_ns {
                break;
            }
            burst = Burst { start_ns: stretch.start_ns, bytes: burst.bytes + stretch.bytes, ..burst };
        }
        (!self.is_noise(burst.bytes)).then_some(burst)
    }

    /// Returns when to report next at the latest, so that the end of a burst is noticed.
    pub fn next_deadline(&self) -> Option<u64> {
        let last = self.stretches[..self.len].last()?;
        Some(last.end_ns.saturating_add(self.gap_ns() + 1))
    }

    /// Returns the pause that ends a burst, as learned up to now.
    pub fn gap_ns(&self) -> u64 {
        self.pauses.gap_ns()
    }

    fn is_noise(&self, bytes: u64) -> bool {
        bytes.saturating_mul(NOISE_SHARE) < self.largest_bytes
    }

    fn active(&mut self, moved: Burst) {
        let poll_ns = moved.length_ns();
        if let Some(last) = self.stretches[..self.len].last_mut() {
            let pause_ns = last.pause_to(&moved);
            // Within one poll a pause cannot be seen.
            if pause_ns <= MIN_PAUSE_NS.min(poll_ns.max(1)) {
                last.join(&moved);
                return;
            }
            self.end_stretch(moved.start_ns);
        } else if let Some(end_ns) = self.returned_ns {
            self.pauses.add(moved.start_ns, moved.start_ns.saturating_sub(end_ns));
        }
        if self.len == STRETCHES {
            self.merge_nearest();
        }
        self.stretches[self.len] = moved;
        self.len += 1;
    }

    /// Ends the last stretch, since another begins, and learns from its pause and volume.
    fn end_stretch(&mut self, next_start_ns: u64) {
        let last = self.stretches[self.len - 1];
        // Ages, so that a job that writes less from now on is not all noise.
        self.largest_bytes = (self.largest_bytes - self.largest_bytes / 32).max(last.bytes);
        if self.is_noise(last.bytes) && self.len > 1 {
            // It bridges no pause: its bytes count towards the stretch before it, its time does
            // not.
            self.len -= 1;
            let before = &mut self.stretches[self.len - 1];
            before.bytes = before.bytes.saturating_add(last.bytes);
        }
        let end_ns = self.stretches[self.len - 1].end_ns;
        self.pauses.add(next_start_ns, next_start_ns.saturating_sub(end_ns));
    }

    fn merge_nearest(&mut self) {
        let pause_after = |i: &usize| self.stretches[*i].pause_to(&self.stretches[i + 1]);
        let Some(at) = (0..self.len - 1).min_by_key(pause_after) else { return };
        let next = self.stretches[at + 1];
        self.stretches[at].join(&next);
        self.stretches.copy_within(at + 2..self.len, at + 1);
        self.len -= 1;
    }

    /// Returns the oldest burst, if a gap has passed behind it.
    fn take_ended(&mut self, now_ns: u64) -> Option<Burst> {
        let gap_ns = self.gap_ns();
        loop {
            let stretches = &self.stretches[..self.len];
            let mut burst = *stretches.first()?;
            let mut taken = 1;
            while taken < self.len && burst.pause_to(&stretches[taken]) <= gap_ns {
                burst.join(&stretches[taken]);
                taken += 1;
            }
            if taken == self.len && now_ns.saturating_sub(burst.end_ns) <= gap_ns {
                return None;
            }
            self.stretches.copy_within(taken..self.len, 0);
            self.len -= taken;
            if burst.bytes > 0 && !self.is_noise(burst.bytes) {
                self.largest_bytes = self.largest_bytes.max(burst.bytes / STRETCHES as u64);
                self.returned_ns = Some(burst.end_ns);
                return Some(burst);
            }
        }
    }
}

/// Shorter pauses are not recorded.
const MIN_PAUSE_NS: u64 = 1 << 24;
/// Number of bins per octave.
const PER_OCTAVE: usize = 4;
/// Number of bins: from 16 ms over 24 octaves to three days.
const BINS: usize = 24 * PER_OCTAVE;
/// Clusters are apart if no pause is in a range of this factor, as bins (2.8 times).
const EMPTY_BINS: usize = 6;
/// A bin is forgotten when nothing fell into it for this many times the longest usual pause.
const FORGET_PAUSES: u64 = 16;

/// Number of pauses of each length, on a logarithmic scale.
#[derive(Clone, Debug)]
struct Pauses {
    count: [u16; BINS],
    seen_ns: [u64; BINS],
    gap_ns: u64,
}

impl Pauses {
    fn new() -> Self {
        Pauses { count: [0; BINS], seen_ns: [0; BINS], gap_ns: PRIOR_GAP_NS }
    }

    fn add(&mut self, now_ns: u64, pause_ns: u64) {
        if pause_ns < MIN_PAUSE_NS {
            return;
        }
        let bin = bin(pause_ns);
        self.count[bin] = self.count[bin].saturating_add(1);
        self.seen_ns[bin] = now_ns;
        self.forget(now_ns);
        self.gap_ns = self.learn().clamp(MIN_GAP_NS, MAX_GAP_NS);
    }

    fn gap_ns(&self) -> u64 {
        self.gap_ns
    }

    fn forget(&mut self, now_ns: u64) {
        let usual = (0..BINS).rev().find(|&b| self.count[b] >= 2).map_or(0, edge_ns);
        for b in 0..BINS {
            let age_ns = now_ns.saturating_sub(self.seen_ns[b]);
            if age_ns > FORGET_PAUSES * edge_ns(b).max(usual) {
                self.count[b] = 0;
            }
        }
    }

    /// Returns the gap: in the middle of the widest empty range between two clusters, or below the
    /// only cluster.
    fn learn(&self) -> u64 {
        let mut above: u32 = self.count.iter().map(|&n| u32::from(n)).sum();
        let all = above;
        let mut widest: Option<(usize, usize)> = None;
        let mut last = None;
        for b in (0..BINS).filter(|&b| self.count[b] > 0) {
            if let Some(low) = last {
                // One long pause is an accident, unless it is too long for a pause within a phase
                // and the shorter ones are too short for pauses between phases.
                let straddles = edge_ns(low + 1) <= PRIOR_GAP_NS && PRIOR_GAP_NS < edge_ns(b);
                let is_usual = above >= 2 || straddles;
                let is_wider = widest.is_none_or(|(low, high)| high - low < b - last.unwrap_or(b));
                if b - low > EMPTY_BINS && is_usual && is_wider {
                    widest = Some((low, b));
                }
            }
            above -= u32::from(self.count[b]);
            last = Some(b);
        }
        let shortest = (0..BINS).find(|&b| self.count[b] > 0).map_or(PRIOR_GAP_NS, edge_ns);
        match widest {
            Some((low, high)) => edge_ns((low + 1 + high) / 2),
            None if shortest > PRIOR_GAP_NS || all >= 3 => shortest / 2,
            None => PRIOR_GAP_NS,
        }
    }
}

fn bin(pause_ns: u64) -> usize {
    let octave = pause_ns.max(MIN_PAUSE_NS).ilog2();
    let quarter = (pause_ns >> (octave - 2)) & 3;
    let bin = (octave - MIN_PAUSE_NS.ilog2()) as usize * PER_OCTAVE + quarter as usize;
    bin.min(BINS - 1)
}

/// The lower edge of a bin.
fn edge_ns(bin: usize) -> u64 {
    (MIN_PAUSE_NS << (bin / PER_OCTAVE)) / 4 * (4 + (bin % PER_OCTAVE) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Reports `intervals` (start, end, bytes; in ms and bytes) every `poll_ms`, as an agent does.
    fn polled(intervals: &[(u64, u64, u64)], poll_ms: u64) -> Vec<Burst> {
        let mut bursts = Bursts::new();
        let end_ms = intervals.last().map_or(0, |i| i.1) + 300_000;
        let moved = |t: u64| -> u64 {
            intervals.iter().map(|&(s, e, n)| n * (t.clamp(s, e) - s) / (e - s).max(1)).sum()
        };
        let mut found = Vec::new();
        let mut t = 0;
        while t <= end_ms {
            let busy = intervals.iter().any(|&(s, e, _)| s <= t && t < e);
            found.extend(bursts.progress(t * MS, moved(t), busy));
            t += poll_ms;
        }
        found
    }

    #[test]
    fn bins_and_edges_agree() {
        for b in 0..BINS - 1 {
            assert_eq!((bin(edge_ns(b)), bin(edge_ns(b + 1) - 1)), (b, b));
        }
        assert_eq!(bin(u64::MAX), BINS - 1);
    }

    #[test]
    fn phases_of_a_job_become_bursts() {
        let phases: Vec<_> = (0..5).map(|i| (1_000 + i * 20_000, 6_000 + i * 20_000, 5_000_000)).collect();
        let found = polled(&phases, 50);
        assert_eq!(found.len(), 5, "{found:?}");
        for (burst, phase) in found.iter().zip(&phases) {
            assert!(burst.start_ns.abs_diff(phase.0 * MS) <= 50 * MS, "{burst:?} {phase:?}");
            assert!(burst.end_ns.abs_diff(phase.1 * MS) <= 50 * MS, "{burst:?} {phase:?}");
            assert_eq!(burst.bytes, phase.2);
        }
    }

    /// Phases closer than the gap that is assumed at first: it shrinks, and the phases that were
    /// treated as one are separated.
    #[test]
    fn phases_closer_than_the_prior_gap_are_separated_once_the_gap_is_learned() {
        let phases: Vec<_> = (0..12).map(|i| (1_000 + i * 800, 1_300 + i * 800, 1_000_000)).collect();
        let found = polled(&phases, 20);
        assert_eq!(found.len(), 12, "{found:?}");
    }

    #[test]
    fn pauses_within_phases_do_not_end_them() {
        let mut writes = Vec::new();
        for phase in 0..6 {
            for part in 0..10 {
                let start = 1_000 + phase * 60_000 + part * 2_000;
                writes.push((start, start + 800, 1_000_000));
            }
        }
        let found = polled(&writes, 50);
        let whole = found.iter().filter(|b| b.bytes == 10_000_000).count();
        assert!(whole >= 4, "{found:?}");
        assert_eq!(found.iter().map(|b| b.bytes).sum::<u64>(), 60_000_000);
    }

    #[test]
    fn lines_of_a_log_between_phases_make_no_burst_and_join_none() {
        let mut writes = Vec::new();
        for phase in 0..6 {
            writes.push((1_000 + phase * 10_000, 3_000 + phase * 10_000, 100_000_000));
            for line in 0..12 {
                let at = 3_400 + phase * 10_000 + line * 500;
                writes.push((at, at + 1, 80));
            }
        }
        let found = polled(&writes, 20);
        assert_eq!(found.len(), 6, "{found:?}");
        assert!(found.iter().all(|b| b.length_ns() < 3_000 * MS), "{found:?}");
    }

    /// A pause of ten minutes among pauses of five seconds does not make all that follows one
    /// burst.
    #[test]
    fn one_long_pause_is_an_accident() {
        let mut writes: Vec<_> = (0..4).map(|i| (i * 8_000, i * 8_000 + 3_000, 1_000_000)).collect();
        writes.extend((0..4).map(|i| (700_000 + i * 8_000, 703_000 + i * 8_000, 1_000_000)));
        assert_eq!(polled(&writes, 50).len(), 8);
    }

    #[test]
    fn the_burst_under_way_is_visible() {
        let mut bursts = Bursts::new();
        assert_eq!(bursts.ongoing(), None);
        bursts.progress(0, 0, false);
        bursts.progress(50 * MS, 100, true);
        bursts.progress(100 * MS, 300, true);
        assert_eq!(bursts.ongoing(), Some(Burst { start_ns: 0, end_ns: 100 * MS, bytes: 300 }));
        assert_eq!(bursts.next_deadline(), Some(100 * MS + PRIOR_GAP_NS + 1));
        assert_eq!(bursts.progress(100 * MS + PRIOR_GAP_NS, 300, false), None);
        let ended = bursts.progress(101 * MS + PRIOR_GAP_NS, 300, false);
        assert_eq!(ended, Some(Burst { start_ns: 0, end_ns: 100 * MS, bytes: 300 }));
        assert_eq!(bursts.ongoing(), None);
    }

    proptest! {
        /// Whatever a job does, no byte is counted twice or invented, and bursts come in order.
        #[test]
        fn bursts_are_in_order_and_their_bytes_are_the_jobs(
            steps in prop::collection::vec((1u64..100_000, 0u64..1_000_000, any::<bool>()), 1..400)
        ) {
            let mut bursts = Bursts::new();
            let (mut now, mut total, mut out) = (0, 0, Vec::new());
            for (wait_ms, bytes, busy) in steps {
                now += wait_ms * MS;
                total += bytes;
                out.extend(bursts.progress(now, total, busy));
            }
            for _ in 0..STRETCHES + 1 {
                now += 10 * MAX_GAP_NS;
                out.extend(bursts.progress(now, total, false));
            }
            prop_assert!(out.iter().map(|b| b.bytes).sum::<u64>() <= total);
            prop_assert!(out.windows(2).all(|w| w[0].end_ns <= w[1].start_ns));
            prop_assert!(out.iter().all(|b| b.start_ns <= b.end_ns));
            prop_assert_eq!(bursts.ongoing(), None);
        }

        /// Phases of any period from one second to five minutes are found, one burst each, as soon
        /// as the gap is learned.
        #[test]
        fn regular_phases_are_found_at_any_scale(
            period_ms in 1_000u64..300_000, duty in 0.1f64..0.5, jitter in prop::collection::vec(-0.2f64..0.2, 20)
        ) {
            let length = (period_ms as f64 * duty) as u64;
            let mut at = 1_000.0;
            let phases: Vec<_> = jitter.iter().map(|j| {
                let start = at as u64;
                at += period_ms as f64 * (1.0 + j);
                (start, start + length, 1_000_000)
            }).collect();
            let found = polled(&phases, (period_ms / 40).clamp(20, 1_000));
            for phase in &phases[5..] {
                let own = found.iter().filter(|b| b.start_ns < phase.1 * MS && phase.0 * MS < b.end_ns);
                prop_assert_eq!(own.map(|b| b.bytes).collect::<Vec<_>>(), [phase.2]);
            }
        }
    }
}
