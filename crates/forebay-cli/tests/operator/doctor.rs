//! `doctor` finds problems on a node, and says what to do about each.

use crate::kit::{FOREBAY, forebay, succeeded};
use forebay_lab::memory_group::MemoryGroup;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Level, what was found and the remedy of each finding, by what was checked. The exit status must
/// agree with them.
fn findings(command: &mut Command) -> BTreeMap<String, [String; 3]> {
    let out = command.stdin(Stdio::null()).output().unwrap();
    let findings: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
    let field = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let is_bad = findings.iter().any(|one| one["level"] == "bad");
    assert_eq!(out.status.code(), Some(i32::from(is_bad)), "{findings:?}");
    findings
        .iter()
        .map(|one| (field(one, "what"), ["level", "found", "remedy"].map(|name| field(one, name))))
        .collect()
}

#[test]
fn limits_of_the_process_and_its_group_are_found_with_their_remedies() {
    let group = match MemoryGroup::new("doctor", 512 << 20) {
        Ok(group) => group,
        Err(e) => return eprintln!("left out: no memory controller can be used here: {e}"),
    };
    let mut doctor = Command::new("sh");
    let limits = format!(
        "echo $$ > {}/cgroup.procs && ulimit -n 4000 && ulimit -l 64 && exec \"$0\" --json doctor",
        group.directory.display()
    );
    doctor.args(["-c", &limits, FOREBAY]).env("FOREBAY_SOCKET", "/nowhere/agent.sock");
    let found = findings(&mut doctor);
    let expected = [
        ("memory", "512.0 MiB usable", "--capacity"),
        ("control group", "limit of 512.0 MiB", "below it"),
        ("open files", "up to 4000 a process", "65536"),
        ("locked memory", "64.0 KiB a process", "no action needed"),
        ("agent", "no agent at /nowhere/agent.sock", "forebay up --pfs DIR"),
    ];
    for (what, says, remedy) in expected {
        let [level, said, advice] = &found[what];
        assert!(level == "warning" && said.contains(says) && advice.contains(remedy), "{what}: {found:?}");
    }
    // Whatever else is wrong on this machine has a remedy, too.
    for (what, [level, _, remedy]) in &found {
        assert_eq!(level != "good", !remedy.is_empty(), "{what}: {found:?}");
    }
}

#[test]
fn what_is_not_a_pfs_is_found_with_its_remedy() {
    let of = |path: &Path| findings(forebay(&["--json", "doctor", "--pfs"]).arg(path));
    let dir = tempfile::tempdir().unwrap();
    let found = of(dir.path());
    let Some([level, found, remedy]) = found.get("mount") else {
        return eprintln!("left out: {} is not on a local file system: {found:?}", dir.path().display());
    };
    assert!(level == "warning" && found.contains("is not a mount point but a directory"), "{found}");
    assert!(remedy.contains("mount.require_mount"), "{remedy}");
    let [level, found, _] = &of(Path::new("/proc"))["PFS"];
    assert_eq!((level.as_str(), found.as_str()), ("good", "/proc: proc"));
    let [level, found, _] = &of(Path::new("/dev/shm"))["PFS"];
    assert_eq!((level.as_str(), found.as_str()), ("bad", "/dev/shm is a tmpfs"));
    let [level, found, _] = &of(Path::new("/nowhere"))["PFS"];
    assert!(level == "bad" && found.starts_with("/nowhere: No such file"), "{found}");
}

#[test]
fn doctor_says_what_to_do_without_an_agent_and_of_a_pfs_that_cannot_be_entered() {
    let dir = tempfile::tempdir().expect("a directory");
    let pfs = dir.path().join("pfs");
    fs::create_dir(&pfs).expect("a directory");
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
    fs::set_permissions(&pfs, std::os::unix::fs::PermissionsExt::from_mode(0o000)).expect("its mode");
    let mut command = Command::new(FOREBAY);
    command.args(["--json", "doctor", "--pfs"]).arg(&pfs).env("FOREBAY_SOCKET", dir.path().join("none.sock"));
    if rustix::process::geteuid().is_root() {
        command.uid(65534);
    }
    let found = findings(&mut command);
    let [_, agent, remedy] = &found["agent"];
    assert!(agent.starts_with("no agent at"), "{agent}");
    assert!(!agent.contains("start one"), "the remedy stands twice: {agent}");
    assert!(remedy.contains("forebay up --pfs DIR"), "{remedy}");
    let [level, _, remedy] = &found["PFS"];
    assert!(level == "bad" && remedy.contains("allow_other"), "{found:?}");
}

#[test]
fn doctor_looks_at_the_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("cluster");
    for args in [["--node", "n1", "--days", "40"], ["--node", "n2", "--days", "3"]] {
        succeeded(forebay(&["init"]).arg(&at).args(args));
    }
    let finding = |node: &str, tls: &str| {
        let config = at.join("config.toml");
        let tls = at.join(tls);
        fs::write(&config, format!("[cluster]\nnode = \"{node}\"\ntls = \"{}\"\n", tls.display())).unwrap();
        let [level, found, _] =
            &findings(forebay(&["--json", "doctor", "--config"]).arg(&config))["certificates"];
        (level.clone(), found.clone())
    };
    let (level, found) = finding("n1", "n1");
    assert_eq!(level, "good");
    assert!(found.contains("valid for 39 more days") || found.contains("valid for 40 more days"), "{found}");
    assert_eq!(finding("n2", "n2").0, "warning");
    let (level, found) = finding("n1", "n2");
    assert!(level == "bad" && found.contains("made for \"n2\""), "{found}");
    fs::copy(at.join("n2/node.key"), at.join("n1/node.key")).unwrap();
    let (level, found) = finding("n1", "n1");
    assert!(level == "bad" && found.contains("not the key of node.pem"), "{found}");
}
