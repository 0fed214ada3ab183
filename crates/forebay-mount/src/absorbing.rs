//! Files whose newest bytes are in the tier, and not on the PFS (write-back).
//!
//! A file that is empty once it has been opened for writing, and that a pattern of the mount names,
//! is offered to the agent ([`forebay_client::dirty`]). From then on its reads and writes are
//! requests, which go to its *content*, a file in memory. Each write is announced, and goes to the
//! PFS instead once the agent says so. Names, rights, locks and attributes stay the PFS's, except
//! for length, blocks and mtime.
//!
//! The kernel does not pass writes through to the content: it would announce none of them, and a
//! program that finds no room in the tier could not continue on the PFS.
//!
//! Files that other programs have written in this way, on this node or another, are read and
//! written in the same way, whatever the patterns are.

use crate::abi::InHeader;
use crate::content::{Content, identity, is_regular, shown};
use crate::credentials::is_dying;
use crate::fs::{Fs, Located, number_of, self_path, stat};
use crate::handles::Handle;
use crate::request::Request;
use forebay_client::dirty::may_be_elsewhere;
use forebay_client::{Bytes, GuestMode, Target, is_no_agent};
use rustix::fs::{Mode, OFlags, Statx};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Attributes that make a program run with other rights than those of its caller.
const CAPABILITY: &CStr = c"security.capability";

impl Fs {
    /// The content of a file that user `uid` has opened with `flags`, by the thread `caller`;
    /// `None` if it is the PFS's. `is_new`: this open has created it. The thread acts as the
    /// caller, before and after.
    ///
    /// # Errors
    /// Another node or the agent has newer bytes, and they cannot be had.
    pub fn content_of(
        &self,
        (node, is_new): (u64, bool),
        flags: i32,
        file: BorrowedFd<'_>,
        (uid, caller): (u32, u32),
    ) -> Result<Option<Content>, Errno> {
        let empties = flags & libc::O_TRUNC != 0;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || empties;
        let may_matter = writes && !self.write_back.is_empty() || self.client.any_may_be_dirty();
        if !may_matter || flags & libc::O_DIRECT != 0 || !self.is_covered() && !self.client.any_may_be_dirty()
        {
            return Ok(None);
        }
        let Some(identity) = self.nodes.file(node).map(|file| file.identity()) else { return Ok(None) };
        let is_dirty = self.client.may_be_dirty(identity);
        // In this order: a file that is not dirty has its bytes on the PFS.
        let now = stat(file)?;
        if !is_regular(&now) {
            return Ok(None);
        }
        let now = shown(&now);
        let is_foreign =
            !is_dirty && self.client.has_other_nodes() && may_be_elsewhere(now.size, now.mtime_ns);
        // A pass has written after the open has emptied it.
        let is_full_again = empties && now.size > 0;
        let is_wanted = writes && self.is_to_be_absorbed(node);
        let is_empty = now.size == 0 || is_full_again;
        let is_known = !is_new && (is_dirty || is_foreign || is_full_again);
        let is_meant = is_known || is_wanted && is_empty;
        if !is_meant {
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
        let share = match self.keep_for(uid) {
            Ok(share) => share,
            // Nothing is missing on the PFS, and the file is open there.
            Err(_) if !is_dirty && !is_foreign => return Ok(None),
            Err(e) => return Err(e),
        };
        let is_for_library = self.client.guest_mode() == GuestMode::RequestsOnly;
        let new = |content, file| match Content::new(content, file, now, share) {
            content if is_for_library => content.closed_by_program(),
            content => content,
        };
        let owner = self.callers.switches().then_some(uid);
        let found = self.as_daemon(|| match anew {
            Some(anew) => {
                let opening = (OFlags::from_bits_retain(flags as u32), empties);
                match self.client.absorb_for((owner, caller), anew.as_fd(), is_wanted, opening) {
                    Ok((absorbed, bytes)) => {
                        let copy = absorbed.copy();
                        Ok(Some(new((Some(absorbed), copy, bytes), Some(identity))))
                    }
                    // It is empty now, or all of it is on the PFS.
                    Err(e) if !is_dirty || empties || !is_no_agent(&e) => Ok(None),
                    Err(e) => Err(e),
                }
            }
            None if is_dirty => {
                let found = self.client.dirty_content(file);
                found.map(|found| found.map(|(copy, fd)| new((None, copy, Bytes::Here(fd)), Some(identity))))
            }
            None => {
                let found = self.client.newest_content(file);
                found.map(|found| found.map(|(fd, _)| new((None, 0, Bytes::Here(fd)), None)))
            }
        });
        found.map_err(|e| number_of(&e))
    }

    fn is_to_be_absorbed(&self, node: u64) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let Some(below) = self.nodes.path(node).filter(|_| !self.write_back.is_empty()) else { return false };
        let path = [self.path.as_os_str().as_bytes(), &below].join(&b'/');
        self.write_back.match_path(&path)
    }

