//! `forebay profile` measures a slow file system, writes a profile that the program accepts, and
//! leaves no files behind, even when it is interrupted.
//!
//! The slow file system serves reads and writes from one queue, so they disturb each other by its
//! own rule and not by the machine's speed. Needs root and /dev/fuse; FOREBAY_SKIP_FUSE=1 leaves
//! these tests out.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod kit;

use forebay_lab::fixture::SlowFsProcess;
use forebay_lab::slowfs::Config;
use kit::{FOREBAY, wait_for};
use std::path::Path;
use std::process::{Command, Stdio};

/// One server of 40 MB/s; `None` if the user wants no tests with FUSE.
fn slow(directory: &Path) -> Option<SlowFsProcess> {
    if std::env::var_os("FOREBAY_SKIP_FUSE").is_some_and(|value| value == "1") {
        eprintln!("skipped: FOREBAY_SKIP_FUSE=1");
        return None;
    }
    let (backing, mount) = (directory.join("backing"), directory.join("mount"));
    std::fs::create_dir(&backing).unwrap();
    std::fs::create_dir(&mount).unwrap();
    let config = Config {
        servers: 1,
        rate_bytes_per_s: Some(40_000_000),
        direct_io: true,
        ..Config::new(backing, mount)
    };
    Some(SlowFsProcess::start(Path::new(FOREBAY), &["lab"], &config).unwrap())
}

fn profile(mount: &Path, bytes: &str) -> Command {
    let mut command = Command::new(FOREBAY);
    command.arg("profile").arg(mount).args(["--nodes", "2", "--threads", "2", "--writers", "1"]);
    command.args(["--bytes", bytes, "--writer-bytes", "4MiB", "--runs", "3"]);
    command
}

#[test]
fn a_profile_is_measured_and_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let Some(slow) = slow(directory.path()) else { return };
    let (file, plot) = (directory.path().join("profile.toml"), directory.path().join("profile.svg"));
    let out = profile(slow.mount(), "8MiB")
        .arg("--json")
        .arg("--output")
        .arg(&file)
        .arg("--plot")
        .arg(&plot)
        .output();
    let out = out.unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let settings = report["settings"].as_array().unwrap();
    let pairs: Vec<_> = settings.iter().map(|s| (s["nodes"].as_u64(), s["threads"].as_u64())).collect();
    assert_eq!(pairs, [(Some(1), Some(1)), (Some(2), Some(1)), (Some(1), Some(2))], "n + m - 1 settings");
    // One queue: with readers that never stop, writers get a part of it only.
    let most = settings.iter().map(|s| s["i_hpc"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!(most > 1.2, "no interference was measured: {report:#}");
    // The file is what the coordinator reads.
    let config = directory.path().join("config.toml");
    let text = format!(
        "[cluster]\nprofile = \"{}\"\n[[mount]]\nlabel = \"a\"\nroot = \"{}\"\n",
        file.display(),
        slow.mount().display()
    );
    std::fs::write(&config, text).unwrap();
    let check = Command::new(FOREBAY).args(["config", "check"]).arg(&config).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    assert!(std::fs::read_to_string(&plot).unwrap().starts_with("<svg"));
    assert_eq!(std::fs::read_dir(slow.mount()).unwrap().count(), 0, "files remain");
    slow.stop().unwrap();
}

#[test]
fn an_interrupted_measurement_leaves_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let Some(slow) = slow(directory.path()) else { return };
    // More than it writes in half a minute.
    let mut command = profile(slow.mount(), "1GiB");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    wait_for("it has begun", || std::fs::read_dir(slow.mount()).unwrap().count() > 0);
    // SAFETY: a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(slow.mount()).unwrap().count(), 0, "files remain");
    slow.stop().unwrap();
}
