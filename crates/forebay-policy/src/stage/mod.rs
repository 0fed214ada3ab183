//! The stage machine: turns the stages of analytics jobs into waves, and waves into requests to
//! nodes.
//!
//! A planner knows jobs, their waves and how large they are; its decisions are like "from now on
//! fetch wave 3 with 4 nodes and 2 threads". This module does the rest. To a planner each *stage*
//! of a real job is a job. The machine spreads each of its waves over the nodes that keep its
//! extents, or over those where its tasks will run, and sends these nodes requests. Events go the
//! other way: a wave computes once its first task has started, and it is fetched once every request
//! of it has ended.
//!
//! Three rules keep a prefetch from doing harm. A node gets no more requests than fit its tier
//! beside what it holds for other waves. A request whose tasks have all started is released if its
//! planner considers phases: they read the file system themselves now, at their own pace. And when
//! a job ends, all its requests are released.
//!
//! When members or slots change, the machine partitions again what has not begun, and leaves the
//! rest as it is. The requests of the new waves find pages that were fetched for the old ones.
//!
//! The coordinator, the simulator and `forebay replay` drive the machine by the contract of
//! [`crate::machine`]. It sets its deadline after every event that needs a decision, so that a
//! driver may report many events first.
//!
//! | file | what it does |
//! | --- | --- |
//! | `event` | the events and the actions |
//! | `job` | what jobs have reported |
//! | `partition` | preferred nodes of tasks, and waves |
//! | `planning` | when to partition; drives the planners |
//! | `waves` | one stage: its waves and the progress of their requests |
//! | `server_queues` | queues of requests by server, and their concurrency windows |
//! | `request_order`, `fetch` | which requests go out next, and at what pace |
//! | `members`, `nodes` | nodes that come, go or change; their numbers |
//! | `phases` | I/O phases of HPC jobs |
//! | `tasks` | starts and ends of tasks, stages and jobs |
//! | `waiting_tasks` | tasks that wait for their input |
//! | `status` | the state for people |

pub mod event;
mod fetch;
mod job;
mod members;
mod nodes;
mod pace_limits;
mod partition;
mod phases;
mod planning;
mod request_order;
mod server_queues;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod tiers;
mod waiting_tasks;
mod waves;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::eviction::PLANNED_SHARE_PERCENT;
use crate::machine::{Machine, Nanos, is_default};
pub use forebay_model::forecast::Division;

/// Measurements of a system, from which planners start.
pub use crate::planner::Config as Profile;
use crate::planner::{self, HpcId, JobId, Planner};
use event::{Action, Event, JobKey, JobStatus, JobUpdate, Node, QueueId, RequestId, StageStatus, WaveId};
use job::{Change, Job};
use nodes::NodeNumber;
use pace_limits::{PaceLimit, PaceLimits};
pub use partition::SPLIT_WORK_MAX;
use partition::{Placed, Slots};
use phases::Hpc;
pub use planning::DEFAULT_THREADS;
use server_queues::Queues;
pub use status::{STAGES_SHOWN_MAX, WAVES_SHOWN_MAX};
use tiers::Tiers;
use waiting_tasks::Questions;
use waves::{QueueKey, StageRun};

/// Percentage that the machine uses of the room that a tier protects for plans: the agent's buffers
/// and other needs are in the same budget.
const PLANNED_OF_PROTECTED_PERCENT: u64 = 85;

/// Speed of the file system until the first prefetch has shown it.
const FIRST_SPEED_BYTES_PER_S: f64 = 1e9;

/// Weight of a second's speed in the estimate.
const SPEED_WEIGHT: f64 = 0.3;

/// What a machine is built from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The planner of jobs that name none, or an unknown one.
    pub default_planner: String,
    /// The system as it was measured. Without it planners start from the speed that prefetches have
    /// reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<planner::Config>,
    /// How the file system is divided among phases; that of `system`, if it is measured.
    #[serde(default, skip_serializing_if = "is_default")]
    pub division: Division,
    /// How planners' decisions become requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rules: Rules,
    /// State from an earlier machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Before>,
}

/// How planners' decisions become requests. The defaults are those of real nodes; the simulator's
/// reproductions of papers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// The part of a tier's capacity that may be planned for, in ten-thousandths; 10,000 at most.
    pub plannable_per_10000: u64,
    /// Whether planners that ignore phases fetch later waves in gaps of the planned one.
    pub opportunistic: bool,
    /// Whether each node has one request for all of its part of a wave, at the setting of the whole
    /// wave, and its planner keeps the account of memory. Otherwise parts are split into chunks, so
    /// that servers have short queues and tiers room for every request.
    pub whole_parts: bool,
    /// Whether the driver starts a task when all of its input has been fetched. Otherwise it starts
    /// when it has a slot, and reads what is missing by itself; or it asks, and the machine
    /// answers.
    pub tasks_wait: bool,
    /// How long a task that asks waits at most for its input, in ns; 0: tasks never wait.
    #[serde(default = "task_wait_max_ns")]
    pub task_wait_max_ns: u64,
    /// Whether nodes have a brake, which keeps a part of what phases have in hand, and start and
    /// stop within a tenth of a second, so that planners keep as much. Otherwise they spend all of
    /// it, and nodes react immediately.
    #[serde(default)]
    pub nodes_brake: bool,
}

