//! What a benchmark runs on: an agent process, a PFS (a directory or the lab's slow file system),
//! and a bare tmpfs with the same kind of pages as the tier's, for the physical limit. All of it
//! goes when the rig is dropped.

use forebay_client::{Client, ClientConfig};
use forebay_lab::fixture::SlowFsProcess;
use forebay_lab::slowfs::Config;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::{CString, OsStr};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The rig of one group of benchmarks.
pub struct Rig {
    /// Runs of each measurement.
    pub runs: usize,
    /// Whether sizes are reduced.
    pub quick: bool,
    /// The random ramps.
    pub ramps: RampArgs,
    /// Directory of everything, on disk.
    pub dir: PathBuf,
    /// The program under test.
    pub program: PathBuf,
}

/// Which random ramps to run.
pub struct RampArgs {
    /// Number of ramps.
    pub count: usize,
    /// Their seed.
    pub seed: u64,
    /// The largest control group, in bytes.
    pub group_max_bytes: u64,
    /// The only law to run, if not all.
    pub law: Option<String>,
}

/// A running agent; dropping it ends the agent and drops its tier.
pub struct AgentProcess {
    child: Child,
    program: PathBuf,
    state_dir: PathBuf,
    /// Seconds from the start of the program to its first answer.
    pub start_seconds: f64,
}

/// A file system on a loop device with a fixed bandwidth; gone when this is dropped.
pub struct ThrottledDisk {
    /// Where it is mounted.
    pub mount: PathBuf,
    device: String,
    number: String,
}

/// A tmpfs mounted like the tier's.
pub struct BareTmpfs {
    /// Where it is mounted.
    pub path: PathBuf,
}

fn failed(what: &str, e: impl std::fmt::Display) -> String {
    format!("cannot {what}: {e}")
}

impl Rig {
    /// Sets up a fresh rig.
    pub fn new(runs: usize, quick: bool, ramps: RampArgs) -> Result<Self, String> {
        let program = forebay_lab::fixture::find_program()
            .ok_or("no forebay program beside this one; build it first: cargo build --release")?;
        let dir = std::env::temp_dir().join(format!("forebay-bench-{}", std::process::id()));
        fs::create_dir_all(dir.join("pfs")).map_err(|e| failed("make a directory", e))?;
        Ok(Rig { runs, quick, ramps, dir, program })
    }

    /// `full` bytes, or a sixteenth of them for a quick look.
    pub fn sized(&self, full: u64) -> u64 {
        if self.quick { full / 16 } else { full }
    }

    /// A plain directory to serve as PFS.
    pub fn directory_pfs(&self) -> PathBuf {
        self.dir.join("pfs")
    }

    /// The lab's slow file system over a directory, mounted.
    pub fn slow_pfs(&self, servers: usize, rate_bytes_per_s: u64) -> Result<SlowFsProcess, String> {
        let (backing, mount) = (self.dir.join("backing"), self.dir.join("slow"));
        for dir in [&backing, &mount] {
            fs::create_dir_all(dir).map_err(|e| failed("make a directory", e))?;
        }
        let config =
            Config { servers, rate_bytes_per_s: Some(rate_bytes_per_s), ..Config::new(&backing, &mount) };
        SlowFsProcess::start(&self.program, &["lab"], &config).map_err(|e| e.to_string())
    }

    /// Starts an agent that serves `pfs`.
    pub fn agent(&self, pfs: &Path, capacity: &str) -> Result<AgentProcess, String> {
        self.agent_by(Command::new(&self.program), "agent", "", pfs, capacity)
    }

