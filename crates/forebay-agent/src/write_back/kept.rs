//! Keeps second copies of files that are dirty on other nodes, and takes over a file whose node is
//! gone.
//!
//! A copy counts in its user's share like a dirty file. Its node releases it when the PFS has the
//! file. Nobody reads it until the coordinator has given the file to this node: then it is a dirty
//! file of this node, which its pass compares with what the PFS has by then.

use super::dirty_file::{Dirty, Stamp};
use super::elsewhere::SILENCE_MAX;
use super::kept_file::Kept;
use super::{FILE_BYTES, FILE_DESCRIPTORS, State, WriteBack, is_same_file};
use crate::cache::held::Held;
use crate::coordinator::claims::Claim;
use crate::counters::add;
use crate::user_limits::{Kind, Share};
use forebay_pfs::FileFacts;
use forebay_store::Class;
use forebay_store::dirty::{DirtyRecord, SecondCopy, only_mtime};
use forebay_store::full_io::write_all_at;
use forebay_wire::cluster::{DirtyFile, SHARED};
use forebay_wire::peer::{Custody, KeptFile};
use forebay_wire::{NodeInfo, Refusal};
use rustix::fs::{OFlags, Uid, fchown, ftruncate, futimens};
use rustix::pipe::{SpliceFlags, splice};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often this node looks whether the nodes of its copies are there, and asks them about its
/// copies.
const LOOK: Duration = Duration::from_millis(200);
const ASK: Duration = Duration::from_secs(2);

/// A node that is missing for less may only have restarted its agent: its programs continue.
const GONE: Duration = Duration::from_secs(5);

/// How long to wait for a node that may have a newer copy, as long as it is a member.
const ANSWERS_MAX: Duration = Duration::from_secs(30);

/// A copy that is being received.
#[derive(Debug)]
pub struct Coming<'a> {
    write_back: &'a WriteBack,
    copy: u64,
    mount: usize,
    /// The content, its room and its descriptors, until it is kept.
    whole: Option<(OwnedFd, Held, Share)>,
}

impl Coming<'_> {
    /// Writes a part of it.
    ///
    /// # Errors
    /// The tier failed.
    pub fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let Some((content, ..)) = &self.whole else { return Err(io::ErrorKind::NotConnected.into()) };
        write_all_at(content.as_fd(), bytes, at)
    }

    /// Moves up to `len` bytes of it from a socket, through an empty pipe; returns how many.
    ///
    /// # Errors
    /// The sender is gone or silent, or the tier failed.
    pub fn take(
        &self,
        from: BorrowedFd<'_>,
        pipe: &(OwnedFd, OwnedFd),
        at: u64,
        len: u64,
    ) -> io::Result<u64> {
        let Some((content, ..)) = &self.whole else { return Err(io::ErrorKind::NotConnected.into()) };
        let got = splice(from, None, &pipe.1, None, len as usize, SpliceFlags::MOVE)?;
        let (mut left, mut to) = (got, at);
        while left > 0 {
            left -= splice(&pipe.0, None, content, Some(&mut to), left, SpliceFlags::MOVE)?;
        }
        Ok(got as u64)
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if self.whole.is_some() {
            self.write_back.unlink(self.copy);
        }
    }
}

/// A copy to look after.
struct Due {
    copy: u64,
    file: DirtyFile,
    generation: u64,
    /// The node of the file.
    node: String,
}

impl Due {
    fn new(copy: u64, kept: &Kept) -> Self {
        let generation = kept.record.second.generation;
        Due { copy, file: kept.name(), generation, node: kept.node().to_owned() }
    }
}

impl State {
    pub(super) fn kept_file(&self, file: &DirtyFile) -> Option<(u64, &Kept)> {
        let is_it = |kept: &Kept| kept.record.ino == file.ino && kept.record.mount == file.mount;
        self.kept.iter().find(|(_, kept)| is_it(kept)).map(|(copy, kept)| (*copy, kept))
    }
}

