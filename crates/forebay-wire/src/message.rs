//! The messages between clients and their agent.
//!
//! A connection starts with [`Hello`] and its answer, whose layout never changes, so that two
//! incompatible versions can always report this to each other. After that the client sends
//! [`Request`]s. Each is answered by one [`Reply`], in order, except those marked *one way*. New
//! variants are added at the end of an enum; a change of meaning is a new [`PROTOCOL`] number.
//!
//! Descriptors are proofs: where a request says "with the file", its packet carries a descriptor of
//! the PFS file, open for reading, and the agent takes the identity from that descriptor and from
//! nothing else.

use crate::cluster::{Answer, ClusterView, JobUpdate, Question};
use crate::hpc::{Declared, HpcStatus};
use crate::shuffle::{App, Block, BlockPlace};
use crate::storage::StorageHosts;
use crate::traffic::{JobTraffic, Limit};
use forebay_pfs::{FileFacts, FileVersion};
pub use forebay_policy::memory::Reason as MemoryReason;
use serde::{Deserialize, Serialize};

/// Number of this protocol. Both sides must speak the same.
pub const PROTOCOL: u32 = 24;

/// A file that was written longer ago is whole on the PFS. The clocks of servers and nodes may
/// differ by a minute.
pub const RECENT: std::time::Duration = std::time::Duration::from_secs(120);

/// First eight bytes of every connection: "forebay" and a zero.
pub const MAGIC: u64 = u64::from_le_bytes(*b"forebay\0");

/// Identifies one cached copy within one tier; never reused. 0 means none.
pub type CopyId = u64;

/// The client's first packet. Frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`PROTOCOL`] of the sender.
    pub protocol: u32,
    /// Request the ring in which this process reports the pages it touched; once for each process.
    pub want_ring: bool,
}

/// The agent's answer to [`Hello`]. Frozen. After `protocol_fits == false` the agent closes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL`] of the agent.
    pub protocol: u32,
    /// Whether the agent will continue.
    pub protocol_fits: bool,
    /// Why not, or empty.
    pub message: String,
}

/// Answer to [`Request::Mounts`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountInfo {
    /// The operator's name.
    pub label: String,
    /// Root directory as bytes: paths need not be UTF-8.
    pub root: Vec<u8>,
    /// Unit of caching in bytes, a power of two.
    pub page_bytes: u64,
    /// Most bytes a reader may ask for ahead of its position.
    pub read_ahead_bytes: u64,
    /// Ask the PFS for fresh attributes at open.
    pub revalidate: forebay_pfs::Revalidate,
    /// How long a stamp may stay the same over two writes, in nanoseconds.
    pub stamp_granularity_ns: i64,
    /// Unit of placement in bytes, a multiple of `page_bytes`.
    pub extent_bytes: u64,
}

