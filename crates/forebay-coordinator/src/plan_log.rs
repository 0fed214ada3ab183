//! The plan log: the latest decisions of the planners with what was known, expected and chosen, and
//! what came of them; and the latest I/O phases, expected and observed.

use forebay_policy::machine::Nanos;
use forebay_policy::stage::event::{ActionKind, Decision, PlannedStep, RequestId};
use forebay_wire::HpcUpdate;
use forebay_wire::hpc::{PhaseEntry, PlanEntry, PlanLog, PlanPhase, PlanStep};
use std::collections::{BTreeMap, VecDeque};

/// Decisions that are kept, and phases: about a megabyte together.
const KEPT: usize = 1024;

/// Steps, and HPC jobs, that are kept of one decision.
const PARTS_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Log {
    plans: VecDeque<PlanEntry>,
    /// Number of the first that is kept.
    first_plan: u64,
    phases: VecDeque<PhaseEntry>,
    first_phase: u64,
    /// The latest decision for each analytics job.
    latest: BTreeMap<u64, u64>,
    /// The decision that each request follows from, and the bytes it has fetched.
    requests: BTreeMap<RequestId, (u64, u64)>,
    /// Phases under way, by job.
    under_way: BTreeMap<u32, u64>,
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
    /// The latest `most` of each.
    pub fn latest(&self, most: usize) -> PlanLog {
        let plans = self.plans.iter().skip(self.plans.len().saturating_sub(most));
        let phases = self.phases.iter().skip(self.phases.len().saturating_sub(most));
        PlanLog { plans: plans.cloned().collect(), phases: phases.cloned().collect() }
    }

    /// A planner has decided for analytics job `job`; `entry` has the names.
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
        self.plans.push_back(entry);
        self.latest.insert(job, self.first_plan + self.plans.len() as u64 - 1);
        if self.plans.len() > KEPT {
            self.plans.pop_front();
            self.first_plan += 1;
        }
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

    fn phase(&mut self, number: u64) -> Option<&mut PhaseEntry> {
        self.phases.get_mut(usize::try_from(number.checked_sub(self.first_phase)?).ok()?)
    }

    /// A request goes out for analytics job `job`.
    pub fn requested(&mut self, request: RequestId, job: u64) {
        if let Some(plan) = self.latest.get(&job) {
            self.requests.insert(request, (*plan, 0));
        }
    }

    /// Requests are over.
    pub fn released(&mut self, requests: &[RequestId]) {
        for request in requests {
            self.requests.remove(request);
        }
    }

    /// A request has fetched so many bytes in all.
    pub fn progress(&mut self, now: Nanos, request: RequestId, fetched_bytes: u64) {
        let Some((plan, before)) = self.requests.get_mut(&request) else { return };
        let more = fetched_bytes.saturating_sub(*before);
        *before = (*before).max(fetched_bytes);
        if more == 0 {
            return;
        }
        let index = plan.checked_sub(self.first_plan).and_then(|i| usize::try_from(i).ok());
        if let Some(entry) = index.and_then(|index| self.plans.get_mut(index)) {
            entry.came_bytes += more;
            entry.came_in_ms = Some(ms(now.0).saturating_sub(entry.at_ms));
        }
        let under_way: Vec<u64> = self.under_way.values().copied().collect();
        for number in under_way {
            if let Some(phase) = self.phase(number) {
                phase.beside_bytes += more;
            }
        }
    }

    /// An analytics job is over.
    pub fn job_ended(&mut self, job: u64) {
        self.latest.remove(&job);
    }

    /// Something happens to HPC job `hpc`, called `name`.
    pub fn hpc(&mut self, now: Nanos, hpc: u32, name: &str, update: &HpcUpdate) {
        match update {
            HpcUpdate::PhaseBegins { bytes, alone_ns, deadline_ns } => {
                self.phases.push_back(PhaseEntry {
                    at_ms: ms(now.0),
                    name: name.to_owned(),
                    bytes: *bytes,
                    alone_ms: known_ms(*alone_ns),
                    deadline_ms: known_ms(*deadline_ns),
                    // Until something is planned beside it.
                    estimated_ms: known_ms(*alone_ns),
                    observed_ms: None,
                    beside_bytes: 0,
                });
                self.under_way.insert(hpc, self.first_phase + self.phases.len() as u64 - 1);
                if self.phases.len() > KEPT {
                    self.phases.pop_front();
                    self.first_phase += 1;
                }
            }
            HpcUpdate::PhaseEnds => {
                if let Some(number) = self.under_way.remove(&hpc)
                    && let Some(phase) = self.phase(number)
                {
                    phase.observed_ms = Some(ms(now.0).saturating_sub(phase.at_ms));
                }
            }
            HpcUpdate::Leaves => drop(self.under_way.remove(&hpc)),
            _ => {}
        }
    }
}
