//! What happens on a platform: jobs, transfers, failures.

use std::collections::BTreeMap;

use forebay_model::rng::Rng;
use forebay_policy::burst::access::{self, Access, Action, StepId, Token};
use forebay_policy::machine::Nanos;

use super::{Class, FAILURES, Failure, Level, Outcome, Platform, REBOOT_S, Strategy, Window, Writes};
use crate::burst::lasting_leases;
use crate::driver::{Driver, Record};
use crate::error::Result;
use crate::event_loop::{self, Limits, World};
use crate::queue::EventQueue;
use crate::trace::Trace;
use crate::transfer_ns;

/// A period is at least this much longer than its checkpoint.
const WORK_NS: f64 = 1e9;
/// Bytes that take less than this time count as transferred.
const ROUNDING_NS: f64 = 1.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Input,
    Restart,
    Checkpoint,
    Drain,
    Output,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Compute,
    /// Input and output.
    Transfer,
    Write,
    Read,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A job has nothing to wait for: its work is done, a checkpoint is due, or the tier is done.
    Turn {
        job: u64,
        turn: u32,
    },
    Failure,
    Wake,
}

struct Step {
    job: u64,
    what: What,
    token: Option<Token>,
    alone_ns: u64,
    /// Work that a drained checkpoint has.
    has_ns: u64,
}

struct Flow {
    step: StepId,
    nodes: f64,
    left_ns: f64,
}

struct Job {
    class: usize,
    does: Does,
    since: Nanos,
    turn: u32,
    work_ns: u64,
    done_ns: u64,
    /// Work in the newest checkpoint on the PFS, and in the tier.
    on_pfs_ns: Option<u64>,
    in_tier_ns: Option<u64>,
    due: Nanos,
    has_input: bool,
    /// Its own transfer, and the tier's transfer for it.
    step: Option<StepId>,
    drain: Option<StepId>,
}

struct Sim<'a> {
    platform: &'a Platform,
    strategy: &'a Strategy,
    window: (u64, u64),
    failures: Rng,
    works: Rng,
    pfs: Driver<Access>,
    record: Record<'a>,
    jobs: BTreeMap<u64, Job>,
    steps: BTreeMap<StepId, Step>,
    flows: Vec<Flow>,
    flowed: Nanos,
    next: u64,
    free: u32,
    /// Node seconds of each class that have begun.
    given: Vec<f64>,
    periods_ns: Vec<f64>,
    blocks_ns: Vec<f64>,
    node_ns: Vec<f64>,
    lost: Vec<(f64, u64)>,
    out: Outcome,
}

type Queue = EventQueue<Event>;

/// Runs a platform under a strategy.
///
/// # Errors
/// If there is no such access policy, or the run was interrupted.
pub fn simulate(platform: &Platform, strategy: &Strategy, window: &Window) -> Result<Outcome> {
    let config = lasting_leases();
    let policy = access::policy(strategy.access, &config)?;
    let rng = Rng::new(window.seed);
    let mut trace = Trace::off();
    let classes = platform.classes.len();
    let end_ns = ((window.from_s + window.for_s) * 1e9) as u64;
    let mut sim = Sim {
        platform,
        strategy,
        window: ((window.from_s * 1e9) as u64, end_ns),
        failures: rng.fork(1),
        works: rng.fork(2),
        pfs: Driver::new("pfs", Access::new(policy, config)),
        record: Record::new(&mut trace),
        jobs: BTreeMap::new(),
        steps: BTreeMap::new(),
        flows: Vec::new(),
        flowed: Nanos(0),
        next: 1,
        free: platform.nodes,
        given: vec![0.0; classes],
        periods_ns: strategy.periods_ns(platform, &platform.counts()),
        blocks_ns: strategy.blocks_ns(platform),
        node_ns: vec![0.0; classes],
        lost: Vec::new(),
        out: Outcome::default(),
    };
    let mut queue = EventQueue::new();
    sim.fill(Nanos(0), &mut queue);
    sim.next_failure(&mut queue);
    event_loop::run(&mut sim, &mut queue, Limits::of(Some(end_ns)))?;
    Ok(sim.outcome(Nanos(end_ns)))
}