/// Consecutive pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRun {
    /// First page.
    pub first_page: u32,
    /// Pages.
    pub pages: u32,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// The mounts this agent serves. → [`Reply::Mounts`]
    Mounts,
    /// A client opened a file. With the file. → [`Reply::Opened`] or [`Reply::Refused`]
    Open,
    /// Fetch `[offset, offset + len)` of the file as it was at `version`. With the file. →
    /// [`Reply::Ready`], [`Reply::Changed`], [`Reply::Refused`], [`Reply::Failed`] or
    /// [`Reply::TimedOut`]
    Fetch {
        /// The version the client opened.
        version: FileVersion,
        /// The copy the client has, or 0.
        copy: CopyId,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The agent answers at the latest after this many milliseconds.
        deadline_ms: u32,
        /// Pages to fetch behind that range in the background, as by [`Request::Prefetch`].
        ahead: Vec<PageRun>,
    },
    /// Fetch pages in the background, if there is room. With the file. One way.
    Prefetch {
        /// The version the client opened.
        version: FileVersion,
        /// The pages.
        runs: Vec<PageRun>,
    },
    /// A small random read missed `page` and went to the PFS. With the file. One way.
    Missed {
        /// The version the client opened.
        version: FileVersion,
        /// The page.
        page: u32,
        /// Bytes of the read, and of those it stands for.
        bytes: u32,
    },
    /// Keep pages in place for as long as somebody maps them through the descriptor in the answer.
    /// With the copy, as the client got it. With the file as well if the mapping takes the place of
    /// one of the file: then only if nobody writes the file. → [`Reply::Done`] with a descriptor,
    /// [`Reply::Waits`] if they are not all resident, or [`Reply::Refused`]
    PinPages {
        /// The copy.
        copy: CopyId,
        /// First page.
        first_page: u32,
        /// Pages.
        pages: u32,
    },
    /// Keep the whole file until a request says otherwise (`true`), or no longer. With the file. →
    /// [`Reply::Done`]
    PinFile(bool),
    /// Release the file's pages. With the file. → [`Reply::Evicted`]
    EvictFile,
    /// Release everything that is not pinned. Operator only. → [`Reply::Evicted`]
    EvictAll,
    /// Start a load on this connection. → [`Reply::Done`]
    LoadBegin {
        /// Bytes per second, 0 for no limit.
        rate_bytes_per_s: u64,
    },
    /// Files to load, up to [`crate::MAX_FDS`], with the files. Answered when there is room for
    /// more. → [`Reply::Done`]
    LoadFiles {
        /// Number of the first of them in this load.
        first_index: u64,
    },
    /// How far the load is; waits up to `wait_ms` for it to end. → [`Reply::Load`]
    LoadPoll {
        /// Longest wait in milliseconds.
        wait_ms: u32,
    },
    /// Forget what is not yet fetched. → [`Reply::Load`]
    LoadCancel,
    /// Start to write a file through: the agent lends a staging buffer. → [`Reply::Staging`] or
    /// [`Reply::Refused`]
    StageBegin,
    /// Slot `slot` of the staging buffer holds the first `len` bytes of page `page`. One way; the
    /// slot is free again when the agent has stored it in the slot's word of the buffer's head.
    StagePage {
        /// Slot number.
        slot: u32,
        /// Page of the new file.
        page: u32,
        /// Bytes.
        len: u64,
    },
    /// The file is written: what was staged is its content. With the file twice, opened for reading
    /// and, as the proof that the sender may say what is in it, for writing. → [`Reply::Done`] or
    /// [`Reply::Refused`]
    StageCommit {
        /// What the writer saw when it was done; the agent believes the staged pages only if it
        /// sees the same.
        version: FileVersion,
    },
    /// Forget what was staged. → [`Reply::Done`]
    StageAbort,
    /// Start a job: memory-only files live until this connection ends. → [`Reply::Job`]
    JobBegin {
        /// It is to end with the process that has connected, even if that closes the connection
        /// when it executes another program.
        outlives_exec: bool,
    },
    /// Create or truncate a memory-only file. → [`Reply::Scratch`] with the file, or
    /// [`Reply::Refused`]
    ScratchCreate {
        /// The job's token.
        job: String,
        /// Name within the job.
        name: Vec<u8>,
        /// Fail if it exists.
        exclusive: bool,
    },
    /// Room for the file to grow to `bytes`. → [`Reply::Done`] or [`Reply::Refused`]
    ScratchReserve {
        /// The file.
        copy: CopyId,
        /// Wanted length.
        bytes: u64,
    },
    /// Open a memory-only file for reading. → [`Reply::Scratch`] with the file, or
    /// [`Reply::Failed`]
    ScratchOpen {
        /// The job's token.
        job: String,
        /// Name within the job.
        name: Vec<u8>,
    },
    /// Remove a memory-only file. → [`Reply::Done`] or [`Reply::Failed`]
    ScratchRemove {
        /// The job's token.
        job: String,
        /// Name within the job.
        name: Vec<u8>,
    },
    /// The job's memory-only files. → [`Reply::ScratchList`]
    ScratchList {
        /// The job's token.
        job: String,
        /// Answer names after this one.
        after: Vec<u8>,
    },
    /// Cached files, in pages. Those of other users are shown to the operator only. →
    /// [`Reply::List`]
    List {
        /// Answer copies after this one.
        after: CopyId,
    },
    /// The agent's state and counters. → [`Reply::Status`]
    Status,
    /// Change the tier's capacity. Operator only. → [`Reply::Evicted`] with what was released
    SetCapacity {
        /// New capacity in bytes.
        bytes: u64,
    },
    /// End the agent. Operator only. → [`Reply::Done`]
    Shutdown,
    /// The members of the cluster, from which anybody can compute where an extent is kept. →
    /// [`Reply::Members`]
    Members,
    /// What this connection's analytics job (waves of tasks) has to report; the job ends with the
    /// connection. → [`Reply::Done`] or [`Reply::Refused`]
    JobUpdates(#[serde(deserialize_with = "crate::counted::sequence")] Vec<JobUpdate>),
    /// A task of an analytics job has its slot and asks whether it may read: under planners that
    /// delay a prefetch for an I/O phase it waits for its input. → [`Reply::Done`], or
    /// [`Reply::Waits`] after a second; it asks again then.
    TaskAsks {
        /// Name of the job.
        job: String,
        /// The stage.
        stage: u32,
        /// The partition.
        partition: u32,
    },
    /// Do not keep this copy any more: its file may be gone. For the user who has pinned it and the
    /// operator. → [`Reply::Done`] or [`Reply::Refused`]
    UnpinCopy(CopyId),
    /// How the tier gives way to compute. → [`Reply::Memory`]
    Memory,
    /// This connection's program is, or speaks for, an HPC job, which ends with the connection. →
    /// [`Reply::Done`] or [`Reply::Refused`]
    HpcOpen(Declared),
    /// An I/O phase of the job begins. → [`Reply::Done`], [`Reply::Waits`] or [`Reply::Refused`]
    HpcBegin {
        /// Bytes that it moves; 0: unknown.
        bytes: u64,
        /// Time until it has to be done, in ns; 0: from what the job allows.
        deadline_ns: u64,
    },
    /// Bytes of the phase that have been moved since it began. One way.
    HpcProgress {
        /// Bytes.
        bytes: u64,
    },
    /// The phase is over. → [`Reply::Done`]
    HpcEnd,
    /// The servers to which the job's next phases write; none: not known. → [`Reply::Done`] or
    /// [`Reply::Refused`]
    HpcServers(#[serde(deserialize_with = "crate::counted::sequence")] Vec<String>),
    /// Memory in which the observer library counts the job's I/O. → [`Reply::Observed`] or
    /// [`Reply::Refused`]
    HpcObserve,
    /// The HPC jobs that this node knows. → [`Reply::HpcJobs`]
    HpcJobs,
    /// A program has opened the file for writing, and what it writes may go to the tier first. With
    /// the file twice, as [`Request::StageCommit`]. → [`Reply::Dirty`] with the content as the
    /// program has opened it, and the words, or [`Reply::Refused`]
    Absorb {
        /// The program is to write to the tier if the file is empty. If not, the file concerns the
        /// agent only if it is dirty.
        is_wanted: bool,
        /// Access mode and `O_APPEND` of the program.
        flags: u32,
        /// The program's open has truncated the file.
        truncated: bool,
        /// Name of the program's job, if it has one: rules for checkpoints may name it.
        job: Option<String>,
        /// The user for whom an operator's mount has opened it, if that is not the sender.
        owner: Option<u32>,
        /// What the sender can do if the file is dirty on another node. → [`Reply::Elsewhere`],
        /// perhaps
        guest: GuestMode,
    },
    /// A write of `bytes` to a dirty file of this user needs room. → [`Reply::Done`] or
    /// [`Reply::Refused`]
    DirtyRoom {
        /// The file.
        copy: CopyId,
        /// Bytes of that write.
        bytes: u64,
    },
    /// A writer of a dirty file continues on the PFS: nobody writes to the tier any more, and the
    /// PFS gets what was written. → [`Reply::Done`] when it has, [`Reply::Waits`] after a second;
    /// it asks again then; or [`Reply::Failed`]
    CallIn(CopyId),
    /// Wait until the PFS has what was written before to the file. With the file, or without one
    /// for all of this user. → as [`Request::CallIn`]
    DirtySync,
    /// Length and mtime of a dirty file. → [`Reply::DirtyStat`] or [`Reply::Refused`]
    DirtyStat {
        /// Device of its PFS on this node.
        dev: u64,
        /// Its inode there.
        ino: u64,
    },
    /// Files that the PFS does not have yet; those of other users are shown to the operator only. →
    /// [`Reply::DirtyList`]
    DirtyList {
        /// Answer those after this one.
        after: CopyId,
    },
    /// The content of a dirty file, for its user and the operator. → [`Reply::Dirty`] with it, open
    /// for reading, or [`Reply::Refused`]
    DirtyExport(CopyId),
    /// Give up a parked file and what was written to it, for its user and the operator. →
    /// [`Reply::Done`] or [`Reply::Refused`]
    DirtyDrop(CopyId),
    /// Fetch all of the file in the background, if clients could map it then. With the file. One
    /// way.
    FetchToMap {
        /// The version the client opened.
        version: FileVersion,
    },
    /// Keep a memory-only file of the job beyond the job, for its user, as the image of `tree`. →
    /// [`Reply::Done`] or [`Reply::Failed`]
    ImageKeep {
        /// The job's token.
        job: String,
        /// Name within the job.
        name: Vec<u8>,
        /// What the image is of: the user's own key.
        tree: Vec<u8>,
    },
    /// A program opened a file that the PFS shows as empty, or as written within [`RECENT`]:
    /// another node may have newer bytes. With the file; without it the client continues to wait. →
    /// [`Reply::Dirty`] with the newest content, [`Reply::Done`] if the PFS has it,
    /// [`Reply::Waits`], or [`Reply::Failed`]
    OpenNewest,
    /// Open the image that this user has last kept. → [`Reply::Scratch`] with the file, or
    /// [`Reply::Failed`]
    ImageOpen {
        /// What it is of.
        tree: Vec<u8>,
    },
    /// Begin an application whose map outputs agents keep until this connection ends. →
    /// [`Reply::ShuffleApp`]
    ShuffleBegin,
    /// A process of the application runs on this node. → [`Reply::ShuffleApp`], or
    /// [`Reply::Failed`] if the application has ended, or its master does not listen
    ShuffleJoin(App),
    /// The nodes of a host. → [`Reply::Nodes`]
    NodesAt {
        /// Its names and IP addresses.
        hosts: Vec<String>,
        /// Include those that may have second copies of map outputs that were written there.
        with_second: bool,
    },
    /// Send a committed map output of this node to a second one. → [`Reply::Nodes`] with that, or
    /// [`Reply::Failed`] if none takes it
    ShuffleCopy {
        /// Token of the application.
        token: String,
        /// The shuffle.
        shuffle: u32,
        /// The map task's attempt.
        map: u64,
    },
    /// The application of this connection has a shuffle (`true`), or not any more: then all nodes
    /// remove its outputs. → [`Reply::Done`]
    ShuffleLives {
        /// The shuffle.
        shuffle: u32,
        /// It is not removed yet.
        lives: bool,
    },
    /// Remove the outputs of a shuffle on this node. → [`Reply::Done`]
    ShuffleRemove {
        /// Token of the application.
        token: String,
        /// The shuffle.
        shuffle: u32,
    },
    /// Blocks of map outputs, at most [`crate::shuffle::BLOCKS_MAX`]. →
    /// [`Reply::ShuffleBlocks`] with files, open for reading, or [`Reply::Failed`] if one of them
    /// is not there
    ShuffleFetch {
        /// The application.
        app: App,
        /// The nodes that have them: all of them each.
        nodes: Vec<String>,
        /// The blocks.
        blocks: Vec<Block>,
        /// The agent answers at the latest after this many milliseconds.
        deadline_ms: u32,
    },
    /// Wait until what was written before to a dirty file is in a second place as well, or on the
    /// PFS. → as [`Request::CallIn`]. After [`Reply::Waits`] the client asks again on the same
    /// connection.
    DirtyKeep {
        /// `None`: to all files of this user.
        copy: Option<CopyId>,
        /// The second place.
        second: SecondPlace,
    },
    /// Give an empty file a storage class of MooseFS. With the file twice, as
    /// [`Request::StageCommit`]. → [`Reply::Done`] or [`Reply::Failed`]
    SetClass(String),
    /// Make, change or end a rule of this user for sets of checkpoints. → [`Reply::Done`] or
    /// [`Reply::Refused`]
    CheckpointRule(CheckpointRule),
    /// Wait until the markers of these rules of this user are written, as far as files are closed
    /// and on the PFS. → [`Reply::Done`], or [`Reply::Waits`]; the client asks again then.
    CheckpointMarkers(Vec<String>),
    /// The rules of this user, or all for the operator, with their sets. → [`Reply::Checkpoints`]
    CheckpointList,
    /// Writes and reads of this connection go to a file that is dirty on another node. With the
    /// file twice, as [`Request::StageCommit`]. → [`Reply::Guest`] with the words, and the buffer
    /// that the bytes pass through; [`Reply::Refused`]; or [`Reply::Failed`]
    GuestOpen {
        /// The program's open has truncated the file.
        truncated: bool,
        /// The earlier connection that this one continues.
        resumes: Option<GuestId>,
        /// The thread whose open this is.
        caller: u32,
    },
    /// A call on the file of [`Request::GuestOpen`]; its bytes are at the beginning of the buffer.
    /// → [`Reply::GuestDone`], [`Reply::DirtyStat`], [`Reply::GuestLeft`] or [`Reply::Failed`]
    GuestCall(GuestCall),
    /// The table `cluster.storage_hosts`. → [`Reply::StorageHosts`]
    StorageHosts,
    /// This connection's program is of the job of this name. One way.
    SetJob(String),
    /// Limit the rate of jobs, on all nodes. A user may do so for own jobs, and the operator for
    /// all. → [`Reply::Done`], [`Reply::Refused`], or [`Reply::Failed`] if only this node knows it
    SetLimit {
        /// Name of the jobs.
        job: String,
        /// Their user; `None`: the sender, or of the operator any user.
        user: Option<u32>,
        /// The rate of each such job; `None`: no limit.
        rate_bytes_per_s: Option<u64>,
    },
    /// The rate limits. → [`Reply::Limits`]
    Limits,
    /// The program is about to read or write `bytes` of a PFS by itself, and its job has a rate
    /// limit. → [`Reply::Done`], or [`Reply::Waits`] after a while; it asks again then.
    MayPass {
        /// Bytes.
        bytes: u64,
    },
    /// Change what is logged, here or by the coordinator. Operator only. → [`Reply::Text`] with
    /// what is logged now, [`Reply::Refused`] or [`Reply::Failed`]
    SetLog {
        /// A level, or modules with their levels; empty: only ask.
        filter: String,
        /// By the coordinator.
        at_coordinator: bool,
    },
    /// The latest lines of the log. Operator only. → [`Reply::Text`] or [`Reply::Refused`]
    LastLog,
    /// A program is about to set the times of a dirty file on the PFS. → [`Reply::Done`] or
    /// [`Reply::Refused`]
    DirtyTimes {
        /// Device of its PFS on this node.
        dev: u64,
        /// Its inode there.
        ino: u64,
        /// The new mtime, nanoseconds since 1970; `None`: now.
        mtime_ns: Option<i64>,
    },
    /// The agent of the driver's node has restarted: the application of [`Request::ShuffleBegin`]
    /// continues, until this connection ends. → [`Reply::ShuffleApp`] or [`Reply::Failed`]
    ShuffleResume {
        /// The application.
        app: App,
        /// The shuffles that it has.
        shuffles: Vec<u32>,
    },
    /// A question to the coordinator, but [`Question::Log`]. → [`Reply::Answered`],
    /// [`Reply::Refused`] or [`Reply::Failed`]
    AskCoordinator(Question),
}

/// What a program does to a file that is dirty on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestCall {
    /// Write.
    Write {
        /// Where.
        offset: u64,
        /// How many bytes, at most [`GUEST_BYTES`].
        len: u32,
        /// At the end of the file instead.
        appends: bool,
    },
    /// Read.
    Read {
        /// From where.
        offset: u64,
        /// How many bytes at most, and at most [`GUEST_BYTES`].
        len: u32,
    },
    /// Truncate or extend it to this many bytes.
    Cut(u64),
    /// Ask for its length and times.
    Stat,
    /// The program has closed the file. One way.
    Close,
}

