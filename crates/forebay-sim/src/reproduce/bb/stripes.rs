//! Figure 3: what an allocation is worth to a job by itself, and Figure 4: several instances of one
//! job.

use super::on;
use crate::burst::batch::{Job, Setup, allocate, lasting_leases, simulate};
use crate::burst::icpp::MB;
use crate::error::Result;
use crate::plot::bars::{Bars, Printed};
use crate::report::{Record, Report};
use crate::trace::Trace;

/// Trinity: 576 nodes of 6 TB and 5 GB/s, as a vendor counts.
fn trinity<'a>(jobs: Vec<Job>, allocation: &'a str) -> Setup<'a> {
    Setup {
        nodes: 576,
        node_bytes: 6_000_000_000_000,
        node_bytes_per_s: 5e9,
        jobs,
        allocation,
        access: "none",
        config: lasting_leases(),
    }
}

fn job(processes: u64, mb: u64) -> Job {
    Job {
        arrives_ns: 0,
        processes: processes as f64,
        bytes: processes * mb * MB,
        nodes: None,
        client_bytes_per_s: f64::INFINITY,
    }
}

/// Printed for 32k processes under 1X, in percent.
const PRINTED_1X: f64 = 76.0;

/// Seconds of one job's write.
fn io_s(allocation: &str, processes: u64) -> Result<f64> {
    let outcome = simulate(&trinity(vec![job(processes, 512)], allocation), &mut Trace::off())?;
    Ok(outcome.steps[0].io_s)
}

/// Part of the time that a job computes which writes once an hour, in percent.
fn efficiency_percent(processes: u64, allocation: &str) -> Result<f64> {
    Ok(100.0 * 3600.0 / (3600.0 + io_s(allocation, processes)?))
}

pub fn efficiency(report: &mut Report) -> Result<()> {
    report.heading(3, "Figure 3: efficiency under 1X, 2X and full allocation");
    report.text(
        "One job on Trinity that writes 512 MB (binary) per process once an hour; nodes have 6 TB and 5 GB/s (decimal). \
         With decimal megabytes too, 1X comes to 76.3 %.",
    );
    let sizes = [4u64, 8, 16, 32];
    let mut series = Vec::new();
    for allocation in ["1x", "2x", "full"] {
        let values =
            sizes.iter().map(|k| efficiency_percent(k * 1024, allocation)).collect::<Result<Vec<_>>>()?;
        series.push((allocation.to_string(), values));
    }
    let at_32k = |i: usize| series[i].1[3];
    let records = vec![
        Record::print("bb/efficiency/1x", PRINTED_1X, at_32k(0), "%"),
        Record::direction("bb/efficiency/2x", at_32k(1), "%", "above 85 %, as printed", at_32k(1) > 85.0)
            .beside(85.0),
        Record::direction("bb/efficiency/full", at_32k(2), "%", "above 95 %, as printed", at_32k(2) > 95.0)
            .beside(95.0),
        Record::print(
            "bb/efficiency/2x-of-1x",
            0.5,
            io_s("2x", 8192)? / io_s("1x", 8192)?,
            "of the I/O time",
        )
        .note("8k processes"),
    ];
    let svg = Bars {
        title: "Efficiency of a job that writes once an hour",
        y_label: "computing (%)",
        groups: sizes.iter().map(|k| format!("{k}k")).collect(),
        series,
        marks: vec![],
    }
    .figure_beside(&[Printed { series: 0, group: 3, value: PRINTED_1X }]);
    report.figure("bb-figure3b.svg", &svg, "Efficiency over the number of processes")?;
    report.records(records);
    instances(report)
}

fn instances(report: &mut Report) -> Result<()> {
    report.heading(3, "Figure 4: n instances of one job");
    let mut records = Vec::new();
    for n in [2usize, 4] {
        let setup = trinity(vec![job(4096, 512); n], "full");
        let nodes = allocate(&setup)?;
        let together = on(&setup, nodes.clone())?.steps[0].io_s;
        let alone = on(&trinity(vec![job(4096, 512)], "full"), nodes[..1].to_vec())?.steps[0].io_s;
        let id = format!("bb/instances/{n}");
        let (ours, want, unit) = (together / alone, n as f64, "times as long as alone");
        records.push(match n {
            2 => Record::print(id, want, ours, unit),
            _ => Record::model(id, ours, unit, format!("{n}, within 1 %"), (ours / want - 1.0).abs() <= 0.01),
        });
    }
    report.records(records);
    Ok(())
}
