//! When burst buffers write what they hold to the parallel file system, and how fast.
//!
//! A step in burst buffers has to go on to the file system, where it disturbs the I/O phases of HPC
//! jobs and the reads of analytics jobs. The machine hears which steps wait, and what else uses the
//! file system. It answers with a rate for each step. A policy is a line in [`POLICIES`]:
//!
//! | policy | what it does |
//! | --- | --- |
//! | `at-once` | drains at the full rate, whatever else uses the file system |
//! | `yield` | pauses beside I/O phases, and drains slowly beside prefetches |
//!
//! Under `yield`, a step that keeps a job from writing its next one drains slowly even beside a
//! phase: otherwise jobs whose phases follow each other closely would fill the buffers, and HPC
//! jobs would wait for their own checkpoints.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Nanos};

/// Names a step that is drained; the driver chooses it and never uses it twice.
pub type DrainId = u64;

/// What the machine is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// A step lies in burst buffers.
    Begins {
        /// Names it from now on.
        drain: DrainId,
    },
    /// A job waits for the room of this step.
    Urgent {
        /// Which step.
        drain: DrainId,
    },
    /// The step lies on the file system, or has been lost.
    Ends {
        /// Which step.
        drain: DrainId,
    },
    /// An I/O phase of an HPC job on the file system begins.
    PhaseBegins {
        /// Whose.
        hpc: u32,
    },
    /// The phase is over.
    PhaseEnds {
        /// Whose.
        hpc: u32,
    },
    /// Nodes prefetch for analytics jobs from now on, or no longer.
    Prefetch {
        /// Whether they do.
        under_way: bool,
    },
}

/// What it decides: from now on, the step is drained at this rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pace {
    /// Which step.
    pub drain: DrainId,
    /// 0 to pause.
    pub rate_bytes_per_s: u64,
}

/// Configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Rate of all drains together.
    pub rate_bytes_per_s: u64,
    /// The same where they are to go slowly.
    pub slow_bytes_per_s: u64,
}

/// What else uses the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// I/O phases under way.
    pub phases: usize,
    /// Whether nodes prefetch.
    pub prefetch: bool,
}

/// The part that differs between policies.
pub trait Policy: Send {
    /// Rate of all steps together that nobody waits for, and of those for whose room a job waits.
    fn rates_bytes_per_s(&self, config: &Config, others: Others) -> [u64; 2];
}

struct AtOnce;

impl Policy for AtOnce {
    fn rates_bytes_per_s(&self, config: &Config, _others: Others) -> [u64; 2] {
        [config.rate_bytes_per_s; 2]
    }
}

struct Yield;

impl Policy for Yield {
    fn rates_bytes_per_s(&self, config: &Config, others: Others) -> [u64; 2] {
        match others {
            Others { phases: 1.., .. } => [0, config.slow_bytes_per_s],
            Others { prefetch: true, .. } => [config.slow_bytes_per_s; 2],
            _ => [config.rate_bytes_per_s; 2],
        }
    }
}

/// Makes a policy.
pub type MakePolicy = fn() -> Box<dyn Policy>;

/// Every policy: its name and how to make it.
pub const POLICIES: &[(&str, MakePolicy)] =
    &[("at-once", || Box::new(AtOnce)), ("yield", || Box::new(Yield))];

/// The policy called `name`.
///
/// # Errors
/// Lists the names that there are.
pub fn policy(name: &str) -> Result<Box<dyn Policy>, String> {
    match POLICIES.iter().find(|p| p.0 == name) {
        Some((_, make)) => Ok(make()),
        None => {
            let names: Vec<&str> = POLICIES.iter().map(|p| p.0).collect();
            Err(alloc::format!("no drain policy is called '{name}'; there are {}", names.join(", ")))
        }
    }
}

/// A step that is drained.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    is_urgent: bool,
    rate_bytes_per_s: Option<u64>,
}

/// The machine.
pub struct Drains {
    policy: Box<dyn Policy>,
    config: Config,
    steps: BTreeMap<DrainId, Step>,
    phases: BTreeSet<u32>,
    has_prefetch: bool,
}

