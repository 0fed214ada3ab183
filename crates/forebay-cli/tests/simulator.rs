//! `forebay sim` and `forebay model` as their users run them: results, records, and refusals that
//! say what to do.
//!
//! Every test runs the real program. A parser made for the test would not have the options that all
//! commands share, and so could not show where one of them collides with an option of the
//! simulator.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What the command prints, or its error without the program's name.
fn forebay(args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let out = command.args(args).stdin(Stdio::null()).output().expect("the program runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let error = text(out.stderr);
    assert!(!error.contains("panicked at"), "{args:?}: {error}");
    match out.status.code() {
        Some(0) => Ok(text(out.stdout)),
        _ => Err(error.trim_end().trim_start_matches("forebay: ").to_owned()),
    }
}

fn scenario() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/eley-t2-app6.toml")
}

fn path(p: &std::path::Path) -> &str {
    p.to_str().expect("a path in UTF-8")
}

#[test]
fn a_run_can_be_recorded_and_replayed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| dir.path().join(name);
    let (trace, json, csv, svg) = (file("t"), file("j"), file("c"), file("s"));
    let scenario = scenario();
    let out = forebay(&[
        "sim",
        "run",
        path(&scenario),
        "--trace",
        path(&trace),
        "--result",
        path(&json),
        "--csv",
        path(&csv),
        "--timeline",
        path(&svg),
    ])
    .expect("it runs");
    assert!(out.contains("application 6") && out.contains("decisions"), "{out}");
    let result: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(json).expect("written")).expect("JSON");
    assert_eq!(result["hpc"][0]["phases"].as_array().expect("phases").len(), 10);
    assert_eq!(fs::read_to_string(csv).expect("written").lines().count(), 3);
    assert!(fs::read_to_string(svg).expect("written").contains("wave 1"));

    let out = forebay(&["sim", "replay", path(&trace)]).expect("the same decisions");
    assert!(out.contains("actions are the same") && !out.contains("all 0 actions"), "{out}");
}

/// A record in which one number was changed is found out.
#[test]
fn a_replay_notices_a_changed_decision() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let trace = dir.path().join("t");
    forebay(&["sim", "run", path(&scenario()), "--trace", path(&trace)]).expect("it runs");
    let text = fs::read_to_string(&trace).expect("written");
    let at = text.rfind("\"is\":\"fetch\"").expect("a fetch");
    let (head, tail) = text.split_at(at);
    let changed = head.to_string() + &tail.replacen("\"threads\":", "\"threads\":1", 1);
    assert_ne!(changed, text);
    fs::write(&trace, changed).expect("the directory is writable");
    let error = forebay(&["sim", "replay", path(&trace)]).expect_err("it differs");
    assert!(error.contains("but the machine decides"), "{error}");
}

#[test]
fn a_sweep_does_not_depend_on_the_number_of_threads() {
    let sweep = |threads: &str| {
        forebay(&[
            "sim",
            "sweep",
            path(&scenario()),
            "--threads",
            threads,
            "--set",
            "planner.policy=eley,forebay",
            "--set",
            "hpc.0.allowance_percent=5,15,30",
        ])
        .expect("it runs")
    };
    let one = sweep("1");
    assert_eq!(one.lines().count(), 1 + 6 * 2);
    assert_eq!(one, sweep("4"));
}

#[test]
fn compare_shows_every_policy() {
    let out = forebay(&["sim", "compare", path(&scenario())]).expect("it runs");
    for (policy, _) in forebay_policy::planner::POLICIES {
        assert!(out.contains(policy), "{policy} is missing from {out}");
    }
}

/// Everything that a scenario can say: it runs, and what was recorded is decided again in the same
/// way, learning included.
#[test]
fn the_mixed_cluster_runs_and_replays() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let trace = dir.path().join("t");
    let mixed = scenario().with_file_name("mixed-cluster.toml");
    let out = forebay(&["sim", "run", path(&mixed), "--trace", path(&trace)]).expect("it runs");
    for name in ["sort", "k-means", "wordcount", "checkpoints", "analysis", "visualisation"] {
        assert!(out.contains(name), "{name} is missing from {out}");
    }
    let out = forebay(&["sim", "replay", path(&trace)]).expect("the same decisions");
    assert!(out.contains("actions are the same"), "{out}");
}

