//! The board as a play-out sees it, and the feeds that are worth playing.

use forebay_model::forecast::Chain;

use super::super::{Board, JobId};
use super::rollout::{Calendar, Feed, HORIZON_WAVES, Scene, Wave, Work};

/// Furthest wave, counted from the next to compute, that is fetched before those ahead of it.
const FURTHEST: usize = 16;

/// Returns the scene of `job`: prefetches move `gap_speed` bytes per second between phases, and
/// `io_speed(c)` in phases that lose the share c of their time.
pub(super) fn scene(board: &Board, job: JobId, gap_speed: f64, io_speed: impl Fn(f64) -> f64) -> Scene {
    Scene::new(calendar(board, job, gap_speed, io_speed), work(board, job))
}

/// Of several HPC jobs, the one with the longest phase under way, or the next one to come,
/// represents all.
fn calendar(board: &Board, job: JobId, gap_speed: f64, io_speed: impl Fn(f64) -> f64) -> Calendar {
    let chains = board.chains();
    let all = || chains.iter().map(|(_, c)| c);
    let active = all().filter(|c| c.in_phase).max_by(|a, b| a.left_s.total_cmp(&b.left_s));
    let coming = || all().filter(|c| c.left_s.is_finite()).min_by(|a, b| a.left_s.total_cmp(&b.left_s));
    let main: Option<&Chain> = active.or_else(coming);
    let in_phase = active.is_some();
    let share = main.map_or(0.0, |c| c.allowance / (1.0 + c.allowance));
    let j = board.job(job);
    let direct = board.corrected(board.config.direct.strain()).speed_bytes_per_s;
    let read_s = j.tier_read_ns as f64 * 1e-9;
    // What is read directly need not be read from the tier.
    let direct_pays = 1.0 / direct - read_s / (j.wave_bytes as f64) < 1.0 / gap_speed;
    Calendar {
        in_phase,
        to_phase_s: main.filter(|c| !c.in_phase).map_or(f64::INFINITY, |c| c.left_s),
        io_s: main.map_or(0.0, |c| c.io_s * (1.0 + c.allowance)),
        gap_s: main.map_or(f64::INFINITY, |c| c.compute_s),
        phases: main.map_or(0, |c| c.phases_after + u32::from(!in_phase)),
        gap_speed,
        io_speed: io_speed(share),
        direct_speed: if direct_pays { direct } else { 0.0 },
    }
}

fn work(board: &Board, job: JobId) -> Work {
    let j = board.job(job);
    let mut waves = [Wave::default(); HORIZON_WAVES];
    let count = ((j.waves - j.started) as usize).min(HORIZON_WAVES);
    for (i, wave) in waves[..count].iter_mut().enumerate() {
        let part = j.part(j.started + i as u32);
        let left_bytes = if part.there { 0.0 } else { board.left_bytes(job, j.started + i as u32) };
        *wave = Wave { left_bytes, direct_bytes: part.direct_bytes, in_tier: part.in_tier };
    }
    let untouched = waves[..count].iter().rposition(|w| w.in_tier || w.left_bytes != j.wave_bytes as f64);
    let busy_ns = j.computing_until.map_or(0, |at| at.saturating_since(board.now()));
    Work {
        wave_bytes: j.wave_bytes as f64,
        compute_s: j.compute_ns.saturating_sub(j.tier_read_ns) as f64 * 1e-9,
        read_s: j.tier_read_ns as f64 * 1e-9,
        busy_s: busy_ns as f64 * 1e-9,
        computing_bytes: if j.computing_until.is_some() {
            j.part(j.started.wrapping_sub(1)).tier_bytes(j.wave_bytes)
        } else {
            0.0
        },
        room_bytes: board.room_bytes(job),
        count,
        judged: if (j.waves - j.started) as usize > HORIZON_WAVES { HORIZON_WAVES } else { 1 },
        untouched: untouched.map_or(0, |i| i + 1),
        waves,
    }
}

fn first_missing(scene: &Scene) -> usize {
    let missing = |w: &Wave| w.left_bytes > 0.0;
    scene.work.waves[..scene.work.count].iter().position(missing).unwrap_or(scene.work.count)
}

/// Returns the feeds between phases: the first missing waves are left for the tasks, up to any in
/// sight, and those after them fetched.
///
/// Only for a job that is alone: of several, one waits while another is served, so skipping waves
/// helps none of them.
pub(super) fn feeds_between(board: &Board, scene: &Scene) -> impl Iterator<Item = Feed> + use<> {
    let from = first_missing(scene);
    let pays = scene.calendar.direct_speed > 0.0 && board.jobs().count() == 1;
    let last = if pays { scene.work.count.min(FURTHEST) } else { from };
    let keep_bytes = scene.work.wave_bytes;
    (from + 1..last).map(move |to| Feed { from, to, keep_bytes })
}

/// Returns the feeds within phases: of one wave as much is left as the tasks can read in the gap to
/// come, or a part of that.
pub(super) fn feeds_within(board: &Board, scene: &Scene) -> impl Iterator<Item = Feed> + use<> {
    let from = first_missing(scene);
    let pays = scene.calendar.direct_speed > 0.0 && board.jobs().count() == 1;
    let gap_s = if scene.calendar.phases > 0 { scene.calendar.gap_s } else { f64::INFINITY };
    let most_bytes = (scene.calendar.direct_speed * gap_s).min(scene.work.wave_bytes);
    let last = if pays { scene.work.count.min(from + 3) } else { from };
    (from..last).flat_map(move |from| {
        [0.25, 0.5, 1.0].map(|part| Feed { from, to: from + 1, keep_bytes: part * most_bytes })
    })
}
