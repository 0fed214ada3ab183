//! `sim sweep`: a scenario over a grid of parameters.
//!
//! Every point of the grid is a run of its own; threads take the next one from a counter and
//! results are put back in the order of the grid, so that the output does not depend on how many
//! threads there were.

use std::fs;

use indicatif::{ProgressBar, ProgressStyle};

use super::replications::{self, Sample};
use super::{Output, SweepArgs, csv, table};
use crate::error::{Error, Result};
use crate::kinds::same_kind;
use crate::parallel::{in_parallel, threads};
use crate::scenario::{File, Scenario};
use crate::trace::Trace;

/// More points than this are more likely a slip than a wish.
pub const MAX_POINTS: usize = 1_000_000;

/// Rows of a table: `[row][column]`.
pub type Rows = Vec<Vec<String>>;

/// One parameter: its key and values.
struct Axis<'a> {
    key: &'a str,
    values: Vec<&'a str>,
}

fn axis(text: &str) -> Result<Axis<'_>> {
    let (key, values) = text
        .split_once('=')
        .filter(|(k, v)| !k.is_empty() && !v.is_empty())
        .ok_or_else(|| Error::Usage(format!("--set {text}: KEY=V1,V2,... is needed")))?;
    Ok(Axis { key, values: values.split(',').collect() })
}

/// The values at point `index` of the grid; the last axis changes fastest.
fn point<'a>(axes: &[Axis<'a>], mut index: usize) -> Vec<&'a str> {
    let mut values: Vec<&str> = Vec::with_capacity(axes.len());
    for axis in axes.iter().rev() {
        values.push(axis.values[index % axis.values.len()]);
        index /= axis.values.len();
    }
    values.reverse();
    values
}

/// How many points the grid has.
fn points(axes: &[Axis<'_>]) -> Result<usize> {
    let mut keys: Vec<&str> = axes.iter().map(|a| a.key).collect();
    keys.sort_unstable();
    if let Some(twice) = keys.windows(2).find(|w| w[0] == w[1]) {
        return Err(Error::Usage(format!(
            "--set {} is given twice: give all of its values in one list, as KEY=V1,V2",
            twice[0]
        )));
    }
    let points = axes.iter().try_fold(1_usize, |points, axis| points.checked_mul(axis.values.len()));
    points.filter(|points| *points <= MAX_POINTS).ok_or_else(|| {
        let counts: Vec<String> = axes.iter().map(|a| a.values.len().to_string()).collect();
        let product = counts.join(" x ");
        Error::Usage(format!("the grid has {product} points; at most {MAX_POINTS} are allowed"))
    })
}

pub fn sweep(args: &SweepArgs, out: &mut Output<'_>) -> Result<()> {
    let file = File::read(&args.scenario)?;
    let axes = args.grid.iter().map(|text| axis(text)).collect::<Result<Vec<_>>>()?;
    let points = points(&axes)?;
    if let Some(seeds) = args.seeds {
        return sweep_seeds(args, &file, &axes, points, seeds, out);
    }
    // All are checked before any is run: a slip in the last value should not cost an hour.
    let scenarios = (0..points).map(|i| scenario_at(&file, &axes, i)).collect::<Result<Vec<_>>>()?;
    same_kind(&scenarios)?;
    let runs = run_all(&scenarios, threads(args.threads))?;
    let mut rows = Vec::new();
    for (i, run) in runs.into_iter().enumerate() {
        let values: Vec<String> = point(&axes, i).into_iter().map(String::from).collect();
        rows.extend(run.into_iter().map(|row| [values.clone(), row].concat()));
    }
    let columns = scenarios.first().map_or(&[][..], |s| s.columns());
    let header: Vec<&str> = axes.iter().map(|a| a.key).chain(columns.iter().copied()).collect();
    match &args.csv {
        Some(path) => fs::write(path, csv(&header, &rows)).map_err(Error::io("write the rows to", path)),
        None => table(out, &header, &rows),
    }
}

/// Every point of the grid under the same seeds.
fn sweep_seeds(
    args: &SweepArgs,
    file: &File,
    axes: &[Axis<'_>],
    points: usize,
    seeds: u64,
    out: &mut Output<'_>,
) -> Result<()> {
    if axes.iter().any(|axis| axis.key == "seed") {
        return Err(Error::Usage("--seeds and --set seed=... are given: choose one of them".into()));
    }
    replications::limit(points, "points", seeds)?;
    let mut scenarios = Vec::new();
    for i in 0..points {
        scenarios.extend(replications::seeded(&file_at(file, axes, i)?, seeds)?);
    }
    same_kind(&scenarios)?;
    let mut runs = run_all(&scenarios, threads(args.threads))?.into_iter();
    let sample = |i| Sample {
        label: point(axes, i).into_iter().map(String::from).collect(),
        runs: runs.by_ref().take(seeds as usize).collect(),
    };
    let samples: Vec<Sample> = (0..points).map(sample).collect();
    let keys: Vec<&str> = axes.iter().map(|axis| axis.key).collect();
    replications::show(&keys, &scenarios[0], &samples, args.csv.as_deref(), out)
}

fn file_at(file: &File, axes: &[Axis<'_>], index: usize) -> Result<File> {
    let mut file = file.clone();
    for (axis, value) in axes.iter().zip(point(axes, index)) {
        file.set(axis.key, value)?;
    }
    Ok(file)
}

fn scenario_at(file: &File, axes: &[Axis<'_>], index: usize) -> Result<Scenario> {
    file_at(file, axes, index)?.scenario()
}

/// The rows of each run, or the first error. What else is known of a run is dropped when it ends.
pub fn run_all(scenarios: &[Scenario], threads: usize) -> Result<Vec<Rows>> {
    // Shown on a terminal only; goes to standard error.
    let bar = ProgressBar::new(scenarios.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left") {
        bar.set_style(style);
    }
    let run = |i: usize| {
        let rows = scenarios[i].run(&mut Trace::off()).map(|done| scenarios[i].rows(&done));
        bar.inc(1);
        rows
    };
    let results = in_parallel(scenarios.len(), threads, run);
    bar.finish_and_clear();
    results.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_axis_changes_fastest() {
        let axes = [axis("a=1,2").expect("valid"), axis("b=x,y,z").expect("valid")];
        let all: Vec<String> = (0..6).map(|i| point(&axes, i).concat()).collect();
        assert_eq!(all, ["1x", "1y", "1z", "2x", "2y", "2z"]);
    }

    #[test]
    fn an_axis_needs_a_key_and_values() {
        let error = axis("a=").err().expect("no values");
        assert_eq!(error.to_string(), "--set a=: KEY=V1,V2,... is needed");
    }
}
