//! HPC jobs: a program reports its I/O phases, so that prefetches for analytics jobs do not disturb
//! them.
//!
//! One process speaks for the job, for instance rank 0. It opens an [`HpcJob`], and reports when a
//! phase begins, how many bytes it has moved, and when it ends. The job lives as long as its
//! connection, so that the job of a program that dies disappears. Nothing here is on the path of
//! the program's I/O: without an agent the calls fail, and the program continues.

use crate::session::{Client, lock, misfit, unexpected};
use forebay_pfs::layout;
use forebay_wire::cluster::{Answer, Question};
use forebay_wire::{Burst, Channel, HpcStatus, PlanLog, Reply, Request};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What a program declares of its job. `HpcJobOptions::named` has the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HpcJobOptions {
    /// For people; programs of one user that use the same name are one job.
    pub name: String,
    /// How much longer than alone a phase may take, in thousandths.
    pub allowance_permille: u32,
    /// Processes of the job.
    pub processes: u32,
    /// Its phases wait for those of other jobs, as `cluster.access` says.
    pub shares: bool,
    /// I/O time of a phase alone; zero: to be learnt.
    pub io: Duration,
    /// Compute time between phases; the first phase is expected after as long.
    pub compute: Duration,
    /// Phases that it will have; 0: unknown.
    pub phases: u32,
    /// Phases of an earlier run, in their order, 24 at most. What they teach of the job's speed
    /// counts until this run teaches more, and its rhythm counts from the first phase on.
    pub earlier: Vec<Burst>,
}

impl HpcJobOptions {
    /// A job of one process that allows its phases 5 % more time than they take alone, which is to
    /// be learnt.
    pub fn named(name: &str) -> Self {
        HpcJobOptions {
            name: name.to_owned(),
            allowance_permille: 50,
            processes: 1,
            shares: false,
            io: Duration::ZERO,
            compute: Duration::ZERO,
            phases: 0,
            earlier: Vec::new(),
        }
    }
}

/// An HPC job; it ends when this is dropped. Threads may share it.
#[derive(Debug)]
pub struct HpcJob {
    channel: Mutex<Channel>,
    patience: Duration,
}

/// Longest wait for the tools of a PFS that is asked for the servers of a file by path.
const LAYOUT_TIME: Duration = Duration::from_secs(5);

