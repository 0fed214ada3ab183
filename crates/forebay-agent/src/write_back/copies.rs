//! Makes second copies of dirty files: in the memory of other nodes, or in the log.
//!
//! If a program wants it, `fsync` and `close` return once the content is in a second place as well:
//! with `copies = 2` in the memory of another node, with `copies = disk` in the log on a disk of
//! this one. A copy is always a whole one, and replaces the earlier one when it is complete: a
//! file's mtime shows that it has changed, but not where. If the place does not take it, the
//! program waits for the PFS instead.
//!
//! When the node with the copy is gone, another gets one. When the PFS has the file, the copy is
//! released.

use super::dirty_file::{Dirty, Phase, Stamp};
use super::pass::{extents_of, spare_reserved_blocks};
use super::{ANSWER, AWAITED, Drained, SETTLED, State, WriteBack};
use crate::counters::add;
use crate::fetch::peer_link::{CopySent, Link};
use crate::lock::lock;
use forebay_policy::machine::Nanos;
use forebay_store::dirty::{DirtyRecord, Keeper, SecondCopy, Words};
use forebay_wire::cluster::DirtyFile;
use forebay_wire::peer::{Custody, KeptFile};
use forebay_wire::{NodeInfo, Refusal, SecondPlace};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Copies that are sent at a time: a node that hangs holds up one of them.
pub const SENDERS: usize = 4;

/// How long a node may take nothing before it counts as unreachable.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// A node without room, and a cluster in which none takes the copy, is asked again after this.
const AGAIN: Duration = Duration::from_secs(2);

/// How long a program whose file has a second copy in another place waits for the PFS.
const PFS_ONLY: Duration = Duration::from_secs(3600);

/// Peers close connections after a minute.
const LINK_UNUSED_MAX: Duration = Duration::from_secs(30);

/// How often a file that rests before its copy is looked at.
const LOOK_AT_RESTING: Duration = Duration::from_millis(10);

/// To send this much twice takes longer than to wait for a moment.
const LARGE_BYTES: u64 = 64 << 20;

/// A file with more ranges is sent with its holes.
const RANGES_MAX: usize = 1024;

const LOOK: Duration = Duration::from_millis(200);

/// For each file that is waited for: the copies and the passes that had begun.
pub type Wanted = BTreeMap<u64, (u64, u64)>;

/// Where a copy is sent.
#[derive(Clone, Debug)]
enum To {
    Node(Box<NodeInfo>),
    Disk(u64),
}

impl To {
    fn keeper(&self) -> Keeper {
        match self {
            To::Node(node) => Keeper::Node(node.name.clone()),
            To::Disk(number) => Keeper::Disk(*number),
        }
    }
}

/// A copy that is to be sent.
struct Sending {
    copy: u64,
    to: To,
    record: DirtyRecord,
    ranges: Vec<(u64, u64)>,
    content: Arc<OwnedFd>,
    stamp: Stamp,
    /// A pass is under way.
    is_draining: bool,
    /// Its last write was long enough ago for the next one to show another time.
    is_settled: bool,
}

/// The connection that a sender used last.
type LastLink = Option<(NodeInfo, Link, Instant)>;

