//! Facilities: results that can be computed by hand, and a day of the month that is shipped.

use std::path::Path;

use forebay_sim::facility::{Outcome, Setup, Summary, simulate, view};
use forebay_sim::kinds::{Done, set_policy};
use forebay_sim::scenario::{File, Scenario};
use forebay_sim::trace::Trace;
use proptest::prelude::*;

mod support;

fn file(text: &str, changes: &[(&str, &str)]) -> File {
    let mut file = File::parse(Path::new("a.toml"), text).expect("TOML");
    changes.iter().for_each(|(key, value)| file.set(key, value).expect("the key is there"));
    file
}

fn setup(text: &str, changes: &[(&str, &str)]) -> Setup {
    match file(text, changes).scenario().unwrap_or_else(|e| panic!("{e}")) {
        Scenario::Facility(setup) => *setup,
        _ => unreachable!("another kind"),
    }
}

fn run(text: &str, changes: &[(&str, &str)]) -> Outcome {
    simulate(&setup(text, changes), &mut Trace::off()).unwrap_or_else(|e| panic!("{e}"))
}

fn measure(outcome: &Outcome, name: &str) -> Summary {
    outcome.measures[view::MEASURES.iter().position(|n| *n == name).expect("it is measured")]
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-3
}

/// A job of two nodes that reads 16 GB at 2 GB/s, and has two phases with a checkpoint between.
const ONE: &str = "
kind = 'facility'
cluster = { nodes = 2, node_gb = 8, link_gb_per_s = 10 }
pfs = { servers = 4, server_gb_per_s = 1 }
tier = { node_gb = 16, gb_per_s = 2, share = 0 }
steps = { every_s = 50, whole_every = 1 }
checkpoint = { median_gb = 8, sigma = 0, shift_gb = 0, short_s = 0 }
[generate]
jobs = 1
per_day = 86400
interarrival_s = [1]
estimate_s = [100]
accuracy = [1]
nodes = [[2, 1]]
";

#[test]
fn a_job_waits_for_the_pfs() {
    let outcome = run(ONE, &[]);
    assert!(near(outcome.end_s, 8.0 + 50.0 + 8.0 + 50.0 + 8.0), "{}", outcome.end_s);
    assert_eq!((outcome.jobs, outcome.written, outcome.absorbed), (1, 2, 0));
    assert!(near(measure(&outcome, "io_percent").mean, 100.0 * 24.0 / 124.0));
    let stretches = ["read_stretch", "written_stretch"].map(|name| measure(&outcome, name).most);
    assert!(stretches.iter().all(|stretch| near(*stretch, 1.0)), "{stretches:?}");
    assert_eq!(measure(&outcome, "tier_gb").most, 0.0);
}

#[test]
fn a_job_waits_for_memory_and_its_nodes_until_they_have_drained() {
    let outcome = run(ONE, &[("tier.share", "1")]);
    // The checkpoint drains while the job computes, its output after that.
    assert!(near(outcome.end_s, 8.0 + 50.0 + 4.0 + 50.0 + 4.0 + 8.0), "{}", outcome.end_s);
    assert_eq!((outcome.written, outcome.absorbed), (0, 2));
    assert!(near(measure(&outcome, "absorbed_stretch").most, 0.5));
    // The kept checkpoint and the output; without it the output alone.
    assert!(near(measure(&outcome, "tier_gb").most, 16.0));
    assert!(near(measure(&outcome, "dirty_tb").most, 0.016));
    let keeps_none = run(ONE, &[("tier.share", "1"), ("tier.keeps", "0")]);
    assert!(near(measure(&keeps_none, "tier_gb").most, 8.0));
}

#[test]
fn a_step_waits_for_room_or_goes_past_a_tier_that_is_too_small() {
    let small = [("tier.share", "1"), ("tier.node_gb", "8")];
    let outcome = run(ONE, &[small[0], small[1], ("tier.keeps", "0"), ("steps.every_s", "5")]);
    assert_eq!((outcome.written, outcome.absorbed), (0, 20));
    // The drain of a checkpoint takes 8 s, and 5 of them pass while the job computes.
    assert!(near(outcome.end_s, 8.0 + 20.0 * 5.0 + 4.0 + 19.0 * (3.0 + 4.0) + 8.0), "{}", outcome.end_s);
    // The newest checkpoint stays where it is, so that the output finds no room.
    let outcome = run(ONE, &small);
    assert_eq!((outcome.absorbed, outcome.written, outcome.past_tier), (1, 1, 1));
}

/// Two jobs that come at about the same time, on servers that they share.
const TWO: [(&str, &str); 5] = [
    ("cluster.nodes", "4"),
    ("pfs.servers", "2"),
    ("generate.jobs", "2"),
    ("generate.per_day", "864000"),
    ("checkpoint.staged", "0"),
];

#[test]
fn steps_that_share_servers_take_turns_if_the_policy_says_so() {
    let at_once = run(ONE, &TWO);
    assert_eq!(measure(&at_once, "tokens").most, 2.0);
    assert!(measure(&at_once, "written_stretch").mean > 1.9);
    let mut changes = TWO.to_vec();
    changes.push(("access.policy", "sa-sjf"));
    let in_turn = run(ONE, &changes);
    assert_eq!((measure(&in_turn, "tokens").most, measure(&in_turn, "tokens_wanted").most), (1.0, 1.0));
    assert!(near(measure(&in_turn, "written_stretch").mean, (1.0 + 2.0 - 0.1 / 8.0) / 2.0));
    // The second does not wait for longer than it has to.
    changes.push(("access.wait_s", "3"));
    let impatient = run(ONE, &changes);
    assert_eq!(impatient.tokens, [2, 1]);
    assert!(near(measure(&impatient, "token_wait_s").most, 3.0));
}

