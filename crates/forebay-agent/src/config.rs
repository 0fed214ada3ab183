//! The configuration: one TOML file, one validated structure, every key with its reason.
//!
//! Nothing is repaired silently: what does not fit is refused, naming the keys. `KEYS` is the
//! reference that `forebay config reference` and `docs/configuration.md` are made from; a test
//! holds it against the structure.

mod memory;
mod phases;
mod web;

pub use memory::MemoryConfig;
pub use phases::PhasesConfig;
pub use web::WebConfig;

use crate::units::{Amount, Human, parse_bytes};
use forebay_pfs::Revalidate;
use forebay_policy::eviction::EvictionKind;
use forebay_policy::stage::Division;
use forebay_store::Backing;
use forebay_store::ring::PAGES_MAX;
use forebay_wire::Role;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// One key of the reference: name, default as TOML, reason.
pub struct Key {
    /// Table and key.
    pub name: &'static str,
    /// Default, as written in TOML; empty where there is none.
    pub default: &'static str,
    /// What it does and why the default is what it is.
    pub reason: &'static str,
}

/// Every key there is.
pub const KEYS: &[Key] = &[
    Key {
        name: "agent.state_dir",
        default: "",
        reason: "Directory of the agent's socket, lock and mount point. /run/forebay for root; for others \
                 $XDG_RUNTIME_DIR/forebay or /tmp/forebay-UID, where clients look for it.",
    },
    Key {
        name: "agent.socket_mode",
        default: "\"0666\"",
        reason: "Permission bits of the socket. Everybody may connect, because access to bytes depends on \
                 the descriptors that a user can open on the PFS, not on the socket. Use 0600 for an agent \
                 of your own.",
    },
    Key {
        name: "agent.connections_max",
        default: "1024",
        reason: "Limit on simultaneous connections. Each costs a thread and about 150 KiB; clients above the \
                 limit read the PFS.",
    },
    Key {
        name: "agent.decision_log",
        default: "\"\"",
        reason: "Directory in which the agent records what its memory controller and its fetch scheduler hear and decide, \
                 for `forebay replay`: of each four files of at most 64 MiB, in a directory with the host's name; about \
                 5 kB a second on a quiet node, and some hundred bytes for each page that is fetched. Empty: no record.",
    },
    Key {
        name: "tier.capacity",
        default: "\"25%\"",
        reason: "The budget for everything the agent uses, including the cached pages: a size, or a share of the \
                 node's memory or control group limit, whichever is smaller. A quarter leaves compute its memory.",
    },
    Key {
        name: "tier.limit",
        default: "\"90%\"",
        reason: "Size of the tmpfs, and thus the limit of any capacity that is set while the agent runs. The \
                 kernel enforces it even if the agent miscounts its budget.",
    },
    Key {
        name: "tier.backing",
        default: "\"auto\"",
        reason: "Source of the tmpfs: mount (root), namespace (no root; a keeper process), directory (an \
                 existing tmpfs, usually without huge pages), or auto, the first that works.",
    },
    Key {
        name: "tier.directory",
        default: "",
        reason: "For backing = \"directory\": the directory; /dev/shm/forebay-UID if not given.",
    },
    Key {
        name: "tier.huge_pages",
        default: "true",
        reason: "Mount the tmpfs with huge=within_size: two to three times the bandwidth, and memory is \
                 released fifty times faster.",
    },
    Key {
        name: "tier.eviction",
        default: DEFAULT_EVICTION_TOML,
        reason: "The policy that chooses pages to evict. The default has the best hit ratios over loops, \
                 skewed and scanning access; see docs/decisions/0003-default-eviction-policy.md.",
    },
    Key {
        name: "memory.policy",
        default: "\"forebay\"",
        reason: "The law by which the tier releases memory when compute needs it, and grows again, up to tier.capacity: \
                 forebay, dynims, or static, which never changes the capacity.",
    },
    Key {
        name: "memory.target",
        default: "\"95%\"",
        reason: "Share of the memory that may be in use before the tier shrinks: of the node's memory, and of the \
                 limit of each control group that contains the agent. Clean pages of the page cache count as free. \
                 The law forebay keeps 40 MB free in any case, but at most an eighth of the memory.",
    },
    Key {
        name: "memory.gain",
        default: "0.5",
        reason: "The part of the distance from the target that the law dynims corrects in each period, above 0 and at \
                 most 10. It is sluggish far below 0.5, and oscillates above 2. Other laws ignore it.",
    },
    Key {
        name: "memory.min",
        default: "\"0\"",
        reason: "The tier keeps this much even if compute runs short: a size, or a share of the node's memory or \
                 control group limit.",
    },
    Key {
        name: "memory.period_ms",
        default: "100",
        reason: "Time between two samples of memory use on a quiet node, from 10 to 1000. While use grows, or little \
                 memory is free and the kernel watches no threshold, the agent samples up to ten times as often, and at \
                 once when the kernel reports stalls or use beyond the target.",
    },
    Key {
        name: "memory.watch",
        default: "[]",
        reason: "Control groups whose memory limits also bind the tier, as paths below the top group, such as \
                 \"/system.slice/foo.slice\": the tier gets at most what they leave of their limits, as if it were \
                 inside. A group may come later and go with its job.",
    },
    Key {
        name: "metrics.listen",
        default: "\"\"",
        reason: "IP:PORT at which this process serves metrics in the formats of OpenMetrics and Prometheus, at /metrics: \
                 those of its agent, of its coordinator, or of both. An address that is not on loopback needs metrics.tls, \
                 metrics.token_file or both; port 0 takes a free one, which the log names. Empty: no metrics.",
    },
    Key {
        name: "metrics.tls",
        default: "\"\"",
        reason: "Directory with node.pem and node.key, such as that of cluster.tls: metrics are served over TLS 1.3. \
                 Clients show no certificate. Empty: plain HTTP.",
    },
    Key {
        name: "metrics.token_file",
        default: "\"\"",
        reason: "File with a token of at least 16 characters, readable by its owner only: requests need the header \
                 `Authorization: Bearer TOKEN`. Empty: anybody who reaches the port may read the metrics.",
    },
    Key {
        name: "console.listen",
        default: "\"\"",
        reason: "IP:PORT at which the coordinator of this process serves the web console; `forebay up --console` sets it too. \
                 An address that is not on loopback needs console.tls and console.token_file. Empty: no console.",
    },
    Key {
        name: "console.tls",
        default: "\"\"",
        reason: "Directory with node.pem and node.key, as metrics.tls.",
    },
    Key {
        name: "console.token_file",
        default: "\"\"",
        reason: "File with a token, as metrics.token_file. Open the console as https://HOST:PORT/#token=TOKEN. Empty: every \
                 user of this machine may read the console.",
    },
    Key {
        name: "cluster.coordinator",
        default: "\"\"",
        reason: "HOST:PORT of the cluster's coordinator. Empty: this agent runs the coordinator in its own process.",
    },
    Key {
        name: "cluster.coordinator_listen",
        default: "\"\"",
        reason: "IP:PORT where the coordinator of this process serves other agents. Empty: a cluster of one, no port \
                 is open.",
    },
    Key {
        name: "cluster.coordinator_buffers",
        default: "\"256MiB\"",
        reason: "Limit on the coordinator's send and receive buffers for all agents, in addition to any \
                 tier. Above the limit, the coordinator closes the connection that has been behind for \
                 longest; its agent reconnects.",
    },
    Key {
        name: "cluster.coordinator_reports",
        default: "\"1GiB\"",
        reason: "Limit on the coordinator's memory for what all jobs report, in addition to any tier: a split \
                 takes about 150 bytes. Above the limit, the coordinator no longer plans the largest job of the \
                 user whose jobs take most; its tasks read without prefetch.",
    },
    Key {
        name: "cluster.listen",
        default: "\"\"",
        reason: "IP:PORT where this agent serves pages to its peers; port 0 picks a free one. Empty: the \
                 agent exchanges no pages with peers.",
    },
    Key {
        name: "cluster.node",
        default: "\"\"",
        reason: "Name of this node, unique in the cluster; its extents move if it changes. Empty: the host name.",
    },
    Key {
        name: "cluster.host",
        default: "\"\"",
        reason: "The name that schedulers (Spark, YARN) use for this node; block locations contain it. \
                 Empty: the node's name.",
    },
    Key {
        name: "cluster.role",
        default: "\"co-located\"",
        reason: "co-located: a compute node that lends memory. dedicated: a node that keeps extents and runs \
                 no tasks.",
    },
    Key {
        name: "cluster.tls",
        default: "\"\"",
        reason: "Directory with ca.pem, node.pem and node.key, made by `forebay init`. Empty: plain TCP, which is \
                 allowed on loopback addresses only, between processes of the same user.",
    },
    Key {
        name: "cluster.peer_deadline_ms",
        default: "2000",
        reason: "Longest wait for a page from a peer. After it, the agent reads the PFS and avoids the peer \
                 for a while. A page of 2 MiB takes a millisecond; the rest is for a PFS that is slow at the \
                 peer.",
    },
    Key {
        name: "cluster.planner",
        default: "\"no-action\"",
        reason: "Prefetch planner for analytics jobs that name none: no-action fetches the next wave at once, naive-bb \
                 never prefetches; full-delay, eley, eley-direct and forebay also plan around the I/O phases of HPC \
                 jobs (docs/interference.md).",
    },
    Key {
        name: "cluster.profile",
        default: "\"\"",
        reason: "File with the measured speed of prefetches and their interference with I/O phases, for the planners \
                 of the coordinator of this process (docs/operations.md). Empty: planners learn both from prefetches \
                 and phases.",
    },
    Key {
        name: "cluster.division",
        default: "\"fair-share\"",
        reason: "How the file system is divided among I/O phases that overlap, for the forecasts of the planners of the \
                 coordinator of this process: fair-share, or set-10 (docs/policies.md). A file in cluster.profile says \
                 it itself.",
    },
    Key {
        name: "cluster.task_wait_s",
        default: "300",
        reason: "Longest time, in seconds, for which a task of Spark waits for its input where the planner delays it for \
                 an I/O phase of an HPC job. Longer than the longest phase keeps deadlines; 0: tasks never wait, and \
                 read what is missing by themselves. For the coordinator of this process. Up to 86400.",
    },
    Key {
        name: "cluster.decision_log",
        default: "\"\"",
        reason: "Directory in which the coordinator of this process records its events and decisions for \
                 `forebay replay`: four files of at most 64 MiB, without paths of files. Empty: no record.",
    },
    Key {
        name: "phases.cut_off_factor",
        default: "3",
        reason: "An I/O phase of an HPC job that has not ended after so many times the time to its deadline, and moves \
                 no bytes, is cut off: prefetches no longer wait for it. From 1 to 100.",
    },
    Key {
        name: "phases.brake_lease_ms",
        default: "1000",
        reason: "What a node reports of its I/O phases counts on other nodes for this long; it reports three times as \
                 often. A node that dies stops prefetches for at most this time. From 100 to 10000.",
    },
    Key {
        name: "mount.label",
        default: "",
        reason: "A name of your choice for the PFS. Cached files are stored under it, so the cache survives \
                 a remount.",
    },
    Key { name: "mount.root", default: "", reason: "Where the PFS is mounted." },
    Key {
        name: "mount.require_mount",
        default: "false",
        reason: "Refuse to start unless a file system is mounted on the root itself. Set it if the root is the mount \
                 point of the PFS, so that the agent never serves the empty directory below it. In any case, the agent \
                 stops serving a mount that was present at its start and is gone.",
    },
    Key {
        name: "mount.page_size",
        default: "\"2MiB\"",
        reason: "Unit of caching, a power of two from 64KiB to 64MiB. 2 MiB is one huge page; smaller pages suit small \
                 random reads and make everything else more expensive.",
    },
    Key {
        name: "mount.small_page_files",
        default: "[\"*.parquet\", \"*.parq\", \"*.orc\"]",
        reason: "Names of columnar files, with * and ?. Programs read parts of such files, so a miss fetches what is read \
                 in pages of mount.small_page_size, and nothing is read ahead that the reader has not earned by reading \
                 on. An empty list treats all files alike.",
    },
    Key {
        name: "mount.small_page_size",
        default: "\"16KiB\"",
        reason: "Unit of caching of these files, a power of two from 4KiB to the page size. Adjacent pages are one read \
                 of the PFS. Each chunk of a column costs on average one such page more than the chunk has bytes; \
                 smaller pages cost memory and time for each page.",
    },
    Key {
        name: "mount.merge_gap",
        default: "\"auto\"",
        reason: "Parts of such a file that tasks will read, with at most so many bytes between them, are prefetched by \
                 one read of the PFS, and the bytes between them too: up to 2MiB. `auto` estimates it from the reads of \
                 the mount: the bytes that take as long as a read does beside its bytes, at most 128 KiB. 0 fetches \
                 nothing that is not reported.",
    },
    Key {
        name: "mount.extent_size",
        default: "\"128MiB\"",
        reason: "Unit of placement, a multiple of the page size: each extent has one owner. As large as the \
                 splits of Hadoop and Spark, so that a task's input is on one node.",
    },
    Key {
        name: "mount.fetch_threads",
        default: "8",
        reason: "Simultaneous reads of the PFS. Eight streams of 1 MiB keep four to eight storage servers \
                 busy; more only wait at the PFS and disturb others. If each file is on one server, 16 keep \
                 more servers busy, because several reads go to the same server by chance.",
    },
    Key {
        name: "mount.read_ahead",
        default: "\"64MiB\"",
        reason: "Limit on bytes fetched ahead of a sequential reader; 0 turns read-ahead off. The window \
                 starts at 16 MiB, or at two pages if that is more, and doubles with progress up to this \
                 limit.",
    },
    Key {
        name: "mount.random_fill_percent",
        default: "2",
        reason: "Limit on the cost of fetching pages that small random reads keep missing, in percent of the cost of \
                 the misses at the PFS; 0 never fetches them. The PFS serves small reads that miss; they may be slower \
                 by this share while the tier warms up.",
    },
    Key {
        name: "mount.revalidate",
        default: "\"force\"",
        reason: "force: ask the PFS for current attributes at every open, to notice changes by other nodes. \
                 as-stat: trust this node's attribute cache, which is cheaper if a round trip is expensive.",
    },
    Key {
        name: "mount.stamp_granularity_ms",
        default: "20",
        reason: "Two writes within this time may leave the same time stamps, so a file that changed more \
                 recently is not cached yet. 20 ms covers kernels that stamp by the clock tick. If both \
                 stamps are whole seconds, the time is at least 2 s. 0 trusts every stamp at once.",
    },
    Key {
        name: "mount.settle_ms",
        default: "",
        reason: "How long a file must have been unchanged before it is cached, where writers cannot be excluded: on \
                 file systems that other nodes may write (network and FUSE file systems), and where the agent gets no \
                 lease (it is neither root nor the file's owner). Without a value: 3000, and 30000 on MooseFS, which \
                 stamps an overwrite in place only when it begins. If a write by another node takes longer than this \
                 without moving the stamps, the agent may cache a mixture of old and new bytes; `forebay doctor --pfs \
                 A --second B --long-write 256MiB` measures that, and the limits in docs/semantics.md say what to do. \
                 0: only the granularity counts.",
    },
    Key {
        name: "mount.stamps",
        default: "\"measure\"",
        reason: "measure: write a small file when the mount is first served and after each remount, and cache nothing \
                 unless writes move its time stamps. Where the agent may not write, the file system's type decides. \
                 trust: rely on the time stamps without a check. On a file system that does not move them (OrangeFS by \
                 pvfs2fuse), readers then get the old content of changed files until the files are evicted.",
    },
    Key {
        name: "mount.probe_dir",
        default: "",
        reason: "Directory on this mount where the agent may write that small file (.forebay-probe-*, removed at \
                 once). The mount's root unless given.",
    },
    Key {
        name: "mount.keep_page_cache",
        default: "false",
        reason: "Keep the kernel's own copy of fetched bytes. Off, because nobody needs the same bytes in \
                 memory twice.",
    },
    Key {
        name: "mount.layout",
        default: "true",
        reason: "Ask the PFS on which server each file of an analytics job lies, so that prefetches keep \
                 every server busy. Turn it off where the answer is wrong: GlusterFS with shards reports \
                 only the first shard.",
    },
];