impl WriteBack {
    /// What a program that has written to `copy`, or to all files of user `uid`, waits for.
    ///
    /// # Errors
    /// The file is another user's.
    pub fn to_keep(&self, uid: u32, copy: Option<u64>, second: SecondPlace) -> Result<Wanted, Refusal> {
        let mut state = self.state();
        let mut wanted = Wanted::new();
        for (number, dirty) in &mut state.files {
            let is_own = self.is_for(uid, dirty) || dirty.uids.contains(&uid);
            if copy.is_some_and(|copy| copy != *number) || copy.is_none() && !is_own {
                continue;
            }
            if !is_own {
                return Err(Refusal::Invalid("another user writes this file".into()));
            }
            if dirty.record.second.is_fenced {
                // What a program still writes to it is nowhere else.
                return Err(Refusal::Invalid(dirty.error.clone()));
            }
            let kept_in = dirty.record.second.kept_by.as_ref().map(|keeper| match keeper {
                Keeper::Node(_) => SecondPlace::Node,
                Keeper::Disk(_) => SecondPlace::Disk,
            });
            match kept_in {
                // What another program was promised stays so.
                Some(place) if place != second && copy.is_none() => continue,
                Some(place) if place != second => {
                    // This one waits for the PFS, which is as good as either.
                    dirty.copying.missed_until = Some(self.now() + PFS_ONLY.as_nanos() as u64);
                }
                _ => {
                    dirty.copying.place = second;
                    let again = self.now() + AGAIN.as_nanos() as u64;
                    dirty.copying.missed_until = dirty.copying.missed_until.filter(|until| *until <= again);
                }
            }
            let has_pfs = dirty.is_called_in() && dirty.is_all_drained();
            let is_copied = dirty.is_copied() && dirty.copying.place == second;
            if dirty.is_dirty() && dirty.is_listed && !is_copied && !has_pfs {
                wanted.insert(*number, (dirty.copying.sent.0, dirty.passes.0));
                dirty.copying.is_asked = true;
                dirty.copying.rests_until = self.now() + 2 * SETTLED.as_nanos() as u64;
                // If it is to wait for the PFS, that is tried again.
                (dirty.failures, dirty.not_before) = (0, Nanos(0));
                if dirty.phase == Phase::Parked {
                    dirty.phase = Phase::Waits;
                }
            }
        }
        self.changed.notify_all();
        Ok(wanted)
    }

    /// Waits for [`WriteBack::to_keep`], and takes out what is done.
    pub fn wait_for_copies(&self, wanted: &mut Wanted) -> Drained {
        let limit = Instant::now() + ANSWER;
        let mut state = self.state();
        loop {
            let now = self.now();
            let (mut failed, mut is_news) = (None, false);
            wanted.retain(|copy, begun| match state.files.get_mut(copy) {
                Some(dirty) if dirty.is_dirty() => {
                    let is_done = dirty.copying.sent.1 > begun.0 || dirty.passes.1 > begun.1;
                    if is_done {
                        return false;
                    }
                    let is_missed = dirty.copying.missed_until.is_some();
                    if is_missed {
                        if !dirty.is_awaited(now) {
                            is_news = true;
                            (dirty.since, dirty.not_before) = (now, Nanos(0));
                            add(&self.counters.copies_missed_total, 1);
                        }
                        dirty.awaited_until = now + AWAITED.as_nanos() as u64;
                    }
                    is_news |= is_missed && dirty.try_again(begun.1);
                    let has_failed = is_missed && dirty.has_failed_since(begun.1);
                    if has_failed || dirty.phase == Phase::Parked {
                        let path = String::from_utf8_lossy(&dirty.record.path);
                        let why = format!("{path}: there is no second copy, and: {}", dirty.error);
                        failed = Some(Drained::Failed(dirty.errno, why));
                    }
                    let is_to_ask = dirty.copying.sent.0 <= begun.0 && !dirty.copying.is_asked;
                    if is_to_ask {
                        dirty.copying.rests_until = now + 2 * SETTLED.as_nanos() as u64;
                    }
                    is_news |= is_to_ask;
                    dirty.copying.is_asked |= is_to_ask;
                    true
                }
                _ => false,
            });
            match self.wait_unless(state, (failed, wanted.is_empty(), is_news), limit) {
                Ok(next) => state = next,
                Err(ended) => return ended,
            }
        }
    }

    /// Sends copies to one kind of place until the agent ends.
    pub fn send_copies(&self, place: SecondPlace) {
        spare_reserved_blocks();
        let mut last = None;
        while !self.stop.is_stopping() {
            let Some(sending) = self.take_sending(place) else { continue };
            let sent = self.send(&sending, &mut last);
            self.end_sending(&sending, sent);
            self.correct_draining(&sending);
        }
    }

