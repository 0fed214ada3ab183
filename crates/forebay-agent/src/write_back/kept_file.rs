//! One second copy of a file of another node, as the agent keeps it.

use super::dirty_file::Stamp;
use crate::cache::held::Held;
use crate::user_limits::Share;
use forebay_store::dirty::DirtyRecord;
use forebay_wire::cluster::DirtyFile;
use forebay_wire::{DirtyState, DirtyStatus};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// The second copy of a file of another node.
#[derive(Debug)]
pub struct Kept {
    pub(super) record: DirtyRecord,
    pub(super) content: OwnedFd,
    pub(super) room: Held,
    /// Descriptors, counted in its user's share.
    pub(super) descriptors: Share,
    /// When its node was asked about it last.
    pub(super) asked: Instant,
    /// A pass of its node is under way.
    pub(super) is_draining: bool,
    /// The latest pass that its node has reported.
    pub(super) pass: u64,
    /// Since when its node has been missing.
    pub(super) missing: Option<Instant>,
    /// Since when a node that may have a newer copy has not answered.
    pub(super) unanswered: Option<Instant>,
}

impl Kept {
    /// A copy about whose node nothing has been heard since.
    pub(super) fn new(record: DirtyRecord, content: OwnedFd, (room, descriptors): (Held, Share)) -> Self {
        let asked = Instant::now();
        Kept {
            record,
            content,
            room,
            descriptors,
            asked,
            is_draining: false,
            pass: 0,
            missing: None,
            unanswered: None,
        }
    }

    /// Its name, as all nodes know it.
    pub(super) fn name(&self) -> DirtyFile {
        DirtyFile { mount: self.record.mount.clone(), ino: self.record.ino }
    }

    /// The node of the file.
    pub(super) fn node(&self) -> &str {
        self.record.second.kept_for.as_deref().unwrap_or_default()
    }

    /// Its status, for people.
    pub(super) fn status(&self, copy: u64) -> DirtyStatus {
        let age_ns = crate::mounts::wall_clock_ns() - self.record.since_ns;
        DirtyStatus {
            copy,
            mount: self.record.mount.clone(),
            path: self.record.path.clone(),
            uid: self.record.uid,
            bytes: Stamp::of(&self.content).map_or(0, |stamp| stamp.size),
            drained_bytes: 0,
            age_ms: age_ns.max(0) as u64 / 1_000_000,
            state: DirtyState::Copy,
            error: String::new(),
            rate_bytes_per_s: 0,
            safe_in_ms: None,
            why: match self.unanswered {
                None => format!("second copy of a file of node {}", self.node()),
                Some(_) => format!(
                    "second copy of a file of node {}, which is gone; another node does not say whether it has a newer one",
                    self.node()
                ),
            },
        }
    }
}
