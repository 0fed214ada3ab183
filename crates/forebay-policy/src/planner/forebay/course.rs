//! Courses through a phase, and how far compute gets with each.

use forebay_model::forecast::Chain;

use super::super::eley::MARGIN_S;
use super::super::{Board, JobId};
use super::hull::{PAUSE, Point};

/// Most waves that a course is played out for.
const HORIZON_WAVES: u32 = 24;

/// Times of compute closer than this are equal, so that the kinder course wins.
pub(super) const SAME_S: f64 = 1e-3;

/// Up to three settings in a row, the last one to the end of the phase; and what the phase loses by them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Course {
    pub(super) legs: [Leg; 3],
    pub(super) lost_s: f64,
}

/// A setting and for how long, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leg {
    pub(super) point: Point,
    pub(super) for_s: f64,
}

pub(super) const REST: Leg = Leg { point: PAUSE, for_s: f64::INFINITY };

impl Course {
    /// `first` for `for_s`, then `second`.
    fn two(first: Point, for_s: f64, second: Point, lost_s: f64) -> Self {
        Course {
            legs: [Leg { point: first, for_s }, Leg { point: second, for_s: f64::INFINITY }, REST],
            lost_s,
        }
    }

    /// Half as long at everything that costs a phase something.
    pub(super) fn halved(mut self) -> Self {
        for leg in &mut self.legs {
            if leg.point.cost > 0.0 {
                let half_s = 0.5 * leg.for_s;
                *leg =
                    if half_s > SAME_S && half_s.is_finite() { Leg { for_s: half_s, ..*leg } } else { REST };
            }
        }
        self
    }

    pub(super) fn is_harmless(&self) -> bool {
        self.legs.iter().all(|leg| leg.point.cost == 0.0)
    }
}

/// What the play-out knows.
pub(super) struct Scene {
    /// I/O time left of the phases under way, and what they can afford to lose.
    pub(super) left_s: f64,
    pub(super) slack_s: f64,
    /// After the phase: gap, then phases of this length again and again.
    pub(super) gap_s: f64,
    pub(super) io_s: f64,
    pub(super) gap_speed: f64,
    /// Speed in later phases, if they lose `later_share` of their time.
    pub(super) io_speed: f64,
    pub(super) later_share: f64,
    /// The Big Data job.
    pub(super) left_bytes: f64,
    pub(super) wave_bytes: f64,
    /// When compute has nothing left of the waves that are in the tier.
    pub(super) busy_until_s: f64,
    pub(super) compute_s: f64,
    /// Waves in the tier, the one in compute included.
    pub(super) held: u32,
    pub(super) slots: u32,
    pub(super) waves: u32,
}

impl Scene {
    pub(super) fn new(board: &Board, job: JobId, wave: u32, gap_speed: f64) -> Self {
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
    pub(super) fn courses(&self, first: Point, second: Point) -> [Option<Course>; 3] {
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
    pub(super) fn play(&self, course: &Course) -> f64 {
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
