//! Policies of shipping on random systems, against one of them.

use clap::Args;
use forebay_policy::ship;

use super::super::Output;
use super::{Systems, TEST};
use crate::csv::exact;
use crate::error::Result;
use crate::estimate::Estimate;
use crate::random::ships::{Made, better, run};
use crate::random::steps::above;

/// Options of `random shipping`.
#[derive(Args, Debug)]
pub struct ShippingArgs {
    #[command(flatten)]
    systems: Systems,
    /// The policy that is compared with the others
    #[arg(long, default_value = "estimate")]
    policy: String,
}

const COLUMNS: [&str; 11] = [
    "policy",
    "sum_s",
    "change_percent",
    "change_low",
    "change_high",
    "difference",
    "slower",
    "worst_percent",
    "slowdown_percent",
    "slowdown_low",
    "slowdown_high",
];
const ROW_COLUMNS: [&str; 6] = ["number", "policy", "jobs", "sum_s", "longest_s", "slowdown"];

pub fn shipping(args: &ShippingArgs, out: &mut Output<'_>) -> Result<()> {
    let Systems { seed, .. } = args.systems;
    let known: Vec<&str> = ship::POLICIES.iter().map(|p| p.0).collect();
    let names = args.systems.policies(&known)?;
    let of = |policy: &str| args.systems.run(|number| run(seed, number, policy));
    let ours = of(&args.policy)?;
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for name in &names {
        let made = of(name)?;
        rows.push(row(name, &made, &ours));
        all.extend(args.systems.rows(&made, |number, made| system(number, name, made)));
    }
    let (never, always) = (of("never")?, of("always")?);
    let either: Vec<Made> = never.iter().zip(&always).map(|(a, b)| better(a, b)).collect();
    rows.push(row("(better)", &either, &ours));
    let (count, policy) = (ours.len(), &args.policy);
    let notes: [&str; 4] = [
        &format!("{count} random systems of seed {seed}; changes are those of {policy} against each policy"),
        "(better): never or always, whichever has the smaller sum in the system",
        "slowdown_: how much longer than alone the I/O phases beside the jobs take, means",
        TEST,
    ];
    args.systems.publish(out, (&ROW_COLUMNS, all), (&COLUMNS, &rows), &notes)
}

/// A system under a policy.
fn system(number: u64, policy: &str, made: &Made) -> Vec<String> {
    let numbers = [made.sum_s, made.longest_s, made.slowdown].map(exact);
    [vec![number.to_string(), policy.to_owned(), made.jobs.to_string()], numbers.to_vec()].concat()
}

/// One row for a policy, with the changes of `ours` against it.
fn row(name: &str, made: &[Made], ours: &[Made]) -> Vec<String> {
    let ratios: Vec<f64> = ours.iter().zip(made).map(|(a, b)| a.sum_s / b.sum_s).collect();
    let change = Estimate::change_percent(&ratios);
    let slower = above(&ratios);
    let worst = 100.0 * (ratios.iter().copied().fold(0.0, f64::max) - 1.0);
    let slowdown: Vec<f64> = made.iter().map(|made| 100.0 * (made.slowdown - 1.0)).collect();
    let mut row = vec![name.to_owned(), format!("{:.0}", made.iter().map(|made| made.sum_s).sum::<f64>())];
    row.extend(change.cells(2));
    row.extend([change.difference().word().into(), slower.to_string(), format!("{worst:.2}")]);
    row.extend(Estimate::of(&slowdown).cells(2));
    row
}
