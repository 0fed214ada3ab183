//! Agents, slow file systems and client processes for tests, and bytes that show their origin.

pub use crate::kit::{FOREBAY, MIB, PATIENCE, Process, counter, send_signal, state, text, wait_for};
use forebay_client::{Client, ClientConfig};
use forebay_lab::fixture::SlowFsProcess;
use forebay_lab::slowfs::Stamps;
use forebay_wire::Status;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// A user other than the one who runs the tests.
pub const OTHER_UID: u32 = 61_001;

/// Smallest page there is: many pages in small files.
pub const PAGE: u64 = 64 << 10;

/// What an agent keeps of its budget for itself, the buffers of its four fetch threads included.
pub const BASE: u64 = 24 * MIB;

/// A directory that other users can enter.
pub fn open_dir_in(parent: &str) -> TempDir {
    let dir = tempfile::tempdir_in(parent).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A plain directory in the part of a PFS.
pub fn plain_pfs() -> TempDir {
    open_dir_in("/tmp")
}

// Bytes: byte `i` of content `seed` depends on both, so that a read shows its version and its
// place.

fn word(seed: u64, index: u64) -> [u8; 8] {
    let mut z =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// The bytes of content `seed` at `offset`.
pub fn content(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let first = offset / 8;
    let last = (offset + len as u64).div_ceil(8);
    let all: Vec<u8> = (first..last).flat_map(|i| word(seed, i)).collect();
    let skip = (offset % 8) as usize;
    all[skip..skip + len].to_vec()
}

/// Fails unless `bytes` are those of content `seed` at `offset`.
#[track_caller]
pub fn assert_content(bytes: &[u8], seed: u64, offset: u64) {
    let wanted = content(seed, offset, bytes.len());
    if let Some(at) = bytes.iter().zip(&wanted).position(|(a, b)| a != b) {
        panic!(
            "byte {} is not of content {seed}: {:?}...",
            offset + at as u64,
            &bytes[at..bytes.len().min(at + 8)]
        );
    }
}

/// Waits until the file's time stamps can be trusted.
pub fn grow_old(path: &Path) {
    wait_for("the file is no longer racily clean", || {
        let meta = std::fs::symlink_metadata(path).unwrap();
        let changed = Duration::new(meta.ctime() as u64, meta.ctime_nsec() as u32);
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap() > changed + Duration::from_millis(40)
    });
}

/// Writes content `seed` to a file and lets it grow old.
pub fn make_file(path: &Path, seed: u64, len: u64) {
    std::fs::write(path, content(seed, 0, len as usize)).unwrap();
    grow_old(path);
}

/// Files of this many bytes, which grow old together; file `i` has content `i`.
pub fn make_files(count: u64, bytes: u64, at: impl Fn(u64) -> PathBuf) -> Vec<PathBuf> {
    let paths: Vec<_> = (0..count).map(at).collect();
    for (seed, path) in (0..).zip(&paths) {
        std::fs::write(path, content(seed, 0, bytes as usize)).unwrap();
    }
    grow_old(&paths[paths.len() - 1]);
    paths
}

/// A directory as the PFS, and an agent.
pub fn pfs_and_agent() -> (TempDir, Agent) {
    let pfs = plain_pfs();
    let agent = Agent::on(pfs.path());
    (pfs, agent)
}

/// A directory as the PFS with a file of content `seed`.
pub fn pfs_with(name: &str, seed: u64, len: u64) -> (TempDir, PathBuf) {
    let pfs = plain_pfs();
    let path = pfs.path().join(name);
    make_file(&path, seed, len);
    (pfs, path)
}

/// The same with an agent, which is younger than the file.
pub fn one_file(seed: u64, len: u64) -> (TempDir, PathBuf, Agent) {
    let (pfs, path) = pfs_with("f", seed, len);
    let agent = Agent::on(pfs.path());
    (pfs, path, agent)
}

/// Reads a whole open file.
pub fn read_all(file: &forebay_client::File) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.size()? as usize];
    let n = file.read_at(&mut bytes, 0)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// How an agent is set up.
pub struct Setup {
    pub capacity: u64,
    pub mounts: Vec<(String, PathBuf)>,
    pub page: u64,
    pub read_ahead: u64,
    pub backing: &'static str,
    /// Another directory on a tmpfs, for the directory backing.
    pub directory: Option<PathBuf>,
    pub uid: Option<u32>,
    /// `tier.log`.
    pub log: Option<PathBuf>,
    /// `mount.settle_ms`: 0 for tests that are not about it.
    pub settle_ms: u64,
    /// `mount.map_rest_ms`: 0 for tests that are not about it.
    pub map_rest_ms: u64,
    /// `tier.checkpoint_gap_ms`.
    pub checkpoint_gap_ms: u64,
    /// `mount.stamps`.
    pub stamps: &'static str,
    /// `mount.probe_dir`.
    pub probe_dir: Option<PathBuf>,
    /// More lines of the table `tier`.
    pub tier: String,
    pub more: String,
}

impl Setup {
    pub fn new(pfs: &Path) -> Self {
        Setup {
            capacity: 96 * MIB,
            mounts: vec![("pfs".into(), pfs.to_owned())],
            page: PAGE,
            read_ahead: 0,
            backing: "directory",
            directory: None,
            uid: None,
            log: None,
            settle_ms: 0,
            map_rest_ms: 0,
            checkpoint_gap_ms: 5000,
            stamps: "measure",
            probe_dir: None,
            tier: String::new(),
            more: String::new(),
        }
    }

    pub fn capacity(self, capacity: u64) -> Self {
        Setup { capacity, ..self }
    }

    fn toml(&self, dir: &Path) -> String {
        let mut text = format!(
            "[agent]\nstate_dir = {:?}\n{}[tier]\ncapacity = \"{}\"\nbacking = \"{}\"\ncheckpoint_gap_ms = {}\n",
            dir.join("state"),
            self.more,
            self.capacity,
            self.backing,
            self.checkpoint_gap_ms,
        );
        if self.backing == "directory" {
            let directory = self.directory.clone().unwrap_or_else(|| dir.join("tier"));
            text += &format!("directory = {directory:?}\n");
        }
        if let Some(log) = &self.log {
            text += &format!("log = {log:?}\n");
        }
        text += &self.tier;
        for (label, root) in &self.mounts {
            text += &format!(
                "[[mount]]\nlabel = {label:?}\nroot = {root:?}\npage_size = \"{}\"\nread_ahead = \"{}\"\nfetch_threads = 4\nsettle_ms = {}\nmap_rest_ms = {}\nstamps = {:?}\n",
                self.page, self.read_ahead, self.settle_ms, self.map_rest_ms, self.stamps
            );
            if let Some(dir) = &self.probe_dir {
                text += &format!("probe_dir = {dir:?}\n");
            }
        }
        text
    }
}

/// An agent in a process of its own. Dropping it kills it and removes what it had.
pub struct Agent {
    child: Child,
    dir: TempDir,
    setup: Setup,
    program: PathBuf,
}

/// An agent on a busy machine answers before it knows whether time stamps can be trusted, and
/// caches nothing until then. On a PFS that hangs or keeps whole seconds that takes longer; tests
/// of those wait for what they need.
const MEASURED: Duration = Duration::from_secs(1);

fn is_being_measured(mount: &forebay_wire::MountStatus) -> bool {
    mount.stamps.contains("being measured")
}

impl Agent {
    pub fn start(setup: Setup) -> Self {
        let dir = open_dir_in("/dev/shm");
        let program = match setup.uid {
            None => PathBuf::from(FOREBAY),
            Some(uid) => {
                // The build directory need not be open to others.
                let copy = dir.path().join("forebay");
                std::fs::copy(FOREBAY, &copy).unwrap();
                std::os::unix::fs::chown(dir.path(), Some(uid), Some(uid)).unwrap();
                copy
            }
        };
        std::fs::write(dir.path().join("config.toml"), setup.toml(dir.path())).unwrap();
        let child = spawn_agent(&program, dir.path(), setup.uid);
        let mut agent = Agent { child, dir, setup, program };
        agent.wait_ready();
        agent
    }

    pub fn on(pfs: &Path) -> Self {
        Self::start(Setup::new(pfs))
    }

    fn wait_ready(&mut self) {
        let (deadline, measured) = (Instant::now() + PATIENCE, Instant::now() + MEASURED);
        loop {
            if let Some(status) = self.client().admin().status().ok().filter(|s| s.pid == self.child.id())
                && (Instant::now() > measured || !status.mounts.iter().any(is_being_measured))
            {
                return;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the agent ended ({status}):\n{}", self.log());
            }
            assert!(Instant::now() < deadline, "the agent is not ready:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub fn socket(&self) -> PathBuf {
        self.state_dir().join("agent.sock")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Kills it as the kernel's out-of-memory killer would; fails if it was not alive.
    pub fn kill_9(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "the agent was dead already:\n{}", self.log());
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    /// False once it has ended, even if threads of it are still held in the kernel.
    pub fn is_running(&self) -> bool {
        ![' ', 'Z'].contains(&state(self.pid()))
    }

    /// Starts another in its place, though the old process may not be gone to its last thread.
    /// Returns the old one.
    pub fn replace(&mut self) -> Child {
        let next = spawn_agent(&self.program, self.dir.path(), self.setup.uid);
        let old = std::mem::replace(&mut self.child, next);
        self.wait_ready();
        old
    }

    /// Has it read another setup, of which it takes what a running agent can.
    pub fn reload(&mut self, setup: Setup) {
        std::fs::write(self.dir.path().join("config.toml"), setup.toml(self.dir.path())).unwrap();
        let reloads = |log: &str| log.matches("the configuration is read again").count();
        let before = reloads(&self.log());
        send_signal(self.pid(), libc::SIGHUP);
        wait_for("the configuration is read again", || reloads(&self.log()) > before);
        self.setup = setup;
    }

    /// Starts it again with the same setup.
    pub fn restart(&mut self) {
        self.child.wait().unwrap();
        self.child = spawn_agent(&self.program, self.dir.path(), self.setup.uid);
        self.wait_ready();
    }

    /// A client of its own; not the process's.
    pub fn client(&self) -> Client {
        self.client_with(Duration::from_secs(20))
    }

    pub fn client_with(&self, deadline: Duration) -> Client {
        let trusted_uids = self.setup.uid.into_iter().collect();
        Client::new(ClientConfig {
            socket: Some(self.socket()),
            deadline,
            trusted_uids,
            quiet: true,
            ..ClientConfig::default()
        })
    }

    pub fn status(&self) -> Status {
        self.client().admin().status().unwrap_or_else(|e| panic!("no status: {e}\n{}", self.log()))
    }

    pub fn counter(&self, name: &str) -> u64 {
        counter(&self.status(), name)
    }

    pub fn used(&self, class: &str) -> u64 {
        used(&self.status(), class)
    }

    /// The command line, pointed at this agent.
    pub fn cli(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(FOREBAY);
        command.args(args).env("FOREBAY_SOCKET", self.socket());
        if let Some(uid) = self.setup.uid {
            command.env("FOREBAY_TRUST_UID", uid.to_string());
        }
        command
    }

    /// Open descriptors of the agent.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Asserts that releasing all leaves nothing of files, pages or what clients cost;
    /// connections that are being closed are waited for.
    pub fn assert_nothing_left(&self) {
        wait_for("all is released", || {
            // Each time: a fetch that nobody waits for any more may land in between.
            self.client().admin().evict_all().unwrap();
            let s = self.status();
            // The one connection is that which asks.
            let idle = s.connections <= 1 && s.scratch_files == 0 && used(&s, "clients") < 200 << 10;
            idle && ["pages", "metadata", "scratch"].iter().all(|class| used(&s, class) == 0)
        });
        let s = self.status();
        assert_eq!((s.files, s.pinned_bytes, counter(&s, "client_pinned_bytes")), (0, 0, 0));
        assert_eq!(self.copies(), 0, "files are left in the tier");
    }

    /// Files in the tier's directory, for the directory backing: each copy and its record.
    pub fn copies(&self) -> usize {
        let tier = self.setup.directory.clone().unwrap_or_else(|| self.dir.path().join("tier"));
        std::fs::read_dir(tier.join("copies")).unwrap().count()
    }

    /// The records in the tier in the order in which their copies were made, each next to its copy,
    /// which has the same name without the extension.
    pub fn records(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.dir.path().join("tier/copies")).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let mut records: Vec<_> = files.filter(|file| file.extension().is_some()).collect();
        records.sort();
        records
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the agent\n{}---", self.log());
        }
        let _ = self.child.kill();
        // A thread that hangs in a file system is not gone before that file system answers, and its
        // test may have failed.
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        if self.setup.backing != "directory" {
            let state = self.state_dir();
            let mut down = Command::new(&self.program);
            down.args(["down", "--drop", "--state-dir"]).arg(&state).env("FOREBAY_SOCKET", self.socket());
            let _ = as_user(&mut down, self.setup.uid).output();
        }
    }
}

fn as_user(command: &mut Command, uid: Option<u32>) -> &mut Command {
    use std::os::unix::process::CommandExt;
    match uid {
        Some(uid) => command.uid(uid).gid(uid),
        None => command,
    }
}

fn spawn_agent(program: &Path, dir: &Path, uid: Option<u32>) -> Child {
    let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
    let mut command = Command::new(program);
    command.args(["up", "--foreground", "--config"]).arg(dir.join("config.toml"));
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.current_dir("/").env_remove("FOREBAY_SOCKET");
    as_user(&mut command, uid).spawn().unwrap()
}

pub fn used(status: &Status, class: &str) -> u64 {
    status.used_bytes.iter().find(|(n, _)| n == class).unwrap().1
}

/// A slow file system, or `None` if the user wants none.
pub struct SlowFs {
    process: Option<SlowFsProcess>,
    /// Further mounts of the same directory.
    others: Vec<SlowFsProcess>,
    /// The kernel caches the file system and reads this far ahead; `None`: it does neither.
    read_ahead_bytes: Option<u64>,
    dirs: TempDir,
}

impl SlowFs {
    pub fn start() -> Option<Self> {
        Self::start_with(Stamps::Exact)
    }

    /// Starts one with a file of content `seed`.
    pub fn with(name: &str, seed: u64, len: u64) -> Option<(Self, PathBuf)> {
        let slow = Self::start()?;
        let path = slow.at(name);
        make_file(&path, seed, len);
        Some((slow, path))
    }

    /// Starts one with time stamps that show this much.
    pub fn start_with(stamps: Stamps) -> Option<Self> {
        Self::start_in(stamps, None)
    }

    /// Starts one that the kernel caches, reading this far ahead.
    pub fn start_read_ahead(bytes: u64) -> Option<Self> {
        Self::start_in(Stamps::Exact, Some(bytes))
    }

    fn start_in(stamps: Stamps, read_ahead_bytes: Option<u64>) -> Option<Self> {
        if std::env::var_os("FOREBAY_SKIP_FUSE").is_some_and(|v| v == "1") {
            eprintln!("skipped: FOREBAY_SKIP_FUSE=1");
            return None;
        }
        let dirs = open_dir_in("/dev/shm");
        for dir in ["backing", "mount"] {
            std::fs::create_dir(dirs.path().join(dir)).unwrap();
        }
        let mut slow = SlowFs { process: None, others: Vec::new(), read_ahead_bytes, dirs };
        slow.serve(stamps);
        Some(slow)
    }

    /// Ends it and mounts it again in the same place.
    pub fn remount(&mut self, stamps: Stamps) {
        self.unmount();
        self.serve(stamps);
    }

    /// Ends it; [`SlowFs::serve`] mounts it again.
    pub fn unmount(&mut self) {
        self.process.take().unwrap().stop().unwrap();
    }

    pub fn serve(&mut self, stamps: Stamps) {
        self.process = Some(self.start_at(self.mount(), stamps));
    }

    /// Mounts the same directory once more.
    pub fn serve_also(&mut self, stamps: Stamps) -> PathBuf {
        let mount = self.dirs.path().join(format!("also-{}", self.others.len()));
        std::fs::create_dir(&mount).unwrap();
        self.others.push(self.start_at(mount.clone(), stamps));
        mount
    }

    fn start_at(&self, mount: PathBuf, stamps: Stamps) -> SlowFsProcess {
        let mut config = forebay_lab::slowfs::Config::new(self.dirs.path().join("backing"), mount);
        config.rate_bytes_per_s = None;
        config.latency_ns = 0;
        config.allow_other = true;
        // Every read reaches the server, whatever the kernel has cached.
        config.direct_io = self.read_ahead_bytes.is_none();
        config.read_ahead_bytes = self.read_ahead_bytes;
        config.stamps = stamps;
        SlowFsProcess::start(Path::new(FOREBAY), &["lab"], &config).unwrap_or_else(|e| {
            panic!("{e}\nthese tests need root and /dev/fuse; FOREBAY_SKIP_FUSE=1 leaves them out")
        })
    }

    pub fn mount(&self) -> PathBuf {
        self.dirs.path().join("mount")
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.mount().join(name)
    }

    /// As [`SlowFs::at`], past the file system: nothing of it is in the kernel's cache.
    pub fn behind(&self, name: &str) -> PathBuf {
        self.dirs.path().join("backing").join(name)
    }

    pub fn stats(&self) -> forebay_lab::slowfs::Stats {
        self.process.as_ref().unwrap().stats().unwrap()
    }

    /// Limits the speed of its server.
    pub fn limit(&self, rate: &str) {
        forebay_lab::slowfs::remote::set_rate(&self.mount(), rate).unwrap();
    }

    pub fn fault(&self, spec: &str) {
        self.process.as_ref().unwrap().fault(spec).unwrap();
    }
}

impl Drop for SlowFs {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            // Else it would wait for the requests that hang.
            let _ = process.fault("none");
        }
    }
}

