//! `eley` (Yildiz et al., FGCS 2018): the best of five actions, chosen at the start of each wave.
//!
//! The rule is the paper's (section 5.2): actions are estimated in the order of its Table 1; the
//! first with no cost that meets every deadline is taken, otherwise the one of least cost that
//! meets them; for *Partial Delay* the least delay that does, for scaling the thread count of least
//! cost. Equation (5) counts the cost from the request.
//!
//! Two things differ from the published formulas, because they do not hold outside one phase. The
//! ends are computed by the exact forecast, which also knows the phases after this one, and the
//! paper's closed forms are its special cases. And where the gaps between phases are shorter than a
//! prefetch, no single action may meet every deadline (the formulas do not see the next phase);
//! then the full delay is repeated at each phase, which always does.

use alloc::string::String;
use alloc::vec::Vec;

use forebay_model::forecast::{Chain, Forecaster, Outcome, Step};
use forebay_model::overlap;
use forebay_model::profile::{Setting, Strain};

use super::direct::direct_is_faster;
use super::plan::{ActionKind, Estimate, Plan, PlannedStep};
use super::{Board, JobId, Policy, PrefetchDistance};
use crate::machine::Nanos;

/// Phases have to end this much before their deadlines: far more than rounding, far less than can
/// be measured.
pub const MARGIN_S: f64 = 2e-6;

/// One way to prefetch the wave, and its outcome.
#[derive(Clone, Debug)]
pub struct Candidate {
    kind: ActionKind,
    setting: Setting,
    delay_s: f64,
    outcome: Outcome,
}

/// What is known when a wave is planned, and estimates on it.
pub struct Search<'a> {
    board: &'a Board,
    chains: Vec<Chain>,
    others: Vec<Strain>,
    bytes: f64,
    hidden_s: f64,
    /// How late phases get without any prefetch: no plan can do better.
    unavoidable_s: f64,
    forecaster: Forecaster,
    candidates: u32,
}

impl<'a> Search<'a> {
    /// A search for `wave` of `job`.
    pub fn new(board: &'a Board, job: JobId, wave: u32) -> Self {
        let chains: Vec<Chain> = board.chains().into_iter().map(|(_, c)| c).collect();
        let mut search = Search {
            board,
            chains,
            others: board.others(job),
            bytes: board.left_bytes(job, wave),
            hidden_s: board.hidden_s(job),
            unavoidable_s: f64::NEG_INFINITY,
            forecaster: Forecaster::dividing_by(board.config.division),
            candidates: 0,
        };
        let waiting = Step { for_s: f64::INFINITY, strain: Strain::NONE, yields: true };
        let step = Step { strain: Strain { speed_bytes_per_s: f64::MAX, ..Strain::NONE }, ..waiting };
        search.unavoidable_s = search.forecast(&[step]).late_s;
        search
    }

    fn forecast(&mut self, steps: &[Step]) -> Outcome {
        let pfs = self.board.pfs_bytes_per_s();
        self.forecaster.run(&self.chains, &self.others, steps, self.bytes, pfs)
    }

    /// Estimates a start after `delay_s` with `setting`.
    fn estimate(&mut self, kind: ActionKind, setting: Setting, delay_s: f64) -> Candidate {
        self.candidates += 1;
        let wait = Step { for_s: delay_s, strain: Strain::NONE, yields: false };
        let go = Step { for_s: f64::INFINITY, strain: self.board.strain(setting), yields: false };
        let outcome = if delay_s > 0.0 { self.forecast(&[wait, go]) } else { self.forecast(&[go]) };
        Candidate { kind, setting, delay_s, outcome }
    }

    /// Estimates a start now with `setting`.
    pub fn at_once(&mut self, kind: ActionKind, setting: Setting) -> Candidate {
        self.estimate(kind, setting, 0.0)
    }

    /// Estimates a start when the phases under way are over, or, if none is, the next one.
    pub fn full_delay(&mut self) -> Candidate {
        let delay_s = self.quiet_in_s();
        self.estimate(ActionKind::FullDelay, self.board.config.default_setting, delay_s)
    }

