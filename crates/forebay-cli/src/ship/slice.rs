//! The control group of one shipped application on one storage server.
//!
//! Version 2 is used where it controls processors and memory; otherwise version 1, with one group
//! in each hierarchy. The memory limit and the weights stay. The quota of processors and the rates
//! of disks are a share of what the operator allows, which the controller sets.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Beginning of the names of all groups, by which `forebay ship stop` finds them.
pub const PREFIX: &str = "forebay-ship-";

/// Period of the quota: the kernel's default.
const PERIOD_US: u64 = 100_000;

/// The kernel takes no smaller quota.
const QUOTA_MIN_US: u64 = 1_000;

/// The kernel takes no smaller `cpu.shares`.
const SHARES_MIN: u64 = 2;

/// What version 1 has for the weight 100 of version 2.
const SHARES_USUAL: u64 = 1024;

/// How long the processes of a group may take to end after SIGKILL.
const END_TIME: Duration = Duration::from_secs(10);

/// The controllers of version 1 that are used.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "blkio"];

/// The most that a group may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Cores.
    pub cores: f64,
    /// Memory, page cache included.
    pub memory_bytes: u64,
    /// Weight of its processes, where 100 is that of others.
    pub cpu_weight: u64,
    /// Weight of its requests to disks.
    pub io_weight: u64,
    /// Bytes per second that it may read from each disk, and write to it; 0: not limited.
    pub io_rate_bytes_per_s: u64,
    /// `MAJOR:MINOR` of those disks.
    pub disks: Vec<String>,
}

/// A group, in one directory of version 2 or several of version 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    version: u8,
    /// One for each controller in version 1.
    groups: Vec<PathBuf>,
}

/// The hierarchies of this machine.
#[derive(Debug, Default)]
struct Mounts {
    /// Where version 2 is mounted, if it has the controllers.
    v2: Option<PathBuf>,
    /// Controllers of version 1, and the outermost group in each, or that of this process if it has
    /// a quota of processors.
    v1: Vec<(String, PathBuf)>,
}

fn read(path: &str) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

impl Mounts {
    fn of_this_machine() -> Self {
        Self::parse(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"), |mount| {
            let controllers = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
            ["cpu", "memory"].iter().all(|name| controllers.split_whitespace().any(|has| has == *name))
        })
    }

    fn parse(mounts: &str, groups: &str, controls: impl Fn(&Path) -> bool) -> Self {
        let mut found = Mounts::default();
        for line in mounts.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(mount) = left.split(' ').nth(4).map(PathBuf::from) else { continue };
            let mut of_type = right.split(' ');
            match (of_type.next(), of_type.next_back()) {
                (Some("cgroup2"), _) if found.v2.is_none() && controls(&mount) => found.v2 = Some(mount),
                (Some("cgroup"), Some(options)) => {
                    for name in options.split(',').filter(|name| CONTROLLERS.contains(name)) {
                        let own = mount.join(own_group(groups, name).trim_start_matches('/'));
                        // Outside of a group with a quota, processes would not be held to it.
                        let group = if has_quota(&own) { own } else { mount.clone() };
                        found.v1.push((name.to_owned(), group));
                    }
                }
                _ => {}
            }
        }
        found
    }
}

fn has_quota(group: &Path) -> bool {
    let quota = fs::read_to_string(group.join("cpu.cfs_quota_us")).unwrap_or_default();
    quota.trim().parse().is_ok_and(|quota: i64| quota > 0)
}

/// The group of a process in the hierarchy of `controller`, from its `/proc/PID/cgroup`.
fn own_group<'a>(groups: &'a str, controller: &str) -> &'a str {
    let of_line = |line: &'a str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let has = parts.next()?.split(',').any(|name| name == controller);
        has.then(|| parts.next()).flatten()
    };
    groups.lines().find_map(of_line).unwrap_or("/")
}

fn failed(what: &str, path: &Path, e: &io::Error) -> String {
    format!(
        "cannot {what} {}: {e}; `forebay ship` needs control groups of version 2 or 1 that it may write: run it on the \
         storage servers as root (ship.launch)",
        path.display()
    )
}

