//! Settings that are worth examining: the concave hull of speed over their cost to a phase.

use alloc::vec::Vec;

use forebay_model::profile::{Setting, Strain};

use super::super::{Board, Config};

/// Rates that are examined, as shares of a setting's own speed.
const RATES: [f64; 4] = [0.25, 0.5, 0.75, 1.0];

/// A setting on the hull.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) setting: Setting,
    pub(super) strain: Strain,
    /// Bytes per second beside the phases.
    pub(super) speed: f64,
    /// Seconds that a phase loses per second.
    pub(super) cost: f64,
}

pub(super) const PAUSE: Point =
    Point { setting: Setting::PAUSED, strain: Strain::NONE, speed: 0.0, cost: 0.0 };

/// Returns every setting beside `phases` phases. A rate that the phases do not let it reach is
/// omitted: it is equal to the one before.
pub(super) fn all_points(board: &Board, phases: usize) -> impl Iterator<Item = Point> + '_ {
    let profile = &board.config.profile;
    let pairs = (1..=profile.max_nodes).flat_map(|n| (1..=profile.max_threads).map(move |t| (n, t)));
    pairs.flat_map(move |(nodes, threads)| {
        let unthrottled = board.strain(Setting::new(nodes, threads));
        let free_pace = 1.0 / (1.0 + phases as f64 * (unthrottled.i_bd - 1.0));
        let reached = RATES.partition_point(|rate| *rate < free_pace);
        RATES.into_iter().take(reached + 1).map(move |rate| {
            let pace = rate.min(free_pace);
            let excess = (unthrottled.i_hpc - 1.0) * pace / free_pace;
            Point {
                setting: Setting { nodes, threads, rate },
                strain: Strain { rate, ..unthrottled },
                speed: (pace * unthrottled.speed_bytes_per_s).min(board.pfs_bytes_per_s()),
                cost: if phases > 0 { excess / (1.0 + excess) } else { 0.0 },
            }
        })
    })
}

/// Returns `setting` while no phase is under way.
pub(super) fn at_full_rate(board: &Board, setting: Setting) -> Point {
    let strain = board.strain(setting);
    Point { setting, strain, speed: strain.speed_bytes_per_s.min(board.pfs_bytes_per_s()), cost: 0.0 }
}

