//! `forebay`: searches start, nodes, threads, rate and depth, and decides anew at every event.
//!
//! Between phases the fastest setting hurts nobody. Within a phase the prefetch may *spend* what the phase has in hand:
//! a phase with A seconds of I/O left (alone) and a deadline S seconds later than that can afford to lose S. A setting
//! moves v bytes a second and costs the phase c = 1 - 1/I of every second, so the question is how to turn S into bytes:
//!
//! 1. Of all settings (nodes x threads x rate) only those on the *concave hull* of v over c matter: any other is beaten
//!    by switching between two of them. There are about ten. The pause is one of them, at c = 0.
//! 2. A course through the phase is a pair (first, second) of hull settings and the moments to switch and to pause. They
//!    come in closed form from spending S exactly by the end of the phase, or by the moment the wave is there. The
//!    papers' actions are such pairs: the delays are (pause, default), the scalings a single setting.
//! 3. Each course is *played out*: through the phase, the gaps and phases after it, with as many waves ahead as the
//!    memory holds, to the moment when compute starts on the last wave in sight. The earliest wins; of equals the one
//!    that costs the phase least. So a prefetch that would only wait in memory spends nothing, and a job that
//!    lives from hand to mouth gets all there is.
//! 4. The winner is checked by the exact forecast over all HPC jobs, and is shortened until no deadline is missed.
//!
//! Where tasks wait and no phase is under way, they read what is missing themselves if that is faster than through the tier.
//!
//! Several Big Data jobs are served one at a time, the one whose compute stalls first before the others: halving the
//! bandwidth between two waves delays the first and does not bring the second sooner.
//!
//! Why not a linear program over the whole future: it would be out of date at the next phase that comes a second late;
//! deciding again at each event costs microseconds and starts from what is true.

use alloc::vec::Vec;

use forebay_model::forecast::{Chain, Forecaster, Outcome, Step};
use forebay_model::profile::{Setting, Strain};

use super::eley::MARGIN_S;
use super::plan::{ActionKind, Estimate, Plan, PlannedStep};
use super::{Board, Depth, JobId, Policy};
use crate::machine::Nanos;

mod course;
mod hull;

use course::{Course, Leg, REST, SAME_S, Scene};
use hull::{Hull, PAUSE, Point, all_points, concave_hull, speed_at};

pub use hull::SpeedCurve;

/// Searches the whole space.
#[derive(Default)]
pub struct Forebay {
    hulls: Vec<Hull>,
    forecaster: Forecaster,
}

impl Forebay {
    fn hull(&mut self, board: &Board, phases: usize) -> &[Point] {
        let corrections = board.corrections();
        let at = match self.hulls.iter().position(|h| h.phases == phases) {
            Some(at) => at,
            None => {
                self.hulls.push(Hull { phases, ..Hull::default() });
                self.hulls.len() - 1
            }
        };
        let hull = &mut self.hulls[at];
        if hull.points.is_empty() || hull.corrections != corrections {
            *hull = Hull { phases, corrections, points: concave_hull(all_points(board, phases)) };
        }
        &hull.points
    }

    /// The best course through the phases under way, and how many were looked at.
    fn best_course(&mut self, board: &Board, scene: &Scene, phases: usize) -> (Course, u32) {
        let hull = self.hull(board, phases);
        let mut best = Course { legs: [REST; 3], lost_s: 0.0 };
        let mut best_s = scene.play(&best);
        let mut seen = 1;
        for &first in hull {
            for &second in hull {
                for course in scene.courses(first, second).into_iter().flatten() {
                    seen += 1;
                    let start_s = scene.play(&course);
                    let sooner = start_s < best_s - SAME_S;
                    if sooner || (start_s <= best_s + SAME_S && course.lost_s < best.lost_s - SAME_S) {
                        best_s = best_s.min(start_s);
                        best = course;
                    }
                }
            }
        }
        (best, seen)
    }

    /// Cuts a course down until the exact forecast says that no deadline is missed by it.
    fn make_safe(&mut self, board: &Board, job: JobId, bytes: f64, mut course: Course) -> (Course, Outcome) {
        let chains: Vec<Chain> = board.chains().into_iter().map(|(_, c)| c).collect();
        let others = board.others(job);
        let pfs = board.config.pfs_bytes_per_s;
        let pause = Step { for_s: f64::INFINITY, strain: Strain::NONE, yields: false };
        let nothing =
            Step { strain: Strain { speed_bytes_per_s: f64::MAX, ..Strain::NONE }, yields: true, ..pause };
        let unavoidable_s = self.forecaster.run_present(&chains, &others, &[nothing], bytes, pfs).late_s;
        loop {
            let step = |leg: Leg| Step { for_s: leg.for_s, strain: leg.point.strain, yields: false };
            let outcome = self.forecaster.run_present(&chains, &others, &course.legs.map(step), bytes, pfs);
            let allowed_s = unavoidable_s.max(-MARGIN_S) + 1e-9;
            if course.is_harmless() || outcome.late_s <= allowed_s {
                return (course, outcome);
            }
            course = course.halved();
        }
    }

