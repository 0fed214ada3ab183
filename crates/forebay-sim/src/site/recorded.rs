//! What a coordinator's decision log says about a run: its members, what ran, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use forebay_policy::node;
use forebay_policy::phases::Report;
use forebay_policy::planner;
use forebay_policy::stage::Config;
use forebay_policy::stage::event::{
    Event, File, HpcUpdate, JobKey, JobUpdate, Layout, Node, Part, RequestId, Split,
};
use serde::Deserialize;
use serde_json::Value;

use super::spans::Spans;
use crate::error::{Error, Result};
use crate::record::{Line, open};
use crate::trace::{NODE, STAGES};

/// A phase that lasts as long as this alone is one whose length nobody has declared.
const UNKNOWN_NS: u64 = 600_000_000_000;

/// A run, as it was recorded.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Configuration of the stage machine: the default planner, and the profile if there was one.
    pub planner: String,
    /// See `planner`.
    pub system: Option<planner::Config>,
    /// Members, by name.
    pub nodes: BTreeMap<String, Member>,
    /// Analytics jobs, in the order in which they began.
    pub jobs: Vec<Job>,
    /// HPC jobs, in the order in which they joined.
    pub hpc: Vec<Hpc>,
    /// Bytes that requests fetched.
    pub prefetched_bytes: u64,
    /// What the agents together read from the file system, second by second: when, and bytes per
    /// second until the next.
    pub reads: Vec<(u64, u64)>,
    /// Pages that an agent fetches at a time, and their bytes, if the log of an agent says so.
    pub fetches: Option<(u64, u64)>,
    /// When the last line was written, in ns.
    pub end_ns: u64,
}

/// A member of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// Its last report about itself.
    pub node: Node,
    /// Bytes of its tier, and since when.
    pub capacities: Vec<(u64, u64)>,
    /// When it came and went.
    pub came_and_went: Vec<(u64, bool)>,
}

/// An analytics job.
#[derive(Clone, Debug, Default)]
pub struct Job {
    key: JobKey,
    /// Name for people.
    pub name: String,
    /// The planner that it names, or an empty text.
    pub planner: String,
    /// When it began.
    pub began_ns: u64,
    /// When it ended, if it has.
    pub ended_ns: Option<u64>,
    /// Most tasks at a time that it had, by host.
    pub slots: Vec<(String, u32)>,
    /// Its files.
    pub files: Vec<File>,
    /// Where they are, by names of servers; shorter than `files` if the last are unknown.
    pub layouts: Vec<(u64, Vec<String>)>,
    /// Its stages that read files, in the order in which they were reported.
    pub stages: Vec<Stage>,
    there: BTreeMap<u32, Spans>,
}

/// A stage that reads files.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    /// Its number in the job.
    pub number: u32,
    /// What its tasks read.
    pub splits: Vec<Split>,
    /// When all splits were known.
    pub ready_ns: u64,
    /// Attempts to run its tasks.
    pub attempts: Vec<Attempt>,
    /// Tasks by their partitions, if they differ.
    partitions: BTreeMap<u32, u32>,
    is_over: bool,
}

/// An attempt to run a task.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// Its number within the stage.
    pub task: u32,
    /// The host.
    pub host: String,
    /// When it had a slot.
    pub begin_ns: u64,
    /// When its end was reported, and whether its result was accepted.
    pub end: Option<(u64, bool)>,
    /// How long it ran, in ns, without the time for which it waited for permission to read.
    pub run_ns: u64,
    /// Whether all of its input was in the tier when it began to read.
    pub is_hit: bool,
    asked_ns: Option<u64>,
    waited_ns: u64,
}

/// An HPC job.
#[derive(Clone, Debug, Default)]
pub struct Hpc {
    id: u32,
    /// Name for people.
    pub name: String,
    /// When it joined.
    pub joined_ns: u64,
    /// I/O time of a phase alone and compute time between phases that it has declared, in ns.
    pub declared_ns: (u64, u64),
    /// How much longer than alone a phase may take.
    pub allowance: f64,
    /// Its weight.
    pub weight: u32,
    /// Its phases.
    pub phases: Vec<Phase>,
    is_gone: bool,
}

