//! An agent and other programs, in a control group.

use crate::kit::{self, Process};
pub use crate::kit::{MIB, PATIENCE};
use forebay_client::{Client, ClientConfig};
pub use forebay_lab::memory_group::MemoryGroup;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub const LIMIT: u64 = 512 * MIB;
pub const CAPACITY: u64 = 320 * MIB;
pub const FILE: u64 = 240 * MIB;

/// More, together with the file, than the group may have.
pub const HOG: u64 = 320 * MIB;

/// Makes the program of this test the one that takes memory.
pub const HOG_VARIABLE: &str = "FOREBAY_TEST_HOG_BYTES";

/// A control group with a limit of its own; `None` where no memory controller can be used.
pub fn group(name: &str) -> Option<MemoryGroup> {
    let group = MemoryGroup::new(name, LIMIT);
    group.inspect_err(|e| eprintln!("left out: no memory controller can be used here: {e}")).ok()
}

pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let mut value = None;
    kit::wait_for(what, || {
        value = found();
        value.is_some()
    });
    value.unwrap()
}

fn text(i: u64) -> [u8; 8] {
    (i ^ 0x5bd1_e995_0000_0000).to_le_bytes()
}

/// Whether this is what the file has at `offset`, a multiple of 8.
pub fn is_right(bytes: &[u8], offset: u64) -> bool {
    bytes.chunks(8).zip(offset / 8..).all(|(found, i)| found == text(i))
}

fn write_file(path: &Path) {
    let mut out = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    (0..FILE / 8).for_each(|i| out.write_all(&text(i)).unwrap());
    out.into_inner().unwrap().sync_all().unwrap();
}

/// An agent in the group with all of a file in its tier.
pub struct Tier {
    pub agent: Process,
    pub client: Client,
    pub file: PathBuf,
    pub state: PathBuf,
    dir: tempfile::TempDir,
}

impl Tier {
    pub fn start(group: &MemoryGroup, policy: &str) -> Self {
        Tier::of(group.run(Path::new(kit::FOREBAY)), policy)
    }

    /// `up` runs the program, and lacks its arguments.
    pub fn of(up: Command, policy: &str) -> Self {
        Tier::with(up, policy, "")
    }

    /// The same with more keys of the section `[memory]`.
    pub fn with(mut up: Command, policy: &str, keys: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (pfs, state) = (dir.path().join("pfs"), dir.path().join("state"));
        std::fs::create_dir(&pfs).unwrap();
        let file = pfs.join("data");
        write_file(&file);
        let config = dir.path().join("forebay.toml");
        let decisions = dir.path().join("decisions");
        let text = format!("[agent]\ndecision_log = {decisions:?}\n[memory]\npolicy = {policy:?}\n{keys}\n");
        std::fs::write(&config, text).unwrap();
        up.args(["up", "--foreground", "--capacity", &CAPACITY.to_string(), "--config"]).arg(&config);
        up.env_remove("FOREBAY_CONFIG");
        up.arg("--pfs").arg(&pfs).arg("--state-dir").arg(&state).env_remove("FOREBAY_SOCKET");
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let agent = Process(up.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let socket = Some(state.join("agent.sock"));
        let client = ClientConfig { socket, quiet: true, deadline: PATIENCE, ..ClientConfig::default() };
        let tier = Tier { agent, client: Client::new(client), file, state, dir };
        wait_for("the agent serves", || {
            let status = tier.client.admin().status().ok()?;
            status.mounts.iter().all(|mount| mount.cached).then_some(())
        });
        tier.fill();
        assert_eq!(tier.capacity(), CAPACITY);
        tier
    }

    pub fn capacity(&self) -> u64 {
        self.client.admin().memory().unwrap().capacity_bytes
    }

    /// Reads the file whole, through the library.
    pub fn read(&self) {
        let file = self.client.open(&self.file).unwrap();
        let mut buffer = vec![0; 1 << 20];
        for mib in 0..FILE >> 20 {
            assert_eq!(file.read_at(&mut buffer, mib << 20).unwrap(), buffer.len());
            assert!(is_right(&buffer, mib << 20), "MiB {mib}");
        }
    }

    pub fn fill(&self) {
        wait_for("all of the file is in the tier", || {
            self.read();
            (self.client.open(&self.file).unwrap().resident_bytes() == FILE).then_some(())
        });
    }

    /// A counter of the agent.
    pub fn counter(&self, name: &str) -> u64 {
        kit::counter(&self.client.admin().status().unwrap(), name)
    }

    /// What a command of the program prints about the agent; it may fail.
    pub fn says(&self, command: &str) -> String {
        let mut program = Command::new(kit::FOREBAY);
        program.arg("--socket").arg(self.state.join("agent.sock")).arg(command);
        String::from_utf8_lossy(&program.output().unwrap().stdout).into_owned()
    }

    /// Ends the agent, and replays what its memory controller decided; returns the number of lines
    /// of the log with a new capacity.
    pub fn replay(mut self) -> usize {
        self.end();
        let of_host = std::fs::read_dir(self.dir.path().join("decisions")).unwrap().next().unwrap();
        let log = of_host.unwrap().path().join("memory-000001.log");
        let replay = Command::new(kit::FOREBAY).args(["--json", "replay"]).arg(&log).output().unwrap();
        let said = String::from_utf8_lossy(&replay.stdout);
        assert!(replay.status.success() && said.contains("\"same\": true"), "{replay:?}");
        let text = std::fs::read_to_string(log).unwrap();
        text.lines().filter(|line| line.contains("\"do\":\"resize\"")).count()
    }

    fn end(&mut self) {
        let mut down = Command::new(kit::FOREBAY);
        down.arg("--socket").arg(self.state.join("agent.sock")).args(["down", "--drop", "--state-dir"]);
        let _ = down.arg(&self.state).output();
        let _ = self.agent.0.wait();
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        self.end();
    }
}

/// The body of a program that takes memory step by step, and keeps it until its input ends; nothing
/// if the test's program is not started as such.
pub fn be_hog() {
    let Ok(bytes) = std::env::var(HOG_VARIABLE) else { return };
    let bytes: usize = bytes.parse().unwrap();
    let mut held = vec![0u8; bytes];
    for step in held.chunks_mut(4 << 20) {
        step.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("full");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
    // Nobody reads what the test program would say after this.
    std::process::exit(i32::from(!held.iter().step_by(4096).all(|byte| *byte == 1)));
}

/// Starts a program that takes `bytes` of memory in the group; also returns whether it got all of
/// them.
pub fn start_hog(group: &MemoryGroup, bytes: u64) -> (Process, bool) {
    let mut hog = group.run(&std::env::current_exe().unwrap());
    hog.args(["--exact", "hog", "--nocapture"]).env(HOG_VARIABLE, bytes.to_string());
    let mut hog = Process(hog.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(hog.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let is_full = said.any(|line| line.contains("full"));
    (hog, is_full)
}

/// Has it give all its memory back and exit with success.
pub fn end_hog(mut hog: Process) {
    drop(hog.0.stdin.take());
    let status = hog.0.wait().unwrap();
    assert!(status.success(), "the program that takes memory: {status}");
}
