//! The messages between agents: one requests a page, the owner answers with it.
//!
//! A connection carries one request at a time. A page comes in pieces: each is announced by
//! [`PeerReply::Piece`] and follows as raw bytes. A page that is whole in the owner's tier is one
//! piece, sent straight out of the tier; one that the owner is still fetching comes as it is
//! fetched, so that a reader need not wait for all of it. Small pages are requested together, and
//! those that the owner has come as one piece.
//!
//! A page that many nodes request at the same time does not come from the owner each time:
//! [`PeerReply::Relay`] names a node that has it or gets it. The asker requests it there, and if
//! that fails from the owner again.
//!
//! **Why no byte that was released on the way is believed.** What is sent out of the tier without a
//! copy is not in the socket but referred to by it: memory that is released meanwhile would arrive
//! as zeros. So the owner keeps the page in place until the asker's [`PeerRequest::Taken`], or
//! until the asker's deadline has passed by the owner's clock; then it resets the connection first
//! and lets go of the page after. The asker measures the same deadline from *before* it asked, so
//! its own ends earlier, and believes a piece of bytes only if its clock shows, after the copy was
//! made, that the deadline is still to come. A lost peer costs nothing but time.

use crate::cluster::{DirtyFile, FileRef};
use crate::hpc::HpcPhase;
use crate::message::{GuestCall, SecondPlace};
use crate::shuffle::{App, Block};
use crate::traffic::JobName;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Number of this protocol.
pub const PEER_PROTOCOL: u32 = 13;

/// Pages that are asked about in one [`PeerRequest::Check`].
pub const CHECKED_MAX: usize = 1 << 16;

/// Most bytes of the pages of one [`PeerRequest::Pages`].
pub const RUN_BYTES_MAX: u64 = 2 << 20;

