//! How long the coordinator's stage machine takes for a decision, at 64 nodes and 16 jobs, and what
//! its decision log costs.
//!
//! The machine is the one that the daemons drive. Here it runs in virtual time: nodes fetch at the
//! speed of their link, tasks run as long as they say, and an HPC job has its phases. What is
//! measured is the processor time of each call, because every other event waits for it.
//!
//! The log is the one of the daemons, in files on disk. Its cost is the processor time of recording
//! and of the thread that writes, as a share of the time in which the events would happen.

use crate::measure::{Record, Target, median, quantile};
use crate::rig::Rig;
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::stage::event::{
    Action, Event, File, HpcUpdate, JobUpdate, Layout, Node, Part, Progress, RequestId, Split,
};
use forebay_policy::stage::{Config, Stages};
use forebay_trace::STAGES;
use forebay_trace::log_files::{FILE_BYTES_MAX, Files, Recorder};
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

const NODES: usize = 64;
const JOBS: u64 = 16;
const SERVERS: u32 = 16;
const WAVES: u32 = 8;

/// Tasks that each job runs on each node at a time; 16 jobs share the 64 cores of a node.
const SLOTS: u32 = 4;
const SPLIT_BYTES: u64 = 64 << 20;
const NODE_BYTES_PER_S: u64 = 1_000_000_000;
const TASK_NS: u64 = 8_000_000_000;
const PHASE_NS: u64 = 5_000_000_000;
const BETWEEN_PHASES_NS: u64 = 20_000_000_000;
const TASKS: u32 = WAVES * SLOTS * NODES as u32;

/// Virtual time after which a run counts as stuck.
const END_NS: u64 = 3600 * 1_000_000_000;

/// One group: the median, the 99th percentile and the longest call, by planner.
pub fn decide(rig: &Rig) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    for planner in ["no-action", "forebay"] {
        let runs = if rig.quick { 1 } else { rig.runs };
        let runs: Vec<Vec<f64>> = (0..runs).map(|_| World::new(planner).timed()).collect::<Result<_, _>>()?;
        let at = |share: f64| median(runs.iter().map(|run| quantile(run, share)));
        let note = format!(
            "{NODES} nodes, {JOBS} jobs of {TASKS} tasks, {SERVERS} servers, {} calls of the stage machine a run",
            runs[0].len()
        );
        for (name, share, target) in [
            ("median", 0.5, Target::Report),
            ("p99", 0.99, Target::AtMost(1.0)),
            ("longest", 1.0, Target::Report),
        ] {
            let id = format!("decide.{planner}.{name}");
            records.push(Record::alone(&id, at(share), "ms", target, runs.len(), &note));
        }
        let costs: Vec<Cost> =
            (0..runs.len()).map(|_| World::new(planner).recorded(rig, planner)).collect::<Result<_, _>>()?;
        let percent = median(costs.iter().map(Cost::percent));
        let note = format!(
            "{planner}: the decision log of the same run, {:.1} MB in {:.0} s",
            costs[0].bytes as f64 * 1e-6,
            costs[0].world_s
        );
        let (id, target) = (format!("decide.{planner}.log"), Target::AtMost(1.0));
        records.push(Record::alone(&id, percent, "% of a core", target, costs.len(), &note));
    }
    Ok(records)
}

/// What recording a run has cost.
struct Cost {
    processor_s: f64,
    /// The time that the events would take.
    world_s: f64,
    bytes: u64,
}

impl Cost {
    fn percent(&self) -> f64 {
        self.processor_s / self.world_s * 100.0
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Phase(bool),
    Fetched(RequestId),
    Ends { job: u64, task: u32, node: usize },
}

struct World {
    machine: Stages,
    now: u64,
    due: BinaryHeap<Reverse<(u64, u64, Due)>>,
    scheduled: u64,
    /// When each node's link is free.
    free_at: Vec<u64>,
    /// Node and bytes of the requests that are not released.
    requests: BTreeMap<RequestId, (usize, u64)>,
    /// The next task of each job on each node, and tasks that are done.
    next: BTreeMap<(u64, usize), u32>,
    done: BTreeMap<u64, BTreeSet<u32>>,
    calls_ms: Vec<f64>,
    recorder: Recorder,
    /// Processor time of recording, on this thread.
    recording_s: f64,
}

const BEGINS_NS: u64 = 1_000_000_000;

impl World {
    fn new(planner: &str) -> Self {
        World {
            machine: Stages::new(config(planner)),
            now: BEGINS_NS,
            due: BinaryHeap::new(),
            scheduled: 0,
            free_at: vec![0; NODES],
            requests: BTreeMap::new(),
            next: BTreeMap::new(),
            done: (0..JOBS).map(|job| (job, BTreeSet::new())).collect(),
            calls_ms: Vec::new(),
            recorder: Recorder::off(),
            recording_s: 0.0,
        }
    }

