//! Jobs that compute, ask for access and write. Requests for nodes are in `room`, what breaks is in
//! `faults`, steps that drain in `drain_rounds`, and the events of a run in `events`.

use std::collections::BTreeMap;

use forebay_model::rng::Rng;
use forebay_policy::burst::access::{self, Access, Action, StepId, Token};
use forebay_policy::burst::allocation::Allocator;
use forebay_policy::drain::FileId;
use forebay_policy::machine::Nanos;
use serde::Serialize;

use super::drain_state::Draining;
use super::fabric::Fabric;
use super::machines::machines;
use super::outcome::{Ended, Hold, JobOutcome, Outcome, StepOutcome, ranges};
use super::{Broken, JobSpec, RENEWALS_PER_LEASE, Setup};
use crate::driver::{Driver, Record};
use crate::error::Result;
use crate::queue::Agenda;

/// Events of a run.
#[derive(Clone, Copy, Debug)]
pub enum Happening {
    JobStarts(usize),
    StepDue(usize),
    Renew(usize, Token),
    AccessWakes,
    AllocationWakes,
    Breaks(Broken, Option<u64>),
    Mends(Broken),
    /// The batch system has noticed that a job is dead.
    Noticed(usize),
    /// A node fails by chance.
    Chance(u32),
    DrainWakes,
    /// This many bytes of a step that is drained have arrived on the file system.
    Landed(FileId, u64),
}

/// Notes in the trace: facts, not decisions.
#[derive(Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Note {
    /// A step goes to the access scheduler under the id `step`.
    Asks { step: StepId, index: u32, attempt: u32 },
    /// A step is written.
    Written { index: u32, io_ns: u64, wait_ns: u64 },
    /// A step has to be written again.
    Anew { index: u32, why: &'static str },
    /// All steps are written.
    Ends,
    /// A job is dead, or stands still.
    Dies { was: &'static str },
    /// It stands still.
    Stops,
    /// It continues.
    GoesOn,
    /// A node is gone.
    Fails,
    /// It is back.
    Returns,
}

/// What a job is doing. Other things that it waits for (nodes, its turn) are in its other fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Computes, or has not begun.
    Away,
    /// Its step is due, and is not with the access scheduler.
    Due,
    /// Its step waits for a token.
    Waits(StepId),
    /// It holds a token, with this entry in the list of holds.
    Holds(Token, usize),
    /// All is written, or the batch system has removed it.
    Over,
}

pub struct Job {
    pub rng: Rng,
    pub nodes: Vec<u32>,
    pub reserved_bytes: u64,
    pub stage: Stage,
    due: Nanos,
    attempts: u32,
    pub begun: bool,
    /// Dead, or standing still: it does nothing and reports nothing.
    pub silent: bool,
    /// The token for which a renewal is scheduled.
    pub renewing: Option<Token>,
    /// What it missed while it stood still: its start, the time of a step, the loss of a node.
    pub missed_start: bool,
    pub missed_step: bool,
    pub missed_loss: bool,
    /// Whether its last whole step is on the nodes that it has.
    pub has_step: bool,
    /// Steps on its nodes that are not drained yet, if steps are drained, and whether it waits for
    /// the room of one.
    pub kept: u32,
    pub wants_room: bool,
    pub done: JobOutcome,
}

/// The nodes, and all that happens there.
pub struct Burst<'a> {
    pub setup: &'a Setup,
    pub record: &'a Record<'a>,
    pub access: Driver<Access>,
    pub allocator: Driver<Allocator>,
    pub fabric: Fabric,
    pub draining: Option<Draining>,
    pub jobs: Vec<Job>,
    /// Jobs that wait for nodes, in the order in which they began to wait.
    pub homeless: Vec<usize>,
    /// The job of each step that waits, and of each token, with its entry in the list of holds.
    asking: BTreeMap<StepId, usize>,
    holders: BTreeMap<Token, (usize, usize)>,
    next_step: StepId,
    pub reserved_bytes: Vec<u64>,
    /// How many faults keep each node down.
    pub faults_on: Vec<u32>,
    pub chance: Vec<Rng>,
    pub out: Outcome,
}

