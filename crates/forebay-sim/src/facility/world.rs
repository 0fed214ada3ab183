//! The run: jobs from their submission to their end.

use std::collections::{BTreeMap, BTreeSet};

use forebay_model::rng::Rng;
use forebay_policy::batch_queue::{self, Queue};
use forebay_policy::burst::access::{self, Access, StepId, Token};
use forebay_policy::machine::Nanos;

use super::drains::{Chunk, Node, Phases};
use super::servers::{Range, Servers, Spec};
use super::tally::{Gauge, Messages, Spread};
use super::{Outcome, QUEUE, Sample, Setup};
use crate::batch::JobSpec;
use crate::driver::{Driver, Record};
use crate::error::Result;
use crate::event_loop::{self, Limits, World};
use crate::queue::EventQueue;
use crate::trace::{ACCESS, Trace};
use crate::transfer_ns;

/// Classes of bytes that the PFS moves.
const READ: usize = 0;
const WRITE: usize = 1;
const DRAINED: usize = 2;

/// The file that a job reads or writes itself. Steps that drain have their numbers, from 1 on.
const OWN: u64 = 0;

enum Event {
    Submits(usize),
    /// A phase of computing is over.
    Computed(usize),
    /// The tier has taken a step.
    Absorbed(usize),
    /// A step has waited for its token for too long.
    Impatient(StepId),
    Drains(usize),
    AccessWakes,
    QueueWakes,
    Sample,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Waits,
    Reads,
    Computes,
    Absorbs,
    WantsRoom,
    WantsToken,
    Writes,
    /// Its nodes drain its last steps.
    Drains,
}

struct Job {
    does: Does,
    /// Since when it has its nodes, and since when it waits for a transfer.
    begun: Nanos,
    since: Nanos,
    blocked_ns: u64,
    phases_left: u32,
    phase_ns: u64,
    /// Number of steps, and bytes of the one that is being written, of each node.
    steps: u64,
    bytes: u64,
    is_whole: bool,
    on: Range,
    asked: Nanos,
    token: Option<Token>,
    tier: Option<Node>,
    tier_bytes: u64,
    tier_since: Nanos,
    /// Number of its transfers pending.
    moves: u32,
    rng: Rng,
}

struct Facility<'a> {
    setup: &'a Setup,
    record: Record<'a>,
    queue: Driver<Queue>,
    access: Driver<Access>,
    servers: Servers,
    jobs: Vec<Job>,
    /// Jobs whose steps want a token.
    wanting: BTreeMap<StepId, usize>,
    next_step: StepId,
    /// Jobs that are in a phase on the PFS, and those that drain.
    in_phase: BTreeSet<usize>,
    phases: Phases,
    draining: BTreeSet<usize>,
    ended: Nanos,
    waiting: usize,
    absorbed_bytes: f64,
    sampled: (Nanos, [f64; 3], f64, f64),
    nodes: Gauge,
    dirty: Gauge,
    in_phases: Gauge,
    held: Gauge,
    wait: Gauge,
    messages: Messages,
    /// In the order of [`super::view::MEASURES`]; the values of gauges are added at the end.
    waits: Spread,
    waits_for_token: Spread,
    blocked: Spread,
    stretches: [Spread; 3],
    tier: Spread,
    past: Spread,
    rates: [Spread; 2],
    out: Outcome,
}

type Events = EventQueue<Event>;