/// Each of these is wrong in one place; the message is one line with file, key, value and what is
/// allowed.
#[test]
fn bad_scenarios_are_refused_in_one_line() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let good = fs::read_to_string(scenario()).expect("the scenario is in the repository");
    let refuse = |from: &str, to: &str| {
        assert!(good.contains(from), "{from} is not in the scenario");
        let file = dir.path().join("bad.toml");
        fs::write(&file, good.replacen(from, to, 1)).expect("the directory is writable");
        let error = forebay(&["sim", "run", path(&file)]).expect_err("it is wrong");
        assert!(error.contains("bad.toml") && !error.contains('\n'), "{error}");
        error.rsplit_once("bad.toml: ").map_or(error.clone(), |(_, e)| e.into())
    };
    assert!(refuse("nodes = 8", "nodez = 8").contains("cluster.nodes = (missing)"));
    assert_eq!(
        refuse("nodes = 8", "nodes = 725"),
        "cluster.nodes = 725: a whole number from 1 to 724 is needed"
    );
    assert!(refuse("ram_gb = 256", "ram_gb = 256\ncolour = 1").contains("cluster.colour = 1: unknown key"));
    assert_eq!(
        refuse("input_gb = 799", "input_gb = -799"),
        "job[0].input_gb = -799: a number from 0.000001 to 1000000000 is needed"
    );
    assert_eq!(
        refuse("wave_gb = 50", "wave_gb = 200"),
        "job[0].wave_gb = 200: the tier has to hold two waves (cluster.ram_gb), so at most 128 is allowed"
    );
    assert_eq!(refuse("[profile]", "[profil]"), "profile = (missing): a table [profile] is needed");
    assert_eq!(
        refuse("\"eley\"", "\"best\""),
        "planner.policy = \"best\": one of naive-bb, no-action, full-delay, eley, eley-direct, forebay is needed"
    );
    assert!(refuse("phases = 10", "phases = 10\nio_s = 4").contains("hpc[0].io_gb = 235.8: give either"));
    assert!(refuse("i_bd = 1.2", "i_bd = 0.9").starts_with("profile.i_bd = 0.9: a number from 1 to"));
    assert!(refuse("[4, 0.85]", "[3, 0.85], [2, 1]").contains("counts must be positive and ascending"));
    assert!(refuse("[cluster]", "[cluster").contains("not TOML"));
}

/// Equation (8) by hand: 25 s of prefetch at I_bd = 1.2 beside 59 s of I/O at I_hpc = 1.3.
#[test]
fn the_interference_model_answers() {
    let out = forebay(&[
        "model",
        "interference",
        "--io",
        "59",
        "--prefetch",
        "25",
        "--compute",
        "43",
        "--i-hpc",
        "1.3",
        "--i-bd",
        "1.2",
    ])
    .expect("it answers");
    let no_action = out.lines().find(|l| l.starts_with("No Action")).expect("a row");
    assert_eq!(
        no_action.split_whitespace().collect::<Vec<_>>(),
        ["No", "Action", "0", "65.92", "30", "0", "no"]
    );
    let error =
        forebay(&["model", "interference", "--io", "1", "--prefetch", "1", "--i-hpc", "0.5", "--i-bd", "1"]);
    assert_eq!(
        error.expect_err("a factor below 1"),
        "--i-hpc 0.5: a number from 1 to 1000000000000 is needed"
    );
}

#[test]
fn storage_models_answer_and_refuse() {
    let out =
        forebay(&["model", "tls", "--nodes", "100", "--pfs", "10000", "--hit", "0"]).expect("it answers");
    let row = |name: &str| out.lines().find(|l| l.contains(name)).expect("a row").to_string();
    assert!(row("PFS").contains("100") && row("HDFS").contains("23.7"), "{out}");
    let job =
        ["model", "mapreduce", "--nodes", "100", "--pfs", "10000", "--input", "1000", "--output", "500"];
    let out = forebay(&job).expect("it answers");
    let pfs = out.lines().find(|l| l.contains("PFS")).expect("a row");
    assert!(pfs.contains("10") && pfs.contains("15"), "{pfs}");
    let error = forebay(&["model", "tls", "--nodes", "0", "--pfs", "1"]).expect_err("no nodes");
    assert_eq!(error, "--nodes 0: a number from 1 to 1000000000000 is needed");
}

