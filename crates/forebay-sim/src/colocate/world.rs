//! The events of a co-located run.

use std::collections::BTreeMap;

use forebay_model::profile::{Setting, Strain};
use forebay_model::rng::Rng;
use forebay_model::sharing;
use forebay_policy::bandwidth::{self, Divider};
use forebay_policy::machine::Nanos;
use forebay_policy::planner::{self, Action, ActionKind, Decision, Event as Told, Planner};
use serde::Serialize;

use super::outcome::{DownSpan, FetchSpan, HpcOutcome, JobOutcome, Outcome, PhaseOutcome, WaveOutcome};
use super::{HpcSpec, NodeFault, Setup};
use crate::error::{Error, Result};
use crate::pace::Paces;
use crate::pump::Pump;
use crate::queue::EventQueue;
use crate::run::{World, run};
use crate::trace::Trace;

/// Far above any sensible scenario: a run that needs more is one that does not end.
const MAX_EVENTS: u64 = 200_000_000;
/// Ids of fetches in the table of flows; phases have the index of their job.
const FETCH: u64 = 1 << 32;

/// What happens by itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    HpcStarts(usize),
    PhaseBegins(usize),
    JobStarts(usize),
    ComputeEnds(usize),
    Memory(u64),
    NodeFails(NodeFault),
    NodeReturns(u16),
    PlannerWakes,
    DividerWakes,
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

struct Hpc {
    spec: HpcSpec,
    rng: Rng,
    begun: u32,
    share: f64,
    phase: Option<PhaseOutcome>,
    done: HpcOutcome,
}

pub(super) struct Job {
    pub started: u32,
    computing: bool,
    /// Bytes that each wave still lacks: 0 when it is there. That of the fetch under way is in the
    /// table of flows.
    pub left: Vec<f64>,
    /// Which waves are in the tier, be it in part: being fetched, waiting, or in compute.
    pub in_tier: Vec<bool>,
    idle_since: u64,
    pub fetch: Option<Fetch>,
    pub done: JobOutcome,
}

#[derive(Clone, Copy)]
pub(super) struct Fetch {
    pub wave: u32,
    pub strain: Strain,
    pub setting: Option<Setting>,
    kind: ActionKind,
    since: u64,
    /// Bytes that were left at `since`.
    left: f64,
    /// The most memory that the tier had since it was announced.
    pub memory_bytes: u64,
}

impl Fetch {
    /// Bytes read directly since `since`, now that `left` are left.
    fn read_directly(&self, left: f64) -> f64 {
        if self.setting.is_none() { self.left - left } else { 0.0 }
    }
}

pub(super) struct Colocation<'a> {
    pub setup: &'a Setup,
    pub trace: &'a mut Trace,
    planner: Pump<Planner>,
    divider: Pump<Divider>,
    flows: Paces,
    hpc: Vec<Hpc>,
    pub jobs: Vec<Job>,
    /// How many faults keep each node down, and the tier's memory with all nodes up.
    pub faults_on: Vec<u32>,
    pub ram_bytes: u64,
    pub down: Vec<DownSpan>,
    kinds: BTreeMap<u64, ActionKind>,
    out_fetches: Vec<FetchSpan>,
    decisions: Vec<Decision>,
    peak_bytes: u64,
    overbooked_bytes: u64,
    speeds: Vec<f64>,
}

