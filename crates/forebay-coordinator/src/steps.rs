//! Steps of HPC jobs that share: drives the access machine ([`forebay_policy::burst::access`],
//! which the simulator runs as well) with what agents report, and lets programs write.
//!
//! A job has one step at a time: from the moment when its first program asks, or begins without
//! asking, until the last one has ended its phase. A token is renewed with the heartbeats of the
//! nodes whose programs have it. What a job writes to is known by name here, and by number in the
//! machine.
//!
//! Under a policy that ranks steps, all write at the same time. The order then becomes a *pace*:
//! the steps that are first and have no server in common write freely, and each of the others for
//! [`BEHIND_PERMILLE`] of the time. Agents enforce it on the programs that they observe.

use crate::hpc::{Owner, ToNode};
use forebay_policy::burst::access::{
    Access, Action, Config, Event, Fcfs, LEAD_SHARE, NodeSet, Scope, Setup, Snapshot, StepId, Token,
};
use forebay_policy::machine::{Machine, Nanos, UnknownPolicy};
use forebay_trace::log_files::Recorder;
use forebay_wire::StepStatus;
use forebay_wire::cluster::ToAgent;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// Servers that are distinguished at a time. Sites have tens; beyond these, two names may count as
/// one server, whose steps then wait for each other.
pub const SERVERS_MAX: u32 = 256;

/// How long a token is good: three heartbeats.
const LEASE_NS: u64 = 3_000_000_000;

/// A step that has held its token for this many times its time alone does not end by itself. Agents
/// end phases after as many times the time to their deadline.
const OVERSTAY: u32 = 3;

/// A step of which nobody knows what it takes counts as one of a minute: those that are known to be
/// short go before it, and it may hold its token for three.
const UNKNOWN_NS: u64 = 60_000_000_000;

/// Fraction of the time for which a step that is not first writes: the rest of what the first gets.
const BEHIND_PERMILLE: u16 = ((1.0 - LEAD_SHARE) * 1000.0 + 0.5) as u16;

/// Steps that people are shown.
const SHOWN_MAX: usize = 256;

/// See the module.
pub struct Steps {
    setup: Setup,
    machine: Access,
    recorder: Recorder,
    jobs: BTreeMap<u32, Job>,
    /// The job of each step.
    owners: BTreeMap<StepId, u32>,
    next_step: StepId,
    servers: Servers,
    counts: Counts,
    out: Vec<ToNode>,
}

/// What has happened since the start, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps that wait.
    pub waiting: u64,
    /// Steps that write.
    pub writing: u64,
    /// Tokens that were granted.
    pub granted: u64,
    /// Tokens that were taken from steps that had not ended.
    pub revoked: u64,
    /// Time that steps have waited until they were let in, in ns.
    pub waited_ns: u64,
}

/// A job that shares.
#[derive(Debug, Default)]
struct Job {
    name: String,
    user: u32,
    /// Time from step to step, as declared, in ns; 0: unknown.
    declared_period_ns: u64,
    /// When its first step came, and how many have.
    first: Nanos,
    steps: u64,
    members: BTreeSet<Owner>,
    /// Where each of them writes, if it has said so.
    writes_to: BTreeMap<Owner, Vec<String>>,
    /// Programs that have asked and have not begun; `true`: they may.
    asking: BTreeMap<Owner, bool>,
    in_phase: bool,
    step: Option<Step>,
}

#[derive(Debug)]
struct Step {
    id: StepId,
    state: State,
    /// When it began to wait, or to write.
    since: Nanos,
    alone_ns: u64,
    /// Names of its servers, and what stands for them in the machine; none: not known.
    names: Vec<String>,
    numbers: Vec<u32>,
    permille: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits,
    /// It has this token, renewed then.
    Holds(Token, Nanos),
    /// Its token was taken; it continues without one, and nobody waits for it.
    Revoked,
}

