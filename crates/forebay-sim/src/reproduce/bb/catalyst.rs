//! Figures 5 and 10: three jobs of 24, 96 and 384 processes on Catalyst, which write to the same 8
//! nodes.
//!
//! A small job cannot saturate eight nodes: its clients bound it. One cap per job, as a fraction of
//! what the nodes provide together, is all that is fitted; every process writes the same amount.
//! Caps fitted on all figures show how far the model can follow them. Caps fitted on the
//! unscheduled jobs alone predict the scheduled ones.

use super::on;
use crate::burst::{JobOutcome, JobSpec, Setup};
use crate::error::Result;
use crate::plot::bars::{Bars, Printed};
use crate::report::{Record, Report, number};

/// Processes of the jobs.
const JOBS: [u64; 3] = [24, 96, 384];
const NAMES: [&str; 3] = ["j24p", "j96p", "j384p"];
/// What each job's clients can send, as a fraction of the nodes' bandwidth.
type Caps = [f64; 3];
/// The caps that minimise the greatest relative error of all figures.
const FITTED_ON_ALL: Caps = [0.281, 0.726, 0.782];
/// The same for the three unscheduled jobs.
const FITTED_ON_NS: Caps = [0.24, 0.64, 0.9];
/// Access, name, order of arrival, and the published values of each job in that order, and of the
/// sum.
type Case = (&'static str, &'static str, [usize; 3], [Option<f64>; 3], Option<f64>);
const CASES: [Case; 3] = [
    ("none", "ns", [0, 1, 2], [Some(5.15), Some(3.33), Some(1.2)], Some(2.02)),
    ("sys-sjf", "sjf", [0, 1, 2], [Some(1.05), Some(1.5), Some(1.26)], Some(1.28)),
    ("sys-fcfs", "fcfs", [2, 1, 0], [None, Some(4.4), Some(8.7)], None),
];
/// Bandwidth of a node; any number will do, since only ratios are compared.
const NODE_BYTES_PER_S: f64 = 1e9;
const NODES: u32 = 8;

/// I/O times of the jobs `which`, in the order in which they ask.
fn io_s(caps: &Caps, access: &str, which: &[usize]) -> Result<Vec<f64>> {
    let job = |&i: &usize| {
        let cap = caps[i] * f64::from(NODES) * NODE_BYTES_PER_S;
        JobSpec::one_step(0, JOBS[i] as f64, JOBS[i] * 1_000_000_000, Some(NODES), cap)
    };
    let jobs = which.iter().map(job).collect();
    let setup = Setup::plain(NODES, 1 << 50, NODE_BYTES_PER_S, "striped", access, jobs);
    let nodes = vec![(0..NODES).collect(); which.len()];
    Ok(on(setup, &nodes)?.jobs.iter().map(JobOutcome::io_s).collect())
}

fn alone_s(caps: &Caps) -> Result<Vec<f64>> {
    (0..3).map(|i| io_s(caps, "none", &[i]).map(|t| t[0])).collect()
}

/// A case's figures beside the published ones.
fn figures(caps: &Caps, prefix: &str, case: &Case) -> Result<Vec<Record>> {
    let (access, name, order, printed, printed_sum) = case;
    let alone = alone_s(caps)?;
    let times = io_s(caps, access, order)?;
    let beside = |what: &str, paper: f64, ours: f64| {
        let id = format!("bb/catalyst/{prefix}{name}/{what}");
        Record::print(id, paper, ours, "times as long as alone")
    };
    let jobs = order.iter().zip(&times).zip(printed);
    let mut records: Vec<Record> = jobs
        .filter_map(|((&i, time), paper)| paper.map(|paper| beside(NAMES[i], paper, time / alone[i])))
        .collect();
    let sum = times.iter().sum::<f64>() / alone.iter().sum::<f64>();
    records.extend(printed_sum.map(|paper| beside("sum", paper, sum)));
    Ok(records)
}

/// Adds the three jobs to the report.
pub fn three_jobs(report: &mut Report) -> Result<()> {
    report.heading(3, "Figures 5 and 10: three jobs on Catalyst");
    let list = |caps: &Caps| caps.map(number).join(", ");
    report.text(&format!(
        "Measured there on 8 nodes. One cap per job stands for its clients, as a part of what the nodes give together: {} if fitted on all \
         ten figures, {} if fitted on the three unscheduled jobs. The second set predicts the scheduled jobs (`predicted`): FCFS and SJF \
         were less unequal there than caps explain. Under FCFS the largest job comes first, and the smallest last.",
        list(&FITTED_ON_ALL),
        list(&FITTED_ON_NS)
    ));
    let mut records = Vec::new();
    for case in &CASES {
        records.extend(figures(&FITTED_ON_ALL, "", case)?.into_iter().map(Record::fitted));
    }
    for case in &CASES[1..] {
        records.extend(figures(&FITTED_ON_NS, "predicted/", case)?);
    }
    report.records(records);
    pairs(report, &alone_s(&FITTED_ON_ALL)?)
}

/// Figure 5 has pairs too, without figures in the text: what the same caps predict for them.
fn pairs(report: &mut Report, alone: &[f64]) -> Result<()> {
    let together: [(&str, &[usize]); 5] =
        [("none", &[]), ("with j24p", &[0]), ("with j96p", &[1]), ("with j384p", &[2]), ("all", &[0, 1, 2])];
    let mut series: Vec<(String, Vec<f64>)> = Vec::new();
    for (job, name) in NAMES.into_iter().enumerate() {
        let slowdown = |(_, others): &(&str, &[usize])| -> Result<f64> {
            if *others == [job] {
                return Ok(f64::NAN);
            }
            let mut which: Vec<usize> = others.iter().copied().filter(|&o| o != job).collect();
            which.push(job);
            Ok(io_s(&FITTED_ON_ALL, "none", &which)?[which.len() - 1] / alone[job])
        };
        series.push((name.into(), together.iter().map(slowdown).collect::<Result<_>>()?));
    }
    let mut records = Vec::new();
    for (name, slowdowns) in &series {
        let pairs = slowdowns[1..4].iter().copied().filter(|s| s.is_finite());
        let (least, most) = pairs.fold((f64::INFINITY, 0.0), |(l, m): (f64, f64), s| (l.min(s), m.max(s)));
        let in_between = least >= slowdowns[0] && most <= slowdowns[4];
        records.push(
            Record::direction(
                format!("bb/catalyst/pairs/{name}"),
                most,
                "times as long as alone, worse pair",
                "not below alone, nor above all three",
                in_between,
            )
            .note(format!("{} in the better pair; not printed", number(least))),
        );
    }
    let svg = Bars {
        title: "Three jobs on Catalyst, unscheduled",
        y_label: "times as long as alone",
        groups: together.iter().map(|t| t.0.to_string()).collect(),
        series,
        marks: vec![],
    };
    // All three jobs together, unscheduled.
    let printed =
        |(series, value): (usize, &Option<f64>)| value.map(|value| Printed { series, group: 4, value });
    let printed: Vec<Printed> = CASES[0].3.iter().enumerate().filter_map(printed).collect();
    let svg = svg.figure_beside(&printed);
    report.figure("bb-figure5.svg", &svg, "Slowdown beside none, one, and both of the others")?;
    report.records(records);
    Ok(())
}
