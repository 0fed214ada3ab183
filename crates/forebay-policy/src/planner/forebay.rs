//! `forebay`: searches start, nodes, threads, rate, prefetch distance and order of waves, and
//! decides again at every event.
//!
//! Between phases the fastest setting disturbs no phase. Within a phase the prefetch may *spend*
//! what the phase has in hand: a phase with A seconds of I/O left (alone) and a deadline S seconds
//! later than that can afford to lose S. A setting moves v bytes per second and costs the phase c =
//! 1 - 1/I of every second, so the question is how to turn S into bytes:
//!
//! 1. Of all settings (nodes x threads x rate) only those on the *concave hull* of v over c matter:
//!    any other is beaten by switching between two of them. There are about ten. The pause is one
//!    of them, at c = 0.
//! 2. A course through the phase is a pair (first, second) of hull settings and the moments to
//!    switch and to pause. They come in closed form from spending S exactly by the end of the
//!    phase, or by the moment the wave is fetched. The papers' actions are such pairs: the delays
//!    are (pause, default), the scalings a single setting.
//! 3. Each course is *played out* ([`rollout`]): through the phase, the gaps and phases after it,
//!    with as many waves ahead as the memory holds, to the end of what is in sight. The earliest
//!    wins; of equals the one that costs the phase least. So a prefetch that would only wait in
//!    memory spends nothing, and a job that lives from hand to mouth gets all there is. A play-out
//!    ends as soon as it is certain not to win: most do within the first waves, which changes no
//!    choice and is what makes a decision quick.
//! 4. With the best courses it is played out which waves come first (the *feed*): tasks that wait
//!    between phases read what is missing themselves, faster than any prefetch, so waves may be
//!    left to them while those for the phase are fetched.
//! 5. The winner is checked by the exact forecast over all HPC jobs, and is shortened until no
//!    deadline is missed.
//!
//! Several Big Data jobs are planned together ([`joint`]): they divide what the PFS and the phases
//! leave by one allocation, because one prefetch does not fill the PFS, and two gentle prefetches
//! move more beside a phase than a rough one. The courses above are those of a job that is alone.
//!
//! A linear program over the whole future would be out of date at the next phase that comes a
//! second late; deciding again at each event is cheap and starts from the true state.

use alloc::vec::Vec;

use forebay_model::forecast::{Chain, Forecaster, Outcome, Step};
use forebay_model::profile::{Setting, Strain};

use super::direct::direct_is_faster;
use super::eley::MARGIN_S;
use super::plan::{Estimate, Plan, PlannedStep};
use super::{Board, Config, JobId, Policy, PrefetchDistance};
use crate::machine::Nanos;

mod course;
mod hull;
mod joint;
mod look;
mod rollout;
mod say;
mod share;
mod stock;
mod together;

use course::{Course, Leg, Present, REST, SAME_S};
use hull::{Hull, PAUSE, Point, all_points, at_full_rate, concave_hull, speed_at};
use joint::{Joint, Settings};
use look::{feeds_between, feeds_within, scene};
use rollout::{Feed, Scene};
use say::{kind_of, waits};
use share::Curve;

pub use hull::SpeedCurve;

/// Number of courses with which feeds are tried.
const FINALISTS: usize = 3;

/// Searches the whole space.
pub struct Forebay {
    hulls: Vec<Hull>,
    forecaster: Forecaster,
    /// Courses with their results; kept for its memory.
    played: Vec<(f64, Course)>,
    joint: Joint,
}

impl Forebay {
    /// Creates a planner for a system as configured.
    pub fn new(config: &Config) -> Self {
        Forebay {
            hulls: Vec::new(),
            forecaster: Forecaster::dividing_by(config.division),
            played: Vec::new(),
            joint: Joint::new(config.division),
        }
    }

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

    /// Returns the fastest setting while no phase is under way. If the default is equally fast, it
    /// is chosen: busy nodes may need more streams than in the profile.
    fn fastest(&mut self, board: &Board) -> Point {
        let fastest = *self.hull(board, 0).last().unwrap_or(&PAUSE);
        let default = at_full_rate(board, board.config.default_setting);
        if default.speed >= fastest.speed { default } else { fastest }
    }