/// With `--json` each command of the simulator writes one JSON value and nothing else.
#[test]
fn every_command_of_the_simulator_and_of_the_models_writes_json() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (trace, report) = (dir.path().join("t"), dir.path().join("r"));
    let scenario = scenario();
    let json = |args: &[&str]| -> serde_json::Value {
        let text = forebay(&[args, &["--json"]].concat()).unwrap_or_else(|e| panic!("{args:?}: {e}"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
    };
    let run = json(&["sim", "run", path(&scenario), "--trace", path(&trace)]);
    assert_eq!(run["hpc"][0]["phases"].as_array().expect("phases").len(), 10);
    let rows = json(&["sim", "compare", path(&scenario)]);
    assert!(
        rows[0]["policy"].is_string() && rows[0]["map_s"].is_f64() && rows[0]["deadlines_missed"].is_null()
    );
    let rows = json(&["sim", "sweep", path(&scenario), "--set", "seed=1,2"]);
    assert_eq!((&rows[0]["seed"], rows.as_array().expect("rows").len()), (&1.into(), 4));
    let replay = json(&["sim", "replay", path(&trace)]);
    assert!(replay["actions"].as_u64() > Some(0), "{replay}");
    let made = json(&["sim", "reproduce", "tls", "--out", path(&report)]);
    assert!(made["met"].as_u64() > Some(0) && made["results"][0]["id"].is_string(), "{made}");
    let tls = json(&["model", "tls", "--nodes", "100", "--pfs", "10000"]);
    assert_eq!(tls[1]["storage"], "PFS");
    let asked = ["--io", "59", "--prefetch", "25", "--i-hpc", "1.3", "--i-bd", "1.2"];
    let actions = json(&[&["model", "interference"], &asked[..]].concat());
    assert!(actions["actions"][0]["phase_ends_s"].is_f64(), "{actions}");
}

fn checkpoints() -> PathBuf {
    scenario().with_file_name("checkpoints.toml")
}

/// Runs that were measured, and their map times in seconds with `naive-bb` and `no-action`: medians
/// of `make bench-spark` (docs/simulator.md, *Predicted and measured*).
const MEASURED: [(&str, f64, f64); 2] = [("lab-moosefs.toml", 23.2, 21.6), ("slow-pfs.toml", 36.0, 19.4)];

/// What was measured is predicted, and what the machine decided is decided again.
#[test]
fn runs_that_were_measured_are_predicted_and_replayed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let trace = dir.path().join("t");
    for (name, naive_s, waves_s) in MEASURED {
        let file = scenario().with_file_name(name);
        for (policy, measured_s) in [("naive-bb", naive_s), ("no-action", waves_s)] {
            let args = ["sim", "run", path(&file), "--policy", policy, "--trace", path(&trace), "--json"];
            let text = forebay(&args).expect("it runs");
            let out: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let seconds = |value: &serde_json::Value| value.as_f64().expect("a number") * 1e-9;
            let map_s = seconds(&out["jobs"][0]["map_ns"]);
            assert!(map_s >= seconds(&out["bound_ns"]), "{name}: {text}");
            assert!(
                (map_s / measured_s - 1.0).abs() <= 0.15,
                "{name}, {policy}: {map_s} s, {measured_s} s measured"
            );
            let out = forebay(&["replay", path(&trace)]).expect("the same decisions");
            assert!(out.contains("actions are the same"), "{out}");
        }
    }
    let text = fs::read_to_string(scenario().with_file_name("lab-moosefs.toml")).expect("a scenario");
    let file = dir.path().join("bad.toml");
    fs::write(&file, text.replace("streams = true", "placement = \"by-hash\"")).expect("writable");
    let error = forebay(&["sim", "run", path(&file)]).expect_err("no such placement");
    assert!(error.contains("pfs.placement = \"by-hash\": one of in-turn, random is needed"), "{error}");
}

