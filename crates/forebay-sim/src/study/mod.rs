//! Many runs of a scenario: under several policies, over a grid of values, with several seeds.
//!
//! Every run is independent; threads take the next one from a counter and results are put back in
//! the order of the grid, so that a table does not depend on how many threads there were. The
//! commands `compare` and `sweep` print the tables, and the Python module returns them.

use indicatif::{ProgressBar, ProgressStyle};
use toml::Value;

use crate::error::{Error, Result};
use crate::kinds::{Done, policies, same_kind, set_policy};
use crate::parallel::in_parallel;
use crate::scenario::{self, File, Scenario, logs};
use crate::table::Table;
use crate::trace::Trace;

mod replications;

use replications::Sample;

/// More points than this are more likely an error than intended.
const MAX_POINTS: usize = 1_000_000;
/// The same holds for more seeds.
pub const MAX_SEEDS: u64 = 100_000;

/// Rows of a table: `[row][column]`.
type Rows = Vec<Vec<String>>;

/// Settings under several seeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicated {
    /// One row per setting, job and measure.
    pub table: Table,
    /// Whether any seed gave a different run than the one before it.
    pub is_random: bool,
}

/// One parameter of a grid: its key and values.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    key: String,
    values: Vec<Choice>,
}

/// A value, and how tables show it.
#[derive(Clone, Debug, PartialEq)]
struct Choice {
    label: String,
    value: Value,
}

impl Axis {
    /// Parses `KEY=V1,V2`.
    ///
    /// # Errors
    /// If the key or the values are missing.
    pub fn parse(text: &str) -> Result<Self> {
        let (key, values) = text
            .split_once('=')
            .filter(|(k, v)| !k.is_empty() && !v.is_empty())
            .ok_or_else(|| Error::Usage(format!("--set {text}: KEY=V1,V2,... is needed")))?;
        let choice = |text: &str| Choice { label: text.into(), value: scenario::value(text) };
        Ok(Axis { key: key.into(), values: values.split(',').map(choice).collect() })
    }

    /// An axis of these values.
    ///
    /// # Errors
    /// If there is none.
    pub fn of(key: &str, values: Vec<Value>) -> Result<Self> {
        if values.is_empty() {
            return Err(Error::Usage(format!("{key}: at least one value is needed")));
        }
        let label = |value: &Value| value.as_str().map_or_else(|| value.to_string(), String::from);
        let choice = |value| Choice { label: label(&value), value };
        Ok(Axis { key: key.into(), values: values.into_iter().map(choice).collect() })
    }

    /// The index of the value with this label.
    pub fn number_of(&self, label: &str) -> Option<usize> {
        self.values.iter().position(|choice| choice.label == label)
    }
}

/// The values at point `index` of the grid; the last axis changes fastest.
fn point(axes: &[Axis], mut index: usize) -> Vec<&Choice> {
    let mut values = Vec::with_capacity(axes.len());
    for axis in axes.iter().rev() {
        values.push(&axis.values[index % axis.values.len()]);
        index /= axis.values.len();
    }
    values.reverse();
    values
}

/// The labels of the values at a point.
fn labels(axes: &[Axis], index: usize) -> Vec<String> {
    point(axes, index).into_iter().map(|choice| choice.label.clone()).collect()
}