/// A program that says lines, and waits for lines.
pub struct Program {
    pub process: Process,
    said: BufReader<ChildStdout>,
}

impl Program {
    pub fn new(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Program { process: Process(child), said }
    }

    /// The next line, within the patience of every test.
    #[track_caller]
    pub fn line(&mut self) -> String {
        if self.said.buffer().is_empty() {
            let stdout = self.said.get_ref();
            let mut ready = [rustix::event::PollFd::new(stdout, rustix::event::PollFlags::IN)];
            let patience = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut ready, Some(&patience)), Ok(1), "it says nothing");
        }
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    #[track_caller]
    pub fn expect(&mut self, what: &str) {
        let line = self.line();
        if line != what {
            let _it_may_have_ended = self.process.0.kill();
            panic!("{line:?}, not {what:?}: {}", text(&self.complaints()));
        }
    }

    /// Has it continue. It may have ended.
    pub fn say(&mut self) {
        let _ = self.process.0.stdin.as_mut().unwrap().write_all(b"go\n");
    }

    pub fn end_input(&mut self) {
        drop(self.process.0.stdin.take());
    }

    /// What it says until its output ends.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.said.read_to_end(&mut rest).unwrap();
        rest
    }

    fn complaints(&mut self) -> Vec<u8> {
        let mut words = Vec::new();
        if let Some(stderr) = &mut self.process.0.stderr {
            stderr.read_to_end(&mut words).unwrap();
        }
        words
    }

    pub fn kill(mut self) {
        self.process.kill_9();
    }

    /// Ends its input and waits; it must succeed. Returns what it has said since.
    #[track_caller]
    pub fn end(mut self) -> Output {
        self.end_input();
        let status = self.process.wait();
        let (stdout, stderr) = (self.rest(), self.complaints());
        assert!(status.success(), "{status}: {}{}", text(&stdout), text(&stderr));
        Output { status, stdout, stderr }
    }
}

