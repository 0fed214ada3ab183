//! `sim run` and `sim compare`.

use std::fs;
use std::path::Path;

use super::replications::{self, Sample};
use super::sweep::run_all;
use super::{CompareArgs, Output, RunArgs, csv, say, table};
use crate::error::{Error, Result};
use crate::kinds::{policies, set_policy};
use crate::parallel::threads;
use crate::scenario::File;
use crate::trace::Trace;

fn write(path: &Path, what: &'static str, contents: &str) -> Result<()> {
    fs::write(path, contents).map_err(Error::io(what, path))
}

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
        write(path, "write the rows to", &csv(scenario.columns(), &rows))?;
    }
    if let Some(path) = &args.records {
        let (columns, records) = done.records();
        write(path, "write the records to", &csv(columns, &records))?;
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
    let names = if args.policies.is_empty() { policies(&file) } else { args.policies.clone() };
    if let Some(seeds) = args.seeds {
        return compare_seeds(args, &file, &names, seeds, out);
    }
    if let Some(dir) = &args.timelines {
        fs::create_dir_all(dir).map_err(Error::io("create the directory", dir))?;
    }
    let mut columns: &[&str] = &[];
    let mut rows = Vec::new();
    for name in names {
        let mut file = file.clone();
        set_policy(&mut file, &name)?;
        let scenario = file.scenario()?;
        let done = scenario.run(&mut Trace::off())?;
        if let Some(dir) = &args.timelines {
            let figure = scenario.timeline(&done, &file.name(), None);
            let path = dir.join(format!("{}.svg", name.replace('/', "-")));
            figure.write(&path, "write the timeline to")?;
        }
        columns = scenario.columns();
        rows.extend(scenario.rows(&done));
    }
    if let Some(path) = &args.csv {
        write(path, "write the rows to", &csv(columns, &rows))?;
    }
    table(out, columns, &rows)
}

/// Every policy under the same seeds.
fn compare_seeds(
    args: &CompareArgs,
    file: &File,
    names: &[String],
    seeds: u64,
    out: &mut Output<'_>,
) -> Result<()> {
    replications::limit(names.len(), "policies", seeds)?;
    let mut scenarios = Vec::new();
    for name in names {
        let mut file = file.clone();
        set_policy(&mut file, name)?;
        scenarios.extend(replications::seeded(&file, seeds)?);
    }
    let mut runs = run_all(&scenarios, threads(args.threads))?.into_iter();
    let sample = |_| Sample { label: Vec::new(), runs: runs.by_ref().take(seeds as usize).collect() };
    let samples: Vec<Sample> = names.iter().map(sample).collect();
    replications::show(&[], &scenarios[0], &samples, args.csv.as_deref(), out)
}
