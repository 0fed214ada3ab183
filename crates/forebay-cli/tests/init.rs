//! `forebay init`: what it makes is what nodes need, and existing files are never written again.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use forebay_agent::Config;
use forebay_wire::link::Security;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn forebay(args: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let out = command.env_remove("FOREBAY_CONFIG").args(args).output().unwrap();
    (
        out.status.success(),
        String::from_utf8(if out.status.success() { out.stdout } else { out.stderr }).unwrap(),
    )
}

fn init(at: &Path, args: &[&str]) -> String {
    let (ok, said) = forebay(&[&["init", at.to_str().unwrap()], args].concat());
    assert!(ok, "{said}");
    said
}

fn refused(at: &Path, args: &[&str]) -> String {
    let (ok, said) = forebay(&[&["init", at.to_str().unwrap()], args].concat());
    assert!(!ok, "this had to be refused: {said}");
    said
}

/// Every file below `at` with its bytes.
fn contents(at: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    found
}

fn mode(path: PathBuf) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn nodes_made_at_different_times_meet_and_nothing_is_written_twice() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("cluster");
    let said = init(&at, &["--cluster", "lab", "--node", "n1=127.0.0.1:0", "--node", "n2"]);
    assert!(said.contains("created the certificate authority") && said.contains("scp -p"), "{said}");
    assert_eq!(
        (mode(at.join("ca.key")), mode(at.join("n1/node.key")), mode(at.join("n1"))),
        (0o600, 0o600, 0o700)
    );

    let before = contents(&at);
    let said = init(&at, &["--node", "n1", "--node", "n3=10.0.0.3", "--days", "7"]);
    assert!(said.contains("n1: exists already") && said.contains("n3: created, valid for 7 days"), "{said}");
    let after = contents(&at);
    assert!(before.iter().all(|(path, bytes)| after[path] == *bytes));
    assert_eq!(after.len(), before.len() + 4);

    let security = |node: &str| Security::load(&at.join(node)).unwrap();
    let (n1, n3) = (security("n1"), security("n3"));
    let deadline = Instant::now() + Duration::from_secs(20);
    let listener = n1.listen("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    let client =
        std::thread::spawn(move || n3.connect(&address, deadline).unwrap().peer_name().map(str::to_owned));
    let accepted = listener.prove(listener.accept().unwrap(), deadline).unwrap();
    assert!(accepted.may_speak_for("n3") && !accepted.may_speak_for("n1"));
    assert_eq!(client.join().unwrap().as_deref(), Some("n1"));
}

#[test]
fn the_example_configurations_fit_together() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("cluster");
    init(
        &at,
        &["--node", "n1=127.0.0.1:0", "--node", "n2=10.0.0.2", "--node", "n3", "--coordinator", "n2:9000"],
    );
    let cluster = |node: &str| Config::load_file(&at.join(node).join("forebay.toml")).unwrap().cluster;
    let (n1, n2, n3) = (cluster("n1"), cluster("n2"), cluster("n3"));
    assert_eq!((n1.node.as_str(), n2.node.as_str(), n3.node.as_str()), ("n1", "n2", "n3"));
    assert_eq!(
        (n1.listen.as_str(), n2.listen.as_str(), n3.listen.as_str()),
        ("127.0.0.1:0", "10.0.0.2:7851", "")
    );
    assert_eq!((n2.coordinator.join(" ").as_str(), n2.coordinator_listen.as_str()), ("", "10.0.0.2:9000"));
    for other in [&n1, &n3] {
        assert_eq!(
            (other.coordinator.join(" ").as_str(), other.coordinator_listen.as_str()),
            ("10.0.0.2:9000", "")
        );
        assert_eq!(other.tls.as_deref(), Some(Path::new("/etc/forebay")));
    }
    // Nodes that come later find the coordinator in the same place as the others.
    init(&at, &["--node", "n4"]);
    assert_eq!(cluster("n4").coordinator, ["10.0.0.2:9000"]);
    assert!(refused(&at, &["--node", "n5", "--coordinator", "n5"]).contains("10.0.0.2:9000 on n2 already"));
    assert!(
        refused(&at, &["--node", "n5", "--cluster", "other"])
            .contains("name of this cluster is forebay already")
    );
    assert!(!at.join("n5").exists());
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("cluster");
    assert!(refused(&at, &[]).contains("--node"));
    for (name, why) in [
        ("10.0.0.1", "looks like an address"),
        ("../n", "letters, digits"),
        ("", "letters, digits"),
        ("n=host", "NAME=IP"),
        ("n=0.0.0.0", "address others connect to"),
    ] {
        let said = refused(&at, &["--node", name]);
        assert!(said.contains(why), "{name}: {said}");
    }
    assert!(refused(&at, &["--node", "n", "--coordinator", "m"]).contains("--node m as well"));
    assert!(!at.join("ca.pem").exists() && !at.join("ca.key").exists() && !at.join("n").exists());

    init(&at, &["--node", "n"]);
    fs::set_permissions(at.join("ca.key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refused(&at, &["--node", "m"]).contains("chmod 600"));
    assert!(!at.join("m").exists());
}

#[test]
fn what_another_user_has_planted_is_refused() {
    const OTHER_UID: u32 = 61_001;
    if !rustix::process::geteuid().is_root() {
        println!("left out: needs root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let planted = "cluster = \"x\"\nnode = \"evil\"\ncoordinator = \"evil:1\"\nlisten = \"0.0.0.0:1\"\n";
    let plant = |at: &Path, owner: Option<u32>| {
        let file = at.join("cluster.toml");
        fs::write(&file, planted).unwrap();
        std::os::unix::fs::chown(&file, owner, owner).unwrap();
    };
    let (of_other, open, own) =
        (directory.path().join("a"), directory.path().join("b"), directory.path().join("c"));
    for at in [&of_other, &open, &own] {
        fs::create_dir(at).unwrap();
        plant(at, Some(OTHER_UID));
    }
    std::os::unix::fs::chown(&of_other, Some(OTHER_UID), None).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    for (at, why) in [
        (of_other.clone(), "belongs to user 61001"),
        (of_other.join("new"), "lies in"),
        (open, "is writable by other users"),
        (own, "belongs to user 61001: remove it"),
    ] {
        let said = refused(&at, &["--node", "n1"]);
        assert!(said.contains(why), "{said}");
        assert!(!at.join("ca.key").exists(), "{at:?}");
    }
}
