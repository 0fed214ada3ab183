//! Files whose newest bytes are in the tier, and not on the PFS (write-back).
//!
//! A file that is empty once it has been opened for writing, and that a pattern of the mount names,
//! is offered to the agent ([`forebay_client::dirty`]). From then on its reads and writes are
//! requests, which go to its *content*, a file in memory. Each write is announced, and goes to the
//! PFS instead once the agent says so. Names, rights, locks and attributes stay the PFS's, but for
//! length, blocks and the time of the last write.
//!
//! The kernel does not pass writes through to the content: it would announce none of them, and a
//! program that finds no room in the tier could not go on at the PFS.
//!
//! Files that other programs of this node have written so, or of another node, are read and written
//! in the same way, whatever the patterns are.

use crate::fs::{Fs, Located, number_of, self_path, stat};
use crate::handles::Handle;
use crate::request::Request;
use crate::shares::Share;
use forebay_client::dirty::{Newest, Shown, may_be_elsewhere};
use forebay_client::{Absorbed, Client, Target, is_no_agent};
use rustix::fs::{FileType, Mode, OFlags, Statx, StatxTimestamp, fstat, ftruncate, makedev};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The newest bytes of an open file.
#[derive(Debug)]
pub struct Content {
    fd: OwnedFd,
    /// `None`: it is only read.
    absorbed: Option<Absorbed>,
    /// Device and inode on the PFS; `None`: it is a copy of what another node had when it was
    /// opened.
    file: Option<(u64, u64)>,
    /// The mtime that the PFS showed when it was opened.
    shown_mtime_ns: i64,
    /// The PFS has what was written before, and gets the rest.
    has_left: AtomicBool,
    /// What the descriptor takes of the user's share.
    _share: Option<Share>,
}