    fn between_phases(&mut self, board: &Board, job: JobId, wave: u32) -> Plan {
        let fastest = *self.hull(board, 0).last().unwrap_or(&PAUSE);
        let in_s = board.left_bytes(job, wave) / fastest.speed;
        if let Some(plan) = direct_is_faster(board, job, wave, in_s) {
            return plan;
        }
        let estimate = Estimate {
            fetched_in_s: in_s.is_finite().then_some(in_s),
            cost_s: in_s.is_finite().then(|| (in_s - board.hidden_s(job)).max(0.0)),
            margin_s: None,
        };
        Plan {
            kind: kind_of(board, fastest.setting, 0.0),
            skips: 0,
            steps: [PlannedStep { at: board.now(), setting: fastest.setting, yields: false }].to_vec(),
            estimate,
            candidates: 1,
            reason: "no phase is under way: as fast as the file system gives".into(),
        }
    }

    fn within_phases(&mut self, board: &Board, job: JobId, wave: u32) -> Plan {
        let phases = board.active_phases();
        let gap_speed = self.hull(board, 0).last().map_or(0.0, |p| p.speed);
        let mut scene = Scene::new(board, job, wave, gap_speed);
        scene.io_speed = speed_at(self.hull(board, 1), scene.later_share);
        let (course, candidates) = self.best_course(board, &scene, phases);
        let (course, outcome) = self.make_safe(board, job, scene.left_bytes, course);
        let now = board.now();
        let steps = steps_of(&course, now);
        let [first, second, _] = course.legs;
        let delay_s = if first.point.setting.is_paused() { first.for_s } else { 0.0 };
        let main =
            if delay_s > 0.0 && delay_s.is_finite() { second.point.setting } else { first.point.setting };
        Plan {
            kind: kind_of(board, main, delay_s),
            skips: 0,
            estimate: Estimate {
                fetched_in_s: outcome.end_s.is_finite().then_some(outcome.end_s),
                cost_s: outcome.end_s.is_finite().then(|| (outcome.end_s - board.hidden_s(job)).max(0.0)),
                margin_s: outcome.late_s.is_finite().then_some(-outcome.late_s),
            },
            steps,
            candidates,
            reason: alloc::format!(
                "compute gets furthest this way; the phase loses {:.3} s of the {:.3} s it has in hand",
                course.lost_s,
                scene.slack_s
            ),
        }
    }
}

/// Tasks that wait anyway read what is missing themselves if that is faster: what they read directly need not pass through
/// the tier. `tier_s` is how long the fastest setting needs for the rest of the wave.
fn direct_is_faster(board: &Board, job: JobId, wave: u32, tier_s: f64) -> Option<Plan> {
    let j = board.job(job);
    let left_bytes = board.left_bytes(job, wave);
    let tier_read_s = j.tier_read_ns as f64 * 1e-9;
    let direct_s = left_bytes / board.corrected(board.config.direct.strain()).speed_bytes_per_s;
    let through_tier_s = tier_s + tier_read_s;
    let past_tier_s = direct_s + tier_read_s * (1.0 - left_bytes / j.wave_bytes as f64);
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

/// A course as steps from `now` on.
fn steps_of(course: &Course, now: Nanos) -> Vec<PlannedStep> {
    let mut steps: Vec<PlannedStep> = Vec::new();
    let mut at = now;
    for leg in course.legs {
        let step = PlannedStep { at, setting: leg.point.setting, yields: false };
        match steps.last_mut() {
            // A leg too short for a nanosecond gives way to the next; equal settings are one step.
            Some(last) if last.at == at => *last = step,
            Some(last) if last.setting == step.setting => {}
            _ => steps.push(step),
        }
        if leg.for_s.is_infinite() {
            break;
        }
        // Rounded down: the dearer setting usually comes first, and the margin covers the other order.
        at = at + (leg.for_s * 1e9) as u64;
    }
    steps
}

/// The papers' word for it, where they have one.
fn kind_of(board: &Board, setting: Setting, delay_s: f64) -> ActionKind {
    let default = board.config.default_setting;
    let threads = |s: Setting| u32::from(s.nodes) * u32::from(s.threads);
    match (delay_s > 0.0, setting) {
        (_, s) if s.is_paused() => ActionKind::FullDelay,
        (true, s) if s == default => ActionKind::PartialDelay,
        (true, _) => ActionKind::Search,
        (false, s) if s == default => ActionKind::NoAction,
        (false, s) if s.rate < 1.0 => ActionKind::Search,
        (false, s) if s.nodes == default.nodes && s.threads > default.threads => ActionKind::ScaleUp,
        (false, s) if threads(s) < threads(default) => ActionKind::ScaleDown,
        _ => ActionKind::Search,
    }
}

/// The job whose compute runs dry first, of those that have something to fetch.
fn most_urgent(board: &Board) -> Option<JobId> {
    let wanting = board.jobs().map(|(id, _)| id).filter(|&id| board.next_wave(id, Depth::Memory).is_some());
    wanting.min_by(|&a, &b| board.hidden_s(a).total_cmp(&board.hidden_s(b)).then(a.cmp(&b)))
}

impl Policy for Forebay {
    fn depth(&self) -> Depth {
        Depth::Memory
    }

    fn replans(&self) -> bool {
        true
    }

    fn plan(&mut self, board: &Board, job: JobId, wave: u32) -> Plan {
        match most_urgent(board) {
            Some(urgent) if urgent != job => Plan {
                kind: ActionKind::Wait,
                skips: 0,
                steps: [PlannedStep { at: board.now(), setting: Setting::PAUSED, yields: false }].to_vec(),
                estimate: Estimate { fetched_in_s: None, cost_s: None, margin_s: None },
                candidates: 1,
                reason: alloc::format!("job {urgent} runs out of input sooner"),
            },
            _ if board.active_phases() == 0 => self.between_phases(board, job, wave),
            _ => self.within_phases(board, job, wave),
        }
    }
}
