//! Map outputs move to a local disk when others need their memory.
//!
//! A spilled output is a file without a name below `tier.spill`. Reducers get descriptors of it as
//! of one in memory, so nobody else knows the difference, and the kernel removes it with its last
//! descriptor, however the application or this process ends. A user whose files have no room gives
//! up own outputs; when the tier must shrink, all users do. The oldest shuffle goes first, since
//! most of its reducers have run, and of its outputs the largest: few writes free much. If the
//! disk takes no more, outputs stay where they are, and writers are refused.

use super::Shuffles;
use super::disk::Spill;
use crate::counters::add;
use crate::jobs::scratch_files::{FILE_BYTES, Scratch};
use crate::lock::lock;
use crate::user_limits::Kind;
use forebay_store::Class;
use forebay_store::bounded::BoundedFile;
use forebay_wire::shuffle::{is_committed, shuffle_of};
use std::cmp::Reverse;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::TryLockError;
use std::time::{Duration, Instant};

/// So often the spiller looks whether the tier has to shrink.
const LOOK: Duration = Duration::from_millis(200);

/// The same, after the disk has taken nothing.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The memory of an output that is being read is waited for, for so long.
const READ_MAX: Duration = Duration::from_secs(1);
const READ_PAUSE: Duration = Duration::from_millis(20);

/// An output that may be spilled.
struct Candidate {
    token: String,
    uid: u32,
    name: Vec<u8>,
    copy: u64,
    file: OwnedFd,
    bytes: u64,
}

impl Shuffles {
    /// Moves one output of user `uid`, or of anybody, to the disk; `false` if no memory was freed.
    pub fn spill_one(&self, uid: Option<u32>) -> bool {
        let Some(spill) = &self.spill else { return false };
        let _one = match spill.one.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Somebody frees memory already.
                drop(lock(&spill.one));
                return true;
            }
        };
        let mut smaller_than = u64::MAX;
        while let Some(candidate) = self.next_to_spill(uid, smaller_than) {
            let bytes = candidate.bytes;
            match self.spill(spill, candidate) {
                Ok(()) => return true,
                Err(e) => {
                    add(&self.counters.shuffle_spills_failed_total, 1);
                    tracing::debug!(bytes, error = %e, "cannot spill a map output");
                    if e.kind() != io::ErrorKind::StorageFull {
                        return false;
                    }
                    smaller_than = bytes;
                }
            }
        }
        false
    }

    fn spill(&self, spill: &Spill, candidate: Candidate) -> io::Result<()> {
        let Candidate { token, uid, name, copy, file, bytes } = candidate;
        let file = spill.copy(file, bytes)?;
        let mut jobs = lock(&self.files.by_token);
        let output = jobs.get_mut(&token).and_then(|job| job.files.get_mut(&name));
        // It may have been removed or replaced meanwhile, which frees its memory as well.
        let Some(output) = output.filter(|output| output.copy == copy) else { return Ok(()) };
        let in_memory = std::mem::replace(output, self.on_disk(uid, copy, file));
        drop(jobs);
        add(&self.counters.shuffle_spilled_bytes, bytes);
        let until = Instant::now() + READ_MAX;
        if !self.files.give_up(uid, in_memory) {
            // Reducers have it open. Spilling the next one at once would free no more.
            let open = self.files.remains_of(uid);
            while self.files.remains_of(uid) >= open && Instant::now() < until && !self.stop.wait(READ_PAUSE)
            {
                self.files.keep_house();
            }
        }
        Ok(())
    }

    /// A file on the disk, which takes no memory of the tier but its record.
    pub(super) fn on_disk(&self, uid: u32, copy: u64, file: BoundedFile) -> Scratch {
        Scratch {
            copy,
            file,
            room: self.cache.hold_existing(&self.shares, uid, Class::Scratch, FILE_BYTES),
            descriptors: self.shares.share_existing(Kind::Descriptors, uid, 1),
        }
    }

    fn next_to_spill(&self, uid: Option<u32>, smaller_than: u64) -> Option<Candidate> {
        let apps = lock(&self.apps);
        let jobs = lock(&self.files.by_token);
        let mut outputs = Vec::new();
        for (token, job) in jobs.iter().filter(|(token, _)| apps.contains_key(*token)) {
            for (name, output) in job.files.iter().filter(|(_, output)| !output.file.is_on_disk()) {
                if let Some(shuffle) = shuffle_of(name).filter(|_| uid.is_none_or(|uid| job.uid == uid)) {
                    let order = (shuffle, Reverse(output.file.size()));
                    outputs.push((order, (token, job.uid, name, output)));
                }
            }
        }
        outputs.sort_unstable_by_key(|(order, _)| *order);
        outputs.into_iter().find_map(|(_, (token, uid, name, output))| {
            let (file, _) = output.file.for_reading().ok()?;
            let (token, name, copy) = (token.clone(), name.clone(), output.copy);
            let is_whole = is_committed(&file).unwrap_or(false);
            // Its length after its last write.
            let bytes = output.file.size();
            let is_meant = is_whole && bytes < smaller_than;
            is_meant.then_some(Candidate { token, uid, name, copy, file, bytes })
        })
    }

    /// Spills whenever the tier takes more than it may, until the agent ends.
    pub fn spill_excess(&self) {
        let mut pause = LOOK;
        while self.spill.is_some() && !self.stop.wait(pause) {
            // Cached pages first.
            self.cache.settle_excess();
            pause = LOOK;
            while self.cache.budget.excess_bytes() > 0 && !self.stop.is_stopping() {
                if !self.spill_one(None) {
                    pause = PAUSE_AFTER_FAILURE;
                    break;
                }
            }
        }
    }
}
