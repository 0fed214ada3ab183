//! Eley: Yildiz, Zhou and Ibrahim, *Improving the Effectiveness of Burst Buffers for Big Data
//! Processing in HPC Systems with Eley*, FGCS 2018. Tables 4 to 6, Figures 5 to 8, and how far
//! `forebay` goes beyond.

use crate::colocate::{HpcOutcome, Outcome, Setup, action_name, simulate, view};
use crate::error::Result;
use crate::report::Report;
use crate::trace::Trace;

mod arrivals;
mod beyond;
mod figures;
mod iterations;
mod left_out;
mod sort;
pub mod system;
mod tables;

use system::{ALLOWANCES, APPLICATIONS, HPC, cell};

/// Adds Eley's part to the report.
///
/// # Errors
/// If a file of the report cannot be written.
pub fn run(report: &mut Report) -> Result<()> {
    report.heading(2, "Eley: interference-aware prefetching");
    report.text(include_str!("intro.md"));
    let grid = Grid::new()?;
    tables::table5(report, &grid);
    left_out::all(report)?;
    tables::interference(report, &grid);
    sort::table4(report)?;
    sort::of_2017(report)?;
    tables::table6(report)?;
    figures::all(report, &grid)?;
    beyond::all(report, &grid)?;
    arrivals::all(report)
}

/// One cell of the grid, under one policy.
struct Cell {
    outcome: Outcome,
    setup: Setup,
}

impl Cell {
    fn new(policy: &str, hpc: usize, app: usize, allowance: f64) -> Result<Self> {
        Cell::of(cell(policy, hpc, app, allowance))
    }

    fn of(setup: Setup) -> Result<Self> {
        Ok(Cell { outcome: simulate(&setup, &mut Trace::off())?, setup })
    }

    fn map_s(&self) -> f64 {
        self.outcome.jobs[0].map_ns as f64 * 1e-9
    }

    /// Mean slowdown in percent of the phases that began while the Big Data job ran; 0 if there was
    /// none.
    fn hpc_slowdown_percent(&self) -> f64 {
        let end_ns = self.outcome.jobs[0].map_ns;
        let beside: Vec<_> =
            self.outcome.hpc[0].phases.iter().filter(|p| p.begin_ns < end_ns).copied().collect();
        100.0 * HpcOutcome { name: String::new(), phases: beside }.slowdown()
    }
}

/// Every run that tables and figures need: policies that ignore deadlines once, the others at each
/// QoS level.
struct Grid {
    /// `[hpc][app]`
    naive: Vec<Vec<Cell>>,
    no_action: Vec<Vec<Cell>>,
    /// `[allowance][hpc][app]`
    eley: Vec<Vec<Vec<Cell>>>,
    full_delay: Vec<Vec<Vec<Cell>>>,
    forebay: Vec<Vec<Vec<Cell>>>,
}

impl Grid {
    fn new() -> Result<Self> {
        let plane = |policy: &str, allowance: f64| -> Result<Vec<Vec<Cell>>> {
            let row = |h| (0..APPLICATIONS.len()).map(|a| Cell::new(policy, h, a, allowance)).collect();
            (0..HPC.len()).map(row).collect()
        };
        let levels = |policy: &str| ALLOWANCES.iter().map(|&q| plane(policy, q)).collect::<Result<Vec<_>>>();
        Ok(Grid {
            naive: plane("naive-bb", ALLOWANCES[0])?,
            no_action: plane("no-action", ALLOWANCES[0])?,
            eley: levels("eley")?,
            full_delay: levels("full-delay")?,
            forebay: levels("forebay")?,
        })
    }
}

/// The mean over HPC applications of a value of application `app`.
fn over_hpc(plane: &[Vec<Cell>], app: usize, value: impl Fn(&Cell) -> f64) -> f64 {
    plane.iter().map(|row| value(&row[app])).sum::<f64>() / plane.len() as f64
}

/// Draws one cell's first `seconds` as a timeline.
fn timeline(report: &mut Report, name: &str, cell: &Cell, seconds: f64, caption: &str) -> Result<()> {
    let title =
        format!("{} beside {}, {}", cell.setup.jobs[0].name, cell.setup.hpc[0].name, cell.setup.policy);
    let svg = view::timeline(&cell.setup, &cell.outcome, &title, (0.0, seconds));
    report.figure(name, &svg, caption)
}