const DEFAULT_EVICTION_TOML: &str = "\"default\"";

/// The configuration of an agent, validated.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of socket, lock and mount point.
    pub state_dir: PathBuf,
    /// Permission bits of the socket.
    pub socket_mode: u32,
    /// Connections at a time.
    pub connections_max: usize,
    /// Directory of the decision logs, if there are to be any.
    pub decision_log: Option<PathBuf>,
    /// The budget.
    pub capacity: Amount,
    /// Bound of the tmpfs.
    pub limit: Amount,
    /// Where the tmpfs comes from.
    pub backing: Backing,
    /// For the directory backing.
    pub directory: Option<PathBuf>,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// Order of eviction.
    pub eviction: EvictionKind,
    /// How the tier gives way to compute.
    pub memory: MemoryConfig,
    /// Where metrics are served, if they are.
    pub metrics: WebConfig,
    /// Where the console is served, if it is.
    pub console: WebConfig,
    /// The cluster this agent belongs to.
    pub cluster: ClusterConfig,
    /// How I/O phases of HPC jobs are guarded.
    pub phases: PhasesConfig,
    /// The PFS mounts; at least one.
    pub mounts: Vec<MountConfig>,
}

/// What an agent has to know to be one of many, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterConfig {
    /// `HOST:PORT` of the coordinator; empty for one in this process.
    pub coordinator: String,
    /// `IP:PORT` where the coordinator of this process listens; empty for none.
    pub coordinator_listen: String,
    /// Most bytes that the coordinator of this process holds in the buffers of its connections.
    pub coordinator_buffers_bytes: u64,
    /// Most bytes of memory that the reports of all jobs take in the coordinator of this process.
    pub coordinator_reports_bytes: u64,
    /// `IP:PORT` where peers are served; empty for none.
    pub listen: String,
    /// Unique name of the node.
    pub node: String,
    /// Name by which schedulers know it.
    pub host: String,
    /// What it is for.
    pub role: Role,
    /// Directory of certificates and key.
    pub tls: Option<PathBuf>,
    /// Longest wait for a page from a peer.
    pub peer_deadline: Duration,
    /// Planner of jobs that name none.
    pub planner: String,
    /// File with the system as it was measured.
    pub profile: Option<PathBuf>,
    /// How the file system is divided among I/O phases.
    pub division: Division,
    /// Longest time for which a task waits for its input.
    pub task_wait: Duration,
    /// Directory of the coordinator's decision log.
    pub decision_log: Option<PathBuf>,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        ClusterConfig {
            coordinator: String::new(),
            coordinator_listen: String::new(),
            coordinator_buffers_bytes: 256 << 20,
            coordinator_reports_bytes: 1 << 30,
            listen: String::new(),
            host: node.clone(),
            node,
            role: Role::CoLocated,
            tls: None,
            peer_deadline: Duration::from_millis(2000),
            planner: "no-action".into(),
            profile: None,
            division: Division::default(),
            task_wait: Duration::from_secs(300),
            decision_log: None,
        }
    }
}

