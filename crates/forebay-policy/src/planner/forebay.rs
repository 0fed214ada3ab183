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

/// Rates that are looked at, as shares of a setting's own speed.
const RATES: [f64; 4] = [0.25, 0.5, 0.75, 1.0];
/// Most waves that a course is played out for.
const HORIZON_WAVES: u32 = 24;
/// Times of compute closer than this are equal, so that the kinder course wins.
const SAME_S: f64 = 1e-3;

/// A setting on the hull.
#[derive(Clone, Copy, Debug)]
struct Point {
    setting: Setting,
    strain: Strain,
    /// Bytes per second beside the phases.
    speed: f64,
    /// Seconds that a phase loses per second.
    cost: f64,
}

const PAUSE: Point = Point { setting: Setting::PAUSED, strain: Strain::NONE, speed: 0.0, cost: 0.0 };

/// The hull for one number of phases, and what it was computed from.
#[derive(Clone, Debug, Default)]
struct Hull {
    phases: usize,
    corrections: (f64, f64),
    points: Vec<Point>,
}

/// Searches the whole space.
#[derive(Default)]
pub struct Forebay {
    hulls: Vec<Hull>,
    forecaster: Forecaster,
}

/// Up to three settings in a row, the last one to the end of the phase; and what the phase loses by them.
#[derive(Clone, Copy, Debug)]
struct Course {
    legs: [Leg; 3],
    lost_s: f64,
}

/// A setting and for how long, in seconds.
#[derive(Clone, Copy, Debug)]
struct Leg {
    point: Point,
    for_s: f64,
}

const REST: Leg = Leg { point: PAUSE, for_s: f64::INFINITY };

impl Course {
    /// `first` for `for_s`, then `second`.
    fn two(first: Point, for_s: f64, second: Point, lost_s: f64) -> Self {
        Course {
            legs: [Leg { point: first, for_s }, Leg { point: second, for_s: f64::INFINITY }, REST],
            lost_s,
        }
    }

    /// Half as long at everything that costs a phase something.
    fn halved(mut self) -> Self {
        for leg in &mut self.legs {
            if leg.point.cost > 0.0 {
                let half_s = 0.5 * leg.for_s;
                *leg =
                    if half_s > SAME_S && half_s.is_finite() { Leg { for_s: half_s, ..*leg } } else { REST };
            }
        }
        self
    }

    fn is_harmless(&self) -> bool {
        self.legs.iter().all(|leg| leg.point.cost == 0.0)
    }
}

/// What the play-out knows.
struct Scene {
    /// I/O time left of the phases under way, and what they can afford to lose.
    left_s: f64,
    slack_s: f64,
    /// After the phase: gap, then phases of this length again and again.
    gap_s: f64,
    io_s: f64,
    gap_speed: f64,
    /// Speed in later phases, if they lose `later_share` of their time.
    io_speed: f64,
    later_share: f64,
    /// The Big Data job.
    left_bytes: f64,
    wave_bytes: f64,
    /// When compute has nothing left of the waves that are in the tier.
    busy_until_s: f64,
    compute_s: f64,
    /// Waves in the tier, the one in compute included.
    held: u32,
    slots: u32,
    waves: u32,
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

impl Scene {
    fn new(board: &Board, job: JobId, wave: u32, gap_speed: f64) -> Self {
        let j = board.job(job);
        let chains = board.chains();
        let active = || chains.iter().map(|(_, c)| c).filter(|c| c.in_phase);
        let weights: f64 = active().map(|c| c.weight).sum();
        // Phases that share: each needs its own work times what the others take; the last ends with all work done.
        let total_s: f64 = active().map(|c| c.left_s).sum();
        let ends_s = |c: &Chain| (c.left_s * weights / c.weight).min(total_s);
        let left_s = active().map(ends_s).fold(0.0, f64::max);
        let slack_s = active().map(|c| c.deadline_s - ends_s(c)).fold(f64::INFINITY, f64::min);
        let main = active().max_by(|a, b| a.left_s.total_cmp(&b.left_s));
        let again = main.filter(|c| c.phases_after > 0);
        Scene {
            left_s,
            // Held back: the margin, and a billionth of everything for rounding.
            slack_s: (slack_s - 2.0 * MARGIN_S - 1e-9 * left_s).max(0.0),
            gap_s: again.map_or(f64::INFINITY, |c| c.compute_s),
            io_s: again.map_or(0.0, |c| c.io_s * (1.0 + c.allowance)),
            gap_speed,
            io_speed: 0.0,
            later_share: main.map_or(0.0, |c| c.allowance / (1.0 + c.allowance)),
            left_bytes: board.left_bytes(job, wave),
            wave_bytes: j.wave_bytes as f64,
            busy_until_s: board.hidden_s(job),
            compute_s: j.compute_ns as f64 * 1e-9,
            held: j.buffered() + u32::from(j.computing_until.is_some()),
            slots: board.slots(job).max(1),
            waves: (j.waves - wave).min(HORIZON_WAVES),
        }
    }

