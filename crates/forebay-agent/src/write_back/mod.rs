//! Write-back: files that programs write at memory speed, and that this agent writes to the PFS.
//!
//! A program opens its file on the PFS with its own rights, so the name exists immediately and a
//! missing right is an error immediately. If the file is empty then, the program gets the *content*
//! to write in its place: a file of the tier ([`forebay_store::dirty`]). Once all have closed it, a
//! *pass* writes it to the PFS through the descriptor that came with it, around the I/O phases of
//! HPC jobs as a load does. After that the content becomes a cached copy of the version that is on
//! the PFS.
//!
//! | file | what it does |
//! | --- | --- |
//! | `dirty_file`, `kept_file` | one dirty file, one second copy |
//! | `pass`, `mark` | writes one to the PFS |
//! | `clean` | makes one a copy |
//! | `adopt`, `reopen` | takes over those of an earlier agent |
//! | `elsewhere`, `newest` | those of other nodes |
//! | `guests`, `guest_tables` | those that programs of several nodes write |
//! | `copies` | makes second copies of files: on other nodes, or in the log on a disk |
//! | `kept` | keeps second copies of files of other nodes, and takes the files over |
//! | `sets`, `followed`, `pattern` | sets of checkpoints that stay |
//! | `checkpoints`, `marker` | pins the copies of those sets, and writes their markers |

mod adopt;
pub mod checkpoints;
mod clean;
pub mod copies;
mod dirty_file;
pub mod elsewhere;
mod followed;
pub mod guest_tables;
pub mod guests;
mod kept;
mod kept_file;
mod mark;
mod marker;
pub mod newest;
mod pass;
mod pattern;
mod reopen;
pub mod sets;

use crate::cache::Cache;
use crate::config::{Config, Live};
use crate::coordinator::claims::Claims;
use crate::counters::{Counters, add};
use crate::fetch::Fetch;
use crate::lock::lock;
use crate::mounts::MountState;
use crate::mounts::admit::Admitted;
use crate::mounts::opened_path::opened_path;
use crate::scheduler::Scheduler;
use crate::stop::Stop;
use crate::traffic::account::Account;
use crate::traffic::jobs::Traffic;
use crate::user_limits::{Kind, Shares};
use dirty_file::{Dirty, Phase, Stamp};
use elsewhere::Elsewhere;
use followed::Checkpoints;
use forebay_pfs::lease::{Opened, Writers, writers};
use forebay_pfs::{FileFacts, Revalidate};
use forebay_policy::drain;
use forebay_policy::machine::Nanos;
use forebay_store::Class;
use forebay_store::dirty::{DirtyRecord, SecondCopy, Words};
use forebay_store::dirty_index::DirtyIndex;
use forebay_store::dirty_log::DirtyLog;
use forebay_wire::cluster::DirtyFile;
use forebay_wire::cluster::SHARED;
use forebay_wire::{DirtyStatus, GuestMode, MAX_PACKET_BYTES, Refusal};
use guest_tables::Guests;
use kept_file::Kept;
use rustix::fs::{OFlags, Uid, fchown, ftruncate};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a dirty file costs besides its bytes: two inodes, their names, the words, this record.
const FILE_BYTES: u64 = 16 << 10;

/// Descriptors of each dirty file: the content, and the file on the PFS.
const FILE_DESCRIPTORS: u64 = 2;

/// Room is reserved ahead of a writer: as much as it has written, within these bounds.
const LEAST_AHEAD_BYTES: u64 = 1 << 20;
const MOST_AHEAD_BYTES: u64 = 256 << 20;

/// How often open files are looked at. A writer at 5 GB/s writes 50 MB meanwhile.
const LOOK_AT_OPEN: Duration = Duration::from_millis(10);
const LOOK_AT_REST: Duration = Duration::from_millis(100);

/// A file that is open for longer continues on the PFS: what is written must not stay in memory
/// alone for as long as a program likes.
const OPEN_MAX: Duration = Duration::from_secs(300);

/// A write that is announced for longer than this without an end was that of a program that is
/// gone.
const WRITE_MAX: Duration = Duration::from_secs(5);

/// How long an opener of a file that was called in waits for its pass.
const CALLED_IN_MAX: Duration = Duration::from_secs(8);

/// A waiter asks again within this time.
const AWAITED: Duration = Duration::from_secs(3);

/// The kernel's clock for time stamps moves more often than this.
const SETTLED: Duration = Duration::from_millis(50);

/// How long to wait for one question.
const ANSWER: Duration = Duration::from_secs(1);

/// The dirty files of this node.
#[derive(Debug)]
pub struct WriteBack {
    mounts: Arc<[MountState]>,
    cache: Arc<Cache>,
    shares: Arc<Shares>,
    counters: Arc<Counters>,
    scheduler: Arc<Scheduler>,
    traffic: Arc<Traffic>,
    stop: Arc<Stop>,
    index: Option<DirtyIndex>,
    /// Second copies on a disk of this node.
    log: Option<DirtyLog>,
    claims: Arc<Claims>,
    elsewhere: Elsewhere,
    guests: Guests,
    /// One for each mount; held while this agent looks at the times of a file on the PFS and sets
    /// them.
    stamping: Vec<Mutex<()>>,
    started: Instant,
    state: Mutex<State>,
    changed: Condvar,
    /// Second copies that other nodes need not keep: node, file, generation.
    releases: Mutex<Vec<(String, DirtyFile, u64)>>,
    /// Sets of checkpoints. Locked after the state, not before.
    checkpoints: Mutex<Checkpoints>,
    live: Arc<Live<Config>>,
    /// Held while a marker is written or removed.
    marking: Mutex<()>,
    /// Files of the log that are not needed any more.
    log_removals: Mutex<Vec<u64>>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, Dirty>,
    /// Files by mount and inode, including those that are clean and not copies yet.
    by_inode: HashMap<(usize, u64), u64>,
    /// How many were taken out.
    removals: u64,
    /// What the machine has heard of dirty files, and of the room of their owners.
    reported: BTreeMap<u64, drain::File>,
    rooms: BTreeMap<drain::Owner, u64>,
    /// Files of a PFS that are to be closed without the lock.
    closing: Vec<Arc<OwnedFd>>,
    /// Second copies of files of other nodes, by their number.
    kept: BTreeMap<u64, Kept>,
}

