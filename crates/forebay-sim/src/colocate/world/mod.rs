//! The events of a co-located run; `tier` is what moves to nodes, `faults` what happens to them.

mod faults;
mod tier;

use std::collections::{BTreeMap, BTreeSet};

use forebay_model::profile::Setting;
use forebay_model::rng::Rng;
use forebay_policy::bandwidth::{self, Divider};
use forebay_policy::machine::Nanos;
use forebay_policy::phases;
use forebay_policy::planner::{ActionKind, Decision};
use forebay_policy::stage::Stages;
use forebay_policy::stage::event::{Action, Event, File, HpcUpdate, JobUpdate, Part, Split};
use serde::Serialize;

use super::outcome::{DownSpan, HpcOutcome, JobOutcome, Outcome, PhaseOutcome, Unfinished, WaveOutcome};
use super::{HpcSpec, JobSpec, NodeFault, Setup};
use crate::colocate::observer::{EARLIER, Observer, REPORT_NS, Updates, opens};
use crate::driver::{Driver, Record};
use crate::error::{Error, Result};
use crate::event_loop::{Limits, RunStats, Stop, World, run};
use crate::pace::Paces;
use crate::queue::EventQueue;
use crate::trace::{STAGES, Trace};
use tier::{Of, Tier, fetched};

/// A job has one stage, of one task per wave.
const STAGE: u32 = 0;
/// Where tasks run: not on the nodes of the tier.
const HOST: &str = "compute";

/// Events of a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    HpcStarts(usize),
    PhaseBegins(usize),
    /// The phase of this number (from 1) reports its progress.
    PhaseReports(usize, u32),
    JobStarts(usize),
    ComputeEnds(usize),
    Memory(u64),
    NodeFails(NodeFault),
    NodeReturns(u16),
    MachineWakes,
    DividerWakes,
    ObserverWakes,
}

/// Notes in the trace, when a phase, a wave or a job is over or a node comes or goes: facts, not
/// decisions.
#[derive(Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(super) enum Note {
    Phase { late: bool, slowdown: f64 },
    Wave { wave: u32, stall_ns: u64 },
    Job { map_ns: u64 },
    Fails,
    Returns,
}

pub(super) struct Hpc {
    spec: HpcSpec,
    rng: Rng,
    begun: u32,
    pub share: f64,
    pub phase: Option<PhaseOutcome>,
    done: HpcOutcome,
}

pub(super) struct Job {
    /// Waves whose compute has begun.
    pub started: u32,
    computing: bool,
    /// Whether the machine knows it.
    has_joined: bool,
    /// Bytes that each wave lacks: 0 when it is complete.
    pub left: Vec<f64>,
    /// Waves that tasks may read by themselves.
    pub may_read: BTreeSet<u32>,
    idle_since: u64,
    pub done: JobOutcome,
}

impl Job {
    /// Waves that it has not computed.
    fn waves_left(&self) -> u32 {
        self.left.len() as u32 - self.started + u32::from(self.computing)
    }

    /// Whether it has nothing to compute until this wave is there.
    pub fn waits_for(&self, wave: u32) -> bool {
        self.has_joined && !self.computing && wave == self.started
    }
}

pub(super) struct Colocation<'a> {
    pub setup: &'a Setup,
    pub record: &'a Record<'a>,
    stages: Driver<Stages>,
    divider: Driver<Divider>,
    observer: Observer,
    pub flows: Paces,
    pub hpc: Vec<Hpc>,
    pub jobs: Vec<Job>,
    pub tier: Tier,
    /// How many faults keep each node down, and the tier's memory with all nodes up.
    pub faults_on: Vec<u32>,
    pub ram_bytes: u64,
    pub down: Vec<DownSpan>,
    /// What the last plan for each wave does.
    pub kinds: BTreeMap<Of, ActionKind>,
    decisions: Vec<Decision>,
}