/// Runs the setup to its end.
///
/// # Errors
/// If no policy has this name, it does not come to an end, or the caller has cancelled it.
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    let mut events = EventQueue::new();
    setup.jobs.iter().enumerate().for_each(|(j, job)| events.at(Nanos(job.submit_ns), Event::Submits(j)));
    events.at(Nanos(setup.sample_ns), Event::Sample);
    let rng = Rng::new(setup.seed).fork(2);
    let mut facility = Facility {
        setup,
        record: Record::new(trace),
        queue: Driver::new(QUEUE, Queue::new(setup.queue.clone())?),
        access: Driver::new(ACCESS, setup.access.build()?),
        servers: Servers::new(setup.servers, setup.server_bytes_per_s),
        jobs: setup.jobs.iter().enumerate().map(|job| Job::new(setup, job, rng.fork(job.0 as u64))).collect(),
        wanting: BTreeMap::new(),
        next_step: 1,
        in_phase: BTreeSet::new(),
        phases: Phases::Nobody,
        draining: BTreeSet::new(),
        ended: Nanos(0),
        waiting: 0,
        absorbed_bytes: 0.0,
        sampled: (Nanos(0), [0.0; 3], 0.0, 0.0),
        nodes: Gauge::default(),
        dirty: Gauge::default(),
        in_phases: Gauge::default(),
        held: Gauge::default(),
        wait: Gauge::default(),
        messages: Messages::default(),
        waits: Spread::default(),
        waits_for_token: Spread::default(),
        blocked: Spread::default(),
        stretches: Default::default(),
        tier: Spread::default(),
        past: Spread::default(),
        rates: Default::default(),
        out: Outcome::default(),
    };
    let every = |ns: u64| f64::from(setup.queue.nodes) * 1e9 / ns as f64;
    facility.messages.change(Nanos(0), every(setup.reports.heartbeat_ns) + every(setup.reports.health_ns));
    let stats = event_loop::run(&mut facility, &mut events, Limits::of(setup.horizon_ns))?;
    facility.out.events = stats.events;
    facility.out.unfinished = setup.jobs.len() as u64 - facility.out.jobs;
    // The ends of waits for a token that were not needed are events too, maybe after the last job.
    let end = if facility.out.unfinished == 0 { facility.ended } else { stats.end };
    Ok(facility.outcome(end))
}

impl Job {
    fn new(setup: &Setup, (j, spec): (usize, &JobSpec), mut rng: Rng) -> Self {
        let phases = (spec.run_ns as f64 / setup.steps.every_ns as f64).round().clamp(1.0, 1e6) as u32;
        // A job writes back, or not, under every setting of the rest.
        let writes_back = rng.unit() < setup.tier.share;
        let tier = writes_back.then(|| Node::new(j, setup.tier, setup.drain));
        Job {
            does: Does::Waits,
            begun: Nanos(0),
            since: Nanos(0),
            blocked_ns: 0,
            phases_left: phases,
            phase_ns: spec.run_ns / u64::from(phases),
            steps: 0,
            bytes: 0,
            is_whole: false,
            on: (0, 1),
            asked: Nanos(0),
            token: None,
            tier,
            tier_bytes: 0,
            tier_since: Nanos(0),
            moves: 0,
            rng,
        }
    }
}

fn seconds(from: Nanos, to: Nanos) -> f64 {
    to.saturating_since(from) as f64 * 1e-9
}

