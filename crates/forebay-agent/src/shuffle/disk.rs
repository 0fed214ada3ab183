//! The disk to which map outputs are spilled: files without a name, in a share of it.

use crate::config::{Config, Live};
use crate::lock::lock;
use forebay_store::bounded::BoundedFile;
use rustix::fs::{Advice, FallocateFlags, Mode, OFlags, fadvise, fallocate, fstatvfs, open, openat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Where outputs are spilled to.
#[derive(Debug)]
pub struct Spill {
    directory: OwnedFd,
    live: Arc<Live<Config>>,
    /// One output at a time: the disk is the bottleneck.
    pub(super) one: Mutex<()>,
    /// One file at a time gets room.
    making: Mutex<()>,
}

impl Spill {
    /// Spills into `directory` until its disk is full up to the share `tier.spill_fill`.
    ///
    /// # Errors
    /// It is not a directory that can have files without a name.
    pub fn open(directory: &Path, live: Arc<Live<Config>>) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = open(directory, flags, Mode::empty())?;
        let spill = Spill { directory: opened, live, one: Mutex::default(), making: Mutex::default() };
        spill.unnamed()?;
        Ok(spill)
    }

    /// Size of the disk in bytes.
    ///
    /// # Errors
    /// What the kernel returns.
    pub fn disk_bytes(&self) -> io::Result<u64> {
        let disk = fstatvfs(&self.directory)?;
        Ok(disk.f_blocks * disk.f_frsize)
    }

    fn unnamed(&self) -> io::Result<OwnedFd> {
        // Nobody who gets a descriptor can give it a name.
        let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(openat(&self.directory, ".", flags, Mode::from(0o600))?)
    }

    /// An empty file on the disk with room for `bytes`.
    pub(super) fn file(&self, bytes: u64) -> io::Result<BoundedFile> {
        let _room_is_seen_by_the_next = lock(&self.making);
        let disk = fstatvfs(&self.directory)?;
        let keep_free = (disk.f_blocks as f64 * (1.0 - self.live.get(|config| config.spill_fill))) as u64;
        if disk.f_bavail.saturating_sub(keep_free) < bytes.div_ceil(disk.f_frsize) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = self.unnamed()?;
        match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            // Some file systems have no such call.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(BoundedFile::on_disk(file)),
            Err(e) => Err(e.into()),
        }
    }

    pub(super) fn copy(&self, from: OwnedFd, bytes: u64) -> io::Result<BoundedFile> {
        let spilled = self.file(bytes)?;
        let mut to = File::from(spilled.for_writing()?);
        if io::copy(&mut File::from(from), &mut to)? != bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // While the copy in memory is there, a disk that fails costs nothing.
        to.sync_data()?;
        fadvise(&to, 0, None, Advice::DontNeed)?;
        Ok(spilled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_filled_as_far_as_the_configuration_says_that_was_read_last() {
        let dir = tempfile::tempdir().unwrap();
        let filled = |spill_fill| Config { spill_fill, ..Config::default() };
        let live = Arc::new(Live::new(filled(1.0)));
        let spill = Spill::open(dir.path(), live.clone()).unwrap();
        assert!(spill.file(1).is_ok());
        live.set(filled(0.0));
        assert_eq!(spill.file(1).err().unwrap().kind(), io::ErrorKind::StorageFull);
    }
}
