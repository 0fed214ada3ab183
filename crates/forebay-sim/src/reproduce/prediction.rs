//! Prediction in the loop: planners that know about phases only what the predictor makes of earlier
//! ones, on held-out clusters, beside planners that know when the next one comes and how long it
//! takes.
//!
//! Compute times between phases vary uniformly by up to an error, or phases vary as in the traces
//! of FTIO and Darshan. Nothing is known of an earlier run, or the number of phases given here.

use crate::colocate::knowledge::Knowledge;
use crate::error::Result;
use crate::estimate::Estimate;
use crate::parallel::{in_parallel, threads};
use crate::random::clusters::{Family, Made};
use crate::random::rhythm::Rhythm;
use crate::report::{Record, number};

const ALLOWANCE: f64 = 0.05;
/// Targets for the deadlines kept and for the gain, in percent of those with true knowledge.
const KEPT_PERCENT: f64 = 95.0;
const GAIN_PERCENT: f64 = 90.0;
/// The error in percent at which the gain is judged.
const JUDGED_PERCENT: u32 = 11;

/// All results of a seed, on `clusters` clusters.
///
/// # Errors
/// If a run does not end.
pub fn records(seed: u64, clusters: usize) -> Result<Vec<Record>> {
    let rhythms: Vec<Rhythm> = Rhythm::recorded()?.into_iter().map(|(_, rhythm)| rhythm).collect();
    let mut records = Vec::new();
    for (percent, earlier) in [(0, vec![0]), (JUDGED_PERCENT, vec![0, 24]), (30, vec![0])] {
        let family = Family { period_error: f64::from(percent) / 100.0, ..Family::new(seed, ALLOWANCE) };
        records.extend(of(&family, &percent.to_string(), percent == JUDGED_PERCENT, &earlier, clusters)?);
    }
    let family = Family { rhythms, ..Family::new(seed, ALLOWANCE) };
    records.extend(of(&family, "traces", false, &[0, 7], clusters)?);
    Ok(records)
}

/// Results with none and with some phases of an earlier run.
fn of(family: &Family, name: &str, is_judged: bool, earlier: &[u32], clusters: usize) -> Result<Vec<Record>> {
    let made = |knowledge, policy: &str| {
        let family = Family { knowledge, ..family.clone() };
        let run = |number| Made::of(&family.cluster(number as u64, policy));
        in_parallel(clusters, threads(None), run).into_iter().collect::<Result<Vec<_>>>()
    };
    let if_true = made(Knowledge::True, "forebay")?;
    let naive = made(Knowledge::True, "naive-bb")?;
    let eley = if is_judged { made(Knowledge::True, "eley")? } else { Vec::new() };
    let mut records = Vec::new();
    for &earlier in earlier {
        let ours = made(Knowledge::Predicted { earlier }, "forebay")?;
        let id = |what: &str| match earlier {
            0 => format!("held-out/prediction/{name}/{what}"),
            _ => format!("held-out/prediction/{name}/earlier-{earlier}/{what}"),
        };
        records.push(kept(id("kept"), &ours, &if_true));
        let unit = "% map time against the same with true knowledge";
        let change = change(&ours, &if_true);
        records.push(Record::reported(id("map"), change.mean, unit).over(&change));
        records.push(gain(id("gain/naive-bb"), "naive-bb", false, [&ours, &if_true, &naive]));
        if is_judged {
            records.push(gain(id("gain/eley"), "eley", true, [&ours, &if_true, &eley]));
        }
    }
    Ok(records)
}

fn kept(id: String, ours: &[Made], if_true: &[Made]) -> Record {
    let sum = |all: &[Made], of: fn(&Made) -> usize| all.iter().map(of).sum::<usize>();
    let [own, known] = [ours, if_true].map(|all| sum(all, |made| made.phases - made.missed));
    let percent = 100.0 * own as f64 / known as f64;
    let target = format!("at least {KEPT_PERCENT}");
    Record::checked(
        id,
        percent,
        "% of the deadlines kept with true knowledge",
        target,
        percent >= KEPT_PERCENT,
    )
    .note(format!(
        "{own} of {} phases in time; {} late beside a transfer, and {} with true knowledge",
        sum(ours, |made| made.phases),
        sum(ours, |made| made.missed_beside),
        sum(if_true, |made| made.missed_beside)
    ))
}

/// The change of map times, against the other planner with true knowledge.
fn gain(id: String, other: &str, is_judged: bool, [ours, if_true, base]: [&[Made]; 3]) -> Record {
    let [own, known] = [ours, if_true].map(|all| change(all, base).mean);
    let percent = 100.0 * own / known;
    let unit = format!("% of the gain with true knowledge over {other} with true knowledge");
    let record = match is_judged {
        true => {
            let target = format!("at least {GAIN_PERCENT}");
            Record::checked(id, percent, &unit, target, known < 0.0 && percent >= GAIN_PERCENT)
        }
        false => Record::reported(id, percent, &unit),
    };
    record.note(format!("map times {} %, and {} % with true knowledge", number(own), number(known)))
}

/// The change of the map times, cluster by cluster.
fn change(ours: &[Made], base: &[Made]) -> Estimate {
    let ratios: Vec<f64> = ours.iter().zip(base).map(|(a, b)| a.sum_s() / b.sum_s()).collect();
    Estimate::change_percent(&ratios)
}
