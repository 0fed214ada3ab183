//! With `copies = 2`, what is closed is in the memory of a second node, and survives the first.

use crate::common::{MIB, SlowFs, content, text, wait_for};
use crate::coordinator::Cluster;
use crate::dirty_elsewhere::{BYTES, READ, end, run};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// A program on node 0 writes the file with two copies, and ends.
fn write(cluster: &Cluster, file: &Path, start: u64) -> Child {
    write_by(cluster, file, start, "wb")
}

/// The same, with an open of this mode.
fn write_by(cluster: &Cluster, file: &Path, start: u64, mode: &str) -> Child {
    let source = cluster.socket(0).with_extension(format!("source{start}"));
    std::fs::write(&source, content(start, 0, BYTES)).unwrap();
    let script = format!(
        "
import os
f = open(os.environ['FILE'], '{mode}')
f.write(open({source:?}, 'rb').read())
f.close()"
    );
    let options = ["--write-back", file.to_str().unwrap(), "--copies", "2", "--detach"];
    run(cluster, 0, &options, &script, file)
}

fn lose_node(cluster: &mut Cluster, number: usize) {
    cluster.kill_agent(number);
    std::fs::remove_dir_all(cluster.tier(number)).unwrap();
}

#[test]
fn what_is_closed_outlives_its_node() {
    let Some((slow, mut cluster)) = Cluster::failing(3, &[]) else { return };
    let file = slow.at("ckpt");
    end(write(&cluster, &file, 1));
    assert!(cluster.dirty(0) != "[]", "it is on the PFS");
    lose_node(&mut cluster, 0);
    for node in [1, 2, 1] {
        let read = end(run(&cluster, node, &[], READ, &file));
        assert!(read == content(1, 0, BYTES), "{node}: {} bytes", read.len());
    }
    assert_eq!(cluster.counter(1, "taken_over_total") + cluster.counter(2, "taken_over_total"), 1);
    slow.fault("none");
    for node in [1, 2] {
        cluster.sync(node);
    }
    assert!(std::fs::read(&file).unwrap() == content(1, 0, BYTES));
    assert_eq!((&*cluster.dirty(1), &*cluster.dirty(2)), ("[]", "[]"));
}

/// In the middle of a slow pass over content 1, content 2 gets its second copy.
fn overwrite_in_a_pass(slow: &SlowFs, cluster: &Cluster, file: &Path) {
    slow.fault("none");
    slow.limit("700KB/s");
    end(write(cluster, file, 1));
    wait_for("the pass has begun", || std::fs::metadata(slow.behind("ckpt")).unwrap().len() > 0);
    end(write_by(cluster, file, 2, "r+b"));
    assert_eq!(cluster.counter(0, "copies_missed_total"), 0, "{}", cluster.log("log0"));
}

/// Node 0 is lost in the middle of a pass over content 1, after content 2 got its second copy.
fn lost_in_a_pass(nodes: usize) -> Option<(SlowFs, Cluster, PathBuf)> {
    // On a busy machine the next pass may have begun.
    for _ in 0..5 {
        let (slow, mut cluster) = Cluster::failing(nodes, &[])?;
        let file = slow.at("ckpt");
        overwrite_in_a_pass(&slow, &cluster, &file);
        lose_node(&mut cluster, 0);
        let there = std::fs::read(slow.behind("ckpt")).unwrap();
        if there[..4096] == content(1, 0, 4096)[..] {
            slow.limit("1GB/s");
            return Some((slow, cluster, file));
        }
    }
    panic!("a pass over content 2 has begun each time");
}

#[test]
fn a_file_that_is_overwritten_outlives_its_node_in_the_middle_of_a_pass() {
    let Some((_slow, cluster, file)) = lost_in_a_pass(2) else { return };
    wait_for("the file is taken over", || cluster.counter(1, "taken_over_total") == 1);
    cluster.sync(1);
    assert!(std::fs::read(&file).unwrap() == content(2, 0, BYTES));
}

