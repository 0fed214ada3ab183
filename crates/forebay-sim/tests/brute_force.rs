//! The planner against every plan of a small case, tried out one by one.

use forebay_model::forecast::{Chain, Forecaster, Step, Turn};
use forebay_model::profile::{Profile, Setting, Strain};
use forebay_sim::colocate::simulate;
use forebay_sim::reproduce::eley::system::cell;
use forebay_sim::trace::Trace;

/// When the second wave is there at best: all pairs of settings (8 nodes x 4 threads, and the
/// pause) with a switch at every quarter of a second, one phase of `io_s` with `allowance`, asked
/// for at the begin of the phase.
fn optimum_s(profile: &Profile, io_s: f64, allowance: f64, bytes: f64, pfs: f64) -> f64 {
    let chain = Chain {
        in_phase: true,
        left_s: io_s,
        deadline_s: io_s * (1.0 + allowance),
        io_s,
        compute_s: 1.0,
        allowance,
        phases_after: 0,
        weight: 1.0,
        turn: Turn::default(),
    };
    let mut strains = vec![Strain::NONE];
    for nodes in 1..=8 {
        strains.extend((1..=4).map(|threads| profile.strain(Setting::new(nodes, threads))));
    }
    let mut forecaster = Forecaster::default();
    let mut best_s = f64::INFINITY;
    for &first in &strains {
        for &second in &strains {
            for quarter in 0..=(4.0 * io_s * (1.0 + allowance)) as u32 {
                let step = |for_s, strain| Step { for_s, strain, yields: false };
                let steps = [step(f64::from(quarter) * 0.25, first), step(f64::INFINITY, second)];
                let outcome = forecaster.run(&[chain], &[], &steps, bytes, pfs);
                if outcome.is_feasible() && outcome.end_s < best_s {
                    best_s = outcome.end_s;
                }
            }
        }
    }
    best_s
}

/// A job that waits for its second wave when a phase begins: `forebay` fetches it as soon as the
/// best of some 200,000 plans, to within the quarter of a second of their grid (it may be sooner,
/// since it is not bound to the grid).
#[test]
fn forebay_is_as_good_as_the_best_of_all_plans() {
    for (io_s, allowance) in [(20.0, 0.05), (20.0, 0.3), (60.0, 0.05), (60.0, 0.15), (30.0, 1.0)] {
        let mut setup = cell("forebay", 0, 0, allowance);
        // The first wave is read directly in 12.5 s; its compute ends just when the phase begins,
        // and nothing was fetched meanwhile, as memory holds one wave until then.
        setup.jobs[0].waves = 2;
        setup.jobs[0].compute_ns = 1_000_000_000;
        setup.jobs[0].tier_read_ns = 0;
        setup.planner.ram_bytes = setup.jobs[0].wave_bytes;
        setup.hpc[0].compute_ns = 13_500_000_000;
        setup.hpc[0].io_ns = (io_s * 1e9) as u64;
        setup.hpc[0].phases = 1;
        let outcome = simulate(&setup, &mut Trace::off()).expect("it comes to an end");
        assert_eq!(outcome.missed(), 0);
        let took_s = (outcome.jobs[0].waves[1].fetched_ns - 13_500_000_000) as f64 * 1e-9;
        let (profile, bytes) = (&setup.truth, setup.jobs[0].wave_bytes as f64);
        let best_s = optimum_s(profile, io_s, allowance, bytes, setup.planner.pfs_bytes_per_s);
        let error_s = took_s - best_s;
        assert!(error_s < 0.3, "{io_s} s at {allowance}: forebay {took_s:.3} s, best {best_s:.3} s");
    }
}
