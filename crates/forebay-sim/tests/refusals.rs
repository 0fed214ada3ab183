//! Scenarios that cannot be run as they say: the command line refuses them in one line that names
//! file, key, value and what is allowed.

use std::fs;
use std::path::Path;

mod support;

/// Runs `text`: its output, or its error from the name of the scenario on.
fn run(dir: &Path, text: &str) -> Result<String, String> {
    let file = dir.join("a.toml");
    fs::write(&file, text).expect("written");
    support::cli(&["run", file.to_str().expect("UTF-8")], false).map_err(|message| {
        assert!(!message.contains('\n'), "{message}");
        message.split_once("a.toml: ").map_or(message.clone(), |(_, rest)| rest.to_owned())
    })
}

const COLOCATION: &str = "
cluster = { pfs_gb_per_s = 4, nodes = 8, ram_gb = 400 }
profile = { bytes_gb = 50, prefetch_s = 25, i_hpc = 1.3, i_bd = 1.2 }
[[hpc]]
name = 'first'
compute_s = 3
io_s = 1
phases = 2
[[hpc]]
name = 'second'
compute_s = 3
io_s = 1
phases = 2
[[job]]
name = 'third'
input_gb = 100
wave_gb = 50
compute_s = 2
";

const BURST: &str = "
kind = 'burst-buffer'
cluster = { nodes = 4, node_gb = 100, node_gb_per_s = 1 }
[[job]]
name = 'first'
processes = 1
step_gb = 1
count = 2
[[job]]
name = 'second'
processes = 1
step_gb = 1
";

const CLUSTER: &str = "
kind = 'cluster'
cluster = { nodes = 2, slots = 8, tier_bytes = 1000000000 }
pfs = { servers = 1, server_bytes_per_s = 1000000 }
[[job]]
name = 'first'
input_bytes = 1000000
file_bytes = 1000000
task_cpu_s = 1
[[job]]
name = 'second'
input_bytes = 1000000
file_bytes = 1000000
task_cpu_s = 1
";

#[test]
fn two_jobs_of_one_name_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for (text, from, to, key) in [
        (COLOCATION, "second", "first", "hpc[1].name = \"first\""),
        (COLOCATION, "third", "first", "job[0].name = \"first\""),
        (BURST, "second", "first#2", "job[1].name = \"first#2\""),
        (CLUSTER, "second", "first", "job[1].name = \"first\""),
    ] {
        run(dir.path(), text).expect("the names are different");
        let error = run(dir.path(), &text.replacen(from, to, 1)).expect_err("they are equal");
        let name = if to == "first#2" { to } else { "first" };
        assert_eq!(error, format!("{key}: another job is called '{name}'; names have to be different"));
    }
}

/// Stages without room for them, and parts that no run could move.
#[test]
fn stages_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let one = CLUSTER.rsplit_once("[[job]]").expect("there are two").0;
    let spilled = run(dir.path(), &format!("{one}spilled_bytes = 1\n")).expect_err("nothing shuffles");
    assert_eq!(
        spilled,
        "job[0].spilled_bytes = 1: reduce_tasks is needed: only map tasks before those spill"
    );
    let many = one.replacen("task_cpu_s = 1", "task_cpu_s = 1\nsplit_bytes = 2\nreduce_tasks = 60000", 1);
    let parts = run(dir.path(), &many).expect_err("too many parts");
    assert!(parts.contains("30000000000 parts would go from map to reduce tasks"), "{parts}");
    let stripes =
        one.replacen("servers = 1,", "servers = 1, stripe_bytes = 1,", 1) + "output_bytes = 90000000\n";
    let stripes = run(dir.path(), &stripes).expect_err("too many stripes");
    assert!(stripes.contains("would write 90000000 stripes"), "{stripes}");
    let disks = run(dir.path(), &format!("{one}[shipping]\nslots = 1\n")).expect_err("no disks");
    assert!(disks.starts_with("shipping.disk_bytes_per_s = (missing)"), "{disks}");
}

