//! What will happen if a prefetch is carried out in a given way, beside HPC jobs that alternate
//! compute and I/O.
//!
//! The closed forms cover one phase and one prefetch that are requested at the same moment. Here
//! any number of HPC jobs keep running, phase after phase, while one prefetch follows a list of
//! steps (wait, run at one setting, change to another). Time goes from one change to the next;
//! between changes every pace is constant ([`crate::sharing`]), so the result is exact. With one
//! phase and one step it equals [`crate::overlap::integrate`].

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::profile::Strain;
use crate::sharing;

/// An HPC job as a forecast sees it. All times in seconds from now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chain {
    /// Whether an I/O phase is under way.
    pub in_phase: bool,
    /// In a phase: its I/O time alone that is left. Otherwise: time until the next phase; infinite
    /// if none comes.
    pub left_s: f64,
    /// By when the phase under way must be done.
    pub deadline_s: f64,
    /// I/O time of later phases, alone.
    pub io_s: f64,
    /// Compute time between phases.
    pub compute_s: f64,
    /// Later phases have to be done within `io_s * (1 + allowance)`.
    pub allowance: f64,
    /// Phases that still begin after the one under way, or after the next one if none is.
    pub phases_after: u32,
    /// Its weight where phases share the file system (processes).
    pub weight: f64,
    /// Where sets of jobs take turns: its set, and the place of its phase in the order of arrival.
    pub turn: Turn,
}

/// A place among phases that take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Turn {
    /// Order of magnitude of its period.
    pub set: i32,
    /// Earlier phases have less.
    pub arrival: u64,
}

/// How phases divide the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Division {
    /// In proportion to weights.
    #[default]
    FairShare,
    /// In each set the phase that came first, and sets in proportion to 10^-set (IO-Sets).
    #[serde(rename = "set-10")]
    Set10,
}

impl Division {
    /// What `chain`, of all of `chains`, claims of the file system: its share is its claim over the
    /// sum of all claims.
    pub fn claim(self, chains: &[Chain], chain: &Chain) -> f64 {
        if !chain.in_phase {
            return 0.0;
        }
        match self {
            Division::FairShare => chain.weight,
            Division::Set10 => {
                let Turn { set, arrival } = chain.turn;
                let is_before = |c: &Chain| c.in_phase && c.turn.set == set && c.turn.arrival < arrival;
                if chains.iter().any(is_before) { 0.0 } else { priority(set) }
            }
        }
    }

    /// By how much phases stretch each other, for each of `chains`; infinite for one that has to
    /// wait, 1 for those that compute.
    pub fn stretches(self, chains: &[Chain], out: &mut Vec<f64>) {
        out.clear();
        out.extend(chains.iter().map(|c| self.claim(chains, c)));
        let total: f64 = out.iter().sum();
        for (claim, chain) in out.iter_mut().zip(chains) {
            *claim = if chain.in_phase { total / *claim } else { 1.0 };
        }
    }
}

impl Division {
    /// Each phase of `chains` under way, and when it is over if nothing else begins, at the latest:
    /// its own work times what the others take; and the last ends with all work done.
    pub fn ends_s(self, chains: &[Chain]) -> impl Iterator<Item = (&Chain, f64)> {
        let active = || chains.iter().filter(|c| c.in_phase);
        let total_s: f64 = active().map(|c| c.left_s).sum();
        let claims: f64 = active().map(|c| self.claim(chains, c)).sum();
        active().map(move |c| (c, (c.left_s * claims / self.claim(chains, c)).min(total_s)))
    }
}

/// Returns 10^-set.
fn priority(set: i32) -> f64 {
    (0..set.abs()).fold(1.0, |p, _| if set > 0 { p / 10.0 } else { p * 10.0 })
}

/// A stretch of a prefetch at one setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// How long it lasts, in seconds; infinite for the last.
    pub for_s: f64,
    /// What it does to others and how fast it is; [`Strain::NONE`] to wait.
    pub strain: Strain,
    /// Whether it waits while any phase is under way.
    pub yields: bool,
}

