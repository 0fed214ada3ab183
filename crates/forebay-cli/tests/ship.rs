//! The part of a shipped application on one storage server: its limits, and that they and its
//! processes go, whichever process dies. Spark is a script here that sleeps; `make
//! experiment-shipping` runs real applications. Needs root and control groups; otherwise the tests
//! are skipped.

#![allow(clippy::unwrap_used)] // helpers of tests: a failed unwrap is a failed test

mod kit;

use kit::{PATIENCE, state, wait_or};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A guard with its group.
struct Part {
    directory: tempfile::TempDir,
    name: String,
    guard: Child,
}

impl Part {
    /// `None` if this machine has no control groups for it.
    fn start(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("spark-class"), "#!/bin/sh\nexec sleep 600\n").unwrap();
        fs::set_permissions(bin.join("spark-class"), fs::Permissions::from_mode(0o755)).unwrap();
        // The worker itself stands for a storage daemon that is idle.
        let config = format!(
            "[ship]\nuser = \"root\"\ncores = 1.0\nfloor = \"20%\"\ndaemons = [\"sleep\"]\nwork_dir = \"{}\"\n",
            directory.path().join("work").display()
        );
        fs::write(directory.path().join("forebay.toml"), config).unwrap();
        let name = format!("{test}{}", std::process::id());
        let guard = command(directory.path(), &name).spawn().unwrap();
        let mut part = Part { directory, name, guard };
        let is_up = |part: &Part| part.cores() >= Some(0.2) && !part.workers().is_empty();
        let began = Instant::now();
        while !is_up(&part) {
            if let Some(status) = part.guard.try_wait().unwrap() {
                let said = std::io::read_to_string(part.guard.stderr.take().unwrap()).unwrap();
                assert!(std::env::var_os("FOREBAY_REQUIRE_LAB").is_none(), "{status}: {said}");
                eprintln!("skipped: {said}");
                return None;
            }
            assert!(began.elapsed() < PATIENCE, "the guard starts nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(part)
    }

    /// Directories of the group in all hierarchies.
    fn groups(&self) -> Vec<PathBuf> {
        let roots = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
        let all = roots.chain([PathBuf::from("/sys/fs/cgroup")]);
        all.map(|root| root.join(format!("forebay-ship-{}", self.name)))
            .filter(|group| group.is_dir())
            .collect()
    }

    /// Cores that the group may use now.
    fn cores(&self) -> Option<f64> {
        let files = ["cpu.max", "cpu.cfs_quota_us"];
        let paths = self.groups().into_iter().flat_map(|group| files.map(|file| group.join(file)));
        let quota = paths.filter_map(|path| fs::read_to_string(path).ok()).next()?;
        Some(quota.split_whitespace().next()?.parse::<f64>().ok()? / 1e5)
    }

    fn workers(&self) -> Vec<u32> {
        let groups = self.groups();
        let text = groups.first().and_then(|group| fs::read_to_string(group.join("cgroup.procs")).ok());
        text.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn controller(&self) -> Option<i32> {
        let children = format!("/proc/{0}/task/{0}/children", self.guard.id());
        let children = fs::read_to_string(children).unwrap();
        let is_controller = |pid: &&str| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("\0control\0"))
        };
        children.split_whitespace().find(is_controller)?.parse().ok()
    }

    fn wait_for(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        wait_or(what, || condition(self), || format!("cores: {:?}", self.cores()));
    }

    fn assert_gone(&self, workers: &[u32]) {
        self.wait_for("the group is gone", |part| part.groups().is_empty());
        let work = self.directory.path().join("work").join(&self.name);
        self.wait_for("the local files are gone", |_| !work.exists());
        assert!(workers.iter().all(|pid| [' ', 'Z'].contains(&state(*pid))));
    }
}

/// The guard of an application, with the configuration in `directory`.
fn command(directory: &Path, name: &str) -> Command {
    let mut guard = Command::new(env!("CARGO_BIN_EXE_forebay"));
    guard.args(["ship-host", "run", "--name", name, "--host", "here", "--master", "spark://here:1"]);
    guard.arg("--spark-home").arg(directory).arg("--config").arg(directory.join("forebay.toml"));
    guard.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    guard
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let stop = ["ship-host", "stop", "--name", &self.name];
        let _ = Command::new(env!("CARGO_BIN_EXE_forebay")).args(stop).stdout(Stdio::null()).status();
        let _ = self.guard.kill();
        let _ = self.guard.wait();
    }
}

fn kill(pid: i32) {
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

#[test]
fn limits_grow_beside_an_idle_daemon_and_fall_when_the_controller_is_killed() {
    let Some(part) = Part::start("controller") else { return };
    part.wait_for("the limits grow", |part| part.cores().is_some_and(|cores| cores > 0.25));
    let controller = part.controller().unwrap();
    kill(controller);
    part.wait_for("the limits are at the floor", |part| part.cores() == Some(0.2));
    part.wait_for("there is another controller", |part| {
        part.controller().is_some_and(|other| other != controller)
    });
    part.wait_for("the limits grow again", |part| part.cores().is_some_and(|cores| cores > 0.2));
}

#[test]
fn everything_goes_when_the_guard_is_killed() {
    let Some(mut part) = Part::start("guard") else { return };
    let workers = part.workers();
    part.wait_for("there is a controller", |part| part.controller().is_some());
    part.guard.kill().unwrap();
    part.guard.wait().unwrap();
    part.assert_gone(&workers);
}

#[test]
fn everything_goes_when_the_submitter_has_ended() {
    let Some(mut part) = Part::start("input") else { return };
    let workers = part.workers();
    drop(part.guard.stdin.take());
    assert!(part.guard.wait().unwrap().success());
    part.assert_gone(&workers);
}

#[test]
fn a_second_application_is_refused_and_the_first_goes_on() {
    let Some(part) = Part::start("first") else { return };
    let second = command(part.directory.path(), &format!("second{}", std::process::id()));
    let refused = { second }.output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("another application runs on here"), "{said}");
    assert!(!part.workers().is_empty());
}

#[test]
fn a_submitter_that_reads_nothing_does_not_stop_the_limits() {
    let Some(part) = Part::start("unread") else { return };
    // It holds fewer events than the limits have steps to there.
    let pipe = part.guard.stdout.as_ref().unwrap();
    assert_eq!(rustix::pipe::fcntl_setpipe_size(pipe, 4096).unwrap(), 4096);
    part.wait_for("the limits grow", |part| part.cores().is_some_and(|cores| cores > 0.6));
    kill(part.controller().unwrap());
    part.wait_for("the limits are at the floor", |part| part.cores() == Some(0.2));
}

#[test]
fn one_command_ends_it_at_once() {
    let Some(mut part) = Part::start("stop") else { return };
    let workers = part.workers();
    let stop = ["ship-host", "stop", "--name", &part.name];
    let stopped = Command::new(env!("CARGO_BIN_EXE_forebay")).args(stop).output().unwrap();
    assert!(stopped.status.success());
    assert!(String::from_utf8_lossy(&stopped.stdout).contains(&format!("ended {}", part.name)));
    // Waiting would close its standard input, which ends it in order.
    let _input = part.guard.stdin.take();
    assert_eq!(part.guard.wait().unwrap().code(), Some(1), "the submitter hears of it");
    part.assert_gone(&workers);
}
