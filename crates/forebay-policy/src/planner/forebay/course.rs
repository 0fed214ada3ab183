//! Courses through the phases under way: settings in a row that spend the time in hand of these.

use forebay_model::forecast::{Chain, Division};

use super::super::eley::MARGIN_S;
use super::hull::{PAUSE, Point};

/// Times of compute closer than this are equal, so that the kinder course wins.
pub(super) const SAME_S: f64 = 1e-3;

/// Up to three settings in a row, the last one to the end of the phase, and the time that the phase
/// loses by them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Course {
    pub(super) legs: [Leg; 3],
    pub(super) lost_s: f64,
}

/// A setting and for how long, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Leg {
    pub(super) point: Point,
    pub(super) for_s: f64,
}

pub(super) const REST: Leg = Leg { point: PAUSE, for_s: f64::INFINITY };

impl Course {
    /// Returns the course of `first` for `for_s`, then `second`.
    fn two(first: Point, for_s: f64, second: Point, lost_s: f64) -> Self {
        Course {
            legs: [Leg { point: first, for_s }, Leg { point: second, for_s: f64::INFINITY }, REST],
            lost_s,
        }
    }

    /// Returns its legs until a phase with `left_s` of I/O left is over.
    fn within(&self, mut left_s: f64) -> impl Iterator<Item = Leg> {
        self.legs.into_iter().map(move |leg| {
            let share = 1.0 - leg.point.cost;
            let for_s = leg.for_s.min(left_s / share);
            left_s = (left_s - for_s * share).max(0.0);
            Leg { for_s, ..leg }
        })
    }

    /// Returns the bytes that it moves until a phase with `left_s` of I/O left is over.
    pub(super) fn moves_bytes(&self, left_s: f64) -> f64 {
        self.within(left_s).map(|leg| leg.for_s * leg.point.speed).sum()
    }

    /// Returns whether nodes that start and stop within `reaction_s` can follow it through a phase
    /// with `left_s` of I/O left.
    pub(super) fn is_feasible(&self, left_s: f64, reaction_s: f64) -> bool {
        let is_worthwhile = |leg: Leg| leg.point.cost == 0.0 || leg.for_s == 0.0 || leg.for_s >= reaction_s;
        self.within(left_s).all(is_worthwhile)
    }

    /// Halves every leg that costs a phase something, or drops it if half of it is less than
    /// `reaction_s`.
    pub(super) fn halved(mut self, reaction_s: f64) -> Self {
        for leg in &mut self.legs {
            if leg.point.cost > 0.0 {
                let half_s = 0.5 * leg.for_s;
                *leg = if half_s > SAME_S.max(reaction_s) && half_s.is_finite() {
                    Leg { for_s: half_s, ..*leg }
                } else {
                    REST
                };
            }
        }
        self
    }

    /// Drops every leg that costs a phase something.
    pub(super) fn harmless(mut self) -> Self {
        self.legs.iter_mut().filter(|leg| leg.point.cost > 0.0).for_each(|leg| *leg = REST);
        self
    }

    pub(super) fn is_harmless(&self) -> bool {
        self.legs.iter().all(|leg| leg.point.cost == 0.0)
    }
}

/// The phases under way, for which a course is sought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Present {
    /// I/O time left of them, and what they can afford to lose.
    pub(super) left_s: f64,
    pub(super) slack_s: f64,
    /// What is left of the wave that is fetched.
    pub(super) left_bytes: f64,
}

impl Present {
    /// Summarises the phases in `chains`, beside a wave that lacks `left_bytes`.
    pub(super) fn new(division: Division, chains: &[Chain], left_bytes: f64) -> Self {
        let left_s = division.ends_s(chains).map(|(_, end_s)| end_s).fold(0.0, f64::max);
        let slacks_s = division.ends_s(chains).map(|(c, end_s)| c.deadline_s - end_s);
        let slack_s = slacks_s.fold(f64::INFINITY, f64::min);
        Present {
            left_s,
            // Held back: the margin, and a billionth of everything for rounding.
            slack_s: (slack_s - 2.0 * MARGIN_S - 1e-9 * left_s).max(0.0),
            left_bytes,
        }
    }

