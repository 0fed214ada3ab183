//! The command line of the simulator: `forebay sim ...` and `forebay model ...`.
//!
//! Everything is written to the output that the caller passes in, and to files only where an option
//! names them. The one program of the project parses the arguments; its `--json` holds for every
//! command here and must not be declared again.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::error::{Error, Result};
use crate::study::MAX_SEEDS;
use crate::table::{Table, objects};

mod broadcast;
mod model;
mod random;
mod replay;
mod run;
mod site;
mod sweep;

/// `forebay sim`: what would a policy do to my cluster?
#[derive(Args, Debug)]
pub struct SimArgs {
    /// Which.
    #[command(subcommand)]
    pub command: SimCommand,
}

/// The commands of `forebay sim`.
#[derive(Subcommand, Debug)]
pub enum SimCommand {
    /// Run one scenario
    Run(RunArgs),
    /// Run one scenario under several policies and show them side by side
    Compare(CompareArgs),
    /// Run a scenario over a grid of parameters, in parallel
    Sweep(SweepArgs),
    /// Compare policies on random systems, on which none was tuned
    Random(random::RandomArgs),
    /// Let many nodes read one file at the same time
    Broadcast(broadcast::BroadcastArgs),
    /// Describe a site by what was recorded and measured there, to ask "what if"
    Site(site::SiteArgs),
    /// Recompute the papers' tables and figures
    Reproduce(ReproduceArgs),
    /// Drive the policies from a recorded trace and check that they decide the same
    Replay(ReplayArgs),
}

/// Options of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Scenario file
    scenario: PathBuf,
    /// Planner's policy, memory law, or policy of access to burst buffers (or ALLOCATION/ACCESS),
    /// instead of the scenario's
    #[arg(long)]
    policy: Option<String>,
    /// Seed, instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// Write the whole result into this file, as JSON
    #[arg(long, value_name = "FILE")]
    result: Option<PathBuf>,
    /// Write one row per job as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write one row per step, wave and I/O phase, task or sample as CSV
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// Record every event and decision, as JSON lines
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Draw the activity of each job over time, as SVG; the data are written to FILE.csv
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Part of the time to draw, in seconds
    #[arg(long, value_names = ["FROM", "TO"], num_args = 2, requires = "timeline", allow_negative_numbers = true)]
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
    /// Run N seeds, starting with the scenario's: means with 95 % confidence intervals, and changes
    /// against the first policy, paired by seed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=MAX_SEEDS))]
    seeds: Option<u64>,
    /// Number of threads for several seeds; as many as there are cores by default
    #[arg(long, requires = "seeds")]
    threads: Option<std::num::NonZeroUsize>,
    /// Write one row per policy and job as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a timeline per policy and its data into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "seeds")]
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
    /// Run each point with N seeds, starting with the scenario's: means with 95 % confidence
    /// intervals, and changes against the first point, paired by seed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=MAX_SEEDS))]
    seeds: Option<u64>,
    /// Number of threads; as many as there are cores by default
    #[arg(long)]
    threads: Option<std::num::NonZeroUsize>,
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

/// Options of `replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// Trace of a simulation, or a file of a coordinator's or an agent's decision log
    pub trace: PathBuf,
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
pub fn sim(args: &SimArgs, json: bool, out: &mut dyn Write) -> Result<()> {
    let out = &mut Output { json, out };
    match &args.command {
        SimCommand::Run(a) => run::run(a, out),
        SimCommand::Compare(a) => run::compare(a, out),
        SimCommand::Sweep(a) => sweep::sweep(a, out),
        SimCommand::Random(a) => random::random(a, out),
        SimCommand::Broadcast(a) => broadcast::broadcast(a, out),
        SimCommand::Site(a) => site::site(a, out),
        SimCommand::Reproduce(a) => reproduce(a, out),
        SimCommand::Replay(a) => replay::replay(a, out),
    }
}

/// Runs `forebay model`.
///
/// # Errors
/// If the numbers make no sense.
pub fn model(args: &ModelArgs, json: bool, out: &mut dyn Write) -> Result<()> {
    let out = &mut Output { json, out };
    model::model(&args.command, out)
}

fn reproduce(args: &ReproduceArgs, out: &mut Output<'_>) -> Result<()> {
    let report = crate::reproduce::report(&args.what, &args.out)?;
    if out.json {
        return out.value(&report.json());
    }
    let counts = report.counts();
    say(out, &format!("{}\n{}\n{}", counts.printed.headline(), counts.printed.rest(), counts.sentence()))?;
    for r in report.all_records().iter().filter(|r| r.met == Some(false)) {
        say(
            out,
            &format!("  not met: {} = {} {}, {}", r.id, crate::report::number(r.ours), r.unit, r.target),
        )?;
    }
    say(out, &format!("the report is {}", report.path().display()))
}

/// Where a command writes, and in which form.
pub(crate) struct Output<'a> {
    /// JSON for programs instead of text for people.
    json: bool,
    out: &'a mut dyn Write,
}

impl Output<'_> {
    /// Writes a value as JSON.
    fn value(&mut self, value: &impl serde::Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)
            .map_err(std::io::Error::from)
            .map_err(Error::io("write JSON to", Path::new("standard output")))?;
        say(self, &text)
    }
}

/// Writes a line for the user.
fn say(out: &mut Output<'_>, line: &str) -> Result<()> {
    writeln!(out.out, "{line}").map_err(Error::io("write to", Path::new("standard output")))
}

/// Writes a table.
fn show(out: &mut Output<'_>, rows: &Table) -> Result<()> {
    let columns: Vec<&str> = rows.columns.iter().map(String::as_str).collect();
    table(out, &columns, &rows.rows)
}

/// Writes a file that an option names.
fn write(path: &Path, what: &'static str, contents: &str) -> Result<()> {
    fs::write(path, contents).map_err(Error::io(what, path))
}

/// Writes rows in columns as wide as their widest cell, or as JSON objects.
fn table(out: &mut Output<'_>, header: &[&str], rows: &[Vec<String>]) -> Result<()> {
    if out.json {
        return out.value(&objects(header, rows));
    }
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
