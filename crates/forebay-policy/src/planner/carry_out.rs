//! The planner as a machine: asks its policy for plans and carries them out step by step.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use forebay_model::profile::{Setting, Strain};

use super::board::Fetch;
use super::plan::{ActionKind, Decision, Estimate, Plan, SeenPhase};
use super::{Action, Board, Config, Event, JobId, Policy};
use crate::machine::{Machine, Nanos};

/// A start that is due within this time is left as planned: a millisecond.
const MOMENT_NS: u64 = 1_000_000;

/// A plan that is being carried out.
struct Running {
    wave: u32,
    decision: u64,
    plan: Plan,
    /// The setting last announced.
    setting: Option<Setting>,
    /// Whether direct reads were announced after it.
    direct: bool,
}

impl Running {
    /// Returns whether it has not begun, and will not by `at`.
    fn waits_beyond(&self, at: Nanos) -> bool {
        let starts = self.plan.steps.iter().find(|step| !step.setting.is_paused() && !step.yields);
        let rests = self.setting.is_none_or(|setting| setting.is_paused());
        rests && !self.direct && starts.is_some_and(|step| step.at > at)
    }
}

/// The planner.
pub struct Planner {
    board: Board,
    policy: Box<dyn Policy>,
    running: BTreeMap<JobId, Running>,
    /// Jobs with opportunistic prefetches.
    ahead: BTreeSet<JobId>,
    decisions: u64,
}

impl Planner {
    /// A planner that follows `policy`.
    pub fn new(config: Config, policy: Box<dyn Policy>) -> Self {
        Planner {
            board: Board::new(config),
            policy,
            running: BTreeMap::new(),
            ahead: BTreeSet::new(),
            decisions: 0,
        }
    }

    /// Returns, for each job, the wave that is fetched and its setting, if any.
    #[cfg(test)]
    pub(super) fn fetching(&self) -> Vec<(JobId, u32, Option<Setting>)> {
        self.running.iter().map(|(&job, r)| (job, r.wave, r.setting)).collect()
    }

    /// Returns the state that it plans from.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// See [`Policy::opportunistic`].
    pub fn opportunistic(&self) -> bool {
        self.policy.opportunistic()
    }

    fn plan_where_needed(&mut self, out: &mut Vec<Action>) {
        let ids: Vec<JobId> = self.board.jobs().map(|(id, _)| id).collect();
        self.policy.begin(&self.board);
        for job in ids {
            let Some(wave) = self.board.next_wave(job, self.policy.prefetch_distance()) else {
                // There is no next wave, or it is not near enough, or has no room. The fetch under
                // way no longer has a plan that takes phases into account, so it stops.
                if goes_on(&self.board, self.policy.as_ref(), job) {
                    continue;
                }
                if stop(&mut self.board, job, self.decisions, out) {
                    self.running.remove(&job);
                }
                continue;
            };
            let has_plan = self.running.get(&job).is_some_and(|r| r.wave == wave + r.plan.skips);
            if !has_plan || self.policy.replans(&self.board, job) {
                let plan = match self.board.must_be_read_directly(job, wave) {
                    true => read_directly(&self.board, job, wave),
                    false => self.policy.plan(&self.board, job, wave),
                };
                self.adopt(job, wave + plan.skips, plan, out);
            }
        }
    }

    /// Adopts a new plan; one that only repeats what is being done already leaves no record.
    fn adopt(&mut self, job: JobId, wave: u32, plan: Plan, out: &mut Vec<Action>) {
        let before = self.running.get(&job).filter(|r| r.wave == wave);
        if before.is_some_and(|r| same_course(&r.plan, &plan, self.board.now())) {
            return;
        }
        let setting = before.and_then(|r| r.setting);
        let direct = plan.kind == ActionKind::Direct || before.is_some_and(|r| r.direct);
        self.decisions += 1;
        out.push(Action::Decided(Box::new(self.record(job, wave, &plan))));
        if plan.kind == ActionKind::Direct {
            self.board.set_fetch(job, wave, self.board.corrected(self.board.config.direct.strain()), true);
            out.push(Action::Direct { job, wave, decision: self.decisions });
        }
        self.running.insert(job, Running { wave, decision: self.decisions, plan, setting, direct });
    }

