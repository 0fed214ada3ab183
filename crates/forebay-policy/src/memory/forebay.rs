//! `forebay`: quick to give, slow to take, ahead of growth, and not shaken by noise.
//!
//! The printed law answers an error with a part of it, one period later; while compute grows by g
//! bytes a second, memory stays g T / lambda above the target. Here the tier's room is computed
//! rather than approached: what compute has is known (c = v - what the tier holds), so the tier may
//! have
//!
//! ```text
//! now    = r0 M - c - g h            while compute stays where it is    calm = r0 M - m - s - g h
//! ```
//!
//! with g the growth that lasts (the lesser of the last two samples', not below 0), h the time
//! until the next decision has taken effect, m the running mean of c, and s the deviation of its
//! noise. If memory is above the target, the tier gives what it has beyond `now`, at once. If it
//! has less than both, it takes a fifth of the difference per period: memory that is free for a
//! moment is not worth filling, and a fill that has to be evicted again costs the file system
//! twice.
//!
//! **Noise.** Compute that goes up and down by itself would drive a law that only knows `now` from
//! peak to peak: it gives way to each and takes back slowly, so that it lives by the highest peak
//! of the last second. So c within four deviations of m is noise. For it one deviation is kept free
//! all the time, what is above the target by less than an alarm is let pass, and what was given to
//! a peak is taken back when that is over: four deviations at once, what is free beyond that by
//! fifths. The deviation comes from second differences of c, which a steady growth does not have:
//! for independent noise their mean absolute value is 1.954 s.
//!
//! While compute grows, and after an alarm, samples come every `fast_period_ns`, so that a burst
//! that starts between two samples is met after milliseconds; a quiet node is looked at as rarely
//! as before.

use super::{Config, Policy, Reason, Sample, Wish};
use crate::machine::Nanos;

/// Part of the missing room that is taken in one period.
const TAKE: f64 = 0.2;
/// Growth in a period that counts as such, as a part of the memory; less is met when it is there.
const GROWTH: f64 = 0.004;
/// Slower sampling again after so many fast periods without growth.
const CALM_AFTER: u32 = 10;
/// Weights of a new sample in the mean and in the deviation: the mean over some two seconds, the
/// deviation over five.
const MEAN_WEIGHT: f64 = 0.05;
const NOISE_WEIGHT: f64 = 0.02;
/// What is further from the mean than so many deviations is no noise, and the mean starts anew
/// there.
const NOISE_LIMIT: f64 = 4.0;
/// Mean absolute second difference of independent normal noise, in deviations: sqrt(6) sqrt(2 /
/// pi).
const SECOND_DIFFERENCE: f64 = 1.954;

/// Deadbeat downwards with feed-forward, first order upwards.
#[derive(Default)]
pub struct Forebay {
    last: Option<(Nanos, f64)>,
    last_growth: f64,
    fast_left: u32,
    noise: Noise,
}

/// What compute's memory does by itself, from one sample a period.
#[derive(Default)]
struct Noise {
    seen: Option<Nanos>,
    /// The last two samples, the later one first.
    before: [Option<f64>; 2],
    mean: f64,
    deviation: f64,
}

impl Noise {
    fn observe(&mut self, now: Nanos, period_ns: u64, compute: f64, growth: f64) {
        match self.seen {
            Some(then) if now.saturating_since(then) < period_ns => return,
            Some(_) => {}
            None => self.mean = compute,
        }
        self.seen = Some(now);
        if let [Some(last), Some(earlier)] = self.before {
            let second_difference = (compute - 2.0 * last + earlier).abs();
            self.deviation += NOISE_WEIGHT * (second_difference / SECOND_DIFFERENCE - self.deviation);
        }
        self.before = [Some(compute), self.before[0]];
        self.mean += growth * period_ns as f64;
        self.mean += MEAN_WEIGHT * (compute - self.mean);
        if (compute - self.mean).abs() > NOISE_LIMIT * self.deviation {
            self.mean = compute;
        }
    }

    fn explains(&self, compute: f64) -> bool {
        self.deviation > 0.0 && compute - self.mean < NOISE_LIMIT * self.deviation
    }
}

impl Forebay {
    /// Growth of compute's memory in bytes per ns that lasts over two samples, and the time since
    /// the last one in ns.
    fn growth(&mut self, now: Nanos, compute: f64) -> (f64, u64) {
        let Some((then, before)) = self.last.replace((now, compute)) else { return (0.0, 0) };
        let dt_ns = now.saturating_since(then);
        let growth = if dt_ns > 0 { ((compute - before) / dt_ns as f64).max(0.0) } else { 0.0 };
        (core::mem::replace(&mut self.last_growth, growth).min(growth), dt_ns)
    }
}

impl Policy for Forebay {
    fn next(&mut self, now: Nanos, config: &Config, capacity_bytes: u64, sample: Sample) -> Wish {
        let (block, target) = (config.block_bytes as f64, config.target_bytes());
        let (used, capacity) = (sample.used_bytes as f64, capacity_bytes as f64);
        let compute = (used - sample.tier_bytes as f64).max(0.0);
        let (growth, dt_ns) = self.growth(now, compute);
        let grows = growth * config.period_ns as f64 > GROWTH * config.memory_bytes as f64;
        let lasting = if grows { growth } else { 0.0 };
        let peak = NOISE_LIMIT * self.noise.deviation;
        self.noise.observe(now, config.period_ns, compute, lasting);
        let alarmed = sample.used_bytes > config.alarm_bytes();
        self.fast_left = if grows || alarmed { CALM_AFTER } else { self.fast_left.saturating_sub(1) };
        let after_ns = if self.fast_left > 0 { config.fast_period_ns } else { config.period_ns };
        // Until the next sample, and once more for it to take effect.
        let ahead = lasting * 2.0 * after_ns as f64;
        let room_now = (target - compute - ahead).max(0.0);
        let room_calm = (target - self.noise.mean - self.noise.deviation - ahead).max(0.0);
        let noisy = self.noise.explains(compute);
        let wish = |bytes: f64, why| Wish {
            capacity: Some(((bytes / block) as u64 * config.block_bytes, why)),
            after_ns,
        };
        let periods = (dt_ns as f64 / config.period_ns as f64).min(1.0);
        let above = used > target + if noisy { 1.5 } else { 0.5 } * block;
        let shrinks = above || (!noisy && room_now < capacity - 0.5 * block);
        if shrinks && room_now < capacity {
            return wish(room_now, if grows { Reason::Growth } else { Reason::Above });
        }
        if noisy && room_calm < capacity - block {
            return wish(capacity - TAKE * periods * (capacity - room_calm), Reason::Above);
        }
        let missing = room_calm.min(room_now) - capacity;
        if grows || missing < block {
            return Wish { capacity: None, after_ns };
        }
        // Whole blocks, at least one per period: a fifth of little is nothing. What a peak can have
        // taken comes back at once; what is free beyond that is compute that has gone, and not
        // hurried after.
        let after_peak = if noisy { missing.min(peak) + 0.5 * block } else { 0.0 };
        let taken = (TAKE * periods * missing).max(after_peak);
        wish(capacity + if periods >= 1.0 { taken.max(block) } else { taken }, Reason::Below)
    }
}
