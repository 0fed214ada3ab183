//! Names that break lines, names that are not text, directories with nothing in them.

use crate::common::{Agent, MIB, PAGE, make_file, pfs_and_agent, plain_pfs, text};
use crate::roles::verify_once;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

#[test]
fn names_with_newlines_and_bytes_that_are_no_text() {
    let (pfs, agent) = pfs_and_agent();
    let names: [&[u8]; 5] = [b"new\nline", b"\xff\xfe\x80", b" ", b"-rf", "\u{1f600}*?[".as_bytes()];
    for (seed, name) in names.iter().enumerate() {
        let path = pfs.path().join(OsStr::from_bytes(name));
        make_file(&path, seed as u64, PAGE + 1);
    }
    let out = agent.cli(&["--json", "load", "-q", pfs.path().to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((report["files"].as_u64(), report["failed"].as_u64()), (Some(5), Some(0)));
    for (seed, name) in names.iter().enumerate() {
        verify_once(&agent.client(), &pfs.path().join(OsStr::from_bytes(name)), seed as u64, 0);
    }
    let mut listed: Vec<_> = agent.client().admin().list().unwrap().into_iter().map(|f| f.path).collect();
    listed.sort();
    let mut wanted: Vec<_> =
        names.iter().map(|n| pfs.path().join(OsStr::from_bytes(n)).as_os_str().as_bytes().to_vec()).collect();
    wanted.sort();
    assert_eq!(listed, wanted);
    // One line per file, whatever is in its name; and JSON that parses.
    let shown = text(&agent.cli(&["ls"]).stdout);
    assert!(shown.contains("new\\nline") && shown.contains("\\xff\\xfe\\x80"), "{shown}");
    serde_json::from_slice::<serde_json::Value>(&agent.cli(&["--json", "ls"]).stdout).unwrap();
    // They survive a restart, since they are in the copies' labels.
    let mut agent = agent;
    agent.kill_9();
    agent.restart();
    assert_eq!(agent.counter("adopted_files_total"), 5);
    assert_eq!(agent.client().admin().list().unwrap().len(), 5);
    agent.assert_nothing_left();
}

#[test]
fn empty_and_missing_directories_to_load() {
    let pfs = plain_pfs();
    std::fs::create_dir_all(pfs.path().join("empty/er")).unwrap();
    make_file(&pfs.path().join("f"), 1, MIB);
    rustix::fs::mkfifoat(rustix::fs::CWD, pfs.path().join("fifo"), rustix::fs::Mode::from(0o600)).unwrap();
    let agent = Agent::on(pfs.path());
    let load = |name: &str| {
        let out = agent.cli(&["--json", "load", "-q", pfs.path().join(name).to_str().unwrap()]);
        let report: serde_json::Value = serde_json::from_slice(&out.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}{}", text(&out.stdout), text(&out.stderr)));
        (out.status.code(), report["files"].as_u64().unwrap(), report["failed"].as_u64().unwrap())
    };
    assert_eq!(load("empty"), (Some(0), 0, 0));
    assert_eq!(load("missing"), (Some(1), 0, 1));
    assert_eq!(load("missing*"), (Some(1), 0, 1));
    let (code, _, failed) = load("fifo");
    assert_eq!((code, failed), (Some(1), 1));
    assert_eq!(load("f"), (Some(0), 1, 0));
    agent.assert_nothing_left();
}
