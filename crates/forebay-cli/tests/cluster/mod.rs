//! A small lab for tests: two servers and two compute nodes, ended whatever happens.

#![allow(dead_code, reason = "each file of tests uses a part of it")]

use crate::kit::{FOREBAY, succeeded};
use serde_json::Value;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

/// One lab at a time: each wants a gigabyte of memory and all cores for a moment.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A lab of two servers and two compute nodes; ended when dropped, whatever state it is in.
pub struct Lab {
    pub name: String,
    pub dir: tempfile::TempDir,
    pfs: &'static str,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    /// `None` if this machine cannot have one.
    pub fn possible(pfs: &'static str) -> Option<Lab> {
        if let Some(why) = obstacle(pfs) {
            let required = std::env::var("FOREBAY_REQUIRE_LAB").unwrap_or_default();
            assert!(!required.split(',').any(|r| r == pfs), "FOREBAY_REQUIRE_LAB={required}, but {why}");
            eprintln!("left out: {why}");
            return None;
        }
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
        // Not /dev/shm: containers often have little of it.
        let dir = tempfile::Builder::new().prefix("fblab").tempdir().unwrap();
        let name = format!("t{:x}{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Some(Lab { name, dir, pfs, _turn: turn })
    }

    pub fn forebay(&self, command: &[&str]) -> Command {
        let mut forebay = Command::new(FOREBAY);
        forebay.arg("lab").args(command).args(["--name", &self.name]).stdin(Stdio::null());
        forebay.env_remove("FOREBAY_LAB").env_remove("FOREBAY_BIN").env_remove("FOREBAY_SOCKET");
        forebay
    }

    pub fn up(&self) -> Command {
        let mut up = self.forebay(&["up", "--servers", "2", "--nodes", "2", "--capacity", "64MiB"]);
        up.args(["--pfs", self.pfs, "--rate", "40MB/s", "--store", "1GiB", "--dir"]).arg(self.dir.path());
        up
    }

    pub fn run(&self, node: &str, line: &[&str]) -> Output {
        self.forebay(&["run"]).args(["--node", node, "--"]).args(line).output().unwrap()
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&succeeded(&mut self.forebay(&["status", "--json"]))).unwrap()
    }

    /// What exists of this lab, found in another way than the lab does.
    pub fn traces(&self) -> Vec<String> {
        let mut traces = Vec::new();
        let namespaces = entries("/run/netns").into_iter();
        traces
            .extend(namespaces.filter(|n| n.to_string_lossy().contains(&format!("forebay-{}-", self.name))));
        traces.extend(Some(PathBuf::from(format!("/sys/class/net/fb-{}", self.name))).filter(|p| p.exists()));
        traces.extend(Some(self.dir.path().to_owned()).filter(|p| p.exists() && !entries(p).is_empty()));
        let records = entries("/run/forebay-lab").into_iter();
        traces.extend(records.filter(|p| p.to_string_lossy().contains(&format!("/{}.", self.name))));
        let mut traces: Vec<_> = traces.into_iter().map(|p| p.display().to_string()).collect();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        traces.extend(
            mounts.lines().filter(|l| l.contains(self.dir.path().to_str().unwrap())).map(str::to_owned),
        );
        traces.extend(self.processes().into_iter().map(|(pid, name)| format!("process {pid} ({name})")));
        for hierarchy in
            ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified"]
        {
            let group = Path::new(hierarchy).join(format!("forebay-{}", self.name));
            traces
                .extend(Some(group).filter(|group| group.exists()).map(|group| group.display().to_string()));
        }
        traces
    }

    /// Number and name of each process whose environment says that it is of this lab.
    pub fn processes(&self) -> Vec<(String, String)> {
        let tag = format!("FOREBAY_LAB={}\0", self.name);
        let of_lab = |dir: &PathBuf| {
            let environ = std::fs::read(dir.join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environ).contains(&tag)
        };
        let found = entries("/proc").into_iter().filter(of_lab);
        let name =
            |dir: &PathBuf| std::fs::read_to_string(dir.join("comm")).unwrap_or_default().trim().to_owned();
        found.map(|dir| (dir.file_name().unwrap().to_string_lossy().into_owned(), name(&dir))).collect()
    }

    /// Processes of this name, found by the namespaces of its nodes: some have written a title over
    /// their environment.
    pub fn processes_called(&self, name: &str) -> Vec<String> {
        let nodes = ["head", "pfs-s1", "pfs-s2", "c1", "c2"];
        let of = |node| {
            let namespace = format!("forebay-{}-{node}", self.name);
            succeeded(Command::new("ip").args(["netns", "pids", &namespace]))
        };
        let pids = nodes.map(of).concat();
        let called = |pid: &&str| {
            let read = |file| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            // Not one that has ended and that nobody has waited for.
            read("comm").trim() == name && !read("cmdline").is_empty()
        };
        pids.split_whitespace().filter(called).map(str::to_owned).collect()
    }

    pub fn assert_nothing_left(&self) {
        let traces = self.traces();
        assert!(traces.is_empty(), "left behind:\n{}", traces.join("\n"));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let ended = self.forebay(&["down"]).output();
        if !std::thread::panicking() {
            let ended = ended.unwrap();
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        }
    }
}

pub fn entries(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Why this machine cannot have a lab with this file system.
fn obstacle(pfs: &str) -> Option<String> {
    let allowed = Command::new("unshare").args(["--net", "--mount", "--uts", "true"]).output();
    if !allowed.is_ok_and(|out| out.status.success()) {
        return Some(
            "namespaces cannot be made; it needs root, in a container also CAP_SYS_ADMIN and CAP_NET_ADMIN"
                .into(),
        );
    }
    if !std::fs::metadata("/dev/fuse").is_ok_and(|m| m.file_type().is_char_device()) {
        return Some("there is no /dev/fuse".into());
    }
    let programs: &[&str] = match pfs {
        "moosefs" => &["ip", "tc", "mfsmaster", "mfschunkserver", "mfsmount"],
        "cephfs" => &["ip", "tc", "ceph", "ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse"],
        _ => &["ip", "tc", "glusterfs", "glusterfsd"],
    };
    let dirs = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let missing = programs.iter().find(|p| !dirs.iter().any(|dir| Path::new(dir).join(p).exists()));
    missing.map(|program| format!("{program} is not installed"))
}

pub fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}
