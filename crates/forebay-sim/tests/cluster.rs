//! Tasks of Spark jobs before a file system of several servers: by hand, and what holds in every
//! run.

use forebay_sim::cluster::{JobSpec, Outcome, Placement, Setup, Shuffle, simulate};
use forebay_sim::trace::Trace;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// Two nodes of one slot before two servers of 1 MiB/s; a job of files of 4 MiB, one task each,
/// that computes for as long as both links need for all of it.
fn setup(policy: &str, files: u64) -> Setup {
    Setup {
        policy: policy.into(),
        system: None,
        nodes: 2,
        slots: 1,
        tier_bytes: 1 << 30,
        extent_bytes: 4 * MIB,
        page_bytes: MIB,
        fetch_threads: 8,
        locality_wait_ns: 1_000_000_000,
        servers: 2,
        server_bytes_per_s: MIB as f64,
        stripe_bytes: u64::MAX,
        placement: Placement::InTurn,
        layout_known: true,
        read_ahead_bytes: MIB / 8,
        write_bytes: MIB,
        streams: false,
        shuffle: Shuffle::Fetch,
        shipping: None,
        jobs: vec![JobSpec {
            name: "job".into(),
            input_bytes: files * 4 * MIB,
            file_bytes: 4 * MIB,
            split_bytes: 4 * MIB,
            task_cpu_ns: 4_000_000_000,
            first_task_cpu_ns: None,
            servers: None,
            starts_ns: 0,
            after: None,
            output_bytes: 0,
            spilled_bytes: 0,
            result_bytes: 0,
            reduce: None,
        }],
        seed: 1,
        horizon_ns: None,
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
    assert_eq!((outcome.served_bytes, outcome.bound_ns), (4 * MIB, 4_000_000_000));
}

/// As above, in stripes of 1 MiB, and without compute. Two windows of 0.125 s are under way, so
/// where a stripe ends its last window comes beside the first of the next: 4 s less three windows.
#[test]
fn two_servers_work_where_a_stripe_ends() {
    let mut setup = setup("naive-bb", 1);
    (setup.nodes, setup.stripe_bytes, setup.jobs[0].task_cpu_ns) = (1, MIB, 0);
    let outcome = run(&setup);
    assert!((map_s(&outcome) - 3.625).abs() < 1e-6, "{outcome:?}");
}

/// A server sends one request after the other: of two readers that begin together, the second has
/// its first window after 0.25 s. From then on both have two under way, and half of the server.
#[test]
fn readers_of_one_server_take_turns() {
    let mut setup = setup("naive-bb", 2);
    (setup.servers, setup.jobs[0].task_cpu_ns) = (1, 0);
    let outcome = run(&setup);
    let ends: Vec<u64> = outcome.jobs[0].ran.iter().map(|(_, _, end)| *end).collect();
    assert_eq!((outcome.bound_ns, ends[1]), (8_000_000_000, 8_000_000_000), "{outcome:?}");
    assert!(ends[0] >= 7_500_000_000, "{outcome:?}");
}

/// Pages lie on one of four servers each, so a reader has one server at a time: 4 s less three
/// windows for a task that computes for 1 s. Through the tier all four send: 20 s for the twenty
/// files, which take 10 s to compute. So most of that time hides the fetch of later waves.
#[test]
fn waves_are_fetched_while_others_compute() {
    let outcome = |policy: &str| {
        let mut setup = setup(policy, 20);
        (setup.servers, setup.stripe_bytes, setup.jobs[0].task_cpu_ns) = (4, MIB, 1_000_000_000);
        run(&setup)
    };
    let (naive, ahead) = (outcome("naive-bb"), outcome("no-action"));
    assert!(map_s(&naive) > 10.0 * 3.625, "{}", map_s(&naive));
    assert_eq!((ahead.bound_ns, ahead.served_bytes), (20_000_000_000, 80 * MIB));
    assert_eq!((ahead.jobs[0].tasks, ahead.jobs[0].local), (20, 20), "{ahead:?}");
    assert!(map_s(&ahead) < 25.0, "one after the other they take 30 s: {}", map_s(&ahead));
}

/// The four pages of a file that computes for 1 s each are on one server, which sends one a second.
/// Fetched beside each other the first is there when nearly all are; as a stream it is there after
/// a second, and the client's read-ahead is not lost from page to page.
#[test]
fn pages_of_a_stream_come_one_after_the_other() {
    let outcome = |streams: bool| {
        let mut setup = setup("no-action", 1);
        (setup.nodes, setup.servers, setup.streams) = (1, 1, streams);
        run(&setup)
    };
    let (beside, streams) = (outcome(false), outcome(true));
    assert!(map_s(&beside) > 7.0, "{}", map_s(&beside));
    assert!((map_s(&streams) - 5.0).abs() < 1e-6, "{}", map_s(&streams));
    assert_eq!(streams.served_bytes, 4 * MIB);
}

/// All files on the second of two servers, which takes as long as both did.
#[test]
fn files_lie_where_the_scenario_puts_them() {
    let mut setup = setup("naive-bb", 20);
    assert_eq!(run(&setup).bound_ns, 40_000_000_000);
    setup.jobs[0].servers = Some(vec![vec![1]; 20]);
    let outcome = run(&setup);
    assert_eq!(outcome.bound_ns, 80_000_000_000);
    assert!(map_s(&outcome) >= 80.0, "{}", map_s(&outcome));
}

/// Two nodes that compute for 1 s, and 3 s at first, what arrives within 1 ms.
#[test]
fn the_first_task_of_each_core_takes_longer() {
    let mut setup = setup("naive-bb", 20);
    setup.server_bytes_per_s = 4e9;
    (setup.jobs[0].task_cpu_ns, setup.jobs[0].first_task_cpu_ns) = (1_000_000_000, Some(3_000_000_000));
    let outcome = run(&setup);
    assert!((map_s(&outcome) - 12.0).abs() < 0.05, "{}", map_s(&outcome));
    let took: Vec<u64> =
        outcome.jobs[0].ran.iter().map(|(_, began, end)| (end - began) / 100_000_000).collect();
    assert_eq!(took.iter().filter(|tenths| **tenths >= 30).count(), 2, "{took:?}");
}

/// A job that begins late runs as it would at the start: its tasks wait for their nodes.
#[test]
fn a_job_that_starts_late_runs_as_one_that_starts_at_once() {
    let mut setup = setup("no-action", 20);
    let at_once = run(&setup);
    setup.jobs[0].starts_ns = 100_000_000_000;
    let late = run(&setup);
    assert_eq!((late.jobs[0].local, late.jobs[0].map_ns), (20, at_once.jobs[0].map_ns));
}

/// The second stage of an application begins a while after the end of the first.
#[test]
fn a_job_after_another_begins_at_its_end() {
    let mut setup = setup("no-action", 20);
    let second = JobSpec { name: "second".into(), after: Some(0), ..setup.jobs[0].clone() };
    setup.jobs.push(JobSpec { starts_ns: 5_000_000_000, ..second });
    let outcome = run(&setup);
    let ends_ns = outcome.jobs[0].ran.iter().map(|ran| ran.2).max().expect("tasks");
    let begins_ns = outcome.jobs[1].ran.iter().map(|ran| ran.1).min().expect("tasks");
    assert_eq!(begins_ns, ends_ns + 5_000_000_000);
    // Each page came once, and was either planned or wanted by a reader.
    let pages: u64 = outcome.activity.fetched.iter().map(|page| u64::from(page.bytes)).sum();
    assert_eq!(pages, outcome.served_bytes);
    assert!(outcome.prefetched_bytes > 0 && outcome.prefetched_bytes <= pages);
}

/// Two nodes run twenty tasks of 2 s one after the other; nine have ended on each before 19 s.
#[test]
fn a_horizon_leaves_tasks() {
    let mut setup = setup("naive-bb", 20);
    (setup.server_bytes_per_s, setup.jobs[0].task_cpu_ns) = (4e9, 2_000_000_000);
    setup.horizon_ns = Some(19_000_000_000);
    let outcome = run(&setup);
    let job = &outcome.jobs[0];
    assert_eq!((job.tasks, job.tasks_left, job.map_ns), (18, 2, 0), "{outcome:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// However files lie and whoever plans: each byte is sent once at least and by its server,
    /// nothing is faster than cores and links, and all tasks run. Through the tier each page is
    /// sent once.
    #[test]
    fn nothing_is_faster_than_cores_and_links(
        policy in prop::sample::select(vec!["naive-bb", "no-action", "full-delay", "eley", "forebay"]),
        files in 1u64..30, nodes in 1u32..5, servers in 1u32..5, known: bool, random: bool, striped: bool, streams: bool,
        cpu_ms in 0u64..8000, seed in 0u64..1000
    ) {
        let mut setup = setup(policy, files);
        (setup.nodes, setup.servers, setup.seed, setup.layout_known) = (nodes, servers, seed, known);
        setup.streams = streams;
        setup.placement = if random { Placement::Random } else { Placement::InTurn };
        setup.stripe_bytes = if striped { MIB } else { u64::MAX };
        setup.jobs[0].task_cpu_ns = cpu_ms * 1_000_000;
        let outcome = run(&setup);
        let job = &outcome.jobs[0];
        // What a client has read ahead of a descriptor is lost where another goes on.
        prop_assert!(outcome.served_bytes >= setup.jobs[0].input_bytes);
        prop_assert!(streams || outcome.served_bytes == setup.jobs[0].input_bytes);
        prop_assert!(job.map_ns + 1000 >= outcome.bound_ns, "{:?}", outcome);
        let compute_ns = files.div_ceil(u64::from(nodes)) * setup.jobs[0].task_cpu_ns;
        prop_assert!(job.map_ns + 1000 >= compute_ns, "{:?}", outcome);
        prop_assert_eq!((u64::from(job.tasks), job.ran.len() as u64), (files, files));
        prop_assert_eq!(&run(&setup), &outcome);
    }
}
