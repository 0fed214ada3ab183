//! The process around a mount: says `ready`, writes counters if asked to, and ends on SIGTERM,
//! SIGINT or an `umount`.
//!
//! Signals are blocked before the first thread starts and read from a descriptor, so they interrupt
//! nothing and the ordinary code below handles them, together with the other two things that can
//! happen: the time for the next line of counters, and the end of the session.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Config, Mounted};
use crate::LabError;

/// Where and how often to write the counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsLog {
    /// One JSON object a line: `{"elapsed_ns": ..., "unix_ns": ..., "stats": {...}}`.
    pub path: PathBuf,
    /// Time between lines; the last line is written at the end.
    pub interval: Duration,
}

/// Mounts, prints `ready` on stdout and serves until told to stop. Call it before the process has
/// threads.
///
/// # Errors
/// Those of [`Mounted::start`] and [`Mounted::stop`]; a file for the counters that cannot be
/// written.
pub fn serve(config: &Config, log: Option<&StatsLog>) -> Result<(), LabError> {
    let signals =
        block_signals().map_err(|error| LabError::io("cannot take over SIGTERM and SIGINT", error))?;
    let mut log = log.map(StatsWriter::create).transpose()?;
    act_like_another_machine();
    let mounted = Mounted::start(config)?;
    // Whoever started us may have gone already (a closed pipe): not a reason to stop serving.
    let _ = writeln!(io::stdout(), "ready").and_then(|()| io::stdout().flush());
    loop {
        let wait = log.as_ref().map(StatsWriter::until_next);
        let mut events = [PollFd::new(&signals, PollFlags::IN), PollFd::new(mounted.ended(), PollFlags::IN)];
        match poll(&mut events, wait.map(timespec).as_ref()) {
            Ok(0) => {}
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(LabError::io("cannot wait for signals", error)),
        }
        if let Some(log) = &mut log {
            log.write(&mounted)?;
        }
    }
    if let Some(log) = &mut log {
        log.write(&mounted)?;
    }
    mounted.stop()
}

/// Real storage servers are other machines: what keeps this one busy does not slow them. So we go
/// first here, where we may; at full rate we need a tenth of a core.
fn act_like_another_machine() {
    let _ = rustix::process::setpriority_process(None, -10);
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn timespec(wait: Duration) -> Timespec {
    Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() }
}

struct StatsWriter {
    log: StatsLog,
    file: File,
    start: Instant,
    next: Instant,
}

impl StatsWriter {
    fn create(log: &StatsLog) -> Result<Self, LabError> {
        let file = File::create(&log.path).map_err(|error| Self::failed(log, error))?;
        let now = Instant::now();
        Ok(Self { log: log.clone(), file, start: now, next: now + log.interval })
    }

    fn until_next(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    fn write(&mut self, mounted: &Mounted) -> Result<(), LabError> {
        let now = Instant::now();
        let line = serde_json::json!({
            "elapsed_ns": ns(now.duration_since(self.start)),
            // To lay the line beside what other programs logged.
            "unix_ns": ns(UNIX_EPOCH.elapsed().unwrap_or_default()),
            "stats": mounted.stats(),
        });
        // A late line moves the next one, rather than being made up for by a burst.
        self.next = now + self.log.interval;
        writeln!(self.file, "{line}").map_err(|error| Self::failed(&self.log, error))
    }

    fn failed(log: &StatsLog, error: io::Error) -> LabError {
        LabError::io(format!("cannot write the counters to {}", log.path.display()), error)
    }
}

/// Blocks SIGTERM and SIGINT in this thread and those it will start; they are read from the
/// descriptor instead.
fn block_signals() -> io::Result<OwnedFd> {
    // SAFETY: `set` is initialised by sigemptyset before it is read; all pointers are valid for the
    // calls; the descriptor is checked and owned by nobody else.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        let refused = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if refused != 0 {
            return Err(io::Error::from_raw_os_error(refused));
        }
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
