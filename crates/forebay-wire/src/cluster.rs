//! The messages between agents and their coordinator, and the requests of programs to the cluster.
//!
//! An agent keeps one connection to the coordinator: [`ToCoordinator`] one way, [`ToAgent`] the
//! other, as frames ([`crate::frame`]). Neither side waits for answers: everything is reported when
//! it changes and reported again on each new connection, so that a coordinator which has forgotten
//! everything knows it again after a heartbeat. Heartbeats alone are answered ([`ToAgent::Heard`]):
//! from that an agent knows that the coordinator is still there.

use crate::counted::{block_bytes, sequence};
use crate::hpc::{HpcPhase, PlanLog, Report, StepStatus};
use crate::traffic::{JobName, JobTraffic, Limit};
use forebay_pfs::FileVersion;
pub use forebay_policy::stage::event::{JobStatus, StageStatus, WaveStatus};
use serde::{Deserialize, Serialize};

/// Number of this protocol. Both sides must speak the same.
pub const CLUSTER_PROTOCOL: u32 = 18;

/// A version of the membership. Later ones of a coordinator are greater, as are those of a later
/// coordinator, if its clock was not set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// Start of the coordinator, in milliseconds since 1970; for an elected one, the number of its
    /// election.
    pub term: u64,
    /// Changes of the membership since then.
    pub number: u64,
}

impl std::fmt::Display for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.term, self.number)
    }
}

/// What a node is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A compute node that lends memory: tasks may run where its extents are.
    #[default]
    CoLocated,
    /// A node that only keeps extents (a burst-buffer node).
    Dedicated,
}

/// A node of the cluster, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its name, unique and stable.
    pub name: String,
    /// The name by which schedulers know it.
    pub host: String,
    /// `IP:PORT` where it serves peers; empty if it does not.
    pub address: String,
    /// What it is for.
    pub role: Role,
    /// Bytes of its tier: its weight in the placement.
    pub capacity_bytes: u64,
    /// Labels of the mounts it serves.
    #[serde(deserialize_with = "sequence")]
    pub mounts: Vec<String>,
    /// Units of placement of those mounts in bytes, in the same order; the same on every node.
    #[serde(deserialize_with = "sequence")]
    pub extent_bytes: Vec<u64>,
}

/// The members at one epoch, sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterView {
    /// Which version.
    pub epoch: Epoch,
    /// The members.
    pub nodes: Vec<NodeInfo>,
}

impl ClusterView {
    /// The nodes that keep extents of the mount labelled `mount`: those that serve it to peers. If
    /// nobody serves peers, every node that has the mount, each for its own tasks. Everybody who
    /// asks where an extent is goes by this list.
    pub fn serving(&self, mount: &str) -> Vec<&NodeInfo> {
        let has: Vec<&NodeInfo> = self.nodes.iter().filter(|n| n.mounts.iter().any(|m| m == mount)).collect();
        let serve: Vec<&NodeInfo> = has.iter().copied().filter(|n| !n.address.is_empty()).collect();
        if serve.is_empty() { has } else { serve }
    }
}

/// One version of one file, as every node can find it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileRef {
    /// Label of its mount.
    pub mount: String,
    /// Path below the mount's root, as bytes, without a leading slash.
    pub path: Vec<u8>,
    /// The version; a file that has changed since is not meant.
    pub version: FileVersion,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Index into the files reported before.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// What one task reads, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// Its parts.
    #[serde(deserialize_with = "sequence")]
    pub parts: Vec<Part>,
    /// The host that its task will be sent to, as far as the job knows; empty for the owner of most
    /// of it.
    pub preferred_node: String,
}

/// The layout of a file, as its PFS reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLayout {
    /// Bytes of one stripe; 0 if it is not known where the file is.
    pub stripe_bytes: u64,
    /// The server of each stripe, by its number among those reported with it; after the last it
    /// begins again with the first.
    #[serde(deserialize_with = "sequence")]
    pub servers: Vec<u32>,
}

