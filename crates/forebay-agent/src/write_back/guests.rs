//! Programs of several nodes that write one file: all of it is dirty on one of them, its *holder*,
//! and those of the other nodes are *guests* there.
//!
//! A guest writes and reads through requests, which pass through its own agent to that of the
//! holder (`serve/guest.rs`). There they are calls on the same content that the holder's own
//! programs write, so the kernel of one node orders all of them, and what is true of a dirty file
//! (passes, second copies, rooms, sets) is true of this one. If the file is called in, guests
//! continue on the PFS like its other writers.
//!
//! A guest that has lost its connection makes another one, to the same node and the same dirty
//! file, by its number there. If the memory has another number by then, what the guest wrote is
//! lost; then, or if another node has taken the file over, all its calls fail. A file that is not
//! dirty any more in the same memory is on the PFS. Of two connections of one guest the later one
//! counts, so that nothing that is still on its way over the earlier one overwrites newer bytes.

use super::copies::Wanted;
use super::dirty_file::Stamp;
use super::elsewhere::{HOLDER_PAUSE, SILENCE_MAX};
use super::guest_tables::{Away, Known};
use super::reopen::born_ns;
use super::{ANSWER, Drained, WriteBack};
use crate::fetch::peer_link::Link;
use crate::lock::lock;
use forebay_pfs::{FileFacts, Revalidate};
use forebay_store::dirty::{Begun, Words};
use forebay_store::{Class, Reservation};
use forebay_wire::cluster::{DirtyFile, SHARED};
use forebay_wire::peer::{GuestOpening, PeerRequest, Welcomed};
use forebay_wire::{GUEST_BYTES, GuestId, SecondPlace};
use rustix::fs::{OFlags, ftruncate};
use rustix::io::ReadWriteFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Nodes whose programs are guests of one file, at most: all that they write passes through one
/// link. A file that more nodes write goes to the PFS.
const NODES_MAX: usize = 8;

/// Rounds of making room for a write; others may take it in between.
const ROOM_TRIES: usize = 8;

/// An agent that makes a guest may wait for an earlier pass first.
const WELCOME_MAX: Duration = Duration::from_secs(15);

/// How long to wait for one question about a second copy or a pass.
const KEPT_MAX: Duration = Duration::from_secs(20);

/// Guests of this node's files, at most: each has a connection.
const GUESTS_MAX: usize = 1024;

/// Set in numbers of guests, which are not numbers of copies.
const GUEST_BIT: u64 = 1 << 63;

/// One connection of a guest of another node.
#[derive(Debug)]
pub struct Guest {
    copy: u64,
    uid: u32,
    content: OwnedFd,
    words: Words,
    last: Arc<Mutex<u64>>,
    own: u64,
    is_closed: bool,
    /// The buffer of its connection.
    _room: Reservation,
}

/// What a question of another node waits for; the next one continues with it.
#[derive(Debug)]
pub enum Waits {
    /// Second copies.
    Copy(Wanted),
    /// Passes.
    Pass(BTreeMap<u64, u64>),
}

/// Why a program is not a guest.
#[derive(Debug)]
pub enum NoGuest {
    /// Not now; what it wrote, if anything, is at its holder.
    Refused(String),
    /// The PFS has what it wrote.
    OnPfs,
    /// The holder does not answer.
    Silent(io::Error),
    /// What it has written is lost.
    Lost(String),
}

impl Guest {
    /// Takes the turn of this connection.
    ///
    /// # Errors
    /// [`is_replaced`]: a later connection counts.
    fn turn(&self) -> io::Result<MutexGuard<'_, u64>> {
        let last = lock(&self.last);
        if *last == self.own { Ok(last) } else { Err(io::ErrorKind::ConnectionAborted.into()) }
    }

    /// Number of the dirty file.
    pub fn copy(&self) -> u64 {
        self.copy
    }

    /// Notes that the program has closed the file.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Reads as much as there is; `None`: the file goes to the PFS.
    ///
    /// # Errors
    /// Another connection counts.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let _turn = self.turn()?;
        if self.words.is_called_in() {
            return Ok(None);
        }
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(&self.content, &mut buffer[done..], offset + done as u64)? {
                0 => break,
                read => done += read,
            }
        }
        Ok(Some(done))
    }

    /// Length, blocks of 512 bytes, mtime; `None`: as [`Guest::read`].
    ///
    /// # Errors
    /// As [`Guest::read`].
    pub fn stat(&self) -> io::Result<Option<(u64, u64, i64)>> {
        let _turn = self.turn()?;
        if self.words.is_called_in() {
            return Ok(None);
        }
        let stamp = Stamp::of(&self.content)?;
        Ok(Some((stamp.size, stamp.bytes / 512, stamp.mtime_ns)))
    }
}

