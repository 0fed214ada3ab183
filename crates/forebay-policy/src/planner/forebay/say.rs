//! Names of plans, and the plan that waits.

use alloc::string::String;

use forebay_model::profile::Setting;

use super::super::Board;
use super::super::plan::{ActionKind, Estimate, Plan, PlannedStep};

/// Returns the plan to fetch nothing until the next event.
pub(super) fn waits(board: &Board, reason: String) -> Plan {
    Plan {
        kind: ActionKind::Wait,
        skips: 0,
        steps: [PlannedStep { at: board.now(), setting: Setting::PAUSED, yields: false }].to_vec(),
        estimate: Estimate { fetched_in_s: None, cost_s: None, margin_s: None },
        candidates: 1,
        reason,
    }
}

/// Returns the papers' name of an action, or `Search`.
pub(super) fn kind_of(board: &Board, setting: Setting, delay_s: f64) -> ActionKind {
    let default = board.config.default_setting;
    let threads = |s: Setting| u32::from(s.nodes) * u32::from(s.threads);
    match (delay_s > 0.0, setting) {
        (_, s) if s.is_paused() => ActionKind::FullDelay,
        (true, s) if s == default => ActionKind::PartialDelay,
        (true, _) => ActionKind::Search,
        (false, s) if s == default => ActionKind::NoAction,
        (false, s) if s.rate < 1.0 => ActionKind::Search,
        (false, s) if s.nodes == default.nodes && s.threads > default.threads => ActionKind::ScaleUp,
        (false, s) if threads(s) < threads(default) => ActionKind::ScaleDown,
        _ => ActionKind::Search,
    }
}