/// One PFS mount, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct MountConfig {
    /// The operator's name.
    pub label: String,
    /// Where it is mounted.
    pub root: PathBuf,
    /// Something has to be mounted on the root.
    pub require_mount: bool,
    /// Unit of caching in bytes.
    pub page_bytes: u64,
    /// Names of the files with small pages, with `*` and `?`.
    pub small_page_files: Vec<String>,
    /// Their unit of caching in bytes, at most `page_bytes`.
    pub small_page_bytes: u64,
    /// Gap over which parts of such files are one read; measured if it is `None`.
    pub merge_gap_bytes: Option<u64>,
    /// Unit of placement in bytes, a multiple of `page_bytes`.
    pub extent_bytes: u64,
    /// Reads at a time.
    pub fetch_threads: usize,
    /// Most bytes ahead of a reader.
    pub read_ahead_bytes: u64,
    /// What filling pages that small random reads keep missing may cost, in hundredths of the
    /// misses.
    pub random_fill_percent: u32,
    /// How attributes are asked for.
    pub revalidate: Revalidate,
    /// Granularity of time stamps in nanoseconds.
    pub stamp_granularity_ns: i64,
    /// How long a file must be quiet where writers cannot be excluded, in nanoseconds; `None`: the
    /// file system decides.
    pub settle_ns: Option<i64>,
    /// Believe its time stamps unseen.
    pub trusts_stamps: bool,
    /// Where they are measured; the root unless given.
    pub probe_dir: Option<PathBuf>,
    /// Leave the kernel's copy.
    pub keep_page_cache: bool,
    /// Ask the PFS where files of analytics jobs lie.
    pub layout: bool,
}