/// Node 1 learns neither that the pass is over nor, since node 0 comes back with an empty memory,
/// that no other node had the file.
#[test]
fn a_file_that_is_overwritten_outlives_its_node_at_the_end_of_a_pass() {
    // The next pass begins a moment after this one, so it may come too early.
    let mut tries = 0..5;
    let (_slow, mut cluster, file) = loop {
        assert!(tries.next().is_some(), "a pass over content 2 has begun each time");
        let Some((slow, mut cluster)) = Cluster::failing(2, &[]) else { return };
        let file = slow.at("ckpt");
        overwrite_in_a_pass(&slow, &cluster, &file);
        cluster.stop_agent(1);
        slow.limit("1GB/s");
        let has_its_time = || {
            let shown = std::fs::metadata(slow.behind("ckpt")).unwrap();
            let age = shown.modified().unwrap().elapsed().unwrap_or_default();
            shown.len() == BYTES as u64 && age > Duration::from_secs(3)
        };
        wait_for("the file has the time of content 1", has_its_time);
        lose_node(&mut cluster, 0);
        // A pass that has begun may not have come to the first bytes yet, and one that has ended
        // has set a time that may be as old.
        if has_its_time() && std::fs::read(slow.behind("ckpt")).unwrap() == content(1, 0, BYTES) {
            break (slow, cluster, file);
        }
        cluster.let_agent_go_on(1);
    };
    cluster.let_agent_go_on(1);
    cluster.start_killed(0);
    wait_for("the file is taken over", || cluster.counter(1, "taken_over_total") == 1);
    cluster.sync(1);
    assert!(std::fs::read(&file).unwrap() == content(2, 0, BYTES));
}