impl<'a> Burst<'a> {
    /// Starts with nothing done.
    ///
    /// # Errors
    /// If a policy does not exist.
    pub fn new(setup: &'a Setup, record: &'a Record<'a>) -> Result<Self> {
        let (access, allocator) = machines(setup)?;
        let rng = Rng::new(setup.seed);
        let job = |(j, spec): (usize, &JobSpec)| Job {
            rng: rng.fork(j as u64),
            nodes: Vec::new(),
            reserved_bytes: 0,
            stage: Stage::Away,
            due: Nanos(0),
            attempts: 0,
            begun: false,
            silent: false,
            renewing: None,
            missed_start: false,
            missed_step: false,
            missed_loss: false,
            has_step: false,
            kept: 0,
            wants_room: false,
            done: JobOutcome { name: spec.name.clone(), ..JobOutcome::default() },
        };
        let chance = rng.fork(u64::MAX);
        Ok(Burst {
            setup,
            record,
            access: Driver::new("access", access),
            allocator: Driver::new("allocation", allocator),
            fabric: Fabric::new(setup.nodes, setup.node_bytes_per_s),
            draining: setup.drain.as_ref().map(Draining::new),
            jobs: setup.jobs.iter().enumerate().map(job).collect(),
            homeless: Vec::new(),
            asking: BTreeMap::new(),
            holders: BTreeMap::new(),
            next_step: 1,
            reserved_bytes: vec![0; setup.nodes as usize],
            faults_on: vec![0; setup.nodes as usize],
            chance: (0..setup.nodes).map(|n| chance.fork(u64::from(n))).collect(),
            out: Outcome::default(),
        })
    }

    pub fn note(&mut self, now: Nanos, job: usize, note: &Note) {
        if self.record.is_on() {
            self.record.note(now, &format!("job/{job}"), note);
        }
    }

    pub fn notify_access(&mut self, now: Nanos, event: access::Event, queue: &mut impl Agenda<Happening>) {
        let actions = self.access.handle(now, event, self.record);
        self.obey(now, actions, queue);
    }

    pub fn obey(&mut self, now: Nanos, actions: Vec<Action>, queue: &mut impl Agenda<Happening>) {
        for action in actions {
            match action {
                Action::Grant { token, step, .. } => self.granted(now, token, step, queue),
                Action::Rank { order } => self.ranked(now, &order),
                Action::Revoke { token, .. } => self.revoked(now, token, queue),
                Action::Renewed { .. } => {}
            }
        }
        self.access.arm(queue, Happening::AccessWakes);
    }

    pub fn step_due(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        let job = &mut self.jobs[j];
        if job.stage == Stage::Over {
            return;
        }
        if job.silent {
            job.missed_step = true;
            return;
        }
        (job.stage, job.due, job.attempts) = (Stage::Due, now, 0);
        if !job.nodes.is_empty() {
            self.ask_for_access(now, j, queue);
        }
    }

    pub fn ask_for_access(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        if !self.has_room(now, j, queue) {
            return;
        }
        let step = self.next_step;
        self.next_step += 1;
        let job = &mut self.jobs[j];
        job.attempts += 1;
        job.stage = Stage::Waits(step);
        let (index, attempt, nodes) = (job.done.steps.len() as u32, job.attempts, job.nodes.clone());
        self.asking.insert(step, j);
        self.note(now, j, &Note::Asks { step, index, attempt });
        let alone_ns = self.setup.alone_ns(j, nodes.len());
        let period_ns = match self.setup.jobs[j].compute_ns {
            0 => 0,
            compute_ns => compute_ns.saturating_add(alone_ns),
        };
        self.notify_access(now, access::Event::Arrives { step, nodes, alone_ns, period_ns }, queue);
    }

    /// The step of `j` that waits is withdrawn.
    pub fn withdraw(&mut self, now: Nanos, step: StepId, queue: &mut impl Agenda<Happening>) {
        self.asking.remove(&step);
        self.notify_access(now, access::Event::Leaves { step }, queue);
    }

    fn granted(&mut self, now: Nanos, token: Token, step: StepId, queue: &mut impl Agenda<Happening>) {
        let Some(j) = self.asking.remove(&step) else {
            panic!("step {step} was let in, which nobody asks for")
        };
        let job = &mut self.jobs[j];
        let hold = self.out.holds.len();
        self.out.holds.push(Hold {
            job: j,
            index: job.done.steps.len() as u32,
            token,
            nodes: ranges(&job.nodes),
            from_ns: now.0,
            to_ns: now.0,
            silent_ns: job.silent.then_some(now.0),
            ended: Ended::Open,
        });
        job.stage = Stage::Holds(token, hold);
        self.holders.insert(token, (j, hold));
        if !self.jobs[j].silent {
            self.write(now, j, hold);
            self.renew_later(j, token, queue);
        }
    }

    /// Weight and cap of job `j`'s writes to each of its nodes.
    pub fn weight_and_cap(&self, j: usize) -> (f64, f64) {
        let n = self.jobs[j].nodes.len();
        (self.setup.jobs[j].processes / n as f64, self.setup.per_node(j, n).1)
    }

