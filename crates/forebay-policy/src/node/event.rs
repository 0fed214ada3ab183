//! What the node machine receives and decides: plain values, without threads, descriptors or
//! clocks.
//!
//! The driver names its requests, loads, reads and tasks by numbers that it never uses twice. A
//! *task* is one read of a file system that waits for a fetch thread. A *read* is what a prefetch
//! request, a load or a peer wants to fetch next and must get permission for.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::task_queue::{Held, Pages};
use crate::drain;
use crate::fetch_order::Urgency;
use crate::stage::event::{Priority, Progress, RequestId};

/// Names a mount: its place in [`Config::fetch_threads`].
pub type MountId = usize;
/// Names a task.
pub type TaskId = u64;
/// Names a read.
pub type ReadId = u64;
/// Names a load.
pub type LoadId = u64;

/// What the machine is built from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Fetch threads of each mount.
    pub fetch_threads: Vec<usize>,
    /// The longest read of a file system, in bytes: a page of the usual size.
    pub read_bytes: u64,
    /// Configuration of the drain.
    #[serde(default)]
    pub drain: drain::Config,
}

/// The origin of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A prefetch request of the coordinator.
    Request(RequestId),
    /// Another node, for a prefetch request of its own.
    Peer,
    /// A load.
    Load(LoadId),
}

/// What the machine receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// The coordinator has made a prefetch request.
    Request {
        /// Its number.
        request: RequestId,
        /// Reads at a time; 0: it is paused.
        threads: u32,
        /// Its rate; 0: no limit.
        rate_bytes_per_s: u64,
        /// Its priority.
        priority: Priority,
    },
    /// A request continues at another pace.
    Adjust {
        /// Its number.
        request: RequestId,
        /// See [`Event::Request`].
        threads: u32,
        /// See [`Event::Request`].
        rate_bytes_per_s: u64,
    },
    /// All prefetch requests of the cluster are paused, or continue.
    Pause {
        /// Whether they are paused.
        on: bool,
    },
    /// Requests are over: nothing more is fetched for them.
    Release {
        /// Their numbers.
        requests: Vec<RequestId>,
    },
    /// A load has begun.
    LoadBegins {
        /// Its number.
        load: LoadId,
        /// Its rate; 0: no limit.
        rate_bytes_per_s: u64,
    },
    /// A load is over.
    LoadEnds {
        /// Its number.
        load: LoadId,
    },
    /// A request, load or peer wants to read, and waits for [`Action::Send`]. Requests and loads
    /// offer one read at a time.
    Offer {
        /// Its number.
        read: ReadId,
        /// Its origin.
        by: By,
        /// The file system that it is read from; `None`: from a peer, or nothing has to be read.
        mount: Option<MountId>,
        /// Its length.
        bytes: u64,
        /// Whether it is of small pages.
        is_short: bool,
    },
    /// A waiting read is no longer wanted.
    Withdraw {
        /// Its number.
        read: ReadId,
    },
    /// A read that was sent has ended.
    ReadEnded {
        /// Its number.
        read: ReadId,
        /// For a request: wanted bytes that were already resident.
        resident_bytes: u64,
        /// Bytes that were fetched.
        fetched_bytes: u64,
        /// Bytes that could not be fetched.
        failed_bytes: u64,
    },
    /// Parts of what a request wants need no read.
    Settled {
        /// Its number.
        request: RequestId,
        /// Bytes that were already resident.
        resident_bytes: u64,
        /// Bytes that cannot be fetched.
        failed_bytes: u64,
    },
    /// A request offers nothing more.
    Fed {
        /// Its number.
        request: RequestId,
    },
    /// A task waits for a fetch thread.
    Queue {
        /// Its number.
        task: TaskId,
        /// Its mount.
        mount: MountId,
        /// How urgent it is.
        urgency: Urgency,
        /// Its pages, if they wait for those before them.
        pages: Option<Pages>,
    },
    /// A fetch thread has no task, and waits for [`Action::Read`].
    Idle {
        /// Its mount.
        mount: MountId,
        /// Its number.
        thread: usize,
    },
    /// A fetch thread has read the last of its task: the pages behind may begin.
    PagesRead {
        /// Its mount.
        mount: MountId,
        /// Its number.
        thread: usize,
    },
    /// The brake is set or released: an I/O phase of an HPC job is behind, here or on another node,
    /// or none is.
    Brake {
        /// Whether it is set.
        on: bool,
    },
    /// An I/O phase is under way on some node, or none is.
    Phases {
        /// Whether one is.
        under_way: bool,
        /// The user of all of them, if they are all on this node and of one user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        own: Option<u32>,
    },
    /// An event of dirty files.
    Drain {
        /// The event for the drain.
        event: drain::Event,
    },
    /// The coordinator has been silent for its lease, or is in contact again: while silent, it
    /// cannot follow the phases.
    Silence {
        /// Whether it is silent.
        on: bool,
    },
}

/// What the machine decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// A read may start.
    Send {
        /// Its number.
        read: ReadId,
    },
    /// A fetch thread starts a task.
    Read {
        /// Its mount.
        mount: MountId,
        /// The thread.
        thread: usize,
        /// The task.
        task: TaskId,
    },
    /// Too many tasks wait: this one is refused.
    Refuse {
        /// Its number.
        task: TaskId,
    },
    /// What is not fetched now. What is under way stops at the end of its chunk.
    Hold {
        /// The tasks that are held.
        held: Held,
    },
    /// Whether what no reader waits for is read in small chunks, since it may have to stop.
    Gentle {
        /// Whether it is.
        on: bool,
    },
    /// An action for dirty files.
    Drain {
        /// The decision of the drain.
        action: drain::Action,
    },
    /// The progress of a request.
    Report {
        /// Its number.
        request: RequestId,
        /// Counts of its bytes.
        progress: Progress,
    },
}
