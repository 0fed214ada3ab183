//! The pump: drives the planners of the policy crate with the real clock, and turns what they decide into orders.
//!
//! A planner knows jobs, their waves and how large they are; it says "from now on fetch wave 3 with so many nodes and
//! threads". What it does not know is here: a *stage* of a real job is a job to the planner; each of its waves is spread over the nodes
//! that keep its extents, or where its tasks will run, and each of these gets one order. Events go the other way: a wave has begun to compute when its
//! first task has started, it is fetched when every order of it has ended, however it ended.
//!
//! Where the planner does not mind (`no-action`), nodes fill the gaps of the planned wave with later ones, a page of each
//! at a time. The next wave alone seldom keeps all servers of the PFS busy: what of it is on one server comes one after the
//! other, while others rest. And where it is known on which server what lies, each node gets many small orders in place of one, server by
//! server (`by_server`).
//!
//! Three rules keep a prefetch from doing harm. A node is ordered no more than fits its tier beside what it was ordered
//! before ([`room`](Pump)); the rest is given up. An order whose tasks have all started is withdrawn if its planner minds
//! phases: they read by themselves now, and the pace that was planned is not theirs. Where it does not, the order goes on until
//! all of its wave have ended, and before any later wave: what comes is what they wait for, from more servers than a task asks. So the first wave, too,
//! is brought by all at once, and nothing is brought ahead of it by nodes on their own. And when a job ends, everything that was
//! ordered for it is forgotten.
//!
//! When members or slots change, what has not begun is cut anew; what has begun stays as it was. Pages fetched for a wave
//! that is cut anew are found again by the new orders.
//!
//! To find the owners of what a large stage reads takes seconds (100,000 splits in a cluster of 1000 nodes: 4.4 s), and
//! heartbeats must not wait for it. So it is done in slices, one a turn; until it is done the stage stays as it was cut before.

mod by_server;

use crate::jobs::{Change, Job, JobKey, Stage};
use crate::lanes::{LaneId, Lanes};
use crate::run::{StageRun, WaveId};
use crate::waves::{Owners, Placed, Slots, cut};
use forebay_model::profile::{Curve, Profile, Separable, Setting};
use forebay_policy::eviction::PLANNED_SHARE_PERCENT;
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::planner::{self, Action, Config, DirectStrain, Event, JobId, Planner};
use forebay_wire::cluster::{Order, OrderProgress, StageStatus, ToAgent};
use forebay_wire::{ClusterView, JobStatus, JobUpdate, NodeInfo};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Threads of a node for *No Action*: half of the default fetch threads of a mount, so that a reader always finds one.
const DEFAULT_THREADS: u16 = 4;

/// Of what a node may be ordered to hold, the part that must be free of other orders for waves after the planned one.
const AHEAD_ROOM: u64 = 2;

/// Most threads of a node that a planner may ask for.
const MAX_THREADS: u16 = 8;

/// Of what a tier protects for plans, so much in percent is planned for: pages, buffers and what else the agent needs are
/// in the same budget.
const PLANNED_OF_PROTECTED_PERCENT: u64 = 85;

/// Speed of the PFS until the first prefetch has shown it.
const FIRST_SPEED_BYTES_PER_S: f64 = 1e9;

/// Weight of a second's speed in the estimate.
const SPEED_WEIGHT: f64 = 0.3;

/// Parts of files that are planned for one stage, at most: some 200 MB of the coordinator's memory.
const PARTS_MAX: usize = 4 << 20;

/// No order brings more.
const ORDER_BYTES_MAX: u64 = 1 << 50;

/// Members looked at, summed over extents, in one slice of placing: some 10 ms.
const SLICE_WORK: u64 = 200_000;

/// Compute time of a wave until the first task has ended.
const FIRST_TASK_NS: u64 = 10_000_000_000;

/// Tasks read from a tier at about this speed, each.
const TIER_BYTES_PER_S: f64 = 2e9;

/// What all jobs have told may take so much memory here: three million splits and as many files.
const TOLD_BYTES_MAX: u64 = 1 << 30;

/// Live jobs; those that come when there are as many get no prefetch.
const JOBS_MAX: usize = 1024;

/// Ended jobs that are still shown.
const ENDED_MAX: usize = 32;

/// Waves that are shown, over all jobs: some 4 MB of a message that may have eight.
const WAVES_SHOWN_MAX: usize = 50_000;

/// Ended stages of a job that are still shown: an application that runs for days has any number of them.
const ENDED_STAGES_MAX: usize = 64;

/// A message to the agent of a node.
pub type ToNode = (String, ToAgent);

