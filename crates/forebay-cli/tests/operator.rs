//! What an operator does to a running agent.

mod node;

use node::{FOREBAY, Node};
use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// Runs the program as a client of the node's agent.
fn forebay(node: &Node, args: &[&str]) -> Output {
    let mut command = Command::new(FOREBAY);
    command.args(args).env("FOREBAY_SOCKET", node.socket()).env_remove("FOREBAY_CONFIG");
    command.stdin(Stdio::null()).output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_owned()).expect("text")
}

#[test]
fn status_as_json_has_counters_by_name() {
    let node = Node::start(&[]);
    let status: Value = serde_json::from_slice(&forebay(&node, &["--json", "status"]).stdout).expect("JSON");
    assert!(status["counters"]["guest_bytes"].is_u64(), "{status}");
    assert!(status["used_bytes"].is_object() && status["cluster"]["avoided"].is_object(), "{status}");
    assert_eq!(
        status["mounts"][0]["root"].as_str().map(str::to_owned),
        node.pfs().to_str().map(str::to_owned)
    );
}

#[test]
fn a_command_that_has_no_json_to_write_refuses_the_option() {
    let node = Node::start(&[]);
    let file = node.pfs().join("f");
    std::fs::write(&file, b"bytes").expect("the PFS takes files");
    for args in [&["cat", file.to_str().expect("UTF-8")][..], &["completions", "bash"], &["man"]] {
        let out = forebay(&node, &[args, &["--json"]].concat());
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{args:?}: {out:?}");
        assert!(text(&out.stderr).contains("leave --json out"), "{args:?}: {out:?}");
    }
    let keys: Value =
        serde_json::from_slice(&forebay(&node, &["config", "reference", "--json"]).stdout).expect("JSON");
    assert!(keys.as_array().is_some_and(|keys| keys.iter().any(|k| k["name"] == "mount.root")), "{keys}");
}

#[test]
fn a_capacity_below_the_agents_own_needs_can_be_raised_again() {
    let node = Node::start(&["--capacity", "64MiB"]);
    let client = node.client();
    client.admin().set_capacity(1).unwrap();
    let status = client.admin().status().expect("the operator is let in without room");
    let used: u64 = status.used_bytes.iter().map(|(_, bytes)| bytes).sum();
    assert!(used > status.capacity_bytes, "there was room after all: {status:?}");
    client.admin().set_capacity(64 << 20).unwrap();
    assert_eq!(client.admin().status().unwrap().capacity_bytes, 64 << 20);
}