/// It waits for the end of a job that is there, and not of itself or of a later one.
#[test]
fn a_job_comes_after_one_before_it() {
    let dir = tempfile::tempdir().expect("a directory");
    run(dir.path(), &format!("{CLUSTER}after = 'first'\n")).expect("it runs");
    let refusal = run(dir.path(), &format!("{CLUSTER}after = 'second'\n")).expect_err("itself");
    assert_eq!(refusal, "job[1].after = \"second\": the name of a job before it in the file is needed");
}

#[test]
fn what_planners_know_is_one_of_three() {
    let dir = tempfile::tempdir().expect("a directory");
    let knows =
        |what: &str| COLOCATION.replacen("phases = 2", &format!("phases = 2\nknowledge = '{what}'"), 1);
    let default = run(dir.path(), COLOCATION).expect("it runs");
    assert_eq!(run(dir.path(), &knows("declared")).expect("it runs"), default);
    run(dir.path(), &knows("predicted")).expect("it runs");
    let refusal = run(dir.path(), &knows("guessed")).expect_err("no such knowledge");
    assert_eq!(refusal, "hpc[0].knowledge = \"guessed\": one of declared, predicted, true is needed");
    let refusal = run(dir.path(), &knows("true'\nearlier = '3")).expect_err("nothing is predicted");
    assert!(refusal.starts_with("hpc[0].earlier = \"3\": knowledge = \"predicted\" is needed"), "{refusal}");
    let world = |what: &str| {
        let hpc = format!("[[hpc]]\nname = 'x'\ncompute_s = 1\nio_s = 1\nknowledge = '{what}'\n");
        CLUSTER.replacen("'cluster'", "'world'", 1) + &hpc
    };
    run(dir.path(), &world("predicted'\nearlier = 3 #")).expect("it runs");
    let refusal = run(dir.path(), &world("guessed")).expect_err("no such knowledge");
    assert_eq!(refusal, "hpc[0].knowledge = \"guessed\": one of declared, predicted, true is needed");
}

/// A million jobs, a million seconds apart, start over 30,000 years.
#[test]
fn jobs_that_start_after_the_end_of_the_clock_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = BURST.replacen("count = 2", "count = 1000000\ninterarrival_s = 1e6", 1);
    let error = run(dir.path(), &text).expect_err("the clock ends");
    assert!(
        error.starts_with("job[0].interarrival_s = 1000000.0: job ") && error.contains("(count)"),
        "{error}"
    );
    assert!(error.contains("the end of the clock, 584 years"), "{error}");
}

const PROFILE: &str = "
version = 1
[cluster]
pfs_gb_per_s = 4
nodes = 8
[profile]
bytes_gb = 50
prefetch_s = 200
prefetch_nodes = [[1, 8], [8, 1]]
i_hpc = 1.3
i_bd = 1.2
default_threads = 1
[planner]
learning = 0
";

const MEASURED: &str = "
profile = 'site.toml'
cluster = { ram_gb = 400 }
[[job]]
name = 'sort'
input_gb = 200
wave_gb = 50
compute_s = 20
";

/// A scenario runs with the coordinator's profile as it runs with the same sections of its own.
#[test]
fn a_scenario_may_name_a_profile() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let missing = run(dir.path(), MEASURED).expect_err("there is no profile");
    assert!(missing.contains("site.toml"), "{missing}");
    fs::write(dir.path().join("site.toml"), PROFILE).expect("written");
    let sections = PROFILE.replace("version = 1", "").replace("[cluster]", "[cluster]\nram_gb = 400");
    let jobs = MEASURED.split_once("[[job]]").expect("a job").1;
    let own = run(dir.path(), &format!("{sections}[[job]]{jobs}")).expect("it runs");
    assert_eq!(run(dir.path(), MEASURED).expect("it runs"), own);
    let both = MEASURED.replace("ram_gb = 400", "ram_gb = 400, nodes = 8");
    let refusal = run(dir.path(), &both).expect_err("the profile has the nodes");
    assert!(refusal.contains("cluster.nodes = 8: unknown key"), "{refusal}");
    fs::write(dir.path().join("site.toml"), PROFILE.replace("nodes = 8\n", "nodes = 4000\n"))
        .expect("written");
    let refusal = run(dir.path(), MEASURED).expect_err("too many nodes");
    assert!(refusal.contains("at most 724 nodes"), "{refusal}");
}
