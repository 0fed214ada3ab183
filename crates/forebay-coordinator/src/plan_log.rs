//! The plan log: the latest decisions of the planners with what was known, expected and chosen, and
//! what came of them; and the latest I/O phases, expected and observed.

use forebay_policy::machine::Nanos;
use forebay_policy::stage::event::{ActionKind, Decision, PlannedStep, RequestId};
use forebay_wire::Report;
use forebay_wire::hpc::{PhaseEntry, PlanEntry, PlanLog, PlanPhase, PlanStep};
use std::collections::{BTreeMap, VecDeque};

/// An entry and its number: the same in all answers.
pub type Numbered<T> = (u64, T);

/// Decisions that are kept, and phases: about a megabyte together.
const KEPT: usize = 1024;

/// Steps, and HPC jobs, that are kept of one decision.
const PARTS_MAX: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct Log {
    plans: Entries<PlanEntry>,
    phases: Entries<PhaseEntry>,
    /// Counts changes of entries.
    revision: u64,
    counts: Counts,
    /// The latest decision for each analytics job.
    latest: BTreeMap<u64, u64>,
    /// Requests by node, including those that have ended, until the machine releases them.
    requests: BTreeMap<String, BTreeMap<RequestId, Requested>>,
    /// Phases under way, by job.
    under_way: BTreeMap<u32, u64>,
}

impl Default for Log {
    fn default() -> Self {
        Log::keeping(KEPT)
    }
}

/// A request that went out.
#[derive(Debug)]
struct Requested {
    /// The decision that it follows from.
    plan: u64,
    fetched_bytes: u64,
    /// It has ended.
    done: bool,
}

/// Sums since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Decisions by action.
    pub decisions: BTreeMap<&'static str, u64>,
    /// Requests that went out.
    pub requests: u64,
    /// Bytes that requests have fetched.
    pub prefetched_bytes: u64,
    /// Phases that have ended in time, late, and without a known deadline.
    pub phases_ended: [u64; 3],
}

/// The latest entries, each with its number and the revision in which it changed.
#[derive(Debug)]
struct Entries<T> {
    kept: VecDeque<(u64, T)>,
    /// Number of the first that is kept.
    first: u64,
    most: usize,
}

impl<T: Clone> Entries<T> {
    /// Its number.
    fn push(&mut self, revision: u64, entry: T) -> u64 {
        self.kept.push_back((revision, entry));
        if self.kept.len() > self.most {
            self.kept.pop_front();
            self.first += 1;
        }
        self.first + self.kept.len() as u64 - 1
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut (u64, T)> {
        self.kept.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn latest(&self, most: usize) -> Vec<T> {
        self.kept.iter().skip(self.kept.len().saturating_sub(most)).map(|(_, entry)| entry.clone()).collect()
    }

    fn since(&self, revision: u64) -> Vec<Numbered<T>> {
        let numbered = (self.first..).zip(&self.kept);
        let changed = numbered.filter(|(_, (changed, _))| *changed > revision);
        changed.map(|(number, (_, entry))| (number, entry.clone())).collect()
    }
}

fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}

fn ms_of(seconds: f64) -> i64 {
    (seconds * 1e3) as i64
}

fn known_ms(ns: u64) -> Option<u64> {
    (ns > 0).then(|| ms(ns))
}

/// What [`Counts::decisions`] may name.
pub const ACTIONS: [&str; 8] =
    ["no action", "full delay", "partial delay", "scale up", "scale down", "direct", "search", "wait"];

fn action(kind: ActionKind) -> &'static str {
    match kind {
        ActionKind::NoAction => "no action",
        ActionKind::FullDelay => "full delay",
        ActionKind::PartialDelay => "partial delay",
        ActionKind::ScaleUp => "scale up",
        ActionKind::ScaleDown => "scale down",
        ActionKind::Direct => "direct",
        ActionKind::Search => "search",
        ActionKind::Wait => "wait",
    }
}

