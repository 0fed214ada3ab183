//! Access policies on random workloads of shared burst buffers, against one of them.

use clap::Args;
use forebay_policy::burst::access;

use super::super::Output;
use super::{Systems, TEST};
use crate::csv::exact;
use crate::error::{Error, Result};
use crate::estimate::Estimate;
use crate::random::published::Workload;
use crate::random::steps::{Family, Kind, Made, above, change_of, ratios};

/// Options of `random access`.
#[derive(Args, Debug)]
pub struct AccessArgs {
    #[command(flatten)]
    systems: Systems,
    /// When steps arrive
    #[arg(long, value_enum, default_value = "arrivals")]
    kind: Kind,
    /// With `arrivals`: part of the nodes' time that steps need; drawn from 0.3 to 0.95 by default
    #[arg(long, value_parser = load)]
    load: Option<f64>,
    /// With `arrivals`: steps of a published workload
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    /// The policy that the others are compared with
    #[arg(long, default_value = "none")]
    against: String,
}

/// Columns of [`row`].
pub const COLUMNS: [&str; 13] = [
    "policy",
    "workloads",
    "sum_percent",
    "sum_low",
    "sum_high",
    "difference",
    "worse",
    "worst_percent",
    "longest_percent",
    "longest_low",
    "longest_high",
    "longest_worse",
    "longest_worst_percent",
];
const MORE_COLUMNS: [&str; 4] = ["slowdown_percent", "slowdown_low", "slowdown_high", "reached_percent"];

/// Columns of [`workload`].
pub const ROW_COLUMNS: [&str; 5] = ["number", "policy", "steps", "sum_s", "longest_s"];

fn load(text: &str) -> std::result::Result<f64, String> {
    let load = text.parse().ok().filter(|load| (0.01..=2.0).contains(load));
    load.ok_or_else(|| "from 0.01 to 2".into())
}

pub fn access(args: &AccessArgs, out: &mut Output<'_>) -> Result<()> {
    if (args.load.is_some() || args.workload.is_some()) && args.kind != Kind::Arrivals {
        let message = "--load and --workload go with --kind arrivals: the others have no arrivals";
        return Err(Error::Usage(message.into()));
    }
    let AccessArgs { kind, load, workload: published, .. } = *args;
    let family = Family { seed: args.systems.seed, kind, load, published };
    let known: Vec<&str> = access::POLICIES.iter().map(|p| p.0).collect();
    let policies = args.systems.policies(&known)?;
    let names: Vec<String> = policies.into_iter().filter(|name| *name != args.against).collect();
    let base = args.systems.run(|number| family.run_bounded(number, &args.against))?;
    let workloads = |policy: &str, made: &[Made]| {
        let row = |number, made: &Made| [workload(number, policy, made), vec![exact(made.slowdown)]].concat();
        args.systems.rows(made, row)
    };
    let (mut rows, mut all) = (Vec::new(), workloads(&args.against, &base));
    let bound = change_of(&least(&base), &base, |m| m.sum_s).mean;
    let row = |name: &str, made: &[Made]| {
        let change = change_of(made, &base, |m| m.sum_s).mean;
        let reached = format!("{:.1}", 100.0 * change / bound);
        [row(name, made, &base), slowdown(made, &base).to_vec(), vec![reached]].concat()
    };
    for name in &names {
        let made = args.systems.run(|number| family.run(number, name))?;
        rows.push(row(name, &made));
        all.extend(workloads(name, &made));
    }
    rows.push(row("(bound)", &least(&base)));
    let (steps, seed) = (base.iter().map(|made| made.steps).sum::<usize>(), args.systems.seed);
    let against = &args.against;
    args.systems.publish(
        out,
        (&[&ROW_COLUMNS[..], &["slowdown"]].concat(), all),
        (&[&COLUMNS[..], &MORE_COLUMNS].concat(), &rows),
        &[
            &format!("{steps} steps, seed {seed}; I/O times against '{against}', geometric means"),
            "bound: no policy has a smaller sum; the longest step and slowdowns are those of steps alone",
            "reached_percent: the change of the sum in percent of the bound's",
            TEST,
        ],
    )
}

/// A workload under a policy.
pub fn workload(number: u64, policy: &str, made: &Made) -> Vec<String> {
    vec![
        number.to_string(),
        policy.to_owned(),
        made.steps.to_string(),
        exact(made.sum_s),
        exact(made.longest_s),
    ]
}

/// The least that any policy can reach.
fn least(base: &[Made]) -> Vec<Made> {
    let least =
        |made: &Made| Made { sum_s: made.least_s, longest_s: made.longest_alone_s, slowdown: 1.0, ..*made };
    base.iter().map(least).collect()
}

/// The change of slowdowns under a policy against `base`.
fn slowdown(made: &[Made], base: &[Made]) -> [String; 3] {
    change_of(made, base, |m| m.slowdown).cells(2)
}

/// One row for a policy, with its changes against `base`.
pub fn row(name: &str, made: &[Made], base: &[Made]) -> Vec<String> {
    let ratios = |of: fn(&Made) -> f64| ratios(made, base, of);
    let percent = |ratio: f64| format!("{:.2}", 100.0 * (ratio - 1.0));
    let worse = |all: &[f64]| above(all).to_string();
    let worst = |all: &[f64]| percent(all.iter().copied().fold(0.0, f64::max));
    let (sum, longest) = (ratios(|m| m.sum_s), ratios(|m| m.longest_s));
    let [sum_change, longest_change] = [&sum, &longest].map(|ratios| Estimate::change_percent(ratios));
    let mut row = vec![name.into(), made.len().to_string()];
    row.extend(sum_change.cells(2));
    row.extend([sum_change.difference().word().into(), worse(&sum), worst(&sum)]);
    row.extend(longest_change.cells(2));
    row.extend([worse(&longest), worst(&longest)]);
    row
}
