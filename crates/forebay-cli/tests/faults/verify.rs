//! `forebay verify` compares and changes nothing: it fetches no page, and says what it could not
//! compare.

use crate::cluster::{Cluster, NodeSetup};
use crate::common::{Agent, FOREBAY, MIB, PAGE, Setup, make_file, open_dir_in, pfs_with, plain_pfs, text};
use forebay_client::{Client, ClientConfig};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// What `verify` reports of `path` to a client of the agent at `socket`.
fn verify(socket: &Path, path: &Path) -> Value {
    let mut command = Command::new(FOREBAY);
    command.args(["--json", "verify", "-r"]).arg(path).env("FOREBAY_SOCKET", socket).stdin(Stdio::null());
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn verify_fetches_nothing_and_says_what_is_not_in_the_tier() {
    let pfs = plain_pfs();
    let agent = Agent::start(Setup { read_ahead: 16 * MIB, ..Setup::new(pfs.path()) });
    let (path, other) = (pfs.path().join("f"), pfs.path().join("other"));
    make_file(&path, 1, 4 * MIB);
    make_file(&other, 2, MIB);
    // One page in the midst of a block, and the rest on the PFS only.
    let socket = Some(agent.socket());
    let client = Client::new(ClientConfig {
        socket,
        read_ahead_bytes: Some(0),
        quiet: true,
        ..ClientConfig::default()
    });
    let file = client.open(&path).unwrap();
    file.read_at(&mut vec![0; PAGE as usize], 5 * PAGE).unwrap();
    let resident = || client.open(&path).unwrap().resident_bytes();
    assert_eq!(resident(), PAGE, "the agent has one page and no more");
    let report = verify(&agent.socket(), &path);
    assert_eq!(report["compared_bytes"], PAGE);
    assert_eq!(report["not_in_tier_bytes"], 4 * MIB - PAGE);
    client.admin().evict(&path).unwrap();
    let report = verify(&agent.socket(), &path);
    assert_eq!((&report["compared_bytes"], &report["not_in_tier_bytes"]), (&0.into(), &(4 * MIB).into()));
    // What verify had requested would be fetched before what is requested after it.
    assert!(agent.cli(&["load", "-q", other.to_str().unwrap()]).status.success());
    assert_eq!(resident(), 0, "verify has fetched what it compares");
    let out = agent.cli(&["verify", path.to_str().unwrap()]);
    assert!(
        text(&out.stdout).contains("compared 0 B of 1 files with the PFS; 4.00 MiB not in the tier; 0 bad")
    );
}

#[test]
fn verify_in_a_cluster_changes_no_nodes_tier() {
    let (pfs, path) = pfs_with("f", 1, 8 * MIB);
    let cluster = Cluster::start(2, &NodeSetup { read_ahead: 16 * MIB, ..NodeSetup::new(pfs.path()) });
    cluster.read_on(&[0], 1, &path, 1);
    let on_disk = |node: usize| cluster.nodes[node].status().resident_bytes;
    let before = [on_disk(0), on_disk(1)];
    assert!(before[1] < 8 * MIB && before[0] + before[1] >= 8 * MIB, "nothing is left to fetch: {before:?}");
    for node in [1, 0] {
        let client = cluster.nodes[node].client();
        let report = verify(client.socket().unwrap(), pfs.path());
        assert_eq!(
            report["compared_bytes"].as_u64().unwrap() + report["not_in_tier_bytes"].as_u64().unwrap(),
            8 * MIB,
            "{report}"
        );
    }
    assert_eq!([on_disk(0), on_disk(1)], before, "verify has fetched what it compares");
}

#[test]
fn verify_refuses_a_file_that_no_agent_serves() {
    let (pfs, elsewhere) = (plain_pfs(), open_dir_in("/dev/shm"));
    let agent = Agent::on(pfs.path());
    let path = elsewhere.path().join("f");
    make_file(&path, 1, 100);
    let out = agent.cli(&["verify", path.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains("no agent serves it"), "{}", text(&out.stdout));
}
