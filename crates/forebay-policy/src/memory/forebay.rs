//! `forebay`: quick to give, slow to take, and ahead of growth.
//!
//! The printed law answers an error with a part of it, one period later; while compute grows by g bytes a second, memory
//! stays g T / lambda above the target. Here the tier's room is computed rather than approached: what compute has is known
//! (c = v - what the tier holds), so the tier may have
//!
//! ```text
//! room = r0 M - c - g h
//! ```
//!
//! with g the growth since the last sample (not below 0) and h the time until the next decision has taken effect. If the
//! tier has more, it gives the difference at once. If it has less, it takes a fifth of it per period: memory that is
//! free for a moment is not worth filling, and a fill that has to be evicted again costs the file system twice.
//!
//! While compute grows, and after an alarm, samples come every `fast_period_ns`, so that a burst that starts between two
//! samples is met after milliseconds; a quiet node is looked at as rarely as before.

use super::{Config, Policy, Reason, Sample, Wish};
use crate::machine::Nanos;

/// Part of the missing room that is taken in one period.
const TAKE: f64 = 0.2;
/// Growth in a period that counts as such, as a part of the memory; less is met when it is there.
const GROWTH: f64 = 0.004;
/// Slower sampling again after so many fast periods without growth.
const CALM_AFTER: u32 = 10;

/// Deadbeat downwards with feed-forward, first order upwards.
#[derive(Default)]
pub struct Forebay {
    last: Option<(Nanos, u64)>,
    fast_left: u32,
}

impl Forebay {
    /// Growth of compute's memory in bytes per ns, 0 if it shrinks or was not seen before.
    fn growth(&mut self, now: Nanos, compute_bytes: u64) -> (f64, u64) {
        let last = self.last.replace((now, compute_bytes));
        let Some((then, before)) = last else { return (0.0, 0) };
        let dt_ns = now.saturating_since(then);
        if dt_ns == 0 {
            (0.0, 0)
        } else {
            (compute_bytes.saturating_sub(before) as f64 / dt_ns as f64, dt_ns)
        }
    }
}

impl Policy for Forebay {
    fn next(&mut self, now: Nanos, config: &Config, capacity_bytes: u64, sample: Sample) -> Wish {
        let compute_bytes = sample.used_bytes.saturating_sub(sample.tier_bytes);
        let (growth, dt_ns) = self.growth(now, compute_bytes);
        let block = config.block_bytes as f64;
        let grows = growth * config.period_ns as f64 > GROWTH * config.memory_bytes as f64;
        let now_room = config.target_bytes() - compute_bytes as f64;
        let above = sample.used_bytes as f64 > config.target_bytes() + 0.5 * block;
        self.fast_left = if grows || above { CALM_AFTER } else { self.fast_left.saturating_sub(1) };
        let after_ns = if self.fast_left > 0 { config.fast_period_ns } else { config.period_ns };
        // Until the next sample, and once more for it to take effect.
        let ahead = if grows { growth * 2.0 * after_ns as f64 } else { 0.0 };
        let room = (now_room - ahead).max(0.0);
        let capacity = capacity_bytes as f64;
        let whole = |bytes: f64| (bytes / block) as u64 * config.block_bytes;
        if room < capacity - 0.5 * block {
            let why = if now_room < capacity { Reason::Above } else { Reason::Growth };
            let why = if grows { Reason::Growth } else { why };
            return Wish { capacity: Some((whole(room), why)), after_ns };
        }
        let periods = (dt_ns as f64 / config.period_ns as f64).min(1.0);
        let taken = TAKE * periods * (room - capacity);
        if grows || room - capacity < block {
            return Wish { capacity: None, after_ns };
        }
        // Whole blocks, at least one per period: a fifth of little is nothing.
        let step = if periods >= 1.0 { taken.max(block) } else { taken };
        Wish { capacity: Some((whole(capacity + step), Reason::Below)), after_ns }
    }
}