/// See the module.
pub struct Pump {
    view: ClusterView,
    /// Nodes of the view that have gone since.
    gone: BTreeSet<String>,
    jobs: BTreeMap<JobKey, Running>,
    ended: VecDeque<JobStatus>,
    planners: BTreeMap<String, Driven>,
    default_planner: String,
    next_id: JobId,
    next_order: u64,
    orders: BTreeMap<u64, Ordered>,
    speed: Speed,
    out: Vec<ToNode>,
    /// When there was a slice of placing left to do.
    unplaced_since: Option<Nanos>,
    /// Stages of which nodes may have something to begin ahead, looked at once a turn.
    ahead_due: BTreeSet<(JobKey, u32)>,
    lanes: Lanes,
    /// When the lanes are looked at at the latest, if anything waits in them: a piece may hang.
    lanes_due: Option<Nanos>,
    /// They are not looked at before: to look at very many takes time that heartbeats need.
    lanes_rest_until: Nanos,
    /// The lane that is looked at first.
    lanes_from: LaneId,
}

/// A job and how its stages are carried out.
#[derive(Default)]
struct Running {
    job: Job,
    stages: BTreeMap<u32, StageRun>,
    /// Stages that have to be cut (anew).
    to_cut: BTreeSet<u32>,
    /// Stages on the way there, and the owners of what their first tasks read.
    placing: BTreeMap<u32, Placing>,
    /// What is shown of stages that have ended, the last of them; nothing else of them is kept.
    ended: VecDeque<StageStatus>,
    told: Told,
}

/// Bytes of memory that what a job has told takes here, by stage, and of what belongs to none.
#[derive(Default)]
struct Told {
    by_stage: BTreeMap<Option<u32>, u64>,
    slots_bytes: u64,
}

impl Told {
    fn add(&mut self, update: &JobUpdate) {
        match update {
            // Not kept, or in place of what was kept.
            JobUpdate::TaskEnded { .. } => {}
            JobUpdate::Slots(_) => self.slots_bytes = update.held_bytes(),
            _ => *self.by_stage.entry(update.stage()).or_insert(0) += update.held_bytes(),
        }
    }

    fn bytes(&self) -> u64 {
        self.slots_bytes + self.by_stage.values().sum::<u64>()
    }
}

impl Running {
    /// No task of the stage will run any more: it is forgotten, but for what is shown of it. Returns its orders, which are void.
    fn end_stage(&mut self, number: u32) -> Vec<u64> {
        self.to_cut.remove(&number);
        self.placing.remove(&number);
        let mut run = self.stages.remove(&number);
        let orders = run.as_mut().map(StageRun::end).unwrap_or_default();
        if let Some(stage) = self.job.forget(number) {
            self.ended.push_back(stage_status(number, &stage, run.as_ref()));
            while self.ended.len() > ENDED_STAGES_MAX {
                self.ended.pop_front();
            }
        }
        orders
    }
}

/// How far the placing of a stage's tasks is.
#[derive(Default)]
struct Placing {
    next: usize,
    placed: Vec<(u32, Placed)>,
    /// Parts of files in what is placed.
    parts: usize,
    /// The job's, looked up once: when they change the placing begins anew.
    slots: Option<Slots>,
    /// The members have changed meanwhile.
    is_stale: bool,
}

/// A planner and whose jobs it has.
struct Driven {
    planner: Planner,
    jobs: BTreeMap<JobId, (JobKey, u32)>,
}

/// Where an order belongs.
struct Ordered {
    job: JobKey,
    stage: u32,
    wave: WaveId,
    node: String,
    /// Of a piece its lane, and its number among the node's of the wave.
    piece: Option<(LaneId, usize)>,
}

/// What prefetches reach, second by second.
struct Speed {
    bytes_per_s: f64,
    since: Nanos,
    bytes: u64,
    is_known: bool,
}

impl Speed {
    /// Takes in `bytes` fetched; once a second makes an observation of them.
    fn observe(&mut self, now: Nanos, bytes: u64) {
        self.bytes += bytes;
        let ns = now.saturating_since(self.since);
        if ns < 1_000_000_000 {
            return;
        }
        // Longer pauses are no measurements: nothing was asked for.
        if ns < 2_000_000_000 && self.bytes > 0 {
            let seen = self.bytes as f64 * 1e9 / ns as f64;
            self.bytes_per_s += SPEED_WEIGHT * (seen - self.bytes_per_s);
            self.is_known = true;
        }
        (self.since, self.bytes) = (now, 0);
    }
}

impl Pump {
    /// No jobs. Jobs that name no planner, or one there is not, get `default_planner`.
    pub fn new(default_planner: &str) -> Self {
        Pump {
            view: ClusterView::default(),
            gone: BTreeSet::new(),
            jobs: BTreeMap::new(),
            ended: VecDeque::new(),
            planners: BTreeMap::new(),
            default_planner: default_planner.to_owned(),
            next_id: 1,
            next_order: 1,
            orders: BTreeMap::new(),
            speed: Speed { bytes_per_s: FIRST_SPEED_BYTES_PER_S, since: Nanos(0), bytes: 0, is_known: false },
            out: Vec::new(),
            unplaced_since: None,
            ahead_due: BTreeSet::new(),
            lanes: Lanes::default(),
            lanes_due: None,
            lanes_rest_until: Nanos(0),
            lanes_from: 0,
        }
    }

