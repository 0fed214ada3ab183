//! The sets of checkpoints of a node ([`super::sets`]), with the files whose names are followed.

use super::sets::Sets;
use crate::mounts::opened_path::opened_path;
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The sets of a node, and what is to be done for them.
#[derive(Debug, Default)]
pub struct Checkpoints {
    /// See [`Sets`].
    pub sets: Sets,
    /// It has changed since it was noted in the tier.
    pub(super) is_changed: bool,
    /// It has changed in a way that the next agent has to know.
    pub(super) is_urgent: bool,
    pub(super) noted_at: Option<Instant>,
    /// No marker is tried before this.
    pub(super) not_before: Option<Instant>,
    /// User and selector of the rule whose marker is being written.
    pub(super) being_marked: Option<(u32, String)>,
    /// Files whose names may change, by their copies: programs write under names that are not
    /// final, of files or of directories. Descriptors that are good for nothing else.
    pub(super) named: BTreeMap<u64, OwnedFd>,
    /// When their names were looked at last.
    looked_at: Option<Instant>,
}

/// Most of these descriptors; the names of further files are those at their open.
pub(super) const NAMED_MAX: usize = 4096;

/// Files come and go in a burst: the next agent need not know each immediately, since it takes no
/// set for whole whose end it does not know.
pub(super) const NOTED_AFTER: Duration = Duration::from_secs(1);

/// How often the names are looked at.
const LOOK_AT_NAMES: Duration = Duration::from_secs(1);

impl Checkpoints {
    /// Looks what the files are called by now, `at_once` or if it is time, and forgets those whose
    /// names no longer matter. The kernel knows what this node has renamed and removed. Returns
    /// copies that are released, because their files are gone.
    pub(super) fn follow_names(&mut self, at_once: bool) -> Vec<u64> {
        let mut released = Vec::new();
        let is_time = self.looked_at.is_none_or(|looked_at| looked_at.elapsed() >= LOOK_AT_NAMES);
        if self.named.is_empty() || !at_once && !is_time {
            return released;
        }
        self.looked_at = Some(Instant::now());
        for (copy, name) in &self.named {
            let path = opened_path(name.as_fd());
            if path.ends_with(b" (deleted)") {
                if has_no_name(name.as_fd()) && self.sets.removed(*copy) {
                    released.push(*copy);
                }
            } else if path.first() == Some(&b'/') {
                self.sets.renamed(*copy, &path);
            }
        }
        self.is_changed = true;
        let sets = &self.sets;
        self.named.retain(|copy, _| sets.follows(*copy));
        released
    }
}

/// Whether the file was removed, as far as the kernel knows without asking the PFS.
fn has_no_name(file: BorrowedFd<'_>) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, c"", flags, StatxFlags::NLINK).is_ok_and(|stat| stat.stx_nlink == 0)
}
