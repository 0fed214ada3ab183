//! Start, housekeeping and end of an agent: builds its rooms, each from those that it needs.

use crate::audit::Audit;
use crate::cache::Cache;
use crate::cache::disk::{self, Disk};
use crate::cluster::Cluster;
use crate::config::{Config, Live, MountConfig};
use crate::coordinator::address::CoordinatorAddress;
use crate::coordinator::claims::Claims;
use crate::coordinator::connection;
use crate::coordinator::link::Link;
use crate::counters::{Counters, add};
use crate::fetch::Fetch;
use crate::fetch::completions::Completions;
use crate::fetch::owners::Owners;
use crate::fetch::peers::Peers;
use crate::fetch::pfs::{Pfs, READ_BYTES};
use crate::jobs::job_state::JobState;
use crate::jobs::layouts::Layouts;
use crate::jobs::orders::Orders;
use crate::jobs::scratch_files::Jobs;
use crate::jobs::task_questions::TaskQuestions;
use crate::memory;
use crate::memory_control::{Control, Recorded};
use crate::mounts::MountState;
use crate::peers::server::{self, PeerServer};
use crate::phases::board::Phases;
use crate::phases::spread::Spread;
use crate::prefetch::requests::Requests;
use crate::scheduler::Scheduler;
use crate::serve::admin::change_capacity;
use crate::serve::closer::Closer;
use crate::serve::connection::Clients;
use crate::serve::guest_mount::GuestMounts;
use crate::serve::health;
use crate::serve::session::Node;
use crate::shuffle::{Shuffles, Spill};
use crate::stop::{Stop, Wake};
use crate::traffic::jobs::Traffic;
use crate::user_limits::{Kind, Shares};
use crate::write_back::WriteBack;
use crate::write_back::copies;
use crate::write_back::elsewhere::Elsewhere;
use forebay_pfs::{Mounted, Source};
use forebay_policy::{drain, node};
use forebay_store::dirty_log::DirtyLog;
use forebay_store::tier::TierOptions;
use forebay_store::{Budget, Class, Tier};
use forebay_wire::SecondPlace;
use forebay_wire::cluster::ToCoordinator;
use forebay_wire::link::Security;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of the budget that an agent running as root or as a user of its own keeps for code, stacks
/// and the allocator.
const BASE_BYTES: u64 = 16 << 20;

/// How often rings are drained and superseded versions swept. Ten times a second: a ring of 4096
/// pages of 2 MiB then covers a reader of 80 GB/s.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// How long the start waits to learn whether time stamps can be trusted.
const MEASURING_MAX: Duration = Duration::from_millis(50);

/// Copies kept open at a time, at most; each takes a descriptor and a map.
const OPEN_FILES_MAX: usize = 4096;

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    node: Arc<Node>,
    socket: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

impl Agent {
    /// Starts an agent: takes the tier, adopts what is in it, listens, and joins the cluster.
    /// `program` is this executable, for the keeper of a tier without root; `coordinator_at` leads
    /// to the coordinator; `closer` was started before any thread.
    ///
    /// # Errors
    /// A message for the operator: what was tried, on what, why it failed.
    pub fn start(
        config: Config,
        program: Option<PathBuf>,
        coordinator_at: CoordinatorAddress,
        closer: Closer,
    ) -> io::Result<Self> {
        let mounted = |root: &Path, dev| -> Arc<dyn Source> { Arc::new(Mounted::new(root, dev)) };
        Self::start_on(config, program, coordinator_at, closer, &mounted)
    }

