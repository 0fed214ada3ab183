//! Tasks of Spark jobs before a file system of several servers: by hand, and what holds in every
//! run.

use forebay_sim::cluster::{JobSpec, Outcome, Placement, Setup, simulate};
use forebay_sim::trace::Trace;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// Two nodes of one slot before two servers of 1 MiB/s; a job of files of 4 MiB, one task each,
/// that computes for as long as both links need for all of it.
fn setup(policy: &str, files: u64) -> Setup {
    Setup {
        policy: policy.into(),
        nodes: 2,
        slots: 1,
        tier_bytes: 1 << 30,
        extent_bytes: 4 * MIB,
        page_bytes: MIB,
        locality_wait_ns: 1_000_000_000,
        servers: 2,
        server_bytes_per_s: MIB as f64,
        stripe_bytes: u64::MAX,
        placement: Placement::InTurn,
        layout_known: true,
        read_ahead_bytes: MIB / 8,
        read_beyond_bytes: 0,
        jobs: vec![JobSpec {
            name: "job".into(),
            input_bytes: files * 4 * MIB,
            file_bytes: 4 * MIB,
            split_bytes: 4 * MIB,
            task_cpu_ns: 4_000_000_000,
            starts_ns: 0,
        }],
        seed: 1,
    }
}

fn run(setup: &Setup) -> Outcome {
    simulate(setup, &mut Trace::off()).expect("it comes to an end")
}

fn map_s(outcome: &Outcome) -> f64 {
    outcome.jobs[0].map_ns as f64 * 1e-9
}

/// One node and one file of 4 MiB on one server of 1 MiB/s. The reader has 128 KiB after 0.125 s,
/// and computes each as long as the next takes to come: 4 s, and the first.
#[test]
fn a_reader_that_reads_ahead_computes_meanwhile() {
    let mut setup = setup("naive-bb", 1);
    setup.nodes = 1;
    let outcome = run(&setup);
    assert!((map_s(&outcome) - 4.125).abs() < 1e-6, "{outcome:?}");
    assert_eq!((outcome.served_bytes, outcome.bound_ns), ((4 * MIB) as f64, 4_000_000_000));
}

/// Ten waves of two tasks. Fetched while the wave before computes, each after the first costs its
/// compute.
#[test]
fn waves_are_fetched_while_others_compute() {
    let (naive, ahead) = (run(&setup("naive-bb", 20)), run(&setup("no-action", 20)));
    assert_eq!((ahead.jobs[0].tasks, ahead.jobs[0].local), (20, 20), "{ahead:?}");
    assert!(ahead.jobs[0].waves >= 10 && ahead.requests >= 20, "{ahead:?}");
    // What both links need, and the compute of a last page.
    assert!(map_s(&ahead) > 41.0 - 1e-6 && map_s(&ahead) < 50.0, "{}", map_s(&ahead));
    assert!(map_s(&ahead) < map_s(&naive) * 1.02, "{} {}", map_s(&ahead), map_s(&naive));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// However files lie and whoever plans: each byte is sent once at least and by its server,
    /// nothing is faster than cores and links, and all tasks run. Through the tier each page is
    /// sent once.
    #[test]
    fn nothing_is_faster_than_cores_and_links(
        policy in prop::sample::select(vec!["naive-bb", "no-action", "full-delay", "eley", "forebay"]),
        files in 1u64..30, nodes in 1u32..5, servers in 1u32..5, known: bool, random: bool, striped: bool,
        cpu_ms in 0u64..8000, seed in 0u64..1000
    ) {
        let mut setup = setup(policy, files);
        (setup.nodes, setup.servers, setup.seed, setup.layout_known) = (nodes, servers, seed, known);
        setup.placement = if random { Placement::Random } else { Placement::InTurn };
        setup.stripe_bytes = if striped { MIB } else { u64::MAX };
        setup.jobs[0].task_cpu_ns = cpu_ms * 1_000_000;
        let outcome = run(&setup);
        let job = &outcome.jobs[0];
        prop_assert_eq!(outcome.served_bytes, setup.jobs[0].input_bytes as f64);
        prop_assert!(job.map_ns + 1000 >= outcome.bound_ns, "{:?}", outcome);
        let compute_ns = files.div_ceil(u64::from(nodes)) * setup.jobs[0].task_cpu_ns;
        prop_assert!(job.map_ns + 1000 >= compute_ns, "{:?}", outcome);
        prop_assert_eq!((u64::from(job.tasks), job.ran.len() as u64), (files, files));
        prop_assert_eq!(&run(&setup), &outcome);
    }
}
