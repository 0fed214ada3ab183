//! What the drain receives and decides: plain values.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::Nanos;

/// Names a dirty file, or a step in burst buffers.
pub type FileId = u64;
/// Names a writer: files of one owner share a room. A user of a node, or a job of the simulator.
pub type Owner = u32;
/// Names a server of the PFS.
pub type Server = u64;

/// Every policy: its name, and whether it yields to others.
pub const POLICIES: &[(&str, bool)] = &[("at-once", false), ("yield", true)];

/// What the machine is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Whether it waits for the I/O phases of others: `yield`.
    pub yields: bool,
    /// Limit on passes under way to each mount, including those that wait for a server.
    pub passes: usize,
    /// Limit on passes to each mount that write.
    pub writes: usize,
    /// Limit on the rate of all passes together; 0: no limit.
    pub rate_bytes_per_s: u64,
    /// How long a closed file waits for phases at most.
    pub age_max_ns: u64,
}

impl Default for Config {
    /// Two files at a time hide the `fsync` of one behind the writes of the other. Two more passes
    /// continue if those two wait for one server.
    fn default() -> Self {
        Config { yields: true, passes: 4, writes: 2, rate_bytes_per_s: 0, age_max_ns: 300_000_000_000 }
    }
}

/// A dirty file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// The mount it belongs to.
    pub mount: usize,
    /// Its writer.
    pub owner: Owner,
    /// Memory that it takes.
    pub bytes: u64,
    /// When it was closed, or became awaited.
    pub since: Nanos,
    /// A program writes it.
    pub is_open: bool,
    /// A pass may begin.
    pub is_ready: bool,
    /// A caller waits until the PFS has it.
    pub is_awaited: bool,
    /// A writer waits, because there is no room for what it writes.
    pub wants_room: bool,
    /// Its job, if that has a rate limit: its chunks wait before they are offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_job: Option<u64>,
}

/// What the machine receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// A file is dirty, or its facts have changed.
    Dirty {
        /// Its number.
        file: FileId,
        /// Its current facts.
        facts: File,
    },
    /// The PFS has the file, or it was given up.
    Clean {
        /// Its number.
        file: FileId,
    },
    /// This much more may become dirty.
    Room {
        /// The owner of the room.
        owner: Owner,
        /// Bytes.
        free_bytes: u64,
    },
    /// A pass wants to write its next chunk, and waits for [`Action::Send`].
    Offer {
        /// The file of the pass.
        file: FileId,
        /// Length of the chunk.
        bytes: u64,
        /// The server that it goes to, if that is known.
        server: Option<Server>,
    },
    /// The chunk has been written, or has failed.
    Written {
        /// The file of the pass.
        file: FileId,
        /// Its length; 0 if it has failed.
        bytes: u64,
    },
    /// The pass is over. The next one begins after another [`Event::Dirty`].
    Ended {
        /// The file of the pass.
        file: FileId,
        /// The server that had no space for its last chunk.
        full: Option<Server>,
    },
    /// I/O phases of HPC jobs are under way, or all prefetches are paused for one.
    Hold {
        /// Whether they are.
        on: bool,
        /// The owner of all of them, if they have the same one.
        own: Option<Owner>,
    },
}

/// What it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// The pass over a file begins.
    Begin {
        /// Its mount.
        mount: usize,
        /// Its number.
        file: FileId,
    },
    /// The chunk that was offered goes to the PFS.
    Send {
        /// The file of the pass.
        file: FileId,
        /// Why it is sent during a phase of others, if it is.
        forced: Option<Forced>,
    },
}

/// Why a file is written during the phase of another job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forced {
    /// A writer waits for room, or the next checkpoint would.
    Capacity,
    /// It has waited for [`Config::age_max_ns`].
    Age,
}

/// What a file waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No pass may begin: it is open, or has failed.
    NotReady,
    /// Its pass is under way.
    Writes,
    /// Its pass is under way during a phase.
    Forced(Forced),
    /// The I/O phase of another job.
    Phase,
    /// Files that go before it.
    Turn(usize),
    /// Another chunk to the same server.
    Server,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NotReady | Why::Writes => Ok(()),
            Why::Forced(Forced::Capacity) => {
                f.write_str("is written during an I/O phase: a program waits for room, or soon would")
            }
            Why::Forced(Forced::Age) => f.write_str("is written during an I/O phase: it has waited too long"),
            Why::Phase => f.write_str("waits for the end of an I/O phase"),
            Why::Turn(files) => write!(f, "waits for {files} files before it"),
            Why::Server => f.write_str("waits for a server of the file system"),
        }
    }
}

/// What a file waits for, and when the PFS has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// What it waits for.
    pub why: Why,
    /// The recent rate of its mount's passes; 0 if it is unknown or the file waits.
    pub rate_bytes_per_s: u64,
    /// When the PFS has it, if nothing changes; `None`: unknown.
    pub safe_in_ns: Option<u64>,
}