    /// As [`Agent::start`], on what `source` makes of the root and the device of each mount.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn start_on(
        config: Config,
        program: Option<PathBuf>,
        coordinator_at: CoordinatorAddress,
        closer: Closer,
        source: &dyn Fn(&Path, u64) -> Arc<dyn Source>,
    ) -> io::Result<Self> {
        raise_file_limit();
        let mounts = open_mounts(&config, source)?;
        let security = Security::configured(config.cluster.tls.as_deref())?;
        let counters = Arc::new(Counters::default());
        let cache = Arc::new(open_cache(&config, program.clone(), counters.clone())?);
        forebay_store::disk_level::note(&config.state_dir, config.disk.as_deref())?;
        if let Some(path) = &config.disk {
            cache.set_disk(Arc::new(open_disk(
                path,
                config.disk_capacity_bytes,
                &cache.budget,
                counters.clone(),
            )?));
        }
        let live = Arc::new(Live::new(config.clone()));
        let spill = config.spill.as_deref().map(|path| open_spill(path, live.clone())).transpose()?;
        let disk_bytes = spill.as_ref().map_or(Ok(0), Spill::disk_bytes)?;
        let shares = Arc::new(Shares::new(cache.budget.clone(), live.clone(), disk_bytes));
        adopt(&cache, &mounts, &shares, &counters)?;
        let wake = Arc::new(Wake::new()?);
        let looking = Arc::new(Wake::new()?);
        let stop = Arc::new(Stop::new([wake.clone(), looking.clone()]));
        let cluster = Arc::new(Cluster::new(config.cluster.clone()));
        let completions = Arc::new(Completions::new(mounts.clone(), cache.clone(), counters.clone()));
        let scheduler = node::Config {
            fetch_threads: mounts.iter().map(|mount| mount.config.fetch_threads).collect(),
            read_bytes: READ_BYTES,
            drain: drain::Config {
                age_max_ns: config.dirty_age_max.as_nanos() as u64,
                ..drain::Config::default()
            },
        };
        let decisions = config.decision_log.clone();
        let decisions = decisions.as_deref();
        let scheduler = Arc::new(Scheduler::new(scheduler, decisions, wake.clone())?);
        let pfs = Arc::new(Pfs::new(completions.clone(), scheduler.clone()));
        let owners = Arc::new(Owners::new(mounts.clone(), cluster.clone()));
        let peers = Peers::new(
            pfs.clone(),
            completions.clone(),
            owners.clone(),
            cluster.clone(),
            security.clone(),
            live.clone(),
        );
        let fetch = Arc::new(Fetch {
            mounts: mounts.clone(),
            cache: cache.clone(),
            counters: counters.clone(),
            completions,
            owners,
            pfs,
            peers: Arc::new(peers),
            scheduler: scheduler.clone(),
            traffic: Arc::new(Traffic::new(mounts.iter().map(|m| m.label().to_owned()).collect())),
        });
        let min_bytes = config.memory.min.of(memory::usable_bytes());
        let control =
            Control::new(config.memory.clone(), min_bytes, cache.clone(), counters.clone(), looking);
        let control = Arc::new(control);
        let requests = Arc::new(Requests::new(fetch.clone(), stop.clone()));
        let (jobs, link) =
            (Arc::new(JobState::default()), Arc::new(Link::new(wake.clone(), config.cluster.patience())));
        let questions = Arc::new(TaskQuestions::default());
        let rules = forebay_policy::phases::Config::default();
        let lease = Duration::from_nanos(rules.lease_ns);
        let spread = Arc::new(Spread::new(cluster.clone(), security.clone(), stop.clone(), lease));
        let saying = link.clone();
        let say = Box::new(move |message| saying.say(message, None));
        let fails_over = config.cluster.fails_over();
        let phases = Phases::new(rules, scheduler, counters.clone(), spread, say, live.clone(), fails_over);
        let phases = Arc::new(phases);
        let claims = Arc::new(Claims::new(link.clone(), cluster.clone()));
        let joining = connection::Node {
            config: config.cluster.clone(),
            mounts: mounts.clone(),
            budget: cache.budget.clone(),
            control: control.clone(),
            counters: counters.clone(),
            cluster: cluster.clone(),
            requests: requests.clone(),
            jobs: jobs.clone(),
            questions: questions.clone(),
            phases: phases.clone(),
            link: link.clone(),
            claims: claims.clone(),
            traffic: fetch.traffic.clone(),
            stop: stop.clone(),
            wake,
        };
        let index = forebay_store::dirty_index::path_beside(&config.socket());
        let elsewhere = Elsewhere::new(claims, cluster.clone(), security.clone());
        let log = config.log.as_deref().map(open_log).transpose()?;
        let write_back =
            WriteBack::new(&fetch, shares.clone(), stop.clone(), (&index, log, live.clone()), elsewhere);
        write_back.adopt()?;
        write_back.adopt_checkpoints()?;
        let memory_files = Arc::new(Jobs::default());
        let shuffles = Arc::new(Shuffles::new(
            memory_files.clone(),
            (cache.clone(), shares.clone(), counters.clone()),
            (cluster.clone(), security.clone()),
            stop.clone(),
            spill,
        ));
        let node = Arc::new(Node {
            write_back: Arc::new(write_back),
            guest_mounts: GuestMounts::new(
                program,
                (config.state_dir.clone(), config.socket()),
                mounts.len(),
            ),
            layouts: Layouts::new(mounts.clone(), cache.clone()),
            orders: Orders::new(cache.clone(), mounts.clone(), shares.clone()),
            mounts,
            cache,
            control: control.clone(),
            counters,
            fetch,
            cluster,
            jobs,
            questions,
            phases: phases.clone(),
            link,
            shares,
            memory_files,
            shuffles,
            rings: Mutex::default(),
            connections: AtomicUsize::new(0),
            closer,
            audit: Audit::new(config.audit_log()),
            stop,
            started: Instant::now(),
            security: security.clone(),
            config,
            live,
        });
        // Most file systems have been measured by now or will be in a moment; the others are
        // measured while this agent serves.
        let deadline = node.started + MEASURING_MAX;
        node.mounts.iter().for_each(|mount| mount.stamps.wait(deadline));
        let memory = Some(&node.config.memory).filter(|memory| memory.policy != "static");
        let machine = memory.map(|memory| Recorded::new(memory, decisions)).transpose()?;
        let server = serve_peers(&node, requests, &security)?;
        let mut threads = spawn_workers(&node)?;
        let socket = serve_clients(&node)?;
        let keeping = node.clone();
        threads.push(spawn("housekeeping", move || keep_house(&keeping, &server))?);
        if let Some(machine) = machine {
            let stop = node.stop.clone();
            threads.push(spawn("memory", move || control.run(&stop, machine))?);
        }
        let board = (phases, node.stop.clone());
        threads.push(spawn("phases", move || board.0.run(&board.1))?);
        let reporting = node.clone();
        threads.push(spawn("health", move || health::report(&reporting))?);
        // Last: a node that has joined is asked for pages.
        threads.push(spawn("link", move || {
            connection::run(&joining, &coordinator_at);
            // The reporter of health need not wait for a coordinator any more.
            joining.link.end();
        })?);
        Ok(Agent { node, socket, threads })
    }

    /// Returns what ends the agent.
    pub fn stop(&self) -> Arc<Stop> {
        self.node.stop.clone()
    }

    /// Returns what makes a configuration that was read again take effect: its keys in
    /// [`LIVE`](crate::config::reload::LIVE). That returns the capacity in bytes.
    pub fn reconfigurer(&self) -> impl Fn(&Config) -> Result<u64, String> + Send + use<> {
        let node = self.node.clone();
        move |config| {
            let usable = memory::usable_bytes();
            let (capacity, _) = config.sizes(usable)?;
            change_capacity(&node, capacity)?;
            node.control.reconfigure(&config.memory, config.memory.min.of(usable));
            node.audit.reopen(config.audit_log());
            for mount in &*node.mounts {
                config.mounts.iter().filter(|c| c.label == mount.label()).for_each(|c| mount.reconfigure(c));
            }
            node.live.set(config.clone());
            Ok(capacity)
        }
    }

    /// The members as this agent knows them.
    pub fn cluster(&self) -> Arc<Cluster> {
        self.node.cluster.clone()
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.node.config
    }

    /// Where it keeps pages.
    pub fn tier(&self) -> &Tier {
        &self.node.cache.tier
    }

    /// The capacity in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.node.cache.budget.capacity_bytes()
    }

    /// Waits until somebody asks it to end, then ends: bounded in time, whatever the PFS does.
    ///
    /// # Errors
    /// Its socket cannot be removed.
    pub fn run(self) -> io::Result<()> {
        while !self.node.stop.wait(Duration::from_secs(3600)) {}
        self.finish()
    }

    fn finish(self) -> io::Result<()> {
        match std::fs::remove_file(&self.socket) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        self.node.fetch.pfs.close();
        self.node.fetch.peers.close();
        // A fetch thread that hangs in the PFS is left behind; the process ends without it.
        let deadline = Instant::now() + Duration::from_secs(2);
        for thread in self.threads {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // Otherwise the locks are released last, after the ports: their next holder can listen.
        if !self.node.closer.is_alive() {
            self.node.cache.disk().iter().for_each(|disk| disk.release());
            self.node.write_back.release_log();
            // Last: the next holder of the tier takes the directories as well.
            self.node.cache.tier.release();
        }
        Ok(())
    }
}

