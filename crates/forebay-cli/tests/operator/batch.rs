//! The scripts of `packaging/batch` for PBS and Flux.

use crate::kit::{FOREBAY, MIB, Node, succeeded, text};
use crate::{json, make};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A script of `packaging/batch`, with the places filled in.
fn installed(node: &Node, at: &Path) -> PathBuf {
    let batch = at.join("share/forebay/batch");
    std::fs::create_dir_all(&batch).unwrap();
    std::fs::create_dir_all(at.join("bin")).unwrap();
    std::fs::create_dir_all(at.join("etc/forebay")).unwrap();
    std::os::unix::fs::symlink(FOREBAY, at.join("bin/forebay")).unwrap();
    std::fs::write(at.join("etc/forebay/batch.sh"), "JOB_RATE=3MB/s DRAIN_S=30 AWAY_S=1\n").unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/batch");
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let text = text.replace("@PREFIX@", at.to_str().unwrap());
        let text = text.replace("@SYSCONFDIR@", at.join("etc").to_str().unwrap());
        let to = batch.join(entry.file_name());
        std::fs::write(&to, text).unwrap();
        std::fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    assert!(node.socket().exists());
    batch
}

#[test]
fn the_scripts_of_pbs_and_flux_limit_a_job_and_wait_for_what_it_wrote() {
    let node = Node::start(&["--capacity", "128MiB"]);
    let dir = tempfile::tempdir().unwrap();
    let batch = installed(&node, dir.path());
    let script = |name: &str, socket: &Path| {
        let mut script = Command::new(batch.join(name));
        script.env("FOREBAY_SOCKET", socket).env("FLUX_JOB_ID", "ƒabc").env("FLUX_JOB_USERID", "0");
        if name.starts_with("pbs") {
            script.args(["4711.head", "root", "root", "climate"]);
        }
        script
    };
    let file = make(&dir.path().join("made"), MIB);
    for (begin, end, job) in
        [("pbs-prologue", "pbs-epilogue", "4711.head"), ("flux-prolog", "flux-epilog", "ƒabc")]
    {
        succeeded(&mut script(begin, &node.socket()));
        let limits = json(&mut node.forebay(&["--json", "limit"]));
        assert_eq!((&limits[0]["job"], &limits[0]["rate_bytes_per_s"]), (&job.into(), &3_000_000.into()));
        let written = node.pfs().join(job);
        succeeded(node.forebay(&["cp", "--write", "back"]).arg(&file).arg(&written));
        succeeded(&mut script(end, &node.socket()));
        assert_eq!(json(&mut node.forebay(&["--json", "limit"])), Value::Array(Vec::new()));
        assert_eq!(json(&mut node.forebay(&["--json", "dirty"])), Value::Array(Vec::new()));
        assert_eq!(std::fs::read(&written).unwrap().len() as u64, MIB);
        let out = script(end, Path::new("/nowhere/agent.sock")).output().unwrap();
        assert!(out.status.success() && text(&out.stderr).contains("no agent answers"), "{out:?}");
    }
}