impl MountConfig {
    /// The defaults for a PFS mounted on `root`.
    pub fn new(label: &str, root: &Path) -> Self {
        MountConfig {
            label: label.to_owned(),
            root: root.to_owned(),
            require_mount: false,
            page_bytes: 2 << 20,
            small_page_files: ["*.parquet", "*.parq", "*.orc"].map(str::to_owned).to_vec(),
            small_page_bytes: 16 << 10,
            merge_gap_bytes: None,
            extent_bytes: 128 << 20,
            fetch_threads: 8,
            read_ahead_bytes: 64 << 20,
            random_fill_percent: 2,
            revalidate: Revalidate::Force,
            stamp_granularity_ns: 20_000_000,
            settle_ns: None,
            trusts_stamps: false,
            probe_dir: None,
            keep_page_cache: false,
            layout: true,
        }
    }

    /// Unit of caching of the file at `path`, of `size` bytes, in bytes. All members of a cluster
    /// come to the same answer, as only these count: an owner refuses pages of another size.
    pub fn page_bytes_of(&self, path: &[u8], size: u64) -> u64 {
        // A copy cannot number more small pages than this.
        if size.div_ceil(self.small_page_bytes) >= PAGES_MAX {
            return self.page_bytes;
        }
        // What the kernel adds to the name of a file that was removed while it is open.
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let is_small = self.small_page_files.iter().any(|pattern| matches(pattern.as_bytes(), name));
        if is_small { self.small_page_bytes } else { self.page_bytes }
    }
}

/// Whether `name` is what `pattern` stands for: `*` for any bytes, `?` for one.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // Where the last `*` stands, and up to where in the name it reaches so far.
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_name));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => {
                let Some((of, reach)) = star else { return false };
                star = Some((of, reach + 1));
                at = of + 1;
                in_name = reach + 1;
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

impl Default for Config {
    fn default() -> Self {
        Config {
            state_dir: default_state_dir(),
            socket_mode: 0o666,
            connections_max: 1024,
            decision_log: None,
            capacity: Amount::Percent(25.0),
            limit: Amount::Percent(90.0),
            backing: Backing::Auto,
            directory: None,
            huge_pages: true,
            eviction: EvictionKind::default(),
            memory: MemoryConfig::default(),
            metrics: WebConfig::default(),
            console: WebConfig::default(),
            cluster: ClusterConfig::default(),
            phases: PhasesConfig::default(),
            mounts: Vec::new(),
        }
    }
}

/// `/run/forebay` for root, else `$XDG_RUNTIME_DIR/forebay`, else `/tmp/forebay-UID`.
pub fn default_state_dir() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return PathBuf::from("/run/forebay");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("forebay"),
        _ => PathBuf::from(format!("/tmp/forebay-{}", uid.as_raw())),
    }
}

