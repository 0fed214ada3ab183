//! `sim run` and `sim compare`.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::{CompareArgs, RunArgs, csv, say, table};
use crate::colocate::{Outcome, Setup, simulate, view};
use crate::error::{Error, Result};
use crate::scenario::{File, Scenario};
use crate::trace::Trace;

fn colocation(file: &File) -> Result<Setup> {
    let Scenario::Colocation(setup) = file.scenario()?;
    Ok(*setup)
}

fn trace_to(path: Option<&Path>, setup: &Setup) -> Result<Trace> {
    Ok(match path {
        None => Trace::off(),
        Some(path) => {
            let file = fs::File::create(path).map_err(Error::io("create the trace", path))?;
            Trace::to(Box::new(BufWriter::new(file)), setup)
        }
    })
}

fn write(path: &Path, what: &'static str, contents: &str) -> Result<()> {
    fs::write(path, contents).map_err(Error::io(what, path))
}

pub fn run(args: &RunArgs, out: &mut dyn Write) -> Result<()> {
    let mut file = File::read(&args.scenario)?;
    if let Some(policy) = &args.policy {
        file.set("planner.policy", policy)?;
    }
    if let Some(seed) = args.seed {
        file.set("seed", &seed.to_string())?;
    }
    let setup = colocation(&file)?;
    let mut trace = trace_to(args.trace.as_deref(), &setup)?;
    let outcome = simulate(&setup, &mut trace)?;
    if let Some(path) = &args.trace {
        trace.finish().map_err(Error::io("write the trace", path))?;
    }
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&outcome).map_err(std::io::Error::from);
        write(path, "write the result to", &(json.map_err(Error::io("write the result to", path))? + "\n"))?;
    }
    let rows = view::rows(&setup, &outcome);
    if let Some(path) = &args.csv {
        write(path, "write the rows to", &csv(&view::COLUMNS, &rows))?;
    }
    if let Some(path) = &args.timeline {
        let window = args.window.as_deref().map_or((0.0, end_s(&outcome)), |w| (w[0], w[1]));
        let title = format!("{} ({})", args.scenario.display(), setup.policy);
        write(path, "write the timeline to", &view::timeline(&setup, &outcome, &title, window))?;
    }
    table(out, &view::COLUMNS, &rows)?;
    say(out, &format!("{} events, {} decisions", outcome.events, outcome.decisions.len()))
}

/// When the last Big Data job or phase is over.
fn end_s(outcome: &Outcome) -> f64 {
    let jobs = outcome.jobs.iter().filter_map(|j| j.waves.last()).map(|w| w.end_ns);
    let phases = outcome.hpc.iter().filter_map(|h| h.phases.last()).map(|p| p.end_ns);
    jobs.chain(phases).max().unwrap_or(0) as f64 * 1e-9
}

pub fn compare(args: &CompareArgs, out: &mut dyn Write) -> Result<()> {
    let file = File::read(&args.scenario)?;
    let names: Vec<String> = match args.policies.is_empty() {
        false => args.policies.clone(),
        true => forebay_policy::planner::POLICIES.iter().map(|p| p.0.to_string()).collect(),
    };
    if let Some(dir) = &args.timelines {
        fs::create_dir_all(dir).map_err(Error::io("create the directory", dir))?;
    }
    let mut rows = Vec::new();
    for name in names {
        let mut file = file.clone();
        file.set("planner.policy", &name)?;
        let setup = colocation(&file)?;
        let outcome = simulate(&setup, &mut Trace::off())?;
        if let Some(dir) = &args.timelines {
            let svg = view::timeline(&setup, &outcome, &name, (0.0, end_s(&outcome)));
            write(&dir.join(format!("{name}.svg")), "write the timeline to", &svg)?;
        }
        rows.extend(view::rows(&setup, &outcome));
    }
    if let Some(path) = &args.csv {
        write(path, "write the rows to", &csv(&view::COLUMNS, &rows))?;
    }
    table(out, &view::COLUMNS, &rows)
}
