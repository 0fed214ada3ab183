//! The clock that the measuring process and the programs that it starts share.

use rustix::time::{ClockId, clock_gettime};

/// The time of the shared clock, in ns.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
