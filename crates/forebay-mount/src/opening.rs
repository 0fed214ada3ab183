//! Opens and closes files, and decides how their reads and writes are served.
//!
//! | opened for | by root's mount | by a user's mount |
//! | --- | --- | --- |
//! | reading, and all of the file is in the tier | the kernel's page cache: tier | the same |
//! | reading, and the agent serves the PFS | requests: tier, then PFS | the same |
//! | writing, or no agent | passed to the PFS's file; requests if it is on FUSE | requests: PFS |
//!
//! Files that are written back, and those whose newest bytes are in the tier, are served by
//! requests ([`crate::absorbing`]).
//!
//! Files that are opened with `O_DIRECT` are served by requests: a program may clear the flag
//! later, as `dd` does for its last block. Each request carries the current flags; the kernel does
//! not pass a later change to a backing file.
//!
//! The open files of a file have one backing file or none: the kernel fails an open that differs.
//! The first open of the file decides. While the file has no backing file, writers are served by
//! requests. While it has one, each open names it; but the kernel uses it with the identity that
//! registered it, so the reads and writes of other users are requests.

use crate::abi::{
    CreateIn, FMODE_EXEC, FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_PARALLEL_DIRECT_WRITES, FOPEN_PASSTHROUGH,
    FlushIn, OpenIn, OpenOut, RELEASE_FLOCK_UNLOCK, ReleaseIn,
};
use crate::caller::use_umask;
use crate::content::Content;
use crate::fs::{Done, Effect, Fs, Located, Out, number_of, self_path, stat};
use crate::handles::{Handle, Opener};
use crate::nodes::{Backing, FileId, Keeping};
use crate::request::Request;
use crate::served::Served;
use crate::shares::Kept;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Flags of an open that are passed to the PFS.
const FLAGS_OF_PFS: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_DIRECT
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_NOATIME
    | libc::O_TRUNC
    | libc::O_NONBLOCK;

/// The attributes of an open file, as the servers have them.
const LOOK_AGAIN: AtFlags = AtFlags::EMPTY_PATH.union(AtFlags::STATX_FORCE_SYNC);

/// Attempts to create a file whose name comes and goes.
const TRIES: usize = 16;

fn flags_of(flags: i32) -> OFlags {
    OFlags::from_bits_retain((flags & FLAGS_OF_PFS) as u32) | OFlags::CLOEXEC | OFlags::NOCTTY
}

/// Flags to open a file only so that the PFS's client asks the servers what its name means.
fn flags_of_look(flags: i32) -> OFlags {
    flags_of(flags & !libc::O_TRUNC) | OFlags::NONBLOCK | OFlags::NOFOLLOW
}

impl Fs {
    /// Serves OPEN.
    ///
    /// # Errors
    /// What the PFS returns, as for all operations.
    pub fn open(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: OpenIn = request.arg()?;
        let node = request.header.nodeid;
        let opener = self.opener(request.header.uid)?;
        self.callers.act_as_caller(&request.header)?;
        let file = self.locate_to_open(node)?;
        if arg.flags & FMODE_EXEC != 0 {
            self.may(file.as_fd(), libc::X_OK)?;
        }
        if arg.flags & libc::O_TRUNC != 0 {
            self.refuse_to_cut(&request.header, file.as_fd(), 0)?;
        }
        let opened = rustix::fs::open(self_path(file.as_fd()), flags_of(arg.flags), Mode::empty());
        drop(file);
        if matches!(opened, Err(Errno::STALE)) {
            self.refresh_name(node, arg.flags);
        }
        let fd = opened?;
        if self.in_user_space {
            // A program that opens a file after a close elsewhere learns its size, as from NFS.
            let _ = rustix::fs::statx(&fd, c"", LOOK_AGAIN, StatxFlags::BASIC_STATS);
        }
        let content =
            self.content_of((node, false), arg.flags, fd.as_fd(), (opener.uid, request.header.pid))?;
        Ok(Effect::Opened(self.serve(node, arg.flags, (fd, content), opener, out)))
    }

