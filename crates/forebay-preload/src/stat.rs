//! The functions that report a file's attributes. A dirty file's length, blocks and mtime are those
//! of its content, and all else is the PFS's: programs compare what a descriptor and a path report.

use core::ffi::{c_char, c_int, c_uint};

use forebay_client::dirty::{Newest, Shown};
use libc::{stat as Stat, statx as Statx};

use crate::absorb;
use crate::calls::take_place;
use crate::inside;
use crate::next::next;

const NANOS: i64 = 1_000_000_000;

/// Attributes in the two forms of the C library.
trait Attributes {
    /// Device and inode of a regular file.
    fn identity(&self) -> Option<(u64, u64)>;
    fn shown(&self) -> Shown;
    fn set(&mut self, newest: &Newest);
}

impl Attributes for Stat {
    fn identity(&self) -> Option<(u64, u64)> {
        (self.st_mode & libc::S_IFMT == libc::S_IFREG).then_some((self.st_dev, self.st_ino))
    }

    fn shown(&self) -> Shown {
        Shown {
            size: self.st_size as u64,
            mtime_ns: self.st_mtime.saturating_mul(NANOS).saturating_add(self.st_mtime_nsec),
            ctime_ns: self.st_ctime.saturating_mul(NANOS).saturating_add(self.st_ctime_nsec),
        }
    }

    fn set(&mut self, newest: &Newest) {
        (self.st_size, self.st_blocks) = (newest.size as i64, newest.blocks as i64);
        self.st_mtime = newest.mtime_ns.div_euclid(NANOS);
        self.st_mtime_nsec = newest.mtime_ns.rem_euclid(NANOS);
    }
}

impl Attributes for Statx {
    fn identity(&self) -> Option<(u64, u64)> {
        let is_regular = u32::from(self.stx_mode) & libc::S_IFMT == libc::S_IFREG;
        let dev = libc::makedev(self.stx_dev_major, self.stx_dev_minor);
        (is_regular && self.stx_mask & libc::STATX_TYPE != 0).then_some((dev, self.stx_ino))
    }

    fn shown(&self) -> Shown {
        let (mtime, ctime) = (&self.stx_mtime, &self.stx_ctime);
        Shown {
            size: self.stx_size,
            mtime_ns: mtime.tv_sec.saturating_mul(NANOS).saturating_add(i64::from(mtime.tv_nsec)),
            ctime_ns: ctime.tv_sec.saturating_mul(NANOS).saturating_add(i64::from(ctime.tv_nsec)),
        }
    }

    fn set(&mut self, newest: &Newest) {
        (self.stx_size, self.stx_blocks) = (newest.size, newest.blocks);
        self.stx_mtime.tv_sec = newest.mtime_ns.div_euclid(NANOS);
        self.stx_mtime.tv_nsec = newest.mtime_ns.rem_euclid(NANOS) as u32;
    }
}

/// Attempts to look at a file that may have become clean in between.
const LOOKS: usize = 3;

/// Runs a call by a path.
#[inline]
fn by_path<A: Attributes>(found: *mut A, call: impl Fn() -> c_int) -> c_int {
    let mut result = 0;
    for _ in 0..LOOKS {
        let cleaned = absorb::cleaned();
        result = call();
        // What was not on the PFS then, and is not dirty any more, is there by now.
        if result != 0 || inside::is_inside() || set_newest(found) || absorb::cleaned() == cleaned {
            break;
        }
    }
    result
}

/// Whether the file that the kernel has just reported is dirty, and has got its newest attributes.
#[inline]
fn set_newest<A: Attributes>(found: *mut A) -> bool {
    if !absorb::is_any_dirty() {
        return false;
    }
    // SAFETY: the kernel has just written it.
    let found = unsafe { &mut *found };
    let shown = found.shown();
    let newest = found.identity().and_then(|file| crate::tier::newest(file, shown));
    newest.iter().for_each(|newest| found.set(newest));
    newest.is_some()
}

