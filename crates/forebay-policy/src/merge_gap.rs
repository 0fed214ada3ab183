//! When one longer read of a PFS is cheaper than two shorter ones.
//!
//! A read costs a fixed time and a time for each byte. Two ranges of a file with a gap between them
//! are cheaper as one read if the bytes of the gap take no longer than the fixed time. Both times
//! are estimated from the reads of a mount, as a straight line through the times of reads; older
//! reads count less. A constant would be right for one PFS: the gap is some kilobytes on a local
//! disk and hundreds where each request crosses a busy network.

/// The longest gap. Beyond it two reads can go side by side, which the time of each does not show.
pub const GAP_BYTES_MAX: u64 = 128 << 10;

/// Reads before the first estimate.
const READS_MIN: u32 = 32;

/// Each later read multiplies the weight of a read by this.
const KEPT: f64 = 1.0 - 1.0 / 256.0;

/// Least standard deviation of the lengths: a line through reads of one length is meaningless.
const SPREAD_BYTES: f64 = 8192.0;

/// Estimated cost of the reads of one mount.
#[derive(Clone, Debug, Default)]
pub struct ReadCost {
    reads: u32,
    weight: f64,
    bytes: f64,
    ns: f64,
    bytes_squared: f64,
    bytes_by_ns: f64,
}

impl ReadCost {
    /// Records that a read of `bytes` took `took_ns`.
    pub fn observe(&mut self, bytes: u64, took_ns: u64) {
        let (x, y) = (bytes as f64, took_ns as f64);
        self.reads = self.reads.saturating_add(1);
        self.weight = self.weight * KEPT + 1.0;
        self.bytes = self.bytes * KEPT + x;
        self.ns = self.ns * KEPT + y;
        self.bytes_squared = self.bytes_squared * KEPT + x * x;
        self.bytes_by_ns = self.bytes_by_ns * KEPT + x * y;
    }

    /// Returns the longest gap between two ranges that are better read as one, in bytes; 0 as long
    /// as too little is known.
    pub fn gap_bytes(&self) -> u64 {
        let spread = self.weight * self.bytes_squared - self.bytes * self.bytes;
        let least = SPREAD_BYTES * self.weight;
        if self.reads < READS_MIN || spread < least * least {
            return 0;
        }
        let ns_per_byte = (self.weight * self.bytes_by_ns - self.bytes * self.ns) / spread;
        let ns_per_read = (self.ns - ns_per_byte * self.bytes) / self.weight;
        if ns_per_read <= 0.0 {
            return 0;
        }
        // Longer reads took no longer: bytes have no measurable cost.
        if ns_per_byte <= 0.0 {
            return GAP_BYTES_MAX;
        }
        ((ns_per_read / ns_per_byte) as u64).min(GAP_BYTES_MAX)
    }
}

/// Returns whether a range that begins at `next` belongs to the read of one that ends at `end`.
pub fn goes_on(end: u64, next: u64, gap_bytes: u64) -> bool {
    next.checked_sub(end).is_some_and(|gap| gap <= gap_bytes)
}

/// The pages that hold parts of a file, and those between the parts, each with the number of its
/// bytes that belong to parts. The parts are in order and do not overlap; each has an offset and a
/// length.
#[derive(Debug)]
pub struct Pages<I: Iterator<Item = (u64, u64)>> {
    parts: core::iter::Peekable<I>,
    page_bytes: u64,
    size: u64,
    next: Option<u64>,
}

/// See [`Pages`]. What is beyond `size` is not part of the file.
pub fn pages(
    parts: impl Iterator<Item = (u64, u64)>,
    page_bytes: u64,
    size: u64,
) -> Pages<impl Iterator<Item = (u64, u64)>> {
    let mut parts = parts.take_while(move |(offset, _)| *offset < size).peekable();
    let next = parts.peek().map(|(offset, _)| offset / page_bytes);
    Pages { parts, page_bytes, size, next }
}

