//! `forebay load --nodes`: every node gets all of each file, and the PFS serves each byte once.

use crate::common::{MIB, SlowFs, assert_content, make_file, text, wait_for};
use crate::coordinator::{Cluster, SEED};
use forebay_client::ReadMode;
use std::path::Path;
use std::process::Output;

const SIZE: u64 = 24 * MIB;

fn loaded(cluster: &Cluster, nodes: &str, path: &Path) -> Output {
    cluster.cli(0, &["load", "--nodes", nodes, "--quiet", path.to_str().unwrap()])
}

/// Fails unless all of the file is in the memory of this node.
#[track_caller]
fn assert_on(cluster: &Cluster, node: usize, path: &Path) {
    let file = cluster.client(node).open_with(path, ReadMode::TierOnly).unwrap();
    let mut bytes = vec![0; SIZE as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), SIZE as usize, "node {node}");
    assert_content(&bytes, SEED, 0);
}

#[test]
fn a_load_on_all_nodes_reads_each_byte_of_the_pfs_once() {
    let Some((slow, path)) = SlowFs::with("model", SEED, SIZE) else { return };
    let cluster = Cluster::start(4, &slow.mount(), &[]);
    let before = slow.stats().read_bytes;
    let out = loaded(&cluster, "all", &path);
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    assert!(text(&out.stdout).contains("1 files on 4 nodes"), "{}", text(&out.stdout));
    let read = slow.stats().read_bytes - before;
    assert!(read <= SIZE + SIZE / 50, "the PFS has served {read} bytes for {SIZE}");
    (0..4).for_each(|node| assert_on(&cluster, node, &path));
    // Nothing is kept for the load any more.
    wait_for("the pages are ordinary ones", || cluster.sum("planned_bytes") == 0);
    let again = loaded(&cluster, "n1,n2", &path);
    assert!(
        text(&again.stdout).contains("2 nodes, 0 B fetched, 48.0 MiB resident"),
        "{}",
        text(&again.stdout)
    );
}

#[test]
fn a_node_that_dies_during_the_load_does_not_keep_the_others_waiting() {
    let Some((slow, path)) = SlowFs::with("model", SEED, SIZE) else { return };
    let mut cluster = Cluster::start(3, &slow.mount(), &[]);
    slow.limit("8MiB/s");
    let mut load = cluster.command(0, &["load", "--nodes", "all", "--quiet", path.to_str().unwrap()]);
    let mut load = load.stdout(std::process::Stdio::piped()).spawn().unwrap();
    wait_for("pages come", || {
        cluster.status(0).counters.iter().any(|c| c.0 == "pages_planned_total" && c.1 > 0)
    });
    assert!(load.try_wait().unwrap().is_none(), "the load has ended before the fault");
    cluster.kill_agent(2);
    wait_for("the load ends", || load.try_wait().unwrap().is_some());
    let out = load.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let said = text(&out.stdout);
    assert!(said.contains("on 2 nodes") && said.contains("node n2 has left the cluster"), "{said}");
    (0..2).for_each(|node| assert_on(&cluster, node, &path));
}

#[test]
fn what_cannot_be_loaded_on_all_nodes_is_said() {
    let pfs = crate::common::plain_pfs();
    let path = pfs.path().join("f");
    make_file(&path, SEED, SIZE);
    let cluster = Cluster::start(2, pfs.path(), &[]);
    let out = loaded(&cluster, "n0,n7", &path);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        text(&out.stderr).contains("no node is called n7; the nodes are n0, n1"),
        "{}",
        text(&out.stderr)
    );
    let out = loaded(&cluster, "all", &pfs.path().join("missing"));
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("missing"), "{}", text(&out.stderr));
    let _writer = std::fs::File::options().write(true).open(&path).unwrap();
    let out = loaded(&cluster, "all", &path);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains("48.0 MiB were not loaded"), "{}", text(&out.stdout));
}