    /// Starts an agent with this name through `command`, which runs the program, with `more` in its
    /// configuration after the keys of the mount.
    pub fn agent_by(
        &self,
        mut command: Command,
        name: &str,
        more: &str,
        pfs: &Path,
        capacity: &str,
    ) -> Result<AgentProcess, String> {
        let state_dir = self.dir.join(name);
        let started = Instant::now();
        let [config, log] = ["toml", "log"].map(|ending| state_dir.with_extension(ending));
        // How long a fresh file is left alone is not what is measured.
        let text = format!("[[mount]]\nlabel = \"pfs\"\nroot = {pfs:?}\nsettle_ms = 0\n{more}");
        fs::write(&config, text).map_err(|e| failed("write a configuration", e))?;
        command.arg("up").arg("--foreground").arg("--config").arg(config).args(["--capacity", capacity]);
        command.arg("--state-dir").arg(&state_dir).env_remove("FOREBAY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let stderr = fs::File::create(&log).map_err(|e| failed("make a log", e))?;
        let child = command.stderr(stderr).spawn().map_err(|e| failed("start the agent", e))?;
        let mut agent = AgentProcess { child, program: self.program.clone(), state_dir, start_seconds: 0.0 };
        let client = agent.client();
        while client.admin().status().is_err() {
            if started.elapsed() > Duration::from_secs(20)
                || agent.child.try_wait().is_ok_and(|s| s.is_some())
            {
                let said = fs::read_to_string(log).unwrap_or_default();
                return Err(format!("the agent did not start: {said}"));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        agent.start_seconds = started.elapsed().as_secs_f64();
        Ok(agent)
    }

    /// A bare tmpfs with huge pages as the tier has.
    pub fn bare_tmpfs(&self) -> Result<BareTmpfs, String> {
        let path = self.dir.join("bare");
        fs::create_dir_all(&path).map_err(|e| failed("make a directory", e))?;
        let data = CString::new("size=90%,huge=within_size").map_err(|e| e.to_string())?;
        mount(c"bench", &path, c"tmpfs", MountFlags::empty(), Some(data.as_c_str()))
            .map_err(|e| failed("mount a tmpfs (this benchmark runs as root)", e))?;
        Ok(BareTmpfs { path })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Left behind at worst; the name carries the process.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// What is limited in the root control group (v1): reading and writing.
const THROTTLES: [&str; 2] = ["read", "write"];

fn throttle(way: &str, number: &str, bytes_per_s: u64) -> Result<(), String> {
    let file = format!("/sys/fs/cgroup/blkio/blkio.throttle.{way}_bps_device");
    let limit = format!("{number} {bytes_per_s}");
    fs::write(&file, limit).map_err(|e| failed(&format!("write {file}, of control groups v1"), e))
}

fn command(program: &str, args: &[&OsStr]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|e| failed(program, e))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(failed(program, text(&output.stderr)))
    }
}

impl ThrottledDisk {
    /// `bytes` in a file below `dir`, at `bytes_per_s` for reads and for writes; as root.
    pub fn start(dir: &Path, bytes: u64, bytes_per_s: u64) -> Result<Self, String> {
        let (image, mount) = (dir.join("disk.img"), dir.join("disk"));
        let file = fs::File::create(&image).map_err(|e| failed("make a disk's image", e))?;
        file.set_len(bytes).map_err(|e| failed("make a disk's image", e))?;
        fs::create_dir_all(&mount).map_err(|e| failed("make a directory", e))?;
        command(
            "mkfs.ext4",
            &[
                "-q".as_ref(),
                "-E".as_ref(),
                "lazy_itable_init=0,lazy_journal_init=0".as_ref(),
                image.as_ref(),
            ],
        )?;
        let loop_args = ["--find", "--show", "--direct-io=on"].map(OsStr::new);
        let device = command("losetup", &[loop_args.as_slice(), &[image.as_ref()]].concat())?;
        let number = fs::read_to_string(format!("/sys/class/block/{}/dev", device.replace("/dev/", "")));
        let mut disk = ThrottledDisk { mount, device, number: String::new() };
        disk.number = number.map_err(|e| failed("find a loop device's number", e))?.trim().to_owned();
        THROTTLES.iter().try_for_each(|way| throttle(way, &disk.number, bytes_per_s))?;
        command("mount", &[disk.device.as_ref(), disk.mount.as_ref()])?;
        Ok(disk)
    }
}

impl Drop for ThrottledDisk {
    fn drop(&mut self) {
        // Fails for what was not done, which needs no undoing.
        let _ = command("umount", &[self.mount.as_ref()]);
        let _ = command("losetup", &["--detach".as_ref(), self.device.as_ref()]);
        for way in THROTTLES {
            let _ = throttle(way, &self.number, 0);
        }
    }
}

impl Drop for BareTmpfs {
    fn drop(&mut self) {
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

impl AgentProcess {
    /// A fresh client of it.
    pub fn client(&self) -> Client {
        Client::new(ClientConfig { socket: Some(self.socket()), quiet: true, ..ClientConfig::default() })
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.state_dir.join("agent.sock")
    }

    /// A figure of /proc/PID/status in bytes, such as `VmRSS` or `RssAnon`.
    pub fn memory(&self, field: &str) -> Result<u64, String> {
        let text =
            fs::read_to_string(format!("/proc/{}/status", self.child.id())).map_err(|e| e.to_string())?;
        let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
        let kib = line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok());
        kib.map(|k| k << 10).ok_or_else(|| format!("no {field} for the agent"))
    }

    /// Loads paths with the command line, as a user would.
    pub fn load(&self, path: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.program);
        command.arg("--socket").arg(self.socket()).args(["load", "--quiet"]).arg(path);
        let output = command.output().map_err(|e| failed("load", e))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stdout).into_owned())
        }
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let mut command = Command::new(&self.program);
        command
            .arg("--socket")
            .arg(self.socket())
            .args(["down", "--drop", "--state-dir"])
            .arg(&self.state_dir);
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a file of `bytes` that no compression or deduplication makes smaller, and waits until it
/// is old enough for its time stamps to be trusted.
pub fn make_file(path: &Path, bytes: u64) -> Result<(), String> {
    let mut file = fs::File::create(path).map_err(|e| failed("make a file", e))?;
    let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ bytes;
    let mut block = vec![0u8; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let n = left.min(block.len() as u64) as usize;
        file.write_all(&block[..n]).map_err(|e| failed("write a file", e))?;
        left -= n as u64;
    }
    file.sync_all().map_err(|e| failed("write a file", e))?;
    std::thread::sleep(Duration::from_millis(50));
    Ok(())
}

/// Takes a file out of the kernel's page cache, so that the next read of it goes to the file
/// system.
pub fn drop_page_cache(path: &Path) -> Result<(), String> {
    let file = fs::File::open(path).map_err(|e| failed("open a file", e))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|e| failed("drop the page cache", e))
}

/// Runs a program that prints JSON to standard output.
pub fn json_of(command: &mut Command) -> Result<serde_json::Value, String> {
    let output = command.output().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("{:?}: {e}", command.get_program()))
}