    /// What is to be told to agents since the last call.
    pub fn take_messages(&mut self) -> Vec<ToNode> {
        std::mem::take(&mut self.out)
    }

    /// The members are these from now on. Everything that has not begun is cut anew.
    pub fn set_view(&mut self, now: Nanos, view: ClusterView) {
        self.view = view;
        self.gone.clear();
        let planners: Vec<String> = self.planners.keys().cloned().collect();
        let bytes = self.view.nodes.iter().map(|n| plannable_bytes(n.capacity_bytes)).sum();
        for name in planners {
            self.tell(now, &name, Event::Memory { bytes });
        }
        for running in self.jobs.values_mut() {
            running.to_cut.extend(running.stages.keys());
            // One that is placed for the first time goes on, and is placed anew afterwards: it has nothing yet, and where members
            // come and go it might never have.
            let is_first = |stage: &u32| !running.stages.contains_key(stage);
            running
                .placing
                .iter_mut()
                .filter(|(stage, _)| is_first(stage))
                .for_each(|(_, p)| p.is_stale = true);
        }
    }

    /// An agent has come (back): it has no orders, and tells its jobs anew.
    pub fn node_came(&mut self, now: Nanos, node: &str) {
        self.gone.remove(node);
        self.jobs_end(now, node);
        for ordered in self.lose_orders(now, node) {
            if let Some(run) = self.run_mut(&ordered.job, ordered.stage) {
                run.order_lost(ordered.wave, node);
            }
            self.go_on(&ordered.job, ordered.stage, node);
            self.send_orders(now, &ordered.job, ordered.stage, ordered.wave);
        }
    }

    /// An agent has gone: its jobs have ended, and nothing comes of its orders.
    pub fn node_went(&mut self, now: Nanos, node: &str) {
        self.gone.insert(node.to_owned());
        self.jobs_end(now, node);
        for ordered in self.lose_orders(now, node) {
            if let Some(run) = self.run_mut(&ordered.job, ordered.stage) {
                run.part_ended(ordered.wave, node);
            }
            self.settle(now, &ordered.job, ordered.stage);
        }
    }

    fn jobs_end(&mut self, now: Nanos, node: &str) {
        let its: Vec<JobKey> = self.jobs.keys().filter(|key| key.0 == node).cloned().collect();
        for key in its {
            self.end_job(now, &key, false);
        }
    }

    /// What the node was ordered is void, also what it was not told yet: that would reach its next connection.
    fn lose_orders(&mut self, now: Nanos, node: &str) -> Vec<Ordered> {
        self.out.retain(|(to, _)| to != node);
        let its: Vec<u64> = self.orders.iter().filter(|(_, o)| o.node == node).map(|(id, _)| *id).collect();
        its.into_iter().filter_map(|id| self.void(now, id)).collect()
    }

    /// Nothing will be heard of an order.
    fn void(&mut self, now: Nanos, id: u64) -> Option<Ordered> {
        let ordered = self.orders.remove(&id)?;
        if let Some((lane, _)) = ordered.piece {
            self.lanes.end(lane, id, now, None);
        }
        Some(ordered)
    }

    /// A job tells something.
    pub fn job_tells(&mut self, now: Nanos, key: &JobKey, updates: Vec<JobUpdate>) {
        // Once: what a program tells may be a thousand changes and starts in turn.
        let mut may_cut = !self.view.nodes.is_empty();
        for mut update in updates {
            if let JobUpdate::Layouts { servers, files } = &mut update {
                *files = self.lanes.laid_out(servers, std::mem::take(files));
            }
            if !self.jobs.contains_key(key) {
                let begins = matches!(update, JobUpdate::Begin { .. });
                if !begins || self.jobs.len() >= JOBS_MAX {
                    return;
                }
                let job = Job { began: now, ..Job::default() };
                self.jobs.insert(key.clone(), Running { job, ..Running::default() });
            }
            let begins = may_cut && matches!(update, JobUpdate::TaskStarted { .. });
            if begins && self.jobs.get(key).is_some_and(|running| !running.to_cut.is_empty()) {
                may_cut = false;
                // What is told in one breath happened one after the other: the first tasks have a wave, too, though they have started
                // before anybody could look.
                self.cut_some(now);
            }
            let Some(running) = self.jobs.get_mut(key) else { return };
            running.told.add(&update);
            let change = running.job.apply(update);
            self.act_upon(now, key, change);
        }
        self.bound_told(now, key);
    }