/// What a job reports, in the order of events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JobUpdate {
    /// A job begins. First of all, once.
    Begin {
        /// Its name, for people: the application's id.
        name: String,
        /// Its planner; empty for the coordinator's default.
        planner: String,
    },
    /// Its slots (tasks at a time) by host, all of them; reported again when executors come or go.
    Slots(#[serde(deserialize_with = "sequence")] Vec<(String, u32)>),
    /// Files that its splits name. They are numbered from 0 in the order in which they are
    /// reported, over the whole life of the job.
    Files(#[serde(deserialize_with = "sequence")] Vec<FileRef>),
    /// Splits of a stage, in the order of its tasks, following those reported before; a stage may
    /// take several of these.
    Splits {
        /// The stage.
        stage: u32,
        /// The splits of the tasks that follow.
        #[serde(deserialize_with = "sequence")]
        splits: Vec<Split>,
    },
    /// All splits of the stage have been reported: it may be planned.
    StageReady {
        /// The stage.
        stage: u32,
    },
    /// A task has a slot.
    TaskStarted {
        /// Its stage.
        stage: u32,
        /// Its number within the stage.
        task: u32,
        /// Where.
        host: String,
    },
    /// A task has ended.
    TaskEnded {
        /// Its stage.
        stage: u32,
        /// Its number within the stage.
        task: u32,
        /// Whether its result stands.
        ok: bool,
        /// How long it ran, in milliseconds.
        run_ms: u64,
    },
    /// No task of the stage will run any more.
    StageEnded {
        /// The stage.
        stage: u32,
    },
    /// The job has ended. Reported by the agent if the job's connection ends before.
    End,
    /// Layouts of the files reported last, as many as there are `files`, in their order. Reported
    /// by the agent, which asks the PFS.
    Layouts {
        /// Names of servers.
        #[serde(deserialize_with = "sequence")]
        servers: Vec<String>,
        /// By file.
        #[serde(deserialize_with = "sequence")]
        files: Vec<FileLayout>,
    },
    /// Its tasks ask before they read ([`crate::Request::TaskAsks`]).
    TasksAsk,
    /// The partitions of a stage's tasks, in their order, if they are not 0, 1, 2 ... Reported
    /// before the stage is ready.
    Partitions {
        /// The stage.
        stage: u32,
        /// By task.
        #[serde(deserialize_with = "sequence")]
        partitions: Vec<u32>,
    },
    /// Its tasks run in the order in which they are reported, over all stages: this node's agent
    /// keeps what is read next. Reported right after [`JobUpdate::Begin`]. Only the agent hears it.
    InOrder,
}

impl JobUpdate {
    /// Bytes of memory needed to keep the update: several times its encoded length. For a split,
    /// the coordinator keeps a task as well.
    pub fn held_bytes(&self) -> u64 {
        const TASK_BYTES: u64 = 64;
        /// A place in a tree in addition to the one in the list.
        const PARTITION_BYTES: u64 = 20;
        let blocks = match self {
            JobUpdate::Begin { name, planner } => block_bytes(name.len()) + block_bytes(planner.len()),
            JobUpdate::Slots(slots) => {
                block_bytes(size_of_val(&slots[..]))
                    + slots.iter().map(|(host, _)| block_bytes(host.len())).sum::<u64>()
            }
            JobUpdate::Files(files) => {
                let names = |f: &FileRef| block_bytes(f.mount.len()) + block_bytes(f.path.len());
                block_bytes(size_of_val(&files[..])) + files.iter().map(names).sum::<u64>()
            }
            JobUpdate::Splits { splits, .. } => {
                let of_split = |s: &Split| {
                    TASK_BYTES + block_bytes(size_of_val(&s.parts[..])) + block_bytes(s.preferred_node.len())
                };
                block_bytes(size_of_val(&splits[..])) + splits.iter().map(of_split).sum::<u64>()
            }
            JobUpdate::TaskStarted { host, .. } => block_bytes(host.len()),
            JobUpdate::Layouts { servers, files } => {
                block_bytes(size_of_val(&servers[..]))
                    + servers.iter().map(|s| block_bytes(s.len())).sum::<u64>()
                    + block_bytes(size_of_val(&files[..]))
                    + files.iter().map(|f| block_bytes(size_of_val(&f.servers[..]))).sum::<u64>()
            }
            JobUpdate::Partitions { partitions, .. } => {
                block_bytes(size_of_val(&partitions[..])) + partitions.len() as u64 * PARTITION_BYTES
            }
            JobUpdate::StageReady { .. }
            | JobUpdate::TasksAsk
            | JobUpdate::InOrder
            | JobUpdate::TaskEnded { .. }
            | JobUpdate::StageEnded { .. }
            | JobUpdate::End => 0,
        };
        size_of::<JobUpdate>() as u64 + blocks
    }

    /// The stage that the update is about, if it is about one.
    pub fn stage(&self) -> Option<u32> {
        match self {
            JobUpdate::Splits { stage, .. }
            | JobUpdate::StageReady { stage }
            | JobUpdate::Partitions { stage, .. }
            | JobUpdate::TaskStarted { stage, .. }
            | JobUpdate::TaskEnded { stage, .. }
            | JobUpdate::StageEnded { stage } => Some(*stage),
            _ => None,
        }
    }
}

/// From an agent to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// First of all.
    Join {
        /// [`CLUSTER_PROTOCOL`].
        protocol: u32,
        /// Who.
        node: NodeInfo,
        /// Differs between two processes of one name: nanoseconds since 1970 at its start.
        incarnation: u64,
        /// Counts the connections of that process: of two that are open, the later one is used. A
        /// coordinator that hung finds the connections of agents that have given up waiting next to
        /// their later ones.
        attempt: u64,
        /// The latest term of an elected coordinator that this agent has seen; 0: none. A candidate
        /// that does not lead names a later leader immediately, and otherwise waits for the next
        /// election before it answers.
        term: u64,
    },
    /// I am here, once a second. → [`ToAgent::Heard`]
    Heartbeat {
        /// The size by which other nodes place extents on this one.
        weight_bytes: u64,
        /// Bytes of the tier now.
        capacity_bytes: u64,
        /// Bytes of cached pages.
        resident_bytes: u64,
        /// Bytes read from the PFS since the agent's start.
        fetched_bytes: u64,
    },
    /// A report of a local job. `job` is unique among the jobs of this agent's process.
    Job {
        /// Which.
        job: u64,
        /// The user whose program reports it.
        uid: u32,
        /// What.
        #[serde(deserialize_with = "sequence")]
        updates: Vec<JobUpdate>,
    },
    /// Progress of a request, including its end.
    Progress(RequestProgress),
    /// This node leaves; its pages are gone immediately.
    Leave,
    /// A local HPC job, or one of its I/O phases, begins or ends. `hpc` is unique among those of
    /// this agent's process.
    Hpc {
        /// Which.
        hpc: u64,
        /// What.
        update: Report,
    },
    /// The phases of this node, for nodes that serve no peers and hear of them in no other way.
    Phases {
        /// How long they count.
        lease_ms: u32,
        /// All of them.
        phases: Vec<HpcPhase>,
    },
    /// How this node is, every few seconds.
    Health(Box<Health>),
    /// A local HPC job that shares is about to write a step. → [`ToAgent::LetIn`], once it may
    AskAccess {
        /// Which.
        hpc: u64,
        /// How long the step takes alone, in ns; 0: unknown.
        alone_ns: u64,
        /// It was derived from a burst of I/O.
        is_observed: bool,
    },
    /// The servers to which the next steps of a local HPC job that shares write; none: not known.
    WritesTo {
        /// Which.
        hpc: u64,
        /// Their names.
        #[serde(deserialize_with = "sequence")]
        servers: Vec<String>,
    },
    /// A task on this node asks whether it may read. → [`ToAgent::MayRead`], once it may
    AskTask {
        /// Comes back with the answer.
        ask: u64,
        /// Its user.
        uid: u32,
        /// Name of its job.
        job: String,
        /// Its stage.
        stage: u32,
        /// Its partition.
        partition: u32,
    },
    /// A file is dirty on this node from now on, unless it is on another. → [`ToAgent::Holder`]
    Dirty {
        /// Comes back with the answer.
        ask: u64,
        /// Which.
        file: DirtyFile,
    },
    /// The PFS has it.
    Clean {
        /// Which.
        file: DirtyFile,
        /// Several nodes write it there.
        is_shared: bool,
    },
    /// What is dirty on this node, before it reports more. At the beginning of each connection:
    /// until then, what the last one has reported counts.
    AllDirty {
        /// These files, and those of the messages of this kind before.
        #[serde(deserialize_with = "sequence")]
        files: Vec<DirtyFile>,
        /// And no others.
        is_last: bool,
    },
    /// On which node is a file dirty? → [`ToAgent::Holder`]
    AskDirty {
        /// Comes back with the answer.
        ask: u64,
        /// Which.
        file: DirtyFile,
        /// The file has been emptied: the content on a node that is gone is void.
        is_emptied: bool,
    },
    /// Rate limits, as far as this node knows them: when one is set here, and all of them at the
    /// beginning of each connection.
    Limits(#[serde(deserialize_with = "sequence")] Vec<Limit>),
    /// What jobs move on this node, once a second while any does, and once more after that.
    Traffic(#[serde(deserialize_with = "sequence")] Vec<JobTraffic>),
    /// Programs write the file to the PFS, past the node on which it is dirty, which does not
    /// answer.
    Written(DirtyFile),
    /// A question of a program. → [`ToAgent::Answered`]
    Ask {
        /// Comes back with the answer.
        ask: u64,
        /// What.
        question: Question,
    },
}

/// In place of a node's name: several nodes write the file, to the PFS.
pub const SHARED: &str = "*";

/// A file that programs write to the tier first, as all nodes know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DirtyFile {
    /// Label of its mount.
    pub mount: String,
    /// Its inode on the PFS.
    pub ino: u64,
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestProgress {
    /// Which.
    pub request: u64,
    /// Bytes that are in the tier by now because of it.
    pub fetched_bytes: u64,
    /// Bytes that were there already.
    pub resident_bytes: u64,
    /// Bytes that will not come: changed, refused, failed.
    pub failed_bytes: u64,
    /// No more reports follow.
    pub done: bool,
}

/// What an agent has to fetch into its tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefetchRequest {
    /// Its number, unique in the coordinator's term.
    pub request: u64,
    /// Pages at a time.
    pub threads: u32,
    /// Bytes per second, 0 for no limit.
    pub rate_bytes_per_s: u64,
    /// It belongs to no wave that a planner already wants: pages of requests that do go first.
    pub ahead: bool,
    /// The job that will read it.
    pub job: JobName,
    /// What, in the order in which it will be read.
    pub files: Vec<FileRef>,
    /// Parts of those files.
    pub parts: Vec<Part>,
}

/// From the coordinator to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Answer to a join.
    Welcome {
        /// [`CLUSTER_PROTOCOL`].
        protocol: u32,
        /// Why not, or empty. The coordinator closes after a refusal.
        refusal: String,
        /// Time between heartbeats.
        heartbeat_ms: u32,
        /// Number of the coordinator's election: later ones are greater. 0: it was not elected.
        term: u64,
        /// With the refusal of a candidate that does not lead: where the leader is, if it is known.
        leader: String,
    },
    /// The members have changed.
    Members(ClusterView),
    /// Fetch this.
    Fetch(PrefetchRequest),
    /// Continue a request with this many pages at a time (0: pause) and at this rate.
    Adjust {
        /// Which request.
        request: u64,
        /// Pages at a time.
        threads: u32,
        /// Bytes per second, 0 for no limit.
        rate_bytes_per_s: u64,
    },
    /// Whether all requests of the cluster are paused. Pages of requests then stop in their middle,
    /// including those that the agent fetches for requests of other nodes.
    Pause {
        /// Until this is said otherwise, or the coordinator is lost.
        on: bool,
    },
    /// Forget these requests.
    Cancel {
        /// Which.
        requests: Vec<u64>,
    },
    /// Answer to [`ToCoordinator::Heartbeat`].
    Heard,
    /// The phases of another node.
    Phases {
        /// Its name.
        node: String,
        /// How long they count.
        lease_ms: u32,
        /// All of them.
        phases: Vec<HpcPhase>,
    },
    /// Answer to [`ToCoordinator::AskAccess`]: the step may be written.
    LetIn {
        /// The job.
        hpc: u64,
    },
    /// A step that was let in may write for this fraction of the time from now on.
    Pace {
        /// The job.
        hpc: u64,
        /// In thousandths.
        permille: u16,
    },
    /// Answer to [`ToCoordinator::AskTask`].
    MayRead {
        /// As in the question.
        ask: u64,
    },
    /// Answer to [`ToCoordinator::Dirty`] and [`ToCoordinator::AskDirty`].
    Holder {
        /// As in the question.
        ask: u64,
        /// The node on which the file is dirty; empty if there is none.
        node: String,
        /// In reply to a claim: the node, now gone, on which it was dirty until now; empty if there
        /// was none, or another node has had it since.
        before: String,
    },
    /// Rate limits that are new or were lifted; after a welcome, all.
    Limits(Vec<Limit>),
    /// This node's shares of the rates of limited jobs: all of them.
    LimitShares(Vec<(JobName, u64)>),
    /// Answer to [`ToCoordinator::Ask`].
    Answered {
        /// As in the question.
        ask: u64,
        /// The answer.
        answer: Answer,
    },
}

