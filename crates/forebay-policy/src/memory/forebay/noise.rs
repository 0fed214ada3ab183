//! What compute's memory does by itself, around a mean that moves.
//!
//! A law that only knows what compute has at the moment is driven from peak to peak by noise. So
//! what is within three deviations of the mean is noise: half a deviation is kept free for it all
//! the time, and what is above the target by less than a block is let pass.
//!
//! The deviation comes from second differences of samples a period apart, which a steady growth
//! does not have, and from their median, not their mean: the jumps of processes that come and go
//! are few and large, and are no noise. The estimate goes up by a small part when a difference is
//! above what it makes the median, and down when it is below, so it needs no memory of samples.

use crate::machine::Nanos;
use crate::memory::Config;

/// Weight of a new sample in the mean: the mean over some two seconds of periods.
const MEAN_WEIGHT: f64 = 0.05;
/// Part by which a sample changes the deviation.
const STEP: f64 = 0.03;
/// What is further from the mean than so many deviations is no noise, and the mean starts anew
/// there.
const LIMIT: f64 = 3.0;
/// Deviations that are kept free.
const MARGIN: f64 = 0.5;
/// Greatest deviation, as a part of the memory: what moves further is followed.
const MOST: f64 = 0.005;
/// Median of the absolute second difference of independent normal noise, in deviations: 0.6745
/// sqrt(6).
const MEDIAN: f64 = 1.652;
/// Least deviation, in blocks: less is not seen, and from nothing no estimate can grow.
const LEAST_BLOCKS: f64 = 0.125;

/// Mean and deviation.
#[derive(Default)]
pub struct Noise {
    seen: Option<Nanos>,
    /// The last two samples, the later one first.
    before: [Option<f64>; 2],
    mean: f64,
    deviation: f64,
}

impl Noise {
    /// Takes in what compute has, and by how much it grows in a ns.
    pub fn observe(&mut self, now: Nanos, config: &Config, compute: f64, growth: f64) {
        let least = LEAST_BLOCKS * config.block_bytes as f64;
        if self.seen.is_none_or(|then| now < then || now.saturating_since(then) >= config.period_ns) {
            if self.seen.is_none() {
                self.mean = compute;
            }
            self.seen = Some(now);
            if let [Some(last), Some(earlier)] = self.before {
                let above = (compute - 2.0 * last + earlier).abs() > MEDIAN * self.deviation;
                self.deviation *= if above { 1.0 + STEP } else { 1.0 - STEP };
            }
            self.before = [Some(compute), self.before[0]];
            self.mean += growth * config.period_ns as f64;
            self.mean += MEAN_WEIGHT * (compute - self.mean);
        }
        self.deviation = self.deviation.min(MOST * config.memory_bytes as f64).max(least);
        if (compute - self.mean).abs() > self.limit() {
            self.mean = compute;
        }
    }

    /// How far from the mean noise goes.
    pub fn limit(&self) -> f64 {
        LIMIT * self.deviation
    }

    /// What compute has, with what is kept free for its noise.
    pub fn calm(&self) -> f64 {
        self.mean + MARGIN * self.deviation
    }

    /// Whether noise can be why compute has so much, or less.
    pub fn explains(&self, compute: f64) -> bool {
        compute - self.mean < self.limit()
    }
}
