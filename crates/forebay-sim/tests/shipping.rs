//! Storage servers that run tasks: by hand, and what holds in every run.

use std::path::Path;

use forebay_policy::ship::Side;
use forebay_sim::scenario::{File, Scenario};
use forebay_sim::trace::Trace;
use forebay_sim::world::{Outcome, Setup, simulate};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// Two servers of one slot, whose disks read 1 MiB/s and whose links send half of that, and a job
/// of two files of 4 MiB, one on each. `keys` are of the job, `rest` of the cluster.
fn text(shipping: &str, keys: &str, rest: &str) -> String {
    format!(
        "kind = 'world'\n[planner]\npolicy = 'naive-bb'\n\
         [cluster]\nnodes = 2\nslots = 1\ntier_bytes = 1\nlocality_wait_s = 0\n{rest}\n\
         [pfs]\nservers = 2\nserver_bytes_per_s = 524288\nstripe_bytes = 4194304\n\
         read_ahead_bytes = 1048576\nwrite_bytes = 1048576\n\
         [shipping]\nslots = 1\ndisk_bytes_per_s = 1048576\n{shipping}\n\
         [[job]]\nname = 'job'\ninput_bytes = 8388608\nfile_bytes = 4194304\nsplit_bytes = 4194304\n\
         task_cpu_s = 0\n{keys}\n"
    )
}

fn setup(text: &str) -> Setup {
    let scenario = File::parse(Path::new("a.toml"), text).and_then(|file| file.scenario());
    match scenario.unwrap_or_else(|e| panic!("{e}\n{text}")) {
        Scenario::World(setup) => *setup,
        _ => panic!("another kind"),
    }
}

fn run(text: &str) -> Outcome {
    simulate(&setup(text), &mut Trace::off()).expect("it comes to an end")
}

fn map_s(outcome: &Outcome) -> f64 {
    outcome.cluster.jobs[0].map_ns as f64 * 1e-9
}

/// Each server reads its 4 MiB for its own task; or sends them at half of that speed; or may take
/// half of its disk.
#[test]
fn a_task_beside_its_data_needs_no_link() {
    for (shipping, s, mib, local) in [
        ("policy = 'always'", 4.0, 0, 2),
        ("policy = 'never'", 8.0, 8, 0),
        ("policy = 'always'\nio_share = 0.5", 8.0, 0, 2),
    ] {
        let outcome = run(&text(shipping, "", ""));
        assert!((map_s(&outcome) - s).abs() < 1e-6, "{shipping}: {outcome:?}");
        let cluster = &outcome.cluster;
        assert_eq!((cluster.link_bytes, cluster.served_bytes), (mib * MIB, 8 * MIB), "{shipping}");
        assert_eq!((cluster.jobs[0].local, cluster.disk_requests), (local, 8), "{shipping}");
    }
}

/// The result goes over the links, and the reason names both sides.
#[test]
fn a_stage_runs_where_it_ends_first() {
    for (keys, side, why) in [
        ("", Side::Storage, "compute nodes: 12.0 s (slots of the nodes); storage servers: 4.0 s (disks)"),
        (
            "result_bytes = 16777216",
            Side::Compute,
            "compute nodes: 12.0 s (slots of the nodes); storage servers: 20.0 s (slots of the servers)",
        ),
    ] {
        let outcome = run(&text("", keys, ""));
        assert_eq!(outcome.cluster.jobs[0].placed, [(side, why.to_owned())], "{keys}");
        assert!((map_s(&outcome) - if side == Side::Storage { 4.0 } else { 8.0 }).abs() < 1e-6);
    }
}

/// Map tasks spill, read that again and leave as much; reduce tasks read half of that over links,
/// and write as much. A fetch writes and reads it once more.
#[test]
fn a_fetch_takes_each_byte_twice_more() {
    let keys = "spilled_bytes = 8388608\nshuffled_bytes = 8388608\noutput_bytes = 8388608\nreduce_tasks = 2";
    for (shuffle, mib) in [("files", 24), ("fetch", 32)] {
        let outcome = run(&text("policy = 'always'", keys, &format!("shuffle = '{shuffle}'")));
        let cluster = &outcome.cluster;
        assert_eq!((cluster.served_bytes, cluster.output_bytes), (mib * MIB, mib * MIB), "{shuffle}");
        assert_eq!(cluster.link_bytes, 4 * MIB, "{shuffle}: a half of what map tasks leave");
        assert_eq!((cluster.jobs[0].tasks, cluster.jobs[0].placed.len()), (4, 1 + usize::from(mib == 24)));
        // Disks are busy all the time.
        assert!(map_s(&outcome) >= mib as f64, "{shuffle}: {outcome:?}");
    }
}

