//! Start, housekeeping and end of an agent.

use crate::cache::Cache;
use crate::cache::entry::{FlightError, lock};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::coordinator::link::{self, Home, Link};
use crate::counters::{Counters, add};
use crate::fetch::peers::Peers;
use crate::fetch::pfs;
use crate::memory;
use crate::mounts::MountState;
use crate::peers::server::{self, PeerServer};
use crate::prefetch::orders::Orders;
use crate::serve::closer::Closer;
use crate::serve::connection;
use crate::serve::scratch::Jobs;
use crate::shares::{Kind, Ledger};
use forebay_store::ring::RingReader;
use forebay_store::tier::TierOptions;
use forebay_store::{Budget, Class, Tier};
use forebay_wire::link::Security;
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What runs as root or as a user of its own keeps this much of the budget for code, stacks and the
/// allocator.
const BASE_BYTES: u64 = 16 << 20;

/// How often rings are drained and overtaken versions swept. Ten times a second: a ring of 4096
/// pages of 2 MiB then covers a reader of 80 GB/s.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// How long the start waits until it is known whether time stamps can be believed.
const MEASURING_MAX: Duration = Duration::from_millis(50);

/// Copies kept open at a time, at most; each takes a descriptor and a map.
const OPEN_FILES_MAX: usize = 4096;

/// What all threads of an agent share.
#[derive(Debug)]
pub struct Shared {
    /// Its configuration.
    pub config: Config,
    /// The budget.
    pub budget: Budget,
    /// Cached versions.
    pub cache: Cache,
    /// The mounts, in the order of the configuration.
    pub mounts: Vec<MountState>,
    /// Counters.
    pub counters: Counters,
    /// Memory-only files by job.
    pub jobs: Jobs,
    /// Rings of the connected clients, by connection.
    pub rings: Mutex<BTreeMap<u64, RingReader>>,
    /// The cluster.
    pub cluster: Cluster,
    /// The connection to the coordinator.
    pub link: Link,
    /// What the coordinator has ordered.
    pub orders: Orders,
    /// How connections between nodes prove themselves.
    pub security: Security,
    /// Mounts that do not tell where files lie.
    pub layouts: crate::jobs::layouts::Silent,
    /// Peers as they are asked.
    pub peers: Peers,
    /// Peers as they are served.
    pub peer_server: PeerServer,
    /// Open connections.
    pub connections: AtomicUsize,
    /// What ordinary users hold.
    pub ledger: Ledger,
    /// Closes what is not of a mount.
    pub closer: Closer,
    /// Held while a large packet is decoded and not yet counted in the budget.
    pub decoding: Mutex<()>,
    /// Number of the next connection.
    pub next_connection: AtomicU64,
    /// When it started.
    pub started: Instant,
    /// This program's user.
    pub uid: u32,
    stopping: AtomicBool,
    stop_signal: (Mutex<()>, Condvar),
}

impl Shared {
    /// True once the agent is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Asks the agent to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let _guard = lock(&self.stop_signal.0);
        self.stop_signal.1.notify_all();
        self.link.wake();
    }

    /// Waits for [`Shared::stop`], at most `limit`; tells whether it came.
    pub fn wait_stop(&self, limit: Duration) -> bool {
        let guard = lock(&self.stop_signal.0);
        if !self.is_stopping() {
            drop(self.stop_signal.1.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner));
        }
        self.is_stopping()
    }

    /// Labels of the mounts, in the order of the configuration.
    pub fn labels(&self) -> Vec<String> {
        self.mounts.iter().map(|m| m.label().to_owned()).collect()
    }

    /// True if a peer with user `uid` may do what only the operator may.
    pub fn is_operator(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid
    }
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    socket: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