/// An I/O phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Phase {
    /// When it began.
    pub begin_ns: u64,
    /// When it ended, if the log says so.
    pub end_ns: Option<u64>,
    /// What it takes alone, in ns, if it was declared.
    pub alone_ns: Option<u64>,
    /// Time until its deadline, in ns, if it had one.
    pub allowed_ns: Option<u64>,
    /// Its bytes, if they were declared.
    pub bytes: Option<u64>,
}

impl Phase {
    /// How long it took.
    pub fn took_ns(&self) -> Option<u64> {
        Some(self.end_ns? - self.begin_ns)
    }

    /// Whether it ended after its deadline.
    pub fn is_late(&self) -> bool {
        self.took_ns().zip(self.allowed_ns).is_some_and(|(took, allowed)| took > allowed)
    }
}

impl Stage {
    /// What its tasks read, in bytes.
    pub fn bytes(&self) -> u64 {
        self.splits.iter().map(bytes_of).sum()
    }

    /// Tasks that have succeeded.
    pub fn done(&self) -> usize {
        let ended = self.attempts.iter().filter(|attempt| attempt.end.is_some_and(|(_, ok)| ok));
        ended.map(|attempt| attempt.task).collect::<BTreeSet<_>>().len()
    }

    /// When the last of its tasks ended, if all have.
    pub fn end_ns(&self) -> Option<u64> {
        let ends = self.attempts.iter().filter_map(|attempt| attempt.end).filter(|(_, ok)| *ok);
        ends.map(|(at, _)| at).max().filter(|_| self.done() == self.splits.len())
    }

    fn attempt_mut(&mut self, task: u32) -> Option<&mut Attempt> {
        self.attempts.iter_mut().rev().find(|attempt| attempt.task == task && attempt.end.is_none())
    }
}

/// What a task reads, in bytes.
pub fn bytes_of(split: &Split) -> u64 {
    split.parts.iter().map(|part| part.len).sum()
}

impl Job {
    /// The stage of this number that has not ended.
    fn stage_mut(&mut self, number: u32) -> Option<&mut Stage> {
        self.stages.iter_mut().rev().find(|stage| stage.number == number && !stage.is_over)
    }

    fn is_there(&self, parts: &[Part]) -> bool {
        let bytes = |part: &Part| {
            let spans = self.there.get(&part.file);
            spans.map_or(0, |spans| spans.bytes_in(part.offset, part.offset + part.len))
        };
        parts.iter().all(|part| bytes(part) == part.len)
    }

    /// A task begins to read.
    fn begins_to_read(&mut self, now_ns: u64, number: u32, task: u32) {
        let Some(stage) = self.stages.iter().rev().find(|stage| stage.number == number && !stage.is_over)
        else {
            return;
        };
        let is_hit = stage.splits.get(task as usize).is_some_and(|split| self.is_there(&split.parts));
        if let Some(attempt) = self.stage_mut(number).and_then(|stage| stage.attempt_mut(task)) {
            attempt.is_hit = is_hit;
            attempt.waited_ns = attempt.asked_ns.map_or(0, |asked_ns| now_ns - asked_ns);
        }
    }
}

/// The actions that say what happened.
#[derive(Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum Action {
    Fetch {
        request: RequestId,
        job: JobKey,
        parts: Vec<Part>,
    },
    MayRead {
        job: JobKey,
        stage: u32,
        partition: u32,
    },
    #[serde(other)]
    Other,
}

