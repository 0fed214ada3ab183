//! The process's connection to its node's agent, and its replacement by the PFS without one.
//!
//! Connections are kept in a small pool; each carries one request at a time, so no thread of ours
//! runs in the program. A connection that fails in any way is thrown away with its late answers.
//! After a failure the agent is left alone for a second, so that a program without an agent pays
//! nothing for asking. A forked child starts with an empty pool.

use crate::agent_process::AgentProcess;
use crate::descriptor_place::Place;
use crate::error::{errno, no_agent, out_of_files, with_message};
use crate::fork_safe::OwnLock;
pub(crate) use crate::lock::lock;
use forebay_store::dirty_index::DirtyIndex;
use forebay_store::ring::RingWriter;
use forebay_wire::channel::Peer;
use forebay_wire::{
    Channel, GuestMode, Hello, MAGIC, MountInfo, PROTOCOL, Received, Refusal, Reply, Request, SecondPlace,
    Welcome,
};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// An agent that has died is followed by the next one within this time.
pub(crate) const NO_AGENT_MAX: Duration = Duration::from_secs(15);

/// Pause between attempts to reach it meanwhile.
pub(crate) const NO_AGENT_PAUSE: Duration = Duration::from_millis(100);

/// How long an agent that failed is left alone.
const LEAVE_ALONE: Duration = Duration::from_secs(1);

/// One that did not answer in time is left alone for this many times what it has cost, so that an
/// agent that hangs takes no more than a tenth of a program's time.
const LEAVE_ALONE_TIMES: u32 = 10;

/// Connections kept for later; more threads at a time make their own and close them again.
const POOL_MAX: usize = 4;

/// Settings of a client from outside.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The agent's socket; `None` reads the PFS only.
    pub socket: Option<PathBuf>,
    /// How long a read waits for the agent before it reads the PFS itself.
    pub deadline: Duration,
    /// Users whose agents are believed, besides root and the program's own user.
    pub trusted_uids: Vec<u32>,
    /// An agent that was trusted outside of a user namespace, in which its user cannot be seen.
    pub trusted_agent: Option<AgentProcess>,
    /// Most bytes a reader may ask for ahead of its position, if less than the agent allows; 0:
    /// none.
    pub read_ahead_bytes: Option<u64>,
    /// Where else than in this node's memory what was written to the tier first is when `fsync` or
    /// `close` returns.
    pub second: Option<SecondPlace>,
    /// How the program writes files that are dirty on other nodes.
    pub guest: GuestMode,
    /// Name of the program's job, as given to `forebay run --job`.
    pub job_name: Option<String>,
    /// Number of the batch job that the program runs in: its job, if it has no name.
    pub batch_job: Option<String>,
    /// Say nothing on stderr.
    pub quiet: bool,
    /// Watch open files with inotify, of which a user has few instances. Without a watch, a handle
    /// whose file's attributes change fails with `ESTALE`: for a caller that then reads the PFS.
    pub watches: bool,
    /// What every descriptor that the client keeps passes through.
    pub place: Place,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            socket: None,
            deadline: Duration::from_secs(10),
            trusted_uids: Vec::new(),
            trusted_agent: None,
            read_ahead_bytes: None,
            second: None,
            guest: GuestMode::default(),
            job_name: None,
            batch_job: None,
            quiet: false,
            watches: true,
            place: std::convert::identity,
        }
    }
}

