//! A pass: all of a dirty file goes to the PFS.
//!
//! In the order of offsets, in large parts that begin and end at multiples of their size, so that
//! programs without Forebay see a growing file without holes that the writer did not make. The
//! drain of the node machine ([`forebay_policy::drain`]) decides which pass begins, and when it
//! writes each part. `fsync` of the PFS comes before anything is believed; then the mtime, and last
//! the mark of a whole file ([`MARK`]).

use super::dirty_file::{Dirty, Phase, Stamp};
use super::mark::MARK;
use super::reopen::reopen;
use super::{State, WRITE_MAX, WriteBack};
use crate::counters::{Counters, add};
use crate::lock::lock;
use crate::traffic::account::{Account, Way};
use forebay_pfs::layout::{Layout, probe_servers};
use forebay_pfs::lease::{Opened, Writers, writers};
use forebay_pfs::read::reopen_as;
use forebay_pfs::{FileFacts, Revalidate};
use forebay_policy::drain::{
    Event, File, Forced, GENTLE_BYTES, Owner, Server, chunks, gentle_bytes, pause_ns,
};
use forebay_policy::machine::Nanos;
use forebay_store::BLOCK_BYTES;
use forebay_store::dirty::{DirtyRecord, Keeper, Words, only_mtime};
use forebay_store::full_io::read_exact_at;
use forebay_store::map::Map;
use forebay_wire::cluster::{DirtyFile, SHARED};
use rustix::fs::{OFlags, SeekFrom, XattrFlags, fdatasync, fsetxattr, fsync, ftruncate, futimens, seek};
use rustix::io::Errno;
use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Bytes written at a time: a multiple of the stripes of most file systems.
const PART_BYTES: u64 = 4 << 20;

/// Bytes compared at a time with what the PFS has.
const COMPARED_BYTES: usize = 1 << 20;

/// How often the machine hears what has become of dirty files, if nobody is called.
const LOOK: Duration = Duration::from_millis(200);

/// What a pass works with.
struct Pass {
    copy: u64,
    /// Greater than those of earlier passes over the file.
    number: u64,
    mount: usize,
    /// `None`: it is still to be opened again.
    pfs: Option<Arc<OwnedFd>>,
    content: Arc<OwnedFd>,
    record: DirtyRecord,
    stamp: Stamp,
    /// A program could write to the content when the pass began.
    had_writers: bool,
    /// How often it had been given out by then.
    joins: u64,
    is_called_in: bool,
    /// Where it is, if the PFS reports that.
    layout: OnceCell<Layout>,
    /// The server of the last part.
    server: Cell<Option<Server>>,
    /// Account of the job that has written it.
    account: Arc<Account>,
}

/// Why a pass has ended early.
enum Broken {
    /// The agent ends.
    Stopping,
    /// The file has no name any more, and nobody writes it.
    Unlinked,
    /// Somebody else has changed it on the PFS.
    Conflict,
    /// The node of this name has taken the file over.
    Fenced(String),
    /// The coordinator does not say whether another node has taken it over.
    Unknown,
    /// The PFS or the tier has failed. The text is `, on server NAME`, or empty if no server is
    /// known.
    Io(io::Error, String),
}

impl From<io::Error> for Broken {
    fn from(e: io::Error) -> Self {
        Broken::Io(e, String::new())
    }
}

impl From<Errno> for Broken {
    fn from(e: Errno) -> Self {
        Broken::Io(e.into(), String::new())
    }
}

impl WriteBack {
    /// Makes the passes of files of one mount, until the agent ends.
    pub fn drain(&self, mount: usize) {
        spare_reserved_blocks();
        while !self.stop.is_stopping() {
            let Some(mut pass) = self.take_pass(mount) else { continue };
            if pass.pfs.is_none() && !self.open_again(&mut pass) {
                continue;
            }
            let written = self.make_pass(&pass);
            let stamping = lock(&self.stamping[mount]);
            let ended = written.and_then(|set_mtime| self.finish(&pass, set_mtime));
            let left = self.end_pass(&pass, ended);
            drop(stamping);
            if let Some(left) = left {
                let over = Some(left);
                self.notify_second(pass.copy, |link, file, _, until| {
                    link.note_pass(file, pass.number, over, until)
                });
            }
        }
    }

