//! Has files written to the tier first, for programs that know nothing of it.
//!
//! `FOREBAY_WRITE_BACK` switches it on and names the files by patterns, one per line. A file below
//! a root that such a pattern covers, and that is empty once it has been opened for writing, is
//! offered to the agent, and its *content* takes the place of the program's own descriptor
//! ([`forebay_client::dirty`]). The content is a real file in memory, so the kernel does all calls:
//! this library only announces writes, and moves the program to the PFS when the agent says so.
//! Calls that mean the file of the PFS (its mode, owner, times and extended attributes) get the
//! descriptor that the program had opened, which stays in this library.
//!
//! Whether the mode is on or not, a program that opens a file that is dirty on this node gets its
//! content, which is newer than the PFS.

use core::ffi::{CStr, c_int};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock};

use forebay_client::dirty::{DirtyIndex, Newest, Patterns, dirty_index_beside, may_be_elsewhere};
use forebay_client::{Absorbed, Client, Target, is_no_agent};
use rustix::fs::OFlags;

use crate::handles::{Handles, Known};
use crate::inside;
use crate::{kernel, own_files, shared};

const PATTERNS_VARIABLE: &CStr = c"FOREBAY_WRITE_BACK";

/// What the opening of a file means for its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It may be written.
    Write,
    /// It may be written, and is empty now.
    Truncate,
}

impl Access {
    /// The access that these flags of `open` ask for.
    #[inline]
    pub fn of(flags: c_int) -> Self {
        match flags & (libc::O_ACCMODE | libc::O_TRUNC) {
            libc::O_RDONLY => Access::Read,
            flags if flags & libc::O_TRUNC != 0 => Access::Truncate,
            _ => Access::Write,
        }
    }

    /// Whether the file may be written, or is changed by the opening.
    #[inline]
    pub fn may_write(self) -> bool {
        self != Access::Read
    }
}

/// A descriptor that a content has replaced.
struct Entry {
    /// `None`: the program only reads.
    absorbed: Option<Absorbed>,
    /// What the program has opened.
    pfs: OwnedFd,
    /// Device and inode of the content: another file may have got the number unseen.
    content: (u64, u64),
    has_left: HasLeft,
    /// The process that has opened it.
    process: u32,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A forked child closes what its parent continues to write.
        if self.process == inside::process() {
            self.absorbed.iter().for_each(Absorbed::note_closed);
        }
    }
}

/// Whether the program has moved to the PFS through one of its descriptors, which has set the
/// position there. Forked children share positions, so they share this.
struct HasLeft(*mut AtomicBool);

const SHARED_BYTES: usize = 4096;

impl HasLeft {
    fn new() -> Option<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, of zeroes.
        let at = unsafe { kernel::sys!(SYS_mmap, 0, SHARED_BYTES, protection, flags, -1_isize, 0) };
        (at > 0).then_some(HasLeft(at as *mut AtomicBool))
    }

    fn is_true(&self) -> bool {
        // SAFETY: mapped for as long as this value lives.
        unsafe { &*self.0 }.load(Acquire)
    }

    fn swap_true(&self) -> bool {
        // SAFETY: mapped for as long as this value lives.
        unsafe { &*self.0 }.swap(true, AcqRel)
    }
}

// SAFETY: an atomic in memory of its own.
unsafe impl Send for HasLeft {}
// SAFETY: as above.
unsafe impl Sync for HasLeft {}

impl Drop for HasLeft {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not used any more.
        unsafe { kernel::sys!(SYS_munmap, self.0, SHARED_BYTES) };
    }
}

/// The process has taken a lock on a file of the PFS through an [`Entry`]: the lock is lost when a
/// descriptor of that file is closed.
static HAS_LOCKS: AtomicBool = AtomicBool::new(false);

static CLIENT: OnceLock<Client> = OnceLock::new();
static ENTRIES: Handles<Arc<Entry>> = Handles::new();
static INDEX: OnceLock<DirtyIndex> = OnceLock::new();
static PATTERNS: OnceLock<Patterns> = OnceLock::new();