    /// Returns the best course through the phases under way and the best feed with it, and how many
    /// pairs were examined.
    ///
    /// Every course is played in order; feeds are tried with the [`FINALISTS`] best.
    fn best_course(
        &mut self,
        board: &Board,
        present: &Present,
        scene: &Scene,
        phases: usize,
    ) -> (Course, Feed, u32) {
        let mut played = core::mem::take(&mut self.played);
        played.clear();
        let nothing = Course { legs: [REST; 3], lost_s: 0.0 };
        let reaction_s = board.config.reaction_s;
        let is_feasible = |course: &Course| course.is_feasible(present.left_s, reaction_s);
        let feasible = courses(self.hull(board, phases), present).filter(is_feasible);
        let all = [nothing].into_iter().chain(feasible);
        played.extend(all.map(|c| (c.moves_bytes(present.left_s), c)));
        // Courses that fetch most go first: they are likely to be the best, and the others are soon
        // found to be worse then. Of equals the first that is listed stays the first.
        let mut order: Vec<usize> = (0..played.len()).collect();
        order.sort_by(|&a, &b| played[b].0.total_cmp(&played[a].0));
        let mut finalists = Finalists::default();
        for &at in &order {
            let (end_s, course) = &mut played[at];
            *end_s = scene.play(course, present.left_s, Feed::IN_ORDER, finalists.last_s() + SAME_S);
            finalists.add(*end_s);
        }
        let key = |at: usize| (played[at].0, played[at].1.lost_s);
        order.sort_unstable_by(|&a, &b| {
            let ((a_s, a_lost_s), (b_s, b_lost_s)) = (key(a), key(b));
            a_s.total_cmp(&b_s).then(a_lost_s.total_cmp(&b_lost_s)).then(a.cmp(&b))
        });
        let mut best_s = played[order[0]].0;
        // Of those that are equal but for rounding, the one that is kindest to the phase.
        let equal = order.iter().map(|&at| &played[at]).take_while(|c| c.0 <= best_s + SAME_S);
        let kindest = equal.reduce(|a, b| if b.1.lost_s < a.1.lost_s - SAME_S { b } else { a });
        let mut best = kindest.map_or(nothing, |c| c.1);
        best_s = kindest.map_or(best_s, |c| c.0);
        let (mut best_feed, mut seen) = (Feed::IN_ORDER, played.len() as u32);
        let kindest = best;
        let others = order.iter().take(FINALISTS).map(|&at| &played[at].1).filter(|c| **c != kindest);
        for course in [kindest].iter().chain(others) {
            for feed in feeds_within(board, scene) {
                seen += 1;
                // A course that is no kinder has to be sooner.
                let kinder = course.lost_s < best.lost_s - SAME_S;
                let limit_s = if kinder { best_s + SAME_S } else { best_s - SAME_S };
                let end_s = scene.play(course, present.left_s, feed, limit_s);
                if end_s < best_s - SAME_S || (kinder && end_s <= best_s + SAME_S) {
                    (best_s, best, best_feed) = (best_s.min(end_s), *course, feed);
                }
            }
        }
        self.played = played;
        (best, best_feed, seen)
    }

    /// Reduces a course until the exact forecast predicts that it misses no deadline.
    fn make_safe(&mut self, board: &Board, job: JobId, bytes: f64, mut course: Course) -> (Course, Outcome) {
        let chains: Vec<Chain> = board.chains().into_iter().map(|(_, c)| c).collect();
        let others = board.others(job);
        let pfs = board.pfs_bytes_per_s();
        let pause = Step { for_s: f64::INFINITY, strain: Strain::NONE, yields: false };
        let nothing =
            Step { strain: Strain { speed_bytes_per_s: f64::MAX, ..Strain::NONE }, yields: true, ..pause };
        let unavoidable_s = self.forecaster.run_present(&chains, &others, &[nothing], bytes, pfs).late_s;
        if unavoidable_s > -MARGIN_S {
            // A phase that is late anyway is not made later, nor any other beside it.
            course = course.harmless();
        }
        loop {
            let step = |leg: Leg| Step { for_s: leg.for_s, strain: leg.point.strain, yields: false };
            let outcome = self.forecaster.run_present(&chains, &others, &course.legs.map(step), bytes, pfs);
            if course.is_harmless() || outcome.late_s <= -MARGIN_S + 1e-9 {
                return (course, outcome);
            }
            course = course.halved(board.config.reaction_s);
        }
    }

