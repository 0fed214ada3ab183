//! Capacities are changed while an agent runs, and refused if they do not fit.

use crate::kit::{FOREBAY, Node, forebay, text};
use forebay_lab::memory_group::MemoryGroup;
use std::path::Path;

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

#[test]
fn a_capacity_that_does_not_fit_is_refused_with_both_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let memory = forebay_agent::memory::usable_bytes();
    let cases = [
        ("999TiB", "90%", (999u64 << 40).to_string(), memory.to_string()),
        ("256MiB", "64MiB", (256u64 << 20).to_string(), (64u64 << 20).to_string()),
    ];
    for (capacity, limit, one, other) in cases {
        let config = dir.path().join("forebay.toml");
        let toml = format!(
            "[agent]\nstate_dir = {:?}\n[tier]\ncapacity = \"{capacity}\"\nlimit = \"{limit}\"\n[[mount]]\nlabel = \"pfs\"\nroot = {:?}\n",
            dir.path().join("state"),
            dir.path(),
        );
        std::fs::write(&config, toml).unwrap();
        let config = config.to_str().unwrap();
        for args in [
            vec!["up", "--foreground", "--config", config],
            vec!["config", "check", config],
            vec!["doctor", "--config", config],
        ] {
            let out = forebay(&args).output().unwrap();
            let said = text(&[out.stdout, out.stderr].concat());
            assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
            assert!(said.contains(&one) && said.contains(&other), "{args:?}: {said}");
        }
        assert!(!dir.path().join("state/agent.sock").exists());
    }
}

#[test]
fn the_limit_of_a_control_group_bounds_the_capacity() {
    let group = match MemoryGroup::new("operator", 512 << 20) {
        Ok(group) => group,
        Err(e) => return eprintln!("left out: no memory controller can be used here: {e}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let mut up = group.run(Path::new(FOREBAY));
    up.args(["up", "--foreground", "--capacity", "1GiB", "--pfs"]).arg(dir.path());
    let out = up.arg("--state-dir").arg(dir.path().join("state")).output().unwrap();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    for number in [1u64 << 30, 512 << 20] {
        assert!(said.contains(&number.to_string()), "{said}");
    }
}