/// Bytes that one [`GuestCall`] writes or reads, at most.
pub const GUEST_BYTES: usize = 256 << 10;

/// Whether a program can write a file that is dirty on another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestMode {
    /// Through the descriptor that it gets.
    #[default]
    Descriptor,
    /// Through [`Request::GuestOpen`].
    Requests,
    /// Through [`Request::GuestOpen`] only: a file that is not dirty on another node is refused.
    RequestsOnly,
}

/// Names a guest to the node of the file, so that a later connection continues an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestId {
    /// Number of the guest.
    pub number: u64,
    /// The node of the file.
    pub holder: String,
    /// Number of the memory there that the file is in.
    pub life: u64,
    /// Number of the dirty file there.
    pub copy: CopyId,
}

/// What is to become of the checkpoints of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRule {
    /// Name of a job; or, with a slash, a pattern of paths.
    pub selector: String,
    /// How many of the newest sets stay in the tier; `None`: as before. Without sets and without a
    /// marker the rule ends.
    pub keep: Option<u32>,
    /// Name of a file that says that a set is on the PFS; `None`: as before, empty: none.
    pub marker: Option<String>,
}

/// Where else than in the memory of its node the content of a dirty file is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecondPlace {
    /// In the memory of another node.
    #[default]
    Node,
    /// On a disk of the same node.
    Disk,
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Mounts`].
    Mounts(Vec<MountInfo>),
    /// The file is on mount `mount`, and these are its facts. If `copy` is not 0 the packet carries
    /// the copy and its record, open for reading.
    Opened {
        /// Index into the mounts.
        mount: u32,
        /// What the agent saw.
        facts: FileFacts,
        /// The cached copy, or 0.
        copy: CopyId,
        /// Unit of caching in bytes for this file.
        page_bytes: u64,
        /// The whole file is pinned.
        pinned: bool,
    },
    /// The range is in the copy. If it is another copy than the client has, the packet carries that
    /// and its record, open for reading.
    Ready {
        /// The copy.
        copy: CopyId,
        /// Its page size in bytes.
        page_bytes: u64,
    },
    /// The file is not any more what the client opened.
    Changed(FileFacts),
    /// The agent will not; read the PFS.
    Refused(Refusal),
    /// The PFS, or the tier, failed.
    Failed {
        /// The error number.
        errno: i32,
        /// What was tried, on what, and why it failed.
        message: String,
    },
    /// Not ready by the deadline.
    TimedOut,
    /// It is so.
    Done,
    /// Released bytes.
    Evicted {
        /// Bytes of the tier.
        bytes: u64,
        /// Pages.
        pages: u64,
    },
    /// Progress of a load.
    Load(LoadProgress),
    /// The staging buffer, carried by the packet: `head_bytes` of control words, then `slots` of
    /// `page_bytes` each.
    Staging {
        /// Bytes before the first slot.
        head_bytes: u64,
        /// Number of slots.
        slots: u32,
        /// Bytes of a slot.
        page_bytes: u64,
    },
    /// A job has begun.
    Job {
        /// Its token.
        token: String,
        /// As requested, if the kernel can name the process.
        outlives_exec: bool,
    },
    /// A memory-only file, carried by the packet: for writing after create, for reading after open.
    Scratch {
        /// The file.
        copy: CopyId,
        /// Its length.
        size: u64,
    },
    /// Names and lengths; ask again after the last while `more`.
    ScratchList {
        /// Name and bytes.
        files: Vec<(Vec<u8>, u64)>,
        /// There are more.
        more: bool,
    },
    /// Cached files; ask again after the last while `more`.
    List {
        /// The files.
        files: Vec<CachedFile>,
        /// There are more.
        more: bool,
    },
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Members`]; empty while there is no coordinator yet.
    Members(ClusterView),
    /// The answer is too long for a packet: it is in the file that the packet carries, as a frame
    /// ([`crate::frame`]). [`Channel::recv_reply`](crate::Channel::recv_reply) gives what is in it.
    Attached,
    /// To [`Request::Memory`].
    Memory(Box<MemoryStatus>),
    /// To [`Request::HpcObserve`]; the packet carries the memory.
    Observed {
        /// Its length.
        bytes: u64,
    },
    /// To [`Request::HpcJobs`].
    HpcJobs(Vec<HpcStatus>),
    /// To [`Request::HpcBegin`] of a job that shares: its step is not let in yet. To
    /// [`Request::TaskAsks`]: its input is not there yet. To others: it is not done yet. Ask again.
    /// To [`Request::PinPages`]: some are not resident.
    Waits,
    /// The newest content of the file is not on the PFS yet; the packet carries it.
    Dirty {
        /// The file.
        copy: CopyId,
        /// Its length now.
        size: u64,
    },
    /// To [`Request::DirtyStat`].
    DirtyStat {
        /// Length in bytes.
        size: u64,
        /// Blocks of 512 bytes.
        blocks: u64,
        /// Last write, nanoseconds since 1970.
        mtime_ns: i64,
        /// The mtime that it had on the PFS when it became dirty, or that a pass has left there.
        left_mtime_ns: i64,
    },
    /// Dirty files; ask again after the last while `more`.
    DirtyList {
        /// The files.
        files: Vec<DirtyStatus>,
        /// There are more.
        more: bool,
    },
    /// The application, and the name of this node.
    ShuffleApp {
        /// The application.
        app: App,
        /// This node.
        node: String,
    },
    /// Names of nodes.
    Nodes(Vec<String>),
    /// To [`Request::ShuffleFetch`]: where each block is.
    ShuffleBlocks(Vec<BlockPlace>),
    /// To [`Request::CheckpointList`].
    Checkpoints(Vec<CheckpointSeries>),
    /// To [`Request::Absorb`]: the file is dirty on another node. The program can be a guest there,
    /// through [`Request::GuestOpen`].
    Elsewhere,
    /// To [`Request::GuestOpen`]. The number of the guest stands for that of a dirty file.
    Guest(GuestId),
    /// Bytes that were written or read.
    GuestDone(u64),
    /// Nothing was done: the file goes to the PFS, through [`Request::CallIn`].
    GuestLeft,
    /// To [`Request::StorageHosts`].
    StorageHosts(StorageHosts),
    /// To [`Request::Limits`].
    Limits(Vec<Limit>),
    /// To [`Request::SetLog`] and [`Request::LastLog`].
    Text(String),
    /// To [`Request::AskCoordinator`].
    Answered(Box<Answer>),
}