/// The other kind of scenario, with everything that breaks in it.
#[test]
fn shared_burst_buffers_can_be_run_and_replayed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| dir.path().join(name);
    let (trace, json, csv, svg) = (file("t"), file("j"), file("c"), file("s"));
    let scenario = checkpoints();
    let out = forebay(&[
        "sim",
        "run",
        path(&scenario),
        "--trace",
        path(&trace),
        "--result",
        path(&json),
        "--csv",
        path(&csv),
        "--timeline",
        path(&svg),
    ])
    .expect("it runs");
    assert!(out.contains("died writing") && out.contains("tokens"), "{out}");
    let result: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(json).expect("written")).expect("JSON");
    assert_eq!(result["jobs"].as_array().expect("jobs").len(), 5);
    // Every fault of the scenario has struck.
    assert_eq!(result["jobs"][4]["died"]["was"], "writing");
    assert_eq!(result["jobs"][1]["leases_lost"], 1);
    assert_eq!(result["down"][0]["jobs"], 2);
    assert!(result["holds"].as_array().expect("holds").iter().any(|h| h["ended"] == "node_lost"));
    assert_eq!(fs::read_to_string(csv).expect("written").lines().count(), 1 + 5 + 1);
    let svg = fs::read_to_string(svg).expect("written");
    assert!(svg.contains("the lease ran out") && svg.contains("a node was lost") && svg.contains("node 3"));

    let out = forebay(&["sim", "replay", path(&trace)]).expect("the same decisions");
    assert!(out.contains("actions are the same") && !out.contains("all 0 actions"), "{out}");

    // The guide shows this run.
    let shown =
        fs::read_to_string(scenario.with_file_name("../docs/images/checkpoints.svg")).expect("a picture");
    let renew = "forebay sim run scenarios/checkpoints.toml --timeline docs/images/checkpoints.svg";
    assert!(
        shown == svg,
        "the guide's picture is not of this run; renew it, and the figures beside it: {renew}"
    );
}

#[test]
fn a_changed_grant_is_noticed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let trace = dir.path().join("t");
    forebay(&["sim", "run", path(&checkpoints()), "--trace", path(&trace)]).expect("it runs");
    let text = fs::read_to_string(&trace).expect("written");
    let changed = text.replacen("\"because\":\"first\"", "\"because\":\"overdue\"", 1);
    assert_ne!(changed, text);
    fs::write(&trace, changed).expect("the directory is writable");
    let error = forebay(&["sim", "replay", path(&trace)]).expect_err("it differs");
    assert!(error.contains("but the machine decides"), "{error}");
    let unknown = text.replacen("\"kind\":\"burst-buffer\"", "\"kind\":\"tape\"", 1);
    fs::write(&trace, unknown).expect("the directory is writable");
    let error = forebay(&["sim", "replay", path(&trace)]).expect_err("no such kind");
    assert!(
        error.contains(
            "this is a run of kind 'tape'; colocation, burst-buffer, cluster, memory, world, stages, node and laws can \
             be replayed"
        ),
        "{error}"
    );
}

#[test]
fn access_and_allocation_policies_are_compared_and_swept() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let csv = dir.path().join("c");
    let scenario = checkpoints();
    let out = forebay(&["sim", "compare", path(&scenario), "--csv", path(&csv)]).expect("it runs");
    for (policy, _) in forebay_policy::burst::access::POLICIES {
        assert!(out.contains(policy), "{policy} is missing from {out}");
    }
    let rows = 6 * forebay_policy::burst::access::POLICIES.len();
    assert_eq!(fs::read_to_string(&csv).expect("written").lines().count(), 1 + rows);
    let out = forebay(&["sim", "compare", path(&scenario), "--policies", "full/sa-fcfs,striped/sa-sjf"]);
    let out = out.expect("it runs");
    assert!(out.contains("full        sa-fcfs") && out.contains("striped     sa-sjf"), "{out}");
    let sweep = |threads: &str| {
        let grid = ["--set", "access.policy=sa-sjf,coflow", "--set", "seed=1,2,3"];
        let args = [&["sim", "sweep", path(&scenario), "--threads", threads], &grid[..]].concat();
        forebay(&args).expect("it runs")
    };
    let one = sweep("1");
    assert_eq!(one.lines().count(), 1 + 2 * 3 * 6);
    assert_eq!(one, sweep("4"));
    let error = forebay(&["sim", "run", path(&scenario), "--policy", "lifo"]).expect_err("no such policy");
    assert!(error.contains("access.policy = \"lifo\": one of none, sys-fcfs,"), "{error}");
}

