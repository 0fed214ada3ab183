//! The tier gives its memory to a program beside it, and takes it back: a real agent and a real
//! program in a control group whose limit they share.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod node;

use forebay_client::{Client, ClientConfig};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

const LIMIT: u64 = 512 * MIB;
const CAPACITY: u64 = 320 * MIB;
const FILE: u64 = 240 * MIB;

/// Beside the file this is more than the group may have.
const HOG: u64 = 320 * MIB;

/// Tells the program of this test to be the one that takes memory.
const HOG_VARIABLE: &str = "FOREBAY_TEST_HOG_BYTES";

/// A control group with a limit of its own; removed at the end.
struct Group {
    directory: PathBuf,
    is_v1: bool,
}

impl Group {
    /// `None` where no memory controller can be used.
    fn new(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let at = |line: &str| line.split(' ').nth(4).map(PathBuf::from);
        let v1 = mounts.lines().find(|l| l.contains(" - cgroup ") && l.ends_with("memory")).and_then(at);
        let v2 = || mounts.lines().find(|l| l.contains(" - cgroup2 ")).and_then(at);
        let is_v1 = v1.is_some();
        let directory = v1.or_else(v2)?.join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::create_dir(&directory).ok()?;
        let group = Group { directory, is_v1 };
        std::fs::write(group.file("memory.limit_in_bytes", "memory.max"), LIMIT.to_string()).ok()?;
        Some(group)
    }

    fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.directory.join(if self.is_v1 { v1 } else { v2 })
    }

    /// A command that runs in the group.
    fn run(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", self.directory.display());
        command.args(["-c", &script]).arg(program);
        command
    }

    /// How often the kernel has killed somebody in the group.
    fn kills(&self) -> u64 {
        let text = std::fs::read_to_string(self.file("memory.oom_control", "memory.events")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::remove_dir(&self.directory).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Takes memory step by step when the test calls it as a program of its own, and keeps it until its
/// input ends.
#[test]
fn hog() {
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

fn text(i: u64) -> [u8; 8] {
    (i ^ 0x5bd1_e995_0000_0000).to_le_bytes()
}

fn write_file(path: &Path) {
    let mut out = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    (0..FILE / 8).for_each(|i| out.write_all(&text(i)).unwrap());
    out.into_inner().unwrap().sync_all().unwrap();
}

/// An agent in the group with all of a file in its tier.
struct Tier {
    agent: Running,
    client: Client,
    file: PathBuf,
    state: PathBuf,
    dir: tempfile::TempDir,
}

impl Tier {
    fn start(group: &Group, policy: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (pfs, state) = (dir.path().join("pfs"), dir.path().join("state"));
        std::fs::create_dir(&pfs).unwrap();
        let file = pfs.join("data");
        write_file(&file);
        let config = dir.path().join("forebay.toml");
        let decisions = dir.path().join("decisions");
        let text = format!("[memory]\npolicy = {policy:?}\ndecision_log = {decisions:?}\n");
        std::fs::write(&config, text).unwrap();
        let mut up = group.run(Path::new(node::FOREBAY));
        up.args(["up", "--foreground", "--capacity", &CAPACITY.to_string(), "--config"]).arg(&config);
        up.arg("--pfs").arg(&pfs).arg("--state-dir").arg(&state).env_remove("FOREBAY_SOCKET");
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let agent = Running(up.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
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

    fn capacity(&self) -> u64 {
        self.client.admin().memory().unwrap().capacity_bytes
    }

    /// Reads the file whole, by the library.
    fn read(&self) {
        let file = self.client.open(&self.file).unwrap();
        let mut buffer = vec![0; 1 << 20];
        for mib in 0..FILE >> 20 {
            assert_eq!(file.read_at(&mut buffer, mib << 20).unwrap(), buffer.len());
            assert!(buffer.chunks(8).zip(mib << 17..).all(|(found, i)| found == text(i)), "MiB {mib}");
        }
    }

    fn fill(&self) {
        wait_for("all of the file is in the tier", || {
            self.read();
            (self.client.open(&self.file).unwrap().resident_bytes() == FILE).then_some(())
        });
    }
}

impl Tier {
    /// Ends the agent, and has what its memory controller decided decided once more; lines of the
    /// log with a new capacity.
    fn replay(mut self) -> usize {
        self.end();
        let of_host = std::fs::read_dir(self.dir.path().join("decisions")).unwrap().next().unwrap();
        let log = of_host.unwrap().path().join("memory-000001.log");
        let replay = Command::new(node::FOREBAY).args(["--json", "replay"]).arg(&log).output().unwrap();
        let said = String::from_utf8_lossy(&replay.stdout);
        assert!(replay.status.success() && said.contains("\"same\": true"), "{replay:?}");
        let text = std::fs::read_to_string(log).unwrap();
        text.lines().filter(|line| line.contains("\"do\":\"resize\"")).count()
    }

    fn end(&mut self) {
        let mut down = Command::new(node::FOREBAY);
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

/// A program that takes memory in the group; and whether it got all of it.
fn start_hog(group: &Group) -> (Running, bool) {
    let mut hog = group.run(&std::env::current_exe().unwrap());
    hog.args(["--exact", "hog", "--nocapture"]).env(HOG_VARIABLE, HOG.to_string());
    let mut hog = Running(hog.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(hog.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let is_full = said.any(|line| line.contains("full"));
    (hog, is_full)
}

#[test]
fn the_tier_gives_its_memory_to_a_program_beside_it_and_takes_it_back() {
    let Some(group) = Group::new("forebay") else {
        return eprintln!("left out: no memory controller can be used here");
    };
    let tier = Tier::start(&group, "forebay");
    let (mut hog, is_full) = start_hog(&group);
    assert!(is_full, "the program beside the tier was ended: {} kills", group.kills());
    let status = tier.client.admin().memory().unwrap();
    assert!(status.capacity_bytes < LIMIT - HOG, "{status:?}");
    tier.read();
    assert_eq!(group.kills(), 0);
    let counters = tier.client.admin().status().unwrap().counters;
    let given_back = counters.iter().find(|(name, _)| name == "given_back_bytes").unwrap().1;
    assert!(given_back > FILE - (LIMIT - HOG), "{given_back} bytes");

    drop(hog.0.stdin.take());
    assert!(hog.0.wait().unwrap().success());
    wait_for("the tier has its memory again", || (tier.capacity() == CAPACITY).then_some(()));
    tier.fill();
    let resized = tier.replay();
    assert!(resized >= 2, "there and back: {resized}");
}

/// What the test above prevents does happen.
#[test]
fn beside_a_tier_that_keeps_its_memory_the_kernel_ends_a_process() {
    let swap = std::fs::read_to_string("/proc/swaps").unwrap().lines().count() > 1;
    let (Some(group), false) = (Group::new("static"), swap) else {
        return eprintln!("left out: no memory controller can be used here, or there is swap space");
    };
    let tier = Tier::start(&group, "static");
    let (_hog, is_full) = start_hog(&group);
    assert!(group.kills() > 0, "all of the memory was there: {is_full}");
    drop(tier);
}

/// A limit of a control group that is none, and plenty of memory: nothing to do.
#[test]
fn an_agent_that_nobody_presses_keeps_its_capacity() {
    let dir = tempfile::tempdir().unwrap();
    let (pfs, state) = (dir.path().join("pfs"), dir.path().join("state"));
    std::fs::create_dir(&pfs).unwrap();
    let mut up = Command::new(node::FOREBAY);
    up.args(["up", "--capacity", "37MiB", "--pfs"]).arg(&pfs).arg("--state-dir").arg(&state);
    assert!(up.env_remove("FOREBAY_SOCKET").output().unwrap().status.success());
    let config = ClientConfig {
        socket: Some(state.join("agent.sock")),
        quiet: true,
        deadline: PATIENCE,
        ..ClientConfig::default()
    };
    let client = Client::new(config);
    let seen = || client.admin().memory().unwrap();
    wait_for("the controller has looked for a second", || (seen().points.len() > 1).then_some(()));
    let (status, counters) = (seen(), client.admin().status().unwrap().counters);
    let mut down = Command::new(node::FOREBAY);
    down.arg("--socket").arg(state.join("agent.sock")).args(["down", "--drop", "--state-dir"]).arg(&state);
    assert!(down.output().unwrap().status.success());
    let node = &status.places[0];
    if node.used_bytes as f64 > 0.9 * node.total_bytes as f64 {
        return eprintln!("left out: this machine's memory is in use");
    }
    assert_eq!(status.capacity_bytes, 37 << 20, "{status:?}");
    assert!(status.places.iter().all(|place| place.total_bytes <= node.total_bytes), "{status:?}");
    let changes = counters.iter().find(|(name, _)| name == "capacity_changes_total").unwrap().1;
    assert_eq!(changes, 0, "{status:?}");
}
