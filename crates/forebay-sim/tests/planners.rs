//! The planners in the papers' simulated system, and on random clusters.

use std::cell::Cell;

use forebay_model::profile::{Curve, Separable};
use forebay_model::rng::Rng;
use forebay_policy::placement::{Member, extent_key, node_number, owner};
use forebay_sim::colocate::{
    Arrivals, FetchSpan, HpcSpec, JobSpec, MemoryChange, NodeFault, Outcome, PhaseOutcome, Setup, Unfinished,
    lower_bound_s, simulate,
};
use forebay_sim::reproduce::eley::system::{ALLOWANCES, APPLICATIONS, HPC, cell};
use forebay_sim::trace::{SharedBuffer, Trace};
use proptest::prelude::*;

fn run(setup: &Setup) -> Outcome {
    simulate(setup, &mut Trace::off()).expect("it comes to an end")
}

fn map_s(outcome: &Outcome) -> f64 {
    outcome.jobs[0].map_ns as f64 * 1e-9
}

/// 8 x 3 x 3 cells: no deadline missed, never worse than Eley, never better than the bound.
#[test]
fn forebay_meets_every_deadline_and_is_never_worse_than_eley() {
    let mut cells = 0;
    for allowance in ALLOWANCES {
        for (hpc, (hpc_name, ..)) in HPC.into_iter().enumerate() {
            for app in 0..APPLICATIONS.len() {
                let eley = run(&cell("eley", hpc, app, allowance));
                let ours = run(&cell("forebay", hpc, app, allowance));
                let name = format!("{hpc_name} beside {} at {allowance}", app + 1);
                assert_eq!((eley.missed(), ours.missed()), (0, 0), "{name}");
                // A microsecond for rounding to nanoseconds at every event.
                assert!(map_s(&ours) <= map_s(&eley) + 1e-6, "{name}: {} {}", map_s(&ours), map_s(&eley));
                let bound_s = lower_bound_s(&cell("forebay", hpc, app, allowance), 0);
                assert!(map_s(&ours) >= bound_s - 1e-6, "{name}: {} is below {bound_s}", map_s(&ours));
                cells += 1;
            }
        }
    }
    assert_eq!(cells, 72);
}

/// Up to the horizon all is as it would be without one.
#[test]
fn a_horizon_leaves_waves_and_phases() {
    let mut setup = cell("forebay", 0, 1, 0.05);
    let whole = run(&setup);
    let phases = whole.hpc[0].phases.len();
    let horizon_ns = whole.hpc[0].phases[1].end_ns;
    setup.horizon_ns = Some(horizon_ns);
    let outcome = run(&setup);
    let (done, job) = (&outcome.hpc[0].phases, &outcome.jobs[0]);
    assert_eq!(done[..], whole.hpc[0].phases[..2]);
    let left = whole.jobs[0].waves.iter().filter(|wave| wave.end_ns > horizon_ns).count() as u32;
    assert!(left > 0 && job.waves_left == left && job.map_ns == 0, "{left} {job:?}");
    let phases_left = (phases - done.len()) as u32;
    assert_eq!(outcome.unfinished, Some(Unfinished { horizon_ns, waves: left, phases: phases_left }));
    // Beyond the last end only memory is to change.
    let end_ns = (whole.end_s() * 1e9).round() as u64;
    setup.memory = vec![MemoryChange { at_ns: end_ns + 2_000_000_000, bytes: setup.planner.ram_bytes }];
    setup.horizon_ns = Some(end_ns + 1_000_000_000);
    let outcome = run(&setup);
    assert_eq!((&outcome.hpc, &outcome.jobs, outcome.unfinished), (&whole.hpc, &whole.jobs, None));
}

/// One phase of 20 s, one job of two waves, worked by hand. Prefetch of a wave alone: 25 s at I_bd
/// 1.2, I_hpc 1.3. The HPC job computes for 30 s, so wave 0 is there at 25 s; it computes until
/// 25 + 3 + 40 = 68 s. Wave 1 starts at 25 s: 5 s alone, then beside the phase, which takes
/// 20 s * 1.3 = 26 s if the prefetch outlasts it: 20 s of work left take 24 s, so the prefetch ends
/// at 54 s and the phase, with 20 - 24 / 1.3 = 1.538 s left, at 55.538 s.
#[test]
fn no_action_by_hand() {
    let mut setup = cell("no-action", 0, 0, 0.3);
    setup.hpc[0].compute_ns = 30_000_000_000;
    setup.hpc[0].io_ns = 20_000_000_000;
    setup.hpc[0].phases = 1;
    setup.jobs[0].waves = 2;
    setup.jobs[0].compute_ns = 40_000_000_000;
    let outcome = run(&setup);
    let wave = outcome.jobs[0].waves[1];
    let near = |ns: u64, s: f64| (ns as f64 * 1e-9 - s).abs() < 1e-6;
    assert!(near(wave.fetched_ns, 54.0) && near(wave.begin_ns, 68.0), "{wave:?}");
    assert!(near(outcome.hpc[0].phases[0].end_ns, 55.538_461_538), "{:?}", outcome.hpc);
    assert!(near(outcome.jobs[0].map_ns, 111.0));
}

