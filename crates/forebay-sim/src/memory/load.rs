//! Memory of compute over time.

use forebay_model::rng::Rng;
use serde::{Deserialize, Serialize};

/// Length of a step, in ns.
pub const STEP_NS: u64 = 1_000_000;

/// What compute holds: the sum of its parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// What it holds all the time.
    pub base_bytes: f64,
    /// Processes that come and go.
    pub pulses: Vec<Pulse>,
    /// Fluctuation around all this.
    pub noise: Option<Noise>,
    /// Measured points (ns, bytes) in ascending order of time; linear in between.
    pub trace: Vec<(u64, u64)>,
}

/// A process that grows, holds its memory, releases it and rests, repeatedly. With a slow rise it
/// is a ramp, without hold and rest a sawtooth, with a long hold a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pulse {
    /// Name for people.
    pub name: String,
    /// Its memory at its height.
    pub bytes: f64,
    /// How fast it grows.
    pub rise_bytes_per_s: f64,
    /// How fast it releases memory.
    pub fall_bytes_per_s: f64,
    /// Mean time at its height, in seconds.
    pub hold_s: f64,
    /// Mean time with nothing, before the next time.
    pub rest_s: f64,
    /// Number of repetitions.
    pub count: u32,
    /// Times and heights vary uniformly between 1 - jitter and 1 + jitter times their mean; heights
    /// only downwards.
    pub jitter: f64,
    /// When it begins, in seconds.
    pub starts_s: f64,
}

/// Independent, nearly normal values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Their deviation.
    pub deviation_bytes: f64,
    /// Time from one value to the next.
    pub every_ns: u64,
}

impl Pulse {
    /// Its corners, (seconds, bytes), up to the end of the run.
    fn corners(&self, mut rng: Rng, end_s: f64) -> Vec<(f64, f64)> {
        let mut at_s = self.starts_s;
        let mut corners = Vec::new();
        for _ in 0..self.count {
            if at_s > end_s {
                break;
            }
            let mut vary = || 1.0 + self.jitter * (2.0 * rng.unit() - 1.0);
            let bytes = self.bytes * vary().min(1.0);
            corners.push((at_s, 0.0));
            at_s += bytes / self.rise_bytes_per_s;
            corners.push((at_s, bytes));
            at_s += self.hold_s * vary();
            corners.push((at_s, bytes));
            at_s += bytes / self.fall_bytes_per_s;
            corners.push((at_s, 0.0));
            at_s += self.rest_s * vary();
        }
        corners
    }
}

/// The value at `at_s` of the line through `corners`, of which `next` is the first one later: level
/// before the first and after the last.
fn value(corners: &[(f64, f64)], next: usize, at_s: f64) -> f64 {
    let before = next.checked_sub(1).and_then(|i| corners.get(i));
    match (before, corners.get(next)) {
        (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (at_s - a.0) / (b.0 - a.0),
        (Some(a), None) => a.1,
        (None, first) => first.map_or(0.0, |b| b.1),
    }
}

impl Load {
    /// Bytes at every step of a run; never negative.
    pub fn steps(&self, seed: u64, duration_ns: u64) -> Vec<f64> {
        let steps = (duration_ns / STEP_NS) as usize;
        let mut sum = vec![self.base_bytes; steps];
        let rng = Rng::new(seed);
        for (i, pulse) in (0..).zip(&self.pulses) {
            add(&mut sum, &pulse.corners(rng.fork(i), duration_ns as f64 * 1e-9));
        }
        let trace: Vec<_> = self.trace.iter().map(|p| (p.0 as f64 * 1e-9, p.1 as f64)).collect();
        add(&mut sum, &trace);
        if let Some(noise) = self.noise {
            noise.add(&mut sum, rng);
        }
        sum.iter_mut().for_each(|bytes| *bytes = bytes.max(0.0));
        sum
    }
}

fn add(sum: &mut [f64], corners: &[(f64, f64)]) {
    let mut next = 0;
    for (step, sum) in sum.iter_mut().enumerate() {
        let at_s = step as f64 * (STEP_NS as f64 * 1e-9);
        while corners.get(next).is_some_and(|corner| corner.0 <= at_s) {
            next += 1;
        }
        *sum += value(corners, next, at_s);
    }
}

impl Noise {
    fn add(&self, sum: &mut [f64], mut rng: Rng) {
        let steps = (self.every_ns / STEP_NS).max(1) as usize;
        for part in sum.chunks_mut(steps) {
            // The sum of twelve uniform numbers, less six: near enough to a normal one.
            let value = self.deviation_bytes * ((0..12).map(|_| rng.unit()).sum::<f64>() - 6.0);
            part.iter_mut().for_each(|bytes| *bytes += value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_by_hand() {
        let pulse = Pulse {
            name: "p".into(),
            bytes: 10.0,
            rise_bytes_per_s: 10.0,
            fall_bytes_per_s: 20.0,
            hold_s: 2.0,
            rest_s: 0.5,
            count: 2,
            jitter: 0.0,
            starts_s: 1.0,
        };
        let load = Load { base_bytes: 5.0, pulses: vec![pulse], ..Load::default() };
        let steps = load.steps(1, 10_000 * STEP_NS);
        let at = |ms: usize| (steps[ms] * 1e6).round() / 1e6;
        assert_eq!([0, 999, 1_500, 2_000, 3_900].map(at), [5.0, 5.0, 10.0, 15.0, 15.0]);
        assert_eq!([4_250, 4_500, 4_999, 5_500, 9_000].map(at), [10.0, 5.0, 5.0, 10.0, 5.0]);
    }

    #[test]
    fn a_trace_is_linear_between_its_points_and_level_outside() {
        let load = Load { trace: vec![(STEP_NS, 10), (3 * STEP_NS, 30)], ..Load::default() };
        let steps: Vec<f64> = load.steps(1, 6 * STEP_NS).iter().map(|b| b.round()).collect();
        assert_eq!(steps, [10.0, 10.0, 20.0, 30.0, 30.0, 30.0]);
    }
}
