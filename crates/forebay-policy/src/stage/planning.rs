//! Planning: partitions stages into waves, and drives the planners, each of which sees a stage as a
//! job.
//!
//! Finding the owners of what a large stage reads takes seconds (100,000 splits in a cluster of
//! 1000 nodes: 4.4 s), and other events must not wait for it. So the machine places a slice of
//! tasks per deadline; meanwhile the stage keeps its waves.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use forebay_model::profile::{Curve, Profile, Separable, Setting};

use super::event::{Action, JobKey, WaveId};
use super::partition::{Owners, Placed, Slots, cut};
use super::waves::StageRun;
use super::{Driven, Placing, REACTION_S, Running, SPEED_WEIGHT, Stages};
use crate::machine::{Machine, Nanos};
use crate::planner::{self, Config, DirectStrain, Event, JobId, Planner};

/// Threads of a node for *No Action*: half of the default fetch threads of a mount, so that a
/// reader always finds one.
pub const DEFAULT_THREADS: u16 = 4;

/// Limit on the threads of a node that a planner may request.
const MAX_THREADS: u16 = 8;

/// By how much a prefetch and an I/O phase stretch each other until phases have shown it:
/// observations scale the excess over 1, so there must be one.
const FIRST_INTERFERENCE: f64 = 1.25;

/// Limit on the parts of files that are planned for one stage: some 200 MB of the coordinator's
/// memory.
const PARTS_MAX: usize = 4 << 20;

/// Members examined, summed over extents, in one slice of placing: some 10 ms.
const SLICE_WORK: u64 = 200_000;

/// Compute time of a wave until the first task has ended.
pub(super) const FIRST_TASK_NS: u64 = 10_000_000_000;

/// Speed at which each task reads from a tier, approximately.
const TIER_BYTES_PER_S: f64 = 2e9;

impl Stages {
    /// Partitions stages that need it, as far as one slice of placing goes.
    pub(super) fn cut_some(&mut self, now: Nanos) {
        let mut work_left = SLICE_WORK;
        for running in self.jobs.values_mut() {
            let anew = core::mem::take(&mut running.to_cut).into_iter();
            running.placing.extend(anew.map(|stage| (stage, Placing::default())));
        }
        let under_way = |(key, running): (&JobKey, &Running)| {
            running.placing.first_key_value().map(|(stage, _)| (*key, *stage))
        };
        loop {
            let from = self.placing_from;
            let mut turns = self.jobs.range(from..).chain(self.jobs.range(..from));
            let Some((key, stage)) = turns.find_map(under_way) else {
                self.unplaced_since = None;
                self.placing_from = 0;
                return;
            };
            if !self.place_some(key, stage, &mut work_left) {
                self.unplaced_since = Some(now);
                // The next slice begins with another job: one whose slots change all the time
                // always has something to place.
                self.placing_from = key + 1;
                return;
            }
            let Some(running) = self.jobs.get_mut(&key) else { continue };
            let Placing { placed, is_stale, .. } = running.placing.remove(&stage).unwrap_or_default();
            if is_stale {
                running.placing.insert(stage, Placing::default());
            }
            self.cut_stage(now, key, stage, placed);
            self.let_read(now, key, stage);
        }
    }

    /// Finds owners for tasks of a stage until `work_left` is used up. Returns whether all of them
    /// have been found.
    pub(super) fn place_some(&mut self, key: JobKey, number: u32, work_left: &mut u64) -> bool {
        let Some(Running { job, placing, .. }) = self.jobs.get_mut(&key) else { return true };
        let Some(stage) = job.stages.get(&number).filter(|s| s.ready) else { return true };
        let Some(Placing { next, placed, parts, slots, .. }) = placing.get_mut(&number) else { return true };
        let slots = slots.get_or_insert_with(|| Slots::new(&job.slots, &self.nodes));
        let mut owners = Owners::new(&self.nodes, slots);
        while let Some(task) = stage.tasks.get(*next) {
            if owners.work() >= *work_left {
                *work_left = 0;
                return false;
            }
            if task.started.is_none() && !task.done {
                // Tasks beyond that have no parts: they have their turn in waves, and read by
                // themselves.
                let enough = *parts >= PARTS_MAX;
                let of_task =
                    if enough { Placed::default() } else { owners.place(&job.files, &stage.splits[*next]) };
                *parts += of_task.parts();
                placed.push((*next as u32, of_task));
            }
            *next += 1;
        }
        *work_left = work_left.saturating_sub(owners.work());
        true
    }

