//! Strategies for checkpoints on random platforms, beside the least waste.

use std::path::PathBuf;

use clap::Args;

use super::super::Output;
use super::Systems;
use crate::error::Result;
use crate::estimate::Estimate;
use crate::plot::boxes::{Boxes, quartiles};
use crate::random::platforms::{Family, Made};
use crate::waste::{Outcome, STRATEGIES};

/// Options of `random waste`.
#[derive(Args, Debug)]
pub struct WasteArgs {
    #[command(flatten)]
    systems: Systems,
    /// Failures of nodes that a run takes in the mean; 30 days at least
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    failures: u32,
    /// Draw the waste of each strategy relative to the bound, as SVG; the data are written to
    /// FILE.csv
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
}

const COLUMNS: [&str; 13] = [
    "policy",
    "platforms",
    "waste_percent",
    "lost_percent",
    "written_percent",
    "of_bound",
    "of_bound_low",
    "of_bound_high",
    "first_quartile",
    "median",
    "third_quartile",
    "worst",
    "above_1_1",
];

const ROW_COLUMNS: [&str; 10] = [
    "number",
    "policy",
    "waste_percent",
    "bound_percent",
    "exact_bound_percent",
    "lost_percent",
    "written_percent",
    "failures",
    "checkpoint_demand",
    "other_demand",
];

/// Target: the waste as a multiple of the bound, at most.
const MOST: f64 = 1.1;

pub fn waste(args: &WasteArgs, out: &mut Output<'_>) -> Result<()> {
    let family = Family { seed: args.systems.seed, failures: args.failures };
    let names: Vec<&str> = STRATEGIES.iter().map(|strategy| strategy.name).collect();
    let (mut rows, mut all, mut series) = (Vec::new(), Vec::new(), Vec::new());
    for name in args.systems.policies(&names)? {
        let made = args.systems.run(|number| family.run(number, &name))?;
        let of_bound: Vec<f64> = made.iter().map(Made::of_bound).collect();
        rows.push(row(&name, &made, &of_bound));
        all.extend(args.systems.rows(&made, |number, made| platform_row(number, &name, made)));
        series.push((name, of_bound));
    }
    if let Some(path) = &args.figure {
        let title = "Waste of platform time, relative to the bound";
        let marks = vec![("bound".into(), 1.0)];
        let figure = Boxes { title, y_label: "waste / bound", series, most: 4.0, marks }.figure();
        figure.write(path, "write the figure to")?;
    }
    let notes: [&str; 3] = [
        &format!("random platforms of seed {}, {} failures each", family.seed, family.failures),
        "of_bound: waste relative to the least waste of checkpoints that go to the PFS, mean",
        "low, high: 95 % confidence interval of the mean platform",
    ];
    args.systems.publish(out, (&ROW_COLUMNS, all), (&COLUMNS, &rows), &notes)
}

fn percent(part: f64) -> String {
    format!("{:.2}", 100.0 * part)
}

fn row(name: &str, made: &[Made], of_bound: &[f64]) -> Vec<String> {
    let mean = |of: fn(&Outcome) -> f64| {
        let values: Vec<f64> = made.iter().map(|made| of(&made.outcome)).collect();
        percent(Estimate::of(&values).mean)
    };
    let mut row = vec![name.into(), made.len().to_string(), mean(Outcome::waste)];
    row.extend([mean(|o| o.lost / o.all), mean(|o| o.written / o.all)]);
    row.extend(Estimate::of(of_bound).cells(3));
    row.extend(quartiles(of_bound)[1..].iter().map(|value| format!("{value:.3}")));
    row.push(of_bound.iter().filter(|ratio| **ratio > MOST).count().to_string());
    row
}

fn platform_row(number: u64, name: &str, made: &Made) -> Vec<String> {
    let Made { outcome, bound, exact, demands: [checkpoints, others] } = made;
    vec![
        number.to_string(),
        name.into(),
        percent(outcome.waste()),
        percent(*bound),
        percent(*exact),
        percent(outcome.lost / outcome.all),
        percent(outcome.written / outcome.all),
        outcome.failures.to_string(),
        format!("{checkpoints:.3}"),
        format!("{others:.3}"),
    ]
}
