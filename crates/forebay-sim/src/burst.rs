//! Jobs that write their steps to shared burst buffer nodes.
//!
//! The world holds bandwidth and data; the allocation and access machines of `forebay-policy` decide which nodes a job has
//! and when it may write. A node divides its bandwidth over the processes (or, once the access scheduler regulates it,
//! over the shares) of the steps that write to it; a step ends when the last of its nodes has its data.
//!
//! Nodes that exactly the same jobs use behave alike, so one of each such *class* is simulated. This is exact, and turns
//! hundreds of nodes into a handful.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use forebay_policy::access::{self, Access, Action};
use forebay_policy::allocation::{self, Allocator, Demand};
use forebay_policy::machine::{Machine, Nanos};

use crate::error::{Error, Result};
use crate::maxmin::{FlowSpec, MaxMin};
use crate::pump::Pump;
use crate::queue::EventQueue;
use crate::run::{World, run};
use crate::trace::Trace;
use crate::transfer_ns;

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
    /// Jobs, in the order in which they ask for their allocation. All hold it to the end of the run.
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

/// Nodes that the same jobs use.
type Classes = BTreeMap<Vec<usize>, usize>;

/// Each job's nodes, by the allocation policy `setup.allocation`.
///
/// # Errors
/// If there is no such policy, or no room for a job.
pub fn allocate(setup: &Setup) -> Result<Vec<Vec<u32>>> {
    let policy = allocation::policy(setup.allocation).map_err(Error::Usage)?;
    let mut allocator = Allocator::new(policy, setup.nodes, setup.node_bytes, setup.node_bytes_per_s);
    let mut all = Vec::new();
    for (job, j) in (0..).zip(&setup.jobs) {
        let demand = Demand { bytes: j.bytes, nodes: j.nodes, client_bytes_per_s: j.client_bytes_per_s };
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

enum Event {
    Arrives(usize),
    Wake,
}

struct Burst<'a> {
    setup: &'a Setup<'a>,
    nodes: Vec<Vec<u32>>,
    /// Classes that each job writes to.
    classes: Vec<Vec<usize>>,
    net: MaxMin,
    pump: Pump<Access>,
    trace: &'a mut Trace,
    /// (token, weight) of the jobs that write, and the flows that they have left.
    holds: BTreeMap<usize, (access::Token, usize)>,
    steps: Vec<Step>,
}

/// Names job `job`'s flow to class `class`.
fn flow_id(job: usize, class: usize) -> u64 {
    (job as u64) << 32 | class as u64
}

impl Burst<'_> {
    fn per_node(&self, job: usize) -> (f64, f64) {
        let n = self.nodes[job].len() as f64;
        (self.setup.jobs[job].bytes as f64 / n, self.setup.jobs[job].client_bytes_per_s / n)
    }

    fn alone_ns(&self, job: usize) -> u64 {
        let (bytes, cap) = self.per_node(job);
        transfer_ns(bytes, cap.min(self.setup.node_bytes_per_s)).unwrap_or(u64::MAX)
    }

    fn start(&mut self, now: Nanos, job: usize, share: Option<f64>, left: Option<&BTreeMap<usize, f64>>) {
        let (bytes, cap_bytes_per_s) = self.per_node(job);
        let weight = share.unwrap_or(self.setup.jobs[job].processes / self.nodes[job].len() as f64);
        for &class in &self.classes[job] {
            let bytes = left.map_or(Some(bytes), |l| l.get(&class).copied());
            if let Some(bytes) = bytes {
                let spec = FlowSpec { path: vec![class], bytes, weight, cap_bytes_per_s };
                self.net.start(now, flow_id(job, class), spec);
            }
        }
    }

    /// Another share: its flows are taken up again with the new weight.
    fn reshare(&mut self, now: Nanos, token: access::Token, share: f64) {
        let Some(job) = self.holds.iter().find(|h| h.1.0 == token).map(|h| *h.0) else { return };
        let taken = self.classes[job].iter().map(|&c| (c, self.net.abort(now, flow_id(job, c))));
        let left: BTreeMap<usize, f64> = taken.filter_map(|(c, l)| l.map(|l| (c, l))).collect();
        self.start(now, job, Some(share), Some(&left));
    }

    fn carry_out(&mut self, now: Nanos, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Grant { token, step, share, .. } => {
                    let job = step as usize;
                    self.steps[job].wait_s =
                        now.saturating_since(Nanos(self.setup.jobs[job].arrives_ns)) as f64 * 1e-9;
                    self.holds.insert(job, (token, self.classes[job].len()));
                    self.start(now, job, share, None);
                }
                Action::Share { token, share } => self.reshare(now, token, share),
                // Holders of this world never die, and their leases last for the run.
                Action::Renewed { .. } | Action::Revoke { .. } => {}
            }
        }
    }
}

