//! The disk to which map outputs are spilled: files without a name, in a share of it.

use crate::lock::lock;
use forebay_store::bounded::BoundedFile;
use rustix::fs::{Advice, FallocateFlags, Mode, OFlags, fadvise, fallocate, fstatvfs, open, openat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;

/// Where outputs are spilled to.
#[derive(Debug)]
pub struct Spill {
    directory: OwnedFd,
    /// Up to this share the disk may be filled.
    fill: f64,
    /// One output at a time: the disk is the bottleneck.
    pub(super) one: Mutex<()>,
    /// One file at a time gets room.
    making: Mutex<()>,
}

impl Spill {
    /// Spills into `directory` until its disk is full up to the share `fill`.
    ///
    /// # Errors
    /// It is no directory for files without a name.
    pub fn open(directory: &Path, fill: f64) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = open(directory, flags, Mode::empty())?;
        let spill = Spill { directory: opened, fill, one: Mutex::default(), making: Mutex::default() };
        spill.unnamed()?;
        Ok(spill)
    }

    /// Bytes that the disk may be filled with, whoever fills it.
    ///
    /// # Errors
    /// What the kernel returns.
    pub fn most_bytes(&self) -> io::Result<u64> {
        let disk = fstatvfs(&self.directory)?;
        Ok((disk.f_blocks as f64 * self.fill) as u64 * disk.f_frsize)
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
        let keep_free = (disk.f_blocks as f64 * (1.0 - self.fill)) as u64;
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
