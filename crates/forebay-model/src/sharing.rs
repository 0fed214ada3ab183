//! How fast each flow progresses on a shared file system: any number of HPC phases and prefetches
//! at the same time.
//!
//! The papers measure pairs: I_hpc and I_bd of one phase beside one prefetch. For more, the
//! *excesses* I - 1 add up:
//!
//! ```text
//! pace of phase h    = share(h) / (1 + sum over prefetches f of (I_hpc(f) - 1) * u(f))
//! pace of prefetch f = min(rate(f), 1 / (1 + phases * (I_bd(f) - 1)))
//! ```
//!
//! The PFS as a whole bounds the pace of prefetches further.
//!
//! Adding excesses is what dividing a bandwidth does: with n equal phases each has the excess n - 1
//! of the others and runs at 1/n. With one phase and one prefetch it is exactly the papers' model.
//! `u(f)` is the load of a throttled prefetch: the pace it has over the pace it would have
//! unthrottled, so a prefetch held to half of its speed disturbs half as much.

use alloc::vec::Vec;

use crate::profile::Strain;

/// Paces of all flows: `(phases, prefetches)`. A phase's pace is relative to running alone; a
/// prefetch's is in bytes per second.
///
/// `shares[h]` is what phase h gets of the file system where no prefetch runs, in (0, 1]; see
/// [`fair_shares`]. `pfs_bytes_per_s` bounds the sum over prefetches.
pub fn paces(shares: &[f64], fetches: &[Strain], pfs_bytes_per_s: f64) -> (Vec<f64>, Vec<f64>) {
    let mut speeds = Vec::with_capacity(fetches.len());
    let excess = load(shares.len(), fetches, pfs_bytes_per_s, &mut speeds);
    (shares.iter().map(|share| share / (1.0 + excess)).collect(), speeds)
}

/// Fills `speeds` with the prefetches' speeds (bytes per second) beside `phases` active phases, and
/// returns the sum of the excesses that they cause. Split from [`paces`] for planners, which call
/// it thousands of times.
pub fn load(phases: usize, fetches: &[Strain], pfs_bytes_per_s: f64, speeds: &mut Vec<f64>) -> f64 {
    speeds.clear();
    let mut excess = 0.0;
    let mut total = 0.0;
    for f in fetches {
        let free_pace = 1.0 / (1.0 + phases as f64 * (f.i_bd - 1.0));
        let pace = f.rate.min(free_pace);
        excess += (f.i_hpc - 1.0) * pace / free_pace;
        total += pace * f.speed_bytes_per_s;
        speeds.push(pace * f.speed_bytes_per_s);
    }
    if total > pfs_bytes_per_s {
        speeds.iter_mut().for_each(|s| *s *= pfs_bytes_per_s / total);
    }
    excess
}

/// Shares of phases in proportion to their weights (processes), as in a file system that does not
/// distinguish jobs.
pub fn fair_shares(weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FREE: f64 = f64::INFINITY;

    fn strain(i_hpc: f64, i_bd: f64, rate: f64) -> Strain {
        Strain { speed_bytes_per_s: 100.0, rate, i_hpc, i_bd }
    }

    #[test]
    fn one_phase_and_one_prefetch_is_the_papers_model() {
        let (h, f) = paces(&[1.0], &[strain(1.25, 2.0, 1.0)], FREE);
        assert_eq!((h[0], f[0]), (0.8, 50.0));
    }

    #[test]
    fn without_phases_a_prefetch_runs_freely_up_to_the_file_system() {
        assert_eq!(paces(&[], &[strain(1.3, 1.2, 1.0)], FREE).1, [100.0]);
        assert_eq!(paces(&[], &[strain(1.3, 1.2, 1.0); 4], 200.0).1, [50.0; 4]);
    }

    #[test]
    fn a_throttled_prefetch_disturbs_in_proportion() {
        // Beside a phase it could run at 1/2; held to 1/4 it causes half of the excess of 0.4.
        let (h, f) = paces(&[1.0], &[strain(1.4, 2.0, 0.25)], FREE);
        assert_eq!((h[0], f[0]), (1.0 / 1.2, 25.0));
    }

    proptest! {
        #[test]
        fn more_prefetches_never_help_a_phase(
            fetches in prop::collection::vec((1.0f64..3.0, 1.0f64..3.0, 0.01f64..1.0), 1..6), phases in 1usize..4
        ) {
            let strains: Vec<Strain> = fetches.iter().map(|&(h, b, r)| strain(h, b, r)).collect();
            let shares = fair_shares(&vec![1.0; phases]);
            let all = paces(&shares, &strains, FREE).0[0];
            let fewer = paces(&shares, &strains[1..], FREE).0[0];
            prop_assert!(all <= fewer && fewer <= 1.0 / phases as f64);
        }
    }
}