impl State {
    /// The file of a mount and inode, with its number.
    fn known(&mut self, key: (usize, u64)) -> Option<(u64, &mut Dirty)> {
        let copy = *self.by_inode.get(&key)?;
        Some((copy, self.files.get_mut(&copy)?))
    }
}

/// The content of a dirty file, as another node gets it.
#[derive(Debug)]
pub struct ContentNow {
    /// Its length.
    pub size: u64,
    /// Its mtime, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The next change will show another time.
    pub is_settled: bool,
    /// Open for reading.
    pub content: OwnedFd,
}

/// How a program has opened a file.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Its flags.
    pub flags: OFlags,
    /// The open has emptied the file.
    pub truncated: bool,
    /// What the program can do if the file is dirty on another node.
    pub guest: GuestMode,
}

/// Where what a program writes goes.
#[derive(Debug)]
pub enum Taken {
    /// Into this content.
    Here(Absorbed),
    /// The file is dirty on another node, and the program can be a guest there.
    Elsewhere,
}

/// The content of a file that a program writes.
#[derive(Debug)]
pub struct Absorbed {
    /// Number of the dirty file.
    pub copy: u64,
    /// Its length.
    pub size: u64,
    /// The content, open as the program has opened its file.
    pub content: OwnedFd,
    /// What it shares with the agent.
    pub words: OwnedFd,
}

/// What has come of waiting for the PFS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drained {
    /// The PFS has it.
    Yes,
    /// Not yet.
    NotYet,
    /// A pass has failed.
    Failed(i32, String),
}

impl WriteBack {
    /// Starts with nothing dirty. Programs look into the table at `index`; `log` takes second
    /// copies.
    pub fn new(
        fetch: &Fetch,
        shares: Arc<Shares>,
        stop: Arc<Stop>,
        (index, log, live): (&Path, Option<DirtyLog>, Arc<Live<Config>>),
        elsewhere: Elsewhere,
    ) -> Self {
        let index = DirtyIndex::create(index, elsewhere.claims().are_others()).inspect_err(|e| {
            tracing::warn!(path = %index.display(), error = %e, "no write-back: programs could not see what is dirty");
        });
        WriteBack {
            mounts: fetch.mounts.clone(),
            cache: fetch.cache.clone(),
            shares,
            counters: fetch.counters.clone(),
            scheduler: fetch.scheduler.clone(),
            traffic: fetch.traffic.clone(),
            stop,
            index: index.ok(),
            log,
            claims: elsewhere.claims().clone(),
            elsewhere,
            guests: Guests::default(),
            stamping: fetch.mounts.iter().map(|_| Mutex::default()).collect(),
            started: fetch.scheduler.started(),
            state: Mutex::default(),
            changed: Condvar::new(),
            releases: Mutex::default(),
            checkpoints: Mutex::default(),
            live,
            marking: Mutex::default(),
            log_removals: Mutex::default(),
        }
    }

    /// Lets another agent have the log, for a process about to end.
    pub fn release_log(&self) {
        self.log.iter().for_each(DirtyLog::release);
    }

    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Gives the content of a file to a program, perhaps of a job, that has opened the file for
    /// writing while it was empty or dirty: what the program writes goes there. It writes for
    /// `account`. `pfs` is the file, open for writing at any offset. A file that is not dirty
    /// becomes dirty only if that `is_wanted`.
    ///
    /// # Errors
    /// It is to write to the PFS: no room, no agent of its own, a file that is not empty.
    pub fn absorb(
        &self,
        (job, account): (Option<&str>, Arc<Account>),
        file: &Admitted,
        pfs: OwnedFd,
        is_wanted: bool,
        opening: Opening,
    ) -> Result<Taken, Refusal> {
        let uid = account.name.user;
        let path = opened_path(pfs.as_fd());
        let again = if opening.truncated { pfs.try_clone().ok() } else { None };
        let clean = self.clean_version((file.mount, file.facts.version.ino));
        let mut absorbed = self.absorb_or_not(&account, file, pfs, is_wanted, opening);
        if absorbed.is_err()
            && let Some(pfs) = again
            && let Some(facts) = self.empty_again(file.mount, pfs.as_fd(), clean)
        {
            absorbed = self.absorb_or_not(&account, &Admitted { facts, ..*file }, pfs, is_wanted, opening);
        }
        match &absorbed {
            Ok(Taken::Here(absorbed)) => self.note_opened(uid, job, absorbed.copy),
            Ok(Taken::Elsewhere) => {}
            Err(_) if is_wanted && file.facts.version.size == 0 => {
                self.note_past((uid, job), (self.mounts[file.mount].label(), file.facts.version.ino, &path));
            }
            Err(_) => {}
        }
        absorbed
    }

    /// Length and mtime that a pass of this agent has left.
    fn clean_version(&self, key: (usize, u64)) -> Option<(u64, i64)> {
        match self.state().known(key)?.1.phase {
            Phase::Clean(facts) => Some((facts.version.size, facts.version.mtime_ns)),
            _ => None,
        }
    }

    /// Empties a file again that a program's open, which has not returned yet, has emptied, if its
    /// content now is what a pass has left since, or `clean`. Returns what the PFS shows then.
    fn empty_again(&self, mount: usize, pfs: BorrowedFd<'_>, clean: Option<(u64, i64)>) -> Option<FileFacts> {
        let _stamping = lock(&self.stamping[mount]);
        let version = FileFacts::of(pfs, Revalidate::Force).ok()?.version;
        let shown = Some((version.size, version.mtime_ns));
        if version.size == 0 || shown != clean && shown != mark::marked_version(pfs) {
            return None;
        }
        ftruncate(pfs, 0).ok()?;
        FileFacts::of(pfs, Revalidate::Force).ok()
    }

