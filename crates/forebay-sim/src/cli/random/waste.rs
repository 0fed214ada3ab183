//! Strategies for checkpoints on random platforms, beside the least waste.

use std::path::PathBuf;

use clap::Args;
use forebay_policy::burst::period::{Policy, demand, periods_ns};

use super::super::{Output, say, table, write};
use super::Systems;
use crate::error::{Error, Result};
use crate::estimate::Estimate;
use crate::plot::boxes::{Boxes, quartiles};
use crate::random::platforms::platform;
use crate::waste::{Outcome, STRATEGIES, Window, bound, simulate, strategy};

/// Options of `random waste`.
#[derive(Args, Debug)]
pub struct WasteArgs {
    #[command(flatten)]
    systems: Systems,
    /// Days that are measured, after five that are not
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
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

const ROW_COLUMNS: [&str; 9] = [
    "number",
    "policy",
    "waste_percent",
    "bound_percent",
    "exact_bound_percent",
    "lost_percent",
    "written_percent",
    "failures",
    "daly_demand",
];

/// A target: the waste is at most so many times the bound.
const MOST: f64 = 1.1;
const DAY_S: f64 = 86_400.0;

/// A run, beside the least waste of the jobs that it had.
struct Made {
    outcome: Outcome,
    bound: f64,
    exact: f64,
    demand: f64,
}

pub fn waste(args: &WasteArgs, out: &mut Output<'_>) -> Result<()> {
    let names: Vec<&str> = STRATEGIES.iter().map(|strategy| strategy.name).collect();
    let (mut rows, mut all, mut series) = (Vec::new(), Vec::new(), Vec::new());
    for name in args.systems.policies(&names)? {
        let made = args.systems.run(|number| run(args, number, &name))?;
        let of_bound: Vec<f64> = made.iter().map(|made| made.outcome.waste() / made.bound).collect();
        rows.push(row(&name, &made, &of_bound));
        all.extend(args.systems.rows(&made, |number, made| platform_row(number, &name, made)));
        series.push((name, of_bound));
    }
    args.systems.write(&ROW_COLUMNS, || all)?;
    args.systems.summarize(&COLUMNS, &rows)?;
    if let Some(path) = &args.figure {
        let title = "Waste of platform time, relative to the bound";
        let marks = vec![("bound".into(), 1.0)];
        let figure = Boxes { title, y_label: "waste / bound", series, most: 4.0, marks }.figure();
        write(path, "write the figure to", &figure.svg)?;
        write(&path.with_added_extension("csv"), "write the figure's data to", &figure.csv)?;
    }
    table(out, &COLUMNS, &rows)?;
    if out.json {
        return Ok(());
    }
    say(out, &format!("random platforms of seed {}, {} days each", args.systems.seed, args.days))?;
    say(out, "of_bound: waste relative to the least waste of checkpoints that go to the PFS, mean")?;
    say(out, "low, high: 95 % confidence interval of the mean platform")
}

fn run(args: &WasteArgs, number: u64, name: &str) -> Result<Made> {
    let seed = args.systems.seed;
    let platform = platform(seed, number);
    let strategy = strategy::find(name)
        .ok_or_else(|| Error::Usage(format!("no strategy for checkpoints is called '{name}'")))?;
    let window =
        Window { seed: seed ^ number, from_s: 5.0 * DAY_S, for_s: f64::from(args.days) * DAY_S };
    let outcome = simulate(&platform, strategy, &window)?;
    let jobs = platform.jobs(&outcome.counts);
    Ok(Made {
        bound: bound::printed(&jobs),
        exact: bound::exact(&jobs),
        demand: demand(&jobs, &periods_ns(Policy::YoungDaly, &jobs)),
        outcome,
    })
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
    let Made { outcome, bound, exact, demand } = made;
    vec![
        number.to_string(),
        name.into(),
        percent(outcome.waste()),
        percent(*bound),
        percent(*exact),
        percent(outcome.lost / outcome.all),
        percent(outcome.written / outcome.all),
        outcome.failures.to_string(),
        format!("{demand:.3}"),
    ]
}