    /// The time of each call in milliseconds.
    fn timed(mut self) -> Result<Vec<f64>, String> {
        self.play()?;
        Ok(self.calls_ms)
    }

    /// Plays all jobs with a decision log as a coordinator has it.
    fn recorded(mut self, rig: &Rig, planner: &str) -> Result<Cost, String> {
        let dir = rig.dir.join("decisions");
        // A single file, however long: otherwise not all of the run would be recorded.
        let files =
            Files { who: STAGES, prefix: "decisions", bytes_long: u64::MAX, bytes_max: 64 * FILE_BYTES_MAX };
        let started = Recorder::start(&dir, files, &config(planner));
        self.recorder = started.map_err(|e| format!("cannot write {}: {e}", dir.display()))?;
        let (process_s, thread_s) = (clock_seconds(ClockId::ProcessCPUTime), thread_seconds());
        self.play()?;
        let world_s = (self.now - BEGINS_NS) as f64 * 1e-9;
        let (recording_s, calls) = (self.recording_s, self.calls_ms.len());
        // Waits until all is written.
        drop(self);
        let process_s = clock_seconds(ClockId::ProcessCPUTime) - process_s;
        let written_s = (process_s - (thread_seconds() - thread_s)).max(0.0);
        let path = dir.join("decisions-000001.log");
        let log = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let lines = log.iter().filter(|byte| **byte == b'\n').count();
        if lines < calls {
            return Err(format!("the log of {calls} calls has {lines} lines: the disk is too slow"));
        }
        std::fs::remove_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Cost { processor_s: recording_s + written_s, world_s, bytes: log.len() as u64 })
    }

    /// Plays all jobs to their end.
    fn play(&mut self) -> Result<(), String> {
        let keeps = BTreeMap::from([("pfs".to_owned(), 64 << 20)]);
        let node =
            |n: usize| Node { name: name(n), host: name(n), capacity_bytes: 64 << 30, keeps: keeps.clone() };
        self.handle(Event::Members { nodes: (0..NODES).map(node).collect() });
        let joins = HpcUpdate::Joins {
            io_ns: PHASE_NS,
            compute_ns: BETWEEN_PHASES_NS,
            phases: 100,
            allowance: 0.05,
            weight: 1,
            first_in_ns: BETWEEN_PHASES_NS,
        };
        self.handle(Event::Hpc { hpc: 1, update: joins });
        self.at(self.now + BETWEEN_PHASES_NS, Due::Phase(true));
        for job in 0..JOBS {
            self.begin(job);
        }
        while self.done.values().any(|done| done.len() < TASKS as usize) {
            let deadline = self.machine.next_deadline().map_or(u64::MAX, |at| at.0.max(self.now));
            let next = self.due.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            if deadline.min(next) > END_NS {
                return Err(format!(
                    "the jobs of the benchmark stand still at {} s",
                    self.now / 1_000_000_000
                ));
            }
            if deadline <= next {
                self.now = deadline;
                let cause = self.record(Recorder::deadline);
                self.call(cause, |machine, now, out| machine.on_deadline(now, out));
                self.record(|recorder, _| recorder.flush());
            } else if let Some(Reverse((at, _, due))) = self.due.pop() {
                self.now = at;
                self.happen(due);
            }
        }
        Ok(())
    }

    /// Times what the recorder does.
    fn record<T>(&mut self, what: impl FnOnce(&mut Recorder, Nanos) -> T) -> T {
        let began = thread_seconds();
        let done = what(&mut self.recorder, Nanos(self.now));
        self.recording_s += thread_seconds() - began;
        done
    }

    fn at(&mut self, ns: u64, due: Due) {
        self.scheduled += 1;
        self.due.push(Reverse((ns, self.scheduled, due)));
    }