    /// Waits for a file to write, up to a moment.
    fn take_pass(&self, mount: usize) -> Option<Pass> {
        let mut state = self.state();
        self.report_changes(&mut state);
        let Some(copy) = self.scheduler.begun_pass(mount) else {
            drop(self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner));
            return None;
        };
        let begun = begin(&mut state, copy, self.now());
        if begun.is_none() {
            self.pass_is_over(&mut state, copy, None);
        }
        begun
    }

    /// Reports to the machine what has changed of dirty files since the last call.
    fn report_changes(&self, state: &mut State) {
        let now = self.now();
        let mut dirty_bytes: BTreeMap<Owner, u64> = BTreeMap::new();
        let State { files, reported, rooms, .. } = state;
        for (copy, dirty) in files.iter().filter(|(_, file)| file.is_dirty()) {
            *dirty_bytes.entry(dirty.record.uid).or_default() += dirty.room.bytes();
            if dirty.phase == Phase::Parked {
                continue;
            }
            let facts = facts(dirty, now);
            if reported.insert(*copy, facts) != Some(facts) {
                self.scheduler.notify_drain(Event::Dirty { file: *copy, facts });
            }
        }
        reported.retain(|copy, _| {
            let is_reported = |file: &Dirty| file.is_dirty() && file.phase != Phase::Parked;
            let is_reported = files.get(copy).is_some_and(is_reported);
            if !is_reported {
                self.scheduler.notify_drain(Event::Clean { file: *copy });
            }
            is_reported
        });
        rooms.retain(|owner, _| dirty_bytes.contains_key(owner));
        let budget = &self.cache.budget;
        for (owner, bytes) in dirty_bytes {
            let of_all = self.cache.room_bytes();
            let share = (budget.most_bytes() / 2).saturating_sub(bytes);
            let free_bytes = if self.shares.is_operator(owner) { of_all } else { of_all.min(share) };
            if rooms.insert(owner, free_bytes) != Some(free_bytes) {
                self.scheduler.notify_drain(Event::Room { owner, free_bytes });
            }
        }
    }

    /// Notes that a pass is over, or was not made. The file is not ready until the machine hears
    /// that it is.
    fn pass_is_over(&self, state: &mut State, copy: u64, full: Option<Server>) {
        self.scheduler.notify_drain(Event::Ended { file: copy, full });
        if let Some(reported) = state.reported.get_mut(&copy) {
            reported.is_ready = false;
        }
        self.changed.notify_all();
    }

    /// Opens the file of an earlier agent again.
    fn open_again(&self, pass: &mut Pass) -> bool {
        let opened = reopen(&self.mounts[pass.mount], &pass.record);
        let mut state = self.state();
        let Some(dirty) = state.files.get_mut(&pass.copy) else {
            self.pass_is_over(&mut state, pass.copy, None);
            return false;
        };
        match opened {
            Ok((fd, facts)) => {
                self.count(dirty, false);
                dirty.dev = facts.dev;
                self.count(dirty, true);
                pass.pfs = Some(Arc::new(fd));
                dirty.pfs.clone_from(&pass.pfs);
                true
            }
            Err(e) => {
                dirty.is_draining = false;
                self.park(dirty, e.raw_os_error().unwrap_or(libc::ENOENT), e.to_string());
                self.pass_is_over(&mut state, pass.copy, None);
                false
            }
        }
    }

    /// Whether nobody can have written to the content since the pass began.
    fn is_final(&self, pass: &Pass) -> bool {
        let state = self.state();
        let Some(dirty) = state.files.get(&pass.copy) else { return false };
        let is_same = Stamp::of(&dirty.content).ok() == Some(pass.stamp);
        let is_closed = !pass.had_writers
            && dirty.joins == pass.joins
            && writers(dirty.content.as_fd(), Opened::Here) == Writers::None;
        is_same && (is_closed || pass.is_called_in)
    }

    /// Writes the content. Returns the mtime that a program has set, if one has.
    fn make_pass(&self, pass: &Pass) -> Result<Option<i64>, Broken> {
        let is_at_node = matches!(pass.record.second.kept_by, Some(Keeper::Node(_)));
        let (mut is_from_gone, mut was_taken) = (false, false);
        let of_earlier_agent =
            self.state().files.get(&pass.copy).is_some_and(|file| file.copying.is_unconfirmed);
        if is_at_node || pass.record.second.is_disputed || of_earlier_agent {
            let file = file_of(&pass.record);
            let claim = self.claims.claim(&file);
            match claim.holder.as_ref().map(Option::as_deref) {
                Ok(None | Some(SHARED)) => {
                    was_taken = of_earlier_agent && claim.was_taken();
                    is_from_gone = !claim.before.is_empty() && !claim.was_taken();
                }
                Ok(Some(node)) => return Err(Broken::Fenced(node.to_owned())),
                Err(_) => return Err(Broken::Unknown),
            }
        }
        // If this node fails from now on, the other one cannot conclude from what the PFS has.
        self.notify_second(pass.copy, |link, file, _, until| link.note_pass(file, pass.number, None, until));
        let stamping = lock(&self.stamping[pass.mount]);
        let pfs = pass.pfs.as_ref().ok_or(Broken::Stopping)?.as_fd();
        let content = &pass.content;
        if self.is_foreign(pass) {
            return Err(Broken::Conflict);
        }
        let facts = FileFacts::of(pfs, Revalidate::Force)?;
        if facts.nlink == 0 {
            return Err(Broken::Unlinked);
        }
        // It may have been stamped since the pass began.
        let known = self.state().files.get(&pass.copy).map(|file| {
            (
                file.record.left,
                file.is_all_drained(),
                file.time_set(facts.version.mtime_ns, Some(facts.version.ctime_ns)),
            )
        });
        let ((size, mtime_ns), is_drained, time_set) = known.unwrap_or((pass.record.left, false, None));
        let is_untouched = facts.version.mtime_ns == mtime_ns;
        // An empty file has nothing to lose: a program has emptied it, or has set its times. So may
        // it have done after a pass over the same content. After a pass over an earlier one it has
        // said so.
        let is_same = facts.version.size == 0
            || facts.version.size == size
                && (is_untouched || time_set.is_some() || is_drained && has_all(pfs, content, size));
        let second = &pass.record.second;
        // As the PFS was left, nobody else has written it; even if a pass over an earlier content
        // ended after the second copy was made.
        let shown = (facts.version.size, facts.version.mtime_ns);
        // Some file systems keep whole seconds.
        let is_left_by_pass =
            |leaves: (u64, i64)| shown == leaves || shown == (leaves.0, whole_second(leaves.1));
        let is_as_left = shown == (size, mtime_ns) || pass.record.leaves.is_some_and(is_left_by_pass);
        // No other node can have had it since a pass of its own was interrupted.
        let is_cut_off = pass.record.is_draining && is_from_gone;
        if (second.is_disputed || was_taken) && !is_as_left && !is_cut_off {
            // The node of the file has emptied nothing since it noted what it left there.
            let is_emptied = facts.version.size == 0 && !is_untouched && is_at_node;
            if is_emptied || !is_part_of(pfs, facts.version.size, content, pass.stamp.size, true)? {
                return Err(Broken::Conflict);
            }
        } else if !is_same && !is_as_left && !pass.record.is_draining {
            return Err(Broken::Conflict);
        }
        // A time that was set before the last write is not the file's any more.
        let is_unchanged = Stamp::of(content).ok() == Some(pass.stamp);
        let is_after_last_write = match time_set {
            Some(set) => set.stamp == Some(pass.stamp),
            None => is_drained || !is_untouched && facts.version.ctime_ns >= pass.stamp.mtime_ns,
        };
        let is_set = is_same && is_unchanged && is_after_last_write;
        let set_mtime = (is_set && !pass.record.is_draining).then_some(facts.version.mtime_ns);
        let tier = &self.cache.tier;
        let leaves = Some((pass.stamp.size, set_mtime.unwrap_or(pass.stamp.mtime_ns)));
        DirtyRecord { is_draining: true, leaves, ..pass.record.clone() }.store(tier, pass.copy)?;
        if let Some(dirty) = self.state().files.get_mut(&pass.copy) {
            (dirty.record.is_draining, dirty.record.leaves) = (true, leaves);
        }
        drop(stamping);
        // It is not a whole file while it is written; where there are no such attributes, none says
        // that it is.
        let _ = rustix::fs::fremovexattr(pfs, MARK);
        let extents = extents_of(content, pass.stamp.size)?;
        let has_holes = extents.iter().map(|(from, to)| to - from).sum::<u64>() < pass.stamp.size;
        if facts.version.size > 0 && (has_holes || facts.version.size > pass.stamp.size) {
            ftruncate(pfs, 0)?;
        }
        // Smaller files are written before the answer would be there.
        if self.mounts[pass.mount].config.layout
            && pass.stamp.size > PART_BYTES
            && let Some(layout) = probe_servers(pfs)
        {
            let _is_first = pass.layout.set(layout);
        }
        let mut gentle = GENTLE_BYTES;
        for (mut from, to) in extents.into_iter().flat_map(|(from, to)| chunks(from, to, PART_BYTES)) {
            while from < to {
                // What the file system's client has taken and not sent yet is sent during the next
                // phase.
                let is_gentle = self.scheduler.is_gentle();
                let bytes = if is_gentle { gentle.min(to - from) } else { to - from };
                let took = self.write_part(pass, from, bytes, is_gentle)?;
                if is_gentle {
                    gentle = gentle_bytes(gentle, took.as_nanos() as u64, PART_BYTES);
                }
                from += bytes;
            }
        }
        // What a program has truncated meanwhile is not a hole of the content.
        let size = pass.stamp.size.min(Stamp::of(content)?.size);
        if FileFacts::of(pfs, Revalidate::AsStat)?.version.size != size {
            ftruncate(pfs, size)?;
        }
        fsync(pfs)?;
        if self.is_final(pass) {
            // Before anybody considers the file whole, and changes it.
            self.notify_second(pass.copy, |link, file, generation, until| {
                link.release(file, generation, until)
            });
        }
        Ok(set_mtime)
    }

    /// Gives the file its times, and its mark.
    fn finish(&self, pass: &Pass, set_mtime: Option<i64>) -> Result<FileFacts, Broken> {
        let pfs = pass.pfs.as_ref().ok_or(Broken::Stopping)?.as_fd();
        // One that a program has set during the pass, which stays if it wrote nothing after.
        let set_meanwhile = || {
            let state = self.state();
            let set = *state.files.get(&pass.copy)?.times_set.back()?;
            (set.stamp == Some(pass.stamp)).then_some(set.ns)
        };
        let mtime_ns = set_meanwhile().or(set_mtime).unwrap_or(pass.stamp.mtime_ns);
        // A user who may write a file may not always set its times: then they are those of the
        // pass.
        let _ = futimens(pfs, &only_mtime(mtime_ns));
        let facts = FileFacts::of(pfs, Revalidate::Force)?;
        if self.is_final(pass) {
            if let Some(Keeper::Disk(number)) = pass.record.second.kept_by {
                // Before anybody considers the file whole, and changes it.
                self.remove_from_log(number);
            }
            let mark = format!("{} {}", facts.version.size, facts.version.mtime_ns);
            let _ = fsetxattr(pfs, MARK, mark.as_bytes(), XattrFlags::empty());
        }
        let facts = FileFacts::of(pfs, Revalidate::Force)?;
        Ok(facts)
    }

    fn is_foreign(&self, pass: &Pass) -> bool {
        self.state().files.get(&pass.copy).is_none_or(|file| file.is_foreign)
    }

    /// Writes a part when it may; `synced`: waits until the file system has it. Returns how long
    /// that took.
    fn write_part(&self, pass: &Pass, offset: u64, bytes: u64, synced: bool) -> Result<Duration, Broken> {
        let copy = pass.copy;
        let is_over = || self.stop.is_stopping() || !self.scheduler.is_passing(copy);
        while !pass.account.take(bytes, Instant::now() + LOOK, is_over) {
            if is_over() {
                return Err(Broken::Stopping);
            }
        }
        pass.server.set(server_name(pass, offset).map(number_of));
        let forced = self.scheduler.wait_to_write(copy, bytes, pass.server.get());
        let forced = forced.ok_or(Broken::Stopping)?;
        if self.is_foreign(pass) {
            self.scheduler.notify_drain(Event::Written { file: copy, bytes: 0 });
            return Err(Broken::Conflict);
        }
        let begun = Instant::now();
        let mut written = write_part(pass, offset, bytes);
        if let (true, Some(pfs), Ok(_)) = (synced, &pass.pfs, &written)
            && let Err(e) = fdatasync(pfs)
        {
            written = Err(e.into());
        }
        let done = written.as_ref().map_or(0, |_| bytes);
        pass.account.moved(pass.mount, pass.layout.get(), Way::Write, (offset, done), begun.elapsed());
        self.scheduler.notify_drain(Event::Written { file: copy, bytes: done });
        let name = || server_name(pass, offset).map_or(String::new(), |name| format!(", on server {name}"));
        let written = written.map_err(|e| Broken::Io(e, name()))?;
        count(&self.counters, forced, written);
        if let Some(dirty) = self.state().files.get_mut(&copy) {
            dirty.drained_bytes += bytes;
        }
        Ok(begun.elapsed())
    }

    /// Returns what the PFS shows of a file that is still dirty, if that is known.
    fn end_pass(&self, pass: &Pass, ended: Result<FileFacts, Broken>) -> Option<(u64, i64)> {
        let tier = &self.cache.tier;
        // What the PFS shows now is what this pass has left there.
        let facts = match &ended {
            Ok(facts) => Some(*facts),
            Err(Broken::Io(..)) => {
                pass.pfs.as_ref().and_then(|pfs| FileFacts::of(pfs.as_fd(), Revalidate::Force).ok())
            }
            Err(_) => None,
        };
        let is_final = self.is_final(pass);
        let mut state = self.state();
        let now = self.now();
        let full = match &ended {
            Err(Broken::Io(e, _)) if e.kind() == io::ErrorKind::StorageFull => pass.server.get(),
            _ => None,
        };
        let Some(dirty) = state.files.get_mut(&pass.copy) else {
            self.pass_is_over(&mut state, pass.copy, None);
            return None;
        };
        dirty.is_draining = false;
        if let Some(facts) = facts {
            dirty.record.left = (facts.version.size, facts.version.mtime_ns);
        }
        // If the PFS does not show what the pass has left, the next one goes over it all the same.
        if facts.is_some() || matches!(ended, Err(Broken::Conflict)) {
            (dirty.record.is_draining, dirty.record.leaves) = (false, None);
            if let Err(e) = dirty.record.store(tier, pass.copy) {
                tracing::warn!(copy = pass.copy, error = %e, "cannot note how far a dirty file is");
            }
        }
        if !dirty.record.is_draining {
            dirty.record.leaves = None;
        }
        match ended {
            Ok(facts) => {
                dirty.passes.1 = dirty.passes.0;
                dirty.record.second.is_disputed = false;
                dirty.drained = Some((pass.stamp, is_final));
                (dirty.failures, dirty.error) = (0, String::new());
                let is_written = writers(dirty.content.as_fd(), Opened::Here) != Writers::None;
                if is_final && !is_written && dirty.joins == pass.joins && !dirty.is_called_in() {
                    if dirty.phase == Phase::Open {
                        self.note_closed(pass.copy, dirty);
                    }
                    let version = (facts.version.size, facts.version.mtime_ns);
                    self.note_drained(pass.copy, version);
                    dirty.phase = Phase::Clean(facts);
                    // What an agent's death leaves of it now is nothing that anybody needs. Before
                    // programs hear it, which then write to the PFS.
                    let _is_tried_again = tier.forget_dirty(pass.copy);
                    self.set_listed(dirty, false);
                } else {
                    (dirty.phase, dirty.since) = (if is_written { Phase::Open } else { Phase::Waits }, now);
                    dirty.awaited_until = Nanos(0);
                }
            }
            Err(Broken::Stopping) => {}
            Err(Broken::Fenced(node)) => self.fence(&mut state, pass.copy, &node),
            Err(Broken::Unknown) => {
                dirty.not_before = now + 1_000_000_000;
                dirty.error = "the coordinator does not answer; another node may have the file".into();
            }
            Err(Broken::Unlinked) => {
                if writers(dirty.content.as_fd(), Opened::Here) == Writers::None {
                    self.remove(&mut state, pass.copy);
                } else {
                    // Nothing of it can be reached by a name, and nothing of it is lost.
                    dirty.passes.1 = dirty.passes.0;
                    (dirty.not_before, dirty.awaited_until) = (now + 1_000_000_000, Nanos(0));
                }
            }
            Err(Broken::Conflict) => {
                let why =
                    "another program has changed the file on the file system; what was written here is kept";
                self.park(dirty, libc::ESTALE, why.into());
            }
            Err(Broken::Io(e, server)) => {
                dirty.failures += 1;
                add(&self.counters.drains_failed_total, 1);
                let errno = e.raw_os_error().unwrap_or(libc::EIO);
                match pause_ns(dirty.failures) {
                    Some(pause) => {
                        (dirty.phase, dirty.not_before) = (Phase::Failed, now + pause);
                        (dirty.errno, dirty.error) = (errno, format!("{e}{server}"));
                    }
                    None => self.park(dirty, errno, format!("{e}{server}")),
                }
            }
        }
        let is_over = |file: &&Dirty| file.is_dirty() && !file.record.is_draining;
        let left = state.files.get(&pass.copy).filter(is_over).map(|file| file.record.left);
        self.pass_is_over(&mut state, pass.copy, full);
        left
    }

    pub(super) fn park(&self, dirty: &mut Dirty, errno: i32, why: String) {
        let path = String::from_utf8_lossy(&dirty.record.path);
        tracing::error!(path = ?path, "cannot be written to the file system: {why}; `forebay rescue` saves it");
        dirty.phase = Phase::Parked;
        dirty.failures = dirty.failures.max(1);
        (dirty.errno, dirty.error) = (errno, why);
    }
}