fn open_mounts(
    config: &Config,
    source: &dyn Fn(&Path, u64) -> Arc<dyn Source>,
) -> io::Result<Arc<[MountState]>> {
    let open = |mount: MountConfig| MountState::of(mount, source);
    let mounts = config.mounts.iter().cloned().map(open).collect::<io::Result<Arc<[_]>>>()?;
    if mounts.is_empty() {
        return Err(io::Error::other("no PFS to serve: give --pfs DIR, or a [[mount]] in the configuration"));
    }
    mounts.iter().for_each(MountState::begin_to_measure);
    Ok(mounts)
}

fn open_cache(config: &Config, program: Option<PathBuf>, counters: Arc<Counters>) -> io::Result<Cache> {
    let (capacity, limit) = config.sizes(memory::usable_bytes()).map_err(io::Error::other)?;
    let tier = Tier::open(&TierOptions {
        state_dir: config.state_dir.clone(),
        backing: config.backing,
        directory: config.directory.clone(),
        limit_bytes: limit,
        huge_pages: true,
        program,
    })?;
    let budget = Budget::new(capacity);
    // Held for as long as the process lives.
    std::mem::forget(budget.reserve_existing(Class::Buffers, BASE_BYTES));
    Ok(Cache::new(tier, budget, config.eviction, open_files_max(), counters))
}

