//! How far compute gets: the waves in sight played out through the phases and gaps to come.
//!
//! A play-out follows one job beside one HPC job from change to change, with the planner's own
//! rules: in phases the prefetch moves at the pace of a course, in gaps at the fastest setting, and
//! tasks that wait in a gap read what they lack themselves. What differs between play-outs is the
//! course through the present phase and the *feed*: which waves the prefetch fetches first.
//!
//! The order matters because waiting is worth something between phases and nothing within: while
//! tasks wait and read directly, the file system moves more than any prefetch does. A wave that is
//! left for them there lets the prefetch fetch those that will compute in the phase, when the file
//! system has little to give.

use super::super::board::LEAST_PART;
use super::course::{Course, SAME_S};

/// Limit on the waves that are played out: more than a job computes between the starts of two
/// phases in the papers' systems, so that each play-out sees what a stock for the next phase is
/// worth.
pub(super) const HORIZON_WAVES: usize = 32;

/// Bytes below which a wave counts as fetched: rounding must not make a step of its own.
const SAME_BYTES: f64 = 1.0;

/// Steps after which a play-out is given up as endless.
const MAX_STEPS: u32 = 2_000;

/// Which waves are fetched first in the phase or gap under way; afterwards the first that is
/// missing.
///
/// Of waves `from..to` (counted from the next to compute) all but `keep_bytes` are fetched in their
/// order, the rest after everything else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Feed {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) keep_bytes: f64,
}

impl Feed {
    /// One wave after the other.
    pub(super) const IN_ORDER: Feed = Feed { from: 0, to: 0, keep_bytes: 0.0 };
}

/// What a play-out does after the phase or gap under way; the better of both counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Later {
    /// One wave after the other.
    InOrder,
    /// Waves are left for direct reads in gaps where that seems to pay.
    ByUse,
}

/// The file system as the play-out sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calendar {
    /// Whether phases are under way; their course determines how long they last.
    pub(super) in_phase: bool,
    /// Otherwise: time until the next one, infinite if none comes.
    pub(super) to_phase_s: f64,
    /// Length of the phases after that, and of the gaps between them.
    pub(super) io_s: f64,
    pub(super) gap_s: f64,
    pub(super) phases: u32,
    /// Speeds of prefetching in bytes per second: between phases, and in phases to come.
    pub(super) gap_speed: f64,
    pub(super) io_speed: f64,
    /// Speed of direct reads between phases; 0 if going through the tier is sooner.
    pub(super) direct_speed: f64,
}

/// The Big Data job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) wave_bytes: f64,
    /// Compute of a wave that was read directly, and what reading one from the tier adds.
    pub(super) compute_s: f64,
    pub(super) read_s: f64,
    /// When the compute under way ends, in seconds; 0 if tasks wait.
    pub(super) busy_s: f64,
    /// Bytes of the wave in compute in the tier, which are free when it is over.
    pub(super) computing_bytes: f64,
    /// Bytes that may be fetched beside those in the tier.
    pub(super) room_bytes: f64,
    /// Number of waves in sight, from the next to compute on.
    pub(super) count: usize,
    /// How many of the last of them are judged, by the mean of their ends.
    pub(super) judged: usize,
    /// From this wave on nothing was fetched of any.
    pub(super) untouched: usize,
    pub(super) waves: [Wave; HORIZON_WAVES],
}

/// A wave in sight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wave {
    pub(super) left_bytes: f64,
    pub(super) direct_bytes: f64,
    pub(super) in_tier: bool,
}

impl Wave {
    fn is_there(&self) -> bool {
        self.left_bytes <= SAME_BYTES
    }

    fn tier_bytes(&self, wave_bytes: f64) -> f64 {
        if self.in_tier { wave_bytes - self.left_bytes.max(0.0) - self.direct_bytes } else { 0.0 }
    }
}

impl Work {
    /// Returns the compute of `wave`, reading from the tier what was not read directly.
    fn computes_for_s(&self, wave: &Wave) -> f64 {
        self.compute_s + self.read_s * (1.0 - wave.direct_bytes / self.wave_bytes)
    }

    /// Returns how many of the waves from `i` on are judged.
    fn judged_from(&self, i: usize) -> f64 {
        (self.count - i).min(self.judged) as f64
    }

    fn fetch(&mut self, i: usize, bytes: f64, direct: bool) {
        self.untouched = self.untouched.max(i + 1);
        let wave = &mut self.waves[i];
        wave.left_bytes -= bytes;
        if direct {
            wave.direct_bytes += bytes;
        } else {
            wave.in_tier = true;
            self.room_bytes -= bytes;
        }
    }