fn whole_second(ns: i64) -> i64 {
    ns - ns.rem_euclid(1_000_000_000)
}

/// Whether a pass over it may begin.
fn is_ready(file: &Dirty, now: Nanos) -> bool {
    let quiet = file.words.as_ref().is_none_or(|words| {
        // A write that has ended is in the content.
        let is_over = now.saturating_since(file.since) > WRITE_MAX.as_nanos() as u64;
        !words.is_called_in() || words.writes() == 0 || is_over
    });
    // One that was written while it was open gets another pass once it is closed.
    let is_closed = file.phase != Phase::Open && !file.is_called_in();
    let is_new = match file.drained {
        None => true,
        Some((_, is_final)) if is_closed && !is_final => true,
        Some(_) => file.is_awaited(now) && !file.is_called_in() || !file.is_all_drained(),
    };
    let waits = matches!(file.phase, Phase::Open | Phase::Waits | Phase::Failed);
    // Its copy is to say whether a pass is under way.
    waits && !file.is_draining && !file.copying.is_sent_to_node() && quiet && is_new
}

fn facts(file: &Dirty, now: Nanos) -> File {
    let (is_open, is_awaited) = (file.phase == Phase::Open, file.is_awaited(now));
    File {
        mount: file.mount,
        owner: file.record.uid,
        bytes: file.room.bytes(),
        since: file.since,
        is_open,
        is_ready: file.not_before <= now && (is_awaited || !is_open) && is_ready(file, now),
        is_awaited,
        wants_room: is_awaited && (file.is_called_in() || file.copying.missed_until.is_some()),
        limited_job: file.account.limited(),
    }
}