fn adopt(cache: &Cache, mounts: &[MountState], shares: &Shares, counters: &Counters) -> io::Result<()> {
    let adopted = cache.adopt(|label| mounts.iter().position(|m| m.label() == label))?;
    add(&counters.adopted_files_total, adopted);
    cache.for_pinned(|entry, uid, bytes| entry.set_pin(shares.share_existing(Kind::Held, uid, bytes)));
    let freed = cache.settle_excess();
    if adopted > 0 {
        tracing::info!(
            files = adopted,
            released_bytes = freed.bytes,
            "adopted the cache of an earlier agent"
        );
    }
    Ok(())
}

fn open_files_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    ((limit / 4) as usize).clamp(64, OPEN_FILES_MAX)
}

/// Raises the limit on descriptors to what the administrator allows; the usual soft limit of 1024
/// is for programs that use `select`.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails, the agent serves fewer clients at a time, and reports that when it happens.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn open_log(path: &Path) -> io::Result<DirtyLog> {
    DirtyLog::open(path).map_err(|e| named("tier.log", path, e))
}

/// The error of a directory of the configuration.
fn named(key: &str, path: &Path, e: io::Error) -> io::Error {
    let why = match e.kind() {
        io::ErrorKind::WouldBlock => "another agent uses it".to_owned(),
        _ => e.to_string(),
    };
    io::Error::new(e.kind(), format!("{key} = {}: {why}", path.display()))
}

fn open_disk(path: &Path, bytes: u64, budget: &Budget, counters: Arc<Counters>) -> io::Result<Disk> {
    Disk::open(path, bytes, budget, counters).map_err(|e| named("tier.disk", path, e))
}

fn open_spill(path: &Path, live: Arc<Live<Config>>) -> io::Result<Spill> {
    Spill::open(path, live).map_err(|e| named("tier.spill", path, e))
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

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(body)
}

