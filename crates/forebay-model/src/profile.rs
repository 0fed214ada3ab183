//! How fast a prefetch is and how much it hurts, for every number of nodes and threads, from few
//! measurements.
//!
//! Measuring all n x m combinations of burst buffer nodes and threads is too expensive, so the
//! paper assumes that the two levels are independent and measures each alone, O(n + m) runs:
//! equation (2), `I(n, t) = TI(t) * NI(n) * I(1, 1)`, and (3), `T(n, t) = NS(n) * TS(t) * T(1, 1)`
//! (Yildiz et al., FGCS 2018, section 4). Between two measured points the curve is a straight line;
//! beyond the ends it stays flat, since nothing was measured there.
//!
//! [`Correction`] scales such an estimate by what has been observed since, so a profile is only a
//! starting point and need not be right.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// A curve through measured points, straight in between, flat beyond the ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Curve {
    points: Vec<(u16, f64)>,
}

impl Curve {
    /// A curve through `points` = (count, value). Counts must be positive and ascending, values
    /// positive and finite.
    ///
    /// # Errors
    /// Says which point is wrong, and why.
    pub fn new(points: Vec<(u16, f64)>) -> Result<Self, String> {
        if points.is_empty() {
            return Err("a curve needs at least one point".into());
        }
        for (i, &(count, value)) in points.iter().enumerate() {
            if count == 0 || (i > 0 && points[i - 1].0 >= count) {
                return Err(alloc::format!(
                    "counts must be positive and ascending, but point {i} is at {count}"
                ));
            }
            if !(value > 0.0 && value.is_finite()) {
                return Err(alloc::format!("values must be positive, but the one at {count} is {value}"));
            }
        }
        Ok(Curve { points })
    }

    /// A curve from raw measurements, relative to the first of them, as NI, TI, NS and TS are.
    ///
    /// # Errors
    /// As [`Curve::new`].
    pub fn relative(points: &[(u16, f64)]) -> Result<Self, String> {
        let base = points.first().map_or(1.0, |p| p.1);
        Curve::new(points.iter().map(|&(count, value)| (count, value / base)).collect())
    }

    /// The least value: straight lines have theirs at a point.
    pub fn least(&self) -> f64 {
        self.points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min)
    }

    /// The value at `count`.
    pub fn at(&self, count: u16) -> f64 {
        let after = self.points.partition_point(|p| p.0 < count);
        match (after.checked_sub(1).map(|i| self.points[i]), self.points.get(after)) {
            (None, Some(first)) => first.1,
            (Some(last), None) => last.1,
            (Some(low), Some(high)) => {
                let part = f64::from(count - low.0) / f64::from(high.0 - low.0);
                low.1 + part * (high.1 - low.1)
            }
            (None, None) => 1.0,
        }
    }
}

/// A quantity that splits into a node level and a thread level: equations (2) and (3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Separable {
    /// The value with one node and one thread.
    pub at_one: f64,
    /// Relative to one node: NI or NS.
    pub nodes: Curve,
    /// Relative to one thread: TI or TS.
    pub threads: Curve,
}

impl Separable {
    /// The value with `nodes` nodes of `threads` threads each.
    pub fn at(&self, nodes: u16, threads: u16) -> f64 {
        self.at_one * self.nodes.at(nodes) * self.threads.at(threads)
    }
}

impl Separable {
    /// At least `least` with any number of nodes, and of threads.
    #[must_use]
    pub fn at_least(&self, least: f64) -> Self {
        let at_one = self.at_one.max(least);
        let raised = |curve: &Curve| {
            let raised = |&(count, value): &(u16, f64)| (count, (self.at_one * value).max(least) / at_one);
            Curve { points: curve.points.iter().map(raised).collect() }
        };
        Separable { at_one, nodes: raised(&self.nodes), threads: raised(&self.threads) }
    }
}

