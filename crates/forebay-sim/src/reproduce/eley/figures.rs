//! Figures 5 to 8.

use super::{ALLOWANCES, APPLICATIONS, Cell, Grid, HPC, Report, Result, over_hpc};
use crate::plot::bars::{Bars, Printed};
use crate::report::Record;

/// Published slowdowns of T1 beside application 8, in percent.
pub(super) const T1_8_NAIVE: f64 = 63.0;
pub(super) const T1_8_NO_ACTION: f64 = 26.0;
/// Published changes of application 2's map time under Eley at 5 and 15 %, in percent.
const APP_2: [f64; 2] = [-19.0, -30.0];

fn app_names() -> Vec<String> {
    (1..=APPLICATIONS.len()).map(|a| a.to_string()).collect()
}

fn percent(allowance: f64) -> u32 {
    (100.0 * allowance).round() as u32
}

pub fn all(report: &mut Report, grid: &Grid) -> Result<()> {
    figure5(report, grid)?;
    figure6(report, grid)?;
    figure7(report, grid)?;
    figure8(report, grid)
}

/// Slowdown of HPC applications.
fn figure5(report: &mut Report, grid: &Grid) -> Result<()> {
    report.heading(3, "Figure 5: slowdown of the HPC applications");
    for (h, (name, ..)) in HPC.into_iter().enumerate() {
        let series = |plane: &[Vec<Cell>]| plane[h].iter().map(Cell::hpc_slowdown_percent).collect();
        let svg = Bars {
            title: &format!("Slowdown of {name}"),
            y_label: "slowdown (%)",
            groups: app_names(),
            series: vec![
                ("NaiveBB".into(), series(&grid.naive)),
                ("NoAction".into(), series(&grid.no_action)),
            ],
            marks: vec![],
        };
        // The text gives the worst cell: T1 beside application 8.
        let printed = |series, value| Printed { series, group: 7, value };
        let printed = if h == 0 { vec![printed(0, T1_8_NAIVE), printed(1, T1_8_NO_ACTION)] } else { vec![] };
        let svg = svg.figure_beside(&printed);
        let file = format!("eley-figure5-{}.svg", name.to_lowercase());
        report.figure(&file, &svg, &format!("Slowdown of {name} beside each application"))?;
    }
    let less = (0..HPC.len())
        .flat_map(|h| (0..APPLICATIONS.len()).map(move |a| (h, a)))
        .filter(|&(h, a)| {
            grid.no_action[h][a].hpc_slowdown_percent() > grid.naive[h][a].hpc_slowdown_percent() + 1e-9
        })
        .count() as f64;
    report.records(vec![Record::direction(
        "eley/figure5/no-action-worse",
        less,
        "cells",
        "NoAction slows no HPC application more than NaiveBB does, in 24 cells",
        less == 0.0,
    )]);
    Ok(())
}

/// Slowdown of Big Data applications against the same policy without the HPC application.
fn figure6(report: &mut Report, grid: &Grid) -> Result<()> {
    report.heading(3, "Figure 6: slowdown of the Big Data applications");
    let alone = |cell: &Cell| -> Result<f64> {
        let mut setup = cell.setup.clone();
        setup.hpc.clear();
        let outcome = crate::colocate::simulate(&setup, &mut crate::trace::Trace::off())?;
        Ok(outcome.jobs[0].map_ns as f64 * 1e-9)
    };
    let (mut reductions, app) = (Vec::new(), 2);
    for (h, (name, ..)) in HPC.into_iter().enumerate() {
        let series = |plane: &[Vec<Cell>]| -> Result<Vec<f64>> {
            plane[h].iter().map(|c| Ok(100.0 * (c.map_s() / alone(c)? - 1.0))).collect()
        };
        let (naive, no_action) = (series(&grid.naive)?, series(&grid.no_action)?);
        reductions.push(100.0 * (1.0 - no_action[app] / naive[app]));
        let svg = Bars {
            title: &format!("Slowdown of the applications beside {name}"),
            y_label: "slowdown (%)",
            groups: app_names(),
            series: vec![("NaiveBB".into(), naive), ("NoAction".into(), no_action)],
            marks: vec![],
        }
        .figure();
        let file = format!("eley-figure6-{}.svg", name.to_lowercase());
        report.figure(&file, &svg, &format!("Slowdown of each application beside {name}"))?;
    }
    let ours = reductions.iter().sum::<f64>() / reductions.len() as f64;
    let note = "reduction of application 3's slowdown by NoAction, mean over the HPC applications";
    report.records(vec![Record::print("eley/figure6/reduction/3", 58.0, ours, "%").note(note)]);
    Ok(())
}

