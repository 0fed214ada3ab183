//! `dynims`: the law as published,
//!
//! ```text
//! u[i+1] = u[i] - lambda v[i] (r[i] - r0) / r0,   r = v / M
//! ```
//!
//! if |v - r0 M| is at least two blocks; rounded to (floor(u / B) + 1) B and held within [U_min,
//! U_max]. Near r0 the error v - r0 M is multiplied by 1 - lambda each period (v / (r0 M) is about
//! 1), so it dies out for 0 < lambda < 2.

use super::{Config, Policy, Reason, Sample, Wish};
use crate::machine::Nanos;

/// Integral feedback.
pub struct DynIms;

impl Policy for DynIms {
    fn next(&mut self, _now: Nanos, config: &Config, capacity_bytes: u64, sample: Sample) -> Wish {
        let after_ns = config.period_ns;
        let used = sample.used_bytes as f64;
        let error = used - config.target_bytes();
        if error.abs() < 2.0 * config.block_bytes as f64 {
            return Wish { capacity: None, after_ns };
        }
        let utilisation = used / config.memory_bytes as f64;
        let wanted =
            capacity_bytes as f64 - config.gain * used * (utilisation - config.target) / config.target;
        let blocks = ((wanted.max(0.0) / config.block_bytes as f64) as u64).saturating_add(1);
        let why = if error > 0.0 { Reason::Above } else { Reason::Below };
        // A wish below zero is zero, not one block.
        let bytes = if wanted < 0.0 { 0 } else { blocks.saturating_mul(config.block_bytes) };
        Wish { capacity: Some((bytes, why)), after_ns }
    }
}
