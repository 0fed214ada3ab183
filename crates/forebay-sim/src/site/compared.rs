//! What was recorded, beside the simulation of the scenario: how far to trust "what if".

use super::described::Described;
use super::recorded::Recorded;
use crate::table::Table;
use crate::world::Outcome;

/// Names of the columns.
pub const COLUMNS: [&str; 6] = ["kind", "name", "measure", "recorded", "simulated", "off_percent"];

/// How often agents are asked what they have read, in ns.
const SAMPLE_NS: u64 = 1_000_000_000;

/// A row per measure of each job, and two of the file system. What the log does not say is empty.
pub fn table(recorded: &Recorded, described: &Described, outcome: &Outcome) -> Table {
    let mut rows = Vec::new();
    for ((name, j, s), done) in described.jobs.iter().zip(&outcome.cluster.jobs) {
        let stage = &recorded.jobs[*j].stages[*s];
        let mut row =
            |measure, recorded, simulated| rows.push(cells("job", name, measure, recorded, simulated));
        let map_s = stage.end_ns().map(|end_ns| (end_ns - stage.ready_ns) as f64 * 1e-9);
        row("map_s", map_s, Some(done.map_ns as f64 * 1e-9).filter(|_| done.tasks_left == 0));
        row("tasks", Some(stage.done() as f64), Some(f64::from(done.tasks)));
    }
    for ((name, h), done) in described.hpc.iter().zip(&outcome.hpc) {
        let phases: Vec<_> = recorded.hpc[*h].phases.iter().filter(|phase| phase.end_ns.is_some()).collect();
        let mut row =
            |measure, recorded, simulated| rows.push(cells("hpc", name, measure, recorded, simulated));
        let took = phases.iter().filter_map(|phase| phase.took_ns()).sum::<u64>();
        let took_s = done.phases.iter().map(|p| p.end_ns - p.begin_ns).sum::<u64>();
        row("phases", Some(phases.len() as f64), Some(done.phases.len() as f64));
        row("phases_s", Some(took as f64 * 1e-9), Some(took_s as f64 * 1e-9));
        let late = phases.iter().filter(|phase| phase.is_late()).count();
        row("deadlines_missed", Some(late as f64), Some(done.missed() as f64));
    }
    let bytes = recorded
        .hpc
        .iter()
        .flat_map(|hpc| &hpc.phases)
        .filter(|phase| phase.end_ns.is_some())
        .map(|phase| phase.bytes);
    let phases_gb = bytes.sum::<Option<u64>>().filter(|bytes| *bytes > 0).map(|bytes| bytes as f64 * 1e-9);
    let mut row =
        |measure, recorded, simulated| rows.push(cells("pfs", "(all)", measure, recorded, simulated));
    if !described.hpc.is_empty() {
        row("phases_gb", phases_gb, Some(outcome.phase_bytes as f64 * 1e-9));
    }
    row("read_gb", read_gb(recorded, described.from_ns), Some(outcome.cluster.served_bytes as f64 * 1e-9));
    let prefetched = outcome.cluster.prefetched_bytes as f64 * 1e-9;
    row("prefetched_gb", Some(recorded.prefetched_bytes as f64 * 1e-9), Some(prefetched));
    Table::new(&COLUMNS, rows)
}

fn cells(
    kind: &str,
    name: &str,
    measure: &str,
    recorded: Option<f64>,
    simulated: Option<f64>,
) -> Vec<String> {
    let cell = |value: Option<f64>| match value {
        Some(value) if value.fract() == 0.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.6}"),
        None => String::new(),
    };
    let off = recorded.zip(simulated).filter(|(recorded, _)| *recorded > 0.0);
    let off = off.map_or(String::new(), |(recorded, simulated)| {
        format!("{:.1}", 100.0 * (simulated / recorded - 1.0))
    });
    vec![kind.into(), name.into(), measure.into(), cell(recorded), cell(simulated), off]
}

/// What agents read from a moment on. A sample covers the second before it, and holds until the
/// next one that differs.
fn read_gb(recorded: &Recorded, from_ns: u64) -> Option<f64> {
    let samples: Vec<&(u64, u64)> = recorded.reads.iter().filter(|(at_ns, _)| *at_ns > from_ns).collect();
    let until = samples.iter().skip(1).map(|(at_ns, _)| *at_ns);
    let last = samples.last().map(|(at_ns, _)| at_ns + SAMPLE_NS);
    let each = samples.iter().zip(until.chain(last));
    let gb =
        |((at_ns, rate), until_ns): (&&(u64, u64), u64)| *rate as f64 * (until_ns - at_ns) as f64 * 1e-18;
    (!samples.is_empty()).then(|| each.map(gb).sum())
}