/// Agents start and stop requests within this time, in seconds.
const REACTION_S: f64 = 0.1;

/// Longer than an I/O phase usually takes, and short enough not to be mistaken for a hang.
const TASK_WAIT_MAX_NS: u64 = 300_000_000_000;

fn task_wait_max_ns() -> u64 {
    TASK_WAIT_MAX_NS
}

impl Default for Rules {
    fn default() -> Self {
        let plannable_per_10000 = PLANNED_SHARE_PERCENT * PLANNED_OF_PROTECTED_PERCENT;
        Rules {
            plannable_per_10000,
            opportunistic: true,
            whole_parts: false,
            tasks_wait: false,
            task_wait_max_ns: TASK_WAIT_MAX_NS,
            nodes_brake: true,
        }
    }
}

impl Rules {
    /// Returns the bytes that a node with a tier of `capacity_bytes` may be requested to hold at a
    /// time.
    fn plannable_bytes(&self, capacity_bytes: u64) -> u64 {
        (u128::from(capacity_bytes) * u128::from(self.plannable_per_10000.min(10_000)) / 10_000) as u64
    }
}

/// State that a machine without jobs leaves to its successor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Before {
    /// The members.
    pub nodes: Vec<Node>,
    /// Sizes of their tiers, where they were reported.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacities: BTreeMap<String, u64>,
    /// The number of the next request.
    pub next_request: RequestId,
    /// The speed that prefetches reached, if there were any.
    pub speed_bytes_per_s: Option<f64>,
}

/// See the module.
pub struct Stages {
    nodes: Vec<Node>,
    /// Nodes of the view that have left since.
    gone: BTreeSet<String>,
    tiers: Tiers,
    jobs: BTreeMap<JobKey, Running>,
    ended: VecDeque<JobStatus>,
    planners: BTreeMap<String, Driven>,
    /// The memory that planners may fill, as last reported to them.
    memory_reported: u64,
    hpc: BTreeMap<HpcId, Hpc>,
    config: Config,
    next_id: JobId,
    next_request: RequestId,
    requests: BTreeMap<RequestId, Requested>,
    /// How many requests fetch, and how many are paused.
    fetching: usize,
    resting: usize,
    questions: Questions,
    speed: Speed,
    out: Vec<Action>,
    /// When a decision is due after an event.
    due: Option<Nanos>,
    /// When a slice of placing was postponed.
    unplaced_since: Option<Nanos>,
    /// The job with which the next slice begins.
    placing_from: JobKey,
    /// Whether a wave may have come within reach of a node, or a slot may have become free.
    has_changed: bool,
    queues: Queues,
    /// Latest time to examine the queues if chunks wait in them: a request may hang.
    queues_due: Option<Nanos>,
    /// Earliest time to examine them: examining very many takes time that other events need.
    queues_rest_until: Nanos,
    /// The queue that is examined first.
    queues_from: QueueKey,
    pace_limits: PaceLimits,
}

/// A job and the progress of its stages.
#[derive(Default)]
struct Running {
    job: Job,
    stages: BTreeMap<u32, StageRun>,
    /// Stages to partition (again).
    to_cut: BTreeSet<u32>,
    /// Stages that are being partitioned, and the owners of the input of their first tasks.
    placing: BTreeMap<u32, Placing>,
    /// Stages whose tasks have asked, but that were not reported in time.
    unreported: BTreeSet<u32>,
    /// The display of the last stages that have ended; nothing else of them is kept.
    ended: VecDeque<StageStatus>,
}

impl Running {
    /// Whether a stage waits to be partitioned for the first time.
    fn has_new_stage(&self) -> bool {
        self.to_cut.iter().any(|stage| !self.stages.contains_key(stage))
    }
}

/// Progress of placing a stage's tasks.
#[derive(Default)]
struct Placing {
    next: usize,
    placed: Vec<(u32, Placed)>,
    /// Number of parts of files in what is placed.
    parts: usize,
    /// The job's slots, looked up once: when they change, placing starts again.
    slots: Option<Slots>,
    /// Whether the members have changed meanwhile.
    is_stale: bool,
}