/// Reads the environment, before the program begins; `client` is the one of this process.
pub fn attach(client: &Client) {
    let _is_set_once = CLIENT.set(client.clone());
    if let Some(index) = client.socket().and_then(|socket| DirtyIndex::open(&dirty_index_beside(socket))) {
        let _ = INDEX.set(index);
    }
    // SAFETY: no other thread changes the environment yet.
    let patterns = unsafe {
        let list = shared::variable(PATTERNS_VARIABLE);
        if list.is_null() { return } else { CStr::from_ptr(list) }
    };
    let _ = PATTERNS.set(Patterns::from_lines(&patterns.to_string_lossy()));
}

/// Whether the opening of a file can matter here at all.
#[inline]
pub fn may_matter(access: Access) -> bool {
    let may_be_dirty = |index: &DirtyIndex| index.any() || index.has_others();
    access.may_write() && PATTERNS.get().is_some() || INDEX.get().is_some_and(may_be_dirty)
}

fn is_wanted(path: &[u8]) -> bool {
    PATTERNS.get().is_some_and(|all| all.match_path(path))
}

/// Whether a file with this device and inode may be dirty.
pub fn is_dirty(identity: (u64, u64)) -> bool {
    INDEX.get().is_some_and(|index| index.may_have(identity.0, identity.1))
}

/// Replaces `fd`, a file below a root at `path` that the program has opened, with its content, if
/// the file is to be written back or is dirty.
///
/// `false`: there are newer bytes, on this node or another one, and they cannot be had.
///
/// A file that the program `writes` through another descriptor already stays with the PFS: what
/// that one writes would not be in the content.
pub fn opened(
    client: &Client,
    fd: c_int,
    path: &[u8],
    access: Access,
    writes: impl FnOnce((u64, u64)) -> bool,
) -> Option<bool> {
    let (_, identity) = own_files::regular(fd)?;
    let dirty = is_dirty(identity);
    // In this order: a file that is not dirty has its bytes on the PFS.
    let (size, _) = own_files::regular(fd)?;
    // A pass has written after the open has emptied it.
    let is_full_again = access == Access::Truncate && size > 0 && INDEX.get().is_some();
    // SAFETY: the program has just opened it.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    // Another node may have it, or its newest bytes.
    let is_foreign = !dirty
        && INDEX.get().is_some_and(DirtyIndex::has_others)
        && own_files::stat(fd).is_some_and(|stat| {
            may_be_elsewhere(size, stat.st_mtime.saturating_mul(1_000_000_000) + stat.st_mtime_nsec)
        });
    let is_wanted = access.may_write() && is_wanted(path);
    let is_meant = dirty || is_foreign || is_wanted && size == 0 || is_full_again;
    if !is_meant || own_files::are_too_many(ENTRIES.count()) || !dirty && writes(identity) {
        return None;
    }
    // SAFETY: no pointers.
    let flags = unsafe { kernel::fcntl(fd, libc::F_GETFL, 0) };
    let flags = OFlags::from_bits_retain(u32::try_from(flags).ok()?);
    let pfs = own_files::duplicate(fd)?;
    let newest = if access.may_write() {
        let opening = (flags, access == Access::Truncate);
        match client.absorb(file, is_wanted, opening) {
            Ok((absorbed, content)) => Ok((Some(absorbed), content)),
            // It is empty now, so nothing is missing from it.
            Err(e) if !dirty || access == Access::Truncate || !is_no_agent(&e) => return None,
            Err(e) => Err(e),
        }
    } else if dirty {
        client.dirty_content(file).transpose()?.map(|(_, content)| (None, content))
    } else {
        client.newest_content(file).transpose()?.map(|(content, _)| (None, content))
    };
    let (absorbed, content) = match newest {
        Ok(newest) => newest,
        Err(e) => {
            // A program without a place for messages gets the error alone.
            let _ = writeln!(std::io::stderr(), "forebay: {}: {e}", String::from_utf8_lossy(path));
            return Some(false);
        }
    };
    let content_identity = own_files::identity(content.as_raw_fd())?;
    let Known::No(seen) = ENTRIES.known(fd) else { return None };
    let has_left = HasLeft::new()?;
    put_in_place(&content, fd)?;
    let process = inside::process();
    let entry = Entry { absorbed, pfs, content: content_identity, has_left, process };
    ENTRIES.put(fd, seen, Arc::new(entry), false);
    Some(true)
}