/// Reads the log of a coordinator and, among `logs`, any number of agents' logs.
///
/// # Errors
/// If a file cannot be read or is not such a log, if it is not one coordinator's, or if nothing
/// ran.
pub fn read(logs: &[impl AsRef<Path>]) -> Result<Recorded> {
    let mut recorded = None;
    let mut fetches = None;
    for path in logs.iter().map(AsRef::as_ref) {
        let (kind, setup, lines) = open(path)?;
        match kind.as_str() {
            STAGES if recorded.is_none() => {
                let config: Config = serde_json::from_value(setup).map_err(|e| lines.not_a_header(e))?;
                recorded = Some(Reader::new(config).read(lines, path)?);
            }
            NODE => {
                let config: node::Config =
                    serde_json::from_value(setup).map_err(|e| lines.not_a_header(e))?;
                let threads = config.fetch_threads.iter().max().copied().unwrap_or(0) as u64;
                fetches = Some((threads, config.read_bytes)).filter(|(threads, _)| *threads > 0);
            }
            STAGES => {
                return Err(lines.bad("one log of a coordinator is needed, and this is the second".into()));
            }
            other => {
                let problem = format!(
                    "this is a record of kind '{other}'; the decision log of a coordinator (decisions-*.log) is needed, and those of agents (node-*.log) may follow it"
                );
                return Err(lines.bad(problem));
            }
        }
    }
    let recorded = recorded.ok_or_else(|| {
        Error::Usage(
            "the decision log of a coordinator is needed: --log DIRECTORY/decisions-000001.log".into(),
        )
    })?;
    Ok(Recorded { fetches, ..recorded })
}

/// The state while lines are read.
struct Reader {
    recorded: Recorded,
    requests: BTreeMap<RequestId, (JobKey, Vec<Part>)>,
    fetched: BTreeMap<RequestId, u64>,
    /// What the note before an event says: name, and bytes of a phase.
    note: (String, Option<u64>),
}

impl Reader {
    fn new(config: Config) -> Self {
        let mut recorded =
            Recorded { planner: config.default_planner, system: config.system, ..Recorded::default() };
        for node in config.before.iter().flat_map(|before| &before.nodes) {
            member(&mut recorded.nodes, &node.name).came_and_went.push((0, true));
            member(&mut recorded.nodes, &node.name).node = node.clone();
        }
        for (name, bytes) in config.before.into_iter().flat_map(|before| before.capacities) {
            member(&mut recorded.nodes, &name).capacities.push((0, bytes));
        }
        Reader { recorded, requests: BTreeMap::new(), fetched: BTreeMap::new(), note: Default::default() }
    }

    fn read(mut self, lines: impl Iterator<Item = Result<Line>>, path: &Path) -> Result<Recorded> {
        for line in lines {
            let line = line?;
            let bad = |e: serde_json::Error| {
                let problem = format!("not an event of a coordinator: {e}");
                Error::Trace { file: path.into(), line: line.number, problem }
            };
            self.recorded.end_ns = line.t_ns;
            match (line.event, line.action, line.note) {
                (Some(event), _, _) if event.is_object() => {
                    self.event(line.t_ns, serde_json::from_value(event).map_err(bad)?);
                }
                (_, Some(action), _) => self.action(line.t_ns, serde_json::from_value(action).map_err(bad)?),
                (_, _, Some(note)) => self.note(&note, line.t_ns),
                _ => {}
            }
        }
        let mut recorded = self.recorded;
        recorded.prefetched_bytes = self.fetched.values().sum();
        recorded.jobs.iter_mut().for_each(|job| job.stages.retain(|stage| !stage.splits.is_empty()));
        recorded.jobs.retain(|job| !job.stages.is_empty());
        if recorded.jobs.is_empty() && recorded.hpc.is_empty() {
            let problem = "no job is recorded, so there is nothing to describe".into();
            return Err(Error::Trace { file: path.into(), line: 1, problem });
        }
        Ok(recorded)
    }

    fn note(&mut self, note: &Value, now_ns: u64) {
        if let Some(rate) = note["sample"]["fetched_bytes_per_s"].as_u64() {
            self.recorded.reads.push((now_ns, rate));
        }
        let hpc = &note["hpc"];
        if let Some(name) = hpc["name"].as_str() {
            let bytes = match Report::deserialize(&hpc["update"]) {
                Ok(Report::Begins { bytes, .. }) => Some(bytes).filter(|bytes| *bytes > 0),
                _ => None,
            };
            self.note = (name.to_owned(), bytes);
        }
    }

