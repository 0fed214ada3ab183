//! The words between agents: one asks, the owner answers with the page.
//!
//! A connection carries one request at a time. A page follows its [`PeerReply::Page`] as raw bytes, straight out of the
//! owner's tier. The owner keeps the page in place until the asker's [`PeerRequest::Taken`], or until the asker's deadline
//! has passed by its own clock; the asker measures the deadline from before it asked and throws away what is complete only
//! later. So bytes that were punched on the way are never believed, and a lost peer costs nothing but time.

use crate::cluster::FileRef;
use serde::{Deserialize, Serialize};

/// Number of this protocol.
pub const PEER_PROTOCOL: u32 = 1;

/// From the asking agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PeerRequest {
    /// First of all.
    Hello {
        /// [`PEER_PROTOCOL`].
        protocol: u32,
        /// Name of the asking node.
        node: String,
    },
    /// One page of a file. → [`PeerReply`]
    Page {
        /// The file and its version.
        file: FileRef,
        /// Unit of caching in bytes; both sides must use the same.
        page_bytes: u64,
        /// The page.
        page: u32,
        /// A reader waits for it (otherwise it is read-ahead or a prefetch).
        waiting: bool,
        /// The asker takes nothing that is complete only after so many milliseconds.
        deadline_ms: u32,
    },
    /// The page is complete, or will not be taken: the owner may let go of it. One way.
    Taken,
}

/// From the owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PeerReply {
    /// To [`PeerRequest::Hello`].
    Welcome {
        /// [`PEER_PROTOCOL`].
        protocol: u32,
        /// Why not, or empty.
        refusal: String,
    },
    /// So many bytes follow.
    Page {
        /// Bytes of the page.
        len: u64,
    },
    /// The file is another version here.
    Changed,
    /// The owner will not: no permission, no room, no such mount, another page size. Read the PFS.
    Refused(String),
    /// The PFS failed at the owner.
    Failed {
        /// The error number.
        errno: i32,
        /// What was tried, on what.
        message: String,
    },
    /// Not ready by the deadline.
    TimedOut,
}