/// From the asking agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PeerRequest {
    /// First of all. → [`PeerReply::Welcome`]
    Hello {
        /// [`PEER_PROTOCOL`].
        protocol: u32,
        /// Name of the asking node.
        node: String,
    },
    /// One page of a file, sent here. → [`PeerReply::Piece`] until the page is whole, or any of the
    /// others
    Page {
        /// The page.
        page: PageRef,
        /// Bytes that the asker has of it already, from its start: whole blocks of 4 KiB.
        from: u64,
        /// Why it is wanted.
        wanted: Wanted,
        /// What the asker takes the other side to be.
        role: Role,
        /// The job that it is for.
        job: JobName,
        /// The asker believes nothing that is complete only after this many milliseconds.
        deadline_ms: u32,
    },
    /// Adjacent pages of a file, sent here. → one [`PeerReply::Piece`] with one or more of them,
    /// whole, from the first on, or any of the others. The asker requests again what is missing.
    Pages {
        /// The first of them.
        first: PageRef,
        /// How many: of at most [`RUN_BYTES_MAX`] together.
        count: u32,
        /// The reason for the request.
        wanted: Wanted,
        /// As in [`PeerRequest::Page`].
        job: JobName,
        /// As in [`PeerRequest::Page`].
        deadline_ms: u32,
    },
    /// The pieces have been taken, or will not be: the owner may let go of the pages. One way.
    Taken,
    /// One page of a file, to be fetched into the owner's tier and not sent. →
    /// [`PeerReply::Fetched`], or any of the others but a piece
    Fetch {
        /// The page.
        page: PageRef,
        /// As in [`PeerRequest::Page`].
        job: JobName,
        /// Answer within this many milliseconds.
        deadline_ms: u32,
    },
    /// Which of these pages are in the owner's tier. → [`PeerReply::Missing`], or
    /// [`PeerReply::Refused`]
    Check {
        /// The file and its version.
        file: FileRef,
        /// Unit of caching in bytes; both sides must use the same.
        page_bytes: u64,
        /// Numbers of the pages, at most [`CHECKED_MAX`].
        pages: Vec<u32>,
    },
    /// The I/O phases of HPC jobs on the asking node, all of them. → [`PeerReply::Heard`]
    Phases {
        /// How long they count, unless they are reported again.
        lease_ms: u32,
        /// The phases.
        phases: Vec<HpcPhase>,
    },
    /// A file that is dirty at the other node, sent here. → [`PeerReply::Dirty`] and its bytes, or
    /// [`PeerReply::Refused`]
    Dirty {
        /// Which.
        file: DirtyFile,
        /// Length and mtime (nanoseconds since 1970) that the PFS shows at the asking node.
        shown: (u64, i64),
        /// When the file was created, as the PFS shows it there, in nanoseconds since 1970.
        born_ns: Option<i64>,
        /// Length and mtime of what the asking node has of it.
        known: Option<(u64, i64)>,
    },
    /// Programs of the asking node write a file that is dirty at the other node: its writers
    /// continue on the PFS. → [`PeerReply::Fetched`] once the PFS has what they wrote,
    /// [`PeerReply::NotYet`], or [`PeerReply::Failed`]
    CallIn {
        /// Which.
        file: DirtyFile,
        /// The file has been emptied: what was written to it is void.
        truncated: bool,
        /// They do not wait any longer: both contents are kept.
        gives_up: bool,
    },
    /// Blocks of map outputs of an application, sent here. → [`PeerReply::Blocks`] and their bytes,
    /// or [`PeerReply::Failed`] if one of them is not there
    Blocks {
        /// The application.
        token: String,
        /// Its user.
        uid: u32,
        /// The blocks, at most [`crate::shuffle::BLOCKS_MAX`].
        blocks: Vec<Block>,
    },
    /// Whether an application whose driver or master runs on the other node lives, and which of
    /// these shuffles it has. → [`PeerReply::Shuffles`]
    Shuffles {
        /// The application.
        app: App,
        /// Its user.
        uid: u32,
        /// Shuffles with outputs on the asking node.
        shuffles: Vec<u32>,
    },
    /// Keep a second copy of a map output. → [`PeerReply::Fetched`]: the asker sends its bytes, and
    /// gets [`PeerReply::Fetched`] once the copy is whole; or [`PeerReply::Refused`]
    KeepOutput {
        /// The application.
        app: App,
        /// Its user.
        uid: u32,
        /// The shuffle.
        shuffle: u32,
        /// The map task's attempt.
        map: u64,
        /// Bytes, with its index.
        bytes: u64,
    },
    /// Keep a second copy of a file that is dirty at the asking node, in place of an earlier one. →
    /// [`PeerReply::Fetched`]: the asker sends the bytes of the ranges, and gets
    /// [`PeerReply::Fetched`] once the copy is whole; or [`PeerReply::Refused`]
    Keep(Box<KeptFile>),
    /// The PFS has the file, or another node keeps its copy: the memory of the copy is free. →
    /// [`PeerReply::Fetched`]
    Release {
        /// Which.
        file: DirtyFile,
        /// A copy of a later generation stays.
        generation: u64,
    },
    /// A pass over a file begins, whose copy the asked node keeps, or is over. →
    /// [`PeerReply::Fetched`]
    Pass {
        /// Which.
        file: DirtyFile,
        /// Greater than those of earlier passes.
        number: u64,
        /// Length and mtime that the PFS shows since it is over; nothing if it begins.
        left: Option<(u64, i64)>,
    },
    /// Does the copy of this file, which the asking node keeps, still count? →
    /// [`PeerReply::Custody`]
    AskCustody {
        /// Which.
        file: DirtyFile,
        /// Generation of that copy.
        generation: u64,
    },
    /// A program of the asking node writes a file that is dirty at the other node, through this
    /// connection. → [`PeerReply::Guest`]
    Guest(Box<GuestOpening>),
    /// A call of a guest; the bytes that it writes follow. → [`PeerReply::GuestDone`],
    /// [`PeerReply::Piece`] with the bytes that are read, [`PeerReply::GuestStat`],
    /// [`PeerReply::GuestLeft`], [`PeerReply::GuestReplaced`] or [`PeerReply::Failed`]
    GuestCall(GuestCall),
    /// Wait until the PFS has a file. → [`PeerReply::Fetched`], [`PeerReply::NotYet`]; the asker
    /// repeats it then; or [`PeerReply::Failed`]; so for the next two
    SyncDirty(DirtyFile),
    /// Wait until the second place has what a guest wrote.
    KeepForGuest {
        /// The file.
        file: DirtyFile,
        /// The memory that it is in.
        life: u64,
        /// Its number there.
        copy: u64,
        /// The place.
        second: SecondPlace,
    },
    /// A guest continues on the PFS.
    CallInForGuest {
        /// The file.
        file: DirtyFile,
        /// As in [`PeerRequest::KeepForGuest`].
        life: u64,
        /// As in [`PeerRequest::KeepForGuest`].
        copy: u64,
    },
}