/// The sets of checkpoints that a rule has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointSeries {
    /// As [`CheckpointRule::selector`].
    pub selector: String,
    /// Whose rule it is.
    pub uid: u32,
    /// Sets that stay in the tier.
    pub keep: u32,
    /// Name of the marker; empty for none.
    pub marker: String,
    /// Oldest first.
    pub sets: Vec<CheckpointSet>,
}

/// What a job wrote in one burst.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointSet {
    /// Counts the sets of the node.
    pub number: u64,
    /// When its first file was opened, nanoseconds since 1970.
    pub began_ns: i64,
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that this node's memory has whole.
    pub in_memory: u64,
    /// Files that the PFS has whole.
    pub on_pfs: u64,
    /// See [`SetState`].
    pub state: SetState,
    /// It stays in the tier.
    pub held: bool,
    /// Directory that holds all of its files.
    pub directory: Vec<u8>,
    /// Paths of the files, the first [`PATHS_MAX`].
    pub paths: Vec<Vec<u8>>,
    /// Its marker, or why there is none; may be empty.
    pub marker: String,
}

/// Most paths of one set in a list.
pub const PATHS_MAX: usize = 1000;

/// Whether a set can be restarted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SetState {
    /// Files may follow.
    Writing,
    /// All files were closed.
    Whole,
    /// A program ended before it had closed a file.
    NotClosed,
    /// A file went to the PFS past the tier, which does not know its end.
    PastTier,
    /// A file was changed or removed since.
    Changed,
}

