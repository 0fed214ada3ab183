//! `forebay sim site`: what a real coordinator and real agents recorded becomes a scenario that
//! runs immediately and has what was recorded.

use crate::common::{FOREBAY, MIB, make_file, plain_pfs, wait_for};
use crate::coordinator::{Cluster, EXTENT, SEED, begin_with, run_task};
use forebay_client::HpcJobOptions;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const PROFILE: &str = "version = 1\n[cluster]\npfs_gb_per_s = 2\nnodes = 2\n[profile]\nbytes_gb = 1\nprefetch_s = 1\n\
                       i_hpc = 1.5\ni_bd = 1.2\n";
const PHASES: u64 = 4;

/// Runs the command line in a directory.
fn forebay(dir: &Path, args: &[&str]) -> String {
    let out = Command::new(FOREBAY).args(args).current_dir(dir).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Two jobs, one after the other, along with an HPC job with phases that begin while tasks run.
/// Returns the decision log, and the tasks of each job.
fn record(pfs: &Path, profile: &Path) -> (String, [u32; 2]) {
    let paths = ["one", "two"].map(|name| pfs.join(name));
    make_file(&paths[0], SEED, 12 * EXTENT);
    make_file(&paths[1], SEED, 5 * EXTENT);
    let lines = format!("planner = \"forebay\"\nprofile = {profile:?}\n");
    let mut cluster = Cluster::start_with(2, pfs, &lines);
    let client = cluster.client(0);
    let options = HpcJobOptions {
        io: Duration::from_millis(200),
        compute: Duration::from_millis(300),
        phases: PHASES as u32,
        allowance_permille: 250,
        processes: 3,
        ..HpcJobOptions::named("ocean")
    };
    let ocean = cluster.client(1).open_hpc_job(&options).unwrap();
    let tasks = paths.each_ref().map(|path| {
        let slots = (0..2).map(|node| (format!("n{node}"), 2)).collect();
        let (job, tasks) = begin_with(&client, path, slots, |_| String::new());
        for task in 0..tasks {
            if task < PHASES as u32 / 2 {
                ocean.phase_begin(8 * MIB, Duration::ZERO).unwrap();
                ocean.phase_end().unwrap();
            }
            run_task(&cluster, &job, path, task);
        }
        drop(job);
        wait_for("it is over", || client.jobs().is_ok_and(|jobs| jobs.iter().all(|job| job.ended)));
        tasks
    });
    drop(ocean);
    wait_for("the HPC job is gone", || client.hpc_jobs().is_ok_and(|jobs| jobs.is_empty()));
    (cluster.end_and_replay(), tasks)
}

/// The recorded and the simulated value of a measure.
fn values(rows: &serde_json::Value, name: &str, measure: &str) -> (f64, f64) {
    let rows = rows.as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == name && row["measure"] == measure);
    let row = row.unwrap_or_else(|| panic!("no {measure} of {name} in {rows:?}"));
    (row["recorded"].as_f64().unwrap(), row["simulated"].as_f64().unwrap())
}

#[test]
fn a_recorded_site_becomes_a_scenario_that_runs_and_has_the_recorded_jobs_phases_and_bytes() {
    let (pfs, dir) = (plain_pfs(), tempfile::tempdir().unwrap());
    let dir = dir.path();
    std::fs::write(dir.join("profile.toml"), PROFILE).unwrap();
    let (log, tasks) = record(pfs.path(), &dir.join("profile.toml"));
    std::fs::write(dir.join("decisions.log"), &log).unwrap();
    let site = ["sim", "site", "--log", "decisions.log", "--profile", "profile.toml", "--out", "site.toml"];
    let text = forebay(dir, &[&site[..], &["--csv", "site.csv", "--json"]].concat());
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (name, tasks) in ["app", "app-2"].into_iter().zip(tasks) {
        assert_eq!(values(&rows, name, "tasks"), (f64::from(tasks), f64::from(tasks)));
        let (recorded_s, simulated_s) = values(&rows, name, "map_s");
        assert!(recorded_s > 0.0 && simulated_s > 0.0);
    }
    assert_eq!(values(&rows, "ocean", "phases"), (PHASES as f64, PHASES as f64));
    let declared_gb = (PHASES * 8 * MIB) as f64 * 1e-9;
    assert!((values(&rows, "(all)", "phases_gb").0 - declared_gb).abs() < 1e-6);

    // The scenario by itself has the bytes of the jobs, and each value its source.
    let scenario: toml::Table = std::fs::read_to_string(dir.join("site.toml")).unwrap().parse().unwrap();
    let input = |job: usize| scenario["job"][job]["input_bytes"].as_integer().unwrap() as u64;
    assert_eq!([input(0), input(1)], [12 * EXTENT, 5 * EXTENT]);
    assert_eq!(scenario["cluster"]["nodes"].as_integer(), Some(2));
    assert_eq!(scenario["cluster"]["slots"].as_integer(), Some(2));
    assert_eq!(scenario["planner"]["policy"].as_str(), Some("forebay"));
    assert_eq!(scenario["planner"]["profile"].as_str(), Some("profile.toml"));
    let hpc = &scenario["hpc"][0];
    assert_eq!((hpc["io_s"].as_float(), hpc["compute_s"].as_float()), (Some(0.2), Some(0.3)));
    assert_eq!(hpc["allowance_percent"].as_float(), Some(25.0));
    assert_eq!(hpc["io_each_s"].as_array().unwrap().len() as u64, PHASES);
    let text = std::fs::read_to_string(dir.join("site.toml")).unwrap();
    let keys = text.lines().filter(|line| !line.starts_with('#') && line.contains(" = "));
    let without: Vec<&str> = keys.skip(1).filter(|line| !line.contains(" # ")).collect();
    assert!(without.is_empty(), "without a source: {without:?}");

    // It runs immediately, under other planners and with more memory.
    let out = forebay(dir, &["sim", "run", "site.toml"]);
    assert!(out.contains("app-2") && out.contains("ocean"), "{out}");
    let out = forebay(dir, &["sim", "compare", "site.toml", "--policies", "naive-bb,forebay"]);
    assert!(out.contains("naive-bb"), "{out}");
    forebay(dir, &["sim", "sweep", "site.toml", "--set", "cluster.tier_bytes=100000000,200000000"]);
    let csv = std::fs::read_to_string(dir.join("site.csv")).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("# forebay ") && lines[1].starts_with("# forebay sim site --log"), "{csv}");
    assert_eq!(lines[2], "kind,name,measure,recorded,simulated,off_percent");
}