    fn between_phases(&mut self, board: &Board, job: JobId, wave: u32) -> Plan {
        let fastest = self.fastest(board);
        if let Some(plan) = direct_is_faster(board, job, wave, board.left_bytes(job, wave) / fastest.speed) {
            return plan;
        }
        let scene = self.scene(board, job);
        let nothing = Course { legs: [REST; 3], lost_s: 0.0 };
        let (feed, seen) = scene.best_feed(&nothing, 0.0, feeds_between(board, &scene));
        let Some((skips, bytes)) = target(board, job, wave, &scene, feed) else {
            return waits_for_memory(board);
        };
        let in_s = bytes / fastest.speed;
        let reason = match skips {
            0 => "no phase is under way: as fast as the file system gives".into(),
            n => alloc::format!(
                "no phase is under way: stock for the next; tasks read the {n} waves before this one themselves"
            ),
        };
        let estimate = Estimate {
            fetched_in_s: in_s.is_finite().then_some(in_s),
            cost_s: in_s.is_finite().then(|| (in_s - board.hidden_s(job)).max(0.0)),
            margin_s: None,
        };
        let mut steps = [PlannedStep { at: board.now(), setting: fastest.setting, yields: false }].to_vec();
        if bytes < board.left_bytes(job, wave + skips) {
            stop_at(&mut steps, board.now() + (in_s * 1e9) as u64 + 1);
        }
        Plan {
            kind: kind_of(board, fastest.setting, 0.0),
            skips,
            steps,
            estimate,
            candidates: 1 + seen,
            reason,
        }
    }

    /// Returns whether `wave` may as well be fetched later; see [`stock`].
    fn is_stocked(&mut self, board: &Board, job: JobId, wave: u32) -> bool {
        let j = board.job(job);
        if j.buffered() == 0 || j.part(wave).in_tier {
            return false;
        }
        let gap_speed = self.hull(board, 0).last().map_or(0.0, |p| p.speed);
        let beside_one = self.hull(board, 1);
        board.hidden_s(job) >= stock::enough_s(board, job, gap_speed, |share| speed_at(beside_one, share))
    }

    /// Returns the waves in sight and the calendar, with this planner's speeds.
    fn scene(&mut self, board: &Board, job: JobId) -> Scene {
        let gap_speed = self.hull(board, 0).last().map_or(0.0, |p| p.speed);
        let beside_one = self.hull(board, 1);
        scene(board, job, gap_speed, |share| speed_at(beside_one, share))
    }

    fn within_phases(&mut self, board: &Board, job: JobId, wave: u32) -> Plan {
        let phases = board.active_phases();
        let scene = self.scene(board, job);
        let chains: Vec<Chain> = board.chains().into_iter().map(|(_, c)| c).collect();
        let mut present = Present::new(board.config.division, &chains, board.left_bytes(job, wave));
        let (course, feed, candidates) = self.best_course(board, &present, &scene, phases);
        let Some((skips, until_bytes)) = target(board, job, wave, &scene, feed) else {
            return waits_for_memory(board);
        };
        present.left_bytes = board.left_bytes(job, wave + skips);
        let (course, outcome) = self.make_safe(board, job, present.left_bytes, course);
        let now = board.now();
        let mut steps = steps_of(&course, now);
        if let Some(in_s) = moved_in_s(&course, until_bytes).filter(|_| until_bytes < present.left_bytes) {
            stop_at(&mut steps, now + (in_s * 1e9) as u64 + 1);
        }
        let [first, second, _] = course.legs;
        let delay_s = if first.point.setting.is_paused() { first.for_s } else { 0.0 };
        let main =
            if delay_s > 0.0 && delay_s.is_finite() { second.point.setting } else { first.point.setting };
        Plan {
            kind: kind_of(board, main, delay_s),
            skips,
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
                present.slack_s
            ),
        }
    }
}

/// The ends of the best courses up to now: a course that is later than all of them is discarded.
struct Finalists {
    /// Ascending.
    ends_s: [f64; FINALISTS],
}

impl Default for Finalists {
    fn default() -> Self {
        Finalists { ends_s: [f64::INFINITY; FINALISTS] }
    }
}

impl Finalists {
    fn last_s(&self) -> f64 {
        self.ends_s[FINALISTS - 1]
    }

    fn add(&mut self, end_s: f64) {
        let at = self.ends_s.partition_point(|s| *s <= end_s);
        if at < FINALISTS {
            self.ends_s[at..].rotate_right(1);
            self.ends_s[at] = end_s;
        }
    }
}