/// A policy that a scenario does not name is the same whether its table is missing or empty, in
/// both kinds with burst buffers: `full` with `coflow`, which is better than any other pair.
#[test]
fn burst_buffers_have_one_default_pair_of_policies() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, record) = (dir.path().join("s.toml"), dir.path().join("trace"));
    let jobs = |table: &str| {
        let job = |name: &str, gb: u32| {
            format!("[[{table}]]\nname = '{name}'\nprocesses = 8\nnodes = 2\nstep_gb = {gb}\nsteps = 3\n")
        };
        job("long", 40) + &job("short", 10)
    };
    let nodes = "nodes = 8\nnode_gb = 100\nnode_gb_per_s = 1\n";
    let burst_buffer = format!("kind = 'burst-buffer'\n[cluster]\n{nodes}{}", jobs("job"));
    let world = format!(
        "kind = 'world'\n[cluster]\nnodes = 1\ntier_bytes = 1_000_000\n[pfs]\nservers = 1\nserver_bytes_per_s = 1e9\n[buffers]\n{nodes}{}",
        jobs("checkpoint")
    );
    for scenario in [burst_buffer, world] {
        let run = |tables: &str| {
            fs::write(&file, format!("{scenario}\n{tables}")).expect("the directory is writable");
            let out = forebay(&["sim", "run", path(&file), "--trace", path(&record)]).expect("it runs");
            (out, fs::read_to_string(&record).expect("written"))
        };
        let pair = |allocation: &str, access: &str| {
            format!("[allocation]\npolicy = '{allocation}'\n[access]\npolicy = '{access}'\n")
        };
        let named = run(&pair("full", "coflow"));
        assert_ne!(run(&pair("striped", "coflow")).1, named.1, "the allocation makes no difference here");
        assert_ne!(run(&pair("full", "sa-sjf")).1, named.1, "the access policy makes no difference here");
        for tables in ["", "[access]\n", "[allocation]\n", "[access]\n[allocation]\n"] {
            assert_eq!(run(tables), named, "with {tables:?}");
        }
    }
}

/// W8 of the paper as a scenario comes to what its reproduction comes to, in each of its orders of
/// arrival.
#[test]
fn the_papers_workload_as_a_scenario_is_the_papers_workload() {
    use forebay_sim::burst::batch::simulate;
    use forebay_sim::reproduce::bb::workloads::{MIXES, setup};
    for (order, access) in [(0, "none"), (1, "sa-sjf"), (7, "coflow")] {
        let seed = order.to_string();
        let file = scenario().with_file_name("bb-w8.toml");
        let run = ["sim", "run", path(&file), "--seed", &seed, "--policy", access];
        let out = forebay(&run).expect("it runs");
        let all = out.lines().find(|l| l.contains("(all)")).expect("a row of sums");
        let sum_s: f64 = all.split_whitespace().nth(5).expect("the sum").parse().expect("a number");
        let batch =
            simulate(&setup(&MIXES[7], order, "striped", access), &mut forebay_sim::trace::Trace::off());
        let expected_s = batch.expect("it runs").aggregate_s();
        // The scenario has the table's binary sizes in decimal, to a byte.
        assert!((sum_s / expected_s - 1.0).abs() < 1e-8, "{access}: {sum_s} {expected_s}");
    }
}

#[test]
fn bad_burst_buffer_scenarios_are_refused_in_one_line() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let good = fs::read_to_string(checkpoints()).expect("the scenario is in the repository");
    let refuse = |from: &str, to: &str| {
        assert!(good.contains(from), "{from} is not in the scenario");
        let file = dir.path().join("bad.toml");
        fs::write(&file, good.replacen(from, to, 1)).expect("the directory is writable");
        let error = forebay(&["sim", "run", path(&file)]).expect_err("it is wrong");
        assert!(error.contains("bad.toml") && !error.contains('\n'), "{error}");
        error.rsplit_once("bad.toml: ").map_or(error.clone(), |(_, e)| e.into())
    };
    assert_eq!(
        refuse("\"burst-buffer\"", "\"tape\""),
        "kind = \"tape\": one of colocation, burst-buffer, cluster, memory, world is needed"
    );
    assert!(
        refuse("[access]", "[acess]").starts_with("acess = a table: unknown key; allowed are kind, seed")
    );
    assert!(
        refuse("lease_s = 15", "leese_s = 15").starts_with("access.leese_s = 15: unknown key; allowed are")
    );
    assert_eq!(refuse("nodes = 8", "nodes = 17"), "job[1].nodes = 17: a whole number from 1 to 16 is needed");
    assert_eq!(
        refuse("step_gb = 800", "step_gb = 6401"),
        "job[1].step_gb = 6401: a step has to fit on its nodes, 8 of 800 GB, when nobody else is there (allocation 'striped')"
    );
    assert!(refuse("step_gb = 800", "step_gb = -8").starts_with("job[1].step_gb = -8: a number from "));
    assert!(
        refuse("step_gb = 800", "process_gb = 1\nstep_gb = 8").contains("give either step_gb or process_gb")
    );
    assert!(
        refuse("nodes = 8", "on = [3, 99]")
            .contains("job[1].on = [3, 99]: a list of whole numbers from 0 to 15")
    );
    assert!(refuse("nodes = 8", "nodes = 8\non = [3]").contains("job[1].on = [3]: give either nodes"));
    assert!(refuse("name = \"fusion\"", "name = \"climate\"").contains("names have to be different"));
    assert_eq!(
        refuse("job = \"combustion\"", "job = \"fission\""),
        "fault[0].job = \"fission\": no job has this name; there are climate, fusion, analysis#1, analysis#2, combustion"
    );
    assert!(refuse("node = 3", "node = 16").starts_with("fault[2].node = 16: a whole number from 0 to 15"));
    assert!(refuse("spread = 0.4", "").starts_with("job[1].spread = (missing): a number from 0 to 1"));
}