/// What a program asks the coordinator, through the agent of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// The analytics jobs.
    Jobs,
    /// What was planned, and what came of it.
    Plans {
        /// Most decisions, and most phases, of the latest.
        most: u32,
    },
    /// The nodes, and what they hold.
    Overview,
    /// How the nodes are, from the first one after the name `after` on.
    Health {
        /// Empty: from the first one on.
        after: String,
    },
    /// Change what the coordinator logs. An agent sends it for operators only
    /// ([`crate::Request::SetLog`]).
    Log {
        /// Empty: only ask.
        filter: String,
        /// Who.
        by: u32,
    },
}

/// The answer to a [`Question`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The jobs.
    Jobs(Vec<JobStatus>),
    /// The log of plans and phases.
    Plans(PlanLog),
    /// The nodes and their sums.
    Overview(Overview),
    /// Some nodes, by name; none if there are no more.
    Health(Vec<NodeHealth>),
    /// What is logged now, or why that cannot be changed.
    Log(Result<String, String>),
}

/// What an agent reports of its node, for comparison with others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Version of the program.
    pub version: String,
    /// Its clock at the report, in nanoseconds since 1970.
    pub clock_ns: i64,
    /// The most that the tier may have, in bytes.
    pub capacity_max_bytes: u64,
    /// What it may have now.
    pub capacity_bytes: u64,
    /// Whether the tier's pages are huge: `within_size`, `never` ...
    pub huge_pages: String,
    /// Memory whose use cannot be read, and why.
    #[serde(deserialize_with = "sequence")]
    pub memory_problems: Vec<String>,
    /// The mounts: label, whether it is mounted, whether its files are cached, fetches that failed,
    /// and how long the oldest fetch under way has waited, in milliseconds.
    #[serde(deserialize_with = "sequence")]
    pub mounts: Vec<(String, bool, bool, u64, u64)>,
    /// Peers that it leaves alone for a while, since they did not answer.
    #[serde(deserialize_with = "sequence")]
    pub avoided: Vec<String>,
    /// Whole days for which its certificate is valid; none without one.
    pub certificate_days: Option<i64>,
    /// Open files that a process may have.
    pub open_files_max: u64,
    /// Bytes sent to peers since the agent's start.
    pub to_peers_bytes: u64,
    /// Dirty files that no pass is made of until somebody looks after them.
    pub parked_files: u64,
    /// How long the oldest of the other dirty files has waited for its pass, in milliseconds.
    pub oldest_dirty_ms: u64,
    /// Second copies that no other place has taken, since the agent's start.
    pub copies_missed: u64,
    /// Why passes over dirty files fail, with the servers that hold them if the PFS names them, and
    /// for how many files: the most frequent reasons.
    #[serde(deserialize_with = "sequence")]
    pub failing: Vec<(String, u64)>,
}