fn server_name(pass: &Pass, offset: u64) -> Option<&str> {
    pass.layout.get()?.server_of(offset)
}

fn number_of(server: &str) -> Server {
    let mut hasher = DefaultHasher::new();
    server.hash(&mut hasher);
    hasher.finish()
}

fn count(counters: &Counters, forced: Option<Forced>, bytes: u64) {
    add(&counters.drained_bytes, bytes);
    match forced {
        Some(Forced::Capacity) => add(&counters.drained_for_room_bytes, bytes),
        Some(Forced::Age) => add(&counters.drained_for_age_bytes, bytes),
        None => {}
    }
}

fn begin(state: &mut State, copy: u64, now: Nanos) -> Option<Pass> {
    let dirty = state.files.get_mut(&copy).filter(|file| facts(file, now).is_ready)?;
    let had_writers = writers(dirty.content.as_fd(), Opened::Here) != Writers::None;
    let stamp = Stamp::of(&dirty.content).ok()?;
    dirty.is_draining = true;
    dirty.drained_bytes = 0;
    dirty.passes.0 += 1;
    let record = dirty.record.clone();
    dirty.record.leaves = Some((stamp.size, stamp.mtime_ns));
    if dirty.words.as_ref().is_some_and(|words| words.is_called_in() && words.writes() > 0) {
        // A writer that is gone has left its write announced.
        dirty.words.as_ref().into_iter().for_each(Words::forget_writes);
    }
    Some(Pass {
        copy,
        number: u64::try_from(crate::mounts::wall_clock_ns()).unwrap_or_default(),
        mount: dirty.mount,
        pfs: dirty.pfs.clone(),
        content: dirty.content.clone(),
        record,
        stamp,
        had_writers,
        joins: dirty.joins,
        is_called_in: dirty.is_called_in(),
        layout: OnceCell::new(),
        server: Cell::new(None),
        account: dirty.account.clone(),
    })
}