/// Runs `setup` to the end and records into `trace`.
///
/// # Errors
/// If a policy does not exist, or the run does not come to an end.
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    let policy = planner::policy(&setup.policy, &setup.planner).map_err(Error::Usage)?;
    let divider = bandwidth::policy(&setup.bandwidth).map_err(Error::Usage)?;
    let mut queue = EventQueue::new();
    let mut world = Colocation::new(
        setup,
        trace,
        Pump::new("planner", Planner::new(setup.planner.clone(), policy)),
        Pump::new("bandwidth", Divider::new(divider)),
    );
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
    let stats = run(&mut world, &mut queue, MAX_EVENTS);
    if stats.cut_short || stats.out_of_time {
        let bound = if stats.cut_short {
            "more events than any sensible run has"
        } else {
            "the end of the clock, 584 years"
        };
        return Err(Error::Usage(format!(
            "the run came after {:.3} s to {bound}: give the jobs fewer phases or waves, or less compute_s",
            stats.end.as_secs_f64()
        )));
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
    Ok(Outcome {
        hpc: world.hpc.into_iter().map(|h| h.done).collect(),
        jobs: world.jobs.into_iter().map(|j| j.done).collect(),
        fetches: world.out_fetches,
        decisions: world.decisions,
        events: stats.events,
        peak_bytes: world.peak_bytes,
        overbooked_bytes: world.overbooked_bytes,
        down: world.down,
    })
}

impl<'a> Colocation<'a> {
    fn new(setup: &'a Setup, trace: &'a mut Trace, planner: Pump<Planner>, divider: Pump<Divider>) -> Self {
        let rng = Rng::new(setup.seed);
        let hpc = |(i, spec): (usize, &HpcSpec)| Hpc {
            spec: spec.clone(),
            rng: rng.fork(i as u64),
            begun: 0,
            share: 0.0,
            phase: None,
            done: HpcOutcome { name: spec.name.clone(), phases: Vec::new() },
        };
        let job = |spec: &super::JobSpec| Job {
            started: 0,
            computing: false,
            left: vec![spec.wave_bytes as f64; spec.waves as usize],
            in_tier: vec![false; spec.waves as usize],
            idle_since: spec.starts_ns,
            fetch: None,
            done: JobOutcome {
                name: spec.name.clone(),
                map_ns: 0,
                waves: vec![WaveOutcome::default(); spec.waves as usize],
                lost_bytes: 0.0,
            },
        };
        Colocation {
            setup,
            trace,
            planner,
            divider,
            flows: Paces::new(),
            hpc: setup.hpc.iter().enumerate().map(hpc).collect(),
            jobs: setup.jobs.iter().map(job).collect(),
            faults_on: vec![0; usize::from(setup.planner.profile.max_nodes)],
            ram_bytes: setup.planner.ram_bytes,
            down: Vec::new(),
            kinds: BTreeMap::new(),
            out_fetches: Vec::new(),
            decisions: Vec::new(),
            peak_bytes: 0,
            overbooked_bytes: 0,
            speeds: Vec::new(),
        }
    }

    pub fn tell(&mut self, now: Nanos, event: Told, queue: &mut EventQueue<Happening>) {
        let actions = self.planner.tell(now, event, self.trace);
        self.obey(now, actions, queue);
    }

    fn obey(&mut self, now: Nanos, actions: Vec<Action>, queue: &mut EventQueue<Happening>) {
        for action in actions {
            match action {
                Action::Decided(decision) => {
                    self.kinds.insert(decision.id, decision.kind);
                    let wave = &mut self.jobs[decision.job as usize].done.waves[decision.wave as usize];
                    wave.kind.get_or_insert(decision.kind);
                    self.decisions.push(*decision);
                }
                Action::Fetch { job, wave, setting, decision } => {
                    let strain = self.true_strain(setting);
                    self.fetch(now, job as usize, wave, strain, Some(setting), decision);
                }
                Action::Direct { job, wave, decision } => {
                    let strain = self.setup.true_direct.strain();
                    self.fetch(now, job as usize, wave, strain, None, decision);
                }
            }
        }
        self.planner.arm(queue, Happening::PlannerWakes);
        self.set_paces(now);
    }

