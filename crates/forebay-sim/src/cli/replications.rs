//! Several seeds of one scenario: means with confidence intervals, and paired changes.
//!
//! The same seed draws the same phases, orders and failures under every setting. So two settings
//! are compared seed by seed, which takes out what the seeds differ by.

use std::fs;
use std::path::Path;

use super::kinds::Done;
use super::{Output, csv, say, table};
use crate::error::{Error, Result};
use crate::estimate::Estimate;
use crate::scenario::{File, Scenario};

/// Columns that say whose row it is; all others but the seed are measures.
const IDENTITY: [&str; 6] = ["policy", "allocation", "access", "kind", "name", "job"];
/// Those of them that are part of a setting: they differ between what is compared.
const SETTINGS: [&str; 3] = ["policy", "allocation", "access"];
const MEASURED: [&str; 10] = [
    "measure",
    "mean",
    "low",
    "high",
    "seeds",
    "change_in",
    "change",
    "change_low",
    "change_high",
    "difference",
];

/// A setting, and its rows under each seed.
pub struct Sample {
    /// Values of the swept keys.
    pub label: Vec<String>,
    /// `[seed][row][column]`
    pub runs: Vec<Vec<Vec<String>>>,
}

/// The scenario with each of its seeds: the file's, and the next ones.
pub fn seeded(file: &File, seeds: u64) -> Result<Vec<Scenario>> {
    let first = file.scenario()?.seed();
    let with = |i| {
        let mut file = file.clone();
        file.set("seed", &first.saturating_add(i).to_string())?;
        file.scenario()
    };
    (0..seeds).map(with).collect()
}

/// Writes one row per setting, job and measure. `keys` are those of the labels.
pub fn show(
    keys: &[&str],
    scenario: &Scenario,
    samples: &[Sample],
    to: Option<&Path>,
    out: &mut Output<'_>,
) -> Result<()> {
    let columns = scenario.columns();
    let identity: Vec<usize> = (0..columns.len()).filter(|&c| IDENTITY.contains(&columns[c])).collect();
    let names = identity.iter().map(|&c| columns[c]);
    let header: Vec<&str> = keys.iter().copied().chain(names).chain(MEASURED).collect();
    let rows: Vec<Vec<String>> =
        samples.iter().flat_map(|sample| of_sample(columns, &identity, sample, &samples[0])).collect();
    match to {
        Some(path) => fs::write(path, csv(&header, &rows)).map_err(Error::io("write the rows to", path))?,
        None => table(out, &header, &rows)?,
    }
    if out.json {
        return Ok(());
    }
    if samples.iter().all(|s| s.runs.windows(2).all(|w| same_but_for_the_seed(columns, &w[0], &w[1]))) {
        return say(out, "every seed gives the same run: nothing in this scenario is random");
    }
    say(
        out,
        "low, high: 95 % confidence interval over the seeds. change: against the first setting, paired by seed, of logarithms where all values are positive. difference: paired t test, 5 %",
    )
}

fn same_but_for_the_seed(columns: &[&str], a: &[Vec<String>], b: &[Vec<String>]) -> bool {
    let rest = |row: &Vec<String>| -> Vec<String> {
        row.iter()
            .zip(columns)
            .filter(|(_, column)| **column != "seed")
            .map(|(cell, _)| cell.clone())
            .collect()
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| rest(a) == rest(b))
}

fn of_sample(columns: &[&str], identity: &[usize], sample: &Sample, base: &Sample) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for row in sample.runs.first().into_iter().flatten() {
        let who: Vec<(usize, &str)> = identity
            .iter()
            .filter(|&&c| !SETTINGS.contains(&columns[c]))
            .map(|&c| (c, row[c].as_str()))
            .collect();
        for (c, column) in
            columns.iter().enumerate().filter(|(c, name)| !identity.contains(c) && **name != "seed")
        {
            let (ours, theirs) = (values(sample, &who, c), values(base, &who, c));
            let known: Vec<f64> = ours.iter().copied().flatten().collect();
            if known.is_empty() {
                continue;
            }
            let mut made = sample.label.clone();
            made.extend(identity.iter().map(|&c| row[c].clone()));
            made.push((*column).into());
            made.extend(Estimate::of(&known).cells(4));
            made.push(known.len().to_string());
            made.extend(match std::ptr::eq(sample, base) {
                true => ["-"; 5].map(String::from),
                false => change(&ours, &theirs),
            });
            rows.push(made);
        }
    }
    rows
}

/// The column's value under each seed in the row of `who`; `None` where it has none.
fn values(sample: &Sample, who: &[(usize, &str)], column: usize) -> Vec<Option<f64>> {
    let of = |rows: &Vec<Vec<String>>| {
        let row = rows.iter().find(|row| who.iter().all(|(c, name)| row[*c] == *name))?;
        row[column].parse().ok().filter(|value: &f64| value.is_finite())
    };
    sample.runs.iter().map(of).collect()
}

/// The last five columns.
fn change(ours: &[Option<f64>], theirs: &[Option<f64>]) -> [String; 5] {
    let pairs: Vec<(f64, f64)> = ours.iter().zip(theirs).filter_map(|(a, b)| a.zip(*b)).collect();
    if pairs.is_empty() {
        return ["-"; 5].map(String::from);
    }
    let positive = pairs.iter().all(|(a, b)| *a > 0.0 && *b > 0.0);
    let estimate = match positive {
        true => Estimate::change_percent(&pairs.iter().map(|(a, b)| a / b).collect::<Vec<_>>()),
        false => Estimate::of(&pairs.iter().map(|(a, b)| a - b).collect::<Vec<_>>()),
    };
    let [mean, low, high] = estimate.cells(4);
    let unit = if positive { "percent" } else { "absolute" };
    [unit.into(), mean, low, high, estimate.difference().word().into()]
}

/// The rows of runs that ended, or the first error.
pub fn rows(scenarios: &[Scenario], results: Vec<Result<Done>>) -> Result<Vec<Vec<Vec<String>>>> {
    scenarios.iter().zip(results).map(|(scenario, done)| Ok(scenario.rows(&done?))).collect()
}