impl ClientConfig {
    /// Reads the environment: `FOREBAY_SOCKET` (a path, or `none`), `FOREBAY_DEADLINE_MS`,
    /// `FOREBAY_TRUST_UID`, `FOREBAY_TRUST_AGENT`, `FOREBAY_COPIES`, `FOREBAY_JOB_NAME`,
    /// `FOREBAY_QUIET=1`, and `SLURM_JOB_ID`, `PBS_JOBID` or `FLUX_JOB_ID`. Without
    /// `FOREBAY_SOCKET` the usual places are looked at: `/run/forebay`, `$XDG_RUNTIME_DIR/forebay`,
    /// `/tmp/forebay-UID`. A set-user-ID program, whose environment is its caller's, ignores all of
    /// them.
    pub fn from_env() -> Self {
        let socket = match variable("FOREBAY_SOCKET") {
            Some(path) if path == "none" => None,
            Some(path) if !path.is_empty() => Some(path.into()),
            _ => Some(usual_socket()),
        };
        let mut config = ClientConfig { socket, ..ClientConfig::default() };
        let number = |name: &str| variable(name)?.to_str()?.parse::<u64>().ok();
        if let Some(ms) = number("FOREBAY_DEADLINE_MS") {
            config.deadline = Duration::from_millis(ms);
        }
        config.trusted_uids.extend(number("FOREBAY_TRUST_UID").and_then(|uid| u32::try_from(uid).ok()));
        config.trusted_agent = variable("FOREBAY_TRUST_AGENT").and_then(|text| text.to_str()?.parse().ok());
        config.second = variable("FOREBAY_COPIES").and_then(|text| second_place(text.to_str()?));
        let name = variable("FOREBAY_JOB_NAME").and_then(|name| name.into_string().ok());
        config.job_name = name.filter(|name| !name.is_empty());
        let batch_job = |name: &str| variable(name)?.into_string().ok().filter(|id| !id.is_empty());
        config.batch_job = ["SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID"].into_iter().find_map(batch_job);
        config.quiet = variable("FOREBAY_QUIET").is_some_and(|v| v == "1");
        config
    }
}

/// Where second copies go, by the value of `FOREBAY_COPIES` or `--copies`: `2` (nodes) or `disk`.
pub fn second_place(copies: &str) -> Option<SecondPlace> {
    match copies {
        "disk" => Some(SecondPlace::Disk),
        number => number.parse::<u64>().ok().filter(|copies| *copies > 1).map(|_| SecondPlace::Node),
    }
}

/// A variable of the environment. A program that has more rights than its caller (set-user-ID,
/// set-group-ID, file capabilities) has none: its caller would choose the agent that it believes.
fn variable(name: &str) -> Option<OsString> {
    // SAFETY: it reads what the kernel has passed to the program.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_secure { None } else { std::env::var_os(name) }
}

/// The first of the usual sockets that exists, else the one an agent of this user would make.
fn usual_socket() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let own = match variable("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("forebay/agent.sock"),
        _ => PathBuf::from(format!("/tmp/forebay-{uid}/agent.sock")),
    };
    let system = PathBuf::from("/run/forebay/agent.sock");
    if system.exists() || (uid == 0 && !own.exists()) { system } else { own }
}

/// A program's access to Forebay; clones share one session.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) session: Arc<Session>,
}

impl Client {
    /// A client with the given configuration. Connects when first needed.
    pub fn new(config: ClientConfig) -> Self {
        Client { session: Arc::new(Session::new(config)) }
    }

    /// The client of this process, configured from the environment. All calls give the same one.
    pub fn from_env() -> Self {
        static PROCESS: OnceLock<Client> = OnceLock::new();
        PROCESS.get_or_init(|| Client::new(ClientConfig::from_env())).clone()
    }

    /// The agent's process, which this process trusts; `None` if `/proc` hides it.
    ///
    /// # Errors
    /// No agent, or one that is not trusted.
    pub fn agent_process(&self) -> io::Result<Option<AgentProcess>> {
        Ok(AgentProcess::of(self.session.connect_to_agent()?.peer()?))
    }

    /// The mounts the agent serves; empty without an agent.
    pub fn mounts(&self) -> Vec<MountInfo> {
        self.session.mounts().map(|m| m.to_vec()).unwrap_or_default()
    }

    /// Whether the agent serves the PFS that `path` (absolute) is on.
    pub fn serves(&self, path: &Path) -> bool {
        self.session.mount_of(path).is_some()
    }

    /// False while the agent is left alone after a failure, or if there is none to be asked: what
    /// is opened now is read from the PFS.
    pub fn may_ask(&self) -> bool {
        self.session.may_ask()
    }

    /// Closes the connections that are not in use. The next request makes new ones.
    pub fn disconnect(&self) {
        self.session.forget();
    }