fn trace_of(setup: &Setup) -> Vec<u8> {
    let buffer = SharedBuffer::default();
    let mut trace = Trace::to(Box::new(buffer.clone()), "colocation", setup);
    simulate(setup, &mut trace).expect("it comes to an end");
    trace.finish().expect("a buffer can be written");
    buffer.bytes()
}

/// The same bytes on every run, alone or beside others, and other bytes for another seed.
#[test]
fn traces_are_identical_byte_for_byte() {
    let setup = random_cluster("forebay", 3, 2, 7, Arrivals::Poisson);
    let first = trace_of(&setup);
    assert!(first.len() > 10_000, "only {} bytes were recorded", first.len());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn({
                let s = setup.clone();
                move || trace_of(&s)
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().expect("no panic") == first, "a run beside others differs");
    }
    assert!(trace_of(&Setup { seed: 8, ..setup }) != first);
}

/// A random cluster with deadlines of all kinds, some of which cannot be met.
fn with_deadlines(hpc: u32, jobs: u32, seed: u64) -> Setup {
    let mut setup = random_cluster("forebay", hpc, jobs, seed, Arrivals::Periodic);
    let mut rng = Rng::new(seed);
    for hpc in &mut setup.hpc {
        hpc.allowance = 0.2 + 2.0 * rng.unit();
        hpc.compute_ns += (rng.unit() * 20e9) as u64;
    }
    setup
}

/// Whether each phase was late, and whether anything was fetched beside it.
fn late_and_beside(outcome: &Outcome) -> Vec<(bool, bool)> {
    let overlap = |p: &PhaseOutcome, f: &FetchSpan| f.from_ns < p.end_ns && f.to_ns > p.begin_ns;
    let beside = |p: &PhaseOutcome| outcome.fetches.iter().any(|f| overlap(p, f));
    outcome.hpc.iter().flat_map(|h| &h.phases).map(|p| (p.missed(), beside(p))).collect()
}

/// A prefetch is paused in the nanosecond in which it should have ended, with nothing left but
/// rounding.
#[test]
fn what_is_paused_at_its_end_is_fetched_all_the_same() {
    let mut setup = with_deadlines(1, 2, 582_731);
    setup.planner.ram_bytes = 134_000_000_000;
    run(&setup);
    // Waves of which a thousandth is less than a byte.
    for seed in 0..20 {
        let mut setup = with_deadlines(1, 2, seed);
        setup.jobs.iter_mut().for_each(|job| job.wave_bytes = 500);
        run(&setup);
    }
}

/// Several HPC jobs and several Big Data jobs at once, and memory for two of the largest waves or
/// more. Phases that share the file system can be late by that alone; but a phase that anything was
/// fetched beside is in time, since the planner knows when it cannot afford it.
///
/// Seed 10 is a job that fetched a later wave when its next plan began with a pause: nothing made
/// the fetch under way stop.
#[test]
fn no_phase_is_late_beside_a_prefetch_whatever_the_memory() {
    let counts = Cell::new((0, 0));
    let check = |setup: &Setup| {
        for (late, beside) in late_and_beside(&run(setup)) {
            prop_assert!(!(late && beside), "a phase is late beside a prefetch");
            let (all_beside, late_anyway) = counts.get();
            counts.set((all_beside + u32::from(beside), late_anyway + u32::from(late)));
        }
        Ok(())
    };
    check(&with_deadlines(3, 3, 10)).expect("seed 10");
    let cases = (1u32..4, 1u32..4, 0u64..1_000_000, 130u64..300);
    proptest!(ProptestConfig::with_cases(60), |((hpc, jobs, seed, ram_gb) in cases)| {
        let mut setup = with_deadlines(hpc, jobs, seed);
        setup.planner.ram_bytes = ram_gb * 1_000_000_000;
        check(&setup)?;
    });
    // The test would show nothing if nothing was fetched beside phases, or if every deadline was
    // easy.
    let (all_beside, late_anyway) = counts.get();
    assert!(
        all_beside > 100 && late_anyway > 10,
        "{all_beside} phases beside a prefetch, {late_anyway} late without"
    );
}

