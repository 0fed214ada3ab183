//! The newest bytes of an open file, if the PFS does not have them ([`crate::absorbing`]).

use crate::served::{FRESH, read_pfs};
use crate::shares::Share;
use crate::writes::{write_all, write_once};
use forebay_client::dirty::{Newest, Shown};
use forebay_client::{Absorbed, Bytes, Client, errno};
use rustix::fs::{FileType, Statx, StatxTimestamp, fstat, ftruncate, makedev};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The newest bytes of an open file.
#[derive(Debug)]
pub struct Content {
    bytes: Bytes,
    /// Number of the dirty file.
    pub copy: u64,
    /// `None`: it is only read.
    pub absorbed: Option<Absorbed>,
    /// Device and inode on the PFS; `None`: it is a copy of what another node had when it was
    /// opened.
    pub file: Option<(u64, u64)>,
    /// The mtime that the PFS showed when it was opened.
    shown_mtime_ns: i64,
    /// The PFS has what was written before, and gets the rest.
    has_left: AtomicBool,
    /// When the agent was last asked whether this is the newest.
    asked: Mutex<Instant>,
    /// A write has cleared the bits for set-user-ID programs.
    has_cleared_bits: AtomicBool,
    /// Its end is the program's close; false if the program's library reports that itself.
    notes_closes: bool,
    /// What the descriptor takes of the user's share.
    _share: Option<Share>,
}

impl Content {
    /// The content of a file for which the PFS has `shown` this.
    pub fn new(
        (absorbed, copy, bytes): (Option<Absorbed>, u64, Bytes),
        file: Option<(u64, u64)>,
        shown: Shown,
        share: Option<Share>,
    ) -> Self {
        Content {
            bytes,
            copy,
            absorbed,
            file,
            shown_mtime_ns: shown.mtime_ns,
            has_left: AtomicBool::new(false),
            asked: Mutex::new(Instant::now()),
            has_cleared_bits: AtomicBool::new(false),
            notes_closes: true,
            _share: share,
        }
    }

    /// Leaves the report of the close to the program's library.
    pub fn closed_by_program(mut self) -> Self {
        self.notes_closes = false;
        self
    }

    /// Whether the PFS is to be read and written instead.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// Makes all reads and writes go to the PFS from now on.
    pub fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
    }

    /// Whether it has what was written last, as far as can be known without asking anybody.
    pub fn is_newest(&self, client: &Client) -> bool {
        let is_wanted = self.absorbed.as_ref().is_some_and(Absorbed::is_called_in);
        let is_away = matches!(self.bytes, Bytes::Away(_));
        !self.has_left() && !is_wanted && (is_away || self.file.is_some_and(|file| client.may_be_dirty(file)))
    }

    /// Whether the agent is to be asked again whether this is the newest; true once in that time.
    pub fn is_old(&self) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = asked.elapsed() >= FRESH;
        if is_old {
            *asked = Instant::now();
        }
        is_old
    }

    /// Whether a write is to clear the bits for set-user-ID programs; true once for each mode.
    pub fn is_to_clear_bits(&self) -> bool {
        !self.has_cleared_bits.swap(true, Ordering::AcqRel)
    }

    /// Notes that the file has another mode.
    pub fn has_new_mode(&self) {
        self.has_cleared_bits.store(false, Ordering::Release);
    }

    /// Waits for a second copy of what was written, if the mount is to wait for that.
    ///
    /// # Errors
    /// Nothing takes one, nor does the PFS.
    pub fn keep(&self, client: &Client) -> io::Result<()> {
        self.connect()?;
        self.absorbed.as_ref().map_or(Ok(()), |absorbed| absorbed.keep(client))
    }

    /// Connects a guest again if the agent was restarted; this is how the new agent learns of the
    /// guest.
    ///
    /// # Errors
    /// The other node is gone, or has lost what was written.
    pub fn connect(&self) -> io::Result<()> {
        match &self.bytes {
            Bytes::Here(_) => Ok(()),
            Bytes::Away(guest) => guest.stat().map(drop),
        }
    }

    /// What is newer than what the PFS has `shown`.
    pub fn newest(&self, shown: Shown) -> Option<Newest> {
        let (size, blocks, mtime_ns) = match &self.bytes {
            Bytes::Here(fd) => {
                let stat = fstat(fd).ok()?;
                let mtime_ns = nanos(stat.st_mtime, stat.st_mtime_nsec as i64);
                (stat.st_size as u64, stat.st_blocks as u64, mtime_ns)
            }
            Bytes::Away(guest) => guest.stat().ok()??,
        };
        Some(Newest { size, blocks, mtime_ns }.with_time_set(shown, self.shown_mtime_ns))
    }

    /// The file that has it, unless that is on another node.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::Here(fd) => Some(fd.as_fd()),
            Bytes::Away(_) => None,
        }
    }

    /// Reads until `room` is full or the content ends; `None`: from the PFS.
    ///
    /// # Errors
    /// The other node is gone.
    pub fn read(&self, room: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let guest = match &self.bytes {
            Bytes::Here(fd) => return read_pfs(fd.as_fd(), room, offset, true).map(Some),
            Bytes::Away(guest) => guest,
        };
        let mut done = 0;
        while done < room.len() {
            match guest.read(&mut room[done..], offset + done as u64).map_err(|e| plain(&e))? {
                None => return Ok(None),
                Some(0) => break,
                Some(read) => done += read,
            }
        }
        Ok(Some(done))
    }

    /// Writes with or without `O_APPEND`, now and when it was opened (`appends`). Returns how many
    /// bytes, which may be fewer; `None`: none, and the file goes to the PFS.
    ///
    /// # Errors
    /// The errors of the write; the other node is gone.
    pub fn write(&self, data: &[u8], offset: u64, appends: (bool, bool)) -> io::Result<Option<usize>> {
        match &self.bytes {
            Bytes::Here(fd) => {
                let once = |data: &[u8], offset| write_once(fd.as_fd(), data, offset, appends);
                Ok(write_all(data, offset, once).map(Some)?)
            }
            Bytes::Away(guest) => guest.write(data, offset, appends.1).map_err(|e| plain(&e)),
        }
    }

    /// Truncates or extends it; `None`: this is to be done on the PFS.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn set_len(&self, size: u64) -> io::Result<Option<()>> {
        match &self.bytes {
            Bytes::Here(fd) => Ok(ftruncate(fd, size).map(Some)?),
            Bytes::Away(guest) => guest.set_len(size).map_err(|e| plain(&e)),
        }
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        if self.notes_closes {
            self.absorbed.iter().for_each(Absorbed::note_closed);
        }
    }
}

/// An error with the number alone, which is what a program gets.
fn plain(e: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(errno(e))
}

fn nanos(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// Device and inode.
pub fn identity(stat: &Statx) -> (u64, u64) {
    (makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino)
}

/// Whether it is a file with bytes.
pub fn is_regular(stat: &Statx) -> bool {
    FileType::from_raw_mode(u32::from(stat.stx_mode)) == FileType::RegularFile
}

/// What is compared with a content.
pub fn shown(stat: &Statx) -> Shown {
    let time = |time: &StatxTimestamp| nanos(time.tv_sec, i64::from(time.tv_nsec));
    Shown { size: stat.stx_size, mtime_ns: time(&stat.stx_mtime), ctime_ns: time(&stat.stx_ctime) }
}