/// Why the agent will not do something. Never an error to the program: it reads the PFS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// No descriptor came with the request, or not the number it needs.
    NoDescriptor,
    /// The descriptor is not open for reading (write-only or `O_PATH`).
    NotReadable,
    /// Not a regular file.
    NotRegular,
    /// On none of the mounts this agent serves.
    NotOnMount,
    /// The budget has no room, and nothing can be evicted.
    NoRoom,
    /// The file was changed so short a time ago that another write could leave the same time
    /// stamps.
    RacilyClean,
    /// Too many clients, loads or pinned pages.
    TooMany(String),
    /// For the operator (the agent's user, or root) only.
    NotAllowed,
    /// The request does not fit the state of things.
    Invalid(String),
    /// The second descriptor does not prove that its owner may write the file.
    NotWritable,
    /// Somebody on this node has the file open for writing.
    BeingWritten,
    /// The time stamps of this file system cannot be believed.
    StampsUnproved,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::NoDescriptor => f.write_str("the request came without its file descriptor"),
            Refusal::NotReadable => f.write_str("the descriptor is not open for reading"),
            Refusal::NotRegular => f.write_str("not a regular file"),
            Refusal::NotOnMount => f.write_str("not on a file system this agent serves"),
            Refusal::RacilyClean => {
                f.write_str("changed a moment ago; it is cached once its time stamps are reliable")
            }
            Refusal::StampsUnproved => {
                f.write_str("this file system is not cached; `forebay status` says why")
            }
            Refusal::BeingWritten => f.write_str(
                "a program on this node has it open for writing; it is cached once that is closed",
            ),
            Refusal::NoRoom => f.write_str("no room in the tier: all of it is pinned or in use"),
            Refusal::TooMany(what) => write!(f, "too many {what}"),
            Refusal::NotAllowed => f.write_str("only the agent's own user or root may do this"),
            Refusal::Invalid(why) => f.write_str(why),
            Refusal::NotWritable => f.write_str("the descriptor does not prove the right to write the file"),
        }
    }
}

