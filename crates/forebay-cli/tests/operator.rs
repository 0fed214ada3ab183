//! What an operator does to a running agent.

mod kit;

use forebay_lab::memory_group::MemoryGroup;
use kit::{FOREBAY, Node, forebay, text};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

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
fn doctor_says_what_to_do_without_an_agent_and_of_a_pfs_that_cannot_be_entered() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let pfs = dir.path().join("pfs");
    std::fs::create_dir(&pfs).expect("a directory");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("its mode");
    std::fs::set_permissions(&pfs, PermissionsExt::from_mode(0o000)).expect("its mode");
    let mut command = Command::new(FOREBAY);
    command.args(["--json", "doctor", "--pfs"]).arg(&pfs).env("FOREBAY_SOCKET", dir.path().join("none.sock"));
    if rustix::process::geteuid().is_root() {
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
    }
    let out = command.stdin(Stdio::null()).output().expect("the program runs");
    let said: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let finding =
        |what: &str| said.as_array().and_then(|all| all.iter().find(|f| f["what"] == what).cloned());
    let (agent, pfs) = (finding("agent").expect("an answer"), finding("PFS").expect("an answer"));
    let field = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    assert!(field(&agent, "found").starts_with("no agent at"), "{agent}");
    assert!(!field(&agent, "found").contains("start one"), "the remedy stands twice: {agent}");
    assert!(field(&agent, "remedy").contains("forebay up --pfs DIR"), "{agent}");
    assert_eq!((out.status.code(), field(&pfs, "level").as_str()), (Some(1), "bad"), "{pfs}");
    assert!(field(&pfs, "remedy").contains("allow_other"), "{pfs}");
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