    /// Returns the wave that `feed` fetches next, and how many of its bytes; `next` is the first
    /// that has not begun to compute.
    #[inline]
    pub(super) fn choose(&self, next: usize, feed: Feed) -> Option<(usize, f64)> {
        let held_back = |i: usize| i >= feed.from && i < feed.to;
        let mut last = None;
        // The first missing wave must always find room, or nothing could continue in a phase.
        let mut reserve_bytes = None;
        for (i, wave) in self.waves[..self.count].iter().enumerate().skip(next) {
            if wave.is_there() {
                continue;
            }
            let room_bytes = self.room_bytes - reserve_bytes.unwrap_or(0.0);
            reserve_bytes = reserve_bytes.or(Some(wave.left_bytes));
            let keep_bytes = if held_back(i) { feed.keep_bytes } else { 0.0 };
            let fitting = |bytes: f64| bytes <= room_bytes || room_bytes >= LEAST_PART * self.wave_bytes;
            let wanted_bytes = wave.left_bytes - keep_bytes;
            if wanted_bytes > SAME_BYTES && fitting(wanted_bytes) {
                return Some((i, wanted_bytes.min(room_bytes)));
            }
            if last.is_none() && fitting(wave.left_bytes) {
                last = Some((i, wave.left_bytes.min(room_bytes)));
            }
            // All that come after are like this one, and so is the room for them.
            if i >= self.untouched && !held_back(i) && i > feed.to && i > next {
                break;
            }
        }
        last
    }
}

/// What a play-out starts from.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) calendar: Calendar,
    pub(super) work: Work,
    /// For each wave: a lower bound of the sum of the judged ends from it on, if compute is free
    /// for it at 0.
    least_sums_s: [f64; HORIZON_WAVES + 1],
}

impl Scene {
    pub(super) fn new(calendar: Calendar, work: Work) -> Self {
        let mut scene = Scene { calendar, work, least_sums_s: [0.0; HORIZON_WAVES + 1] };
        for i in (0..work.count).rev() {
            // All that are judged from this wave on end later by the time that it takes.
            let takes_s = scene.takes_at_least_s(&work.waves[i]);
            scene.least_sums_s[i] = scene.least_sums_s[i + 1] + work.judged_from(i) * takes_s;
        }
        scene
    }

    /// Returns when compute could be over, in seconds from now, if the phase under way (with
    /// `left_s` of I/O left) is spent by `course` and `feed` determines what is fetched first until
    /// it or the gap under way is over. If the job continues beyond what is in sight, the mean over
    /// the waves in sight: the last of them alone would depend more on how waves happen to fall
    /// than on progress.
    ///
    /// A result later than `limit_s` is discarded: it may come back as infinity, as soon as that is
    /// certain.
    pub(super) fn play(&self, course: &Course, left_s: f64, feed: Feed, limit_s: f64) -> f64 {
        let judged = self.work.judged as f64;
        let mut limit_sum_s = limit_s * judged + SAME_S;
        let mut run = Run::new(self, course, left_s, feed);
        if let Some(sum_s) = run.present(self, limit_sum_s) {
            return sum_s / judged;
        }
        if self.calendar.direct_speed <= 0.0 {
            return run.later(self, Later::InOrder, limit_sum_s) / judged;
        }
        let sum_s = run.clone().later(self, Later::InOrder, limit_sum_s);
        limit_sum_s = limit_sum_s.min(sum_s - SAME_S);
        run.later(self, Later::ByUse, limit_sum_s).min(sum_s) / judged
    }

    /// Returns how long `wave` at least keeps compute from those after it. What is missing comes
    /// through the tier, from which it is read as part of the compute, or is read directly, while
    /// nothing computes; so all of it comes in the way that is shorter.
    fn takes_at_least_s(&self, wave: &Wave) -> f64 {
        let through_tier_s = self.work.computes_for_s(wave);
        if self.calendar.direct_speed <= 0.0 {
            return through_tier_s;
        }
        let per_byte_s = 1.0 / self.calendar.direct_speed - self.work.read_s / self.work.wave_bytes;
        through_tier_s + (wave.left_bytes.max(0.0) * per_byte_s).min(0.0)
    }

    /// Returns a lower bound of the sum of the judged ends from wave `next` on, if compute is not
    /// free for it before `free_s`.
    fn least_sum_s(&self, next: usize, free_s: f64) -> f64 {
        self.work.judged_from(next) * free_s + self.least_sums_s[next]
    }

