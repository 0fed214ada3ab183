//! What the stage machine receives and decides: plain values, without paths, sockets or clocks.
//!
//! Nodes are identified by name; jobs, files and requests by number. The driver maps the numbers to
//! what they stand for (the path of a file, the connection of a node).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use forebay_model::profile::Setting;

use crate::phases::Report;
use crate::planner;
/// What [`Action::Decided`] carries, for drivers that show it.
pub use crate::planner::{ActionKind, Decision, PlannedStep};

/// Names a job; the driver chooses it and never uses it twice.
pub type JobKey = u64;

/// Names a request; the machine chooses it and never uses it twice.
pub type RequestId = u64;

/// Names a queue of requests.
pub type QueueId = u32;

/// Names a wave among all that its stage ever had.
pub type WaveId = u64;

/// A member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name, unique and stable.
    pub name: String,
    /// The name by which schedulers know it.
    pub host: String,
    /// Its weight in the placement; also the bytes of its tier until [`Event::Capacity`] reports
    /// them.
    pub capacity_bytes: u64,
    /// Labels of the mounts of which it keeps extents, and the bytes of an extent.
    pub keeps: BTreeMap<String, u64>,
}

/// A file, as far as decisions depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Label of its mount.
    pub mount: String,
    /// Inode number.
    pub ino: u64,
    /// Its length.
    pub bytes: u64,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Number of the file within its job.
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
    pub parts: Vec<Part>,
    /// The host to which the scheduler will send the task; empty if the job does not know it.
    pub preferred_node: String,
}

/// Where a file is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes of one stripe; 0 if the layout is unknown.
    pub stripe_bytes: u64,
    /// The server of each stripe, in turn: an index into the servers reported with the layout.
    pub servers: Vec<u32>,
}

/// What a job reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum JobUpdate {
    /// First of all, once.
    Begin {
        /// For people.
        name: String,
        /// Its planner; empty for the default.
        planner: String,
    },
    /// A job profile's expectation for each of its waves. Without it, this is learned from its
    /// tasks.
    Expected {
        /// How long a wave computes, reading it from the tier included, in ns.
        wave_ns: u64,
        /// The part of it that reading a whole wave from the tier takes, in ns.
        tier_read_ns: u64,
    },
    /// All its slots (tasks at a time) by host.
    Slots {
        /// Host and number.
        slots: Vec<(String, u32)>,
    },
    /// Files that its splits name, numbered from 0 in this order over the life of the job.
    Files {
        /// The next files.
        files: Vec<File>,
    },
    /// Where the last reported files are stored, as many as there are layouts, in their order.
    Layouts {
        /// Names of servers.
        servers: Vec<String>,
        /// Layouts by file.
        files: Vec<Layout>,
    },
    /// Splits of a stage, in the order of its tasks, following those reported before.
    Splits {
        /// The stage.
        stage: u32,
        /// The next splits.
        splits: Vec<Split>,
    },
    /// All splits of the stage are known.
    StageReady {
        /// The stage.
        stage: u32,
    },
    /// Its tasks ask before they read ([`JobUpdate::TaskAsks`]), so that they can be made to wait.
    /// The tasks of other jobs read as soon as they have a slot.
    TasksAsk,
    /// The partitions of a stage's tasks, in their order, if they are not 0, 1, 2 ... Reported
    /// before the stage is ready.
    Partitions {
        /// The stage.
        stage: u32,
        /// Partitions by task.
        partitions: Vec<u32>,
    },
    /// A task has a slot and asks whether it may read. The answer is [`Action::MayRead`].
    TaskAsks {
        /// Its stage, perhaps one that has not been reported.
        stage: u32,
        /// Its partition.
        partition: u32,
    },
    /// A task has a slot.
    TaskStarted {
        /// Its stage.
        stage: u32,
        /// Its number within the stage.
        task: u32,
        /// Its host.
        host: String,
    },
    /// A task has ended.
    TaskEnded {
        /// Its stage.
        stage: u32,
        /// Its number within the stage.
        task: u32,
        /// Whether it succeeded.
        ok: bool,
        /// How long it ran, in milliseconds.
        run_ms: u64,
    },
    /// No task of the stage will run any more.
    StageEnded {
        /// The stage.
        stage: u32,
    },
    /// The job has ended.
    End,
}

/// The progress of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes in the tier because of it.
    pub fetched_bytes: u64,
    /// Bytes that were already resident.
    pub resident_bytes: u64,
    /// Bytes that will not be fetched.
    pub failed_bytes: u64,
    /// Whether nothing more will be reported.
    pub done: bool,
}