    /// After an open was noted: all open files of a node have one content. `is_passed`: others
    /// write the file on the PFS since a moment ago.
    pub fn share_content(&self, node: u64, handle: &Arc<Handle>, is_passed: bool) {
        match handle.content() {
            Some(content) if is_passed => {
                if let Some(absorbed) = &content.absorbed {
                    // Nothing was written by this one yet; what others have written is kept.
                    let _is_parked = self.as_daemon(|| absorbed.go_on_at_pfs(&self.client));
                }
                self.leave_content(node, &content);
            }
            Some(content) if content.absorbed.is_some() => {
                for other in self.nodes.handles(node) {
                    let is_other = other.content().is_none_or(|known| known.copy != content.copy);
                    if is_other && !other.is_writable() {
                        self.give_content(&other);
                    }
                }
            }
            Some(_) | None => {}
        }
    }

    /// A reader that has opened the file before it became dirty, or when it was another dirty one.
    fn give_content(&self, handle: &Handle) -> Option<Arc<Content>> {
        if handle.flags & libc::O_DIRECT != 0 {
            return None;
        }
        let content = self.as_daemon(|| {
            let (copy, fd) = self.client.dirty_content(handle.as_fd()).ok()??;
            if handle.last_copy() == Some(copy) {
                // It has left this one: the PFS has what comes after it.
                return None;
            }
            let stat = stat(handle.as_fd()).ok()?;
            let share = self.keep_for(handle.owner).ok()?;
            Some(Content::new((None, copy, Bytes::Here(fd)), Some(identity(&stat)), shown(&stat), share))
        });
        handle.put_content(content?);
        handle.content()
    }

    /// The content from which an open file is to be read; `None`: the PFS. If the agent wants the
    /// file, the PFS is read once it has the bytes.
    pub fn current_content(&self, handle: &Handle) -> Option<Arc<Content>> {
        let Some(content) = handle.content() else {
            let may_be_new = !handle.is_writable() && self.client.any_may_be_dirty();
            let file = may_be_new.then(|| self.nodes.file(handle.node)).flatten()?;
            return if self.client.may_be_dirty(file.identity()) { self.give_content(handle) } else { None };
        };
        match (&content.absorbed, content.file) {
            (Some(absorbed), _) if absorbed.is_called_in() => {
                self.callers.act_as_daemon();
                if absorbed.has_come_to_pfs(&self.client) {
                    self.leave_content(handle.node, &content);
                }
            }
            (None, Some(file)) if !self.client.may_be_dirty(file) => content.leave(),
            // Another program may have rewritten the file since. Without an agent nobody knows.
            (None, Some(_)) if content.is_old() => {
                match self.as_daemon(|| self.client.dirty_content(handle.as_fd())) {
                    Ok(Some((copy, _))) if copy != content.copy => return self.give_content(handle),
                    Ok(None) => content.leave(),
                    Ok(Some(_)) | Err(_) => {}
                }
            }
            _ => {}
        }
        (!content.has_left()).then_some(content)
    }

    /// Changes the content of a file by `change`, which adds up to `bytes`, and clears the bits for
    /// set-user-ID programs, if it `clears_bits`. `change` returns nothing if a guest's file has to
    /// go to the PFS. `None`: it is to be changed on the PFS. The thread acts as this process then.
    ///
    /// # Errors
    /// The errors of `change`; the PFS does not take what was written before.
    pub fn write_to_content<R>(
        &self,
        handle: &Handle,
        (bytes, clears_bits): (u64, bool),
        change: impl Fn(&Content) -> Result<Option<R>, Errno>,
    ) -> Result<Option<R>, Errno> {
        let Some(content) = handle.content() else { return Ok(None) };
        let Some(absorbed) = &content.absorbed else { return Ok(None) };
        self.callers.act_as_daemon();
        loop {
            match absorbed.begin(&self.client, bytes) {
                Ok(Target::Tier) => {
                    if clears_bits && content.is_to_clear_bits() {
                        clear_bits(handle.as_fd());
                    }
                    let changed = change(&content);
                    absorbed.end();
                    // `None`: it is called in now.
                    if let Some(changed) = changed? {
                        return Ok(Some(changed));
                    }
                }
                Ok(Target::Pfs) => {
                    self.leave_content(handle.node, &content);
                    return Ok(None);
                }
                Err(e) => return Err(number_of(&e)),
            }
        }
    }