    fn begin(&mut self, job: u64) {
        let file = |i: u32| File { mount: "pfs".into(), ino: job << 32 | u64::from(i), bytes: SPLIT_BYTES };
        let layout = |i: u32| Layout { stripe_bytes: 4 << 20, servers: vec![i % SERVERS] };
        let split = |i: u32| Split {
            parts: vec![Part { file: i, offset: 0, len: SPLIT_BYTES }],
            preferred_node: String::new(),
        };
        let updates = vec![
            JobUpdate::Begin { name: format!("job {job}"), planner: String::new() },
            JobUpdate::Slots { slots: (0..NODES).map(|n| (name(n), SLOTS)).collect() },
            JobUpdate::Files { files: (0..TASKS).map(file).collect() },
            JobUpdate::Layouts {
                servers: (0..SERVERS).map(|s| format!("pfs:s{s}")).collect(),
                files: (0..TASKS).map(layout).collect(),
            },
            JobUpdate::Splits { stage: 0, splits: (0..TASKS).map(split).collect() },
            JobUpdate::StageReady { stage: 0 },
        ];
        self.handle(Event::Job { job, updates });
        for node in 0..NODES {
            for _ in 0..SLOTS {
                self.start(job, node);
            }
        }
    }

    /// The next task of `job` starts on `node`.
    fn start(&mut self, job: u64, node: usize) {
        let of_node = self.next.entry((job, node)).or_default();
        let task = *of_node * NODES as u32 + node as u32;
        if task >= TASKS {
            return;
        }
        *of_node += 1;
        let update = JobUpdate::TaskStarted { stage: 0, task, host: name(node) };
        self.handle(Event::Job { job, updates: vec![update] });
        // Tasks do not end in step.
        let jitter = u64::from(task.wrapping_mul(2_654_435_761)) % (TASK_NS / 4);
        self.at(self.now + TASK_NS + jitter, Due::Ends { job, task, node });
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Phase(true) => {
                let update = HpcUpdate::PhaseBegins { alone_ns: PHASE_NS };
                self.handle(Event::Hpc { hpc: 1, update });
                self.at(self.now + PHASE_NS, Due::Phase(false));
            }
            Due::Phase(false) => {
                self.handle(Event::Hpc { hpc: 1, update: HpcUpdate::PhaseEnds });
                self.at(self.now + BETWEEN_PHASES_NS, Due::Phase(true));
            }
            Due::Fetched(request) => {
                let Some(&(node, bytes)) = self.requests.get(&request) else { return };
                let progress = Progress { fetched_bytes: bytes, done: true, ..Progress::default() };
                self.handle(Event::Request { request, node: name(node), progress });
            }
            Due::Ends { job, task, node } => {
                let update = JobUpdate::TaskEnded { stage: 0, task, ok: true, run_ms: TASK_NS / 1_000_000 };
                self.handle(Event::Job { job, updates: vec![update] });
                self.done.entry(job).or_default().insert(task);
                self.start(job, node);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let cause = self.record(|recorder, now| recorder.event(now, &event));
        self.call(cause, |machine, now, out| machine.handle(now, event, out));
    }

    /// One call of the machine, timed; then its actions.
    fn call(&mut self, cause: u64, call: impl FnOnce(&mut Stages, Nanos, &mut Vec<Action>)) {
        let mut out = Vec::new();
        let began = thread_seconds();
        call(&mut self.machine, Nanos(self.now), &mut out);
        self.calls_ms.push((thread_seconds() - began) * 1e3);
        self.record(|recorder, now| recorder.actions(now, cause, &out));
        for action in out {
            match action {
                Action::Fetch { request, node, parts, .. } => {
                    let Ok(node) = node[1..].parse::<usize>() else { continue };
                    let bytes = parts.iter().map(|part| part.len).sum();
                    self.requests.insert(request, (node, bytes));
                    let ends = self.free_at[node].max(self.now) + bytes * 1_000_000_000 / NODE_BYTES_PER_S;
                    self.free_at[node] = ends;
                    self.at(ends, Due::Fetched(request));
                }
                Action::Release { requests, .. } => {
                    self.requests.retain(|request, _| !requests.contains(request));
                }
                Action::Adjust { .. }
                | Action::Direct { .. }
                | Action::MayRead { .. }
                | Action::Decided { .. } => {}
            }
        }
    }
}

fn config(planner: &str) -> Config {
    Config { default_planner: planner.into(), ..Config::default() }
}

/// Processor time of this thread.
fn thread_seconds() -> f64 {
    clock_seconds(ClockId::ThreadCPUTime)
}

fn clock_seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn name(node: usize) -> String {
    format!("n{node}")
}