impl Content {
    /// Whether the PFS is to be read and written instead.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    fn leave(&self) {
        self.has_left.store(true, Ordering::Release);
    }

    /// Waits for a second copy of what was written, if the mount is to wait for that.
    ///
    /// # Errors
    /// Nothing takes one, nor does the PFS.
    pub fn keep(&self, client: &Client) -> Result<(), Errno> {
        let kept = self.absorbed.as_ref().map_or(Ok(()), |absorbed| absorbed.keep(client));
        kept.map_err(|e| number_of(&e))
    }

    fn newest(&self, shown: Shown) -> Option<Newest> {
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

fn identity(stat: &Statx) -> (u64, u64) {
    (makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino)
}

fn is_regular(stat: &Statx) -> bool {
    FileType::from_raw_mode(u32::from(stat.stx_mode)) == FileType::RegularFile
}

fn shown(stat: &Statx) -> Shown {
    let time = |time: &StatxTimestamp| nanos(time.tv_sec, i64::from(time.tv_nsec));
    Shown { size: stat.stx_size, mtime_ns: time(&stat.stx_mtime), ctime_ns: time(&stat.stx_ctime) }
}

impl Fs {
    /// The content of a file that user `uid` has opened with `flags`; `None` if it is the PFS's.
    /// The thread acts as the caller, before and after.
    ///
    /// # Errors
    /// Another node has newer bytes, or the agent, and they cannot be had.
    pub fn content_of(
        &self,
        node: u64,
        flags: i32,
        file: BorrowedFd<'_>,
        uid: u32,
    ) -> Result<Option<Content>, Errno> {
        let empties = flags & libc::O_TRUNC != 0;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || empties;
        let may_matter = writes && !self.write_back.is_empty() || self.client.any_may_be_dirty();
        if !may_matter || flags & libc::O_DIRECT != 0 || !self.is_covered() && !self.client.any_may_be_dirty()
        {
            return Ok(None);
        }
        let before = stat(file)?;
        if !is_regular(&before) {
            return Ok(None);
        }
        let identity = identity(&before);
        let is_dirty = self.client.may_be_dirty(identity);
        // In this order: who is not dirty has its bytes on the PFS.
        let now = shown(&stat(file)?);
        let is_foreign =
            !is_dirty && self.client.has_other_nodes() && may_be_elsewhere(now.size, now.mtime_ns);
        // A pass has written after the open has emptied it.
        let is_full_again = empties && now.size > 0;
        let is_wanted = writes && (now.size == 0 || is_full_again) && self.is_to_be_absorbed(node);
        if !is_dirty && !is_foreign && !is_wanted && !is_full_again {
            return Ok(None);
        }
        let anew = match writes {
            // With the caller's rights.
            true if !self.nodes.may_be_absorbed(node) => return Ok(None),
            true => match self.client.reopen_to_write(file) {
                Ok(anew) => Some(anew),
                Err(_) => return Ok(None),
            },
            false => None,
        };
        let share = self.keep_for(uid)?;
        let new = |(absorbed, fd), file| Content {
            fd,
            absorbed,
            file,
            shown_mtime_ns: now.mtime_ns,
            has_left: AtomicBool::new(false),
            _share: share,
        };
        let owner = self.callers.switches().then_some(uid);
        let found = self.as_daemon(|| match anew {
            Some(anew) => {
                let opening = (OFlags::from_bits_retain(flags as u32), empties);
                match self.client.absorb_for(owner, anew.as_fd(), is_wanted, opening) {
                    Ok((absorbed, fd)) => Ok(Some(new((Some(absorbed), fd), Some(identity)))),
                    // It is empty now, or all of it is on the PFS.
                    Err(e) if !is_dirty || empties || !is_no_agent(&e) => Ok(None),
                    Err(e) => Err(e),
                }
            }
            None if is_dirty => {
                self.client.dirty_content(file).map(|fd| fd.map(|fd| new((None, fd), Some(identity))))
            }
            None => self.client.newest_content(file).map(|fd| fd.map(|(fd, _)| new((None, fd), None))),
        });
        found.map_err(|e| number_of(&e))
    }

    fn is_to_be_absorbed(&self, node: u64) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let Some(below) = self.nodes.path(node).filter(|_| !self.write_back.is_empty()) else { return false };
        let path = [self.path.as_os_str().as_bytes(), &below].join(&b'/');
        self.write_back.match_path(&path)
    }

    /// After an open was noted: all open files of a node have one content. `is_passed`: others write
    /// the file on the PFS since a moment ago.
    pub fn share_content(&self, node: u64, handle: &Arc<Handle>, is_passed: bool) {
        match handle.content() {
            Some(content) if is_passed => {
                if let Some(absorbed) = &content.absorbed {
                    // Nothing was written by this one yet; what others have written is kept.
                    let _is_parked = self.as_daemon(|| absorbed.go_on_at_pfs(&self.client));
                }
                self.leave_content(node, content);
            }
            Some(content) if content.absorbed.is_some() => {
                for other in self.nodes.handles(node) {
                    self.give_content(&other);
                }
            }
            Some(_) => {}
            None if self.client.any_may_be_dirty() && self.nodes.with_content(node).is_some() => {
                self.give_content(handle);
            }
            None => {}
        }
    }

    /// A reader that has opened the file before it became dirty.
    fn give_content(&self, handle: &Handle) {
        if handle.content().is_some() || handle.is_writable() {
            return;
        }
        let content = self.as_daemon(|| {
            let fd = self.client.dirty_content(handle.as_fd()).ok()??;
            let stat = stat(handle.as_fd()).ok()?;
            Some(Content {
                fd,
                absorbed: None,
                file: Some(identity(&stat)),
                shown_mtime_ns: shown(&stat).mtime_ns,
                has_left: AtomicBool::new(false),
                _share: self.keep_for(handle.owner).ok()?,
            })
        });
        content.into_iter().for_each(|content| handle.put_content(content));
    }

    /// Whether a file is read from its content. If the agent wants it, it is the PFS's from now on.
    pub fn has_current_content(&self, handle: &Handle) -> bool {
        let Some(content) = handle.content() else { return false };
        match (&content.absorbed, content.file) {
            (Some(absorbed), _) if absorbed.is_called_in() => {
                self.callers.act_as_daemon();
                match absorbed.begin(&self.client, 0) {
                    Ok(Target::Pfs) => self.leave_content(handle.node, content),
                    Ok(Target::Tier) => absorbed.end(),
                    // What the PFS does not take is here.
                    Err(_) => {}
                }
            }
            (None, Some(file)) if !self.client.may_be_dirty(file) => content.leave(),
            _ => {}
        }
        !content.has_left()
    }

    /// Changes the content of a file by `change`, which adds up to `bytes`. `None`: it is to be
    /// changed on the PFS. The thread acts as this process then.
    ///
    /// # Errors
    /// Those of `change`; the PFS does not take what was written before.
    pub fn write_to_content<R>(
        &self,
        handle: &Handle,
        bytes: u64,
        change: impl FnOnce(BorrowedFd<'_>) -> Result<R, Errno>,
    ) -> Result<Option<R>, Errno> {
        let Some(content) = handle.content() else { return Ok(None) };
        let Some(absorbed) = &content.absorbed else { return Ok(None) };
        self.callers.act_as_daemon();
        match absorbed.begin(&self.client, bytes) {
            Ok(Target::Tier) => {
                let changed = change(content.as_fd());
                absorbed.end();
                changed.map(Some)
            }
            Ok(Target::Pfs) => {
                self.leave_content(handle.node, content);
                Ok(None)
            }
            Err(e) => Err(number_of(&e)),
        }
    }

    /// A writer goes on at the PFS. The other writers notice that by themselves.
    fn leave_content(&self, node: u64, content: &Content) {
        content.leave();
        for other in self.nodes.handles(node) {
            other.content().filter(|content| content.absorbed.is_none()).into_iter().for_each(Content::leave);
        }
    }

    /// Cuts or extends a file that is dirty; false if that is to be done on the PFS. `by_handle`:
    /// the caller has the file open, and was checked at that time. The thread acts as the caller.
    ///
    /// # Errors
    /// The caller may not write the file; otherwise as [`Fs::write_to_content`].
    pub fn set_size_of_content(
        &self,
        request: &Request<'_>,
        file: &Located,
        by_handle: bool,
        size: u64,
    ) -> Result<bool, Errno> {
        let cut = |handle: &Handle| {
            self.as_daemon(|| self.write_to_content(handle, 0, |content| ftruncate(content, size)))
        };
        match file {
            Located::Open(handle) if by_handle && handle.is_writable() => Ok(cut(handle)?.is_some()),
            _ if !self.client.any_may_be_dirty() => Ok(false),
            file => {
                if !self.client.may_be_dirty(identity(&stat(file.as_fd())?)) {
                    return Ok(false);
                }
                let (node, uid) = (request.header.nodeid, request.header.uid);
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let open = rustix::fs::open(self_path(file.as_fd()), flags, Mode::empty())?;
                let Some(content) = self.content_of(node, libc::O_WRONLY, open.as_fd(), uid)? else {
                    return Ok(false);
                };
                let opener = self.opener(uid)?;
                let served = crate::served::Served::never();
                let handle = Handle::file(node, libc::O_WRONLY, open, served, opener, None);
                handle.put_content(content);
                Ok(cut(&handle)?.is_some())
            }
        }
    }

    /// Attributes of a node of which the PFS shows `stat`: of a dirty file with its newest length,
    /// blocks and time of the last write.
    pub fn newest(&self, node: u64, stat: &Statx) -> Statx {
        let mut stat = *stat;
        if !is_regular(&stat) || !self.client.any_may_be_dirty() {
            return stat;
        }
        let shown = shown(&stat);
        let open = self.nodes.with_content(node);
        let newest = match open.as_ref().and_then(|handle| handle.content()) {
            Some(content) => content.newest(shown),
            None if self.client.may_be_dirty(identity(&stat)) => {
                self.as_daemon(|| self.client.dirty_stat(identity(&stat), shown))
            }
            None => None,
        };
        if let Some(newest) = newest {
            (stat.stx_size, stat.stx_blocks) = (newest.size, newest.blocks);
            stat.stx_mtime.tv_sec = newest.mtime_ns.div_euclid(1_000_000_000);
            stat.stx_mtime.tv_nsec = newest.mtime_ns.rem_euclid(1_000_000_000) as u32;
        }
        stat
    }

    /// Before a file gets a name that may be another's: see [`Client::sync_before_rename`]. The
    /// thread acts as the caller.
    ///
    /// # Errors
    /// The PFS does not take it.
    pub fn wait_for_pass(
        &self,
        (from, name): (BorrowedFd<'_>, &CStr),
        (to, new_name): (BorrowedFd<'_>, &CStr),
    ) -> Result<(), Errno> {
        if !self.client.any_may_be_dirty() {
            return Ok(());
        }
        let (Ok(old), Ok(new)) = (self.stat_name(from, name), self.stat_name(to, new_name)) else {
            return Ok(());
        };
        let is_dirty = |stat: &Statx| is_regular(stat) && self.client.may_be_dirty(identity(stat));
        let replaces = identity(&old) != identity(&new) && (new.stx_size > 0 || is_dirty(&new));
        if !is_dirty(&old) || !replaces {
            return Ok(());
        }
        self.as_daemon(|| {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(from, name, flags, Mode::empty())?;
            let synced = self.client.sync_before_rename(Some(file.as_fd()), old.stx_size == 0);
            synced.map_err(|e| number_of(&e))
        })
    }
}