    fn absorb_or_not(
        &self,
        account: &Arc<Account>,
        file: &Admitted,
        pfs: OwnedFd,
        is_wanted: bool,
        opening: Opening,
    ) -> Result<Taken, Refusal> {
        let Opening { flags, truncated, guest } = opening;
        let uid = account.name.user;
        let invalid = |why: &str| Refusal::Invalid(why.into());
        if self.index.is_none() {
            return Err(invalid("write-back is not possible on this node"));
        }
        if !self.mounts[file.mount].is_mounted() {
            return Err(Refusal::NotOnMount);
        }
        let key = (file.mount, file.facts.version.ino);
        let name = self.name_of(file.mount, file.facts.version.ino);
        let is_dirty_at = |holder: &str| holder != SHARED;
        if guest == GuestMode::RequestsOnly {
            let holder = self.claims.holder(&name).ok().flatten().filter(|holder| is_dirty_at(holder));
            return holder
                .map(|_| Taken::Elsewhere)
                .ok_or_else(|| invalid("it is not dirty on another node"));
        }
        self.disown_other(key, &file.facts, pfs.as_fd());
        if let Some(joined) = self.join_known(uid, key, flags, truncated) {
            match &joined {
                Ok(absorbed) if file.facts.version.size > 0 => self.stamp_again(absorbed.copy),
                Ok(absorbed) if truncated => self.note_emptied(absorbed.copy, &file.facts),
                _ => {}
            }
            return joined.map(Taken::Here);
        }
        let becomes_dirty = is_wanted && file.facts.version.size == 0;
        if !becomes_dirty {
            let holder = self.claims.holder_for_writer(&name, truncated);
            if is_wanted && matches!(&holder, Ok(Some(holder)) if is_dirty_at(holder)) {
                return Ok(Taken::Elsewhere);
            }
            self.call_in_from(holder, &name, truncated);
            return Err(invalid("the file is not empty, or not to be absorbed"));
        }
        let claim = self.claims.claim(&name);
        match &claim.holder {
            Err(e) => Err(Refusal::Invalid(format!("other nodes would not find what is written: {e}"))),
            Ok(None) if self.take_over_by_name(&name, &claim, (&file.facts, pfs.as_fd()))? => {
                let joined = self.join_known(uid, key, flags, truncated);
                let joined = joined.unwrap_or_else(|| Err(invalid("the file has just been written")));
                joined.map(Taken::Here)
            }
            Ok(None) => self.absorb_new((account, key), file, pfs, flags).map(Taken::Here),
            Ok(Some(holder)) if is_dirty_at(holder) => Ok(Taken::Elsewhere),
            Ok(Some(_)) => Err(invalid("programs of several nodes write the file")),
        }
    }

    /// Notes that a program on this node has emptied a dirty file on the PFS, so that nobody's
    /// bytes are there: what its pass finds is as that program has left it.
    fn note_emptied(&self, copy: u64, facts: &FileFacts) {
        let mut state = self.state();
        let Some(file) = state.files.get_mut(&copy).filter(|file| !file.is_draining) else { return };
        file.record.left = (facts.version.size, facts.version.mtime_ns);
        file.record.second.is_disputed = false;
        // The next agent would compare it once more.
        let _is_tried_again = file.record.store(&self.cache.tier, copy);
    }

    /// Calls in a file that is dirty on another node, since the program that has opened it cannot
    /// be a guest there.
    pub fn refuse_guest(&self, file: &Admitted, truncated: bool) {
        let name = self.name_of(file.mount, file.facts.version.ino);
        self.call_in_from(self.claims.holder(&name), &name, truncated);
    }

    /// Has another node on which a file is dirty write it to the PFS, as programs here do, or hear
    /// that what it has is older.
    fn call_in_from(&self, holder: io::Result<Option<String>>, name: &DirtyFile, truncated: bool) {
        if let Ok(Some(holder)) = holder.as_ref().map(|node| node.as_ref().filter(|node| *node != SHARED)) {
            let is_called_in = self.elsewhere.call_in(holder, name, truncated, CALLED_IN_MAX, true);
            if !is_called_in {
                self.claims.note_written(name);
            }
        }
    }

    /// Absorbs a file that is empty and claimed.
    fn absorb_new(
        &self,
        (account, key): (&Arc<Account>, (usize, u64)),
        file: &Admitted,
        pfs: OwnedFd,
        flags: OFlags,
    ) -> Result<Absorbed, Refusal> {
        let uid = account.name.user;
        let invalid = |why: &str| Refusal::Invalid(why.into());
        let room = self.hold(uid, FILE_BYTES + LEAST_AHEAD_BYTES)?;
        let descriptors = self.shares.share(Kind::Descriptors, uid, FILE_DESCRIPTORS)?;
        let copy = self.cache.next_copy();
        let record = DirtyRecord {
            mount: self.mounts[file.mount].label().to_owned(),
            path: opened_path(pfs.as_fd()),
            dev: file.facts.dev,
            ino: file.facts.version.ino,
            born_ns: reopen::born_ns(pfs.as_fd()),
            uid,
            since_ns: crate::mounts::wall_clock_ns(),
            left: (0, file.facts.version.mtime_ns),
            is_draining: false,
            leaves: None,
            second: SecondCopy::default(),
            job: account.name.job.clone(),
        };
        let tier = &self.cache.tier;
        let made = tier.create_copy(copy).and_then(|content| {
            // So that its user can open it again through `/dev/stdout` and its kind. The agent
            // takes it back before others may read it.
            if !self.shares.is_operator(uid) {
                fchown(&content, Some(Uid::from_raw(uid)), None)?;
            }
            record.store(tier, copy)?;
            Ok((tier.open_dirty(copy, OFlags::RDONLY)?, Words::create()?))
        });
        let (content, words) = made.map_err(|e| {
            tracing::warn!(error = %e, "a file cannot be absorbed");
            self.unlink(copy);
            Refusal::NoRoom
        })?;
        let pfs = Arc::new(pfs);
        let takes = (room, descriptors, account.clone());
        let mut dirty = Dirty::new(copy, (record, file.mount), content, takes, self.now());
        (dirty.pfs, dirty.words, dirty.phase) = (Some(pfs.clone()), Some(words), Phase::Open);
        let absorbed = self.join(copy, &mut dirty, uid, flags, false).inspect_err(|_| self.unlink(copy))?;
        let mut state = loop {
            let removals = self.state().removals;
            // Since the descriptor was admitted, a pass over it may have ended.
            let is_empty =
                FileFacts::of(pfs.as_fd(), Revalidate::Force).is_ok_and(|facts| facts.version.size == 0);
            let state = self.state();
            if !is_empty || state.by_inode.contains_key(&key) {
                // Another program was faster in this moment.
                drop((state, absorbed));
                self.unlink(copy);
                let joined = self.join_known(uid, key, flags, false);
                return joined.unwrap_or_else(|| Err(invalid("the file has just been written")));
            }
            if state.removals == removals {
                break state;
            }
        };
        self.set_listed(&mut dirty, true);
        state.by_inode.insert(key, copy);
        state.files.insert(copy, dirty);
        add(&self.counters.absorbed_files_total, 1);
        self.changed.notify_all();
        Ok(absorbed)
    }

