//! Limits how far ahead a job fetches.
//!
//! A job keeps the memory of fetched waves until it has computed them, so a job that arrives later
//! finds none. A job therefore begins no further wave while its stock of compute lasts longer than
//! fetching the next waves can take.

use super::super::{Board, JobId};

/// Number of waves that a job can fetch while its stock lasts.
const WAVES: f64 = 3.0;

/// Number of longest phases that fit in the same time.
const PHASES: f64 = 2.0;

/// Returns the seconds of compute in stock that are enough for `job`: nothing moves during
/// [`PHASES`] of the longest phases, or one phase of every HPC job, and then [`WAVES`] waves arrive
/// at its share of the mean speed.
///
/// Prefetches move `gap_speed` bytes per second between phases, `io_speed(c)` beside one that loses
/// the share c of its time, and nothing beside several.
pub(super) fn enough_s(board: &Board, job: JobId, gap_speed: f64, io_speed: impl Fn(f64) -> f64) -> f64 {
    let (mut none, mut one, mut speed_beside) = (1.0, 0.0, f64::INFINITY);
    let (mut longest_s, mut all_s) = (0.0f64, 0.0);
    for (_, chain) in board.chains() {
        let lasts_s = chain.io_s * (1.0 + chain.allowance);
        let load = lasts_s / (lasts_s + chain.compute_s).max(f64::MIN_POSITIVE);
        one = one * (1.0 - load) + none * load;
        none *= 1.0 - load;
        speed_beside = io_speed(chain.allowance / (1.0 + chain.allowance)).min(speed_beside);
        longest_s = longest_s.max(lasts_s);
        all_s += lasts_s;
    }
    let beside = if one > 0.0 { one * speed_beside } else { 0.0 };
    let all = gap_speed.min(board.pfs_bytes_per_s());
    let jobs = board.jobs().count().max(1) as f64;
    all_s.max(PHASES * longest_s) + WAVES * board.job(job).wave_bytes as f64 * jobs / (none * all + beside)
}
