//! A run for people: rows for a table or a spreadsheet, and a timeline.

use super::outcome::{Ended, Hold, JobOutcome, Outcome, StepOutcome};
use super::{JobSpec, Setup};
use crate::csv::{exact, seconds};
use crate::figure::Figure;
use crate::plot::timeline::{Span, Timeline};
use crate::report::number;

/// Names of the columns of [`rows`].
pub const COLUMNS: [&str; 15] = [
    "allocation",
    "access",
    "seed",
    "job",
    "steps",
    "io_s",
    "mean_io_s",
    "mean_wait_s",
    "longest_wait_s",
    "mean_slowdown",
    "end_s",
    "leases_lost",
    "nodes_lost",
    "wasted_gb",
    "end",
];

/// A row per job, and one for all of them: the sum of their I/O times is the paper's aggregate.
pub fn rows(setup: &Setup, outcome: &Outcome) -> Vec<Vec<String>> {
    let head = |name: &str| {
        vec![setup.allocation.clone(), setup.access.clone(), setup.seed.to_string(), name.to_string()]
    };
    let row = |(spec, job): (&JobSpec, &JobOutcome)| {
        let mut row = head(&spec.name);
        row.extend(times(&job.steps.iter().collect::<Vec<_>>()));
        row.push(job.end_ns.map_or(String::new(), |ns| exact(ns as f64 * 1e-9)));
        row.extend([job.leases_lost.to_string(), job.nodes_lost.to_string(), exact(job.wasted_bytes * 1e-9)]);
        row.push(match job.died {
            Some(death) => format!("died {}", death.was),
            None if job.without_nodes => "no nodes left".into(),
            None if job.unfinished => "unfinished".into(),
            None => "written".into(),
        });
        row
    };
    let mut rows: Vec<Vec<String>> = setup.jobs.iter().zip(&outcome.jobs).map(row).collect();
    let mut all = head("(all)");
    all.extend(times(&outcome.jobs.iter().flat_map(|j| &j.steps).collect::<Vec<_>>()));
    all.push(exact(outcome.end_s()));
    let sum = |of: fn(&JobOutcome) -> f64| outcome.jobs.iter().map(of).sum::<f64>();
    all.push(number(sum(|j| f64::from(j.leases_lost))));
    all.push(number(sum(|j| f64::from(j.nodes_lost))));
    all.push(exact(sum(|j| j.wasted_bytes) * 1e-9));
    let died = outcome.jobs.iter().filter(|j| j.died.is_some()).count();
    let left = outcome.jobs.iter().filter(|j| j.without_nodes).count();
    let mut end = format!("{died} died");
    if left > 0 {
        end += &format!(", {left} without nodes");
    }
    if let Some(unfinished) = outcome.unfinished {
        end += &format!(", {} unfinished", unfinished.jobs);
    }
    all.push(end);
    rows.push(all);
    rows
}

/// Names of the columns of [`records`].
pub const RECORDS: [&str; 7] = ["job", "step", "due_s", "granted_s", "end_s", "alone_s", "attempts"];

/// A row per step that was written.
pub fn records(outcome: &Outcome) -> Vec<Vec<String>> {
    let step = |name: &str, (i, step): (usize, &StepOutcome)| {
        let mut row = vec![name.to_owned(), i.to_string()];
        row.extend([step.due_ns, step.granted_ns, step.end_ns, step.alone_ns].map(seconds));
        row.push(step.attempts.to_string());
        row
    };
    let steps = |job: &JobOutcome| job.steps.iter().enumerate().map(|s| step(&job.name, s)).collect();
    outcome.jobs.iter().flat_map(|job| -> Vec<Vec<String>> { steps(job) }).collect()
}

/// Number of steps, sum and mean of I/O times, mean and longest wait, mean of I/O time over time
/// alone.
fn times(steps: &[&StepOutcome]) -> [String; 6] {
    let n = steps.len().max(1) as f64;
    let sum = |of: fn(&StepOutcome) -> f64| steps.iter().map(|s| of(s)).sum::<f64>();
    let io_s = sum(StepOutcome::io_s);
    let longest = steps.iter().map(|s| s.wait_s()).fold(0.0, f64::max);
    let slowdown = sum(|s| s.io_s() / (s.alone_ns.max(1) as f64 * 1e-9));
    let waited = exact(sum(StepOutcome::wait_s) / n);
    [steps.len().to_string(), exact(io_s), exact(io_s / n), waited, exact(longest), exact(slowdown / n)]
}