/// A report about an HPC job, whose I/O a prefetch must not disturb.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum HpcUpdate {
    /// The job exists.
    Joins {
        /// I/O time of a phase alone, in ns.
        io_ns: u64,
        /// Compute time between phases, in ns.
        compute_ns: u64,
        /// Number of phases that it will have.
        phases: u32,
        /// How much longer than alone a phase may take: 0.05 for 5 %.
        allowance: f64,
        /// Its weight where phases share the file system (processes).
        weight: u32,
        /// When its first phase is expected, in ns from now.
        first_in_ns: u64,
    },
    /// An I/O phase begins.
    PhaseBegins {
        /// Its I/O time alone, in ns.
        alone_ns: u64,
    },
    /// As `PhaseBegins`, with a deadline of its own.
    PhaseBeginsUntil {
        /// Its I/O time alone, in ns.
        alone_ns: u64,
        /// Time to its deadline, in ns.
        deadline_ns: u64,
    },
    /// By its progress, the I/O time alone that the phase still needs.
    PhaseLeft {
        /// In ns.
        left_ns: u64,
    },
    /// The next phases are expected, from observation.
    Expects {
        /// Time until the next begins, in ns.
        in_ns: u64,
        /// I/O time of a phase alone, in ns.
        io_ns: u64,
        /// Compute time between phases, in ns.
        compute_ns: u64,
        /// Number of phases that are expected.
        phases: u32,
    },
    /// The phase is over.
    PhaseEnds,
    /// The job is gone.
    Leaves,
}

/// Shortest time of an HPC job that counts, in ns: shorter ones make a forecast of thousands of
/// phases, and no prefetch fits between them.
const SHORTEST_NS: u64 = 1_000_000;

/// Assumed time alone of a phase of unknown length, in ns: ten minutes, and nothing in hand.
const UNKNOWN_NS: u64 = 600_000_000_000;

/// The reports of nodes' boards, in which 0 is an unknown time. A job reports that it exists when
/// it begins to compute.
impl From<Report> for HpcUpdate {
    fn from(reported: Report) -> Self {
        let counted = |ns: u64| ns.max(SHORTEST_NS);
        match reported {
            Report::Joins(job) => HpcUpdate::Joins {
                io_ns: counted(job.io_ns),
                compute_ns: counted(job.compute_ns),
                phases: job.phases,
                allowance: f64::from(job.allowance_permille) / 1000.0,
                weight: job.weight,
                first_in_ns: job.compute_ns,
            },
            Report::Expects { in_ns, io_ns, compute_ns, phases } => {
                let (io_ns, compute_ns) = (counted(io_ns), counted(compute_ns));
                HpcUpdate::Expects { in_ns, io_ns, compute_ns, phases }
            }
            Report::Begins { alone_ns, deadline_ns, .. } => match (alone_ns, deadline_ns) {
                (0, 0) => HpcUpdate::PhaseBeginsUntil { alone_ns: UNKNOWN_NS, deadline_ns: UNKNOWN_NS },
                (0, lasts_ns) => HpcUpdate::PhaseBeginsUntil { alone_ns: lasts_ns, deadline_ns: lasts_ns },
                (alone_ns, 0) => HpcUpdate::PhaseBegins { alone_ns: counted(alone_ns) },
                _ => HpcUpdate::PhaseBeginsUntil { alone_ns: counted(alone_ns), deadline_ns },
            },
            Report::Left { left_ns } => HpcUpdate::PhaseLeft { left_ns },
            Report::Ends => HpcUpdate::PhaseEnds,
            Report::Leaves => HpcUpdate::Leaves,
        }
    }
}

/// What the machine receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// The members from now on, by name in ascending order.
    Members {
        /// All members.
        nodes: Vec<Node>,
    },
    /// A node has joined, perhaps again: it has no requests.
    NodeCame {
        /// Its name.
        node: String,
    },
    /// A node has left, and its requests with it. The next members will be without it.
    NodeWent {
        /// Its name.
        node: String,
    },
    /// The size of a node's tier, until the next report, or until the node comes or goes.
    Capacity {
        /// Its name.
        node: String,
        /// Bytes.
        bytes: u64,
    },
    /// A job reports what happened, in this order.
    Job {
        /// The job.
        job: JobKey,
        /// The updates.
        updates: Vec<JobUpdate>,
    },
    /// A job is no longer reported. Unlike one that has ended it is not shown.
    JobGone {
        /// The job.
        job: JobKey,
    },
    /// An HPC job, or one of its phases, begins or ends.
    Hpc {
        /// The HPC job; the driver chooses the number.
        hpc: planner::HpcId,
        /// The update.
        update: HpcUpdate,
    },
    /// A node reports the progress of a request.
    Request {
        /// The request.
        request: RequestId,
        /// The node.
        node: String,
        /// The progress.
        progress: Progress,
    },
}

