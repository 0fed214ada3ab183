//! Which mount a descriptor is on, and whether it may be served.
//!
//! An open descriptor is the proof of access: anyone who could open the file may have its bytes. So
//! everything here is taken from the descriptor itself, never from what a client says about it.

use super::MountState;
use forebay_pfs::read::PageCache;
use forebay_pfs::{FileFacts, Revalidate};
use forebay_wire::Refusal;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::os::fd::BorrowedFd;

/// Why a descriptor cannot be served.
#[derive(Debug)]
pub enum NoFile {
    /// Not acceptable.
    Refused(Refusal),
    /// The PFS failed to report on it.
    Pfs(io::Error),
}

/// A descriptor that has proved itself.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    /// Index of the mount.
    pub mount: usize,
    /// What the PFS reports about the file now.
    pub facts: FileFacts,
}

/// Where an open file is, as the kernel reports without asking a server. Device and inode of an
/// open file never change.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Device of its file system.
    pub device: u64,
    /// Its inode.
    pub ino: u64,
    /// Index of the mount that had this device when the place was looked up.
    pub mount: Option<usize>,
}

impl Place {
    /// Looks it up. A descriptor on somebody's own file system must not make the agent wait for
    /// that, so this comes before anything else.
    ///
    /// # Errors
    /// `fd` is not a descriptor.
    pub fn of(mounts: &[MountState], fd: BorrowedFd<'_>) -> io::Result<Self> {
        let (device, ino) = identity_without_asking(fd)?;
        Ok(Place { device, ino, mount: mounts.iter().position(|m| m.has_device(device)) })
    }
}

/// Checks that `fd` is open for reading, is a regular file, and is on one of `mounts` as this agent
/// sees them.
///
/// # Errors
/// See [`NoFile`].
pub fn admit(mounts: &[MountState], fd: BorrowedFd<'_>) -> Result<Admitted, NoFile> {
    let place = Place::of(mounts, fd).map_err(NoFile::Pfs)?;
    admit_at(mounts, fd, &place)
}

/// As [`admit`], for a descriptor whose place was looked up for this request.
///
/// # Errors
/// See [`NoFile`].
pub fn admit_at(mounts: &[MountState], fd: BorrowedFd<'_>, place: &Place) -> Result<Admitted, NoFile> {
    let mount = require_reader(mounts, fd, place)?;
    let facts = mounts[mount].facts(fd).map_err(NoFile::Pfs)?;
    if !facts.is_regular() {
        return Err(NoFile::Refused(Refusal::NotRegular));
    }
    Ok(Admitted { mount, facts })
}

/// Checks that `fd` is open for writing anywhere in the file that `facts` show. One that can only
/// append has not proved that its owner may change the existing content.
///
/// # Errors
/// It is not.
pub fn require_writer(fd: BorrowedFd<'_>, facts: &FileFacts) -> Result<(), Refusal> {
    let flags = fcntl_getfl(fd).map_err(|_| Refusal::NotWritable)?;
    let writes = matches!(flags & OFlags::RWMODE, OFlags::WRONLY | OFlags::RDWR);
    if !writes || flags.intersects(OFlags::PATH | OFlags::APPEND) {
        return Err(Refusal::NotWritable);
    }
    match FileFacts::of(fd, Revalidate::AsStat) {
        Ok(same) if (same.dev, same.version.ino) == (facts.dev, facts.version.ino) => Ok(()),
        _ => Err(Refusal::NotWritable),
    }
}

/// The part of [`admit_at`] that asks no server: a miss that is only counted must not cost the PFS
/// a request. Returns the mount.
///
/// # Errors
/// See [`NoFile`].
pub fn require_reader(mounts: &[MountState], fd: BorrowedFd<'_>, place: &Place) -> Result<usize, NoFile> {
    let flags = fcntl_getfl(fd).map_err(|e| NoFile::Pfs(e.into()))?;
    if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::WRONLY {
        return Err(NoFile::Refused(Refusal::NotReadable));
    }
    let Some(mount) = place.mount else {
        return Err(NoFile::Refused(Refusal::NotOnMount));
    };
    let bypasses = mounts[mount].page_cache() == PageCache::Bypass;
    match (bypasses, flags.contains(OFlags::DIRECT)) {
        (false, false) | (true, true) => {}
        // The client shares the open file with the agent. It sees the flag and opens the file again
        // with it; where it cannot, its reads bypass the kernel's page cache at least. Without the
        // flag reads are as a plain program's.
        (true, false) => drop(fcntl_setfl(fd, flags | OFlags::DIRECT)),
        // Its alignment rules differ by file system; a program that asks for direct reads gets them
        // from the PFS.
        (false, true) => {
            return Err(NoFile::Refused(Refusal::Invalid("the descriptor is open with O_DIRECT".into())));
        }
    }
    Ok(mount)
}

/// Device and inode from the kernel's own tables.
fn identity_without_asking(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
    Ok((makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
}

/// The device of an open file, as [`Place::of`] takes it.
///
/// # Errors
/// `fd` is not a descriptor.
pub fn device_without_asking(fd: BorrowedFd<'_>) -> io::Result<u64> {
    identity_without_asking(fd).map(|(dev, _)| dev)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MountConfig;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_admitted_lies_where_it_was_found_and_is_not_looked_up_again() {
        let pfs = tempfile::tempdir().unwrap();
        std::fs::write(pfs.path().join("f"), "bytes").unwrap();
        let mounts = [MountState::new(MountConfig::new("pfs", pfs.path())).unwrap()];
        let file = File::open(pfs.path().join("f")).unwrap();
        let place = Place::of(&mounts, file.as_fd()).unwrap();
        let admitted = admit_at(&mounts, file.as_fd(), &place).unwrap();
        assert_eq!((admitted.mount, admitted.facts.version.size), (0, 5));
        assert_eq!((admitted.facts.dev, admitted.facts.version.ino), (place.device, place.ino));
        let foreign = Place { mount: None, ..place };
        let refused = admit_at(&mounts, file.as_fd(), &foreign);
        assert!(matches!(refused, Err(NoFile::Refused(Refusal::NotOnMount))), "{refused:?}");
    }
}
