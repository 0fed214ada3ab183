//! Tables 4 and 6: what the paper publishes for each iteration of one run.

use super::{Cell, action_name};
use crate::report::Record;
use crate::reproduce::fitted::is_fitted;

/// A table, in seconds.
pub struct Iterations {
    /// Beginning of the ids of its results.
    pub id: &'static str,
    /// Phases under NoAction, and under Eley, which have to take at most `allowed_s`.
    pub no_action_s: [f64; 5],
    pub eley_s: [f64; 5],
    pub allowed_s: f64,
    /// Eley's actions, and their cost.
    pub actions: [&'static str; 5],
    pub cost_s: [f64; 5],
}

impl Iterations {
    /// Each number beside the number of our run, whose waves are counted from `first_wave`.
    pub fn records(&self, no_action: &Cell, eley: &Cell, first_wave: usize) -> Vec<Record> {
        let phase_s = |cell: &Cell, i: usize| {
            let phase = cell.outcome.hpc[0].phases[i];
            (phase.end_ns - phase.begin_ns) as f64 * 1e-9
        };
        let mut records = Vec::new();
        for i in 0..5 {
            let id = |what: &str| format!("{}/{what}/{}", self.id, i + 1);
            let wave = &eley.outcome.jobs[0].waves[first_wave + i];
            let (ours, paper) = (wave.kind.map_or("-", action_name), self.actions[i]);
            let same = if ours == paper { 1.0 } else { 0.0 };
            let (took_s, target) = (phase_s(eley, i), format!("at most {} s", self.allowed_s));
            records.extend([
                Record::print(id("no-action"), self.no_action_s[i], phase_s(no_action, i), "s"),
                Record::direction(id("eley"), took_s, "s", target, took_s <= self.allowed_s)
                    .beside(self.eley_s[i]),
                Record::print(id("action"), 1.0, same, "1 if the same")
                    .note(format!("paper: {paper}, ours: {ours}")),
                Record::print(id("cost"), self.cost_s[i], wave.stall_ns as f64 * 1e-9, "s"),
            ]);
        }
        records.into_iter().map(|r| if is_fitted(&r.id) { r.fitted() } else { r }).collect()
    }
}