/// Makes the program's number `fd` refer to `file`.
fn put_in_place(file: &OwnedFd, fd: c_int) -> Option<()> {
    // SAFETY: no pointers; both are open.
    let done = unsafe {
        let on_exec = kernel::fcntl(fd, libc::F_GETFD, 0) as c_int & libc::FD_CLOEXEC;
        let flags = if on_exec != 0 { libc::O_CLOEXEC } else { 0 };
        kernel::sys!(SYS_dup3, file.as_fd().as_raw_fd(), fd, flags)
    };
    (done >= 0).then_some(())
}

/// Notes that `to` is a duplicate of `from`.
pub fn duplicated(from: c_int, to: c_int) {
    if ENTRIES.count() > 0
        && let Some(entry) = ENTRIES.pin(from)
        && let Known::No(seen) = ENTRIES.known(to)
    {
        ENTRIES.put(to, seen, Arc::clone(&entry), false);
    }
}

/// Whether any descriptor has a content.
#[inline]
pub fn any() -> bool {
    ENTRIES.count() > 0
}

/// Whether `fd` has a content.
#[inline]
pub fn has(fd: c_int) -> bool {
    ENTRIES.count() > 0 && ENTRIES.has_handle(fd)
}

/// Notes that the number `fd` no longer stands for a file. The caller frees what was retired.
#[inline]
pub fn closed(fd: c_int) {
    if has(fd) {
        ENTRIES.forget(fd, false);
    }
}

/// Notes that the process ends in order, which closes what it has open.
pub extern "C" fn detach() {
    if ENTRIES.count() == 0 || !inside::is_owner() {
        return;
    }
    let Some(inside) = inside::enter() else { return };
    inside::guarded(&inside, || {
        let mut own: Vec<Arc<Entry>> = Vec::new();
        for entry in (0..ENTRIES.end()).filter_map(|fd| Some(Arc::clone(&*ENTRIES.pin(fd)?))) {
            if entry.process == inside::process() && !own.iter().any(|known| Arc::ptr_eq(known, &entry)) {
                entry.absorbed.iter().for_each(Absorbed::note_closed);
                own.push(entry);
            }
        }
        Some(())
    });
}

/// Frees what was closed.
pub fn free_retired() {
    ENTRIES.free_retired();
}

/// The number by which the file of the PFS that `fd` stands for can be reached.
#[inline]
pub fn on_pfs(fd: c_int) -> c_int {
    match has(fd).then(|| ENTRIES.pin(fd)).flatten() {
        Some(entry) => entry.pfs.as_raw_fd(),
        None => fd,
    }
}

/// As [`on_pfs`], for a lock, which may be relative to the position.
#[inline]
pub fn to_lock(fd: c_int) -> c_int {
    let Some(entry) = has(fd).then(|| ENTRIES.pin(fd)).flatten() else { return fd };
    let file = entry.pfs.as_raw_fd();
    // Another number may have moved there, with its position.
    if !entry.has_left.is_true() {
        // SAFETY: no pointers.
        unsafe {
            let position = kernel::sys!(SYS_lseek, fd, 0, libc::SEEK_CUR);
            kernel::sys!(SYS_lseek, file, position, libc::SEEK_SET);
        }
    }
    HAS_LOCKS.store(true, Release);
    file
}

