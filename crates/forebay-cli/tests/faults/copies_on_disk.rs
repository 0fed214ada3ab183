//! With `copies = disk`, what is closed is on a disk of the node, and survives the loss of its
//! memory.

use crate::common::{Agent, MIB, Program, Setup, SlowFs, content, open_dir_in, text, wait_for};
use crate::write_back::{dirty, python, sync, well};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Bytes of a file that takes several parts of a pass.
const BYTES: usize = 9 * MIB as usize + 5;

const TO_DISK: [&str; 3] = ["--copies", "disk", "--detach"];

/// An agent with a log, on a file system that takes no writes.
struct Node {
    agent: Agent,
    slow: SlowFs,
    dir: PathBuf,
    log: TempDir,
}

impl Node {
    fn start() -> Option<Self> {
        let slow = SlowFs::start()?;
        let dir = slow.at("out");
        std::fs::create_dir(&dir).unwrap();
        slow.fault("write=EIO");
        let log = open_dir_in("/var/tmp");
        let agent = Agent::start(Setup { log: Some(log.path().join("log")), ..Setup::new(&slow.mount()) });
        Some(Node { agent, slow, dir, log })
    }

    /// A program writes `name` and ends; the bytes are in a file next to the agent first.
    fn write(&self, name: &str, bytes: &[u8]) {
        let source = self.agent.dir().join("source");
        std::fs::write(&source, bytes).unwrap();
        let script = format!(
            "
import os
f = open(os.path.join(os.environ['DIR'], {name:?}), 'wb')
f.write(open({source:?}, 'rb').read())
f.close()"
        );
        well(python(&self.agent, &self.dir, &TO_DISK, &script).output().unwrap());
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let script = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())";
        let mut command = self.agent.command(&["run", "--", "python3", "-c", script]);
        let output = command.arg(self.dir.join(name)).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        output.stdout
    }

    fn logged(&self) -> usize {
        std::fs::read_dir(self.log.path().join("log")).unwrap().count()
    }

    /// Restarts the node: its memory is lost.
    fn restart(&mut self) {
        self.agent.kill_9();
        std::fs::remove_dir_all(self.agent.dir().join("tier")).unwrap();
        self.agent.restart();
    }

    fn state_of(&self, name: &str) -> String {
        let files = dirty(&self.agent);
        let found = files.iter().find(|file| file["path"].as_str().is_some_and(|path| path.ends_with(name)));
        found.map_or("clean".into(), |file| file["state"].as_str().unwrap().to_owned())
    }
}

#[test]
fn what_is_closed_outlives_a_restart_of_the_node() {
    let Some(mut node) = Node::start() else { return };
    node.write("ckpt", &content(1, 0, BYTES));
    // The newest of it is what comes back, and an empty file is one as well.
    node.write("ckpt", &content(2, 0, BYTES - 4096));
    node.write("empty", b"");
    assert!(node.logged() >= 1, "nothing is in the log");
    node.restart();
    assert!(node.read("ckpt") == content(2, 0, BYTES - 4096));
    node.restart();
    assert!(node.read("ckpt") == content(2, 0, BYTES - 4096));
    node.slow.fault("none");
    sync(&node.agent);
    assert!(std::fs::read(node.slow.behind("out/ckpt")).unwrap() == content(2, 0, BYTES - 4096));
    wait_for("the log to be empty", || node.logged() == 0);
    node.restart();
    assert!(dirty(&node.agent).is_empty(), "it is dirty again");
}

#[test]
fn a_synced_file_that_is_still_open_outlives_the_node_with_its_program() {
    let Some(mut node) = Node::start() else { return };
    let script = "
import os, sys
f = open(os.path.join(os.environ['DIR'], 'ckpt'), 'wb')
f.write(b'a' * 5000000)
f.flush(); os.fsync(f.fileno())
f.write(b'b' * 5000000)
f.flush()
print('synced', flush=True)
sys.stdin.readline()";
    let mut program = Program::new(python(&node.agent, &node.dir, &TO_DISK, script));
    program.expect("synced");
    program.kill();
    node.restart();
    let read = node.read("ckpt");
    assert!(read == vec![b'a'; 5_000_000], "{} bytes", read.len());
}

#[test]
fn a_pass_that_was_cut_off_is_made_again_after_a_restart() {
    let Some(mut node) = Node::start() else { return };
    node.write("ckpt", &content(1, 0, BYTES));
    node.slow.limit("2MB/s");
    node.slow.fault("none");
    let behind = node.slow.behind("out/ckpt");
    let sync_later = node.agent.command(&["sync", "--quiet"]).spawn().unwrap();
    wait_for("a part is on the file system", || std::fs::metadata(&behind).unwrap().len() > 0);
    node.agent.kill_9();
    assert!(std::fs::metadata(&behind).unwrap().len() < BYTES as u64, "the pass was over");
    drop(sync_later.wait_with_output());
    std::fs::remove_dir_all(node.agent.dir().join("tier")).unwrap();
    node.slow.limit("1GB/s");
    node.slow.fault("write=EIO");
    node.agent.restart();
    assert!(node.read("ckpt") == content(1, 0, BYTES), "a half was read");
    node.slow.fault("none");
    sync(&node.agent);
    assert!(std::fs::read(&behind).unwrap() == content(1, 0, BYTES));
}