/// Progress of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadProgress {
    /// Files finished, well or not.
    pub files_done: u64,
    /// Bytes of finished pages that the load fetched from the PFS.
    pub bytes_fetched: u64,
    /// Bytes that were there already.
    pub bytes_resident: u64,
    /// Nothing is queued or under way.
    pub idle: bool,
    /// Files that failed since the last answer: number, error number, message.
    pub failures: Vec<(u64, i32, String)>,
    /// Why it does not continue; empty if nothing stops it.
    pub waits_for: String,
}

/// One cached file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFile {
    /// The copy.
    pub copy: CopyId,
    /// Label of its mount.
    pub mount: String,
    /// Path when it was first seen.
    pub path: Vec<u8>,
    /// Its version.
    pub version: FileVersion,
    /// Bytes resident.
    pub resident_bytes: u64,
    /// The whole file is pinned.
    pub pinned: bool,
    /// A newer version was seen; this one goes first.
    pub stale: bool,
}

/// A file that the PFS does not have yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtyStatus {
    /// Its number.
    pub copy: CopyId,
    /// Label of its mount.
    pub mount: String,
    /// Path when it was opened for writing.
    pub path: Vec<u8>,
    /// The user who writes it.
    pub uid: u32,
    /// Length in bytes.
    pub bytes: u64,
    /// Bytes of it that the pass under way has written.
    pub drained_bytes: u64,
    /// When it was opened for writing, milliseconds ago.
    pub age_ms: u64,
    /// What it is waiting for.
    pub state: DirtyState,
    /// Why the last pass failed; empty if none has.
    pub error: String,
    /// The rate at which it is written, 0 if it is not, or not known.
    pub rate_bytes_per_s: u64,
    /// When the PFS will have it, if nothing changes; `None`: not known.
    pub safe_in_ms: Option<u64>,
    /// What it waits for, or why it is written during a phase; may be empty.
    pub why: String,
}