    /// Returns the least delay that meets every deadline, if the full delay does.
    fn partial_delay(&mut self, full: &Candidate) -> Option<Candidate> {
        if !self.allows(full) {
            return None;
        }
        let (mut bad_s, mut good_s) = (0.0, full.delay_s);
        let mut best = None;
        // Halved 30 times, a delay of an hour is known to some microseconds.
        for _ in 0..30 {
            let middle_s = 0.5 * (bad_s + good_s);
            let setting = self.board.config.default_setting;
            let candidate = self.estimate(ActionKind::PartialDelay, setting, middle_s);
            if self.allows(&candidate) {
                good_s = middle_s;
                best = Some(candidate);
            } else {
                bad_s = middle_s;
            }
        }
        best
    }

    /// Returns the best of `settings`, started immediately.
    fn best_setting(&mut self, kind: ActionKind, settings: &[Setting]) -> Option<Candidate> {
        let mut best: Option<Candidate> = None;
        for &setting in settings {
            let candidate = self.at_once(kind, setting);
            if self.allows(&candidate)
                && best.as_ref().is_none_or(|b| self.cost_s(&candidate) < self.cost_s(b))
            {
                best = Some(candidate);
            }
        }
        best
    }

    /// Returns whether every phase meets its deadline, or at least is no later than without the
    /// prefetch.
    pub fn allows(&self, candidate: &Candidate) -> bool {
        let late_s = candidate.outcome.late_s;
        candidate.outcome.end_s.is_finite()
            && (late_s <= -MARGIN_S || late_s <= self.unavoidable_s.max(-MARGIN_S) + 1e-9)
    }

    /// Equation (5).
    fn cost_s(&self, candidate: &Candidate) -> f64 {
        overlap::cost_s(candidate.outcome.end_s, self.hidden_s)
    }

    /// Returns the chosen candidate as a plan.
    pub fn plan(&self, chosen: Candidate, reason: impl Into<String>) -> Plan {
        let now = self.board.now();
        let mut steps = Vec::new();
        if chosen.delay_s > 0.0 {
            steps.push(PlannedStep { at: now, setting: Setting::PAUSED, yields: false });
        }
        let at = now + seconds_up(chosen.delay_s);
        steps.push(PlannedStep { at, setting: chosen.setting, yields: false });
        let estimate = self.expectation(&chosen.outcome);
        Plan {
            kind: chosen.kind,
            skips: 0,
            steps,
            estimate,
            candidates: self.candidates,
            reason: reason.into(),
        }
    }

    /// Returns the full delay, repeated at every phase.
    pub fn yielding(&mut self) -> Plan {
        self.candidates += 1;
        let setting = self.board.config.default_setting;
        let step = Step { for_s: f64::INFINITY, strain: self.board.strain(setting), yields: true };
        let outcome = self.forecast(&[step]);
        Plan {
            kind: ActionKind::FullDelay,
            skips: 0,
            steps: [PlannedStep { at: self.board.now(), setting, yields: true }].to_vec(),
            estimate: self.expectation(&outcome),
            candidates: self.candidates,
            reason: "no single action meets every deadline to come: only between phases".into(),
        }
    }

    fn expectation(&self, outcome: &Outcome) -> Estimate {
        Estimate {
            fetched_in_s: outcome.end_s.is_finite().then_some(outcome.end_s),
            cost_s: outcome.end_s.is_finite().then(|| overlap::cost_s(outcome.end_s, self.hidden_s)),
            margin_s: outcome.late_s.is_finite().then_some(-outcome.late_s),
        }
    }

