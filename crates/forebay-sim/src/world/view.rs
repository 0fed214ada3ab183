//! A run for people: rows for a table or a spreadsheet, and a timeline.

use super::{Outcome, Setup};
use crate::burst::JobOutcome as Checkpoints;
use crate::cluster::JobOutcome as Tasks;
use crate::cluster::view as cluster;
use crate::colocate::HpcOutcome;
use crate::csv::{exact, record, seconds};
use crate::figure::Figure;
use crate::memory;
use crate::plot::timeline::{Span, Timeline};
use crate::report::number;

const GB: f64 = 1e9;

/// Names of the columns of [`rows`].
pub const COLUMNS: [&str; 19] = [
    "policy",
    "drain",
    "access",
    "seed",
    "kind",
    "name",
    "map_s",
    "tasks",
    "io_s",
    "steps",
    "drain_s",
    "slowdown_percent",
    "deadlines_missed",
    "tier_percent",
    "above_s",
    "read_gb",
    "written_gb",
    "evicted_gb",
    "sides",
];
/// Index of the first column that is a measure.
const MEASURES: usize = 6;

/// One row per job: map time and tasks of Big Data jobs, steps of jobs that write them to burst
/// buffers, slowdown of phases; one per node whose memory changes; and one of the file system.
/// Cells that do not apply are empty, and so is the map time of a job that the horizon interrupted.
pub fn rows(setup: &Setup, outcome: &Outcome) -> Vec<Vec<String>> {
    let row = |kind: &str, name: &str, cells: [(&str, String); 3]| {
        let head = [&setup.cluster.policy, setup.drain_policy(), setup.access_policy()];
        let mut row: Vec<String> = head.map(String::from).into();
        row.extend([setup.seed.to_string(), kind.into(), name.into()]);
        let cell =
            |column: &&str| cells.iter().find(|(name, _)| name == column).map(|(_, cell)| cell.clone());
        row.extend(COLUMNS[MEASURES..].iter().map(|column| cell(column).unwrap_or_default()));
        row
    };
    let job = |job: &Tasks| {
        let map_s = if job.tasks_left == 0 { exact(job.map_ns as f64 * 1e-9) } else { String::new() };
        let tasks = job.tasks.to_string();
        row("job", &job.name, [("map_s", map_s), ("tasks", tasks), ("sides", job.sides())])
    };
    let hpc = |hpc: &HpcOutcome| {
        let slowdown = exact(100.0 * hpc.slowdown());
        let missed = hpc.missed().to_string();
        row(
            "hpc",
            &hpc.name,
            [("slowdown_percent", slowdown), ("deadlines_missed", missed), ("", String::new())],
        )
    };
    let steps = |(j, job): (usize, &Checkpoints)| {
        let drain_s = drain_s(outcome, j).map_or(String::new(), exact);
        let (io_s, steps) = (exact(job.io_s()), job.steps.len().to_string());
        row("checkpoint", &job.name, [("io_s", io_s), ("steps", steps), ("drain_s", drain_s)])
    };
    let node = |(n, memory): (usize, &memory::Outcome)| {
        let (tier, above) = (format!("{:.2}", memory.tier_percent()), exact(memory.above_s));
        row("node", &format!("node {n}"), [("tier_percent", tier), ("above_s", above), ("", String::new())])
    };
    let mut rows: Vec<_> = outcome.cluster.jobs.iter().map(job).collect();
    rows.extend(outcome.hpc.iter().map(hpc));
    rows.extend(outcome.buffers.iter().flat_map(|buffers| buffers.jobs.iter().enumerate()).map(steps));
    let read_gb = exact(outcome.cluster.served_bytes as f64 / GB);
    let written_gb = exact(outcome.written_bytes as f64 / GB);
    let evicted_gb = exact(outcome.cluster.evicted_bytes as f64 / GB);
    rows.extend(outcome.memory.iter().enumerate().map(node));
    rows.push(row(
        "pfs",
        "(all)",
        [("read_gb", read_gb), ("written_gb", written_gb), ("evicted_gb", evicted_gb)],
    ));
    rows
}