/// A planner and its jobs.
struct Driven {
    planner: Planner,
    jobs: BTreeMap<JobId, (JobKey, u32)>,
}

/// Where a request belongs.
struct Requested {
    job: JobKey,
    stage: u32,
    wave: WaveId,
    node: String,
    /// The number of the node.
    at: NodeNumber,
    queue: QueueId,
    /// Its number among the node's chunks of the wave.
    number: usize,
    state: RequestState,
    pace_limit: PaceLimit,
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// It fetches.
    Fetches,
    /// It is paused.
    Rests,
    /// It has ended, and its node keeps what was fetched.
    Ended,
}

/// The speed of prefetches, second by second.
struct Speed {
    bytes_per_s: f64,
    since: Nanos,
    bytes: u64,
    /// Number of observations; 0: the speed is a guess.
    seen: u64,
}

impl Speed {
    fn is_known(&self) -> bool {
        self.seen > 0
    }
}

impl Speed {
    /// Adds fetched `bytes`; makes an observation once per second. Returns whether it is the first
    /// one.
    fn observe(&mut self, now: Nanos, bytes: u64) -> bool {
        self.bytes += bytes;
        let ns = now.saturating_since(self.since);
        if ns < 1_000_000_000 {
            return false;
        }
        let was_known = self.is_known();
        // Longer pauses are not measurements: nothing was requested.
        if ns < 2_000_000_000 && self.bytes > 0 {
            let seen = self.bytes as f64 * 1e9 / ns as f64;
            self.seen += 1;
            // The first replaces the guess before it.
            let weight = SPEED_WEIGHT.max(1.0 / self.seen as f64);
            self.bytes_per_s += weight * (seen - self.bytes_per_s);
        }
        (self.since, self.bytes) = (now, 0);
        self.is_known() && !was_known
    }
}

impl Stages {
    /// Creates a machine without jobs.
    pub fn new(config: Config) -> Self {
        let (nodes, capacities, next_request, speed_bytes_per_s) = match config.before.clone() {
            Some(b) => (b.nodes, b.capacities, b.next_request, b.speed_bytes_per_s),
            None => (Vec::new(), BTreeMap::new(), 1, None),
        };
        Stages {
            tiers: Tiers::new(config.rules, &nodes, capacities),
            nodes,
            gone: BTreeSet::new(),
            jobs: BTreeMap::new(),
            ended: VecDeque::new(),
            planners: BTreeMap::new(),
            memory_reported: 0,
            hpc: BTreeMap::new(),
            config,
            next_id: 1,
            next_request,
            requests: BTreeMap::new(),
            fetching: 0,
            resting: 0,
            questions: Questions::default(),
            speed: Speed {
                bytes_per_s: speed_bytes_per_s.unwrap_or(FIRST_SPEED_BYTES_PER_S),
                since: Nanos(0),
                bytes: 0,
                // The speed from another machine has been observed for long.
                seen: if speed_bytes_per_s.is_some() { u64::from(u32::MAX) } else { 0 },
            },
            out: Vec::new(),
            due: None,
            unplaced_since: None,
            placing_from: 0,
            has_changed: false,
            queues: Queues::default(),
            queues_due: None,
            queues_rest_until: Nanos(0),
            queues_from: (0, None),
            pace_limits: PaceLimits::default(),
        }
    }

    /// Restarts as a new machine if it has no jobs. A replay from here on needs only the returned
    /// configuration. The machine keeps the state in [`Before`], and shows the jobs that have
    /// ended; it forgets the windows of queues.
    pub fn restart(&mut self) -> Option<&Config> {
        let rests = self.jobs.is_empty() && self.requests.is_empty() && self.hpc.is_empty();
        if !rests || !self.gone.is_empty() {
            return None;
        }
        let before = Before {
            nodes: core::mem::take(&mut self.nodes),
            capacities: self.tiers.take_reported(),
            next_request: self.next_request,
            speed_bytes_per_s: self.speed.is_known().then_some(self.speed.bytes_per_s),
        };
        let ended = core::mem::take(&mut self.ended);
        let config = Config { before: Some(before), ..core::mem::take(&mut self.config) };
        *self = Stages { ended, ..Stages::new(config) };
        Some(&self.config)
    }

    /// Returns the bytes that a node may be requested to hold now.
    fn plannable_bytes(&self, now: Nanos, name: &str, node: NodeNumber) -> u64 {
        if self.pace_limits.is_excluded(name, now) { 0 } else { self.tiers.plannable_bytes_of(node) }
    }

    /// Returns the nodes that have exceeded the pace of their requests since the last call, and by
    /// how many bytes. They get no requests for a minute.
    pub fn take_pace_violations(&mut self) -> Vec<(String, u64)> {
        self.pace_limits.take_violations()
    }