/// Whether a guest's call has failed because a later connection counts.
pub fn is_replaced(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::ConnectionAborted && e.raw_os_error().is_none()
}

impl Drop for Guest {
    fn drop(&mut self) {
        if self.is_closed {
            self.words.note_closed();
        }
    }
}

impl WriteBack {
    /// Makes a program of `node` a guest of a file that is dirty here.
    ///
    /// # Errors
    /// Why it is not a guest.
    pub fn welcome(&self, node: &str, opening: &GuestOpening) -> Result<Guest, Welcomed> {
        let (copy, key) = self.find_for(opening)?;
        let resumes = opening.copy.is_some();
        let no = |why: &str| Welcomed::No(why.to_owned());
        let room = self.cache.reserve(Class::Clients, GUEST_BYTES as u64);
        // One that was here before has had its room.
        let existing = || self.cache.budget.reserve_existing(Class::Clients, GUEST_BYTES as u64);
        let room = room.or_else(|| resumes.then(existing)).ok_or_else(|| no("no room in the tier"))?;
        let (last, own) = self.take_turn(copy, node, opening)?;
        let joined = self.join_known(opening.uid, key, OFlags::RDWR, opening.truncated);
        let joined = joined.ok_or(Welcomed::NotDirty)?.map_err(|refusal| no(&refusal.to_string()))?;
        if resumes && joined.copy != copy {
            return Err(Welcomed::NotDirty);
        }
        if !resumes {
            self.note_opened_elsewhere(joined.copy, opening.truncated);
        }
        let words = Words::received(&joined.words).map_err(|e| no(&e.to_string()))?;
        let (copy, uid, content) = (joined.copy, opening.uid, joined.content);
        Ok(Guest { copy, uid, content, words, last, own, is_closed: false, _room: room })
    }

    /// The dirty file that a guest means, with mount and inode.
    fn find_for(&self, opening: &GuestOpening) -> Result<(u64, (usize, u64)), Welcomed> {
        let mut state = self.state();
        if let Some(copy) = opening.copy {
            let known =
                state.files.get(&copy).filter(|dirty| dirty.is_dirty() && dirty.name() == opening.file);
            let dirty = known.ok_or(Welcomed::NotDirty)?;
            let key = (dirty.mount, dirty.record.ino);
            return match dirty.record.second.is_fenced || state.by_inode.get(&key) != Some(&copy) {
                true => Err(Welcomed::Lost(dirty.error.clone())),
                false => Ok((copy, key)),
            };
        }
        let mount = self.mounts.iter().position(|mount| mount.label() == opening.file.mount);
        let key = (mount.ok_or(Welcomed::NotDirty)?, opening.file.ino);
        let (copy, dirty) = state.known(key).ok_or(Welcomed::NotDirty)?;
        // The number may be another file's by now.
        let is_other = dirty.record.born_ns.zip(opening.born_ns).is_some_and(|(own, theirs)| own != theirs);
        match dirty.is_listed && !dirty.is_foreign && !is_other {
            true => Ok((copy, key)),
            false => Err(Welcomed::NotDirty),
        }
    }

    /// Notes that a program of another node has opened the dirty file `copy`, and may have emptied
    /// it.
    fn note_opened_elsewhere(&self, copy: u64, truncated: bool) {
        let pfs = self.state().files.get(&copy).and_then(|file| file.pfs.clone());
        let facts = pfs.and_then(|pfs| FileFacts::of(pfs.as_fd(), Revalidate::Force).ok());
        match facts {
            Some(facts) if facts.version.size > 0 => self.stamp_again(copy),
            Some(facts) if truncated => self.note_emptied(copy, &facts),
            _ => {}
        }
    }

    /// Ends earlier connections of a guest.
    fn take_turn(
        &self,
        copy: u64,
        node: &str,
        opening: &GuestOpening,
    ) -> Result<(Arc<Mutex<u64>>, u64), Welcomed> {
        let number = opening.number;
        let last = {
            let mut here = lock(&self.guests.here);
            here.retain(|known, guest| *known == number || Arc::strong_count(&guest.last) > 1);
            let others = here.values().filter(|guest| guest.copy == copy && guest.node != node);
            let nodes = others.map(|guest| &guest.node).collect::<BTreeSet<_>>().len();
            if opening.copy.is_none() && (nodes >= NODES_MAX || here.len() >= GUESTS_MAX) {
                return Err(Welcomed::No("too many programs of other nodes write files of this node".into()));
            }
            let new = || Known { copy, node: node.to_owned(), last: Arc::default() };
            here.entry(number).or_insert_with(new).last.clone()
        };
        let own = {
            let mut last = lock(&last);
            *last += 1;
            *last
        };
        Ok((last, own))
    }