impl WriteBack {
    /// Makes room for the second copy of a file of node `from`.
    ///
    /// # Errors
    /// Why it is not kept here.
    pub fn begin_copy(&self, from: &str, kept: &KeptFile) -> Result<Coming<'_>, String> {
        let mount = self.mounts.iter().position(|mount| mount.label() == kept.file.mount);
        let mount = mount.ok_or_else(|| format!("no mount is called {:?} here", kept.file.mount))?;
        let is_past_end = |(from, to): &(u64, u64)| from > to || *to > kept.size;
        if kept.ranges.iter().any(is_past_end) {
            return Err("a range ends behind the file".into());
        }
        {
            let state = self.state();
            if state.by_inode.contains_key(&(mount, kept.file.ino)) {
                return Err("the file is dirty here".into());
            }
            let is_newer = |own: &Kept| own.record.second.generation > kept.generation && own.node() == from;
            if state.kept_file(&kept.file).is_some_and(|(_, own)| is_newer(own)) {
                return Err("a newer copy is here".into());
            }
        }
        let bytes: u64 = kept.ranges.iter().map(|(from, to)| to - from).sum();
        let room = self.hold(kept.uid, FILE_BYTES + bytes).map_err(|refusal| refusal.to_string())?;
        let descriptors = self.shares.share(Kind::Descriptors, kept.uid, FILE_DESCRIPTORS);
        let descriptors = descriptors.map_err(|refusal| refusal.to_string())?;
        let copy = self.cache.next_copy();
        let failed = |e: io::Error| format!("the tier failed: {e}");
        let content = self.cache.tier.create_copy(copy).map_err(failed)?;
        let coming = Coming { write_back: self, copy, mount, whole: Some((content, room, descriptors)) };
        if let Some((content, ..)) = &coming.whole {
            ftruncate(content, kept.size).map_err(|e| failed(e.into()))?;
        }
        Ok(coming)
    }

    /// Ends the copy, which is whole: it takes the place of an earlier one.
    ///
    /// # Errors
    /// The tier failed.
    pub fn end_copy(&self, from: &str, kept: &KeptFile, mut coming: Coming<'_>) -> io::Result<()> {
        let (copy, mount) = (coming.copy, coming.mount);
        let Some((content, ..)) = &coming.whole else { return Err(io::ErrorKind::NotConnected.into()) };
        if !self.shares.is_operator(kept.uid) {
            fchown(content, Some(Uid::from_raw(kept.uid)), None)?;
        }
        futimens(content, &only_mtime(kept.mtime_ns))?;
        let root = self.mounts[mount].root().canonicalize()?;
        let record = DirtyRecord {
            mount: kept.file.mount.clone(),
            path: root.join(Path::new(OsStr::from_bytes(&kept.path))).as_os_str().as_bytes().to_vec(),
            dev: 0,
            ino: kept.file.ino,
            born_ns: kept.born_ns,
            uid: kept.uid,
            since_ns: kept.since_ns,
            left: kept.left,
            is_draining: false,
            leaves: kept.leaves,
            second: SecondCopy {
                generation: kept.generation,
                kept_for: Some(from.to_owned()),
                ..SecondCopy::default()
            },
            job: String::new(),
        };
        record.store(&self.cache.tier, copy)?;
        let content = self.cache.tier.open_dirty(copy, OFlags::RDONLY)?;
        let mut state = self.state();
        let earlier = state.kept_file(&kept.file);
        // While this one came, a later one may have, over another connection.
        let is_late = earlier
            .is_some_and(|(_, own)| own.record.second.generation > kept.generation && own.node() == from);
        if is_late || state.by_inode.contains_key(&(mount, kept.file.ino)) {
            return Err(io::Error::other("a newer copy is here, or the file is dirty here"));
        }
        let earlier = earlier.map(|(copy, _)| copy);
        let Some((_, room, descriptors)) = coming.whole.take() else { return Ok(()) };
        let mut own = Kept::new(record, content, (room, descriptors));
        own.is_draining = kept.is_draining;
        state.kept.insert(copy, own);
        if let Some(earlier) = earlier {
            self.drop_copy(&mut state, earlier);
        }
        Ok(())
    }

    /// Takes up a copy that an earlier agent has left.
    pub(super) fn adopt_copy(&self, copy: u64, record: DirtyRecord) -> io::Result<()> {
        let content = self.cache.tier.open_dirty(copy, OFlags::RDONLY)?;
        let bytes = FILE_BYTES + Stamp::of(&content)?.bytes;
        let room = self.cache.hold_existing(&self.shares, record.uid, Class::Dirty, bytes);
        let descriptors = self.shares.share_existing(Kind::Descriptors, record.uid, FILE_DESCRIPTORS);
        let file = DirtyFile { mount: record.mount.clone(), ino: record.ino };
        let mut state = self.state();
        let other = state.kept_file(&file).map(|(copy, own)| (copy, own.record.second.generation));
        match other {
            // The agent has died between a copy and the removal of the one before.
            Some((other, generation)) if generation < record.second.generation => {
                self.drop_copy(&mut state, other);
            }
            Some(_) => {
                drop(state);
                self.unlink(copy);
                return Ok(());
            }
            None => {}
        }
        state.kept.insert(copy, Kept::new(record, content, (room, descriptors)));
        Ok(())
    }

    fn drop_copy(&self, state: &mut State, copy: u64) {
        if state.kept.remove(&copy).is_some() {
            self.unlink(copy);
        }
    }

    /// Releases the copy of node `from`, which no longer needs it.
    pub fn release_copy(&self, from: &str, file: &DirtyFile, generation: u64) {
        let mut state = self.state();
        let is_meant = |kept: &Kept| kept.node() == from && kept.record.second.generation <= generation;
        let copy = state.kept_file(file).filter(|(_, kept)| is_meant(kept)).map(|(copy, _)| copy);
        if let Some(copy) = copy {
            self.drop_copy(&mut state, copy);
        }
    }

    /// Notes that node `from` begins a pass over its file, or has `left` this on the PFS. Passes
    /// are counted by `number`: an earlier one may be heard of later.
    pub fn note_pass(&self, from: &str, file: &DirtyFile, number: u64, left: Option<(u64, i64)>) {
        let mut state = self.state();
        let is_meant = |kept: &Kept| kept.node() == from && kept.pass <= number;
        let copy = state.kept_file(file).filter(|(_, kept)| is_meant(kept)).map(|(copy, _)| copy);
        let Some((copy, kept)) = copy.and_then(|copy| Some((copy, state.kept.get_mut(&copy)?))) else {
            return;
        };
        (kept.pass, kept.is_draining) = (number, left.is_none());
        if let Some(left) = left {
            kept.record.left = left;
            let _is_compared_then = kept.record.store(&self.cache.tier, copy);
        }
    }

    /// Looks after copies at both ends until the agent ends: sends releases, asks about copies that
    /// are kept here, takes files over, and learns whether files of an earlier agent were taken.
    pub fn check_copies(&self) {
        while !self.stop.wait(LOOK) {
            self.send_releases();
            self.confirm_adopted();
            let due: Vec<Due> = {
                let mut state = self.state();
                for kept in state.kept.values_mut() {
                    kept.missing = match self.is_member(kept.node()) {
                        true => None,
                        false => kept.missing.or_else(|| Some(Instant::now())),
                    };
                }
                let is_due = |kept: &Kept| match kept.missing {
                    None => kept.asked.elapsed() >= ASK,
                    Some(since) => since.elapsed() >= GONE && kept.asked.elapsed() >= ASK,
                };
                let due = state.kept.iter().filter(|(_, kept)| is_due(kept));
                due.map(|(copy, kept)| Due::new(*copy, kept)).collect()
            };
            for due in due {
                self.check_copy(&due);
            }
        }
    }

    fn check_copy(&self, due: &Due) {
        let Due { copy, file, node, .. } = due;
        if let Some(kept) = self.state().kept.get_mut(copy) {
            kept.asked = Instant::now();
        }
        if self.is_member(node) {
            match self.ask_custody(node, due) {
                Ok(Custody::Yours) | Err(_) => return,
                Ok(Custody::Others) => return self.drop_copy(&mut self.state(), *copy),
                // It has been restarted without what was in its memory.
                Ok(Custody::Unknown) => {}
            }
        }
        if !self.may_take_over(due) {
            return;
        }
        let claim = self.claims.claim(file);
        match claim.holder.as_ref().map(Option::as_deref) {
            Ok(None | Some(SHARED)) => {
                self.take_over(*copy, &claim.before);
            }
            Ok(Some(other)) if other != node => {
                if let Ok(Custody::Others) = self.ask_custody(other, due) {
                    self.drop_copy(&mut self.state(), *copy);
                }
            }
            // Asked again.
            Ok(Some(_)) | Err(_) => {}
        }
    }

    fn ask_custody(&self, node: &str, due: &Due) -> io::Result<Custody> {
        let until = Instant::now() + SILENCE_MAX;
        self.elsewhere.connect(node, until)?.ask_custody(&due.file, due.generation, until)
    }

    /// Whether this node has the newest copy, as far as the others say. One that is not the newest
    /// is dropped.
    fn may_take_over(&self, due: &Due) -> bool {
        let newest = self.is_newest(due);
        let mut state = self.state();
        match newest {
            Ok(true) => {
                if let Some(kept) = state.kept.get_mut(&due.copy) {
                    kept.unanswered = None;
                }
                true
            }
            Ok(false) => {
                self.drop_copy(&mut state, due.copy);
                false
            }
            Err(e) => {
                let Some(kept) = state.kept.get_mut(&due.copy) else { return false };
                let since = *kept.unanswered.get_or_insert_with(Instant::now);
                let is_late = since.elapsed() >= ANSWERS_MAX;
                if is_late {
                    let path = String::from_utf8_lossy(&kept.record.path).into_owned();
                    tracing::warn!(path, error = %e, "takes a file over although a node does not say whether it has a newer copy");
                }
                is_late
            }
        }
    }

    /// Whether no other node has a newer copy. The file's node may have sent it there because this
    /// one did not answer, and have failed before it could take this one back.
    ///
    /// # Errors
    /// A node does not answer, and may have one.
    fn is_newest(&self, due: &Due) -> io::Result<bool> {
        let view = self.elsewhere.cluster().view();
        let may_have_it = |node: &&NodeInfo| {
            node.name != due.node
                && node.name != self.elsewhere.cluster().node()
                && !node.address.is_empty()
                && node.mounts.contains(&due.file.mount)
        };
        for node in view.cluster.nodes.iter().filter(may_have_it) {
            if self.ask_custody(&node.name, due)? == Custody::Others {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes over a file that was `claimed` here, if its copy is here; returns whether it has. That
    /// file is open as `pfs`, and shows `facts`.
    ///
    /// # Errors
    /// Another node may have a newer copy, and takes the file over.
    pub(super) fn take_over_by_name(
        &self,
        file: &DirtyFile,
        claimed: &Claim<'_>,
        (facts, pfs): (&FileFacts, BorrowedFd<'_>),
    ) -> Result<bool, Refusal> {
        let due = {
            let state = self.state();
            let kept = state.kept_file(file).filter(|(_, kept)| is_same_file(&kept.record, facts, pfs));
            kept.map(|(copy, kept)| Due::new(copy, kept))
        };
        match due {
            None => Ok(false),
            Some(due) if self.may_take_over(&due) => Ok(self.take_over(due.copy, &claimed.before)),
            Some(_) => Err(Refusal::Invalid("another node may have newer content of the file".into())),
        }
    }

    /// Makes the copy a dirty file of this node, by which the file is claimed; the last node on
    /// which it was dirty before is `before`. Returns `false` if there is no such copy, or its
    /// mount is not served.
    fn take_over(&self, copy: u64, before: &str) -> bool {
        let mut state = self.state();
        let label = state.kept.get(&copy).map(|kept| kept.record.mount.as_str());
        // Kept until its mount is served again.
        let mount = self.mounts.iter().position(|mount| Some(mount.label()) == label);
        let Some(mount) = mount else { return false };
        let Some(kept) = state.kept.remove(&copy) else { return false };
        let Kept { mut record, content, room, descriptors, is_draining, .. } = kept;
        let node = record.second.kept_for.take().unwrap_or_default();
        let generation = record.second.generation;
        // What a pass of its node has left on the PFS may be of contents that nobody has any more.
        record.is_draining = is_draining && before == node;
        record.second = SecondCopy { generation, is_disputed: true, ..SecondCopy::default() };
        if let Err(e) = record.store(&self.cache.tier, copy) {
            tracing::warn!(copy, error = %e, "cannot note that a file was taken over");
        }
        let path = String::from_utf8_lossy(&record.path).into_owned();
        tracing::warn!(
            path,
            node,
            "took over a file whose node is gone; it goes to the file system from here"
        );
        let ino = record.ino;
        let place = (record, mount);
        let account = self.traffic.account(place.0.uid, &place.0.job);
        let mut dirty = Dirty::new(copy, place, content, (room, descriptors, account), self.now());
        self.set_listed(&mut dirty, true);
        state.by_inode.insert((dirty.mount, ino), copy);
        state.files.insert(copy, dirty);
        add(&self.counters.taken_over_total, 1);
        self.changed.notify_all();
        true
    }

    /// Asks about files of an earlier agent.
    fn confirm_adopted(&self) {
        let unconfirmed: Vec<(u64, DirtyFile)> = {
            let state = self.state();
            let files = state.files.iter().filter(|(_, file)| file.copying.is_unconfirmed);
            files.map(|(copy, file)| (*copy, file.name())).collect()
        };
        for (copy, file) in unconfirmed {
            let claim = self.claims.claim(&file);
            let Ok(holder) = &claim.holder else { continue };
            let mut state = self.state();
            let Some(dirty) = state.files.get_mut(&copy) else { continue };
            dirty.copying.is_unconfirmed = false;
            if claim.was_taken() && !dirty.record.second.is_disputed {
                dirty.record.second.is_disputed = true;
                let _is_tried_again = dirty.record.store(&self.cache.tier, copy);
            }
            if let Some(node) = holder.as_ref().filter(|node| *node != SHARED) {
                self.fence(&mut state, copy, node);
            }
        }
    }
}
