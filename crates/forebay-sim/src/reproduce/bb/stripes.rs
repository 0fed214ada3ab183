//! Figure 3: what an allocation is worth to a job by itself, and Figure 4: several instances of one
//! job.

use super::outcome;
use crate::burst::icpp::MB;
use crate::burst::{JobSpec, Setup};
use crate::error::Result;
use crate::plot::bars::{Bars, Printed};
use crate::report::{Record, Report};

/// I/O time in seconds of the first of `count` equal jobs that write 512 MB per process on Trinity:
/// 576 nodes of 6 TB and 5 GB/s, in decimal units.
fn io_s(allocation: &str, processes: u64, count: usize) -> Result<f64> {
    let job = JobSpec::one_step(0, processes as f64, processes * 512 * MB, None, f64::INFINITY);
    let setup = Setup::plain(576, 6_000_000_000_000, 5e9, allocation, "none", vec![job; count]);
    Ok(outcome(&setup)?.jobs[0].io_s())
}

/// The paper's efficiency for 32k processes under 1X, in percent.
const PRINTED_1X: f64 = 76.0;

/// Percentage of time that a job which writes once an hour spends computing.
fn efficiency_percent(processes: u64, allocation: &str) -> Result<f64> {
    Ok(100.0 * 3600.0 / (3600.0 + io_s(allocation, processes, 1)?))
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
            io_s("2x", 8192, 1)? / io_s("1x", 8192, 1)?,
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
    report.figure("bb-figure3b.svg", &svg, "Efficiency against the number of processes")?;
    report.records(records);
    instances(report)
}

fn instances(report: &mut Report) -> Result<()> {
    report.heading(3, "Figure 4: n instances of one job");
    let mut records = Vec::new();
    for n in [2usize, 4] {
        let id = format!("bb/instances/{n}");
        let ours = io_s("full", 4096, n)? / io_s("full", 4096, 1)?;
        let (want, unit) = (n as f64, "times as long as alone");
        records.push(match n {
            2 => Record::print(id, want, ours, unit),
            _ => Record::model(id, ours, unit, format!("{n}, within 1 %"), (ours / want - 1.0).abs() <= 0.01),
        });
    }
    report.records(records);
    Ok(())
}