    /// Partitions what has not begun of a stage into waves, and reports them to the planner.
    pub(super) fn cut_stage(&mut self, now: Nanos, key: JobKey, number: u32, mut placed: Vec<(u32, Placed)>) {
        // They would wait for a wave that no longer exists.
        self.start_all_held(now, key, number);
        self.planner_forgets(now, key, number);
        let Some(running) = self.jobs.get_mut(&key) else { return };
        let Some(stage) = running.job.stages.get(&number).filter(|s| s.ready) else { return };
        let serial = self.next_id;
        let run = running.stages.entry(number).or_insert_with(|| StageRun::new(serial, self.config.rules));
        // This number is for the stage, if it is new; the next is for the planner.
        self.next_id += 1;
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let withdrawn = run.drop_waves_not_begun(since_ms);
        let slots = Slots::new(&running.job.slots, &self.nodes);
        // Some may have started while the others were placed.
        placed.retain(|(task, _)| {
            stage.tasks.get(*task as usize).is_some_and(|task| task.started.is_none() && !task.done)
        });
        let preferred_nodes: Vec<(u32, Option<&str>)> =
            placed.iter().map(|(i, p)| (*i, p.preferred_node.as_deref())).collect();
        let waves = cut(&preferred_nodes, &slots);
        run.add_waves(stage.tasks.len(), &waves, placed, &mut self.tiers);
        let reported = (run.planned_waves() > 0).then(|| {
            let wave_bytes = run.largest_wave_bytes();
            let slots = slots.total().max(1) as f64;
            let learned_ns = || {
                let tier_read_ns = (wave_bytes as f64 / slots / TIER_BYTES_PER_S * 1e9) as u64;
                let task_ns = running.job.task_ns(number).unwrap_or(FIRST_TASK_NS);
                (task_ns.max(tier_read_ns), tier_read_ns)
            };
            let (compute_ns, tier_read_ns) = running.job.expected_ns.unwrap_or_else(learned_ns);
            let left_ns = |began| compute_ns.saturating_sub((since_ms - began) * 1_000_000);
            let computing_ns = run.computes_since_ms().map(left_ns);
            (run.planned_waves(), wave_bytes, compute_ns, tier_read_ns, computing_ns)
        });
        let planner = running.job.planner.clone();
        self.release(now, withdrawn);
        let Some((waves, wave_bytes, compute_ns, tier_read_ns, computing_ns)) = reported else { return };
        let (job, name) = (self.next_id, self.planner_called(now, &planner));
        self.next_id += 1;
        let mut opportunistic = false;
        if let Some(driven) = self.planners.get_mut(&name) {
            driven.jobs.insert(job, (key, number));
            opportunistic = driven.planner.opportunistic() && self.config.rules.opportunistic;
        }
        if let Some(run) = self.run_mut(key, number) {
            run.planner = Some((name.clone(), job));
            run.opportunistic = opportunistic;
        }
        let joins = Event::JobJoins { job, waves, wave_bytes, compute_ns, tier_read_ns, computing_ns };
        self.notify(now, &name, joins);
    }

    /// Returns the planner of jobs that name `wanted`.
    pub(super) fn planner_name<'a>(&'a self, wanted: &'a str) -> &'a str {
        let known = |name: &str| planner::POLICIES.iter().any(|(n, _)| *n == name);
        let name = if known(wanted) { wanted } else { self.config.default_planner.as_str() };
        if known(name) { name } else { "no-action" }
    }

    /// Returns the name of the planner that will have the job; it is created if it is the first of
    /// its kind.
    pub(super) fn planner_called(&mut self, now: Nanos, wanted: &str) -> String {
        self.report_memory(now);
        let name = self.planner_name(wanted).to_owned();
        if !self.planners.contains_key(&name) {
            let config = self.planner_config();
            if let Ok(policy) = planner::policy(&name, &config) {
                let planner = Planner::new(config, policy);
                self.planners.insert(name.clone(), Driven { planner, jobs: BTreeMap::new() });
                for event in self.hpc_known(now) {
                    self.notify(now, &name, event);
                }
            }
        }
        name
    }

    /// Returns what is known of the system now: nodes, memory, and the speed that prefetches have
    /// reached.
    pub(super) fn planner_config(&self) -> Config {
        let ram_bytes = self.memory_bytes();
        let reaction_s = if self.config.rules.nodes_brake { REACTION_S } else { 0.0 };
        if let Some(system) = &self.config.system {
            let mut system = Config { ram_bytes, reaction_s, ..system.clone() };
            system.direct.with_compute = !self.config.rules.tasks_wait;
            return system;
        }
        let nodes = u16::try_from(self.nodes.len()).unwrap_or(u16::MAX).max(1);
        let speed = self.speed.bytes_per_s.max(1.0);
        let flat = |at_one: f64| Separable { at_one, nodes: curve(&[(1, 1.0)]), threads: curve(&[(1, 1.0)]) };
        // Alone, each node has its share of what all reach together.
        let mut shares = vec![(1, 1.0)];
        if nodes > 1 {
            shares.push((nodes, 1.0 / f64::from(nodes)));
        }
        let prefetch_s = Separable { nodes: curve(&shares), ..flat(f64::from(nodes)) };
        Config {
            profile: Profile {
                prefetch_s,
                wave_bytes: speed,
                i_hpc: flat(FIRST_INTERFERENCE),
                i_bd: flat(FIRST_INTERFERENCE),
                max_nodes: nodes,
                max_threads: MAX_THREADS,
            },
            default_setting: Setting::new(nodes, DEFAULT_THREADS),
            direct: DirectStrain {
                speed_bytes_per_s: speed,
                i_hpc: FIRST_INTERFERENCE,
                i_bd: FIRST_INTERFERENCE,
                with_compute: !self.config.rules.tasks_wait,
            },
            pfs_bytes_per_s: speed,
            ram_bytes,
            learning: SPEED_WEIGHT,
            division: self.config.division,
            reaction_s,
        }
    }

