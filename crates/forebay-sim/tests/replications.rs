//! Several seeds of a scenario, and random systems: what the commands print of them carries
//! intervals.

use std::path::Path;

use serde_json::Value;
use support::cli;

mod support;

fn rows(args: &[&str]) -> Vec<Value> {
    serde_json::from_str(&cli(args, true).expect("it runs")).expect("JSON")
}

/// T2 beside application 6, with compute times that vary.
fn jittered(dir: &Path) -> String {
    let given = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/eley-t2-app6.toml");
    let text = std::fs::read_to_string(given).expect("the scenario");
    let path = dir.join("jittered.toml");
    let text = text.replacen("[[hpc]]", "[[hpc]]\narrivals = \"jittered\"\nspread = 0.5", 1);
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

fn of<'a>(rows: &'a [Value], policy: &str, measure: &str) -> &'a Value {
    let found = rows.iter().find(|row| row["policy"] == policy && row["measure"] == measure);
    found.unwrap_or_else(|| panic!("no {measure} of {policy}"))
}

#[test]
fn compare_says_whether_a_difference_is_significant() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let scenario = jittered(dir.path());
    let args = ["compare", &scenario, "--policies", "full-delay,forebay", "--seeds", "6"];
    let rows = rows(&args);
    let base = of(&rows, "full-delay", "map_s");
    assert_eq!((&base["seeds"], &base["difference"]), (&6.into(), &"-".into()));
    let ours = of(&rows, "forebay", "map_s");
    let number = |key: &str| ours[key].as_f64().unwrap_or_else(|| panic!("{key}: {ours}"));
    assert!(number("low") < number("mean") && number("mean") < number("high"));
    assert_eq!((&ours["change_in"], &ours["difference"]), (&"percent".into(), &"lower".into()));
    assert!(number("change_low") < number("change") && number("change_high") < 0.0);
    let text = cli(&args, false).expect("it runs");
    assert!(text.ends_with("difference: paired t test, 5 %\n"), "{text}");
}

/// The same as six runs by hand, whatever the threads do.
#[test]
fn means_are_those_of_the_runs() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let scenario = jittered(dir.path());
    let set = ["--set", "planner.policy=eley,forebay"];
    let runs = rows(&[&["sweep", &scenario, "--set", "seed=0,1,2,3"], &set[..]].concat());
    let times: Vec<f64> =
        runs.iter().filter(|r| r["policy"] == "eley").filter_map(|r| r["map_s"].as_f64()).collect();
    assert_eq!(times.len(), 4);
    let sweep = |threads: &str| {
        rows(&[&["sweep", &scenario, "--seeds", "4", "--threads", threads], &set[..]].concat())
    };
    let got = sweep("1");
    let mean = of(&got, "eley", "map_s")["mean"].as_f64().expect("a number");
    assert!((mean - times.iter().sum::<f64>() / 4.0).abs() < 1e-3, "{mean} of {times:?}");
    assert_eq!(got, sweep("3"));
    let both = cli(&["sweep", &scenario, "--seeds", "4", "--set", "seed=1,2"], false)
        .expect_err("two kinds of seeds");
    assert!(both.contains("choose one of them"), "{both}");
}

#[test]
fn a_scenario_without_anything_random_says_so() {
    let given = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/eley-t2-app6.toml");
    let text =
        cli(&["compare", given, "--policies", "eley,no-action", "--seeds", "2"], false).expect("it runs");
    assert!(text.ends_with("nothing in this scenario is random\n"), "{text}");
}

/// Eleven policies under 100,000 seeds would hold the rows of 1,100,000 runs.
#[test]
fn more_runs_than_a_sweep_may_have_are_refused() {
    let given = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/eley-t2-app6.toml");
    let policies = ["eley"; 11].join(",");
    let error = cli(&["compare", given, "--policies", &policies, "--seeds", "100000"], false)
        .expect_err("too many runs");
    assert_eq!(error, "11 policies under 100000 seeds: at most 1000000 runs are allowed");
}

#[test]
fn random_studies_carry_intervals_in_every_output() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("summary.csv");
    for (what, policies, mean, low) in [
        ("planners", "eley", "change_percent", "change_low"),
        ("access", "coflow", "sum_percent", "sum_low"),
        ("memory", "dynims", "tier_percent", "tier_low"),
    ] {
        let summary = file.to_str().expect("UTF-8");
        let args = ["random", what, "--policies", policies, "--count", "4", "--summary", summary];
        let rows = rows(&args);
        let row = rows.iter().find(|row| row["policy"] == policies).expect("its row");
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
        assert!(number(low) < number(mean), "{row}");
        let csv = std::fs::read_to_string(&file).expect("written");
        assert!(csv.contains("\npolicy,") && csv.contains(&format!("{mean},{low},")), "{csv}");
    }
}

/// Slowdowns are relative to the time alone on the nodes of a job. Access policies have the same
/// nodes; allocations have not.
#[test]
fn only_access_policies_are_compared_by_slowdowns() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("rows.csv");
    for (what, has_slowdowns) in [("access", true), ("allocation", false)] {
        let csv = file.to_str().expect("UTF-8");
        let rows = rows(&["random", what, "--kind", "batch", "--count", "2", "--csv", csv]);
        assert!(!rows.is_empty());
        for row in &rows {
            let row = row.as_object().expect("an object");
            assert_eq!(row.keys().any(|key| key.starts_with("slowdown")), has_slowdowns, "{row:?}");
        }
        let csv = std::fs::read_to_string(&file).expect("written");
        assert_eq!(csv.lines().nth(2).expect("columns").ends_with(",slowdown"), has_slowdowns, "{csv}");
    }
}

#[test]
fn the_help_names_what_is_compared_by_default() {
    let help = |what: &str| cli(&["random", what, "--help"], false).expect_err("the help");
    assert!(help("access").contains("all of them by default"), "{}", help("access"));
    let words = help("allocation").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("ALLOCATION/ACCESS; by default") && !words.contains("all of them"), "{words}");
    let rows = rows(&["random", "allocation", "--kind", "batch", "--count", "1"]);
    assert!(!rows.is_empty());
    for row in &rows {
        let policy = row["policy"].as_str().expect("a name");
        assert!(words.contains(policy), "{policy}: {words}");
    }
}
