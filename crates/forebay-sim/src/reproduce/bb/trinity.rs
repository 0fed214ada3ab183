//! Figure 1: three jobs on a pool of 100 nodes of Trinity, under the bandwidth and the interference
//! policy.
//!
//! The paper publishes the results and one size: J1 has 800 compute nodes. So a family of three
//! jobs is run, all that the machine has room for, and its extremes are compared with the figures,
//! and with the bounds that the model puts on them.

use super::outcome;
use crate::burst::{JobSpec, Setup};
use crate::error::Result;
use crate::report::{Record, Report};

const NODES: u32 = 100;
const NODE_BYTES: u64 = 6_000_000_000_000;
const NODE_BYTES_PER_S: f64 = 5e9;
/// Compute nodes of the whole machine (Table I).
const COMPUTE_NODES: u64 = 19_000;
const CORES: u64 = 32;
const MEMORY_BYTES: u64 = 128_000_000_000;
/// Compute nodes of J1, and of the other two.
const J1: u64 = 800;
const OTHERS: [u64; 6] = [800, 1600, 3200, 6400, 12_800, 18_200];
/// Percent of its memory that a job writes.
const PARTS: [u64; 5] = [5, 10, 20, 40, 80];

/// A job of `compute_nodes` that writes `percent` of its memory, a process per core.
fn job((compute_nodes, percent): (u64, u64)) -> JobSpec {
    let bytes = compute_nodes * MEMORY_BYTES / 100 * percent;
    JobSpec::one_step(0, (compute_nodes * CORES) as f64, bytes, None, f64::INFINITY)
}

/// How much longer than alone on all nodes: all jobs together, and J1. `None` if they do not fit.
fn against_isolated(jobs: &[JobSpec], allocation: &str) -> Option<(f64, f64)> {
    let setup = Setup::plain(NODES, NODE_BYTES, NODE_BYTES_PER_S, allocation, "none", jobs.to_vec());
    let total: u64 = jobs.iter().map(|j| j.step_bytes).sum();
    if total > NODE_BYTES * u64::from(NODES) {
        return None;
    }
    // A job for which the allocator's books have no room does not fit either.
    let outcome = outcome(&setup).ok()?;
    let alone_s = |j: &JobSpec| j.step_bytes as f64 / (f64::from(NODES) * NODE_BYTES_PER_S);
    let all = outcome.aggregate_s() / jobs.iter().map(alone_s).sum::<f64>();
    Some((all, outcome.jobs[0].io_s() / alone_s(&jobs[0])))
}

/// Every three jobs of the family.
fn family() -> Vec<Vec<JobSpec>> {
    let mut all = Vec::new();
    for second in OTHERS {
        for third in OTHERS.into_iter().filter(|&t| t >= second && J1 + second + t <= COMPUTE_NODES) {
            for a in PARTS {
                for b in PARTS {
                    all.extend(PARTS.map(|c| [(J1, a), (second, b), (third, c)].map(job).to_vec()));
                }
            }
        }
    }
    all
}

/// Adds Figure 1 to the report.
pub fn three_jobs(report: &mut Report) -> Result<()> {
    report.heading(3, "Figure 1: three jobs on 100 nodes of Trinity");
    report.text(include_str!("trinity.md"));
    let family = family();
    let of = |allocation: &str| -> Vec<(f64, f64)> {
        family.iter().filter_map(|jobs| against_isolated(jobs, allocation)).collect()
    };
    let (bandwidth, interference) = (of("bandwidth"), of("interference"));
    let most = |of: fn(&(f64, f64)) -> f64, among: &[(f64, f64)]| among.iter().map(of).fold(0.0, f64::max);
    let least = interference.iter().map(|r| r.0).fold(f64::INFINITY, f64::min);
    let share = COMPUTE_NODES as f64 / J1 as f64;
    let (all, j1) = (most(|r| r.0, &bandwidth), most(|r| r.1, &bandwidth));
    let unit = "times as long as isolated";
    // 82 % of the memory of 800 nodes take 14 burst buffer nodes.
    let fitted = against_isolated(&[(J1, 82), (3200, 20), (6400, 20)].map(job), "interference");
    report.records(vec![
        Record::print("bb/trinity/bandwidth", 6.3, all, unit).note(format!(
            "worst of {} sets of jobs; no more than 3 can come from the model",
            bandwidth.len()
        )),
        Record::print("bb/trinity/bandwidth-j1", 33.0, j1, unit).note(format!(
            "worst of the same; no more than {share} can come from the model, 19,000 over 800 nodes"
        )),
        Record::print("bb/trinity/interference", 2.6, least, unit).note(format!(
            "least of {} sets; less than 3 needs jobs that reserve unequal multiples of what they write",
            interference.len()
        )),
        Record::print("bb/trinity/interference-j1", 7.0, fitted.map_or(f64::NAN, |r| r.1), unit)
            .fitted()
            .note("J1 writes 82 % of its memory, fitted: 14 of 100 nodes"),
    ]);
    Ok(())
}