/// Runs a call that writes at most `bytes` to `fd`. `None`: it fails with the `errno` that is set,
/// because the PFS does not take what was written before.
#[inline]
pub fn write<R>(fd: c_int, bytes: u64, call: impl FnOnce() -> R) -> Option<R> {
    if !has(fd) || !inside::is_on() || inside::is_inside() {
        return Some(call());
    }
    write_absorbed(fd, bytes, call)
}

fn write_absorbed<R>(fd: c_int, bytes: u64, call: impl FnOnce() -> R) -> Option<R> {
    let Some(entry) = ENTRIES.pin(fd).map(|entry| Arc::clone(&entry)) else { return Some(call()) };
    let begun = begin(fd, &entry, bytes);
    if let Err(errno) = begun {
        // SAFETY: `errno` is the calling thread's.
        unsafe { *libc::__errno_location() = errno };
        return None;
    }
    let result = call();
    if begun == Ok(Target::Tier) {
        entry.absorbed.iter().for_each(Absorbed::end);
    }
    Some(result)
}

/// Waits, before `fd` counts as synchronised or is closed, until what was written is in the memory
/// of a second node, if the program is to wait for that. `false`: neither that nor the PFS takes
/// it; `errno` is set.
#[inline]
pub fn keep(fd: c_int) -> bool {
    !has(fd) || !inside::is_on() || inside::is_inside() || keep_absorbed(fd)
}

fn keep_absorbed(fd: c_int) -> bool {
    // The child of a `vfork` closes numbers of its own.
    if !inside::is_owner() {
        return true;
    }
    let Some(entry) = ENTRIES.pin(fd).map(|entry| Arc::clone(&entry)) else { return true };
    let (Some(absorbed), Some(inside)) = (&entry.absorbed, inside::enter()) else { return true };
    let kept = inside::guarded(&inside, || {
        connect(fd, absorbed);
        Some(absorbed.keep(CLIENT.get()?))
    });
    match kept {
        Some(Err(e)) => {
            // SAFETY: `errno` is the calling thread's.
            unsafe { *libc::__errno_location() = e.raw_os_error().unwrap_or(libc::EIO) };
            false
        }
        _ => true,
    }
}

/// Lets an agent that was restarted learn of a guest, as by any call on its descriptor.
fn connect(fd: c_int, absorbed: &Absorbed) {
    if absorbed.is_guest() {
        let _its_error_comes_with_the_next_call = own_files::stat(fd);
    }
}

/// Where the write goes; the program's number is that of the PFS by then, if it goes there.
fn begin(fd: c_int, entry: &Arc<Entry>, bytes: u64) -> Result<Target, c_int> {
    let (Some(absorbed), Some(inside)) = (&entry.absorbed, inside::enter()) else { return Ok(Target::Pfs) };
    let begun = inside::guarded(&inside, || {
        let client = CLIENT.get()?;
        Some(match absorbed.begin(client, bytes) {
            Ok(Target::Tier) => Ok(Target::Tier),
            Ok(Target::Pfs) => {
                leave(fd, entry);
                Ok(Target::Pfs)
            }
            Err(e) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
        })
    });
    ENTRIES.free_retired();
    begun.unwrap_or(Ok(Target::Pfs))
}

/// Moves the program's `fd` to the PFS.
fn leave(fd: c_int, entry: &Arc<Entry>) {
    if own_files::identity(fd) != Some(entry.content) {
        return ENTRIES.forget(fd, false);
    }
    if !entry.has_left.swap_true() {
        // SAFETY: no pointers.
        unsafe {
            let position = kernel::sys!(SYS_lseek, fd, 0, libc::SEEK_CUR);
            kernel::sys!(SYS_lseek, entry.pfs.as_raw_fd(), position, libc::SEEK_SET);
        }
    }
    put_in_place(&entry.pfs, fd);
    if HAS_LOCKS.load(Acquire) {
        // The program's locks are to outlive this; they end when it closes its number.
        core::mem::forget(Arc::clone(entry));
    }
    ENTRIES.forget(fd, false);
}

