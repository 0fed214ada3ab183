//! Random workloads on shared burst buffers, which no policy was tuned on.
//!
//! | drawn | from |
//! | --- | --- |
//! | nodes | 16, 32, 64 or 128, of 1 GB/s |
//! | nodes of a step | 1 to all, the next ones in turn |
//! | a step alone | 1 s to a longest of 10 to 200 s |
//! | its processes on a node | 1 to 512 |
//! | steps that arrive | 100 to 299, at exponential intervals, for a load of 0.3 to 0.95 |
//! | jobs in a closed loop | 4 to 64, of 10 to 29 steps; undisturbed, 1 to 2 times the bandwidth |
//! | steps of a batch | 3 to 60, all at the same time |
//!
//! Where two values are given, the distribution is log-uniform, except for counts and loads. A job
//! in a closed loop computes for 0.5 to 1.5 times its mean between two steps.

use forebay_model::rng::Rng;

use super::published::{Drawn, Workload};
use super::{bound, by_order};
use crate::arrivals::Arrivals;
use crate::burst::{JobSpec, Outcome, Setup, simulate};
use crate::error::Result;
use crate::estimate::Estimate;
use crate::trace::Trace;

const NODE_BYTES_PER_S: f64 = 1e9;

/// When steps come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Over time, independent of earlier steps.
    Arrivals,
    /// A job computes after each step.
    Closed,
    /// All at the same time.
    Batch,
}

/// Properties common to all workloads of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Seed of all workloads.
    pub seed: u64,
    /// When steps come.
    pub kind: Kind,
    /// The load of steps that arrive, if it is not drawn.
    pub load: Option<f64>,
    /// The paper whose steps arrive, if they are not random.
    pub published: Option<Workload>,
}

impl Family {
    /// A family with random steps and loads.
    pub fn new(seed: u64, kind: Kind) -> Self {
        Family { seed, kind, load: None, published: None }
    }
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl Drawn {
    fn job(&self, i: usize, steps: u32, compute_s: f64, arrivals: Arrivals) -> JobSpec {
        let width = self.on.len() as f64;
        let bytes = (self.alone_s * NODE_BYTES_PER_S * width) as u64;
        JobSpec {
            name: format!("job {i}"),
            on: Some(self.on.clone()),
            steps,
            compute_ns: ns(compute_s),
            io_first: false,
            arrivals,
            ..JobSpec::one_step(0, self.processes * width, bytes, None, f64::INFINITY)
        }
    }
}

/// Draws `count` steps on `nodes` nodes.
fn draw(rng: &mut Rng, nodes: u32, count: u64) -> Vec<Drawn> {
    let longest_s = by_order(rng, 10.0, 200.0);
    let mut turn = 0;
    let mut one = || {
        let width = (by_order(rng, 1.0, f64::from(nodes) + 1.0) as u32).min(nodes);
        let on: Vec<u32> = (0..width).map(|k| (turn + k) % nodes).collect();
        turn = (turn + width) % nodes;
        let alone_s = by_order(rng, 1.0, longest_s);
        Drawn { on, alone_s, processes: by_order(rng, 1.0, 513.0).floor() }
    };
    let mut drawn: Vec<Drawn> = (0..count).map(|_| one()).collect();
    drawn.iter_mut().for_each(|d| d.on.sort_unstable());
    drawn
}

/// Node seconds of work per node.
fn work_s(drawn: &[Drawn], nodes: u32) -> f64 {
    drawn.iter().map(|d| d.alone_s * d.on.len() as f64).sum::<f64>() / f64::from(nodes)
}

fn arrivals(rng: &mut Rng, nodes: u32, family: &Family) -> Vec<JobSpec> {
    let drawn = 0.3 + 0.65 * rng.unit();
    let load = family.load.unwrap_or(drawn);
    let count = 100 + rng.below(200);
    let drawn = match family.published {
        Some(workload) => workload.draw(rng, count),
        None => draw(rng, nodes, count),
    };
    let gap_s = work_s(&drawn, nodes) / load / count as f64;
    let mut at_s = 0.0;
    let mut next = || {
        at_s += rng.exponential() * gap_s;
        Arrivals::Trace { at_ns: vec![ns(at_s)] }
    };
    drawn.iter().enumerate().map(|(i, d)| d.job(i, 1, 0.0, next())).collect()
}

/// Computing k - 1 times as long as it writes alone, a job needs one k-th of its nodes' time.
fn closed(rng: &mut Rng, nodes: u32) -> Vec<JobSpec> {
    let count = by_order(rng, 4.0, 64.0) as u64;
    let load = 1.0 + rng.unit();
    let drawn = draw(rng, nodes, count);
    let widths: f64 = drawn.iter().map(|d| d.on.len() as f64).sum();
    let k = (widths / f64::from(nodes) / load).max(1.05);
    let mut job = |(i, d): (usize, &Drawn)| {
        let steps = 10 + rng.below(20) as u32;
        d.job(i, steps, (k - 1.0) * d.alone_s, Arrivals::Jittered { spread: 0.5 })
    };
    drawn.iter().enumerate().map(&mut job).collect()
}

impl Family {
    /// Workload `number` under the access policy `policy`.
    pub fn workload(&self, number: u64, policy: &str) -> Setup {
        let mut rng = Rng::new(self.seed).fork(number);
        let drawn = 16 << rng.below(4);
        let nodes = self.published.map_or(drawn, Workload::nodes);
        let jobs = match self.kind {
            Kind::Arrivals => arrivals(&mut rng, nodes, self),
            Kind::Closed => closed(&mut rng, nodes),
            Kind::Batch => {
                let count = 3 + rng.below(58);
                let at = Arrivals::Trace { at_ns: vec![0] };
                let drawn = draw(&mut rng, nodes, count);
                drawn.iter().enumerate().map(|(i, d)| d.job(i, 1, 0.0, at.clone())).collect()
            }
        };
        let setup = Setup::plain(nodes, 1 << 60, NODE_BYTES_PER_S, "striped", policy, jobs);
        Setup { seed: rng.next_u64(), ..setup }
    }

