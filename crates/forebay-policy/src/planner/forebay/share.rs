//! Divides the PFS, and what phases can bear, among several Big Data jobs.
//!
//! Two resources are scarce: the bandwidth of the PFS, and beside phases the *excess*, the sum of
//! I_hpc - 1 over all prefetches that the phases can bear to their ends. Jobs are served in an
//! [`Order`], and first the jobs that have fallen behind their due (see [`super::joint`]). The
//! division is work conserving: it leaves nothing over that a job could use.
//!
//! - Between phases, one job after the other gets the fastest setting. Halving the bandwidth
//!   between two waves would delay the first and not fetch the second sooner.
//! - Beside phases, jobs without a wave in stock share the excess evenly, then the others share the
//!   rest: gentle settings move the most bytes for the harm they do.

use alloc::vec::Vec;

/// Which job is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The one whose next wave helps soonest: when it is resident, or when compute is free for it.
    Soonest,
    /// The one with the least work left, among those without a wave in stock.
    Short,
}

/// Every order that is simulated. Alone, the first starves short jobs behind long ones, and the
/// second lets the compute of long jobs run dry.
pub(super) const ORDERS: [Order; 2] = [Order::Soonest, Order::Short];

/// The best mean speed of one prefetch over the excess that it may cause: (excess, bytes per
/// second), ascending in both, and concave.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Curve {
    pub(super) points: Vec<(f64, f64)>,
}

impl Curve {
    /// Returns the bytes per second for `excess`.
    pub(super) fn speed(&self, excess: f64) -> f64 {
        let mut below = (0.0, 0.0);
        for &(e, v) in &self.points {
            if e > excess {
                return below.1 + (v - below.1) * (excess - below.0) / (e - below.0);
            }
            below = (e, v);
        }
        below.1
    }

    /// Returns the least excess for `speed`.
    pub(super) fn excess(&self, speed: f64) -> f64 {
        let mut below = (0.0, 0.0);
        for &(e, v) in &self.points {
            if v >= speed {
                return if v > below.1 {
                    below.0 + (e - below.0) * (speed - below.1) / (v - below.1)
                } else {
                    e
                };
            }
            below = (e, v);
        }
        below.0
    }
}

/// What a job wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Want {
    /// Which job.
    pub(super) job: usize,
    /// Whether it has fallen behind its due.
    pub(super) is_behind: bool,
    /// Whether a whole wave waits for compute.
    pub(super) has_stock: bool,
    /// Its priority: smaller keys go first.
    pub(super) key: f64,
    /// Speed of direct reads if they are sooner than any prefetch, else 0.
    pub(super) direct_speed: f64,
}

/// What a job gets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Grant {
    pub(super) speed: f64,
    pub(super) excess: f64,
    pub(super) direct: bool,
}

/// The resources to divide.
pub(super) struct Scarce<'a> {
    pub(super) pfs_speed: f64,
    /// Beside phases: the excess that they can bear, and the speed that it allows. `None` between
    /// phases.
    pub(super) beside: Option<(f64, &'a Curve)>,
    /// Speed of one prefetch between phases.
    pub(super) gap_speed: f64,
}

/// Sorts `wants` and divides; `grants[job]` of jobs that want nothing stays as it was.
pub(super) fn divide(scarce: &Scarce<'_>, wants: &mut [Want], grants: &mut [Grant]) {
    wants.sort_by(|a, b| b.is_behind.cmp(&a.is_behind).then(a.key.total_cmp(&b.key)).then(a.job.cmp(&b.job)));
    match scarce.beside {
        None => between(scarce, wants, grants),
        Some((excess, curve)) => beside((excess, scarce.pfs_speed), curve, wants, grants),
    }
}

fn between(scarce: &Scarce<'_>, wants: &[Want], grants: &mut [Grant]) {
    let mut left = scarce.pfs_speed;
    for want in wants {
        let (prefetched, direct) = (scarce.gap_speed.min(left), want.direct_speed.min(left));
        // Direct reads cannot be throttled: they need all of their speed.
        let reads = direct > prefetched && want.direct_speed <= left * (1.0 + 1e-9);
        let speed = if reads { direct } else { prefetched };
        grants[want.job] = Grant { speed, excess: 0.0, direct: reads };
        left -= speed;
    }
}

/// Divides beside phases; `left` is the excess and the bandwidth of the PFS.
fn beside(mut left: (f64, f64), curve: &Curve, wants: &[Want], grants: &mut [Grant]) {
    for has_stock in [false, true] {
        let group = || wants.iter().filter(|want| (want.has_stock && !want.is_behind) == has_stock);
        let count = group().count().max(1) as f64;
        let (excess, speed) = (left.0 / count, left.1 / count);
        for want in group() {
            let speed = curve.speed(excess).min(speed);
            let used = if speed > 0.0 { curve.excess(speed) } else { 0.0 };
            grants[want.job] = Grant { speed, excess: used, direct: false };
            left = ((left.0 - used).max(0.0), (left.1 - speed).max(0.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn curve() -> Curve {
        Curve { points: vec![(0.0, 0.0), (0.02, 1.25), (0.05, 1.5), (0.3, 2.0), (0.7, 2.3)] }
    }

    #[test]
    fn speeds_and_excesses_are_inverse() {
        for speed in [0.1, 1.25, 1.4, 2.0, 2.3] {
            assert!((curve().speed(curve().excess(speed)) - speed).abs() < 1e-12, "{speed}");
        }
        assert_eq!((curve().speed(9.0), curve().excess(9.0)), (2.3, 0.7));
    }

    proptest! {
        /// The division hands out no more than is available and leaves nothing over that a job
        /// could use. Between phases, jobs that have fallen behind are served before all others.
        #[test]
        fn all_is_given_out_and_no_more(
            jobs in prop::collection::vec((any::<bool>(), any::<bool>(), 0.0f64..100.0), 1..17),
            beside in any::<bool>(),
            (pfs_speed, excess) in (0.5f64..20.0, 0.0f64..3.0),
        ) {
            let curve = curve();
            let beside = beside.then_some((excess, &curve));
            let scarce = Scarce { pfs_speed, beside, gap_speed: 2.3 };
            let want = |(job, &(is_behind, has_stock, key))| Want { job, is_behind, has_stock, key, direct_speed: 0.0 };
            let mut wants: Vec<Want> = jobs.iter().enumerate().map(want).collect();
            let mut grants = vec![Grant::default(); jobs.len()];
            divide(&scarce, &mut wants, &mut grants);
            let speed: f64 = grants.iter().map(|g| g.speed).sum();
            let used: f64 = grants.iter().map(|g| g.excess).sum();
            prop_assert!(speed <= pfs_speed + 1e-9 && (used <= excess + 1e-9 || scarce.beside.is_none()));
            let all_have_most = grants.iter().all(|g| g.speed >= 2.3 - 1e-9);
            let nothing_left = speed >= pfs_speed - 1e-9 || (scarce.beside.is_some() && used >= excess - 1e-9);
            prop_assert!(all_have_most || nothing_left, "{speed} {used} {grants:?}");
            if scarce.beside.is_none() {
                let of = |behind: bool| jobs.iter().zip(&grants).filter(move |(j, _)| j.0 == behind).map(|(_, g)| g.speed);
                let others = of(false).fold(0.0, f64::max);
                prop_assert!(of(true).all(|speed| speed >= others - 1e-9), "{grants:?}");
            }
        }
    }
}