/// What `fstat` has to report of the content of `fd`, if `fd` still is that content.
pub fn content_of(fd: c_int) -> Option<Newest> {
    let entry = ENTRIES.pin(fd)?;
    let stat = own_files::stat(fd).filter(|stat| (stat.st_dev, stat.st_ino) == entry.content)?;
    let mtime_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec);
    Some(Newest { size: stat.st_size as u64, blocks: stat.st_blocks as u64, mtime_ns })
}

/// Waits before a file gets a name that may be another's: see [`Client::sync_before_rename`].
/// Returns the error number if that fails.
pub fn before_rename(client: &Client, from: &[u8], to: &[u8]) -> Result<(), c_int> {
    let stat = |path: &[u8]| std::fs::symlink_metadata(OsStr::from_bytes(path));
    let (Ok(old), Ok(new)) = (stat(from), stat(to)) else { return Ok(()) };
    let identity = |file: &std::fs::Metadata| (file.dev(), file.ino());
    let replaces = identity(&old) != identity(&new) && (new.len() > 0 || is_dirty(identity(&new)));
    let mtime_ns = old.mtime().saturating_mul(1_000_000_000).saturating_add(old.mtime_nsec());
    let is_foreign = INDEX.get().is_some_and(DirtyIndex::has_others) && may_be_elsewhere(old.len(), mtime_ns);
    if !(is_dirty(identity(&old)) || is_foreign) || !replaces {
        return Ok(());
    }
    // One that the program may not read is waited for with all others.
    let open = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(rustix::fs::CWD, from, open, rustix::fs::Mode::empty()).ok();
    let file = file.as_ref().map(AsFd::as_fd);
    let synced = match is_dirty(identity(&old)) {
        true => client.sync_before_rename(file, old.len() == 0),
        false => client.sync_elsewhere_before_rename(file),
    };
    synced.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
}

/// Moves a guest's file to the PFS before `fd` is mapped together with others, because no mapping
/// reaches another node. Returns the error number if that fails.
pub fn before_sharing(fd: c_int) -> Result<(), c_int> {
    let Some(entry) = ENTRIES.pin(fd).map(|entry| Arc::clone(&entry)) else { return Ok(()) };
    let (Some(absorbed), Some(inside)) = (&entry.absorbed, inside::enter()) else { return Ok(()) };
    if !absorbed.is_guest() {
        return Ok(());
    }
    let gone_on = inside::guarded(&inside, || {
        connect(fd, absorbed);
        Some(match absorbed.go_on_at_pfs(CLIENT.get()?) {
            Ok(()) => {
                leave(fd, &entry);
                Ok(())
            }
            Err(e) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
        })
    });
    ENTRIES.free_retired();
    gone_on.unwrap_or(Ok(()))
}

/// Notes that the program maps `fd` to store to it.
pub fn note_mapped(fd: c_int) {
    if let Some(entry) = ENTRIES.pin(fd) {
        entry.absorbed.iter().for_each(Absorbed::note_mapped);
    }
}

/// Moves a file that was called in to the PFS, before a call that reads `fd` or moves its position.
#[inline]
pub fn before_read(fd: c_int) {
    if has(fd) && !inside::is_inside() && inside::is_on() {
        let is_called_in = |entry: &Entry| entry.absorbed.as_ref().is_some_and(Absorbed::is_called_in);
        if ENTRIES.pin(fd).is_some_and(|entry| is_called_in(&entry)) {
            let _it_stays_if_that_fails = write_absorbed(fd, 0, || ());
        }
    }
}

/// Whether any file may be dirty, on this node or another one.
#[inline]
pub fn is_any_dirty_anywhere() -> bool {
    INDEX.get().is_some_and(|index| index.any() || index.has_others())
}

/// Whether any file is dirty on this node.
#[inline]
pub fn is_any_dirty() -> bool {
    INDEX.get().is_some_and(DirtyIndex::any)
}

/// How many files have become clean on this node.
#[inline]
pub fn cleaned() -> u32 {
    INDEX.get().map_or(0, DirtyIndex::cleaned)
}