/// Each of these panicked, or wrote results that no run has.
#[test]
fn numbers_that_make_no_run_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (scenario, svg) = (scenario(), dir.path().join("s"));
    for window in [["10", "5"], ["5", "5"], ["nan", "inf"], ["0", "inf"], ["-1", "5"]] {
        let args = ["sim", "run", path(&scenario), "--timeline", path(&svg), "--window"];
        let error = forebay(&[&args, &window[..]].concat()).expect_err("no part of the time");
        assert!(error.contains("FROM before TO") && !svg.exists(), "{window:?}: {error}");
    }
    let set: Vec<String> = (0..64).map(|i| format!("hpc.{i}.phases=1,2")).collect();
    let grid: Vec<&str> = set.iter().flat_map(|s| ["--set", s]).collect();
    let error = forebay(&[&["sim", "sweep", path(&scenario)], &grid[..]].concat()).expect_err("2^64 points");
    assert!(error.contains("2 x 2 x 2") && error.contains("at most 1000000 are allowed"), "{error}");
    let twice = ["sim", "sweep", path(&scenario), "--set", "seed=0,1", "--set", "seed=2,3"];
    assert!(forebay(&twice).expect_err("twice").contains("--set seed is given twice"));
    for value in ["inf", "nan", "-1", "0", "1e300"] {
        for args in [
            &["model", "tls", "--pfs", "1", "--nodes"][..],
            &["model", "tls", "--nodes", "1", "--pfs"],
            &["model", "interference", "--prefetch", "1", "--i-hpc", "1", "--i-bd", "1", "--io"],
        ] {
            let value = format!("{}={value}", args.last().expect("an option"));
            let error = forebay(&[&args[..args.len() - 1], &[&value]].concat()).expect_err("no number");
            assert!(error.contains("is needed"), "{value}: {error}");
        }
    }
    let rows = forebay(&["model", "tls", "--nodes", "1e12", "--pfs", "1e12"]).expect("it answers");
    assert!(!rows.contains("NaN") && !rows.contains("inf"), "{rows}");
}

/// Scenarios that were run as something else than what they say.
#[test]
fn scenarios_that_cannot_be_run_as_they_say_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("bad.toml");
    let refuse = |of: &PathBuf, changes: &[(&str, &str)]| {
        let mut text = fs::read_to_string(of).expect("the scenario is in the repository");
        for (from, to) in changes {
            assert!(text.contains(from), "{from} is not in the scenario");
            text = text.replacen(from, to, 1);
        }
        fs::write(&file, text).expect("the directory is writable");
        forebay(&["sim", "run", path(&file)]).expect_err("it cannot be run")
    };
    let (eley, bursts) = (scenario(), checkpoints());
    let error = refuse(&eley, &[("phases = 10", "phases = 0")]);
    assert!(error.contains("hpc[0].phases = 0: a whole number from 1 to"), "{error}");
    let error = refuse(&eley, &[("input_gb = 799", "input_gb = 1e9"), ("wave_gb = 50", "wave_gb = 0.1")]);
    assert!(error.contains("job[0].wave_gb = 0.1: the input (input_gb) makes 10000000000 waves"), "{error}");
    let error =
        refuse(&eley, &[("i_hpc_threads = [[1, 1.0], [2, 1.15]", "i_hpc_threads = [[1, 1.0], [2, 0.5]")]);
    assert!(error.contains("profile.i_hpc_threads") && error.contains("at least 1 is needed"), "{error}");
    let error = refuse(&eley, &[("[cluster]", "[truth]\ni_hpc_times = 0.5\n[cluster]")]);
    assert!(error.contains("truth.i_hpc_times = 0.5") && error.contains("at least 1 is needed"), "{error}");
    // More than 584 years: sums of times stopped there, and phases seemed to take no time.
    let long = "phases = 1000000\nstarts_s = 1e6";
    let error = refuse(&eley, &[("phases = 10", long), ("compute_s = 1.2", "compute_s = 1e6")]);
    assert!(error.contains("the end of the clock, 584 years"), "{error}");
    let text = fs::read_to_string(&bursts).expect("the scenario is in the repository");
    let steps = text.lines().find(|l| l.starts_with("steps = ")).expect("a number of steps");
    let compute = text.lines().find(|l| l.starts_with("compute_s = ")).expect("a time");
    let error = refuse(&bursts, &[(steps, "steps = 1000000"), (compute, "compute_s = 1e6")]);
    assert!(error.contains("the end of the clock, 584 years"), "{error}");
}