/// Kinds of spans in a timeline, with their colours.
const KINDS: [(&str, &str); 5] = [
    ("writes", "#0072b2"),
    ("waits", "#e69f00"),
    ("computes", "#dddddd"),
    ("silent", "#cc79a7"),
    ("lost", "#d55e00"),
];
const WRITES: usize = 0;
const WAITS: usize = 1;
const COMPUTES: usize = 2;
const SILENT: usize = 3;
const LOST: usize = 4;

/// A row per job, and one per node that was down, between two moments (seconds).
pub fn timeline(setup: &Setup, outcome: &Outcome, title: &str, window_s: (f64, f64)) -> Figure {
    let mut rows: Vec<String> = setup.jobs.iter().map(|j| j.name.clone()).collect();
    let mut spans = Vec::new();
    for (row, job) in outcome.jobs.iter().enumerate() {
        background(row, job, outcome, &mut spans);
    }
    for hold in &outcome.holds {
        hold_spans(hold, &mut spans);
    }
    for (row, job) in outcome.jobs.iter().enumerate() {
        if let Some(death) = job.died {
            let (from_s, to_s) = (s(death.at_ns), outcome.end_s());
            let tip = format!("dead since {} s, when it was {}", number(from_s), death.was);
            let held = outcome.holds.iter().any(|h| h.job == row && h.silent_ns.is_some());
            // What it holds after its death is drawn as such.
            if !held {
                spans.push(Span { row, from_s, to_s, kind: LOST, tip });
            }
        }
    }
    let mut nodes: Vec<u32> = outcome.down.iter().map(|d| d.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    for node in nodes {
        let row = rows.len();
        rows.push(format!("node {node}"));
        for d in outcome.down.iter().filter(|d| d.node == node) {
            let to_s = d.to_ns.map_or(outcome.end_s(), s);
            let tip = format!("down; {} jobs had it", d.jobs);
            spans.push(Span { row, from_s: s(d.from_ns), to_s, kind: LOST, tip });
        }
    }
    Timeline { title, rows, kinds: KINDS.to_vec(), spans, window_s, ..Timeline::default() }.figure()
}

fn s(ns: u64) -> f64 {
    ns as f64 * 1e-9
}

/// Draws compute between steps, and steps from when they were due: what is written is drawn over
/// it.
fn background(row: usize, job: &JobOutcome, outcome: &Outcome, spans: &mut Vec<Span>) {
    let mut computes_from = job.room_ns;
    for (i, step) in job.steps.iter().enumerate() {
        if let Some(from) = computes_from {
            let tip = String::new();
            spans.push(Span { row, from_s: s(from), to_s: s(step.due_ns), kind: COMPUTES, tip });
        }
        let tip = format!("step {i} waits {} s", number(step.wait_s()));
        spans.push(Span { row, from_s: s(step.due_ns), to_s: s(step.end_ns), kind: WAITS, tip });
        computes_from = Some(step.end_ns);
    }
    if let (Some(from), Some(death)) = (computes_from, job.died) {
        let next = outcome.holds.iter().find(|h| h.job == row && h.index as usize == job.steps.len());
        let to_s = s(next.map_or(death.at_ns, |h| h.from_ns.min(death.at_ns)));
        spans.push(Span { row, from_s: s(from), to_s, kind: COMPUTES, tip: String::new() });
    }
}

fn hold_spans(hold: &Hold, spans: &mut Vec<Span>) {
    let runs: Vec<String> = hold.nodes.iter().map(|&(a, b)| node_range(a, b)).collect();
    let end = match hold.ended {
        Ended::Written => "written",
        Ended::NodeLost => "a node was lost",
        Ended::Revoked => "the lease ran out",
        Ended::Open => "the run was over",
    };
    let tip = format!("step {}, token {}, nodes {}: {end}", hold.index, hold.token, runs.join(","));
    let mut push = |from: u64, to: u64, kind: usize| {
        if to > from {
            spans.push(Span { row: hold.job, from_s: s(from), to_s: s(to), kind, tip: tip.clone() });
        }
    };
    let silent_from = hold.silent_ns.unwrap_or(hold.to_ns);
    push(hold.from_ns, silent_from, if hold.ended == Ended::NodeLost { LOST } else { WRITES });
    push(silent_from, hold.to_ns, SILENT);
}

/// `3` or `3-8`.
pub fn node_range(first: u32, last: u32) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}
