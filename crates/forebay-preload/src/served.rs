//! The handle of one descriptor: the client core's, on a duplicate, and when to check the file.

use core::ffi::c_int;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_client::{Client, FetchToMap, File, Served};
use forebay_pfs::Revalidate;
use libc::iovec;

use crate::position::{self, OfDescriptor, Range};
use crate::{bare_calls, kernel, own_files, report};

/// A read sees what other processes write after this time at the latest, or after this many times
/// the duration of an attribute check if longer: checks take about a hundredth of the time.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const LOOK_SHARE: u32 = 100;
/// The coarse clock lags by at most this much; reading it costs a fifth of the exact one.
const CLOCK_STEP: Duration = Duration::from_millis(10);

/// How often the process has locked a file: it must then see what others wrote before.
static LOCKED: AtomicU64 = AtomicU64::new(0);
/// How often it has received a message from another process, which may have written before.
static HEARD: AtomicU64 = AtomicU64::new(0);
/// The agent bypasses the page cache, and sets `O_DIRECT` on files that are registered.
static IS_DIRECT: AtomicBool = AtomicBool::new(false);

/// Serves the reads of a descriptor.
pub struct Handle {
    /// `None`: it only keeps what must not be closed.
    file: Option<File>,
    #[allow(dead_code, reason = "held until the program closes its own descriptor: see handles.rs")]
    kept: Vec<Kept>,
    identity: (u64, u64),
    /// The number of the duplicate, if it is the program's open file.
    duplicate: Option<c_int>,
    size: u64,
    /// Where the position was last.
    position: AtomicU64,
    has_failed: AtomicBool,
    /// The next check of the file's attributes, by [`coarse_ns`].
    look_at_ns: AtomicU64,
    /// [`LOCKED`] and [`HEARD`] at the last check.
    locked: AtomicU64,
    heard: AtomicU64,
}

/// What holds a descriptor of a file.
#[allow(dead_code, reason = "held until the program closes its own descriptor")]
enum Kept {
    Descriptor(OwnedFd),
    Opened(File),
}

/// Notes that the process has locked a file: the next read of each file asks the servers whether it
/// has changed.
pub fn locked() {
    LOCKED.fetch_add(1, Release);
}

/// Notes that the process has received a message: the next read of each file checks its attributes.
pub fn heard() {
    HEARD.fetch_add(1, Release);
}

impl Handle {
    /// Opens `fd`, the file at `path`, through an agent. If none serves it, the handle only keeps
    /// descriptors open; the reason comes with it.
    pub fn open(client: &Client, fd: c_int, path: &Path, identity: (u64, u64)) -> (Self, Option<String>) {
        // Later writes of others are in the version that is opened, or a check finds them.
        let locked = AtomicU64::new(LOCKED.load(Acquire));
        let heard = AtomicU64::new(HEARD.load(Acquire));
        let (mut kept, mut why) = (Vec::new(), None);
        // The agent looks at the file after this, and may answer late.
        let asked_at = coarse_ns();
        let (file, duplicate) = register(client, fd, path, &mut kept, &mut why).unzip();
        let handle = Handle {
            size: file.as_ref().and_then(|file| file.size().ok()).unwrap_or(0),
            file,
            kept,
            identity,
            duplicate: duplicate.flatten(),
            position: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            look_at_ns: AtomicU64::new(next_look(asked_at, Duration::ZERO)),
            locked,
            heard,
        };
        (handle, why)
    }

    /// Whether an agent serves the file.
    pub fn is_served(&self) -> bool {
        self.file.is_some()
    }