    /// The file of a node that is about to be opened. Where the PFS's client runs in user space, it
    /// is found by its name, even if it is open already. MooseFS's client remembers for a second,
    /// for each thread, where the bytes of a file were when that thread looked it up, and its next
    /// open of the file takes them from there: the old bytes, if another node has truncated the
    /// file in between.
    fn locate_to_open(&self, node: u64) -> Result<Located, Errno> {
        let named = || Some((self.nodes.path(node)?, self.nodes.file(node)?));
        match self.in_user_space.then(named).flatten().map(|(path, file)| self.by_path(&path, file)) {
            Some(Ok(found)) => Ok(found),
            _ => self.locate(node),
        }
    }

    /// Has the PFS's client ask the servers about a name that belongs to another file now, which
    /// the client does not know yet: GlusterFS's believes names for a second, and an open by name
    /// makes it ask. This mount's kernel then looks the name up again, and finds the other file.
    fn refresh_name(&self, node: u64, flags: i32) {
        if let Some(path) = self.nodes.path(node) {
            let _ = self.walk(&path, flags_of_look(flags));
        }
    }

    /// Serves CREATE: creates a file and opens it, or opens one that was created meanwhile.
    ///
    /// # Errors
    /// As for all operations. `ESTALE`: the name belongs to a pipe or something else now, which the
    /// kernel itself opens.
    pub fn create(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: CreateIn = request.arg()?;
        let name = request.name()?;
        let parent = request.header.nodeid;
        let opener = self.opener(request.header.uid)?;
        self.callers.act_as_caller(&request.header)?;
        let dir = self.locate(parent)?;
        use_umask(arg.umask);
        let mode = Mode::from_raw_mode(arg.mode & 0o7777);
        // Always exclusive: an open of a pipe that somebody makes now would wait for its other end.
        let flags = flags_of(arg.flags) | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::EXCL;
        for _ in 0..TRIES {
            let mut is_new = true;
            let fd = match rustix::fs::openat(dir.as_fd(), name, flags, mode) {
                Err(Errno::EXIST) if arg.flags & libc::O_EXCL == 0 => {
                    is_new = false;
                    match open_existing(dir.as_fd(), name, arg.flags) {
                        // It was removed meanwhile.
                        Err(Errno::NOENT) => continue,
                        result => result?,
                    }
                }
                result => result?,
            };
            // Opening may have truncated it.
            let stat = stat(fd.as_fd())?;
            let node = self.nodes.looked_up(parent, name.to_bytes(), FileId::of(&stat));
            let content =
                self.content_of((node, is_new), arg.flags, fd.as_fd(), (opener.uid, request.header.pid));
            // The kernel learns of the node only if it is opened.
            let content = content.inspect_err(|_| self.nodes.forget(node, 1))?;
            return Ok(self.created(node, arg.flags, (fd, content), &stat, opener, out));
        }
        Err(Errno::STALE)
    }

    /// Serves TMPFILE: creates a file without a name and opens it.
    ///
    /// # Errors
    /// As for all operations.
    pub fn tmpfile(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: CreateIn = request.arg()?;
        let parent = request.header.nodeid;
        let opener = self.opener(request.header.uid)?;
        self.callers.act_as_caller(&request.header)?;
        let dir = self.locate(parent)?;
        use_umask(arg.umask);
        let exclusive = OFlags::from_bits_retain((arg.flags & libc::O_EXCL) as u32);
        let mode = Mode::from_raw_mode(arg.mode & 0o7777);
        let flags = flags_of(arg.flags & !libc::O_TRUNC) | OFlags::TMPFILE | exclusive;
        let fd = rustix::fs::openat(dir.as_fd(), c".", flags, mode)?;
        let stat = stat(fd.as_fd())?;
        let node = self.nodes.looked_up(parent, b"", FileId::of(&stat));
        // Without a name it is reached through a descriptor, even after it is closed.
        let path = self_path(fd.as_fd());
        if let Ok(share) = self.keep_for(opener.uid)
            && let Ok(by_name) = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        {
            self.nodes.unnamed(FileId::of(&stat), Kept::new(by_name, share));
        }
        Ok(self.created(node, arg.flags, (fd, None), &stat, opener, out))
    }