/// Returns every course that is examined. To fetch a wave by a mix of settings that costs a given
/// amount, two neighbours on the hull are best.
fn courses<'a>(hull: &'a [Point], present: &'a Present) -> impl Iterator<Item = Course> + 'a {
    let through = hull.iter().flat_map(move |&a| hull.iter().flat_map(move |&b| present.through(a, b)));
    // Without the pause, which fetches nothing; and a wave fetched by one setting is among the
    // pairs above.
    let neighbours = (2..hull.len()).flat_map(move |i| [(hull[i - 1], hull[i]), (hull[i], hull[i - 1])]);
    let until_there = neighbours.flat_map(move |(a, b)| {
        let gentler = hull.iter().take_while(move |c| c.cost < a.cost.max(b.cost));
        gentler.map(move |&c| present.until_there(a, b, c))
    });
    through.chain(until_there).flatten()
}

/// Returns what `feed` fetches first: how many missing waves from `wave` on it skips, and how many
/// bytes it fetches. `None` if memory is full.
fn target(board: &Board, job: JobId, wave: u32, scene: &Scene, feed: Feed) -> Option<(u32, f64)> {
    let (i, bytes) = scene.work.choose(0, feed)?;
    Some(((board.job(job).started + i as u32).saturating_sub(wave), bytes))
}

fn waits_for_memory(board: &Board) -> Plan {
    waits(board, "the tier's memory is full until the wave in compute is over".into())
}

/// Returns when `course` has moved `bytes`, in seconds; `None` if it does not.
fn moved_in_s(course: &Course, mut bytes: f64) -> Option<f64> {
    let mut at_s = 0.0;
    for Leg { point, for_s } in course.legs {
        if point.speed * for_s >= bytes {
            return Some(at_s + bytes / point.speed);
        }
        bytes -= point.speed * for_s;
        at_s += for_s;
    }
    None
}

/// Ends the steps with a pause at `at`, when the planner decides again.
fn stop_at(steps: &mut Vec<PlannedStep>, at: Nanos) {
    steps.retain(|s| s.at < at);
    steps.push(PlannedStep { at, setting: Setting::PAUSED, yields: false });
}

/// Adds a rest before the next phase to `plan`.
fn resting_before_phase(board: &Board, mut plan: Plan) -> Plan {
    let Some((from, until)) = board.rest_before_phase() else { return plan };
    let setting_at = |at: Nanos| plan.steps.iter().rev().find(|step| step.at <= at).map(|step| step.setting);
    let (Some(before), Some(after)) = (setting_at(from), setting_at(until)) else { return plan };
    if before.is_paused() {
        return plan;
    }
    plan.steps.retain(|step| step.at < from || step.at > until);
    let rest = [(from, Setting::PAUSED), (until, after)];
    plan.steps.extend(rest.map(|(at, setting)| PlannedStep { at, setting, yields: false }));
    plan.steps.sort_by_key(|step| step.at);
    plan.reason.push_str("; it rests when the next phase is due");
    plan
}

/// Returns a course as steps from `now` on.
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
        // Rounded down: the setting with the higher cost usually comes first, and the margin covers
        // the other order.
        at = at + (leg.for_s * 1e9) as u64;
    }
    steps
}

impl Policy for Forebay {
    fn prefetch_distance(&self) -> PrefetchDistance {
        PrefetchDistance::Memory
    }

    fn replans(&self, _board: &Board, _job: JobId) -> bool {
        true
    }

    fn fills_gaps(&self) -> bool {
        true
    }

    fn begin(&mut self, board: &Board) {
        if board.jobs().count() < 2 {
            self.joint.clear();
            return;
        }
        let phases = board.active_phases();
        let curves = (1..=phases.max(1)).map(|n| Curve::of(self.hull(board, n))).collect();
        let fastest = self.fastest(board);
        let (beside_one, beside) = (self.hull(board, 1).to_vec(), self.hull(board, phases).to_vec());
        let settings = Settings { fastest, beside_one: &beside_one, beside: &beside, curves };
        self.joint.prepare(board, &settings);
    }

    fn plan(&mut self, board: &Board, job: JobId, wave: u32) -> Plan {
        let phases = board.active_phases();
        let plan = match (board.jobs().count(), phases) {
            (2.., _) => self.joint.plan(board, job),
            _ if self.is_stocked(board, job, wave) => waits(board, "compute has input for long".into()),
            (_, 0) => self.between_phases(board, job, wave),
            _ => self.within_phases(board, job, wave),
        };
        if phases == 0 { resting_before_phase(board, plan) } else { plan }
    }
}