fn random_cluster(policy: &str, hpc: u32, jobs: u32, seed: u64, arrivals: Arrivals) -> Setup {
    let mut setup = cell(policy, 0, 0, 0.15);
    setup.seed = seed;
    setup.hpc = (0..hpc)
        .map(|i| HpcSpec {
            name: format!("hpc {i}"),
            compute_ns: u64::from(17 + 23 * i) * 1_000_000_000,
            io_ns: u64::from(5 + 7 * i) * 1_000_000_000,
            phases: 6,
            processes: 1 + i,
            arrivals: arrivals.clone(),
            ..setup.hpc[0].clone()
        })
        .collect();
    setup.jobs = (0..jobs)
        .map(|j| JobSpec {
            name: format!("job {j}"),
            waves: 5 + j,
            wave_bytes: 20_000_000_000 * u64::from(1 + j),
            starts_ns: u64::from(j) * 40_000_000_000,
            ..setup.jobs[0].clone()
        })
        .collect();
    setup
}

/// What the model does not know, it learns: with interference half as strong again as profiled,
/// deadlines are missed at first, and fewer than without learning.
#[test]
fn learning_reduces_missed_deadlines_when_the_profile_is_wrong() {
    let missed = |learning: f64| {
        let mut setup = cell("forebay", 1, 1, 0.05);
        let i_hpc = |n: u16| 1.0 + 1.5 * 0.3 * (f64::from(n) / 8.0).powi(6);
        let nodes = (1..=8).map(|n| (n, i_hpc(n) / i_hpc(1))).collect();
        setup.truth.i_hpc.nodes = Curve::new(nodes).expect("a valid curve");
        setup.truth.i_hpc.at_one = i_hpc(1);
        setup.hpc[0].phases = 30;
        setup.planner.learning = learning;
        run(&setup).missed()
    };
    let (without, with) = (missed(0.0), missed(0.5));
    assert!(without > 5 && with < without / 2, "without learning {without}, with {with}");
}

/// A profile that takes prefetches for harmless cannot be corrected by a factor. As it is read,
/// they cost at least a little, and the planner learns how much.
#[test]
fn a_profile_without_interference_is_corrected() {
    let late = |least: f64| {
        let mut setup = cell("forebay", 1, 1, 0.05);
        let flat = |at_one| Separable {
            at_one,
            nodes: Curve::new(vec![(1, 1.0)]).expect("valid"),
            threads: Curve::new(vec![(1, 1.0)]).expect("valid"),
        };
        (setup.planner.profile.i_hpc, setup.truth.i_hpc) = (flat(1.0).at_least(least), flat(1.4));
        (setup.hpc[0].phases, setup.planner.learning) = (30, 0.3);
        run(&setup).missed()
    };
    let (harmless, corrected) = (late(1.0), late(1.1));
    assert!(harmless > 5 && corrected <= 2, "{harmless} and {corrected} of 30 phases were late");
}

/// Prefetches are half as fast as profiled, and hurt phases twice as much. The estimates of the
/// first waves are wrong; those of phases and prefetches that follow are within 5 % of what came of
/// them, on the mean.
#[test]
fn after_two_waves_estimates_are_those_of_the_site() {
    let mut setup = cell("no-action", 1, 1, 3.0);
    setup.truth.prefetch_s.at_one *= 2.0;
    let excess = |n: u16| 1.0 + 2.0 * (setup.planner.profile.i_hpc.at(n, 1) - 1.0);
    let nodes = (1..=8).map(|n| (n, excess(n) / excess(1))).collect();
    setup.truth.i_hpc.at_one = excess(1);
    setup.truth.i_hpc.nodes = Curve::new(nodes).expect("a valid curve");
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
    for (learning, is_right) in [(0.0, false), (0.3, true)] {
        setup.planner.learning = learning;
        let (phases, fetches) = errors_after_two_waves(&setup, &run(&setup));
        assert!(phases.len() >= 3 && fetches.len() >= 3, "{} phases, {}", phases.len(), fetches.len());
        let (phases, fetches) = (mean(&phases), mean(&fetches));
        println!("learning {learning}: errors of phases {phases:.4}, of prefetches {fetches:.4}");
        assert_eq!((phases <= 0.05, fetches <= 0.05), (is_right, is_right), "{phases} {fetches}");
    }
}