    fn created(
        &self,
        node: u64,
        flags: i32,
        file: (OwnedFd, Option<Content>),
        stat: &rustix::fs::Statx,
        opener: Opener,
        out: &mut Out,
    ) -> Effect {
        out.put(&self.entry(node, stat));
        Effect::Created(node, self.serve(node, flags, file, opener, out))
    }

    /// Whether the kernel is to pass reads and writes to the PFS's file.
    fn wants_pass(&self, flags: i32) -> bool {
        self.passes.load(Ordering::Relaxed) && !self.may_be_served(flags)
    }

    fn may_be_served(&self, flags: i32) -> bool {
        flags & (libc::O_ACCMODE | libc::O_DIRECT) == libc::O_RDONLY && self.is_covered()
    }

    /// Whether an agent serves the PFS.
    pub fn is_covered(&self) -> bool {
        self.client.may_ask() && self.client.serves(&self.path)
    }

    /// Answers an open with how the file's reads and writes are served.
    fn serve(
        &self,
        node: u64,
        flags: i32,
        (fd, content): (OwnedFd, Option<Content>),
        opener: Opener,
        out: &mut Out,
    ) -> u64 {
        let is_direct = flags & libc::O_DIRECT != 0;
        let may_pass =
            self.wants_pass(flags) && !is_direct && content.is_none() && self.nodes.may_have_backing(node);
        let new = if may_pass { self.register(fd.as_fd()) } else { None };
        let served = if self.may_be_served(flags) { Served::perhaps() } else { Served::never() };
        let handle = Handle::file(node, flags, fd, served, opener, self.callers.acting());
        content.into_iter().for_each(|content| handle.put_content(content));
        let may_keep = self.may_be_served(flags) && flags & libc::O_TRUNC == 0 && handle.content().is_none();
        let version = match may_keep {
            true => self.version_to_keep(node, &handle),
            false => None,
        };
        let (backing, keeping) = self.nodes.opened(node, &handle, new.clone(), version);
        if keeping != Keeping::Nothing
            && let Some(version) = version
        {
            self.leave_other_versions(node, version);
        }
        self.look_again(&handle);
        if let Some(new) = new
            && backing.as_ref().is_none_or(|backing| !Arc::ptr_eq(backing, &new))
        {
            self.device.close_backing(new.id);
        }
        self.part_readers_and_writers(node, &handle);
        self.share_content(node, &handle, backing.is_some());
        let by_requests = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;
        let is_own =
            |backing: &Backing| self.callers.acting().is_some_and(|caller| backing.who.writes_like(&caller));
        let (open_flags, backing_id) = match &backing {
            None => match keeping {
                Keeping::Nothing => (by_requests, 0),
                Keeping::FromNowOn => (0, 0),
                Keeping::All => (FOPEN_KEEP_CACHE, 0),
            },
            Some(backing) if is_own(backing) && !is_direct => (FOPEN_PASSTHROUGH, backing.id),
            // Mappings use the backing file.
            Some(backing) => (FOPEN_PASSTHROUGH | by_requests, backing.id),
        };
        let number = self.handles.add(handle);
        out.put(&OpenOut { fh: number, open_flags, backing_id });
        number
    }

    /// Makes readers see writes through this mount immediately: a file that is open for writing is
    /// not read from the tier. Each open is noted before it checks the others, so of two concurrent
    /// opens at least one sees the other.
    fn part_readers_and_writers(&self, node: u64, handle: &Handle) {
        let others = self.nodes.handles(node);
        // Truncating needs no open for writing.
        if handle.is_writable() || handle.flags & libc::O_TRUNC != 0 {
            others.iter().for_each(|other| other.served.leave());
        } else if others.iter().any(|other| other.is_writable()) {
            handle.served.leave();
        }
    }

    /// Registers a file to which the kernel is to pass reads and writes; `None` if it cannot.
    fn register(&self, fd: BorrowedFd<'_>) -> Option<Arc<Backing>> {
        let who = self.callers.acting()?;
        // The kernel uses the backing file with the credentials of the thread that registers it.
        self.callers.act_as(&who.to_register_backing());
        let backing = self.device.open_backing(fd);
        self.callers.act_as(&who);
        Some(Arc::new(Backing { id: backing.ok()?, who }))
    }

