//! Planners on random clusters: one against each of the others.

use std::path::PathBuf;

use clap::Args;
use forebay_policy::phases::EARLIER_MAX;
use forebay_policy::planner;

use super::super::Output;
use super::{Systems, TEST};
use crate::colocate::knowledge::Knowledge;
use crate::csv::exact;
use crate::error::Result;
use crate::estimate::Estimate;
use crate::random::clusters::{Against, Family, Made, best, equal_shares_s};
use crate::random::rhythm::Rhythm;
use crate::random::{bound, deadline_bound};

/// Options of `random planners`.
#[derive(Args, Debug)]
pub struct PlannersArgs {
    #[command(flatten)]
    systems: Systems,
    /// The planner that the others are compared with
    #[arg(long, default_value = "forebay")]
    policy: String,
    /// Deadline of a phase, in percent beyond its time alone
    #[arg(long, default_value_t = 5.0, value_parser = percent)]
    allowance_percent: f64,
    /// How HPC phases divide the file system
    #[arg(long, default_value = "fair-share")]
    bandwidth: String,
    /// Each compute time between phases differs from its mean by up to this part, in percent
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    period_error: f64,
    /// Phases vary as in these logs of Darshan (text), job after job in the next one
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "period_error")]
    logs: Vec<PathBuf>,
    /// What planners know of coming phases: the means as declared, what is predicted from earlier
    /// ones, or when the next begins; but for `declared`, also how that compares with `true`
    #[arg(long, default_value = "declared", value_parser = knowledge)]
    knowledge: Knowledge,
    /// With `predicted`: so many phases of an earlier run of each HPC job are known
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=EARLIER_MAX as i64))]
    earlier: u32,
}

const COLUMNS: [&str; 18] = [
    "policy",
    "map_s",
    "change_percent",
    "change_low",
    "change_high",
    "difference",
    "slower",
    "worst_percent",
    "slower_no_fewer_missed",
    "worst_no_fewer_missed_percent",
    "deadlines_missed",
    "missed_beside_fetch",
    "phases",
    "worst_stretch",
    "bound_percent",
    "reached_percent",
    "in_time_bound_percent",
    "in_time_reached_percent",
];
/// Columns of the comparison with true knowledge.
const TRUE_COLUMNS: [&str; 5] = [
    "true_change_percent",
    "of_true_percent",
    "against_true_percent",
    "gain_of_true_percent",
    "kept_of_true_percent",
];
/// The row of the best among the others.
const BEST: &str = "best-in-time";
const ROW_COLUMNS: [&str; 7] =
    ["number", "policy", "hpc_jobs", "jobs", "map_s", "deadlines_missed", "missed_beside_fetch"];

fn percent(text: &str) -> std::result::Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| "a number is needed".to_string())?;
    match (0.0..=1000.0).contains(&percent) {
        true => Ok(percent),
        false => Err("from 0 to 1000".into()),
    }
}

fn share(text: &str) -> std::result::Result<f64, String> {
    percent(text).ok().filter(|percent| *percent <= 100.0).ok_or_else(|| "from 0 to 100".into())
}

fn knowledge(text: &str) -> std::result::Result<Knowledge, String> {
    let names = Knowledge::ALL.map(|k| k.0).join(", ");
    Knowledge::called(text).ok_or_else(|| format!("one of {names} is needed"))
}

pub fn planners(args: &PlannersArgs, out: &mut Output<'_>) -> Result<()> {
    let names: Vec<&str> = planner::POLICIES.iter().map(|p| p.0).collect();
    let policies = args.systems.policies(&names)?;
    let others: Vec<String> = policies.into_iter().filter(|name| *name != args.policy).collect();
    let family = family(args)?;
    // The policy in question comes first.
    let of = |number: u64| -> Result<Cluster> {
        let made_by = |family: &Family| {
            let policies = [&args.policy].into_iter().chain(&others);
            policies.map(|policy| Made::of(&family.cluster(number, policy))).collect::<Result<Vec<_>>>()
        };
        let made = made_by(&family)?;
        let true_family = Family { knowledge: Knowledge::True, ..family.clone() };
        let made_if_true = if args.is_uncertain() { made_by(&true_family)? } else { Vec::new() };
        let cluster = family.cluster(number, &args.policy);
        let least_s = [bound::map_s(&cluster), deadline_bound::map_s(&cluster)];
        Ok(Cluster { number, made, made_if_true, shares_s: equal_shares_s(&cluster)?, least_s })
    };
    let clusters = args.systems.run(of)?;
    summary(args, rows(&family, &args.policy, &others, &clusters), &others, &clusters, out)
}

