//! Programs of several nodes that write one file: all of it is dirty on one of them, its *home*,
//! and those of the other nodes are *guests* there.
//!
//! A guest writes and reads by requests, which pass through its own agent to that of the home
//! (`serve/guest.rs`). There they are calls on the same content that the home's own programs write,
//! so the kernel of one node orders all of them, and what is true of a dirty file (passes, second
//! copies, rooms, sets) is true of this one. If the file is called in, guests go on at the PFS like
//! its other writers.
//!
//! A guest that has lost its connection makes another one. The number of the memory at its home
//! tells whether what it wrote before is still there; if not, all its calls fail from then on. Of
//! two connections of one guest the later one counts, so that nothing that is still on its way by
//! the earlier one comes over newer bytes.

use super::dirty_file::Stamp;
use super::elsewhere::{HOLDER_MAX, HOLDER_PAUSE, SILENCE_MAX};
use super::reopen::born_ns;
use super::{ANSWER, Drained, WriteBack};
use crate::fetch::peer_link::Link;
use crate::lock::lock;
use forebay_pfs::{FileFacts, Revalidate};
use forebay_store::dirty::{Begun, Words};
use forebay_store::{Class, Reservation};
use forebay_wire::cluster::{DirtyFile, SHARED};
use forebay_wire::peer::GuestOpening;
use forebay_wire::{GUEST_BYTES, GuestId, SecondPlace};
use rustix::fs::{OFlags, ftruncate};
use rustix::io::ReadWriteFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Nodes whose programs are guests of one file, at most: all that they write passes through one
/// link. A file that more nodes write goes to the PFS.
const NODES_MAX: usize = 8;

/// Rounds of making room for a write; others may take it in between.
const ROOM_TRIES: usize = 8;

/// An agent that makes a guest may wait for an earlier pass first.
const WELCOME_MAX: Duration = Duration::from_secs(15);

/// How long one question about a second copy or a pass is waited for.
const KEPT_MAX: Duration = Duration::from_secs(20);

/// Numbers of guests are no numbers of copies.
const GUEST_BIT: u64 = 1 << 63;

/// Guests of this node's files, and of files of other nodes.
#[derive(Debug, Default)]
pub struct Guests {
    here: Mutex<BTreeMap<u64, Known>>,
    away: Mutex<BTreeMap<u64, Arc<Away>>>,
}

/// A guest of other nodes, as its connections have it in common.
#[derive(Debug)]
struct Known {
    copy: u64,
    node: String,
    /// The number of its last connection. Held while a call is under way.
    last: Arc<Mutex<u64>>,
}

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

/// A program of this node that is a guest of another one.
#[derive(Debug)]
pub struct Away {
    /// Its names.
    pub id: GuestId,
    /// The file.
    pub file: DirtyFile,
    /// Where it is dirty.
    pub home: String,
    uid: u32,
    born_ns: Option<i64>,
    /// What the program shares with this agent.
    pub words: Words,
    /// Since when the home does not answer.
    silent: Mutex<Option<Instant>>,
}

/// Why a program is no guest.
#[derive(Debug)]
pub enum NoGuest {
    /// The file is not dirty there any more: the PFS has it.
    Refused(String),
    /// The home does not answer.
    Silent(io::Error),
    /// What it has written is lost.
    Lost(String),
}

