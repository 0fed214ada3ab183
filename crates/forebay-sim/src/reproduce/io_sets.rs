//! IO-Sets: Boito, Pallez, Teylo and Vidal, *IO-SETS: Simple and Efficient Approaches for I/O
//! Bandwidth Management*, IEEE TPDS 2023. Set-10 against fair share, for jobs whose periods differ
//! by orders of magnitude.

use forebay_model::rng::Rng;

use super::eley::system;
use crate::colocate::knowledge::Knowledge;
use crate::colocate::{Arrivals, HpcSpec, Outcome, Setup, simulate};
use crate::error::Result;
use crate::estimate::{Difference, Estimate};
use crate::plot::bars::Bars;
use crate::report::{Record, Report};
use crate::trace::Trace;

/// Mean periods of the three kinds of jobs, in seconds.
const PERIODS_S: [f64; 3] = [10.0, 100.0, 1000.0];
const JOBS_PER_PERIOD: usize = 4;
/// Share of the file system's time that all phases together need.
const LOAD: f64 = 0.8;
const TRIALS: u64 = 20;
const HORIZON_S: f64 = 20_000.0;

/// A random set of jobs; the same for both policies.
fn setup(policy: &str, seed: u64) -> Setup {
    let mut rng = Rng::new(seed);
    let mut setup = system::cell("naive-bb", 0, 0, 0.05);
    setup.jobs.clear();
    setup.bandwidth = policy.into();
    setup.seed = seed;
    let shares: Vec<f64> = (0..PERIODS_S.len() * JOBS_PER_PERIOD).map(|_| 0.5 + rng.unit()).collect();
    let total: f64 = shares.iter().sum();
    setup.hpc.clear();
    for (i, share) in shares.iter().enumerate() {
        let period_s = PERIODS_S[i / JOBS_PER_PERIOD] * (0.75 + 0.5 * rng.unit());
        let io_s = period_s * LOAD * share / total;
        setup.hpc.push(HpcSpec {
            name: format!("{} s, job {}", PERIODS_S[i / JOBS_PER_PERIOD], i % JOBS_PER_PERIOD),
            compute_ns: ((period_s - io_s) * 1e9) as u64,
            io_ns: (io_s * 1e9) as u64,
            phases: (HORIZON_S / period_s) as u32,
            allowance: 0.05,
            processes: 1,
            starts_ns: (rng.unit() * period_s * 1e9) as u64,
            io_first: false,
            arrivals: Arrivals::Jittered { spread: 0.25 },
            knowledge: Knowledge::default(),
        });
    }
    setup
}

/// Mean slowdown of a phase (mean over jobs), and the share of their time that jobs compute.
fn measure(setup: &Setup, outcome: &Outcome) -> (f64, f64) {
    let jobs = outcome.hpc.len() as f64;
    let slowdown = outcome.hpc.iter().map(|h| h.slowdown()).sum::<f64>() / jobs;
    let computing = outcome.hpc.iter().zip(&setup.hpc).map(|(h, spec)| {
        let io_ns: u64 = h.phases.iter().map(|p| p.end_ns - p.begin_ns).sum();
        let lasted_ns = h.phases.last().map_or(1, |p| p.end_ns - spec.starts_ns);
        1.0 - io_ns as f64 / lasted_ns as f64
    });
    (slowdown, computing.sum::<f64>() / jobs)
}

/// Adds the comparison to the report.
///
/// # Errors
/// If a file of the report cannot be written.
pub fn run(report: &mut Report) -> Result<()> {
    report.heading(2, "IO-Sets: Set-10 against fair share");
    report.text(
        "Twelve HPC jobs, four each with periods of about 10, 100 and 1000 s, need 80 % of the file system's time together; \
         periods differ by up to 25 % within a kind, compute times vary by 25 % from phase to phase. 20 random sets of jobs. \
         The paper's abstract reports a slowdown of I/O lower by half than under fair share in most of its cases, and 2.5 % more \
         utilisation in simulation; these workloads are ours, so the comparison is in kind.",
    );
    let mut measured = [[vec![], vec![]], [vec![], vec![]]];
    let mut by_kind = [[0.0; 3]; 2];
    let mut better = 0u32;
    for seed in 0..TRIALS {
        let mut slowdowns = [0.0; 2];
        for (p, policy) in ["fair-share", "set-10"].into_iter().enumerate() {
            let setup = setup(policy, seed);
            let outcome = simulate(&setup, &mut Trace::off())?;
            let (slowdown, computing) = measure(&setup, &outcome);
            slowdowns[p] = slowdown;
            measured[p][0].push(slowdown);
            measured[p][1].push(computing);
            for (i, hpc) in outcome.hpc.iter().enumerate() {
                let kind = i / JOBS_PER_PERIOD;
                by_kind[p][kind] += 100.0 * hpc.slowdown() / (JOBS_PER_PERIOD as f64 * TRIALS as f64);
            }
        }
        better += u32::from(slowdowns[1] < slowdowns[0]);
    }
    let svg = Bars {
        title: "Slowdown of I/O phases",
        y_label: "mean slowdown (%)",
        groups: PERIODS_S.iter().map(|p| format!("{p} s")).collect(),
        series: vec![("fair share".into(), by_kind[0].to_vec()), ("Set-10".into(), by_kind[1].to_vec())],
        marks: vec![],
    }
    .figure();
    report.figure("io-sets.svg", &svg, "Mean slowdown of phases by period")?;
    let change = |what: usize| Estimate::change_of_sums_percent(&measured[1][what], &measured[0][what]);
    let (slowdown, computing) = (change(0), change(1));
    report.records(vec![
        Record::direction(
            "io-sets/slowdown",
            slowdown.mean,
            "% against fair share",
            "lower",
            slowdown.below(0.0),
        )
        .over(&slowdown)
        .beside(-50.0),
        Record::direction("io-sets/better", f64::from(better), "of 20 trials", "most", better > 15),
        Record::direction(
            "io-sets/utilisation",
            computing.mean,
            "% against fair share",
            "higher",
            computing.difference() == Difference::Higher,
        )
        .over(&computing)
        .beside(2.5),
    ]);
    Ok(())
}
