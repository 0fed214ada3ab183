//! The run: steps of a millisecond.

use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::memory::{Action, Controller, Event, Sample, policy};

use super::load::STEP_NS;
use super::{Outcome, POINT_STEPS, Point, Resize, Setup, clairvoyant};
use crate::cancel;
use crate::error::{Error, Result};
use crate::pump::{Pump, Record};
use crate::trace::Trace;

/// The machine of a run.
///
/// # Errors
/// If no law has this name.
pub fn controller(setup: &Setup) -> Result<Controller> {
    let law = policy(&setup.policy).map_err(Error::Usage)?;
    Ok(Controller::new(law, setup.config.clone(), setup.start_bytes))
}

/// Runs it to the end.
///
/// # Errors
/// If no law has this name, or the caller has cancelled it.
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    // At most ten million steps follow, which take a few seconds.
    if cancel::current().is_cancelled() {
        return Err(Error::Usage("the run was cancelled at 0.000 s".into()));
    }
    let compute = setup.compute();
    let clairvoyant = clairvoyant::tier(setup, &compute);
    let record = Record::new(trace);
    let mut node = Node {
        setup,
        pump: Pump::new("memory", controller(setup)?),
        tier_bytes: setup.start_bytes as f64,
        next_ns: 0,
        alarmed: false,
        outcome: Outcome { end_s: setup.duration_ns as f64 * 1e-9, ..Outcome::default() },
    };
    for (step, (&compute_bytes, &ideal)) in compute.iter().zip(&clairvoyant).enumerate() {
        let now = Nanos(step as u64 * STEP_NS);
        let used = compute_bytes + node.tier_bytes;
        node.sample(now, used, &record);
        node.count(used);
        node.outcome.tier_bytes += node.tier_bytes;
        node.outcome.clairvoyant_bytes += ideal;
        if step.is_multiple_of(POINT_STEPS) {
            node.outcome.points.push(Point {
                at_s: now.as_secs_f64(),
                compute_bytes,
                tier_bytes: node.tier_bytes,
                capacity_bytes: node.pump.machine().snapshot(),
                clairvoyant_bytes: ideal,
            });
        }
    }
    let steps = compute.len().max(1) as f64;
    node.outcome.tier_bytes /= steps;
    node.outcome.clairvoyant_bytes /= steps;
    Ok(node.outcome)
}

struct Node<'a> {
    setup: &'a Setup,
    pump: Pump<Controller>,
    tier_bytes: f64,
    next_ns: u64,
    alarmed: bool,
    outcome: Outcome,
}

impl Node<'_> {
    /// The controller looks, if it is time or use has passed the alarm, and the tier follows.
    fn sample(&mut self, now: Nanos, used: f64, record: &Record<'_>) {
        let over = used as u64 > self.setup.config.alarm_bytes();
        let rings = self.setup.has_alarm && over && !self.alarmed;
        self.alarmed = over;
        if now.0 >= self.next_ns || rings {
            let sample = Sample { used_bytes: used as u64, tier_bytes: self.tier_bytes as u64 };
            let event = if rings { Event::Pressure(sample) } else { Event::Sample(sample) };
            self.outcome.samples += 1;
            for action in self.pump.tell(now, event, record) {
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
        let moved = self.pump.machine().snapshot() as f64 - self.tier_bytes;
        let rate = if moved > 0.0 { self.setup.refill_bytes_per_s } else { self.setup.release_bytes_per_s };
        let most = rate.map_or(f64::INFINITY, |r| r * step_s);
        let moved = moved.clamp(-most, most);
        self.tier_bytes += moved;
        self.outcome.fetched_bytes += moved.max(0.0);
    }

    /// What the node sees before the answer has taken effect counts.
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