/// How many points the grid has.
fn points(axes: &[Axis]) -> Result<usize> {
    let mut keys: Vec<&str> = axes.iter().map(|a| a.key.as_str()).collect();
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

/// The scenario under these policies, or under all if none is named. `watch` gets every run.
///
/// # Errors
/// If a policy does not exist, a run does not end, or `watch` returns an error.
pub fn compare(
    file: &File,
    names: &[String],
    mut watch: impl FnMut(&str, &Scenario, &Done) -> Result<()>,
) -> Result<Table> {
    let mut columns: &[&str] = &[];
    let mut rows = Vec::new();
    for (name, file) in with_policies(file, names)? {
        let scenario = file.scenario()?;
        let done = scenario.run(&mut Trace::off())?;
        watch(&name, &scenario, &done)?;
        columns = scenario.columns();
        rows.extend(scenario.rows(&done));
    }
    Ok(Table::new(columns, rows))
}

/// The scenario under these policies, each under the same seeds, from the scenario's on.
///
/// # Errors
/// If a policy does not exist, there are too few or too many runs, or one does not end.
pub fn compare_seeds(file: &File, names: &[String], seeds: u64, threads: usize) -> Result<Replicated> {
    let files: Vec<File> = with_policies(file, names)?.into_iter().map(|(_, file)| file).collect();
    replications::limit(files.len(), "policies", seeds)?;
    replicate(&[], vec![Vec::new(); files.len()], &files, seeds, threads)
}

/// The scenario with each of these policies, or with all.
fn with_policies(file: &File, names: &[String]) -> Result<Vec<(String, File)>> {
    let names = if names.is_empty() { policies(file) } else { names.to_vec() };
    let with = |name: String| {
        let mut file = file.clone();
        set_policy(&mut file, &name)?;
        Ok((name, file))
    };
    names.into_iter().map(with).collect()
}

/// The scenario at each point of the grid.
///
/// # Errors
/// If a value is not allowed, there are too many points, or a run does not end.
pub fn sweep(file: &File, axes: &[Axis], threads: usize) -> Result<Table> {
    let points = points(axes)?;
    // All are checked before any is run: an error in the last value should not cost an hour.
    let scenario = |i| file_at(file, axes, i)?.scenario();
    let scenarios = logs::once(|| (0..points).map(scenario).collect::<Result<Vec<_>>>())?;
    same_kind(&scenarios)?;
    let runs = run_all(&scenarios, threads)?;
    let mut rows = Vec::new();
    for (i, run) in runs.into_iter().enumerate() {
        let labels = labels(axes, i);
        rows.extend(run.into_iter().map(|row| [labels.clone(), row].concat()));
    }
    let columns = scenarios.first().map_or(&[][..], |s| s.columns());
    let header: Vec<&str> = axes.iter().map(|a| a.key.as_str()).chain(columns.iter().copied()).collect();
    Ok(Table::new(&header, rows))
}

/// Every point of the grid under the same seeds, from the scenario's on.
///
/// # Errors
/// As for [`sweep`], or if the grid has seeds.
pub fn sweep_seeds(file: &File, axes: &[Axis], seeds: u64, threads: usize) -> Result<Replicated> {
    let points = points(axes)?;
    if axes.iter().any(|axis| axis.key == "seed") {
        return Err(Error::Usage("--seeds and --set seed=... are given: choose one of them".into()));
    }
    replications::limit(points, "points", seeds)?;
    let files = (0..points).map(|i| file_at(file, axes, i)).collect::<Result<Vec<_>>>()?;
    let keys: Vec<&str> = axes.iter().map(|axis| axis.key.as_str()).collect();
    replicate(&keys, (0..points).map(|i| labels(axes, i)).collect(), &files, seeds, threads)
}

/// Each file under `seeds` seeds; the first is what the others are compared with.
fn replicate(
    keys: &[&str],
    labels: Vec<Vec<String>>,
    files: &[File],
    seeds: u64,
    threads: usize,
) -> Result<Replicated> {
    let seeded = |file| replications::seeded(file, seeds);
    let scenarios = logs::once(|| files.iter().map(seeded).collect::<Result<Vec<_>>>())?;
    let scenarios: Vec<Scenario> = scenarios.into_iter().flatten().collect();
    same_kind(&scenarios)?;
    let mut runs = run_all(&scenarios, threads)?.into_iter();
    let sample = |label| Sample { label, runs: runs.by_ref().take(seeds as usize).collect() };
    let samples: Vec<Sample> = labels.into_iter().map(sample).collect();
    Ok(replications::table(keys, &scenarios[0], &samples))
}

fn file_at(file: &File, axes: &[Axis], index: usize) -> Result<File> {
    let mut file = file.clone();
    for (axis, choice) in axes.iter().zip(point(axes, index)) {
        file.set_value(&axis.key, choice.value.clone())?;
    }
    Ok(file)
}

/// The rows of each run, or the first error. Other data about a run is dropped when it ends.
fn run_all(scenarios: &[Scenario], threads: usize) -> Result<Vec<Rows>> {
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
        let axes = [Axis::parse("a=1,2").expect("valid"), Axis::parse("b=x,y,z").expect("valid")];
        let all: Vec<String> = (0..6).map(|i| labels(&axes, i).concat()).collect();
        assert_eq!(all, ["1x", "1y", "1z", "2x", "2y", "2z"]);
    }

    #[test]
    fn an_axis_needs_a_key_and_values() {
        let error = Axis::parse("a=").expect_err("no values");
        assert_eq!(error.to_string(), "--set a=: KEY=V1,V2,... is needed");
        let error = Axis::of("a", Vec::new()).expect_err("no values");
        assert_eq!(error.to_string(), "a: at least one value is needed");
    }

    #[test]
    fn values_of_other_languages_are_shown_as_those_of_the_command() {
        let of = Axis::of("a", vec![5.into(), 0.5.into(), "x".into(), true.into()]).expect("valid");
        assert_eq!(of, Axis::parse("a=5,0.5,x,true").expect("valid"));
    }
}