/// Runs `setup` to the end and records into `trace`.
///
/// # Errors
/// If a policy does not exist, or the run does not come to an end.
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    let divider = bandwidth::policy(&setup.bandwidth)?;
    let mut queue = EventQueue::new();
    let stages = Driver::new(STAGES, Stages::new(setup.stages()?));
    let record = Record::new(trace);
    let mut world = Colocation::new(setup, &record, stages, Driver::new("bandwidth", Divider::new(divider)));
    for (h, spec) in setup.hpc.iter().enumerate() {
        queue.at(Nanos(spec.starts_ns), Happening::HpcStarts(h));
    }
    for (j, spec) in setup.jobs.iter().enumerate() {
        queue.at(Nanos(spec.starts_ns), Happening::JobStarts(j));
    }
    for change in &setup.memory {
        queue.at(Nanos(change.at_ns), Happening::Memory(change.bytes));
    }
    for fault in &setup.faults {
        queue.at(Nanos(fault.at_ns), Happening::NodeFails(*fault));
    }
    world.report_members(Nanos(0), &mut queue);
    let stats = run(&mut world, &mut queue, Limits::of(setup.horizon_ns))?;
    if stats.stop == Stop::Horizon {
        return Ok(world.outcome(stats));
    }
    let unfinished =
        world.jobs.iter().zip(&setup.jobs).find(|(j, spec)| j.started < spec.waves || j.computing);
    if let Some((job, spec)) = unfinished {
        return Err(Error::Usage(format!(
            "the run ended after {:.3} s with job '{}' at wave {} of {}: policy '{}' never fetched it, most likely because the tier's memory does not hold a wave",
            stats.end.as_secs_f64(),
            spec.name,
            job.started,
            spec.waves,
            setup.policy
        )));
    }
    Ok(world.outcome(stats))
}

impl<'a> Colocation<'a> {
    fn new(
        setup: &'a Setup,
        record: &'a Record<'a>,
        stages: Driver<Stages>,
        divider: Driver<Divider>,
    ) -> Self {
        let rng = Rng::new(setup.seed);
        let hpc = |(i, spec): (usize, &HpcSpec)| Hpc {
            spec: spec.clone(),
            rng: rng.fork(i as u64),
            begun: 0,
            share: 0.0,
            phase: None,
            done: HpcOutcome { name: spec.name.clone(), phases: Vec::new() },
        };
        let job = |spec: &JobSpec| Job {
            started: 0,
            computing: false,
            has_joined: false,
            left: vec![spec.wave_bytes as f64; spec.waves as usize],
            may_read: BTreeSet::new(),
            idle_since: spec.starts_ns,
            done: JobOutcome {
                name: spec.name.clone(),
                waves: vec![WaveOutcome::default(); spec.waves as usize],
                ..JobOutcome::default()
            },
        };
        Colocation {
            setup,
            record,
            stages,
            divider,
            observer: Observer::new(),
            flows: Paces::new(),
            hpc: setup.hpc.iter().enumerate().map(hpc).collect(),
            jobs: setup.jobs.iter().map(job).collect(),
            tier: Tier::default(),
            faults_on: vec![0; usize::from(setup.planner.profile.max_nodes)],
            ram_bytes: setup.planner.ram_bytes,
            down: Vec::new(),
            kinds: BTreeMap::new(),
            decisions: Vec::new(),
        }
    }

    fn outcome(self, stats: RunStats) -> Outcome {
        let waves = self.jobs.iter().map(Job::waves_left).sum();
        let phases = self.hpc.iter().map(|h| h.spec.phases - h.done.phases.len() as u32).sum();
        let is_cut = stats.stop == Stop::Horizon && (waves, phases) != (0, 0);
        let unfinished = is_cut.then_some(Unfinished { horizon_ns: stats.end.0, waves, phases });
        let (fetches, peak_bytes, overbooked_bytes) = self.tier.outcome();
        Outcome {
            hpc: self.hpc.into_iter().map(|h| h.done).collect(),
            jobs: self
                .jobs
                .into_iter()
                .map(|j| JobOutcome { waves_left: j.waves_left(), ..j.done })
                .collect(),
            fetches,
            decisions: self.decisions,
            events: stats.events,
            peak_bytes,
            overbooked_bytes,
            down: self.down,
            unfinished,
        }
    }

    /// Reports an event to the machine, after the progress of requests.
    pub fn notify(&mut self, now: Nanos, event: Event, queue: &mut EventQueue<Happening>) {
        for report in self.progress(now) {
            self.notify_one(now, report, queue);
        }
        self.notify_one(now, event, queue);
    }

    pub fn notify_one(&mut self, now: Nanos, event: Event, queue: &mut EventQueue<Happening>) {
        let actions = self.stages.handle(now, event, self.record);
        self.obey(now, actions, queue);
    }

    fn report_job(
        &mut self,
        now: Nanos,
        j: usize,
        updates: Vec<JobUpdate>,
        queue: &mut EventQueue<Happening>,
    ) {
        self.notify(now, Event::Job { job: j as u64, updates }, queue);
    }