    /// Reports the speed that the first prefetch has shown. Planners that were created before it
    /// started from a guess, unless the system was measured.
    pub(super) fn report_speed(&mut self, now: Nanos) {
        if self.config.system.is_some() {
            return;
        }
        let names: Vec<String> = self.planners.keys().cloned().collect();
        for name in names {
            self.notify(now, &name, Event::Speed { bytes_per_s: self.speed.bytes_per_s.max(1.0) });
        }
    }

    /// Notifies a planner of an event, and carries out its decisions and their consequences.
    pub(super) fn notify(&mut self, now: Nanos, name: &str, event: Event) {
        let mut actions = Vec::new();
        if let Some(driven) = self.planners.get_mut(name) {
            driven.planner.handle(now, event, &mut actions);
        }
        self.carry_out(now, name, actions);
    }

    pub(super) fn carry_out(&mut self, now: Nanos, name: &str, actions: Vec<planner::Action>) {
        for action in actions {
            match action {
                planner::Action::Decided(decision) => {
                    self.decided(name, decision);
                }
                planner::Action::Fetch { job, wave, setting, .. } => {
                    self.fetch(now, name, job, wave, setting)
                }
                planner::Action::Direct { job, wave, .. } => self.read_directly(now, name, job, wave),
                planner::Action::Ahead { job, may } => self.set_ahead(now, name, job, may),
            }
        }
    }

    fn decided(&mut self, name: &str, decision: Box<planner::Decision>) {
        let Some((job, stage)) = self.stage_of(name, decision.job) else { return };
        let run = self.run_mut(job, stage);
        let Some(task) = run.and_then(|run| run.tasks_of(decision.wave).next()) else { return };
        self.out.push(Action::Decided { planner: name.to_owned(), job, stage, task, decision });
    }

    fn stage_of(&self, planner: &str, job: JobId) -> Option<(JobKey, u32)> {
        self.planners.get(planner)?.jobs.get(&job).copied()
    }

    /// Lets the tasks read a wave by themselves: the requests of its nodes end.
    fn read_directly(&mut self, now: Nanos, name: &str, job: JobId, wave: u32) {
        let Some((key, stage)) = self.stage_of(name, job) else { return };
        let Some(run) = self.run_mut(key, stage) else { return };
        let tasks = run.tasks_of(wave).collect();
        let (requests, others) = (run.read_directly(wave), run.pause_others(WaveId::MAX));
        self.release(now, requests);
        others.into_iter().for_each(|other| self.adjust(now, key, stage, other));
        self.out.push(Action::Direct { job: key, stage, tasks, may: true });
        self.let_read(now, key, stage);
    }

    /// Permits or pauses prefetches of waves after the planned one.
    fn set_ahead(&mut self, now: Nanos, name: &str, job: JobId, may: bool) {
        let Some((key, stage)) = self.stage_of(name, job) else { return };
        if self.config.rules.whole_parts || !self.config.rules.opportunistic {
            return;
        }
        let Some(run) = self.run_mut(key, stage) else { return };
        for wave in run.set_ahead(may) {
            self.adjust(now, key, stage, wave);
        }
        self.settle(now, key, stage);
    }

    pub(super) fn fetch(&mut self, now: Nanos, name: &str, job: JobId, wave: u32, setting: Setting) {
        let Some(driven) = self.planners.get(name) else { return };
        let Some((key, stage)) = driven.jobs.get(&job).copied() else { return };
        let speed = driven.planner.board().strain(setting).speed_bytes_per_s;
        let Some(running) = self.jobs.get_mut(&key) else { return };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let Some(run) = running.stages.get_mut(&stage) else { return };
        let Some((id, was_direct)) = run.set_setting(wave, setting, speed, since_ms) else { return };
        let tasks = if was_direct { run.tasks_of(wave).collect() } else { Vec::new() };
        for other in run.pause_others(id) {
            self.adjust(now, key, stage, other);
        }
        if was_direct {
            self.out.push(Action::Direct { job: key, stage, tasks, may: false });
        }
        self.adjust(now, key, stage, id);
        self.settle(now, key, stage);
    }
}

fn curve(points: &[(u16, f64)]) -> Curve {
    Curve::new(points.to_vec()).expect("counts ascend and values are positive")
}
