//! The parts in which a pass writes a file, and how long a file waits after a failed pass.

use alloc::vec::Vec;

/// Passes that may fail before a file is parked.
pub const TRIES: u32 = 5;

const FIRST_PAUSE_NS: u64 = 1_000_000_000;

/// Returns how long to wait for the next pass after `failures` failed ones in succession. `None`:
/// the file is parked until a pass is requested.
pub fn pause_ns(failures: u32) -> Option<u64> {
    (failures < TRIES).then(|| FIRST_PAUSE_NS << (2 * failures.saturating_sub(1)).min(30))
}

/// Splits `[start, end)` into the parts that are written at a time: of `unit` bytes, from one
/// multiple of it to the next, so that each is within as few stripes as possible.
pub fn chunks(start: u64, end: u64, unit: u64) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = start;
    while at < end {
        let next = (at / unit + 1).saturating_mul(unit).min(end);
        parts.push((at, next));
        at = next;
    }
    parts
}

/// The first part that is written around the I/O phases of other jobs.
pub const GENTLE_BYTES: u64 = 1 << 20;

const GENTLE_MIN_BYTES: u64 = 256 << 10;

/// How long a part that is written around phases should take, in ns.
const GENTLE_NS: u64 = 50_000_000;

/// Returns how much to write at a time around the phases of other jobs, at most `unit` bytes, after
/// the file system took `took_ns` for `bytes`. A write that is under way when a phase begins
/// continues in it.
pub fn gentle_bytes(bytes: u64, took_ns: u64, unit: u64) -> u64 {
    let next = match took_ns {
        _ if took_ns < GENTLE_NS / 2 => bytes.saturating_mul(2),
        _ if took_ns > GENTLE_NS * 2 => bytes / 2,
        _ => bytes,
    };
    next.clamp(GENTLE_MIN_BYTES.min(unit), unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tries_are_bounded_and_grow_apart() {
        let pauses: Vec<_> = (1..TRIES).map_while(pause_ns).map(|ns| ns / 1_000_000_000).collect();
        assert_eq!(pauses, [1, 4, 16, 64]);
        assert_eq!(pause_ns(TRIES), None);
    }

    #[test]
    fn parts_around_phases_are_as_large_as_the_file_system_is_fast() {
        let unit = 4 << 20;
        // A file system of `rate` bytes per second.
        let settled = |rate: u64| {
            let mut bytes = GENTLE_BYTES;
            for _ in 0..20 {
                bytes = gentle_bytes(bytes, bytes * 1_000_000_000 / rate, unit);
            }
            bytes
        };
        assert_eq!((settled(1_000_000), settled(10_000_000_000)), (GENTLE_MIN_BYTES, unit));
        let took_ns = settled(20_000_000) * 1_000_000_000 / 20_000_000;
        assert!((GENTLE_NS / 2..=GENTLE_NS * 2).contains(&took_ns), "{took_ns}");
    }

    proptest! {
        #[test]
        fn chunks_cover_a_range_once_and_end_at_multiples(start in 0u64..1000, len in 0u64..1000, unit in 1u64..50) {
            let end = start + len;
            let parts = chunks(start, end, unit);
            let mut at = start;
            for (from, to) in parts {
                prop_assert_eq!(from, at);
                prop_assert!(to > from && to <= end && (to % unit == 0 || to == end) && to - from <= unit);
                at = to;
            }
            prop_assert_eq!(at, end);
        }
    }
}