/// The file as written; every key optional but a mount's label and root.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    #[serde(default)]
    agent: RawAgent,
    #[serde(default)]
    tier: RawTier,
    #[serde(default)]
    memory: memory::RawMemory,
    #[serde(default)]
    metrics: web::RawWeb,
    #[serde(default)]
    console: web::RawWeb,
    #[serde(default)]
    cluster: RawCluster,
    #[serde(default)]
    phases: phases::RawPhases,
    #[serde(default)]
    mount: Vec<RawMount>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawAgent {
    state_dir: Option<PathBuf>,
    socket_mode: Option<String>,
    connections_max: Option<usize>,
    decision_log: Option<PathBuf>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawTier {
    capacity: Option<String>,
    limit: Option<String>,
    backing: Option<Backing>,
    directory: Option<PathBuf>,
    huge_pages: Option<bool>,
    eviction: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawCluster {
    coordinator: Option<String>,
    coordinator_listen: Option<String>,
    coordinator_buffers: Option<String>,
    coordinator_reports: Option<String>,
    listen: Option<String>,
    node: Option<String>,
    host: Option<String>,
    role: Option<Role>,
    tls: Option<PathBuf>,
    peer_deadline_ms: Option<u64>,
    planner: Option<String>,
    profile: Option<PathBuf>,
    division: Option<Division>,
    task_wait_s: Option<u64>,
    decision_log: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMount {
    label: String,
    root: PathBuf,
    require_mount: Option<bool>,
    page_size: Option<String>,
    small_page_files: Option<Vec<String>>,
    small_page_size: Option<String>,
    merge_gap: Option<String>,
    extent_size: Option<String>,
    fetch_threads: Option<usize>,
    read_ahead: Option<String>,
    random_fill_percent: Option<u32>,
    revalidate: Option<Revalidate>,
    stamp_granularity_ms: Option<i64>,
    settle_ms: Option<i64>,
    stamps: Option<String>,
    probe_dir: Option<PathBuf>,
    keep_page_cache: Option<bool>,
    layout: Option<bool>,
}

impl Config {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// One or more lines that name file, key, value and what is allowed.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text =
            std::fs::read_to_string(path).map_err(|e| format!("{}: cannot read: {e}", path.display()))?;
        Self::parse(&text).map_err(|e| format!("{}: {}", path.display(), e.trim_end()))
    }

    /// Parses and validates TOML text.
    ///
    /// # Errors
    /// As [`Config::load`], without the file's name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let raw: RawConfig = toml::from_str(text).map_err(|e| e.to_string() + hint(text, e.message()))?;
        let mut config = Config::default();
        config.take_agent(raw.agent)?;
        config.take_tier(raw.tier)?;
        config.memory.take(raw.memory)?;
        config.metrics.take("metrics", raw.metrics)?;
        config.console.take("console", raw.console)?;
        config.cluster.take(raw.cluster)?;
        config.phases.take(raw.phases)?;
        config.mounts = raw.mount.into_iter().map(take_mount).collect::<Result<_, _>>()?;
        config.validate()?;
        Ok(config)
    }

    fn take_agent(&mut self, raw: RawAgent) -> Result<(), String> {
        if let Some(dir) = raw.state_dir {
            self.state_dir = dir;
        }
        if let Some(mode) = raw.socket_mode {
            self.socket_mode =
                u32::from_str_radix(&mode, 8).ok().filter(|m| *m <= 0o777).ok_or_else(|| {
                    format!("agent.socket_mode = {mode:?}: write octal digits, for example \"0666\"")
                })?;
        }
        self.connections_max = raw.connections_max.unwrap_or(self.connections_max);
        self.decision_log = raw.decision_log.filter(|dir| !dir.as_os_str().is_empty());
        Ok(())
    }

    fn take_tier(&mut self, raw: RawTier) -> Result<(), String> {
        let amount = |key: &str, text: &str| Amount::parse(text).map_err(|e| format!("{key}: {e}"));
        if let Some(text) = &raw.capacity {
            self.capacity = amount("tier.capacity", text)?;
        }
        if let Some(text) = &raw.limit {
            self.limit = amount("tier.limit", text)?;
        }
        if let Some(name) = raw.eviction.as_deref().filter(|name| *name != "default") {
            self.eviction = EvictionKind::from_str(name).map_err(|e| format!("tier.eviction: {e}"))?;
        }
        self.backing = raw.backing.unwrap_or(self.backing);
        self.directory = raw.directory;
        self.huge_pages = raw.huge_pages.unwrap_or(self.huge_pages);
        Ok(())
    }

    /// Checks what concerns more than one key.
    ///
    /// # Errors
    /// Names the keys that do not fit together.
    pub fn validate(&self) -> Result<(), String> {
        if self.connections_max == 0 {
            return Err("agent.connections_max = 0: nobody could connect; allow at least 1".into());
        }
        if self.directory.is_some() && !matches!(self.backing, Backing::Directory | Backing::Auto) {
            return Err("tier.directory is given, but tier.backing is not \"directory\"".into());
        }
        let (socket, most) = (self.socket(), 107);
        if socket.as_os_str().len() > most {
            return Err(format!(
                "agent.state_dir: {} has {} bytes, and the path of a socket at most {most}: give a shorter directory",
                socket.display(),
                socket.as_os_str().len()
            ));
        }
        self.cluster.validate()?;
        if self.console.listen.is_some() && !self.cluster.coordinator.is_empty() {
            return Err("console.listen is for the process of the coordinator, and cluster.coordinator names another: serve the \
                        console there"
                .into());
        }
        for (i, mount) in self.mounts.iter().enumerate() {
            if !mount.extent_bytes.is_multiple_of(mount.page_bytes) {
                return Err(format!(
                    "mount {:?}: extent_size = {} must be a multiple of page_size = {}",
                    mount.label, mount.extent_bytes, mount.page_bytes
                ));
            }
            for other in &self.mounts[..i] {
                if other.label == mount.label {
                    return Err(format!("mount.label = {:?} stands twice; labels must differ", mount.label));
                }
                if other.root == mount.root {
                    return Err(format!("mount.root = {:?} has two labels", mount.root));
                }
            }
        }
        Ok(())
    }

    /// Capacity and limit of the tier in bytes, on a node where `usable` bytes may be used.
    ///
    /// # Errors
    /// They do not fit the node or each other; says both numbers.
    pub fn sizes(&self, usable: u64) -> Result<(u64, u64), String> {
        let min = self.memory.min.of(usable);
        let (capacity, limit) = (self.capacity.of(usable), self.limit.of(usable));
        let more = |bytes: u64, of: &str| {
            format!(
                "tier.capacity = {capacity} ({}) is more than {of} {bytes} ({})",
                Human(capacity),
                Human(bytes)
            )
        };
        if capacity > usable {
            let whose = match crate::memory::group_limit() {
                Some(limit) => format!("the limit of the control group {}:", limit.group.display()),
                None => "this node's memory:".into(),
            };
            return Err(format!("{}; give the tier a part of it, for example \"25%\"", more(usable, &whose)));
        }
        if min > capacity {
            return Err(format!(
                "memory.min = {min} ({}) is more than tier.capacity = {capacity} ({})",
                Human(min),
                Human(capacity)
            ));
        }
        if capacity > limit {
            return Err(format!("{}; raise the limit or lower the capacity", more(limit, "tier.limit =")));
        }
        Ok((capacity, limit))
    }

    /// Path of the agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.state_dir.join("agent.sock")
    }
}