    /// Whether the job of this process has a rate limit.
    pub fn is_limited(&self) -> bool {
        self.session.is_limited()
    }

    /// Waits until this process may read or write `bytes` of a PFS by itself: immediately, unless
    /// its job has a rate limit.
    pub fn pace(&self, bytes: u64) {
        self.session.pace(bytes);
    }

    /// The agent's socket.
    pub fn socket(&self) -> Option<&Path> {
        self.session.config.socket.as_deref()
    }

    /// Process of the agent, if it speaks another protocol than this library does: it takes no
    /// requests, so only a signal ends it.
    pub fn agent_of_another_protocol(&self) -> Option<i32> {
        let (channel, welcome) = self.session.greet(false, self.session.config.deadline).ok()?;
        let agent = channel.peer().ok()?.pid;
        (!welcome.message.protocol_fits && agent > 0).then_some(agent)
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) config: ClientConfig,
    pool: OwnLock<Pool>,
    mounts: RwLock<Option<Arc<[MountInfo]>>>,
    ring: RwLock<Option<Arc<RingWriter>>>,
    /// Milliseconds since `born` until which the agent is left alone.
    leave_alone_until_ms: AtomicU64,
    /// An agent with dirty files was waited for in vain.
    is_agent_gone: AtomicBool,
    born: Instant,
    warned: AtomicBool,
    /// The connection whose end would end this process's job, and the job's token.
    job: Mutex<Option<(Option<Channel>, String)>>,
    /// The members as they were a moment ago.
    pub(crate) view: crate::cluster_view::KnownView,
    pub(crate) preferred_nodes: crate::cluster_view::GivenPreferred,
    pub(crate) storage: crate::known_storage::KnownStorage,
    /// What may be dirty, and whether there are other nodes.
    pub(crate) dirty: OnceLock<Option<DirtyIndex>>,
    /// What this node does to the files that are open.
    pub(crate) watches: Arc<crate::watch::Watches>,
}

/// A forked child has its own: it shares the parent's connections and must not speak on them.
#[derive(Debug, Default)]
struct Pool {
    idle: Vec<Channel>,
    /// Holds the ring; kept apart so that it is never thrown away for being late.
    anchor: Option<Channel>,
}

/// Longest path of a Unix socket: the kernel's 108 bytes less the zero at the end.
const SOCKET_PATH_MAX: usize = 107;

impl Session {
    fn new(config: ClientConfig) -> Self {
        let watches = Arc::new(crate::watch::Watches::new(config.place));
        Session {
            config,
            pool: OwnLock::default(),
            mounts: RwLock::new(None),
            ring: RwLock::new(None),
            leave_alone_until_ms: AtomicU64::new(0),
            is_agent_gone: AtomicBool::new(false),
            born: Instant::now(),
            warned: AtomicBool::new(false),
            job: Mutex::new(None),
            view: crate::cluster_view::KnownView::default(),
            preferred_nodes: crate::cluster_view::GivenPreferred::default(),
            storage: crate::known_storage::KnownStorage::default(),
            dirty: OnceLock::new(),
            watches,
        }
    }

