//! Lower bounds of sums of times, for any policy: how much of what is possible at all a policy
//! reaches. They leave out most of what makes jobs wait, so no policy may come near them.

use forebay_policy::planner::SpeedCurve;

use super::step_bound;
use crate::burst;
use crate::colocate::{self, HpcSpec, JobSpec};

/// Work for a server: when it comes, and how long the server takes for it alone.
#[derive(Clone, Copy, Debug)]
struct Work {
    from_s: f64,
    takes_s: f64,
}

/// When the first, second, ... of these is done if the server always serves the one with the least
/// work left. At no moment can more of them be done (Schrage, 1968).
fn earliest_ends_s(mut works: Vec<Work>) -> Vec<f64> {
    works.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
    let mut come = works.iter().peekable();
    // In descending order.
    let mut left_s: Vec<f64> = Vec::new();
    let (mut ends_s, mut now_s) = (Vec::new(), 0.0);
    loop {
        let next_s = come.peek().map_or(f64::INFINITY, |work| work.from_s);
        match left_s.last_mut() {
            Some(least_s) if now_s + *least_s <= next_s => {
                now_s += *least_s;
                left_s.pop();
                ends_s.push(now_s);
            }
            served_s => {
                let Some(work) = come.next() else { return ends_s };
                if let Some(served_s) = served_s {
                    *served_s -= work.from_s - now_s;
                }
                now_s = work.from_s;
                left_s.insert(left_s.partition_point(|other_s| *other_s > work.takes_s), work.takes_s);
            }
        }
    }
}

/// The least sum of ends: the i-th job ends neither before the i-th of `earliest_s`, nor before the
/// i-th of the ends that they would have alone.
pub(super) fn least_sum_s(earliest_s: &[f64], mut alone_s: Vec<f64>) -> f64 {
    alone_s.sort_by(f64::total_cmp);
    earliest_s.iter().zip(&alone_s).map(|(a, b)| a.max(*b)).sum()
}

/// The least sum of I/O times of a workload on burst buffers, of which `outcome` is any run.
///
/// The greater of two bounds: the bound of all nodes and all steps ([`step_bound`]), and the bound
/// of the node for which it is greatest, if each job is one piece of work for it that arrives with
/// the job's first step. In the second bound, jobs that do not use the node take as long as alone.
pub fn io_s(setup: &burst::Setup, outcome: &burst::Outcome) -> f64 {
    let jobs: Vec<step_bound::Job> = outcome.jobs.iter().map(alone).collect();
    let uses = |spec: &burst::JobSpec, node| spec.on.as_ref().is_some_and(|on| on.contains(&node));
    let of_node = |node: u32| (0..jobs.len()).filter(|&job| uses(&setup.jobs[job], node)).collect();
    let sets: Vec<Vec<usize>> = (0..setup.nodes).map(of_node).collect();
    let waiting_s = |set: &Vec<usize>| {
        let jobs = set.iter().map(|&job| &jobs[job]);
        let works = jobs.clone().map(|job| Work { from_s: job.first_s(), takes_s: job.io_s() });
        let alone_s: Vec<f64> = jobs.map(step_bound::Job::ends_s).collect();
        let sum_alone_s: f64 = alone_s.iter().sum();
        least_sum_s(&earliest_ends_s(works.collect()), alone_s) - sum_alone_s
    };
    let one_node_s = sets.iter().map(waiting_s).fold(0.0, f64::max);
    let io_s: f64 = jobs.iter().map(step_bound::Job::io_s).sum();
    io_s + one_node_s.max(step_bound::waiting_s(&jobs, &sets))
}

/// What does not depend on the policy: compute and steps, one after the other.
fn alone(job: &burst::JobOutcome) -> step_bound::Job {
    let seconds = |ns: u64| ns as f64 * 1e-9;
    let (mut now_s, mut before_ns) = (0.0, 0);
    let one = |step: &burst::StepOutcome| {
        let due_s = now_s + seconds(step.due_ns - before_ns);
        let takes_s = seconds(step.alone_ns);
        (now_s, before_ns) = (due_s + takes_s, step.end_ns);
        step_bound::Step { due_s, takes_s }
    };
    step_bound::Job::new(job.steps.iter().map(one).collect())
}

/// The least sum of map times in a cluster of HPC jobs and Big Data jobs.
///
/// All bytes go through the file system, and each job has the bound of [`alone_s`].
pub fn map_s(setup: &colocate::Setup) -> f64 {
    let supply = Supply::new(setup);
    let seconds = |ns: u64| ns as f64 * 1e-9;
    let all_s = |job: &JobSpec| f64::from(job.waves) * job.wave_bytes as f64 / setup.planner.pfs_bytes_per_s;
    let works = setup.jobs.iter().map(|job| Work { from_s: seconds(job.starts_ns), takes_s: all_s(job) });
    let last_s = setup.jobs.iter().map(|job| seconds(job.compute_ns)).fold(f64::INFINITY, f64::min);
    let earliest_s: Vec<f64> = earliest_ends_s(works.collect()).iter().map(|s| s + last_s).collect();
    let alone_s = setup.jobs.iter().map(|job| alone_s(setup, &supply, job)).collect();
    let starts_s: f64 = setup.jobs.iter().map(|job| seconds(job.starts_ns)).sum();
    least_sum_s(&earliest_s, alone_s) - starts_s
}

