//! The command line as its users meet it: results, records, and refusals that say what to do.

use std::fs;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use forebay_sim::cli;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Sim(cli::SimArgs),
    Model(cli::ModelArgs),
}

/// What the command prints, or its error.
fn forebay(args: &[&str]) -> Result<String, String> {
    let cli = Cli::try_parse_from([&["forebay"], args].concat()).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    let result = match &cli.command {
        Command::Sim(a) => cli::sim(a, &mut out),
        Command::Model(a) => cli::model(a, &mut out),
    };
    result.map_err(|e| e.to_string()).map(|()| String::from_utf8(out).expect("text"))
}

fn scenario() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/eley-t2-app6.toml")
}

fn path(p: &std::path::Path) -> &str {
    p.to_str().expect("a path in UTF-8")
}

#[test]
fn a_run_can_be_recorded_replayed_and_explained() {
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
        "--json",
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

    let out = forebay(&["sim", "explain", path(&trace)]).expect("a list");
    assert!(out.lines().count() > 10, "{out}");
    let out = forebay(&["sim", "explain", path(&trace), "--decision", "2"]).expect("a text");
    assert!(out.starts_with("Decision 2 at") && out.contains("because ") && out.contains("T2: "), "{out}");
    let error = forebay(&["sim", "explain", path(&trace), "--decision", "9999"]).expect_err("too far");
    assert!(error.contains("has no decision 9999; it has"), "{error}");
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

/// Everything that a scenario can say: it runs, and what was recorded is decided again in the same way, learning included.
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

/// Each of these is wrong in one place; the message is one line with file, key, value and what is allowed.
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
        "planner.policy = \"best\": one of naive-bb, no-action, full-delay, eley, forebay is needed"
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
    assert!(error.expect_err("a factor below 1").contains("at least 1"));
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
    assert_eq!(error, "nodes must be at least 1, rates positive, and hit between 0 and 1");
}