/// The state of a dirty file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirtyState {
    /// A program has it open for writing.
    Open,
    /// It waits for its pass.
    Waits,
    /// It is being written to the PFS.
    Drains,
    /// The last pass has failed; there will be another.
    Failed,
    /// No pass is made until somebody syncs it.
    Parked,
    /// It is the second copy of a file that is dirty on another node.
    Copy,
}

/// State and counters of an agent. All counters start at 0 with the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process.
    pub pid: u32,
    /// Milliseconds since start.
    pub uptime_ms: u64,
    /// Directory or mount of the tier, as text.
    pub tier: String,
    /// Whether the tier's pages are huge: `within_size`, `never` ...
    pub huge_pages: String,
    /// Eviction policy.
    pub eviction: String,
    /// The budget in bytes: everything below is counted against it.
    pub capacity_bytes: u64,
    /// Bytes of the budget in use, by class.
    pub used_bytes: Vec<(String, u64)>,
    /// Bytes of cached pages.
    pub resident_bytes: u64,
    /// Bytes of pinned files.
    pub pinned_bytes: u64,
    /// Cached files.
    pub files: u64,
    /// Memory-only files.
    pub scratch_files: u64,
    /// Open connections.
    pub connections: u64,
    /// Memory whose use cannot be read, and why: the tier does not grow meanwhile.
    pub memory_problems: Vec<String>,
    /// Where the memory controller looks: the node, and control groups with a limit.
    pub memory_places: Vec<String>,
    /// What wakes the memory controller.
    pub memory_alarms: Vec<String>,
    /// Nodes known to the coordinator, and its epoch.
    pub cluster: ClusterStatus,
    /// Named counters with units in their names.
    pub counters: Vec<(String, u64)>,
    /// The mounts.
    pub mounts: Vec<MountStatus>,
    /// What jobs move on this node, those that move most first.
    pub traffic: Vec<JobTraffic>,
}

/// How an agent's tier gives way to compute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Name of the law.
    pub policy: String,
    /// Share of the memory that may be in use, in ten-thousandths.
    pub target_per_10000: u32,
    /// The least that the tier may have, in bytes.
    pub min_bytes: u64,
    /// The most that the operator allows it.
    pub max_bytes: u64,
    /// What it may have now.
    pub capacity_bytes: u64,
    /// What it holds, buffers and records included.
    pub tier_bytes: u64,
    /// The size by which other nodes place extents here.
    pub weight_bytes: u64,
    /// Where memory may run short: the node first, then control groups with a limit.
    pub places: Vec<MemoryPlace>,
    /// Names of what the kernel reports by itself, as soon as it happens.
    pub alarms: Vec<String>,
    /// Control groups that the configuration names and that do not exist.
    pub awaited: Vec<String>,
    /// The last minutes, the oldest point first.
    pub points: Vec<MemoryPoint>,
}