/// Runs a call on a descriptor, for the file of the PFS.
#[inline]
fn by_descriptor<A: Attributes>(fd: c_int, found: *mut A, call: impl FnOnce(c_int) -> c_int) -> c_int {
    // A descriptor that has no content here is the file on the PFS, even if that is dirty.
    let Some(newest) = absorb::has(fd).then(|| absorb::content_of(fd)).flatten() else { return call(fd) };
    let result = call(absorb::on_pfs(fd));
    if result == 0 {
        // SAFETY: the kernel has just written it.
        let found = unsafe { &mut *found };
        let shown = found.shown();
        // A program may have set a time since the last write.
        let may_be_set = shown.size == 0 && shown.ctime_ns >= newest.mtime_ns;
        let asked = found.identity().filter(|_| may_be_set).and_then(|file| crate::tier::newest(file, shown));
        found.set(&asked.unwrap_or(newest));
    }
    result
}

/// Whether a call by a path in a directory means the descriptor itself.
fn is_descriptor(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: a C string, if anything; the kernel accepts no other.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

take_place! {
    fn stat(path: *const c_char, found: *mut Stat) -> c_int, stat64 {
        by_path(found, || next!(stat(path => *const c_char, found => *mut Stat) -> c_int, else -1))
    }

    fn lstat(path: *const c_char, found: *mut Stat) -> c_int, lstat64 {
        by_path(found, || next!(lstat(path => *const c_char, found => *mut Stat) -> c_int, else -1))
    }

    fn fstat(fd: c_int, found: *mut Stat) -> c_int, fstat64 {
        by_descriptor(fd, found, |fd| next!(fstat(fd => c_int, found => *mut Stat) -> c_int, else -1))
    }

    fn fstatat(dir: c_int, path: *const c_char, found: *mut Stat, flags: c_int) -> c_int, fstatat64 {
        let call = |dir| next!(
            fstatat(dir => c_int, path => *const c_char, found => *mut Stat, flags => c_int) -> c_int, else -1
        );
        if is_descriptor(path, flags) { by_descriptor(dir, found, call) } else { by_path(found, || call(dir)) }
    }

    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, found: *mut Statx) -> c_int {
        let call = |dir| next!(
            statx(dir => c_int, path => *const c_char, flags => c_int, mask => c_uint, found => *mut Statx) -> c_int,
            else -1
        );
        if is_descriptor(path, flags) { by_descriptor(dir, found, call) } else { by_path(found, || call(dir)) }
    }
}

/// The names in programs that were linked to a C library before 2.33.
#[cfg(target_arch = "x86_64")]
mod old {
    use super::{Stat, by_descriptor, by_path, c_char, c_int, is_descriptor, next, take_place};

    take_place! {
        fn __xstat(version: c_int, path: *const c_char, found: *mut Stat) -> c_int, __xstat64 {
            by_path(found, || next!(
                __xstat(version => c_int, path => *const c_char, found => *mut Stat) -> c_int, else -1
            ))
        }

        fn __lxstat(version: c_int, path: *const c_char, found: *mut Stat) -> c_int, __lxstat64 {
            by_path(found, || next!(
                __lxstat(version => c_int, path => *const c_char, found => *mut Stat) -> c_int, else -1
            ))
        }

        fn __fxstat(version: c_int, fd: c_int, found: *mut Stat) -> c_int, __fxstat64 {
            let call = |fd| next!(__fxstat(version => c_int, fd => c_int, found => *mut Stat) -> c_int, else -1);
            by_descriptor(fd, found, call)
        }

        fn __fxstatat(version: c_int, dir: c_int, path: *const c_char, found: *mut Stat, flags: c_int) -> c_int, __fxstatat64 {
            let call = |dir| next!(
                __fxstatat(
                    version => c_int, dir => c_int, path => *const c_char, found => *mut Stat, flags => c_int
                ) -> c_int,
                else -1
            );
            if is_descriptor(path, flags) { by_descriptor(dir, found, call) } else { by_path(found, || call(dir)) }
        }
    }
}