#[test]
fn a_record_that_is_cut_off_is_checked_to_its_last_line_and_one_with_a_gap_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("trace");
    forebay(&["sim", "run", path(&scenario()), "--trace", path(&trace)]).expect("a run");
    let whole = std::fs::read_to_string(&trace).expect("a trace");

    // As a killed process leaves it.
    let last = whole.trim_end().rfind('\n').expect("lines") + 1;
    std::fs::write(&trace, &whole[..last + 9]).expect("written");
    let out = forebay(&["replay", path(&trace)]).expect("what is there is right");
    assert!(out.contains("has no end and was left out"), "{out}");

    let mut lines: Vec<&str> = whole.lines().collect();
    let note =
        lines.iter().position(|line| line.contains("\"note\":")).expect("a note, which no machine hears");
    lines.remove(note);
    std::fs::write(&trace, lines.join("\n") + "\n").expect("written");
    let error = forebay(&["replay", path(&trace)]).expect_err("a line is missing");
    assert!(error.contains("lines are missing"), "{error}");
}

#[test]
fn a_trace_without_decisions_is_not_good() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let trace = dir.path().join("t");
    forebay(&["sim", "run", path(&scenario()), "--trace", path(&trace)]).expect("it runs");
    let text = fs::read_to_string(&trace).expect("written");
    fs::write(&trace, text.lines().next().expect("a header").to_owned() + "\n").expect("writable");
    let error = forebay(&["sim", "replay", path(&trace)]).expect_err("nothing is checked");
    assert!(error.contains("there is nothing to check"), "{error}");
}

/// All nodes of one job fail for ever. The others have their results all the same.
#[test]
fn a_job_that_is_left_without_nodes_costs_the_others_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("s.toml");
    let text = "kind = \"burst-buffer\"\n[cluster]\nnodes = 2\nnode_gb = 100\nnode_gb_per_s = 1\n
        [[job]]\nname = \"stays\"\nprocesses = 1\nstep_gb = 10\nsteps = 3\non = [0]\n
        [[job]]\nname = \"left\"\nprocesses = 1\nstep_gb = 10\nsteps = 3\non = [1]\n
        [[fault]]\nnode = 1\nat_s = 15\n";
    fs::write(&file, text).expect("writable");
    let out = forebay(&["sim", "run", path(&file)]).expect("it runs");
    let row = |name: &str| out.lines().find(|l| l.contains(name)).expect("a row").to_owned();
    assert!(row(" stays ").ends_with("written") && row(" left ").ends_with("no nodes left"), "{out}");
    assert!(row("(all)").ends_with("0 died, 1 without nodes"), "{out}");
}

