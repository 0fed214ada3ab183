//! Planners on random clusters that none of them was tuned on.

use forebay_sim::colocate::{JobSpec, simulate};
use forebay_sim::parallel::in_parallel;
use forebay_sim::random::clusters::{Against, Family, Made, equal_shares_s};
use forebay_sim::trace::Trace;

fn family(seed: u64) -> Family {
    Family::new(seed, 0.05)
}

fn made(family: &Family, number: u64, policy: &str) -> Made {
    Made::of(&family.cluster(number, policy)).expect("it comes to an end")
}

/// `forebay` against `other` on the first `count` clusters of a seed.
fn against(family: &Family, count: usize, other: &str, threads: usize) -> Against {
    let both = |i: usize| (made(family, i as u64, "forebay"), made(family, i as u64, other));
    let mut against = Against::default();
    for (number, (ours, theirs)) in (0..).zip(in_parallel(count, threads, both)) {
        assert_eq!(ours.missed_beside, 0, "cluster {number}: a phase is late beside a prefetch");
        against.add(number, &ours, &theirs);
    }
    against
}

/// Nothing was tuned on this seed.
#[test]
fn forebay_is_not_slower_where_it_misses_no_fewer_deadlines() {
    for other in ["eley", "full-delay"] {
        let against = against(&family(20_261_123), 60, other, 2);
        assert_eq!(against.slower_for_nothing, [0; 0], "clusters that are slower than under {other}");
        let change = against.change_percent();
        assert!(change.below(0.0), "{other}: {change:?}");
    }
}

/// Two jobs of 20 waves on a file system that two prefetches just fill: each takes as long as
/// alone.
#[test]
fn two_jobs_that_fit_do_not_wait_for_each_other() {
    let mut setup = forebay_sim::reproduce::eley::system::cell("forebay", 0, 0, 0.05);
    setup.hpc.clear();
    setup.planner.ram_bytes = 400_000_000_000;
    setup.planner.profile.max_threads = 1;
    setup.truth.max_threads = 1;
    setup.planner.direct.speed_bytes_per_s = 0.5e9;
    setup.true_direct = setup.planner.direct;
    setup.jobs[0].waves = 20;
    setup.jobs[0].compute_ns = 25_000_000_000;
    setup.jobs[0].tier_read_ns = 0;
    setup.jobs.push(setup.jobs[0].clone());
    let made = Made::of(&setup).expect("it comes to an end");
    assert!(made.map_s.iter().all(|s| (s - 525.0).abs() < 1e-3), "{:?}", made.map_s);
}

/// A job that had the file system to itself for long, while another only computed, still gets its
/// due of it when a stream of short jobs begins.
#[test]
fn what_a_job_got_alone_does_not_count_against_it() {
    const S: u64 = 1_000_000_000;
    let mut setup = forebay_sim::reproduce::eley::system::cell("forebay", 0, 0, 0.05);
    setup.hpc.clear();
    setup.planner.ram_bytes = 1_700_000_000_000;
    setup.planner.profile.max_threads = 1;
    setup.truth.max_threads = 1;
    // As much as one prefetch takes.
    setup.planner.pfs_bytes_per_s = 2e9;
    setup.planner.direct.speed_bytes_per_s = 0.5e9;
    setup.true_direct = setup.planner.direct;
    let job = setup.jobs[0].clone();
    let of = |waves, compute_s, starts_s| JobSpec {
        waves,
        wave_bytes: 50_000_000_000,
        compute_ns: compute_s * S,
        tier_read_ns: 0,
        starts_ns: starts_s * S,
        ..job.clone()
    };
    setup.jobs = vec![of(120, 5, 0), of(1, 10_000, 0)];
    setup.jobs.extend((0..60).map(|i| of(2, 1, 2000 + 50 * i)));
    let outcome = simulate(&setup, &mut Trace::off()).expect("it comes to an end");
    let begun: Vec<u64> = outcome.jobs[0].waves.iter().map(|wave| wave.begin_ns / S).collect();
    assert!(begun[119] > 3000, "the stream comes too late to disturb it: {begun:?}");
    let longest = begun.windows(2).map(|w| w[1] - w[0]).max().expect("there are waves");
    assert!(longest < 800, "no wave for {longest} s: {begun:?}");
}

/// The bound that docs/policies.md states.
#[test]
fn no_job_takes_twice_as_long_as_on_its_equal_share() {
    let family = family(7_001);
    let stretches = in_parallel(40, 2, |i| {
        let setup = family.cluster(i as u64, "forebay");
        let alone_s = equal_shares_s(&setup).expect("it comes to an end");
        (setup.jobs.len(), made(&family, i as u64, "forebay").stretch(&alone_s))
    });
    assert!(stretches.iter().filter(|(jobs, _)| *jobs > 1).count() > 20);
    for (number, (_, stretch)) in stretches.into_iter().enumerate() {
        assert!(stretch <= 2.0, "cluster {number}: {stretch}");
    }
}

/// Phases that take turns: the planner knows what each of them gets.
#[test]
fn no_phase_is_late_beside_a_prefetch_where_phases_take_turns() {
    let family = Family { bandwidth: "set-10".into(), ..family(7_002) };
    let made = in_parallel(40, 2, |i| made(&family, i as u64, "forebay"));
    assert!(made.iter().map(|m| m.phases).sum::<usize>() > 500);
    for (number, made) in made.iter().enumerate() {
        assert_eq!(made.missed_beside, 0, "cluster {number}");
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    assert_eq!(against(&family(3), 8, "eley", 1), against(&family(3), 8, "eley", 3));
}
