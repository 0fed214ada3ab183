//! Loads files into the tier on request, with true progress.

use crate::session::{Client, unexpected};
use forebay_wire::{Channel, LoadProgress, MAX_FDS, Refusal, Reply, Request};
use rustix::fs::{Advice, Mode, OFlags, fadvise, open};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a load waits for other loads of its user while the agent accepts none of its files.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A file that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadFailure {
    /// Its path; empty if the agent has only counted it.
    pub path: PathBuf,
    /// Error number, 0 if there is none.
    pub errno: i32,
    /// Why.
    pub message: String,
}

/// A load in progress, on a connection of its own: dropping this cancels it.
#[derive(Debug)]
pub struct Load {
    channel: Channel,
    deadline: Duration,
    /// Paths by number, to name failures.
    paths: Vec<PathBuf>,
    batch: Vec<OwnedFd>,
    failures: Vec<LoadFailure>,
    progress: LoadProgress,
    /// Files that never reached the agent.
    failed_to_open: u64,
    sent: u64,
}

impl Client {
    /// Begins a load, limited to `rate_bytes_per_s` (0: not limited).
    ///
    /// # Errors
    /// No agent, or it refused.
    pub fn load(&self, rate_bytes_per_s: u64) -> io::Result<Load> {
        let deadline = self.session.config.deadline;
        let channel = self.session.connect_to_agent()?;
        channel.send(&Request::LoadBegin { rate_bytes_per_s }, &[])?;
        let load = Load {
            channel,
            deadline,
            paths: Vec::new(),
            batch: Vec::new(),
            failures: Vec::new(),
            progress: LoadProgress::default(),
            failed_to_open: 0,
            sent: 0,
        };
        match load.answer()? {
            Reply::Done => Ok(load),
            reply => Err(unexpected(&reply)),
        }
    }
}

impl Load {
    fn answer(&self) -> io::Result<Reply> {
        // Polls wait at the agent for up to ten seconds.
        let limit = self.deadline + Duration::from_secs(10);
        Ok(self.channel.recv::<Reply>(Some(Instant::now() + limit))?.message)
    }

    /// Adds a file. One that cannot be opened is a failure of that file, not of the load.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn add(&mut self, path: &Path) -> io::Result<()> {
        match open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
            Ok(fd) => {
                // The agent reads with large reads of its own; read-ahead would fetch some bytes
                // twice.
                let _ = fadvise(&fd, 0, None, Advice::Random);
                self.batch.push(fd);
                self.paths.push(path.to_owned());
            }
            Err(e) => {
                self.failed_to_open += 1;
                let failure =
                    LoadFailure { path: path.to_owned(), errno: e.raw_os_error(), message: e.to_string() };
                self.failures.push(failure);
            }
        }
        if self.batch.len() == MAX_FDS { self.flush() } else { Ok(()) }
    }

    /// Sends the files gathered so far; waits while the agent has enough to do.
    ///
    /// # Errors
    /// The agent is gone, or refuses.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut idle_since = None;
        while !self.batch.is_empty() {
            let fds: Vec<_> = self.batch.iter().map(AsFd::as_fd).collect();
            self.channel.send(&Request::LoadFiles { first_index: self.sent }, &fds)?;
            match self.answer()? {
                Reply::Done => {
                    self.sent += self.batch.len() as u64;
                    self.batch.clear();
                    idle_since = None;
                }
                reply @ Reply::Refused(Refusal::TooMany(_)) => {
                    // A load with nothing to do waits for others of the same user, within bounds.
                    let idle = self.poll(Duration::from_millis(5))?.idle;
                    let since = idle.then(|| *idle_since.get_or_insert_with(Instant::now));
                    if since.is_some_and(|since| since.elapsed() > IDLE_MAX) {
                        return Err(unexpected(&reply));
                    }
                    std::thread::sleep(Duration::from_millis(if idle { 5 } else { 0 }));
                }
                reply => return Err(unexpected(&reply)),
            }
        }
        Ok(())
    }

    /// How far the load is, waiting up to `limit` for it to end. `files_done` counts those that
    /// could not be opened.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn poll(&mut self, limit: Duration) -> io::Result<LoadProgress> {
        let wait_ms = limit.as_millis().min(10_000) as u32;
        self.channel.send(&Request::LoadPoll { wait_ms }, &[])?;
        match self.answer()? {
            Reply::Load(progress) => {
                self.take(progress);
                let files_done = self.progress.files_done + self.failed_to_open;
                Ok(LoadProgress { files_done, ..self.progress.clone() })
            }
            reply => Err(unexpected(&reply)),
        }
    }

    fn take(&mut self, mut progress: LoadProgress) {
        for (index, errno, message) in progress.failures.drain(..) {
            let path =
                usize::try_from(index).ok().and_then(|i| self.paths.get(i)).cloned().unwrap_or_default();
            self.failures.push(LoadFailure { path, errno, message });
        }
        self.progress = progress;
    }

    /// Files that failed so far.
    pub fn failures(&self) -> &[LoadFailure] {
        &self.failures
    }

    /// Ends the load; what is not fetched yet is forgotten.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn cancel(mut self) -> io::Result<LoadProgress> {
        self.channel.send(&Request::LoadCancel, &[])?;
        match self.answer()? {
            Reply::Load(progress) => {
                self.take(progress);
                Ok(self.progress)
            }
            reply => Err(unexpected(&reply)),
        }
    }
}
