//! Random calls on files that are written back, and the same on plain files, at each level of
//! promise.
//!
//! `make test-write-back` makes longer runs of it: `FOREBAY_RANDOM_STEPS`, `FOREBAY_RANDOM_SEED`.

use crate::common::{Agent, FOREBAY, Setup, open_dir_in, plain_pfs, text};
use crate::coordinator::Cluster;
use crate::intercept::plain;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |number| number.parse().unwrap())
}

/// The program compares each result, and at its end what is on the PFS.
fn run(socket: &Path, pfs: &Path, options: &[&str]) {
    let scratch = open_dir_in("/dev/shm");
    let (here, beside) = (pfs.join("files"), scratch.path().join("files"));
    std::fs::create_dir(&here).unwrap();
    std::fs::create_dir(&beside).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/write_back_random.c");
    let built = plain(scratch.path(), &format!("cc -w -O1 -o random {}", source.display()));
    assert!(built.status.success(), "{}", text(&built.stderr));
    let (seed, steps) = (number("FOREBAY_RANDOM_SEED", 1), number("FOREBAY_RANDOM_STEPS", 5000));
    let mut command = Command::new(FOREBAY);
    command.args(["run", "--quiet", "--write-back"]).arg(&here).args(options).arg("--");
    command.arg(scratch.path().join("random")).args([seed.to_string(), steps.to_string()]);
    command.arg(FOREBAY).arg(&here).arg(&beside);
    command.env("FOREBAY_SOCKET", socket).env("FOREBAY_DEADLINE_MS", "20000");
    let begun = Instant::now();
    let out = command.output().unwrap();
    assert!(out.status.success(), "{options:?}: {}{}", text(&out.stdout), text(&out.stderr));
    println!("{options:?}, seed {seed}, {:.1?}: {}", begun.elapsed(), text(&out.stdout));
}

#[test]
fn random_calls_on_files_in_memory_give_what_they_give_on_plain_files() {
    let pfs = plain_pfs();
    let agent = Agent::on(pfs.path());
    run(&agent.socket(), pfs.path(), &[]);
    assert!(agent.counter("absorbed_files_total") > 100, "nothing was written back");
}

#[test]
fn random_calls_on_files_with_a_log_give_what_they_give_on_plain_files() {
    let pfs = plain_pfs();
    let log = open_dir_in("/var/tmp");
    let agent = Agent::start(Setup { log: Some(log.path().join("log")), ..Setup::new(pfs.path()) });
    run(&agent.socket(), pfs.path(), &["--copies", "disk"]);
    assert!(agent.counter("copies_sent_total") > 100, "nothing is in the log");
}

#[test]
fn random_calls_on_files_with_two_copies_give_what_they_give_on_plain_files() {
    let pfs = plain_pfs();
    let cluster = Cluster::start(2, pfs.path(), &[]);
    run(&cluster.socket(0), pfs.path(), &["--copies", "2"]);
    assert!(cluster.counter(0, "copies_sent_total") > 100, "there are no second copies");
}
