//! Settings that are worth looking at: the concave hull of speed over what they cost a phase.

use alloc::vec::Vec;

use forebay_model::profile::{Setting, Strain};

use super::super::{Board, Config};

/// Rates that are looked at, as shares of a setting's own speed.
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

/// Every setting beside `phases` phases.
pub(super) fn all_points(board: &Board, phases: usize) -> Vec<Point> {
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
pub(super) fn concave_hull(mut points: Vec<Point>) -> Vec<Point> {
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
    pub fn between_phases(config: &Config) -> Self {
        SpeedCurve { hull: concave_hull(all_points(&Board::new(config.clone()), 0)) }
    }

    /// Prefetching and direct reads, beside one phase.
    pub fn beside_one_phase(config: &Config) -> Self {
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
        /// No setting, and no mix of two settings, is above the hull; every corner of the hull is a setting or the pause.
        #[test]
        fn nothing_is_above_the_hull(
            points in prop::collection::vec((0.001f64..0.9, 0.1f64..10.0), 1..40), mix in 0.0f64..1.0
        ) {
            let all: Vec<Point> = points.iter().map(|&(c, v)| point(c, v)).collect();
            let hull = concave_hull(all.clone());
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

    /// (0.1, 1), (0.2, 3) and (0.4, 4): the first is below the line from the pause to the second.
    #[test]
    fn a_setting_below_the_line_is_left_out() {
        let hull =
            concave_hull([point(0.1, 1.0), point(0.2, 3.0), point(0.4, 4.0), point(0.5, 3.9)].to_vec());
        let corners: Vec<(f64, f64)> = hull.iter().map(|p| (p.cost, p.speed)).collect();
        assert_eq!(corners, [(0.0, 0.0), (0.2, 3.0), (0.4, 4.0)]);
        assert!((speed_at(&hull, 0.3) - 3.5).abs() < 1e-12 && speed_at(&hull, 0.9) == 4.0);
    }
}