impl Drains {
    /// Nothing is drained.
    pub fn new(policy: Box<dyn Policy>, config: Config) -> Self {
        Drains { policy, config, steps: BTreeMap::new(), phases: BTreeSet::new(), has_prefetch: false }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Begins { drain } => {
                self.steps.entry(drain).or_default();
            }
            Event::Urgent { drain } => {
                self.steps.entry(drain).and_modify(|step| step.is_urgent = true);
            }
            Event::Ends { drain } => {
                self.steps.remove(&drain);
            }
            Event::PhaseBegins { hpc } => {
                self.phases.insert(hpc);
            }
            Event::PhaseEnds { hpc } => {
                self.phases.remove(&hpc);
            }
            Event::Prefetch { under_way } => self.has_prefetch = under_way,
        }
    }
}

impl Machine for Drains {
    type Event = Event;
    type Action = Pace;
    type Snapshot = Vec<DrainId>;

    /// Steps share a rate evenly. If urgent steps may go faster, they share theirs alone.
    fn handle(&mut self, _now: Nanos, event: Event, out: &mut Vec<Pace>) {
        self.note(event);
        let others = Others { phases: self.phases.len(), prefetch: self.has_prefetch };
        let [calm, urgent] = self.policy.rates_bytes_per_s(&self.config, others);
        let urgent_steps = self.steps.values().filter(|step| step.is_urgent).count();
        let sharers = if calm == urgent { self.steps.len() } else { urgent_steps };
        let calm_sharers = if calm == urgent { sharers } else { self.steps.len() - urgent_steps };
        let share = |rate: u64, among: usize| if rate == 0 { 0 } else { (rate / among.max(1) as u64).max(1) };
        let (calm, urgent) = (share(calm, calm_sharers), share(urgent, sharers));
        for (&drain, step) in &mut self.steps {
            let rate_bytes_per_s = if step.is_urgent { urgent } else { calm };
            if step.rate_bytes_per_s.replace(rate_bytes_per_s) != Some(rate_bytes_per_s) {
                out.push(Pace { drain, rate_bytes_per_s });
            }
        }
    }

    fn snapshot(&self) -> Vec<DrainId> {
        self.steps.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str) -> impl FnMut(Event) -> Vec<(DrainId, u64)> {
        let config = Config { rate_bytes_per_s: 100, slow_bytes_per_s: 10 };
        let mut machine = Drains::new(policy(name).expect("it exists"), config);
        move |event| {
            let mut out = Vec::new();
            machine.handle(Nanos(0), event, &mut out);
            out.iter().map(|pace| (pace.drain, pace.rate_bytes_per_s)).collect()
        }
    }

    #[test]
    fn at_once_divides_its_rate_over_steps_and_minds_nobody() {
        let mut tell = machine("at-once");
        assert_eq!(tell(Event::Begins { drain: 1 }), [(1, 100)]);
        assert_eq!(tell(Event::Begins { drain: 2 }), [(1, 50), (2, 50)]);
        assert_eq!(tell(Event::PhaseBegins { hpc: 0 }), []);
        assert_eq!(tell(Event::Urgent { drain: 2 }), []);
        assert_eq!(tell(Event::Ends { drain: 1 }), [(2, 100)]);
    }

    #[test]
    fn yield_pauses_beside_phases_and_goes_slowly_beside_prefetches() {
        let mut tell = machine("yield");
        assert_eq!(tell(Event::Begins { drain: 1 }), [(1, 100)]);
        assert_eq!(tell(Event::Prefetch { under_way: true }), [(1, 10)]);
        assert_eq!(tell(Event::PhaseBegins { hpc: 7 }), [(1, 0)]);
        assert_eq!(tell(Event::Prefetch { under_way: false }), []);
        assert_eq!(tell(Event::PhaseEnds { hpc: 7 }), [(1, 100)]);
    }

    #[test]
    fn a_step_whose_room_is_wanted_goes_on_beside_a_phase() {
        let mut tell = machine("yield");
        tell(Event::PhaseBegins { hpc: 0 });
        assert_eq!(tell(Event::Begins { drain: 1 }), [(1, 0)]);
        assert_eq!(tell(Event::Begins { drain: 2 }), [(2, 0)]);
        assert_eq!(tell(Event::Urgent { drain: 2 }), [(2, 10)]);
        assert_eq!(tell(Event::PhaseEnds { hpc: 0 }), [(1, 50), (2, 50)]);
    }
}