fn spawn_workers(node: &Arc<Node>) -> io::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::new();
    for (mount, state) in node.mounts.iter().enumerate() {
        for number in 0..state.config.fetch_threads {
            let pfs = node.fetch.pfs.clone();
            let name = format!("fetch-{}-{number}", state.label());
            threads.push(spawn(&name, move || pfs.work(mount, number))?);
        }
    }
    for (mount, state) in node.mounts.iter().enumerate() {
        for number in 0..drain::Config::default().passes {
            let write_back = node.write_back.clone();
            let name = format!("drain-{}-{number}", state.label());
            threads.push(spawn(&name, move || write_back.drain(mount))?);
        }
    }
    let write_back = node.write_back.clone();
    for number in 0..disk::READERS {
        let (cache, stop) = (node.cache.clone(), node.stop.clone());
        let Some(disk) = cache.disk().cloned() else { break };
        if number == 0 {
            let (disk, stop) = (disk.clone(), stop.clone());
            threads.push(spawn("disk-write", move || disk.write_down(&stop))?);
        }
        threads.push(spawn(&format!("disk-read-{number}"), move || disk.serve(&stop))?);
    }
    threads.push(spawn("write-back", move || write_back.keep_house())?);
    // Without a log, one sender reports that to programs.
    let to_disk = node.config.log.as_ref().map_or(1, |_| copies::SENDERS);
    let senders = [(SecondPlace::Node, "copies", copies::SENDERS), (SecondPlace::Disk, "log", to_disk)];
    for (place, name, count) in senders {
        for number in 0..count {
            let write_back = node.write_back.clone();
            threads.push(spawn(&format!("{name}-{number}"), move || write_back.send_copies(place))?);
        }
    }
    let write_back = node.write_back.clone();
    threads.push(spawn("kept-copies", move || write_back.check_copies())?);
    let write_back = node.write_back.clone();
    threads.push(spawn("settle", move || write_back.settle())?);
    let shuffles = node.shuffles.clone();
    threads.push(spawn("shuffle", move || shuffles.watch())?);
    let shuffles = node.shuffles.clone();
    threads.push(spawn("spill", move || shuffles.spill_excess())?);
    Ok(threads)
}

/// Listens for programs on this node. Returns the path of the socket.
fn serve_clients(node: &Arc<Node>) -> io::Result<PathBuf> {
    let socket = node.config.socket();
    let listener = listen_on(&socket, node.config.socket_mode)?;
    let clients = Clients::new(node.clone());
    // Not joined at the end: it sits in accept until the process or the listener goes.
    spawn("accept", move || clients.accept(&listener))?;
    Ok(socket)
}

/// Listens for peers, if this node has any.
fn serve_peers(node: &Node, requests: Arc<Requests>, security: &Security) -> io::Result<Arc<PeerServer>> {
    let (fetch, cluster, stop) = (node.fetch.clone(), node.cluster.clone(), node.stop.clone());
    let peers = Arc::new(PeerServer::new(
        fetch,
        requests,
        node.write_back.clone(),
        node.shuffles.clone(),
        node.phases.clone(),
        cluster,
        stop,
    ));
    let address = &node.config.cluster.listen;
    if !address.is_empty() {
        let listener = security.listen(address)?;
        node.cluster.set_address(listener.address()?.to_string());
        let accepting = peers.clone();
        // Not joined at the end, like the other one.
        spawn("accept-peers", move || server::accept_loop(&accepting, listener))?;
    }
    Ok(peers)
}

fn keep_house(node: &Node, peers: &PeerServer) {
    while !node.stop.wait(HOUSEKEEPING) {
        node.drain_rings();
        node.memory_files.keep_house();
        node.cache.release_unmapped();
        for (number, mount) in node.mounts.iter().enumerate().filter(|(_, mount)| mount.must_forget()) {
            node.cache.forget_mount(number);
            node.cache.disk().iter().for_each(|disk| disk.clear_after(|| ()));
            mount.has_forgotten();
        }
        node.cache.sweep_stale();
        node.cache.settle_some();
        node.fetch.owners.keep_house();
        node.fetch.peers.keep_house();
        node.fetch.scheduler.tick();
        if let Some(moved) = node.fetch.traffic.tick() {
            node.link.say(ToCoordinator::Traffic(moved), None);
        }
        peers.keep_house();
        node.audit.keep_house(false);
    }
    node.audit.keep_house(true);
}
