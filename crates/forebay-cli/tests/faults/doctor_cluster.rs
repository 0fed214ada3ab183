//! `doctor --cluster` finds real faults, each by name and with its node, and nothing before them.

use crate::common::{FOREBAY, MIB, PATIENCE, SlowFs, content, open_dir_in, plain_pfs, text, wait_for};
use crate::coordinator::Cluster;
use crate::dirty_elsewhere::write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Where Debian has it (package faketime).
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// What is not well, by `doctor --cluster` of this agent: one line each.
fn findings_of(socket: &Path) -> Vec<String> {
    let mut doctor = Command::new(FOREBAY);
    let out = doctor.args(["--json", "doctor", "--cluster"]).env("FOREBAY_SOCKET", socket).output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let found = found.as_array().unwrap().iter().filter(|one| one["level"] != "good");
    let line = |one: &serde_json::Value| {
        format!("{}: {}", one["what"].as_str().unwrap(), one["found"].as_str().unwrap())
    };
    // What is so here: tiers in /dev/shm have small pages, and a directory plays the PFS.
    let of_the_rig = ["n0, n1, n2: no node has huge pages", "is not a mount point but a directory"];
    found.map(line).filter(|line| !of_the_rig.iter().any(|known| line.contains(known))).collect()
}

fn findings(cluster: &Cluster) -> Vec<String> {
    findings_of(&cluster.socket(0))
}

/// Waits until the findings are what they should be.
#[track_caller]
fn wait_until(cluster: &Cluster, what: &str, is_so: impl Fn(&[String]) -> bool) {
    let begin = Instant::now();
    loop {
        let found = findings(cluster);
        if is_so(&found) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}, but found {found:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[track_caller]
fn is_found(cluster: &Cluster, what: &str, words: &str) {
    let is_it = |line: &String| line.starts_with(&format!("{what}: ")) && line.contains(words);
    wait_until(cluster, &format!("{what}: ... {words}"), |found| found.iter().any(is_it));
}

#[track_caller]
fn all_is_well(cluster: &Cluster) {
    wait_until(cluster, "nothing is to be found", <[String]>::is_empty);
}

/// Restarts node 2 with a variable, and as it was after its fault was found.
#[track_caller]
fn with(cluster: &mut Cluster, variable: &str, value: &str, what: &str, words: &str) {
    cluster.start_again(2, vec![(variable.to_owned(), PathBuf::from(value))]);
    is_found(cluster, what, words);
    cluster.start_again(2, Vec::new());
    all_is_well(cluster);
}

#[test]
fn faults_of_nodes_are_found_and_a_healthy_cluster_has_none() {
    let pfs = plain_pfs();
    std::fs::write(pfs.path().join("data"), content(1, 0, 4 * MIB as usize)).unwrap();
    let mut cluster = Cluster::start(3, pfs.path(), &[]);
    all_is_well(&cluster);

    with(&mut cluster, "FOREBAY_TIER_CAPACITY", "48MiB", "capacity", "n2: tier.capacity is far from");
    if Path::new(FAKETIME).exists() {
        // Waits go on by the true clock.
        let env = [("LD_PRELOAD", FAKETIME), ("FAKETIME", "+60s"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
        cluster.start_again(2, env.map(|(name, value)| (name.to_owned(), PathBuf::from(value))).into());
        is_found(&cluster, "clock", "n2 by +");
        cluster.start_again(2, Vec::new());
        all_is_well(&cluster);
    }

    let pid = cluster.status(2).pid;
    let limit = |files: &str| {
        let arguments = ["--pid", &pid.to_string(), &format!("--nofile={files}")];
        assert!(Command::new("prlimit").args(arguments).status().unwrap().success());
    };
    limit("1024:");
    is_found(&cluster, "open files", "n2: may open fewer");
    limit("4096:");
    all_is_well(&cluster);

    cluster.stop_agent(2);
    is_found(&cluster, "silent", "n2 (for ");
    // Long after it was a member.
    wait_until(&cluster, "n2 is missed", |found| {
        let seconds = found
            .iter()
            .find_map(|line| line.strip_prefix("silent: n2 (for ")?.split(' ').next()?.parse().ok());
        seconds.is_some_and(|seconds: u64| seconds >= 5)
    });
    cluster.let_agent_go_on(2);
    all_is_well(&cluster);

    cluster.kill_coordinator();
    is_found(&cluster, "cluster", "coordinator");
}

#[test]
fn faults_of_the_file_system_are_found() {
    let Some(slow) = SlowFs::start() else { return };
    std::fs::write(slow.at("data"), content(1, 0, 4 * MIB as usize)).unwrap();
    let mut cluster = Cluster::start(3, &slow.mount(), &[]);
    all_is_well(&cluster);
    let restart_all = |cluster: &mut Cluster| {
        (0..3).for_each(|number| cluster.start_again(number, Vec::new()));
        all_is_well(cluster);
    };
    let read = |cluster: &Cluster| {
        let mut cat = cluster.command(0, &["cat"]);
        cat.arg(slow.at("data")).stdout(std::process::Stdio::null()).spawn().unwrap()
    };

    slow.fault("read=EIO");
    let _ = read(&cluster).wait();
    is_found(&cluster, "mount", "reads of mount \"pfs\" have failed");
    slow.fault("none");
    restart_all(&mut cluster);

    slow.fault("read=hang");
    let mut reader = read(&cluster);
    is_found(&cluster, "mount", "has waited for more than 10 s");
    slow.fault("none");
    let _ = reader.wait();
    restart_all(&mut cluster);

    slow.fault("write=ENOSPC");
    let file = slow.at("ckpt");
    write(&cluster, &file, 2);
    is_found(&cluster, "dirty files", "n0: the PFS does not take 1 of them now: No space left on device");
    // Somebody else writes it as well: both contents are kept.
    slow.fault("none");
    std::fs::write(&file, "other").unwrap();
    is_found(&cluster, "dirty files", "n0: files that the PFS does not take");
    let dirty = text(&cluster.cli(0, &["dirty", "--json"]).stdout);
    assert!(dirty.contains("another program has changed the file"), "{dirty}");
}

#[test]
fn a_certificate_that_ends_soon_is_found() {
    let (dir, pfs) = (open_dir_in("/dev/shm"), plain_pfs());
    let at = |name: &str| dir.path().join(name);
    let forebay = |arguments: &[&str]| {
        let mut command = Command::new(FOREBAY);
        command.args(arguments).env("FOREBAY_SOCKET", at("state/agent.sock"));
        let out = command.env("FOREBAY_CLUSTER_TLS", at("tls/n1")).output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", text(&out.stderr));
    };
    forebay(&["init", at("tls").to_str().unwrap(), "--node", "n1=127.0.0.1", "--days", "3"]);
    forebay(&["up", "--pfs", pfs.path().to_str().unwrap(), "--capacity", "64MiB"]);
    wait_for("the certificate", || {
        findings_of(&at("state/agent.sock")).iter().any(|line| line.starts_with("certificate: "))
    });
    forebay(&["down", "--drop"]);
}