    /// A job that makes all of them take more than they may is not planned any more; its reads go on.
    fn bound_told(&mut self, now: Nanos, key: &JobKey) {
        let told_bytes: u64 = self.jobs.values().map(|running| running.told.bytes()).sum();
        if told_bytes > TOLD_BYTES_MAX {
            tracing::warn!(
                node = key.0,
                told_bytes,
                "jobs have told more than {TOLD_BYTES_MAX} bytes: one of this node is not planned any more"
            );
            self.end_job(now, key, false);
        }
    }

    fn act_upon(&mut self, now: Nanos, key: &JobKey, change: Change) {
        match change {
            Change::Noted => {}
            Change::Slots => {
                if let Some(running) = self.jobs.get_mut(key) {
                    let ready = running.job.stages.iter().filter(|(_, s)| s.ready);
                    running.to_cut.extend(ready.map(|(number, _)| *number));
                }
            }
            Change::Ready(stage) => {
                if let Some(running) = self.jobs.get_mut(key) {
                    running.to_cut.insert(stage);
                }
            }
            Change::Started(stage, task) => self.task_started(now, key, stage, task),
            Change::Done(stage, task) => self.task_done(now, key, stage, task),
            Change::StageEnded(stage) => self.end_stage(now, key, stage),
            Change::Ended => self.end_job(now, key, true),
        }
    }