    /// Returns the feed of a gap to come of `gap_s`: the waves that tasks can begin in it by
    /// reading them themselves come last.
    fn stocking(&self, work: &Work, next: usize, gap_s: f64) -> Feed {
        let cycle_s = work.wave_bytes / self.calendar.direct_speed + work.compute_s;
        let waves = (gap_s / cycle_s).min(HORIZON_WAVES as f64) as usize;
        Feed { from: next, to: next + waves, keep_bytes: work.wave_bytes }
    }

    /// Returns the feed within a phase to come: a wave that would still compute in the gap after it
    /// waits for that gap instead, lacking what tasks can read there.
    fn thrifty(&self, work: &Work, next: usize, busy_s: f64, supply: &Supply<'_>) -> Feed {
        let Some(i) = (next..work.count).find(|&i| !work.waves[i].is_there()) else { return Feed::IN_ORDER };
        let compute_s = work.compute_s + work.read_s;
        let start_s =
            (busy_s.max(0.0) + (i - next) as f64 * compute_s).max(work.waves[i].left_bytes / supply.speed());
        if start_s + compute_s <= supply.left_s || supply.phases == 0 {
            return Feed::IN_ORDER;
        }
        let keep_bytes = (self.calendar.direct_speed * self.calendar.gap_s).min(work.wave_bytes);
        Feed { from: i, to: i + 1, keep_bytes }
    }

    /// Returns the best of `feeds` beside `course`: in order unless another is sooner by more than
    /// rounding.
    pub(super) fn best_feed(
        &self,
        course: &Course,
        left_s: f64,
        feeds: impl Iterator<Item = Feed>,
    ) -> (Feed, u32) {
        let mut best = Feed::IN_ORDER;
        let mut best_s = self.play(course, left_s, best, f64::INFINITY);
        let mut seen = 0;
        for feed in feeds {
            seen += 1;
            let end_s = self.play(course, left_s, feed, best_s - SAME_S);
            if end_s < best_s - SAME_S {
                (best, best_s) = (feed, end_s);
            }
        }
        (best, seen)
    }
}

/// A play-out under way.
#[derive(Clone)]
struct Run<'a> {
    supply: Supply<'a>,
    work: Work,
    feed: Feed,
    now_s: f64,
    /// The next wave to compute, and when compute is free for it.
    next: usize,
    free_s: f64,
    /// The sum of the judged ends up to now.
    judged_s: f64,
    steps: u32,
}

impl<'a> Run<'a> {
    fn new(scene: &'a Scene, course: &Course, left_s: f64, feed: Feed) -> Self {
        Run {
            supply: Supply::new(&scene.calendar, course, left_s),
            work: scene.work,
            feed,
            now_s: 0.0,
            next: 0,
            free_s: scene.work.busy_s,
            judged_s: 0.0,
            steps: 0,
        }
    }

    /// Plays through the phase or gap under way. Returns the sum of the judged ends if all are
    /// reached, infinity if it is certain to be more than `limit_sum_s`, and otherwise `None`.
    fn present(&mut self, scene: &Scene, limit_sum_s: f64) -> Option<f64> {
        loop {
            match self.step(scene, false, limit_sum_s) {
                Step::Same => {}
                Step::Next => return None,
                Step::End(sum_s) => return Some(sum_s),
            }
        }
    }

    /// Plays through the phases and gaps after that. Returns the sum of the judged ends, or
    /// infinity if it is certain to be more than `limit_sum_s`.
    fn later(mut self, scene: &Scene, later: Later, limit_sum_s: f64) -> f64 {
        let by_use = later == Later::ByUse;
        let mut ended = true;
        loop {
            if ended {
                self.feed = match by_use && self.supply.in_gap() {
                    true => scene.stocking(&self.work, self.next, self.supply.left_s),
                    false => Feed::IN_ORDER,
                };
            }
            ended = match self.step(scene, by_use, limit_sum_s) {
                Step::Same => false,
                Step::Next => true,
                Step::End(sum_s) => return sum_s,
            };
        }
    }

