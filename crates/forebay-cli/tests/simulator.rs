//! `forebay sim` and `forebay model` as their users run them: results, records, and refusals that
//! say what to do.
//!
//! Every test runs the real program. A parser made for the test would not have the options that all
//! commands share, and so could not show where one of them collides with an option of the
//! simulator.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ELEY: &str = "eley-t2-app6.toml";
const CHECKPOINTS: &str = "checkpoints.toml";

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

/// Runs the program with files in a directory of its own.
struct Runs(tempfile::TempDir);

impl Runs {
    fn new() -> Self {
        Runs(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    /// The columns and rows of a file of results, which begins with the version and a command that
    /// names the file.
    #[track_caller]
    fn rows(&self, name: &str) -> String {
        let text = self.read(name);
        let lines: Vec<&str> = text.splitn(3, '\n').collect();
        assert_eq!(lines[0], format!("# forebay {}", env!("CARGO_PKG_VERSION")), "{name}");
        assert!(lines[1].starts_with("# forebay sim "), "{name}: {}", lines[1]);
        lines[2].to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    /// What the command prints, or its error without the program's name. In `args`, `{s}` stands
    /// for the directory of the scenarios, and `{d}` for that of the test.
    fn forebay(&self, args: &str) -> Result<String, String> {
        let word = |word: &str| {
            let word = word.replace("{s}", scenarios().to_str().unwrap());
            word.replace("{d}", self.0.path().to_str().unwrap())
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        let out = command.args(args.split_whitespace().map(word)).stdin(Stdio::null()).output().unwrap();
        let error = String::from_utf8(out.stderr).unwrap();
        assert!(!error.contains("panicked at"), "{args:?}: {error}");
        match out.status.code() {
            Some(0) => Ok(String::from_utf8(out.stdout).unwrap()),
            _ => Err(error.trim_end().trim_start_matches("forebay: ").to_owned()),
        }
    }

    #[track_caller]
    fn ok(&self, args: &str) -> String {
        self.forebay(args).unwrap_or_else(|e| panic!("{args}: {e}"))
    }

    #[track_caller]
    fn refused(&self, args: &str) -> String {
        self.forebay(args).err().unwrap_or_else(|| panic!("{args} is not refused"))
    }

    #[track_caller]
    fn json(&self, args: &str) -> Value {
        let text = self.ok(&format!("{args} --json"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args}: {e}: {text}"))
    }

    /// What was recorded in the file `t` is decided again in the same way.
    #[track_caller]
    fn replays(&self) {
        let out = self.ok("sim replay {d}/t");
        assert!(out.contains("actions are the same") && !out.contains("all 0 actions"), "{out}");
    }

    /// The error of the scenario after these changes.
    #[track_caller]
    fn fails(&self, scenario: &str, changes: &[(&str, &str)]) -> String {
        let mut text = fs::read_to_string(scenarios().join(scenario)).unwrap();
        for (from, to) in changes {
            assert!(text.contains(from), "{from} is not in the scenario");
            text = text.replacen(from, to, 1);
        }
        self.write("bad.toml", &text);
        self.refused("sim run {d}/bad.toml")
    }

    /// The same for a scenario that is wrong, from the name of its file on: one line.
    #[track_caller]
    fn refuses(&self, scenario: &str, changes: &[(&str, &str)]) -> String {
        let error = self.fails(scenario, changes);
        assert!(error.contains("bad.toml") && !error.contains('\n'), "{error}");
        error.rsplit_once("bad.toml: ").map_or(error.clone(), |(_, e)| e.into())
    }
}

#[test]
fn a_run_can_be_recorded_and_replayed() {
    let runs = Runs::new();
    let out =
        runs.ok("sim run {s}/eley-t2-app6.toml --trace {d}/t --result {d}/j --csv {d}/c --timeline {d}/s");
    assert!(out.contains("application 6") && out.contains("decisions"), "{out}");
    let result: Value = serde_json::from_str(&runs.read("j")).unwrap();
    assert_eq!(result["hpc"][0]["phases"].as_array().unwrap().len(), 10);
    assert_eq!(runs.rows("c").lines().count(), 3);
    assert!(runs.read("s").contains("wave 1"));
    runs.replays();

    // With learning, shared bandwidth, faults and changes of memory as well.
    let text = fs::read_to_string(scenarios().join(ELEY)).unwrap();
    let text = text.replacen("\"eley\"", "\"forebay\"\nlearning = 0.3", 1);
    let more = "bandwidth.policy = \"set-10\"\ntruth = { i_hpc_times = 1.03, speed_times = 0.9 }
        fault = [{ node = 5, at_s = 410, for_s = 120 }]\nmemory = [{ at_s = 600, ram_gb = 192 }]";
    runs.write("more.toml", &format!("{more}\n{text}"));
    runs.ok("sim run {d}/more.toml --trace {d}/t");
    for happened in ["\"is\":\"node_went\"", "\"is\":\"node_came\"", "\"capacity_bytes\":24000000000"] {
        assert!(runs.read("t").contains(happened), "no {happened}");
    }
    runs.replays();
}

/// A record in which one number was changed is found out.
#[test]
fn a_replay_notices_a_changed_decision() {
    let runs = Runs::new();
    runs.ok("sim run {s}/eley-t2-app6.toml --trace {d}/t");
    let text = runs.read("t");
    let (head, tail) = text.split_at(text.rfind("\"is\":\"fetch\"").expect("a fetch"));
    let changed = head.to_string() + &tail.replacen("\"threads\":", "\"threads\":1", 1);
    assert_ne!(changed, text);
    runs.write("t", &changed);
    let error = runs.refused("sim replay {d}/t");
    assert!(error.contains("but the machine decides"), "{error}");
}

#[test]
fn a_sweep_does_not_depend_on_the_number_of_threads() {
    let runs = Runs::new();
    for (scenario, grid, rows) in [
        (ELEY, "--set planner.policy=eley,forebay --set hpc.0.allowance_percent=5,15,30", 6 * 2),
        (CHECKPOINTS, "--set access.policy=sa-sjf,coflow --set seed=1,2,3", 2 * 3 * 6),
    ] {
        let sweep = |threads| runs.ok(&format!("sim sweep {{s}}/{scenario} --threads {threads} {grid}"));
        let one = sweep(1);
        assert_eq!(one.lines().count(), 1 + rows);
        assert_eq!(one, sweep(4));
    }
}

#[test]
fn compare_shows_every_policy() {
    let runs = Runs::new();
    let planners = forebay_policy::planner::POLICIES.iter().map(|p| p.0).collect::<Vec<_>>();
    let access = forebay_policy::burst::access::POLICIES.iter().map(|p| p.0).collect();
    let laws = vec!["static", "dynims", "forebay"];
    for (scenario, policies) in [(ELEY, planners), (CHECKPOINTS, access), ("memory-bursts.toml", laws)] {
        let out = runs.ok(&format!("sim compare {{s}}/{scenario}"));
        assert!(policies.iter().all(|policy| out.contains(policy)), "{policies:?}: {out}");
    }
}

/// Each scenario is wrong in one place; the message is one line with file, key, value and what is
/// allowed.
#[test]
fn bad_scenarios_are_refused_in_one_line() {
    let runs = Runs::new();
    for (from, to, error) in [
        ("nodes = 8", "nodez = 8", "cluster.nodes = (missing)"),
        ("nodes = 8", "nodes = 725", "cluster.nodes = 725: a whole number from 1 to 724 is needed"),
        ("ram_gb = 256", "ram_gb = 256\ncolour = 1", "cluster.colour = 1: unknown key"),
        (
            "input_gb = 799",
            "input_gb = -799",
            "job[0].input_gb = -799: a number from 0.000001 to 1000000000 is needed",
        ),
        (
            "wave_gb = 50",
            "wave_gb = 200",
            "job[0].wave_gb = 200: the tier has to hold two waves (cluster.ram_gb), so at most 128 is allowed",
        ),
        ("[profile]", "[profil]", "profile = (missing): a table [profile] is needed"),
        (
            "\"eley\"",
            "\"best\"",
            "planner.policy = \"best\": one of naive-bb, no-action, full-delay, eley, eley-direct, forebay is needed",
        ),
        ("phases = 10", "phases = 10\nio_s = 4", "hpc[0].io_gb = 235.8: give either"),
        ("phases = 10", "phases = 0", "hpc[0].phases = 0: a whole number from 1 to"),
        ("i_bd = 1.2", "i_bd = 0.9", "profile.i_bd = 0.9: a number from 1 to"),
        ("[4, 0.85]", "[3, 0.85], [2, 1]", "counts must be positive and ascending"),
        ("[[1, 1.0], [2, 1.15]", "[[1, 1.0], [2, 0.5]", "at least 1 is needed"),
        ("[cluster]", "[truth]\ni_hpc_times = 0.5\n[cluster]", "truth.i_hpc_times = 0.5"),
        ("[cluster]", "[cluster", "not TOML"),
    ] {
        let said = runs.refuses(ELEY, &[(from, to)]);
        assert!(said.contains(error), "{to}: {said}");
    }
    for (from, to, error) in [
        (
            "\"burst-buffer\"",
            "\"tape\"",
            "kind = \"tape\": one of colocation, burst-buffer, cluster, memory, batch, facility, world is needed",
        ),
        ("[access]", "[acess]", "acess = a table: unknown key; allowed are kind, seed"),
        ("lease_s = 15", "leese_s = 15", "access.leese_s = 15: unknown key; allowed are"),
        ("nodes = 8", "nodes = 17", "job[1].nodes = 17: a whole number from 1 to 16 is needed"),
        (
            "step_gb = 800",
            "step_gb = 6401",
            "job[1].step_gb = 6401: a step has to fit on its nodes, 8 of 800 GB, when nobody else is there (allocation 'striped')",
        ),
        ("step_gb = 800", "step_gb = -8", "job[1].step_gb = -8: a number from "),
        ("step_gb = 800", "process_gb = 1\nstep_gb = 8", "give either step_gb or process_gb"),
        ("nodes = 8", "on = [3, 99]", "job[1].on = [3, 99]: a list of whole numbers from 0 to 15"),
        ("nodes = 8", "nodes = 8\non = [3]", "job[1].on = [3]: give either nodes"),
        ("name = \"fusion\"", "name = \"climate\"", "names have to be different"),
        (
            "job = \"combustion\"",
            "job = \"fission\"",
            "fault[0].job = \"fission\": no job has this name; there are climate, fusion, analysis#1, analysis#2, combustion",
        ),
        ("node = 3", "node = 16", "fault[2].node = 16: a whole number from 0 to 15"),
        ("spread = 0.4", "", "job[1].spread = (missing): a number from 0 to 1"),
    ] {
        let said = runs.refuses(CHECKPOINTS, &[(from, to)]);
        assert!(said.contains(error), "{to}: {said}");
    }
    let said = runs.refuses("lab-moosefs.toml", &[("streams = true", "placement = \"by-hash\"")]);
    assert!(said.contains("pfs.placement = \"by-hash\": one of in-turn, random is needed"), "{said}");
    let error = runs.refused("sim run {s}/checkpoints.toml --policy lifo");
    assert!(error.contains("access.policy = \"lifo\": one of none, sys-fcfs,"), "{error}");
}

/// Scenarios that were run as something other than what they say.
#[test]
fn scenarios_that_cannot_be_run_as_they_say_are_refused() {
    let runs = Runs::new();
    let error =
        runs.refuses(ELEY, &[("input_gb = 799", "input_gb = 1e9"), ("wave_gb = 50", "wave_gb = 0.1")]);
    assert!(error.contains("job[0].wave_gb = 0.1: the input (input_gb) makes 10000000000 waves"), "{error}");
    // More than 584 years: sums of times stopped there, and phases seemed to take no time.
    let text = fs::read_to_string(scenarios().join(CHECKPOINTS)).unwrap();
    let line = |key: &str| text.lines().find(|l| l.starts_with(key)).unwrap();
    let (phases, long) = ("phases = 10", "phases = 1000000\nstarts_s = 1e6");
    for (scenario, changes) in [
        (ELEY, [(phases, long), ("compute_s = 1.2", "compute_s = 1e6")]),
        (CHECKPOINTS, [(line("steps = "), "steps = 1000000"), (line("compute_s = "), "compute_s = 1e6")]),
    ] {
        let error = runs.fails(scenario, &changes);
        assert!(error.contains("the end of the clock, 584 years"), "{error}");
    }
}

/// Equation (8) by hand: 25 s of prefetch at I_bd = 1.2 along with 59 s of I/O at I_hpc = 1.3.
#[test]
fn the_interference_model_answers() {
    let runs = Runs::new();
    let out = runs.ok("model interference --io 59 --prefetch 25 --compute 43 --i-hpc 1.3 --i-bd 1.2");
    let no_action = out.lines().find(|l| l.starts_with("No Action")).expect("a row");
    assert_eq!(
        no_action.split_whitespace().collect::<Vec<_>>(),
        ["No", "Action", "0", "65.92", "30", "0", "no"]
    );
    let error = runs.refused("model interference --io 1 --prefetch 1 --i-hpc 0.5 --i-bd 1");
    assert_eq!(error, "--i-hpc 0.5: a number from 1 to 1000000000000 is needed");
}

#[test]
fn storage_models_answer_and_refuse() {
    let runs = Runs::new();
    let out = runs.ok("model tls --nodes 100 --pfs 10000 --hit 0");
    let row = |out: &str, name: &str| out.lines().find(|l| l.contains(name)).expect("a row").to_string();
    assert!(row(&out, "PFS").contains("100") && row(&out, "HDFS").contains("23.7"), "{out}");
    let out = runs.ok("model mapreduce --nodes 100 --pfs 10000 --input 1000 --output 500");
    let pfs = row(&out, "PFS");
    assert!(pfs.contains("10") && pfs.contains("15"), "{pfs}");
    let error = runs.refused("model tls --nodes 0 --pfs 1");
    assert_eq!(error, "--nodes 0: a number from 1 to 1000000000000 is needed");
}

/// With `--json` each command of the simulator writes one JSON value and nothing else.
#[test]
fn every_command_of_the_simulator_and_of_the_models_writes_json() {
    let runs = Runs::new();
    let run = runs.json("sim run {s}/eley-t2-app6.toml --trace {d}/t");
    assert_eq!(run["hpc"][0]["phases"].as_array().unwrap().len(), 10);
    let rows = runs.json("sim compare {s}/eley-t2-app6.toml");
    assert!(
        rows[0]["policy"].is_string() && rows[0]["map_s"].is_f64() && rows[0]["deadlines_missed"].is_null()
    );
    let rows = runs.json("sim sweep {s}/eley-t2-app6.toml --set seed=1,2");
    assert_eq!((&rows[0]["seed"], rows.as_array().unwrap().len()), (&1.into(), 4));
    let replay = runs.json("sim replay {d}/t");
    assert!(replay["actions"].as_u64() > Some(0), "{replay}");
    let made = runs.json("sim reproduce tls --out {d}/r");
    assert!(made["met"].as_u64() > Some(0) && made["results"][0]["id"].is_string(), "{made}");
    assert_eq!(runs.json("model tls --nodes 100 --pfs 10000")[1]["storage"], "PFS");
    let actions = runs.json("model interference --io 59 --prefetch 25 --i-hpc 1.3 --i-bd 1.2");
    assert!(actions["actions"][0]["phase_ends_s"].is_f64(), "{actions}");
}

/// Runs that were measured, and their map times in seconds with `naive-bb` and `no-action`: medians
/// of `make bench-spark` (docs/simulator.md, *Predicted and measured*).
const MEASURED: [(&str, f64, f64); 2] = [("lab-moosefs.toml", 23.2, 21.6), ("slow-pfs.toml", 36.0, 19.4)];

/// What was measured is predicted, and what the machine decided is decided again.
#[test]
fn runs_that_were_measured_are_predicted_and_replayed() {
    let runs = Runs::new();
    for (name, naive_s, waves_s) in MEASURED {
        for (policy, measured_s) in [("naive-bb", naive_s), ("no-action", waves_s)] {
            let out = runs.json(&format!("sim run {{s}}/{name} --policy {policy} --trace {{d}}/t"));
            let seconds = |value: &Value| value.as_f64().unwrap() * 1e-9;
            let map_s = seconds(&out["jobs"][0]["map_ns"]);
            assert!(map_s >= seconds(&out["bound_ns"]), "{name}: {out}");
            assert!(
                (map_s / measured_s - 1.0).abs() <= 0.15,
                "{name}, {policy}: {map_s} s, {measured_s} s measured"
            );
            runs.replays();
        }
    }
}

/// The other kind of scenario, with everything that breaks in it.
#[test]
fn shared_burst_buffers_can_be_run_and_replayed() {
    let runs = Runs::new();
    let out =
        runs.ok("sim run {s}/checkpoints.toml --trace {d}/t --result {d}/j --csv {d}/c --timeline {d}/s");
    assert!(out.contains("died writing") && out.contains("tokens"), "{out}");
    let result: Value = serde_json::from_str(&runs.read("j")).unwrap();
    assert_eq!(result["jobs"].as_array().unwrap().len(), 5);
    // Every fault of the scenario has struck.
    assert_eq!(result["jobs"][4]["died"]["was"], "writing");
    assert_eq!(result["jobs"][1]["leases_lost"], 1);
    assert_eq!(result["down"][0]["jobs"], 2);
    assert!(result["holds"].as_array().unwrap().iter().any(|h| h["ended"] == "node_lost"));
    assert_eq!(runs.rows("c").lines().count(), 1 + 5 + 1);
    let svg = runs.read("s");
    assert!(svg.contains("the lease ran out") && svg.contains("a node was lost") && svg.contains("node 3"));
    runs.replays();

    // The guide shows this run.
    let shown = fs::read_to_string(scenarios().join("../docs/images/checkpoints.svg")).unwrap();
    let renew = "forebay sim run scenarios/checkpoints.toml --timeline docs/images/checkpoints.svg";
    assert!(
        shown == svg,
        "the guide's picture is not of this run; renew it, and the figures beside it: {renew}"
    );
}

#[test]
fn a_changed_grant_is_noticed() {
    let runs = Runs::new();
    runs.ok("sim run {s}/checkpoints.toml --trace {d}/t");
    let text = runs.read("t");
    for (from, to, why) in [
        ("\"because\":\"first\"", "\"because\":\"overdue\"", "but the machine decides"),
        (
            "\"kind\":\"burst-buffer\"",
            "\"kind\":\"tape\"",
            "this is a run of kind 'tape'; colocation, burst-buffer, cluster, memory, batch, facility, world, stages, access, \
             node and laws can be replayed",
        ),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        runs.write("t", &changed);
        let error = runs.refused("sim replay {d}/t");
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn access_and_allocation_policies_are_compared() {
    let runs = Runs::new();
    runs.ok("sim compare {s}/checkpoints.toml --csv {d}/c");
    let rows = 6 * forebay_policy::burst::access::POLICIES.len();
    assert_eq!(runs.rows("c").lines().count(), 1 + rows);
    let out = runs.ok("sim compare {s}/checkpoints.toml --policies full/sa-fcfs,striped/sa-sjf");
    assert!(out.contains("full        sa-fcfs") && out.contains("striped     sa-sjf"), "{out}");
}

/// A policy that a scenario does not name is the same whether its table is missing or empty, in
/// both kinds with burst buffers: `full` with `coflow`, which is better than any other pair.
#[test]
fn burst_buffers_have_one_default_pair_of_policies() {
    let runs = Runs::new();
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
            runs.write("s.toml", &format!("{scenario}\n{tables}"));
            (runs.ok("sim run {d}/s.toml --trace {d}/t"), runs.read("t"))
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
    use forebay_sim::burst::icpp::MIXES;
    use forebay_sim::burst::simulate;
    use forebay_sim::reproduce::bb::workloads::setup;
    let runs = Runs::new();
    for (order, access) in [(0, "none"), (1, "sa-sjf"), (7, "coflow")] {
        let out = runs.ok(&format!("sim run {{s}}/bb-w8.toml --seed {order} --policy {access}"));
        let all = out.lines().find(|l| l.contains("(all)")).expect("a row of sums");
        let sum_s: f64 = all.split_whitespace().nth(5).expect("the sum").parse().expect("a number");
        let batch =
            simulate(&setup(&MIXES[7], order, "striped", access), &mut forebay_sim::trace::Trace::off());
        let expected_s = batch.expect("it runs").aggregate_s();
        // The scenario has the table's binary sizes in decimal, to a byte.
        assert!((sum_s / expected_s - 1.0).abs() < 1e-8, "{access}: {sum_s} {expected_s}");
    }
}

/// Each of these panicked, or wrote results that no run has.
#[test]
fn numbers_that_make_no_run_are_refused() {
    let runs = Runs::new();
    for window in ["10 5", "5 5", "nan inf", "0 inf", "-1 5"] {
        let error =
            runs.refused(&format!("sim run {{s}}/eley-t2-app6.toml --timeline {{d}}/s --window {window}"));
        assert!(error.contains("FROM before TO") && !runs.at("s").exists(), "{window:?}: {error}");
    }
    let grid: String = (0..64).map(|i| format!(" --set hpc.{i}.phases=1,2")).collect();
    let error = runs.refused(&format!("sim sweep {{s}}/eley-t2-app6.toml{grid}"));
    assert!(error.contains("2 x 2 x 2") && error.contains("at most 1000000 are allowed"), "{error}");
    let twice = "sim sweep {s}/eley-t2-app6.toml --set seed=0,1 --set seed=2,3";
    assert!(runs.refused(twice).contains("--set seed is given twice"));
    for value in ["inf", "nan", "-1", "0", "1e300"] {
        for args in [
            "model tls --pfs 1 --nodes",
            "model tls --nodes 1 --pfs",
            "model interference --prefetch 1 --i-hpc 1 --i-bd 1 --io",
        ] {
            let error = runs.refused(&format!("{args}={value}"));
            assert!(error.contains("is needed"), "{value}: {error}");
        }
    }
    let rows = runs.ok("model tls --nodes 1e12 --pfs 1e12");
    assert!(!rows.contains("NaN") && !rows.contains("inf"), "{rows}");
}

#[test]
fn a_record_that_is_cut_off_is_checked_to_its_last_line_and_one_with_a_gap_is_refused() {
    let runs = Runs::new();
    runs.ok("sim run {s}/eley-t2-app6.toml --trace {d}/t");
    let whole = runs.read("t");

    // As a killed process leaves it.
    let last = whole.trim_end().rfind('\n').expect("lines") + 1;
    runs.write("t", &whole[..last + 9]);
    let out = runs.ok("replay {d}/t");
    assert!(out.contains("has no end and was left out"), "{out}");

    let mut lines: Vec<&str> = whole.lines().collect();
    let note =
        lines.iter().position(|line| line.contains("\"note\":")).expect("a note, which no machine hears");
    lines.remove(note);
    runs.write("t", &(lines.join("\n") + "\n"));
    let error = runs.refused("replay {d}/t");
    assert!(error.contains("lines are missing"), "{error}");

    // One without decisions shows nothing.
    runs.write("t", &format!("{}\n", whole.lines().next().expect("a header")));
    let error = runs.refused("sim replay {d}/t");
    assert!(error.contains("there is nothing to check"), "{error}");
}

/// The kind of scenario with a node whose tier gives way: run, recorded, replayed, and with a
/// measured load.
#[test]
fn a_node_whose_tier_gives_way_is_run_and_replayed() {
    let runs = Runs::new();
    let out = runs.ok("sim run {s}/memory-bursts.toml --trace {d}/t --timeline {d}/s");
    assert!(out.contains("clairvoyant_gb") && out.contains("resizes"), "{out}");
    assert!(runs.read("s").contains("clairvoyant tier"));
    runs.replays();
    let text = runs.read("t");
    let changed = text.replacen("\"capacity_bytes\":", "\"capacity_bytes\":1", 1);
    assert_ne!(text, changed);
    runs.write("t", &changed);
    runs.refused("replay {d}/t");

    let text = fs::read_to_string(scenarios().join("memory-bursts.toml")).unwrap();
    let measured = text.replace("base_gb = 12", "trace = \"load.csv\"");
    assert_ne!(text, measured);
    runs.write("measured.toml", &measured);
    runs.write("load.csv", "0,12000000000\n60,20000000000\n");
    runs.ok("sim run {d}/measured.toml");
    runs.write("load.csv", "0,12000000000\nten,20000000000\n");
    let error = runs.refused("sim run {d}/measured.toml");
    assert!(error.contains("load.csv:2: SECONDS,BYTES is needed"), "{error}");
}

#[test]
fn policies_are_compared_on_random_systems() {
    let runs = Runs::new();
    let all: [(&str, Vec<&str>); 5] = [
        ("planners", forebay_policy::planner::POLICIES.iter().map(|p| p.0).collect()),
        ("access", forebay_policy::burst::access::POLICIES.iter().map(|p| p.0).collect()),
        ("memory", forebay_policy::memory::POLICIES.iter().map(|p| p.0).collect()),
        ("shipping", forebay_policy::ship::POLICIES.iter().map(|p| p.0).collect()),
        ("waste", forebay_sim::waste::STRATEGIES.iter().map(|s| s.name).collect()),
    ];
    for (what, policies) in all {
        let run = |threads| {
            let out = runs.ok(&format!("sim random {what} --count 2 --threads {threads} --csv {{d}}/c"));
            (out, runs.rows("c"))
        };
        let (out, rows) = run(1);
        assert!(policies.iter().all(|policy| *policy == "none" || out.contains(policy)), "{out}");
        assert_eq!(rows.lines().count(), 1 + policies.len() * 2, "{rows}");
        assert_eq!(run(3), (out, rows));
        let error = runs.refused(&format!("sim random {what} --policies best"));
        assert!(error.contains("no policy is called 'best'"), "{error}");
        runs.refused(&format!("sim random {what} --count 0"));
    }
}

/// One job runs next to its data and the other on the nodes; the trace has the reasons.
#[test]
fn shipped_stages_are_recorded_and_replayed() {
    let runs = Runs::new();
    let out = runs.ok("sim run {s}/shipping.toml --timeline {d}/s --trace {d}/t --result {d}/j");
    assert!(out.contains("servers") && out.contains("nodes+"), "{out}");
    let result: Value = serde_json::from_str(&runs.read("j")).unwrap();
    let why = result["cluster"]["jobs"][0]["placed"][0][1].as_str().expect("a reason");
    assert!(why.contains("storage servers: ") && runs.read("t").contains(why), "{why}");
    assert!(runs.read("s").contains("server 7"));
    runs.replays();
}

/// All parts at once, compared, recorded and replayed.
#[test]
fn a_world_can_be_compared_run_and_replayed() {
    let runs = Runs::new();
    let out = runs.ok("sim compare {s}/world.toml --policies no-action/at-once,forebay/yield");
    assert!(out.contains("at-once") && out.contains("yield") && out.contains("word-count"), "{out}");
    let files = "--trace {d}/t --result {d}/j --records {d}/r --timeline {d}/s --window 0 130";
    let out = runs.ok(&format!("sim run {{s}}/world.toml {files}"));
    assert!(out.contains("steps drained"), "{out}");
    let result: Value = serde_json::from_str(&runs.read("j")).unwrap();
    // A node of the cluster and one of the burst buffers fail.
    let bytes = |key: &str| result["buffers"][key].as_u64().expect("bytes");
    assert_eq!(bytes("drained_bytes") + bytes("lost_bytes"), 180_000_000_000);
    assert!(bytes("lost_bytes") > 0 && result["cluster"]["evicted_bytes"].as_u64() > Some(0));
    assert_eq!(result["memory"].as_array().unwrap().len(), 8);
    assert_eq!(result["hpc"][0]["phases"].as_array().unwrap().len(), 4);
    assert!(runs.rows("r").starts_with("kind,"));
    // The timeline has a line for each node, with tasks, prefetches and memory.
    let drawn = runs.rows("s.csv");
    let svg = runs.read("s");
    assert!(svg.contains("climate: drains"));
    for kind in ["tasks", "prefetches", "tier may hold", "tier holds"] {
        let of_kind = |node: u32| drawn.contains(&format!("\nnode {node},{kind},"));
        assert!((0..8).all(of_kind), "not all nodes have {kind}");
    }
    let shown = fs::read_to_string(scenarios().join("../docs/images/world.svg")).unwrap();
    let renew = "forebay sim run scenarios/world.toml --timeline docs/images/world.svg --window 0 130";
    assert!(shown == svg, "the guide's picture is not of this run; renew it: {renew}");
    runs.replays();
}

/// Every study writes its results as CSV, of which the second line is the command that writes the
/// same file again.
#[test]
fn every_file_of_results_names_the_command_that_repeats_it() {
    let runs = Runs::new();
    let random = ["planners", "access", "allocation", "shipping", "memory", "waste"];
    let random = random.map(|what| format!("random {what} --count 1 --csv {{d}}/a --summary {{d}}/b"));
    let studies = [
        "run {s}/eley-t2-app6.toml --csv {d}/a --records {d}/b --timeline {d}/s",
        "compare {s}/eley-t2-app6.toml --policies no-action,forebay --csv {d}/a",
        "compare {s}/checkpoints.toml --policies none,coflow --seeds 2 --csv {d}/a",
        "sweep {s}/checkpoints.toml --set seed=1,2 --csv {d}/a",
        "sweep {s}/checkpoints.toml --set job.0.steps=1,2 --seeds 2 --csv {d}/a",
        "broadcast {s}/broadcast.toml --set cluster.nodes=4 --set file.mib=64 --csv {d}/a --timeline {d}/s",
        "random waste --count 2 --csv {d}/a --figure {d}/s",
        "reproduce tls --out {d}/r",
    ];
    let names = ["a", "b", "s.csv", "r/results.csv"];
    let figures = |runs: &Runs| -> Vec<String> {
        let files = fs::read_dir(runs.at("r")).into_iter().flatten();
        let name = |file: std::io::Result<fs::DirEntry>| file.unwrap().file_name().into_string().unwrap();
        let csv = files.map(name).filter(|name| name.ends_with(".svg.csv"));
        csv.map(|name| format!("r/{name}")).collect()
    };
    for study in studies.into_iter().map(str::to_owned).chain(random) {
        runs.ok(&format!("sim {study}"));
        let names: Vec<String> = names.into_iter().map(str::to_owned).chain(figures(&runs)).collect();
        let written: Vec<&String> = names.iter().filter(|name| runs.at(name).exists()).collect();
        assert!(!written.is_empty(), "{study} writes nothing");
        let before: Vec<String> = written.iter().map(|name| runs.read(name)).collect();
        for (name, before) in written.iter().zip(&before) {
            assert!(runs.rows(name).lines().count() > 1, "{study}: {name} has no rows");
            let command = before.lines().nth(1).unwrap().trim_start_matches("# forebay ");
            fs::remove_file(runs.at(name)).unwrap();
            runs.ok(command);
            assert_eq!(runs.read(name), *before, "{study}: {name}");
        }
        written.iter().for_each(|name| fs::remove_file(runs.at(name)).unwrap());
    }
}