    /// Begins a fetch, or goes on with it at another setting.
    fn fetch(
        &mut self,
        now: Nanos,
        job: usize,
        wave: u32,
        strain: Strain,
        setting: Option<Setting>,
        decision: u64,
    ) {
        let kind = self.kinds.get(&decision).copied().unwrap_or(ActionKind::Search);
        let id = FETCH + job as u64;
        self.put_down(now, job);
        let state = &self.jobs[job];
        let left = state.left[wave as usize];
        assert!(left > 0.0, "the planner fetched wave {wave} of job {job}, which is there already");
        let waits = !state.computing && wave == state.started;
        assert!(
            setting.is_some() || waits,
            "tasks of job {job} read wave {wave} directly, for which they do not wait"
        );
        let memory_bytes = self.memory_bytes();
        self.flows.start(now, id, left);
        self.jobs[job].fetch = Some(Fetch { wave, strain, setting, kind, since: now.0, left, memory_bytes });
        if setting.is_some() {
            self.jobs[job].in_tier[wave as usize] = true;
        }
    }

    /// Ends the fetch under way of `job`, if any, and books what it has brought.
    pub fn put_down(&mut self, now: Nanos, job: usize) {
        self.note_peak(now, job);
        let Some(fetch) = self.jobs[job].fetch.take() else { return };
        // A wave is there when its end was announced, and not by rounding before.
        let left = self.flows.abort(now, FETCH + job as u64).map_or(0.0, |left| left.max(f64::MIN_POSITIVE));
        self.note_span(now, job, fetch);
        let state = &mut self.jobs[job];
        state.left[fetch.wave as usize] = left;
        state.done.waves[fetch.wave as usize].direct_bytes += fetch.read_directly(left);
    }

    /// Goes on with a fetch that was put down and of which nothing has changed.
    pub fn take_up(&mut self, now: Nanos, job: usize, fetch: Fetch) {
        let left = self.jobs[job].left[fetch.wave as usize];
        self.flows.start(now, FETCH + job as u64, left);
        self.jobs[job].fetch = Some(Fetch { since: now.0, left, ..fetch });
    }

    /// Bytes in the tier now.
    fn tier_bytes(&self, now: Nanos) -> f64 {
        let mut bytes = 0.0;
        for (j, (job, spec)) in self.jobs.iter().zip(&self.setup.jobs).enumerate() {
            // Waves before the one in compute are gone.
            for wave in ((job.started as usize).saturating_sub(1)..job.left.len()).filter(|&w| job.in_tier[w])
            {
                let (left, direct) = match job.fetch.filter(|f| f.wave as usize == wave) {
                    Some(f) => {
                        let left = self.flows.left(now, FETCH + j as u64).unwrap_or(0.0);
                        (left, f.read_directly(left))
                    }
                    None => (job.left[wave], 0.0),
                };
                bytes += spec.wave_bytes as f64 - left - direct - job.done.waves[wave].direct_bytes;
            }
        }
        bytes
    }

    /// To be called before anything is freed. A fetch of `job` may not bring more than there was
    /// memory since it began: it need not stop when memory shrinks, and what others begin when
    /// memory has grown is not its fault.
    fn note_peak(&mut self, now: Nanos, job: usize) {
        let bytes = self.tier_bytes(now) as u64;
        self.peak_bytes = self.peak_bytes.max(bytes);
        let brought = self.jobs[job].fetch.filter(|f| f.setting.is_some() && now.0 > f.since);
        let over = brought.map_or(0, |f| bytes.saturating_sub(f.memory_bytes));
        self.overbooked_bytes = self.overbooked_bytes.max(over);
    }

    fn note_span(&mut self, now: Nanos, job: usize, f: Fetch) {
        if now.0 > f.since && f.strain.speed_bytes_per_s > 0.0 {
            self.out_fetches.push(FetchSpan {
                job,
                wave: f.wave,
                from_ns: f.since,
                to_ns: now.0,
                setting: f.setting,
                kind: f.kind,
            });
        }
    }

