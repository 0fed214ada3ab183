//! The law `forebay`: releases memory immediately and ahead of growth, takes free memory
//! immediately, and does not react to noise.
//!
//! The published law (`dynims`) corrects a fraction of the error, one period later; while compute
//! grows by g bytes per second, memory use stays g T / lambda above the target. This law computes
//! the tier's room instead of approaching it: the memory of compute is known (c = v - what the tier
//! holds), so the tier may have
//!
//! ```text
//! now    = r0 M - c - g h            while compute stays where it is    calm = r0 M - m - s - g h
//! ```
//!
//! with g the growth that lasts (the lesser of the last two samples', not below 0), h the time
//! until the next decision has taken effect, m the running mean of c, and s half of the deviation
//! of its noise ([`noise`]). If memory is above the target, the tier releases what it has beyond
//! `now`, immediately. If it has less than both, it takes the difference, but no more often than
//! five times per period.
//!
//! The law acts immediately and not in steps because the tier refills from a file system: its size
//! lags behind its capacity by seconds anyway, and a partial step per period only adds to that lag.
//! A slow law protects against memory that is free only for a moment. This law handles that case
//! separately: it follows neither noise nor an oscillation that is too short to be worth a fill
//! ([`rhythm`]).
//!
//! While the memory of compute changes, samples come every `fast_period_ns`, and four times as
//! often after an alarm and while compute grows by more than a hundredth of the memory in that
//! time. So the law reacts within milliseconds to a burst that starts between two samples, and
//! keeps little room free in advance; it samples a quiet node once a period.
//!
//! **Small nodes and groups.** One core fills memory at up to 10 GB/s. At this rate 5 % of 64 GB
//! last for 320 ms, but 5 % of 256 MB last for 1.3 ms: too short to sample, decide and release. So
//! the law keeps at least 40 MB free, or an eighth of the memory if that is less. After an alarm
//! and while compute grows fast, it takes four samples in the time that this room lasts. Where no
//! usage threshold wakes the controller, it samples a quiet node or group twice in the time that
//! the free memory lasts, but at most every `fast_period_ns`, to limit the cost.
//!
//! **Bound.** A capacity is a whole number of blocks, the tier grows at most five times per period,
//! and each resize moves at least one block. So in n periods the tier grows at most 5 n + 1 times,
//! and releases no more blocks than it had at the start and has taken since.

use super::{Alarm, Config, Policy, Reason, Sample, Wish};
use crate::machine::Nanos;

mod noise;
mod rhythm;

use noise::Noise;
use rhythm::Rhythm;

/// Least growth in a period that the law anticipates, as a fraction of the memory; it reacts to
/// less only afterwards.
const GROWTH: f64 = 0.004;
/// Fast periods without movement after which sampling is slow again.
const CALM_AFTER: u32 = 30;
/// Change of direction that is a swing of an oscillation, as a fraction of the memory.
const SWING: f64 = 0.01;
/// Limit on how often the tier grows in a period.
const TAKES_PER_PERIOD: u64 = 5;
/// After an alarm, and while compute grows swiftly, the next sample comes after this part of a fast
/// period: a threshold that is still exceeded does not fire again.
const ALARMED_PARTS: u64 = 4;
/// Growth in a fast period that is swift, as a fraction of the memory. Making room for twice as
/// much would cost a small node much of its tier; denser samples need less room.
const SWIFT: f64 = 0.01;
/// Fastest growth of programs, in bytes per ns: the rate at which one core writes new huge pages.
const SWIFTEST: f64 = 10.0;
/// Time from compute's touch of a page to the release of as much by the tier, with a margin: two
/// samples a millisecond apart, a late wake-up, and the release.
const REACTION_NS: f64 = 4e6;
/// The largest fraction of the memory that is kept free for that.
const KEPT_FREE_MAX: f64 = 0.125;
/// Least time between two samples, because each costs some 20 us.
const SOONEST_NS: u64 = 500_000;
/// An oscillation shorter than this many periods is not followed.
const SHORT_PERIODS: u64 = 5;

fn short_ns(config: &Config) -> u64 {
    config.period_ns.saturating_mul(SHORT_PERIODS)
}

/// The use that the law aims at, in bytes.
fn target_bytes(config: &Config) -> f64 {
    let memory = config.memory_bytes as f64;
    config.target_bytes().min(memory - (SWIFTEST * REACTION_NS).min(KEPT_FREE_MAX * memory))
}

/// Time between two samples of compute that moves swiftly, or is above the alarm.
fn dense_ns(config: &Config) -> u64 {
    let lasts_ns = ((config.memory_bytes as f64 - target_bytes(config)) / SWIFTEST) as u64;
    let usual_ns = config.fast_period_ns / ALARMED_PARTS;
    (lasts_ns / ALARMED_PARTS).max(SOONEST_NS).min(usual_ns).max(1)
}

/// Shrinks by deadbeat control with feed-forward; noise and rhythm hold back growth.
#[derive(Default)]
pub struct Forebay {
    last: Option<(Nanos, f64)>,
    last_growth: f64,
    last_taken: Option<Nanos>,
    fast_left: u32,
    /// The capacity at the last sample, and the samples above the alarm since it changed.
    unmoved: (u64, u32),
    noise: Noise,
    rhythm: Rhythm,
}

/// What the samples show.
struct Seen {
    compute: f64,
    /// Growth that lasts, in bytes per ns.
    growth: f64,
    grows: bool,
    swift: bool,
    /// Whether noise explains the memory of compute.
    noisy: bool,
    after_ns: u64,
}

