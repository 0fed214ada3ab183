//! A run for people: rows for a table or a spreadsheet, and a timeline.

use super::{Outcome, Setup};
use crate::csv::seconds;
use crate::figure::Figure;
use crate::plot::timeline::{Span, Timeline};

/// Names of the columns of [`rows`].
pub const COLUMNS: [&str; 9] =
    ["policy", "seed", "name", "map_s", "pfs_alone_s", "pfs_mb", "tasks", "tasks_local", "sides"];

/// One row per job; one that the horizon cut has no map time. The bytes that the file system served
/// are those of all jobs.
pub fn rows(setup: &Setup, outcome: &Outcome) -> Vec<Vec<String>> {
    let row = |job: &super::JobOutcome| {
        vec![
            setup.policy.clone(),
            setup.seed.to_string(),
            job.name.clone(),
            if job.tasks_left == 0 { format!("{:.3}", job.map_ns as f64 * 1e-9) } else { String::new() },
            format!("{:.3}", outcome.bound_ns as f64 * 1e-9),
            format!("{:.3}", outcome.served_bytes as f64 * 1e-6),
            job.tasks.to_string(),
            job.local.to_string(),
            job.sides(),
        ]
    };
    outcome.jobs.iter().map(row).collect()
}

/// Names of the columns of [`records`].
pub const RECORDS: [&str; 4] = ["job", "slot", "begin_s", "end_s"];

/// A row per task that has ended.
pub fn records(outcome: &Outcome) -> Vec<Vec<String>> {
    let task = |name: &str, (slot, begin_ns, end_ns): (usize, u64, u64)| {
        vec![name.to_owned(), slot.to_string(), seconds(begin_ns), seconds(end_ns)]
    };
    outcome.jobs.iter().flat_map(|job| job.ran.iter().map(|ran| task(&job.name, *ran))).collect()
}

/// What each slot runs, between two moments (seconds).
pub fn timeline(setup: &Setup, outcome: &Outcome, title: &str, window_s: (f64, f64)) -> Figure {
    let s = |ns: u64| ns as f64 * 1e-9;
    let rows = setup.hosts_of_slots().into_iter().map(|host| setup.host_name(host)).collect();
    let span = |tip: &str, &(row, from, to): &(usize, u64, u64)| Span {
        row,
        from_s: s(from),
        to_s: s(to),
        kind: 0,
        tip: tip.into(),
    };
    let jobs = outcome.jobs.iter();
    let spans = jobs.flat_map(|job| job.ran.iter().map(|ran| span(&job.name, ran))).collect();
    Timeline { title, rows, kinds: vec![("task", "#0072b2")], spans, window_s }.figure()
}
