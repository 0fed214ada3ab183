//! A file in memory that another process writes and that cannot outgrow its room.
//!
//! The writer is another program and has the file open, so nothing but the kernel can hold it to
//! its room. Where this process may mount, each such file is on a tmpfs of its own, whose size is
//! the room: a write beyond it fails with `ENOSPC`. The mount has no place in any directory; it
//! goes with its last descriptor, however this process ends. Elsewhere the file is on the tier's
//! tmpfs, and only that one's size bounds it.

use crate::mounting::Backing;
use crate::tier::Tier;
use crate::{BLOCK_BYTES, blocks_bytes};
use forebay_pfs::read::reopen;
use rustix::fs::{Mode, OFlags, fstat, fstatvfs, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, fsconfig_create, fsconfig_reconfigure,
    fsconfig_set_string, fsmount, fsopen, fspick,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A file that others write, and its room.
#[derive(Debug)]
pub struct BoundedFile {
    file: OwnedFd,
    mount: Option<OwnedFd>,
    is_on_disk: bool,
}

/// The memory of a file that was given up, while programs may still have it open.
#[derive(Debug)]
pub struct Remains {
    mount: OwnedFd,
}

impl BoundedFile {
    /// An empty file with room for one block.
    ///
    /// # Errors
    /// What the kernel returns.
    pub fn create(tier: &Tier) -> io::Result<Self> {
        if tier.backing() != Backing::Mount {
            return Ok(BoundedFile { file: tier.create_unnamed()?, mount: None, is_on_disk: false });
        }
        let mount = mount_of_one_block(tier.huge_pages())?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(&mount, ".", flags, Mode::from(0o600))?;
        Ok(BoundedFile { file, mount: Some(mount), is_on_disk: false })
    }

    /// A file that has left the tier for one on a disk.
    pub fn on_disk(file: OwnedFd) -> Self {
        BoundedFile { file, mount: None, is_on_disk: true }
    }

    /// Whether it takes no memory of the tier.
    pub fn is_on_disk(&self) -> bool {
        self.is_on_disk
    }

    /// Descriptors that each such file takes on this tier.
    pub fn descriptors(tier: &Tier) -> u64 {
        if tier.backing() == Backing::Mount { 2 } else { 1 }
    }

    /// A descriptor for the writer.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn for_writing(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// A descriptor for a reader, and the length.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn for_reading(&self) -> io::Result<(OwnedFd, u64)> {
        let fd = reopen(self.file.as_fd())?;
        let size = fstat(&fd)?.st_size as u64;
        Ok((fd, size))
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        fstat(&self.file).map_or(0, |stat| stat.st_size as u64)
    }

    /// Sets the room; `false` if the file already takes more.
    ///
    /// # Errors
    /// What the kernel returns.
    pub fn set_room(&self, bytes: u64) -> io::Result<bool> {
        let Some(mount) = &self.mount else {
            return Ok(fstat(&self.file)?.st_blocks as u64 * 512 <= bytes);
        };
        let picked = fspick(mount, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
        set_size(&picked, bytes)?;
        match fsconfig_reconfigure(&picked) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Gives the file up. What it takes remains for as long as programs have it open.
    pub fn give_up(self) -> Option<Remains> {
        self.mount.map(|mount| Remains { mount })
    }
}

impl Remains {
    /// Whether its memory is free.
    pub fn are_gone(&self) -> bool {
        fstatvfs(&self.mount).is_ok_and(|stat| stat.f_bfree == stat.f_blocks)
    }
}

fn set_size(fs: &OwnedFd, bytes: u64) -> io::Result<()> {
    // A size of 0 would be no limit.
    Ok(fsconfig_set_string(fs, "size", blocks_bytes(bytes).max(BLOCK_BYTES).to_string())?)
}

fn mount_of_one_block(huge_pages: &str) -> io::Result<OwnedFd> {
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    set_size(&fs, BLOCK_BYTES)?;
    // The root, the file, and what its attributes may take.
    fsconfig_set_string(&fs, "nr_inodes", "4")?;
    fsconfig_set_string(&fs, "mode", "0700")?;
    if huge_pages != "never" {
        fsconfig_set_string(&fs, "huge", huge_pages)?;
    }
    fsconfig_create(&fs)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}