/// The result of a forecast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// When the prefetch is done, in seconds from now; infinite if it never is.
    pub end_s: f64,
    /// The worst end of a phase minus its deadline, over all phases that the prefetch could touch;
    /// negative if all are met, minus infinity if there was none.
    pub late_s: f64,
}

impl Outcome {
    /// Whether the prefetch ends and every deadline is met.
    pub fn is_feasible(&self) -> bool {
        self.end_s.is_finite() && self.late_s <= 0.0
    }
}

/// Most changes that one forecast follows; a prefetch that yields to a busy file system for longer
/// counts as never done.
const MAX_CHANGES: usize = 4096;

/// What ends within this factor of a piece ends with it: rounding must not leave a last billionth
/// of a second.
const SLACK: f64 = 1.0 + 1e-12;

/// Runs forecasts and keeps their buffers, since a planner makes thousands of them.
#[derive(Clone, Debug, Default)]
pub struct Forecaster {
    division: Division,
    chains: Vec<Chain>,
    watched: Vec<bool>,
    strains: Vec<Strain>,
    speeds: Vec<f64>,
    stretches: Vec<f64>,
}

impl Forecaster {
    /// A forecaster for phases that divide the file system by `division`.
    pub fn dividing_by(division: Division) -> Self {
        Forecaster { division, ..Forecaster::default() }
    }

    /// Follows a prefetch of `bytes` through `steps` beside `chains`, and beside `others`:
    /// prefetches of other jobs, assumed to continue as they are. Returns when it ends and how late
    /// it makes any phase, up to the end of the last phase that it overlapped.
    pub fn run(
        &mut self,
        chains: &[Chain],
        others: &[Strain],
        steps: &[Step],
        bytes: f64,
        pfs_bytes_per_s: f64,
    ) -> Outcome {
        self.follow(chains, others, steps, bytes, pfs_bytes_per_s, false)
    }

    /// Like [`Self::run`], but only up to the end of the phases that are under way now, and only
    /// for their deadlines: for planners that decide again when the next phase begins. `end_s` is
    /// infinite if the prefetch is not done by then.
    pub fn run_present(
        &mut self,
        chains: &[Chain],
        others: &[Strain],
        steps: &[Step],
        bytes: f64,
        pfs_bytes_per_s: f64,
    ) -> Outcome {
        self.follow(chains, others, steps, bytes, pfs_bytes_per_s, true)
    }

    fn follow(
        &mut self,
        chains: &[Chain],
        others: &[Strain],
        steps: &[Step],
        bytes: f64,
        pfs_bytes_per_s: f64,
        present: bool,
    ) -> Outcome {
        self.chains.clear();
        self.chains.extend_from_slice(chains);
        self.watched.clear();
        self.watched.extend(chains.iter().map(|c| present && c.in_phase));
        let mut out = Outcome { end_s: f64::INFINITY, late_s: f64::NEG_INFINITY };
        let (mut now_s, mut left, mut step, mut step_left_s) = (0.0, bytes, 0, steps[0].for_s);
        for _ in 0..MAX_CHANGES {
            if left <= 0.0 && out.end_s.is_infinite() {
                out.end_s = now_s;
                if !present {
                    self.watched.iter_mut().zip(&self.chains).for_each(|(w, c)| *w = c.in_phase);
                }
            }
            if (present || out.end_s.is_finite()) && !self.watched.contains(&true) {
                return out;
            }
            let phases = self.chains.iter().filter(|c| c.in_phase).count();
            let waits = left <= 0.0 || (steps[step].yields && phases > 0);
            let strain = if waits { Strain::NONE } else { steps[step].strain };
            let (excess, speed) = self.load(phases, strain, others, pfs_bytes_per_s);
            let fetch_s = if speed > 0.0 { left / speed } else { f64::INFINITY };
            let change_s = if left > 0.0 { step_left_s.min(fetch_s) } else { f64::INFINITY };
            self.stretch(excess);
            let dt_s = self.until_turn().min(change_s);
            if dt_s.is_infinite() {
                return out;
            }
            now_s += dt_s;
            if speed > 0.0 {
                left = if left <= speed * dt_s * SLACK { 0.0 } else { left - speed * dt_s };
            }
            self.advance(dt_s, now_s, present, &mut out);
            step_left_s -= dt_s;
            if step_left_s <= 0.0 && step + 1 < steps.len() {
                step += 1;
                step_left_s = steps[step].for_s;
            }
        }
        Outcome { end_s: f64::INFINITY, late_s: f64::INFINITY }
    }

