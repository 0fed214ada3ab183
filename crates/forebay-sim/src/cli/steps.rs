//! `sim steps`: access policies on random workloads of shared burst buffers.

use forebay_policy::access;

use super::{Output, StepsArgs, say, table};
use crate::burst::random::{Family, Made};
use crate::error::{Error, Result};

const COLUMNS: [&str; 9] = [
    "policy",
    "workloads",
    "sum_percent",
    "worse",
    "worst_percent",
    "longest_percent",
    "longest_worse",
    "longest_worst_percent",
    "slowdown_percent",
];

/// Sums that differ by less than this part are equal: events have whole nanoseconds.
const EQUAL: f64 = 1e-6;
const BASE: &str = "none";

pub fn steps(args: &StepsArgs, out: &mut Output<'_>) -> Result<()> {
    let family = Family { seed: args.seed, kind: args.kind };
    let names: Vec<String> = match args.policies.is_empty() {
        true => access::POLICIES.iter().map(|p| p.0.to_string()).filter(|p| p != BASE).collect(),
        false => args.policies.clone(),
    };
    let base = run(&family, BASE, args)?;
    let mut rows = Vec::new();
    for name in &names {
        rows.push(row(name, &run(&family, name, args)?, &base));
    }
    let alone =
        |made: &Made| Made { sum_s: made.alone_s, longest_s: made.longest_alone_s, slowdown: 1.0, ..*made };
    rows.push(row("(bound: alone)", &base.iter().map(alone).collect::<Vec<_>>(), &base));
    table(out, &COLUMNS, &rows)?;
    if out.json {
        return Ok(());
    }
    let steps: usize = base.iter().map(|made| made.steps).sum();
    say(out, &format!("{steps} steps, seed {}; I/O times against '{BASE}', geometric means", args.seed))
}

/// All workloads under one policy, in as many threads as there are cores.
fn run(family: &Family, policy: &str, args: &StepsArgs) -> Result<Vec<Made>> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
    let end = args.first.saturating_add(args.count);
    let deal = |lane: u64| -> Vec<(u64, Result<Made>)> {
        let numbers = (args.first + lane..end).step_by(cores as usize);
        numbers.map(|number| (number, family.run(number, policy))).collect()
    };
    let mut all: Vec<(u64, Result<Made>)> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..cores).map(|lane| scope.spawn(move || deal(lane))).collect();
        let joined = lanes.into_iter().map(|l| l.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        joined.flatten().collect()
    });
    all.sort_by_key(|made| made.0);
    let made: Vec<Made> = all.into_iter().map(|made| made.1).collect::<Result<_>>()?;
    match made.is_empty() {
        true => Err(Error::Usage("no workload is to be run: give a count of at least 1".into())),
        false => Ok(made),
    }
}

fn row(name: &str, made: &[Made], base: &[Made]) -> Vec<String> {
    let ratios =
        |of: fn(&Made) -> f64| -> Vec<f64> { made.iter().zip(base).map(|(a, b)| of(a) / of(b)).collect() };
    let percent = |ratio: f64| format!("{:.2}", 100.0 * (ratio - 1.0));
    let mean =
        |all: &[f64]| percent((all.iter().map(|r| r.ln()).sum::<f64>() / all.len().max(1) as f64).exp());
    let worse = |all: &[f64]| all.iter().filter(|r| **r > 1.0 + EQUAL).count().to_string();
    let worst = |all: &[f64]| percent(all.iter().copied().fold(0.0, f64::max));
    let (sum, longest, slowdown) = (ratios(|m| m.sum_s), ratios(|m| m.longest_s), ratios(|m| m.slowdown));
    vec![
        name.into(),
        made.len().to_string(),
        mean(&sum),
        worse(&sum),
        worst(&sum),
        mean(&longest),
        worse(&longest),
        worst(&longest),
        mean(&slowdown),
    ]
}
