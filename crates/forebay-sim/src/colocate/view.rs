//! A run for people: a table of results, a timeline, rows for a spreadsheet.

use forebay_policy::planner::ActionKind;

use super::outcome::{FetchSpan, Outcome};
use super::{Setup, action_name};
use crate::csv::{exact, record, seconds};
use crate::figure::Figure;
use crate::plot::timeline::{Span, Timeline};
use crate::report::number;

/// Kinds of spans in a timeline, with their colours: what runs, then the actions.
const KINDS: [(&str, &str); 10] = [
    ("I/O phase", "#d55e00"),
    ("late", "#7a0000"),
    ("compute", "#999999"),
    ("No Action", "#0072b2"),
    ("delayed", "#56b4e9"),
    ("Scale Up", "#009e73"),
    ("Scale Down", "#e69f00"),
    ("direct", "#cc79a7"),
    ("search", "#f0e442"),
    ("down", "#555555"),
];
const DOWN: usize = 9;

fn kind_index(kind: ActionKind) -> usize {
    match kind {
        ActionKind::NoAction => 3,
        ActionKind::FullDelay | ActionKind::PartialDelay => 4,
        ActionKind::ScaleUp => 5,
        ActionKind::ScaleDown => 6,
        ActionKind::Direct => 7,
        ActionKind::Search | ActionKind::Wait => 8,
    }
}

/// HPC phases, prefetches with their action, and compute, between two moments (seconds).
pub fn timeline(setup: &Setup, outcome: &Outcome, title: &str, window_s: (f64, f64)) -> Figure {
    let s = |ns: u64| ns as f64 * 1e-9;
    let mut rows: Vec<String> = setup.hpc.iter().map(|h| h.name.clone()).collect();
    let mut spans = Vec::new();
    for (row, hpc) in outcome.hpc.iter().enumerate() {
        for p in &hpc.phases {
            let tip = format!("{} % slower than alone", number(100.0 * p.slowdown()));
            let (from_s, to_s) = (s(p.begin_ns), s(p.end_ns));
            spans.push(Span { row, from_s, to_s, kind: usize::from(p.missed()), tip });
        }
    }
    for (j, job) in outcome.jobs.iter().enumerate() {
        let row = rows.len();
        rows.push(format!("{}: fetch", job.name));
        rows.push(format!("{}: compute", job.name));
        for f in outcome.fetches.iter().filter(|f| f.job == j) {
            let (from_s, to_s, kind) = (s(f.from_ns), s(f.to_ns), kind_index(f.kind));
            spans.push(Span { row, from_s, to_s, kind, tip: fetch_tip(f) });
        }
        for (i, w) in job.waves.iter().enumerate().filter(|(_, w)| w.end_ns > 0) {
            let tip = format!("wave {i}, waited {} s", number(s(w.stall_ns)));
            spans.push(Span { row: row + 1, from_s: s(w.begin_ns), to_s: s(w.end_ns), kind: 2, tip });
        }
    }
    let mut nodes: Vec<u16> = outcome.down.iter().map(|d| d.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    for node in &nodes {
        let row = rows.len();
        rows.push(format!("node {node}"));
        for d in outcome.down.iter().filter(|d| d.node == *node) {
            let to_s = d.to_ns.map_or(outcome.end_s(), s);
            spans.push(Span { row, from_s: s(d.from_ns), to_s, kind: DOWN, tip: "down".into() });
        }
    }
    let kinds = KINDS[..if nodes.is_empty() { DOWN } else { KINDS.len() }].to_vec();
    Timeline { title, rows, kinds, spans, window_s, ..Timeline::default() }.figure()
}

fn fetch_tip(f: &FetchSpan) -> String {
    match f.setting {
        None => format!("wave {}, read directly", f.wave),
        Some(s) => {
            let rate = if s.rate < 1.0 { format!(" at {} %", number(100.0 * s.rate)) } else { String::new() };
            format!(
                "wave {}, {}: {} nodes x {} threads{rate}",
                f.wave,
                action_name(f.kind),
                s.nodes,
                s.threads
            )
        }
    }
}

/// Names of the columns of [`rows`].
pub const COLUMNS: [&str; 8] =
    ["policy", "seed", "kind", "name", "map_s", "mean_cost_s", "mean_slowdown_percent", "deadlines_missed"];

/// One row per job, Big Data jobs first. Cells that do not apply are empty, and so is the map time
/// of a job that the horizon interrupted.
pub fn rows(setup: &Setup, outcome: &Outcome) -> Vec<Vec<String>> {
    let row = |kind: &str, name: &str, cells: [String; 4]| {
        let mut row = vec![setup.policy.clone(), setup.seed.to_string(), kind.into(), name.into()];
        row.extend(cells);
        row
    };
    let none = String::new;
    let job = |j: &super::JobOutcome| {
        let map_s = if j.waves_left == 0 { exact(j.map_ns as f64 * 1e-9) } else { none() };
        row("job", &j.name, [map_s, exact(j.mean_cost_s()), none(), none()])
    };
    let hpc = |h: &super::HpcOutcome| {
        row("hpc", &h.name, [none(), none(), exact(100.0 * h.slowdown()), h.missed().to_string()])
    };
    outcome.jobs.iter().map(job).chain(outcome.hpc.iter().map(hpc)).collect()
}

/// Names of the columns of [`records`].
pub const RECORDS: [&str; 8] =
    ["kind", "name", "number", "begin_s", "end_s", "fetched_s", "stall_s", "deadline_s"];

/// A row per wave that was computed and per I/O phase that has ended. Cells that do not apply are
/// empty.
pub fn records(outcome: &Outcome) -> Vec<Vec<String>> {
    let none = String::new;
    let mut rows = Vec::new();
    for job in &outcome.jobs {
        let computed = job.waves.len() - job.waves_left as usize;
        for (i, w) in job.waves.iter().take(computed).enumerate() {
            let [begin, end, fetched, stall] = [w.begin_ns, w.end_ns, w.fetched_ns, w.stall_ns].map(seconds);
            rows.push(record("wave", &job.name, i, [begin, end, fetched, stall, none()]));
        }
    }
    for hpc in &outcome.hpc {
        for (i, p) in hpc.phases.iter().enumerate() {
            let [begin, end, deadline] = [p.begin_ns, p.end_ns, p.deadline_ns].map(seconds);
            rows.push(record("phase", &hpc.name, i, [begin, end, none(), none(), deadline]));
        }
    }
    rows
}