/// How a prefetch is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Burst buffer nodes that fetch; 0 means that the prefetch is paused.
    pub nodes: u16,
    /// Threads on each of them.
    pub threads: u16,
    /// Upper bound of its rate, as a share of what it would reach alone: in (0, 1].
    pub rate: f64,
}

impl Setting {
    /// Nothing moves.
    pub const PAUSED: Setting = Setting { nodes: 0, threads: 0, rate: 0.0 };

    /// `nodes` nodes of `threads` threads, unthrottled.
    pub fn new(nodes: u16, threads: u16) -> Self {
        Setting { nodes, threads, rate: 1.0 }
    }

    /// Whether anything moves.
    pub fn is_paused(&self) -> bool {
        self.nodes == 0 || self.rate <= 0.0
    }
}

/// What one setting does, as numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strain {
    /// Bytes per second alone and unthrottled.
    pub speed_bytes_per_s: f64,
    /// Bound on its rate as a share of that speed.
    pub rate: f64,
    /// By how much it stretches an HPC phase while unthrottled, at least 1.
    pub i_hpc: f64,
    /// By how much a phase stretches it, at least 1.
    pub i_bd: f64,
}

impl Strain {
    /// The strain of a paused prefetch.
    pub const NONE: Strain = Strain { speed_bytes_per_s: 0.0, rate: 0.0, i_hpc: 1.0, i_bd: 1.0 };
}

/// The measured profile of a system: what a prefetch with n nodes and t threads costs and gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Seconds to prefetch `wave_bytes` alone: equation (3).
    pub prefetch_s: Separable,
    /// Bytes that are prefetched in `prefetch_s`.
    pub wave_bytes: f64,
    /// I_hpc: equation (2).
    pub i_hpc: Separable,
    /// I_bd, split in the same way.
    pub i_bd: Separable,
    /// Number of burst buffer nodes.
    pub max_nodes: u16,
    /// Most threads per node.
    pub max_threads: u16,
}

impl Profile {
    /// What `setting` does.
    pub fn strain(&self, setting: Setting) -> Strain {
        if setting.is_paused() {
            return Strain::NONE;
        }
        Strain {
            speed_bytes_per_s: self.wave_bytes / self.prefetch_s.at(setting.nodes, setting.threads),
            rate: setting.rate,
            i_hpc: self.i_hpc.at(setting.nodes, setting.threads).max(1.0),
            i_bd: self.i_bd.at(setting.nodes, setting.threads).max(1.0),
        }
    }
}

/// A factor by which estimates are scaled, learned from ratios observed / estimated.
///
/// The profile counts as the first observation, with the ratio 1. The factor is the mean after one
/// more, the median of three after the second and the third, and from then on a mean of medians of
/// the last three, in which the newest weighs at least `weight`. So two observations that agree
/// replace a wrong profile, and one wrong observation among any three replaces nothing. Ratios are
/// bounded, because one stalled transfer must not convince a planner that the file system has
/// become a hundred times slower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correction {
    factor: f64,
    /// The greatest ratio seen; what it is above the factor fades.
    greatest: f64,
    weight: f64,
    /// The last ratios, the newest last.
    recent: [f64; 3],
    seen: u32,
}

impl Correction {
    /// Bounds of the factor.
    pub const BOUNDS: (f64, f64) = (0.25, 4.0);

    /// Ratios this close to the factor are equal to it but for rounding.
    const ROUNDING: f64 = 1e-6;

    /// The greatest ratio before anything was observed: how wrong a profile is taken to be.
    const UNSEEN: f64 = 1.25;

    /// The part of the greatest ratio's distance from the factor that remains after each
    /// observation.
    const FADES: f64 = 0.9;

    /// Creates a correction that changes nothing yet. In the long run a new observation counts
    /// `weight` in (0, 1], all earlier ones together the rest.
    pub fn new(weight: f64) -> Self {
        assert!(weight > 0.0 && weight <= 1.0, "an observation cannot weigh {weight}");
        Correction { factor: 1.0, greatest: Self::UNSEEN, weight, recent: [1.0; 3], seen: 0 }
    }