/// Lets the programs of a step write whenever they want.
fn free(step: &mut Step, members: &BTreeSet<Owner>) -> Vec<ToNode> {
    let was = std::mem::replace(&mut step.permille, 1000);
    let free = |(node, hpc): &Owner| (node.clone(), ToAgent::Pace { hpc: *hpc, permille: 1000 });
    if was < 1000 { members.iter().map(free).collect() } else { Vec::new() }
}

impl Job {
    /// Time from step to step: as declared, or else the mean so far; 0 if unknown.
    fn period_ns(&self, now: Nanos) -> u64 {
        match (self.declared_period_ns, self.steps) {
            (0, 0) => 0,
            (0, steps) => now.saturating_since(self.first) / steps,
            (declared, _) => declared,
        }
    }

    fn title(&self) -> String {
        format!("{} of user {}", self.name, self.user)
    }

    /// The programs that may begin now, and did not know it.
    fn let_in(&mut self) -> Vec<Owner> {
        let news = self.asking.iter_mut().filter(|(_, may)| !**may);
        news.map(|(owner, may)| {
            *may = true;
            owner.clone()
        })
        .collect()
    }
}

/// Numbers of the servers that steps write to.
#[derive(Debug)]
struct Servers {
    /// By name: the number, and the steps that use it.
    used: BTreeMap<String, (u32, u32)>,
    /// Numbers that have no name.
    free: BTreeSet<u32>,
}

impl Default for Servers {
    fn default() -> Self {
        Servers { used: BTreeMap::new(), free: (0..SERVERS_MAX).collect() }
    }
}