    /// Whether a read has failed here and was left to the kernel: the file is not served any more.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    /// Length of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Path of the file, if an agent serves it.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(File::path)
    }

    /// Device and inode of the file.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// A descriptor of the tier's copy for a mapping in place of one of the file.
    pub fn copy_to_map(&self, missing: FetchToMap) -> Option<OwnedFd> {
        self.file.as_ref()?.copy_to_map(missing)
    }

    /// Notes that the program has moved the position.
    pub fn moved_to(&self, position: u64) {
        self.position.store(position, Relaxed);
    }

    /// Whether `fd` still is the open file that it was when this handle was made.
    pub fn is_of(&self, fd: c_int) -> bool {
        let is_same = self.duplicate.and_then(|own| own_files::is_same_open_file(fd, own));
        is_same.unwrap_or_else(|| self.has_content(fd, Revalidate::AsStat))
    }

    fn has_content(&self, fd: c_int, how: Revalidate) -> bool {
        own_files::identity(fd) == Some(self.identity)
            && self.file.as_ref().is_some_and(|file| file.is_current(how).unwrap_or(false))
    }

    /// Whether `fd` still has this handle's file with its old content; checks only when due.
    pub fn is_fresh(&self, fd: c_int) -> bool {
        let (locked, heard) = (LOCKED.load(Acquire), HEARD.load(Acquire));
        let has_locked = self.locked.load(Relaxed) != locked;
        let is_due = has_locked || self.heard.load(Relaxed) != heard;
        if !is_due && coarse_ns().is_some_and(|now| now < self.look_at_ns.load(Relaxed)) {
            return true;
        }
        bare_calls::look();
        let (began, asked_at) = (Instant::now(), coarse_ns());
        let how = if has_locked { Revalidate::Force } else { Revalidate::AsStat };
        let is_current = self.has_content(fd, how);
        self.look_at_ns.store(next_look(asked_at, began.elapsed()), Relaxed);
        self.locked.store(locked, Relaxed);
        self.heard.store(heard, Relaxed);
        is_current
    }

    /// Reads at the position.
    ///
    /// # Safety
    /// As for `tier::read`.
    pub unsafe fn read_on(&self, fd: c_int, parts: &[iovec], want: u64) -> Option<u64> {
        let guess = self.position.load(Relaxed);
        let mut file = OfDescriptor(fd);
        let Some(range) = position::take(&mut file, self.size, guess, want) else {
            self.position.store(self.size, Relaxed);
            return None;
        };
        // SAFETY: the caller's promises.
        let read = match unsafe { self.copy(parts, range) } {
            Ok(bytes) => bytes,
            Err(()) => {
                // The range is this read's, so the kernel reads there.
                // SAFETY: the caller's memory, which the kernel checks.
                let bytes = unsafe { kernel_pread(fd, parts, range) };
                u64::try_from(bytes).unwrap_or(0)
            }
        };
        position::move_back(&mut file, range.len - read);
        self.position.store(range.offset + read, Relaxed);
        // Nothing at all: the kernel says why.
        (read > 0).then_some(read)
    }

    /// Reads at `offset`.
    ///
    /// # Safety
    /// As for `tier::read`.
    pub unsafe fn read_there(&self, parts: &[iovec], offset: u64, want: u64) -> Option<u64> {
        let len = self.size.checked_sub(offset).filter(|left| *left > 0)?.min(want);
        // SAFETY: the caller's promises.
        unsafe { self.copy(parts, Range { offset, len }) }.ok()
    }

    /// Copies a range into the parts, all of it; otherwise the handle has failed.
    ///
    /// # Safety
    /// As for `tier::read`.
    unsafe fn copy(&self, parts: &[iovec], range: Range) -> Result<u64, ()> {
        // SAFETY: the caller's promises.
        let copied = unsafe { self.try_copy(parts, range) };
        if copied.is_err() {
            self.has_failed.store(true, Relaxed);
        }
        copied
    }

    /// # Safety
    /// As for `tier::read`.
    unsafe fn try_copy(&self, parts: &[iovec], range: Range) -> Result<u64, ()> {
        let file = self.file.as_ref().ok_or(())?;
        let started = report::is_wanted().then(Instant::now);
        let (mut done, mut total) = (0, Served::default());
        for part in parts {
            let len = (part.iov_len as u64).min(range.len - done) as usize;
            if len == 0 {
                continue;
            }
            // SAFETY: the caller's memory for this call, by its promise; bytes of any value are
            // valid ones.
            let buffer = unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), len) };
            let served = file.read_counted(buffer, range.offset + done);
            let Ok(served) = served.map_err(|_| report::count(|slot| &slot.failures)) else {
                return Err(());
            };
            done += served.bytes as u64;
            total.pfs_bytes += served.pfs_bytes;
            total.fetches += served.fetches;
            total.fetched_bytes += served.fetched_bytes;
            if served.bytes < len {
                return Err(());
            }
        }
        if let Some(started) = started {
            report::note(done, &total, started.elapsed().as_nanos() as u64);
        }
        Ok(done)
    }
}