    /// Does what is due: cuts what has changed, lets planners go on. Called after every batch of messages.
    pub fn tick(&mut self, now: Nanos) {
        self.cut_some(now);
        let due: Vec<String> = self
            .planners
            .iter()
            .filter(|(_, d)| d.planner.next_deadline().is_some_and(|at| at <= now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in due {
            let mut actions = Vec::new();
            if let Some(driven) = self.planners.get_mut(&name) {
                driven.planner.on_deadline(now, &mut actions);
            }
            self.carry_out(now, &name, actions);
        }
        let ahead_due = std::mem::take(&mut self.ahead_due);
        if !ahead_due.is_empty() || self.lanes_due.is_some_and(|at| at <= now) {
            self.serve_lanes(now);
        }
        for (key, stage) in ahead_due {
            self.work_ahead(now, &key, stage);
        }
    }

    /// When [`Pump::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let planners = self.planners.values().filter_map(|d| d.planner.next_deadline());
        planners.chain(self.unplaced_since).chain(self.lanes_due).min()
    }

    // Planning.

    /// Cuts stages that have to be, as far as one slice of placing goes.
    fn cut_some(&mut self, now: Nanos) {
        let mut work_left = SLICE_WORK;
        for running in self.jobs.values_mut() {
            let anew = std::mem::take(&mut running.to_cut).into_iter();
            running.placing.extend(anew.map(|stage| (stage, Placing::default())));
        }
        let under_way = |(key, running): (&JobKey, &Running)| {
            running.placing.first_key_value().map(|(stage, _)| (key.clone(), *stage))
        };
        loop {
            let Some((key, stage)) = self.jobs.iter().find_map(under_way) else {
                self.unplaced_since = None;
                return;
            };
            if !self.place_some(&key, stage, &mut work_left) {
                self.unplaced_since = Some(now);
                return;
            }
            let Some(running) = self.jobs.get_mut(&key) else { continue };
            let Placing { placed, is_stale, .. } = running.placing.remove(&stage).unwrap_or_default();
            if is_stale {
                running.placing.insert(stage, Placing::default());
            }
            self.cut_stage(now, &key, stage, placed);
        }
    }

    /// Finds owners for tasks of a stage until `work_left` is used up; whether all of them have been found.
    fn place_some(&mut self, key: &JobKey, number: u32, work_left: &mut u64) -> bool {
        let Some(Running { job, placing, .. }) = self.jobs.get_mut(key) else { return true };
        let Some(stage) = job.stages.get(&number).filter(|s| s.ready) else { return true };
        let Some(Placing { next, placed, parts, slots, .. }) = placing.get_mut(&number) else { return true };
        let slots = slots.get_or_insert_with(|| Slots::new(&job.slots, &self.view));
        let mut owners = Owners::new(&self.view, slots);
        while let Some(task) = stage.tasks.get(*next) {
            if owners.work() >= *work_left {
                *work_left = 0;
                return false;
            }
            if task.started.is_none() && !task.done {
                // Tasks beyond that have no parts: they have their turn in waves, and read by themselves.
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

    /// Cuts what has not begun of a stage into waves, and tells the planner of them.
    fn cut_stage(&mut self, now: Nanos, key: &JobKey, number: u32, mut placed: Vec<(u32, Placed)>) {
        self.planner_forgets(now, key, number);
        let Some(running) = self.jobs.get_mut(key) else { return };
        let Some(stage) = running.job.stages.get(&number).filter(|s| s.ready) else { return };
        let serial = self.next_id;
        let run = running.stages.entry(number).or_insert_with(|| StageRun::new(serial));
        // The stage's, if it is new, and in any case not the planner's.
        self.next_id += 1;
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let withdrawn = run.drop_waves_not_begun(since_ms);
        let slots = Slots::new(&running.job.slots, &self.view);
        // Some may have started while the others were placed.
        placed.retain(|(task, _)| {
            stage.tasks.get(*task as usize).is_some_and(|task| task.started.is_none() && !task.done)
        });
        let homes: Vec<(u32, Option<&str>)> = placed.iter().map(|(i, p)| (*i, p.home.as_deref())).collect();
        let waves = cut(&homes, &slots);
        run.add_waves(stage.tasks.len(), &waves, placed);
        let told = (run.planned_waves() > 0).then(|| {
            let wave_bytes = run.largest_wave_bytes();
            let slots = slots.total().max(1) as f64;
            let tier_read_ns = (wave_bytes as f64 / slots / TIER_BYTES_PER_S * 1e9) as u64;
            let compute_ns = running.job.task_ns(number).unwrap_or(FIRST_TASK_NS).max(tier_read_ns);
            (run.planned_waves(), wave_bytes, compute_ns, tier_read_ns)
        });
        let planner = running.job.planner.clone();
        self.cancel(now, withdrawn);
        let Some((waves, wave_bytes, compute_ns, tier_read_ns)) = told else { return };
        let (job, name) = (self.next_id, self.planner_called(&planner));
        self.next_id += 1;
        let mut goes_on = false;
        if let Some(driven) = self.planners.get_mut(&name) {
            driven.jobs.insert(job, (key.clone(), number));
            goes_on = driven.planner.works_ahead();
        }
        let is_laid_out = self.jobs.get(key).is_some_and(|running| running.job.is_laid_out());
        if let Some(run) = self.run_mut(key, number) {
            run.planner = Some((name.clone(), job));
            run.goes_on = goes_on;
            // What it has of waves that have begun stays what it is.
            run.by_server = goes_on && (run.by_server || is_laid_out);
        }
        self.tell(now, &name, Event::JobJoins { job, waves, wave_bytes, compute_ns, tier_read_ns });
    }

    /// The name of the planner that will have the job; it is made if it is the first of its kind.
    fn planner_called(&mut self, wanted: &str) -> String {
        let known = |name: &str| planner::POLICIES.iter().any(|(n, _)| *n == name);
        let name = if known(wanted) { wanted } else { self.default_planner.as_str() };
        let name = if known(name) { name } else { "no-action" }.to_owned();
        if !self.planners.contains_key(&name) {
            let config = self.planner_config();
            if let Ok(policy) = planner::policy(&name, &config) {
                let planner = Planner::new(config, policy);
                self.planners.insert(name.clone(), Driven { planner, jobs: BTreeMap::new() });
            }
        }
        name
    }

    /// What is known of the system now: nodes, memory, and the speed that prefetches have reached.
    fn planner_config(&self) -> Config {
        let nodes = u16::try_from(self.view.nodes.len()).unwrap_or(u16::MAX).max(1);
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
                i_hpc: flat(1.0),
                i_bd: flat(1.0),
                max_nodes: nodes,
                max_threads: MAX_THREADS,
            },
            default_setting: Setting::new(nodes, DEFAULT_THREADS),
            direct: DirectStrain { speed_bytes_per_s: speed, i_hpc: 1.0, i_bd: 1.0 },
            pfs_bytes_per_s: speed,
            ram_bytes: self.view.nodes.iter().map(|n| plannable_bytes(n.capacity_bytes)).sum(),
            learning: SPEED_WEIGHT,
        }
    }

    /// Tells a planner something and does what it decides, and what comes of that.
    fn tell(&mut self, now: Nanos, name: &str, event: Event) {
        let mut actions = Vec::new();
        if let Some(driven) = self.planners.get_mut(name) {
            driven.planner.handle(now, event, &mut actions);
        }
        self.carry_out(now, name, actions);
    }

    fn carry_out(&mut self, now: Nanos, name: &str, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Decided(decision) => {
                    tracing::debug!(
                        planner = name,
                        job = decision.job,
                        wave = decision.wave,
                        reason = decision.reason,
                        "decided"
                    );
                }
                Action::Fetch { job, wave, setting, .. } => self.fetch(now, name, job, wave, setting),
                // The tasks read by themselves; that is what they do without us.
                Action::Direct { .. } => {}
            }
        }
    }

    fn fetch(&mut self, now: Nanos, name: &str, job: JobId, wave: u32, setting: Setting) {
        let Some((key, stage)) = self.planners.get(name).and_then(|d| d.jobs.get(&job)).cloned() else {
            return;
        };
        let Some(running) = self.jobs.get_mut(&key) else { return };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let Some(run) = running.stages.get_mut(&stage) else { return };
        let Some(wave) = run.set_setting(wave, setting, since_ms) else { return };
        self.send_orders(now, &key, stage, wave);
    }

    // Orders.