    fn run_mut(&mut self, key: JobKey, stage: u32) -> Option<&mut StageRun> {
        self.jobs.get_mut(&key)?.stages.get_mut(&stage)
    }

    /// Handles the updates of a job.
    fn job_reports(&mut self, now: Nanos, key: JobKey, updates: Vec<JobUpdate>) {
        // Only once: a report may hold a thousand changes and starts in turn.
        let mut may_cut = !self.nodes.is_empty();
        for mut update in updates {
            if let JobUpdate::Layouts { servers, files } = &mut update {
                *files = self.queues.laid_out(servers, core::mem::take(files));
            }
            if matches!(update, JobUpdate::Begin { .. }) {
                let job = || Job { began: now, ..Job::default() };
                self.jobs.entry(key).or_insert_with(|| Running { job: job(), ..Running::default() });
            }
            let begins = may_cut && matches!(update, JobUpdate::TaskStarted { .. });
            if begins && self.jobs.get(&key).is_some_and(Running::has_new_stage) {
                may_cut = false;
                // The events of one report happened one after the other. So the first tasks have a
                // wave as well, although they started before the stage was partitioned. A stage
                // that has waves waits for the deadline: a job whose slots change with each report
                // would take all the time of the machine.
                self.cut_some(now);
            }
            let Some(running) = self.jobs.get_mut(&key) else { return };
            let change = running.job.apply(update);
            self.act_upon(now, key, change);
        }
    }

    fn act_upon(&mut self, now: Nanos, key: JobKey, change: Change) {
        match change {
            Change::Noted => {}
            // The tasks that ask may be others than before.
            Change::Numbered(stage) => {
                self.run_mut(key, stage).into_iter().for_each(|run| run.awaited = None);
            }
            Change::Slots => {
                if let Some(running) = self.jobs.get_mut(&key) {
                    let ready = running.job.stages.iter().filter(|(_, s)| s.ready);
                    running.to_cut.extend(ready.map(|(number, _)| *number));
                }
            }
            Change::Ready(stage) => {
                if let Some(running) = self.jobs.get_mut(&key) {
                    running.to_cut.insert(stage);
                }
            }
            Change::Asks(stage, partition) => self.task_asks(now, key, stage, partition),
            Change::Started(stage, task) => {
                if !self.waits_in_its_slot(now, key, stage, task) {
                    self.task_started(now, key, stage, task);
                    self.let_read(now, key, stage);
                }
            }
            Change::Done(stage, task) => {
                // A task that could not ask has not waited.
                self.start_held(now, key, stage, task);
                self.answer_task(key, stage, task);
                self.task_done(now, key, stage, task);
            }
            Change::StageEnded(stage) => self.end_stage(now, key, stage),
            Change::Ended => self.end_job(now, key, true),
        }
    }
}

impl Machine for Stages {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Members { nodes } => self.set_members(now, nodes),
            Event::NodeCame { node } => self.node_came(now, &node),
            Event::NodeWent { node } => self.node_went(now, &node),
            Event::Capacity { node, bytes } => self.capacity(now, &node, bytes),
            Event::Job { job, updates } => self.job_reports(now, job, updates),
            Event::JobGone { job } => self.end_job(now, job, false),
            Event::Hpc { hpc, update } => self.hpc(now, hpc, update),
            Event::Request { request, node, progress } => self.progress(now, &node, request, progress),
        }
        if self.has_changed || self.jobs.values().any(|running| !running.to_cut.is_empty()) {
            self.due = Some(now);
        }
        out.append(&mut self.out);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let planners = self.planners.values().filter_map(|d| d.planner.next_deadline());
        let others = [self.due, self.unplaced_since, self.queues_due, self.questions.next_limit()];
        planners.chain(others.into_iter().flatten()).min()
    }

    /// Partitions changed stages, lets planners continue, and dispatches requests.
    fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.due = None;
        self.cut_some(now);
        let due = self.planners.iter().filter(|(_, d)| d.planner.next_deadline().is_some_and(|at| at <= now));
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        for name in due {
            let mut actions = Vec::new();
            if let Some(driven) = self.planners.get_mut(&name) {
                driven.planner.on_deadline(now, &mut actions);
            }
            self.carry_out(now, &name, actions);
        }
        self.limit_waits(now);
        let has_changed = core::mem::take(&mut self.has_changed);
        if has_changed || self.queues_due.is_some_and(|at| at <= now) {
            self.serve_queues(now);
        }
        if self.has_changed || self.jobs.values().any(|running| !running.to_cut.is_empty()) {
            self.due = Some(now);
        }
        out.append(&mut self.out);
    }
}

impl core::fmt::Debug for Stages {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stages")
            .field("jobs", &self.jobs.len())
            .field("requests", &self.requests.len())
            .finish()
    }
}