/// A place where memory may run short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPlace {
    /// `node`, or the directory of a control group.
    pub name: String,
    /// The node's memory, or the group's limit.
    pub total_bytes: u64,
    /// What is in use of it and cannot be taken back immediately, the tier included.
    pub used_bytes: u64,
    /// Why the use cannot be read now, so that the numbers are the last ones read; empty: it can be
    /// read.
    pub problem: String,
    /// What the memory consists of, in bytes, as far as the kernel distinguishes it.
    pub parts: Vec<(String, u64)>,
}

/// The node's memory at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPoint {
    /// Milliseconds since the memory controller's start.
    pub at_ms: u64,
    /// In use on the node, the tier included, in bytes.
    pub used_bytes: u64,
    /// The node's memory.
    pub total_bytes: u64,
    /// What the tier held.
    pub tier_bytes: u64,
    /// What it was allowed then.
    pub capacity_bytes: u64,
    /// Why that has changed, if it has.
    pub reason: Option<MemoryReason>,
}

/// The cluster as one agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// This node's name.
    pub node: String,
    /// The coordinator's address; empty if it is in the agent's own process.
    pub coordinator: String,
    /// It answers.
    pub connected: bool,
    /// The one of several candidates that leads, and its term; empty and 0 if none was elected.
    pub leader: (String, u64),
    /// For how many milliseconds it has answered, or has not.
    pub since_ms: u64,
    /// Why there is no connection now, by candidate.
    pub problems: Vec<(String, String)>,
    /// The last view it gave.
    pub view: ClusterView,
    /// Peers that are not asked at present, and for how many more milliseconds.
    pub avoided: Vec<(String, u64)>,
}

/// One mount as the agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// The operator's name.
    pub label: String,
    /// Root directory.
    pub root: Vec<u8>,
    /// False if something has to be mounted there, and nothing is.
    pub mounted: bool,
    /// Bytes read from it by this agent.
    pub fetched_bytes: u64,
    /// Fetches that failed.
    pub fetch_errors: u64,
    /// Fetches waiting or under way.
    pub fetches_pending: u64,
    /// The oldest fetch under way has waited this long for the PFS, in milliseconds.
    pub slowest_ms: u64,
    /// Its files are cached: its time stamps are known to follow writes.
    pub cached: bool,
    /// What its time stamps do, as text.
    pub stamps: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::decode;
    use crate::cluster::Overview;

    #[test]
    fn the_first_packets_never_change() {
        let hello = postcard::to_stdvec(&Hello { magic: MAGIC, protocol: 1, want_ring: true }).unwrap();
        assert_eq!(hello, [230, 222, 201, 171, 166, 172, 216, 60, 1, 1]);
        let welcome = Welcome { protocol: 2, protocol_fits: false, message: "no".into() };
        assert_eq!(postcard::to_stdvec(&welcome).unwrap(), [2, 0, 2, b'n', b'o']);
    }

    /// Fails if a field or a variant is added: give the protocol its next number, and write the new
    /// bytes down.
    #[test]
    fn what_looks_different_on_the_wire_has_another_number() {
        let mount = MountStatus {
            label: "m".into(),
            root: b"/".to_vec(),
            mounted: true,
            fetched_bytes: 1,
            fetch_errors: 2,
            fetches_pending: 3,
            slowest_ms: 4,
            cached: true,
            stamps: "s".into(),
        };
        let bytes = postcard::to_stdvec(&mount).unwrap();
        assert_eq!((PROTOCOL, bytes), (24, vec![1, b'm', 1, b'/', 1, 1, 2, 3, 4, 1, 1, b's']));
        let status = Status { mounts: vec![mount], ..Status::default() };
        assert_eq!((PROTOCOL, postcard::to_stdvec(&status).unwrap().len()), (24, 42));
        assert_eq!((PROTOCOL, postcard::to_stdvec(&Refusal::StampsUnproved).unwrap()), (24, vec![11]));
        let facts = postcard::to_stdvec(&FileVersion { ino: 1, size: 2, mtime_ns: 3, ctime_ns: 4 }).unwrap();
        assert_eq!((PROTOCOL, facts), (24, vec![1, 2, 6, 8]));
        assert_eq!((PROTOCOL, postcard::to_stdvec(&Overview::default()).unwrap()), (24, vec![0; 12]));
        assert_eq!((PROTOCOL, postcard::to_stdvec(&Declared::default()).unwrap()), (24, vec![0; 9]));
        assert_eq!((PROTOCOL, postcard::to_stdvec(&LoadProgress::default()).unwrap()), (24, vec![0; 6]));
        assert_eq!((PROTOCOL, postcard::to_stdvec(&HpcStatus::default()).unwrap()), (24, vec![0; 13]));
    }

    #[test]
    fn garbage_is_refused() {
        assert!(decode::<Request>(&[0xff; 40]).is_err());
        assert!(decode::<Request>(&[]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_packet_makes_the_decoder_panic(bytes in proptest::collection::vec(0u8.., 0..200)) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Reply>(&bytes);
        }
    }
}