    /// Brings the orders of a wave in line with its setting, and notes it as fetched if there is nothing left to bring.
    fn send_orders(&mut self, now: Nanos, key: &JobKey, stage: u32, wave: WaveId) {
        self.pace_orders(key, stage, wave, |_| true);
        self.settle(now, key, stage);
    }

    /// Gives the nodes of `which` their orders for a wave, or the pace that these have by now.
    fn pace_orders(&mut self, key: &JobKey, stage: u32, wave: WaveId, which: impl Fn(&str) -> bool) {
        let speed = self.speed.bytes_per_s;
        let held = self.held_bytes();
        let Some(run) = self.jobs.get(key).and_then(|running| running.stages.get(&stage)) else { return };
        for (node, order) in run.active_orders(wave).into_iter().filter(|(node, _)| which(node)) {
            let (threads, rate_bytes_per_s) = run.pace(wave, &node, speed);
            if self.orders.contains_key(&order) {
                self.out.push((node, ToAgent::Adjust { order, threads, rate_bytes_per_s }));
            }
        }
        let starts = run.nodes_to_start(wave).into_iter().filter(|node| which(node));
        let starts: Vec<_> = starts.map(|node| (run.pace(wave, &node, speed), node)).collect();
        for (pace, node) in starts {
            let room = self.room_bytes(&node).saturating_sub(*held.get(&node).unwrap_or(&0));
            self.order(key, stage, wave, node, room, pace);
        }
    }

    /// A node has ended an order: what waited for it is next.
    fn go_on(&mut self, key: &JobKey, stage: u32, node: &str) {
        let run = self.jobs.get(key).and_then(|running| running.stages.get(&stage));
        let waves = run.filter(|run| run.goes_on).map(|run| run.planned_on(node)).unwrap_or_default();
        for wave in waves {
            self.pace_orders(key, stage, wave, |other| other == node);
        }
    }

    /// Gives a node its order for a wave, as far as `room` goes, with `pace` (pages at a time, bytes per second).
    fn order(&mut self, key: &JobKey, stage: u32, wave: WaveId, node: String, room: u64, pace: (u32, u64)) {
        let Some(running) = self.jobs.get_mut(key) else { return };
        let Some(run) = running.stages.get_mut(&stage) else { return };
        let (files, parts) = run.take_parts(wave, &node, room, &running.job.files);
        if parts.is_empty() {
            return run.part_ended(wave, &node);
        }
        let order = self.next_order;
        self.next_order += 1;
        run.ordered(wave, &node, order);
        self.orders.insert(order, Ordered { job: key.clone(), stage, wave, node: node.clone(), piece: None });
        let (threads, rate_bytes_per_s) = pace;
        self.out.push((
            node,
            ToAgent::Fetch(Order { order, threads, rate_bytes_per_s, ahead: threads == 1, files, parts }),
        ));
    }

    /// Lets nodes begin waves after the planned one, if the planner does not mind, where all of a node's part fits into half of
    /// its room. What is planned goes first at each node, so these fill the gaps that it leaves: a server
    /// that has nothing of it, a page that takes longer than others.
    fn work_ahead(&mut self, now: Nanos, key: &JobKey, stage: u32) {
        let Some(running) = self.jobs.get(key) else { return };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let Some(run) = running.stages.get(&stage).filter(|run| run.goes_on) else { return };
        let parts = run.parts_ahead();
        if parts.is_empty() {
            return;
        }
        let mut left: BTreeMap<String, u64> = BTreeMap::new();
        let held = self.held_bytes();
        for node in self.view.nodes.iter().filter(|node| !self.gone.contains(&node.name)) {
            let room = plannable_bytes(node.capacity_bytes) / AHEAD_ROOM;
            left.insert(node.name.clone(), room.saturating_sub(*held.get(&node.name).unwrap_or(&0)));
        }
        for (wave, node, bytes) in parts {
            let left = left.entry(node.clone()).or_default();
            if bytes > *left {
                // Not a later one in its place: that would take the room of this one.
                *left = 0;
                continue;
            }
            *left -= bytes;
            if let Some(run) = self.run_mut(key, stage) {
                run.begin_ahead(wave, since_ms);
            }
            let pace = self.run_mut(key, stage).map_or((0, 0), |run| run.pace(wave, &node, 0.0));
            self.order(key, stage, wave, node, bytes, pace);
        }
    }

    /// What a node may be ordered to hold in all; nothing if it has gone.
    fn room_bytes(&self, node: &str) -> u64 {
        let is_there = |n: &&NodeInfo| n.name == node && !self.gone.contains(&n.name);
        plannable_bytes(self.view.nodes.iter().find(is_there).map_or(0, |n| n.capacity_bytes))
    }

    /// Bytes that each node was ordered to hold and may not let go of yet.
    fn held_bytes(&self) -> BTreeMap<String, u64> {
        let mut held = BTreeMap::new();
        for run in self.jobs.values().flat_map(|r| r.stages.values()) {
            run.add_held(&mut held);
        }
        held
    }