/// A client in a process of its own: this test program again, in the role that `roles` describes.
pub struct Helper {
    child: Child,
    said: Receiver<String>,
    stdin: Option<std::process::ChildStdin>,
}

impl Helper {
    pub fn start(agent: &Agent, role: &str, args: &[&str]) -> Self {
        Self::start_as(&agent.socket(), None, role, args)
    }

    /// Starts it as another user.
    pub fn start_as(socket: &Path, uid: Option<u32>, role: &str, args: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "helper_process", "--nocapture", "--test-threads=1"]);
        command.env("FOREBAY_TEST_ROLE", role).env("FOREBAY_TEST_ARGS", args.join("\x1f"));
        command.env("FOREBAY_SOCKET", socket).env("FOREBAY_DEADLINE_MS", "20000");
        if let Some(uid) = uid {
            command.env("FOREBAY_TEST_UID", uid.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, said) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix('@') {
                    let _ = send.send(line.to_owned());
                }
            }
        });
        let stdin = child.stdin.take();
        Helper { child, said, stdin }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that starts with `what`; returns the rest of it.
    #[track_caller]
    pub fn expect(&mut self, what: &str) -> String {
        loop {
            let line =
                self.said.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("waiting for {what:?}: {e}"));
            if let Some(rest) = line.strip_prefix(what) {
                return rest.trim().to_owned();
            }
        }
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn kill_9(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "the client was dead already");
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    /// Asks it to end and waits; its own assertions must have held.
    #[track_caller]
    pub fn finish(mut self) {
        drop(self.stdin.take());
        wait_for("the client process ends", || self.child.try_wait().unwrap().is_some());
        assert!(self.child.wait().unwrap().success(), "a client process failed");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
