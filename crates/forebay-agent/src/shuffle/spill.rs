//! Map outputs move to a local disk when others need their memory.
//!
//! A spilled output is a file without a name below `tier.spill`. Reducers get descriptors of it as
//! of one in memory, and notice no difference, and the kernel removes it with its last descriptor,
//! however the application or this process ends. If the files of a user have no room, outputs of
//! that user move; when the tier must shrink, those of any user do. The oldest shuffle goes first,
//! since most of its reducers have run, and of its outputs the largest: few writes free much. If
//! the disk takes no more, or a user has a full share of it, outputs stay where they are, and
//! writers are refused.

use super::Shuffles;
use super::disk::Spill;
use crate::counters::add;
use crate::jobs::scratch_files::{FILE_BYTES, Scratch};
use crate::lock::lock;
use crate::user_limits::{Kind, Share};
use forebay_store::Class;
use forebay_store::bounded::BoundedFile;
use forebay_wire::shuffle::{is_committed, shuffle_of};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::TryLockError;
use std::time::{Duration, Instant};

/// How often the spiller looks whether the tier has to shrink.
const LOOK: Duration = Duration::from_millis(200);

/// The same, after the disk has taken nothing.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// How long the memory of an output that is being read is waited for.
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
        let (mut smaller_than, mut with_share) = (u64::MAX, BTreeSet::new());
        while let Some(candidate) = self.next_to_spill(uid, smaller_than, &with_share) {
            let (owner, bytes) = (candidate.uid, candidate.bytes);
            match self.spill(spill, candidate) {
                Ok(()) => return true,
                Err(e) => {
                    add(&self.counters.shuffle_spills_failed_total, 1);
                    tracing::debug!(bytes, error = %e, "cannot spill a map output");
                    match e.kind() {
                        io::ErrorKind::StorageFull => smaller_than = bytes,
                        io::ErrorKind::QuotaExceeded => drop(with_share.insert(owner)),
                        _ => return false,
                    }
                }
            }
        }
        false
    }

    fn spill(&self, spill: &Spill, candidate: Candidate) -> io::Result<()> {
        let Candidate { token, uid, name, copy, file, bytes } = candidate;
        let share = self.share_of_disk(uid, bytes)?;
        let file = spill.copy(file, bytes)?;
        let mut jobs = lock(&self.files.by_token);
        let output = jobs.get_mut(&token).and_then(|job| job.files.get_mut(&name));
        // It may have been removed or replaced meanwhile, which frees its memory as well.
        let Some(output) = output.filter(|output| output.copy == copy) else { return Ok(()) };
        let in_memory = std::mem::replace(output, self.on_disk(uid, copy, file, share));
        drop(jobs);
        add(&self.counters.shuffle_spilled_bytes, bytes);
        let until = Instant::now() + READ_MAX;
        if !self.files.give_up(uid, in_memory) {
            // Reducers have it open. Spilling the next one immediately would free no more.
            let open = self.files.remains_of(uid);
            while self.files.remains_of(uid) >= open && Instant::now() < until && !self.stop.wait(READ_PAUSE)
            {
                self.files.keep_house();
            }
        }
        Ok(())
    }

    /// Takes `bytes` of what user `uid` may have on the disk.
    ///
    /// # Errors
    /// `QuotaExceeded`: the user has as much as one may have.
    pub(super) fn share_of_disk(&self, uid: u32, bytes: u64) -> io::Result<Share> {
        let refused = |refusal| io::Error::new(io::ErrorKind::QuotaExceeded, format!("{refusal}"));
        self.shares.share(Kind::Spilled, uid, bytes).map_err(refused)
    }

    /// A file on the disk, which takes no memory of the tier but its record.
    pub(super) fn on_disk(&self, uid: u32, copy: u64, file: BoundedFile, share: Share) -> Scratch {
        Scratch {
            copy,
            file,
            room: self.cache.hold_existing(&self.shares, uid, Class::Scratch, FILE_BYTES),
            descriptors: self.shares.share_existing(Kind::Descriptors, uid, 1),
            on_disk: Some(share),
        }
    }

    /// The next output to spill, of user `uid` or of anybody but `except`.
    fn next_to_spill(
        &self,
        uid: Option<u32>,
        smaller_than: u64,
        except: &BTreeSet<u32>,
    ) -> Option<Candidate> {
        let apps = lock(&self.apps);
        let jobs = lock(&self.files.by_token);
        let mut outputs = Vec::new();
        for (token, job) in
            jobs.iter().filter(|(token, job)| apps.contains_key(*token) && !except.contains(&job.uid))
        {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::cluster::Cluster;
    use crate::config::{ClusterConfig, Config, Live};
    use crate::jobs::scratch_files::Jobs;
    use crate::stop::{Stop, Wake};
    use crate::user_limits::Shares;
    use forebay_wire::link::Security;
    use forebay_wire::shuffle::{Block, index, output_name};
    use std::fs::File;
    use std::io::{Read, Write};
    use std::path::Path;
    use std::sync::Arc;

    const UID: u32 = 61_001;
    const OTHER: u32 = 61_002;
    const CAPACITY_BYTES: u64 = 8 << 20;

    /// Applications `a` of one user and `b` of another, and a disk with room for `spill_bytes`.
    fn shuffles_in(dir: &Path, spill_bytes: u64) -> Shuffles {
        let cache = Cache::for_tests(dir, CAPACITY_BYTES);
        let live = Arc::new(Live::new(Config { spill_fill: 1.0, ..Config::default() }));
        let shares = Arc::new(Shares::new(cache.budget.clone(), live.clone(), spill_bytes));
        let stop = Stop::new([Arc::new(Wake::new().unwrap()), Arc::new(Wake::new().unwrap())]);
        let shuffles = Shuffles::new(
            Arc::new(Jobs::default()),
            (Arc::new(cache), shares, Arc::default()),
            (Arc::new(Cluster::new(ClusterConfig::default())), Security::Loopback),
            Arc::new(stop),
            Some(Spill::open(dir, live).unwrap()),
        );
        shuffles.begin(UID, "a".into()).unwrap();
        shuffles.begin(OTHER, "b".into()).unwrap();
        shuffles
    }

    /// An output with one partition of these bytes; without its index if it is not committed.
    fn output(
        shuffles: &Shuffles,
        (token, uid): (&str, u32),
        (shuffle, map): (u32, u64),
        bytes: &[u8],
        commits: bool,
    ) {
        let index = if commits { index(&[bytes.len() as u64]) } else { Vec::new() };
        let whole = (bytes.len() + index.len()) as u64;
        let scratch = shuffles.room_for(uid, whole, Instant::now()).unwrap();
        let mut file = File::from(scratch.file.for_writing().unwrap());
        file.write_all(bytes).unwrap();
        file.write_all(&index).unwrap();
        let mut jobs = lock(&shuffles.files.by_token);
        jobs.get_mut(token).unwrap().files.insert(output_name(shuffle, map), scratch);
    }

    /// What is on the disk, as `token shuffle map`.
    fn spilled(shuffles: &Shuffles) -> Vec<String> {
        let jobs = lock(&shuffles.files.by_token);
        let all = jobs.iter().flat_map(|(token, job)| job.files.iter().map(move |file| (token, file)));
        let on_disk = all.filter(|(_, (_, file))| file.file.is_on_disk());
        on_disk.map(|(token, (name, _))| format!("{token} {}", String::from_utf8_lossy(name))).collect()
    }

    fn held_bytes(shuffles: &Shuffles) -> u64 {
        shuffles.cache.budget.used_bytes()
    }

    #[test]
    fn the_oldest_shuffle_goes_first_and_of_it_the_largest() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let shuffles = shuffles_in(dir.path(), 1 << 30);
        for (shuffle, map, bytes) in [(2, 1, 300_000), (1, 1, 100_000), (1, 2, 200_000)] {
            output(&shuffles, ("a", UID), (shuffle, map), &vec![map as u8; bytes], true);
        }
        let mut seen = Vec::new();
        while shuffles.spill_one(Some(UID)) {
            seen.extend(
                spilled(&shuffles).into_iter().filter(|name| !seen.contains(name)).collect::<Vec<_>>(),
            );
        }
        assert_eq!(seen, ["a shuffle 1 2", "a shuffle 1 1", "a shuffle 2 1"]);
        assert_eq!(
            shuffles.counters.shuffle_spills_failed_total.load(std::sync::atomic::Ordering::Relaxed),
            0
        );
    }

    #[test]
    fn a_spilled_output_is_read_as_before_and_takes_no_memory() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let shuffles = shuffles_in(dir.path(), 1 << 30);
        let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        output(&shuffles, ("a", UID), (0, 7), &bytes, true);
        let in_memory = held_bytes(&shuffles);
        assert!(shuffles.spill_one(Some(UID)));
        assert!(held_bytes(&shuffles) + 900_000 < in_memory);
        let block = Block { shuffle: 0, map: 7, first: 0, end: 1, from: 0, most: u64::MAX };
        let (file, range, _) = shuffles.blocks_here(UID, "a", &[block]).unwrap().remove(0);
        let mut read = Vec::new();
        File::from(file).take(range.end).read_to_end(&mut read).unwrap();
        assert_eq!(read, bytes);
    }

    #[test]
    fn what_is_still_written_and_what_others_have_stays() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let shuffles = shuffles_in(dir.path(), 1 << 30);
        output(&shuffles, ("a", UID), (0, 1), &[1; 100_000], false);
        output(&shuffles, ("b", OTHER), (0, 1), &[1; 100_000], true);
        assert!(!shuffles.spill_one(Some(UID)), "one that is not committed");
        assert!(spilled(&shuffles).is_empty());
        assert!(shuffles.spill_one(None), "the tier shrinks");
        assert_eq!(spilled(&shuffles), ["b shuffle 0 1"]);
    }

    #[test]
    fn a_user_has_half_of_the_disk_and_others_go_on() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let shuffles = shuffles_in(dir.path(), 400_000);
        for map in 0..3 {
            output(&shuffles, ("a", UID), (0, map), &[1; 120_000], true);
        }
        output(&shuffles, ("b", OTHER), (5, 0), &[1; 90_000], true);
        assert!(shuffles.spill_one(Some(UID)));
        assert!(!shuffles.spill_one(Some(UID)), "a second one would be more than half");
        assert!(shuffles.spill_one(None), "the next one is that of another user");
        assert_eq!(spilled(&shuffles).len(), 2);
        assert!(!shuffles.spill_one(None));
        shuffles.remove("a", 0);
        output(&shuffles, ("a", UID), (1, 0), &[1; 120_000], true);
        assert!(shuffles.spill_one(Some(UID)), "what is removed is returned");
    }

    #[test]
    fn a_removed_output_is_not_put_back_by_a_spill_that_had_begun() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let shuffles = shuffles_in(dir.path(), 1 << 30);
        output(&shuffles, ("a", UID), (0, 1), &[1; 100_000], true);
        let candidate = shuffles.next_to_spill(None, u64::MAX, &BTreeSet::new()).unwrap();
        shuffles.remove("a", 0);
        shuffles.spill(shuffles.spill.as_ref().unwrap(), candidate).unwrap();
        assert!(lock(&shuffles.files.by_token)["a"].files.is_empty());
        assert_eq!(shuffles.counters.shuffle_spilled_bytes.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}