    /// Courses that begin with `first` and go on with `second`: one that spends the slack exactly up to the end of the
    /// phase, one that switches when the wave is there, and one that has spent the slack by the time the wave is there and
    /// pauses then. `None` where there is none.
    fn courses(&self, first: Point, second: Point) -> [Option<Course>; 3] {
        let (a, s) = (self.left_s, self.slack_s);
        let ratio = |p: Point| p.cost / (1.0 - p.cost);
        if first.setting == second.setting {
            let lost_s = a * ratio(first);
            let whole = (lost_s <= s).then_some(Course::two(first, f64::INFINITY, first, lost_s));
            return [whole, self.until_there(first, PAUSE, 0.0), None];
        }
        // Lost by `first` for t seconds and `second` for the rest: cost1 t + (A - t (1 - cost1)) ratio2.
        let slope = first.cost - (1.0 - first.cost) * ratio(second);
        let longest_s = a / (1.0 - first.cost);
        let spend_s = (s - a * ratio(second)) / slope;
        let course = |for_s: f64| {
            let lost_s = a * ratio(second) + slope * for_s;
            let fits = for_s > 0.0 && for_s < longest_s && lost_s <= s * (1.0 + 1e-12);
            fits.then_some(Course::two(first, for_s, second, lost_s))
        };
        // A little longer than the wave needs, so that rounding cannot leave a last byte for after the switch.
        let there_s = if first.speed > 0.0 { self.left_bytes / first.speed + SAME_S } else { -1.0 };
        // t at `first` and u at `second` move the wave and spend the slack: v1 t + v2 u = L, c1 t + c2 u = S. The slack is
        // taken short by what the second setting costs for longer than needed.
        let spendable_s = s - second.cost * SAME_S;
        let determinant = first.speed * second.cost - second.speed * first.cost;
        let exact_s = (self.left_bytes * second.cost - second.speed * spendable_s) / determinant;
        [course(spend_s), course(there_s), self.until_there(first, second, exact_s)]
    }

    /// `first` for `for_s`, then `second` until the wave is there, then nothing. If `second` is the pause, `first` brings
    /// the whole wave.
    fn until_there(&self, first: Point, second: Point, for_s: f64) -> Option<Course> {
        let for_s = if second.speed > 0.0 { for_s } else { self.left_bytes / first.speed + SAME_S };
        let rest_s = if second.speed > 0.0 {
            (self.left_bytes - first.speed * for_s) / second.speed + SAME_S
        } else {
            0.0
        };
        let lost_s = first.cost * for_s + second.cost * rest_s;
        // All of it has to happen before the phase is over: its I/O gets the share 1 - cost of every second.
        let done_s = (1.0 - first.cost) * for_s + (1.0 - second.cost) * rest_s;
        let fits =
            for_s > 0.0 && rest_s >= 0.0 && done_s < self.left_s && lost_s <= self.slack_s * (1.0 + 1e-12);
        let legs = [Leg { point: first, for_s }, Leg { point: second, for_s: rest_s }, REST];
        fits.then_some(Course { legs, lost_s })
    }

    /// When compute could start on the last wave in sight if the phase is spent by `course`, in seconds from now.
    fn play(&self, course: &Course) -> f64 {
        let mut left_s = self.left_s;
        let pieces = course.legs.map(|Leg { point, for_s }| {
            let piece_s = for_s.min(left_s / (1.0 - point.cost));
            left_s = (left_s - piece_s * (1.0 - point.cost)).max(0.0);
            (piece_s, point.speed)
        });
        let mut supply = Supply { pieces, at: 0, left_s: pieces[0].0, now_s: 0.0, scene: self };
        // Ends of compute of the last `slots` waves tell when memory becomes free; those in the tier now come first.
        let mut ends = [0.0f64; HORIZON_WAVES as usize + 1];
        let mut free_s = self.busy_until_s;
        let mut start_s = free_s;
        for wave in 0..self.waves {
            // Waves before this one that have to be over: all but `slots - 1`.
            let before = i64::from(self.held) + i64::from(wave) - i64::from(self.slots - 1);
            if before > 0 {
                let over = before - 1 - i64::from(self.held);
                let freed_s = match usize::try_from(over) {
                    Ok(i) => ends[i],
                    // One of the waves now in the tier: the k-th of them ends this long before compute runs dry.
                    Err(_) => self.busy_until_s - (-1 - over) as f64 * self.compute_s,
                };
                supply.idle_until(freed_s.max(0.0));
            }
            let ready_s = supply.fetch(if wave == 0 { self.left_bytes } else { self.wave_bytes });
            start_s = ready_s.max(free_s);
            free_s = start_s + self.compute_s;
            ends[wave as usize] = free_s;
        }
        start_s
    }
}

/// The bandwidth to come, spent wave by wave.
struct Supply<'a> {
    /// Length and speed of the legs of the course.
    pieces: [(f64, f64); 3],
    /// 0 to 2 are the course; then gaps at odd and phases at even numbers.
    at: usize,
    left_s: f64,
    now_s: f64,
    scene: &'a Scene,
}