    /// Plays to the next change: fetched waves begin to compute, until one is missing or compute is
    /// busy; then to the moment when a wave is fetched, compute is free, or the bandwidth changes.
    /// In phases to come waves are left for direct reads if `thrifty`.
    fn step(&mut self, scene: &Scene, thrifty: bool, limit_sum_s: f64) -> Step {
        let Run { supply, work, .. } = self;
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Step::End(f64::INFINITY);
        }
        let mut idle = self.now_s >= self.free_s;
        if idle {
            work.room_bytes += core::mem::take(&mut work.computing_bytes);
            let wave = work.waves[self.next];
            if wave.is_there() {
                self.free_s = self.now_s + work.computes_for_s(&wave);
                if self.next >= work.count - work.judged {
                    self.judged_s += self.free_s;
                }
                if self.next + 1 == work.count {
                    return Step::End(self.judged_s);
                }
                work.computing_bytes = wave.tier_bytes(work.wave_bytes);
                self.next += 1;
                idle = false;
            }
        }
        if self.judged_s + scene.least_sum_s(self.next, self.free_s) > limit_sum_s {
            return Step::End(f64::INFINITY);
        }
        if thrifty && !supply.in_gap() {
            self.feed = scene.thrifty(work, self.next, self.free_s - self.now_s, supply);
        }
        let direct = idle && supply.in_gap() && scene.calendar.direct_speed > 0.0;
        let chosen = if direct {
            Some((self.next, work.waves[self.next].left_bytes))
        } else {
            work.choose(self.next, self.feed)
        };
        let speed = if direct { scene.calendar.direct_speed } else { supply.speed() };
        let (bytes, speed) = chosen.map_or((f64::INFINITY, 0.0), |(_, bytes)| (bytes, speed));
        let fetch_s = if speed > 0.0 { bytes / speed } else { f64::INFINITY };
        let busy_s = if idle { f64::INFINITY } else { self.free_s - self.now_s };
        let dt_s = sooner(sooner(fetch_s, busy_s), supply.left_s);
        if dt_s.is_infinite() {
            return Step::End(f64::INFINITY);
        }
        if let Some((i, _)) = chosen.filter(|_| speed > 0.0) {
            work.fetch(i, dt_s * speed, direct);
        }
        self.now_s = if busy_s <= dt_s { self.free_s } else { self.now_s + dt_s };
        if supply.spend(dt_s) { Step::Next } else { Step::Same }
    }
}

/// `f64::min` where neither value is NaN, which is one instruction: a decision spends all of its
/// time in the step.
fn sooner(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

/// The result of a step of a play-out.
enum Step {
    /// The same phase or gap continues.
    Same,
    /// The next one begins.
    Next,
    /// All waves in sight have their ends, of this sum; infinite if it is beyond the limit.
    End(f64),
}

/// The bandwidth to come, piece by piece.
#[derive(Clone)]
struct Supply<'a> {
    calendar: &'a Calendar,
    /// Lengths and speeds of the legs of the course.
    pieces: [(f64, f64); 3],
    /// 0 to 2 are the course; then gaps at odd and phases at even numbers.
    at: usize,
    left_s: f64,
    phases: u32,
}

impl<'a> Supply<'a> {
    fn new(calendar: &'a Calendar, course: &Course, mut left_s: f64) -> Self {
        let pieces = course.legs.map(|leg| {
            let share = 1.0 - leg.point.cost;
            let piece_s = leg.for_s.min(left_s / share);
            left_s = (left_s - piece_s * share).max(0.0);
            (piece_s, leg.point.speed)
        });
        let (at, left_s) = if calendar.in_phase { (0, pieces[0].0) } else { (3, calendar.to_phase_s) };
        Supply { calendar, pieces, at, left_s, phases: calendar.phases }
    }

    fn in_gap(&self) -> bool {
        self.at >= self.pieces.len() && self.at % 2 == 1
    }

    fn speed(&self) -> f64 {
        match self.at {
            n if n < self.pieces.len() => self.pieces[n].1,
            _ if self.in_gap() => self.calendar.gap_speed,
            _ => self.calendar.io_speed,
        }
    }

