//! A recorded run, from a decision log: what [`crate::report`] says of a coordinator that runs,
//! with all of its past.
//!
//! The log has the events of the stage machine. A fresh machine hears them, as in `forebay replay`,
//! and what it decides goes into the same plan log. Names of HPC jobs and the sums of all members
//! are in notes.

use crate::note::Note;
use crate::plan_log::Log;
use crate::report::Report;
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::stage::event::{Action, Event, JobKey, JobUpdate, Node};
use forebay_policy::stage::{Config, Stages};
use forebay_trace::{SCHEMA, STAGES, VERSION};
use forebay_wire::hpc::PlanEntry;
use forebay_wire::{JobStatus, NodeStatus, Overview, Sample};
use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Decisions, and phases, of a run that are shown: the latest.
const KEPT: usize = 16_384;

/// Jobs that are shown: the latest.
const JOBS_KEPT: usize = 256;

/// Seconds that are shown: the latest.
const SAMPLES_KEPT: usize = 24 * 3600;

/// No writer makes a longer line.
const LINE_BYTES_MAX: u64 = 64 << 20;

#[derive(Deserialize)]
struct Header {
    schema: String,
    version: u32,
    kind: String,
    setup: serde_json::Value,
}

#[derive(Deserialize)]
struct Line {
    t_ns: u64,
    event: Option<Heard>,
    note: Option<Note>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Heard {
    Event(Box<Event>),
    /// `"deadline"`.
    Timer(String),
}

struct Run {
    machine: Stages,
    log: Log,
    names: BTreeMap<JobKey, String>,
    hpc: BTreeMap<u32, String>,
    ended: Vec<JobStatus>,
    samples: VecDeque<Sample>,
    /// Tiers of the members.
    nodes: BTreeMap<String, u64>,
    now: Nanos,
}

/// Reads the decision log `path`.
///
/// # Errors
/// It cannot be read, or is not the log of a coordinator of this version.
pub fn read(path: &Path) -> io::Result<Report> {
    let mut lines = BufReader::new(File::open(path)?);
    let first = next_line(&mut lines)?.ok_or_else(|| bad("it is empty"))?;
    let header: Header =
        serde_json::from_str(&first).map_err(|e| bad(&format!("not a decision log: {e}")))?;
    if (header.schema.as_str(), header.version, header.kind.as_str()) != (SCHEMA, VERSION, STAGES) {
        return Err(bad(&format!(
            "it is {} {} of kind {}; {SCHEMA} {VERSION} of kind {STAGES} can be shown",
            header.schema, header.version, header.kind
        )));
    }
    let config: Config = serde_json::from_value(header.setup).map_err(|e| bad(&e.to_string()))?;
    let mut run = Run {
        machine: Stages::new(config),
        log: Log::keeping(KEPT),
        names: BTreeMap::new(),
        hpc: BTreeMap::new(),
        ended: Vec::new(),
        samples: VecDeque::new(),
        nodes: BTreeMap::new(),
        now: Nanos(0),
    };
    // The last line may have no end: it is being written, or its writer was killed.
    while let Some(line) = next_line(&mut lines)? {
        run.take(
            serde_json::from_str(&line).map_err(|e| bad(&format!("not a line of a decision log: {e}")))?,
        );
    }
    Ok(run.report())
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A whole line.
fn next_line(lines: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut text = String::new();
    lines.take(LINE_BYTES_MAX).read_line(&mut text)?;
    Ok(text.ends_with('\n').then_some(text))
}

impl Run {
    fn take(&mut self, line: Line) {
        self.now = Nanos(line.t_ns);
        let mut actions = Vec::new();
        match line.event {
            Some(Heard::Event(event)) => {
                self.heard(&event);
                self.machine.handle(self.now, *event, &mut actions);
            }
            Some(Heard::Timer(word)) if word == "deadline" => {
                self.machine.on_deadline(self.now, &mut actions);
            }
            Some(Heard::Timer(_)) | None => {}
        }
        actions.iter().for_each(|action| self.decided(action));
        match line.note {
            Some(Note::Hpc(note)) => {
                self.log.hpc(self.now, note.hpc, &note.name, &note.update);
                self.hpc.insert(note.hpc, note.name);
            }
            Some(Note::Sample(sample)) => {
                self.samples.push_back(sample);
                if self.samples.len() > SAMPLES_KEPT {
                    self.samples.pop_front();
                }
            }
            None => {}
        }
    }

    fn heard(&mut self, event: &Event) {
        match event {
            Event::Job { job, updates } => {
                for update in updates {
                    match update {
                        JobUpdate::Begin { name, .. } => drop(self.names.insert(*job, name.clone())),
                        JobUpdate::End => self.log.job_ended(*job),
                        _ => {}
                    }
                }
                // The machine forgets most jobs that have ended.
                if updates.contains(&JobUpdate::End) {
                    self.keep_ended();
                }
            }
            Event::JobGone { job } => {
                self.log.job_ended(*job);
                self.keep_ended();
            }
            Event::Request { request, node, progress } => {
                self.log.progress(self.now, node, *request, progress.fetched_bytes, progress.done);
            }
            Event::Members { nodes } => {
                let node = |node: &Node| (node.name.clone(), node.capacity_bytes);
                self.nodes = nodes.iter().map(node).collect();
            }
            Event::Capacity { node, bytes } => {
                if let Some(known) = self.nodes.get_mut(node) {
                    *known = *bytes;
                }
            }
            Event::NodeCame { node } | Event::NodeWent { node } => self.log.forget_requests(node),
            Event::Hpc { .. } => {}
        }
    }

    /// Keeps what the machine shows of jobs, before some of them end.
    fn keep_ended(&mut self) {
        for job in self.machine.status() {
            let is_same = |kept: &JobStatus| kept.began_ms == job.began_ms && kept.name == job.name;
            match self.ended.iter_mut().find(|kept| is_same(kept)) {
                Some(kept) => *kept = job,
                None => self.ended.push(job),
            }
        }
        let over = self.ended.len().saturating_sub(JOBS_KEPT);
        self.ended.drain(..over);
    }

    fn decided(&mut self, action: &Action) {
        match action {
            Action::Decided { planner, job, stage, task, decision } => {
                let name = self.names.get(job).cloned().unwrap_or_default();
                let entry = PlanEntry {
                    planner: planner.clone(),
                    job: name,
                    stage: *stage,
                    task: *task,
                    ..PlanEntry::default()
                };
                let hpc = &self.hpc;
                let hpc_name = |id| hpc.get(&id).cloned().unwrap_or_else(|| format!("HPC job {id}"));
                self.log.decided(self.now, *job, decision, entry, hpc_name);
            }
            Action::Fetch { request, job, node, .. } => self.log.requested(*request, *job, node),
            Action::Release { node, requests } => self.log.released(node, requests),
            _ => {}
        }
    }

    fn report(mut self) -> Report {
        self.keep_ended();
        let (plans, phases) = self.log.since(0);
        let sample = self.samples.back().copied().unwrap_or_default();
        let node = |(name, capacity_bytes)| NodeStatus { name, capacity_bytes, ..NodeStatus::default() };
        let nodes = self.nodes.into_iter().map(node).collect();
        let overview = Overview { now_ms: self.now.0 / 1_000_000, sample, nodes, ..Overview::default() };
        Report {
            revision: self.log.revision(),
            overview,
            jobs: self.ended,
            plans,
            phases,
            samples: self.samples.into(),
            ..Report::default()
        }
    }
}