/// How a program of another node has opened a dirty file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestOpening {
    /// Which.
    pub file: DirtyFile,
    /// When it was created, as the PFS shows it there, in nanoseconds since 1970.
    pub born_ns: Option<i64>,
    /// The user.
    pub uid: u32,
    /// The open has emptied it.
    pub truncated: bool,
    /// Number of the guest: an earlier connection of the same number ends.
    pub number: u64,
    /// The number of the file, for a guest that connects again.
    pub copy: Option<u64>,
}

/// Whether a program is a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcomed {
    /// Yes; of the dirty file of this number.
    Yes(u64),
    /// The file is not dirty: the PFS has what a guest wrote.
    NotDirty,
    /// Not now, or not ever, for this reason; the file is dirty.
    No(String),
    /// What a guest wrote is not the file's any more.
    Lost(String),
}

/// A dirty file, as described to the node that keeps its second copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    /// Which.
    pub file: DirtyFile,
    /// Path below the mount's root, as bytes, without a leading slash.
    pub path: Vec<u8>,
    /// When the file was created, as the PFS shows it, in nanoseconds since 1970.
    pub born_ns: Option<i64>,
    /// The user who writes it.
    pub uid: u32,
    /// When it was opened for writing, nanoseconds since 1970.
    pub since_ns: i64,
    /// Length and mtime that the PFS shows as long as nobody else changes the file there.
    pub left: (u64, i64),
    /// What it will show instead, once a pass is over that was under way when the copy was made.
    pub leaves: Option<(u64, i64)>,
    /// A pass is under way, so that the PFS may have any part of this content or earlier ones.
    pub is_draining: bool,
    /// Greater than that of each earlier copy of this file.
    pub generation: u64,
    /// Length in bytes.
    pub size: u64,
    /// Last write, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Offset and end of the ranges that are not holes, in order.
    pub ranges: Vec<(u64, u64)>,
}

/// What becomes of a second copy, according to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Custody {
    /// It counts.
    Yours,
    /// Another node keeps a newer one.
    Others,
    /// The file is not dirty here: its node may have lost it.
    Unknown,
}

/// A page of one version of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRef {
    /// The file and its version. The path may be empty if the asker does not know it: then the
    /// owner has the page or not.
    pub file: FileRef,
    /// Unit of caching in bytes; both sides must use the same.
    pub page_bytes: u64,
    /// Number of the page.
    pub page: u32,
}

/// Why a page is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// A reader waits.
    Now,
    /// A reader will probably come to it.
    Ahead,
    /// A task will read it there; until then nobody waits for it, and it is behind all that is
    /// read.
    Plan,
    /// Small random reads keep missing it.
    Refill,
}

/// What an asker takes the other side to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The owner of the page, which may name another node.
    Owner,
    /// A node that has the page or gets it, according to its owner. It fetches nothing for this
    /// request.
    Relay,
}