fn write(path: &Path, value: &str) -> Result<(), String> {
    fs::write(path, value).map_err(|e| failed(&format!("write {value:?} to"), path, &e))
}

/// As [`write()`], for files that not every kernel or scheduler of disks has.
fn write_if_there(path: &Path, value: &str) -> Result<(), String> {
    match path.exists() {
        true => write(path, value),
        false => Ok(()),
    }
}

impl Slice {
    /// Where the group of the application `name` is, or would be.
    ///
    /// # Errors
    /// There are no control groups with the controllers.
    pub fn named(name: &str) -> Result<Self, String> {
        let mounts = Mounts::of_this_machine();
        let directory = format!("{PREFIX}{name}");
        if let Some(root) = mounts.v2 {
            return Ok(Slice { version: 2, groups: vec![root.join(directory)] });
        }
        let has = |controller: &str| mounts.v1.iter().any(|(name, _)| name == controller);
        if !has("cpu") || !has("memory") {
            return Err(
                "no control groups with controllers for processors and memory are mounted here".into()
            );
        }
        let groups = mounts.v1.iter().map(|(_, group)| group.join(&directory)).collect();
        Ok(Slice { version: 1, groups })
    }

    /// The groups of all shipped applications on this machine.
    pub fn all() -> Vec<Self> {
        let mounts = Mounts::of_this_machine();
        let roots: Vec<PathBuf> =
            mounts.v2.into_iter().chain(mounts.v1.into_iter().map(|(_, g)| g)).collect();
        let below = |root: &PathBuf| fs::read_dir(root).into_iter().flatten().flatten();
        let mut names: Vec<String> = roots
            .iter()
            .flat_map(below)
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(PREFIX).map(str::to_owned))
            .collect();
        names.sort_unstable();
        names.dedup();
        names.iter().filter_map(|name| Slice::named(name).ok()).collect()
    }

    /// The name of the application.
    pub fn name(&self) -> &str {
        let name = self.groups.first().and_then(|group| group.file_name()?.to_str());
        name.and_then(|name| name.strip_prefix(PREFIX)).unwrap_or("")
    }

    /// Creates the group, with `share` of the limits.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn create(&self, limits: &Limits, share: f64) -> Result<(), String> {
        for group in &self.groups {
            if let (2, Some(root)) = (self.version, group.parent()) {
                for controller in ["+cpu", "+memory"] {
                    write(&root.join("cgroup.subtree_control"), controller)?;
                }
                // Disks cannot be limited everywhere.
                let _ = fs::write(root.join("cgroup.subtree_control"), "+io");
            }
            fs::create_dir_all(group).map_err(|e| failed("create the control group", group, &e))?;
        }
        let (memory, weight) = (limits.memory_bytes.to_string(), limits.cpu_weight);
        if self.version == 2 {
            let group = &self.groups[0];
            write(&group.join("memory.max"), &memory)?;
            write(&group.join("cpu.weight"), &weight.to_string())?;
            write_if_there(&group.join("io.weight"), &format!("default {}", limits.io_weight))?;
        } else {
            let shares = (weight * SHARES_USUAL / 100).max(SHARES_MIN);
            self.write_v1("memory.limit_in_bytes", &memory)?;
            self.write_v1("cpu.shares", &shares.to_string())?;
            for file in ["blkio.bfq.weight", "blkio.weight"] {
                self.write_v1(file, &limits.io_weight.clamp(10, 1000).to_string())?;
            }
        }
        self.limit(limits, share)
    }

    /// Sets `share` of the limits that change.
    ///
    /// # Errors
    /// The group is gone, or what the kernel refuses.
    pub fn limit(&self, limits: &Limits, share: f64) -> Result<(), String> {
        let quota_us = ((share * limits.cores * PERIOD_US as f64) as u64).max(QUOTA_MIN_US);
        let rate = ((share * limits.io_rate_bytes_per_s as f64) as u64).max(1);
        let mut disks = limits.disks.iter().filter(|_| limits.io_rate_bytes_per_s > 0);
        if self.version == 2 {
            let group = &self.groups[0];
            write(&group.join("cpu.max"), &format!("{quota_us} {PERIOD_US}"))?;
            return disks.try_for_each(|disk| {
                write_if_there(&group.join("io.max"), &format!("{disk} rbps={rate} wbps={rate}"))
            });
        }
        self.write_v1("cpu.cfs_period_us", &PERIOD_US.to_string())?;
        self.write_v1("cpu.cfs_quota_us", &quota_us.to_string())?;
        for disk in disks {
            for file in ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"] {
                self.write_v1(file, &format!("{disk} {rate}"))?;
            }
        }
        Ok(())
    }

    /// Writes to the file of that name, in the hierarchy that has it.
    fn write_v1(&self, file: &str, value: &str) -> Result<(), String> {
        match self.groups.iter().map(|group| group.join(file)).find(|path| path.exists()) {
            Some(path) => write(&path, value),
            // Weights of disks depend on their scheduler; the others are with their controllers.
            None if file.starts_with("blkio.") => Ok(()),
            None => Err(format!("the control group {PREFIX}{} has no {file}", self.name())),
        }
    }

    /// Files through which a process enters the group, by writing `0`.
    ///
    /// # Errors
    /// The group is gone.
    pub fn doors(&self) -> io::Result<Vec<fs::File>> {
        self.groups
            .iter()
            .map(|group| fs::File::options().write(true).open(group.join("cgroup.procs")))
            .collect()
    }

    /// The most cores that the group may use now; `None` if it is gone.
    #[cfg(test)]
    pub fn cores(&self) -> Option<f64> {
        let number = |text: &str| text.split_whitespace().next()?.parse::<f64>().ok();
        let files = ["cpu.max", "cpu.cfs_quota_us"];
        let paths = self.groups.iter().flat_map(|group| files.map(|file| group.join(file)));
        let quota = paths.filter_map(|path| number(&fs::read_to_string(path).ok()?)).next()?;
        Some(quota / PERIOD_US as f64)
    }

    fn processes(&self) -> Vec<i32> {
        let of_group = |group: &PathBuf| fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let text: String = self.groups.iter().map(of_group).collect();
        let mut all: Vec<i32> =
            text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether it exists, in any hierarchy.
    pub fn exists(&self) -> bool {
        self.groups.iter().any(|group| group.is_dir())
    }

    /// Ends all its processes and removes it. Processes that are asked first (SIGTERM) have `grace`
    /// for their own end.
    ///
    /// # Errors
    /// Some do not end, or the group cannot be removed.
    pub fn end(&self, grace: Duration) -> Result<(), String> {
        let began = Instant::now();
        self.signal(libc::SIGTERM);
        while began.elapsed() < grace && !self.processes().is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let killed = Instant::now();
        loop {
            // What starts meanwhile is found by the next look.
            self.signal(libc::SIGKILL);
            let left = self.groups.iter().filter(|group| group.is_dir());
            let why: Vec<String> =
                left.filter_map(|g| fs::remove_dir(g).err().map(|e| failed("remove", g, &e))).collect();
            if why.is_empty() {
                return Ok(());
            }
            if killed.elapsed() > END_TIME {
                return Err(why.join("; "));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: i32) {
        for pid in self.processes() {
            // SAFETY: a plain system call; the process may have ended.
            unsafe { libc::kill(pid, signal) };
        }
    }
}

/// Takes the calling process through `doors`. For a child between fork and exec: allocates nothing.
pub fn enter(doors: &mut [fs::File]) -> io::Result<()> {
    doors.iter_mut().try_for_each(|door| door.write_all(b"0"))
}

/// `MAJOR:MINOR` of a block device: a name such as `sdb`, or a path.
///
/// # Errors
/// There is no such device.
pub fn number_of(disk: &str) -> Result<String, String> {
    let path = if disk.starts_with('/') { PathBuf::from(disk) } else { Path::new("/dev").join(disk) };
    let of_path = rustix::fs::stat(&path);
    let stat = of_path
        .map_err(|e| format!("ship.disks: {}: {e}", String::from_utf8_lossy(path.as_os_str().as_bytes())))?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::BlockDevice {
        return Err(format!("ship.disks: {} is not a block device", path.display()));
    }
    Ok(format!("{}:{}", rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 25 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn version_two_is_taken_where_it_has_the_controllers() {
        let with = Mounts::parse(V1, "", |_| true);
        assert_eq!(with.v2.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
        let without = Mounts::parse(V1, "1:cpu,cpuacct:/\n4:memory:/no/such\n0::/\n", |_| false);
        assert_eq!(without.v2, None);
        let names: Vec<&str> = without.v1.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cpu", "memory"]);
        assert_eq!(without.v1[1].1, Path::new("/sys/fs/cgroup/memory"));
    }

    #[test]
    fn the_group_of_a_process_is_found_by_controller() {
        let groups = "9:name=systemd:/\n4:memory:/a/b:c\n1:cpu,cpuacct:/lab/s1\n0::/x\n";
        assert_eq!(own_group(groups, "memory"), "/a/b:c");
        assert_eq!(own_group(groups, "cpu"), "/lab/s1");
        assert_eq!(own_group(groups, "blkio"), "/");
    }

    #[test]
    fn limits_are_written_as_version_two_wants_them() {
        let dir = tempfile::tempdir().unwrap();
        let slice = Slice { version: 2, groups: vec![dir.path().join("forebay-ship-a")] };
        let limits = Limits {
            cores: 2.0,
            memory_bytes: 1 << 30,
            cpu_weight: 10,
            io_weight: 20,
            io_rate_bytes_per_s: 1000,
            disks: vec!["8:0".into()],
        };
        for file in ["io.max", "io.weight"] {
            fs::create_dir_all(&slice.groups[0]).unwrap();
            fs::write(slice.groups[0].join(file), "").unwrap();
        }
        slice.create(&limits, 0.1).unwrap();
        let read = |file: &str| fs::read_to_string(slice.groups[0].join(file)).unwrap();
        assert_eq!((read("memory.max"), read("cpu.weight")), ("1073741824".into(), "10".into()));
        assert_eq!(
            (read("cpu.max"), read("io.max")),
            ("20000 100000".into(), "8:0 rbps=100 wbps=100".into())
        );
        assert_eq!(read("io.weight"), "default 20");
        assert_eq!((slice.cores(), slice.name()), (Some(0.2), "a"));
        slice.limit(&limits, 1.0).unwrap();
        assert_eq!((read("cpu.max"), slice.cores()), ("200000 100000".into(), Some(2.0)));
    }

    /// A real group of this machine: what it limits, and that its end ends its processes.
    #[test]
    fn a_group_of_this_machine_limits_its_processes_and_ends_with_them() {
        let name = format!("test{}", std::process::id());
        let limits = Limits {
            cores: 1.0,
            memory_bytes: 64 << 20,
            cpu_weight: 10,
            io_weight: 10,
            io_rate_bytes_per_s: 0,
            disks: Vec::new(),
        };
        let slice = match Slice::named(&name).and_then(|slice| slice.create(&limits, 0.1).map(|()| slice)) {
            Ok(slice) => slice,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        assert_eq!(slice.cores(), Some(0.1));
        assert!(Slice::all().contains(&slice));
        let mut doors = slice.doors().unwrap();
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "trap '' TERM; while :; do :; done"]);
        // SAFETY: writes to open files only.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, move || enter(&mut doors)) };
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let ran_ns: u64 = fs::read_to_string(format!("/proc/{}/schedstat", child.id()))
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(ran_ns < 500_000_000, "a tenth of a core, and it ran for {ran_ns} ns of a second");
        slice.end(Duration::from_millis(50)).unwrap();
        assert!(!slice.exists() && !child.wait().unwrap().success());
    }
}
