//! The backing directory: from inode numbers to descriptors, and the calls made on them.
//!
//! Everything starts from one descriptor of the backing root and stays beneath it (`openat2` with
//! `RESOLVE_BENEATH` and no symbolic links), so neither a link in the data nor a mount over the
//! backing directory leads elsewhere. Calls that exist only for paths go through `/proc/self/fd/N`,
//! which names the object itself, symbolic links included, and works for files that have no name
//! any more.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::{Errno, Result};

use super::handles::OpenFile;
use super::nodes::{Nodes, ROOT};

/// The backing directory.
#[derive(Debug)]
pub struct Backing {
    root: OwnedFd,
    dev: u64,
    /// Whether it runs as root: files can then be given to their creators.
    privileged: bool,
}

/// A backing object, however it was found.
pub enum Located<'a> {
    /// The root.
    Root(BorrowedFd<'a>),
    /// Opened by name (`O_PATH`).
    Named(OwnedFd),
    /// Through a file that is open on it.
    Open(Arc<OpenFile>),
}

impl AsFd for Located<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Located::Root(fd) => *fd,
            Located::Named(fd) => fd.as_fd(),
            Located::Open(file) => file.as_fd(),
        }
    }
}

/// The process that makes a request.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// Numeric user.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Number of the calling thread.
    pub thread: u32,
}

impl Backing {
    /// Opens the backing directory.
    ///
    /// # Errors
    /// The errors of open(2).
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        let dev = rustix::fs::fstat(&root)?.st_dev;
        Ok(Self { root, dev, privileged: rustix::process::geteuid().is_root() })
    }

    /// The backing root.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Finds the object with this inode number.
    ///
    /// # Errors
    /// `ESTALE` if no known name leads to it any more.
    pub fn locate(&self, nodes: &Nodes, ino: u64) -> Result<Located<'_>> {
        if ino == ROOT {
            return Ok(Located::Root(self.root()));
        }
        if let Some(file) = nodes.open_file(ino, false) {
            return Ok(Located::Open(file));
        }
        for path in nodes.paths(ino) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            let Ok(fd) = rustix::fs::openat2(&self.root, path, flags, Mode::empty(), beneath) else {
                continue;
            };
            if rustix::fs::fstat(&fd)?.st_ino == ino {
                return Ok(Located::Named(fd));
            }
        }
        Err(Errno::STALE)
    }

    /// The attributes of `name` in the directory `parent`.
    ///
    /// # Errors
    /// `EXDEV` for a directory on which something is mounted inside the backing directory: inode
    /// numbers below could collide with ours. Checked for directories only: on an overlay, files
    /// may show another device without being elsewhere.
    pub fn stat_child(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Result<Stat> {
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mounted_over = stat.st_dev != self.dev && kind(stat.st_mode) == Some(FileType::Directory);
        if mounted_over || stat.st_ino == ROOT {
            return Err(Errno::XDEV);
        }
        Ok(stat)
    }

    /// Opens a located object again with `flags`, even if it has no name any more.
    pub fn reopen(&self, at: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        rustix::fs::open(self_path(at), flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// Creates and opens a regular file. It is made with mode 0600 first and opened up last, so
    /// that at no moment the wrong user can open it.
    pub fn create(
        &self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        mode: u32,
        flags: i32,
        caller: Caller,
    ) -> Result<OwnedFd> {
        let flags_kept = backing_open_flags(flags) | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let private = Mode::from_raw_mode(0o600);
        match rustix::fs::openat(parent, name, flags_kept | OFlags::CREATE | OFlags::EXCL, private) {
            Ok(fd) => {
                self.give_to(parent, fd.as_fd(), caller)?;
                rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode & 0o7777))?;
                Ok(fd)
            }
            // Another process made it between the kernel's lookup and now: open it, as without
            // O_EXCL.
            Err(Errno::EXIST) if flags & libc::O_EXCL == 0 => {
                let truncate = if flags & libc::O_TRUNC != 0 { OFlags::TRUNC } else { OFlags::empty() };
                rustix::fs::openat(parent, name, flags_kept | truncate, Mode::empty())
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the object just made as `name` (not a symbolic link) to its creator and sets its mode.
    pub fn settle(&self, parent: BorrowedFd<'_>, name: &OsStr, mode: u32, caller: Caller) -> Result<()> {
        let fd = rustix::fs::openat(
            parent,
            name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        self.give_to(parent, fd.as_fd(), caller)?;
        // A directory made in a set-group-id directory has inherited the bit; keep it.
        let inherited = rustix::fs::fstat(&fd)?.st_mode & libc::S_ISGID;
        rustix::fs::chmod(self_path(fd.as_fd()), Mode::from_raw_mode(mode & 0o7777 | inherited))
    }

    /// Makes the caller the owner; the group is the directory's if the directory has the
    /// set-group-id bit.
    pub fn give_to(&self, parent: BorrowedFd<'_>, fd: BorrowedFd<'_>, caller: Caller) -> Result<()> {
        if !self.privileged {
            return Ok(());
        }
        let keeps_group = rustix::fs::fstat(parent)?.st_mode & libc::S_ISGID != 0;
        let group = (!keeps_group).then(|| Gid::from_raw(caller.gid));
        rustix::fs::chownat(fd, "", Some(Uid::from_raw(caller.uid)), group, AtFlags::EMPTY_PATH)
    }

    /// Sets the length of a located file, through a descriptor that may only be readable.
    pub fn truncate(&self, nodes: &Nodes, ino: u64, at: BorrowedFd<'_>, size: u64) -> Result<()> {
        if let Some(file) = nodes.open_file(ino, true) {
            return rustix::fs::ftruncate(file.as_fd(), size);
        }
        rustix::fs::ftruncate(self.reopen(at, OFlags::WRONLY | OFlags::NONBLOCK)?, size)
    }
}

/// The object's name under `/proc`, for calls that take paths only.
pub fn self_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The part of a program's open flags that is passed to the backing file. `O_APPEND` must not be:
/// the kernel sends offsets, and Linux would append in spite of them. `O_SYNC` and `O_DIRECT`
/// concern the model, not the backing disk.
pub fn backing_open_flags(flags: i32) -> OFlags {
    OFlags::from_bits_truncate((flags & libc::O_ACCMODE) as u32)
}

/// Attributes in FUSE's form. `ino` is the number to show, which for the root differs from FUSE's
/// own.
pub fn attributes(stat: &Stat) -> Result<FileAttr> {
    Ok(FileAttr {
        ino: INodeNo(stat.st_ino),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec as u32),
        crtime: UNIX_EPOCH,
        kind: kind(stat.st_mode).ok_or(Errno::IO)?,
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: stat.st_blksize as u32,
        flags: 0,
    })
}

/// The type in a mode.
pub fn kind(mode: u32) -> Option<FileType> {
    Some(match mode & libc::S_IFMT {
        libc::S_IFREG => FileType::RegularFile,
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => return None,
    })
}

/// The target of a located symbolic link.
pub fn read_link(at: BorrowedFd<'_>) -> Result<OsString> {
    Ok(OsString::from_vec(rustix::fs::readlinkat(at, "", Vec::new())?.into_bytes()))
}

fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    start + Duration::from_nanos(u64::from(nanoseconds))
}