/// Phases take turns with the tasks of a server at its disk; what these may take limits the loss.
#[test]
fn isolated_tasks_disturb_phases_less() {
    let hpc = "[[hpc]]\nname = 'h'\ncompute_s = 0.5\nio_gb = 0.004\nphases = 3\nprocesses = 2\n";
    let disks_are_the_limit = |text: String| text.replacen("per_s = 524288", "per_s = 4194304", 1);
    let slowdown =
        |shipping: &str| run(&(disks_are_the_limit(text(shipping, "", "")) + hpc)).hpc[0].slowdown();
    let [none, isolated, not] =
        ["policy = 'never'", "policy = 'always'\nio_share = 0.1", "policy = 'always'"].map(slowdown);
    assert!(isolated < 0.5 * not && not > 0.1, "{none} {isolated} {not}");
}

/// A scenario with one or two stages, phases and a node that fails.
fn any_system() -> impl Strategy<Value = String> {
    let policies = (
        prop::sample::select(vec!["never", "always", "estimate"]),
        prop::sample::select(vec!["fetch", "files"]),
        prop::sample::select(vec!["naive-bb", "no-action", "forebay"]),
        prop::sample::select(vec!["in-turn", "random"]),
        any::<bool>(),
    );
    let sizes = (1u32..4, 1u32..5, 1u64..60, 0u64..3000, 1u64..40);
    let stages = (0u32..6, 0u64..40, 0u64..40, 0u64..40, 0u64..20);
    let rest = (prop::option::of(0u64..30), 0u64..1000, 0.1f64..=1.0);
    (policies, sizes, stages, rest).prop_map(|(policies, sizes, stages, (fault_s, seed, share))| {
        let (policy, shuffle, planner, placement, known) = policies;
        let (nodes, servers, mb, cpu_ms, disk_mb) = sizes;
        let (reducers, spilled, shuffled, output, result) = stages;
        let [spilled, shuffled, output, result] = [spilled, shuffled, output, result].map(|n| n * 100_003);
        let spilled = if reducers > 0 { format!("spilled_bytes = {spilled}\n") } else { String::new() };
        let fault = fault_s.map_or(String::new(), |at_s| format!("[[fault]]\nnode = 0\nat_s = {at_s}\nfor_s = 3\n"));
        let job = |name: &str| {
            format!(
                "[[job]]\nname = '{name}'\ninput_bytes = {mb}000000\nfile_bytes = 9000000\ntask_cpu_s = {cpu_ms}e-3\n\
                 reduce_tasks = {reducers}\nreduce_cpu_s = 0.1\nshuffled_bytes = {shuffled}\n{spilled}\
                 output_bytes = {output}\nresult_bytes = {result}\n"
            )
        };
        format!(
            "kind = 'world'\nseed = {seed}\n[planner]\npolicy = '{planner}'\n\
             [cluster]\nnodes = {nodes}\nslots = 2\ntier_bytes = 100000000\nextent_bytes = 4000000\npage_bytes = 1000000\nshuffle = '{shuffle}'\n\
             [pfs]\nservers = {servers}\nserver_bytes_per_s = 10000000\nstripe_bytes = 3000000\nwrite_bytes = 1000000\nplacement = '{placement}'\nlayout_known = {known}\n\
             [shipping]\npolicy = '{policy}'\nslots = 2\nio_share = {share}\ndisk_bytes_per_s = {disk_mb}000000\n\
             {}{}\
             [[hpc]]\nname = 'h'\ncompute_s = 2\nio_gb = 0.01\nphases = 3\nprocesses = 4\narrivals = 'poisson'\n{fault}",
            job("a"),
            job("b")
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Wherever stages run: all tasks end, each byte is read and written as often as its way says,
    /// and the same scenario is the same run.
    #[test]
    fn every_byte_goes_its_way(text in any_system()) {
        let setup = setup(&text);
        let run = || simulate(&setup, &mut Trace::off()).expect("it comes to an end");
        let outcome = run();
        let cluster = &outcome.cluster;
        let fetches = setup.cluster.shuffle == forebay_sim::cluster::Shuffle::Fetch;
        let (mut read, mut written) = (0, 0);
        for (job, spec) in cluster.jobs.iter().zip(&setup.cluster.jobs) {
            let again = spec.reduce.map_or(0, |reduce| reduce.bytes);
            read += spec.input_bytes + spec.spilled_bytes + again * if fetches { 2 } else { 1 };
            written += spec.output_bytes + spec.spilled_bytes + again * if fetches { 2 } else { 1 };
            prop_assert_eq!(job.ran.len() as u32, job.tasks);
            prop_assert_eq!(job.placed.len(), if spec.reduce.is_some() && !fetches { 2 } else { 1 });
        }
        if cluster.jobs.iter().all(|job| job.died == 0) && setup.faults.is_empty() {
            prop_assert_eq!((cluster.served_bytes, cluster.output_bytes), (read, written));
        }
        prop_assert!(cluster.served_bytes >= read && cluster.output_bytes >= written);
        prop_assert_eq!(&run(), &outcome);
    }
}