    fn record(&self, job: JobId, wave: u32, plan: &Plan) -> Decision {
        Decision {
            id: self.decisions,
            job,
            wave,
            kind: plan.kind,
            steps: plan.steps.clone(),
            estimate: plan.estimate,
            hidden_s: self.board.hidden_s(job),
            buffered: self.board.job(job).buffered(),
            left_bytes: self.board.left_bytes(job, wave),
            phases: self.board.chains().iter().map(|(id, c)| SeenPhase::new(*id, c)).collect(),
            candidates: plan.candidates,
            reason: plan.reason.clone(),
        }
    }

    /// Announces every setting that has changed, be it by a step or by a phase to yield to.
    ///
    /// There was room for each wave when its plan was made; one that begins later, or after another
    /// in the same moment, may find none. Its plan is dropped then, and made again when there is
    /// room.
    fn carry_out(&mut self, out: &mut Vec<Action>) {
        let (now, busy) = (self.board.now(), self.board.active_phases() > 0);
        let is_ending = self.board.is_a_phase_ending();
        let mut without_room = Vec::new();
        for (&job, running) in &mut self.running {
            let Some(step) = running.plan.steps.iter().rev().find(|s| s.at <= now) else { continue };
            // A full delay waits for the end of the phase, and not for the moment at which that was
            // expected.
            let has_not_begun = !running.direct && running.setting.is_none_or(|setting| setting.is_paused());
            let is_too_soon = is_ending && has_not_begun && running.plan.kind == ActionKind::FullDelay;
            let setting = if step.yields && busy || is_too_soon { Setting::PAUSED } else { step.setting };
            if !running.direct && running.setting == Some(setting) {
                continue;
            }
            let (wave, decision) = (running.wave, running.decision);
            let begins = !running.direct && running.setting.is_none();
            if begins && setting.is_paused() {
                // A fetch that has not begun needs no announcement that it is paused; one of
                // another wave that it follows does, or it would continue through the pause.
                stop(&mut self.board, job, decision, out);
            } else if self.board.has_room(job, wave, self.policy.prefetch_distance()) {
                if self.board.job(job).fetch.is_some_and(|f| f.direct && f.wave != wave) {
                    // Direct reads of another wave would continue unplanned beside this fetch.
                    stop(&mut self.board, job, decision, out);
                }
                out.push(Action::Fetch { job, wave, setting, decision });
                self.board.set_fetch(job, wave, self.board.strain(setting), false);
            } else if running.direct {
                go_on_directly(&mut self.board, job, wave, decision, out);
                continue;
            } else {
                if !goes_on(&self.board, self.policy.as_ref(), job) {
                    stop(&mut self.board, job, decision, out);
                }
                without_room.push(job);
                continue;
            }
            running.setting = Some(setting);
            running.direct = false;
        }
        without_room.iter().for_each(|job| drop(self.running.remove(job)));
    }

    /// Permits opportunistic prefetches between phases, or ends them with any pause of the planned
    /// wave. Only for a single job: several are planned together.
    fn fill_gaps(&mut self, out: &mut Vec<Action>) {
        if !self.policy.fills_gaps() {
            return;
        }
        let is_quiet = self.board.active_phases() == 0 && self.board.jobs().count() == 1;
        let moves = |running: &Running| {
            !running.direct && running.setting.is_some_and(|setting| !setting.is_paused())
        };
        let may = self.running.iter().filter(|(_, running)| is_quiet && moves(running));
        let may: BTreeSet<JobId> = may.map(|(job, _)| *job).collect();
        // The requests of a job that has left are released anyway.
        let stops = self.ahead.difference(&may).filter(|job| self.board.jobs().any(|(of, _)| of == **job));
        out.extend(stops.map(|job| Action::Ahead { job: *job, may: false }));
        out.extend(may.difference(&self.ahead).map(|job| Action::Ahead { job: *job, may: true }));
        self.ahead = may;
    }

    fn drop_finished(&mut self, event: &Event) {
        match *event {
            Event::Fetched { job, wave, .. } if self.running.get(&job).is_some_and(|r| r.wave == wave) => {
                self.running.remove(&job);
            }
            // Every plan depends on the speed.
            Event::Speed { .. } => self.running.clear(),
            Event::JobLeaves { job } | Event::Lost { job, .. } => {
                self.running.remove(&job);
            }
            // A delay waits for a phase, not for the moment at which that was expected to be over:
            // a phase of unknown length may be expected for minutes and end in seconds.
            Event::PhaseEnds { .. } | Event::HpcLeaves { .. } | Event::HpcExpects { .. }
                if self.board.active_phases() == 0 =>
            {
                let (soon, board, policy) = (self.board.now() + MOMENT_NS, &self.board, &self.policy);
                self.running
                    .retain(|job, running| !running.waits_beyond(soon) || policy.replans(board, *job));
            }
            _ => {}
        }
    }
}

