//! Held-out random systems: what the documents say of our policies, on systems that nobody has
//! seen.
//!
//! The report uses one seed, so that it has the same bytes every time; `make test-random` uses the
//! seed of the day. Targets are judged on 95 % confidence intervals over the systems.

use crate::error::Result;
use crate::estimate::Estimate;
use crate::parallel::{in_parallel, threads};
use crate::random::clusters::{self, Against, Made};
use crate::random::steps::{self, Kind};
use crate::random::{allocations, bound, loads};
use crate::report::{Record, Report};

/// Seed of the report.
const SEED: u64 = 20_261_124;
const CLUSTERS: usize = 40;
const WORKLOADS: usize = 40;
const LOADS: usize = 20;
/// The mean tier of the memory law, in percent of the clairvoyant's.
const TIER_PERCENT: f64 = 98.0;

/// Adds the part to the report.
///
/// # Errors
/// If a run does not end.
pub fn run(report: &mut Report) -> Result<()> {
    report.heading(2, "Held-out random systems");
    report.text(&format!(
        "{CLUSTERS} clusters, {WORKLOADS} workloads of each kind and {LOADS} loads of seed {SEED}, on which no constant was chosen; \
         `forebay sim random` runs more of them. Changes are geometric means of ratios."
    ));
    report.records(study(SEED)?);
    Ok(())
}

/// All results of a seed.
///
/// # Errors
/// If a run does not end.
pub fn study(seed: u64) -> Result<Vec<Record>> {
    let mut records = planners(seed)?;
    records.extend(access(seed)?);
    records.extend(allocation(seed)?);
    records.push(memory(seed)?);
    Ok(records)
}

fn all<T: Send>(count: usize, of: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    in_parallel(count, threads(None), |i| of(i as u64)).into_iter().collect()
}

/// A change that should be below zero.
fn lower(id: String, change: &Estimate, unit: &str) -> Record {
    let met = change.below(0.0);
    Record::checked(id, change.mean, unit, "the interval is below 0", met).over(change)
}

fn planners(seed: u64) -> Result<Vec<Record>> {
    let family = clusters::Family { seed, allowance: 0.05, bandwidth: "fair-share".into() };
    let made = |policy: &str| all(CLUSTERS, |number| Made::of(&family.cluster(number, policy)));
    let ours = made("forebay")?;
    let mut records = Vec::new();
    for other in ["eley", "full-delay", "eley-direct"] {
        let (mut against, theirs) = (Against::default(), made(other)?);
        (0..).zip(ours.iter().zip(&theirs)).for_each(|(number, (a, b))| against.add(number, a, b));
        if other == "eley" {
            let least = (0..)
                .zip(&theirs)
                .map(|(number, theirs)| bound::map_s(&family.cluster(number, other)) / theirs.sum_s());
            let least = Estimate::change_percent(&least.collect::<Vec<_>>());
            let unit = "% map time against eley that no planner is below";
            records.push(Record::reported("held-out/planners/bound", least.mean, unit).over(&least));
        }
        let (id, change) = (format!("held-out/planners/{other}"), against.change_percent());
        let unit = "% map time of forebay against it";
        records.push(match other {
            "eley-direct" => Record::reported(id, change.mean, unit).over(&change),
            _ => lower(id, &change, unit),
        });
    }
    let beside = ours.iter().map(|made| made.missed_beside).sum::<usize>();
    let id = "held-out/planners/missed-beside-a-fetch";
    records.push(Record::checked(id, beside as f64, "phases", "none", beside == 0));
    Ok(records)
}

/// The change of the sums of I/O times.
fn change(ours: &[steps::Made], base: &[steps::Made]) -> Estimate {
    Estimate::change_percent(&ours.iter().zip(base).map(|(a, b)| a.sum_s / b.sum_s).collect::<Vec<_>>())
}

fn access(seed: u64) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for (kind, name) in [(Kind::Arrivals, "arrivals"), (Kind::Closed, "closed"), (Kind::Batch, "batch")] {
        let family = steps::Family { seed, kind };
        let made = |policy: &str| all(WORKLOADS, |number| family.run(number, policy));
        let (none, sjf, ours) = (made("none")?, made("sa-sjf")?, made("coflow")?);
        let unit = "% sum of I/O times against none";
        let least: Vec<f64> = none.iter().map(|made| made.least_s / made.sum_s).collect();
        let least = Estimate::change_percent(&least);
        let id = format!("held-out/access/{name}/bound");
        records.push(
            Record::reported(id, least.mean, "% sum of I/O times that no policy is below").over(&least),
        );
        records.push(lower(format!("held-out/access/{name}/coflow"), &change(&ours, &none), unit));
        let sjf = change(&sjf, &none);
        records.push(Record::reported(format!("held-out/access/{name}/sa-sjf"), sjf.mean, unit).over(&sjf));
    }
    Ok(records)
}

/// Where clients limit the jobs: without that the allocation is `full`.
fn allocation(seed: u64) -> Result<Vec<Record>> {
    let family = allocations::Family { steps: steps::Family { seed, kind: Kind::Arrivals }, limited: true };
    let made = |policy: &str| all(WORKLOADS, |number| family.run(number, policy));
    let against = |access: &str, other: &str| -> Result<Estimate> {
        Ok(change(&made(&format!("forebay/{access}"))?, &made(&format!("{other}/{access}"))?))
    };
    let unit = "% sum of I/O times of forebay against it, clients limited";
    let shared = against("coflow", "full")?;
    Ok(vec![
        lower("held-out/allocation/full/sa-sjf".into(), &against("sa-sjf", "full")?, unit),
        lower("held-out/allocation/striped/sa-sjf".into(), &against("sa-sjf", "striped")?, unit),
        Record::reported("held-out/allocation/full/coflow", shared.mean, unit).over(&shared),
    ])
}

fn memory(seed: u64) -> Result<Record> {
    let family = loads::Family { seed, at_once: false };
    let tiers = all(LOADS, |number| Ok(family.run(number, "forebay")?.tier_percent()))?;
    let tier = Estimate::of(&tiers);
    let met = tier.interval.is_some_and(|(low, _)| low >= TIER_PERCENT);
    let target = format!("the interval is above {TIER_PERCENT}");
    let unit = "% of the clairvoyant's tier, mean";
    Ok(Record::checked("held-out/memory/forebay", tier.mean, unit, target, met).over(&tier))
}
