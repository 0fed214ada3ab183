//! This library's own descriptors in the program's table.
//!
//! They have high numbers, because programs rely on getting the lowest free one. A program that
//! closes all numbers in a loop does not close these. They take at most a quarter of the number of
//! descriptors that the process may open.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{inside, kernel};

/// The kernel's table grows up to the highest number in use: start no higher than needed.
const HIGHEST_FIRST: u64 = 4096;

/// For each file: a duplicate, the copy's file, and one more where the agent bypasses caches.
const OF_A_FILE: u32 = 3;
/// Connections, and the watches of files.
const OF_A_PROCESS: u32 = 8;

/// The first number for the library's descriptors.
static FIRST: AtomicU32 = AtomicU32::new(u32::MAX);
/// How many files may be served.
static MOST_FILES: AtomicU32 = AtomicU32::new(0);

/// Marks of numbers that are this library's.
const WORDS: usize = crate::handles::MAX_DESCRIPTORS / 32;
static MARKS: [AtomicU32; WORDS] = [const { AtomicU32::new(0) }; WORDS];

fn mark(fd: c_int) -> Option<(&'static AtomicU32, u32)> {
    let at = usize::try_from(fd).ok()?;
    Some((MARKS.get(at / 32)?, 1 << (at % 32)))
}

/// Whether `fd` is this library's.
#[inline]
pub fn is_own(fd: c_int) -> bool {
    fd as u32 >= FIRST.load(Relaxed) && mark(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// The first of this library's numbers from `fd` on.
pub fn next_own(fd: u32) -> Option<u32> {
    let from = fd.max(FIRST.load(Relaxed)) as usize;
    let words = MARKS.iter().enumerate().skip(from / 32);
    words
        .filter(|(_, word)| word.load(Relaxed) != 0)
        .find_map(|(at, word)| {
            let bits = word.load(Relaxed);
            (0..32).map(|bit| at * 32 + bit).find(|fd| *fd >= from && bits & (1 << (fd % 32)) != 0)
        })
        .map(|fd| fd as u32)
}

/// Numbers from `first` on that are not this library's, as far as any may be open.
pub fn others(first: u32) -> impl Iterator<Item = c_int> {
    let end = crate::handles::MAX_DESCRIPTORS as c_int;
    (c_int::try_from(first).unwrap_or(end)..end).filter(|fd| !is_own(*fd))
}

/// Notes that this library closes `fd`.
pub fn unmark(fd: c_int) {
    if let Some((word, bit)) = mark(fd) {
        word.fetch_and(!bit, Relaxed);
    }
}

/// Finds the numbers for this process.
pub fn measure() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the limits.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let quarter = (limit.rlim_cur / 4).min(u64::from(u32::MAX) / 8);
    let first = (limit.rlim_cur - limit.rlim_cur / 4).min(HIGHEST_FIRST);
    FIRST.store(first as u32, Relaxed);
    MOST_FILES.store((quarter as u32).saturating_sub(OF_A_PROCESS) / OF_A_FILE, Relaxed);
}

/// Whether no further file may be served besides `served` ones.
pub fn are_too_many(served: u32) -> bool {
    served >= MOST_FILES.load(Relaxed)
}

/// A duplicate of `fd` at a number of its own.
pub fn duplicate(fd: c_int) -> Option<OwnedFd> {
    let first = FIRST.load(Relaxed) as c_int;
    // SAFETY: no pointers.
    let own = unsafe { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, first) };
    if own < 0 {
        return None;
    }
    // SAFETY: the kernel has just handed it out.
    let own = unsafe { OwnedFd::from_raw_fd(own as c_int) };
    let (word, bit) = mark(own.as_raw_fd())?;
    word.fetch_or(bit, Relaxed);
    Some(own)
}

/// The same open file at a number of its own, or where it is if there is no room.
pub fn place(fd: OwnedFd) -> OwnedFd {
    duplicate(fd.as_raw_fd()).unwrap_or(fd)
}

/// What `fstat` returns for `fd`. A function of its own, like [`kind`], for the sake of the
/// program's stack.
#[inline(never)]
pub fn stat(fd: c_int) -> Option<libc::stat> {
    // SAFETY: zeroes are a valid value, and a place for the result.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        (kernel::sys!(SYS_fstat, fd, &raw mut stat) == 0).then_some(stat)
    }
}

/// What is known of a file without asking its file system.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The mount that it was opened on.
    pub mount: u64,
    /// It is a regular file.
    pub is_regular: bool,
}

/// The kind of `fd`; `None` before Linux 5.8, or if the program may not ask.
#[inline(never)]
pub fn kind(fd: c_int) -> Option<Kind> {
    // No server is asked, so none can hang.
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: zeroes are a valid value, an empty name, and a place for the result.
    unsafe {
        let mut found: libc::statx = core::mem::zeroed();
        let wanted = libc::STATX_TYPE | libc::STATX_MNT_ID;
        let failed = kernel::sys!(SYS_statx, fd, c"".as_ptr(), flags, wanted, &raw mut found);
        let is_regular = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG;
        (failed == 0 && found.stx_mask & wanted == wanted)
            .then_some(Kind { mount: found.stx_mnt_id, is_regular })
    }
}

/// Whether `fd` and `own` are one open file, without asking a file system; `None` if the kernel
/// cannot say.
pub fn is_same_open_file(fd: c_int, own: c_int) -> Option<bool> {
    // Linux 6.10.
    const F_DUPFD_QUERY: c_int = 1024 + 3;
    const KCMP_FILE: c_int = 0;
    /// The kernel does not know the query.
    static IS_OLD: AtomicBool = AtomicBool::new(false);
    // SAFETY: no pointers.
    unsafe {
        if !IS_OLD.load(Relaxed) {
            match kernel::fcntl(fd, F_DUPFD_QUERY, own) {
                answer @ 0..=1 => return Some(answer == 1),
                error if error == -(libc::EBADF as isize) => return Some(false),
                _ => IS_OLD.store(true, Relaxed),
            }
        }
        let process = inside::process();
        match kernel::sys!(SYS_kcmp, process, process, KCMP_FILE, fd, own) {
            order @ 0..=3 => Some(order == 0),
            error if error == -(libc::EBADF as isize) => Some(false),
            _ => None,
        }
    }
}

/// Whether the kernel has the beginning of a file in its page cache; false where the file system
/// cannot say without being asked for the bytes.
pub fn is_cached(fd: c_int) -> bool {
    let mut byte = 0_u8;
    let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: a list of one buffer; the offset is 0.
    unsafe { kernel::sys!(SYS_preadv2, fd, &raw const part, 1, 0, 0, libc::RWF_NOWAIT) == 1 }
}

/// Length of a regular file, and its device and inode.
pub fn regular(fd: c_int) -> Option<(u64, (u64, u64))> {
    let stat = stat(fd).filter(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)?;
    Some((u64::try_from(stat.st_size).ok()?, (stat.st_dev, stat.st_ino)))
}

/// Device and inode.
pub fn identity(fd: c_int) -> Option<(u64, u64)> {
    stat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}