/// Returns whether what is under way for `job` continues without a plan: the rest of a wave that
/// its tasks read already, if the policy ignores phases.
fn goes_on(board: &Board, policy: &dyn Policy, job: JobId) -> bool {
    let job = board.job(job);
    policy.opportunistic() && job.fetch.is_some_and(|fetch| fetch.wave < job.started)
}

/// Pauses what is under way for `job`, whichever wave that is; false if nothing moves.
fn stop(board: &mut Board, job: JobId, decision: u64, out: &mut Vec<Action>) -> bool {
    let moves = |f: &Fetch| f.strain.speed_bytes_per_s > 0.0;
    let Some(Fetch { wave, direct, .. }) = board.job(job).fetch.filter(moves) else { return false };
    out.push(Action::Fetch { job, wave, setting: Setting::PAUSED, decision });
    // What tasks read themselves keeps no room while it rests.
    board.set_fetch(job, wave, Strain::NONE, direct);
    true
}

/// Handles a `wave` that tasks read themselves and that should come through the tier from now on,
/// but for which there is no room: they continue to read while no phase is under way, and rest
/// while one is.
fn go_on_directly(board: &mut Board, job: JobId, wave: u32, decision: u64, out: &mut Vec<Action>) {
    let moves = board.job(job).fetch.is_some_and(|f| f.strain.speed_bytes_per_s > 0.0);
    if board.active_phases() > 0 && moves {
        stop(board, job, decision, out);
    } else if board.active_phases() == 0 && !moves {
        out.push(Action::Direct { job, wave, decision });
        board.set_fetch(job, wave, board.corrected(board.config.direct.strain()), true);
    }
}

/// Returns the plan of every policy for a wave whose lost part no longer has room in the tier.
fn read_directly(board: &Board, job: JobId, wave: u32) -> Plan {
    let direct_s =
        board.left_bytes(job, wave) / board.corrected(board.config.direct.strain()).speed_bytes_per_s;
    Plan {
        kind: ActionKind::Direct,
        skips: 0,
        steps: Vec::new(),
        estimate: Estimate { fetched_in_s: Some(direct_s), cost_s: Some(direct_s), margin_s: None },
        candidates: 1,
        reason: "a part was lost with a node and has no room in the tier any more: tasks wait, and read it themselves"
            .into(),
    }
}

/// Returns whether `new` continues as `old` would from `now` on.
fn same_course(old: &Plan, new: &Plan, now: Nanos) -> bool {
    let from_now = |plan: &Plan| {
        let current = plan.steps.iter().rposition(|s| s.at <= now).unwrap_or(0);
        let mut steps = plan.steps[current.min(plan.steps.len())..].to_vec();
        if let Some(first) = steps.first_mut() {
            first.at = first.at.max(now);
        }
        steps
    };
    let (a, b) = (from_now(old), from_now(new));
    // A millisecond of difference in a change to come is rounding in the model, not a change of
    // plan.
    let close = |x: Nanos, y: Nanos| x.0.abs_diff(y.0) < 1_000_000;
    a.len() == b.len()
        && a.iter().zip(&b).all(|(x, y)| x.setting == y.setting && x.yields == y.yields && close(x.at, y.at))
        && (old.kind == new.kind || !a.is_empty())
}

impl Machine for Planner {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        self.board.advance(now);
        self.board.apply(&event);
        self.drop_finished(&event);
        self.plan_where_needed(out);
        self.carry_out(out);
        self.fill_gaps(out);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let now = self.board.now();
        let steps = self.running.values().flat_map(|r| r.plan.steps.iter());
        steps.map(|s| s.at).filter(|&at| at > now).min()
    }

    fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.board.advance(now);
        let (board, policy) = (&self.board, &self.policy);
        if board.jobs().any(|(job, _)| policy.replans(board, job)) {
            self.plan_where_needed(out);
        }
        self.carry_out(out);
        self.fill_gaps(out);
    }
}
