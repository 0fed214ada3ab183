//! Phases that do not come as predicted: what the paper leaves open.

use super::system;
use super::{ALLOWANCES, Report, Result, simulate};
use crate::colocate::Arrivals;
use crate::plot::bars::Bars;
use crate::report::{Record, number};
use crate::trace::Trace;

const SEEDS: u64 = 10;

pub fn all(report: &mut Report) -> Result<()> {
    report.heading(3, "Phases that do not come as predicted");
    report.text(
        "The planners know the mean compute time between phases. Here it varies: evenly by 25 %, or exponentially. \
         `eley` decides once for a wave and cannot answer a phase that comes early; `forebay` decides again when the phase \
         begins. Sums and means over T1, T2 and AP beside applications 2, 5 and 6, deadlines at 5 %, 10 seeds: 900 phases.",
    );
    let kinds = [
        ("periodic", Arrivals::Periodic),
        ("jittered", Arrivals::Jittered { spread: 0.25 }),
        ("Poisson", Arrivals::Poisson),
    ];
    let policies = ["no-action", "full-delay", "eley", "forebay"];
    let (mut rows, mut series) = (Vec::new(), vec![Vec::new(); policies.len()]);
    let mut records = Vec::new();
    for (kind, arrivals) in &kinds {
        for (p, policy) in policies.into_iter().enumerate() {
            let (missed, map_s) = measure(policy, arrivals)?;
            rows.push(vec![(*kind).into(), policy.into(), missed.to_string(), number(map_s)]);
            series[p].push(missed as f64);
            if policy == "forebay" {
                let id = format!("eley/arrivals/missed/{}", kind.to_lowercase());
                records.push(Record::checked(id, missed as f64, "phases of 900", "none", missed == 0));
            }
        }
    }
    report.table(&["phases", "policy", "deadlines missed", "mean map time (s)"], &rows);
    let svg = Bars {
        title: "Deadlines missed when phases do not come as predicted",
        y_label: "phases of 900",
        groups: kinds.iter().map(|k| k.0.to_string()).collect(),
        series: policies.iter().map(|p| p.to_string()).zip(series).collect(),
        marks: vec![],
    }
    .figure();
    report.figure("eley-arrivals.svg", &svg, "Deadlines missed by arrival pattern")?;
    report.records(records);
    Ok(())
}

/// Returns the number of deadlines missed, and the mean map time in seconds.
fn measure(policy: &str, arrivals: &Arrivals) -> Result<(usize, f64)> {
    let (mut missed, mut map_s, mut runs) = (0, 0.0, 0u32);
    for seed in 0..SEEDS {
        for hpc in 0..system::HPC.len() {
            for app in [1, 4, 5] {
                let mut setup = system::cell(policy, hpc, app, ALLOWANCES[0]);
                setup.seed = seed;
                setup.hpc[0].arrivals = arrivals.clone();
                let outcome = simulate(&setup, &mut Trace::off())?;
                missed += outcome.missed();
                map_s += outcome.jobs[0].map_ns as f64 * 1e-9;
                runs += 1;
            }
        }
    }
    Ok((missed, map_s / f64::from(runs)))
}