impl Sim<'_> {
    fn class(&self, job: &Job) -> &Class {
        &self.platform.classes[job.class]
    }

    fn pfs_ns(&self, bytes: f64) -> u64 {
        transfer_ns(bytes, self.platform.pfs_bytes_per_s).unwrap_or(u64::MAX)
    }

    /// Nanoseconds of the window from `from` to `to`.
    fn in_window(&self, from: Nanos, to: Nanos) -> f64 {
        to.0.min(self.window.1).saturating_sub(from.0.max(self.window.0)) as f64
    }

    /// Starts jobs as long as the next one fits: one of the class that is furthest below its share.
    fn fill(&mut self, now: Nanos, queue: &mut Queue) {
        let mut has_begun = false;
        loop {
            let due = |c: &usize| self.given[*c] / self.platform.classes[*c].share;
            let class = (0..self.given.len()).min_by(|a, b| due(a).total_cmp(&due(b)));
            let Some(class) = class.filter(|c| self.platform.classes[*c].nodes <= self.free) else { break };
            let kind = &self.platform.classes[class];
            // The first jobs are already in progress.
            let part = if now == Nanos(0) { self.works.unit() } else { 1.0 };
            let work_s = kind.work_s * (0.9 + 0.2 * self.works.unit()) * part;
            self.free -= kind.nodes;
            self.given[class] += work_s * f64::from(kind.nodes);
            let id = self.next;
            self.next += 1;
            let job = Job {
                class,
                does: Does::Transfer,
                since: now,
                turn: 0,
                work_ns: (work_s * 1e9) as u64,
                done_ns: 0,
                on_pfs_ns: None,
                in_tier_ns: None,
                due: now,
                has_input: false,
                step: None,
                drain: None,
            };
            self.jobs.insert(id, job);
            self.goes_back(id, now, queue);
            has_begun = true;
        }
        if has_begun {
            let mut counts = vec![0.0; self.given.len()];
            self.jobs.values().for_each(|job| counts[job.class] += 1.0);
            self.periods_ns = self.strategy.periods_ns(self.platform, &counts);
        }
    }

    /// The job does something else from now on.
    fn turns_to(&mut self, id: u64, does: Does, now: Nanos) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let (was, since) = (std::mem::replace(&mut job.does, does), std::mem::replace(&mut job.since, now));
        job.turn += 1;
        if was == Does::Compute {
            job.done_ns += now.saturating_since(since);
        }
        let (class, nodes) = (job.class, f64::from(self.platform.classes[job.class].nodes));
        let node_s = nodes * self.in_window(since, now) / 1e9;
        self.node_ns[class] += node_s;
        self.out.all += node_s;
        match was {
            Does::Compute => self.out.work += node_s,
            Does::Transfer => {}
            Does::Write => self.out.written += node_s,
            Does::Read => self.out.read += node_s,
        }
    }

    fn turn_after(&mut self, id: u64, ns: u64, queue: &mut Queue) {
        let Some(job) = self.jobs.get(&id) else { return };
        queue.after(ns, Event::Turn { job: id, turn: job.turn });
    }

    /// Computes until a checkpoint is due or the work is done.
    fn computes(&mut self, id: u64, now: Nanos, queue: &mut Queue) {
        self.turns_to(id, Does::Compute, now);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let segment_ns = (self.periods_ns[job.class] - self.blocks_ns[job.class]).max(WORK_NS);
        // Saturates for a job that never writes.
        job.due = now + segment_ns as u64;
        let ns = (job.work_ns - job.done_ns).min(job.due.saturating_since(now));
        self.turn_after(id, ns, queue);
    }

    /// A checkpoint is due, the work is done, or the tier has written or read a checkpoint.
    fn has_turn(&mut self, id: u64, now: Nanos, queue: &mut Queue) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match job.does {
            Does::Compute if now.saturating_since(job.since) + job.done_ns >= job.work_ns => {
                self.turns_to(id, Does::Transfer, now);
                self.cancel(id, now, true, queue);
                self.transfers(id, What::Output, now, queue);
            }
            Does::Compute => match self.strategy.writes {
                Writes::Blocking => {
                    self.turns_to(id, Does::Write, now);
                    self.transfers(id, What::Checkpoint, now, queue);
                }
                Writes::Waiting => {
                    let left_ns = job.work_ns - job.done_ns - now.saturating_since(job.since);
                    self.turn_after(id, left_ns, queue);
                    self.transfers(id, What::Checkpoint, now, queue);
                }
                Writes::Absorbed(_) => {
                    let ns = self.blocks_ns[job.class] as u64;
                    self.turns_to(id, Does::Write, now);
                    self.turn_after(id, ns, queue);
                }
            },
            Does::Write => {
                job.in_tier_ns = Some(job.done_ns);
                self.drains(id, now, queue);
                self.computes(id, now, queue);
            }
            Does::Read => self.computes(id, now, queue),
            Does::Transfer => {}
        }
    }

    /// Lets the newest checkpoint of the tier go to the PFS, unless one is in transit.
    fn drains(&mut self, id: u64, now: Nanos, queue: &mut Queue) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.drain.is_none() && job.in_tier_ns > job.on_pfs_ns {
            self.transfers(id, What::Drain, now, queue);
        }
    }

    /// Asks for a transfer with the PFS.
    fn transfers(&mut self, id: u64, what: What, now: Nanos, queue: &mut Queue) {
        let Some(job) = self.jobs.get(&id) else { return };
        let class = self.class(job);
        let alone_ns = self.pfs_ns(match what {
            What::Input => class.input_bytes,
            What::Output => class.output_bytes,
            What::Restart | What::Checkpoint | What::Drain => class.checkpoint_bytes,
        });
        let step = self.next;
        self.next += 1;
        let stake = self.stake(job, what, now);
        self.steps.insert(step, Step { job: id, what, token: None, alone_ns, has_ns: job.done_ns });
        let Some(job) = self.jobs.get_mut(&id) else { return };
        *(if what == What::Drain { &mut job.drain } else { &mut job.step }) = Some(step);
        self.notify(now, access::Event::Arrives { step, nodes: Vec::new(), alone_ns, period_ns: 0 }, queue);
        self.notify(now, access::Event::Stakes { step, stake }, queue);
    }

    /// What the job loses while it waits for the transfer.
    fn stake(&self, job: &Job, what: What, now: Nanos) -> access::Stake {
        let class = self.class(job);
        let level = self.strategy.level().filter(|_| what == What::Drain);
        let guards = |failure| level.is_none_or(|level| !level.survives(failure));
        let is_blocked = job.does != Does::Compute && what != What::Drain;
        let computed_ns = if job.does == Does::Compute { now.saturating_since(job.since) } else { 0 };
        let at_risk_ns = job.done_ns + computed_ns - job.on_pfs_ns.unwrap_or(0);
        access::Stake {
            nodes: class.nodes,
            since: if is_blocked { now } else { now - at_risk_ns },
            is_blocked,
            recovery_ns: self.pfs_ns(class.checkpoint_bytes),
            fails_ns: (self.platform.fails_s(class, guards) * 1e9) as u64,
        }
    }

    fn notify(&mut self, now: Nanos, event: access::Event, queue: &mut Queue) {
        let actions = self.pfs.handle(now, event, &self.record);
        self.act(now, actions, queue);
    }

    fn act(&mut self, now: Nanos, actions: Vec<Action>, queue: &mut Queue) {
        for action in actions {
            if let Action::Grant { token, step, .. } = action {
                self.begins(step, token, now);
            }
        }
        self.pfs.arm(queue, Event::Wake);
    }

    fn begins(&mut self, id: StepId, token: Token, now: Nanos) {
        let Some(&Step { job, what, .. }) = self.steps.get(&id) else { return };
        if what == What::Checkpoint {
            self.turns_to(job, Does::Write, now);
        }
        self.flow(now);
        let (Some(step), Some(job)) = (self.steps.get_mut(&id), self.jobs.get(&job)) else { return };
        step.token = Some(token);
        step.has_ns = if what == What::Drain { job.in_tier_ns.unwrap_or(0) } else { job.done_ns };
        let nodes = f64::from(self.platform.classes[job.class].nodes);
        self.flows.push(Flow { step: id, nodes, left_ns: step.alone_ns as f64 });
    }

    /// Transfers share the PFS by the nodes of their jobs.
    fn rate(&self, flow: &Flow) -> f64 {
        flow.nodes / self.flows.iter().map(|flow| flow.nodes).sum::<f64>()
    }

    fn flow(&mut self, now: Nanos) {
        let passed_ns = now.saturating_since(self.flowed) as f64;
        let rates: Vec<f64> = self.flows.iter().map(|flow| self.rate(flow)).collect();
        self.flows.iter_mut().zip(rates).for_each(|(flow, rate)| flow.left_ns -= rate * passed_ns);
        self.flowed = now;
    }

    fn ends(&mut self, id: StepId, now: Nanos, queue: &mut Queue) {
        let Some(step) = self.steps.remove(&id) else { return };
        if let Some(token) = step.token {
            self.notify(now, access::Event::Done { token }, queue);
        }
        let Some(job) = self.jobs.get_mut(&step.job) else { return };
        *(if step.what == What::Drain { &mut job.drain } else { &mut job.step }) = None;
        match step.what {
            What::Input | What::Output => {
                let is_first = !std::mem::replace(&mut job.has_input, true) || step.what == What::Output;
                let nodes = f64::from(self.platform.classes[job.class].nodes);
                if is_first && (self.window.0..self.window.1).contains(&now.0) {
                    self.out.io += nodes * step.alone_ns as f64 / 1e9;
                }
                if step.what == What::Input {
                    self.computes(step.job, now, queue);
                } else {
                    self.turns_to(step.job, Does::Transfer, now);
                    let class = self.jobs.remove(&step.job).map_or(0, |job| job.class);
                    self.free += self.platform.classes[class].nodes;
                    self.fill(now, queue);
                }
            }
            What::Restart => self.computes(step.job, now, queue),
            What::Checkpoint => {
                job.on_pfs_ns = Some(step.has_ns);
                self.computes(step.job, now, queue);
            }
            What::Drain => {
                job.on_pfs_ns = job.on_pfs_ns.max(Some(step.has_ns));
                self.drains(step.job, now, queue);
            }
        }
    }

    /// Withdraws the job's transfer, and perhaps the tier's.
    fn cancel(&mut self, id: u64, now: Nanos, drain_too: bool, queue: &mut Queue) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let drain = if drain_too { job.drain.take() } else { None };
        for step in job.step.take().into_iter().chain(drain) {
            self.flow(now);
            self.flows.retain(|flow| flow.step != step);
            match self.steps.remove(&step).and_then(|step| step.token) {
                Some(token) => self.notify(now, access::Event::Done { token }, queue),
                None => self.notify(now, access::Event::Leaves { step }, queue),
            }
        }
    }

    fn next_failure(&mut self, queue: &mut Queue) {
        let mean_s = self.platform.node_fails_s / f64::from(self.platform.nodes);
        let after_s = self.failures.exponential() * mean_s;
        queue.after((after_s * 1e9) as u64, Event::Failure);
    }

    /// A node fails; it may have no job.
    fn fails(&mut self, now: Nanos, queue: &mut Queue) {
        let node = self.failures.below(self.platform.nodes.into());
        let kind = self.failures.unit();
        self.next_failure(queue);
        let mut below = 0;
        let hit = self.jobs.iter().find(|(_, job)| {
            below += u64::from(self.platform.classes[job.class].nodes);
            node < below
        });
        let Some(id) = hit.map(|(id, _)| *id) else { return };
        let mut sum = 0.0;
        let drawn = FAILURES.iter().zip(self.platform.failures).find(|(_, share)| {
            sum += share;
            kind < sum
        });
        self.loses(id, drawn.map_or(Failure::Node, |(failure, _)| *failure), now, queue);
    }

    /// A job goes back to its last checkpoint that survives this failure.
    fn loses(&mut self, id: u64, failure: Failure, now: Nanos, queue: &mut Queue) {
        let survives = self.strategy.level().is_some_and(|level| level.survives(failure));
        self.cancel(id, now, !survives, queue);
        self.turns_to(id, Does::Read, now);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if !survives {
            job.in_tier_ns = None;
        }
        let safe_ns = job.in_tier_ns.max(job.on_pfs_ns);
        let lost_ns = job.done_ns - safe_ns.unwrap_or(0);
        job.done_ns -= lost_ns;
        let nodes = f64::from(self.platform.classes[job.class].nodes);
        if now.0 >= self.window.0 {
            self.out.failures += 1;
            self.lost.push((nodes, lost_ns));
        }
        let reboots = self.strategy.level() == Some(Level::Disk) && failure != Failure::Program;
        match self.jobs[&id].in_tier_ns {
            Some(in_tier_ns) if Some(in_tier_ns) == safe_ns => {
                let reboot_ns = if reboots { REBOOT_S * 1e9 } else { 0.0 };
                let ns = self.blocks_ns[self.jobs[&id].class] + reboot_ns;
                self.turn_after(id, ns as u64, queue);
            }
            _ => self.goes_back(id, now, queue),
        }
    }

    /// Reads the checkpoint that the PFS has, or the input.
    fn goes_back(&mut self, id: u64, now: Nanos, queue: &mut Queue) {
        let has_one = self.jobs.get(&id).is_some_and(|job| job.on_pfs_ns.is_some());
        self.turns_to(id, if has_one { Does::Read } else { Does::Transfer }, now);
        self.transfers(id, if has_one { What::Restart } else { What::Input }, now, queue);
    }

    fn outcome(mut self, end: Nanos) -> Outcome {
        let running: Vec<u64> = self.jobs.keys().copied().collect();
        running.into_iter().for_each(|id| self.turns_to(id, Does::Transfer, end));
        let lost: f64 = self.lost.iter().map(|(nodes, ns)| nodes * *ns as f64 / 1e9).sum();
        let window_s = (self.window.1 - self.window.0) as f64 / 1e9;
        let nodes = self.platform.classes.iter().map(|class| f64::from(class.nodes));
        let counts =
            self.node_ns.iter().zip(nodes).map(|(node_s, nodes)| node_s / nodes / window_s).collect();
        Outcome { work: self.out.work - lost, lost, counts, ..self.out }
    }
}

impl World for Sim<'_> {
    type Event = Event;

    fn on_event(&mut self, now: Nanos, event: Event, queue: &mut Queue) {
        match event {
            Event::Turn { job, turn } => {
                if self.jobs.get(&job).is_some_and(|job| job.turn == turn) {
                    self.has_turn(job, now, queue);
                }
            }
            Event::Failure => self.fails(now, queue),
            Event::Wake => {
                let actions = self.pfs.wake(now, &self.record);
                self.act(now, actions, queue);
            }
        }
    }

    fn next_completion(&self) -> Option<Nanos> {
        let ends = self.flows.iter().map(|flow| (flow.left_ns.max(0.0) / self.rate(flow)).ceil() as u64);
        ends.min().map(|ns| self.flowed + ns)
    }

    fn on_completion(&mut self, now: Nanos, queue: &mut Queue) {
        self.flow(now);
        let done: Vec<StepId> =
            self.flows.iter().filter(|flow| flow.left_ns < ROUNDING_NS).map(|flow| flow.step).collect();
        self.flows.retain(|flow| flow.left_ns >= ROUNDING_NS);
        done.into_iter().for_each(|step| self.ends(step, now, queue));
    }
}
