//! The least sum of I/O times on burst buffers, for any policy, with the compute between steps.
//!
//! **One node.** A node serves what its jobs write at full bandwidth. The *mean moment* of a job is
//! when its bytes are written there, on average. A job ends no earlier than its mean moment plus
//! its *tail*: after the last byte of a step there is all later compute and writing, so its bytes
//! are written, on average, at least that long before its end, whatever the policy. No step is due
//! before it would be if its job were alone. Among all schedules, the weighted sum of mean moments
//! is least if the node serves the job with the most weight for each byte of all of its steps
//! (Goemans, 1997). So for any weights the weighted sum of ends has a bound.
//!
//! **All nodes.** Each job's weight of one is divided over its nodes, and a part that represents
//! its end alone: it ends no earlier than each of these says. Any division gives a bound, and
//! multiplicative weights search for the best: weight goes to the node that holds the job longest.

use std::collections::BTreeSet;

/// A step of a job that is alone: when it is due, and how long it takes.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub due_s: f64,
    pub takes_s: f64,
}

/// A job, if it were alone.
#[derive(Clone, Debug)]
pub struct Job {
    steps: Vec<Step>,
    /// The time of all steps.
    io_s: f64,
    ends_s: f64,
    tail_s: f64,
}

impl Job {
    /// Steps in order; there is at least one.
    pub fn new(steps: Vec<Step>) -> Self {
        let io_s: f64 = steps.iter().map(|step| step.takes_s).sum();
        let ends_s = steps.last().map_or(0.0, |step| step.due_s + step.takes_s);
        let before_end_s = |step: &Step| ends_s - (step.due_s + 0.5 * step.takes_s);
        let tail_s = steps.iter().map(|step| step.takes_s * before_end_s(step)).sum::<f64>() / io_s;
        Job { steps, io_s, ends_s, tail_s }
    }

    /// When its first step is due.
    pub fn first_s(&self) -> f64 {
        self.steps.first().map_or(0.0, |step| step.due_s)
    }

    /// The time of all of its steps.
    pub fn io_s(&self) -> f64 {
        self.io_s
    }

    /// When its last step ends.
    pub fn ends_s(&self) -> f64 {
        self.ends_s
    }
}

/// Number of divisions of weight that are tried: twice as many gain a tenth of a point.
const TRIES: usize = 200;

/// How much the sum of ends exceeds the sum for the jobs alone, at least. `sets` are the jobs of
/// each node, by index.
pub fn waiting_s(jobs: &[Job], sets: &[Vec<usize>]) -> f64 {
    let nodes: BTreeSet<&Vec<usize>> = sets.iter().filter(|set| set.len() > 1).collect();
    let nodes: Vec<&Vec<usize>> = nodes.into_iter().collect();
    let mut logs: Vec<Vec<f64>> = nodes.iter().map(|node| vec![0.0; node.len()]).collect();
    let mut best_s = 0.0f64;
    for tried in 0..TRIES {
        let pull = 8.0 / (1.0 + 0.05 * tried as f64);
        let totals = totals(jobs.len(), &nodes, &logs);
        let mut waiting_s = 0.0;
        for (node, logs) in nodes.iter().zip(&mut logs) {
            let weights: Vec<f64> =
                node.iter().zip(logs.iter()).map(|(&job, log)| (log - totals[job]).exp()).collect();
            let ends_s = relaxed_ends_s(jobs, node, &weights);
            for ((&job, log), (weight, end_s)) in node.iter().zip(logs).zip(weights.iter().zip(ends_s)) {
                let over_s = end_s - jobs[job].ends_s;
                waiting_s += weight * over_s;
                *log += pull * over_s / jobs[job].ends_s.max(1e-9);
            }
        }
        best_s = best_s.max(waiting_s);
    }
    best_s
}