    /// Says something to the user of the program, once in its life.
    pub(crate) fn warn_once(&self, text: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) && !self.config.quiet {
            eprintln!("forebay: {text}; reading the file system directly");
        }
    }

    fn now_ms(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }

    /// False while the agent is left alone after a failure, or if there is none to be asked.
    pub(crate) fn may_ask(&self) -> bool {
        self.config.socket.is_some() && self.now_ms() >= self.leave_alone_until_ms.load(Ordering::Relaxed)
    }

    /// Asks the agent with `ask`, unless it is left alone now. If that fails it is left alone from
    /// then on.
    ///
    /// # Errors
    /// `NotConnected`: the agent is not to be asked now. Else those of `ask`.
    pub(crate) fn unless_left_alone<T>(&self, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if !self.may_ask() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let started = Instant::now();
        ask().inspect_err(|e| self.failed(e, started.elapsed()))
    }

    fn failed(&self, e: &io::Error, lost: Duration) {
        let socket = self.config.socket.as_deref().unwrap_or(Path::new("")).display();
        if let Some(limit) = out_of_files(e) {
            // Not the agent's fault: it can be asked again as soon as a file is closed.
            return self.warn_once(&format!("cannot ask the agent at {socket}: {limit}"));
        }
        let alone = match e.kind() {
            io::ErrorKind::TimedOut => LEAVE_ALONE.max(lost * LEAVE_ALONE_TIMES),
            _ => LEAVE_ALONE,
        };
        let until = self.now_ms() + alone.as_millis() as u64;
        self.leave_alone_until_ms.store(until, Ordering::Relaxed);
        self.warn_once(&format!("the agent at {socket} does not answer ({e})"));
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock()
    }

    fn take(&self) -> io::Result<Channel> {
        let idle = self.pool().idle.pop();
        match idle {
            Some(channel) => Ok(channel),
            None => {
                self.anchor()?;
                self.connect(false)
            }
        }
    }

    fn put_back(&self, channel: Channel) {
        let mut pool = self.pool();
        if pool.idle.len() < POOL_MAX {
            pool.idle.push(channel);
        }
    }

    /// Connects and greets, within the deadline. The listener must be root, this user, or trusted
    /// by name: an agent is believed about the content of files.
    pub(crate) fn connect(&self, want_ring: bool) -> io::Result<Channel> {
        self.connect_within(want_ring, self.config.deadline)
    }

    fn greet(&self, want_ring: bool, limit: Duration) -> io::Result<(Channel, Received<Welcome>)> {
        let socket = self.config.socket.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let deadline = Instant::now() + limit;
        let channel = Channel::connect_within(socket, limit)?.moved(self.config.place);
        self.check_trust(channel.peer()?)?;
        channel.send(&Hello { magic: MAGIC, protocol: PROTOCOL, want_ring }, &[])?;
        let welcome = channel.recv::<Welcome>(Some(deadline))?;
        Ok((channel, welcome))
    }

    fn connect_within(&self, want_ring: bool, limit: Duration) -> io::Result<Channel> {
        let (channel, welcome) = self.greet(want_ring, limit)?;
        if !welcome.message.protocol_fits {
            return Err(io::Error::other(welcome.message.message));
        }
        if let Some(job) = self.config.job_name.as_ref().or(self.config.batch_job.as_ref()) {
            channel.send(&Request::SetJob(job.clone()), &[])?;
        }
        if let Some(fd) = welcome.fds.first() {
            let ring = RingWriter::new(fd.as_fd())?;
            *self.ring.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(ring));
        }
        Ok(channel)
    }

    fn check_trust(&self, agent: Peer) -> io::Result<()> {
        let own = rustix::process::geteuid().as_raw();
        let by_name = || self.config.trusted_uids.contains(&agent.uid);
        if agent.uid == 0 || agent.uid == own || by_name() {
            return Ok(());
        }
        if self.config.trusted_agent.is_some_and(|trusted| AgentProcess::of(agent) == Some(trusted)) {
            return Ok(());
        }
        let why = match crate::agent_process::is_hidden(agent.uid) {
            true => "its user does not exist in this user namespace, so it is not trusted; `forebay run --mount`, \
                     started outside of the namespace, hands on the trust in the agent"
                .to_owned(),
            false => format!(
                "it belongs to user {uid}, who is not trusted; set FOREBAY_TRUST_UID={uid} to trust it",
                uid = agent.uid
            ),
        };
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// [`Session::connect`] for a request that only an agent can serve: without one, the error says
    /// where it was looked for and what to do.
    pub(crate) fn connect_to_agent(&self) -> io::Result<Channel> {
        self.connect(false).map_err(|e| self.in_words(&e))
    }

    /// Why the agent does not answer, for a person. The error number stays.
    pub(crate) fn in_words(&self, e: &io::Error) -> io::Error {
        let Some(socket) = &self.config.socket else {
            let why =
                "the agent is switched off (its socket is `none`); set FOREBAY_SOCKET to an agent's socket";
            return no_agent(libc::ENOENT, why);
        };
        let (at, len) = (socket.display(), socket.as_os_str().len());
        match e.kind() {
            _ if len > SOCKET_PATH_MAX => no_agent(
                errno(e),
                format!(
                    "no agent can be at {at}: the path has {len} bytes and a socket's at most {SOCKET_PATH_MAX}; use \
                     a shorter state directory"
                ),
            ),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => no_agent(
                errno(e),
                format!(
                    "no agent at {at} ({e}); start one with `forebay up --pfs DIR`, or set FOREBAY_SOCKET to the socket \
                     of one"
                ),
            ),
            io::ErrorKind::PermissionDenied => {
                with_message(errno(e), format!("cannot use the agent at {at}: {e}"))
            }
            io::ErrorKind::TimedOut => with_message(
                errno(e),
                format!(
                    "the agent at {at} has not answered in time: it hangs, or its node is overloaded; look at its \
                     log, or kill it and start it again, its cache stays"
                ),
            ),
            _ => with_message(errno(e), format!("the agent at {at}: {e}")),
        }
    }

    /// Makes the connection that holds what belongs to the process.
    fn anchor(&self) -> io::Result<()> {
        if self.pool().anchor.is_none() {
            let anchor = self.connect(true)?;
            self.pool().anchor = Some(anchor);
        }
        Ok(())
    }

    /// Forgets every connection, for an agent that is gone.
    fn forget(&self) {
        let mut pool = self.pool();
        pool.idle.clear();
        pool.anchor = None;
        drop(pool);
        *self.mounts.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Asks and waits for the answer until `limit` has passed.
    ///
    /// # Errors
    /// The agent is not there, does not answer in time, or is not to be asked now. The caller reads
    /// the PFS.
    pub(crate) fn call(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> io::Result<Received<Reply>> {
        self.unless_left_alone(|| self.exchange(request, fds, limit))
    }

    /// As [`Session::call`], for a request that may take the agent longer than others, for instance
    /// while a PFS hangs: an agent that is late is not left alone for longer than one that is gone.
    ///
    /// # Errors
    /// As [`Session::call`].
    pub(crate) fn call_that_waits(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> io::Result<Received<Reply>> {
        if !self.may_ask() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.exchange(request, fds, limit).inspect_err(|e| self.failed(e, Duration::ZERO))
    }

    /// How long to wait for an agent that is restarting: once in vain is enough for a program that
    /// looks at a thousand files.
    pub(crate) fn patience(&self) -> Duration {
        if self.is_agent_gone.load(Ordering::Relaxed) { Duration::ZERO } else { NO_AGENT_MAX }
    }

    /// Notes whether an agent was found in that time.
    pub(crate) fn note_agent(&self, is_there: bool) {
        self.is_agent_gone.store(!is_there, Ordering::Relaxed);
    }

    /// As [`Session::call`], about a file that is dirty on this node: waits for an agent that is
    /// restarting, since nobody else has the newest bytes.
    ///
    /// # Errors
    /// No agent answers ([`is_no_agent`](crate::is_no_agent)).
    pub(crate) fn call_about_dirty(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> io::Result<Received<Reply>> {
        let until = Instant::now() + self.patience();
        loop {
            match self.call_that_waits(request, fds, limit) {
                Err(e) if out_of_files(&e).is_some() => return Err(e),
                Err(_) if Instant::now() < until => std::thread::sleep(NO_AGENT_PAUSE),
                Err(e) => {
                    self.note_agent(false);
                    let why = format!("its newest bytes are in memory, and the agent does not answer ({e})");
                    return Err(no_agent(libc::EIO, why));
                }
                answered => {
                    self.note_agent(true);
                    return answered;
                }
            }
        }
    }

    /// Asks over a connection of its own, and waits until `limit` has passed in all.
    ///
    /// # Errors
    /// The agent is not there, or does not answer in time.
    pub(crate) fn ask_once(&self, request: &Request, limit: Duration) -> io::Result<Reply> {
        let deadline = Instant::now() + limit;
        let channel = self.connect_within(false, limit)?;
        channel.send(request, &[])?;
        Ok(channel.recv::<Reply>(Some(deadline))?.message)
    }

    fn exchange(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> io::Result<Received<Reply>> {
        let deadline = Instant::now() + limit;
        let mut last = io::Error::from(io::ErrorKind::NotConnected);
        // A kept connection may belong to an agent that has been replaced since; a fresh one does
        // not.
        for _ in 0..2 {
            let channel = match self.take() {
                Ok(channel) => channel,
                Err(e) => {
                    if out_of_files(&e).is_none() {
                        self.forget();
                    }
                    return Err(e);
                }
            };
            match channel.send(request, fds).and_then(|()| channel.recv::<Reply>(Some(deadline))) {
                Ok(mut answer) => {
                    self.put_back(channel);
                    answer.fds = answer.fds.into_iter().map(self.config.place).collect();
                    return Ok(answer);
                }
                Err(e) if e.kind() == io::ErrorKind::TimedOut => return Err(e),
                Err(e) if out_of_files(&e).is_some() => {
                    // The answer was taken from the queue; only its descriptors are lost.
                    self.put_back(channel);
                    return Err(e);
                }
                Err(e) => {
                    last = e;
                    self.forget();
                }
            }
        }
        Err(last)
    }

    /// Sends a request without waiting for an answer; lost if the agent is not keeping up. A
    /// connection to an agent that hangs costs the deadline, which is remembered like any other
    /// failure.
    pub(crate) fn notify(&self, request: &Request, fds: &[BorrowedFd<'_>]) {
        let Ok(channel) = self.unless_left_alone(|| self.take()) else { return };
        if channel.try_send(request, fds).is_ok() {
            self.put_back(channel);
        }
    }

    /// The mounts, requested once.
    pub(crate) fn mounts(&self) -> io::Result<Arc<[MountInfo]>> {
        if let Some(mounts) = &*self.mounts.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(mounts.clone());
        }
        match self.call(&Request::Mounts, &[], self.config.deadline)?.message {
            Reply::Mounts(list) => {
                let mounts: Arc<[MountInfo]> = list.into();
                *self.mounts.write().unwrap_or_else(PoisonError::into_inner) = Some(mounts.clone());
                Ok(mounts)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The mount that `path` (absolute) is on.
    pub(crate) fn mount_of(&self, path: &Path) -> Option<MountInfo> {
        let mounts = self.mounts().ok()?;
        let on = |m: &&MountInfo| path.starts_with(OsStr::from_bytes(&m.root));
        mounts.iter().filter(on).max_by_key(|m| m.root.len()).cloned()
    }

    /// The ring that reports to the agent which pages are in use.
    pub(crate) fn ring(&self) -> Option<Arc<RingWriter>> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until this process may read or write `bytes` of a PFS by itself: immediately, unless
    /// its job has a rate limit.
    pub(crate) fn pace(&self, bytes: u64) {
        while self.is_limited() {
            match self.call(&Request::MayPass { bytes }, &[], self.config.deadline) {
                Ok(Received { message: Reply::Waits, .. }) => {}
                // Without an agent nobody limits.
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Whether the job of this process has a rate limit. The agent says so through the ring.
    fn is_limited(&self) -> bool {
        let has_name = self.config.job_name.is_some() || self.config.batch_job.is_some();
        if has_name && self.ring().is_none() {
            // Without an agent nobody limits.
            let _ = self.unless_left_alone(|| self.anchor());
        }
        has_name && self.ring().is_some_and(|ring| ring.is_limited())
    }

    /// The token of the job this process belongs to: from `FOREBAY_JOB`, or begun here.
    pub(crate) fn known_job(&self) -> Option<String> {
        if let Some((_, token)) = &*lock(&self.job) {
            return Some(token.clone());
        }
        variable("FOREBAY_JOB")?.into_string().ok().filter(|t| !t.is_empty())
    }

    /// The token of this process's job, begun now if need be. It ends with the process.
    pub(crate) fn job(&self) -> io::Result<String> {
        match self.known_job() {
            Some(token) => Ok(token),
            None => self.begin_job(false).map(|(token, _)| token),
        }
    }

    /// Begins a job. Returns its token, and whether it continues after `exec`, if that is wanted.
    pub(crate) fn begin_job(&self, outlives_exec: bool) -> io::Result<(String, bool)> {
        let channel = self.connect_to_agent()?;
        channel.send(&Request::JobBegin { outlives_exec }, &[])?;
        // `forebay run` needs them next: over this connection, so that it needs no other.
        channel.send(&Request::Mounts, &[])?;
        let deadline = Some(Instant::now() + self.config.deadline);
        match channel.recv::<Reply>(deadline)?.message {
            Reply::Job { token, outlives_exec } => {
                if let Reply::Mounts(list) = channel.recv::<Reply>(deadline)?.message {
                    *self.mounts.write().unwrap_or_else(PoisonError::into_inner) = Some(list.into());
                }
                *lock(&self.job) = Some((Some(channel), token.clone()));
                Ok((token, outlives_exec))
            }
            other => Err(unexpected(&other)),
        }
    }
}

/// An answer as an error: refusals and failures in the agent's own words.
pub(crate) fn unexpected(reply: &Reply) -> io::Error {
    match reply {
        Reply::Refused(Refusal::NotAllowed) => with_message(libc::EPERM, Refusal::NotAllowed.to_string()),
        Reply::Refused(refusal @ (Refusal::NoRoom | Refusal::TooMany(_))) => {
            with_message(libc::ENOSPC, refusal.to_string())
        }
        Reply::Refused(Refusal::NotOnMount) => {
            io::Error::new(io::ErrorKind::CrossesDevices, Refusal::NotOnMount.to_string())
        }
        Reply::Refused(refusal) => io::Error::other(refusal.to_string()),
        Reply::Failed { errno, message } => {
            with_message(if *errno > 0 { *errno } else { libc::EIO }, message.as_str())
        }
        Reply::TimedOut => with_message(libc::ETIMEDOUT, "the agent was not ready in time"),
        other => misfit(other),
    }
}

/// The error for an answer to another question.
pub(crate) fn misfit(answer: &impl std::fmt::Debug) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("an unexpected answer: {answer:?}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use forebay_pfs::FileVersion;
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
    };
    use std::os::fd::OwnedFd;

    const DEADLINE: Duration = Duration::from_millis(200);

    /// A client of an agent that hangs: the kernel lets connections wait, and nobody takes them.
    /// With the agent's socket.
    pub(crate) fn hung_agent(dir: &Path) -> (OwnedFd, Client) {
        let path = dir.join("agent.sock");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&socket, 16).unwrap();
        let config =
            ClientConfig { socket: Some(path), deadline: DEADLINE, quiet: true, ..ClientConfig::default() };
        (socket, Client::new(config))
    }

    /// Asserts that the agent, which has cost one deadline, is left alone for ten; then has it left
    /// alone for ever, so that the time of a slow machine does not run out.
    pub(crate) fn assert_left_alone(client: &Client) {
        let until_ms = client.session.leave_alone_until_ms.swap(u64::MAX, Ordering::Relaxed);
        assert!(until_ms >= 11 * DEADLINE.as_millis() as u64, "left alone until {until_ms} ms only");
    }

    /// Connections made since the last time.
    pub(crate) fn connections(socket: &OwnedFd) -> usize {
        std::iter::from_fn(|| accept_with(socket, SocketFlags::CLOEXEC).ok()).count()
    }

    #[test]
    fn an_agent_that_hangs_when_it_gets_a_report_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, client) = hung_agent(dir.path());
        let version = FileVersion { ino: 1, size: 2, mtime_ns: 3, ctime_ns: 4 };
        let missed = Request::Missed { version, page: 0, bytes: 1 };
        client.session.notify(&missed, &[]);
        assert_eq!(connections(&socket), 1);
        assert_left_alone(&client);
        client.session.notify(&missed, &[]);
        assert_eq!(connections(&socket), 0, "it was asked again");
    }
}
