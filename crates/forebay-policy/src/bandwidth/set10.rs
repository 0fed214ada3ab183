//! `set-10`: IO-Sets with sets by powers of ten (Boito, Pallez, Teylo and Vidal, *IO-SETS: Simple
//! and Efficient Approaches for I/O Bandwidth Management*, IEEE TPDS 2023).
//!
//! Two jobs of like period gain nothing from sharing: both phases take longer and neither ends
//! sooner. So jobs are put into sets by the order of magnitude of their period,
//! `round(log10(period))`; within a set one phase runs at a time, the first come first; sets run
//! beside each other with priority `10^-set`, so that a job that does I/O often is not held up by
//! one that does it rarely, and the latter hardly notices.

use alloc::vec::Vec;

use forebay_model::forecast::Division;

use super::{Active, Policy};

/// Turns within a set, shares between sets.
pub struct Set10;

/// `round(log10(period in seconds))`, by comparison, since the crate has no logarithm. Half-way
/// points are powers of sqrt(10). Periods below a millisecond count as one.
pub fn set_of(period_ns: u64) -> i32 {
    const SQRT_10: f64 = 3.162_277_660_168_379_5;
    let (mut set, mut upper_ns) = (-3, 1e6 * SQRT_10);
    while period_ns as f64 >= upper_ns {
        set += 1;
        upper_ns *= 10.0;
    }
    set
}

fn priority(set: i32) -> f64 {
    (0..set.abs()).fold(1.0, |p, _| if set > 0 { p / 10.0 } else { p * 10.0 })
}

impl Policy for Set10 {
    fn division(&self) -> Division {
        Division::Set10
    }

    fn shares(&self, active: &[Active]) -> Vec<f64> {
        let first_of_its_set = |a: &Active| {
            let set = set_of(a.period_ns);
            active.iter().all(|b| set_of(b.period_ns) != set || b.arrival >= a.arrival)
        };
        let claims: Vec<f64> = active
            .iter()
            .map(|a| if first_of_its_set(a) { priority(set_of(a.period_ns)) } else { 0.0 })
            .collect();
        let total: f64 = claims.iter().sum();
        claims.iter().map(|c| c / total).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_rounded_logarithms() {
        for (period_s, set) in
            [(0.01, -2), (1.0, 0), (3.1, 0), (3.2, 1), (10.0, 1), (31.0, 1), (32.0, 2), (1e4, 4)]
        {
            assert_eq!(set_of((period_s * 1e9) as u64), set, "{period_s} s");
        }
    }
}