    /// Renews every pace; called whenever a flow begins, ends or changes.
    pub fn set_paces(&mut self, now: Nanos) {
        let fetching: Vec<(usize, Strain)> =
            self.jobs.iter().enumerate().filter_map(|(i, j)| Some((i, j.fetch?.strain))).collect();
        let strains: Vec<Strain> = fetching.iter().map(|f| f.1).collect();
        let active = self.hpc.iter().filter(|h| h.phase.is_some()).count();
        let pfs = self.setup.planner.pfs_bytes_per_s;
        let excess = sharing::load(active, &strains, pfs, &mut self.speeds);
        for (h, hpc) in self.hpc.iter().enumerate().filter(|(_, h)| h.phase.is_some()) {
            self.flows.set_pace(now, h as u64, hpc.share / (1.0 + excess));
        }
        for ((job, _), speed) in fetching.iter().zip(&self.speeds) {
            self.flows.set_pace(now, FETCH + *job as u64, speed * 1e-9);
        }
    }

    fn divide(&mut self, now: Nanos, event: bandwidth::Event, queue: &mut EventQueue<Happening>) {
        for shares in self.divider.tell(now, event, self.trace) {
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
        let spec = &self.hpc[h].spec;
        // The planner is told what a profile would say, not what was drawn.
        let expected_ns = if spec.io_first { 0 } else { spec.compute_ns };
        let joins = Told::HpcJoins {
            hpc: h as u32,
            io_ns: spec.io_ns,
            compute_ns: spec.compute_ns,
            phases: spec.phases,
            allowance: spec.allowance,
            weight: f64::from(spec.processes),
            first_in_ns: expected_ns,
        };
        queue.at(first, Happening::PhaseBegins(h));
        self.tell(now, joins, queue);
    }

    fn phase_begins(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) {
        let hpc = &mut self.hpc[h];
        let alone_ns = hpc.spec.io_ns;
        let deadline = now + (alone_ns as f64 * (1.0 + hpc.spec.allowance)) as u64;
        hpc.begun += 1;
        hpc.phase = Some(PhaseOutcome { begin_ns: now.0, end_ns: now.0, alone_ns, deadline_ns: deadline.0 });
        let (weight, period_ns) = (f64::from(hpc.spec.processes), alone_ns + hpc.spec.compute_ns);
        self.flows.start(now, h as u64, alone_ns as f64);
        self.divide(now, bandwidth::Event::PhaseBegins { hpc: h as u32, weight, period_ns }, queue);
        self.tell(now, Told::PhaseBegins { hpc: h as u32, alone_ns, deadline }, queue);
    }

    fn phase_ends(&mut self, now: Nanos, h: usize, queue: &mut EventQueue<Happening>) {
        let Some(mut phase) = self.hpc[h].phase.take() else { return };
        phase.end_ns = now.0;
        self.hpc[h].done.phases.push(phase);
        let note = Note::Phase { late: phase.missed(), slowdown: phase.slowdown() };
        self.trace.note(now, &format!("hpc/{h}"), &note);
        self.divide(now, bandwidth::Event::PhaseEnds { hpc: h as u32 }, queue);
        self.tell(now, Told::PhaseEnds { hpc: h as u32 }, queue);
        if self.hpc[h].begun < self.hpc[h].spec.phases {
            let hpc = &mut self.hpc[h];
            let at = hpc.spec.arrivals.next(now, hpc.begun, hpc.spec.compute_ns, &mut hpc.rng);
            queue.at(at, Happening::PhaseBegins(h));
        } else {
            self.tell(now, Told::HpcLeaves { hpc: h as u32 }, queue);
        }
    }

    fn job_starts(&mut self, now: Nanos, j: usize, queue: &mut EventQueue<Happening>) {
        let spec = &self.setup.jobs[j];
        let joins = Told::JobJoins {
            job: j as u32,
            waves: spec.waves,
            wave_bytes: spec.wave_bytes,
            compute_ns: spec.compute_ns + spec.tier_read_ns,
            tier_read_ns: spec.tier_read_ns,
        };
        self.tell(now, joins, queue);
    }

    fn fetch_ends(&mut self, now: Nanos, j: usize, queue: &mut EventQueue<Happening>) {
        let Some(Fetch { wave, .. }) = self.jobs[j].fetch else { return };
        self.put_down(now, j);
        let job = &mut self.jobs[j];
        job.left[wave as usize] = 0.0;
        job.done.waves[wave as usize].fetched_ns = now.0;
        let wanted = !job.computing && wave == job.started;
        self.tell(now, Told::Fetched { job: j as u32, wave }, queue);
        if wanted {
            self.start_wave(now, j, queue);
        }
    }

    fn start_wave(&mut self, now: Nanos, j: usize, queue: &mut EventQueue<Happening>) {
        let spec = &self.setup.jobs[j];
        let job = &mut self.jobs[j];
        let wave = job.started;
        let in_tier = 1.0 - job.done.waves[wave as usize].direct_bytes / spec.wave_bytes as f64;
        let compute_ns = spec.compute_ns + (spec.tier_read_ns as f64 * in_tier) as u64;
        job.started += 1;
        job.computing = true;
        let outcome = &mut job.done.waves[wave as usize];
        outcome.begin_ns = now.0;
        outcome.stall_ns = now.0 - job.idle_since;
        queue.after(compute_ns, Happening::ComputeEnds(j));
        self.tell(now, Told::WaveStarts { job: j as u32, wave, compute_ns }, queue);
    }

    fn compute_ends(&mut self, now: Nanos, j: usize, queue: &mut EventQueue<Happening>) {
        self.note_peak(now, j);
        let job = &mut self.jobs[j];
        let wave = job.started - 1;
        job.computing = false;
        job.idle_since = now.0;
        let outcome = &mut job.done.waves[wave as usize];
        outcome.end_ns = now.0;
        let stall_ns = outcome.stall_ns;
        job.in_tier[wave as usize] = false;
        self.trace.note(now, &format!("job/{j}"), &Note::Wave { wave, stall_ns });
        let job = &mut self.jobs[j];
        if job.started == self.setup.jobs[j].waves {
            job.done.map_ns = now.0 - self.setup.jobs[j].starts_ns;
            let map_ns = job.done.map_ns;
            self.trace.note(now, &format!("job/{j}"), &Note::Job { map_ns });
            self.tell(now, Told::JobLeaves { job: j as u32 }, queue);
        } else if job.left[job.started as usize] <= 0.0 {
            self.start_wave(now, j, queue);
        } else {
            let wave = job.started;
            self.tell(now, Told::WaveWanted { job: j as u32, wave }, queue);
        }
    }
}

impl World for Colocation<'_> {
    type Event = Happening;

