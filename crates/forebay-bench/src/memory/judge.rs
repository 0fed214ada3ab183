//! What the samples of a ramp say.

use super::group::Sample;
use super::hog::Burst;

/// Target of the memory laws, and where the kernel wakes the agent, as shares of the memory.
pub const TARGET: f64 = 0.95;
const ALARM: f64 = TARGET + 0.002;
const ABOVE: f64 = TARGET + 0.02;

/// The judgement of one ramp.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verdict {
    /// Seconds above r0 + 2 %.
    pub above_s: f64,
    /// Time from the last moment before compute had more than fits beside the tier below r0, until
    /// the tier had released as much, in seconds; 0 if all fitted.
    pub first_page_s: f64,
    /// The longest time in seconds that a byte above the alarm may have waited until the tier had
    /// released as much; 0 if no sample has seen one.
    pub reaction_s: f64,
    /// Mean of the tier while the burst grew and held, and of the largest tier below r0 beside it.
    pub tier_mean: f64,
    /// See there.
    pub clairvoyant_mean: f64,
    /// Highest use, as a share of the limit.
    pub peak: f64,
    /// The smallest tier, as a share of the largest that fits beside the whole burst.
    pub least: f64,
}

/// Judges a burst that has succeeded.
pub fn judge(samples: &[Sample], burst: Burst, limit_bytes: u64) -> Verdict {
    let limit = limit_bytes as f64;
    let within = |s: &&Sample| (burst.first_ns..=burst.end_ns).contains(&s.at_ns);
    let samples: Vec<Sample> = samples.iter().filter(within).copied().collect();
    let Some(first) = samples.first() else { return Verdict::default() };
    let mut verdict = Verdict {
        first_page_s: first_page_s(&samples, limit),
        reaction_s: reaction_s(&samples, ALARM * limit),
        ..Verdict::default()
    };
    let (mut tier, mut best, mut total) = (0.0, 0.0, 0.0);
    for pair in samples.windows(2) {
        let span_s = (pair[1].at_ns - pair[0].at_ns) as f64 / 1e9;
        let used = pair[0].used as f64;
        if used > ABOVE * limit {
            verdict.above_s += span_s;
        }
        verdict.peak = verdict.peak.max(used / limit);
        tier += span_s * pair[0].tier as f64;
        best += span_s * (TARGET * limit - compute(&pair[0])).clamp(0.0, first.tier as f64);
        total += span_s;
    }
    let highest = samples.iter().map(compute).fold(0.0, f64::max);
    let fits = (TARGET * limit - highest).min(first.tier as f64).max(1.0);
    let least = samples.iter().map(|s| s.tier).min().unwrap_or(0) as f64;
    if total > 0.0 {
        (verdict.tier_mean, verdict.clairvoyant_mean) = (tier / total, best / total);
    }
    Verdict { least: least / fits, ..verdict }
}

fn compute(sample: &Sample) -> f64 {
    sample.used as f64 - sample.tier as f64
}

/// Time from the last sample in which all fitted below r0, to the first in which compute has more
/// by the law's tolerance and the tier has released as much.
fn first_page_s(samples: &[Sample], limit: f64) -> f64 {
    let Some(over) = samples.iter().position(|s| s.used as f64 > TARGET * limit) else { return 0.0 };
    let last = &samples[over.saturating_sub(1)];
    let fits = ALARM * limit - last.tier as f64;
    let is_free = |s: &&Sample| compute(s) > fits && s.used as f64 <= ALARM * limit;
    match samples[over..].iter().find(is_free) {
        Some(free) => (free.at_ns - last.at_ns) as f64 / 1e9,
        // Compute has stopped within the tolerance.
        None if samples.iter().all(|s| s.used as f64 <= ALARM * limit) => 0.0,
        None => samples.last().map_or(0.0, |end| (end.at_ns - last.at_ns) as f64 / 1e9),
    }
}

/// The longest that a byte above `bound` may have waited: at each sample, from when compute first
/// had more than fits beside the tier at that sample, to the next sample.
fn reaction_s(samples: &[Sample], bound: f64) -> f64 {
    let mut longest_ns = 0;
    for (i, now) in samples.iter().enumerate().filter(|(_, s)| s.used as f64 > bound) {
        let fits = bound - now.tier as f64;
        let since = samples[..=i].iter().rev().take_while(|s| compute(s) > fits).last();
        let until = samples.get(i + 1).unwrap_or(now);
        longest_ns = longest_ns.max(since.map_or(0, |since| until.at_ns - since.at_ns));
    }
    longest_ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ms: u64, compute: u64, tier: u64) -> Sample {
        Sample { at_ns: ms * 1_000_000, used: compute + tier, tier }
    }

    #[test]
    fn a_byte_waits_from_when_it_did_not_fit_until_the_tier_has_released_as_much() {
        // 952 is the alarm. From 1 ms on there is more; at 4 ms all of it is released, but for what
        // came at 3 ms.
        let samples = [
            sample(0, 100, 850),
            sample(1, 120, 850),
            sample(2, 140, 850),
            sample(3, 160, 830),
            sample(4, 160, 800),
            sample(5, 160, 790),
        ];
        assert_eq!(reaction_s(&samples, 952.0), 0.002);
        // All fitted at 0 ms; as much as compute has beyond that is free at 5 ms.
        assert_eq!(first_page_s(&samples, 1000.0), 0.005);
        assert_eq!(first_page_s(&samples[..4], 1000.0), 0.003, "never");
        assert_eq!(first_page_s(&samples[..1], 1000.0), 0.0, "all fits");
        let burst = Burst { first_ns: 0, last_ns: 3_000_000, end_ns: 5_000_000 };
        let verdict = judge(&samples, burst, 1000);
        assert!((verdict.above_s - 0.002).abs() < 1e-9, "{verdict:?}");
        assert!((verdict.peak - 0.99).abs() < 1e-9, "{verdict:?}");
        assert!((verdict.least - 1.0).abs() < 1e-9, "{verdict:?}");
        assert!((verdict.tier_mean - 836.0).abs() < 1e-6, "{verdict:?}");
        assert!((verdict.clairvoyant_mean - 814.0).abs() < 1e-6, "{verdict:?}");
    }
}