    fn obey(&mut self, now: Nanos, actions: Vec<Action>, queue: &mut EventQueue<Happening>) {
        let mut changed: BTreeSet<Of> = BTreeSet::new();
        for action in actions {
            match action {
                Action::Decided { job, task, decision, .. } => self.decided((job as usize, task), *decision),
                Action::Fetch { request, node, job, setting, parts, .. } => {
                    let wave = parts.first().map_or(0, |part| part.file);
                    let of = (job as usize, wave);
                    self.asked(request, of, node, parts, setting.unwrap_or(Setting::PAUSED));
                    changed.insert(of);
                }
                Action::Adjust { request, setting, .. } => changed.extend(self.adjusted(request, setting)),
                Action::Release { requests, .. } => {
                    changed.extend(requests.into_iter().filter_map(|id| self.released(now, id)));
                }
                // Its tasks do not ask: they begin when their input is there.
                Action::MayRead { .. } => {}
                Action::Direct { job, tasks, may, .. } => {
                    let waits = &mut self.jobs[job as usize].may_read;
                    for wave in tasks {
                        let _ = if may { waits.insert(wave) } else { waits.remove(&wave) };
                        changed.insert((job as usize, wave));
                    }
                }
            }
        }
        changed.into_iter().for_each(|of| self.renew(now, of));
        self.stages.arm(queue, Happening::MachineWakes);
        self.set_paces(now);
    }

    /// Notes a plan for a wave, in the numbers of the setup.
    fn decided(&mut self, of: Of, decision: Decision) {
        self.kinds.insert(of, decision.kind);
        self.jobs[of.0].done.waves[of.1 as usize].kind.get_or_insert(decision.kind);
        self.decisions.push(Decision { job: of.0 as u32, wave: of.1, ..decision });
    }

    fn report_hpc(&mut self, now: Nanos, h: usize, update: HpcUpdate, queue: &mut EventQueue<Happening>) {
        self.notify(now, Event::Hpc { hpc: h as u32, update }, queue);
    }

    fn divide(&mut self, now: Nanos, event: bandwidth::Event, queue: &mut EventQueue<Happening>) {
        for shares in self.divider.handle(now, event, self.record) {
            for (h, share) in shares.shares {
                self.hpc[h as usize].share = share;
            }
        }
        self.divider.arm(queue, Happening::DividerWakes);
    }

    fn hpc_starts(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) {
        let hpc = &mut self.hpc[h];
        let (io_first, compute_ns) = (hpc.spec.io_first, hpc.spec.compute_ns);
        let first = hpc.spec.arrivals.first(now, io_first, compute_ns, &mut hpc.rng);
        queue.at(first, Happening::PhaseBegins(h));
        let spec = &self.hpc[h].spec;
        if let Some(joins) = spec.joins(first.saturating_since(now), |io_ns| io_ns) {
            return self.report_hpc(now, h, joins, queue);
        }
        let mut rng = Rng::new(self.setup.seed).fork(EARLIER + h as u64);
        let opens = opens(h, spec, &mut rng, |io_ns| (io_ns, self.phase_bytes(io_ns)));
        self.observe(now, opens, queue);
    }

    /// Reports an event to the observer, and what that makes of it to the machine.
    fn observe(&mut self, now: Nanos, event: phases::Event, queue: &mut EventQueue<Happening>) {
        let updates = self.observer.handle(now, event, self.record);
        self.observed(now, updates, queue);
    }

    fn observed(&mut self, now: Nanos, updates: Updates, queue: &mut EventQueue<Happening>) {
        updates.into_iter().for_each(|(h, update)| self.report_hpc(now, h, update, queue));
        self.observer.arm(queue, Happening::ObserverWakes);
        // A phase that the board does not report moves its bytes nevertheless.
        self.set_paces(now);
    }

    /// Reports to the observer what was read beside phases since the last time.
    fn report_read(&mut self, now: Nanos, queue: &mut EventQueue<Happening>) {
        let updates = self.observer.read(now, self.read_bytes(now) as u64, self.record);
        self.observed(now, updates, queue);
    }

    /// Reports to the observer the progress of the phase of job `h`, of which `left_ns` of I/O time
    /// alone is left.
    fn report_phase(&mut self, now: Nanos, h: usize, left_ns: f64, queue: &mut EventQueue<Happening>) {
        let Some(phase) = self.hpc[h].phase else { return };
        self.report_read(now, queue);
        let done = 1.0 - left_ns / phase.alone_ns as f64;
        let bytes = (self.phase_bytes(phase.alone_ns) as f64 * done) as u64;
        self.observe(now, phases::Event::Progress { job: h as u64, bytes }, queue);
    }

