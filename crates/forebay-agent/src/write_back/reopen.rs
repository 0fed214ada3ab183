//! Opens the file of an earlier agent's dirty file again.
//!
//! The descriptor is gone, so it is opened by its path. The path is the user's, and this agent may
//! be root: only the very file that the user had opened is taken, by device, inode and birth time,
//! and nothing outside of its mount is looked at.

use crate::mounts::MountState;
use forebay_pfs::read::reopen_as;
use forebay_pfs::{FileFacts, Revalidate};
use forebay_store::dirty::DirtyRecord;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, open, openat2, statx};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// When the file was created, if its file system reports it.
pub fn born_ns(fd: BorrowedFd<'_>) -> Option<i64> {
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::BTIME).ok()?;
    let is_reported = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    is_reported.then(|| stat.stx_btime.tv_sec * 1_000_000_000 + i64::from(stat.stx_btime.tv_nsec))
}

/// A directory with more names is not searched to its end.
const NAMES_MAX: usize = 100_000;

/// The file that a record names, even if it has another name in the same directory by now.
///
/// # Errors
/// There is none, or it cannot be opened.
pub fn reopen(mount: &MountState, record: &DirtyRecord) -> io::Result<(OwnedFd, FileFacts)> {
    if mount.label() != record.mount {
        return Err(io::Error::other(format!("no mount `{}` is served any more", record.mount)));
    }
    let outside = || io::Error::other("its path is not below the mount any more");
    let path = Path::new(OsStr::from_bytes(&record.path));
    let below = path.strip_prefix(mount.root().canonicalize()?).map_err(|_| outside())?;
    let root = open(mount.root(), OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // A pass has changed what the PFS shows, perhaps that of another node.
    let by_name_alone = record.is_draining || record.second.is_disputed;
    let mut failure = match open_same(mount, &root, below, record, by_name_alone) {
        Ok(found) => return Ok(found),
        Err(e) => io::Error::new(e.kind(), format!("cannot be opened again by its path: {e}")),
    };
    if let Some(parent) = below.parent() {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = openat2(&root, or_here(parent), flags, Mode::empty(), BENEATH)?;
        for entry in rustix::fs::Dir::read_from(&dir)?.take(NAMES_MAX).flatten() {
            let name = Path::new(OsStr::from_bytes(entry.file_name().to_bytes()));
            if entry.ino() == record.ino {
                match open_same(mount, &dir, name, record, false) {
                    Ok(found) => return Ok(found),
                    Err(e) => failure = e,
                }
            }
        }
    }
    Err(failure)
}

const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn open_same(
    mount: &MountState,
    dir: &OwnedFd,
    path: &Path,
    record: &DirtyRecord,
    by_name_alone: bool,
) -> io::Result<(OwnedFd, FileFacts)> {
    // What it is comes first: an open for writing may wait, or do something.
    let probe =
        openat2(dir, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), BENEATH)?;
    let facts = FileFacts::of(probe.as_fd(), Revalidate::Force)?;
    let is_same = facts.is_regular()
        && mount.has_device(facts.dev)
        && facts.version.ino == record.ino
        && born_ns(probe.as_fd()) == record.born_ns
        // Without a birth time, another file may have got the number since.
        && (record.born_ns.is_some()
            || by_name_alone
            || record.left == (facts.version.size, facts.version.mtime_ns));
    if !is_same {
        return Err(io::Error::other("another file has its path now"));
    }
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok((reopen_as(probe.as_fd(), flags)?, facts))
}
