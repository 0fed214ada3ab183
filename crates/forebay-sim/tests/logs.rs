//! Darshan logs as the jobs of scenarios, and records as CSV, by the command line.

use std::fs;
use std::path::Path;

mod support;

/// The records of a run of `scenario`, or its error.
fn records(dir: &Path, scenario: &str) -> Result<String, String> {
    let file = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    fs::write(file("a.toml"), scenario).expect("written");
    support::cli(&["run", &file("a.toml"), "--records", &file("r.csv")], false)?;
    let text = fs::read_to_string(file("r.csv")).expect("written");
    // Behind the version and the command.
    Ok(text.splitn(3, '\n').nth(2).expect("columns and rows").to_owned())
}

/// Two processes that read 2 GB, write 6 GB with it, and write 4 GB in a second phase.
const DXT: &str = "# darshan log version: 3.41
# nprocs: 2

# DXT, file_id: 1, file_name: /scratch/a
# DXT, rank: 0, hostname: n0
# DXT, mnt_pt: /scratch, fs_type: lustre
# Module    Rank  Wt/Rd  Segment          Offset          Length    Start(s)      End(s)   Pthread-ID
 X_POSIX       0  write        0               0      6000000000     10.0000     12.0000   N/A
 X_POSIX       0   read        0               0      2000000000     12.5000     13.0000   N/A
 X_POSIX       1  write        0               0      4000000000     30.0000     31.0000   N/A
";

const RECORDED_HPC: &str = "
cluster = { pfs_gb_per_s = 4, nodes = 8, ram_gb = 100 }
profile = { bytes_gb = 1, prefetch_s = 1, i_hpc = 1, i_bd = 1 }
[[hpc]]
name = 'a'
darshan = 'log.txt'
";

const RECORDED_STEPS: &str = "kind = 'burst-buffer'
cluster = { nodes = 4, node_gb = 100, node_gb_per_s = 1 }
allocation = { policy = 'striped' }
[[job]]
name = 'a'
darshan = 'log.txt'
nodes = 1
";

/// Alone, phases take as long as the PFS needs for their bytes, and compute is that of the log.
#[test]
fn phases_of_a_darshan_log_are_those_of_an_hpc_job() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("log.txt"), DXT).expect("written");
    let got = records(dir.path(), RECORDED_HPC).expect("it runs");
    let rows: Vec<&str> = got.lines().skip(1).collect();
    assert_eq!(
        rows,
        [
            "phase,a,0,10.000000000,12.000000000,,,12.100000000",
            "phase,a,1,29.000000000,30.000000000,,,30.050000000",
        ]
    );
}

/// Phases whose times were recorded one by one.
#[test]
fn each_phase_has_its_recorded_times() {
    let dir = tempfile::tempdir().expect("a directory");
    let given = |lists: &str| {
        let job = format!("name = 'a'\nphases = 2\nio_s = 9\ncompute_s = 9\n{lists}");
        RECORDED_HPC.replace("name = 'a'\ndarshan = 'log.txt'\n", &job)
    };
    let lists = "io_each_s = [2, 1]\ncompute_each_s = [10, 17]\n";
    let got = records(dir.path(), &given(lists)).expect("it runs");
    let rows: Vec<&str> = got.lines().skip(1).collect();
    assert_eq!(
        rows,
        [
            "phase,a,0,10.000000000,12.000000000,,,12.100000000",
            "phase,a,1,29.000000000,30.000000000,,,30.050000000",
        ]
    );
    let error = records(dir.path(), &given("io_each_s = [2, 1]\ncompute_each_s = [10]\n"));
    let error = error.expect_err("a time is missing");
    assert!(error.ends_with("a time for each of 2 phases is needed"), "{error}");
}

/// Both steps have the mean of 6 and 4 GB.
#[test]
fn writes_of_a_darshan_log_are_steps_of_a_job() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("log.txt"), DXT).expect("written");
    let got = records(dir.path(), RECORDED_STEPS).expect("it runs");
    let rows: Vec<&str> = got.lines().skip(1).collect();
    assert_eq!(
        rows,
        [
            "a,0,10.000000000,10.000000000,15.000000000,5.000000000,1",
            "a,1,33.000000000,33.000000000,38.000000000,5.000000000,1",
        ]
    );
}

#[test]
fn a_wrong_darshan_log_is_refused_with_file_and_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log.txt");
    fs::write(&log, DXT.replace("31.0000", "29.0000")).expect("written");
    let got = records(dir.path(), RECORDED_HPC).expect_err("it is wrong");
    assert!(got.contains("log.txt:10: End(s) = 29.0000: a number from 30 to"), "{got}");
    let none = records(dir.path(), &RECORDED_HPC.replace("log.txt", "none")).expect_err("no such log");
    assert!(none.contains("cannot read the log") && !none.contains('\n'), "{none}");
    let both = RECORDED_HPC.to_owned() + "compute_s = 3\n";
    fs::write(&log, DXT).expect("written");
    let got = records(dir.path(), &both).expect_err("the log has the compute times");
    assert!(got.contains("hpc[0].compute_s = 3: unknown key; allowed are"), "{got}");
}
