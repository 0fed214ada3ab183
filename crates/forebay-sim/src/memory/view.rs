//! A run for people: a row for a table or a spreadsheet, and lines over time.

use super::{Outcome, Point, Setup};
use crate::figure::Figure;
use crate::plot::lines::Lines;

const GB: f64 = 1e9;

/// Names of the columns of [`rows`].
pub const COLUMNS: [&str; 11] = [
    "policy",
    "seed",
    "tier_gb",
    "clairvoyant_gb",
    "tier_percent",
    "above_s",
    "above_2_percent_s",
    "peak_percent",
    "resizes",
    "fetched_gb",
    "samples",
];

/// One row.
pub fn rows(setup: &Setup, outcome: &Outcome) -> Vec<Vec<String>> {
    vec![vec![
        setup.policy.clone(),
        setup.seed.to_string(),
        format!("{:.3}", outcome.tier_bytes / GB),
        format!("{:.3}", outcome.clairvoyant_bytes / GB),
        format!("{:.2}", outcome.tier_percent()),
        format!("{:.3}", outcome.above_s),
        format!("{:.3}", outcome.far_above_s),
        format!("{:.2}", 100.0 * outcome.peak),
        outcome.resizes.len().to_string(),
        format!("{:.3}", outcome.fetched_bytes / GB),
        outcome.samples.to_string(),
    ]]
}

/// Names of the columns of [`records`].
pub const RECORDS: [&str; 5] = ["at_s", "compute_bytes", "tier_bytes", "capacity_bytes", "clairvoyant_bytes"];

/// A row per recorded moment.
pub fn records(outcome: &Outcome) -> Vec<Vec<String>> {
    let row = |p: &Point| {
        let bytes = [p.compute_bytes, p.tier_bytes, p.capacity_bytes as f64, p.clairvoyant_bytes];
        let cells = bytes.map(|bytes| format!("{bytes:.0}"));
        [format!("{:.3}", p.at_s)].into_iter().chain(cells).collect()
    };
    outcome.points.iter().map(row).collect()
}

/// Memory of compute, in use and of the tiers, between two moments (seconds).
pub fn timeline(setup: &Setup, outcome: &Outcome, title: &str, window_s: (f64, f64)) -> Figure {
    let line = |name: &str, bytes: fn(&Point) -> f64| {
        let shown = outcome.points.iter().filter(|p| (window_s.0..=window_s.1).contains(&p.at_s));
        (name.to_string(), shown.map(|p| (p.at_s, bytes(p) / GB)).collect())
    };
    Lines {
        title,
        x_label: "time (s)",
        y_label: "memory (GB)",
        log_x: false,
        series: vec![
            line("compute", |p| p.compute_bytes),
            line("in use", |p| p.compute_bytes + p.tier_bytes),
            line("tier", |p| p.tier_bytes),
            line("clairvoyant tier", |p| p.clairvoyant_bytes),
        ],
        marks: vec![("r0".into(), setup.config.target_bytes() / GB)],
    }
    .figure()
}