/// The servers of the first `bytes` of a file; none if the PFS does not report them.
fn servers_of(path: &Path, bytes: u64) -> io::Result<Vec<String>> {
    // A program may not always read what it may write.
    let open = |flags| rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    let file = open(OFlags::RDONLY).or_else(|_| open(OFlags::WRONLY)).map_err(|e| {
        let e = io::Error::from(e);
        io::Error::new(e.kind(), format!("open {}: {e}", path.display()))
    })?;
    let by_path = || {
        let whole = std::fs::canonicalize(path).ok()?;
        layout::probe_paths(&[&whole], Instant::now() + LAYOUT_TIME).pop()?
    };
    let found =
        layout::probe_servers(file.as_fd()).filter(|found| !found.servers.is_empty()).or_else(by_path);
    let Some(found) = found else { return Ok(Vec::new()) };
    let servers: Vec<String> = found.servers_of(bytes).map(str::to_owned).collect();
    Ok(if servers.iter().any(String::is_empty) { Vec::new() } else { servers })
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Client {
    /// Opens an HPC job at this node's agent.
    ///
    /// # Errors
    /// No agent, or it refused: what is declared is impossible, or there are too many jobs.
    pub fn open_hpc_job(&self, options: &HpcJobOptions) -> io::Result<HpcJob> {
        let channel = self.session.connect_to_agent()?;
        let job = HpcJob { channel: Mutex::new(channel), patience: self.session.config.deadline };
        job.ask(&Request::HpcOpen(forebay_wire::Declared {
            name: options.name.clone(),
            user: 0,
            allowance_permille: options.allowance_permille,
            weight: options.processes,
            shares: options.shares,
            io_ns: ns(options.io),
            compute_ns: ns(options.compute),
            phases: options.phases,
            earlier: options.earlier.clone(),
        }))?;
        Ok(job)
    }

    /// The HPC jobs that this node knows: its own, and the phases under way on others.
    ///
    /// # Errors
    /// No agent.
    pub fn hpc_jobs(&self) -> io::Result<Vec<HpcStatus>> {
        match self.ask_aside(&Request::HpcJobs)? {
            Reply::HpcJobs(jobs) => Ok(jobs),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Where the agent's mounts are.
    ///
    /// # Errors
    /// No agent.
    pub fn mount_roots(&self) -> io::Result<Vec<OsString>> {
        let mounts = self.session.mounts()?;
        Ok(mounts.iter().map(|mount| OsString::from_vec(mount.root.clone())).collect())
    }

    /// The coordinator's latest `most` decisions and I/O phases.
    ///
    /// # Errors
    /// No agent, or no coordinator that answers.
    pub fn plans(&self, most: u32) -> io::Result<PlanLog> {
        match self.ask_coordinator(Question::Plans { most })? {
            Answer::Plans(log) => Ok(log),
            answer => Err(misfit(&answer)),
        }
    }
}

impl HpcJob {
    /// Declares the files, which exist, to which the next phases write, each with the number of
    /// bytes from its start (0: the whole file): a job that shares waits only for jobs that write
    /// to the same servers. A file whose servers the PFS does not report makes that unknown, and so
    /// does an empty list: then the job waits for all.
    ///
    /// # Errors
    /// A file cannot be opened; they are on too many servers; the agent is gone.
    pub fn writes_to(&self, files: &[(&Path, u64)]) -> io::Result<()> {
        let mut servers = BTreeSet::new();
        for (path, bytes) in files {
            let found = servers_of(path, *bytes)?;
            if found.is_empty() {
                servers.clear();
                break;
            }
            servers.extend(found);
        }
        self.ask(&Request::HpcServers(servers.into_iter().collect()))
    }

    /// Begins an I/O phase of `bytes` (0: unknown), which has to be done within `deadline` (zero:
    /// from what the job allows and what is known of it). If the job shares, this waits until it
    /// may write, but not for longer than `cluster.access_wait_s`, and not without a coordinator.
    ///
    /// # Errors
    /// A phase is under way; the agent is gone.
    pub fn phase_begin(&self, bytes: u64, deadline: Duration) -> io::Result<()> {
        loop {
            match self.answer(&Request::HpcBegin { bytes, deadline_ns: ns(deadline) })? {
                Reply::Waits => {}
                Reply::Done => return Ok(()),
                reply => return Err(unexpected(&reply)),
            }
        }
    }

    /// Reports that the phase has moved `bytes` since it began. Does not wait for the agent.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn phase_progress(&self, bytes: u64) -> io::Result<()> {
        lock(&self.channel).send(&Request::HpcProgress { bytes }, &[])
    }

    /// Ends the phase.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn phase_end(&self) -> io::Result<()> {
        self.ask(&Request::HpcEnd)
    }

    /// The memory in which the observer library counts the job's I/O, for the program's own use of
    /// `forebay run`.
    ///
    /// # Errors
    /// The agent cannot observe, or is gone.
    pub fn observe(&self) -> io::Result<OwnedFd> {
        let channel = lock(&self.channel);
        channel.send(&Request::HpcObserve, &[])?;
        let mut received = channel.recv::<Reply>(Some(Instant::now() + self.patience))?;
        match (received.message, received.fds.pop()) {
            (Reply::Observed { .. }, Some(fd)) => Ok(fd),
            (reply, _) => Err(unexpected(&reply)),
        }
    }

    /// An answer may come half a second later than that of other requests: an agent waits until the
    /// job is let in.
    fn answer(&self, request: &Request) -> io::Result<Reply> {
        let channel = lock(&self.channel);
        channel.send(request, &[])?;
        let patience = self.patience + Duration::from_millis(500);
        Ok(channel.recv::<Reply>(Some(Instant::now() + patience))?.message)
    }

    fn ask(&self, request: &Request) -> io::Result<()> {
        match self.answer(request)? {
            Reply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }
}