    /// Notes by how much a second of each chain's own time is stretched: by other phases, and by
    /// `excess`.
    fn stretch(&mut self, excess: f64) {
        self.division.stretches(&self.chains, &mut self.stretches);
        for (stretch, _) in self.stretches.iter_mut().zip(&self.chains).filter(|(_, c)| c.in_phase) {
            *stretch *= 1.0 + excess;
        }
    }

    /// Returns the time until the first chain changes between compute and I/O.
    fn until_turn(&self) -> f64 {
        let turns_s = self.chains.iter().zip(&self.stretches).map(|(c, stretch)| c.left_s * stretch);
        turns_s.fold(f64::INFINITY, f64::min)
    }

    /// Advances all chains by `dt_s`, to `now_s`, and notes how late phases end.
    fn advance(&mut self, dt_s: f64, now_s: f64, present: bool, out: &mut Outcome) {
        let mut arrivals = self.chains.iter().map(|c| c.turn.arrival).max().unwrap_or(0);
        for (i, chain) in self.chains.iter_mut().enumerate() {
            if chain.left_s * self.stretches[i] > dt_s * SLACK {
                chain.left_s -= dt_s / self.stretches[i];
                continue;
            }
            if chain.in_phase {
                if !present || self.watched[i] {
                    out.late_s = out.late_s.max(now_s - chain.deadline_s);
                }
                self.watched[i] = false;
            }
            arrivals += 1;
            chain.turn.arrival = arrivals;
            turn(chain, now_s);
        }
    }

    /// Returns the total excess, and the speed of the prefetch in question.
    fn load(&mut self, phases: usize, strain: Strain, others: &[Strain], pfs_bytes_per_s: f64) -> (f64, f64) {
        self.strains.clear();
        self.strains.push(strain);
        self.strains.extend_from_slice(others);
        let excess = sharing::load(phases, &self.strains, pfs_bytes_per_s, &mut self.speeds);
        (excess, self.speeds[0])
    }
}