impl Guest {
    /// # Errors
    /// A later connection counts.
    fn turn(&self) -> io::Result<MutexGuard<'_, u64>> {
        let last = lock(&self.last);
        if *last == self.own { Ok(last) } else { Err(io::Error::other("the guest has another connection")) }
    }

    /// The program has closed the file.
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

    /// Length, blocks of 512 bytes, time of the last write; `None`: as [`Guest::read`].
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
    /// Why not; the program goes on at the PFS.
    pub fn welcome(&self, node: &str, opening: &GuestOpening) -> Result<Guest, String> {
        let failed = |e: &dyn std::fmt::Display| format!("the tier failed: {e}");
        let not_here = || "it is not dirty here".to_owned();
        let mount = self.mounts.iter().position(|mount| mount.label() == opening.file.mount);
        let key = (mount.ok_or_else(not_here)?, opening.file.ino);
        let (copy, pfs) = {
            let mut state = self.state();
            let (copy, dirty) = state.known(key).ok_or_else(not_here)?;
            // The number may be another file's by now.
            let is_other =
                dirty.record.born_ns.zip(opening.born_ns).is_some_and(|(own, theirs)| own != theirs);
            if !dirty.is_listed || dirty.is_foreign || is_other {
                return Err(not_here());
            }
            (copy, dirty.pfs.clone())
        };
        let room = self.cache.reserve(Class::Clients, GUEST_BYTES as u64);
        let _room = room.ok_or("no room in the tier")?;
        let (last, own) = self.take_turn(copy, node, opening.number)?;
        let flags = OFlags::RDWR;
        let joined = self.join_known(opening.uid, key, flags, opening.truncated).ok_or_else(not_here)?;
        let joined = joined.map_err(|refusal| refusal.to_string())?;
        if let Some(facts) = pfs.and_then(|pfs| FileFacts::of(pfs.as_fd(), Revalidate::Force).ok()) {
            if facts.version.size > 0 {
                self.stamp_again(joined.copy);
            } else if opening.truncated {
                self.note_emptied(joined.copy, &facts);
            }
        }
        let words = Words::received(&joined.words).map_err(|e| failed(&e))?;
        let (copy, uid, content) = (joined.copy, opening.uid, joined.content);
        Ok(Guest { copy, uid, content, words, last, own, is_closed: false, _room })
    }

    /// Ends earlier connections of a guest.
    fn take_turn(&self, copy: u64, node: &str, number: u64) -> Result<(Arc<Mutex<u64>>, u64), String> {
        let last = {
            let mut here = lock(&self.guests.here);
            here.retain(|known, guest| *known == number || Arc::strong_count(&guest.last) > 1);
            let of_file = here.values().filter(|guest| guest.copy == copy && guest.node != node);
            if of_file.map(|guest| &guest.node).collect::<BTreeSet<_>>().len() >= NODES_MAX {
                return Err(format!("programs of {NODES_MAX} nodes write it already"));
            }
            let new = || Known { copy, node: node.to_owned(), last: Arc::default() };
            let known = here.entry(number).or_insert_with(new);
            known.copy = copy;
            known.last.clone()
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
    /// Those of the write; another connection counts.
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

    /// Cuts or extends the file for a guest; `None`: as [`WriteBack::write_for`].
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
                Begun::NoRoom => break,
            }
        }
        Ok(None)
    }

    /// The number of this node's memory.
    pub fn life(&self) -> u64 {
        // Where it has none, each is the same.
        self.cache.tier.life().unwrap_or_default()
    }

    /// Whether what was written into the memory of this number is still here.
    ///
    /// # Errors
    /// For the asker.
    pub fn is_same_life(&self, life: Option<u64>) -> Result<(), (i32, String)> {
        match life.is_none_or(|life| life == self.life()) {
            true => Ok(()),
            false => Err((libc::ESTALE, "the memory that the file was in is lost".into())),
        }
    }

    /// Mount, inode and number of a file that is dirty here, by its name.
    pub fn find(&self, name: &DirtyFile) -> Option<((usize, u64), u64)> {
        let mount = self.mounts.iter().position(|mount| mount.label() == name.mount)?;
        self.state().known((mount, name.ino)).map(|(copy, _)| ((mount, name.ino), copy))
    }

    /// Whether a file is dirty here, or was a moment ago.
    pub fn is_known(&self, mount: usize, ino: u64) -> bool {
        self.state().by_inode.contains_key(&(mount, ino))
    }

    /// The other node on which a file is dirty that a program of this node has open as `pfs`, and
    /// the file's name.
    fn home_of(&self, mount: usize, facts: &FileFacts) -> Option<(String, DirtyFile)> {
        let file = self.name_of(mount, facts.version.ino);
        let home = self.claims.holder(&file).ok()??;
        (home != SHARED).then_some((home, file))
    }

    /// Makes a program of this node, of user `uid`, a guest of the node where a file is dirty. It
    /// `resumes` another connection, or its open has `truncated` the file.
    ///
    /// # Errors
    /// Why it is none.
    pub fn become_guest(
        &self,
        uid: u32,
        (mount, facts, pfs): (usize, &FileFacts, BorrowedFd<'_>),
        truncated: bool,
        resumes: Option<GuestId>,
    ) -> Result<(Arc<Away>, Link), NoGuest> {
        let Some((home, file)) = self.home_of(mount, facts) else {
            return Err(NoGuest::Refused("it is not dirty on another node".into()));
        };
        let number = resumes.map_or_else(|| self.new_number(), |id| id.number);
        let words = Words::create().map_err(NoGuest::Silent)?;
        words.set_guest();
        let mut away = Away {
            id: GuestId { number, life: resumes.map_or(0, |id| id.life) },
            file,
            home,
            uid,
            born_ns: born_ns(pfs),
            words,
            silent: Mutex::default(),
        };
        let (link, life) = match self.connect_as(&away, truncated, Instant::now() + WELCOME_MAX) {
            Ok(connected) => connected,
            Err(NoGuest::Refused(why)) if resumes.is_none() => {
                self.call_in_from(Ok(Some(away.home)), &away.file, truncated);
                return Err(NoGuest::Refused(why));
            }
            Err(e) => return Err(e),
        };
        away.id.life = life;
        let away = Arc::new(away);
        lock(&self.guests.away).insert(number, away.clone());
        Ok((away, link))
    }

    fn new_number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let node = self.elsewhere.cluster().node();
        (node, self.cache.next_copy(), crate::mounts::wall_clock_ns()).hash(&mut hasher);
        hasher.finish() | GUEST_BIT
    }

    /// Connects a guest to its home once more; the number of the memory there.
    fn connect_as(&self, away: &Away, truncated: bool, limit: Instant) -> Result<(Link, u64), NoGuest> {
        let opening = GuestOpening {
            file: away.file.clone(),
            born_ns: away.born_ns,
            uid: away.uid,
            truncated,
            number: away.id.number,
        };
        let mut link = self.elsewhere.connect(&away.home, limit).map_err(NoGuest::Silent)?;
        let (life, refusal) = link.guest(opening, limit).map_err(NoGuest::Silent)?;
        match away.id.life {
            known if known != 0 && known != life => Err(NoGuest::Lost(away.lost())),
            _ if !refusal.is_empty() => Err(NoGuest::Refused(refusal)),
            _ => Ok((link, life)),
        }
    }

    /// As long as the home may come back, connects a guest to it again.
    ///
    /// # Errors
    /// Why it is none any more.
    pub fn reconnect(&self, away: &Away) -> Result<Link, NoGuest> {
        loop {
            match self.connect_as(away, false, Instant::now() + WELCOME_MAX) {
                Ok((link, _)) => {
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

    /// A guest of another node, by its number.
    pub fn guest_away(&self, number: u64) -> Option<Arc<Away>> {
        (number & GUEST_BIT != 0).then(|| lock(&self.guests.away).get(&number).cloned())?
    }

    /// The numbers of the guests that write a file of another node.
    pub fn guests_of(&self, mount: usize, ino: u64) -> BTreeSet<u64> {
        let file = self.name_of(mount, ino);
        let away = lock(&self.guests.away);
        away.iter().filter(|(_, guest)| guest.file == file).map(|(number, _)| *number).collect()
    }

    /// A guest has closed its file.
    pub fn forget_guest(&self, away: &Arc<Away>) {
        let mut all = lock(&self.guests.away);
        if all.get(&away.id.number).is_some_and(|known| Arc::ptr_eq(known, away)) {
            all.remove(&away.id.number);
        }
    }

    /// As [`WriteBack::call_in`], of a guest's file.
    pub(super) fn call_in_for(&self, away: &Away) -> Drained {
        self.ask_home(away, ANSWER, |link, until| {
            link.call_in(&away.file, (false, false), Some(away.id.life), until)
        })
    }

    /// Waits until the second place has a guest's file, or the PFS.
    pub fn keep_for_guest(&self, away: &Away, second: SecondPlace) -> Drained {
        self.ask_home(away, KEPT_MAX, |link, until| {
            link.keep_dirty(&away.file, Some(away.id.life), Some(second), until)
        })
    }

    /// Waits until the PFS has a file that is dirty on another node, if it is.
    pub fn sync_elsewhere(&self, mount: usize, ino: u64) -> Drained {
        let file = self.name_of(mount, ino);
        let Ok(Some(home)) = self.claims.holder(&file) else { return Drained::Yes };
        if home == SHARED {
            return Drained::Yes;
        }
        let asked = self
            .elsewhere
            .connect(&home, Instant::now() + SILENCE_MAX)
            .and_then(|mut link| link.keep_dirty(&file, None, None, Instant::now() + SILENCE_MAX));
        match asked {
            Ok(true) => Drained::Yes,
            Ok(false) => Drained::NotYet,
            Err(e) => {
                Drained::Failed(libc::EIO, format!("node {home} has newer bytes than the file system: {e}"))
            }
        }
    }

    fn ask_home(
        &self,
        away: &Away,
        patience: Duration,
        ask: impl Fn(&mut Link, Instant) -> io::Result<bool>,
    ) -> Drained {
        let until = Instant::now() + patience;
        loop {
            let asked = self.elsewhere.connect(&away.home, Instant::now() + SILENCE_MAX);
            let asked = asked.map(|mut link| {
                loop {
                    match ask(&mut link, Instant::now() + SILENCE_MAX) {
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
                // The home has answered that it cannot.
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

impl Away {
    fn note_answer(&self) {
        *lock(&self.silent) = None;
    }

    /// Whether the home has been silent for so long that it counts as gone.
    fn is_given_up(&self) -> bool {
        lock(&self.silent).get_or_insert_with(Instant::now).elapsed() > HOLDER_MAX
    }

    fn lost(&self) -> String {
        format!("node {} has lost what was written to the file before", self.home)
    }

    /// In words, why its calls fail.
    pub fn silence(&self, e: &io::Error) -> String {
        format!("node {}, which has the newest bytes of the file, does not answer: {e}", self.home)
    }
}