impl Log {
    /// Keeps the latest `most` of each.
    pub fn keeping(most: usize) -> Self {
        Log {
            plans: Entries { kept: VecDeque::new(), first: 0, most },
            phases: Entries { kept: VecDeque::new(), first: 0, most },
            revision: 0,
            counts: Counts::default(),
            latest: BTreeMap::new(),
            requests: BTreeMap::new(),
            under_way: BTreeMap::new(),
        }
    }

    /// The latest `most` of each.
    pub fn latest(&self, most: usize) -> PlanLog {
        PlanLog { plans: self.plans.latest(most), phases: self.phases.latest(most) }
    }

    /// What has changed since revision `revision`; 0: everything that is kept.
    pub fn since(&self, revision: u64) -> (Vec<Numbered<PlanEntry>>, Vec<Numbered<PhaseEntry>>) {
        (self.plans.since(revision), self.phases.since(revision))
    }

    /// Counts changes of entries.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Sums since the start.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Requests that `node` has and has not ended.
    pub fn pending(&self, node: &str) -> usize {
        let of_node = self.requests.get(node);
        of_node.map_or(0, |of_node| of_node.values().filter(|request| !request.done).count())
    }

    /// Notes that a planner has decided for analytics job `job`; `entry` has the names.
    pub fn decided(
        &mut self,
        now: Nanos,
        job: u64,
        decision: &Decision,
        entry: PlanEntry,
        name: impl Fn(u32) -> String,
    ) {
        let seen = decision.phases.iter().take(PARTS_MAX).map(|phase| PlanPhase {
            name: name(phase.hpc),
            in_phase: phase.in_phase,
            left_ms: phase.left_s.map(|s| ms_of(s).max(0) as u64),
            deadline_ms: phase.deadline_s.map(ms_of),
        });
        let step = |step: &PlannedStep| PlanStep {
            after_ms: ms(step.at.saturating_since(now)),
            nodes: step.setting.nodes,
            threads: step.setting.threads,
            rate_permille: (step.setting.rate * 1000.0) as u32,
            yields: step.yields,
        };
        let entry = PlanEntry {
            at_ms: ms(now.0),
            action: action(decision.kind).to_owned(),
            steps: decision.steps.iter().take(PARTS_MAX).map(step).collect(),
            phases: seen.collect(),
            left_bytes: decision.left_bytes as u64,
            hidden_ms: ms_of(decision.hidden_s).max(0) as u64,
            fetched_in_ms: decision.estimate.fetched_in_s.map(|s| ms_of(s).max(0) as u64),
            margin_ms: decision.estimate.margin_s.map(ms_of),
            candidates: decision.candidates,
            reason: decision.reason.clone(),
            ..entry
        };
        self.estimate(now, decision);
        *self.counts.decisions.entry(action(decision.kind)).or_default() += 1;
        self.revision += 1;
        self.latest.insert(job, self.plans.push(self.revision, entry));
    }

    /// A plan beside a phase says by how much the tightest one will meet its deadline. If only one
    /// is under way, that says how long it will take.
    fn estimate(&mut self, now: Nanos, decision: &Decision) {
        let mut in_phase = decision.phases.iter().filter(|phase| phase.in_phase);
        let (Some(phase), None) = (in_phase.next(), in_phase.next()) else { return };
        let (Some(margin_s), Some(deadline_s)) = (decision.estimate.margin_s, phase.deadline_s) else {
            return;
        };
        let Some(number) = self.under_way.get(&phase.hpc).copied() else { return };
        if let Some(entry) = self.phase(number) {
            let ends_ms = ms(now.0) as i64 + ms_of(deadline_s - margin_s);
            entry.estimated_ms = Some((ends_ms - entry.at_ms as i64).max(0) as u64);
        }
    }

    /// The entry of a phase, to change it.
    fn phase(&mut self, number: u64) -> Option<&mut PhaseEntry> {
        self.revision += 1;
        let (revision, entry) = self.phases.get_mut(number)?;
        *revision = self.revision;
        Some(entry)
    }