/// Cost of the Big Data applications, and deadlines of the HPC applications.
fn figure7(report: &mut Report, grid: &Grid) -> Result<()> {
    report.heading(3, "Figure 7: Eley at three QoS levels");
    let cost = |q: usize, a: usize| over_hpc(&grid.eley[q], a, |c| c.outcome.jobs[0].mean_cost_s());
    let label = |q: usize| format!("{} %", percent(ALLOWANCES[q]));
    let svg = Bars {
        title: "(a) Cost of the Big Data applications",
        y_label: "mean cost of a wave (s)",
        groups: app_names(),
        series: (0..3).map(|q| (label(q), (0..8).map(|a| cost(q, a)).collect())).collect(),
        marks: vec![],
    }
    .figure();
    report.figure("eley-figure7a.svg", &svg, "Mean cost of a wave, over the three HPC applications")?;
    let mut records = Vec::new();
    let mut means = Vec::new();
    for (q, allowance) in ALLOWANCES.into_iter().enumerate() {
        let missed: usize = grid.eley[q].iter().flatten().map(|c| c.outcome.missed()).sum();
        let id = format!("eley/figure7/missed/{}", percent(allowance));
        records.push(Record::direction(id, missed as f64, "phases of 240", "none", missed == 0));
        means.push((0..8).map(|a| cost(q, a)).sum::<f64>() / 8.0);
    }
    for (q, allowance) in ALLOWANCES.into_iter().enumerate() {
        let id = format!("eley/figure7/mean-cost/{}", percent(allowance));
        records.push(match q {
            0 => Record::reported(id, means[q], "s"),
            _ => Record::direction(
                id,
                means[q],
                "s",
                "falls as the deadline loosens",
                means[q] <= means[q - 1],
            ),
        });
    }
    report.records(records);
    let worst = |q: usize, h: usize| {
        let phases = grid.eley[q][h].iter().flat_map(|c| &c.outcome.hpc[0].phases);
        phases.map(|p| (1.0 + p.slowdown()) / (1.0 + ALLOWANCES[q])).fold(0.0, f64::max)
    };
    let svg = Bars {
        title: "(b) Worst I/O phase over its deadline",
        y_label: "phase / deadline",
        groups: HPC.iter().map(|h| h.0.to_string()).collect(),
        series: (0..3).map(|q| (label(q), (0..3).map(|h| worst(q, h)).collect())).collect(),
        marks: vec![("deadline".into(), 1.0)],
    }
    .figure();
    report.figure("eley-figure7b.svg", &svg, "The worst phase of each HPC application, over its deadline")
}

/// Eley against NaiveBB.
fn figure8(report: &mut Report, grid: &Grid) -> Result<()> {
    report.heading(3, "Figure 8: Eley against NaiveBB");
    let label = |q: usize| format!("Eley {} %", percent(ALLOWANCES[q]));
    let slow = |plane: &[Vec<Cell>], h: usize| {
        plane[h].iter().map(Cell::hpc_slowdown_percent).sum::<f64>() / APPLICATIONS.len() as f64
    };
    let mut hpc = vec![("NaiveBB".to_string(), (0..3).map(|h| slow(&grid.naive, h)).collect::<Vec<_>>())];
    hpc.extend((0..3).map(|q| (label(q), (0..3).map(|h| slow(&grid.eley[q], h)).collect())));
    let svg = Bars {
        title: "(a) Mean slowdown of the HPC applications",
        y_label: "slowdown (%)",
        groups: HPC.iter().map(|h| h.0.to_string()).collect(),
        series: hpc,
        marks: vec![],
    }
    .figure();
    report.figure("eley-figure8a.svg", &svg, "Mean slowdown over the eight applications")?;
    let change = |q: usize, a: usize| {
        100.0 * (over_hpc(&grid.eley[q], a, Cell::map_s) / over_hpc(&grid.naive, a, Cell::map_s) - 1.0)
    };
    let svg = Bars {
        title: "(b) Map time of the Big Data applications against NaiveBB",
        y_label: "change (%)",
        groups: app_names(),
        series: (0..3).map(|q| (label(q), (0..8).map(|a| change(q, a)).collect())).collect(),
        marks: vec![],
    };
    let printed = |series, value| Printed { series, group: 1, value };
    let svg = svg.figure_beside(&[printed(0, APP_2[0]), printed(1, APP_2[1])]);
    report.figure("eley-figure8b.svg", &svg, "Change of the map time against NaiveBB")?;
    let spread = |a: usize| (change(0, a) - change(2, a)).abs();
    let fastest = (0..APPLICATIONS.len()).map(|a| -change(0, a)).fold(0.0, f64::max);
    let slowdowns = grid.naive.iter().flatten().map(Cell::hpc_slowdown_percent);
    let violation = slowdowns.fold(0.0, f64::max) - 100.0 * ALLOWANCES[0];
    let mut records = vec![
        Record::print("eley/headline/faster", 30.0, fastest, "%")
            .note("the most that an application gains at 5 %; Figure 8 has this gain at 15 %"),
        Record::print("eley/headline/violation", 58.0, violation, "points")
            .note("worst slowdown by NaiveBB, less the 5 % that are allowed"),
        Record::print("eley/figure8/app2/5", APP_2[0], change(0, 1), "%").fitted(),
        Record::print("eley/figure8/app2/15", APP_2[1], change(1, 1), "%").fitted(),
    ];
    for a in [3, 5, 6] {
        let id = format!("eley/figure8/spread/{}", a + 1);
        records.push(Record::direction(
            id,
            spread(a),
            "points",
            "alike at all three levels: within 3",
            spread(a) <= 3.0,
        ));
    }
    for a in [2, 7] {
        let id = format!("eley/figure8/app{}/5", a + 1);
        let met = change(0, a).abs() <= 10.0;
        records
            .push(Record::direction(id, change(0, a), "%", "hardly gains: within 10 points", met).fitted());
    }
    report.records(records);
    Ok(())
}