/// When the next check is due, by [`coarse_ns`], after one that was requested at `asked_at` and
/// took `took`.
fn next_look(asked_at: Option<u64>, took: Duration) -> u64 {
    asked_at.unwrap_or(0) + (LOOK_INTERVAL.max(took * LOOK_SHARE) - CLOCK_STEP).as_nanos() as u64
}

/// Nanoseconds of a clock that only moves forward, by a step of the kernel's timer at a time.
/// `None`: there is no such clock here.
fn coarse_ns() -> Option<u64> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the result.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) } != 0;
    (!failed).then_some(now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs())
}

/// Registers a duplicate with the agent. Where the agent reads past the page cache, it sets
/// `O_DIRECT` on the open file, which the program must not notice: there the file is opened again.
/// Returns the number of the duplicate with it.
fn register(
    client: &Client,
    fd: c_int,
    path: &Path,
    kept: &mut Vec<Kept>,
    why: &mut Option<String>,
) -> Option<(File, Option<c_int>)> {
    if !IS_DIRECT.load(Relaxed) {
        let own = own_files::duplicate(fd)?;
        let number = own.as_raw_fd();
        let file = open_descriptor(client, own, path, kept, why);
        // SAFETY: no pointers.
        let flags = unsafe { kernel::fcntl(fd, libc::F_GETFL, 0) } as c_int;
        if flags & libc::O_DIRECT == 0 {
            return file.map(|file| (file, Some(number)));
        }
        IS_DIRECT.store(true, Relaxed);
        kept.extend(file.map(Kept::Opened));
        // SAFETY: no pointers.
        unsafe { kernel::fcntl(fd, libc::F_SETFL, flags & !libc::O_DIRECT) };
    }
    let anew = std::fs::File::open(format!("/proc/self/fd/{fd}")).ok()?;
    open_descriptor(client, own_files::place(anew.into()), path, kept, why).map(|file| (file, None))
}

fn open_descriptor(
    client: &Client,
    fd: OwnedFd,
    path: &Path,
    kept: &mut Vec<Kept>,
    why: &mut Option<String>,
) -> Option<File> {
    let keep = |(fd, e): (OwnedFd, std::io::Error)| {
        kept.push(Kept::Descriptor(fd));
        *why = Some(e.to_string());
    };
    client.open_descriptor(fd, path).map_err(keep).ok()
}

/// # Safety
/// As for `tier::read`.
#[cold]
unsafe fn kernel_pread(fd: c_int, parts: &[iovec], range: Range) -> i64 {
    let mut left = range.len as usize;
    let shorten = |part: &iovec| {
        let iov_len = part.iov_len.min(left);
        left -= iov_len;
        iovec { iov_base: part.iov_base, iov_len }
    };
    let list: Vec<iovec> = parts.iter().map(shorten).collect();
    // SAFETY: a list of that length of the caller's memory, which the kernel checks.
    unsafe { kernel::sys!(SYS_preadv, fd, list.as_ptr(), list.len(), range.offset, 0) as i64 }
}