    fn phase_reports(&mut self, now: Nanos, h: usize, number: u32, queue: &mut EventQueue<Happening>) {
        let Some(left_ns) = self.flows.left(now, h as u64).filter(|_| self.hpc[h].begun == number) else {
            return;
        };
        self.report_phase(now, h, left_ns, queue);
        queue.after(REPORT_NS, Happening::PhaseReports(h, number));
    }

    /// Bytes that a phase moves that takes `alone_ns` alone.
    fn phase_bytes(&self, alone_ns: u64) -> u64 {
        ((alone_ns as f64 * 1e-9 * self.setup.planner.pfs_bytes_per_s) as u64).max(1)
    }

    fn phase_begins(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) {
        let hpc = &mut self.hpc[h];
        let alone_ns = hpc.spec.io_of(hpc.begun);
        let deadline = now + (alone_ns as f64 * (1.0 + hpc.spec.allowance)) as u64;
        hpc.begun += 1;
        hpc.phase = Some(PhaseOutcome { begin_ns: now.0, end_ns: now.0, alone_ns, deadline_ns: deadline.0 });
        let (begun, knowledge) = (hpc.begun, hpc.spec.knowledge);
        let (weight, period_ns) = (f64::from(hpc.spec.processes), alone_ns + hpc.spec.compute_ns);
        self.flows.start(now, h as u64, alone_ns as f64);
        self.divide(now, bandwidth::Event::PhaseBegins { hpc: h as u32, weight, period_ns }, queue);
        if knowledge.is_predicted() {
            self.report_read(now, queue);
            let begins =
                phases::Event::Begins { job: h as u64, bytes: self.phase_bytes(alone_ns), deadline_ns: 0 };
            self.observe(now, begins, queue);
            queue.after(REPORT_NS, Happening::PhaseReports(h, begun));
        } else {
            self.report_hpc(now, h, HpcUpdate::PhaseBegins { alone_ns }, queue);
        }
    }

    fn phase_ends(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) {
        let is_predicted = self.hpc[h].spec.knowledge.is_predicted();
        if is_predicted {
            self.report_phase(now, h, 0.0, queue);
        }
        let Some(mut phase) = self.hpc[h].phase.take() else { return };
        phase.end_ns = now.0;
        self.hpc[h].done.phases.push(phase);
        let note = Note::Phase { late: phase.missed(), slowdown: phase.slowdown() };
        self.record.note(now, &format!("hpc/{h}"), &note);
        self.divide(now, bandwidth::Event::PhaseEnds { hpc: h as u32 }, queue);
        match is_predicted {
            true => self.observe(now, phases::Event::Ends(h as u64), queue),
            false => self.report_hpc(now, h, HpcUpdate::PhaseEnds, queue),
        }
        let hpc = &mut self.hpc[h];
        if hpc.begun == hpc.spec.phases {
            return match is_predicted {
                true => self.observe(now, phases::Event::Closes(h as u64), queue),
                false => self.report_hpc(now, h, HpcUpdate::Leaves, queue),
            };
        }
        let at = hpc.spec.arrivals.next(now, hpc.begun, hpc.spec.compute_ns, &mut hpc.rng);
        queue.at(at, Happening::PhaseBegins(h));
        if let Some(expects) = hpc.spec.expects(hpc.begun, at.saturating_since(now), |io_ns| io_ns) {
            self.report_hpc(now, h, expects, queue);
        }
    }

    /// Each wave is a file of its own, and a job a mount of its own, since it has its own size of
    /// extents.
    fn job_starts(&mut self, now: Nanos, j: usize, queue: &mut EventQueue<Happening>) {
        let spec = &self.setup.jobs[j];
        self.jobs[j].has_joined = true;
        let file = |wave: u32| File { mount: spec.mount(j), ino: u64::from(wave), bytes: spec.wave_bytes };
        let part = |file: u32| Part { file, offset: 0, len: spec.wave_bytes };
        let split = |wave: u32| Split { parts: vec![part(wave)], preferred_node: String::new() };
        let (wave_ns, tier_read_ns) = (spec.compute_ns + spec.tier_read_ns, spec.tier_read_ns);
        let updates = vec![
            JobUpdate::Begin { name: spec.name.clone(), planner: self.setup.policy.clone() },
            JobUpdate::Expected { wave_ns, tier_read_ns },
            JobUpdate::Slots { slots: vec![(HOST.into(), 1)] },
            JobUpdate::Files { files: (0..spec.waves).map(file).collect() },
            JobUpdate::Splits { stage: STAGE, splits: (0..spec.waves).map(split).collect() },
            JobUpdate::StageReady { stage: STAGE },
        ];
        self.report_job(now, j, updates, queue);
    }

