//! The run: steps of a millisecond.

use forebay_policy::machine::Nanos;
use forebay_policy::memory::{Action, Controller, Event, Sample, policy};

use super::load::STEP_NS;
use super::{Outcome, POINT_STEPS, Point, Resize, Setup, clairvoyant};
use crate::cancel;
use crate::driver::{Driver, Record};
use crate::error::{Error, Result};
use crate::trace::Trace;

/// The machine of a run.
///
/// # Errors
/// If no law has this name.
pub fn controller(setup: &Setup) -> Result<Controller> {
    let law = policy(&setup.policy)?;
    Ok(Controller::new(law, setup.config.clone(), setup.start_bytes))
}

/// Runs the setup to the end.
///
/// # Errors
/// If no law has this name, or the caller has cancelled it.
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    let record = Record::new(trace);
    let cancel = cancel::current();
    let mut node = Node::new(setup.clone(), super::KIND.into())?;
    while let Some(now) = node.now() {
        if cancel.is_cancelled() {
            let at_s = now.as_secs_f64();
            return Err(Error::Usage(format!("the run was cancelled at {at_s:.3} s")));
        }
        node.step(&record);
    }
    Ok(node.finish())
}

/// A node, step by step.
pub struct Node {
    setup: Setup,
    driver: Driver<Controller>,
    /// Memory of compute and the clairvoyant's tier, at every step.
    compute: Vec<f64>,
    clairvoyant: Vec<f64>,
    next_step: usize,
    tier_bytes: f64,
    next_ns: u64,
    alarmed: bool,
    outcome: Outcome,
}

impl Node {
    /// A node before its first step. `who` is the name of its controller in the trace.
    ///
    /// # Errors
    /// If no law has this name.
    pub fn new(setup: Setup, who: String) -> Result<Self> {
        let compute = setup.compute();
        Ok(Node {
            driver: Driver::new(who, controller(&setup)?),
            clairvoyant: clairvoyant::tier(&setup, &compute),
            compute,
            next_step: 0,
            tier_bytes: setup.start_bytes as f64,
            next_ns: 0,
            alarmed: false,
            outcome: Outcome { end_s: setup.duration_ns as f64 * 1e-9, ..Outcome::default() },
            setup,
        })
    }

    /// When the next step is, if there is one.
    pub fn now(&self) -> Option<Nanos> {
        (self.next_step < self.compute.len()).then_some(Nanos(self.next_step as u64 * STEP_NS))
    }

    /// Capacity of the tier, and what it holds.
    pub fn tier(&self) -> (u64, u64) {
        (self.driver.machine().snapshot(), self.tier_bytes as u64)
    }

    /// Does the next step. After the last one nothing changes any more.
    pub fn step(&mut self, record: &Record<'_>) {
        let Some(now) = self.now() else { return };
        let (compute_bytes, ideal) = (self.compute[self.next_step], self.clairvoyant[self.next_step]);
        let used = compute_bytes + self.tier_bytes;
        self.sample(now, used, record);
        self.count(used);
        self.outcome.tier_bytes += self.tier_bytes;
        self.outcome.clairvoyant_bytes += ideal;
        if self.next_step.is_multiple_of(POINT_STEPS) {
            self.outcome.points.push(Point {
                at_s: now.as_secs_f64(),
                compute_bytes,
                tier_bytes: self.tier_bytes,
                capacity_bytes: self.driver.machine().snapshot(),
                clairvoyant_bytes: ideal,
            });
        }
        self.next_step += 1;
    }

    /// Returns the outcome so far.
    pub fn finish(self) -> Outcome {
        let steps = self.next_step.max(1) as f64;
        let (tier_bytes, clairvoyant_bytes) = (self.outcome.tier_bytes, self.outcome.clairvoyant_bytes);
        Outcome {
            tier_bytes: tier_bytes / steps,
            clairvoyant_bytes: clairvoyant_bytes / steps,
            ..self.outcome
        }
    }

    /// Lets the controller look, if it is time or use has passed the alarm; the tier follows.
    fn sample(&mut self, now: Nanos, used: f64, record: &Record<'_>) {
        let over = used as u64 > self.driver.machine().alarm_bytes();
        let rings = self.setup.has_alarm && over && !self.alarmed;
        self.alarmed = over;
        if now.0 >= self.next_ns || rings {
            let sample = Sample { used_bytes: used as u64, tier_bytes: self.tier_bytes as u64 };
            let event = if rings { Event::Pressure(sample) } else { Event::Sample(sample) };
            self.outcome.samples += 1;
            for action in self.driver.handle(now, event, record) {
                match action {
                    Action::Watch { after_ns } => self.next_ns = (now + after_ns).0,
                    Action::Resize { capacity_bytes, why } => {
                        self.outcome.resizes.push(Resize { at_ns: now.0, capacity_bytes, why });
                    }
                }
            }
        }
        self.follow();
    }

    fn follow(&mut self) {
        let step_s = STEP_NS as f64 * 1e-9;
        let moved = self.driver.machine().snapshot() as f64 - self.tier_bytes;
        let rate = if moved > 0.0 { self.setup.refill_bytes_per_s } else { self.setup.release_bytes_per_s };
        let most = rate.map_or(f64::INFINITY, |r| r * step_s);
        let moved = moved.clamp(-most, most);
        self.tier_bytes += moved;
        self.outcome.fetched_bytes += moved.max(0.0);
    }

    /// Counts a step: what the node sees before the answer has taken effect.
    fn count(&mut self, used: f64) {
        let config = &self.setup.config;
        let (memory, target) = (config.memory_bytes as f64, config.target_bytes());
        let step_s = STEP_NS as f64 * 1e-9;
        self.outcome.peak = self.outcome.peak.max(used / memory);
        for (seconds, limit) in
            [(&mut self.outcome.above_s, target), (&mut self.outcome.far_above_s, target + 0.02 * memory)]
        {
            if used > limit {
                *seconds += step_s;
            }
        }
    }
}
