//! What the node machine hears and what it decides: plain values, without threads, descriptors or
//! clocks.
//!
//! The driver names what it keeps by numbers that it never uses twice: requests, loads, reads and
//! tasks. A *task* is one read of a file system that waits for a fetch thread. A *read* is what a
//! prefetch request, a load or a peer wants to fetch next and has to be let go.

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
    /// Of the drain.
    #[serde(default)]
    pub drain: drain::Config,
}

/// Who wants to read.
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

/// What the machine hears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// The coordinator has made a prefetch request.
    Request {
        /// Its number.
        request: RequestId,
        /// Reads at a time; none: it is paused.
        threads: u32,
        /// Its rate; 0: no limit.
        rate_bytes_per_s: u64,
        /// Which goes first.
        priority: Priority,
    },
    /// A request goes on at another pace.
    Adjust {
        /// Its number.
        request: RequestId,
        /// See [`Event::Request`].
        threads: u32,
        /// See [`Event::Request`].
        rate_bytes_per_s: u64,
    },
    /// All prefetch requests of the cluster are paused, or go on.
    Pause {
        /// Paused.
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
    /// Somebody wants to read, and waits for [`Action::Send`]. Requests and loads offer one read at
    /// a time.
    Offer {
        /// Its number.
        read: ReadId,
        /// Who.
        by: By,
        /// The file system that it is read from; `None`: a peer, or nothing that has to be read.
        mount: Option<MountId>,
        /// Its length.
        bytes: u64,
        /// It is of small pages.
        is_short: bool,
    },
    /// A read that waits is not wanted any more.
    Withdraw {
        /// Its number.
        read: ReadId,
    },
    /// A read that was sent has ended.
    ReadEnded {
        /// Its number.
        read: ReadId,
        /// Of what a request wants: what was there already.
        resident_bytes: u64,
        /// What was fetched.
        fetched_bytes: u64,
        /// What could not be fetched.
        failed_bytes: u64,
    },
    /// Parts of what a request wants need no read.
    Settled {
        /// Its number.
        request: RequestId,
        /// What was there already.
        resident_bytes: u64,
        /// What cannot be fetched.
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
        /// Of which mount.
        mount: MountId,
        /// How urgent it is.
        urgency: Urgency,
        /// Its pages, if they wait for those before them.
        pages: Option<Pages>,
    },
    /// A fetch thread is at no task, and waits for [`Action::Read`].
    Idle {
        /// Of which mount.
        mount: MountId,
        /// Its number.
        thread: usize,
    },
    /// A fetch thread has read the last of its task: the pages behind may begin.
    PagesRead {
        /// Of which mount.
        mount: MountId,
        /// Its number.
        thread: usize,
    },
    /// The brake is set, or off: an I/O phase of an HPC job is behind, here or on another node.
    Brake {
        /// Set.
        on: bool,
    },
    /// Whether any I/O phase is under way somewhere.
    Phases {
        /// One is.
        under_way: bool,
        /// All are on this node and of this user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        own: Option<u32>,
    },
    /// Of dirty files.
    Drain {
        /// What the drain hears.
        event: drain::Event,
    },
    /// The coordinator has been silent for its lease, or is heard again: silent, it cannot follow
    /// the phases.
    Silence {
        /// Silent.
        on: bool,
    },
}

/// What the machine decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// A read may go.
    Send {
        /// Its number.
        read: ReadId,
    },
    /// A fetch thread takes up a task.
    Read {
        /// Of which mount.
        mount: MountId,
        /// The thread.
        thread: usize,
        /// The task.
        task: TaskId,
    },
    /// Too many wait: the task is not done.
    Refuse {
        /// Its number.
        task: TaskId,
    },
    /// What is not fetched now. What is under way stops at the end of its chunk.
    Hold {
        /// These.
        held: Held,
    },
    /// Whether what no reader waits for is read in small chunks, since it may have to stop.
    Gentle {
        /// It is.
        on: bool,
    },
    /// Of dirty files.
    Drain {
        /// What the drain decides.
        action: drain::Action,
    },
    /// How far a request has come.
    Report {
        /// Its number.
        request: RequestId,
        /// What has become of its bytes.
        progress: Progress,
    },
}
