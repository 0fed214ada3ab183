//! What programs read of `status`, and which commands have nothing for programs.

use crate::kit::{Node, text};
use serde_json::Value;

#[test]
fn status_as_json_has_counters_by_name() {
    let node = Node::start(&[]);
    let status: Value =
        serde_json::from_slice(&node.forebay(&["--json", "status"]).output().unwrap().stdout).expect("JSON");
    assert!(status["counters"]["remote_page_bytes"].is_u64(), "{status}");
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
        let out = node.forebay(&[args, &["--json"]].concat()).output().unwrap();
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{args:?}: {out:?}");
        assert!(text(&out.stderr).contains("omit --json"), "{args:?}: {out:?}");
    }
    let keys: Value =
        serde_json::from_slice(&node.forebay(&["config", "reference", "--json"]).output().unwrap().stdout)
            .expect("JSON");
    assert!(keys.as_array().is_some_and(|keys| keys.iter().any(|k| k["name"] == "mount.root")), "{keys}");
}
