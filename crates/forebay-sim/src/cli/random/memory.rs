//! Memory laws on random loads, beside one that knows the future.

use clap::Args;
use forebay_policy::memory;

use super::super::Output;
use super::Systems;
use crate::error::Result;
use crate::estimate::Estimate;
use crate::memory::{Outcome, view};
use crate::random::loads::Family;

/// Options of `random memory`.
#[derive(Args, Debug)]
pub struct MemoryArgs {
    #[command(flatten)]
    systems: Systems,
    /// Tiers refill and release memory at once instead of at a drawn speed
    #[arg(long)]
    at_once: bool,
}

/// A tier is as large as the clairvoyant's within this many percent, and too small beyond
/// [`BEYOND_PERCENT`].
const WITHIN_PERCENT: f64 = 2.0;
const BEYOND_PERCENT: f64 = 10.0;

const COLUMNS: [&str; 17] = [
    "policy",
    "loads",
    "tier_percent",
    "tier_low",
    "tier_high",
    "worst_percent",
    "within_2_percent",
    "beyond_10_percent",
    "above_s",
    "above_mean_s",
    "above_low",
    "above_high",
    "above_2_percent_s",
    "peak_percent",
    "resizes",
    "fetched_gb",
    "samples",
];

pub fn memory(args: &MemoryArgs, out: &mut Output<'_>) -> Result<()> {
    let family = Family { seed: args.systems.seed, at_once: args.at_once };
    let all: Vec<&str> = memory::POLICIES.iter().map(|p| p.0).collect();
    let names = args.systems.policies(&all)?;
    let (mut rows, mut loads) = (Vec::new(), Vec::new());
    for name in &names {
        let outcomes = args.systems.run(|number| family.run(number, name))?;
        rows.push(row(name, &outcomes));
        for (number, outcome) in args.systems.numbers().zip(&outcomes) {
            let rows = view::rows(&family.node(number, name), outcome);
            loads.extend(rows.into_iter().map(|row| [vec![number.to_string()], row].concat()));
        }
    }
    let refill = if args.at_once { "at once" } else { "at 0.5 to 4 GB/s" };
    let seed = args.systems.seed;
    args.systems.publish(
        out,
        (&[&["number"], &view::COLUMNS[..]].concat(), loads),
        (&COLUMNS, &rows),
        &[
            &format!("random loads of seed {seed}, tiers refill {refill}; sizes against the clairvoyant's"),
            "low, high: 95 % confidence interval of the mean load",
        ],
    )
}

fn row(name: &str, outcomes: &[Outcome]) -> Vec<String> {
    let percent: Vec<f64> = outcomes.iter().map(Outcome::tier_percent).collect();
    let fewer = |by: f64| percent.iter().filter(|p| **p < 100.0 - by).count();
    let sum = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>();
    let above_s: Vec<f64> = outcomes.iter().map(|o| o.above_s).collect();
    let mut row = vec![name.into(), outcomes.len().to_string()];
    row.extend(Estimate::of(&percent).cells(2));
    row.extend([
        format!("{:.2}", percent.iter().copied().fold(f64::INFINITY, f64::min)),
        (outcomes.len() - fewer(WITHIN_PERCENT)).to_string(),
        fewer(BEYOND_PERCENT).to_string(),
        format!("{:.3}", sum(|o| o.above_s)),
    ]);
    row.extend(Estimate::of(&above_s).cells(3));
    row.extend([
        format!("{:.3}", sum(|o| o.far_above_s)),
        format!("{:.2}", 100.0 * outcomes.iter().map(|o| o.peak).fold(0.0, f64::max)),
        outcomes.iter().map(|o| o.resizes.len()).sum::<usize>().to_string(),
        format!("{:.0}", sum(|o| o.fetched_bytes) / 1e9),
        outcomes.iter().map(|o| o.samples).sum::<u64>().to_string(),
    ]);
    row
}
