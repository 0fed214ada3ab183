//! Steps that arrive over time: the case for bandwidth shares and patience, which a batch has no
//! use for.
//!
//! Nine in ten steps are short, on 8 to 32 nodes; one is long, on 64. They arrive at random moments
//! (Poisson) and keep the nodes busy for about half of the time.

use forebay_model::rng::Rng;

use super::outcome;
use crate::burst::{JobSpec, Setup};
use crate::error::Result;
use crate::estimate::Estimate;
use crate::report::{Record, Report, number};

const NODES: u32 = 128;
const NODE_BYTES_PER_S: f64 = 5e9;
const STEPS: usize = 600;
const SEEDS: u64 = 8;
/// Mean time between arrivals.
const GAP_S: f64 = 10.0;
/// Other gaps, with which nodes are busy for three quarters and for a quarter of the time.
const OTHER_GAPS_S: [f64; 2] = [6.5, 20.0];
/// The longest that a step takes alone.
const LONGEST_STEP_S: f64 = 120.0;
/// Patience of the last column.
const PATIENCE_S: u64 = 300;

fn jobs(seed: u64, gap_s: f64) -> Vec<JobSpec> {
    let mut rng = Rng::new(seed).fork(1);
    let mut now_s = 0.0;
    let mut job = || {
        now_s += gap_s * rng.exponential();
        let (nodes, seconds) = match rng.below(10) {
            0 => (64, LONGEST_STEP_S * (0.5 + 0.5 * rng.unit())),
            _ => (8 << rng.below(3), 1.0 + 4.0 * rng.unit()),
        };
        let bytes = (seconds * NODE_BYTES_PER_S * f64::from(nodes)) as u64;
        let (arrives_ns, processes) = ((now_s * 1e9) as u64, 64.0 * f64::from(nodes));
        JobSpec::one_step(arrives_ns, processes, bytes, Some(nodes), f64::INFINITY)
    };
    (0..STEPS).map(|_| job()).collect()
}

/// What a policy makes of all seeds, in seconds.
#[derive(Default)]
struct Measured {
    /// Mean I/O time of each seed.
    io_s: Vec<f64>,
    longest_wait_s: f64,
    longest_io_s: f64,
}

fn measure(access: &str, patience_ns: u64, gap_s: f64) -> Result<Measured> {
    let mut made = Measured::default();
    for seed in 0..SEEDS {
        let mut setup = Setup::plain(NODES, 1 << 60, NODE_BYTES_PER_S, "striped", access, jobs(seed, gap_s));
        setup.config.patience_ns = patience_ns;
        let outcome = outcome(&setup)?;
        made.io_s.push(outcome.aggregate_s() / STEPS as f64);
        for step in outcome.jobs.iter().flat_map(|job| &job.steps) {
            made.longest_wait_s = made.longest_wait_s.max(step.wait_s());
            made.longest_io_s = made.longest_io_s.max(step.io_s());
        }
    }
    Ok(made)
}

/// Adds the steps that arrive over time to the report.
pub fn all(report: &mut Report) -> Result<()> {
    let never = u64::MAX;
    let patience_ns = PATIENCE_S * 1_000_000_000;
    let mut rows = Vec::new();
    let mut results = Vec::new();
    for (access, patience_ns, name) in [
        ("none", never, "NS"),
        ("sa-fcfs", never, "SA-FCFS"),
        ("sa-sjf", never, "SA-SJF"),
        ("coflow", never, "coflow"),
        ("coflow", patience_ns, "coflow with patience"),
    ] {
        let made = measure(access, patience_ns, GAP_S)?;
        let times_s = [Estimate::of(&made.io_s).mean, made.longest_wait_s, made.longest_io_s];
        rows.push([vec![name.into()], times_s.map(number).to_vec()].concat());
        results.push(made);
    }
    let against = |i: usize| Estimate::change_of_sums_percent(&results[i].io_s, &results[2].io_s);
    let shared = against(4);
    let sjf = &results[2];
    report.heading(3, "Beyond: steps that arrive over time");
    report.text(&format!(
        "{STEPS} steps, {SEEDS} times; nine of ten short (1 to 5 s on 8 to 32 of {NODES} nodes), one long (60 to 120 s on 64). \
         `coflow` with patience ({PATIENCE_S} s here) puts a step that has waited so long before all others; these use what it cannot.",
    ));
    report.table(&["policy", "mean I/O time (s)", "longest wait (s)", "longest I/O time (s)"], &rows);
    report.records(vec![
        Record::checked(
            "bb/online/coflow-patience",
            shared.mean,
            "% mean I/O time against SA-SJF",
            "the interval is below 0",
            shared.below(0.0),
        )
        .over(&shared),
        Record::checked(
            "bb/online/coflow-patience-longest",
            results[4].longest_io_s,
            "s, longest I/O time with patience",
            format!("at most SA-SJF's {} s", number(sjf.longest_io_s)),
            results[4].longest_io_s <= sjf.longest_io_s,
        ),
    ]);
    report.text("Patience where steps arrive at other intervals:");
    let others = OTHER_GAPS_S.into_iter().map(patience_at).collect::<Result<Vec<_>>>()?;
    report.records(others.concat());
    Ok(())
}

/// What patience costs at another interval.
fn patience_at(gap_s: f64) -> Result<Vec<Record>> {
    let patience_ns = PATIENCE_S * 1_000_000_000;
    let sjf = measure("sa-sjf", u64::MAX, gap_s)?;
    let shared = measure("coflow", patience_ns, gap_s)?;
    let change = Estimate::change_of_sums_percent(&shared.io_s, &sjf.io_s);
    let id = |what: &str| format!("bb/online/gap-{gap_s}/{what}");
    let unit = "% mean I/O time against SA-SJF";
    Ok(vec![
        Record::checked(
            id("coflow-patience"),
            change.mean,
            unit,
            "the interval is below 0",
            change.below(0.0),
        )
        .over(&change),
        Record::checked(
            id("coflow-patience-longest"),
            shared.longest_io_s,
            "s, longest I/O time with patience",
            format!("at most SA-SJF's {} s", number(sjf.longest_io_s)),
            shared.longest_io_s <= sjf.longest_io_s,
        ),
    ])
}
