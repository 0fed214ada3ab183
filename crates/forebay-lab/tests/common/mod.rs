//! A slow file system for a test: temporary directories, a child process, and a loud failure where
//! FUSE is missing.
#![allow(dead_code)] // each test program uses its part

use std::path::{Path, PathBuf};

use forebay_lab::fixture::SlowFsProcess;
use forebay_lab::slowfs::{Config, Stats};
use tempfile::TempDir;

/// A mounted file system and where its parts are.
pub struct Lab {
    process: Option<SlowFsProcess>,
    dirs: TempDir,
}

/// True if the user said so by `FOREBAY_SKIP_FUSE=1`; without `/dev/fuse` and without that, tests
/// fail.
pub fn skipped() -> bool {
    let skip = std::env::var_os("FOREBAY_SKIP_FUSE").is_some_and(|value| value == "1");
    if skip {
        eprintln!("skipped: FOREBAY_SKIP_FUSE=1");
    }
    skip
}

/// The example program that cargo builds for `cargo test -p forebay-lab`.
pub fn program() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let program = here.parent().unwrap().parent().unwrap().join("examples/slowfs");
    assert!(program.is_file(), "{} is missing: cargo build -p forebay-lab --examples", program.display());
    program
}

impl Lab {
    /// No limit, no latency, whatever `change` says; `None` if tests with FUSE are left out.
    pub fn start(change: impl FnOnce(&mut Config)) -> Option<Self> {
        if skipped() {
            return None;
        }
        let dirs = tempfile::tempdir().unwrap();
        for dir in ["backing", "mount"] {
            std::fs::create_dir(dirs.path().join(dir)).unwrap();
        }
        let mut config = Config::new(dirs.path().join("backing"), dirs.path().join("mount"));
        config.rate_bytes_per_s = None;
        config.latency_ns = 0;
        change(&mut config);
        let process = SlowFsProcess::start(&program(), &[], &config);
        let process = process.unwrap_or_else(|error| {
            panic!("{error}\nthese tests need root and /dev/fuse; FOREBAY_SKIP_FUSE=1 leaves them out")
        });
        Some(Self { process: Some(process), dirs })
    }

    /// A path on the mount.
    pub fn at(&self, name: &str) -> PathBuf {
        self.mount().join(name)
    }

    /// The same path in the backing directory.
    pub fn behind(&self, name: &str) -> PathBuf {
        self.dirs.path().join("backing").join(name)
    }

    pub fn mount(&self) -> &Path {
        self.process().mount()
    }

    pub fn process(&self) -> &SlowFsProcess {
        self.process.as_ref().unwrap()
    }

    pub fn stats(&self) -> Stats {
        self.process().stats().unwrap()
    }

    pub fn fault(&self, spec: &str) {
        self.process().fault(spec).unwrap();
    }

    /// SIGTERM; fails the test unless the mount ends cleanly. The directories stay until the result
    /// is dropped.
    pub fn stop(mut self) -> TempDir {
        self.process.take().unwrap().stop().unwrap();
        std::mem::replace(&mut self.dirs, tempfile::tempdir().unwrap())
    }
}

/// Bytes in which every position is recognisable.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut bytes: Vec<u8> = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