impl World for Burst<'_> {
    type Event = Event;

    fn on_event(&mut self, now: Nanos, event: Event, queue: &mut EventQueue<Event>) {
        let actions = match event {
            Event::Arrives(job) => {
                let (nodes, alone_ns) = (self.nodes[job].clone(), self.alone_ns(job));
                let event = access::Event::Arrives { step: job as u64, nodes, alone_ns };
                self.pump.tell(now, event, self.trace)
            }
            Event::Wake => self.pump.wake(now, self.trace),
        };
        self.carry_out(now, actions);
        self.pump.arm(queue, Event::Wake);
    }

    fn next_completion(&self) -> Option<Nanos> {
        self.net.next_end()
    }

    fn on_completion(&mut self, now: Nanos, queue: &mut EventQueue<Event>) {
        let Some((_, flow)) = self.net.pop_end() else { return };
        let job = (flow >> 32) as usize;
        let Some((token, flows)) = self.holds.get_mut(&job) else { return };
        *flows -= 1;
        if *flows == 0 {
            let token = *token;
            self.holds.remove(&job);
            self.steps[job].io_s = now.saturating_since(Nanos(self.setup.jobs[job].arrives_ns)) as f64 * 1e-9;
            let actions = self.pump.tell(now, access::Event::Done { token }, self.trace);
            self.carry_out(now, actions);
            self.pump.arm(queue, Event::Wake);
        }
    }
}

/// Runs `setup`, with the jobs on `nodes`; see [`allocate`].
///
/// # Errors
/// If there is no such access policy, or steps are left over (a policy that never lets them in).
pub fn simulate_on(setup: &Setup, nodes: Vec<Vec<u32>>, trace: &mut Trace) -> Result<Outcome> {
    let config = access::Config { nodes: setup.nodes, ..setup.config.clone() };
    let policy = access::policy(setup.access, &config).map_err(Error::Usage)?;
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); setup.nodes as usize];
    for (job, nodes) in nodes.iter().enumerate() {
        nodes.iter().for_each(|&n| users[n as usize].push(job));
    }
    let (mut net, mut classes, mut of_job) = (MaxMin::new(), Classes::new(), vec![Vec::new(); nodes.len()]);
    for jobs in users.into_iter().filter(|u| !u.is_empty()) {
        if let Entry::Vacant(new) = classes.entry(jobs) {
            let class = net.add_resource(setup.node_bytes_per_s);
            new.key().iter().for_each(|&j| of_job[j].push(class));
            new.insert(class);
        }
    }
    let mut queue = EventQueue::new();
    for (job, j) in setup.jobs.iter().enumerate() {
        queue.at(Nanos(j.arrives_ns), Event::Arrives(job));
    }
    let mut world = Burst {
        setup,
        steps: vec![Step::default(); nodes.len()],
        nodes,
        classes: of_job,
        net,
        pump: Pump::new("access", Access::new(policy, config)),
        trace,
        holds: BTreeMap::new(),
    };
    run(&mut world, &mut queue, u64::MAX);
    let left = world.pump.machine().snapshot();
    if left.pending.is_empty() && left.active.is_empty() {
        Ok(Outcome { steps: world.steps })
    } else {
        Err(Error::Usage(format!("the access policy {} left steps over: {left:?}", setup.access)))
    }
}

/// Allocates and runs.
///
/// # Errors
/// See [`allocate`] and [`simulate_on`].
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    simulate_on(setup, allocate(setup)?, trace)
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

    /// A step of 2 s as guest of one of 40 s: 2.5 s at four fifths; the host loses 2 s.
    #[test]
    fn a_guest_costs_its_host_no_more_than_its_own_time() {
        let jobs = || vec![job(0, 1.0, 80, 2), job(10, 1.0, 4, 2)];
        assert_eq!(io_s("forebay", jobs()), [42.0, 2.5]);
        assert_eq!(io_s("sa-sjf", jobs()), [40.0, 32.0]);
    }

    #[test]
    fn n_instances_take_n_times_as_long() {
        for n in [1usize, 2, 4] {
            assert_eq!(io_s("none", vec![job(0, 5.0, 10, 2); n]), vec![5.0 * n as f64; n]);
        }
    }
}