    /// Writes for a guest; `None`: nothing was written, and the file goes to the PFS.
    ///
    /// # Errors
    /// Errors of the write; another connection counts.
    pub fn write_for(
        &self,
        guest: &Guest,
        bytes: &[u8],
        offset: u64,
        appends: bool,
    ) -> io::Result<Option<u64>> {
        let how = if appends { ReadWriteFlags::APPEND } else { ReadWriteFlags::empty() };
        self.change_for(guest, bytes.len() as u64, |content| {
            let mut done = 0;
            while done < bytes.len() {
                let at = offset + done as u64;
                match rustix::io::pwritev2(content, &[IoSlice::new(&bytes[done..])], at, how) {
                    Ok(0) => break,
                    Ok(written) => done += written,
                    Err(_) if done > 0 => break,
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(done as u64)
        })
    }

    /// Truncates or extends the file for a guest; `None`: as [`WriteBack::write_for`].
    ///
    /// # Errors
    /// As [`WriteBack::write_for`].
    pub fn cut_for(&self, guest: &Guest, size: u64) -> io::Result<Option<u64>> {
        self.change_for(guest, 0, |content| Ok(ftruncate(content, size).map(|()| 0)?))
    }

    fn change_for(
        &self,
        guest: &Guest,
        bytes: u64,
        change: impl FnOnce(BorrowedFd<'_>) -> io::Result<u64>,
    ) -> io::Result<Option<u64>> {
        let _turn = guest.turn()?;
        for _ in 0..ROOM_TRIES {
            match guest.words.begin_write(bytes) {
                Begun::Yes => {
                    let changed = change(guest.content.as_fd());
                    guest.words.end_write();
                    return changed.map(Some);
                }
                Begun::CalledIn => return Ok(None),
                Begun::NoRoom if self.make_room(guest.uid, guest.copy, bytes).is_ok() => {}
                // Others store to it through mappings, and cannot continue elsewhere.
                Begun::NoRoom if guest.words.is_mapped() => {
                    guest.words.begin_anyway();
                    let changed = change(guest.content.as_fd());
                    guest.words.end_write();
                    return changed.map(Some);
                }
                Begun::NoRoom => break,
            }
        }
        Ok(None)
    }

    /// The number of this node's memory.
    pub fn life(&self) -> u64 {
        self.cache.tier.life()
    }

    /// Whether a guest's file, by its number in the memory `life`, is dirty here; false: the PFS
    /// has what the guest wrote.
    ///
    /// # Errors
    /// What it wrote is lost, or is not the file's any more: for the asker.
    pub fn has_for_guest(&self, file: &DirtyFile, life: u64, copy: u64) -> Result<bool, (i32, String)> {
        if life != self.life() {
            return Err((libc::ESTALE, "the memory that the file was in is lost".into()));
        }
        let state = self.state();
        let known = state.files.get(&copy).filter(|dirty| dirty.is_dirty() && dirty.name() == *file);
        let Some(dirty) = known else { return Ok(false) };
        if dirty.record.second.is_fenced {
            return Err((libc::ESTALE, dirty.error.clone()));
        }
        Ok(true)
    }

    /// Mount and inode of a file that is dirty here, by its name.
    pub fn find(&self, name: &DirtyFile) -> Option<(usize, u64)> {
        let mount = self.mounts.iter().position(|mount| mount.label() == name.mount)?;
        let key = (mount, name.ino);
        self.state().by_inode.contains_key(&key).then_some(key)
    }

    /// Whether a file is dirty here, or was a moment ago.
    pub fn is_known(&self, mount: usize, ino: u64) -> bool {
        self.state().by_inode.contains_key(&(mount, ino))
    }

    /// Makes a program on this node, of user `uid`, a guest of the node where a file is dirty. It
    /// `resumes` another connection, or its open, by the thread `caller`, has `truncated` the file.
    ///
    /// # Errors
    /// Why it is not a guest.
    pub fn become_guest(
        &self,
        uid: u32,
        (mount, facts, pfs): (usize, &FileFacts, BorrowedFd<'_>),
        (truncated, caller): (bool, u32),
        resumes: Option<GuestId>,
    ) -> Result<(Arc<Away>, Option<Link>), NoGuest> {
        let file = self.name_of(mount, facts.version.ino);
        let is_resumed = resumes.is_some();
        let id = match resumes {
            // A program may make one up, and must not get the place of another user's.
            Some(id) if !self.may_resume(uid, id.number) => {
                return Err(NoGuest::Lost("the guest is another user's".into()));
            }
            Some(id) => id,
            None => match self.claims.holder(&file) {
                Ok(Some(holder)) if holder != SHARED => {
                    GuestId { number: self.new_number(), holder, life: 0, copy: 0 }
                }
                _ => return Err(NoGuest::OnPfs),
            },
        };
        let words = Words::create().map_err(NoGuest::Silent)?;
        words.set_guest();
        let (born_ns, caller, silent) = (born_ns(pfs), AtomicU32::new(caller), Mutex::default());
        let mut away = Away { id, file, uid, born_ns, words, caller, silent };
        let link = match self.connect_as(&away, truncated) {
            Ok((link, life, copy)) => {
                (away.id.life, away.id.copy) = (life, copy);
                Some(link)
            }
            // It asks for its file, and hears what has become of it.
            Err(NoGuest::OnPfs | NoGuest::Refused(_)) if is_resumed => None,
            Err(e) => return Err(e),
        };
        let away = Arc::new(away);
        self.guests.note(uid, &away.file);
        lock(&self.guests.away).insert(away.id.number, away.clone());
        Ok((away, link))
    }

    fn may_resume(&self, uid: u32, number: u64) -> bool {
        Self::is_guest(number) && self.guest_away(number).is_none_or(|away| away.uid == uid)
    }

    fn new_number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let node = self.elsewhere.cluster().node();
        (node, self.cache.next_copy(), crate::mounts::wall_clock_ns()).hash(&mut hasher);
        hasher.finish() | GUEST_BIT
    }

    /// Connects a guest to its holder; returns also the numbers of the memory there and of the
    /// file.
    fn connect_as(&self, away: &Away, truncated: bool) -> Result<(Link, u64, u64), NoGuest> {
        let opening = GuestOpening {
            file: away.file.clone(),
            born_ns: away.born_ns,
            uid: away.uid,
            truncated,
            number: away.id.number,
            copy: (away.id.copy != 0).then_some(away.id.copy),
        };
        let limit = Instant::now() + SILENCE_MAX;
        let mut link = self.elsewhere.connect(&away.id.holder, limit).map_err(NoGuest::Silent)?;
        let (life, welcomed) = link.guest(opening, Instant::now() + WELCOME_MAX).map_err(NoGuest::Silent)?;
        if away.id.life != 0 && away.id.life != life {
            return Err(NoGuest::Lost(away.lost()));
        }
        match welcomed {
            Welcomed::Yes(copy) => Ok((link, life, copy)),
            Welcomed::NotDirty => Err(NoGuest::OnPfs),
            Welcomed::No(why) => Err(NoGuest::Refused(why)),
            Welcomed::Lost(why) => Err(NoGuest::Lost(why)),
        }
    }

    /// As long as the holder may come back, connects a guest to it again.
    ///
    /// # Errors
    /// Why it is no longer a guest.
    pub fn reconnect(&self, away: &Arc<Away>) -> Result<Link, NoGuest> {
        loop {
            if !self.is_current(away) {
                return Err(NoGuest::Lost("the guest has another connection".into()));
            }
            match self.connect_as(away, false) {
                Ok((link, ..)) => {
                    away.note_answer();
                    return Ok(link);
                }
                Err(NoGuest::Silent(e)) if away.is_given_up() || self.stop.is_stopping() => {
                    return Err(NoGuest::Silent(e));
                }
                Err(NoGuest::Silent(_)) => std::thread::sleep(HOLDER_PAUSE),
                Err(e) => return Err(e),
            }
        }
    }

    /// Whether no later connection of a program here has taken a guest's place.
    fn is_current(&self, away: &Arc<Away>) -> bool {
        lock(&self.guests.away).get(&away.id.number).is_some_and(|known| Arc::ptr_eq(known, away))
    }

    /// Whether a number is that of a guest, known here or not.
    pub fn is_guest(number: u64) -> bool {
        number & GUEST_BIT != 0
    }

    /// The guest whose file was just opened by a thread, which may open others.
    pub fn take_guest_of(&self, caller: u32) -> Option<Arc<Away>> {
        let away = lock(&self.guests.away);
        let own = |away: &&Arc<Away>| {
            away.caller.compare_exchange(caller, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        away.values().find(own).cloned()
    }

    /// A guest of another node, by its number.
    pub fn guest_away(&self, number: u64) -> Option<Arc<Away>> {
        lock(&self.guests.away).get(&number).cloned()
    }

    /// Notes that a guest has closed its file.
    pub fn forget_guest(&self, away: &Arc<Away>) {
        let mut all = lock(&self.guests.away);
        if all.get(&away.id.number).is_some_and(|known| Arc::ptr_eq(known, away)) {
            all.remove(&away.id.number);
        }
    }

    /// As [`WriteBack::call_in`], for a guest's file.
    pub(super) fn call_in_for(&self, away: &Away) -> Drained {
        let (file, life, copy) = (away.file.clone(), away.id.life, away.id.copy);
        self.ask_holder(away, ANSWER, &PeerRequest::CallInForGuest { file, life, copy })
    }

    /// Waits until the second place has a guest's file, or the PFS.
    pub fn keep_for_guest(&self, away: &Away, second: SecondPlace) -> Drained {
        let (file, life, copy) = (away.file.clone(), away.id.life, away.id.copy);
        self.ask_holder(away, KEPT_MAX, &PeerRequest::KeepForGuest { file, life, copy, second })
    }

    /// What [`WriteBack::sync_elsewhere`] waits for: one file, by mount and inode, unless it is
    /// dirty here; or what programs of the user have written as guests.
    pub fn to_sync_elsewhere(&self, uid: u32, file: Option<(usize, u64)>) -> BTreeSet<DirtyFile> {
        match file {
            Some((mount, ino)) if self.is_known(mount, ino) => BTreeSet::new(),
            Some((mount, ino)) => BTreeSet::from([self.name_of(mount, ino)]),
            None => self.guests.written(|user| user == uid || self.shares.is_operator(uid)),
        }
    }

    /// Waits until the PFS has files that are dirty on other nodes, and takes out what is done.
    pub fn sync_elsewhere(&self, wanted: &mut BTreeSet<DirtyFile>) -> Drained {
        let limit = Instant::now() + ANSWER;
        while let Some(file) = wanted.first() {
            match self.sync_one_elsewhere(file) {
                Drained::Yes => self.guests.forget(file),
                other => return other,
            }
            wanted.pop_first();
            if Instant::now() >= limit && !wanted.is_empty() {
                return Drained::NotYet;
            }
        }
        Drained::Yes
    }

    fn sync_one_elsewhere(&self, file: &DirtyFile) -> Drained {
        let holder = match self.claims.holder(file) {
            Ok(Some(holder)) if holder != SHARED => holder,
            Ok(_) => return Drained::Yes,
            Err(e) => {
                let why = format!("nobody says whether another node has newer bytes: {e}");
                return Drained::Failed(libc::EAGAIN, why);
            }
        };
        let asked = self.elsewhere.connect(&holder, Instant::now() + SILENCE_MAX).and_then(|mut link| {
            link.ask_until_done(&PeerRequest::SyncDirty(file.clone()), Instant::now() + SILENCE_MAX)
        });
        match asked {
            Ok(true) => Drained::Yes,
            Ok(false) => Drained::NotYet,
            Err(e) => {
                Drained::Failed(libc::EIO, format!("node {holder} has newer bytes than the file system: {e}"))
            }
        }
    }

    fn ask_holder(&self, away: &Away, patience: Duration, request: &PeerRequest) -> Drained {
        let until = Instant::now() + patience;
        loop {
            let asked = self.elsewhere.connect(&away.id.holder, Instant::now() + SILENCE_MAX);
            let asked = asked.map(|mut link| {
                loop {
                    match link.ask_until_done(request, Instant::now() + SILENCE_MAX) {
                        Ok(false) if Instant::now() < until => {}
                        answered => return answered,
                    }
                }
            });
            match asked {
                Ok(Ok(is_done)) => {
                    away.note_answer();
                    return if is_done { Drained::Yes } else { Drained::NotYet };
                }
                Ok(Err(e)) if e.kind() == io::ErrorKind::StaleNetworkFileHandle => {
                    return Drained::Failed(libc::EIO, away.lost());
                }
                // The holder has answered that it cannot.
                Ok(Err(e)) if e.get_ref().is_some() => return Drained::Failed(libc::EIO, e.to_string()),
                Ok(Err(e)) | Err(e) if away.is_given_up() || self.stop.is_stopping() => {
                    return Drained::Failed(libc::EIO, away.silence(&e));
                }
                _ if Instant::now() >= until => return Drained::NotYet,
                _ => std::thread::sleep(HOLDER_PAUSE),
            }
        }
    }
}
