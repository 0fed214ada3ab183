//! The functions that report a file's attributes. Of a dirty file, its length and the time of its
//! last write are those of its content, and all else is the PFS's: programs compare what a
//! descriptor and a path report.

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

/// After a call by a path that returned `result`.
#[inline]
fn by_path<A: Attributes>(result: c_int, found: *mut A) -> c_int {
    if result == 0 && absorb::is_any_dirty() && !inside::is_inside() {
        // SAFETY: the kernel has just written it.
        let found = unsafe { &mut *found };
        let shown = found.shown();
        if let Some(newest) = found.identity().and_then(|file| crate::tier::newest(file, shown)) {
            found.set(&newest);
        }
    }
    result
}

/// Runs a call of a descriptor, on the file of the PFS.
#[inline]
fn by_descriptor<A: Attributes>(fd: c_int, found: *mut A, call: impl FnOnce(c_int) -> c_int) -> c_int {
    // What has no content here is the file on the PFS, also if it is dirty.
    let Some(newest) = absorb::has(fd).then(|| absorb::content_of(fd)).flatten() else { return call(fd) };
    let result = call(absorb::on_pfs(fd));
    if result == 0 {
        // SAFETY: the kernel has just written it.
        unsafe { &mut *found }.set(&newest);
    }
    result
}

/// Whether a call by a path in a directory means the descriptor itself.
fn is_descriptor(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: a C string, if anything; the kernel accepts no other.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

take_place! {
    fn stat(path: *const c_char, found: *mut Stat) -> c_int {
        by_path(next!(stat(path => *const c_char, found => *mut Stat) -> c_int, else -1), found)
    }

    fn stat64(path: *const c_char, found: *mut Stat) -> c_int {
        by_path(next!(stat64(path => *const c_char, found => *mut Stat) -> c_int, else -1), found)
    }

    fn lstat(path: *const c_char, found: *mut Stat) -> c_int {
        by_path(next!(lstat(path => *const c_char, found => *mut Stat) -> c_int, else -1), found)
    }

    fn lstat64(path: *const c_char, found: *mut Stat) -> c_int {
        by_path(next!(lstat64(path => *const c_char, found => *mut Stat) -> c_int, else -1), found)
    }

    fn fstat(fd: c_int, found: *mut Stat) -> c_int {
        by_descriptor(fd, found, |fd| next!(fstat(fd => c_int, found => *mut Stat) -> c_int, else -1))
    }

    fn fstat64(fd: c_int, found: *mut Stat) -> c_int {
        by_descriptor(fd, found, |fd| next!(fstat64(fd => c_int, found => *mut Stat) -> c_int, else -1))
    }

    fn fstatat(dir: c_int, path: *const c_char, found: *mut Stat, flags: c_int) -> c_int {
        let call = |dir| next!(
            fstatat(dir => c_int, path => *const c_char, found => *mut Stat, flags => c_int) -> c_int, else -1
        );
        if is_descriptor(path, flags) { by_descriptor(dir, found, call) } else { by_path(call(dir), found) }
    }

    fn fstatat64(dir: c_int, path: *const c_char, found: *mut Stat, flags: c_int) -> c_int {
        let call = |dir| next!(
            fstatat64(dir => c_int, path => *const c_char, found => *mut Stat, flags => c_int) -> c_int, else -1
        );
        if is_descriptor(path, flags) { by_descriptor(dir, found, call) } else { by_path(call(dir), found) }
    }

    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, found: *mut Statx) -> c_int {
        let call = |dir| next!(
            statx(dir => c_int, path => *const c_char, flags => c_int, mask => c_uint, found => *mut Statx) -> c_int,
            else -1
        );
        if is_descriptor(path, flags) { by_descriptor(dir, found, call) } else { by_path(call(dir), found) }
    }
}

/// The names that programs have which were linked to a C library before 2.33.
#[cfg(target_arch = "x86_64")]
mod old {
    use super::{Stat, by_descriptor, by_path, c_char, c_int, is_descriptor, next, take_place};

    take_place! {
        fn __xstat(version: c_int, path: *const c_char, found: *mut Stat) -> c_int {
            let result = next!(
                __xstat(version => c_int, path => *const c_char, found => *mut Stat) -> c_int, else -1
            );
            by_path(result, found)
        }

        fn __xstat64(version: c_int, path: *const c_char, found: *mut Stat) -> c_int {
            let result = next!(
                __xstat64(version => c_int, path => *const c_char, found => *mut Stat) -> c_int, else -1
            );
            by_path(result, found)
        }

        fn __lxstat(version: c_int, path: *const c_char, found: *mut Stat) -> c_int {
            let result = next!(
                __lxstat(version => c_int, path => *const c_char, found => *mut Stat) -> c_int, else -1
            );
            by_path(result, found)
        }

        fn __lxstat64(version: c_int, path: *const c_char, found: *mut Stat) -> c_int {
            let result = next!(
                __lxstat64(version => c_int, path => *const c_char, found => *mut Stat) -> c_int, else -1
            );
            by_path(result, found)
        }

        fn __fxstat(version: c_int, fd: c_int, found: *mut Stat) -> c_int {
            let call = |fd| next!(__fxstat(version => c_int, fd => c_int, found => *mut Stat) -> c_int, else -1);
            by_descriptor(fd, found, call)
        }

        fn __fxstat64(version: c_int, fd: c_int, found: *mut Stat) -> c_int {
            let call = |fd| next!(__fxstat64(version => c_int, fd => c_int, found => *mut Stat) -> c_int, else -1);
            by_descriptor(fd, found, call)
        }

        fn __fxstatat(version: c_int, dir: c_int, path: *const c_char, found: *mut Stat, flags: c_int) -> c_int {
            let call = |dir| next!(
                __fxstatat(
                    version => c_int, dir => c_int, path => *const c_char, found => *mut Stat, flags => c_int
                ) -> c_int,
                else -1
            );
            if is_descriptor(path, flags) { by_descriptor(dir, found, call) } else { by_path(call(dir), found) }
        }

        fn __fxstatat64(version: c_int, dir: c_int, path: *const c_char, found: *mut Stat, flags: c_int) -> c_int {
            let call = |dir| next!(
                __fxstatat64(
                    version => c_int, dir => c_int, path => *const c_char, found => *mut Stat, flags => c_int
                ) -> c_int,
                else -1
            );
            if is_descriptor(path, flags) { by_descriptor(dir, found, call) } else { by_path(call(dir), found) }
        }
    }
}
