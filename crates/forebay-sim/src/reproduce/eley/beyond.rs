//! `forebay` against `eley` in every cell, with the distance of both to a lower bound.

use super::{ALLOWANCES, APPLICATIONS, Cell, Grid, HPC, Report, Result, cell};
use crate::colocate::lower_bound_s;
use crate::estimate::Estimate;
use crate::plot::bars::Bars;
use crate::report::{Record, number};

pub fn all(report: &mut Report, grid: &Grid) -> Result<()> {
    report.heading(3, "Beyond: the planner `forebay`");
    report.text(include_str!("beyond.md"));
    for (q, allowance) in ALLOWANCES.into_iter().enumerate() {
        level(report, grid, q, allowance)?;
    }
    direct_reads(report, grid)
}

/// The part of the gain that direct reads contribute, which `eley` does not have.
fn direct_reads(report: &mut Report, grid: &Grid) -> Result<()> {
    report.heading(4, "What direct reads in gaps are worth");
    report.text(
        "`eley` has no action by which tasks that wait between phases read what they lack by themselves. `eley-direct` is `eley` with it. \
         The last column is `forebay` without it: it takes direct reads to move one byte a second. Geometric means over 24 cells.",
    );
    let (mut rows, mut records) = (Vec::new(), Vec::new());
    for (q, allowance) in ALLOWANCES.into_iter().enumerate() {
        let mut ratios = [vec![], vec![], vec![]];
        for (h, a) in (0..HPC.len()).flat_map(|h| (0..APPLICATIONS.len()).map(move |a| (h, a))) {
            let eley_s = grid.eley[q][h][a].map_s();
            let mut without = cell("forebay", h, a, allowance);
            without.planner.direct.speed_bytes_per_s = 1.0;
            ratios[0].push(Cell::new("eley-direct", h, a, allowance)?.map_s() / eley_s);
            ratios[1].push(grid.forebay[q][h][a].map_s() / eley_s);
            ratios[2].push(Cell::of(without)?.map_s() / eley_s);
        }
        let percent = (100.0 * allowance).round() as u32;
        let [eley_direct, ours, without] = ratios.map(|ratios| Estimate::change_percent(&ratios).mean);
        rows.push([percent.into(), eley_direct, ours, without].map(number).to_vec());
        let reported = |what: &str, value: f64| {
            let id = format!("eley/{what}/{percent}");
            Record::reported(id, value, "% against eley")
        };
        records.push(reported("eley-direct/geomean", eley_direct));
        records.push(reported("forebay/geomean-without-direct-reads", without));
    }
    let header = [
        "deadlines (%)",
        "eley-direct / eley (%)",
        "forebay / eley (%)",
        "forebay without direct reads / eley (%)",
    ];
    report.table(&header, &rows);
    report.records(records);
    Ok(())
}

fn level(report: &mut Report, grid: &Grid, q: usize, allowance: f64) -> Result<()> {
    let percent = (100.0 * allowance).round() as u32;
    report.heading(4, &format!("Deadlines {percent} % above the time alone"));
    let (mut rows, mut gains, mut bounds, mut worse, mut missed) = (vec![], vec![], vec![], 0u32, 0);
    let (mut bars_gain, mut bars_bound) = (vec![vec![]; HPC.len()], vec![vec![]; HPC.len()]);
    for (h, (hpc_name, ..)) in HPC.into_iter().enumerate() {
        for a in 0..APPLICATIONS.len() {
            let cells = [&grid.full_delay[q][h][a], &grid.eley[q][h][a], &grid.forebay[q][h][a]];
            let [full_s, eley_s, ours_s] = cells.map(Cell::map_s);
            let bound_s = lower_bound_s(&cells[2].setup, 0);
            gains.push(ours_s / eley_s);
            bounds.push(bound_s / eley_s);
            // A microsecond allows for rounding to nanoseconds at every event.
            worse += u32::from(ours_s > eley_s + 1e-6);
            missed += cells[2].outcome.missed();
            let gain = 100.0 * (ours_s / eley_s - 1.0);
            bars_gain[h].push(gain);
            bars_bound[h].push(100.0 * (bound_s / eley_s - 1.0));
            rows.push(vec![
                hpc_name.into(),
                (a + 1).to_string(),
                number(full_s),
                number(eley_s),
                number(ours_s),
                number(gain),
                number(bound_s),
                number(100.0 * (ours_s / bound_s - 1.0)),
            ]);
        }
    }
    report.table(
        &[
            "HPC",
            "application",
            "full-delay (s)",
            "eley (s)",
            "forebay (s)",
            "forebay / eley (%)",
            "lower bound (s)",
            "forebay above it (%)",
        ],
        &rows,
    );
    let mut series: Vec<(String, Vec<f64>)> = Vec::new();
    for (h, (name, ..)) in HPC.into_iter().enumerate() {
        series.push((format!("{name}: forebay"), bars_gain[h].clone()));
        series.push((format!("{name}: bound"), bars_bound[h].clone()));
    }
    let svg = Bars {
        title: &format!("Map time against eley at {percent} %"),
        y_label: "change (%)",
        groups: (1..=APPLICATIONS.len()).map(|a| a.to_string()).collect(),
        series,
        marks: vec![],
    }
    .figure();
    report.figure(
        &format!("eley-forebay-{percent}.svg"),
        &svg,
        &format!("forebay and the lower bound against eley, {percent} %"),
    )?;
    let id = |what: &str| format!("eley/forebay/{what}/{percent}");
    let gain = Estimate::change_percent(&gains).mean;
    let bound = Estimate::change_percent(&bounds).mean;
    let mut records = vec![
        Record::checked(id("missed"), missed as f64, "phases of 240", "none", missed == 0),
        Record::checked(id("worse-than-eley"), f64::from(worse), "cells of 24", "none", worse == 0),
    ];
    // The planner's constants were chosen on these cells.
    let against = Record::checked(id("geomean"), gain, "% against eley", "below 0", gain < 0.0).fitted();
    records.push(against.note(format!("the lower bound itself is {} % below eley", number(-bound))));
    records.push(Record::reported(
        id("above-bound"),
        100.0 * ((1.0 + gain / 100.0) / (1.0 + bound / 100.0) - 1.0),
        "% above the bound (geometric mean)",
    ));
    report.records(records);
    Ok(())
}
