//! Batch queues with burst buffers: Kopanski and Rzadca, *Plan-based Job Scheduling for
//! Supercomputers with Shared Burst Buffers*, Euro-Par 2021 (arXiv 2109.00082), on jobs of the
//! shape of their log.

use std::path::Path;

use crate::batch::{Outcome, simulate};
use crate::error::Result;
use crate::estimate::Estimate;
use crate::kinds::set_policy;
use crate::parallel::{in_parallel, threads};
use crate::report::{Record, Report};
use crate::scenario::{File, Scenario};
use crate::trace::Trace;

const SEEDS: u64 = 5;
const POLICIES: [&str; 4] = ["fcfs-easy", "fcfs-bb", "sjf-bb", "plan-2"];
/// The policy that the paper compares with, and its plan.
const AGAINST: usize = 2;
const PLAN: usize = 3;
/// Tolerance, in points.
const POINTS: f64 = 3.0;

fn outcome(policy: &str, seed: u64) -> Result<Outcome> {
    let text = include_str!("../../../../scenarios/batch-queue.toml");
    let mut file = File::parse(Path::new("scenarios/batch-queue.toml"), text)?;
    set_policy(&mut file, policy)?;
    file.set("seed", &seed.to_string())?;
    match file.scenario()? {
        Scenario::Batch(setup) => simulate(&setup, &mut Trace::off()),
        _ => unreachable!("the scenario is of another kind"),
    }
}

/// Adds the part to the report.
///
/// # Errors
/// If a run does not end.
pub fn run(report: &mut Report) -> Result<()> {
    report.heading(2, "Batch queues with burst buffers");
    report.text(include_str!("batch.md"));
    let count = POLICIES.len() * SEEDS as usize;
    let one = |i: usize| outcome(POLICIES[i / SEEDS as usize], 1 + i as u64 % SEEDS);
    let all: Vec<Outcome> = in_parallel(count, threads(None), one).into_iter().collect::<Result<_>>()?;
    let of: Vec<&[Outcome]> = all.chunks(SEEDS as usize).collect();
    let mean = |policy: usize, value: fn(&Outcome) -> f64| {
        Estimate::of(&of[policy].iter().map(value).collect::<Vec<_>>())
    };
    let wait_h = |o: &Outcome| o.mean_wait_s / 3600.0;
    let row = |(policy, name): (usize, &&str)| {
        let percent = |value: fn(&Outcome) -> f64| format!("{:.1}", 100.0 * mean(policy, value).mean);
        let mut row = vec![(*name).to_owned()];
        row.extend(mean(policy, wait_h).cells(2));
        row.extend(mean(policy, |o| o.mean_slowdown).cells(2));
        row.extend([percent(|o| o.nodes_used), percent(|o| o.room_used)]);
        row
    };
    let header =
        ["policy", "wait (h)", "low", "high", "bounded slowdown", "low", "high", "nodes (%)", "room (%)"];
    report.table(&header, &POLICIES.iter().enumerate().map(row).collect::<Vec<_>>());
    let change = |policy: usize, value: fn(&Outcome) -> f64| {
        100.0 * (mean(policy, value).mean / mean(AGAINST, value).mean - 1.0)
    };
    let printed = |id: &str, paper: f64, value: fn(&Outcome) -> f64| {
        let ours = change(PLAN, value);
        let target = format!("within {POINTS} points of {paper}");
        let met = (ours - paper).abs() <= POINTS;
        let id = format!("batch/plan-2/{id}");
        Record::direction(id, ours, "% against sjf-bb", target, met).beside(paper).note("other jobs")
    };
    let worse = change(0, |o| o.mean_wait_s);
    report.records(vec![
        printed("wait", -20.0, |o| o.mean_wait_s),
        printed("slowdown", -27.0, |o| o.mean_slowdown),
        Record::direction("batch/fcfs-easy/wait", worse, "% against sjf-bb", "above 100", worse > 100.0)
            .note("EASY backfilling that reserves no room"),
    ]);
    Ok(())
}