    /// Moves a writer to the PFS, with the readers of its file. The other writers notice that by
    /// themselves.
    fn leave_content(&self, node: u64, content: &Content) {
        content.leave();
        for other in self.nodes.handles(node) {
            other.content().filter(|content| content.absorbed.is_none()).iter().for_each(|c| c.leave());
        }
    }

    /// Moves a file to the PFS, for a call that memory cannot do. The thread acts as this process.
    ///
    /// # Errors
    /// The PFS does not take what was written before.
    pub fn go_on_at_pfs(&self, handle: &Handle) -> Result<(), Errno> {
        if let Some(content) = handle.content()
            && let Some(absorbed) = &content.absorbed
        {
            content.connect().map_err(|e| number_of(&e))?;
            absorbed.go_on_at_pfs(&self.client).map_err(|e| number_of(&e))?;
            self.leave_content(handle.node, &content);
        }
        Ok(())
    }

    /// Truncates or extends a dirty file; false if that is to be done on the PFS. `by_handle`: the
    /// caller has the file open, and was checked at that time. The thread acts as the caller.
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
            let clears_bits = request.header.uid != 0;
            self.as_daemon(|| {
                self.write_to_content(handle, (0, clears_bits), |content| {
                    content.set_len(size).map_err(|e| number_of(&e))
                })
            })
        };
        match file {
            Located::Open(handle) if by_handle && handle.is_writable() => Ok(cut(handle)?.is_some()),
            _ if !self.client.any_may_be_dirty() => Ok(false),
            file => {
                if !self.client.may_be_dirty(identity(&stat(file.as_fd())?)) {
                    return Ok(false);
                }
                let (node, uid) = (request.header.nodeid, request.header.uid);
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                let open = rustix::fs::open(self_path(file.as_fd()), flags, Mode::empty())?;
                let Some(content) = self.content_of((node, false), libc::O_WRONLY, open.as_fd(), (uid, 0))?
                else {
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

    /// Attributes of a node for which the PFS shows `stat`; those of a dirty file have its newest
    /// length, blocks and mtime.
    pub fn newest(&self, node: u64, stat: &Statx) -> Statx {
        let mut stat = *stat;
        if !is_regular(&stat) || !self.client.any_may_be_dirty() {
            return stat;
        }
        let shown = shown(&stat);
        let contents = self.nodes.contents(node);
        let newest = match contents.iter().find(|content| content.is_newest(&self.client)) {
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

    /// Refuses the call of a program that was killed during a wait for the agent or the PFS: the
    /// program has its answer, and others that came after it rely on its call having no effect any
    /// more.
    ///
    /// # Errors
    /// `EINTR`.
    pub fn refuse_to_the_dead(caller: &InHeader) -> Result<(), Errno> {
        if is_dying(caller.pid) { Err(Errno::INTR) } else { Ok(()) }
    }

    /// Waits before a file gets a name that may be another's: see [`Client::sync_before_rename`].
    /// The thread acts as the caller.
    ///
    /// # Errors
    /// The PFS does not take it; the caller has died.
    pub fn wait_for_pass(
        &self,
        caller: &InHeader,
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
        let now = shown(&old);
        let is_foreign =
            is_regular(&old) && self.client.has_other_nodes() && may_be_elsewhere(now.size, now.mtime_ns);
        if !(is_dirty(&old) || is_foreign) || !replaces {
            return Ok(());
        }
        // A caller that may not rename it does not wait.
        for dir in [from, to] {
            self.may(dir, libc::W_OK | libc::X_OK)?;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(from, name, flags, Mode::empty());
        // The PFS may grant this process nothing, or the caller no reads.
        let file = open().or_else(|_| self.as_daemon(open)).ok();
        self.as_daemon(|| {
            let file = file.as_ref().map(AsFd::as_fd);
            let synced = match is_dirty(&old) {
                true => self.client.sync_before_rename(file, old.stx_size == 0),
                false => self.client.sync_elsewhere_before_rename(file),
            };
            synced.map_err(|e| number_of(&e))?;
            Self::refuse_to_the_dead(caller)
        })
    }
}

/// Clears the bits, as the kernel does when a program of another user writes to a file. If the PFS
/// refuses it, the file keeps them, as with a write by its owner.
fn clear_bits(file: BorrowedFd<'_>) {
    let Ok(stat) = stat(file) else { return };
    let mode = u32::from(stat.stx_mode);
    let group = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    let cleared = mode & (libc::S_ISUID | group);
    if cleared != 0 {
        let _ = rustix::fs::fchmod(file, Mode::from_raw_mode((mode & !cleared) & 0o7777));
    }
    let _ = rustix::fs::fremovexattr(file, CAPABILITY);
}