    /// Serves FLUSH: a descriptor of the file is closed, with the process's locks.
    ///
    /// # Errors
    /// As for all operations.
    pub fn flush(&self, request: &mut Request<'_>) -> Done {
        let arg: FlushIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        if !self.locks.are_none()
            && let Some(file) = self.nodes.file(handle.node)
        {
            self.locks.drop_owner(file, arg.lock_owner);
        }
        if let Some(content) = handle.content() {
            self.callers.act_as_daemon();
            content.keep(&self.client).map_err(|e| number_of(&e))?;
        } else if handle.is_writable() {
            self.callers.act_as_daemon();
            let copy = rustix::io::dup(handle.as_fd())?;
            let closed = close(copy);
            self.stamp(&handle);
            closed?;
        }
        Ok(Effect::Nothing)
    }

    /// Sets the times of a file whose bytes were overwritten, if the PFS would do that only after
    /// the close: other nodes treat files with equal times as the same version.
    fn stamp(&self, handle: &Handle) {
        if !self.stamps_late {
            return;
        }
        // Bytes of a mapping may have been written through another open file.
        let others = self.nodes.handles(handle.node);
        // Each is asked, not only the first.
        if others.iter().filter(|other| other.has_overwritten()).count() > 0 {
            // Both: a user who may write a file but does not own it may set nothing else. If this
            // fails, other nodes see the change later.
            let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            let _ = rustix::fs::futimens(handle.as_fd(), &times);
        }
    }

    /// Serves RELEASE: the file is closed.
    ///
    /// # Errors
    /// As for all operations.
    pub fn release(&self, request: &mut Request<'_>) -> Done {
        let arg: ReleaseIn = request.arg()?;
        let handle = self.handle(arg.fh)?;
        if arg.release_flags & RELEASE_FLOCK_UNLOCK != 0 {
            // The descriptor is closed below, but another thread may still use it.
            let _ = rustix::fs::flock(handle.as_fd(), rustix::fs::FlockOperation::Unlock);
        }
        self.close_handle(arg.fh, &handle);
        Ok(Effect::Nothing)
    }

    /// Forgets an open file.
    pub fn close_handle(&self, number: u64, handle: &Arc<Handle>) {
        self.callers.act_as_daemon();
        if handle.is_writable() {
            // A mapping may have outlived the descriptor, and written since.
            self.stamp(handle);
        }
        self.locks.drop_handle(handle);
        if self.handles.remove(number).is_some()
            && let Some(backing) = self.nodes.closed(handle.node, handle)
        {
            self.device.close_backing(backing);
        }
    }
}

/// Opens a file that was created after the kernel's last look.
///
/// # Errors
/// `ESTALE`: the kernel is to look again and open the file itself. It has locked the directory
/// meanwhile, so this open waits for nothing, for example for somebody's lease.
fn open_existing(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> Result<OwnedFd, Errno> {
    let by_name = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, by_name, Mode::empty())?;
    let found = stat(file.as_fd())?;
    if FileType::from_raw_mode(u32::from(found.stx_mode)) != FileType::RegularFile {
        return Err(Errno::STALE);
    }
    let without_waiting = flags_of(flags) | OFlags::NONBLOCK;
    match rustix::fs::open(self_path(file.as_fd()), without_waiting, Mode::empty()) {
        Err(Errno::AGAIN) => Err(Errno::STALE),
        Err(Errno::STALE) => {
            let _ = rustix::fs::openat(dir, name, flags_of_look(flags), Mode::empty());
            Err(Errno::STALE)
        }
        Ok(fd) if flags & libc::O_NONBLOCK == 0 => {
            rustix::fs::fcntl_setfl(&fd, rustix::fs::fcntl_getfl(&fd)? - OFlags::NONBLOCK)?;
            Ok(fd)
        }
        result => result,
    }
}

/// Closes a descriptor and returns the PFS's error: the close may write buffered data.
fn close(fd: OwnedFd) -> Result<(), Errno> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor is owned and not used again.
    if unsafe { libc::close(fd.into_raw_fd()) } == 0 { Ok(()) } else { Err(crate::fs::last_error()) }
}
