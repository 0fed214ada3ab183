//! Tasks that read the PFS by themselves.

use alloc::vec::Vec;

use super::plan::{ActionKind, Estimate, Plan};
use super::{Board, JobId};

/// Returns a plan that lets tasks that wait anyway read what is missing themselves, if that is
/// faster: what they read directly need not pass through the tier. `tier_s` is how long the fastest
/// setting needs for the rest of the wave.
pub(super) fn direct_is_faster(board: &Board, job: JobId, wave: u32, tier_s: f64) -> Option<Plan> {
    let j = board.job(job);
    let left_bytes = board.left_bytes(job, wave);
    let tier_read_s = j.tier_read_ns as f64 * 1e-9;
    let direct_s = left_bytes / board.corrected(board.config.direct.strain()).speed_bytes_per_s;
    let through_tier_s = tier_s + tier_read_s;
    let past_tier_s = direct_s + tier_read_s * (1.0 - left_bytes / j.wave_bytes as f64);
    // No brake stops a task: its last read has to be over when the next phase begins.
    let computes_s = if board.config.direct.with_compute { j.compute_ns as f64 * 1e-9 } else { 0.0 };
    let meets_phase = board.next_phase_in_s().is_some_and(|in_s| in_s < direct_s.max(computes_s));
    if meets_phase && board.config.direct.with_compute {
        return None;
    }
    (j.waits() && past_tier_s < through_tier_s).then(|| Plan {
        kind: ActionKind::Direct,
        skips: 0,
        steps: Vec::new(),
        estimate: Estimate { fetched_in_s: Some(direct_s), cost_s: Some(direct_s), margin_s: None },
        candidates: 2,
        reason: alloc::format!(
            "tasks wait and no phase is under way: reading the rest themselves they begin in {past_tier_s:.3} s, through the tier in {through_tier_s:.3} s"
        ),
    })
}
