//! What a tree of processes has got from the tier by its own `open` and `read`: the memory that
//! `forebay run --report` shares with the preloaded library.
//!
//! Each process adds to a slot that its number chooses. Slots are shared by processes of equal
//! remainders; all fields are atomic sums, so nothing is lost, even if a process is killed.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of the region.
pub const REGION_BYTES: usize = size_of::<Region>();

const SLOTS: usize = 64;
const MAGIC: u64 = u64::from_ne_bytes(*b"FBREPORT");
const VERSION: u32 = 2;

/// The region. Any content is a valid one.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Region {
    magic: AtomicU64,
    version: AtomicU32,
    slots: [Slot; SLOTS],
}

/// The sums of some processes.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Slot {
    /// Processes that have loaded the library.
    pub processes: AtomicU64,
    /// Descriptors whose reads are served.
    pub files: AtomicU64,
    /// Descriptors below a mount that are left to the kernel.
    pub left_files: AtomicU64,
    /// Reads that were served.
    pub reads: AtomicU64,
    /// Reads that found everything in the tier.
    pub hits: AtomicU64,
    /// Bytes of hits.
    pub hit_bytes: AtomicU64,
    /// Nanoseconds of hits.
    pub hit_ns: AtomicU64,
    /// Bytes of reads that waited for the agent or read the PFS.
    pub miss_bytes: AtomicU64,
    /// Nanoseconds that these reads took.
    pub miss_ns: AtomicU64,
    /// Bytes that came from the PFS in that time, including those that the program did not want
    /// yet.
    pub come_bytes: AtomicU64,
    /// Reads that failed here and were left to the kernel.
    pub failures: AtomicU64,
}

/// Sums over all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// See [`Slot`].
    pub processes: u64,
    /// See [`Slot`].
    pub files: u64,
    /// See [`Slot`].
    pub left_files: u64,
    /// See [`Slot`].
    pub reads: u64,
    /// See [`Slot`].
    pub hits: u64,
    /// See [`Slot`].
    pub hit_bytes: u64,
    /// See [`Slot`].
    pub hit_ns: u64,
    /// See [`Slot`].
    pub miss_bytes: u64,
    /// See [`Slot`].
    pub miss_ns: u64,
    /// See [`Slot`].
    pub come_bytes: u64,
    /// See [`Slot`].
    pub failures: u64,
}

/// Bytes that must have come before their rate says anything.
const LEAST_MISSED_BYTES: u64 = 1 << 20;

impl Region {
    /// Makes a region of zeroed memory usable.
    pub fn init(&self) {
        self.version.store(VERSION, Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Whether it is a region of this version.
    pub fn is_valid(&self) -> bool {
        self.magic.load(Acquire) == MAGIC && self.version.load(Relaxed) == VERSION
    }

    /// The slot of the process `pid`.
    pub fn slot(&self, pid: u32) -> &Slot {
        &self.slots[pid as usize % SLOTS]
    }

    /// Sums over all slots.
    pub fn report(&self) -> Report {
        let mut sum = Report::default();
        for slot in &self.slots {
            let fields = [
                (&mut sum.processes, &slot.processes),
                (&mut sum.files, &slot.files),
                (&mut sum.left_files, &slot.left_files),
                (&mut sum.reads, &slot.reads),
                (&mut sum.hits, &slot.hits),
                (&mut sum.hit_bytes, &slot.hit_bytes),
                (&mut sum.hit_ns, &slot.hit_ns),
                (&mut sum.miss_bytes, &slot.miss_bytes),
                (&mut sum.miss_ns, &slot.miss_ns),
                (&mut sum.come_bytes, &slot.come_bytes),
                (&mut sum.failures, &slot.failures),
            ];
            for (total, part) in fields {
                *total = total.wrapping_add(part.load(Relaxed));
            }
        }
        sum
    }
}

impl Report {
    /// Rate in bytes per second at which bytes came from the PFS while reads waited; `None` if too
    /// few did. Small reads wait once for many bytes, as they do for the kernel's read-ahead.
    pub fn miss_rate_bytes_per_s(&self) -> Option<f64> {
        let is_enough = self.come_bytes >= LEAST_MISSED_BYTES && self.miss_ns > 0;
        is_enough.then(|| self.come_bytes as f64 / (self.miss_ns as f64 / 1e9))
    }

    /// Seconds that the hits would have taken longer at `rate_bytes_per_s`; negative if the tier
    /// was the slower one.
    pub fn saved_s(&self, rate_bytes_per_s: f64) -> f64 {
        self.hit_bytes as f64 / rate_bytes_per_s - self.hit_ns as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        let slots = [const {
            Slot {
                processes: AtomicU64::new(0),
                files: AtomicU64::new(0),
                left_files: AtomicU64::new(0),
                reads: AtomicU64::new(0),
                hits: AtomicU64::new(0),
                hit_bytes: AtomicU64::new(0),
                hit_ns: AtomicU64::new(0),
                miss_bytes: AtomicU64::new(0),
                miss_ns: AtomicU64::new(0),
                come_bytes: AtomicU64::new(0),
                failures: AtomicU64::new(0),
            }
        }; SLOTS];
        Region { magic: AtomicU64::new(0), version: AtomicU32::new(0), slots }
    }

    #[test]
    fn sums_are_over_all_processes() {
        let region = region();
        assert!(!region.is_valid());
        region.init();
        assert!(region.is_valid());
        for pid in [1, 2, 1 + SLOTS as u32] {
            region.slot(pid).processes.fetch_add(1, Relaxed);
            region.slot(pid).hit_bytes.fetch_add(10, Relaxed);
        }
        assert_eq!(region.report(), Report { processes: 3, hit_bytes: 30, ..Report::default() });
    }

    #[test]
    fn what_is_saved_is_estimated_from_misses_only_where_there_were_some() {
        let mut report = Report { hit_bytes: 400 << 20, hit_ns: 500_000_000, ..Report::default() };
        assert_eq!(report.miss_rate_bytes_per_s(), None);
        (report.miss_bytes, report.miss_ns) = (1 << 20, 1_000_000_000);
        assert_eq!(report.miss_rate_bytes_per_s(), None);
        report.come_bytes = 100 << 20;
        let rate = report.miss_rate_bytes_per_s().unwrap();
        assert!((rate - f64::from(100 << 20)).abs() < 1.0);
        assert!((report.saved_s(rate) - 3.5).abs() < 1e-6);
    }
}
