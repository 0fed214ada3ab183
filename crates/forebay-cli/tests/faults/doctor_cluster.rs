//! `doctor --cluster` finds real faults, each by name and with its node, and nothing before them.

use crate::common::{FOREBAY, MIB, PATIENCE, SlowFs, content, open_dir_in, plain_pfs, text, wait_for};
use crate::coordinator::{Change, Cluster, EXTENT};
use crate::dirty_elsewhere::write;
use crate::unmounted::Mounted;
use forebay_lab::memory_group::MemoryGroup;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Where Debian installs it (package faketime).
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// Variables of a program whose clock is wrong by `apart`; its waits follow the true clock.
fn at_another_time(apart: &str) -> [(&str, &str); 3] {
    [("LD_PRELOAD", FAKETIME), ("FAKETIME", apart), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]
}

/// What is wrong, according to `doctor --cluster` of this agent: one line each.
fn findings_of(socket: &Path) -> Vec<String> {
    let mut doctor = Command::new(FOREBAY);
    let out = doctor.args(["--json", "doctor", "--cluster"]).env("FOREBAY_SOCKET", socket).output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let found = found.as_array().unwrap().iter().filter(|one| one["level"] != "good");
    let line = |one: &serde_json::Value| {
        format!("{}: {}", one["what"].as_str().unwrap(), one["found"].as_str().unwrap())
    };
    // What is always reported here: a directory plays the PFS.
    found.map(line).filter(|line| !line.contains("is not a mount point but a directory")).collect()
}

fn findings(cluster: &Cluster) -> Vec<String> {
    findings_of(&cluster.socket(0))
}

/// Waits until the findings are what they should be.
#[track_caller]
fn wait_until(cluster: &Cluster, what: &str, is_so: impl Fn(&[String]) -> bool) {
    wait_until_of(what, || findings(cluster), is_so);
}

