//! The command line of the simulator: `forebay sim ...` and `forebay model ...`.
//!
//! Everything is written to `out`, and files only where an option names them, so that the commands can be tested as
//! functions and the one binary of the project only has to hand its arguments over.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::error::{Error, Result};

mod explain;
mod explain_access;
mod kinds;
mod model;
mod replay;
mod run;
mod sweep;

/// `forebay sim`: what would a policy do to my cluster?
#[derive(Args, Debug)]
pub struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Subcommand, Debug)]
enum SimCommand {
    /// Run one scenario
    Run(RunArgs),
    /// Run one scenario under several policies and show them side by side
    Compare(CompareArgs),
    /// Run a scenario over a grid of parameters, in parallel
    Sweep(SweepArgs),
    /// Compute the papers' tables and figures anew
    Reproduce(ReproduceArgs),
    /// Tell why a recorded decision was taken
    Explain(ExplainArgs),
    /// Drive the policies from a recorded trace and check that they decide the same
    Replay(ReplayArgs),
}

/// Options of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Scenario file
    scenario: PathBuf,
    /// Planner's policy, or that of access to burst buffers (or ALLOCATION/ACCESS), instead of the scenario's
    #[arg(long)]
    policy: Option<String>,
    /// Seed, instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// Write the whole result as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one row per job as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Record every event and decision, as JSON lines
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Draw who does what over time, as SVG
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Part of the time to draw, in seconds
    #[arg(long, value_names = ["FROM", "TO"], num_args = 2)]
    window: Option<Vec<f64>>,
}

/// Options of `compare`.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Scenario file
    scenario: PathBuf,
    /// Policies to compare, as for `run --policy`; all of them by default
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
    /// Write one row per policy and job as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a timeline per policy into this directory
    #[arg(long, value_name = "DIR")]
    timelines: Option<PathBuf>,
}

/// Options of `sweep`.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// Scenario file
    scenario: PathBuf,
    /// A key and its values, such as `hpc.0.allowance_percent=5,15,30`; repeat for a grid
    #[arg(long = "set", value_name = "KEY=V1,V2", required = true)]
    grid: Vec<String>,
    /// Number of threads; as many as there are cores by default
    #[arg(long)]
    threads: Option<usize>,
    /// Write the rows here instead of to the terminal, as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Options of `reproduce`.
#[derive(Args, Debug)]
pub struct ReproduceArgs {
    /// What to reproduce, or `all`
    what: String,
    /// Directory of the report
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Options of `explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// Recorded trace
    trace: PathBuf,
    /// Number of the decision; without it, all decisions are listed
    #[arg(long)]
    decision: Option<u64>,
}

/// Options of `replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// Recorded trace
    trace: PathBuf,
}

/// `forebay model`: quick questions to the models.
#[derive(Args, Debug)]
pub struct ModelArgs {
    #[command(subcommand)]
    command: model::ModelCommand,
}

/// Runs `forebay sim`.
///
/// # Errors
/// One line that names what was tried, on what, and why it failed.
pub fn sim(args: &SimArgs, out: &mut dyn Write) -> Result<()> {
    match &args.command {
        SimCommand::Run(a) => run::run(a, out),
        SimCommand::Compare(a) => run::compare(a, out),
        SimCommand::Sweep(a) => sweep::sweep(a, out),
        SimCommand::Reproduce(a) => reproduce(a, out),
        SimCommand::Explain(a) => explain::explain(a, out),
        SimCommand::Replay(a) => replay::replay(a, out),
    }
}

/// Runs `forebay model`.
///
/// # Errors
/// If the numbers make no sense.
pub fn model(args: &ModelArgs, out: &mut dyn Write) -> Result<()> {
    model::model(&args.command, out)
}

fn reproduce(args: &ReproduceArgs, out: &mut dyn Write) -> Result<()> {
    let mut report = crate::report::Report::new(&args.out, "Forebay: the papers' results, computed anew")?;
    crate::reproduce::reproduce(&args.what, &mut report)?;
    let all = report.all_records();
    let met = all.iter().filter(|r| r.met).count();
    say(out, &format!("{met} of {} results are as they should be", all.len()))?;
    for r in all.iter().filter(|r| !r.met) {
        say(
            out,
            &format!("  not met: {} = {} {}, {}", r.id, crate::report::number(r.ours), r.unit, r.target),
        )?;
    }
    say(out, &format!("the report is {}", args.out.join("report.md").display()))
}

/// Writes a line for the user.
fn say(out: &mut dyn Write, line: &str) -> Result<()> {
    writeln!(out, "{line}").map_err(Error::io("write to", std::path::Path::new("the terminal")))
}

/// Writes rows in columns as wide as their widest cell.
fn table(out: &mut dyn Write, header: &[&str], rows: &[Vec<String>]) -> Result<()> {
    let width = |c: usize| {
        rows.iter().map(|r| r[c].chars().count()).chain([header[c].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}")).collect();
        padded.join("  ").trim_end().to_string()
    };
    say(out, &line(header.to_vec()))?;
    for row in rows {
        say(out, &line(row.iter().map(String::as_str).collect()))?;
    }
    Ok(())
}

/// Rows as CSV; cells are quoted where they have to be.
fn csv(header: &[&str], rows: &[Vec<String>]) -> String {
    let quote = |cell: &str| {
        if cell.contains([',', '"', '\n']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.into()
        }
    };
    let line = |cells: Vec<&str>| cells.into_iter().map(quote).collect::<Vec<_>>().join(",") + "\n";
    let body: String = rows.iter().map(|r| line(r.iter().map(String::as_str).collect())).collect();
    line(header.to_vec()) + &body
}