    /// Notes that a request goes out to `node` for analytics job `job`.
    pub fn requested(&mut self, request: RequestId, job: u64, node: &str) {
        self.counts.requests += 1;
        // A job without a plan has a number that no plan has.
        let plan = self.latest.get(&job).copied().unwrap_or(u64::MAX);
        let of_node = self.requests.entry(node.to_owned()).or_default();
        of_node.insert(request, Requested { plan, fetched_bytes: 0, done: false });
    }

    /// Notes that requests of `node` are over.
    pub fn released(&mut self, node: &str, requests: &[RequestId]) {
        let Some(of_node) = self.requests.get_mut(node) else { return };
        for request in requests {
            of_node.remove(request);
        }
        if of_node.is_empty() {
            self.requests.remove(node);
        }
    }

    /// Forgets the requests of a node that has joined, perhaps again, or has gone: it has none.
    pub fn forget_requests(&mut self, node: &str) {
        self.requests.remove(node);
    }

    /// Notes that a request of `node` has fetched `fetched_bytes` in all, and has ended if it is
    /// `done`.
    pub fn progress(&mut self, now: Nanos, node: &str, request: RequestId, fetched_bytes: u64, done: bool) {
        let requested = self.requests.get_mut(node).and_then(|of_node| of_node.get_mut(&request));
        let Some(requested) = requested else { return };
        let more = fetched_bytes.saturating_sub(requested.fetched_bytes);
        requested.fetched_bytes = requested.fetched_bytes.max(fetched_bytes);
        requested.done |= done;
        let plan = requested.plan;
        if more == 0 {
            return;
        }
        self.counts.prefetched_bytes += more;
        self.revision += 1;
        if let Some((revision, entry)) = self.plans.get_mut(plan) {
            *revision = self.revision;
            entry.came_bytes += more;
            let in_ms = ms(now.0).saturating_sub(entry.at_ms);
            entry.came_in_ms = Some(in_ms);
            entry.began_in_ms.get_or_insert(in_ms);
        }
        let under_way: Vec<u64> = self.under_way.values().copied().collect();
        for number in under_way {
            if let Some(phase) = self.phase(number) {
                phase.beside_bytes += more;
            }
        }
    }

    /// Notes that an analytics job is over.
    pub fn job_ended(&mut self, job: u64) {
        self.latest.remove(&job);
    }

    /// Notes what happens to HPC job `hpc`, called `name`.
    pub fn hpc(&mut self, now: Nanos, hpc: u32, name: &str, update: &Report) {
        match update {
            Report::Begins { bytes, alone_ns, deadline_ns, .. } => {
                self.revision += 1;
                let entry = PhaseEntry {
                    at_ms: ms(now.0),
                    name: name.to_owned(),
                    bytes: *bytes,
                    alone_ms: known_ms(*alone_ns),
                    deadline_ms: known_ms(*deadline_ns),
                    // Until something is planned beside it.
                    estimated_ms: known_ms(*alone_ns),
                    observed_ms: None,
                    beside_bytes: 0,
                    left_ms: None,
                };
                self.under_way.insert(hpc, self.phases.push(self.revision, entry));
            }
            Report::Left { left_ns } => {
                if let Some(number) = self.under_way.get(&hpc).copied()
                    && let Some(phase) = self.phase(number)
                {
                    phase.left_ms = Some(ms(*left_ns));
                }
            }
            Report::Ends => {
                if let Some(number) = self.under_way.remove(&hpc)
                    && let Some(phase) = self.phase(number)
                {
                    let observed_ms = ms(now.0).saturating_sub(phase.at_ms);
                    phase.observed_ms = Some(observed_ms);
                    let kind = phase.deadline_ms.map_or(2, |deadline| usize::from(observed_ms > deadline));
                    self.counts.phases_ended[kind] += 1;
                }
            }
            Report::Leaves => drop(self.under_way.remove(&hpc)),
            _ => {}
        }
    }
}