impl PlannersArgs {
    /// Returns whether planners may expect phases differently from how they come.
    fn is_uncertain(&self) -> bool {
        match self.knowledge {
            Knowledge::Declared => self.period_error > 0.0 || !self.logs.is_empty(),
            Knowledge::Predicted { .. } => true,
            Knowledge::True => false,
        }
    }
}

/// A cluster.
struct Cluster {
    number: u64,
    /// What each policy made of it.
    made: Vec<Made>,
    /// What each policy made of it with true knowledge, if that makes a difference.
    made_if_true: Vec<Made>,
    /// Map times on equal shares.
    shares_s: Vec<f64>,
    /// Two lower bounds on the sum of map times: for any planner, and for any planner with which
    /// every phase is in time beside which a byte is moved.
    least_s: [f64; 2],
}

impl Cluster {
    /// Among the others that keep as many deadlines, and make as few phases late that they fetch
    /// beside, the one with the least map times.
    fn best_in_time(&self) -> Option<&Made> {
        let (own, others) = self.made.split_first()?;
        best(own, others.iter(), true)
    }
}

/// One row for each cluster and policy.
fn rows(family: &Family, policy: &str, others: &[String], clusters: &[Cluster]) -> Vec<Vec<String>> {
    let policies: Vec<&str> = [policy].into_iter().chain(others.iter().map(String::as_str)).collect();
    let mut rows = Vec::new();
    for Cluster { number, made, .. } in clusters {
        let setup = family.cluster(*number, policy);
        for (policy, made) in policies.iter().zip(made) {
            rows.push(vec![
                number.to_string(),
                policy.to_string(),
                setup.hpc.len().to_string(),
                setup.jobs.len().to_string(),
                exact(made.sum_s()),
                made.missed.to_string(),
                made.missed_beside.to_string(),
            ]);
        }
    }
    rows
}

fn summary(
    args: &PlannersArgs,
    each: Vec<Vec<String>>,
    others: &[String],
    clusters: &[Cluster],
    out: &mut Output<'_>,
) -> Result<()> {
    let row_of = |name: &str, made: Vec<(&Cluster, &Made)>, middle: Vec<String>| {
        let sum = |value: &dyn Fn(&Made) -> f64| made.iter().map(|(_, made)| value(made)).sum::<f64>();
        let mut row = vec![name.to_owned(), format!("{:.0}", sum(&Made::sum_s))];
        row.extend(middle);
        row.push(sum(&|made| made.missed as f64).to_string());
        row.push(sum(&|made| made.missed_beside as f64).to_string());
        row.push(sum(&|made| made.phases as f64).to_string());
        let stretches = made.iter().map(|(cluster, made)| made.stretch(&cluster.shares_s));
        row.push(format!("{:.2}", stretches.fold(0.0, f64::max)));
        row
    };
    let row = |name: &str, of: usize, middle: Vec<String>| {
        row_of(name, clusters.iter().map(|c| (c, &c.made[of])).collect(), middle)
    };
    let if_true = |of: usize, change: Option<f64>| match args.is_uncertain() {
        true => true_cells(clusters, of, change).to_vec(),
        false => Vec::new(),
    };
    let ours = row(&args.policy, 0, vec!["-".into(); 8]);
    let mut rows = vec![[ours, vec!["-".into(); 4], if_true(0, None)].concat()];
    let mut worst = Vec::new();
    for (o, other) in others.iter().enumerate() {
        let mut against = Against::default();
        clusters.iter().for_each(|c| against.add(c.number, &c.made[0], &c.made[o + 1]));
        let of_bound = |which: usize| {
            let least = clusters.iter().map(|c| c.least_s[which] / c.made[o + 1].sum_s());
            let bound = Estimate::change_percent(&least.collect::<Vec<_>>()).mean;
            let reached = 100.0 * against.change_percent().mean / bound;
            [format!("{bound:.2}"), format!("{reached:.1}")]
        };
        let bounds = [of_bound(0), of_bound(1)].concat();
        let change = against.change_percent().mean;
        rows.push([row(other, o + 1, cells(&against)), bounds, if_true(o + 1, Some(change))].concat());
        worst.extend(against.slower_for_nothing.first().and(against.worst_for_nothing).map(|(_, number)| {
            let PlannersArgs { policy, allowance_percent, bandwidth, period_error, knowledge, earlier, systems, logs } = args;
            let seed = systems.seed;
            let known = format!(" --knowledge {} --earlier {earlier}", knowledge.name());
            let phases = match (*period_error > 0.0, *knowledge == Knowledge::default()) {
                _ if !logs.is_empty() => format!(" --logs {}{known}", text_of(logs)),
                (false, true) => String::new(),
                _ => format!(" --period-error {period_error}{known}"),
            };
            format!(
                "worst against {other} without fewer missed deadlines: forebay sim random planners --policy {policy} --policies {other} --seed {seed} --allowance-percent {allowance_percent} --bandwidth {bandwidth}{phases} --first {number} --count 1"
            )
        }));
    }
    let in_time: Vec<(&Cluster, &Made)> =
        clusters.iter().filter_map(|c| Some((c, c.best_in_time()?))).collect();
    if !in_time.is_empty() {
        let mut against = Against::default();
        in_time.iter().for_each(|(c, made)| against.add(c.number, &c.made[0], made));
        let rest = vec!["-".into(); rows[0].len() - 14];
        rows.push([row_of(BEST, in_time, cells(&against)), rest].concat());
    }
    let columns = [&COLUMNS[..], if args.is_uncertain() { &TRUE_COLUMNS } else { &[] }].concat();
    let (count, seed, policy) = (clusters.len(), args.systems.seed, &args.policy);
    let first =
        format!("{count} random clusters of seed {seed}; changes are those of {policy} against each policy");
    let best = format!(
        "{BEST}: the best of them in each cluster that misses no more deadlines than {policy}, in all and beside a fetch; only clusters that have one"
    );
    let mut notes = vec![
        first.as_str(),
        "bound_percent: no planner has a smaller sum, whatever deadlines it misses; reached_percent: the change in percent of that",
        "in_time_: the same for planners with which every phase is in time beside which bytes are moved",
        &best,
    ];
    notes.extend(args.is_uncertain().then_some(
        "true_change_percent: the change if both know when phases begin; of_true_percent: the change in percent of that; against_true_percent, gain_of_true_percent: the same if only the other planner has true knowledge; kept_of_true_percent: deadlines kept, in percent of those that the same policy keeps then",
    ));
    notes.push(TEST);
    notes.extend(worst.iter().map(String::as_str));
    args.systems.publish(out, (&ROW_COLUMNS, each), (&columns, &rows), &notes)
}

