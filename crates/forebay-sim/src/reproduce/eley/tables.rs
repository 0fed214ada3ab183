//! Tables 5 and 6, and the numbers on interference in the text.

use super::figures::{T1_8_NAIVE, T1_8_NO_ACTION};
use super::iterations::Iterations;
use super::{APPLICATIONS, Cell, Grid, Report, Result, over_hpc, timeline};
use crate::report::Record;

/// Table 5: mean map times, NaiveBB and Eley-NoAction, in seconds.
pub const TABLE_5: [(f64, f64); 8] = [
    (151.7, 136.6),
    (771.3, 526.0),
    (379.0, 358.6),
    (2018.0, 1925.0),
    (674.0, 487.3),
    (979.7, 770.0),
    (1518.7, 1174.0),
    (6239.0, 6686.7),
];

pub fn table5(report: &mut Report, grid: &Grid) {
    report.heading(3, "Table 5: mean map times beside the three HPC applications");
    let mut records = Vec::new();
    for (app, (naive, no_action)) in TABLE_5.into_iter().enumerate() {
        for (policy, plane, paper) in
            [("naive-bb", &grid.naive, naive), ("no-action", &grid.no_action, no_action)]
        {
            let ours = over_hpc(plane, app, Cell::map_s);
            let id = format!("eley/table5/{policy}/{}", app + 1);
            records.push(Record::print(id, paper, ours, "s").fitted());
        }
    }
    report.records(records);
}

/// Numbers on slowdown in section 7.2.1.
pub fn interference(report: &mut Report, grid: &Grid) {
    report.heading(3, "Slowdown, in numbers (section 7.2.1)");
    let slow = |plane: &[Vec<Cell>], h: usize, a: usize| plane[h][a].hpc_slowdown_percent();
    let mut records = vec![
        Record::print("eley/slowdown/t1-8/naive-bb", T1_8_NAIVE, slow(&grid.naive, 0, 7), "%"),
        Record::print("eley/slowdown/t1-8/no-action", T1_8_NO_ACTION, slow(&grid.no_action, 0, 7), "%"),
    ];
    for (h, (name, paper)) in [("t1", 54.0), ("t2", 39.0), ("ap", 39.0)].into_iter().enumerate() {
        let reduction = |a: usize| {
            let naive = slow(&grid.naive, h, a);
            (naive > 0.0).then(|| 100.0 * (1.0 - slow(&grid.no_action, h, a) / naive))
        };
        let all: Vec<f64> = (0..APPLICATIONS.len()).filter_map(reduction).collect();
        let ours = all.iter().sum::<f64>() / all.len() as f64;
        records.push(
            Record::print(format!("eley/slowdown-reduction/{name}"), paper, ours, "%")
                .note("mean over the applications beside which there was a phase; the paper's order of T1 before the others is not in the model"),
        );
    }
    let alone_s = {
        let mut setup = grid.naive[1][2].setup.clone();
        setup.hpc.clear();
        f64::from(setup.jobs[0].waves) * (12.5 + setup.jobs[0].compute_ns as f64 * 1e-9)
    };
    let ours = 100.0 * (grid.naive[1][2].map_s() / alone_s - 1.0);
    records.push(
        Record::print("eley/slowdown/3-t2/naive-bb", 48.0, ours, "%")
            .note("the constants that fit Table 5 give more"),
    );
    report.records(records);
}

/// Table 6: T2 beside application 6 at 5 %.
pub fn table6(report: &mut Report) -> Result<()> {
    report.heading(3, "Table 6: application 6 beside T2, deadlines 5 % above the time alone");
    let (eley, no_action) = (Cell::new("eley", 1, 5, 0.05)?, Cell::new("no-action", 1, 5, 0.05)?);
    report.text("Phases and waves are not aligned with each other in ours, so what stands at an iteration there may stand at another here.");
    let table = Iterations {
        id: "eley/table6",
        no_action_s: [70.0, 65.0, 68.0, 65.0, 69.0],
        eley_s: [59.0, 59.0, 62.0, 59.0, 59.0],
        allowed_s: 61.9,
        actions: ["Scale Down", "Full Delay", "Partial Delay", "Scale Down", "Scale Down"],
        cost_s: [6.0, 0.0, 0.0, 6.0, 6.0],
    };
    report.records(table.records(&no_action, &eley, 1));
    let missed = eley.outcome.missed() as f64;
    report.records(vec![Record::direction("eley/table6/missed", missed, "phases", "none", missed == 0.0)]);
    timeline(report, "eley-table6-eley.svg", &eley, 420.0, "Application 6 beside T2 under eley")?;
    let ours = Cell::new("forebay", 1, 5, 0.05)?;
    timeline(report, "eley-table6-forebay.svg", &ours, 420.0, "The same under forebay")
}