    /// An agent tells how far an order is.
    pub fn progress(&mut self, now: Nanos, node: &str, progress: OrderProgress) {
        let Some(ordered) = self.orders.get(&progress.order).filter(|o| o.node == node) else { return };
        let (key, stage, wave) = (ordered.job.clone(), ordered.stage, ordered.wave);
        let piece = ordered.piece;
        // More is no order's, and sums stay sums.
        let sane = |bytes: u64| bytes.min(ORDER_BYTES_MAX);
        let progress = OrderProgress {
            fetched_bytes: sane(progress.fetched_bytes),
            resident_bytes: sane(progress.resident_bytes),
            failed_bytes: sane(progress.failed_bytes),
            ..progress
        };
        let Some(run) = self.run_mut(&key, stage) else { return };
        let fetched = match piece {
            Some((_, number)) => run.piece_progress(wave, node, number, &progress),
            None => run.progress(wave, node, &progress),
        };
        self.speed.observe(now, fetched);
        if let Some((lane, _)) = piece.filter(|_| progress.done) {
            tracing::debug!(
                order = progress.order,
                lane,
                fetched_bytes = progress.fetched_bytes,
                "a piece has come"
            );
            let mostly_fetched = progress.fetched_bytes > progress.resident_bytes + progress.failed_bytes;
            self.lanes.end(lane, progress.order, now, mostly_fetched.then_some(progress.fetched_bytes));
            self.settle(now, &key, stage);
        } else if progress.done {
            self.go_on(&key, stage, node);
            self.send_orders(now, &key, stage, wave);
        }
    }

    fn cancel(&mut self, now: Nanos, orders: Vec<u64>) {
        let mut by_node: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for order in orders {
            if let Some(ordered) = self.void(now, order) {
                by_node.entry(ordered.node).or_default().push(order);
            }
        }
        self.out.extend(by_node.into_iter().map(|(node, orders)| (node, ToAgent::Cancel { orders })));
    }

    // Tasks.

    fn task_started(&mut self, now: Nanos, key: &JobKey, number: u32, task: u32) {
        let Some(running) = self.jobs.get_mut(key) else { return };
        let Some(stage) = running.job.stages.get(&number) else { return };
        let Some(run) = running.stages.get_mut(&number) else { return };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let host = stage.tasks[task as usize].started.as_deref().unwrap_or_default();
        let host_node = self.view.nodes.iter().find(|n| n.host == host).map(|n| n.name.as_str());
        let compute_ns = running.job.task_ns(number).unwrap_or(FIRST_TASK_NS);
        let withdrawn = run.task_started(task, host_node, since_ms);
        let begins = run.begins(task);
        self.cancel(now, withdrawn);
        if let Some(wave) = begins {
            // The planner's books want the waves before it to be over and fetched.
            self.tell_fetched_before(now, key, number, wave);
            if let Some((name, job)) = self.run_mut(key, number).and_then(|run| run.planner.clone()) {
                self.tell(now, &name, Event::WaveStarts { job, wave, compute_ns });
            }
        }
        self.settle(now, key, number);
    }

    fn task_done(&mut self, now: Nanos, key: &JobKey, number: u32, task: u32) {
        let Some(running) = self.jobs.get_mut(key) else { return };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let idle = running.job.stages.get(&number).is_some_and(|s| s.running == 0);
        let Some(run) = running.stages.get_mut(&number) else { return };
        let finished = run.task_done(task, since_ms);
        let wanted = if idle { run.wanted() } else { None };
        let nodes: BTreeSet<String> =
            finished.iter().filter_map(|order| Some(self.orders.get(order)?.node.clone())).collect();
        self.cancel(now, finished);
        for node in &nodes {
            self.go_on(key, number, node);
        }
        if !nodes.is_empty() {
            self.settle(now, key, number);
        }
        if let Some(wave) = wanted {
            self.tell_fetched_before(now, key, number, wave);
            if let Some((name, job)) = self.run_mut(key, number).and_then(|run| run.planner.clone()) {
                self.tell(now, &name, Event::WaveWanted { job, wave });
            }
        }
    }

    /// Tells the planner of waves that are fetched by now, in their order.
    fn settle(&mut self, now: Nanos, key: &JobKey, stage: u32) {
        self.settle_fetched(now, key, stage);
        self.ahead_due.insert((key.clone(), stage));
    }

    fn settle_fetched(&mut self, now: Nanos, key: &JobKey, stage: u32) {
        while let Some(running) = self.jobs.get_mut(key) {
            let since_ms = now.saturating_since(running.job.began) / 1_000_000;
            let Some(run) = running.stages.get_mut(&stage) else { return };
            let (Some(wave), Some((name, job))) = (run.next_fetched(since_ms), run.planner.clone()) else {
                break;
            };
            self.tell(now, &name, Event::Fetched { job, wave });
        }
    }