/// What policy `of` makes with true knowledge, compared with `change`, the change of the policy in
/// question.
fn true_cells(clusters: &[Cluster], of: usize, change: Option<f64>) -> [String; 5] {
    let kept = |made: &dyn Fn(&Cluster) -> &Made| -> usize {
        clusters.iter().map(made).map(|made| made.phases - made.missed).sum()
    };
    let kept = 100.0 * kept(&|c| &c.made[of]) as f64 / kept(&|c| &c.made_if_true[of]) as f64;
    let against_true = |ours: &dyn Fn(&Cluster) -> &Made| {
        let mut against = Against::default();
        clusters.iter().for_each(|c| against.add(c.number, ours(c), &c.made_if_true[of]));
        against.change_percent().mean
    };
    let [if_true, own] = [against_true(&|c| &c.made_if_true[0]), against_true(&|c| &c.made[0])];
    let share = |change: f64| format!("{:.1}", 100.0 * change / if_true);
    let [change, of_true, own, gain] = match change {
        Some(change) => [format!("{if_true:.2}"), share(change), format!("{own:.2}"), share(own)],
        None => [(); 4].map(|()| "-".into()),
    };
    [change, of_true, own, gain, format!("{kept:.2}")]
}

/// Names of files, as on a command line.
fn text_of(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// The middle columns of a policy's row.
fn cells(against: &Against) -> Vec<String> {
    let percent = |worst: Option<(f64, u64)>| {
        worst.map_or("-".into(), |(ratio, _)| format!("{:.2}", 100.0 * (ratio - 1.0)))
    };
    let change = against.change_percent();
    let mut cells = change.cells(2).to_vec();
    cells.extend([
        change.difference().word().into(),
        against.slower.len().to_string(),
        percent(against.worst),
        against.slower_for_nothing.len().to_string(),
        percent(against.worst_for_nothing),
    ]);
    cells
}

fn family(args: &PlannersArgs) -> Result<Family> {
    Ok(Family {
        seed: args.systems.seed,
        allowance: args.allowance_percent / 100.0,
        bandwidth: args.bandwidth.clone(),
        period_error: args.period_error / 100.0,
        rhythms: args.logs.iter().map(|path| Rhythm::read(path)).collect::<Result<_>>()?,
        knowledge: args.knowledge.with_earlier(args.earlier),
    })
}