    /// Waits for a copy to send, up to a moment.
    fn take_sending(&self, place: SecondPlace) -> Option<Sending> {
        let mut state = self.state();
        let now = self.now();
        let is_next = |dirty: &Dirty| dirty.copying.place == place && self.is_to_send(dirty, now);
        let next = state.files.iter().find(|(_, dirty)| is_next(dirty)).map(|(copy, _)| *copy);
        let Some(copy) = next else {
            let rests = |dirty: &Dirty| dirty.copying.is_asked && self.is_resting(dirty, now);
            let pause = if state.files.values().any(rests) { LOOK_AT_RESTING } else { LOOK };
            drop(self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner));
            return None;
        };
        self.begin_sending(&mut state, copy, now)
    }

    fn is_to_send(&self, dirty: &Dirty, now: Nanos) -> bool {
        let copying = &dirty.copying;
        let is_lost = || match &dirty.record.second.kept_by {
            Some(Keeper::Node(node)) => !self.is_member(node),
            Some(Keeper::Disk(_)) | None => false,
        };
        dirty.is_dirty()
            && dirty.is_listed
            && dirty.phase != Phase::Parked
            && !copying.is_sending
            && !copying.is_unconfirmed
            && copying.missed_until.is_none_or(|until| until <= now)
            && (copying.is_asked && !self.is_resting(dirty, now) || is_lost())
    }

    /// A copy of what was written just now does not count at the close, since a later write may
    /// show the same time: a large one waits for a moment after it was requested, so that it is
    /// sent once.
    fn is_resting(&self, dirty: &Dirty, now: Nanos) -> bool {
        let age_ns = |stamp: Stamp| crate::mounts::wall_clock_ns() - stamp.mtime_ns;
        dirty.room.bytes() >= LARGE_BYTES
            && now < dirty.copying.rests_until
            && Stamp::of(&dirty.content).is_ok_and(|stamp| age_ns(stamp) <= SETTLED.as_nanos() as i64)
    }

    pub(super) fn is_member(&self, name: &str) -> bool {
        self.elsewhere.cluster().view().cluster.nodes.iter().any(|node| node.name == name)
    }

    /// The node that is to keep the copy: of those that can be reached, the one that has it, else
    /// one on another host if there is one, spread by file.
    fn choose(&self, dirty: &mut Dirty, now: Nanos) -> Option<NodeInfo> {
        dirty.copying.refused.retain(|_, until| *until > now);
        let (cluster, refused) = (self.elsewhere.cluster(), &dirty.copying.refused);
        let view = cluster.view();
        let own_host = view.cluster.nodes.iter().find(|node| node.name == cluster.node()).map(|n| &n.host);
        let can = |node: &&NodeInfo| {
            node.name != cluster.node()
                && !node.address.is_empty()
                && node.mounts.contains(&dirty.record.mount)
                && !cluster.is_avoided(&node.name)
                && !refused.contains_key(&node.name)
        };
        let place = |node: &&NodeInfo| {
            let mut hasher = DefaultHasher::new();
            (dirty.record.ino, &node.name).hash(&mut hasher);
            let has_it =
                matches!(&dirty.record.second.kept_by, Some(Keeper::Node(keeper)) if *keeper == node.name);
            (has_it, Some(&node.host) != own_host, hasher.finish())
        };
        view.cluster.nodes.iter().filter(can).max_by_key(place).cloned()
    }

    fn begin_sending(&self, state: &mut State, copy: u64, now: Nanos) -> Option<Sending> {
        let dirty = state.files.get_mut(&copy)?;
        let to = match dirty.copying.place {
            SecondPlace::Node => self.choose(dirty, now).map(|node| To::Node(Box::new(node))),
            SecondPlace::Disk => self.log.as_ref().map(|log| match dirty.record.second.kept_by {
                Some(Keeper::Disk(number)) => To::Disk(number),
                Some(Keeper::Node(_)) | None => To::Disk(log.next_number()),
            }),
        };
        let Some(to) = to else {
            self.miss(dirty, now);
            return None;
        };
        let stamp = Stamp::of(&dirty.content).ok()?;
        let mut ranges = extents_of(&dirty.content, stamp.size).ok()?;
        if ranges.len() > RANGES_MAX {
            if dirty.copying.place == SecondPlace::Disk {
                // Its holes would take room on the disk.
                self.miss(dirty, now);
                return None;
            }
            ranges = vec![(0, stamp.size)];
        }
        dirty.copying.is_asked = false;
        dirty.copying.is_sending = true;
        dirty.copying.sent.0 += 1;
        let record = &mut dirty.record;
        // Above those of the file's earlier lives, of which copies may be left.
        let now_ns = u64::try_from(crate::mounts::wall_clock_ns()).unwrap_or_default();
        record.second.generation = now_ns.max(record.second.generation + 1);
        // Noted first: an agent that starts after this one's death knows that there may be a copy.
        record.second.kept_by.get_or_insert_with(|| to.keeper());
        let _is_tried_again = record.store(&self.cache.tier, copy);
        let age_ns = crate::mounts::wall_clock_ns() - stamp.mtime_ns;
        let is_mapped = dirty.words.as_ref().is_some_and(Words::is_mapped);
        let is_settled = !is_mapped && age_ns > SETTLED.as_nanos() as i64;
        let (record, content, is_draining) =
            (record.clone(), dirty.content.clone(), dirty.is_draining || record.is_draining);
        Some(Sending { copy, to, record, ranges, content, stamp, is_draining, is_settled })
    }

    /// Notes that the place does not take the copy.
    fn miss(&self, dirty: &mut Dirty, now: Nanos) {
        if dirty.copying.missed_until.is_none() {
            let path = String::from_utf8_lossy(&dirty.record.path);
            let why = match dirty.copying.place {
                SecondPlace::Node => "no other node takes a second copy",
                SecondPlace::Disk if self.log.is_none() => "tier.log is not set, so there is no second copy",
                SecondPlace::Disk => "the log takes no second copy",
            };
            tracing::warn!(path = ?path, "{why}; its writers wait for the file system");
        }
        dirty.copying.missed_until = Some(now + AGAIN.as_nanos() as u64);
        self.changed.notify_all();
    }

    fn send(&self, sending: &Sending, last: &mut LastLink) -> io::Result<CopySent> {
        let Sending { record, content, stamp, ranges, .. } = sending;
        match (&sending.to, &self.log) {
            (To::Node(node), _) => self.send_to_node(node, sending, last),
            (To::Disk(_), None) => Ok(CopySent::Refused("there is no log".into())),
            (To::Disk(number), Some(log)) => {
                let version = (stamp.size, stamp.mtime_ns);
                log.write((*number, record), content.as_fd(), version, ranges).map(|()| CopySent::Done)
            }
        }
    }

    fn send_to_node(&self, node: &NodeInfo, sending: &Sending, last: &mut LastLink) -> io::Result<CopySent> {
        let (record, stamp) = (&sending.record, &sending.stamp);
        let mount = self.mounts.iter().find(|mount| mount.label() == record.mount);
        let root = mount.and_then(|mount| mount.root().canonicalize().ok()).unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(&record.path)).strip_prefix(root);
        let kept = KeptFile {
            file: DirtyFile { mount: record.mount.clone(), ino: record.ino },
            path: path.map_or_else(|_| Vec::new(), |path| path.as_os_str().as_bytes().to_vec()),
            born_ns: record.born_ns,
            uid: record.uid,
            since_ns: record.since_ns,
            left: record.left,
            leaves: record.leaves,
            is_draining: sending.is_draining,
            generation: record.second.generation,
            size: stamp.size,
            mtime_ns: stamp.mtime_ns,
            ranges: sending.ranges.clone(),
        };
        let is_usable =
            |(other, _, used): &(NodeInfo, Link, Instant)| other == node && used.elapsed() < LINK_UNUSED_MAX;
        let mut link = match last.take().filter(is_usable) {
            Some((_, link, _)) => link,
            None => self.elsewhere.connect(&node.name, Instant::now() + SILENCE_MAX)?,
        };
        let sent = link.keep(kept, &sending.content, SILENCE_MAX)?;
        *last = Some((node.clone(), link, Instant::now()));
        Ok(sent)
    }

    fn end_sending(&self, sending: &Sending, sent: io::Result<CopySent>) {
        let (keeper, generation) = (sending.to.keeper(), sending.record.second.generation);
        let mut state = self.state();
        let now = self.now();
        let Some(dirty) = state.files.get_mut(&sending.copy).filter(|file| file.is_dirty() && file.is_listed)
        else {
            drop(state);
            return self.release(keeper, &sending.record, generation);
        };
        dirty.copying.is_sending = false;
        match sent {
            Ok(CopySent::Done) => {
                add(&self.counters.copies_sent_total, 1);
                let bytes = sending.ranges.iter().map(|(from, to)| to - from).sum();
                add(&self.counters.copies_sent_bytes, bytes);
                dirty.copying.sent.1 = dirty.copying.sent.0;
                dirty.copying.stamp = Some((sending.stamp, sending.is_settled));
                dirty.copying.missed_until = None;
                let earlier = dirty.record.second.kept_by.replace(keeper.clone());
                let _is_tried_again = dirty.record.store(&self.cache.tier, sending.copy);
                if let Some(earlier) = earlier.filter(|earlier| *earlier != keeper) {
                    self.release(earlier, &sending.record, generation);
                }
            }
            // The content has become shorter meanwhile, or this was the last of a connection.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof || e.kind() == io::ErrorKind::BrokenPipe => {
                tracing::debug!(?keeper, error = %e, "a second copy is sent again");
                dirty.copying.is_asked = true;
                if let Keeper::Node(name) = keeper {
                    dirty.copying.refused.insert(name, now + AGAIN.as_nanos() as u64 / 20);
                }
            }
            Ok(CopySent::Refused(why)) => self.send_later(dirty, keeper, now, &why),
            Err(e) => {
                if let Keeper::Node(name) = &keeper {
                    self.elsewhere.cluster().avoid(name);
                }
                self.send_later(dirty, keeper, now, &e.to_string());
            }
        }
        self.changed.notify_all();
    }

    fn send_later(&self, dirty: &mut Dirty, not_to: Keeper, now: Nanos, why: &str) {
        dirty.copying.is_asked = true;
        match not_to {
            Keeper::Node(name) => {
                tracing::warn!("cannot send a second copy to node {name}: {why}");
                dirty.copying.refused.insert(name, now + AGAIN.as_nanos() as u64);
            }
            Keeper::Disk(_) => {
                tracing::warn!("cannot write to the log: {why}");
                self.miss(dirty, now);
            }
        }
    }

    /// Sends something to the node with the second copy of a dirty file, if there is one: `notify`
    /// gets a connection, the file, and the copy's generation. A node that it does not reach
    /// compares what the PFS has before it writes there.
    pub(super) fn notify_second(
        &self,
        copy: u64,
        notify: impl FnOnce(&mut Link, &DirtyFile, u64, Instant) -> io::Result<()>,
    ) {
        let second = {
            let state = self.state();
            state.files.get(&copy).map(|dirty| (dirty.name(), dirty.record.second.clone()))
        };
        let Some((file, SecondCopy { kept_by: Some(Keeper::Node(node)), generation, .. })) = second else {
            return;
        };
        if !self.is_member(&node) || self.elsewhere.cluster().is_avoided(&node) {
            return;
        }
        let until = Instant::now() + SILENCE_MAX;
        let link = self.elsewhere.connect(&node, until);
        if let Err(e) = link.and_then(|mut link| notify(&mut link, &file, generation, until)) {
            tracing::debug!(node, error = %e, "the node with a second copy does not answer");
            self.elsewhere.cluster().avoid(&node);
        }
    }

    /// Notifies the copy's node once more that the pass that was under way when this copy was sent
    /// is over, since it may have had no copy to note that of.
    fn correct_draining(&self, sending: &Sending) {
        let left = {
            let state = self.state();
            let is_over = |file: &&Dirty| sending.is_draining && file.is_dirty() && !file.record.is_draining;
            state.files.get(&sending.copy).filter(is_over).map(|file| file.record.left)
        };
        if let Some(left) = left {
            let number = sending.record.second.generation;
            self.notify_second(sending.copy, |link, file, _, until| {
                link.note_pass(file, number, Some(left), until)
            });
        }
    }

    /// Releases the second copy of a file that the PFS has, or that is given up.
    pub(super) fn release_second(&self, dirty: &mut Dirty) {
        if dirty.record.second.is_fenced {
            return;
        }
        if let Some(keeper) = dirty.record.second.kept_by.take() {
            self.release(keeper, &dirty.record, dirty.record.second.generation);
        }
    }

    fn release(&self, keeper: Keeper, record: &DirtyRecord, generation: u64) {
        match keeper {
            Keeper::Disk(number) => lock(&self.log_removals).push(number),
            Keeper::Node(node) => {
                let file = DirtyFile { mount: record.mount.clone(), ino: record.ino };
                lock(&self.releases).push((node, file, generation));
            }
        }
    }

    /// Removes a file from the log. Waits for the disk.
    pub(super) fn remove_from_log(&self, number: u64) {
        if let Some(Err(e)) = self.log.as_ref().map(|log| log.remove(number)) {
            tracing::warn!(error = %e, "a file that the file system has cannot be removed from the log");
        }
    }

    /// Notifies nodes which copies they need not keep. A node that this does not reach asks
    /// ([`WriteBack::custody`]).
    pub(super) fn send_releases(&self) {
        let removals = std::mem::take(&mut *lock(&self.log_removals));
        removals.into_iter().for_each(|number| self.remove_from_log(number));
        let releases = lock(&self.releases).clone();
        let mut unreachable = BTreeSet::new();
        for release in releases {
            let (node, file, generation) = &release;
            let is_there = self.is_member(node);
            if is_there && unreachable.contains(node) {
                continue;
            }
            let until = Instant::now() + SILENCE_MAX;
            let link = || self.elsewhere.connect(node, until);
            if is_there && link().and_then(|mut link| link.release(file, *generation, until)).is_err() {
                unreachable.insert(node.clone());
            } else {
                lock(&self.releases).retain(|other| *other != release);
            }
        }
    }

    /// What becomes of the copy of this generation that node `by` keeps.
    pub fn custody(&self, by: &str, file: &DirtyFile, generation: u64) -> Custody {
        let state = self.state();
        let mount = self.mounts.iter().position(|mount| mount.label() == file.mount);
        let copy = mount.and_then(|mount| state.by_inode.get(&(mount, file.ino)));
        let dirty = copy.and_then(|copy| state.files.get(copy)).filter(|file| file.is_dirty());
        let kept = state.kept_file(file).map(|(_, kept)| &kept.record);
        let is_newer = |record: &DirtyRecord| record.second.generation > generation;
        // One that was taken over here has the generation of its copy.
        let taken = dirty.map(|dirty| &dirty.record).filter(|record| record.second.is_disputed);
        if kept.is_some_and(is_newer) || taken.is_some_and(is_newer) {
            return Custody::Others;
        }
        let is_released = |release: &(String, DirtyFile, u64)| release.0 == by && release.1 == *file;
        if dirty.is_none() && lock(&self.releases).iter().any(is_released) {
            return Custody::Others;
        }
        match dirty.map(|dirty| (&dirty.record.second.kept_by, &dirty.copying)) {
            None => Custody::Unknown,
            // It may be that node's turn right now.
            Some((Some(Keeper::Node(node)), copying)) if node == by || copying.is_sending => Custody::Yours,
            Some((Some(_), _)) => Custody::Others,
            // This node may have lost the content, and have started from scratch.
            Some((None, _)) => Custody::Unknown,
        }
    }

    /// Notes that another node has taken over a file of this one.
    pub(super) fn fence(&self, state: &mut State, copy: u64, node: &str) {
        let Some(dirty) = state.files.get_mut(&copy) else { return };
        let why = format!("node {node} has taken the file over; what this node had is kept");
        self.park(dirty, libc::ESTALE, why);
        dirty.record.second.is_fenced = true;
        // Guests of this node no longer write to it.
        dirty.words.iter().for_each(Words::call_in);
        let _is_tried_again = dirty.record.store(&self.cache.tier, copy);
        self.set_listed(dirty, false);
        let key = (dirty.mount, dirty.record.ino);
        state.by_inode.remove(&key);
    }
}