impl Agent {
    /// Starts an agent: takes the tier, adopts what is in it, listens, and joins the cluster.
    /// `program` is this executable, for the keeper of a tier without root; `home` leads to the
    /// coordinator; `closer` was started before any thread.
    ///
    /// # Errors
    /// A message for the operator: what was tried, on what, why it failed.
    pub fn start(config: Config, program: Option<PathBuf>, home: Home, closer: Closer) -> io::Result<Self> {
        raise_file_limit();
        let mounts = config.mounts.iter().cloned().map(MountState::new).collect::<io::Result<Vec<_>>>()?;
        if mounts.is_empty() {
            return Err(io::Error::other(
                "no PFS to serve: give --pfs DIR, or a [[mount]] in the configuration",
            ));
        }
        mounts.iter().for_each(MountState::begin_to_measure);
        let security = Security::configured(config.cluster.tls.as_deref())?;
        let (capacity, limit) = config.sizes(memory::usable_bytes()).map_err(io::Error::other)?;
        let tier = Tier::open(&TierOptions {
            state_dir: config.state_dir.clone(),
            backing: config.backing,
            directory: config.directory.clone(),
            limit_bytes: limit,
            huge_pages: config.huge_pages,
            program,
        })?;
        let budget = Budget::new(capacity);
        // Held for as long as the process lives.
        std::mem::forget(budget.reserve_existing(Class::Buffers, BASE_BYTES));
        let cache = Cache::new(tier, budget.clone(), config.eviction, open_files_max());
        let shared = Arc::new(Shared {
            budget,
            cache,
            mounts,
            counters: Counters::default(),
            jobs: Jobs::default(),
            rings: Mutex::default(),
            cluster: Cluster::new(config.cluster.clone()),
            link: Link::new()?,
            orders: Orders::default(),
            security,
            layouts: crate::jobs::layouts::Silent::default(),
            peers: Peers::default(),
            peer_server: PeerServer::default(),
            connections: AtomicUsize::new(0),
            ledger: Ledger::default(),
            closer,
            decoding: Mutex::default(),
            next_connection: AtomicU64::new(1),
            started: Instant::now(),
            uid: rustix::process::geteuid().as_raw(),
            stopping: AtomicBool::new(false),
            stop_signal: Default::default(),
            config,
        });
        shared.adopt()?;
        // Most file systems have been measured by now or are in a moment; others are while this
        // agent serves.
        let deadline = shared.started + MEASURING_MAX;
        shared.mounts.iter().for_each(|mount| mount.stamps.wait(deadline));
        serve_peers(&shared)?;
        let socket = shared.config.socket();
        let listener = listen_on(&socket, shared.config.socket_mode)?;
        let mut threads = spawn_workers(&shared)?;
        let accepting = shared.clone();
        // Not joined at the end: it sits in accept until the process or the listener goes.
        std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || accept_loop(&accepting, &listener))?;
        let keeping = shared.clone();
        threads.push(
            std::thread::Builder::new().name("housekeeping".into()).spawn(move || keep_house(&keeping))?,
        );
        // Last: whoever joins is asked for pages.
        let joining = shared.clone();
        threads
            .push(std::thread::Builder::new().name("link".into()).spawn(move || link::run(&joining, &home))?);
        Ok(Agent { shared, socket, threads })
    }

    /// What its threads share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Waits until somebody asks it to end, then ends: bounded in time, whatever the PFS does.
    pub fn run(self) -> io::Result<()> {
        while !self.shared.wait_stop(Duration::from_secs(3600)) {}
        self.finish()
    }

    fn finish(self) -> io::Result<()> {
        match std::fs::remove_file(&self.socket) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        for mount in &self.shared.mounts {
            for task in mount.queue.close() {
                pfs::finish(&self.shared, &task, Err(FlightError::Cancelled));
            }
        }
        self.shared.peers.close(&self.shared);
        // A fetch thread that hangs in the PFS is left behind; the process ends without it.
        let deadline = Instant::now() + Duration::from_secs(2);
        for thread in self.threads {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // Else the locks go last, after the ports: who has the locks can listen.
        if !self.shared.closer.is_alive() {
            self.shared.cache.tier.release();
        }
        Ok(())
    }
}

impl Shared {
    fn adopt(&self) -> io::Result<()> {
        let adopted = self.cache.adopt(|label| self.mounts.iter().position(|m| m.label() == label))?;
        add(&self.counters.adopted_files_total, adopted);
        self.cache.for_pinned(|entry, uid, bytes| entry.set_pin(self.share_existing(Kind::Held, uid, bytes)));
        let freed = self.cache.settle_excess(&self.counters);
        if adopted > 0 {
            tracing::info!(
                files = adopted,
                given_back_bytes = freed.bytes,
                "adopted the cache of an earlier agent"
            );
        }
        Ok(())
    }
}

fn open_files_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    ((limit / 4) as usize).clamp(64, OPEN_FILES_MAX)
}

/// Takes all descriptors the administrator allows; the usual soft limit of 1024 is for programs
/// that use `select`.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it the agent serves fewer clients at a time, and says so when it comes to that.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn listen_on(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let in_words =
        |what: &str, e: io::Error| io::Error::new(e.kind(), format!("cannot {what} {}: {e}", path.display()));
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(in_words("replace", e)),
        _ => {}
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?).map_err(|e| in_words("listen on", e.into()))?;
    rustix::fs::chmod(path, Mode::from(mode)).map_err(|e| in_words("open up", e.into()))?;
    listen(&socket, 1024)?;
    Ok(socket)
}

fn spawn_workers(shared: &Arc<Shared>) -> io::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::new();
    for mount in 0..shared.mounts.len() {
        for number in 0..shared.mounts[mount].config.fetch_threads {
            let shared = shared.clone();
            let name = format!("fetch-{}-{number}", shared.mounts[mount].label());
            threads.push(
                std::thread::Builder::new().name(name).spawn(move || pfs::run(&shared, mount, number))?,
            );
        }
    }
    Ok(threads)
}

/// Listens for peers, if this node has any.
fn serve_peers(shared: &Arc<Shared>) -> io::Result<()> {
    let address = &shared.config.cluster.listen;
    if address.is_empty() {
        return Ok(());
    }
    let listener = shared.security.listen(address)?;
    shared.cluster.set_address(listener.address()?.to_string());
    let accepting = shared.clone();
    // Not joined at the end, as the other one.
    std::thread::Builder::new()
        .name("accept-peers".into())
        .spawn(move || server::accept_loop(&accepting, listener))?;
    Ok(())
}

fn accept_loop(shared: &Arc<Shared>, listener: &OwnedFd) {
    while !shared.is_stopping() {
        match accept_with(listener.as_fd(), SocketFlags::CLOEXEC) {
            Ok(socket) => connection::start(shared, socket),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            Err(e) => {
                // Out of descriptors or memory: clients wait in the backlog or read the PFS; try
                // again shortly.
                tracing::warn!(error = %e, "cannot accept a connection");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn keep_house(shared: &Arc<Shared>) {
    let mut keys = Vec::new();
    while !shared.wait_stop(HOUSEKEEPING) {
        keys.clear();
        for ring in lock(&shared.rings).values_mut() {
            ring.drain(&mut keys);
        }
        if !keys.is_empty() {
            add(&shared.counters.touches_total, keys.len() as u64);
            shared.cache.touch(&keys);
        }
        shared.jobs.keep_house();
        shared.cache.retest_held();
        shared.cache.sweep_stale(&shared.counters);
        shared.cache.settle_excess(&shared.counters);
        shared.peers.keep_house(shared);
        shared.peer_server.files.keep_house();
    }
}