/// Relative errors of the estimated times of phases, and of prefetches, from the third wave on: of
/// each phase that one prefetch ran beside from its begin or the prefetch's to the phase's end.
fn errors_after_two_waves(setup: &Setup, outcome: &Outcome) -> (Vec<f64>, Vec<f64>) {
    let (mut of_phases, mut of_fetches) = (Vec::new(), Vec::new());
    for decision in outcome.decisions.iter().filter(|d| d.wave >= 2) {
        let at_ns = decision.steps[0].at.0;
        let fetched_s = (outcome.jobs[0].waves[decision.wave as usize].fetched_ns - at_ns) as f64 * 1e-9;
        let estimated_s = decision.estimate.fetched_in_s.expect("it ends");
        of_fetches.push((estimated_s / fetched_s - 1.0).abs());
        let end_ns = at_ns + (fetched_s * 1e9) as u64;
        let beside = |p: &&PhaseOutcome| p.begin_ns <= at_ns && at_ns < p.end_ns && p.end_ns <= end_ns;
        let phase = outcome.hpc[0].phases.iter().find(beside);
        if let (Some(phase), Some(margin_s)) = (phase, decision.estimate.margin_s) {
            let estimated_s = (phase.deadline_ns - phase.begin_ns) as f64 * 1e-9 - margin_s;
            let lasted_s = (phase.end_ns - phase.begin_ns) as f64 * 1e-9;
            of_phases.push((estimated_s / lasted_s - 1.0).abs());
        }
    }
    assert_eq!(setup.jobs.len(), 1, "of several jobs, others disturb the same phases");
    (of_phases, of_fetches)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Any cluster, any policy: every job ends, memory is never overbooked, phases never run faster
    /// than alone, and a run gives the same trace twice.
    #[test]
    fn invariants_hold_on_random_clusters(
        policy in 0..forebay_policy::planner::POLICIES.len(), hpc in 0u32..4, jobs in 1u32..4, seed in 0u64..1000, kind in 0usize..3, shrink in 0u32..2
    ) {
        let name = forebay_policy::planner::POLICIES[policy].0;
        let arrivals = [Arrivals::Periodic, Arrivals::Jittered { spread: 0.5 }, Arrivals::Poisson][kind].clone();
        let mut setup = random_cluster(name, hpc, jobs, seed, arrivals);
        if shrink == 1 {
            // From 256 to 130 GB, which still holds two of the largest waves.
            setup.memory = vec![MemoryChange { at_ns: 50_000_000_000, bytes: 130_000_000_000 }];
        }
        let outcome = run(&setup);
        prop_assert!(outcome.peak_bytes <= setup.planner.ram_bytes);
        for job in &outcome.jobs {
            prop_assert!(job.waves.iter().all(|w| w.fetched_ns <= w.begin_ns && w.begin_ns < w.end_ns));
        }
        for phase in outcome.hpc.iter().flat_map(|h| &h.phases) {
            prop_assert!(phase.end_ns - phase.begin_ns >= phase.alone_ns);
        }
        prop_assert_eq!(outcome.hpc.iter().map(|h| h.phases.len()).sum::<usize>(), 6 * hpc as usize);
        prop_assert!(trace_of(&setup) == trace_of(&setup));
    }
}

/// A node of the tier that fails at `at_s`.
fn node_fails(node: u16, at_s: u64, for_s: Option<u64>) -> NodeFault {
    NodeFault { node, at_ns: at_s * 1_000_000_000, for_ns: for_s.map(|s| s * 1_000_000_000) }
}

/// Of the 64 extents of a wave of 50 GB, as the placement spreads them over 8 nodes, those of
/// `node`.
fn extents_of(node: u16, wave: u64) -> f64 {
    let number = |node: u16| node_number(&format!("node-{node:04}"));
    let members: Vec<Member> = (0..8).map(|node| Member { node: number(node), weight: 1.0 }).collect();
    let is_its = |extent: &u64| owner(extent_key("job/0", wave, *extent), &members) == Some(number(node));
    (0..64).filter(is_its).count() as f64
}

