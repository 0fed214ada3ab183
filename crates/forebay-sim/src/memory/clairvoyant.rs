//! The tier of a law that knows the future: the largest that keeps use at or below r0.
//!
//! At every step it holds no more than compute leaves below r0, it refills no faster than the tier
//! can, and it begins to release memory just early enough. No law can have a larger mean without
//! being above r0 at some moment, and where compute alone is above r0 no law can help.

use super::Setup;
use super::load::STEP_NS;

/// What it holds at every step.
pub fn tier(setup: &Setup, compute: &[f64]) -> Vec<f64> {
    let step_s = STEP_NS as f64 * 1e-9;
    let per_step = |rate: Option<f64>| rate.map_or(f64::INFINITY, |r| r * step_s);
    let (refill, release) = (per_step(setup.refill_bytes_per_s), per_step(setup.release_bytes_per_s));
    let (target, most) = (setup.config.target_bytes(), setup.config.max_bytes as f64);
    let mut tier: Vec<f64> = compute.iter().map(|c| (target - c).clamp(0.0, most)).collect();
    let mut later = f64::INFINITY;
    for bytes in tier.iter_mut().rev() {
        *bytes = bytes.min(later + release);
        later = *bytes;
    }
    let mut before = setup.start_bytes as f64;
    for bytes in &mut tier {
        *bytes = bytes.min(before + refill);
        before = *bytes;
    }
    tier
}

#[cfg(test)]
mod tests {
    use forebay_policy::memory::Config;

    use super::*;
    use crate::memory::Load;

    #[test]
    fn it_releases_before_the_rise_and_refills_after_it() {
        let config = Config { memory_bytes: 1000, target: 0.9, max_bytes: 800, ..Config::default() };
        let mut setup = Setup {
            policy: "forebay".into(),
            config,
            start_bytes: 700,
            refill_bytes_per_s: Some(50e3),
            release_bytes_per_s: Some(200e3),
            has_alarm: true,
            load: Load::default(),
            duration_ns: 0,
            seed: 0,
        };
        let compute = [200.0, 200.0, 200.0, 200.0, 700.0, 200.0, 200.0, 950.0];
        // 700 are left beside 200, and 200 beside 700; beside 950 nothing is left.
        assert_eq!(tier(&setup, &compute), [700.0, 700.0, 600.0, 400.0, 200.0, 250.0, 200.0, 0.0]);
        (setup.refill_bytes_per_s, setup.release_bytes_per_s) = (None, None);
        assert_eq!(tier(&setup, &compute), [700.0, 700.0, 700.0, 700.0, 200.0, 700.0, 700.0, 0.0]);
    }
}
