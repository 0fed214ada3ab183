//! The plain case: every job has one step to write, nothing breaks, and all hold their nodes to the
//! end. The papers' workloads are of this kind.

use forebay_policy::burst::access;
use forebay_policy::burst::allocation::{self, Allocator, Demand};
use forebay_policy::machine::{Machine, Nanos};

use super::JobSpec;
use crate::arrivals::Arrivals;
use crate::error::{Error, Result};
use crate::trace::Trace;

/// One job with one step to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// When its step asks for access, in ns.
    pub arrives_ns: u64,
    /// Processes that write.
    pub processes: f64,
    /// Bytes of the step.
    pub bytes: u64,
    /// Burst buffer nodes that it wants, if it says.
    pub nodes: Option<u32>,
    /// The most that its clients can send, in bytes per second; infinity for no bound.
    pub client_bytes_per_s: f64,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// Burst buffer nodes.
    pub nodes: u32,
    /// Space of a node.
    pub node_bytes: u64,
    /// Bandwidth of a node.
    pub node_bytes_per_s: f64,
    /// Jobs, in the order in which they ask for their allocation. All ask at the start.
    pub jobs: Vec<Job>,
    /// Name of the allocation policy.
    pub allocation: &'a str,
    /// Name of the access policy.
    pub access: &'a str,
    /// Configuration of the access scheduler; `nodes` is overwritten.
    pub config: access::Config,
}

/// What became of a step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// From asking to the first byte.
    pub wait_s: f64,
    /// From asking to the last byte: the paper's I/O time.
    pub io_s: f64,
}

/// The steps, in the order of the jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// One per job.
    pub steps: Vec<Step>,
}

impl Outcome {
    /// Sum of I/O times in seconds.
    pub fn aggregate_s(&self) -> f64 {
        self.steps.iter().map(|s| s.io_s).sum()
    }

    /// The longest waiting in seconds.
    pub fn longest_wait_s(&self) -> f64 {
        self.steps.iter().map(|s| s.wait_s).fold(0.0, f64::max)
    }
}

/// Each job's nodes, by the allocation policy `setup.allocation`.
///
/// # Errors
/// If there is no such policy, or no room for a job.
pub fn allocate(setup: &Setup) -> Result<Vec<Vec<u32>>> {
    let policy = allocation::policy(setup.allocation)?;
    let mut allocator = Allocator::new(policy, setup.nodes, setup.node_bytes);
    let mut all = Vec::new();
    for (job, j) in (0..).zip(&setup.jobs) {
        let demand = Demand { bytes: j.bytes, nodes: j.nodes };
        let mut out = Vec::new();
        allocator.handle(Nanos(0), allocation::Event::Asks { job, demand }, &mut out);
        match out.pop() {
            Some(allocation::Action::Allocate { nodes, .. }) => all.push(nodes),
            Some(allocation::Action::Refuse { why, .. }) => return Err(Error::Usage(why)),
            None => return Err(Error::Usage(format!("job {job} got no answer to its request for nodes"))),
        }
    }
    Ok(all)
}

/// The run as the world knows it; `on`: nodes given by hand.
fn world_of(setup: &Setup, on: Option<Vec<Vec<u32>>>) -> super::Setup {
    let mut on = on.map(Vec::into_iter);
    let job = |(i, j): (usize, &Job)| JobSpec {
        name: format!("job {i}"),
        processes: j.processes,
        step_bytes: j.bytes,
        nodes: j.nodes,
        on: on.as_mut().and_then(Iterator::next),
        client_bytes_per_s: j.client_bytes_per_s,
        steps: 1,
        compute_ns: 0,
        starts_ns: 0,
        io_first: true,
        arrivals: Arrivals::Trace { at_ns: vec![j.arrives_ns] },
    };
    super::Setup {
        nodes: setup.nodes,
        node_bytes: setup.node_bytes,
        node_bytes_per_s: setup.node_bytes_per_s,
        allocation: setup.allocation.into(),
        access: setup.access.into(),
        config: setup.config.clone(),
        jobs: setup.jobs.iter().enumerate().map(job).collect(),
        faults: Vec::new(),
        random: None,
        drain: None,
        seed: 0,
        horizon_ns: None,
    }
}

fn run(setup: &super::Setup, trace: &mut Trace) -> Result<Outcome> {
    let outcome = super::simulate(setup, trace)?;
    if let Some(job) = outcome.jobs.iter().find(|j| j.without_nodes) {
        return Err(Error::Usage(format!(
            "job '{}' never got nodes (allocation '{}')",
            job.name, setup.allocation
        )));
    }
    let step = |j: &super::JobOutcome| {
        j.steps.first().map_or(Step::default(), |s| Step { wait_s: s.wait_s(), io_s: s.io_s() })
    };
    Ok(Outcome { steps: outcome.jobs.iter().map(step).collect() })
}

/// Runs `setup`, with the jobs on `nodes`; see [`allocate`].
///
/// # Errors
/// If there is no such access policy, or steps are left over (a policy that never lets them in).
pub fn simulate_on(setup: &Setup, nodes: Vec<Vec<u32>>, trace: &mut Trace) -> Result<Outcome> {
    run(&world_of(setup, Some(nodes)), trace)
}

/// Allocates and runs.
///
/// # Errors
/// See [`allocate`] and [`simulate_on`].
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    run(&world_of(setup, None), trace)
}

/// A configuration under which no lease ends within a run.
pub fn lasting_leases() -> access::Config {
    access::Config { lease_ns: u64::MAX / 4, ..access::Config::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(arrives_s: u64, processes: f64, bytes: u64, nodes: u32) -> Job {
        let client_bytes_per_s = f64::INFINITY;
        Job {
            arrives_ns: arrives_s * 1_000_000_000,
            processes,
            bytes,
            nodes: Some(nodes),
            client_bytes_per_s,
        }
    }

    fn io_s(access: &str, jobs: Vec<Job>) -> Vec<f64> {
        let setup = Setup {
            nodes: 2,
            node_bytes: 1 << 40,
            node_bytes_per_s: 1.0,
            jobs,
            allocation: "striped",
            access,
            config: lasting_leases(),
        };
        let outcome = simulate(&setup, &mut Trace::off()).expect("it runs");
        outcome.steps.iter().map(|s| (s.io_s * 1e6).round() / 1e6).collect()
    }

    /// Both on one node: 3 of 4 processes get three quarters.
    #[test]
    fn unscheduled_steps_share_by_processes() {
        let jobs = vec![job(0, 3.0, 6, 1), job(0, 2.0, 4, 2)];
        // Node 0: 6 bytes at 3/4 and 2 at 1/4 end together at 8; node 1 has its 2 at 2.
        assert_eq!(io_s("none", jobs), [8.0, 8.0]);
    }

    #[test]
    fn scheduled_steps_take_turns() {
        let jobs = || vec![job(0, 1.0, 8, 2), job(0, 1.0, 4, 2)];
        assert_eq!(io_s("sys-sjf", jobs()), [6.0, 2.0]);
        assert_eq!(io_s("sa-fcfs", jobs()), [4.0, 6.0]);
    }

    #[test]
    fn n_instances_take_n_times_as_long() {
        for n in [1usize, 2, 4] {
            assert_eq!(io_s("none", vec![job(0, 5.0, 10, 2); n]), vec![5.0 * n as f64; n]);
        }
    }
}