impl Supply<'_> {
    fn speed(&self) -> f64 {
        match self.at {
            n if n < self.pieces.len() => self.pieces[n].1,
            n if n % 2 == 1 => self.scene.gap_speed,
            _ => self.scene.io_speed,
        }
    }

    fn next_piece(&mut self) {
        self.at += 1;
        self.left_s = match self.at {
            n if n < self.pieces.len() => self.pieces[n].0,
            n if n % 2 == 1 => self.scene.gap_s,
            _ => self.scene.io_s,
        };
    }

    fn idle_until(&mut self, until_s: f64) {
        while self.now_s < until_s {
            let wait_s = (until_s - self.now_s).min(self.left_s);
            self.now_s += wait_s;
            self.left_s -= wait_s;
            if self.now_s < until_s {
                self.next_piece();
            }
        }
    }

    /// Moves `bytes` and returns when they are there.
    fn fetch(&mut self, mut bytes: f64) -> f64 {
        loop {
            let (speed, here) = (self.speed(), self.speed() * self.left_s);
            if speed > 0.0 && here >= bytes {
                self.now_s += bytes / speed;
                self.left_s -= bytes / speed;
                return self.now_s;
            }
            if self.left_s.is_infinite() || self.now_s > 1e9 {
                return f64::INFINITY;
            }
            bytes -= here;
            self.now_s += self.left_s;
            self.next_piece();
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

/// Every setting beside `phases` phases.
fn all_points(board: &Board, phases: usize) -> Vec<Point> {
    let profile = &board.config.profile;
    let mut points = Vec::new();
    for nodes in 1..=profile.max_nodes {
        for threads in 1..=profile.max_threads {
            let unthrottled = board.strain(Setting::new(nodes, threads));
            for rate in RATES {
                let strain = Strain { rate, ..unthrottled };
                let free_pace = 1.0 / (1.0 + phases as f64 * (strain.i_bd - 1.0));
                let pace = rate.min(free_pace);
                let excess = (strain.i_hpc - 1.0) * pace / free_pace;
                let cost = if phases > 0 { excess / (1.0 + excess) } else { 0.0 };
                let speed = (pace * strain.speed_bytes_per_s).min(board.config.pfs_bytes_per_s);
                points.push(Point { setting: Setting { nodes, threads, rate }, strain, speed, cost });
            }
        }
    }
    points
}

/// The upper concave hull of speed over cost, from the pause on, in ascending cost.
fn concave_hull(mut points: Vec<Point>) -> Vec<Point> {
    let fewer = |p: &Point| u32::from(p.setting.nodes) * u32::from(p.setting.threads);
    points.sort_by(|a, b| {
        a.cost.total_cmp(&b.cost).then(b.speed.total_cmp(&a.speed)).then(fewer(a).cmp(&fewer(b)))
    });
    let mut hull = [PAUSE].to_vec();
    for p in points {
        if hull.last().is_some_and(|top| p.speed <= top.speed) {
            continue;
        }
        while let [.., a, b] = hull[..] {
            // b is below the line from a to p.
            let turns_up = (b.speed - a.speed) * (p.cost - a.cost) <= (p.speed - a.speed) * (b.cost - a.cost);
            if !turns_up {
                break;
            }
            hull.pop();
        }
        hull.push(p);
    }
    hull
}

/// The best mean speed that any mix of settings and direct reads reaches, over what phases may lose for it. No planner can
/// move more; the lower bound of map times rests on it.
pub struct SpeedCurve {
    hull: Vec<Point>,
}

impl SpeedCurve {
    /// Prefetching only, between phases.
    pub fn between_phases(config: &super::Config) -> Self {
        SpeedCurve { hull: concave_hull(all_points(&Board::new(config.clone()), 0)) }
    }

    /// Prefetching and direct reads, beside one phase.
    pub fn beside_one_phase(config: &super::Config) -> Self {
        let mut points = all_points(&Board::new(config.clone()), 1);
        let direct = config.direct;
        points.push(Point {
            setting: Setting::PAUSED,
            strain: direct.strain(),
            speed: direct.speed_bytes_per_s / direct.i_bd,
            cost: 1.0 - 1.0 / direct.i_hpc,
        });
        SpeedCurve { hull: concave_hull(points) }
    }

    /// Bytes per second if phases may lose `cost` of every second.
    pub fn at(&self, cost: f64) -> f64 {
        speed_at(&self.hull, cost)
    }
}

/// A point of the hull's edge: the best mean speed at a mean cost.
fn speed_at(hull: &[Point], cost: f64) -> f64 {
    let after = hull.partition_point(|p| p.cost <= cost);
    match (after.checked_sub(1).and_then(|i| hull.get(i)), hull.get(after)) {
        (Some(a), Some(b)) => a.speed + (b.speed - a.speed) * (cost - a.cost) / (b.cost - a.cost).max(1e-12),
        (Some(last), None) => last.speed,
        (None, Some(first)) => first.speed,
        (None, None) => 0.0,
    }
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