/// Returns the upper concave hull of speed over cost, from the pause on, in ascending cost.
pub(super) fn concave_hull(points: impl Iterator<Item = Point>) -> Vec<Point> {
    let mut unbeaten = [PAUSE].to_vec();
    points.for_each(|p| add_unbeaten(&mut unbeaten, p));
    let mut hull: Vec<Point> = Vec::with_capacity(unbeaten.len());
    for p in unbeaten {
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

/// Adds `p` to points in ascending cost and speed, unless one of them costs no more and is no
/// slower; those that it beats are removed. Of two that are equal in both, the one with fewer
/// threads stays. Few are unbeaten, so this is faster than sorting all.
fn add_unbeaten(unbeaten: &mut Vec<Point>, p: Point) {
    let threads = |p: &Point| u32::from(p.setting.nodes) * u32::from(p.setting.threads);
    let after = unbeaten.partition_point(|q| q.cost <= p.cost);
    if let Some(q) = unbeaten[..after].last_mut().filter(|q| q.speed >= p.speed) {
        if (q.cost, q.speed) == (p.cost, p.speed) && threads(&p) < threads(q) {
            *q = p;
        }
        return;
    }
    let first = unbeaten[..after].partition_point(|q| q.cost < p.cost);
    let beaten = unbeaten[first..].partition_point(|q| q.speed <= p.speed);
    unbeaten.splice(first..first + beaten, [p]);
}

/// The best mean speed that any mix of settings and direct reads reaches, over what phases may lose
/// for it. No planner can move more; the lower bound of map times is based on it.
pub struct SpeedCurve {
    hull: Vec<Point>,
}

impl SpeedCurve {
    /// The curve of prefetching only, between phases.
    pub fn between_phases(config: &Config) -> Self {
        SpeedCurve { hull: concave_hull(all_points(&Board::new(config.clone()), 0)) }
    }

    /// The curve of prefetching and direct reads, beside one phase.
    pub fn beside_one_phase(config: &Config) -> Self {
        let direct = config.direct;
        let direct = Point {
            setting: Setting::PAUSED,
            strain: direct.strain(),
            speed: direct.speed_bytes_per_s / direct.i_bd,
            cost: 1.0 - 1.0 / direct.i_hpc,
        };
        let board = Board::new(config.clone());
        SpeedCurve { hull: concave_hull(all_points(&board, 1).chain([direct])) }
    }

    /// Returns the bytes per second if phases may lose `cost` of every second.
    pub fn at(&self, cost: f64) -> f64 {
        speed_at(&self.hull, cost)
    }
}

/// Returns a point of the hull's edge: the best mean speed at a mean cost.
pub(super) fn speed_at(hull: &[Point], cost: f64) -> f64 {
    let after = hull.partition_point(|p| p.cost <= cost);
    match (after.checked_sub(1).and_then(|i| hull.get(i)), hull.get(after)) {
        (Some(a), Some(b)) => a.speed + (b.speed - a.speed) * (cost - a.cost) / (b.cost - a.cost).max(1e-12),
        (Some(last), None) => last.speed,
        (None, Some(first)) => first.speed,
        (None, None) => 0.0,
    }
}

/// The hull for one number of phases, and what it was computed from.
#[derive(Clone, Debug, Default)]
pub(super) struct Hull {
    pub(super) phases: usize,
    pub(super) corrections: (f64, f64),
    pub(super) points: Vec<Point>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point(cost: f64, speed: f64) -> Point {
        Point { setting: Setting::new(1, 1), strain: Strain::NONE, speed, cost }
    }

    proptest! {
        /// No setting, and no mix of two settings, is above the hull; every corner of the hull is a
        /// setting or the pause.
        #[test]
        fn nothing_is_above_the_hull(
            points in prop::collection::vec((0.001f64..0.9, 0.1f64..10.0), 1..40), mix in 0.0f64..1.0
        ) {
            let all: Vec<Point> = points.iter().map(|&(c, v)| point(c, v)).collect();
            let hull = concave_hull(all.iter().copied());
            prop_assert!(hull.windows(2).all(|w| w[0].cost < w[1].cost && w[0].speed < w[1].speed));
            for corner in &hull[1..] {
                prop_assert!(all.iter().any(|p| p.cost == corner.cost && p.speed == corner.speed));
            }
            for a in &all {
                for b in &all {
                    let cost = a.cost * mix + b.cost * (1.0 - mix);
                    let speed = a.speed * mix + b.speed * (1.0 - mix);
                    prop_assert!(speed_at(&hull, cost) >= speed - 1e-9, "{cost} {speed}");
                }
            }
        }
    }

    #[test]
    fn of_settings_that_do_the_same_the_one_with_fewer_threads_is_kept() {
        let with = |threads: u16| Point { setting: Setting::new(1, threads), ..point(0.2, 3.0) };
        for order in [[4, 2, 8], [8, 4, 2], [2, 8, 4]] {
            let hull = concave_hull(order.map(with).into_iter());
            assert_eq!(hull, [PAUSE, with(2)]);
        }
    }

    /// (0.1, 1), (0.2, 3) and (0.4, 4): the first is below the line from the pause to the second.
    #[test]
    fn a_setting_below_the_line_is_left_out() {
        let hull =
            concave_hull([point(0.1, 1.0), point(0.2, 3.0), point(0.4, 4.0), point(0.5, 3.9)].into_iter());
        let corners: Vec<(f64, f64)> = hull.iter().map(|p| (p.cost, p.speed)).collect();
        assert_eq!(corners, [(0.0, 0.0), (0.2, 3.0), (0.4, 4.0)]);
        assert!((speed_at(&hull, 0.3) - 3.5).abs() < 1e-12 && speed_at(&hull, 0.9) == 4.0);
    }
}
