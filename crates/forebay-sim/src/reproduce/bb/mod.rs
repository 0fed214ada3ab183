//! Shared burst buffers: *Managing I/O Interference in a Shared Burst Buffer System*, ICPP 2016.
//! Workloads W1 to W12, allocation, the jobs on Catalyst and on Trinity, and how far `coflow` goes
//! beyond.

use crate::burst::icpp::MIXES;
use crate::burst::{Outcome, Setup, simulate};
use crate::error::{Error, Result};
use crate::estimate::Estimate;
use crate::parallel::{in_parallel, threads};
use crate::plot::bars::Bars;
use crate::report::{Record, Report, number};
use crate::trace::Trace;

mod catalyst;
mod online;
mod sharing;
mod stripes;
mod trinity;
pub mod workloads;

use workloads::setup;

/// Random orders of arrival that each workload is averaged over.
const ORDERS: u64 = 200;
/// (allocation, access) in the order of [`Means::aggregate_s`].
const RUNS: [(&str, &str); 7] = [
    ("striped", "none"),
    ("striped", "sys-fcfs"),
    ("striped", "sys-sjf"),
    ("striped", "sa-fcfs"),
    ("striped", "sa-sjf"),
    ("full", "sa-sjf"),
    ("striped", "coflow"),
];
const SA_SJF: usize = 4;
const FULL: usize = 5;
const COFLOW: usize = 6;

/// Change of the aggregate against NS in percent, from an independent simulation of the same model:
/// SJF for W1 to W6, SA-SJF for W7 to W12.
const INDEPENDENT: [f64; 12] =
    [-26.0, -36.0, -30.0, -45.0, -48.0, -48.0, -30.0, -35.0, -27.0, -30.0, -27.0, -37.0];

/// Results over all orders, in seconds.
#[derive(Clone, Default)]
struct Means {
    /// Aggregate of each run, in each order.
    aggregate_s: [Vec<f64>; RUNS.len()],
}

impl Means {
    fn mean_s(&self, run: usize) -> f64 {
        Estimate::of(&self.aggregate_s[run]).mean
    }

    /// Change of the mean against NS in percent.
    fn change(&self, run: usize) -> f64 {
        self.estimate(run).mean
    }

    /// The same with its interval over the orders.
    fn estimate(&self, run: usize) -> Estimate {
        Estimate::change_of_sums_percent(&self.aggregate_s[run], &self.aggregate_s[0])
    }

    fn against(&self, run: usize, other: usize) -> f64 {
        100.0 * (self.mean_s(run) / self.mean_s(other) - 1.0)
    }
}

/// Adds the burst buffer's part to the report.
///
/// # Errors
/// If a file of the report cannot be written.
pub fn run(report: &mut Report) -> Result<()> {
    report.heading(2, "Shared burst buffers: allocation and access");
    report.text(include_str!("intro.md"));
    let means = all_means()?;
    full_stripe(report, &means)?;
    partial_stripe(report, &means)?;
    beyond(report, &means)?;
    online::all(report)?;
    stripes::efficiency(report)?;
    catalyst::three_jobs(report)?;
    sharing::instances(report)?;
    trinity::three_jobs(report)
}

/// Runs all workloads, in as many threads as there are cores; each run is independent, so the
/// result does not depend on that.
fn all_means() -> Result<Vec<Means>> {
    in_parallel(MIXES.len(), threads(None), workload).into_iter().collect()
}

/// W(w + 1) over all orders.
fn workload(w: usize) -> Result<Means> {
    let mut means = Means::default();
    for order in 0..ORDERS {
        let one = |run: usize| -> Result<Outcome> {
            let (allocation, access) = RUNS[run];
            outcome(&setup(&MIXES[w], order, allocation, access))
        };
        for (run, all) in means.aggregate_s.iter_mut().enumerate() {
            all.push(one(run)?.aggregate_s());
        }
    }
    Ok(means)
}

/// The steps of W1 in seconds, by hand: three jobs of 32, 64 and 64 GB per node.
fn w1(report: &mut Report, means: &Means) {
    report.records(vec![
        by_hand("bb/w1/ns-seconds", 77.6, means.mean_s(0)),
        by_hand("bb/w1/sjf-seconds", 57.6, means.mean_s(2)).note("6.4 + 19.2 + 32 s; no order is better"),
    ]);
}

fn by_hand(id: &str, want_s: f64, ours_s: f64) -> Record {
    Record::model(
        id,
        ours_s,
        "s",
        format!("{want_s} s by hand, within 0.05 s"),
        (ours_s - want_s).abs() <= 0.05,
    )
}

fn full_stripe(report: &mut Report, means: &[Means]) -> Result<()> {
    report.heading(3, "Figure 11: jobs on all nodes");
    figure(report, "bb-figure11.svg", "Aggregate I/O time, full stripe", 0..6, means, &[0, 1, 2])?;
    w1(report, &means[0]);
    report.text(include_str!("w1.md"));
    let mut records = Vec::new();
    for w in 0..6 {
        let (id, sjf) = (format!("bb/w{}/sjf", w + 1), means[w].estimate(2));
        records.push(match w {
            0 => Record::print(id, -62.0, sjf.mean, "%")
                .note("the printed figure cannot come from the model, see above"),
            _ => independent(id, &sjf, INDEPENDENT[w]),
        });
        let fcfs = means[w].change(1);
        let met = fcfs < 0.0 && fcfs >= means[w].change(2);
        records.push(Record::direction(
            format!("bb/w{}/fcfs", w + 1),
            fcfs,
            "%",
            "better than NS, SJF better still",
            met,
        ));
    }
    report.records(records);
    Ok(())
}

