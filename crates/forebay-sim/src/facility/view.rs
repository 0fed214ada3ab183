//! A run for people: a row for each measure, states over time, and lines of them.

use super::{Outcome, Sample, Setup};
use crate::figure::Figure;
use crate::plot::lines::Lines;

/// What a run measures, in the order of [`Outcome::measures`].
pub const MEASURES: [&str; 16] = [
    "wait_s",
    "nodes_percent",
    "io_percent",
    "read_stretch",
    "written_stretch",
    "absorbed_stretch",
    "tier_gb",
    "past_tier_percent",
    "dirty_tb",
    "absorbed_gb_per_s",
    "pfs_gb_per_s",
    "phases",
    "tokens",
    "tokens_wanted",
    "token_wait_s",
    "messages_per_s",
];

/// Names of the columns of [`rows`].
pub const COLUMNS: [&str; 7] = ["policy", "seed", "name", "mean", "median", "p99", "most"];

/// A row per measure.
pub fn rows(setup: &Setup, outcome: &Outcome) -> Vec<Vec<String>> {
    let named = MEASURES.iter().zip(&outcome.measures);
    let row = |(name, summary): (&&str, &super::Summary)| {
        let mut row = vec![setup.policy(), setup.seed.to_string(), name.to_string()];
        let numbers = [summary.mean, summary.median, summary.p99, summary.most];
        row.extend(numbers.map(|number| format!("{number:.3}")));
        row
    };
    named.map(row).collect()
}

/// Names of the columns of [`records`].
pub const RECORDS: [&str; 13] = [
    "at_s",
    "nodes",
    "waiting",
    "read_gb_per_s",
    "written_gb_per_s",
    "drained_gb_per_s",
    "absorbed_gb_per_s",
    "dirty_tb",
    "tier_gb_most",
    "phases",
    "tokens",
    "tokens_wanted",
    "messages_per_s",
];

/// A row per sample.
pub fn records(outcome: &Outcome) -> Vec<Vec<String>> {
    let row = |sample: &Sample| {
        let [read, written, drained] = sample.pfs_bytes_per_s.map(|rate| rate * 1e-9);
        let rates = [read, written, drained, sample.absorbed_bytes_per_s * 1e-9, sample.dirty_bytes * 1e-12];
        let mut row =
            vec![format!("{:.0}", sample.at_s), format!("{:.0}", sample.nodes), sample.waiting.to_string()];
        row.extend(rates.map(|rate| format!("{rate:.3}")));
        row.push(format!("{:.3}", sample.tier_bytes * 1e-9));
        row.extend([sample.phases, sample.tokens[0], sample.tokens[1]].map(|count| format!("{count:.0}")));
        row.push(format!("{:.0}", sample.messages_per_s));
        row
    };
    outcome.samples.iter().map(row).collect()
}

/// Nodes, the PFS and the fullest tier in use, in percent, between two moments (seconds).
pub fn timeline(setup: &Setup, outcome: &Outcome, title: &str, window_s: (f64, f64)) -> Figure {
    let line = |name: &str, all: f64, of: fn(&Sample) -> f64| {
        let within = outcome.samples.iter().filter(|s| (window_s.0..=window_s.1).contains(&s.at_s));
        let points = within.map(|sample| (sample.at_s / 3600.0, 100.0 * of(sample) / all.max(1.0)));
        (name.to_string(), points.collect())
    };
    let pfs = setup.server_bytes_per_s * f64::from(setup.servers);
    Lines {
        title,
        x_label: "time (h)",
        y_label: "in use (%)",
        log_x: false,
        series: vec![
            line("nodes", setup.queue.nodes.into(), |s| s.nodes),
            line("bandwidth of the PFS", pfs, |s| s.pfs_bytes_per_s.iter().sum()),
            line("tier of the fullest node", setup.tier.bytes as f64, |s| s.tier_bytes),
        ],
        marks: vec![],
    }
    .figure()
}
