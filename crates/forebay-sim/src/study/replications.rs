//! Several seeds of one scenario: means with confidence intervals, and paired changes.
//!
//! The same seed draws the same phases, orders and failures under every setting. So two settings
//! are compared seed by seed, which removes the differences between seeds.

use std::collections::BTreeMap;

use super::{MAX_POINTS, MAX_SEEDS, Replicated, Rows};
use crate::error::{Error, Result};
use crate::estimate::Estimate;
use crate::scenario::{File, Scenario};
use crate::table::Table;

/// Columns that identify a row; all others but the seed are measures.
const IDENTITY: [&str; 7] = ["policy", "drain", "allocation", "access", "kind", "name", "job"];
/// The identifying columns that are part of a setting: they differ between what is compared.
const SETTINGS: [&str; 4] = ["policy", "drain", "allocation", "access"];
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
    /// Its rows under each seed.
    pub runs: Vec<Rows>,
}

/// Rows of a sample by identity, under each seed. Among several with the same identity, the first.
struct Index<'a>(Vec<BTreeMap<Vec<&'a str>, &'a [String]>>);

impl<'a> Index<'a> {
    /// `who` are the columns that identify a row.
    fn of(sample: &'a Sample, who: &[usize]) -> Self {
        let of_run = |rows: &'a Rows| {
            let mut by_name = BTreeMap::new();
            for row in rows {
                by_name.entry(name(row, who)).or_insert(row.as_slice());
            }
            by_name
        };
        Index(sample.runs.iter().map(of_run).collect())
    }

    /// The column's value under each seed in the row of this identity; `None` where it has none.
    fn values(&self, name: &[&str], column: usize) -> Vec<Option<f64>> {
        let of = |rows: &BTreeMap<Vec<&str>, &[String]>| {
            rows.get(name)?[column].parse().ok().filter(|value: &f64| value.is_finite())
        };
        self.0.iter().map(of).collect()
    }
}

fn name<'a>(row: &'a [String], who: &[usize]) -> Vec<&'a str> {
    who.iter().map(|&c| row[c].as_str()).collect()
}

/// An error if `settings` settings under `seeds` seeds are more runs than a study may have, or if
/// there is nothing to take a mean of.
pub fn limit(settings: usize, what: &str, seeds: u64) -> Result<()> {
    if !(2..=MAX_SEEDS).contains(&seeds) {
        return Err(Error::Usage(format!("{seeds} seeds: from 2 to {MAX_SEEDS} are needed")));
    }
    match seeds.checked_mul(settings as u64).is_some_and(|runs| runs <= MAX_POINTS as u64) {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "{settings} {what} under {seeds} seeds: at most {MAX_POINTS} runs are allowed"
        ))),
    }
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

/// One row per setting, job and measure. `keys` name the parts of the labels.
pub fn table(keys: &[&str], scenario: &Scenario, samples: &[Sample]) -> Replicated {
    let columns = scenario.columns();
    let identity: Vec<usize> = (0..columns.len()).filter(|&c| IDENTITY.contains(&columns[c])).collect();
    let names = identity.iter().map(|&c| columns[c]);
    let header: Vec<&str> = keys.iter().copied().chain(names).chain(MEASURED).collect();
    let who: Vec<usize> = identity.iter().copied().filter(|&c| !SETTINGS.contains(&columns[c])).collect();
    let base = Index::of(&samples[0], &who);
    let changes = |(i, sample)| of_sample(columns, [&identity, &who], sample, (i > 0).then_some(&base));
    let rows: Rows = samples.iter().enumerate().flat_map(changes).collect();
    let differs = |s: &Sample| s.runs.windows(2).any(|w| !same_but_for_the_seed(columns, &w[0], &w[1]));
    Replicated { table: Table::new(&header, rows), is_random: samples.iter().any(differs) }
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

/// The rows of a sample: `identity` are the columns that identify a row, and `who` those among them
/// that a setting does not change. The first sample has no `base` to be compared with.
fn of_sample(
    columns: &[&str],
    [identity, who]: [&[usize]; 2],
    sample: &Sample,
    base: Option<&Index<'_>>,
) -> Rows {
    let index = Index::of(sample, who);
    let mut rows = Vec::new();
    for row in sample.runs.first().into_iter().flatten() {
        let name = name(row, who);
        for (c, column) in
            columns.iter().enumerate().filter(|(c, name)| !identity.contains(c) && **name != "seed")
        {
            let ours = index.values(&name, c);
            let known: Vec<f64> = ours.iter().copied().flatten().collect();
            if known.is_empty() {
                continue;
            }
            let mut made = sample.label.clone();
            made.extend(identity.iter().map(|&c| row[c].clone()));
            made.push((*column).into());
            made.extend(Estimate::of(&known).cells(4));
            made.push(known.len().to_string());
            made.extend(match base {
                None => ["-"; 5].map(String::from),
                Some(base) => change(&ours, &base.values(&name, c)),
            });
            rows.push(made);
        }
    }
    rows
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

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [&str; 4] = ["policy", "seed", "name", "map_s"];

    /// Searching all rows for each of them did not end within minutes.
    #[test]
    fn samples_of_many_jobs_are_compared() {
        const JOBS: usize = 50_000;
        let rows = |policy: &str, seed: u64, map_s: usize| -> Rows {
            let row = |job: usize| {
                vec![policy.into(), seed.to_string(), format!("job#{job}"), (map_s + job).to_string()]
            };
            (0..JOBS).map(row).collect()
        };
        let sample = |policy, map_s| Sample {
            label: Vec::new(),
            runs: vec![rows(policy, 0, map_s), rows(policy, 1, map_s)],
        };
        let (base, ours) = (sample("eley", 100), sample("forebay", 200));
        let made = of_sample(&COLUMNS, [&[0, 2], &[2]], &ours, Some(&Index::of(&base, &[2])));
        assert_eq!(made.len(), JOBS);
        let last = &made[JOBS - 1];
        assert_eq!(last[..4], ["forebay", "job#49999", "map_s", "50199.0000"]);
        assert_eq!((last[7].as_str(), last[8].as_str()), ("percent", "0.1996"));
    }

    /// Jobs that another setting has in another order, or not at all.
    #[test]
    fn rows_are_found_by_whose_they_are() {
        let row =
            |policy: &str, name: &str, map_s: &str| [policy, "0", name, map_s].map(String::from).to_vec();
        let base = Sample {
            label: Vec::new(),
            runs: vec![vec![row("a", "x", "10"), row("a", "y", "20"), row("a", "x", "30")]],
        };
        let index = Index::of(&base, &[2]);
        assert_eq!(index.values(&["y"], 3), [Some(20.0)]);
        assert_eq!(index.values(&["x"], 3), [Some(10.0)]);
        assert_eq!(index.values(&["z"], 3), [None]);
        assert_eq!(index.values(&["y"], 2), [None]);
    }
}