#[track_caller]
fn wait_until_of(what: &str, findings: impl Fn() -> Vec<String>, is_so: impl Fn(&[String]) -> bool) {
    let begin = Instant::now();
    loop {
        let found = findings();
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

/// Restarts node 2 with a change, and as it was after its fault was found.
#[track_caller]
fn with(cluster: &mut Cluster, change: Change, what: &str, words: &str) {
    cluster.start_changed(2, change);
    is_found(cluster, what, words);
    cluster.start_again(2, Vec::new());
    all_is_well(cluster);
}

fn env(variables: &[(&str, &str)]) -> Change {
    let env = variables.iter().map(|(name, value)| ((*name).to_owned(), PathBuf::from(value)));
    Change { env: env.collect(), ..Change::default() }
}

fn text_of(from: &str, to: &str) -> Change {
    Change { text: Some((from.to_owned(), to.to_owned())), ..Change::default() }
}

/// This program with another version number in it, of the same length. The compiler may have made
/// machine code of it, whose parts have four bytes.
fn program_of_another_version(dir: &Path) -> PathBuf {
    let version = &env!("CARGO_PKG_VERSION").as_bytes()[..4];
    let digit = version.iter().rposition(u8::is_ascii_digit).unwrap();
    let mut bytes = std::fs::read(FOREBAY).unwrap();
    for at in 0..bytes.len() - version.len() {
        if bytes[at..].starts_with(version) {
            bytes[at + digit] = if version[digit] == b'9' { b'8' } else { b'9' };
        }
    }
    let program = dir.join("forebay");
    std::fs::write(&program, bytes).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn faults_of_nodes_are_found_and_a_healthy_cluster_has_none() {
    let pfs = plain_pfs();
    std::fs::write(pfs.path().join("data"), content(1, 0, 4 * MIB as usize)).unwrap();
    let mut cluster = Cluster::start(3, pfs.path(), &[]);
    all_is_well(&cluster);

    let small = env(&[("FOREBAY_TIER_CAPACITY", "48MiB")]);
    with(&mut cluster, small, "capacity", "n2: tier.capacity is far from");
    let other = text_of(&format!("extent_size = \"{EXTENT}\""), "extent_size = \"8MiB\"");
    with(&mut cluster, other, "placement", "n2 has extents of 8.00 MiB on mount \"pfs\"");
    let other = text_of("label = \"pfs\"", "label = \"other\"");
    with(&mut cluster, other, "mount", "n2: mount \"pfs\" is not configured");
    let dir = tempfile::tempdir().unwrap();
    let other = Change { program: Some(program_of_another_version(dir.path())), ..Change::default() };
    with(&mut cluster, other, "version", "n2 has ");
    if Path::new(FAKETIME).exists() {
        with(&mut cluster, env(&at_another_time("+60s")), "clock", "n2 by +");
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

    let before = cluster.epoch(0);
    cluster.stop_agent(2);
    is_found(&cluster, "silent", "n2 (for ");
    // Long after it was a member.
    wait_until(&cluster, "n2 is missed", |found| {
        let seconds = found
            .iter()
            .find_map(|line| line.strip_prefix("silent: n2 (for ")?.split(' ').next()?.parse().ok());
        seconds.is_some_and(|seconds: u64| seconds >= 5)
    });
    let without = cluster.epoch(0);
    assert!(without > before);
    cluster.let_agent_go_on(2);
    all_is_well(&cluster);
    wait_for("it knows that it is back", || cluster.epoch(2) == cluster.epoch(0));
    assert!(cluster.epoch(2) > without);

    cluster.kill_coordinator();
    is_found(&cluster, "cluster", "coordinator");
}

#[test]
fn a_tier_that_has_given_way_to_programs_is_found() {
    const LIMIT: u64 = 256 * MIB;
    let group = match MemoryGroup::new("doctor", LIMIT) {
        Ok(group) => group,
        Err(e) => return eprintln!("left out: no memory controller can be used here: {e}"),
    };
    let pfs = plain_pfs();
    let mut cluster = Cluster::start(3, pfs.path(), &[]);
    let name = group.directory.file_name().unwrap().to_string_lossy();
    cluster.start_changed(2, env(&[("FOREBAY_MEMORY_WATCH", &format!("[\"/{name}\"]"))]));
    all_is_well(&cluster);
    // A tmpfs counts against the group of the program that has written to it.
    let (dir, mut program) = (tempfile::tempdir_in("/dev/shm").unwrap(), group.run(Path::new("dd")));
    let taken = dir.path().join("taken");
    program
        .args(["if=/dev/zero", "bs=1M", "count=200", "status=none"])
        .arg(format!("of={}", taken.display()));
    assert!(program.status().unwrap().success());
    is_found(&cluster, "memory", "n2: programs need the memory");
    std::fs::remove_file(taken).unwrap();
    all_is_well(&cluster);
}

/// Only root may mount a tier.
#[test]
fn a_node_with_other_huge_pages_is_found() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("left out: not root");
    }
    let pfs = plain_pfs();
    let mut cluster = Cluster::start(3, pfs.path(), &[]);
    all_is_well(&cluster);
    let drop_tier = |cluster: &Cluster| {
        let down = cluster.cli(2, &["down", "--drop"]);
        assert!(down.status.success(), "{}", text(&down.stderr));
        cluster.wait_members(2);
    };
    drop_tier(&cluster);
    cluster.start_ended(2, env(&[("FOREBAY_TIER_BACKING", "mount"), ("FOREBAY_TIER_DIRECTORY", "")]));
    is_found(&cluster, "huge pages", "n2 has within_size, others as its tmpfs");
    drop_tier(&cluster);
    cluster.start_ended(2, Change::default());
    all_is_well(&cluster);
}

#[test]
fn a_file_system_that_was_unmounted_is_found() {
    let pfs = Mounted::new();
    let cluster = Cluster::start(3, &pfs.root(), &[]);
    all_is_well(&cluster);
    assert!(pfs.unmount());
    is_found(&cluster, "mount", "n0, n1, n2: nothing is mounted where mount \"pfs\" is to be");
    pfs.mount();
    all_is_well(&cluster);
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
fn a_certificate_that_ends_soon_or_has_ended_is_found() {
    let (dir, pfs) = (open_dir_in("/dev/shm"), plain_pfs());
    let at = |name: &str| dir.path().join(name);
    let forebay = |arguments: &[&str], env: &[(&str, &str)]| {
        let mut command = Command::new(FOREBAY);
        command.args(arguments).env("FOREBAY_SOCKET", at("state/agent.sock")).envs(env.iter().copied());
        let out = command.env("FOREBAY_CLUSTER_TLS", at("tls/n1")).output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", text(&out.stderr));
    };
    let is_found = |env: &[(&str, &str)], words: &str, then: &dyn Fn()| {
        forebay(&["init", at("tls").to_str().unwrap(), "--node", "n1=127.0.0.1", "--days", "3"], &[]);
        forebay(&["up", "--pfs", pfs.path().to_str().unwrap(), "--capacity", "64MiB"], env);
        then();
        let findings = || findings_of(&at("state/agent.sock"));
        wait_until_of(words, findings, |found| {
            found.iter().any(|line| line.starts_with("certificate: ") && line.contains(words))
        });
        forebay(&["down", "--drop"], &[]);
        std::fs::remove_dir_all(at("tls")).unwrap();
    };
    is_found(&[], "it is valid for less than", &|| ());
    if Path::new(FAKETIME).exists() {
        // No agent starts with one that has expired: the time comes while it runs.
        let clock = at("clock");
        std::fs::write(&clock, "+0d").unwrap();
        let mut env = at_another_time("+0d").to_vec();
        env[1] = ("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap());
        env.push(("FAKETIME_NO_CACHE", "1"));
        is_found(&env, "it has expired", &|| std::fs::write(&clock, "+4d").unwrap());
    }
}