#[test]
fn what_somebody_else_has_written_meanwhile_is_kept() {
    let Some(mut node) = Node::start() else { return };
    node.write("ckpt", &content(1, 0, BYTES));
    node.agent.kill_9();
    std::fs::remove_dir_all(node.agent.dir().join("tier")).unwrap();
    node.slow.fault("none");
    std::fs::write(node.slow.at("out/ckpt"), content(3, 0, BYTES)).unwrap();
    node.agent.restart();
    let _conflict_is_reported = node.agent.cli(&["sync", "--quiet"]);
    wait_for("it is parked", || node.state_of("ckpt") == "parked");
    assert!(std::fs::read(node.slow.at("out/ckpt")).unwrap() == content(3, 0, BYTES));
    let saved = node.agent.dir().join("saved");
    well(node.agent.cli(&["rescue", saved.to_str().unwrap()]));
    let rescued = std::fs::read_dir(&saved).unwrap().map(|entry| entry.unwrap().path());
    assert!(
        rescued
            .filter(|path| path.is_file())
            .any(|path| std::fs::read(path).unwrap() == content(1, 0, BYTES))
    );
}

#[test]
fn a_file_that_is_gone_does_not_come_back_as_another() {
    let Some(mut node) = Node::start() else { return };
    node.write("ckpt", &content(1, 0, BYTES));
    node.agent.kill_9();
    std::fs::remove_dir_all(node.agent.dir().join("tier")).unwrap();
    node.slow.fault("none");
    std::fs::remove_file(node.slow.at("out/ckpt")).unwrap();
    std::fs::write(node.slow.at("out/ckpt"), "").unwrap();
    node.agent.restart();
    let _conflict_is_reported = node.agent.cli(&["sync", "--quiet"]);
    assert_eq!(std::fs::read(node.slow.at("out/ckpt")).unwrap(), b"", "another file has got the bytes");
}

#[test]
fn a_log_that_takes_nothing_makes_programs_wait_for_the_file_system() {
    let Some(disk) = SlowFs::start() else { return };
    let Some(slow) = SlowFs::start() else { return };
    let dir = slow.at("out");
    std::fs::create_dir(&dir).unwrap();
    let with_log = |log: Option<PathBuf>| Agent::start(Setup { log, ..Setup::new(&slow.mount()) });
    let script = "import os; open(os.path.join(os.environ['DIR'], 'ckpt'), 'wb').write(b'a' * 5000000)";
    for log in [Some(disk.at("log")), None] {
        disk.fault("none");
        let agent = with_log(log);
        disk.fault("write=ENOSPC");
        slow.fault("none");
        well(python(&agent, &dir, &TO_DISK, script).output().unwrap());
        assert_eq!(std::fs::read(slow.behind("out/ckpt")).unwrap().len(), 5_000_000);
        std::fs::remove_file(slow.at("out/ckpt")).unwrap();
        slow.fault("write=EIO");
        let script = "
import os
f = open(os.path.join(os.environ['DIR'], 'ckpt'), 'wb')
f.write(b'a' * 5000000); f.flush()
try: os.fsync(f.fileno())
except OSError as e: print(os.strerror(e.errno))";
        let output = python(&agent, &dir, &TO_DISK, script).output().unwrap();
        assert!(text(&output.stdout).contains("Input/output error"), "{}", text(&output.stdout));
        assert_eq!(dirty(&agent).len(), 1, "it is lost");
        slow.fault("none");
        sync(&agent);
        std::fs::remove_file(slow.at("out/ckpt")).unwrap();
    }
}

#[test]
fn two_agents_do_not_share_a_log() {
    let Some(node) = Node::start() else { return };
    let path = node.log.path().join("log");
    let why = refused(&path, node.agent.dir());
    assert!(why.contains("another agent uses it"), "{why}");
}

/// What an agent prints that cannot start with this log.
fn refused(log: &Path, beside: &Path) -> String {
    let config = beside.join("second.toml");
    let dir = beside.join("second");
    let lines = format!(
        "[agent]\nstate_dir = {dir:?}\n[tier]\ncapacity = \"64MiB\"\nbacking = \"directory\"\ndirectory = {:?}\nlog = {log:?}\n[[mount]]\nlabel = \"pfs\"\nroot = {beside:?}\n",
        dir.join("tier"),
    );
    std::fs::write(&config, lines).unwrap();
    let mut command = std::process::Command::new(crate::common::FOREBAY);
    let output = command.args(["up", "--foreground", "--config"]).arg(&config).output().unwrap();
    assert!(!output.status.success());
    text(&output.stderr)
}
