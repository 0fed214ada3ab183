//! The newest bytes of an open file, if the PFS does not have them ([`crate::absorbing`]).

use crate::served::FRESH;
use crate::shares::Share;
use forebay_client::dirty::{Newest, Shown};
use forebay_client::{Absorbed, Client};
use rustix::fs::{FileType, Statx, StatxTimestamp, fstat, makedev};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The newest bytes of an open file.
#[derive(Debug)]
pub struct Content {
    fd: OwnedFd,
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
    /// What the descriptor takes of the user's share.
    _share: Option<Share>,
}

impl Content {
    /// A content, open as `fd`, of a file of which the PFS has `shown` this.
    pub fn new(
        (absorbed, copy, fd): (Option<Absorbed>, u64, OwnedFd),
        file: Option<(u64, u64)>,
        shown: Shown,
        share: Option<Share>,
    ) -> Self {
        Content {
            fd,
            copy,
            absorbed,
            file,
            shown_mtime_ns: shown.mtime_ns,
            has_left: AtomicBool::new(false),
            asked: Mutex::new(Instant::now()),
            has_cleared_bits: AtomicBool::new(false),
            _share: share,
        }
    }

    /// Whether the PFS is to be read and written instead.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// From now on, the PFS is to be read and written.
    pub fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
    }

    /// Whether it has what was written last, as far as can be known without asking anybody.
    pub fn is_newest(&self, client: &Client) -> bool {
        let is_wanted = self.absorbed.as_ref().is_some_and(Absorbed::is_called_in);
        !self.has_left() && !is_wanted && self.file.is_some_and(|file| client.may_be_dirty(file))
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

    /// The file has got another mode.
    pub fn has_new_mode(&self) {
        self.has_cleared_bits.store(false, Ordering::Release);
    }

    /// Waits for a second copy of what was written, if the mount is to wait for that.
    ///
    /// # Errors
    /// Nothing takes one, nor does the PFS.
    pub fn keep(&self, client: &Client) -> io::Result<()> {
        self.absorbed.as_ref().map_or(Ok(()), |absorbed| absorbed.keep(client))
    }

    /// What is newer than what the PFS has `shown`.
    pub fn newest(&self, shown: Shown) -> Option<Newest> {
        let stat = fstat(&self.fd).ok()?;
        let mtime_ns = nanos(stat.st_mtime, stat.st_mtime_nsec as i64);
        let newest = Newest { size: stat.st_size as u64, blocks: stat.st_blocks as u64, mtime_ns };
        Some(newest.with_time_set(shown, self.shown_mtime_ns))
    }
}

impl AsFd for Content {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        self.absorbed.iter().for_each(Absorbed::note_closed);
    }
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