impl Servers {
    fn take(&mut self, names: &[String]) -> Vec<u32> {
        let mut numbers: Vec<u32> = names.iter().map(|name| self.number(name)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some((number, uses)) = self.used.get_mut(name) {
            *uses += 1;
            return *number;
        }
        let number = self.free.pop_first().unwrap_or(self.used.len() as u32 % SERVERS_MAX);
        self.used.insert(name.to_owned(), (number, 1));
        number
    }

    fn release(&mut self, names: &[String]) {
        for name in names {
            if let Some((_, uses)) = self.used.get_mut(name) {
                *uses -= 1;
                if *uses == 0
                    && let Some((number, _)) = self.used.remove(name)
                    && !self.used.values().any(|(other, _)| *other == number)
                {
                    self.free.insert(number);
                }
            }
        }
    }
}

/// What the machine is built from. A step that has waited for half of the time that any may wait
/// goes before all others.
pub fn setup(policy: &str, wait_max: Duration) -> Setup {
    let patience_ns = wait_max.as_nanos() as u64 / 2;
    let config =
        Config { nodes: SERVERS_MAX, lease_ns: LEASE_NS, ageing: 0.0, patience_ns, overstay: OVERSTAY };
    Setup { policy: policy.to_owned(), config }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").field("setup", &self.setup).field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

impl Steps {
    /// Steps of no job yet. `recorder` has recorded `setup` already.
    ///
    /// # Errors
    /// No policy has that name.
    pub fn new(setup: Setup, recorder: Recorder) -> Result<Self, UnknownPolicy> {
        Ok(Self::of(setup.build()?, setup, recorder))
    }

    /// Lets every step in immediately, and records nothing.
    pub fn unscheduled() -> Self {
        let setup = setup("none", Duration::MAX);
        let none = Fcfs { scope: Scope::Everything };
        Self::of(Access::new(Box::new(none), setup.config.clone()), setup, Recorder::off())
    }

    fn of(machine: Access, setup: Setup, recorder: Recorder) -> Self {
        Steps {
            machine,
            setup,
            recorder,
            jobs: BTreeMap::new(),
            owners: BTreeMap::new(),
            next_step: 1,
            servers: Servers::default(),
            counts: Counts::default(),
            out: Vec::new(),
        }
    }

    /// Messages to agents since the last call.
    pub fn take_messages(&mut self) -> Vec<ToNode> {
        std::mem::take(&mut self.out)
    }

    /// Notes that job `id` shares; it has a step each `period_ns` (0: unknown).
    pub fn joins(&mut self, id: u32, (name, user): (&str, u32), period_ns: u64) {
        let (name, declared_period_ns) = (name.to_owned(), period_ns);
        self.jobs.entry(id).or_insert(Job { name, user, declared_period_ns, ..Job::default() });
    }

    /// Notes where a program of job `id` writes.
    pub fn writes_to(&mut self, id: u32, owner: &Owner, servers: Vec<String>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match servers.is_empty() {
            true => drop(job.writes_to.remove(owner)),
            false => drop(job.writes_to.insert(owner.clone(), servers)),
        }
    }

    /// Takes in the question of a program of job `id`; its step takes `alone_ns`, 0 if unknown.
    pub fn asks(&mut self, now: Nanos, id: u32, owner: &Owner, alone_ns: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return self.let_in(vec![owner.clone()]) };
        job.members.insert(owner.clone());
        job.asking.insert(owner.clone(), false);
        self.settle(now, id, alone_ns);
    }

    /// Notes that a program of job `id` has begun or ended a phase, and the job is in a phase or
    /// not. A phase that begins takes `alone_ns`, 0 if unknown.
    pub fn changed(&mut self, now: Nanos, id: u32, owner: &Owner, in_phase: bool, alone_ns: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let is_new = job.members.insert(owner.clone());
        if let Some(permille) = job.step.as_ref().map(|s| s.permille).filter(|p| is_new && *p < 1000) {
            self.out.push((owner.0.clone(), ToAgent::Pace { hpc: owner.1, permille }));
        }
        job.asking.remove(owner);
        job.in_phase = in_phase;
        self.settle(now, id, alone_ns);
    }

    /// Notes that a program of job `id` is gone; the job is in a phase or not, or gone as well.
    pub fn leaves(&mut self, now: Nanos, id: u32, owner: &Owner, in_phase: Option<bool>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.members.remove(owner);
        job.writes_to.remove(owner);
        job.asking.remove(owner);
        job.in_phase = in_phase.unwrap_or(false);
        self.settle(now, id, 0);
        if in_phase.is_none() {
            self.jobs.remove(&id);
        }
    }

    /// Notes that a node that has programs of job `id` lives.
    pub fn renew(&mut self, now: Nanos, id: u32) {
        let Some(step) = self.jobs.get_mut(&id).and_then(|job| job.step.as_mut()) else { return };
        let State::Holds(token, renewed) = step.state else { return };
        if now.saturating_since(renewed) >= LEASE_NS / 3 {
            step.state = State::Holds(token, now);
            self.handle(now, Event::Renew { token });
        }
    }

    /// Notes that job `id` has `left_ns` left to write.
    pub fn left(&mut self, now: Nanos, id: u32, left_ns: u64) {
        let step = self.jobs.get(&id).and_then(|job| job.step.as_ref());
        if let Some(State::Holds(token, _)) = step.map(|step| step.state)
            && self.setup.policy == "coflow"
        {
            self.handle(now, Event::Left { token, left_ns });
        }
    }

    /// Notes that the coordinator itself did not run: leases that nobody could renew are good for
    /// as long again.
    pub fn renew_all(&mut self, now: Nanos) {
        let ids: Vec<u32> = self.jobs.keys().copied().collect();
        ids.into_iter().for_each(|id| self.renew(now, id));
    }

    fn settle(&mut self, now: Nanos, id: u32, alone_ns: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let takes_part = job.in_phase || !job.asking.is_empty();
        match job.step.as_ref().map(|step| (step.id, step.state)) {
            None if takes_part => self.begin(now, id, alone_ns),
            None => {}
            Some((step, state)) if !takes_part => self.end(now, id, (step, state)),
            Some((step, State::Waits)) if job.in_phase => self.begun(now, id, step),
            Some((_, State::Waits)) => {}
            Some(_) => {
                let let_in = job.let_in();
                self.let_in(let_in);
            }
        }
    }

    /// Begins a step.
    fn begin(&mut self, now: Nanos, id: u32, alone_ns: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let period_ns = job.period_ns(now);
        if job.steps == 0 {
            job.first = now;
        }
        job.steps += 1;
        let names: BTreeSet<&String> = job.writes_to.values().flatten().collect();
        // More than the limit counts as all.
        let is_few = names.len() <= SERVERS_MAX as usize;
        let names: Vec<String> = names.into_iter().filter(|_| is_few).cloned().collect();
        let (nodes, step) = (self.servers.take(&names), self.next_step);
        self.next_step += 1;
        let numbers = nodes.clone();
        let in_phase = job.in_phase;
        let new =
            Step { id: step, state: State::Waits, since: now, alone_ns, names, numbers, permille: 1000 };
        job.step = Some(new);
        self.owners.insert(step, id);
        let alone_ns = if alone_ns == 0 { UNKNOWN_NS } else { alone_ns };
        self.handle(
            now,
            match in_phase {
                true => Event::Begun { step, nodes, alone_ns, period_ns },
                false => Event::Arrives { step, nodes, alone_ns, period_ns },
            },
        );
    }

    /// Notes that a step that waits has begun anyway.
    fn begun(&mut self, now: Nanos, id: u32, step: StepId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let Some((nodes, alone_ns)) = job.step.as_ref().map(|s| (s.numbers.clone(), s.alone_ns)) else {
            return;
        };
        let (period_ns, alone_ns) = (job.period_ns(now), if alone_ns == 0 { UNKNOWN_NS } else { alone_ns });
        self.handle(now, Event::Begun { step, nodes, alone_ns, period_ns });
    }

    fn end(&mut self, now: Nanos, id: u32, (step, state): (StepId, State)) {
        if let Some(job) = self.jobs.get_mut(&id)
            && let Some(mut ended) = job.step.take()
        {
            self.servers.release(&ended.names);
            self.out.extend(free(&mut ended, &job.members));
        }
        self.owners.remove(&step);
        match state {
            State::Waits => self.handle(now, Event::Leaves { step }),
            State::Holds(token, _) => self.handle(now, Event::Done { token }),
            State::Revoked => {}
        }
    }

    fn handle(&mut self, now: Nanos, event: Event) {
        let cause = self.recorder.event(now, &event);
        let mut actions = Vec::new();
        self.machine.handle(now, event, &mut actions);
        self.carry_out(now, cause, actions);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Nanos) {
        while self.machine.next_deadline().is_some_and(|at| at <= now) {
            let cause = self.recorder.deadline(now);
            let mut actions = Vec::new();
            self.machine.on_deadline(now, &mut actions);
            self.carry_out(now, cause, actions);
        }
        self.recorder.flush();
        if self.recorder.is_over()
            && self.machine.snapshot() == (Snapshot { pending: vec![], active: vec![] })
        {
            self.restart();
        }
    }

    /// Starts a fresh machine, at the start of the next file of the decision log.
    fn restart(&mut self) {
        let Ok(machine) = self.setup.build() else { return };
        self.machine = machine;
        if let Err(e) = self.recorder.begin(&self.setup) {
            tracing::warn!(error = %e, "cannot begin the next file of the decision log of steps");
        }
    }

    /// When [`Steps::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.machine.next_deadline()
    }