    fn tell_fetched_before(&mut self, now: Nanos, key: &JobKey, stage: u32, wave: u32) {
        while let Some(run) = self.run_mut(key, stage) {
            let (Some(fetched), Some((name, job))) = (run.force_fetched(wave), run.planner.clone()) else {
                return;
            };
            self.tell(now, &name, Event::Fetched { job, wave: fetched });
        }
    }

    // Ends.

    fn planner_forgets(&mut self, now: Nanos, key: &JobKey, stage: u32) {
        let Some((name, job)) = self.run_mut(key, stage).and_then(|run| run.planner.take()) else { return };
        self.tell(now, &name, Event::JobLeaves { job });
        let Some(driven) = self.planners.get_mut(&name) else { return };
        driven.jobs.remove(&job);
        if driven.jobs.is_empty() {
            // The next one starts from what is known of the system by then.
            self.planners.remove(&name);
        }
    }

    fn end_stage(&mut self, now: Nanos, key: &JobKey, stage: u32) {
        self.planner_forgets(now, key, stage);
        let orders = self.jobs.get_mut(key).map(|running| running.end_stage(stage)).unwrap_or_default();
        if let Some(running) = self.jobs.get_mut(key) {
            running.told.by_stage.remove(&Some(stage));
        }
        self.cancel(now, orders);
    }

    fn end_job(&mut self, now: Nanos, key: &JobKey, show: bool) {
        let stages: Vec<u32> =
            self.jobs.get(key).map(|r| r.job.stages.keys().copied().collect()).unwrap_or_default();
        for stage in stages {
            self.end_stage(now, key, stage);
        }
        let ended = self.jobs.remove(key);
        if self.jobs.is_empty() {
            self.lanes.rest();
        }
        if let Some(running) = ended.filter(|_| show) {
            self.ended.push_back(JobStatus { ended: true, ..self.status_of(&running) });
            while self.ended.len() > ENDED_MAX {
                self.ended.pop_front();
            }
        }
    }

    fn run_mut(&mut self, key: &JobKey, stage: u32) -> Option<&mut StageRun> {
        self.jobs.get_mut(key)?.stages.get_mut(&stage)
    }

    // For people.

    /// The jobs, those that have ended first.
    pub fn status(&self) -> Vec<JobStatus> {
        let mut jobs: Vec<JobStatus> =
            self.ended.iter().cloned().chain(self.jobs.values().map(|r| self.status_of(r))).collect();
        show_at_most(WAVES_SHOWN_MAX, &mut jobs);
        jobs
    }

    fn status_of(&self, running: &Running) -> JobStatus {
        let known = |name: &str| planner::POLICIES.iter().any(|(n, _)| *n == name);
        let planner = if known(&running.job.planner) { &running.job.planner } else { &self.default_planner };
        let slots = running.job.slots.iter().fold(0u32, |sum, (_, count)| sum.saturating_add(*count));
        let live = running.job.stages.iter();
        let live = live.map(|(number, stage)| stage_status(*number, stage, running.stages.get(number)));
        let mut stages: Vec<StageStatus> = running.ended.iter().cloned().chain(live).collect();
        stages.sort_by_key(|stage| stage.stage);
        JobStatus { name: running.job.name.clone(), planner: planner.clone(), slots, stages, ended: false }
    }
}

impl std::fmt::Debug for Pump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pump").field("jobs", &self.jobs.len()).field("orders", &self.orders.len()).finish()
    }
}

/// Leaves the waves of the earliest stages out, so that no more than `waves` of all jobs are left.
fn show_at_most(mut waves: usize, jobs: &mut [JobStatus]) {
    for stage in jobs.iter_mut().rev().flat_map(|job| job.stages.iter_mut().rev()) {
        if stage.waves.len() > waves {
            stage.waves = Vec::new();
        }
        waves -= stage.waves.len();
    }
}

fn stage_status(number: u32, stage: &Stage, run: Option<&StageRun>) -> StageStatus {
    StageStatus {
        stage: number,
        tasks: stage.tasks.len() as u32,
        tasks_done: stage.done as u32,
        tasks_running: stage.running as u32,
        tasks_local: run.map_or(0, |run| run.local),
        waves: run.map(StageRun::statuses).unwrap_or_default(),
    }
}

/// What a node with a tier of `capacity_bytes` may be ordered to hold at a time.
pub fn plannable_bytes(capacity_bytes: u64) -> u64 {
    capacity_bytes / 100 * PLANNED_SHARE_PERCENT / 100 * PLANNED_OF_PROTECTED_PERCENT
}

fn curve(points: &[(u16, f64)]) -> Curve {
    Curve::new(points.to_vec()).expect("counts ascend and values are positive")
}

#[cfg(test)]
mod tests;