impl<'a> Facility<'a> {
    fn spec(&self, j: usize) -> &'a JobSpec {
        &self.setup.jobs[j]
    }

    fn nodes_of(&self, j: usize) -> f64 {
        f64::from(self.spec(j).nodes)
    }

    /// Every node of a job reports `messages` messages.
    fn report(&mut self, now: Nanos, j: usize, messages: f64) {
        self.messages.add(now, messages * self.nodes_of(j));
    }

    fn notify_queue(&mut self, now: Nanos, event: batch_queue::Event, events: &mut Events) {
        let actions = self.queue.handle(now, event, &self.record);
        self.obey_queue(now, actions, events);
    }

    fn obey_queue(&mut self, now: Nanos, actions: Vec<batch_queue::Action>, events: &mut Events) {
        self.queue.arm(events, Event::QueueWakes);
        for action in actions {
            if let batch_queue::Action::Run { job } = action {
                self.begin(now, job as usize, events);
            }
        }
    }

    /// A job has its nodes.
    fn begin(&mut self, now: Nanos, j: usize, events: &mut Events) {
        self.waits.add(seconds(Nanos(self.spec(j).submit_ns), now), 1.0);
        self.waiting -= 1;
        self.nodes.change(now, self.nodes_of(j));
        // It joins, and reports where it writes.
        self.report(now, j, 2.0);
        let job = &mut self.jobs[j];
        (job.does, job.begun, job.since, job.tier_since) = (Does::Reads, now, now, now);
        job.bytes = self.setup.jobs[j].stage_in_bytes;
        if job.bytes == 0 {
            return self.compute(j, events);
        }
        self.report(now, j, 1.0);
        self.enter(now, j, READ, events);
    }

    fn compute(&mut self, j: usize, events: &mut Events) {
        let job = &mut self.jobs[j];
        job.does = Does::Computes;
        job.phases_left -= 1;
        events.after(job.phase_ns, Event::Computed(j));
    }

    /// A phase of computing is over: the job writes a step, and after the last one its output.
    fn write(&mut self, now: Nanos, j: usize, events: &mut Events) {
        let Setup { steps, .. } = self.setup;
        let spec = self.spec(j);
        let job = &mut self.jobs[j];
        job.steps += 1;
        job.since = now;
        let is_last = job.phases_left == 0;
        job.is_whole = !is_last && job.steps.is_multiple_of(steps.whole_every.into());
        job.bytes = match (is_last, job.is_whole) {
            (true, _) => spec.stage_out_bytes,
            (false, true) => spec.bytes_per_node,
            (false, false) => (spec.bytes_per_node as f64 * steps.part) as u64,
        };
        if job.bytes == 0 {
            return self.go_on(now, j, events);
        }
        self.report(now, j, 1.0);
        self.find_room(now, j, events);
    }

    /// The tier takes the step, or the job writes it itself.
    fn find_room(&mut self, now: Nanos, j: usize, events: &mut Events) {
        let job = &mut self.jobs[j];
        let (bytes, file, is_whole) = (job.bytes, job.steps, job.is_whole);
        let room = job.tier.as_mut().map(|tier| tier.has_room(bytes));
        match (room, &mut job.tier) {
            (Some(Ok(true)), Some(tier)) => {
                self.past.add(0.0, 1.0);
                tier.reserve(now, file, bytes, is_whole);
                job.does = Does::Absorbs;
                let ns = transfer_ns(bytes as f64, self.setup.tier.bytes_per_s).unwrap_or(0);
                events.after(ns, Event::Absorbed(j));
                let nodes = self.nodes_of(j);
                self.dirty.change(now, bytes as f64 * nodes);
                self.report(now, j, self.setup.reports.files.into());
            }
            (Some(Ok(false)), Some(tier)) => {
                job.does = Does::WantsRoom;
                let chunks = tier.wants_room(now, &self.record);
                self.send(now, j, chunks, events);
            }
            (room, _) => {
                if room.is_some() {
                    self.past.add(100.0, 1.0);
                    self.out.past_tier += 1;
                }
                self.ask(now, j, events);
            }
        }
        self.weigh(now, j);
    }

    /// What the tier of the job's nodes holds has changed.
    fn weigh(&mut self, now: Nanos, j: usize) {
        let nodes = self.nodes_of(j);
        let job = &mut self.jobs[j];
        let bytes = job.tier.as_ref().map_or(0, Node::bytes);
        if job.tier_bytes > 0 {
            self.tier.add(job.tier_bytes as f64, nodes * seconds(job.tier_since, now));
        }
        (job.tier_bytes, job.tier_since) = (bytes, now);
    }

    /// A step that the tier does not take asks whether it may be written.
    fn ask(&mut self, now: Nanos, j: usize, events: &mut Events) {
        (self.jobs[j].does, self.jobs[j].asked) = (Does::WantsToken, now);
        self.report(now, j, 1.0);
        let step = self.next_step;
        self.next_step += 1;
        self.wanting.insert(step, j);
        self.wait.change(now, 1.0);
        events.after(self.setup.wait_max_ns, Event::Impatient(step));
        let on = self.draw(j);
        self.jobs[j].on = on;
        let event = self.event_of(j, |nodes, alone_ns, period_ns| access::Event::Arrives {
            step,
            nodes,
            alone_ns,
            period_ns,
        });
        self.notify_access(now, event, events);
    }

    /// Servers for new files of a job.
    fn draw(&mut self, j: usize) -> Range {
        let first = self.jobs[j].rng.below(self.setup.servers.into()) as u32;
        (first, self.setup.width(self.spec(j).nodes))
    }

    /// What a job reports of its step: servers, as the coordinator numbers them, and times.
    fn event_of(&self, j: usize, make: impl Fn(Vec<u32>, u64, u64) -> access::Event) -> access::Event {
        let (first, width) = self.jobs[j].on;
        let known = self.setup.access.config.nodes;
        let number = |i: u32| (first + i) % self.setup.servers % known;
        let nodes: BTreeSet<u32> = (0..width).map(number).collect();
        make(nodes.into_iter().collect(), self.alone_ns(j), self.jobs[j].phase_ns)
    }

    /// How long the transfer of a job takes with the PFS to itself.
    fn alone_ns(&self, j: usize) -> u64 {
        let bytes = self.jobs[j].bytes as f64 * self.nodes_of(j);
        transfer_ns(bytes, self.setup.alone_bytes_per_s(self.spec(j).nodes)).unwrap_or(0)
    }

    fn notify_access(&mut self, now: Nanos, event: access::Event, events: &mut Events) {
        let actions = self.access.handle(now, event, &self.record);
        self.obey_access(now, actions, events);
    }

    fn obey_access(&mut self, now: Nanos, actions: Vec<access::Action>, events: &mut Events) {
        self.access.arm(events, Event::AccessWakes);
        for action in actions {
            match action {
                access::Action::Grant { token, step, .. } => {
                    let Some(j) = self.wanting.remove(&step) else { continue };
                    self.out.tokens[0] += 1;
                    self.wait.change(now, -1.0);
                    self.held.change(now, 1.0);
                    self.waits_for_token.add(seconds(self.jobs[j].asked, now), 1.0);
                    self.jobs[j].token = Some(token);
                    self.enter(now, j, WRITE, events);
                }
                // It continues without a token, and nobody waits for it.
                access::Action::Revoke { token, .. } => {
                    let holder = self.in_phase.iter().find(|j| self.jobs[**j].token == Some(token)).copied();
                    if let Some(j) = holder {
                        self.jobs[j].token = None;
                        self.out.tokens[1] += 1;
                        self.held.change(now, -1.0);
                    }
                }
                access::Action::Rank { .. } | access::Action::Renewed { .. } => {}
            }
        }
    }

    /// A job begins to read or write the PFS.
    fn enter(&mut self, now: Nanos, j: usize, class: usize, events: &mut Events) {
        let on = if class == READ { self.draw(j) } else { self.jobs[j].on };
        self.jobs[j].does = if class == READ { Does::Reads } else { Does::Writes };
        let bytes = self.jobs[j].bytes;
        self.move_bytes(now, j, (OWN, bytes), class, on);
        self.in_phase.insert(j);
        self.in_phases.change(now, 1.0);
        self.note_phases(now, events);
    }

    /// The nodes of a job begin to move `bytes` each.
    fn move_bytes(&mut self, now: Nanos, j: usize, (file, bytes): (u64, u64), class: usize, on: Range) {
        let nodes = self.nodes_of(j);
        let spec = Spec {
            key: ((j as u64) << 32) | file,
            class,
            on,
            bytes: bytes as f64 * nodes,
            clients: nodes * f64::from(self.setup.stripes.min(self.setup.servers)),
            cap_bytes_per_s: self.setup.link_bytes_per_s * nodes,
        };
        self.servers.start(now, spec);
        self.jobs[j].moves += 1;
        if self.jobs[j].moves == 1 {
            self.messages.change(now, nodes * 1e9 / self.setup.reports.traffic_ns as f64);
        }
    }

    /// Reports to drains which jobs are in a phase, if that has changed for them.
    fn note_phases(&mut self, now: Nanos, events: &mut Events) {
        let phases = match self.in_phase.first() {
            None => Phases::Nobody,
            Some(j) if self.in_phase.len() == 1 => Phases::Of(*j),
            Some(_) => Phases::Several,
        };
        if std::mem::replace(&mut self.phases, phases) == phases {
            return;
        }
        for j in self.draining.iter().copied().collect::<Vec<_>>() {
            let Some(tier) = &mut self.jobs[j].tier else { continue };
            let chunks = tier.hold(now, phases, &self.record);
            self.send(now, j, chunks, events);
        }
    }

    /// Chunks go to the PFS.
    fn send(&mut self, now: Nanos, j: usize, chunks: Vec<Chunk>, events: &mut Events) {
        for Chunk { file, bytes } in chunks {
            let on = self.draw(j);
            self.move_bytes(now, j, (file, bytes), DRAINED, on);
        }
        if let Some(tier) = &mut self.jobs[j].tier {
            tier.driver.arm(events, Event::Drains(j));
        }
    }

    /// A transfer has ended.
    fn landed(&mut self, now: Nanos, j: usize, file: u64, events: &mut Events) {
        self.jobs[j].moves -= 1;
        if self.jobs[j].moves == 0 {
            let nodes = self.nodes_of(j);
            self.messages.change(now, -nodes * 1e9 / self.setup.reports.traffic_ns as f64);
        }
        if file == OWN {
            return self.leave(now, j, events);
        }
        let Some(tier) = &mut self.jobs[j].tier else { return };
        let (chunks, clean) = tier.landed(now, file, &self.record);
        let is_dirty = tier.is_dirty();
        self.send(now, j, chunks, events);
        let Some(bytes) = clean else { return };
        if !is_dirty {
            self.draining.remove(&j);
        }
        self.dirty.change(now, -(bytes as f64) * self.nodes_of(j));
        self.report(now, j, self.setup.reports.files.into());
        self.weigh(now, j);
        match self.jobs[j].does {
            Does::WantsRoom => self.find_room(now, j, events),
            Does::Drains if !is_dirty => self.end(now, j, events),
            _ => {}
        }
    }

    /// A job has read its input, or written a step itself.
    fn leave(&mut self, now: Nanos, j: usize, events: &mut Events) {
        self.in_phase.remove(&j);
        self.in_phases.change(now, -1.0);
        if let Some(token) = self.jobs[j].token.take() {
            self.held.change(now, -1.0);
            self.notify_access(now, access::Event::Done { token }, events);
        }
        self.note_phases(now, events);
        self.report(now, j, 1.0);
        self.go_on(now, j, events);
    }

    /// A job has what it has waited for.
    fn go_on(&mut self, now: Nanos, j: usize, events: &mut Events) {
        let alone_s = self.alone_ns(j) as f64 * 1e-9;
        let job = &mut self.jobs[j];
        let took_s = seconds(job.since, now);
        job.blocked_ns += now.saturating_since(job.since);
        let class = match job.does {
            Does::Reads => READ,
            Does::Absorbs => DRAINED,
            _ => WRITE,
        };
        match class {
            READ => {}
            WRITE => self.out.written += u64::from(job.bytes > 0),
            _ => self.out.absorbed += 1,
        }
        if alone_s > 0.0 {
            self.stretches[class].add(took_s / alone_s, 1.0);
        }
        if job.phases_left > 0 {
            return self.compute(j, events);
        }
        (job.does, job.since) = (Does::Drains, now);
        match &mut job.tier {
            Some(tier) if tier.is_dirty() => {
                let chunks = tier.awaited(now, &self.record);
                self.send(now, j, chunks, events);
            }
            _ => self.end(now, j, events),
        }
    }

    fn end(&mut self, now: Nanos, j: usize, events: &mut Events) {
        self.weigh(now, j);
        let nodes = self.nodes_of(j);
        self.nodes.change(now, -nodes);
        self.report(now, j, 1.0);
        let job = &mut self.jobs[j];
        job.blocked_ns += now.saturating_since(job.since);
        (job.tier, job.tier_bytes) = (None, 0);
        let held_s = seconds(job.begun, now).max(f64::MIN_POSITIVE);
        self.blocked.add(100.0 * job.blocked_ns as f64 * 1e-9 / held_s, nodes * held_s);
        self.out.jobs += 1;
        self.ended = now;
        self.notify_queue(now, batch_queue::Event::Ends { job: j as u64 }, events);
    }

    fn sample(&mut self, now: Nanos) {
        let (from, moved, absorbed, messages) = self.sampled;
        let (bytes, count) = (self.servers.moved_bytes(now), self.messages.sum(now));
        let per_s = |amount: f64| amount / seconds(from, now).max(f64::MIN_POSITIVE);
        let at = |class: usize| per_s(bytes[class] - moved[class]);
        let sample = Sample {
            at_s: now.as_secs_f64(),
            nodes: self.nodes.value(),
            waiting: self.waiting,
            pfs_bytes_per_s: [READ, WRITE, DRAINED].map(at),
            absorbed_bytes_per_s: per_s(self.absorbed_bytes - absorbed),
            dirty_bytes: self.dirty.value(),
            tier_bytes: self.jobs.iter().map(|job| job.tier_bytes).max().unwrap_or(0) as f64,
            phases: self.in_phases.value(),
            tokens: [self.held.value(), self.wait.value()],
            messages_per_s: per_s(count - messages),
        };
        self.rates[0].add(sample.pfs_bytes_per_s.iter().sum::<f64>() * 1e-9, 1.0);
        self.rates[1].add(sample.absorbed_bytes_per_s * 1e-9, 1.0);
        self.sampled = (now, bytes, self.absorbed_bytes, count);
        self.out.samples.push(sample);
    }

    /// The columns of [`super::view::MEASURES`].
    fn outcome(mut self, end: Nanos) -> Outcome {
        (0..self.jobs.len()).for_each(|j| self.weigh(end, j));
        // All other nodes have empty tiers.
        let all_s = f64::from(self.setup.queue.nodes) * end.as_secs_f64();
        let tiers_s = self.tier.weight();
        self.tier.add(0.0, all_s - tiers_s);
        let scaled = |summary: super::Summary, by: f64| super::Summary {
            mean: summary.mean * by,
            median: summary.median * by,
            p99: summary.p99 * by,
            most: summary.most * by,
        };
        let of = |gauge: Gauge| gauge.until(end).summary();
        let [read, written, absorbed] = self.stretches.map(|spread| spread.summary());
        let [pfs, taken] = self.rates.map(|spread| spread.summary());
        self.out.measures = vec![
            self.waits.summary(),
            scaled(of(self.nodes), 100.0 / f64::from(self.setup.queue.nodes)),
            self.blocked.summary(),
            read,
            written,
            absorbed,
            scaled(self.tier.summary(), 1e-9),
            self.past.summary(),
            scaled(of(self.dirty), 1e-12),
            taken,
            pfs,
            of(self.in_phases),
            of(self.held),
            of(self.wait),
            self.waits_for_token.summary(),
            self.messages.until(end).summary(),
        ];
        self.out.moved_bytes = self.servers.moved_bytes(end);
        self.out.end_s = end.as_secs_f64();
        self.out
    }

    fn handle(&mut self, now: Nanos, event: Event, events: &mut Events) {
        match event {
            Event::Submits(j) => {
                self.waiting += 1;
                let spec = self.spec(j);
                let (nodes, run_ns) = (spec.nodes, spec.estimate_ns);
                let demand =
                    batch_queue::Demand { nodes, bytes_per_node: 0, stage_in_ns: 0, run_ns, stage_out_ns: 0 };
                self.notify_queue(now, batch_queue::Event::Submits { job: j as u64, demand }, events);
            }
            Event::Computed(j) => self.write(now, j, events),
            Event::Absorbed(j) => {
                let nodes = self.nodes_of(j);
                let Some(tier) = &mut self.jobs[j].tier else { return };
                let chunks = tier.absorbed(now, self.phases, &self.record);
                self.absorbed_bytes += self.jobs[j].bytes as f64 * nodes;
                self.draining.insert(j);
                self.send(now, j, chunks, events);
                self.report(now, j, 1.0);
                self.go_on(now, j, events);
            }
            Event::Impatient(step) => {
                let Some(&j) = self.wanting.get(&step) else { return };
                self.out.tokens[1] += 1;
                let event = self.event_of(j, |nodes, alone_ns, period_ns| access::Event::Begun {
                    step,
                    nodes,
                    alone_ns,
                    period_ns,
                });
                self.notify_access(now, event, events);
            }
            Event::Drains(j) => {
                let Some(tier) = &mut self.jobs[j].tier else { return };
                let chunks = tier.wake(now, &self.record);
                self.send(now, j, chunks, events);
            }
            Event::AccessWakes => {
                let actions = self.access.wake(now, &self.record);
                self.obey_access(now, actions, events);
            }
            Event::QueueWakes => {
                let actions = self.queue.wake(now, &self.record);
                self.obey_queue(now, actions, events);
            }
            Event::Sample if self.out.jobs == self.jobs.len() as u64 => {}
            Event::Sample => {
                self.sample(now);
                events.after(self.setup.sample_ns, Event::Sample);
            }
        }
    }
}

impl World for Facility<'_> {
    type Event = Event;

    fn on_event(&mut self, now: Nanos, event: Event, events: &mut Events) {
        self.handle(now, event, events);
        self.servers.settle(now);
    }

    fn next_completion(&self) -> Option<Nanos> {
        self.servers.next_end()
    }

    fn on_completion(&mut self, now: Nanos, events: &mut Events) {
        let Some(key) = self.servers.pop_end() else { return };
        self.landed(now, (key >> 32) as usize, key & u64::from(u32::MAX), events);
        self.servers.settle(now);
    }
}