    fn carry_out(&mut self, now: Nanos, cause: u64, actions: Vec<Action>) {
        self.recorder.actions(now, cause, &actions);
        for action in actions {
            match action {
                Action::Grant { token, step, .. } => self.granted(now, step, token),
                Action::Revoke { step, .. } => self.revoked(now, step),
                Action::Rank { order } => self.pace(&order),
                Action::Renewed { .. } => {}
            }
        }
    }

    fn granted(&mut self, now: Nanos, step: StepId, token: Token) {
        let Some(job) = self.owners.get(&step).and_then(|id| self.jobs.get_mut(id)) else { return };
        let Some(step) = &mut job.step else { return };
        self.counts.granted += 1;
        self.counts.waited_ns += now.saturating_since(step.since);
        (step.state, step.since) = (State::Holds(token, now), now);
        let let_in = job.let_in();
        self.let_in(let_in);
    }

    fn revoked(&mut self, now: Nanos, step: StepId) {
        let Some(job) = self.owners.get(&step).and_then(|id| self.jobs.get_mut(id)) else { return };
        let Some(step) = &mut job.step else { return };
        let held_s = now.saturating_since(step.since) / 1_000_000_000;
        step.state = State::Revoked;
        self.out.extend(free(step, &job.members));
        self.counts.revoked += 1;
        tracing::warn!(
            job = job.name,
            user = job.user,
            held_s,
            "a step has not ended, or its node is silent: other steps no longer wait for it"
        );
        let let_in = job.let_in();
        self.let_in(let_in);
    }