impl<I: Iterator<Item = (u64, u64)>> Iterator for Pages<I> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let page = self.next?;
        let (start, end) = (page * self.page_bytes, (page + 1) * self.page_bytes);
        if start >= self.size {
            return None;
        }
        let (mut wanted, mut some) = (0, false);
        while let Some(&(offset, len)) = self.parts.peek() {
            let part_end = offset.saturating_add(len).min(self.size);
            some |= part_end > start;
            wanted += part_end.min(end).saturating_sub(offset.max(start));
            if part_end > end {
                break;
            }
            self.parts.next();
        }
        // The last part has ended: this page has none of its bytes.
        if !some {
            return None;
        }
        self.next = self.parts.peek().is_some().then_some(page + 1);
        Some((page, wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const PAGE: u64 = 16 << 10;

    fn cost_of(per_read_ns: u64, ns_per_kib: u64, lengths: &[u64]) -> ReadCost {
        let mut cost = ReadCost::default();
        lengths.iter().for_each(|bytes| cost.observe(*bytes, per_read_ns + bytes * ns_per_kib / 1024));
        cost
    }

    proptest! {
        /// The promise: at the estimated gap, one read costs no more than two, but for rounding.
        #[test]
        fn merging_over_the_gap_costs_no_more_than_a_second_read(
            per_read_ns in 1_000u64..50_000_000,
            ns_per_kib in 50u64..1_000_000,
            lengths in prop::collection::vec(1u64..129, 40..300),
        ) {
            let lengths: Vec<u64> = lengths.into_iter().map(|pages| pages * PAGE).collect();
            let gap = cost_of(per_read_ns, ns_per_kib, &lengths).gap_bytes();
            let gap_ns = gap as f64 * ns_per_kib as f64 / 1024.0;
            prop_assert!(gap_ns <= per_read_ns as f64 * 1.02 + 2000.0, "{gap} bytes take {gap_ns} ns");
            // And it is the longest such gap, if the reads varied enough.
            let mean = lengths.iter().sum::<u64>() / lengths.len() as u64;
            let varied = lengths.iter().filter(|l| l.abs_diff(mean) > 2 * PAGE).count() > lengths.len() / 2;
            if varied && gap < GAP_BYTES_MAX {
                prop_assert!(gap_ns + 2000.0 >= per_read_ns as f64 * 0.98, "{gap} bytes take {gap_ns} ns");
            }
        }

        /// Each byte of the parts is in one page, and pages are adjacent from first to last.
        #[test]
        fn pages_have_the_bytes_of_the_parts_and_no_others(
            page_bytes in prop::sample::select(alloc::vec![4096u64, 16 << 10, 64 << 10]),
            first in 0u64..200_000,
            steps in prop::collection::vec((1u64..300_000, 0u64..200_000), 1..12),
            cut in 0u64..400_000,
        ) {
            let mut at = first;
            let mut parts = Vec::new();
            for (len, gap) in steps {
                parts.push((at, len));
                at += len + gap;
            }
            let end = parts.last().map_or(0, |(offset, len)| offset + len);
            let size = end.saturating_sub(cut).max(1);
            let found: Vec<_> = pages(parts.iter().copied(), page_bytes, size).collect();
            let clipped = |(offset, len): &(u64, u64)| (offset + len).min(size).saturating_sub(*offset);
            prop_assert_eq!(found.iter().map(|p| p.1).sum::<u64>(), parts.iter().map(clipped).sum::<u64>());
            prop_assert!(found.windows(2).all(|w| w[0].0 + 1 == w[1].0));
            prop_assert!(found.iter().all(|(page, wanted)| page * page_bytes < size && *wanted <= page_bytes));
            if let (Some(a), Some(b)) = (found.first(), found.last()) {
                prop_assert_eq!(a.0, first / page_bytes);
                prop_assert!(b.1 > 0, "a page behind the last part");
            }
        }
    }

    #[test]
    fn what_is_not_known_is_not_merged() {
        assert_eq!(ReadCost::default().gap_bytes(), 0);
        assert_eq!(cost_of(1_000_000, 1000, &[PAGE; 500]).gap_bytes(), 0, "all of one length");
        assert_eq!(cost_of(1_000_000, 1000, &[PAGE, 64 * PAGE]).gap_bytes(), 0, "too few");
        let lengths: Vec<u64> = (0..100).map(|i| (i % 50 + 1) * PAGE).collect();
        assert_eq!(cost_of(1_000_000, 20_000, &lengths).gap_bytes() >> 10, 49, "1 ms at 50 MiB/s");
        assert_eq!(cost_of(10_000_000, 1000, &lengths).gap_bytes(), GAP_BYTES_MAX);
        // The PFS has become slower at each request: the later reads count.
        let mut cost = cost_of(100_000, 20_000, &lengths);
        for bytes in (0..2000).map(|i| (i % 50 + 1) * PAGE) {
            cost.observe(bytes, 2_000_000 + bytes * 20_000 / 1024);
        }
        assert_eq!(cost.gap_bytes() >> 10, 99);
    }

    #[test]
    fn a_range_goes_on_within_the_gap_and_only_forwards() {
        assert!(goes_on(100, 100, 0) && goes_on(100, 150, 50));
        assert!(!goes_on(100, 151, 50) && !goes_on(100, 99, u64::MAX));
    }
}
