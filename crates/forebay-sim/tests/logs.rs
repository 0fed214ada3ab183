//! Logs of batch systems as the jobs of scenarios, and records as CSV, by the command line.

use std::fs;
use std::path::Path;

use clap::Parser;
use forebay_sim::cli::{SimArgs, sim};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    sim: SimArgs,
}

/// Two jobs that ran, for 100 s on 8 processors and for 50 s on 2, and one that did not.
const LOG: &str = "; comment
1 1000 0 100 8 -1 -1 8 -1 -1 1 1 1 -1 1 -1 -1 -1
2 1005 -1 -1 -1 -1 -1 4 -1 -1 5 1 1 -1 1 -1 -1 -1
3 1010 20 50 2 -1 -1 2 -1 -1 1 1 1 -1 1 -1 -1 -1
";

const BURST: &str = "kind = 'burst-buffer'
cluster = { nodes = 4, node_gb = 100, node_gb_per_s = 1 }
log = { swf = 'log.swf', process_gb = 1, processes_per_node = 4, every_s = 40 }
allocation = { policy = 'striped' }
";

const CLUSTER: &str = "kind = 'cluster'
cluster = { nodes = 2, slots = 8, tier_bytes = 1000000000 }
pfs = { servers = 1, server_bytes_per_s = 1000000 }
log = { swf = 'log.swf', process_bytes = 1000000 }
";

/// The records of a run of `scenario` beside `log`, or its error.
fn records(dir: &Path, scenario: &str, log: &str) -> Result<String, String> {
    let file = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    fs::write(file("log.swf"), log).expect("written");
    fs::write(file("a.toml"), scenario).expect("written");
    let args = Args::parse_from(["sim", "run", &file("a.toml"), "--records", &file("r.csv")]);
    sim(&args.sim, false, &mut Vec::new()).map_err(|e| e.to_string())?;
    Ok(fs::read_to_string(file("r.csv")).expect("written"))
}

/// Job 1 writes 8 GB on two nodes when it has run for 40 and 80 s, job 3 starts 30 s later and
/// writes 2 GB on one node after 40 s.
#[test]
fn jobs_of_a_log_write_steps() {
    let dir = tempfile::tempdir().expect("a directory");
    let got = records(dir.path(), BURST, LOG).expect("it runs");
    let rows: Vec<&str> = got.lines().collect();
    assert_eq!(rows[0], "job,step,due_s,granted_s,end_s,alone_s,attempts");
    assert_eq!(
        rows[1..],
        [
            "log#1,0,40.000000000,40.000000000,44.000000000,4.000000000,1",
            "log#1,1,84.000000000,84.000000000,88.000000000,4.000000000,1",
            "log#3,0,70.000000000,70.000000000,72.000000000,2.000000000,1",
        ]
    );
}

/// Each task begins with its job, reads 1 MB and computes for as long as the job ran.
#[test]
fn jobs_of_a_log_run_tasks() {
    let dir = tempfile::tempdir().expect("a directory");
    let got = records(dir.path(), CLUSTER, LOG).expect("it runs");
    assert_eq!((got.lines().next(), got.lines().count()), (Some("job,slot,begin_s,end_s"), 11), "{got}");
    // The server sends the 10 MB of both jobs in 10 s, and all cores are free.
    for (job, tasks, begin_s, run_s) in [("log#1", 8, 0.0, 100.0), ("log#3", 2, 30.0, 50.0)] {
        let rows: Vec<Vec<&str>> = got.lines().map(|row| row.split(',').collect()).collect();
        let its: Vec<_> = rows.iter().filter(|row| row[0] == job).collect();
        assert_eq!(its.len(), tasks, "{got}");
        for row in its {
            let s = |column: usize| row[column].parse::<f64>().expect("a time");
            assert_eq!(s(2), begin_s, "{got}");
            assert!((run_s..run_s + 10.0).contains(&(s(3) - s(2))), "{got}");
        }
    }
}

#[test]
fn a_wrong_log_is_refused_in_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    for scenario in [BURST, CLUSTER] {
        let error = records(dir.path(), scenario, &LOG.replace("20 50", "20 5o")).expect_err("it is wrong");
        assert!(
            error.ends_with("log.swf:4: field 4 (run time) = 5o: a number from 0, or -1, is needed"),
            "{error}"
        );
        let error = records(dir.path(), &scenario.replace("log.swf", "none"), LOG).expect_err("no such log");
        assert!(error.contains("cannot read the log") && !error.contains('\n'), "{error}");
    }
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
    let got = records(dir.path(), RECORDED_HPC, "").expect("it runs");
    let rows: Vec<&str> = got.lines().skip(1).collect();
    assert_eq!(
        rows,
        [
            "phase,a,0,10.000000000,12.000000000,,,12.100000000",
            "phase,a,1,29.000000000,30.000000000,,,30.050000000",
        ]
    );
}

/// Both steps have the mean of 6 and 4 GB.
#[test]
fn writes_of_a_darshan_log_are_steps_of_a_job() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("log.txt"), DXT).expect("written");
    let got = records(dir.path(), RECORDED_STEPS, "").expect("it runs");
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
    let got = records(dir.path(), RECORDED_HPC, "").expect_err("it is wrong");
    assert!(got.contains("log.txt:10: End(s) = 29.0000: a number from 30 to"), "{got}");
    let both = RECORDED_HPC.to_owned() + "compute_s = 3\n";
    fs::write(&log, DXT).expect("written");
    let got = records(dir.path(), &both, "").expect_err("the log has the compute times");
    assert!(got.contains("hpc[0].compute_s = 3: unknown key; allowed are"), "{got}");
}
