//! Cross-job bandwidth: what the I/O phases of several HPC jobs do to each other.
//!
//! The machine is notified which phases are under way and answers with each one's share of the file
//! system. This is the baseline against which holding phases to their deadlines has to be judged. A
//! policy is one file here and one line in [`POLICIES`]:
//!
//! | policy | what it does |
//! | --- | --- |
//! | `fair-share` | divides evenly over processes, like a file system unaware of jobs |
//! | `set-10` | IO-Sets: jobs of like period take turns, sets share by priority |

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use forebay_model::forecast::Division;
use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Nanos, UnknownPolicy, named};

mod fair_share;
mod set10;

pub use set10::set_of;

/// What the machine receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// A phase begins.
    PhaseBegins {
        /// The job.
        hpc: u32,
        /// Processes that do the I/O.
        weight: f64,
        /// Mean time from the start of one phase of this job to that of the next, in ns.
        period_ns: u64,
    },
    /// The phase of this job is over.
    PhaseEnds {
        /// The job.
        hpc: u32,
    },
}

/// What it decides: each active phase's share of the file system, from 0 to 1, adding up to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// (job, share), in ascending job.
    pub shares: Vec<(u32, f64)>,
}

/// A phase under way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Active {
    /// The job.
    pub hpc: u32,
    /// Processes that do the I/O.
    pub weight: f64,
    /// Time from phase to phase, in ns.
    pub period_ns: u64,
    /// Order of arrival.
    pub arrival: u64,
}

/// How the file system is divided: the part that differs between policies.
pub trait Policy: Send {
    /// How forecasts, which also look at phases to come, divide the file system.
    fn division(&self) -> Division;

    /// The share of each phase of `active`, in its order. Must add up to 1 (work conservation).
    fn shares(&self, active: &[Active]) -> Vec<f64>;
}

/// Makes a policy.
pub type MakePolicy = fn() -> Box<dyn Policy>;

/// Every policy: its name and how to make it. A new one needs a file in this folder and a line
/// here.
pub const POLICIES: &[(&str, MakePolicy)] =
    &[("fair-share", || Box::new(fair_share::FairShare)), ("set-10", || Box::new(set10::Set10))];

/// The policy called `name`.
///
/// # Errors
/// If `name` is unknown; lists the known names.
pub fn policy(name: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    Ok(named(POLICIES, "bandwidth policy", name)?())
}

/// The machine that divides the file system.
pub struct Divider {
    policy: Box<dyn Policy>,
    active: BTreeMap<u32, Active>,
    arrivals: u64,
}

impl Divider {
    /// A machine that follows `policy`.
    pub fn new(policy: Box<dyn Policy>) -> Self {
        Divider { policy, active: BTreeMap::new(), arrivals: 0 }
    }
}

impl Machine for Divider {
    type Event = Event;
    type Action = Shares;

    fn handle(&mut self, _now: Nanos, event: Event, out: &mut Vec<Shares>) {
        match event {
            Event::PhaseBegins { hpc, weight, period_ns } => {
                self.arrivals += 1;
                self.active.insert(hpc, Active { hpc, weight, period_ns, arrival: self.arrivals });
            }
            Event::PhaseEnds { hpc } => {
                self.active.remove(&hpc);
            }
        }
        let active: Vec<Active> = self.active.values().copied().collect();
        let shares = self.policy.shares(&active);
        assert_eq!(shares.len(), active.len(), "a bandwidth policy must give every phase its share");
        out.push(Shares { shares: active.iter().map(|a| a.hpc).zip(shares).collect() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::forecast::{Chain, Turn};
    use proptest::prelude::*;

    fn shares(name: &str, phases: &[(f64, u64)]) -> Vec<f64> {
        let mut machine = Divider::new(policy(name).expect("it exists"));
        let mut out = Vec::new();
        for (hpc, &(weight, period_s)) in (0..).zip(phases) {
            let period_ns = period_s * 1_000_000_000;
            machine.handle(Nanos(0), Event::PhaseBegins { hpc, weight, period_ns }, &mut out);
        }
        out.pop().map(|s| s.shares.into_iter().map(|s| s.1).collect()).unwrap_or_default()
    }

    #[test]
    fn fair_share_goes_by_processes() {
        assert_eq!(shares("fair-share", &[(1.0, 10), (3.0, 1000)]), [0.25, 0.75]);
    }

    /// Periods of 8 and 12 s belong to the set of 10 s, where phases are served in order of
    /// arrival; 100 s has a tenth of the priority.
    #[test]
    fn set_10_takes_turns_within_a_set_and_weighs_between_sets() {
        let got = shares("set-10", &[(1.0, 8), (9.0, 12), (1.0, 100)]);
        assert!((got[0] - 10.0 / 11.0).abs() < 1e-12 && got[1] == 0.0 && (got[2] - 1.0 / 11.0).abs() < 1e-12);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = policy("best").err().expect("there is no such policy");
        assert_eq!(error.to_string(), "no bandwidth policy is called 'best'; there are fair-share, set-10");
    }

    proptest! {
        /// Forecasts give phases the same shares as the policy does.
        #[test]
        fn forecasts_divide_as_the_policy_does(
            which in 0usize..2, phases in prop::collection::vec((1.0f64..4096.0, 1u64..100_000), 1..20)
        ) {
            let chain = |(i, &(weight, period_s)): (usize, &(f64, u64))| Chain {
                in_phase: true,
                left_s: 1.0,
                deadline_s: 1.0,
                io_s: 1.0,
                compute_s: 1.0,
                allowance: 0.0,
                phases_after: 0,
                weight,
                turn: Turn { set: set_of(period_s * 1_000_000_000), arrival: i as u64 },
            };
            let chains: Vec<Chain> = phases.iter().enumerate().map(chain).collect();
            let mut stretches = Vec::new();
            policy(POLICIES[which].0).expect("it exists").division().stretches(&chains, &mut stretches);
            for (share, stretch) in shares(POLICIES[which].0, &phases).into_iter().zip(stretches) {
                prop_assert!((share - 1.0 / stretch).abs() < 1e-9, "{share} {stretch}");
            }
        }

        #[test]
        fn nothing_is_left_over(
            which in 0usize..2, phases in prop::collection::vec((1.0f64..4096.0, 1u64..100_000), 1..20)
        ) {
            let total: f64 = shares(POLICIES[which].0, &phases).iter().sum();
            prop_assert!((total - 1.0).abs() < 1e-9);
        }
    }
}
