//! What a Darshan log says of the I/O phases of an earlier run of an HPC job.
//!
//! Reads and writes that DXT has recorded go through the same detector as those that the observer
//! sees, so that the phases of the log are those that an agent would have seen. Counters alone do
//! not say when within a file's life its bytes moved, and are refused.

use forebay_policy::phases::bursts::{Burst, Bursts, MAX_GAP_NS};
use forebay_policy::phases::{EARLIER_MAX, LEAST_BYTES};
use forebay_sim::scenario::darshan::{Interval, segments};
use std::path::Path;
use std::time::Duration;

/// An earlier run.
pub struct Earlier {
    /// Its latest phases, in their order.
    pub phases: Vec<Burst>,
    /// The median time of a phase.
    pub io: Duration,
}

/// The run that a log of `darshan-dxt-parser` recorded.
pub fn earlier(log: &Path) -> Result<Earlier, String> {
    let calls = segments(log).map_err(|e| e.to_string())?;
    let mut bursts = bursts(&calls);
    bursts.retain(|burst| burst.bytes >= LEAST_BYTES);
    bursts.drain(..bursts.len().saturating_sub(EARLIER_MAX));
    let mut lengths: Vec<u64> = bursts.iter().map(Burst::length_ns).collect();
    lengths.sort_unstable();
    let Some(io_ns) = lengths.get(lengths.len() / 2).copied() else {
        return Err(format!("{}: its reads and writes make no I/O phase of 1 MiB", log.display()));
    };
    Ok(Earlier { phases: bursts, io: Duration::from_nanos(io_ns) })
}

fn bursts(calls: &[Interval]) -> Vec<Burst> {
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let (mut detector, mut found) = (Bursts::new(), Vec::new());
    for call in calls {
        let moved = Burst { start_ns: ns(call.begin_s), end_ns: ns(call.end_s), bytes: call.bytes as u64 };
        found.extend(detector.interval(moved));
        while let Some(burst) = detector.quiet(moved.start_ns) {
            found.push(burst);
        }
    }
    let last_ns = calls.iter().map(|call| ns(call.end_s)).max().unwrap_or(0);
    while let Some(burst) = detector.quiet(last_ns + 2 * MAX_GAP_NS) {
        found.push(burst);
    }
    found
}
