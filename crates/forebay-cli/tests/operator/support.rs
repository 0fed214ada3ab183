//! What is logged changes without a restart; a support bundle has neither names nor keys.

use crate::kit::{MIB, Node, forebay, succeeded, text, wait_for};
use crate::make;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[test]
fn what_is_logged_changes_while_the_agent_runs() {
    let node = Node::start(&["--capacity", "64MiB"]);
    let log = |args: &[&str]| succeeded(&mut node.forebay(&[&["log"], args].concat())).trim().to_owned();
    assert_eq!(log(&[]), "info");
    assert!(!node.log().contains("DEBUG"));
    assert_eq!(log(&["debug", "serve"]), "forebay_agent::serve=debug,info");
    let connect = || drop(node.forebay(&["status"]).output().unwrap());
    wait_for("debug messages come", || {
        connect();
        node.log().contains("DEBUG forebay_agent::serve")
    });
    assert_eq!(log(&["warn"]), "warn");
    let out = node.forebay(&["log", "loud"]).output().unwrap();
    assert!(!out.status.success() && text(&out.stderr).contains("no level"), "{}", text(&out.stderr));
    let audit = std::fs::read_to_string(node.dir().join("state/audit.log")).unwrap();
    assert!(audit.contains("log warn") && audit.contains("refused"), "{audit}");
}

#[test]
fn a_bundle_has_the_parts_and_no_names_and_no_keys() {
    let dir = tempfile::tempdir().unwrap();
    let (token, secret) = ("0123456789abcdef-token", "Unpublished Result");
    std::fs::write(dir.path().join("token"), token).unwrap();
    std::fs::set_permissions(dir.path().join("token"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(
        &config,
        format!(
            "[metrics]\nlisten = \"127.0.0.1:0\"\ntoken_file = {:?}\n[tier]\ncapacity = \"64MiB\"\n",
            dir.path().join("token")
        ),
    )
    .unwrap();
    let node = Node::start(&["--config", config.to_str().unwrap()]);
    let file = make(&node.pfs().join(format!("{secret}.dat")), MIB);
    wait_for("something is cached", || {
        succeeded(node.forebay(&["load", "--quiet"]).arg(&file));
        node.client().admin().status().unwrap().files > 0
    });
    // Its name gets into the log.
    succeeded(&mut node.forebay(&["log", "trace"]));
    succeeded(node.forebay(&["cat"]).arg(&file));
    let path = dir.path().join("bundle.tar.gz");
    let mut bundle = node.forebay(&["bundle", "--cluster", "--config", config.to_str().unwrap(), "--output"]);
    let said = succeeded(bundle.arg(&path));
    assert!(said.contains("names of files and users are replaced"), "{said}");
    let read = |path: &Path| -> Vec<(String, String)> {
        let into = tempfile::tempdir().unwrap();
        succeeded(Command::new("tar").arg("xzf").arg(path).arg("-C").arg(into.path()));
        let entries = std::fs::read_dir(into.path().join("forebay-bundle")).unwrap();
        let part = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), std::fs::read_to_string(entry.path()).unwrap())
        };
        entries.map(part).collect()
    };
    let parts = read(&path);
    for (name, content) in &parts {
        for hidden in ["Unpublished", "Result.dat", token, "PRIVATE KEY", &node.pfs().display().to_string()] {
            assert!(!content.contains(hidden), "{name} has {hidden}:\n{content}");
        }
    }
    let part = |wanted: &str| -> &str {
        let found = parts.iter().find(|(name, _)| name == wanted);
        found.map_or_else(|| panic!("no {wanted}: {said}"), |(_, content)| content)
    };
    assert!(
        part("version.txt").contains(env!("CARGO_PKG_VERSION")) && part("kernel.txt").contains("MemTotal")
    );
    let status: Value = serde_json::from_str(part("status.json")).unwrap();
    assert_eq!(status["mounts"][0]["root"], "(root of pfs)");
    assert!(part("config.json").contains("metrics.token_file") && part("doctor.json").contains("huge pages"));
    assert!(
        part("metrics.txt").contains("forebay_job_read_bytes_total{user=\"0\""),
        "{}",
        part("metrics.txt")
    );
    assert!(
        part("log.txt").contains("what is logged has changed") && part("audit.txt").contains("log trace")
    );
    assert!(part("mounts.txt").contains("other proc"), "{}", part("mounts.txt"));
    let nodes: Value = serde_json::from_str(part("cluster-nodes.json")).unwrap();
    assert_eq!(nodes.as_array().map(Vec::len), Some(1), "{nodes}");
    // Nobody answers: the bundle says so, and has the rest.
    let mut without = forebay(&["--socket", "/nowhere/agent.sock", "bundle", "--names", "--output"]);
    let alone = dir.path().join("alone.tar.gz");
    let said = succeeded(without.arg(&alone));
    assert!(said.contains("without status.json: forebay status: "), "{said}");
    let parts = read(&alone);
    let failed = parts.iter().find(|(name, _)| name == "status.json.failed").unwrap();
    assert!(failed.1.contains("no agent at /nowhere/agent.sock"), "{}", failed.1);
    assert!(parts.iter().any(|(name, _)| name == "kernel.txt"));
}