    /// Joins the writers of a dirty file; `None` if it is not one. Waits for one that was called
    /// in: what its pass writes must not come over what this program writes to the PFS.
    fn join_known(
        &self,
        uid: u32,
        key: (usize, u64),
        flags: OFlags,
        truncated: bool,
    ) -> Option<Result<Absorbed, Refusal>> {
        let limit = Instant::now() + CALLED_IN_MAX;
        let mut state = self.state();
        loop {
            let (copy, dirty) = state.known(key)?;
            if !dirty.is_dirty() {
                self.remove(&mut state, copy);
                return None;
            }
            let is_leaving = dirty.is_called_in() || dirty.phase == Phase::Parked;
            if !is_leaving {
                return Some(self.join(copy, dirty, uid, flags, truncated));
            }
            let refused = Some(Err(Refusal::Invalid("the file is on its way to the file system".into())));
            if !dirty.is_listed {
                return refused;
            }
            if dirty.phase != Phase::Parked {
                dirty.awaited_until = self.now() + AWAITED.as_nanos() as u64;
                if let Some(next) = self.wait(state, limit) {
                    state = next;
                    continue;
                }
                state = self.state();
            }
            if let Some(dirty) = state.files.get_mut(&copy) {
                dirty.is_foreign = true;
            }
            return refused;
        }
    }

    /// Gives out the content of a dirty file once more.
    fn join(
        &self,
        copy: u64,
        dirty: &mut Dirty,
        uid: u32,
        flags: OFlags,
        truncated: bool,
    ) -> Result<Absorbed, Refusal> {
        let failed = |e: io::Error| Refusal::Invalid(format!("the tier failed: {e}"));
        if dirty.words.is_none() {
            dirty.words = Some(Words::create().map_err(failed)?);
        }
        let flags = flags & (OFlags::RWMODE | OFlags::APPEND);
        let tier = &self.cache.tier;
        let content = tier.open_dirty(copy, flags).map_err(failed)?;
        if truncated {
            let writable = tier.open_dirty(copy, OFlags::WRONLY).map_err(failed)?;
            ftruncate(&writable, 0).map_err(|e| failed(e.into()))?;
        }
        dirty.uids.insert(uid);
        dirty.joins += 1;
        let stamp = Stamp::of(&dirty.content).map_err(failed)?;
        let words = dirty.words.as_ref().and_then(Words::fd).ok_or(Refusal::NoRoom)?;
        let words = words.try_clone_to_owned().map_err(failed)?;
        if flags & OFlags::RWMODE != OFlags::RDONLY {
            dirty.phase = Phase::Open;
            dirty.opened = self.now();
        }
        self.set_room(dirty, &stamp);
        Ok(Absorbed { copy, size: stamp.size, content, words })
    }

    fn set_room(&self, dirty: &Dirty, stamp: &Stamp) {
        if let Some(words) = &dirty.words {
            words.set_room(dirty.room.bytes().saturating_sub(FILE_BYTES + stamp.bytes));
        }
    }

    /// Reserves room in the budget and on the tmpfs.
    fn hold(&self, uid: u32, bytes: u64) -> Result<crate::cache::held::Held, Refusal> {
        if self.cache.tier.free_and_total_bytes().is_ok_and(|(free, _)| free < bytes) {
            // What is cached can go, as far as it is counted.
            self.cache.evict(bytes);
        }
        let held = self.cache.hold(&self.shares, uid, Class::Dirty, bytes);
        let mut held = held.or_else(|refusal| {
            let mut state = self.state();
            let clean = state.files.iter().filter(|(_, file)| !file.is_dirty()).map(|(copy, _)| *copy);
            let clean: Vec<_> = clean.collect();
            if clean.is_empty() {
                return Err(refusal);
            }
            clean.into_iter().for_each(|copy| self.remove(&mut state, copy));
            drop(state);
            self.cache.hold(&self.shares, uid, Class::Dirty, bytes)
        });
        // Checkpoints that are held must not keep newer ones out.
        while held.is_err() && self.give_way(uid) {
            held = self.cache.hold(&self.shares, uid, Class::Dirty, bytes);
        }
        held
    }

