//! Figures 5 and 10: three jobs of 24, 96 and 384 processes on Catalyst, which write to the same 8
//! nodes.
//!
//! A small job cannot saturate eight nodes: its clients bound it. One cap per job, as a part of
//! what the nodes give together, is all that is fitted; every process writes the same amount.

use super::on;
use crate::burst::batch::{Job, Setup, lasting_leases};
use crate::error::Result;
use crate::plot::bars::Bars;
use crate::report::{Record, Report, number};

/// Processes, and what the clients can send as a part of the nodes' bandwidth: the caps that make
/// the greatest of the relative errors below least.
const JOBS: [(u64, f64); 3] = [(24, CAPS[0]), (96, CAPS[1]), (384, CAPS[2])];
const CAPS: [f64; 3] = [0.281, 0.726, 0.782];
/// Bandwidth of a node; any number will do, since only ratios are compared.
const NODE_BYTES_PER_S: f64 = 1e9;
const NODES: u32 = 8;

/// I/O times of the jobs `which`, in the order in which they ask.
fn io_s(access: &str, which: &[usize]) -> Result<Vec<f64>> {
    let job = |&i: &usize| Job {
        arrives_ns: 0,
        processes: JOBS[i].0 as f64,
        bytes: JOBS[i].0 * 1_000_000_000,
        nodes: Some(NODES),
        client_bytes_per_s: JOBS[i].1 * f64::from(NODES) * NODE_BYTES_PER_S,
    };
    let setup = Setup {
        nodes: NODES,
        node_bytes: 1 << 50,
        node_bytes_per_s: NODE_BYTES_PER_S,
        jobs: which.iter().map(job).collect(),
        allocation: "striped",
        access,
        config: lasting_leases(),
    };
    let nodes = vec![(0..NODES).collect(); which.len()];
    Ok(on(&setup, nodes)?.steps.iter().map(|s| s.io_s).collect())
}

/// Adds the three jobs to the report.
pub fn three_jobs(report: &mut Report) -> Result<()> {
    report.heading(3, "Figures 5 and 10: three jobs on Catalyst");
    report.text(&format!(
        "Measured there on 8 nodes. One cap per job stands for its clients: {}, {} and {} of what the nodes give together. Under \
         FCFS the largest job comes first, and the smallest last.",
        CAPS[0], CAPS[1], CAPS[2]
    ));
    let alone: Vec<f64> = (0..3).map(|i| io_s("none", &[i]).map(|t| t[0])).collect::<Result<_>>()?;
    let total: f64 = alone.iter().sum();
    let mut records = Vec::new();
    let names = ["j24p", "j96p", "j384p"];
    for (access, name, order, printed) in [
        ("none", "ns", [0, 1, 2], [Some(5.15), Some(3.33), Some(1.2)]),
        ("sys-sjf", "sjf", [0, 1, 2], [Some(1.05), Some(1.5), Some(1.26)]),
        ("sys-fcfs", "fcfs", [2, 1, 0], [None, Some(4.4), Some(8.7)]),
    ] {
        let times = io_s(access, &order)?;
        for ((&i, time), paper) in order.iter().zip(&times).zip(printed) {
            if let Some(paper) = paper {
                let id = format!("bb/catalyst/{name}/{}", names[i]);
                records.push(Record::within_percent(
                    id,
                    paper,
                    time / alone[i],
                    "times as long as alone",
                    15.0,
                ));
            }
        }
        if let Some(sum) = [("ns", 2.02), ("sjf", 1.28)].iter().find(|s| s.0 == name).map(|s| s.1) {
            let id = format!("bb/catalyst/{name}/sum");
            let ours = times.iter().sum::<f64>() / total;
            records.push(Record::within_percent(id, sum, ours, "times as long as alone", 15.0));
        }
    }
    report.records(records);
    pairs(report, &alone)
}

/// Figure 5 has pairs too, without figures in the text: what the same caps say of them.
fn pairs(report: &mut Report, alone: &[f64]) -> Result<()> {
    let together: [(&str, &[usize]); 5] =
        [("none", &[]), ("with j24p", &[0]), ("with j96p", &[1]), ("with j384p", &[2]), ("all", &[0, 1, 2])];
    let mut series: Vec<(String, Vec<f64>)> = Vec::new();
    let names = ["j24p", "j96p", "j384p"];
    for (job, name) in names.into_iter().enumerate() {
        let slowdown = |(_, others): &(&str, &[usize])| -> Result<f64> {
            if *others == [job] {
                return Ok(f64::NAN);
            }
            let mut which: Vec<usize> = others.iter().copied().filter(|&o| o != job).collect();
            which.push(job);
            Ok(io_s("none", &which)?[which.len() - 1] / alone[job])
        };
        series.push((name.into(), together.iter().map(slowdown).collect::<Result<_>>()?));
    }
    let mut records = Vec::new();
    for (name, slowdowns) in &series {
        let pairs = slowdowns[1..4].iter().copied().filter(|s| s.is_finite());
        let (least, most) = pairs.fold((f64::INFINITY, 0.0), |(l, m): (f64, f64), s| (l.min(s), m.max(s)));
        let in_between = least >= slowdowns[0] && most <= slowdowns[4];
        records.push(
            Record::checked(
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
    }
    .svg();
    report.figure("bb-figure5.svg", &svg, "Slowdown beside none, one, and both of the others")?;
    report.records(records);
    Ok(())
}