/// The kind of scenario with a node whose tier gives way: run, recorded, replayed, compared, and
/// with a measured load.
#[test]
fn a_node_whose_tier_gives_way_is_run_and_replayed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| dir.path().join(name);
    let (trace, svg) = (file("t"), file("s"));
    let scenario = scenario().with_file_name("memory-bursts.toml");
    let out = forebay(&["sim", "run", path(&scenario), "--trace", path(&trace), "--timeline", path(&svg)])
        .expect("it runs");
    assert!(out.contains("clairvoyant_gb") && out.contains("resizes"), "{out}");
    assert!(fs::read_to_string(&svg).expect("written").contains("clairvoyant tier"));
    let out = forebay(&["replay", path(&trace)]).expect("the same decisions");
    assert!(out.contains("actions are the same"), "{out}");
    let text = fs::read_to_string(&trace).expect("written");
    let changed = text.replacen("\"capacity_bytes\":", "\"capacity_bytes\":1", 1);
    assert_ne!(text, changed);
    fs::write(&trace, changed).expect("writable");
    forebay(&["replay", path(&trace)]).expect_err("another capacity was recorded");
    let rows = forebay(&["sim", "compare", path(&scenario)]).expect("it runs");
    assert!(["static", "dynims", "forebay"].iter().all(|law| rows.contains(law)), "{rows}");

    let text = fs::read_to_string(&scenario).expect("a scenario");
    let measured = text.replace("base_gb = 12", "trace = \"load.csv\"");
    assert_ne!(text, measured);
    fs::write(file("measured.toml"), measured).expect("writable");
    fs::write(file("load.csv"), "0,12000000000\n60,20000000000\n").expect("writable");
    forebay(&["sim", "run", path(&file("measured.toml"))]).expect("it runs");
    fs::write(file("load.csv"), "0,12000000000\nten,20000000000\n").expect("writable");
    let error = forebay(&["sim", "run", path(&file("measured.toml"))]).expect_err("not a number");
    assert!(error.contains("load.csv:2: SECONDS,BYTES is needed"), "{error}");
}

#[test]
fn policies_are_compared_on_random_systems() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let csv = dir.path().join("c");
    let all: [(&str, Vec<&str>); 3] = [
        ("planners", forebay_policy::planner::POLICIES.iter().map(|p| p.0).collect()),
        ("access", forebay_policy::burst::access::POLICIES.iter().map(|p| p.0).collect()),
        ("memory", forebay_policy::memory::POLICIES.iter().map(|p| p.0).collect()),
    ];
    for (what, policies) in all {
        let run = |threads: &str| {
            let args = ["sim", "random", what, "--count", "2", "--threads", threads, "--csv", path(&csv)];
            let out = forebay(&args).expect("it runs");
            (out, fs::read_to_string(&csv).expect("written"))
        };
        let (out, rows) = run("1");
        assert!(policies.iter().all(|policy| *policy == "none" || out.contains(policy)), "{out}");
        assert_eq!(rows.lines().count(), 1 + policies.len() * 2, "{rows}");
        assert_eq!(run("3"), (out, rows));
        let error = forebay(&["sim", "random", what, "--policies", "best"]).expect_err("there is none");
        assert!(error.contains("no policy is called 'best'"), "{error}");
        forebay(&["sim", "random", what, "--count", "0"]).expect_err("nothing to run");
    }
}

/// All parts at once, compared, recorded and replayed.
#[test]
fn a_world_can_be_compared_run_and_replayed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| dir.path().join(name);
    let (trace, json, records, svg) = (file("t"), file("j"), file("r"), file("s"));
    let scenario = scenario().with_file_name("world.toml");
    let out = forebay(&["sim", "compare", path(&scenario), "--policies", "no-action/at-once,forebay/yield"]);
    let out = out.expect("it runs");
    assert!(out.contains("at-once") && out.contains("yield") && out.contains("word-count"), "{out}");
    let files = ["--trace", path(&trace), "--result", path(&json), "--records", path(&records)];
    let run = [&["sim", "run", path(&scenario), "--timeline", path(&svg)][..], &files].concat();
    let out = forebay(&run).expect("it runs");
    assert!(out.contains("steps drained"), "{out}");
    let result: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(json).expect("written")).expect("JSON");
    // A node of the cluster and one of the burst buffers fail.
    let bytes = |key: &str| result["buffers"][key].as_u64().expect("bytes");
    assert_eq!(bytes("drained_bytes") + bytes("lost_bytes"), 180_000_000_000);
    assert!(bytes("lost_bytes") > 0 && result["cluster"]["evicted_bytes"].as_u64() > Some(0));
    assert_eq!(result["memory"].as_array().expect("nodes").len(), 8);
    assert_eq!(result["hpc"][0]["phases"].as_array().expect("phases").len(), 4);
    assert!(fs::read_to_string(records).expect("written").starts_with("kind,"));
    assert!(fs::read_to_string(svg).expect("written").contains("climate: drains"));
    let out = forebay(&["sim", "replay", path(&trace)]).expect("the same decisions");
    assert!(out.contains("actions are the same") && !out.contains("all 0 actions"), "{out}");
}