impl Forebay {
    /// Returns the growth of compute's memory in bytes per ns that lasts over two samples, and how
    /// far it has moved since the last one.
    fn growth(&mut self, now: Nanos, compute: f64) -> (f64, f64) {
        let Some((then, before)) = self.last.replace((now, compute)) else { return (0.0, 0.0) };
        let dt_ns = now.saturating_since(then);
        let growth = if dt_ns > 0 { ((compute - before) / dt_ns as f64).max(0.0) } else { 0.0 };
        let lasting = core::mem::replace(&mut self.last_growth, growth).min(growth);
        (lasting, (compute - before).abs())
    }

    /// Whether dense samples above the alarm are useful: not for long while the capacity stays the
    /// same, because the tier has released everything or cannot release what it holds.
    fn can_help(&mut self, capacity_bytes: u64) -> bool {
        let (before, samples) = self.unmoved;
        let samples = if before == capacity_bytes { samples.saturating_add(1) } else { 0 };
        self.unmoved = (capacity_bytes, samples);
        samples < CALM_AFTER
    }

    fn see(&mut self, now: Nanos, config: &Config, capacity_bytes: u64, sample: Sample) -> Seen {
        let memory = config.memory_bytes as f64;
        let compute = sample.used_bytes.saturating_sub(sample.tier_bytes) as f64;
        let (growth, moved) = self.growth(now, compute);
        let grows = growth * config.period_ns as f64 > GROWTH * memory;
        let growth = if grows { growth } else { 0.0 };
        let noisy = self.noise.explains(compute);
        self.noise.observe(now, config, compute, growth);
        let limit = self.noise.limit();
        self.rhythm.observe(now, compute, limit.max(SWING * memory));
        let alarm_bytes = config.alarm_above(target_bytes(config));
        let alarmed = sample.used_bytes > alarm_bytes && self.can_help(capacity_bytes);
        let moves = grows || alarmed || moved > limit.max(GROWTH * memory);
        let due = self.rhythm.is_due(now, config.period_ns);
        self.fast_left = if moves || due { CALM_AFTER } else { self.fast_left.saturating_sub(1) };
        let swift = growth * config.fast_period_ns as f64 > SWIFT * memory;
        let after_ns = match self.fast_left {
            _ if alarmed || swift => dense_ns(config),
            0 if config.alarm == Alarm::None => {
                let lasts_ns = (memory - sample.used_bytes as f64).max(0.0) / SWIFTEST;
                config.period_ns.min(config.fast_period_ns.max(lasts_ns as u64 / 2))
            }
            0 => config.period_ns,
            _ => config.fast_period_ns,
        };
        Seen { compute, growth, grows, swift, noisy, after_ns }
    }

    /// Expected growth of compute until the next sample and, for as long again, until the decision
    /// that follows it has taken effect.
    fn ahead(&self, now: Nanos, config: &Config, seen: &Seen) -> f64 {
        let least_ns = if seen.swift { seen.after_ns } else { config.fast_period_ns };
        let ahead = seen.growth * 2.0 * seen.after_ns.max(least_ns) as f64;
        // A rise that is part of a known short oscillation ends where the last one did.
        match self.rhythm.top(now, short_ns(config)) {
            Some(top) if seen.compute <= top + SWING * config.memory_bytes as f64 => {
                ahead.min((top - seen.compute).max(0.0))
            }
            _ => ahead,
        }
    }

    /// Whether the tier may take memory now: at most [`TAKES_PER_PERIOD`] times a period, and not
    /// shortly before compute is expected to grow.
    fn may_take(&self, now: Nanos, config: &Config) -> bool {
        // After a clock has gone back, the time since then is unknown.
        let rested = self.last_taken.is_none_or(|then| {
            now < then || now.saturating_since(then) >= config.period_ns / TAKES_PER_PERIOD
        });
        rested && !self.rhythm.is_due(now, config.fast_period_ns.saturating_mul(2))
    }
}

impl Policy for Forebay {
    fn target_bytes(&self, config: &Config) -> f64 {
        target_bytes(config)
    }

    fn next(&mut self, now: Nanos, config: &Config, capacity_bytes: u64, sample: Sample) -> Wish {
        let seen = self.see(now, config, capacity_bytes, sample);
        let (block, target) = (config.block_bytes as f64, target_bytes(config));
        let (used, capacity) = (sample.used_bytes as f64, capacity_bytes as f64);
        let ahead = self.ahead(now, config, &seen);
        let room_now = (target - seen.compute - ahead).max(0.0);
        let room_calm = (target - self.noise.calm() - ahead).max(0.0);
        let wish = |bytes: f64, why| {
            let whole = ((bytes / block) as u64).saturating_mul(config.block_bytes);
            Wish { capacity: Some((whole, why)), after_ns: seen.after_ns }
        };
        let above = used > target + if seen.noisy { 1.0 } else { 0.5 } * block;
        let shrinks = above || (!seen.noisy && room_now < capacity - 0.5 * block);
        if shrinks && room_now < capacity {
            return wish(room_now, if seen.grows { Reason::Growth } else { Reason::Above });
        }
        if seen.noisy && room_calm < capacity - block {
            return wish(room_calm, Reason::Above);
        }
        let ceiling = self.rhythm.ceiling(now, short_ns(config));
        let room = room_calm.min(room_now).min(ceiling.map_or(f64::INFINITY, |high| target - high));
        if seen.grows || room - capacity < block || !self.may_take(now, config) {
            return Wish { capacity: None, after_ns: seen.after_ns };
        }
        self.last_taken = Some(now);
        wish(room, Reason::Below)
    }
}