/// Judged by the mean: the interval of the other simulation is not known.
fn independent(id: String, ours: &Estimate, theirs: f64) -> Record {
    let target = format!("mean within 1 point of an independent simulation, {theirs} %");
    Record::model(id, ours.mean, "%", target, (ours.mean - theirs).abs() <= 1.0).over(ours)
}

fn partial_stripe(report: &mut Report, means: &[Means]) -> Result<()> {
    report.heading(3, "Figure 12: jobs on a part of the nodes");
    figure(report, "bb-figure12.svg", "Aggregate I/O time, partial stripe", 6..12, means, &[0, 1, 2, 3, 4])?;
    let mut records = Vec::new();
    for w in 6..12 {
        let (id, sjf) = (format!("bb/w{}/sa-sjf", w + 1), means[w].estimate(SA_SJF));
        records.push(match w {
            7 => Record::print(id, -36.0, sjf.mean, "%").over(&sjf),
            _ => independent(id, &sjf, INDEPENDENT[w]),
        });
        let fcfs = means[w].change(3);
        records.push(Record::direction(
            format!("bb/w{}/sa-fcfs", w + 1),
            fcfs,
            "%",
            "between -22 and -29 % in an independent simulation; within a point",
            (-30.0..=-21.0).contains(&fcfs),
        ));
        for (run, name) in [(1, "sys-fcfs"), (2, "sys-sjf")] {
            let change = means[w].change(run);
            let id = format!("bb/w{}/{name}", w + 1);
            records.push(Record::direction(id, change, "%", "worse than NS", change > 0.0));
        }
    }
    report.records(records);
    Ok(())
}

fn beyond(report: &mut Report, means: &[Means]) -> Result<()> {
    report.heading(3, "Beyond: `coflow`, and all nodes for every job");
    report.text("On `full`, every job has all nodes; the clients of these jobs limit nothing.");
    figure(
        report,
        "bb-coflow.svg",
        "Aggregate I/O time, partial stripe",
        6..12,
        means,
        &[SA_SJF, COFLOW, FULL],
    )?;
    let mut records: Vec<Record> = means.iter().enumerate().map(|(w, m)| coflow(w, m)).collect();
    let full = means[6..].iter().map(|m| m.against(FULL, SA_SJF)).sum::<f64>() / 6.0;
    let unit = "% against SA-SJF on round robin, mean of W7-W12";
    records.push(Record::reported("bb/full-sa-sjf", full, unit));
    report.records(records);
    Ok(())
}

/// `coflow` on W(w + 1). Where all jobs use all nodes, shortest first is optimal, which shares
/// cannot reach.
fn coflow(w: usize, means: &Means) -> Record {
    let change = means.change(COFLOW);
    let turns = if w < 6 { 2 } else { SA_SJF };
    let id = format!("bb/w{}/coflow", w + 1);
    let record = match w < 6 {
        true => Record::reported(id, change, "%"),
        false => Record::checked(id, change, "%", "not above SA-SJF, mean", change <= means.change(SA_SJF)),
    };
    record.note(format!("{} % against {}", number(means.against(COFLOW, turns)), RUNS[turns].1))
}

fn figure(
    report: &mut Report,
    file: &str,
    title: &str,
    range: std::ops::Range<usize>,
    means: &[Means],
    runs: &[usize],
) -> Result<()> {
    let name = |r: usize| match RUNS[r] {
        ("striped", "none") => "NS".to_string(),
        ("striped", access) => access.to_string(),
        (allocation, access) => format!("{access} on {allocation}"),
    };
    let of = |r: usize| means[range.clone()].iter().map(|m| m.mean_s(r)).collect();
    let svg = Bars {
        title,
        y_label: "aggregate I/O time (s)",
        groups: range.clone().map(|w| format!("W{}", w + 1)).collect(),
        series: runs.iter().map(|&r| (name(r), of(r))).collect(),
        marks: vec![],
    }
    .figure();
    report.figure(file, &svg, &format!("{title}, mean of {ORDERS} orders of arrival"))
}

/// The outcome of jobs that all have nodes.
fn outcome(setup: &Setup) -> Result<Outcome> {
    let outcome = simulate(setup, &mut Trace::off())?;
    let Some(job) = outcome.jobs.iter().position(|job| job.without_nodes) else { return Ok(outcome) };
    let allocation = &setup.allocation;
    Err(Error::Usage(format!("job 'job {job}' never got nodes (allocation '{allocation}')")))
}

/// The same with the jobs on given nodes; for parts that choose them by hand.
fn on(mut setup: Setup, nodes: &[Vec<u32>]) -> Result<Outcome> {
    setup.jobs.iter_mut().zip(nodes).for_each(|(job, nodes)| job.on = Some(nodes.clone()));
    outcome(&setup)
}