/// The logarithm of each job's weight before it is normalised to one; its end alone counts like a
/// node with a logarithm of 0.
fn totals(jobs: usize, nodes: &[&Vec<usize>], logs: &[Vec<f64>]) -> Vec<f64> {
    let mut most = vec![0.0f64; jobs];
    let each = || nodes.iter().zip(logs).flat_map(|(node, logs)| node.iter().zip(logs));
    each().for_each(|(&job, log)| most[job] = most[job].max(*log));
    let mut sums: Vec<f64> = most.iter().map(|most| (-most).exp()).collect();
    each().for_each(|(&job, log)| sums[job] += (log - most[job]).exp());
    most.iter().zip(sums).map(|(most, sum)| most + sum.ln()).collect()
}

/// What each job of a node has there by the end of its tail, where the weighted sum is least.
fn relaxed_ends_s(jobs: &[Job], node: &[usize], weights: &[f64]) -> Vec<f64> {
    let density = |i: usize| weights[i] / jobs[node[i]].io_s;
    let mut order: Vec<usize> = (0..node.len()).collect();
    order.sort_by(|&a, &b| density(b).total_cmp(&density(a)));
    let mut comes: Vec<(f64, usize, f64)> = Vec::new();
    for (place, &i) in order.iter().enumerate() {
        comes.extend(jobs[node[i]].steps.iter().map(|step| (step.due_s, place, step.takes_s)));
    }
    comes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut left_s = vec![0.0f64; node.len()];
    let mut moments = vec![0.0f64; node.len()];
    let (mut waiting, mut now_s): (BTreeSet<usize>, f64) = (BTreeSet::new(), 0.0);
    let mut comes = comes.into_iter().peekable();
    loop {
        let next_s = comes.peek().map_or(f64::INFINITY, |come| come.0);
        while let Some(&place) = waiting.first().filter(|_| now_s < next_s) {
            let for_s = left_s[place].min(next_s - now_s);
            moments[place] += for_s * (now_s + 0.5 * for_s);
            now_s += for_s;
            left_s[place] -= for_s;
            if left_s[place] <= 0.0 {
                waiting.remove(&place);
            }
        }
        let Some((due_s, place, takes_s)) = comes.next() else { break };
        now_s = now_s.max(due_s);
        left_s[place] += takes_s;
        waiting.insert(place);
    }
    let mut ends_s = vec![0.0; node.len()];
    for (place, &i) in order.iter().enumerate() {
        let job = &jobs[node[i]];
        ends_s[i] = moments[place] / job.io_s + job.tail_s;
    }
    ends_s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn periodic(steps: usize, compute_s: f64, takes_s: f64) -> Job {
        let due_s = |i: usize| compute_s + i as f64 * (compute_s + takes_s);
        Job::new((0..steps).map(|i| Step { due_s: due_s(i), takes_s }).collect())
    }

    #[test]
    fn a_job_alone_does_not_wait() {
        assert_eq!(waiting_s(&[periodic(5, 3.0, 1.0)], &[vec![0]]), 0.0);
    }

    /// Two jobs that write all the time: one of them ends first, and the other when both have
    /// written; the bound is that.
    #[test]
    fn two_jobs_on_a_node_take_turns_at_best() {
        let jobs = [periodic(1, 0.0, 10.0), periodic(1, 0.0, 10.0)];
        assert!((waiting_s(&jobs, &[vec![0, 1], vec![0, 1]]) - 10.0).abs() < 0.1);
    }

    /// Four jobs that write half of the time keep a node busy for twice as long as two of them. By
    /// the mean moments, the sum of ends is at least 4 * 20 + 4 * 10; two and two of them would
    /// need 2 * 20 + 2 * 40.
    #[test]
    fn compute_between_steps_counts() {
        let jobs: Vec<Job> = (0..4).map(|_| periodic(1000, 0.01, 0.01)).collect();
        let waiting_s = waiting_s(&jobs, &[vec![0, 1, 2, 3]]);
        assert!((waiting_s - 40.0).abs() < 1.0, "{waiting_s}");
    }

    /// Jobs of one node each wait only for what they share.
    #[test]
    fn nodes_add_up() {
        let jobs: Vec<Job> = (0..4).map(|_| periodic(1, 0.0, 10.0)).collect();
        assert!((waiting_s(&jobs, &[vec![0, 1], vec![2, 3]]) - 20.0).abs() < 0.2);
    }
}
