//! Held-out random systems: what the documents say about our policies, on systems that nobody has
//! seen.
//!
//! The report uses one seed, so that it has the same bytes every time; `make test-random` uses the
//! seed of the day. Whether there is a change is judged on 95 % confidence intervals over the
//! systems, a target for its size on the mean.

use crate::colocate::Setup;
use crate::error::Result;
use crate::estimate::Estimate;
use crate::parallel::{in_parallel, threads};
use crate::random::clusters::{self, Made, best};
use crate::random::platforms;
use crate::random::published::{self, Workload};
use crate::random::steps::{self, Kind, above, change_of, ratios};
use crate::random::{bound, deadline_bound, loads, ships};
use crate::report::{Record, Report, number};
use crate::reproduce::prediction;

/// Seed of the report.
const SEED: u64 = 20_261_124;
const CLUSTERS: usize = 100;
/// How many times as long as the best of the others counts as above it.
const ABOVE: f64 = 1.005;
const WORKLOADS: usize = 40;
/// Loads of arriving steps, as fractions of the nodes' time.
const ACCESS_LOADS: [f64; 6] = [0.2, 0.4, 0.6, 0.8, 0.95, 0.98];
/// Workloads of each published kind at each load.
const PUBLISHED: usize = 20;
const PREDICTED: usize = 50;
const LOADS: usize = 20;
const PLATFORMS: usize = 20;
const SYSTEMS: usize = 200;
/// The waste of platform time, as a multiple of the bound, and the failures of a run.
const WASTE_OF_BOUND: f64 = 1.1;
const FAILURES: u32 = 300;
/// The mean tier of the memory law, in percent of the clairvoyant's.
const TIER_PERCENT: f64 = 98.0;
/// Targets for the planner's map times against `eley`, and for the sums of I/O times with `coflow`
/// against `none`: means over as many systems as the figures in docs/policies.md.
const PLANNER_PERCENT: f64 = -8.0;
const ACCESS_PERCENT: f64 = -33.0;

