//! Fluctuation of compute's memory around a mean that moves.
//!
//! A law that only knows the current memory of compute is driven from peak to peak by noise. So
//! values within three deviations of the mean are noise: half a deviation is kept free for it all
//! the time, and an excess over the target by less than a block is ignored.
//!
//! The deviation comes from second differences of samples a period apart, which a steady growth
//! does not have, and from their median, not their mean: the jumps of processes that come and go
//! are few and large, and are not noise. The estimate goes up by a small part when a difference is
//! above the median that it implies, and down when it is below, so it needs no memory of samples.

use crate::machine::Nanos;
use crate::memory::Config;

/// Weight of a new sample in the mean: the mean over some two seconds of periods.
const MEAN_WEIGHT: f64 = 0.05;
/// Part by which a sample changes the deviation.
const STEP: f64 = 0.03;
/// A sample further from the mean than this many deviations is not noise, and the mean restarts
/// there.
const LIMIT: f64 = 3.0;
/// Deviations that are kept free.
const MARGIN: f64 = 0.5;
/// Greatest deviation, as a fraction of the memory: greater movements are followed.
const MOST: f64 = 0.005;
/// Median of the absolute second difference of independent normal noise, in deviations: 0.6745
/// sqrt(6).
const MEDIAN: f64 = 1.652;
/// Least deviation, in blocks: less is not seen, and an estimate of zero could never grow.
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
    /// Records the memory of compute, and by how much it grows per ns.
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

    /// Returns how far noise goes from the mean.
    pub fn limit(&self) -> f64 {
        LIMIT * self.deviation
    }

    /// Returns the mean memory of compute, with what is kept free for its noise.
    pub fn calm(&self) -> f64 {
        self.mean + MARGIN * self.deviation
    }

    /// Returns whether `compute` is below the mean plus the limit of noise.
    pub fn explains(&self, compute: f64) -> bool {
        compute - self.mean < self.limit()
    }
}
