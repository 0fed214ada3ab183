//! A file that programs write into the tier before the PFS has it (write-back).
//!
//! Its content is a file of the tier, byte for byte and with its length. Programs get descriptors
//! of that file for writing, so the kernel itself does every kind of call at memory speed, and
//! keeps what was written when the program dies. Next to it is a record of where the bytes belong,
//! from which an agent that starts after another one's death continues.
//!
//! What a writer and the agent say to each other while it is open passes through one block of
//! shared memory, the *words*. A writer announces each write, and looks whether the agent has
//! called the file in: from then on it writes to the PFS. The agent waits until no write is
//! announced before it relies on the content.

use crate::full_io::{read_exact_at, write_all_at};
use crate::map::Map;
use crate::ring::sealed_memfd;
use crate::tier::Tier;
use rustix::fs::{Timespec, Timestamps, fstat};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;

/// Bytes of the words: one block.
const WORDS_BYTES: usize = 4096;
const CALLED_IN_AT: usize = 0;
const WRITES_AT: usize = 64;
const ROOM_AT: usize = 128;
const MAPPED_AT: usize = 192;
const CLOSES_AT: usize = 256;
const GUEST_AT: usize = 320;

/// A record longer than this is not one.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// Where the bytes of a dirty file belong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtyRecord {
    /// Label of the mount.
    pub mount: String,
    /// Path on the PFS when it was opened for writing.
    pub path: Vec<u8>,
    /// Device of the PFS on this node.
    pub dev: u64,
    /// Inode on the PFS.
    pub ino: u64,
    /// When the file was created there, nanoseconds since 1970, if the PFS reports it: an inode
    /// number may be used again.
    pub born_ns: Option<i64>,
    /// Whose it is: the user who writes it.
    pub uid: u32,
    /// When it was opened for writing, nanoseconds since 1970.
    pub since_ns: i64,
    /// Length and mtime that the PFS shows as long as nobody else changes the file there.
    pub left: (u64, i64),
    /// A pass is under way, and may have left more there.
    pub is_draining: bool,
    /// What the PFS will show instead of `left` once this pass is over.
    pub leaves: Option<(u64, i64)>,
    /// The second copy of it.
    pub second: SecondCopy,
    /// Name of the job that writes it, behind the rest: a record of an earlier version has none.
    #[serde(skip)]
    pub job: String,
}

/// Where the second copy of a dirty file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keeper {
    /// In the memory of this node.
    Node(String),
    /// In the log on a disk of the file's own node, as this number.
    Disk(u64),
}

/// What a node notes of the second copy of a dirty file, at either end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecondCopy {
    /// Counts the copies that were made of the file.
    pub generation: u64,
    /// Where the copy is.
    pub kept_by: Option<Keeper>,
    /// This is the copy, of a file of that node.
    pub kept_for: Option<String>,
    /// Another node may have written the file to the PFS: a pass first looks at the content there.
    pub is_disputed: bool,
    /// Another node has taken the file over.
    pub is_fenced: bool,
}

/// The mtime alone, for `futimens`.
pub fn only_mtime(ns: i64) -> Timestamps {
    let omit = Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    let time = Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) };
    Timestamps { last_access: omit, last_modification: time }
}

impl DirtyRecord {
    /// Writes it next to the content with number `copy`, in place of an earlier one.
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full.
    pub fn store(&self, tier: &Tier, copy: u64) -> io::Result<()> {
        let mut bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        bytes.extend_from_slice(self.job.as_bytes());
        tier.replace_dirty_record(copy, |file| write_all_at(file, &bytes, 0))
    }

    /// Reads the record of the content with number `copy`.
    ///
    /// # Errors
    /// `InvalidData`: it is damaged.
    pub fn load(tier: &Tier, copy: u64) -> io::Result<Self> {
        let file = tier.open_dirty_record(copy)?;
        let len = fstat(&file)?.st_size as u64;
        if len > RECORD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len as usize];
        read_exact_at(file.as_fd(), &mut bytes, 0)?;
        let record = postcard::take_from_bytes(&bytes);
        let (record, job) = record.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        Ok(DirtyRecord { job: String::from_utf8_lossy(job).into_owned(), ..record })
    }
}

/// Memory through which the bytes pass that a guest writes and reads.
///
/// # Errors
/// No memory, or no descriptors left.
pub fn guest_buffer(bytes: u64) -> io::Result<OwnedFd> {
    sealed_memfd(c"forebay-guest", bytes)
}

/// Whether a write may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It has begun.
    Yes,
    /// The agent has to be asked for room first.
    NoRoom,
    /// The writer has to continue on the PFS.
    CalledIn,
}

/// The words that writers of a dirty file share with the agent.
#[derive(Debug)]
pub struct Words {
    map: Map,
    /// The agent's end.
    fd: Option<OwnedFd>,
}

impl Words {
    /// Makes them, for the agent.
    ///
    /// # Errors
    /// No memory, or no descriptors left.
    pub fn create() -> io::Result<Self> {
        let fd = sealed_memfd(c"forebay-words", WORDS_BYTES as u64)?;
        Ok(Words { map: Map::new(fd.as_fd(), 0, WORDS_BYTES, true)?, fd: Some(fd) })
    }