/// Least memory for what jobs report: that of a hundred thousand splits.
const REPORTS_BYTES_MIN: u64 = 16 << 20;

impl ClusterConfig {
    fn take(&mut self, raw: RawCluster) -> Result<(), String> {
        let default = std::mem::take(self);
        let named = |name: Option<String>| name.filter(|n| !n.is_empty());
        let node = named(raw.node).unwrap_or(default.node);
        *self = ClusterConfig {
            coordinator: raw.coordinator.unwrap_or_default(),
            coordinator_listen: raw.coordinator_listen.unwrap_or_default(),
            coordinator_buffers_bytes: match raw.coordinator_buffers {
                Some(text) => parse_bytes(&text).map_err(|e| format!("cluster.coordinator_buffers: {e}"))?,
                None => default.coordinator_buffers_bytes,
            },
            coordinator_reports_bytes: match raw.coordinator_reports {
                Some(text) => parse_bytes(&text).map_err(|e| format!("cluster.coordinator_reports: {e}"))?,
                None => default.coordinator_reports_bytes,
            },
            listen: raw.listen.unwrap_or_default(),
            host: named(raw.host).unwrap_or_else(|| node.clone()),
            node,
            role: raw.role.unwrap_or_default(),
            tls: raw.tls.filter(|dir| !dir.as_os_str().is_empty()),
            peer_deadline: raw.peer_deadline_ms.map_or(default.peer_deadline, Duration::from_millis),
            planner: raw.planner.unwrap_or(default.planner),
            profile: raw.profile.filter(|file| !file.as_os_str().is_empty()),
            division: raw.division.unwrap_or_default(),
            task_wait: raw.task_wait_s.map_or(default.task_wait, Duration::from_secs),
            decision_log: raw.decision_log.filter(|dir| !dir.as_os_str().is_empty()),
        };
        Ok(())
    }

    /// Checks what concerns more than one key.
    fn validate(&self) -> Result<(), String> {
        if !self.coordinator.is_empty() && !self.coordinator_listen.is_empty() {
            return Err("cluster.coordinator names another process, and cluster.coordinator_listen one in this: give one of \
                        them"
                .into());
        }
        let frames = 2 * forebay_wire::frame::MAX_FRAME_BYTES as u64;
        if self.coordinator_buffers_bytes < frames {
            return Err(format!(
                "cluster.coordinator_buffers = {} bytes is too little: two of the longest messages take {frames}",
                self.coordinator_buffers_bytes
            ));
        }
        if self.coordinator_reports_bytes < REPORTS_BYTES_MIN {
            return Err(format!(
                "cluster.coordinator_reports = {} bytes is too little: the least is {REPORTS_BYTES_MIN}",
                self.coordinator_reports_bytes
            ));
        }
        if !(10..=600_000).contains(&self.peer_deadline.as_millis()) {
            return Err("cluster.peer_deadline_ms must be from 10 to 600000".into());
        }
        if self.task_wait.as_secs() > 86_400 {
            return Err("cluster.task_wait_s must be from 0 to 86400".into());
        }
        for (key, address) in [("listen", &self.listen), ("coordinator_listen", &self.coordinator_listen)] {
            if address.is_empty() {
                continue;
            }
            let parsed: SocketAddr = address.parse().map_err(|_| {
                format!("cluster.{key} = {address:?}: write IP:PORT, for example \"127.0.0.1:7850\"")
            })?;
            if self.tls.is_none() && !parsed.ip().is_loopback() {
                return Err(format!(
                    "cluster.{key} = {address:?} is open to other machines, which needs cluster.tls; `forebay init` makes \
                     the certificates"
                ));
            }
            if parsed.ip().is_unspecified() && key == "listen" {
                return Err(format!(
                    "cluster.{key} = {address:?}: give the address peers connect to, not all addresses"
                ));
            }
        }
        forebay_policy::planner::POLICIES.iter().any(|p| p.0 == self.planner).then_some(()).ok_or_else(|| {
            let names: Vec<_> = forebay_policy::planner::POLICIES.iter().map(|p| p.0).collect();
            format!("cluster.planner = {:?}: the planners are {}", self.planner, names.join(", "))
        })
    }
}

/// What to write instead, for the mistakes that the parser's own words do not explain.
fn hint(text: &str, message: &str) -> &'static str {
    let table = text.parse::<toml::Table>().unwrap_or_default();
    if table.get("mount").is_some_and(toml::Value::is_table) {
        return "each PFS is one of several: write [[mount]] in double brackets\n";
    }
    match message.contains("expected a string") {
        true => "write it in quotes; sizes with their unit, such as \"16GiB\" or \"25%\"\n",
        false => "",
    }
}