/// Compute follows a phase, a phase follows compute, until there are no more.
fn turn(chain: &mut Chain, now_s: f64) {
    if chain.in_phase {
        chain.in_phase = false;
        chain.left_s = if chain.phases_after > 0 { chain.compute_s } else { f64::INFINITY };
        chain.phases_after = chain.phases_after.saturating_sub(1);
    } else {
        chain.in_phase = true;
        chain.left_s = chain.io_s;
        chain.deadline_s = now_s + chain.io_s * (1.0 + chain.allowance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlap::{self, Flow};
    use proptest::prelude::*;

    const FREE: f64 = f64::INFINITY;

    fn phase(left_s: f64, deadline_s: f64) -> Chain {
        Chain {
            in_phase: true,
            left_s,
            deadline_s,
            io_s: left_s,
            compute_s: 10.0,
            allowance: 0.05,
            phases_after: 0,
            weight: 1.0,
            turn: Turn::default(),
        }
    }

    fn step(for_s: f64, i_hpc: f64, i_bd: f64) -> Step {
        let strain = Strain { speed_bytes_per_s: 1.0, rate: 1.0, i_hpc, i_bd };
        Step { for_s, strain, yields: false }
    }

    const WAIT: Strain = Strain::NONE;

    proptest! {
        /// Compares with the two-flow integrator: any delay, any factors.
        #[test]
        fn one_phase_and_one_delayed_step_is_the_two_flow_overlap(
            io in 0.1f64..100.0, pref in 0.1f64..100.0, ih in 1.0f64..4.0, ib in 1.0f64..4.0, delay in 0.0f64..150.0
        ) {
            let (end_a, end_b) = overlap::integrate(
                Flow { start_s: 0.0, alone_s: io, factor: ih },
                Flow { start_s: delay, alone_s: pref, factor: ib },
            );
            let steps = [Step { for_s: delay, strain: WAIT, yields: false }, step(f64::INFINITY, ih, ib)];
            let out = Forecaster::default().run(&[phase(io, 20.0)], &[], &steps, pref, FREE);
            prop_assert!((out.end_s - end_b).abs() < 1e-6, "{out:?} {end_b}");
            prop_assert!((out.late_s - (end_a - 20.0)).abs() < 1e-6, "{out:?} {end_a}");
        }
    }

    /// Two phases of 10 s with 5 s of compute between; 12 s of prefetch at I = 2 (both ways), from
    /// now on. Phase 1 is stretched to 20 s and the prefetch does 10 s of work in it; the last 2 s
    /// fit into the gap.
    #[test]
    fn a_second_phase_begins_when_the_first_was_stretched() {
        let chain = Chain { compute_s: 5.0, phases_after: 1, ..phase(10.0, 15.0) };
        let out = Forecaster::default().run(&[chain], &[], &[step(FREE, 2.0, 2.0)], 12.0, FREE);
        assert!((out.end_s - 22.0).abs() < 1e-9 && (out.late_s - 5.0).abs() < 1e-9, "{out:?}");
        // 20 s of work: 10 in phase 1, 5 in the gap, 5 in phase 2, which then takes 10 s longer
        // beside 10 s of prefetch: it ends at 25 + 5 * 2 + 5 = 40, its own deadline being 25 +
        // 10.5.
        let out = Forecaster::default().run(&[chain], &[], &[step(FREE, 2.0, 2.0)], 20.0, FREE);
        assert!((out.end_s - 35.0).abs() < 1e-9 && (out.late_s - 5.0).abs() < 1e-9, "{out:?}");
    }

    #[test]
    fn a_prefetch_that_yields_never_makes_a_phase_late() {
        let chain = Chain { compute_s: 5.0, phases_after: 9, ..phase(10.0, 10.0) };
        let steps = [Step { yields: true, ..step(FREE, 2.0, 2.0) }];
        let out = Forecaster::default().run(&[chain], &[], &steps, 12.0, FREE);
        // Gaps 10-15, 25-30 and 40-42.
        assert!((out.end_s - 42.0).abs() < 1e-9 && out.late_s.abs() < 1e-9, "{out:?}");
    }

    /// Phases of 10 and 20 s of one set take turns: the second begins when the first is over, at 10
    /// s, and ends at 30 s. One of 5 s of the next set has a tenth of their priority: in the 30 s
    /// it gets 30 / 11 s of I/O, while the others get 10 / 11 of theirs; they end at 11 and 33 s,
    /// with 3 s of it done, and it continues alone to 35 s.
    #[test]
    fn phases_of_a_set_take_turns_and_sets_share() {
        let turn = |set, arrival| Turn { set, arrival };
        let first = Chain { turn: turn(1, 1), ..phase(10.0, 10.0) };
        let second = Chain { turn: turn(1, 2), ..phase(20.0, 25.0) };
        let other = Chain { turn: turn(2, 3), ..phase(5.0, 6.0) };
        let late_s = |chains: &[Chain]| {
            let mut forecaster = Forecaster::dividing_by(Division::Set10);
            let nothing = Step { for_s: FREE, strain: WAIT, yields: true };
            forecaster.run_present(chains, &[], &[nothing], 1.0, FREE).late_s
        };
        assert!((late_s(&[first, second]) - 5.0).abs() < 1e-9, "{}", late_s(&[first, second]));
        assert!((late_s(&[first, second, other]) - 29.0).abs() < 1e-9, "{}", late_s(&[first, second, other]));
    }

    #[test]
    fn two_phases_share_the_file_system() {
        let out = Forecaster::default().run(
            &[phase(10.0, 20.0), phase(20.0, 40.0)],
            &[],
            &[Step { for_s: 0.0, strain: WAIT, yields: true }, Step { yields: true, ..step(FREE, 2.0, 2.0) }],
            1.0,
            FREE,
        );
        // The short one ends at 20 s, the long one at 30 s; then the prefetch's second.
        assert!((out.end_s - 31.0).abs() < 1e-9 && out.late_s.abs() < 1e-9, "{out:?}");
    }
}