    fn on_event(&mut self, now: Nanos, event: Happening, queue: &mut EventQueue<Happening>) {
        match event {
            Happening::HpcStarts(h) => self.hpc_starts(now, h, queue),
            Happening::PhaseBegins(h) => self.phase_begins(now, h, queue),
            Happening::JobStarts(j) => self.job_starts(now, j, queue),
            Happening::ComputeEnds(j) => self.compute_ends(now, j, queue),
            Happening::Memory(bytes) => {
                self.ram_bytes = bytes;
                self.tell_memory(now, queue);
            }
            Happening::NodeFails(fault) => self.node_fails(now, fault, queue),
            Happening::NodeReturns(node) => self.node_returns(now, node, queue),
            Happening::PlannerWakes => {
                let actions = self.planner.wake(now, self.trace);
                self.obey(now, actions, queue);
            }
            Happening::DividerWakes => {
                self.divider.wake(now, self.trace);
            }
        }
    }

    fn next_completion(&self) -> Option<Nanos> {
        self.flows.next_end()
    }

    fn on_completion(&mut self, _now: Nanos, queue: &mut EventQueue<Happening>) {
        let Some((at, id)) = self.flows.pop_end() else { return };
        if id >= FETCH {
            self.fetch_ends(at, (id - FETCH) as usize, queue);
        } else {
            self.phase_ends(at, id as usize, queue);
        }
    }
}
