//! Figure 6: instances of one job of 192 processes that share none, some or all of their nodes.
//!
//! The figure's sizes are not in the text; two nodes per instance are assumed. It makes no
//! difference here: a step ends when the last of its nodes has its data, so one shared node costs
//! as much as all.

use super::on;
use crate::burst::{JobSpec, Setup};
use crate::error::Result;
use crate::report::{Record, Report};

/// Its name, the nodes of each instance, and which of them were disturbed.
type Case = (&'static str, &'static [&'static [u32]], &'static [bool]);

/// How much longer than alone each instance takes, on the given nodes.
fn slowdowns(access: &str, nodes: &[Vec<u32>]) -> Result<Vec<f64>> {
    let bytes = 192 * 1_000_000_000;
    let job = JobSpec::one_step(0, 192.0, bytes, Some(2), f64::INFINITY);
    let setup = Setup::plain(6, 1 << 50, 1e9, "striped", access, vec![job; nodes.len()]);
    let alone_s = bytes as f64 / 2e9;
    Ok(on(setup, nodes)?.jobs.iter().map(|job| job.io_s() / alone_s).collect())
}

/// Adds Figure 6 to the report.
pub fn instances(report: &mut Report) -> Result<()> {
    report.heading(3, "Figure 6: instances that share some of their nodes");
    report.text(
        "Measured on Catalyst; the text has no figures, but says who was disturbed: both of two that share a node, the second \
         and third of three, and nobody who shares none. Two nodes an instance are assumed. In the model one shared node costs \
         as much as two, for a step ends with its last node: so a scheduler has to look at nodes one by one.",
    );
    let cases: [Case; 4] = [
        ("2ins-noshare", &[&[0, 1], &[2, 3]], &[false, false]),
        ("2ins-1share", &[&[0, 1], &[1, 2]], &[true, true]),
        ("2ins-allshare", &[&[0, 1], &[0, 1]], &[true, true]),
        ("3ins-mixshare", &[&[0, 1], &[2, 3], &[3, 4]], &[false, true, true]),
    ];
    let mut records = Vec::new();
    for (name, nodes, disturbed) in cases {
        let nodes: Vec<Vec<u32>> = nodes.iter().map(|n| n.to_vec()).collect();
        for (i, (slowdown, &disturbed)) in slowdowns("none", &nodes)?.iter().zip(disturbed).enumerate() {
            let id = format!("bb/sharing/{name}/{}", i + 1);
            let (target, met) = match disturbed {
                true => ("twice as long, within 1 %", (slowdown / 2.0 - 1.0).abs() < 0.01),
                false => ("as long as alone, within 1 %", (slowdown - 1.0).abs() < 0.01),
            };
            records.push(Record::model(id, *slowdown, "times as long as alone", target, met));
        }
        // An instance that shares nothing does not have to wait.
        let scheduled: f64 = slowdowns("sa-fcfs", &nodes)?.iter().sum();
        let unscheduled: f64 = slowdowns("none", &nodes)?.iter().sum();
        records.push(Record::direction(
            format!("bb/sharing/{name}/sa-fcfs"),
            scheduled / unscheduled,
            "of the sum without scheduling",
            if disturbed.contains(&true) { "below 1" } else { "1" },
            if disturbed.contains(&true) { scheduled < unscheduled } else { scheduled == unscheduled },
        ));
    }
    report.records(records);
    Ok(())
}
