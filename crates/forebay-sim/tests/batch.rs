//! Batch queues: results that can be computed by hand, and logs.

use std::fs;
use std::path::Path;

use forebay_sim::batch::{Outcome, Setup, simulate};
use forebay_sim::kinds::set_policy;
use forebay_sim::scenario::{File, Scenario};
use forebay_sim::trace::Trace;

fn setup(path: &Path, text: &str) -> Result<Setup, String> {
    match File::parse(path, text).and_then(|file| file.scenario()).map_err(|e| e.to_string())? {
        Scenario::Batch(setup) => Ok(*setup),
        _ => unreachable!("another kind"),
    }
}

fn run(text: &str) -> Outcome {
    let setup = setup(Path::new("a.toml"), text).expect("a scenario");
    simulate(&setup, &mut Trace::off()).expect("it runs")
}

const TWO: &str = "
kind = 'batch'
cluster = { nodes = 2, buffers = 1, buffer_gb = 10, buffer_gb_per_s = 1, pfs_gb_per_s = 1 }
[[job]]
name = 'first'
nodes = 2
run_s = 10
[[job]]
name = 'second'
nodes = 2
run_s = 6
room_gb = 10
stage_in_gb = 4
stage_out_gb = 3
";

#[test]
fn staging_overlaps_with_the_runs_of_others() {
    let outcome = run(TWO);
    let second = &outcome.jobs[1];
    assert_eq!([second.begin_s, second.run_s, second.ran_s, second.end_s], [6.0, 10.0, 16.0, 19.0]);
    assert_eq!((outcome.mean_wait_s, outcome.worst_wait_s), (5.0, 10.0));
    assert!((outcome.nodes_used - 16.0 / 19.0).abs() < 1e-9, "{}", outcome.nodes_used);
    assert!((outcome.room_used - 13.0 / 19.0).abs() < 1e-9, "{}", outcome.room_used);
}

#[test]
fn nodes_that_are_held_wait_for_transfers() {
    let held = TWO.replace("nodes = 2, buffers", "holds_nodes = true, nodes = 2, buffers");
    let outcome = run(&held.replace("run_s = 6", "run_s = 6\nestimate_s = 20"));
    let second = &outcome.jobs[1];
    assert_eq!([second.begin_s, second.run_s, second.end_s], [10.0, 10.0, 23.0]);
    // The estimate contains the transfers, and kills the job before its stage-out.
    let second = &run(&held).jobs[1];
    assert!(second.killed && second.end_s == 16.0, "{second:?}");
}

#[test]
fn a_seed_makes_a_run_and_policies_matter() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/batch-queue.toml");
    let wait = |policy: &str| {
        let mut file = File::read(&path).expect("it is there");
        file.set("generate.jobs", "300").expect("a key");
        set_policy(&mut file, policy).expect("a policy");
        let Ok(Scenario::Batch(setup)) = file.scenario() else { panic!("no batch scenario") };
        simulate(&setup, &mut Trace::off()).expect("it runs").mean_wait_s
    };
    assert_eq!(wait("plan-2"), wait("plan-2"));
    assert!(wait("plan-2") < wait("fcfs-easy"));
}

#[test]
fn a_log_is_read_and_what_is_none_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.toml");
    let text = "kind = 'batch'\ncluster = { nodes = 8 }\nlog = { swf = 'a.swf' }";
    let log = "; a log\n1 5 -1 60 4 -1 -1 4 100 -1 1 -1 -1 -1 -1 -1 -1 -1\n2 9 -1 60 9 -1 -1 9 100 -1 1\n";
    fs::write(dir.path().join("a.swf"), log).expect("written");
    let jobs = setup(&path, text).expect("a scenario").jobs;
    // The second wants more nodes than there are.
    assert_eq!(jobs.len(), 1);
    assert_eq!(
        (jobs[0].submit_ns, jobs[0].run_ns, jobs[0].estimate_ns),
        (0, 60_000_000_000, 100_000_000_000)
    );
    fs::write(dir.path().join("a.swf"), "1 2 three\n").expect("written");
    let refusal = setup(&path, text).expect_err("no log");
    assert!(refusal.contains("a.swf") && refusal.contains("18 numbers"), "{refusal}");
}

#[test]
fn jobs_that_never_fit_are_refused() {
    for (from, to, refusal) in [
        ("nodes = 2\nrun_s = 6", "nodes = 3\nrun_s = 6", "job[1].nodes = 3: the job does not fit"),
        ("room_gb = 10", "room_gb = 12", "job[1].nodes = 2: the job does not fit"),
        ("stage_in_gb = 4", "stage_in_gb = 14", "job[1].stage_in_gb = 14: a number from 0 to 10"),
        ("name = 'second'", "name = 'first'", "another job is called 'first'"),
        (
            "kind = 'batch'",
            "kind = 'batch'\nqueue = { policy = 'lifo' }",
            "queue.policy = \"lifo\": one of fcfs",
        ),
    ] {
        let error = setup(Path::new("a.toml"), &TWO.replace(from, to)).expect_err(to);
        assert!(error.contains(refusal), "{error}");
    }
}
