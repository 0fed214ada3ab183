//! What tests of all kinds start and wait for: the program, a process that ends with its test, an
//! agent or a coordinator with a configuration of its own, and one node.

#![allow(dead_code, reason = "every test program uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "what is unwrapped is what a test asserts")]

use forebay_client::{Client, ClientConfig};
use forebay_wire::Status;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// Long enough for any machine; a test that comes here has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const MIB: u64 = 1 << 20;

/// Waits until `done` says so.
#[track_caller]
pub fn wait_for(what: &str, done: impl FnMut() -> bool) {
    wait_or(what, done, String::new);
}

/// As [`wait_for`]; `log` shows why it may have been in vain.
#[track_caller]
pub fn wait_or(what: &str, mut done: impl FnMut() -> bool, log: impl FnOnce() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > deadline {
            panic!("waited {PATIENCE:?} in vain until {what}\n{}", log());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What the command prints; it must not fail.
#[track_caller]
pub fn succeeded(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

/// The program without the environment's variables about an agent, and without input.
pub fn forebay(args: &[&str]) -> Command {
    let mut command = Command::new(FOREBAY);
    command.args(args).env_remove("FOREBAY_SOCKET").env_remove("FOREBAY_CONFIG").stdin(Stdio::null());
    command
}

pub fn counter(status: &Status, name: &str) -> u64 {
    status.counters.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

pub fn send_signal(pid: u32, signal: i32) {
    // SAFETY: a call without pointers.
    let done = unsafe { libc::kill(pid.cast_signed(), signal) };
    assert_eq!(done, 0, "signal {signal} to {pid}: {}", std::io::Error::last_os_error());
}

/// The state of a process, as `ps` shows it; a space if it is gone.
pub fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or(' ')
}

/// A process that ends with the test.
pub struct Process(pub Child);

impl Process {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn send(&self, signal: i32) {
        send_signal(self.pid(), signal);
    }

    /// Stops it, as a machine that thrashes would; it is stopped when this returns.
    pub fn stop(&self) {
        self.send(libc::SIGSTOP);
        wait_for("it stands still", || state(self.pid()) == 'T');
    }

    pub fn go_on(&self) {
        assert_eq!(state(self.pid()), 'T', "it has not stood still");
        self.send(libc::SIGCONT);
    }

    pub fn kill_9(&mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "it was dead already");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits until it has ended by itself.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the process ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }

    /// Ends it by SIGTERM; it must succeed.
    pub fn end(&mut self) {
        self.send(libc::SIGTERM);
        assert!(self.wait().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors only if it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An agent or a coordinator by itself, and its directory.
pub struct Daemon {
    dir: PathBuf,
    process: Process,
}

impl Daemon {
    /// Starts `program`, which takes its arguments, with this configuration. An agent has its state
    /// in `dir/state`; its tier has to be a directory that goes with the test.
    pub fn start(mut program: Command, role: &str, dir: &Path, config: &str) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("config.toml"), config).unwrap();
        program.args([role, "--config"]).arg(dir.join("config.toml"));
        program.stdin(Stdio::null()).stdout(File::create(dir.join("out")).unwrap());
        program.stderr(File::create(dir.join("log")).unwrap());
        Daemon { dir: dir.to_owned(), process: Process(program.spawn().unwrap()) }
    }

    /// The agent of a node over TLS. In `at` are its state, the PFS, and the certificates, of which
    /// it has those of `tls`; `cluster` is more of its table.
    pub fn agent_of(program: Command, at: &Path, node: &str, tls: &str, cluster: &str) -> Self {
        let dir = at.join(format!("agent-{node}"));
        let config = format!(
            "[agent]\nstate_dir = {:?}\n[tier]\ncapacity = \"96MiB\"\nbacking = \"directory\"\ndirectory = {:?}\n\
             [cluster]\nnode = \"{node}\"\ntls = {:?}\n{cluster}[[mount]]\nlabel = \"pfs\"\nroot = {:?}\n\
             page_size = \"64KiB\"\nextent_size = \"1MiB\"\nstamp_granularity_ms = 0\n",
            dir.join("state"),
            dir.join("tier"),
            at.join("cluster").join(tls),
            at.join("pfs"),
        );
        Self::start(program, "agent", &dir, &config)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("state/agent.sock")
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub fn client(&self) -> Client {
        client_of(&self.socket())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    pub fn status(&self) -> Option<Status> {
        self.client().admin().status().ok()
    }

    pub fn counter(&self, name: &str) -> u64 {
        counter(&self.status().unwrap(), name)
    }

    /// Members of the cluster that it knows.
    pub fn members(&self) -> usize {
        self.status().map_or(0, |status| status.cluster.view.nodes.len())
    }

    /// Waits until `done` says so of it.
    #[track_caller]
    pub fn wait_for(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        wait_or(what, || done(self), || self.log());
    }

    /// The address in the line with this text that it has printed or logged.
    pub fn address_after(&self, words: &str) -> String {
        let read = |name: &str| std::fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        let mut found = None;
        self.wait_for(words, |_| {
            found = address_in(&(read("out") + &read("log")), words);
            found.is_some()
        });
        found.unwrap()
    }
}

/// The address on loopback in the line with this text, once the line is whole.
pub fn address_in(log: &str, words: &str) -> Option<String> {
    let mut lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let address = lines.find(|line| line.contains(words))?.split("127.0.0.1:").nth(1)?;
    let port: String = address.chars().take_while(char::is_ascii_digit).collect();
    Some(format!("127.0.0.1:{port}"))
}

fn client_of(socket: &Path) -> Client {
    let socket = Some(socket.to_owned());
    Client::new(ClientConfig { socket, quiet: true, deadline: PATIENCE, ..ClientConfig::default() })
}

/// Splitmix64 (Steele, Lea and Flood 2014): the same numbers everywhere, for ever.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// A PFS directory and an agent.
pub struct Node {
    dir: tempfile::TempDir,
    agent: Option<Process>,
    arguments: Vec<String>,
}

impl Node {
    /// Starts an agent with these further arguments of `forebay up`.
    pub fn start(arguments: &[&str]) -> Node {
        let dir = tempfile::Builder::new().prefix("forebay-test-").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pfs")).unwrap();
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

    /// The program as a client of the agent.
    pub fn forebay(&self, args: &[&str]) -> Command {
        let mut command = forebay(args);
        command.env("FOREBAY_SOCKET", self.socket());
        command
    }

    /// A new client of this node's agent.
    pub fn client(&self) -> Client {
        client_of(&self.socket())
    }

    /// A counter of the agent's status.
    pub fn counter(&self, name: &str) -> u64 {
        counter(&self.client().admin().status().unwrap(), name)
    }

    fn start_agent(&mut self) {
        let log = File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let mut command = forebay(&["up", "--foreground", "--pfs"]);
        command.arg(format!("pfs={}", self.pfs().display()));
        command.arg("--state-dir").arg(self.state_dir()).args(&self.arguments);
        let mut agent = Process(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let pid = agent.0.id();
        let serves = || {
            assert_eq!(agent.0.try_wait().unwrap(), None, "{}", self.log());
            // Until its mount is measured nothing is cached.
            let status = self.client().admin().status();
            status.is_ok_and(|s| s.pid == pid && s.mounts.iter().all(|m| m.cached))
        };
        wait_or("the agent serves", serves, || self.log());
        self.agent = Some(agent);
    }

    /// What the agent has logged.
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
        self.agent = None;
        self.start_agent();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.agent = None;
        // The tier survives its agent by design; here it must not.
        let mut down = self.forebay(&["down", "--drop", "--state-dir"]);
        let out = down.arg(self.state_dir()).output();
        if !out.as_ref().is_ok_and(|o| o.status.success()) && !std::thread::panicking() {
            panic!("the tier could not be dropped: {out:?}");
        }
    }
}
