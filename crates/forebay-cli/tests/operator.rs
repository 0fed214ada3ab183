//! What an operator does to a running agent.

mod node;

use node::{FOREBAY, Node};
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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
        let out = forebay(&node, &[args, &["--json"]].concat());
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{args:?}: {out:?}");
        assert!(text(&out.stderr).contains("omit --json"), "{args:?}: {out:?}");
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
        let text = format!(
            "[agent]\nstate_dir = {:?}\n[tier]\ncapacity = \"{capacity}\"\nlimit = \"{limit}\"\n[[mount]]\nlabel = \"pfs\"\nroot = {:?}\n",
            dir.path().join("state"),
            dir.path(),
        );
        std::fs::write(&config, text).unwrap();
        let config = config.to_str().unwrap();
        for args in [
            vec!["up", "--foreground", "--config", config],
            vec!["config", "check", config],
            vec!["doctor", "--config", config],
        ] {
            let mut command = std::process::Command::new(node::FOREBAY);
            let out = command.args(&args).env_remove("FOREBAY_SOCKET").output().unwrap();
            let said = [out.stdout, out.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
            assert!(said.contains(&one) && said.contains(&other), "{args:?}: {said}");
        }
        assert!(!dir.path().join("state/agent.sock").exists());
    }
}

/// A group of this machine's memory controller, of either version; `None` if it has none that can
/// be used.
fn memory_group() -> Option<(std::path::PathBuf, &'static str)> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let at = |line: &str| line.split(' ').nth(4).map(std::path::PathBuf::from);
    let v1 = mounts.lines().find(|l| l.contains(" - cgroup ") && l.ends_with("memory")).and_then(at);
    let (root, file) = match v1 {
        Some(root) => (root, "memory.limit_in_bytes"),
        None => (mounts.lines().find(|l| l.contains(" - cgroup2 ")).and_then(at)?, "memory.max"),
    };
    let group = root.join(format!("forebay-test-{}", std::process::id()));
    std::fs::create_dir(&group).ok()?;
    if group.join(file).exists() {
        return Some((group, file));
    }
    let _ = std::fs::remove_dir(&group);
    None
}

#[test]
fn the_limit_of_a_control_group_bounds_the_capacity() {
    let Some((group, file)) = memory_group() else {
        return eprintln!("left out: no memory controller can be used here");
    };
    std::fs::write(group.join(file), (512u64 << 20).to_string()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec {} up --foreground --capacity 1GiB --pfs {} --state-dir {}/state",
        group.display(),
        node::FOREBAY,
        dir.path().display(),
        dir.path().display(),
    );
    let out = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    // The process that closes descriptors for the agent ends a moment after it.
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(e) = std::fs::remove_dir(&group) {
        assert!(Instant::now() < deadline, "{}: {e}", group.display());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(out.status.code(), Some(1), "{said}");
    for number in [1u64 << 30, 512 << 20] {
        assert!(said.contains(&number.to_string()), "{said}");
    }
}
