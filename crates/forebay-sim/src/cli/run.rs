//! `sim run` and `sim compare`.

use std::fs;
use std::path::Path;

use super::{CompareArgs, Output, RunArgs, say, show, table, write};
use crate::csv;
use crate::error::{Error, Result};
use crate::kinds::{Done, set_policy};
use crate::parallel::threads;
use crate::scenario::{File, Scenario};
use crate::study::{self, Replicated};

/// The part of the time to draw.
fn window(args: &RunArgs) -> Result<Option<(f64, f64)>> {
    let Some(&[from_s, to_s]) = args.window.as_deref() else { return Ok(None) };
    if !(from_s >= 0.0 && from_s < to_s && to_s.is_finite()) {
        return Err(Error::Usage(format!(
            "--window {from_s} {to_s}: seconds from 0 are needed, FROM before TO, such as --window 5 10"
        )));
    }
    Ok(Some((from_s, to_s)))
}

pub fn run(args: &RunArgs, out: &mut Output<'_>) -> Result<()> {
    let window_s = window(args)?;
    let mut file = File::read(&args.scenario)?;
    if let Some(policy) = &args.policy {
        set_policy(&mut file, policy)?;
    }
    if let Some(seed) = args.seed {
        file.set("seed", &seed.to_string())?;
    }
    let scenario = file.scenario()?;
    let done = scenario.run_traced(args.trace.as_deref())?;
    if let Some(path) = &args.result {
        let json = done.json().map_err(Error::io("write the result to", path))?;
        write(path, "write the result to", &json)?;
    }
    let rows = scenario.rows(&done);
    if let Some(path) = &args.csv {
        csv::write(path, "write the rows to", scenario.columns(), &rows)?;
    }
    if let Some(path) = &args.records {
        let (columns, records) = done.records();
        csv::write(path, "write the records to", columns, &records)?;
    }
    if let Some(path) = &args.timeline {
        let figure = scenario.timeline(&done, &file.name(), window_s);
        figure.write(path, "write the timeline to")?;
    }
    if out.json {
        let json = done.json().map_err(Error::io("write JSON to", Path::new("standard output")))?;
        return say(out, json.trim_end());
    }
    table(out, scenario.columns(), &rows)?;
    say(out, &done.summary())
}

pub fn compare(args: &CompareArgs, out: &mut Output<'_>) -> Result<()> {
    let file = File::read(&args.scenario)?;
    if let Some(seeds) = args.seeds {
        let study = study::compare_seeds(&file, &args.policies, seeds, threads(args.threads))?;
        return replicated(&study, args.csv.as_deref(), out);
    }
    if let Some(dir) = &args.timelines {
        fs::create_dir_all(dir).map_err(Error::io("create the directory", dir))?;
    }
    let draw = |policy: &str, scenario: &Scenario, done: &Done| {
        let Some(dir) = &args.timelines else { return Ok(()) };
        let figure = scenario.timeline(done, &file.name(), None);
        figure.write(&dir.join(format!("{}.svg", policy.replace('/', "-"))), "write the timeline to")
    };
    let rows = study::compare(&file, &args.policies, draw)?;
    if let Some(path) = &args.csv {
        rows.write(path)?;
    }
    show(out, &rows)
}

/// Shows settings under several seeds, or writes them `to` a file.
pub fn replicated(study: &Replicated, to: Option<&Path>, out: &mut Output<'_>) -> Result<()> {
    match to {
        Some(path) => study.table.write(path)?,
        None => show(out, &study.table)?,
    }
    match (out.json, study.is_random) {
        (true, _) => Ok(()),
        (_, false) => say(out, "every seed gives the same run: nothing in this scenario is random"),
        (_, true) => say(
            out,
            "low, high: 95 % confidence interval over the seeds. change: against the first setting, paired by seed, of logarithms where all values are positive. difference: paired t test, 5 %",
        ),
    }
}