#[test]
fn drains_yield_to_phases_of_other_jobs_for_some_time() {
    // The second job begins to read at 20 s, and the first to drain at 22 s.
    let mut changes = vec![("tier.share", "1"), ("steps.every_s", "10"), ("generate.per_day", "4320")];
    changes.extend([("cluster.nodes", "4"), ("pfs.servers", "2"), ("generate.jobs", "2")]);
    let stretch = |policy: &str, age_max_s: &str| {
        let mut file = file(ONE, &changes);
        set_policy(&mut file, policy).expect("a policy");
        file.set("drain.age_max_s", age_max_s).expect("a key");
        let scenario = file.scenario().expect("a scenario");
        let Ok(Done::Facility(outcome)) = scenario.run(&mut Trace::off()) else { panic!("it does not run") };
        assert_eq!(outcome.jobs, 2);
        measure(&outcome, "read_stretch").most
    };
    // 2 s alone, and 12 GB beside 12 GB of the drain.
    assert!(near(stretch("at-once", "300"), (2.0 + 12.0) / 8.0));
    assert!(near(stretch("yield/none", "300"), 1.0));
    // From 25 s on, the drain is too old to yield.
    assert!(near(stretch("yield/none", "3"), (5.0 + 6.0) / 8.0));
}

#[test]
fn nodes_report_as_often_as_configured() {
    let outcome = run(ONE, &[("reports.heartbeat_s", "0.5")]);
    // Two nodes, twice a second, and one in five seconds; reads and writes take 24 s.
    let steady = 2.0 * 2.0 + 2.0 / 5.0 + 2.0 * 24.0 / 124.0;
    // They join, read, write twice and leave.
    let bursts = 2.0 * (2.0 + 2.0 + 2.0 * 3.0 + 1.0) / 125.0;
    let got = measure(&outcome, "messages_per_s").mean;
    assert!((got - steady - bursts).abs() < 0.1, "{got}, not {}", steady + bursts);
}

/// Queue, access and the drains of each job decide again as recorded.
#[test]
fn a_trace_can_be_replayed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let text = ONE.replace("share = 0", "share = 0.5").replace("jobs = 1\n", "jobs = 6\n");
    std::fs::write(path("a.toml"), text).expect("written");
    let run = |args: &[&str]| support::cli(args, false).expect("it runs");
    run(&["run", &path("a.toml"), "--trace", &path("t")]);
    let trace = std::fs::read_to_string(path("t")).expect("a trace");
    assert!(["\"queue\"", "\"access\"", "\"drain/"].iter().all(|who| trace.contains(who)));
    let out = run(&["replay", &path("t")]);
    assert!(out.contains("actions are the same"), "{out}");
}

/// The first day of the month that is shipped, twice.
#[test]
fn a_day_of_the_month_is_the_same_each_time() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/facility-month.toml");
    let mut file = File::read(&path).expect("it is there");
    file.set("horizon_s", "86_400").expect("a key");
    let Ok(Scenario::Facility(setup)) = file.scenario() else { panic!("no facility") };
    let day = || simulate(&setup, &mut Trace::off()).expect("it runs");
    let outcome = day();
    assert_eq!(outcome, day());
    assert!(outcome.jobs > 500 && outcome.absorbed > 10_000, "{outcome:?}");
    let tier = measure(&outcome, "tier_gb");
    assert!(tier.mean > 0.0 && tier.most <= 256.0, "{tier:?}");
    assert!(measure(&outcome, "nodes_percent").most <= 100.0);
    assert!(measure(&outcome, "pfs_gb_per_s").most <= 2_000.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Every byte arrives, in every order.
    #[test]
    fn all_bytes_arrive(
        seed in 0u64..1_000,
        share in 0.0f64..1.0,
        node_gb in 8u32..40,
        drain in prop::sample::select(vec!["at-once", "yield"]),
        access in prop::sample::select(vec!["none", "sa-fcfs", "sa-sjf", "set-10", "sys-sjf"]),
    ) {
        let numbers = [seed.to_string(), share.to_string(), node_gb.to_string()];
        let changes = [
            ("seed", numbers[0].as_str()), ("tier.share", &numbers[1]), ("tier.node_gb", &numbers[2]),
            ("drain.policy", drain), ("access.policy", access), ("cluster.nodes", "9"), ("cluster.node_gb", "30"),
            ("checkpoint.sigma", "1"), ("generate.jobs", "12"), ("generate.nodes", "[[1, 1], [2, 1], [5, 1]]"),
            ("generate.estimate_s", "[20, 400]"), ("steps.every_s", "7"), ("steps.whole_every", "3"),
            ("steps.part", "0.2"), ("generate.per_day", "5000"),
        ];
        let setup = setup(ONE, &changes);
        let outcome = simulate(&setup, &mut Trace::off()).unwrap_or_else(|e| panic!("{e}"));
        prop_assert_eq!((outcome.jobs, outcome.unfinished), (12, 0));
        let expected: f64 = setup.jobs.iter().map(|job| {
            let phases = (job.run_ns as f64 / 7e9).round().max(1.0) as u64;
            let steps = (1..phases).map(|step| match step % 3 {
                0 => job.bytes_per_node,
                _ => (job.bytes_per_node as f64 * 0.2) as u64,
            });
            let bytes = job.stage_in_bytes + steps.sum::<u64>() + job.stage_out_bytes;
            bytes as f64 * f64::from(job.nodes)
        }).sum();
        let moved: f64 = outcome.moved_bytes.iter().sum();
        prop_assert!((moved / expected - 1.0).abs() < 1e-6, "{moved} of {expected}");
    }
}
