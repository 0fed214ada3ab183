//! The board as messages of the wire.

use forebay_policy::phases::JobStatus;
use forebay_wire::HpcStatus;

/// A job of the board as people see it; one of this node is at `here`, and one that waits to begin
/// a phase has waited for `waits_ns`.
pub fn status(job: JobStatus, here: &str, waits_ns: Option<u64>) -> HpcStatus {
    let [ended, in_time, late, cut_off] = job.phases;
    HpcStatus {
        name: job.name,
        user: job.user,
        node: if job.node.is_empty() { here.to_owned() } else { job.node },
        phase: job.phase,
        lasted_ms: job.lasted_ns / 1_000_000,
        ended,
        in_time,
        late,
        cut_off,
        io_ms: (job.io_ns > 0).then_some(job.io_ns / 1_000_000),
        alone_bytes_per_s: job.alone_bytes_per_s,
        next_in_ms: job.next_in_ns.map(|ns| ns / 1_000_000),
        waits_ms: waits_ns.map(|ns| ns / 1_000_000),
    }
}