/// Adds the part to the report.
///
/// # Errors
/// If a run does not end.
pub fn run(report: &mut Report) -> Result<()> {
    report.heading(2, "Held-out random systems");
    report.text(&format!(
        "{CLUSTERS} clusters (at 5, 15 and 30 %), {PREDICTED} with predicted phases (at 5 %), {WORKLOADS} workloads of each kind, {PUBLISHED} of each published one at each load, {LOADS} loads, {PLATFORMS} platforms and {SYSTEMS} systems whose servers run tasks, of seed {SEED}, on which no constant was chosen; \
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
    records.extend(prediction::records(seed, PREDICTED)?);
    records.extend(access(seed)?);
    records.push(memory(seed)?);
    records.extend(waste(seed)?);
    records.extend(shipping(seed)?);
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

/// A mean that should be at most `most`, beside the bound that limits it.
fn at_most(id: String, change: &Estimate, most: f64, bound: &Estimate) -> Record {
    let share = 100.0 * change.mean / bound.mean;
    let bound = number(bound.mean);
    Record::checked(id, change.mean, "% of the sum, mean", format!("at most {most}"), change.mean <= most)
        .over(change)
        .note(format!("bound {bound} %, {} % of it reached", number(share)))
}

/// A number of systems on which something happens that never should.
fn never(id: String, unit: &str, count: usize) -> Record {
    Record::checked(id, count as f64, unit, "none", count == 0)
}

/// At each allowance, in percent.
fn planners(seed: u64) -> Result<Vec<Record>> {
    let all: Result<Vec<_>> = [5, 15, 30].into_iter().map(|percent| planners_at(seed, percent)).collect();
    Ok(all?.concat())
}

fn planners_at(seed: u64, percent: u32) -> Result<Vec<Record>> {
    let family = clusters::Family::new(seed, f64::from(percent) / 100.0);
    let made = |policy: &str| all(CLUSTERS, |number| Made::of(&family.cluster(number, policy)));
    let id = |what: &str| format!("held-out/planners/{percent}/{what}");
    let ours = made("forebay")?;
    let (mut records, mut others) = (Vec::new(), Vec::new());
    for other in ["eley", "full-delay", "eley-direct", "no-action", "naive-bb"] {
        let theirs = made(other)?;
        let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a.sum_s() / b.sum_s()).collect();
        let (change, unit) = (Estimate::change_percent(&ratios), "% map time of forebay against it");
        records.push(match other {
            "eley-direct" | "no-action" => Record::reported(id(other), change.mean, unit).over(&change),
            _ => lower(id(other), &change, unit),
        });
        if other == "eley" {
            let in_time = bound_of(&family, &theirs, deadline_bound::map_s);
            records.extend([
                bound_record(id("bound"), "no planner is below", &bound_of(&family, &theirs, bound::map_s)),
                bound_record(
                    id("bound-in-time"),
                    "none is below with no phase late beside a transfer",
                    &in_time,
                ),
            ]);
            if percent == 5 {
                records.push(at_most(id("eley/target"), &change, PLANNER_PERCENT, &in_time));
            }
        }
        others.push(theirs);
    }
    for (name, in_time) in [("best-in-time", true), ("best-of-misses", false)] {
        let ratio = |(n, own): (usize, &Made)| {
            let best = best(own, others.iter().map(|made| &made[n]), in_time)?;
            Some(own.sum_s() / best.sum_s())
        };
        let ratios: Vec<f64> = ours.iter().enumerate().filter_map(ratio).collect();
        let change = Estimate::change_percent(&ratios);
        let above = ratios.iter().filter(|ratio| **ratio > ABOVE).count();
        let unit = "% map time of forebay against the best of the others in each cluster";
        let worst = 100.0 * (ratios.iter().copied().fold(0.0, f64::max) - 1.0);
        let note = format!(
            "{} of {CLUSTERS} clusters have one; above it by {} % at most",
            ratios.len(),
            number(worst)
        );
        let (above_id, above_unit) = (id(&format!("{name}/above")), "clusters above it by more than 0.5 %");
        let (mean, above) = match in_time {
            true => (lower(id(name), &change, unit), never(above_id, above_unit, above)),
            false => (
                Record::reported(id(name), change.mean, unit).over(&change),
                Record::reported(above_id, above as f64, above_unit),
            ),
        };
        records.extend([mean.note(note), above]);
    }
    let missed = |of: fn(&Made) -> usize| ours.iter().map(of).sum::<usize>();
    records.push(Record::reported(id("missed"), missed(|made| made.missed) as f64, "phases"));
    records.push(never(id("missed-beside-a-fetch"), "phases", missed(|made| made.missed_beside)));
    Ok(records)
}

/// The least map times relative to the map times of a policy.
fn bound_of(family: &clusters::Family, made: &[Made], least_s: fn(&Setup) -> f64) -> Estimate {
    let least = (0..).zip(made).map(|(n, made)| least_s(&family.cluster(n, "eley")) / made.sum_s());
    Estimate::change_percent(&least.collect::<Vec<_>>())
}

fn bound_record(id: String, what: &str, bound: &Estimate) -> Record {
    Record::reported(id, bound.mean, &format!("% map time against eley: {what}")).over(bound)
}

/// The change of the sums of I/O times.
fn change(ours: &[steps::Made], base: &[steps::Made]) -> Estimate {
    change_of(ours, base, |made| made.sum_s)
}

fn access(seed: u64) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for (kind, name) in [(Kind::Arrivals, "arrivals"), (Kind::Closed, "closed"), (Kind::Batch, "batch")] {
        let family = steps::Family::new(seed, kind);
        let made = |policy: &str| all(WORKLOADS, |number| family.run(number, policy));
        let none = all(WORKLOADS, |number| family.run_bounded(number, "none"))?;
        let (sjf, ours) = (made("sa-sjf")?, made("coflow")?);
        let unit = "% sum of I/O times against none";
        let least: Vec<f64> = none.iter().map(|made| made.least_s / made.sum_s).collect();
        let least = Estimate::change_percent(&least);
        let id = |what: &str| format!("held-out/access/{name}/{what}");
        records.push(
            Record::reported(id("bound"), least.mean, "% sum of I/O times that no policy is below")
                .over(&least),
        );
        let ours_change = change(&ours, &none);
        let longest = change_of(&ours, &none, |made| made.longest_s);
        let longer = above(&ratios(&ours, &none, |made| made.longest_s));
        let worse = above(&ratios(&ours, &none, |made| made.sum_s));
        if kind == Kind::Batch {
            let turns = change(&ours, &sjf);
            let above = above(&ratios(&ours, &sjf, |made| made.sum_s));
            let unit = "% sum of I/O times of coflow against sa-sjf";
            records.push(lower(id("coflow"), &ours_change, "% sum of I/O times against none"));
            records.push(lower(id("coflow/sa-sjf"), &turns, unit));
            records.push(Record::reported(id("coflow/above-sa-sjf"), above as f64, "batches"));
        } else {
            records.push(at_most(id("coflow/target"), &ours_change, ACCESS_PERCENT, &least));
            records.push(never(id("coflow/worse"), "workloads with a greater sum than none", worse));
            records.push(lower(id("coflow/longest"), &longest, "% longest step against none"));
            records.push(never(id("coflow/longer"), "workloads with a longer step than none", longer));
        }
        let sjf = change(&sjf, &none);
        records.push(Record::reported(id("sa-sjf"), sjf.mean, unit).over(&sjf));
    }
    for load in ACCESS_LOADS {
        let family = steps::Family { load: Some(load), ..steps::Family::new(seed, Kind::Arrivals) };
        let made = |policy: &str| all(WORKLOADS, |number| family.run(number, policy));
        let none = made("none")?;
        for policy in ["coflow", "sa-sjf"] {
            let ours = made(policy)?;
            let (id, change) = (format!("held-out/access/load-{load}/{policy}"), change(&ours, &none));
            let slowdown = change_of(&ours, &none, |made| made.slowdown);
            let record = match policy {
                "coflow" => lower(id, &change, "% sum of I/O times against none"),
                _ => Record::reported(id, change.mean, "% sum of I/O times against none").over(&change),
            };
            records.push(record.note(format!("slowdown {} %", number(slowdown.mean))));
        }
    }
    for (workload, name) in published::ALL {
        records.extend(published_at_all_loads(seed, workload, name)?);
    }
    Ok(records)
}

/// Where `coflow` is worst, over all loads: beside the better one of `none` and `sa-sjf`, and the
/// longest step of a workload beside `none`.
fn published_at_all_loads(seed: u64, workload: Workload, name: &str) -> Result<[Record; 2]> {
    let (mut over, mut longest) = (Vec::new(), f64::MIN);
    for load in ACCESS_LOADS {
        let family = steps::Family::new(seed, Kind::Arrivals);
        let family = steps::Family { load: Some(load), published: Some(workload), ..family };
        let made = |policy: &str| all(PUBLISHED, |number| family.run(number, policy));
        let (none, sjf, ours) = (made("none")?, made("sa-sjf")?, made("coflow")?);
        let best = if change(&sjf, &none).mean < 0.0 { &sjf } else { &none };
        over.push(change(&ours, best));
        longest = ratios(&ours, &none, |made| made.longest_s).into_iter().fold(longest, f64::max);
    }
    let of_loads: Vec<String> = over.iter().map(|change| number(change.mean)).collect();
    let worst = over.iter().fold(&over[0], |worst, next| if next.mean > worst.mean { next } else { worst });
    let longest = 100.0 * (longest - 1.0);
    let id = format!("held-out/access/{name}/coflow");
    let unit = "% sum of I/O times against the better one of none and sa-sjf, at the worst load";
    let sum = Record::checked(&id, worst.mean, unit, "at most 1", worst.mean <= 1.0);
    let sum = sum.over(worst).note(format!("at all loads: {}", of_loads.join(", ")));
    let unit = "% longest step against none, in the worst workload at the worst load";
    Ok([sum, Record::checked(id + "/longest", longest, unit, "at most 5", longest <= 5.0)])
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

fn waste(seed: u64) -> Result<Vec<Record>> {
    let family = platforms::Family { seed, failures: FAILURES };
    let record = |name: &str| -> Result<Record> {
        let of_bound = all(PLATFORMS, |number| Ok(family.run(number, name)?.of_bound()))?;
        let mean = Estimate::of(&of_bound);
        let (target, met) = (format!("at most {WASTE_OF_BOUND}"), mean.mean <= WASTE_OF_BOUND);
        let above = of_bound.iter().filter(|ratio| **ratio > WASTE_OF_BOUND).count();
        let unit = "of the least waste of checkpoints on the PFS, mean";
        Ok(Record::checked(format!("held-out/waste/{name}"), mean.mean, unit, target, met)
            .over(&mean)
            .note(format!("above it on {above} platforms")))
    };
    ["memory", "disk", "two-copies"].into_iter().map(record).collect()
}

fn shipping(seed: u64) -> Result<Vec<Record>> {
    let made = |policy: &str| all(SYSTEMS, |number| ships::run(seed, number, policy));
    let (ours, never, always) = (made("estimate")?, made("never")?, made("always")?);
    let better = never.iter().zip(&always).map(|(a, b)| ships::better(a, b)).collect();
    let against = |(name, others): (&str, Vec<ships::Made>)| {
        let ratios: Vec<f64> = ours.iter().zip(&others).map(|(a, b)| a.sum_s / b.sum_s).collect();
        let worse = above(&ratios);
        let worst = 100.0 * (ratios.iter().copied().fold(0.0, f64::max) - 1.0);
        let change = Estimate::change_percent(&ratios);
        let record = lower(format!("held-out/shipping/{name}"), &change, "% sum of job times against it");
        record.note(format!("longer on {worse} of {SYSTEMS}, by {} % at most", number(worst)))
    };
    Ok([("never", never), ("always", always), ("better", better)].into_iter().map(against).collect())
}