    /// Makes room for a write of `bytes` to the dirty file `copy` of user `uid`.
    ///
    /// # Errors
    /// There is none: the writer continues on the PFS.
    pub fn make_room(&self, uid: u32, copy: u64, bytes: u64) -> Result<(), Refusal> {
        let gone = || Refusal::Invalid("no such dirty file".into());
        let (used, left, owner) = {
            let state = self.state();
            let may_write = |file: &&Dirty| file.uids.contains(&uid) || self.shares.is_operator(uid);
            let dirty = state.files.get(&copy).filter(may_write).ok_or_else(gone)?;
            let used = Stamp::of(&dirty.content).map_or(0, |stamp| stamp.bytes);
            (used, dirty.room.bytes().saturating_sub(FILE_BYTES + used), dirty.record.uid)
        };
        let ahead = used.clamp(LEAST_AHEAD_BYTES, MOST_AHEAD_BYTES);
        let missing = |wanted: u64| wanted.saturating_sub(left);
        // Outside of the lock: others may have to give way first.
        let more = self.hold(owner, missing(bytes.saturating_add(ahead)));
        let more = more.or_else(|_| self.hold(owner, missing(bytes)))?;
        let mut state = self.state();
        let dirty = state.files.get_mut(&copy).ok_or_else(gone)?;
        dirty.room.merge(more);
        let stamp = Stamp::of(&dirty.content).map_err(|_| Refusal::NoRoom)?;
        self.set_room(dirty, &stamp);
        Ok(())
    }

    /// As long as no descriptor of a dirty file is here, its inode may become another file's: that
    /// one, open as `pfs`, is not mistaken for it.
    fn disown_other(&self, key: (usize, u64), facts: &FileFacts, pfs: BorrowedFd<'_>) {
        let of_unopened = |(_, file): (u64, &mut Dirty)| file.pfs.is_none().then(|| file.record.clone());
        let record = self.state().known(key).and_then(of_unopened);
        if record.is_some_and(|record| !is_same_file(&record, facts, pfs)) {
            let mut state = self.state();
            if state.known(key).is_some_and(|(_, file)| file.pfs.is_none()) {
                // Its pass finds that it is gone, and parks it.
                state.by_inode.remove(&key);
            }
        }
    }

    /// The content of a dirty file of the PFS, which is open as `pfs`, open for reading; not if
    /// somebody has changed the file there, which shows these `facts` now.
    pub fn open(&self, mount: usize, facts: &FileFacts, pfs: BorrowedFd<'_>) -> Option<(u64, u64, OwnedFd)> {
        self.disown_other((mount, facts.version.ino), facts, pfs);
        let shown = (facts.version.size, facts.version.mtime_ns);
        let ctime_ns = Some(facts.version.ctime_ns);
        let (copy, content) = self.open_as(mount, facts.version.ino, (shown, ctime_ns))?;
        Some((copy, Stamp::of(&content).ok()?.size, content))
    }

    /// As [`WriteBack::open`], if the PFS shows this length and mtime, and this ctime, if that is
    /// known.
    fn open_as(
        &self,
        mount: usize,
        ino: u64,
        (shown, ctime_ns): ((u64, i64), Option<i64>),
    ) -> Option<(u64, OwnedFd)> {
        let state = self.state();
        let copy = *state.by_inode.get(&(mount, ino))?;
        let dirty = state.files.get(&copy).filter(|file| file.is_listed && !file.is_foreign)?;
        let has_time_set = || shown.0 == dirty.record.left.0 && dirty.time_set(shown.1, ctime_ns).is_some();
        let is_own = dirty.is_draining
            || dirty.record.is_draining
            || shown == dirty.record.left
            || shown.0 == 0
            || has_time_set();
        if !is_own {
            return None;
        }
        let content = self.cache.tier.open_dirty(copy, OFlags::RDONLY | OFlags::NOATIME).ok()?;
        Some((copy, content))
    }

    /// As [`WriteBack::open`], for another node, at which the PFS shows length and mtime `shown`,
    /// and this birth time.
    pub fn content(&self, name: &DirtyFile, shown: (u64, i64), born_ns: Option<i64>) -> Option<ContentNow> {
        let mount = self.mounts.iter().position(|mount| mount.label() == name.mount)?;
        let (copy, content) = self.open_as(mount, name.ino, (shown, None))?;
        let stamp = Stamp::of(&content).ok()?;
        let state = self.state();
        let dirty = state.files.get(&copy)?;
        // The number may be another file's by now.
        let is_other = dirty.record.born_ns.zip(born_ns).is_some_and(|(own, theirs)| own != theirs);
        let is_mapped = dirty.words.as_ref().is_some_and(Words::is_mapped);
        let age_ns = crate::mounts::wall_clock_ns() - stamp.mtime_ns;
        let is_settled = !is_mapped && age_ns > SETTLED.as_nanos() as i64;
        let (size, mtime_ns) = (stamp.size, stamp.mtime_ns);
        (!is_other).then_some(ContentNow { size, mtime_ns, is_settled, content })
    }

    /// As [`WriteBack::call_in`], for programs of another node. `truncated`: they have emptied it.
    /// `gives_up`: they do not wait any longer, so that both contents are kept.
    pub fn call_in_by_name(&self, name: &DirtyFile, truncated: bool, gives_up: bool) -> Drained {
        let mount = self.mounts.iter().position(|mount| mount.label() == name.mount);
        let Some(key) = mount.map(|mount| (mount, name.ino)) else { return Drained::Yes };
        let limit = Instant::now() + ANSWER;
        let mut state = self.state();
        // One that is claimed will be dirty in a moment.
        while !state.by_inode.contains_key(&key) && self.claims.has(name) {
            match self.wait(state, limit) {
                Some(next) => state = next,
                None => return Drained::NotYet,
            }
        }
        let Some((copy, dirty)) = state.known(key) else { return Drained::Yes };
        dirty.is_shared = true;
        dirty.is_foreign |= gives_up && dirty.is_dirty();
        if dirty.words.as_ref().is_some_and(Words::is_mapped) {
            return Drained::Failed(libc::EBUSY, "a program stores to it by a mapping".into());
        }
        let may_empty =
            dirty.is_listed && dirty.is_dirty() && dirty.phase != Phase::Parked && !dirty.is_foreign;
        if truncated
            && may_empty
            && let Ok(content) = self.cache.tier.open_dirty(copy, OFlags::RDWR)
            && Stamp::of(&content).is_ok_and(|stamp| stamp.size > 0)
        {
            // What cannot be emptied is written to the PFS, as if it had been written after.
            let _is_late = ftruncate(&content, 0);
        }
        drop(state);
        self.call_in(rustix::process::geteuid().as_raw(), copy)
    }

