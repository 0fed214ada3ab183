//! Queries and changes the state of an agent; unlike reads, these calls fail without one.

use crate::session::{Client, unexpected};
use forebay_wire::{CachedFile, Limit, MemoryStatus, Reply, Request, Status};
use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Releasing a large tier takes time; nothing else here does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Requests to an agent.
#[derive(Clone, Copy, Debug)]
pub struct Admin<'a> {
    client: &'a Client,
}

impl Client {
    /// Requests to the agent itself.
    pub fn admin(&self) -> Admin<'_> {
        Admin { client: self }
    }
}

impl Admin<'_> {
    /// On a connection of its own: no warning, no waiting because an earlier read has failed.
    fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<Reply> {
        let channel = self.client.session.connect_to_agent()?;
        channel.send(request, fds)?;
        let answer = channel.recv_reply(Some(Instant::now() + PATIENCE));
        Ok(answer.map_err(|e| self.client.session.in_words(&e))?.message)
    }

    fn ask_with_file(&self, request: &Request, path: &Path) -> io::Result<Reply> {
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
        self.ask(request, &[file.as_fd()])
    }

    fn evicted(reply: Reply) -> io::Result<u64> {
        match reply {
            Reply::Evicted { bytes, .. } => Ok(bytes),
            reply => Err(unexpected(&reply)),
        }
    }

    fn done(reply: Reply) -> io::Result<()> {
        match reply {
            Reply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// State and counters.
    ///
    /// # Errors
    /// No agent.
    pub fn status(&self) -> io::Result<Status> {
        match self.ask(&Request::Status, &[])? {
            Reply::Status(status) => Ok(*status),
            reply => Err(unexpected(&reply)),
        }
    }

    /// How the tier gives way to compute.
    ///
    /// # Errors
    /// No agent.
    pub fn memory(&self) -> io::Result<MemoryStatus> {
        match self.ask(&Request::Memory, &[])? {
            Reply::Memory(status) => Ok(*status),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Cached files; those of other users only for the operator.
    ///
    /// # Errors
    /// No agent.
    pub fn list(&self) -> io::Result<Vec<CachedFile>> {
        let channel = self.client.session.connect_to_agent()?;
        let mut all: Vec<CachedFile> = Vec::new();
        loop {
            let after = all.last().map_or(0, |f| f.copy);
            channel.send(&Request::List { after }, &[])?;
            match channel.recv::<Reply>(Some(Instant::now() + PATIENCE))?.message {
                Reply::List { files, more } => {
                    all.extend(files);
                    if !more {
                        return Ok(all);
                    }
                }
                reply => return Err(unexpected(&reply)),
            }
        }
    }

    /// Releases one file; returns the bytes.
    ///
    /// # Errors
    /// No agent; the file cannot be opened; it is pinned.
    pub fn evict(&self, path: &Path) -> io::Result<u64> {
        Self::evicted(self.ask_with_file(&Request::EvictFile, path)?)
    }

    /// Releases all that is not pinned; returns the bytes.
    ///
    /// # Errors
    /// No agent; not the operator.
    pub fn evict_all(&self) -> io::Result<u64> {
        Self::evicted(self.ask(&Request::EvictAll, &[])?)
    }

    /// Keeps a whole file once it is in the tier, or no longer.
    ///
    /// # Errors
    /// No agent; the file cannot be opened; too much is pinned already.
    pub fn pin(&self, path: &Path, on: bool) -> io::Result<()> {
        Self::done(self.ask_with_file(&Request::PinFile(on), path)?)
    }

    /// Lets a pinned copy go by its number in [`Admin::list`]: its file may be gone.
    ///
    /// # Errors
    /// No agent; another user has pinned it.
    pub fn unpin_copy(&self, copy: u64) -> io::Result<()> {
        Self::done(self.ask(&Request::UnpinCopy(copy), &[])?)
    }

    /// Changes the capacity; returns the released bytes.
    ///
    /// # Errors
    /// No agent; not the operator; more than the tier's tmpfs can hold.
    pub fn set_capacity(&self, bytes: u64) -> io::Result<u64> {
        Self::evicted(self.ask(&Request::SetCapacity { bytes }, &[])?)
    }

    /// Ends the agent.
    ///
    /// # Errors
    /// No agent; not the operator.
    pub fn shutdown(&self) -> io::Result<()> {
        Self::done(self.ask(&Request::Shutdown, &[])?)
    }

    /// Limits the rate of jobs, or lifts the limit: of jobs of `user`, or without one of the
    /// sender, or of any user if the operator asks.
    ///
    /// # Errors
    /// No agent; another user's jobs; too many limits; or no coordinator answers, and only this
    /// node has it.
    pub fn set_limit(&self, job: &str, user: Option<u32>, rate_bytes_per_s: Option<u64>) -> io::Result<()> {
        Self::done(self.ask(&Request::SetLimit { job: job.into(), user, rate_bytes_per_s }, &[])?)
    }

    /// The rate limits; those of other users' jobs only for the operator.
    ///
    /// # Errors
    /// No agent.
    pub fn limits(&self) -> io::Result<Vec<Limit>> {
        match self.ask(&Request::Limits, &[])? {
            Reply::Limits(limits) => Ok(limits),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Changes what the agent or the coordinator logs; an empty filter only asks. Returns the
    /// filter in force.
    ///
    /// # Errors
    /// No agent; not the operator; no filter.
    pub fn set_log(&self, filter: &str, at_coordinator: bool) -> io::Result<String> {
        Self::text(self.ask(&Request::SetLog { filter: filter.into(), at_coordinator }, &[])?)
    }

    /// The latest lines of the agent's log.
    ///
    /// # Errors
    /// No agent; not the operator.
    pub fn last_log(&self) -> io::Result<String> {
        Self::text(self.ask(&Request::LastLog, &[])?)
    }

    fn text(reply: Reply) -> io::Result<String> {
        match reply {
            Reply::Text(text) => Ok(text),
            reply => Err(unexpected(&reply)),
        }
    }
}