fn take_mount(raw: RawMount) -> Result<MountConfig, String> {
    let mut mount = MountConfig::new(&raw.label, &raw.root);
    let at = |key: &str| format!("mount {:?}: {key}", raw.label);
    if raw.label.is_empty() || raw.label.contains(['/', ':', '\0', '\n']) {
        return Err(format!("{} must be a plain name without slash, colon or line break", at("label")));
    }
    if raw.label == "scratch" {
        return Err(format!("{} is taken by memory-only files", at("label")));
    }
    if !raw.root.is_absolute() {
        return Err(format!("{} = {:?} must be an absolute path", at("root"), raw.root));
    }
    if let Some(text) = &raw.page_size {
        let bytes = parse_bytes(text).map_err(|e| format!("{}: {e}", at("page_size")))?;
        if !bytes.is_power_of_two() || !(64 << 10..=64 << 20).contains(&bytes) {
            return Err(format!("{} = {text:?} must be a power of two from 64KiB to 64MiB", at("page_size")));
        }
        mount.page_bytes = bytes;
    }
    take_small_pages(&mut mount, raw.small_page_files, raw.small_page_size.as_deref())?;
    if let Some(text) = &raw.extent_size {
        mount.extent_bytes = parse_bytes(text).map_err(|e| format!("{}: {e}", at("extent_size")))?;
        if !(1 << 20..=1 << 40).contains(&mount.extent_bytes) {
            return Err(format!("{} = {text:?} must be from 1MiB to 1TiB", at("extent_size")));
        }
    }
    if let Some(threads) = raw.fetch_threads {
        if !(1..=256).contains(&threads) {
            return Err(format!("{} = {threads} must be from 1 to 256", at("fetch_threads")));
        }
        mount.fetch_threads = threads;
    }
    if let Some(text) = raw.merge_gap.as_deref().filter(|text| *text != "auto") {
        let bytes = parse_bytes(text).map_err(|e| format!("{}: {e}", at("merge_gap")))?;
        if bytes > MERGE_GAP_MAX {
            return Err(format!("{} = {text:?} must be \"auto\", or at most 2MiB", at("merge_gap")));
        }
        mount.merge_gap_bytes = Some(bytes);
    }
    if let Some(text) = &raw.read_ahead {
        mount.read_ahead_bytes = parse_bytes(text).map_err(|e| format!("{}: {e}", at("read_ahead")))?;
    }
    if let Some(percent) = raw.random_fill_percent {
        if percent > 100 {
            return Err(format!("{} = {percent} must be from 0 to 100", at("random_fill_percent")));
        }
        mount.random_fill_percent = percent;
    }
    if let Some(ms) = raw.stamp_granularity_ms {
        if !(0..=60_000).contains(&ms) {
            return Err(format!("{} = {ms} must be from 0 to 60000", at("stamp_granularity_ms")));
        }
        mount.stamp_granularity_ns = ms * 1_000_000;
    }
    if let Some(ms) = raw.settle_ms {
        if !(0..=3_600_000).contains(&ms) {
            return Err(format!("{} = {ms} must be from 0 to 3600000", at("settle_ms")));
        }
        mount.settle_ns = Some(ms * 1_000_000);
    }
    mount.trusts_stamps = match raw.stamps.as_deref() {
        None | Some("measure") => false,
        Some("trust") => true,
        Some(other) => return Err(format!("{} = {other:?}: write \"measure\" or \"trust\"", at("stamps"))),
    };
    if let Some(dir) = &raw.probe_dir
        && !dir.starts_with(&raw.root)
    {
        return Err(format!("{} = {dir:?} must be below root = {:?}", at("probe_dir"), raw.root));
    }
    mount.probe_dir = raw.probe_dir;
    mount.require_mount = raw.require_mount.unwrap_or(mount.require_mount);
    mount.revalidate = raw.revalidate.unwrap_or(mount.revalidate);
    mount.keep_page_cache = raw.keep_page_cache.unwrap_or(mount.keep_page_cache);
    mount.layout = raw.layout.unwrap_or(mount.layout);
    Ok(mount)
}

/// A longer read of the PFS is two.
const MERGE_GAP_MAX: u64 = 2 << 20;

fn take_small_pages(
    mount: &mut MountConfig,
    files: Option<Vec<String>>,
    size: Option<&str>,
) -> Result<(), String> {
    let at = |key: &str| format!("mount {:?}: {key}", mount.label);
    if let Some(files) = files {
        if let Some(bad) = files.iter().find(|name| name.is_empty() || name.contains('/')) {
            return Err(format!(
                "{} names {bad:?}: give names of files, without directories",
                at("small_page_files")
            ));
        }
        mount.small_page_files = files;
    }
    let Some(text) = size else {
        mount.small_page_bytes = mount.small_page_bytes.min(mount.page_bytes);
        return Ok(());
    };
    let bytes = parse_bytes(text).map_err(|e| format!("{}: {e}", at("small_page_size")))?;
    if !bytes.is_power_of_two() || !(4 << 10..=mount.page_bytes).contains(&bytes) {
        let page_bytes = mount.page_bytes;
        return Err(format!(
            "{} = {text:?} must be a power of two from 4KiB to page_size = {page_bytes}",
            at("small_page_size")
        ));
    }
    mount.small_page_bytes = bytes;
    Ok(())
}