/// The parts of a file that are not holes.
pub(super) fn extents_of(content: &OwnedFd, size: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let from = match seek(content, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            from => from?,
        };
        let to = seek(content, SeekFrom::Hole(from))?.min(size);
        if from < to {
            extents.push((from, to));
        }
        at = to.max(from + 1);
    }
    Ok(extents)
}

/// Writes the part of the content from `offset` on, straight from its memory. Returns the bytes
/// written: of a file that has become shorter since, as far as it goes.
fn write_part(pass: &Pass, offset: u64, bytes: u64) -> io::Result<u64> {
    let Some(pfs) = &pass.pfs else { return Err(io::ErrorKind::NotConnected.into()) };
    let map = Map::new(pass.content.as_fd(), offset, bytes as usize, false)?;
    map.write_to(pfs.as_fd(), bytes, offset)
}

/// Whether the PFS has this content, as far as it can be read.
fn has_all(pfs: BorrowedFd<'_>, content: &OwnedFd, size: u64) -> bool {
    let again = reopen_as(pfs, OFlags::RDONLY);
    again.is_ok_and(|pfs| is_part_of(pfs.as_fd(), size, content, size, false).unwrap_or(false))
}

/// Whether the PFS has a part of the content, or all of it. If it `lacks` some, what it does not
/// have yet reads as zeros, and so does what a pass has left behind its end, if that was over a
/// longer content at its beginning.
fn is_part_of(
    pfs: BorrowedFd<'_>,
    there: u64,
    content: &OwnedFd,
    size: u64,
    lacks: bool,
) -> io::Result<bool> {
    if there > size && !lacks {
        return Ok(false);
    }
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let (mut theirs, mut ours) = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
    let (mut at, both) = (0, there.min(size));
    while at < both {
        let bytes = (both - at).min(COMPARED_BYTES as u64) as usize;
        read_exact_at(pfs, &mut theirs[..bytes], at)?;
        read_exact_at(content.as_fd(), &mut ours[..bytes], at)?;
        let mut blocks = theirs[..bytes].chunks(BLOCK_BYTES as usize).zip(ours.chunks(BLOCK_BYTES as usize));
        if !blocks.all(|(theirs, ours)| theirs == &ours[..theirs.len()] || lacks && is_zero(theirs)) {
            return Ok(false);
        }
        at += bytes as u64;
    }
    while at < there {
        let bytes = (there - at).min(COMPARED_BYTES as u64) as usize;
        read_exact_at(pfs, &mut theirs[..bytes], at)?;
        if !is_zero(&theirs[..bytes]) {
            return Ok(false);
        }
        at += bytes as u64;
    }
    Ok(true)
}

fn file_of(record: &DirtyRecord) -> DirtyFile {
    DirtyFile { mount: record.mount.clone(), ino: record.ino }
}

/// An agent that is root writes for others: it must not take the blocks that are reserved for root.
pub(super) fn spare_reserved_blocks() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    if let Ok(mut sets) = capabilities(None) {
        sets.effective.remove(CapabilitySet::SYS_RESOURCE);
        if let Err(e) = set_capabilities(None, sets) {
            tracing::warn!(error = %e, "passes may take blocks that are reserved for root");
        }
    }
}