/// Mean time to drain a step of a job, in seconds.
fn drain_s(outcome: &Outcome, job: usize) -> Option<f64> {
    let drains = outcome.buffers.iter().flat_map(|buffers| &buffers.drains).filter(|drain| drain.job == job);
    let times: Vec<f64> = drains.map(|drain| (drain.to_ns - drain.from_ns) as f64 * 1e-9).collect();
    (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
}

/// Names of the columns of [`records`].
pub const RECORDS: [&str; 8] =
    ["kind", "name", "number", "slot", "begin_s", "granted_s", "end_s", "deadline_s"];

/// A row per task, I/O phase, step that was written, and step that was drained. Cells that do not
/// apply are empty.
pub fn records(outcome: &Outcome) -> Vec<Vec<String>> {
    let none = String::new;
    let mut rows = Vec::new();
    for job in &outcome.cluster.jobs {
        for (i, &(slot, begin_ns, end_ns)) in job.ran.iter().enumerate() {
            let cells = [slot.to_string(), seconds(begin_ns), none(), seconds(end_ns), none()];
            rows.push(record("task", &job.name, i, cells));
        }
    }
    for hpc in &outcome.hpc {
        for (i, p) in hpc.phases.iter().enumerate() {
            let [begin, end, deadline] = [p.begin_ns, p.end_ns, p.deadline_ns].map(seconds);
            rows.push(record("phase", &hpc.name, i, [none(), begin, none(), end, deadline]));
        }
    }
    let Some(buffers) = &outcome.buffers else { return rows };
    for job in &buffers.jobs {
        for (i, s) in job.steps.iter().enumerate() {
            let [due, granted, end] = [s.due_ns, s.granted_ns, s.end_ns].map(seconds);
            rows.push(record("step", &job.name, i, [none(), due, granted, end, none()]));
        }
    }
    for drain in &buffers.drains {
        let name = &buffers.jobs[drain.job].name;
        let cells = [none(), seconds(drain.from_ns), none(), seconds(drain.to_ns), none()];
        rows.push(record("drain", name, drain.index as usize, cells));
    }
    rows
}

/// Kinds of spans in a timeline, with their colours.
const KINDS: [(&str, &str); 5] = [
    ("I/O phase", "#0072b2"),
    ("late", "#7a0000"),
    ("waits", "#e69f00"),
    ("writes", "#56b4e9"),
    ("drains", "#117733"),
];
const LATE: usize = 1;
const WAITS: usize = 2;
const WRITES: usize = 3;
const DRAINS: usize = 4;

/// Rows of a timeline, as they are added.
#[derive(Default)]
struct Rows {
    names: Vec<String>,
    spans: Vec<Span>,
}

impl Rows {
    fn row(&mut self, name: String) {
        self.names.push(name);
    }

    /// A span of the last row.
    fn span(&mut self, kind: usize, (from_ns, to_ns): (u64, u64), tip: String) {
        let (from_s, to_s) = (from_ns as f64 * 1e-9, to_ns as f64 * 1e-9);
        self.spans.push(Span { row: self.names.len() - 1, from_s, to_s, kind, tip });
    }
}

/// Phases, steps and how they are drained, and what each node does, between two moments (seconds).
pub fn timeline(setup: &Setup, outcome: &Outcome, title: &str, window_s: (f64, f64)) -> Figure {
    let mut rows = Rows::default();
    for hpc in &outcome.hpc {
        rows.row(hpc.name.clone());
        for p in &hpc.phases {
            let tip = format!("{} % slower than alone", number(100.0 * p.slowdown()));
            rows.span(if p.missed() { LATE } else { 0 }, (p.begin_ns, p.end_ns), tip);
        }
    }
    if let Some(buffers) = &outcome.buffers {
        for (j, job) in buffers.jobs.iter().enumerate() {
            rows.row(job.name.clone());
            for (i, s) in job.steps.iter().enumerate() {
                rows.span(WAITS, (s.due_ns, s.granted_ns), format!("step {i} waits"));
                rows.span(WRITES, (s.granted_ns, s.end_ns), format!("step {i} is written"));
            }
            rows.row(format!("{}: drains", job.name));
            for d in buffers.drains.iter().filter(|d| d.job == j) {
                rows.span(DRAINS, (d.from_ns, d.to_ns), format!("step {}", d.index));
            }
        }
    }
    let Rows { mut names, spans } = rows;
    let (mut kinds, mut levels) = (KINDS.to_vec(), Vec::new());
    if setup.buffers.is_none() {
        // Kinds that only burst buffers have.
        kinds.truncate(WAITS);
    }
    if !outcome.cluster.jobs.is_empty() {
        let capacity = |memory: &memory::Outcome| {
            memory.points.iter().map(|p| (p.at_s, p.capacity_bytes as f64)).collect()
        };
        let capacities: Vec<Vec<(f64, f64)>> = outcome.memory.iter().map(capacity).collect();
        let (nodes, of_nodes) =
            cluster::levels(&setup.cluster, &outcome.cluster, &capacities, (names.len(), kinds.len()));
        names.extend(nodes);
        levels = of_nodes;
        kinds.extend(cluster::KINDS);
    }
    Timeline { title, rows: names, kinds, spans, levels, window_s }.figure()
}
