//! Carries out what the rules for checkpoints want ([`super::sets`]): pins the copies of sets that
//! are held, writes markers, and notes the sets in the tier for the next agent.

use super::WriteBack;
use super::dirty_file::Dirty;
use super::followed::{Checkpoints, NAMED_MAX, NOTED_AFTER};
use super::marker;
use super::sets::{DueMarker, Mark, Member, Opened, Set, Withdrawn};
use crate::cache::entry::Entry;
use crate::counters::add;
use crate::lock::lock;
use crate::mounts::wall_clock_ns;
use crate::user_limits::Kind;
use forebay_pfs::read::reopen_as;
use forebay_store::dirty::{DirtyRecord, Words};
use forebay_wire::{CheckpointRule, CheckpointSeries, CheckpointSet, PATHS_MAX, Refusal};
use rustix::fs::OFlags;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long to wait for one question.
const ANSWER: Duration = Duration::from_secs(1);

/// A marker that could not be written is tried again after this time.
const MARKER_PAUSE: Duration = Duration::from_secs(1);

impl WriteBack {
    /// Locks the sets, to change them. A holder of this lock does not take that of the state.
    fn change_sets(&self) -> MutexGuard<'_, Checkpoints> {
        let mut checkpoints = lock(&self.checkpoints);
        checkpoints.is_changed = true;
        checkpoints
    }

    fn gap(&self) -> (i64, i64) {
        (wall_clock_ns(), self.live.get(|config| config.checkpoint_gap.as_nanos() as i64))
    }

    /// Takes up what an earlier agent has noted. It may have died before it noted a pin: what no
    /// set holds is not pinned any more.
    pub fn adopt_checkpoints(&self) -> io::Result<()> {
        let noted = self.cache.tier.load_checkpoints()?;
        let sets = match serde_json::from_slice(&noted) {
            Ok(sets) => sets,
            Err(e) if !noted.is_empty() => {
                tracing::warn!(error = %e, "what an earlier agent has noted of checkpoints cannot be read");
                return Ok(());
            }
            Err(_) => Default::default(),
        };
        let pinned: BTreeSet<u64> = self.cache.held().iter().map(|entry| entry.copy()).collect();
        let released = {
            let mut checkpoints = self.change_sets();
            checkpoints.sets = sets;
            let held: BTreeSet<u64> = checkpoints.sets.held_copies().collect();
            pinned.intersection(&held).for_each(|copy| checkpoints.sets.pinned(*copy));
            let mut released = checkpoints.sets.adopt();
            released.extend(pinned.difference(&held));
            released
        };
        self.unpin(&released);
        Ok(())
    }

    /// Sets a rule of a user, who has these groups.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn set_checkpoint_rule(&self, user: (u32, &[u32]), rule: CheckpointRule) -> Result<(), Refusal> {
        let released = {
            let mut checkpoints = self.change_sets();
            checkpoints.is_urgent = true;
            checkpoints.sets.set_rule(user, rule).map_err(Refusal::Invalid)?
        };
        self.unpin(&released);
        Ok(())
    }

    /// Waits until the markers of these rules are written. Returns whether they are.
    pub fn wait_for_markers(&self, uid: u32, selectors: &[String]) -> bool {
        let limit = Instant::now() + ANSWER;
        let is_awaited = || {
            let checkpoints = lock(&self.checkpoints);
            let is_meant = |of: &(u32, String)| of.0 == uid && selectors.contains(&of.1);
            checkpoints.sets.awaits_markers(uid, selectors)
                || checkpoints.being_marked.as_ref().is_some_and(is_meant)
        };
        while is_awaited() {
            if Instant::now() >= limit || self.stop.wait(Duration::from_millis(20)) {
                return false;
            }
        }
        true
    }

    /// Notes that a program has opened a dirty file for writing. Markers of earlier sets that had
    /// it go before the program writes.
    pub(super) fn note_opened(&self, uid: u32, job: Option<&str>, copy: u64) {
        if lock(&self.checkpoints).sets.rules.is_empty() {
            return;
        }
        let known = self.state().files.get(&copy).map(|dirty| (dirty.record.clone(), dirty.pfs.clone()));
        let Some((record, pfs)) = known else { return };
        let member = member_of(record, pfs.as_deref());
        let name = pfs.and_then(|pfs| reopen_as(pfs.as_fd(), OFlags::PATH).ok());
        let withdrawn = {
            let mut checkpoints = self.change_sets();
            let withdrawn = checkpoints.sets.opened(Opened { uid, job, copy, member }, self.gap());
            if let Some(name) =
                name.filter(|_| checkpoints.named.len() < NAMED_MAX && checkpoints.sets.follows(copy))
            {
                checkpoints.named.insert(copy, name);
            }
            withdrawn
        };
        self.remove_markers(withdrawn);
    }

    fn remove_markers(&self, withdrawn: Vec<Withdrawn>) {
        if withdrawn.is_empty() {
            return;
        }
        // One that is being written is there after that.
        let _marking = lock(&self.marking);
        for (label, path, owner) in withdrawn {
            let mount = self.mounts.iter().find(|mount| mount.label() == label);
            if let Some(Err(e)) = mount.map(|mount| marker::remove(mount.root(), &path, owner)) {
                tracing::warn!(path = ?path, error = %e, "a marker cannot be removed, and a file that it names is written again");
            }
        }
    }

    /// Notes that a file of user `uid` that was to be written back goes to the PFS.
    pub(super) fn note_past(&self, user: (u32, Option<&str>), file: (&str, u64, &[u8])) {
        if !lock(&self.checkpoints).sets.rules.is_empty() {
            let withdrawn = self.change_sets().sets.went_past(user, file, self.gap());
            self.remove_markers(withdrawn);
        }
    }

    /// Notes that nobody has a file open for writing any more.
    pub(super) fn note_closed(&self, copy: u64, dirty: &Dirty) {
        let is_well = dirty.words.as_ref().map_or(0, Words::closes) >= dirty.joins.max(1);
        self.change_sets().sets.closed(copy, is_well, wall_clock_ns());
    }

    /// Notes that a program writes a file again.
    pub(super) fn note_reopened(&self, copy: u64) {
        self.change_sets().sets.reopened(copy, wall_clock_ns());
    }

    /// Notes that the PFS has a file.
    pub(super) fn note_drained(&self, copy: u64, version: (u64, i64)) {
        self.change_sets().sets.drained(copy, version);
    }

    /// Notes that the writers of a file continue on the PFS.
    pub(super) fn note_left(&self, copy: u64, path: &[u8]) {
        self.change_sets().sets.left(copy, path);
    }

    /// Notes that a file is gone before the PFS had it.
    pub(super) fn note_removed(&self, copy: u64) {
        self.change_sets().sets.removed(copy);
    }

    /// Notes that a file has become a cached copy, which is pinned if its set is held.
    pub(super) fn note_kept(&self, copy: u64, uid: u32, entry: &Arc<Entry>) {
        let is_held = {
            let mut checkpoints = self.change_sets();
            if let Some(name) = checkpoints.named.remove(&copy) {
                checkpoints.named.insert(entry.copy(), name);
            }
            checkpoints.sets.kept(copy, entry.copy())
        };
        if !is_held || entry.pinned.load(Ordering::Relaxed) {
            return;
        }
        let size = entry.geometry().size;
        let share = loop {
            match self.shares.share(Kind::Held, uid, size) {
                Ok(share) => break share,
                Err(_) if self.give_way(uid) => {}
                Err(refusal) => {
                    tracing::info!(uid, %refusal, "a file of a checkpoint is cached, but may be evicted");
                    return;
                }
            }
        };
        match self.cache.hold_entry(entry, share) {
            Ok(()) => self.change_sets().sets.pinned(entry.copy()),
            Err(e) => tracing::info!(uid, error = ?e, "a file of a checkpoint is cached, but may be evicted"),
        }
    }

    /// Has the oldest set of user `uid` give way; returns `false` if there is none.
    pub(super) fn give_way(&self, uid: u32) -> bool {
        let released = self.change_sets().sets.give_way(uid);
        if let Some(released) = &released {
            self.unpin(released);
            add(&self.counters.checkpoints_released_total, 1);
        }
        released.is_some()
    }

    fn unpin(&self, copies: &[u64]) {
        for entry in copies.iter().filter_map(|copy| self.cache.by_copy(*copy)) {
            // It stays in the cache until others need its room.
            if let Err(e) = self.cache.release_entry(&entry) {
                tracing::warn!(copy = entry.copy(), error = ?e, "a released checkpoint stays pinned");
            }
        }
    }

    /// Ends sets, writes markers, and notes what has changed.
    pub(super) fn settle_checkpoints(&self) {
        let released = lock(&self.checkpoints).sets.settle(self.gap());
        if let Some(released) = &released {
            let mut checkpoints = self.change_sets();
            checkpoints.is_urgent = true;
            drop(checkpoints);
            self.unpin(released);
        }
        let (due, gone) = {
            let mut checkpoints = lock(&self.checkpoints);
            let is_time = checkpoints.not_before.is_none_or(|not_before| Instant::now() >= not_before);
            let is_due = is_time && !checkpoints.sets.due_markers().is_empty();
            let gone = checkpoints.follow_names(is_due || released.is_some());
            (if is_due { checkpoints.sets.due_markers() } else { Vec::new() }, gone)
        };
        self.unpin(&gone);
        for due in due {
            let _marking = lock(&self.marking);
            // A writer of one of its files waits for the marker from now on, and removes it.
            let mut checkpoints = lock(&self.checkpoints);
            if !checkpoints.sets.begins_marker(due.set, &due.directory.join(&due.name)) {
                continue;
            }
            checkpoints.being_marked = Some((due.owner.0, due.selector.clone()));
            drop(checkpoints);
            let result = self.write_marker(&due).map_err(|e| e.to_string());
            if let Err(why) = &result {
                let path = due.directory.join(&due.name);
                tracing::warn!(path = ?path, "a marker cannot be written: {why}");
                lock(&self.checkpoints).not_before = Some(Instant::now() + MARKER_PAUSE);
            } else {
                add(&self.counters.markers_written_total, 1);
            }
            let mut checkpoints = self.change_sets();
            (checkpoints.is_urgent, checkpoints.being_marked) = (true, None);
            if let Err(why) = result {
                checkpoints.sets.marked(due.set, Err(why));
            }
        }
        self.note_sets();
    }

    /// Notes in the tier what has changed.
    fn note_sets(&self) {
        let mut checkpoints = lock(&self.checkpoints);
        let is_time = checkpoints.noted_at.is_none_or(|noted_at| noted_at.elapsed() >= NOTED_AFTER);
        if checkpoints.is_changed && (is_time || checkpoints.is_urgent) {
            (checkpoints.is_changed, checkpoints.is_urgent) = (false, false);
            checkpoints.noted_at = Some(Instant::now());
            let noted = serde_json::to_vec(&checkpoints.sets).map_err(io::Error::other);
            drop(checkpoints);
            if let Err(e) = noted.and_then(|noted| self.cache.tier.store_checkpoints(&noted)) {
                tracing::warn!(error = %e, "sets of checkpoints cannot be noted for the next agent");
            }
        }
    }

    fn write_marker(&self, due: &DueMarker) -> io::Result<Vec<u8>> {
        let mount = self.mounts.iter().find(|mount| mount.label() == due.mount);
        let mount = mount.ok_or_else(|| io::Error::other("its mount is not served any more"))?;
        if due.files.iter().any(|file| file.mount != due.mount) {
            return Err(io::Error::other("the files of the set are on several mounts"));
        }
        let path = due.directory.join(&due.name);
        marker::write(mount.root(), &path, due.owner, &marker::text(due))?;
        Ok(path.as_os_str().as_bytes().to_vec())
    }

    /// The rules that user `uid` may see.
    pub fn list_checkpoints(&self, uid: u32) -> Vec<CheckpointSeries> {
        let dirty: BTreeSet<u64> = {
            let state = self.state();
            state.files.iter().filter(|(_, file)| file.is_dirty()).map(|(copy, _)| *copy).collect()
        };
        let is_in_memory = |copy: u64| {
            dirty.contains(&copy)
                || self.cache.by_copy(copy).is_some_and(|entry| {
                    let resident = entry.resident_bytes.load(Ordering::Relaxed);
                    !entry.stale.load(Ordering::Relaxed) && resident >= entry.geometry().size
                })
        };
        let checkpoints = lock(&self.checkpoints);
        let rules = checkpoints.sets.rules.iter();
        let seen = rules.filter(|rule| rule.uid == uid || self.shares.is_operator(uid));
        seen.map(|rule| CheckpointSeries {
            selector: rule.selector.clone(),
            uid: rule.uid,
            keep: rule.keep,
            marker: rule.marker.clone(),
            sets: rule.sets.iter().map(|set| set_status(set, rule.keep > 0, is_in_memory)).collect(),
        })
        .collect()
    }
}