    /// Returns the seconds until the phases under way are over without a prefetch; if none is,
    /// until the next one is.
    fn quiet_in_s(&self) -> f64 {
        if self.chains.iter().any(|c| c.in_phase) {
            return self
                .board
                .config
                .division
                .ends_s(&self.chains)
                .map(|(_, end_s)| end_s)
                .fold(0.0, f64::max);
        }
        let next = self.chains.iter().filter(|c| c.left_s.is_finite());
        let ends = next.map(|c| c.left_s + c.io_s);
        let first = ends.fold(f64::INFINITY, f64::min);
        if first.is_finite() { first } else { 0.0 }
    }
}

/// Converts to whole nanoseconds, rounded up.
fn seconds_up(seconds: f64) -> u64 {
    let nanos = Nanos::from_secs_f64(seconds);
    if nanos.0 as f64 * 1e-9 < seconds { nanos.0 + 1 } else { nanos.0 }
}

/// The best of the paper's five actions.
pub struct Eley {
    /// Whether there is a sixth action, which the paper does not have: tasks that wait between
    /// phases read missing bytes directly if that is faster.
    pub reads_directly: bool,
}

impl Eley {
    /// Returns every action that meets the deadlines, in the paper's order, up to the first that
    /// costs nothing.
    fn candidates(search: &mut Search<'_>) -> Vec<Candidate> {
        let config = &search.board.config;
        let default = config.default_setting;
        let up: Vec<Setting> = (default.threads + 1..=config.profile.max_threads)
            .map(|t| Setting::new(default.nodes, t))
            .collect();
        // Fewer threads in all: first fewer per node, then fewer nodes of one thread.
        let fewer_threads = (1..default.threads).map(|t| Setting::new(default.nodes, t));
        let down: Vec<Setting> =
            fewer_threads.chain((1..default.nodes).map(|n| Setting::new(n, 1))).collect();
        let mut found = Vec::new();
        let no_action = search.at_once(ActionKind::NoAction, default);
        if keep(search, Some(no_action), &mut found) {
            return found;
        }
        let full = search.full_delay();
        if keep(search, Some(full.clone()), &mut found) {
            return found;
        }
        let partial = search.partial_delay(&full);
        if keep(search, partial, &mut found) {
            return found;
        }
        let best = search.best_setting(ActionKind::ScaleUp, &up);
        if keep(search, best, &mut found) {
            return found;
        }
        let best = search.best_setting(ActionKind::ScaleDown, &down);
        keep(search, best, &mut found);
        found
    }
}

/// Keeps a candidate that meets the deadlines; true if it also costs nothing, so that the search is
/// over.
fn keep(search: &Search<'_>, candidate: Option<Candidate>, found: &mut Vec<Candidate>) -> bool {
    let Some(candidate) = candidate.filter(|c| search.allows(c)) else { return false };
    let free = search.cost_s(&candidate) <= 0.0;
    if free {
        found.clear();
    }
    found.push(candidate);
    free
}

impl Policy for Eley {
    fn prefetch_distance(&self) -> PrefetchDistance {
        PrefetchDistance::Waves(1)
    }

    /// Tasks that wait need a plan when a phase ends, and another one when the next begins.
    fn replans(&self, board: &Board, job: JobId) -> bool {
        let j = board.job(job);
        let reads = j.fetch.is_some_and(|f| f.direct);
        self.reads_directly && j.waits() && (reads || board.active_phases() == 0)
    }

    fn plan(&mut self, board: &Board, job: JobId, wave: u32) -> Plan {
        let mut search = Search::new(board, job, wave);
        if self.reads_directly && board.active_phases() == 0 {
            let tier_s = search.at_once(ActionKind::NoAction, board.config.default_setting).outcome.end_s;
            if let Some(plan) = direct_is_faster(board, job, wave, tier_s) {
                return plan;
            }
        }
        let found = Eley::candidates(&mut search);
        let best = found.into_iter().reduce(|a, b| if search.cost_s(&b) < search.cost_s(&a) { b } else { a });
        match best {
            Some(best) if search.cost_s(&best) <= 0.0 => {
                search.plan(best, "the first action without cost that meets every deadline")
            }
            Some(best) => search.plan(best, "the least cost of the actions that meet every deadline"),
            None => search.yielding(),
        }
    }
}