/// The priority of a request among those of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// For a wave that a planner wants fetched now.
    Planned,
    /// For a later wave: fetched where planned requests leave the node or a server idle.
    Ahead,
}

/// What the machine decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Action {
    /// A planner has made a plan. The driver need not act; it explains the requests that follow.
    Decided {
        /// The planner.
        planner: String,
        /// The job whose wave it plans.
        job: JobKey,
        /// The stage.
        stage: u32,
        /// First task of the wave.
        task: u32,
        /// Its plan and the reason.
        decision: Box<planner::Decision>,
    },
    /// Let the node fetch this, and keep it until the request is released.
    Fetch {
        /// The new request.
        request: RequestId,
        /// The node.
        node: String,
        /// The job whose files these are.
        job: JobKey,
        /// Pages at a time.
        threads: u32,
        /// Bytes per second, 0 for no limit.
        rate_bytes_per_s: u64,
        /// Whether it goes before or after others of the node.
        priority: Priority,
        /// The planner's setting of the whole wave, if each node has one request for its part of it
        /// ([`super::Rules::whole_parts`]).
        #[serde(skip_serializing_if = "Option::is_none")]
        setting: Option<Setting>,
        /// What to fetch, in the order in which tasks read it.
        parts: Vec<Part>,
    },
    /// Changes the pace of a request.
    Adjust {
        /// The request.
        request: RequestId,
        /// Its node.
        node: String,
        /// Pages at a time, 0 to pause.
        threads: u32,
        /// Bytes per second, 0 for no limit.
        rate_bytes_per_s: u64,
        /// As in `Fetch`.
        #[serde(skip_serializing_if = "Option::is_none")]
        setting: Option<Setting>,
    },
    /// Tasks that wait for a wave may read what is missing of it from the file system themselves,
    /// or no longer may. The driver need not act where tasks do so anyway, or ask.
    Direct {
        /// Their job.
        job: JobKey,
        /// The stage.
        stage: u32,
        /// The tasks of the wave.
        tasks: Vec<u32>,
        /// Whether they may.
        may: bool,
    },
    /// The answer to a task that has asked: it may read.
    MayRead {
        /// Its job.
        job: JobKey,
        /// Its stage.
        stage: u32,
        /// Its partition.
        partition: u32,
    },
    /// Stop these requests if they are under way, and keep nothing for them.
    Release {
        /// Their node.
        node: String,
        /// The requests.
        requests: Vec<RequestId>,
    },
}

/// The status of a job, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its name.
    pub name: String,
    /// Its planner.
    pub planner: String,
    /// Tasks at a time.
    pub slots: u32,
    /// Its stages that read files.
    pub stages: Vec<StageStatus>,
    /// Whether it has ended.
    pub ended: bool,
    /// When it began, in milliseconds since the coordinator's start.
    pub began_ms: u64,
}

/// The status of a stage, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageStatus {
    /// Its number.
    pub stage: u32,
    /// Tasks in all.
    pub tasks: u32,
    /// Tasks that have succeeded.
    pub tasks_done: u32,
    /// Tasks that are running.
    pub tasks_running: u32,
    /// Running tasks that wait for their input.
    pub tasks_waiting: u32,
    /// Started tasks that run on their preferred node, which fetches most of their input.
    pub tasks_local: u32,
    /// Its waves.
    pub waves: Vec<WaveStatus>,
}

/// The status of a wave, for people. Times are milliseconds since the job began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveStatus {
    /// Number of its tasks.
    pub tasks: u32,
    /// Tasks that have succeeded.
    pub tasks_done: u32,
    /// Bytes of its input.
    pub bytes: u64,
    /// Bytes of the input that were prefetched.
    pub fetched_bytes: u64,
    /// Bytes of the input that were already resident.
    pub resident_bytes: u64,
    /// Bytes of the input that were given up.
    pub failed_bytes: u64,
    /// When its prefetch began.
    pub prefetch_began_ms: Option<u64>,
    /// When all of it had been fetched.
    pub prefetch_ended_ms: Option<u64>,
    /// When its first task started.
    pub compute_began_ms: Option<u64>,
    /// When its last task ended.
    pub compute_ended_ms: Option<u64>,
}