/// How fast bytes may come to one job.
struct Supply {
    /// Bytes per second between phases, and beside a phase that may be stretched without limit.
    free: f64,
    beside: f64,
}

impl Supply {
    fn new(setup: &colocate::Setup) -> Self {
        let fetch = SpeedCurve::between_phases(&setup.planner).at(0.0);
        Supply {
            free: fetch.max(setup.planner.direct.speed_bytes_per_s).min(setup.planner.pfs_bytes_per_s),
            beside: SpeedCurve::beside_one_phase(&setup.planner).at(1.0).min(fetch),
        }
    }

    /// When a job that begins at `from_s` may have `bytes` at the earliest.
    fn there_s(&self, hpc: &[HpcSpec], from_s: f64, bytes: f64) -> f64 {
        // Stretched phases only take more of the time up to any moment. Phases before the job began
        // may have taken all of it.
        let bytes_by = |at_s: f64| {
            let phases_s = hpc.iter().map(|h| in_phases_s(h, at_s)).fold(0.0, f64::max);
            let beside_s = (phases_s - from_s).clamp(0.0, at_s - from_s);
            (at_s - from_s - beside_s) * self.free + beside_s * self.beside
        };
        let (mut low_s, mut high_s) = (from_s, from_s + bytes / self.beside.min(self.free));
        for _ in 0..50 {
            let middle_s = 0.5 * (low_s + high_s);
            *(if bytes_by(middle_s) < bytes { &mut low_s } else { &mut high_s }) = middle_s;
        }
        low_s
    }
}

/// How long phases of a periodic HPC job have lasted by then if nothing stretches them.
fn in_phases_s(hpc: &HpcSpec, at_s: f64) -> f64 {
    let seconds = |ns: u64| ns as f64 * 1e-9;
    let (io_s, cycle_s) = (seconds(hpc.io_ns), seconds(hpc.io_ns + hpc.compute_ns));
    let first_s = seconds(hpc.starts_ns) + if hpc.io_first { 0.0 } else { seconds(hpc.compute_ns) };
    let since_s = (at_s - first_s).max(0.0);
    let whole = (since_s / cycle_s).floor().min(f64::from(hpc.phases));
    let begun_s = if whole < f64::from(hpc.phases) { (since_s - whole * cycle_s).min(io_s) } else { 0.0 };
    whole * io_s + begun_s
}

/// When a job ends at the earliest, from the start of the run. When the bytes of its first waves
/// have come, the last of these has yet to compute. Later waves compute one after the other, and
/// are read from the tier, or by tasks that wait meanwhile.
fn alone_s(setup: &colocate::Setup, supply: &Supply, job: &JobSpec) -> f64 {
    let seconds = |ns: u64| ns as f64 * 1e-9;
    let (compute_s, wave_bytes) = (seconds(job.compute_ns), job.wave_bytes as f64);
    let read_s = seconds(job.tier_read_ns).min(wave_bytes / setup.planner.direct.speed_bytes_per_s);
    let end_s = |waves: u32| {
        let bytes = f64::from(waves) * wave_bytes;
        let there_s = supply.there_s(&setup.hpc, seconds(job.starts_ns), bytes);
        there_s + compute_s + f64::from(job.waves - waves) * (compute_s + read_s)
    };
    (1..=job.waves).map(end_s).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(works: &[(f64, f64)]) -> Vec<f64> {
        earliest_ends_s(works.iter().map(|&(from_s, takes_s)| Work { from_s, takes_s }).collect())
    }

    #[test]
    fn the_least_work_left_goes_first() {
        assert_eq!(ends(&[(0.0, 5.0), (0.0, 1.0), (0.0, 2.0)]), [1.0, 3.0, 8.0]);
        // The second comes while the first has 4 s left, and the last when nothing is left.
        assert_eq!(ends(&[(0.0, 5.0), (1.0, 2.0), (20.0, 1.0)]), [3.0, 7.0, 21.0]);
        // It has less left than what comes.
        assert_eq!(ends(&[(0.0, 5.0), (4.0, 2.0)]), [5.0, 7.0]);
        assert!(ends(&[]).is_empty());
    }

    #[test]
    fn no_job_ends_before_it_would_alone() {
        assert_eq!(least_sum_s(&[1.0, 3.0, 8.0], vec![6.0, 2.0, 2.5]), 2.0 + 3.0 + 8.0);
    }
}