    fn copy_of(&self, state: &State, (dev, ino): (u64, u64)) -> Option<u64> {
        let mut known = (0..self.mounts.len()).filter_map(|mount| state.by_inode.get(&(mount, ino)));
        known.find(|copy| state.files.get(copy).is_some_and(|file| file.dev == dev)).copied()
    }

    /// Notes that a program of user `uid` sets the times of a file on the PFS; returns false if it
    /// is not dirty here, or another user's.
    pub fn note_times(&self, uid: u32, identity: (u64, u64), mtime_ns: Option<i64>) -> bool {
        let mut state = self.state();
        let copy = self.copy_of(&state, identity);
        let Some(dirty) = copy.and_then(|copy| state.files.get_mut(&copy)) else { return false };
        // Another user may set it to now at most.
        let owner = || Some(rustix::fs::fstat(dirty.pfs.as_ref()?).ok()?.st_uid);
        let is_allowed = match mtime_ns {
            Some(_) => self.shares.is_operator(uid) || owner() == Some(uid),
            None => self.is_for(uid, dirty) || dirty.uids.contains(&uid),
        };
        if !is_allowed {
            return false;
        }
        dirty.note_time_set(mtime_ns, crate::mounts::wall_clock_ns());
        true
    }

    /// Length, blocks of 512 bytes, and mtime of a dirty file, and the mtime that its last pass has
    /// left on the PFS.
    pub fn stat(&self, dev: u64, ino: u64) -> Option<(u64, u64, i64, i64)> {
        let state = self.state();
        let dirty = state.files.get(&self.copy_of(&state, (dev, ino))?)?;
        let stamp = Stamp::of(&dirty.content).ok().filter(|_| dirty.is_listed)?;
        Some((stamp.size, stamp.bytes / 512, stamp.mtime_ns, dirty.record.left.1))
    }

    /// Whether user `uid` may deal with this file.
    fn is_for(&self, uid: u32, dirty: &Dirty) -> bool {
        dirty.record.uid == uid || self.shares.is_operator(uid)
    }

    /// Lets a writer continue on the PFS, and waits until that has what was written.
    pub fn call_in(&self, uid: u32, copy: u64) -> Drained {
        if let Some(away) = self.guest_away(copy) {
            return self.call_in_for(&away);
        }
        let mut state = self.state();
        match state.files.get_mut(&copy) {
            Some(dirty) if !dirty.uids.contains(&uid) && !self.shares.is_operator(uid) => {
                return Drained::Failed(libc::EACCES, "another user writes this file".into());
            }
            Some(dirty) if dirty.phase == Phase::Parked => {
                return Drained::Failed(dirty.errno, dirty.error.clone());
            }
            Some(dirty) => {
                self.call_in_one(dirty);
                dirty.failures = 0;
            }
            None => return Drained::Yes,
        }
        let limit = Instant::now() + ANSWER;
        loop {
            let Some(dirty) = state.files.get_mut(&copy) else { return Drained::Yes };
            if is_quiet(dirty) && dirty.is_all_drained() {
                return Drained::Yes;
            }
            if dirty.failures > 0 {
                return Drained::Failed(dirty.errno, dirty.error.clone());
            }
            dirty.awaited_until = self.now() + AWAITED.as_nanos() as u64;
            match self.wait(state, limit) {
                Some(next) => state = next,
                None => return Drained::NotYet,
            }
        }
    }

    fn call_in_one(&self, dirty: &mut Dirty) {
        if dirty.words.is_none() {
            // Its writers had others, of an earlier agent; each is asked for by itself.
            dirty.words = Words::create().ok();
        }
        if let Some(words) = dirty.words.as_ref().filter(|words| !words.is_called_in()) {
            words.call_in();
            self.note_left(dirty.copy, &dirty.record.path);
            dirty.since = self.now();
            dirty.not_before = Nanos(0);
        }
        dirty.awaited_until = self.now() + AWAITED.as_nanos() as u64;
        self.changed.notify_all();
    }

