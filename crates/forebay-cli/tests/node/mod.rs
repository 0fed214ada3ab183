//! One node for a test: a directory that stands for the PFS, and a real agent before it in a
//! process of its own.

#![allow(dead_code, reason = "every test program uses its own part of this")]

use forebay_client::{Client, ClientConfig};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An agent that does not answer within this time is broken, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test.
pub const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// A PFS directory and an agent.
pub struct Node {
    dir: tempfile::TempDir,
    agent: Option<Child>,
    arguments: Vec<String>,
}

impl Node {
    /// Starts an agent with these further arguments of `forebay up`.
    pub fn start(arguments: &[&str]) -> Node {
        let dir =
            tempfile::Builder::new().prefix("forebay-test-").tempdir().expect("a directory for the test");
        std::fs::create_dir(dir.path().join("pfs")).expect("a directory for the PFS");
        let arguments = arguments.iter().map(|a| (*a).to_owned()).collect();
        let mut node = Node { dir, agent: None, arguments };
        node.start_agent();
        node
    }

    /// The PFS.
    pub fn pfs(&self) -> PathBuf {
        self.dir.path().join("pfs")
    }

    /// A directory for anything else.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// The agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.state_dir().join("agent.sock")
    }

    /// A new client of this node's agent.
    pub fn client(&self) -> Client {
        let socket = Some(self.socket());
        Client::new(ClientConfig { socket, quiet: true, deadline: PATIENCE, ..ClientConfig::default() })
    }

    /// A counter or sum of the agent's status.
    pub fn counter(&self, name: &str) -> u64 {
        let status = self.client().admin().status().expect("the agent's status");
        let found = status.counters.iter().find(|(n, _)| n == name);
        found.unwrap_or_else(|| panic!("no counter {name} in {:?}", status.counters)).1
    }

    fn start_agent(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.path().join("log"));
        let log = log.expect("a log for the agent");
        let mut command = Command::new(FOREBAY);
        command.args(["up", "--foreground", "--pfs"]).arg(format!("pfs={}", self.pfs().display()));
        command.arg("--state-dir").arg(self.state_dir()).args(&self.arguments);
        command.env_remove("FOREBAY_SOCKET").env_remove("FOREBAY_CONFIG");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut agent = command.spawn().expect("the agent starts");
        let agent_pid = agent.id();
        let deadline = Instant::now() + PATIENCE;
        // Until its mount is measured nothing is cached.
        let is_ready = |s: forebay_wire::Status| s.pid == agent_pid && s.mounts.iter().all(|m| m.cached);
        while !self.client().admin().status().is_ok_and(is_ready) {
            let ended = agent.try_wait().expect("the agent can be waited for");
            assert!(ended.is_none() && Instant::now() < deadline, "no agent ({ended:?}): {}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        self.agent = Some(agent);
    }

    /// What the agent has said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The end of it.
    pub fn last_log(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// Kills the agent with SIGKILL and starts another, which finds what the first has left.
    pub fn kill_and_restart(&mut self) {
        self.kill();
        self.start_agent();
    }

    fn kill(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            // Errors only if it has ended by itself, which the wait shows as well.
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        // The tier outlives its agent by design; here it must not.
        let mut command = Command::new(FOREBAY);
        command
            .args(["down", "--drop", "--state-dir"])
            .arg(self.state_dir())
            .arg("--socket")
            .arg(self.socket());
        let out = command.stdin(Stdio::null()).output();
        if !out.as_ref().is_ok_and(|o| o.status.success()) && !std::thread::panicking() {
            panic!("the tier could not be dropped: {out:?}");
        }
    }
}