    /// Returns courses that begin with `first` and continue with `second` to the end of the phase:
    /// one that spends the slack exactly by then, and one that switches when the wave is fetched.
    /// `None` where there is no such course.
    pub(super) fn through(&self, first: Point, second: Point) -> [Option<Course>; 2] {
        let (a, s) = (self.left_s, self.slack_s);
        if first.setting == second.setting {
            let lost_s = a * ratio(first);
            return [(lost_s <= s).then_some(Course::two(first, f64::INFINITY, first, lost_s)), None];
        }
        // Lost by `first` for t seconds and `second` for the rest: cost1 t + (A - t (1 - cost1))
        // ratio2.
        let slope = first.cost - (1.0 - first.cost) * ratio(second);
        let longest_s = a / (1.0 - first.cost);
        let spend_s = (s - a * ratio(second)) / slope;
        let course = |for_s: f64| {
            let lost_s = a * ratio(second) + slope * for_s;
            let fits = for_s > 0.0 && for_s < longest_s && lost_s <= s * (1.0 + 1e-12);
            fits.then_some(Course::two(first, for_s, second, lost_s))
        };
        // A little longer than the wave needs, so that rounding cannot leave a last byte for after
        // the switch.
        let there_s = if first.speed > 0.0 { self.left_bytes / first.speed + SAME_S } else { -1.0 };
        [course(spend_s), course(there_s)]
    }

    /// Returns the course of `first`, then `second` until the wave is fetched, and `third` to the
    /// end of the phase, so that all slack is spent: for a wave that tasks wait for, while those
    /// after it can be fetched gently. `None` if there is no such course.
    pub(super) fn until_there(&self, first: Point, second: Point, third: Point) -> Option<Course> {
        let (a, s, r) = (self.left_s, self.slack_s, ratio(third));
        // t at `first`, u at `second`, and `third` for what is left of the phase's I/O then:
        //   v1 t + v2 u = L,
        //   c1 t + c2 u + (A - (1 - c1) t - (1 - c2) u) r3 = S,    r = c / (1 - c).
        // The slack is taken short by what the second setting costs for longer than needed.
        let dearer = |p: Point| p.cost - (1.0 - p.cost) * r;
        let spendable_s = s - a * r - second.cost * SAME_S;
        let (for_s, rest_s) = if first.setting == second.setting {
            (self.left_bytes / first.speed, 0.0)
        } else {
            let determinant = first.speed * dearer(second) - second.speed * dearer(first);
            let for_s = (self.left_bytes * dearer(second) - second.speed * spendable_s) / determinant;
            (for_s, (self.left_bytes - first.speed * for_s) / second.speed)
        };
        if !(for_s > 0.0 && rest_s >= 0.0) {
            return None;
        }
        // A little longer than the wave needs, so that rounding cannot leave a last byte for after
        // the switch.
        let rest_s = rest_s + SAME_S;
        // All of it has to happen before the phase is over: its I/O gets the share 1 - cost of
        // every second.
        let after_s = a - (1.0 - first.cost) * for_s - (1.0 - second.cost) * rest_s;
        let lost_s = first.cost * for_s + second.cost * rest_s + after_s * r;
        let legs = [
            Leg { point: first, for_s },
            Leg { point: second, for_s: rest_s },
            Leg { point: third, for_s: f64::INFINITY },
        ];
        (after_s > 0.0 && lost_s <= s * (1.0 + 1e-12)).then_some(Course { legs, lost_s })
    }
}

/// Returns the seconds that a phase loses for each second of its own I/O.
fn ratio(p: Point) -> f64 {
    p.cost / (1.0 - p.cost)
}