/// How a node is, as the coordinator knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHealth {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Labels of its mounts, and units of placement there in bytes.
    #[serde(deserialize_with = "sequence")]
    pub extents: Vec<(String, u64)>,
    /// Time since it was last heard.
    pub silent_ms: u64,
    /// Its clock at its last report, in milliseconds since 1970, less the coordinator's time then,
    /// which is since its start: for comparison with other nodes. And the report.
    pub health: Option<(i64, Box<Health>)>,
}

/// The cluster at a moment, as people see it. Times are milliseconds since the coordinator's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// The moment.
    pub now_ms: u64,
    /// Version of the membership.
    pub epoch: Epoch,
    /// The members, by name.
    #[serde(deserialize_with = "sequence")]
    pub nodes: Vec<NodeStatus>,
    /// Prefetch requests that agents have and have not ended.
    pub requests: u32,
    /// The latest second that was added up.
    pub sample: Sample,
    /// Steps of jobs that share: those that write, then those that wait, in their order; 256 at
    /// most.
    #[serde(deserialize_with = "sequence")]
    pub steps: Vec<StepStatus>,
    /// What jobs move on all nodes, those that move most first.
    #[serde(deserialize_with = "sequence")]
    pub traffic: Vec<JobTraffic>,
}

/// A member as people see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Bytes of its tier now.
    pub capacity_bytes: u64,
    /// Bytes of cached pages.
    pub resident_bytes: u64,
    /// Bytes read from the PFS since the agent's start.
    pub fetched_bytes: u64,
    /// Prefetch requests that it has and has not ended.
    pub requests: u32,
    /// Time since it was last heard.
    pub silent_ms: u64,
}

/// What all members hold and moved, added up once a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When, in milliseconds since the coordinator's start.
    pub at_ms: u64,
    /// Bytes of all tiers.
    pub capacity_bytes: u64,
    /// Bytes of cached pages.
    pub resident_bytes: u64,
    /// Read from the PFS in this second, in bytes per second, for whatever reason.
    pub fetched_bytes_per_s: u64,
    /// The part of it read for prefetch requests, in bytes per second.
    pub prefetched_bytes_per_s: u64,
}