    /// Lets `dt_s` pass; returns true if the phase or gap is over then.
    fn spend(&mut self, dt_s: f64) -> bool {
        self.left_s -= dt_s;
        if self.left_s > 0.0 {
            return false;
        }
        self.at += 1;
        if self.at < self.pieces.len() {
            self.left_s = self.pieces[self.at].0;
            return false;
        }
        self.left_s = match (self.in_gap(), self.phases) {
            (true, 0) => f64::INFINITY,
            (true, _) => self.calendar.gap_s,
            _ => {
                self.phases -= 1;
                self.calendar.io_s
            }
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use forebay_model::profile::{Setting, Strain};
    use proptest::prelude::*;

    use super::super::course::{Leg, REST};
    use super::super::hull::Point;
    use super::*;

    /// Waves of 100 bytes of which nothing has been fetched, 10 s of compute each and 2 s to read
    /// one from the tier. Phases of 20 s, gaps of 30 s; direct reads take 4 s per wave and
    /// prefetches 10 s or 20 s.
    fn scene(count: usize, judged: usize) -> Scene {
        let calendar = Calendar {
            in_phase: true,
            to_phase_s: f64::INFINITY,
            io_s: 20.0,
            gap_s: 30.0,
            phases: 5,
            gap_speed: 10.0,
            io_speed: 5.0,
            direct_speed: 25.0,
        };
        let work = Work {
            wave_bytes: 100.0,
            compute_s: 10.0,
            read_s: 2.0,
            busy_s: 20.0,
            computing_bytes: 100.0,
            room_bytes: 300.0,
            count,
            judged,
            untouched: 0,
            waves: [Wave { left_bytes: 100.0, direct_bytes: 0.0, in_tier: false }; HORIZON_WAVES],
        };
        Scene::new(calendar, work)
    }

    fn at_speed(speed: f64, cost: f64) -> Course {
        let point = Point { setting: Setting::new(1, 1), strain: Strain::NONE, speed, cost };
        Course { legs: [Leg { point, for_s: f64::INFINITY }, REST, REST], lost_s: 0.0 }
    }

    /// Each wave is fetched before the one before it is over, so compute runs from 20 s on, 12 s
    /// per wave, and ends are 32, 44 and 56.
    #[test]
    fn the_least_is_what_it_comes_to_where_compute_never_waits() {
        let scene = scene(3, 3);
        let play = |limit_s| scene.play(&at_speed(10.0, 0.1), 20.0, Feed::IN_ORDER, limit_s);
        assert_eq!(scene.least_sum_s(0, 20.0), 132.0);
        assert_eq!((play(f64::INFINITY), play(44.1), play(43.9)), (44.0, 44.0, f64::INFINITY));
    }

    proptest! {
        /// A play-out whose end is within the limit is never given up, whatever has been fetched at
        /// first and however it continues.
        #[test]
        fn a_limit_that_is_kept_changes_nothing(
            parts in prop::collection::vec((0.0f64..1.0, 0.0f64..1.0, 0u8..4), HORIZON_WAVES),
            (count, all_judged, in_phase, by_use) in (1..=HORIZON_WAVES, any::<bool>(), any::<bool>(), any::<bool>()),
            (compute_s, read_s, busy_s, room_bytes) in (1.0f64..30.0, 0.0f64..10.0, 0.0f64..40.0, 100.0f64..500.0),
            (io_s, gap_s, phases) in (1.0f64..60.0, 1.0f64..60.0, 0u32..8),
            (gap_speed, io_speed, direct_speed) in (1.0f64..40.0, 0.5f64..20.0, 0.0f64..60.0),
            (speed, cost, keep) in (0.0f64..20.0, 0.0f64..0.5, 0.0f64..1.0),
        ) {
            let Scene { mut calendar, mut work, .. } = scene(count, if all_judged { count } else { 1 });
            let direct_speed = if direct_speed > 10.0 { direct_speed } else { 0.0 };
            calendar = Calendar { io_s, gap_s, phases, gap_speed, io_speed, direct_speed, in_phase, ..calendar };
            if !in_phase {
                calendar.to_phase_s = gap_s;
                calendar.phases += 1;
            }
            work = Work { compute_s, read_s, busy_s, room_bytes, untouched: count, ..work };
            for (wave, (there, direct, kind)) in work.waves.iter_mut().zip(parts) {
                let there_bytes = [0.0, 100.0 * there, 100.0 * there, 100.0][usize::from(kind)];
                let direct_bytes = there_bytes * if kind > 1 { direct } else { 0.0 };
                *wave = Wave { left_bytes: 100.0 - there_bytes, direct_bytes, in_tier: there_bytes > direct_bytes };
            }
            let scene = Scene::new(calendar, work);
            let later = if by_use && direct_speed > 0.0 { Later::ByUse } else { Later::InOrder };
            let feed = Feed { from: 0, to: 1, keep_bytes: 100.0 * keep };
            let play = |limit_s| {
                let mut run = Run::new(&scene, &at_speed(speed, cost), 20.0, feed);
                run.present(&scene, limit_s).unwrap_or_else(|| run.later(&scene, later, limit_s))
            };
            let sum_s = play(f64::INFINITY);
            prop_assert!(scene.least_sum_s(0, busy_s) <= sum_s + SAME_S, "{} {sum_s}", scene.least_sum_s(0, busy_s));
            prop_assert_eq!(play(sum_s + SAME_S), sum_s);
        }
    }
}