    /// Records that `observed` came where the *uncorrected* model said `estimated`. Both must be
    /// positive; anything else is ignored.
    pub fn observe(&mut self, estimated: f64, observed: f64) {
        let ratio = observed / estimated;
        if !(ratio.is_finite() && ratio > 0.0) {
            return;
        }
        let mut ratio = ratio.clamp(Self::BOUNDS.0, Self::BOUNDS.1);
        if (ratio / self.factor - 1.0).abs() <= Self::ROUNDING {
            ratio = self.factor;
        }
        self.recent = [self.recent[1], self.recent[2], ratio];
        self.seen = self.seen.saturating_add(1);
        let mut ascending = self.recent;
        ascending.sort_unstable_by(f64::total_cmp);
        let median = ascending[1];
        self.factor = match self.seen {
            1 => 0.5 * (1.0 + ratio),
            2 | 3 => median,
            seen => {
                let weight = self.weight.max(1.0 / f64::from(seen - 2));
                self.factor + weight * (median - self.factor)
            }
        };
        let faded = self.factor + Self::FADES * (self.greatest - self.factor);
        self.greatest = faded.max(self.factor).max(ratio);
    }

    /// Returns the factor by which to multiply the model's estimate.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Returns the factor on the cautious side: the greatest ratio of the last ten or so. The harm
    /// of a prefetch depends on whether it reads from the server that the phase writes to. Where
    /// there is no harm half of the time and double harm otherwise, the mean breaks every second
    /// promise.
    pub fn cautious(&self) -> f64 {
        self.greatest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn curves_interpolate_and_stay_flat_outside() {
        let c = Curve::new(vec![(2, 1.0), (4, 3.0), (8, 4.0)]).expect("valid");
        let got: Vec<f64> = [1, 2, 3, 4, 6, 8, 16].iter().map(|&n| c.at(n)).collect();
        assert_eq!(got, [1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 4.0]);
    }

    #[test]
    fn wrong_curves_are_refused_with_the_reason() {
        assert!(Curve::new(vec![]).is_err());
        let e = Curve::new(vec![(1, 1.0), (1, 2.0)]).expect_err("twice the same count");
        assert_eq!(e, "counts must be positive and ascending, but point 1 is at 1");
        assert_eq!(
            Curve::new(vec![(1, -1.0)]).expect_err("negative"),
            "values must be positive, but the one at 1 is -1"
        );
    }

    #[test]
    fn a_separable_that_is_raised_keeps_what_was_higher() {
        let curve = |points| Curve::new(points).expect("valid");
        let s = Separable {
            at_one: 1.0,
            nodes: curve(vec![(1, 1.0), (2, 1.02), (4, 1.5)]),
            threads: curve(vec![(1, 1.0), (2, 1.3)]),
        };
        let raised = s.at_least(1.1);
        let is = |nodes, threads, want: f64| (raised.at(nodes, threads) - want).abs() < 1e-12;
        assert!(is(1, 1, 1.1) && is(2, 1, 1.1) && is(4, 1, 1.5) && is(1, 2, 1.3), "{raised:?}");
        assert_eq!(s.at_least(1.0), s);
    }

    /// TI(2) = t2 / t1, from raw times, as in the paper's section 4.1.
    #[test]
    fn relative_curves_come_from_raw_times() {
        let ti = Curve::relative(&[(1, 20.0), (2, 25.0)]).expect("valid");
        assert_eq!((ti.at(1), ti.at(2)), (1.0, 1.25));
    }

    proptest! {
        /// If the world is separable, O(n + m) samples give every one of the n * m values.
        #[test]
        fn a_separable_world_is_recovered_from_n_plus_m_samples(
            nodes in prop::collection::vec(0.1f64..3.0, 1..9),
            threads in prop::collection::vec(0.1f64..3.0, 1..17),
            at_one in 0.1f64..100.0
        ) {
            let truth = |n: usize, t: usize| at_one * nodes[n] / nodes[0] * threads[t] / threads[0];
            let by_node: Vec<_> = (0..nodes.len()).map(|n| (n as u16 + 1, truth(n, 0))).collect();
            let by_thread: Vec<_> = (0..threads.len()).map(|t| (t as u16 + 1, truth(0, t))).collect();
            let s = Separable {
                at_one: truth(0, 0),
                nodes: Curve::relative(&by_node).expect("valid"),
                threads: Curve::relative(&by_thread).expect("valid"),
            };
            for n in 0..nodes.len() {
                for t in 0..threads.len() {
                    let got = s.at(n as u16 + 1, t as u16 + 1);
                    prop_assert!((got / truth(n, t) - 1.0).abs() < 1e-12);
                }
            }
        }

        /// Whatever the model's error, two observations that agree correct it, and more change
        /// nothing.
        #[test]
        fn two_observations_correct_the_model(error in 0.01f64..100.0, weight in 0.01f64..=1.0) {
            let want = error.clamp(Correction::BOUNDS.0, Correction::BOUNDS.1);
            let mut c = Correction::new(weight);
            c.observe(10.0, 10.0 * error);
            prop_assert!(c.cautious() >= want - 1e-6);
            for _ in 0..30 {
                c.observe(10.0, 10.0 * error);
                prop_assert!((c.factor() / want - 1.0).abs() < 1e-9);
                prop_assert!(c.cautious() >= want - 1e-6);
            }
            prop_assert!(c.cautious() < want + 0.05, "{c:?}");
            c.observe(0.0, 1.0);
            c.observe(1.0, f64::NAN);
            prop_assert!((c.factor() / want - 1.0).abs() < 1e-9);
        }

        /// Where the harm is now zero and now double, the cautious factor is the double from the
        /// first time on, however often it is zero in between, up to ten times.
        #[test]
        fn what_comes_now_and_then_is_not_forgotten(
            weight in 0.01f64..=1.0,
            rests in prop::collection::vec(0usize..=10, 1..10),
            double in 1.25f64..4.0
        ) {
            let mut c = Correction::new(weight);
            for rest in rests {
                c.observe(1.0, double);
                prop_assert!(c.cautious() >= double - 1e-5);
                for _ in 0..rest {
                    c.observe(1.0, 1e-9);
                }
                let kept = c.factor() + 0.3 * (double - c.factor());
                prop_assert!(c.cautious() >= kept, "after {rest}: {c:?}");
            }
        }

        /// The profile and the observations agree within a spread, but for one of them, which may
        /// be anything. From the second observation on, the factor is within the spread.
        #[test]
        fn one_wrong_observation_moves_no_factor(
            truth in 0.5f64..2.0,
            weight in 0.01f64..=1.0,
            noise in prop::collection::vec(0.95f64..1.05, 2..20),
            wrong in 1e-3f64..1e3,
            place in 0usize..20
        ) {
            let mut c = Correction::new(weight);
            // The profile says 1: it is right if the truth is 1, and wrong otherwise.
            let truth = if place == 0 { truth } else { 1.0 };
            let (mut low, mut high) = if place == 0 { (f64::MAX, 0.0) } else { (1.0f64, 1.0f64) };
            for (i, noise) in noise.iter().enumerate() {
                let is_wrong = i + 1 == place;
                let ratio = if is_wrong { wrong } else { truth * noise };
                if !is_wrong {
                    (low, high) = (ratio.min(low), ratio.max(high));
                }
                c.observe(1.0, ratio);
                if i > 0 {
                    let (low, high) = (low - 1e-5, high + 1e-5);
                    prop_assert!(low <= c.factor() && c.factor() <= high, "{i}: {c:?}");
                }
            }
        }
    }
}