/// The reference as a TOML file: every key with its reason and default, commented out.
pub fn reference_toml() -> String {
    let mut out = String::from("# Every key of Forebay's configuration, with its default and its reason.\n");
    let mut table = "";
    for key in KEYS {
        let (in_table, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if in_table != table {
            table = in_table;
            let header = if table == "mount" { "[[mount]]".to_owned() } else { format!("[{table}]") };
            out.push_str(&format!("\n{header}\n"));
        }
        for line in wrap(key.reason, 100) {
            out.push_str(&format!("# {line}\n"));
        }
        let value = if key.default.is_empty() { "..." } else { key.default };
        out.push_str(&format!("# {name} = {value}\n"));
    }
    out
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].len() + word.len() >= width {
            lines.push(word.to_owned());
        } else {
            if !lines[last].is_empty() {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_reference_is_read_and_its_default_is_the_default() {
        let mut text = String::new();
        let mut table = "";
        for key in KEYS {
            let (in_table, name) = key.name.split_once('.').unwrap();
            if in_table != table {
                table = in_table;
                text += &if table == "mount" { "[[mount]]\n".to_owned() } else { format!("[{table}]\n") };
            }
            match (key.name, key.default) {
                ("mount.label", _) => text += "label = \"pfs\"\n",
                ("mount.root", _) => text += "root = \"/pfs\"\n",
                (_, "") => {}
                (_, default) => text += &format!("{name} = {default}\n"),
            }
        }
        let parsed = Config::parse(&text).unwrap();
        assert_eq!(parsed.mounts, [MountConfig::new("pfs", Path::new("/pfs"))]);
        let default = Config { mounts: parsed.mounts.clone(), ..Config::default() };
        assert_eq!(format!("{parsed:?}"), format!("{default:?}"));
    }

    #[test]
    fn every_key_that_can_be_read_is_in_the_reference() {
        for (table, reject) in [
            ("agent", "[agent]\n"),
            ("tier", "[tier]\n"),
            ("memory", "[memory]\n"),
            ("metrics", "[metrics]\n"),
            ("console", "[console]\n"),
            ("cluster", "[cluster]\n"),
            ("mount", "[[mount]]\n"),
        ] {
            let message = Config::parse(&format!("{reject}nonsense = 1\n")).unwrap_err();
            let expected: Vec<_> = message.split('`').skip(3).step_by(2).collect();
            assert!(!expected.is_empty(), "{message}");
            for key in expected {
                assert!(
                    KEYS.iter().any(|k| k.name == format!("{table}.{key}")),
                    "{table}.{key} has no reason"
                );
            }
        }
    }

    #[test]
    fn what_a_mount_was_configured_with_is_taken() {
        let text =
            "[[mount]]\nlabel=\"a\"\nroot=\"/b\"\nlayout=false\nkeep_page_cache=true\nmerge_gap=\"64KiB\"\n";
        let expected = MountConfig {
            layout: false,
            keep_page_cache: true,
            merge_gap_bytes: Some(64 << 10),
            ..MountConfig::new("a", Path::new("/b"))
        };
        assert_eq!(Config::parse(text).unwrap().mounts, [expected]);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let refuse = |text: &str| Config::parse(text).unwrap_err();
        assert!(refuse("[tier]\ncapacity = \"lots\"").contains("tier.capacity: \"lots\" is not a size"));
        assert!(refuse("[tier]\neviction = \"random\"").contains("tier.eviction: no eviction policy"));
        assert!(refuse("[[mount]]\nlabel=\"a\"\nroot=\"b\"").contains("must be an absolute path"));
        assert!(refuse("[[mount]]\nlabel=\"a\"\nroot=\"/b\"\npage_size=\"3MiB\"").contains("power of two"));
        let small =
            |more: &str| refuse(&format!("[[mount]]\nlabel=\"a\"\nroot=\"/b\"\npage_size=\"64KiB\"\n{more}"));
        assert!(small("small_page_size=\"128KiB\"").contains("from 4KiB to page_size = 65536"));
        assert!(small("merge_gap=\"3MiB\"").contains("at most 2MiB"));
        assert!(small("merge_gap=\"far\"").contains("is not a size"));
        assert!(small("small_page_files=[\"t/*.parquet\"]").contains("without directories"));
        let twice = "[[mount]]\nlabel=\"a\"\nroot=\"/b\"\n[[mount]]\nlabel=\"a\"\nroot=\"/c\"\n";
        assert!(refuse(twice).contains("stands twice"));
        assert!(refuse("[tier]\nbacking=\"mount\"\ndirectory=\"/x\"").contains("tier.backing"));
        assert!(refuse("[cluster]\nlisten=\"10.0.0.1:7\"").contains("needs cluster.tls"));
        assert!(refuse("[cluster]\nlisten=\"here\"").contains("IP:PORT"));
        assert!(refuse("[metrics]\nlisten=\"here\"").contains("metrics.listen = \"here\": write IP:PORT"));
        assert!(
            refuse("[metrics]\nlisten=\"10.0.0.1:9\"")
                .contains("needs metrics.tls, metrics.token_file or both")
        );
        assert!(Config::parse("[metrics]\nlisten=\"10.0.0.1:9\"\ntoken_file=\"/t\"").is_ok());
        let half = "[console]\nlisten=\"10.0.0.1:9\"\ntls=\"/t\"";
        assert!(refuse(half).contains("needs console.tls and console.token_file"));
        assert!(Config::parse(&format!("{half}\ntoken_file=\"/t\"")).is_ok());
        assert!(refuse("[cluster]\nplanner=\"magic\"").contains("no-action"));
        assert!(
            refuse("[[mount]]\nlabel=\"a\"\nroot=\"/b\"\nextent_size=\"3MiB\"")
                .contains("multiple of page_size")
        );
        assert!(refuse("[memory]\npolicy=\"lru\"").contains("static, dynims, forebay"));
        assert!(refuse("[memory]\ntarget=\"30%\"").contains("from 50% to 99%"));
        assert!(refuse("[memory]\ngain=0.0").contains("above 0 and at most 10"));
        assert!(refuse("[memory]\nperiod_ms=1").contains("from 10 to 1000"));
        assert!(refuse("[memory]\nwatch=[\"a.slice\"]").contains("not the path of a control group"));
        assert!(refuse("[memory]\nwatch=[\"/a/../b\"]").contains("not the path of a control group"));
        assert!(refuse("[agent]\nsocket_mode=\"rw\"").contains("octal"));
    }

    #[test]
    fn columnar_files_have_small_pages_by_their_name_alone() {
        let mut mount = MountConfig::new("a", Path::new("/b"));
        let small = |mount: &MountConfig, name: &str| {
            mount.page_bytes_of(name.as_bytes(), 1 << 20) == mount.small_page_bytes
        };
        for name in ["/b/t/part-0.snappy.parquet", "x.orc", "/b/x.parquet (deleted)", ".parquet"] {
            assert!(small(&mount, name), "{name}");
        }
        for name in ["/b/t.parquet/part-0.csv", "x.parquet.crc", "parquet", "", "/b/x.ORC"] {
            assert!(!small(&mount, name), "{name}");
        }
        let bytes_of = |size| mount.page_bytes_of(b"x.parquet", size);
        assert_eq!([bytes_of((256 << 30) - (16 << 10)), bytes_of(256 << 30)], [16 << 10, 2 << 20]);
        mount.small_page_files = vec!["0*_?".into()];
        assert!(small(&mount, "/b/000000_0") && small(&mount, "0_1"));
        assert!(!small(&mount, "000000_") && !small(&mount, "x.parquet"));
        mount.small_page_files = vec!["**a*b".into()];
        assert!(small(&mount, "aab") && small(&mount, "xaybzb") && !small(&mount, "xaybz"));
    }
}
