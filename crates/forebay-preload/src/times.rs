//! The functions that set a file's times, which are the PFS's. For a dirty file, the agent is
//! notified before: otherwise it would mistake another time on the PFS for a write of another
//! program.

use core::ffi::{c_char, c_int};

use libc::{AT_FDCWD, timespec, timeval, utimbuf};

use crate::calls::take_place;
use crate::next::next;
use crate::{absorb, inside, kernel, own_files, tier};

/// What is to become of the mtime: it stays (`None`), becomes now (`Some(None)`), or becomes this
/// many nanoseconds since 1970.
type Set = Option<Option<i64>>;

fn nanos(seconds: i64, more: i64) -> Set {
    Some(Some(seconds.saturating_mul(1_000_000_000).saturating_add(more)))
}

/// Times as a program passes them.
trait Times {
    /// # Safety
    /// They are what the call takes, or null.
    unsafe fn set(self) -> Set;
}

impl Times for *const timespec {
    unsafe fn set(self) -> Set {
        if self.is_null() {
            return Some(None);
        }
        // SAFETY: there are two.
        match unsafe { *self.add(1) } {
            time if time.tv_nsec == libc::UTIME_NOW => Some(None),
            time if time.tv_nsec == libc::UTIME_OMIT => None,
            time => nanos(time.tv_sec, time.tv_nsec),
        }
    }
}

impl Times for *const timeval {
    unsafe fn set(self) -> Set {
        if self.is_null() {
            return Some(None);
        }
        // SAFETY: there are two.
        let time = unsafe { *self.add(1) };
        nanos(time.tv_sec, time.tv_usec.saturating_mul(1000))
    }
}

impl Times for *const utimbuf {
    unsafe fn set(self) -> Set {
        // SAFETY: there is one, or none.
        unsafe { self.as_ref() }.map_or(Some(None), |times| nanos(times.modtime, 0))
    }
}

/// Announces that a file with this device and inode is about to get new times.
fn announce(identity: Option<(u64, u64)>, times: impl Times) {
    if let Some(identity) = identity.filter(|identity| absorb::is_dirty(*identity))
        // SAFETY: the program has passed them, and the kernel would read them now.
        && let Some(mtime_ns) = unsafe { times.set() }
    {
        tier::before_times(identity, mtime_ns);
    }
}

/// As [`announce`], for a file that is named by its path.
fn announce_named(dir: c_int, path: *const c_char, flags: c_int, times: impl Times) {
    if !absorb::is_any_dirty() || inside::is_inside() || path.is_null() {
        return;
    }
    // SAFETY: zeroes are a valid value; a path that the program has passed, and a place for the
    // result.
    let found = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        let flags = flags & (libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH);
        let failed = kernel::sys!(SYS_newfstatat, dir, path, &raw mut stat, flags);
        (failed == 0).then_some((stat.st_dev, stat.st_ino))
    };
    announce(found, times);
}

/// As [`announce`], for an open file; returns the number by which the PFS has it.
fn announce_open(fd: c_int, times: impl Times) -> c_int {
    let fd = absorb::on_pfs(fd);
    if absorb::is_any_dirty() && !inside::is_inside() {
        announce(own_files::identity(fd), times);
    }
    fd
}

take_place! {
    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        let fd = announce_open(fd, times);
        next!(futimens(fd => c_int, times => *const timespec) -> c_int, else -1)
    }

    fn futimes(fd: c_int, times: *const timeval) -> c_int {
        let fd = announce_open(fd, times);
        next!(futimes(fd => c_int, times => *const timeval) -> c_int, else -1)
    }

    fn utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        // Without a path, the descriptor's file is meant.
        let dir = if path.is_null() { announce_open(dir, times) } else { dir };
        announce_named(dir, path, flags, times);
        next!(
            utimensat(dir => c_int, path => *const c_char, times => *const timespec, flags => c_int) -> c_int,
            else -1
        )
    }

    fn futimesat(dir: c_int, path: *const c_char, times: *const timeval) -> c_int {
        announce_named(dir, path, 0, times);
        next!(futimesat(dir => c_int, path => *const c_char, times => *const timeval) -> c_int, else -1)
    }

    fn utimes(path: *const c_char, times: *const timeval) -> c_int {
        announce_named(AT_FDCWD, path, 0, times);
        next!(utimes(path => *const c_char, times => *const timeval) -> c_int, else -1)
    }

    fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
        announce_named(AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW, times);
        next!(lutimes(path => *const c_char, times => *const timeval) -> c_int, else -1)
    }

    fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
        announce_named(AT_FDCWD, path, 0, times);
        next!(utime(path => *const c_char, times => *const utimbuf) -> c_int, else -1)
    }
}