    /// Maps the words received from the agent.
    ///
    /// # Errors
    /// They are not words, or `mmap` failed.
    pub fn received(fd: &OwnedFd) -> io::Result<Self> {
        if fstat(fd)?.st_size as usize != WORDS_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the words of a dirty file"));
        }
        Ok(Words { map: Map::new(fd.as_fd(), 0, WORDS_BYTES, true)?, fd: None })
    }

    /// The memory, to send to a writer; `None` at a writer's end.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Writer: begins a write of `bytes`, which takes as much of the room. A write that does not
    /// begin is not announced.
    pub fn begin_write(&self, bytes: u64) -> Begun {
        self.map.word(WRITES_AT).fetch_add(1, SeqCst);
        // The announcement comes first, so that the agent sees it or the writer sees the call.
        let room = self.map.word(ROOM_AT);
        let begun = match self.is_called_in() {
            true => Begun::CalledIn,
            false if room.fetch_update(SeqCst, SeqCst, |room| room.checked_sub(bytes)).is_ok() => Begun::Yes,
            false => Begun::NoRoom,
        };
        if begun != Begun::Yes {
            self.end_write();
        }
        begun
    }

    /// Writer: begins a write without room, while there is no agent.
    pub fn begin_anyway(&self) {
        self.map.word(WRITES_AT).fetch_add(1, SeqCst);
    }

    /// Writer: ends the write.
    pub fn end_write(&self) {
        // Not below zero: the agent may have forgotten writes that took too long.
        let words = self.map.word(WRITES_AT);
        let _none_is_known = words.fetch_update(SeqCst, SeqCst, |writes| writes.checked_sub(1));
    }

    /// Whether the agent has called the file in.
    pub fn is_called_in(&self) -> bool {
        self.map.word(CALLED_IN_AT).load(SeqCst) != 0
    }

    /// Writer: notes that stores reach the content through a mapping from now on, unannounced.
    pub fn note_mapped(&self) {
        self.map.word(MAPPED_AT).store(1, SeqCst);
    }

    /// Whether stores may reach the content unannounced: such a file cannot be called in.
    pub fn is_mapped(&self) -> bool {
        self.map.word(MAPPED_AT).load(SeqCst) != 0
    }

    /// Agent: notes that the file is dirty on another node, whose agent has the room and the
    /// content.
    pub fn set_guest(&self) {
        self.map.word(GUEST_AT).store(1, SeqCst);
        self.set_room(u64::MAX);
    }

    /// Whether the file is dirty on another node.
    pub fn is_guest(&self) -> bool {
        self.map.word(GUEST_AT).load(SeqCst) != 0
    }

    /// Writer: notes that the program has closed the file, or ends in order. One that is killed
    /// does not say so.
    pub fn note_closed(&self) {
        self.map.word(CLOSES_AT).fetch_add(1, SeqCst);
    }

    /// Agent: how often it was closed by those who had opened it.
    pub fn closes(&self) -> u64 {
        self.map.word(CLOSES_AT).load(SeqCst)
    }

    /// Agent: calls the file in, so that nobody writes to the tier any more.
    pub fn call_in(&self) {
        self.map.word(CALLED_IN_AT).store(1, SeqCst);
    }

    /// Agent: writes that are announced. A writer that was killed in the middle of one leaves it
    /// announced; the number is a hint, as is all that clients write.
    pub fn writes(&self) -> u64 {
        self.map.word(WRITES_AT).load(SeqCst)
    }

    /// Agent: forgets announced writes, whose writers are gone.
    pub fn forget_writes(&self) {
        self.map.word(WRITES_AT).store(0, SeqCst);
    }

    /// Agent: sets the room for writes to `bytes`.
    pub fn set_room(&self, bytes: u64) {
        self.map.word(ROOM_AT).store(bytes, SeqCst);
    }
}

#[cfg(test)]
pub(crate) fn record_for_tests() -> DirtyRecord {
    DirtyRecord {
        mount: "scratch".into(),
        path: b"/pfs/a\xff".to_vec(),
        dev: 3,
        ino: 7,
        born_ns: Some(1),
        uid: 1000,
        since_ns: 5,
        left: (0, -3),
        is_draining: false,
        leaves: Some((9, 4)),
        second: SecondCopy::default(),
        job: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_called_in_takes_no_write_and_knows_those_under_way() {
        let agent = Words::create().unwrap();
        let writer = Words::received(&agent.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(writer.begin_write(1), Begun::NoRoom);
        agent.set_room(10);
        assert_eq!(writer.begin_write(11), Begun::NoRoom);
        assert_eq!(writer.begin_write(10), Begun::Yes);
        assert_eq!(writer.begin_write(1), Begun::NoRoom);
        agent.call_in();
        assert_eq!(agent.writes(), 1);
        assert_eq!(writer.begin_write(1), Begun::CalledIn);
        writer.end_write();
        assert_eq!(agent.writes(), 0);
    }

    #[test]
    fn a_dirty_file_outlives_its_agent_and_what_is_half_made_does_not() {
        let (_dir, tier) = Tier::for_tests();
        let record = record_for_tests();
        tier.create_copy(1).unwrap();
        tier.create_copy(2).unwrap();
        record.store(&tier, 2).unwrap();
        let newer = DirtyRecord { left: (9, 9), job: "climate".into(), ..record };
        newer.store(&tier, 2).unwrap();
        tier.create_copy(3).unwrap();
        newer.store(&tier, 3).unwrap();
        tier.remove_copy(3).unwrap();
        assert_eq!(tier.list_copies().unwrap(), [0; 0]);
        assert_eq!(tier.list_dirty().unwrap(), [2]);
        assert_eq!(DirtyRecord::load(&tier, 2).unwrap(), newer);
        tier.forget_dirty(2).unwrap();
        assert_eq!((tier.list_dirty().unwrap(), tier.list_copies().unwrap()), (vec![], vec![]));
    }
}
