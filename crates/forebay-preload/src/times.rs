//! The functions that set a file's times, which are the PFS's. Of a dirty file the agent hears of it
//! before: it takes another time on the PFS for a write of another program otherwise.

use core::ffi::{c_char, c_int};

use libc::{AT_FDCWD, timespec, timeval, utimbuf};

use crate::calls::take_place;
use crate::next::next;
use crate::{absorb, inside, kernel, own_files, tier};

/// What is to become of the time of the last write.
enum Set {
    Now,
    To(i64),
    /// It stays.
    Omitted,
}

fn nanos(seconds: i64, more: i64) -> Set {
    Set::To(seconds.saturating_mul(1_000_000_000).saturating_add(more))
}

/// Of two times, as the program has passed them; `None` stands for now.
fn of_timespecs(times: *const timespec) -> Set {
    // SAFETY: the program has passed two of them, or none.
    match unsafe { times.add(1).as_ref() }.filter(|_| !times.is_null()) {
        None => Set::Now,
        Some(time) if time.tv_nsec == libc::UTIME_NOW => Set::Now,
        Some(time) if time.tv_nsec == libc::UTIME_OMIT => Set::Omitted,
        Some(time) => nanos(time.tv_sec, time.tv_nsec),
    }
}

fn of_timevals(times: *const timeval) -> Set {
    // SAFETY: the program has passed two of them, or none.
    match unsafe { times.add(1).as_ref() }.filter(|_| !times.is_null()) {
        None => Set::Now,
        Some(time) => nanos(time.tv_sec, time.tv_usec.saturating_mul(1000)),
    }
}

fn of_utimbuf(times: *const utimbuf) -> Set {
    // SAFETY: the program has passed one, or none.
    match unsafe { times.as_ref() } {
        None => Set::Now,
        Some(times) => nanos(times.modtime, 0),
    }
}

/// A file of this device and inode is about to get new times.
fn announce(identity: Option<(u64, u64)>, set: Set) {
    let mtime_ns = match set {
        Set::Omitted => return,
        Set::Now => None,
        Set::To(ns) => Some(ns),
    };
    if let Some(identity) = identity.filter(|identity| absorb::is_dirty(*identity)) {
        tier::before_times(identity, mtime_ns);
    }
}

/// As [`announce`], of a file that is named by its path.
fn announce_named(dir: c_int, path: *const c_char, flags: c_int, set: Set) {
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
    announce(found, set);
}

/// As [`announce`], of an open file; returns by which number the PFS has it.
fn announce_open(fd: c_int, set: Set) -> c_int {
    let fd = absorb::on_pfs(fd);
    if absorb::is_any_dirty() && !inside::is_inside() {
        announce(own_files::identity(fd), set);
    }
    fd
}

take_place! {
    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        let fd = announce_open(fd, of_timespecs(times));
        next!(futimens(fd => c_int, times => *const timespec) -> c_int, else -1)
    }

    fn futimes(fd: c_int, times: *const timeval) -> c_int {
        let fd = announce_open(fd, of_timevals(times));
        next!(futimes(fd => c_int, times => *const timeval) -> c_int, else -1)
    }

    fn utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        // Without a path, that of the descriptor is meant.
        let dir = if path.is_null() { announce_open(dir, of_timespecs(times)) } else { dir };
        announce_named(dir, path, flags, of_timespecs(times));
        next!(
            utimensat(dir => c_int, path => *const c_char, times => *const timespec, flags => c_int) -> c_int,
            else -1
        )
    }

    fn futimesat(dir: c_int, path: *const c_char, times: *const timeval) -> c_int {
        announce_named(dir, path, 0, of_timevals(times));
        next!(futimesat(dir => c_int, path => *const c_char, times => *const timeval) -> c_int, else -1)
    }

    fn utimes(path: *const c_char, times: *const timeval) -> c_int {
        announce_named(AT_FDCWD, path, 0, of_timevals(times));
        next!(utimes(path => *const c_char, times => *const timeval) -> c_int, else -1)
    }

    fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
        announce_named(AT_FDCWD, path, 0, of_utimbuf(times));
        next!(utime(path => *const c_char, times => *const utimbuf) -> c_int, else -1)
    }
}