    pub fn write(&mut self, now: Nanos, j: usize, hold: usize) {
        let (weight, cap_bytes_per_s) = self.weight_and_cap(j);
        let nodes = &self.jobs[j].nodes;
        let (bytes, _) = self.setup.per_node(j, nodes.len());
        self.fabric.start(now, hold as u32, nodes, bytes, weight, cap_bytes_per_s);
    }

    fn ranked(&mut self, now: Nanos, order: &[Token]) {
        let holds: Vec<u32> =
            order.iter().filter_map(|token| self.holders.get(token)).map(|h| h.1 as u32).collect();
        self.fabric.rank(now, &holds);
    }

    /// A lease ran out. Nodes refuse what comes with this token from now on.
    fn revoked(&mut self, now: Nanos, token: Token, queue: &mut impl Agenda<Happening>) {
        let Some(&(j, hold)) = self.holders.get(&token) else { return };
        self.end_hold(now, j, hold, Ended::Revoked);
        let job = &mut self.jobs[j];
        job.done.leases_lost += 1;
        job.stage = Stage::Due;
        if job.done.died.is_some() {
            self.put_away(now, j, queue);
        } else if !job.silent {
            self.anew(now, j, "lease", queue);
        }
    }

    /// The step of job `j` is written again, on the nodes that it has.
    pub fn anew(&mut self, now: Nanos, j: usize, why: &'static str, queue: &mut impl Agenda<Happening>) {
        let index = self.jobs[j].done.steps.len() as u32;
        self.note(now, j, &Note::Anew { index, why });
        if !self.jobs[j].nodes.is_empty() {
            self.ask_for_access(now, j, queue);
        }
    }

    /// Closes entry `hold` before all is written.
    pub fn end_hold(&mut self, now: Nanos, j: usize, hold: usize, ended: Ended) {
        let entry = &mut self.out.holds[hold];
        (entry.to_ns, entry.ended) = (now.0, ended);
        let token = entry.token;
        self.holders.remove(&token);
        self.stop_writing(now, j, hold);
    }

    /// What was written under entry `hold` is lost.
    pub fn stop_writing(&mut self, now: Nanos, j: usize, hold: usize) {
        if let Some(left) = self.fabric.stop(now, hold as u32) {
            self.jobs[j].done.wasted_bytes += self.setup.jobs[j].step_bytes as f64 - left;
        }
    }

    pub fn written(&mut self, now: Nanos, hold: usize, queue: &mut impl Agenda<Happening>) {
        let entry = &mut self.out.holds[hold];
        (entry.to_ns, entry.ended) = (now.0, Ended::Written);
        let (j, token, granted_ns) = (entry.job, entry.token, entry.from_ns);
        self.holders.remove(&token);
        let spec = &self.setup.jobs[j];
        let job = &mut self.jobs[j];
        let step = StepOutcome {
            due_ns: job.due.0,
            granted_ns,
            end_ns: now.0,
            alone_ns: self.setup.alone_ns(j, job.nodes.len()),
            attempts: job.attempts,
        };
        job.has_step = true;
        job.done.steps.push(step);
        job.stage = Stage::Away;
        let index = job.done.steps.len() as u32 - 1;
        let (io_ns, wait_ns) = (step.end_ns - step.due_ns, step.granted_ns - step.due_ns);
        self.note(now, j, &Note::Written { index, io_ns, wait_ns });
        self.drain_begins(now, j, index, queue);
        self.notify_access(now, access::Event::Done { token }, queue);
        let job = &mut self.jobs[j];
        if index + 1 < spec.steps {
            let at = spec.arrivals.next(now, index + 1, spec.compute_ns, &mut job.rng);
            queue.at(at, Happening::StepDue(j));
        } else {
            job.done.end_ns = Some(now.0);
            job.stage = Stage::Over;
            self.note(now, j, &Note::Ends);
            if self.jobs[j].kept == 0 {
                self.give_nodes_back(now, j, queue);
                self.rehouse(now, queue);
            }
        }
    }

    pub fn renew_later(&mut self, j: usize, token: Token, queue: &mut impl Agenda<Happening>) {
        self.jobs[j].renewing = Some(token);
        queue.after(self.setup.config.lease_ns / RENEWALS_PER_LEASE, Happening::Renew(j, token));
    }

    pub fn renew(&mut self, now: Nanos, j: usize, token: Token, queue: &mut impl Agenda<Happening>) {
        let job = &mut self.jobs[j];
        job.renewing = job.renewing.filter(|&t| t != token);
        if !job.silent && matches!(job.stage, Stage::Holds(t, _) if t == token) {
            self.notify_access(now, access::Event::Renew { token }, queue);
            self.renew_later(j, token, queue);
        }
    }
}
