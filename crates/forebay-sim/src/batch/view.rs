//! A run for people: a row for a table or a spreadsheet, and what is in use over time.

use super::{Outcome, Ran, Setup};
use crate::figure::Figure;
use crate::plot::lines::Lines;

/// Names of the columns of [`rows`].
pub const COLUMNS: [&str; 10] = [
    "policy",
    "seed",
    "jobs",
    "mean_wait_s",
    "mean_slowdown",
    "worst_wait_s",
    "nodes_percent",
    "room_percent",
    "killed",
    "end_s",
];

/// One row.
pub fn rows(setup: &Setup, outcome: &Outcome) -> Vec<Vec<String>> {
    vec![vec![
        setup.policy.clone(),
        setup.seed.to_string(),
        outcome.jobs.len().to_string(),
        format!("{:.1}", outcome.mean_wait_s),
        format!("{:.3}", outcome.mean_slowdown),
        format!("{:.1}", outcome.worst_wait_s),
        format!("{:.2}", 100.0 * outcome.nodes_used),
        format!("{:.2}", 100.0 * outcome.room_used),
        outcome.jobs.iter().filter(|job| job.killed).count().to_string(),
        format!("{:.1}", outcome.end_s),
    ]]
}

/// Names of the columns of [`records`].
pub const RECORDS: [&str; 9] =
    ["job", "nodes", "room_bytes", "submit_s", "begin_s", "run_s", "ran_s", "end_s", "killed"];

/// A row per job.
pub fn records(outcome: &Outcome) -> Vec<Vec<String>> {
    let row = |job: &Ran| {
        let moments = [job.submit_s, job.begin_s, job.run_s, job.ran_s, job.end_s].map(|s| format!("{s:.3}"));
        let mut row = vec![job.name.clone(), job.nodes.to_string(), job.bytes.to_string()];
        row.extend(moments);
        row.push(u8::from(job.killed).to_string());
        row
    };
    outcome.jobs.iter().map(row).collect()
}

/// Draws nodes and room in use, in percent, between two moments (seconds).
pub fn timeline(setup: &Setup, outcome: &Outcome, title: &str, window_s: (f64, f64)) -> Figure {
    let line = |name: &str, all: f64, of: fn(&Ran) -> (f64, f64, f64)| {
        let mut changes: Vec<(f64, f64)> = Vec::new();
        for (amount, from_s, to_s) in outcome.jobs.iter().map(of) {
            changes.extend([(from_s, amount), (to_s, -amount)]);
        }
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut used, mut points) = (0.0, Vec::new());
        for (at_s, change) in changes {
            let before = used;
            used += change;
            if (window_s.0..=window_s.1).contains(&at_s) {
                points.extend([before, used].map(|used| (at_s, 100.0 * used / all)));
            }
        }
        (name.to_string(), points)
    };
    let room = (setup.buffer_bytes as f64 * f64::from(setup.buffers)).max(1.0);
    Lines {
        title,
        x_label: "time (s)",
        y_label: "in use (%)",
        log_x: false,
        series: vec![
            line("nodes", setup.nodes.into(), |j| (j.nodes.into(), j.run_s, j.ran_s)),
            line("room in burst buffers", room, |j| (j.bytes as f64, j.begin_s, j.end_s)),
        ],
        marks: vec![],
    }
    .figure()
}