    fn fetch_ends(&mut self, now: Nanos, of: Of, queue: &mut EventQueue<Happening>) {
        let reports = self.complete(now, of);
        self.jobs[of.0].done.waves[of.1 as usize].fetched_ns = now.0;
        reports.into_iter().for_each(|report| self.notify_one(now, report, queue));
        if self.jobs[of.0].waits_for(of.1) {
            self.start_wave(now, of.0, queue);
        }
        self.set_paces(now);
    }

    fn start_wave(&mut self, now: Nanos, j: usize, queue: &mut EventQueue<Happening>) {
        let spec = &self.setup.jobs[j];
        let job = &mut self.jobs[j];
        let task = job.started;
        let in_tier = 1.0 - job.done.waves[task as usize].direct_bytes / spec.wave_bytes as f64;
        let compute_ns = spec.compute_ns + (spec.tier_read_ns as f64 * in_tier) as u64;
        job.started += 1;
        job.computing = true;
        let outcome = &mut job.done.waves[task as usize];
        outcome.begin_ns = now.0;
        outcome.stall_ns = now.0 - job.idle_since;
        queue.after(compute_ns, Happening::ComputeEnds(j));
        let started = JobUpdate::TaskStarted { stage: STAGE, task, host: HOST.into() };
        self.report_job(now, j, vec![started], queue);
    }

    fn compute_ends(&mut self, now: Nanos, j: usize, queue: &mut EventQueue<Happening>) {
        let job = &mut self.jobs[j];
        let task = job.started - 1;
        job.computing = false;
        job.idle_since = now.0;
        let outcome = &mut job.done.waves[task as usize];
        outcome.end_ns = now.0;
        let (stall_ns, run_ms) = (outcome.stall_ns, (now.0 - outcome.begin_ns) / 1_000_000);
        self.record.note(now, &format!("job/{j}"), &Note::Wave { wave: task, stall_ns });
        let mut updates = vec![JobUpdate::TaskEnded { stage: STAGE, task, ok: true, run_ms }];
        let spec = &self.setup.jobs[j];
        let is_last = task + 1 == spec.waves;
        if is_last {
            let map_ns = now.0 - spec.starts_ns;
            self.jobs[j].done.map_ns = map_ns;
            self.record.note(now, &format!("job/{j}"), &Note::Job { map_ns });
            updates.push(JobUpdate::End);
        }
        self.report_job(now, j, updates, queue);
        let next = (j, task + 1);
        if is_last {
            return;
        }
        if self.jobs[j].left[next.1 as usize] <= 0.0 {
            self.start_wave(now, j, queue);
        } else {
            self.renew(now, next);
            self.set_paces(now);
        }
    }
}

impl World for Colocation<'_> {
    type Event = Happening;

    fn on_event(&mut self, now: Nanos, event: Happening, queue: &mut EventQueue<Happening>) {
        match event {
            Happening::HpcStarts(h) => self.hpc_starts(now, h, queue),
            Happening::PhaseBegins(h) => self.phase_begins(now, h, queue),
            Happening::PhaseReports(h, number) => self.phase_reports(now, h, number, queue),
            Happening::JobStarts(j) => self.job_starts(now, j, queue),
            Happening::ComputeEnds(j) => self.compute_ends(now, j, queue),
            Happening::Memory(bytes) => {
                self.ram_bytes = bytes;
                self.report_members(now, queue);
            }
            Happening::NodeFails(fault) => self.node_fails(now, fault, queue),
            Happening::NodeReturns(node) => self.node_returns(now, node, queue),
            Happening::MachineWakes => {
                for report in self.progress(now) {
                    self.notify_one(now, report, queue);
                }
                let actions = self.stages.wake(now, self.record);
                self.obey(now, actions, queue);
            }
            Happening::DividerWakes => {
                self.divider.wake(now, self.record);
            }
            Happening::ObserverWakes => {
                let updates = self.observer.wake(now, self.record);
                self.observed(now, updates, queue);
            }
        }
    }

    fn next_completion(&self) -> Option<Nanos> {
        self.flows.next_end()
    }

    fn on_completion(&mut self, _now: Nanos, queue: &mut EventQueue<Happening>) {
        let Some((at, id)) = self.flows.pop_end() else { return };
        match fetched(id) {
            Some(of) => self.fetch_ends(at, of, queue),
            None => self.phase_ends(at, id as usize, queue),
        }
    }
}