    /// Waits for a change until `limit`; `None` if it came without one.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Instant) -> Option<MutexGuard<'a, State>> {
        let left = limit.saturating_duration_since(Instant::now());
        if left.is_zero() || self.stop.is_stopping() {
            return None;
        }
        Some(
            self.changed
                .wait_timeout(state, left.min(LOOK_AT_REST))
                .unwrap_or_else(PoisonError::into_inner)
                .0,
        )
    }

    /// What a program that syncs one file, or all of user `uid`, waits for: for each, a pass that
    /// begins from now on.
    pub fn to_sync(&self, uid: u32, file: Option<(usize, u64)>) -> BTreeMap<u64, u64> {
        let mut state = self.state();
        let State { files, by_inode, .. } = &mut *state;
        let one = file.map(|key| by_inode.get(&key).copied());
        let mut wanted = BTreeMap::new();
        for (copy, dirty) in files {
            let is_meant = match one {
                Some(one) => one == Some(*copy),
                None => self.is_for(uid, dirty),
            };
            if is_meant && dirty.is_listed && dirty.is_dirty() {
                wanted.insert(*copy, dirty.passes.0);
                (dirty.failures, dirty.not_before) = (0, Nanos(0));
                if dirty.phase == Phase::Parked {
                    dirty.phase = Phase::Waits;
                }
                if !dirty.is_awaited(self.now()) {
                    dirty.since = self.now();
                }
            }
        }
        wanted
    }

    /// Waits for [`WriteBack::to_sync`], and takes out what is done.
    pub fn sync(&self, wanted: &mut BTreeMap<u64, u64>) -> Drained {
        let limit = Instant::now() + ANSWER;
        let mut state = self.state();
        loop {
            let now = self.now();
            let (mut failed, mut is_news) = (None, false);
            wanted.retain(|copy, begun| match state.files.get_mut(copy) {
                Some(dirty) if dirty.is_dirty() && dirty.is_listed && dirty.passes.1 <= *begun => {
                    is_news |= !dirty.is_awaited(now) | dirty.try_again(*begun);
                    dirty.awaited_until = now + AWAITED.as_nanos() as u64;
                    if dirty.has_failed_since(*begun) {
                        let path = String::from_utf8_lossy(&dirty.record.path);
                        failed = Some(Drained::Failed(dirty.errno, format!("{path}: {}", dirty.error)));
                    }
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

    /// Waits for a change until `limit`, unless the wait has ended: through a failure, or because
    /// all is done. If that `is_news`, others hear that somebody waits.
    fn wait_unless<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        (failed, is_done, is_news): (Option<Drained>, bool, bool),
        limit: Instant,
    ) -> Result<MutexGuard<'a, State>, Drained> {
        match failed {
            Some(failed) => return Err(failed),
            None if is_done => return Err(Drained::Yes),
            None => {}
        }
        if is_news {
            self.changed.notify_all();
        }
        self.wait(state, limit).ok_or(Drained::NotYet)
    }

    /// Dirty files after number `after` that user `uid` may see, and whether there are more.
    pub fn list(&self, uid: u32, after: u64) -> (Vec<DirtyStatus>, bool) {
        let outlooks = self.scheduler.dirty_files();
        let (state, now) = (self.state(), self.now());
        let mut bytes = 0;
        let mut files = Vec::new();
        let own = state.files.range(after + 1..).filter(|(_, file)| {
            file.is_dirty() && (file.is_listed || file.record.second.is_fenced) && self.is_for(uid, file)
        });
        let own = own.map(|(copy, file)| file.status(*copy, now, outlooks.get(copy)));
        let is_for = |kept: &Kept| kept.record.uid == uid || self.shares.is_operator(uid);
        let kept = state.kept.range(after + 1..).filter(|(_, kept)| is_for(kept));
        let mut all: Vec<DirtyStatus> = own.chain(kept.map(|(copy, kept)| kept.status(*copy))).collect();
        all.sort_by_key(|file| file.copy);
        for status in all {
            bytes += status.path.len() + status.error.len() + status.why.len() + 128;
            if bytes > MAX_PACKET_BYTES / 2 {
                return (files, true);
            }
            files.push(status);
        }
        (files, false)
    }

    /// Dirty files, and their bytes.
    pub fn totals(&self) -> (u64, u64) {
        let state = self.state();
        let dirty = state.files.values().filter(|file| file.is_dirty() && file.is_listed);
        dirty.fold((0, 0), |(files, bytes), file| {
            (files + 1, bytes + Stamp::of(&file.content).map_or(0, |stamp| stamp.bytes))
        })
    }

    /// Files that are parked, and how long the oldest of the others has waited for its pass.
    pub fn neglected(&self) -> (u64, Duration) {
        let (state, now) = (self.state(), self.now());
        let parked = state.files.values().filter(|file| file.phase == Phase::Parked).count();
        let waits = |file: &&Dirty| matches!(file.phase, Phase::Waits | Phase::Failed);
        let waiting = state.files.values().filter(waits).map(|file| now.saturating_since(file.since));
        (parked as u64, Duration::from_nanos(waiting.max().unwrap_or(0)))
    }

    /// Why passes fail, and for how many files each; the most frequent reasons.
    pub fn failing(&self) -> Vec<(String, u64)> {
        const REASONS_MAX: usize = 3;
        let mut reasons = BTreeMap::<String, u64>::new();
        for file in self.state().files.values().filter(|file| file.failures > 0) {
            *reasons.entry(file.error.clone()).or_default() += 1;
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.1));
        reasons.truncate(REASONS_MAX);
        reasons
    }

    /// The content of a dirty file, and its length, for a user who may have it.
    pub fn export(&self, uid: u32, copy: u64) -> Option<(u64, OwnedFd)> {
        let state = self.state();
        let dirty = state.files.get(&copy).filter(|file| self.is_for(uid, file))?;
        let content = self.cache.tier.open_dirty(copy, OFlags::RDONLY).ok()?;
        Some((Stamp::of(&dirty.content).ok()?.size, content))
    }

    /// Gives up a parked file.
    ///
    /// # Errors
    /// It is not parked, or not this user's.
    pub fn discard(&self, uid: u32, copy: u64) -> Result<(), Refusal> {
        let mut state = self.state();
        match state.files.get(&copy).filter(|file| self.is_for(uid, file)) {
            None => Err(Refusal::Invalid("no such dirty file".into())),
            Some(dirty) if dirty.phase != Phase::Parked || dirty.is_draining => Err(Refusal::Invalid(
                "only a parked file can be dropped; this one is still being written to the file system"
                    .into(),
            )),
            Some(_) => {
                self.remove(&mut state, copy);
                Ok(())
            }
        }
    }

    /// Takes a file out, with its content.
    fn remove(&self, state: &mut State, copy: u64) {
        if let Some(dirty) = self.take(state, copy) {
            if dirty.is_dirty() {
                self.note_removed(copy);
            }
            drop(dirty);
            self.unlink(copy);
        }
    }

    fn take(&self, state: &mut State, copy: u64) -> Option<Dirty> {
        let mut dirty = state.files.remove(&copy)?;
        self.set_listed(&mut dirty, false);
        let key = (dirty.mount, dirty.record.ino);
        if state.by_inode.get(&key) == Some(&copy) {
            state.by_inode.remove(&key);
        }
        state.removals += 1;
        state.closing.extend(dirty.pfs.take());
        self.changed.notify_all();
        Some(dirty)
    }

    /// Sets whether programs find it instead of what is on the PFS.
    fn set_listed(&self, dirty: &mut Dirty, is_listed: bool) {
        if dirty.is_listed != is_listed {
            self.count(dirty, is_listed);
            match is_listed {
                true => self.claims.report(dirty.name()),
                false => {
                    self.claims.release(&dirty.name(), dirty.is_shared);
                    self.release_second(dirty);
                }
            }
        }
        dirty.is_listed = is_listed;
    }

    /// Adds it to the table of this node's programs, or takes it out.
    fn count(&self, dirty: &Dirty, is_listed: bool) {
        if let Some(index) = &self.index {
            index.count(dirty.dev, dirty.record.ino, is_listed);
        }
    }

    fn unlink(&self, copy: u64) {
        let tier = &self.cache.tier;
        if let Err(e) = tier.forget_dirty(copy).and_then(|()| tier.remove_copy(copy))
            && e.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(copy, error = %e, "cannot remove a file that is not dirty any more");
        }
    }

    /// Looks at the files until the agent ends.
    pub fn keep_house(&self) {
        let mut pause = LOOK_AT_REST;
        while !self.stop.wait(pause) {
            self.elsewhere.keep_house();
            pause = if self.look() { LOOK_AT_OPEN } else { LOOK_AT_REST };
        }
    }

    /// Looks at each file once; returns whether any is open.
    fn look(&self) -> bool {
        let mut state = self.state();
        let copies: Vec<u64> = state.files.keys().copied().collect();
        let mut any_open = false;
        for copy in copies {
            let Some(dirty) = state.files.get_mut(&copy) else { continue };
            if !dirty.is_dirty() {
                continue;
            }
            if dirty.record.second.is_fenced {
                continue;
            }
            // Nobody gets to write one that was closed without opening it through this agent.
            if dirty.phase != Phase::Open && dirty.words.is_some() && !dirty.is_called_in() {
                continue;
            }
            let Ok(stamp) = Stamp::of(&dirty.content) else { continue };
            let has_writers = writers(dirty.content.as_fd(), Opened::Here) != Writers::None;
            any_open |= has_writers;
            if has_writers {
                self.look_at_open(dirty, &stamp);
            } else if dirty.phase == Phase::Open {
                (dirty.phase, dirty.since) = (Phase::Waits, self.now());
                self.note_closed(copy, dirty);
                let unused = dirty.room.bytes().saturating_sub(FILE_BYTES + stamp.bytes);
                dirty.room.shrink(unused);
                self.changed.notify_all();
            }
            if !dirty.is_called_in() {
                continue;
            }
            let is_mapped = has_writers && dirty.words.as_ref().is_some_and(Words::is_mapped);
            let is_ahead = dirty.is_all_drained() && is_quiet(dirty) && !is_mapped;
            if is_ahead {
                // The PFS is ahead from now on, even for the next agent, before programs hear it.
                let _is_tried_again = self.cache.tier.forget_dirty(copy);
            }
            self.set_listed(dirty, !is_ahead);
            if is_ahead && !has_writers && !dirty.is_draining {
                self.remove(&mut state, copy);
            }
        }
        any_open
    }

    fn look_at_open(&self, dirty: &mut Dirty, stamp: &Stamp) {
        if dirty.phase == Phase::Waits {
            dirty.phase = Phase::Open;
            self.note_reopened(dirty.copy);
        }
        let used = FILE_BYTES + stamp.bytes;
        if used > dirty.room.bytes() {
            // Written already: it is counted, room or not.
            let more = used - dirty.room.bytes();
            dirty.room.merge(self.cache.hold_existing(&self.shares, dirty.record.uid, Class::Dirty, more));
            self.cache.settle_excess();
        }
        let ahead = stamp.bytes.clamp(LEAST_AHEAD_BYTES, MOST_AHEAD_BYTES);
        let left = dirty.room.bytes() - used;
        if left < ahead / 2
            && !dirty.is_called_in()
            && let Ok(more) = self.cache.hold(&self.shares, dirty.record.uid, Class::Dirty, ahead - left)
        {
            dirty.room.merge(more);
        }
        self.set_room(dirty, stamp);
        let open_ns = self.now().saturating_since(dirty.opened);
        let is_mapped = dirty.words.as_ref().is_some_and(Words::is_mapped);
        if open_ns > OPEN_MAX.as_nanos() as u64 && !dirty.is_called_in() && !is_mapped {
            self.call_in_one(dirty);
        }
    }
}