    fn let_in(&mut self, owners: Vec<Owner>) {
        self.out.extend(owners.into_iter().map(|(node, hpc)| (node, ToAgent::LetIn { hpc })));
    }

    /// Steps that are first in `order` among those with a server in common write freely, and those
    /// that are not in it come last.
    fn pace(&mut self, order: &[Token]) {
        let active = self.machine.snapshot().active;
        let ranked: BTreeSet<&Token> = order.iter().collect();
        let rest = active.iter().map(|(token, _)| token).filter(|token| !ranked.contains(token));
        let steps: BTreeMap<Token, StepId> = active.iter().copied().collect();
        let mut taken = NodeSet::empty(SERVERS_MAX);
        for token in order.iter().chain(rest) {
            let Some(job) =
                steps.get(token).and_then(|s| self.owners.get(s)).and_then(|id| self.jobs.get_mut(id))
            else {
                continue;
            };
            let Some(step) = &mut job.step else { continue };
            let servers = match step.numbers.as_slice() {
                [] => NodeSet::all(SERVERS_MAX),
                numbers => NodeSet::of(SERVERS_MAX, numbers),
            };
            let permille = if servers.overlaps(&taken) { BEHIND_PERMILLE } else { 1000 };
            if permille == 1000 {
                taken.add(&servers);
            }
            if std::mem::replace(&mut step.permille, permille) != permille {
                let members = job.members.iter().cloned();
                self.out.extend(members.map(|(node, hpc)| (node, ToAgent::Pace { hpc, permille })));
            }
        }
    }

    /// The counts, for metrics.
    pub fn counts(&self) -> Counts {
        let Snapshot { pending, active } = self.machine.snapshot();
        Counts { waiting: pending.len() as u64, writing: active.len() as u64, ..self.counts }
    }

    /// Steps that write, and those that wait, in their order.
    pub fn status(&self, now: Nanos) -> Vec<StepStatus> {
        let Snapshot { pending, active } = self.machine.snapshot();
        let steps = active.into_iter().map(|(_, step)| step).chain(pending);
        steps.take(SHOWN_MAX).filter_map(|step| self.status_of(now, step)).collect()
    }

    fn status_of(&self, now: Nanos, step: StepId) -> Option<StepStatus> {
        let job = self.jobs.get(self.owners.get(&step)?)?;
        let its = job.step.as_ref()?;
        let holders = self.machine.holders_before(step).into_iter();
        let title = |holder| Some(self.jobs.get(self.owners.get(&holder)?)?.title());
        Some(StepStatus {
            name: job.name.clone(),
            user: job.user,
            writes: its.state != State::Waits,
            since_ms: now.saturating_since(its.since) / 1_000_000,
            alone_ms: (its.alone_ns > 0).then_some(its.alone_ns / 1_000_000),
            servers: its.names.clone(),
            waits_for: holders.filter_map(title).collect(),
            pace_permille: its.permille,
        })
    }
}

#[cfg(test)]
mod tests;