    fn action(&mut self, now_ns: u64, action: Action) {
        match action {
            Action::Fetch { request, job, parts } => {
                self.requests.insert(request, (job, parts));
            }
            Action::MayRead { job, stage, partition } => {
                let Some(job) = self.job_mut(job) else { return };
                let number = job.stage_mut(stage).map(|of| task_of(&of.partitions, partition));
                number.into_iter().for_each(|task| job.begins_to_read(now_ns, stage, task));
            }
            Action::Other => {}
        }
    }

    fn job_mut(&mut self, key: JobKey) -> Option<&mut Job> {
        self.recorded.jobs.iter_mut().rev().find(|job| job.key == key && job.ended_ns.is_none())
    }

    fn event(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::Members { nodes } => {
                for node in nodes {
                    let member = member(&mut self.recorded.nodes, &node.name);
                    if member.came_and_went.last().is_none_or(|(_, came)| !came) {
                        member.came_and_went.push((now_ns, true));
                    }
                    member.node = node;
                }
            }
            Event::NodeWent { node } => {
                member(&mut self.recorded.nodes, &node).came_and_went.push((now_ns, false));
            }
            Event::Capacity { node, bytes } => {
                member(&mut self.recorded.nodes, &node).capacities.push((now_ns, bytes));
            }
            Event::Job { job, updates } => updates.into_iter().for_each(|u| self.job(now_ns, job, u)),
            Event::JobGone { job } => self.job(now_ns, job, JobUpdate::End),
            Event::Hpc { hpc, update } => self.hpc(now_ns, hpc, update),
            Event::Request { request, progress, .. } => {
                self.fetched.insert(request, progress.fetched_bytes);
                if progress.done
                    && progress.failed_bytes == 0
                    && let Some((job, parts)) = self.requests.remove(&request)
                    && let Some(job) = self.job_mut(job)
                {
                    for part in parts {
                        job.there.entry(part.file).or_default().add(part.offset, part.offset + part.len);
                    }
                }
            }
            Event::NodeCame { .. } => {}
        }
    }

    fn job(&mut self, now_ns: u64, key: JobKey, update: JobUpdate) {
        if let JobUpdate::Begin { name, planner } = update {
            let job = Job { key, name, planner, began_ns: now_ns, ..Job::default() };
            return self.recorded.jobs.push(job);
        }
        let Some(job) = self.job_mut(key) else { return };
        match update {
            JobUpdate::Slots { slots } => {
                let sum = |slots: &[(String, u32)]| slots.iter().map(|(_, count)| count).sum::<u32>();
                if sum(&slots) > sum(&job.slots) {
                    job.slots = slots;
                }
            }
            JobUpdate::Files { files } => job.files.extend(files),
            JobUpdate::Layouts { servers, files } => {
                // They belong to the files that were reported last.
                let first = job.files.len().saturating_sub(files.len());
                job.layouts.resize(first, (0, Vec::new()));
                let name = |server: &u32| servers.get(*server as usize).cloned().unwrap_or_default();
                let named = |l: Layout| (l.stripe_bytes, l.servers.iter().map(name).collect());
                job.layouts.extend(files.into_iter().map(named));
            }
            JobUpdate::Splits { stage, splits } => match job.stage_mut(stage) {
                Some(known) => known.splits.extend(splits),
                None => {
                    job.stages.push(Stage { number: stage, splits, ready_ns: now_ns, ..Stage::default() })
                }
            },
            JobUpdate::Partitions { stage, partitions } => {
                if let Some(stage) = job.stage_mut(stage) {
                    stage.partitions = partitions.into_iter().zip(0..).collect();
                }
            }
            JobUpdate::StageReady { stage } => {
                if let Some(stage) = job.stage_mut(stage) {
                    stage.ready_ns = now_ns;
                }
            }
            JobUpdate::StageEnded { stage } => {
                if let Some(stage) = job.stage_mut(stage) {
                    stage.is_over = true;
                }
            }
            JobUpdate::TaskStarted { stage, task, host } => {
                let attempt = Attempt { task, host, begin_ns: now_ns, ..Attempt::default() };
                if let Some(of) = job.stage_mut(stage) {
                    of.attempts.push(attempt);
                    job.begins_to_read(now_ns, stage, task);
                }
            }
            JobUpdate::TaskAsks { stage, partition } => {
                if let Some(of) = job.stage_mut(stage) {
                    let task = task_of(&of.partitions, partition);
                    if let Some(attempt) = of.attempt_mut(task) {
                        attempt.asked_ns = Some(now_ns);
                    }
                }
            }
            JobUpdate::TaskEnded { stage, task, ok, run_ms } => {
                if let Some(attempt) = job.stage_mut(stage).and_then(|stage| stage.attempt_mut(task)) {
                    attempt.end = Some((now_ns, ok));
                    attempt.run_ns = (run_ms * 1_000_000).saturating_sub(attempt.waited_ns);
                }
            }
            JobUpdate::End => job.ended_ns = Some(now_ns),
            JobUpdate::Begin { .. } | JobUpdate::Expected { .. } | JobUpdate::TasksAsk => {}
        }
    }

    fn hpc(&mut self, now_ns: u64, id: u32, update: HpcUpdate) {
        let (name, bytes) = std::mem::take(&mut self.note);
        let known = self.recorded.hpc.iter_mut().rev().find(|hpc| hpc.id == id && !hpc.is_gone);
        if let HpcUpdate::Joins { io_ns, compute_ns, allowance, weight, .. } = update {
            let declared_ns = (io_ns, compute_ns);
            // A job that declares itself again is the same one.
            let Some(hpc) = known else {
                let joins = Hpc { id, name, joined_ns: now_ns, ..Hpc::default() };
                let joins = Hpc { declared_ns, allowance, weight, ..joins };
                return self.recorded.hpc.push(joins);
            };
            (hpc.declared_ns, hpc.allowance, hpc.weight) = (declared_ns, allowance, weight);
            return;
        }
        let Some(hpc) = known else { return };
        let begins = |alone_ns: u64, allowed_ns: u64| {
            let is_known = alone_ns < UNKNOWN_NS || allowed_ns != alone_ns;
            let alone_ns = Some(alone_ns).filter(|_| is_known);
            let allowed_ns = Some(allowed_ns).filter(|_| is_known);
            Phase { begin_ns: now_ns, end_ns: None, alone_ns, allowed_ns, bytes }
        };
        match update {
            HpcUpdate::PhaseBegins { alone_ns } => {
                let allowed_ns = (alone_ns as f64 * (1.0 + hpc.allowance)) as u64;
                hpc.phases.push(begins(alone_ns, allowed_ns));
            }
            HpcUpdate::PhaseBeginsUntil { alone_ns, deadline_ns } => {
                hpc.phases.push(begins(alone_ns, deadline_ns));
            }
            HpcUpdate::PhaseEnds => {
                if let Some(phase) = hpc.phases.last_mut().filter(|phase| phase.end_ns.is_none()) {
                    phase.end_ns = Some(now_ns);
                }
            }
            HpcUpdate::Leaves => hpc.is_gone = true,
            HpcUpdate::Joins { .. } | HpcUpdate::PhaseLeft { .. } | HpcUpdate::Expects { .. } => {}
        }
    }
}

fn member<'a>(nodes: &'a mut BTreeMap<String, Member>, name: &str) -> &'a mut Member {
    nodes.entry(name.to_owned()).or_default()
}

/// The task of a partition.
fn task_of(partitions: &BTreeMap<u32, u32>, partition: u32) -> u32 {
    partitions.get(&partition).copied().unwrap_or(partition)
}
