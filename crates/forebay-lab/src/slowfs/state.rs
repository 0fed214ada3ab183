//! What all requests share: the model, the faults, the counters and the tables; and how an answer
//! is delayed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::FileAttr;
use rustix::fs::Stat;
use rustix::io::Errno;

use super::backing::{Backing, Located, attributes};
use super::fault::{Decision, FaultSet, Op};
use super::handles::{Handles, OpenFile};
use super::nodes::{Nodes, ROOT};
use super::rate::RateModel;
use super::stats::{Counters, Stats};
use super::stripe::{Share, Striping};
use super::timer::Timer;
use super::{Config, Stamps};
use crate::LabError;

fn whole_second(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

/// A time stamp that never changes for a file, long ago, and not a whole second.
fn still(stat: &Stat) -> SystemTime {
    UNIX_EPOCH + Duration::new(1_000_000_000, 1 + (stat.st_ino % 1_000) as u32)
}

/// One mounted file system.
pub struct State {
    pub backing: Backing,
    pub nodes: Nodes,
    pub files: Handles<OpenFile>,
    pub dirs: Handles<Mutex<std::os::fd::OwnedFd>>,
    pub counters: Counters,
    pub timer: Timer,
    pub striping: Striping,
    pub latency_ns: u64,
    pub write_behind_bytes: u64,
    pub ttl: Duration,
    pub direct_io: bool,
    stamps: Stamps,
    rate: Mutex<RateModel>,
    faults: Mutex<FaultSet>,
    /// False almost always: requests then skip the lock and never build a path.
    faulty: AtomicBool,
}

impl State {
    /// # Errors
    /// If the configuration is wrong, or if the backing directory cannot be opened, with the
    /// reason.
    pub fn new(config: &Config) -> Result<Self, LabError> {
        let striping =
            config.striping().map_err(|why| LabError::new(format!("slowfs cannot start: {why}")))?;
        let backing = Backing::open(&config.backing).map_err(|error| {
            LabError::io(format!("cannot open the backing directory {}", config.backing.display()), error)
        })?;
        let timer = Timer::start().map_err(|error| LabError::io("cannot start the timer threads", error))?;
        Ok(Self {
            backing,
            nodes: Nodes::default(),
            files: Handles::default(),
            dirs: Handles::default(),
            counters: Counters::new(config.servers),
            timer,
            striping,
            latency_ns: config.latency_ns,
            write_behind_bytes: config.write_behind_bytes(),
            ttl: Duration::from_nanos(config.attr_ttl_ns),
            direct_io: config.direct_io,
            stamps: config.stamps,
            rate: Mutex::new(RateModel::new(config.servers, config.rate_bytes_per_s)),
            faults: Mutex::default(),
            faulty: AtomicBool::new(false),
        })
    }

    /// Attributes in FUSE's form, with the time stamps that this file system reports.
    pub fn attributes(&self, stat: &Stat) -> Result<FileAttr, Errno> {
        let attr = attributes(stat)?;
        let (mtime, ctime) = match self.stamps {
            Stamps::Exact => (attr.mtime, attr.ctime),
            Stamps::Seconds => (whole_second(attr.mtime), whole_second(attr.ctime)),
            Stamps::Mtime => (attr.mtime, still(stat)),
            Stamps::Still => (still(stat), still(stat)),
        };
        Ok(FileAttr { mtime, ctime, ..attr })
    }

    fn rate(&self) -> MutexGuard<'_, RateModel> {
        // The model is a few integers, valid after each step.
        self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, FaultSet> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides what is to happen to this operation; counts it if a fault strikes.
    pub fn decide(&self, op: Op, path: impl FnOnce() -> Vec<u8>) -> Decision {
        if !self.faulty.load(Ordering::Relaxed) {
            return Decision::default();
        }
        let path = path();
        let mut faults = self.faults();
        let decision = faults.decide(op, &path);
        self.faulty.store(!faults.is_empty(), Ordering::Relaxed);
        drop(faults);
        if decision.is_fault() {
            self.counters.count_fault(op);
        }
        decision
    }

    /// Replaces the faults in force and releases whatever hangs because of the old ones.
    pub fn set_faults(&self, faults: FaultSet) {
        let mut current = self.faults();
        self.faulty.store(!faults.is_empty(), Ordering::Relaxed);
        *current = faults;
        drop(current);
        self.timer.release_parked();
    }

    /// Puts `share` on the servers now and returns when the last byte has passed.
    pub fn charge(&self, share: &Share) -> u64 {
        let mut rate = self.rate();
        rate.submit(self.timer.now_ns(), share)
    }

    /// The limit of each server.
    pub fn rate_bytes_per_s(&self) -> Option<u64> {
        self.rate().rate_bytes_per_s()
    }

    /// Sets the limit of each server from now on.
    pub fn set_rate(&self, rate_bytes_per_s: Option<u64>) {
        let mut rate = self.rate();
        rate.set_rate(self.timer.now_ns(), rate_bytes_per_s);
    }

    /// Runs `job` after `delay_ns`, immediately and in this thread if that is zero.
    pub fn after(&self, delay_ns: u64, job: impl FnOnce() + Send + 'static) {
        if delay_ns == 0 {
            return job();
        }
        self.timer.at(self.timer.now_ns().saturating_add(delay_ns), job);
    }

    /// Holds `job` for `hang_ns`, or until the faults change.
    pub fn hang(&self, hang_ns: u64, job: impl FnOnce() + Send + 'static) {
        self.timer.park(self.timer.now_ns().saturating_add(hang_ns), job);
    }

    /// Finds the backing object of an inode number.
    pub fn locate(&self, ino: u64) -> Result<Located<'_>, Errno> {
        self.backing.locate(&self.nodes, ino)
    }

    /// The likeliest path of an inode, relative to the mount; empty for the root and the unknown.
    pub fn path_of(&self, ino: u64) -> Vec<u8> {
        if ino == ROOT {
            return Vec::new();
        }
        self.nodes.paths(ino).into_iter().next().unwrap_or_default()
    }

    /// All counters and gauges.
    pub fn stats(&self) -> Stats {
        Stats {
            rate_bytes_per_s: self.rate_bytes_per_s(),
            hung_now: self.timer.parked(),
            open_files_now: self.files.len() as u64,
            ..self.counters.snapshot()
        }
    }
}