/// Whether the file open as `pfs`, which shows `facts` and has the inode of a record, is its file.
fn is_same_file(record: &DirtyRecord, facts: &FileFacts, pfs: BorrowedFd<'_>) -> bool {
    let is_as_left = record.left == (facts.version.size, facts.version.mtime_ns);
    let is_certain = record.born_ns.is_some() || is_as_left || record.is_draining;
    reopen::born_ns(pfs) == record.born_ns && is_certain
}

/// Whether no write to a file that was called in can still reach its content.
fn is_quiet(dirty: &Dirty) -> bool {
    dirty.words.as_ref().is_none_or(|words| words.is_called_in() && words.writes() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_got_the_inode_of_another_is_not_taken_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str| {
            let file = OwnedFd::from(std::fs::File::create(dir.path().join(name)).unwrap());
            (FileFacts::of(file.as_fd(), Revalidate::Force).unwrap(), file)
        };
        let (facts, file) = made("a");
        let record = DirtyRecord {
            mount: "pfs".into(),
            path: Vec::new(),
            dev: facts.dev,
            ino: facts.version.ino,
            born_ns: reopen::born_ns(file.as_fd()),
            uid: 0,
            since_ns: 0,
            left: (0, facts.version.mtime_ns),
            is_draining: false,
            leaves: None,
            second: forebay_store::dirty::SecondCopy::default(),
            job: String::new(),
        };
        assert!(is_same_file(&record, &facts, file.as_fd()));
        std::thread::sleep(SETTLED);
        // As if it had the same inode.
        let (other, later) = made("b");
        assert!(!is_same_file(&record, &other, later.as_fd()));
        // Where files have no birth time, the PFS has to be as it was left.
        if record.born_ns.is_none() {
            let left = (0, other.version.mtime_ns);
            assert!(is_same_file(&DirtyRecord { left, ..record }, &other, later.as_fd()));
        }
    }
}