/// From the owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PeerReply {
    /// To [`PeerRequest::Hello`].
    Welcome {
        /// [`PEER_PROTOCOL`].
        protocol: u32,
        /// Why not, or empty. The owner closes after a refusal.
        refusal: String,
    },
    /// The next `len` bytes of the page follow this.
    Piece {
        /// Bytes of the piece.
        len: u64,
    },
    /// The page is in the owner's tier.
    Fetched {
        /// Bytes that the PFS was read for; 0 if it was there.
        fetched_bytes: u64,
    },
    /// To [`PeerRequest::Check`]: of the pages asked about, these are not in the owner's tier.
    Missing {
        /// Their numbers.
        pages: Vec<u32>,
    },
    /// The file is another version here.
    Changed,
    /// The owner will not serve this file for now: no permission, no such mount, another page size,
    /// too recent to trust its time stamps. Read the PFS.
    Refused(String),
    /// The owner cannot serve this page at this moment, and has not tried: too much to do, or no
    /// room.
    Busy(String),
    /// The PFS failed at the owner.
    Failed {
        /// The error number.
        errno: i32,
        /// What was tried, on what.
        message: String,
    },
    /// The owner is there and has begun, but the page, or the rest of it, is not ready in time. It
    /// may be asked again.
    NotYet,
    /// The node of this number (see `forebay_policy::placement`) has the page or gets it.
    Relay(u64),
    /// To [`PeerRequest::Phases`].
    Heard {
        /// Bytes that this node has read from the PFS since its start: if they grow, its reads
        /// continue during the phases.
        fetched_bytes: u64,
        /// Time since its last read from the PFS: soon after it, what the file system's client has
        /// read ahead is still on its way. `u32::MAX` if there was none.
        since_read_ms: u32,
    },
    /// To [`PeerRequest::Dirty`]. The content follows, as raw bytes, unless the asker has it.
    Dirty {
        /// Its length.
        size: u64,
        /// Its last write, nanoseconds since 1970.
        mtime_ns: i64,
        /// It is what the asker has.
        is_known: bool,
        /// The next change will show another time.
        is_settled: bool,
    },
    /// To [`PeerRequest::Blocks`]. The blocks follow, in order, as raw bytes.
    Blocks {
        /// Bytes of each, and of the partitions that they are a part of.
        lengths: Vec<(u64, u64)>,
    },
    /// To [`PeerRequest::Shuffles`].
    Shuffles {
        /// The application lives.
        lives: bool,
        /// The shuffles among those asked about that it has removed.
        removed: Vec<u32>,
    },
    /// To [`PeerRequest::AskCustody`].
    Custody(Custody),
    /// To [`PeerRequest::Guest`].
    Guest {
        /// Number of the memory that the file is in: it is lost with that.
        life: u64,
        /// Whether it is one.
        welcomed: Welcomed,
    },
    /// Bytes that were written.
    GuestDone(u64),
    /// Nothing was done: the file goes to the PFS.
    GuestLeft,
    /// Nothing was done: another connection of the guest counts.
    GuestReplaced,
    /// Length, blocks and mtime, for a [`PeerRequest::GuestCall`] that asks for them.
    GuestStat {
        /// Length in bytes.
        size: u64,
        /// Blocks of 512 bytes.
        blocks: u64,
        /// Last write, nanoseconds since 1970.
        mtime_ns: i64,
    },
}

/// A deadline as it is sent to the owner, `left` before it passes at the asker: rounded up, so that
/// the owner, who counts from a later moment, is never done with a page before the asker is.
pub fn deadline_ms(left: Duration) -> u32 {
    left.as_nanos().div_ceil(1_000_000).min(u128::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The rule of the module, on a line of time in nanoseconds: whatever the delays, bytes
        /// that the asker believes were copied while the owner still kept the page.
        #[test]
        fn whatever_is_believed_was_copied_while_the_page_was_kept(
            allowed in 1u64..5_000_000_000,
            to_send in 0u64..1_000_000_000,
            on_the_way in 0u64..1_000_000_000,
            copies in prop::collection::vec(0u64..3_000_000_000, 1..8),
            back in 0u64..1_000_000_000,
        ) {
            // The asker takes its deadline at 0 and sends a little later.
            let sent = to_send.min(allowed - 1);
            let reported_ms = deadline_ms(Duration::from_nanos(allowed - sent));
            let received = sent + on_the_way;
            let mut now = received;
            let mut believed = Vec::new();
            for copy in &copies {
                now += copy;
                if now < allowed {
                    believed.push(now);
                }
            }
            // "Taken" is said only when all pieces were believed.
            let taken = (believed.len() == copies.len()).then_some(now + back);
            let promised = received + u64::from(reported_ms) * 1_000_000;
            let let_go = taken.map_or(promised, |taken| taken.min(promised));
            prop_assert!(believed.iter().all(|copied| *copied < let_go || *copied == let_go && taken.is_some()));
        }
    }
}