fn set_status(set: &Set, is_held: bool, is_in_memory: impl Fn(u64) -> bool) -> CheckpointSet {
    let marker = match (&set.mark, &set.past_tier) {
        (Mark::Written(path), _) => String::from_utf8_lossy(path).into_owned(),
        (Mark::Failed(why, _), _) => why.clone(),
        (Mark::None, Some(why)) => why.clone(),
        (Mark::None, None) => String::new(),
    };
    CheckpointSet {
        number: set.number,
        began_ns: set.began_ns,
        files: set.files.len() as u64,
        bytes: set.files.values().map(|file| file.bytes).sum(),
        in_memory: set.files.iter().filter(|(copy, file)| !file.is_changed && is_in_memory(**copy)).count()
            as u64,
        on_pfs: set.files.values().filter(|file| file.is_on_pfs && !file.is_changed).count() as u64,
        state: set.state(),
        held: is_held && !set.is_released,
        directory: set.directory().into_os_string().into_encoded_bytes(),
        paths: set.files.values().take(PATHS_MAX).map(|file| file.path.clone()).collect(),
        marker,
    }
}

fn member_of(record: DirtyRecord, pfs: Option<&OwnedFd>) -> Member {
    let stat = pfs.and_then(|pfs| rustix::fs::fstat(pfs).ok());
    Member {
        mount: record.mount,
        ino: record.ino,
        gid: stat.map_or(record.uid, |stat| stat.st_gid),
        path: record.path,
        bytes: 0,
        mtime_ns: 0,
        closed: super::sets::Closed::Open,
        is_on_pfs: false,
        is_changed: false,
        is_pinned: false,
    }
}