/// One job of three waves of 50 GB and no phase, worked by hand. A wave takes 25 s with 8 nodes of
/// one thread and 200 / 7 = 28.571 s with 7. Wave 0 is there at 25 s and computes for 43 s, to 68
/// s; wave 1 is there at 50 s. At 60 s a node goes away and with it its extents of wave 1, of
/// 781.25 MB each, which the seven that are left fetch again in 28.571 / 64 = 0.446 s each.
#[test]
fn a_lost_part_is_fetched_again_by_hand() {
    let mut setup = cell("no-action", 0, 0, 0.3);
    setup.hpc.clear();
    setup.jobs[0].waves = 3;
    setup.jobs[0].compute_ns = 40_000_000_000;
    setup.faults = vec![node_fails(3, 60, None)];
    let near =
        |ns: u64, s: f64| assert!((ns as f64 * 1e-9 - s).abs() < 1e-6, "{} is not {s} s", ns as f64 * 1e-9);
    let (seven_s, lost) = (200.0 / 7.0, extents_of(3, 1));
    assert!(lost > 0.0);
    let outcome = run(&setup);
    assert_eq!(outcome.jobs[0].lost_bytes, lost * 50e9 / 64.0);
    near(outcome.jobs[0].waves[1].fetched_ns, 60.0 + lost / 64.0 * seven_s);
    near(outcome.jobs[0].waves[1].begin_ns, 68.0);
    // The next wave is fetched by the seven, from the moment when this one began to compute.
    near(outcome.jobs[0].waves[2].fetched_ns, 68.0 + seven_s);
    // In the middle of a fetch: 10 s of wave 0 were there, of each node the same part.
    setup.faults = vec![node_fails(0, 10, None)];
    let outcome = run(&setup);
    let lost = extents_of(0, 0) / 64.0 * 10.0 / 25.0;
    near(outcome.jobs[0].waves[0].fetched_ns, 10.0 + (15.0 / 25.0 + lost) * seven_s);
    assert_eq!(outcome.overbooked_bytes, 0);
}

/// Memory for two waves only, both taken when a node fails as tasks wait for the second: no room is
/// left for its lost part, so they read that themselves.
#[test]
fn what_has_no_room_any_more_is_read_directly() {
    for policy in ["no-action", "full-delay", "eley", "forebay"] {
        let mut setup = cell(policy, 0, 0, 0.3);
        setup.hpc.clear();
        setup.jobs[0].waves = 4;
        setup.jobs[0].compute_ns = 60_000_000_000;
        setup.planner.ram_bytes = 2 * setup.jobs[0].wave_bytes;
        setup.faults = (0..7).map(|n| node_fails(n, 60 + u64::from(n), Some(400))).collect();
        let outcome = run(&setup);
        assert_eq!(outcome.down.len(), 7);
        let direct: f64 = outcome.jobs[0].waves.iter().map(|w| w.direct_bytes).sum();
        assert!(outcome.jobs[0].lost_bytes > 1e9 && direct > 1e9, "{policy}: {direct} {:?}", outcome.jobs);
        assert_eq!(outcome.overbooked_bytes, 0, "{policy}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Any cluster, any policy, nodes that fail and return: every job ends, memory is never
    /// overbooked though it shrinks and grows, what was lost is counted, and the trace is the same
    /// twice.
    #[test]
    fn nodes_of_the_tier_come_and_go(
        policy in 0..forebay_policy::planner::POLICIES.len(), hpc in 0u32..3, jobs in 1u32..4, seed in 0u64..1000,
        faults in prop::collection::vec((0u16..8, 0u64..300, 1u64..100), 1..8)
    ) {
        let name = forebay_policy::planner::POLICIES[policy].0;
        let mut setup = random_cluster(name, hpc, jobs, seed, Arrivals::Jittered { spread: 0.5 });
        setup.faults = faults.iter().map(|&(node, at_s, for_s)| node_fails(node, at_s, Some(for_s))).collect();
        let outcome = run(&setup);
        prop_assert_eq!(outcome.overbooked_bytes, 0);
        prop_assert!(!outcome.down.is_empty());
        for fault in &setup.faults {
            let struck = outcome.down.iter().any(|d| d.node == fault.node && d.from_ns <= fault.at_ns);
            prop_assert!(struck, "{:?} {:?}", fault, outcome.down);
        }
        for job in &outcome.jobs {
            prop_assert!(job.waves.iter().all(|w| w.fetched_ns <= w.begin_ns && w.begin_ns < w.end_ns), "{:?}", job);
            prop_assert!(name != "naive-bb" || job.lost_bytes == 0.0);
        }
        prop_assert!(trace_of(&setup) == trace_of(&setup));
    }
}