#[test]
fn what_another_node_writes_before_a_file_is_taken_over_is_not_overwritten() {
    let Some((_slow, cluster, file)) = lost_in_a_pass(3) else { return };
    let second = if cluster.used(1, "dirty") > 0 { 1 } else { 2 };
    wait_for("the node is gone", || cluster.members(second) == 2);
    let script = "import os; open(os.environ['FILE'], 'wb').write(b'newest')";
    end(run(&cluster, 3 - second, &[], script, &file));
    assert_eq!(cluster.counter(second, "taken_over_total"), 0, "too late");
    wait_for("the copy is parked", || cluster.dirty(second).contains("parked"));
    let _conflict_is_reported = cluster.cli(second, &["sync", "--quiet"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"newest");
}

#[test]
fn a_node_that_comes_back_does_not_overwrite_what_is_newer() {
    let Some((slow, mut cluster)) = Cluster::failing(2, &[]) else { return };
    let file = slow.at("ckpt");
    end(write(&cluster, &file, 1));
    cluster.kill_agent(0);
    wait_for("the file is taken over", || cluster.counter(1, "taken_over_total") == 1);
    slow.fault("none");
    cluster.sync(1);
    assert!(std::fs::read(&file).unwrap() == content(1, 0, BYTES));
    let newer = content(2, 0, BYTES);
    std::fs::write(&file, &newer).unwrap();
    cluster.start_killed(0);
    wait_for("the old content is parked", || cluster.dirty(0).contains("parked"));
    let _conflict_is_reported = cluster.cli(0, &["sync", "--quiet"]);
    assert!(std::fs::read(&file).unwrap() == newer);
}

#[test]
fn an_agent_that_is_started_anew_keeps_its_files() {
    let Some((slow, mut cluster)) = Cluster::failing(2, &[]) else { return };
    let file = slow.at("ckpt");
    end(write(&cluster, &file, 1));
    cluster.kill_agent(0);
    wait_for("it is missing", || cluster.members(1) == 1);
    cluster.start_killed(0);
    wait_for("it is back", || cluster.members(1) == 2);
    end(write(&cluster, &file, 2));
    slow.fault("none");
    cluster.sync(0);
    assert!(std::fs::read(&file).unwrap() == content(2, 0, BYTES));
    assert_eq!(cluster.counter(1, "taken_over_total"), 0);
}

#[test]
fn a_node_that_comes_back_before_the_file_is_drained_is_fenced() {
    let Some((slow, mut cluster)) = Cluster::failing(2, &[]) else { return };
    let file = slow.at("ckpt");
    end(write(&cluster, &file, 1));
    cluster.kill_agent(0);
    wait_for("the file is taken over", || cluster.counter(1, "taken_over_total") == 1);
    cluster.start_killed(0);
    wait_for("it is fenced", || cluster.dirty(0).contains("node n1 has taken the file over"));
    let read = end(run(&cluster, 0, &[], READ, &file));
    assert!(
        read == content(1, 0, BYTES),
        "{} bytes\n{}\n{}",
        read.len(),
        cluster.log("log0"),
        cluster.dirty(1)
    );
    slow.fault("none");
    cluster.sync(1);
    assert!(std::fs::read(&file).unwrap() == content(1, 0, BYTES));
}

#[test]
fn the_copy_is_released_when_the_pfs_has_the_file() {
    let Some((slow, cluster)) = Cluster::failing(2, &[]) else { return };
    let file = slow.at("ckpt");
    end(write(&cluster, &file, 1));
    assert!(cluster.used(1, "dirty") >= BYTES as u64, "no copy");
    assert!(cluster.dirty(1).contains("second copy of a file of node n0"), "{}", cluster.dirty(1));
    assert!(cluster.dirty(0).contains("second copy on node n1"), "{}", cluster.dirty(0));
    slow.fault("none");
    cluster.sync(0);
    wait_for("the copy is released", || cluster.used(1, "dirty") == 0);
    assert_eq!(cluster.counter(1, "taken_over_total"), 0);
}

#[test]
fn without_a_second_node_the_program_waits_for_the_pfs() {
    let Some((slow, cluster)) = Cluster::failing(1, &[]) else { return };
    let file = slow.at("ckpt");
    let failed = write(&cluster, &file, 1).wait_with_output().unwrap();
    assert!(!failed.status.success(), "the PFS takes no writes, and no node the copy");
    assert!(cluster.log("log0").contains("no other node takes a second copy"));
    slow.fault("none");
    let file = slow.at("other");
    end(write(&cluster, &file, 2));
    assert!(std::fs::read(&file).unwrap() == content(2, 0, BYTES), "close has not waited");
    assert!(cluster.counter(0, "copies_missed_total") > 0);
}

#[test]
fn a_full_second_node_is_passed_over() {
    let Some((slow, cluster)) = Cluster::failing(2, &[128 * MIB, 8 * MIB]) else { return };
    slow.fault("none");
    let file = slow.at("ckpt");
    end(write(&cluster, &file, 1));
    assert!(std::fs::read(&file).unwrap() == content(1, 0, BYTES), "close has not waited");
    assert!(cluster.counter(0, "copies_missed_total") > 0, "{}", cluster.log("log0"));
    assert_eq!(cluster.used(1, "dirty"), 0);
}

#[test]
fn a_second_node_that_hangs_is_passed_over_in_time() {
    let Some((slow, cluster)) = Cluster::failing(2, &[]) else { return };
    slow.fault("none");
    let file = slow.at("ckpt");
    cluster.stop_agent(1);
    let begun = Instant::now();
    end(write(&cluster, &file, 1));
    let waited = begun.elapsed();
    cluster.let_agent_go_on(1);
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    assert!(std::fs::read(&file).unwrap() == content(1, 0, BYTES), "close has not waited");
    assert!(cluster.log("log0").contains("cannot send a second copy to node n1"), "{}", cluster.log("log0"));
}

#[test]
fn doctor_compares_the_nodes_of_a_cluster() {
    let Some((_slow, mut cluster)) = Cluster::failing(3, &[64 * MIB, 64 * MIB, 8 * MIB]) else { return };
    let found = |cluster: &Cluster| text(&cluster.cli(0, &["doctor", "--cluster"]).stdout);
    let names = |what: &str, node: &str, text: &str| {
        text.lines().any(|line| line.contains(what) && line.contains(&format!("{node}: ")))
    };
    wait_for("all have reported", || {
        let text = found(&cluster);
        names("capacity", "n2", &text) && !text.contains("have not reported yet")
    });
    let text = found(&cluster);
    for what in ["silent", "version", "clock", "placement", "certificate", "peers", "dirty files"] {
        assert!(!text.lines().any(|line| line.starts_with("WARN") && line.contains(what)), "{text}");
    }
    cluster.kill_agent(1);
    wait_for("a node less", || found(&cluster).contains("2 nodes: n0, n2"));
}

#[test]
fn another_node_gets_the_copy_when_the_second_one_is_gone() {
    let Some((slow, mut cluster)) = Cluster::failing(3, &[]) else { return };
    let file = slow.at("ckpt");
    end(write(&cluster, &file, 1));
    let second = if cluster.used(1, "dirty") > 0 { 1 } else { 2 };
    let third = 3 - second;
    assert!(cluster.used(second, "dirty") >= BYTES as u64 && cluster.used(third, "dirty") == 0);
    lose_node(&mut cluster, second);
    wait_for("the third has it", || cluster.used(third, "dirty") >= BYTES as u64);
    wait_for("it counts", || cluster.dirty(0).contains(&format!("second copy on node n{third}")));
    lose_node(&mut cluster, 0);
    assert!(end(run(&cluster, third, &[], READ, &file)) == content(1, 0, BYTES));
}
