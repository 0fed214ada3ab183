//! What the kernel's files may say: no numbers, numbers that cannot be, or nothing. The agent runs
//! in a mount namespace of its own where a file of the test is /proc/meminfo. And what a service
//! manager may report.

use crate::common::{CAPACITY, FILE, Tier, wait_for};
use crate::kit;
use std::path::{Path, PathBuf};
use std::process::Command;

const TOTAL_KIB: u64 = 1 << 20;

/// Files that replace those of the kernel.
struct Kernel {
    dir: tempfile::TempDir,
    meminfo: PathBuf,
}

impl Kernel {
    /// `None` where nothing can be mounted.
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let meminfo = dir.path().join("meminfo");
        std::fs::create_dir(dir.path().join("pressure")).unwrap();
        let kernel = Kernel { dir, meminfo };
        kernel.has_free(TOTAL_KIB);
        kernel.run(Path::new("true")).status().unwrap().success().then_some(kernel)
    }

    fn says(&self, meminfo: &str) {
        std::fs::write(&self.meminfo, meminfo).unwrap();
    }

    fn has_free(&self, kib: u64) {
        self.says(&format!(
            "MemTotal: {TOTAL_KIB} kB\nMemAvailable: {kib} kB\nDirty: 0 kB\nWriteback: 0 kB\n"
        ));
    }

    /// A command in a namespace with these files, and without those of stalls.
    fn run(&self, program: &Path) -> Command {
        let mut command = Command::new("unshare");
        let script = format!(
            "mount --bind {} /proc/meminfo && mount --bind {} /proc/pressure && exec \"$0\" \"$@\"",
            self.meminfo.display(),
            self.dir.path().join("pressure").display()
        );
        command.args(["--mount", "sh", "-c", &script]).arg(program);
        command
    }
}

const GARBAGE: [&str; 6] = [
    "",
    "\0\0\0\0",
    "MemTotal: 1048576 kB\n",
    "MemTotal: much kB\nMemAvailable: more kB\n",
    "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
    // More of it is available than exists.
    "MemTotal: 1048576 kB\nMemAvailable: 99999999999 kB\n",
];

#[test]
fn what_cannot_be_a_number_of_bytes_never_makes_the_tier_grow_and_is_reported() {
    let Some(kernel) = Kernel::new() else { return eprintln!("left out: nothing can be mounted here") };
    let tier = Tier::of(kernel.run(Path::new(kit::FOREBAY)), "forebay");
    kernel.has_free(0);
    wait_for("the tier has given way", || (tier.capacity() == 0).then_some(()));
    for garbage in GARBAGE {
        kernel.says(garbage);
        let seen = tier.counter("memory_unreadable_total");
        wait_for("the agent has looked some times", || {
            (tier.counter("memory_unreadable_total") > seen + 3).then_some(())
        });
        assert_eq!(tier.capacity(), 0, "{garbage:?}");
        let problems = tier.client.admin().status().unwrap().memory_problems;
        assert!(problems.len() == 1 && problems[0].starts_with("node: "), "{garbage:?}: {problems:?}");
    }
    assert!(tier.says("status").contains("NOT WATCHED, the tier does not grow: node"));
    assert!(tier.says("memory").contains("UNKNOWN, the tier does not grow: node"));
    assert!(tier.says("doctor").contains("cannot read the memory use of node"));
    tier.read();
    kernel.has_free(TOTAL_KIB);
    wait_for("the tier has its memory again", || (tier.capacity() == CAPACITY).then_some(()));
    tier.fill();
    assert!(!tier.says("status").contains("NOT WATCHED"));
}

#[test]
fn an_agent_that_can_never_read_its_memory_use_keeps_the_capacity_that_it_was_given() {
    let Some(kernel) = Kernel::new() else { return eprintln!("left out: nothing can be mounted here") };
    kernel.says("");
    let tier = Tier::of(kernel.run(Path::new(kit::FOREBAY)), "forebay");
    wait_for("the agent has looked", || (tier.counter("memory_unreadable_total") > 3).then_some(()));
    assert_eq!(tier.counter("capacity_changes_total"), 0);
    assert!(tier.says("status").contains("NOT WATCHED"));
    assert!(tier.client.open(&tier.file).unwrap().resident_bytes() == FILE);
}

#[test]
fn without_reports_of_stalls_the_agent_samples() {
    let Some(kernel) = Kernel::new() else { return eprintln!("left out: nothing can be mounted here") };
    let tier = Tier::of(kernel.run(Path::new(kit::FOREBAY)), "forebay");
    let status = tier.client.admin().memory().unwrap();
    assert!(!status.alarms.iter().any(|alarm| alarm.contains("stalls (/proc")), "{status:?}");
    let doctor = tier.says("doctor");
    assert!(!status.alarms.is_empty() || doctor.contains("the kernel reports no stalls"), "{doctor}");
    kernel.has_free(0);
    wait_for("the tier has given way", || (tier.capacity() == 0).then_some(()));
    assert_eq!(tier.counter("memory_alarms_total"), 0);
}

#[test]
fn reports_of_a_service_manager_wake_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("pressure");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut up = Command::new(kit::FOREBAY);
    up.env("MEMORY_PRESSURE_WATCH", &fifo);
    let tier = Tier::of(up, "forebay");
    let name = format!("service manager ({})", fifo.display());
    wait_for("the agent watches the FIFO", || {
        tier.client.admin().memory().unwrap().alarms.contains(&name).then_some(())
    });
    for reports in 1..4 {
        let before = tier.counter("memory_alarms_total");
        std::fs::write(&fifo, [b'x'; 3]).unwrap();
        wait_for("the agent has heard it", || (tier.counter("memory_alarms_total") > before).then_some(()));
        assert!(tier.says("doctor").contains(&name), "report {reports}");
    }
    assert_eq!(tier.capacity(), CAPACITY, "there was memory enough");
}

#[test]
fn a_service_manager_may_turn_reports_of_stalls_off() {
    let mut up = Command::new(kit::FOREBAY);
    up.env("MEMORY_PRESSURE_WATCH", "/dev/null");
    let tier = Tier::of(up, "forebay");
    let status = tier.client.admin().memory().unwrap();
    assert!(!status.alarms.iter().any(|alarm| alarm.starts_with("stalls")), "{status:?}");
}
