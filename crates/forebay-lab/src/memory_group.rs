//! A control group with a memory limit, for tests and benchmarks of what happens when memory is
//! short. Version 1 or 2, whichever has the memory controller.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long the processes of a group may take to end before its directory is left behind.
const END_DEADLINE: Duration = Duration::from_secs(10);

/// A control group; removed when it is dropped.
pub struct MemoryGroup {
    /// Its directory.
    pub directory: PathBuf,
    is_v1: bool,
}

impl MemoryGroup {
    /// Makes a group whose name contains `name`.
    ///
    /// # Errors
    /// If there is no memory controller that can be used; this takes root.
    pub fn new(name: &str, limit_bytes: u64) -> io::Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let of = |kind: &str, needs: &str| {
            let line = mounts.lines().find(|l| l.contains(kind) && l.ends_with(needs))?;
            line.split(' ').nth(4).map(PathBuf::from)
        };
        let v1 = of(" - cgroup ", "memory");
        let is_v1 = v1.is_some();
        let none = || io::Error::other("no control groups are mounted");
        let parent = v1.or_else(|| of(" - cgroup2 ", "")).ok_or_else(none)?;
        let directory = parent.join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        let group = MemoryGroup { directory, is_v1 };
        std::fs::write(group.limit_file(), limit_bytes.to_string())?;
        Ok(group)
    }

    /// Path of one of its files, whose name depends on the version.
    pub fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.directory.join(if self.is_v1 { v1 } else { v2 })
    }

    fn limit_file(&self) -> PathBuf {
        self.file("memory.limit_in_bytes", "memory.max")
    }

    /// Prefix of the sums over all groups below in memory.stat.
    pub fn stat_prefix(&self) -> &'static str {
        if self.is_v1 { "total_" } else { "" }
    }

    /// A command that runs in the group.
    pub fn run(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", self.directory.display());
        command.args(["-c", &script]).arg(program);
        command
    }

    /// What is in use without clean pages of the page cache, in bytes.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn used(&self) -> io::Result<u64> {
        let usage = self.number(&self.file("memory.usage_in_bytes", "memory.current"))?;
        let cached = self.stat("active_file")? + self.stat("inactive_file")?;
        Ok(usage.saturating_sub(cached))
    }

    /// What is in swap, in bytes.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn swapped(&self) -> io::Result<u64> {
        if self.is_v1 { self.stat("swap") } else { self.number(&self.directory.join("memory.swap.current")) }
    }

    /// Sets the limit; `false` if more is in use and the kernel refuses.
    ///
    /// # Errors
    /// If the group cannot be changed.
    pub fn limit(&self, bytes: u64) -> io::Result<bool> {
        // Version 2 would kill a process immediately; operators lower memory.high first.
        if !self.is_v1 {
            std::fs::write(self.directory.join("memory.high"), bytes.to_string())?;
            if self.used()? >= bytes {
                return Ok(false);
            }
        }
        Ok(std::fs::write(self.limit_file(), bytes.to_string()).is_ok())
    }

    /// How often the kernel has killed a process in the group.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn kills(&self) -> io::Result<u64> {
        line_of(&self.file("memory.oom_control", "memory.events"), "oom_kill")
    }

    /// A value of memory.stat, in bytes.
    fn stat(&self, name: &str) -> io::Result<u64> {
        line_of(&self.directory.join("memory.stat"), &format!("{}{name}", self.stat_prefix()))
    }

    fn number(&self, file: &Path) -> io::Result<u64> {
        std::fs::read_to_string(file)?.trim().parse().map_err(io::Error::other)
    }
}

/// The number in the line of `file` that begins with `name`.
fn line_of(file: &Path, name: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(file)?;
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
    found.ok_or_else(|| io::Error::other(format!("{}: no line {name}", file.display())))
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + END_DEADLINE;
        while std::fs::remove_dir(&self.directory).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