    /// Runs workload `number` under `policy`.
    ///
    /// # Errors
    /// If no access policy has this name.
    pub fn run(&self, number: u64, policy: &str) -> Result<Made> {
        let setup = self.workload(number, policy);
        Ok(Made::of(&simulate(&setup, &mut Trace::off())?))
    }

    /// Runs the same with the bound of the sum, which takes longer than the run.
    ///
    /// # Errors
    /// If no access policy has this name.
    pub fn run_bounded(&self, number: u64, policy: &str) -> Result<Made> {
        let setup = self.workload(number, policy);
        let outcome = simulate(&setup, &mut Trace::off())?;
        Ok(Made { least_s: bound::io_s(&setup, &outcome), ..Made::of(&outcome) })
    }
}

/// What a policy makes of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Made {
    /// Number of steps.
    pub steps: usize,
    /// Sum of I/O times in seconds.
    pub sum_s: f64,
    /// The longest I/O time.
    pub longest_s: f64,
    /// Mean over steps of I/O time divided by time alone.
    pub slowdown: f64,
    /// Sum of the times that steps take alone: no policy can be below it.
    pub alone_s: f64,
    /// The longest time alone.
    pub longest_alone_s: f64,
    /// A higher bound that the sum of no policy can be below; the sum of times alone if unknown.
    pub least_s: f64,
}

/// `of` under one policy divided by `of` under another, workload by workload.
pub fn ratios(made: &[Made], base: &[Made], of: fn(&Made) -> f64) -> Vec<f64> {
    made.iter().zip(base).map(|(a, b)| of(a) / of(b)).collect()
}

/// Geometric mean of [`ratios`], as a change in percent.
pub fn change_of(made: &[Made], base: &[Made], of: fn(&Made) -> f64) -> Estimate {
    Estimate::change_percent(&ratios(made, base, of))
}

/// How many ratios are greater than 1 by more than whole nanoseconds of events explain.
pub fn above(ratios: &[f64]) -> usize {
    ratios.iter().filter(|ratio| **ratio > 1.0 + 1e-6).count()
}

impl Made {
    /// The result of a run.
    pub fn of(outcome: &Outcome) -> Self {
        let mut made = Made::default();
        for step in outcome.jobs.iter().flat_map(|job| &job.steps) {
            let (io_s, alone_s) = (step.io_s(), step.alone_ns as f64 * 1e-9);
            made.steps += 1;
            made.sum_s += io_s;
            made.longest_s = made.longest_s.max(io_s);
            made.slowdown += io_s / alone_s;
            made.alone_s += alone_s;
            made.longest_alone_s = made.longest_alone_s.max(alone_s);
        }
        made.slowdown /= made.steps.max(1) as f64;
        Made { least_s: made.alone_s, ..made }
    }
}
