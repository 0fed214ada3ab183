//! The file system: state and functions that all operations use.
//!
//! Each operation finds the file's directory on the PFS, takes on the caller's rights, and makes
//! the same call there. So the PFS decides, and the program gets its errors.

use crate::abi::{Attr, AttrOut, EntryOut, Plain, bytes_of};
use crate::caller::Callers;
use crate::device::{Buffer, DATA_BYTES, Device, descriptors_max};
use crate::frozen::{Frozen, is_number};
use crate::handles::{Handle, Handles, Opener};
use crate::lock_table::Locks;
use crate::moving::Moving;
use crate::nodes::{FileId, Nodes, Whereabouts};
use crate::registered::Registered;
use crate::shares::{Bound, Kept, Share, Shares};
use forebay_client::Client;
use forebay_client::dirty::Patterns;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// State that the operations use.
#[derive(Debug)]
pub struct Fs {
    /// The root of the PFS.
    pub root: Arc<OwnedFd>,
    /// Its path.
    pub path: PathBuf,
    /// The connection to the kernel.
    pub device: Arc<Device>,
    /// Nodes that the kernel knows.
    pub nodes: Nodes,
    /// Files whose names change meanwhile.
    pub moving: Moving,
    /// Open files and directories.
    pub handles: Handles,
    /// The open files that are registered with the agent.
    pub registered: Registered,
    /// The descriptors that are kept for users.
    pub descriptors: Shares,
    /// Acts as callers.
    pub callers: Callers,
    /// Locks of programs.
    pub locks: Locks,
    /// The tier.
    pub client: Client,
    /// How long the kernel may cache names and attributes.
    pub valid_for: Duration,
    /// The kernel passes reads and writes on to files.
    pub passes: AtomicBool,
    /// The PFS moves time stamps only after a close.
    pub stamps_late: bool,
    /// The PFS's client is a FUSE file system itself. Many keep written data with the open file
    /// until it is flushed, and the kernel flushes no file to which it passes writes: after a
    /// program's close, other nodes would not see them yet. Many let the kernel believe names and
    /// attributes for a second.
    pub in_user_space: bool,
    /// Trees that answer without the PFS.
    pub frozen: Option<Frozen>,
    /// Files that are written to the tier first.
    pub write_back: Patterns,
}

/// A file that was found, in one of several ways.
#[derive(Debug)]
pub enum Located {
    /// By a descriptor that others hold as well.
    Shared(Arc<OwnedFd>),
    /// It has no name.
    Orphan(Kept),
    /// It is open.
    Open(Arc<Handle>),
    /// By name, with its attributes.
    Named(OwnedFd, Box<Statx>),
}

impl AsFd for Located {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Located::Shared(fd) => fd.as_fd(),
            Located::Orphan(fd) => fd.as_fd(),
            Located::Open(handle) => handle.as_fd(),
            Located::Named(fd, _) => fd.as_fd(),
        }
    }
}

/// What must be undone if the caller no longer waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// The kernel has learned of a node.
    LookedUp(u64),
    /// A file was opened.
    Opened(u64),
    /// Both.
    Created(u64, u64),
}

/// Result of an operation.
pub type Done = Result<Effect, Errno>;

/// An answer in the making.
#[derive(Debug)]
pub struct Out {
    /// Its bytes, unless they are in `data`.
    pub bytes: Vec<u8>,
    data: Buffer,
    data_bytes: Option<usize>,
}

impl Out {
    /// An empty one.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> io::Result<Self> {
        Ok(Out { bytes: Vec::new(), data: Buffer::new(DATA_BYTES)?, data_bytes: None })
    }

    /// Forgets the last answer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.data_bytes = None;
    }

    /// Appends a value.
    pub fn put<T: Plain>(&mut self, value: &T) {
        self.bytes.extend_from_slice(bytes_of(value));
    }

    /// Room for the bytes of a file.
    pub fn data(&mut self, bytes: u32) -> &mut [u8] {
        &mut self.data.bytes()[..(bytes as usize).min(DATA_BYTES)]
    }

    /// Sets how many of these bytes are the answer.
    pub fn has_data(&mut self, bytes: usize) {
        self.data_bytes = Some(bytes);
    }

    /// The answer.
    pub fn answer(&mut self) -> &[u8] {
        match self.data_bytes {
            Some(n) => &self.data.bytes()[..n],
            None => &self.bytes,
        }
    }
}

/// Longest part of a path that is resolved in one call; the kernel's limit is 4096.
const PATH_BYTES: usize = 4000;

/// The attributes to get: with the birth time, which distinguishes a file from another that has its
/// inode number later.
const ATTRIBUTES: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// The object itself, without any right to its content.
const BY_NAME: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Fs {
    /// Finds the file of a node.
    ///
    /// # Errors
    /// `ESTALE`: it is not where it was. The kernel then looks names up again.
    pub fn locate(&self, node: u64) -> Result<Located, Errno> {
        match self.nodes.find(node).ok_or(Errno::STALE)? {
            Whereabouts::Root => Ok(Located::Shared(self.root.clone())),
            Whereabouts::Open(handle) => Ok(Located::Open(handle)),
            Whereabouts::Orphan(fd) => Ok(Located::Orphan(fd)),
            Whereabouts::Path(path, file) => match self.by_path(&path, file) {
                Err(Errno::STALE) => {
                    let found = self.moving.find(node).map(Located::Shared);
                    self.moving.failed();
                    found.ok_or(Errno::STALE)
                }
                found => found,
            },
        }
    }

    /// Finds a file by its path. Tries the caller's rights first, since the PFS may grant this
    /// process none. The caller may have no rights for the directories above its current directory,
    /// or above one that is mounted in a container. The kernel has already checked the names by
    /// which the caller came here.
    pub fn by_path(&self, path: &[u8], file: FileId) -> Result<Located, Errno> {
        let found = match self.walk(path, BY_NAME) {
            Err(Errno::ACCESS) if self.callers.switches() => {
                let caller = self.callers.acting();
                self.callers.act_as_daemon();
                let found = self.walk(path, BY_NAME);
                if let Some(caller) = caller {
                    self.callers.act_as(&caller);
                }
                found
            }
            found => found,
        };
        let fd = found.map_err(|e| match e {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS => Errno::STALE,
            e => e,
        })?;
        let stat = stat(fd.as_fd())?;
        match FileId::of(&stat).is(&file) {
            true => Ok(Located::Named(fd, Box::new(stat))),
            false => Err(Errno::STALE),
        }
    }

    /// Opens the last name of `path` with `flags`. Follows no symbolic links, and enters no mounts
    /// below: one of them may be this mount.
    pub fn walk(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let beneath = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let open = |at: BorrowedFd<'_>, part: &[u8], flags: OFlags| loop {
            match rustix::fs::openat2(at, part, flags, Mode::empty(), beneath) {
                // A rename somewhere while the kernel resolved the path.
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        };
        let mut rest = path;
        let mut at: Option<OwnedFd> = None;
        while rest.len() > PATH_BYTES {
            let cut = rest[..PATH_BYTES].iter().rposition(|b| *b == b'/').ok_or(Errno::NAMETOOLONG)?;
            at = Some(open(at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd), &rest[..cut], BY_NAME)?);
            rest = &rest[cut + 1..];
        }
        open(at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd), rest, flags)
    }

    /// The attributes of a name in a directory.
    ///
    /// # Errors
    /// What the PFS returns. `EXDEV`: another file system is mounted there.
    pub fn stat_name(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
        let stat = rustix::fs::statx(
            dir,
            name,
            AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH,
            ATTRIBUTES,
        )?;
        let is_mount = stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
            && stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if is_mount { Err(Errno::XDEV) } else { Ok(stat) }
    }

    /// Answers with the node of `name`, which the kernel learns of.
    ///
    /// # Errors
    /// What the PFS returns.
    pub fn enter(&self, parent: u64, dir: BorrowedFd<'_>, name: &CStr, out: &mut Out) -> Done {
        let kept = match self.moving.is_on() {
            true => Some(rustix::fs::openat(dir, name, BY_NAME, Mode::empty())?),
            false => None,
        };
        let stat = match &kept {
            Some(kept) => self.stat_name(kept.as_fd(), c"")?,
            None => self.stat_name(dir, name)?,
        };
        let node = self.nodes.looked_up(parent, name.to_bytes(), FileId::of(&stat));
        if let Some(kept) = kept {
            self.moving.keep(node, kept);
        }
        out.put(&self.entry(node, &stat));
        Ok(Effect::LookedUp(node))
    }

    /// A node and its attributes.
    pub fn entry(&self, node: u64, stat: &Statx) -> EntryOut {
        let (seconds, nanoseconds) = (self.valid_for.as_secs(), self.valid_for.subsec_nanos());
        EntryOut {
            nodeid: node,
            generation: 0,
            entry_valid: seconds,
            attr_valid: seconds,
            entry_valid_nsec: nanoseconds,
            attr_valid_nsec: nanoseconds,
            attr: attributes(&self.newest(node, stat)),
        }
    }

    /// Answers with attributes of a node.
    pub fn put_attributes(&self, node: u64, stat: &Statx, out: &mut Out) {
        self.put_attributes_for(&self.newest(node, stat), self.valid_for, out);
    }

    /// Answers with attributes that the kernel may cache for a time.
    pub fn put_attributes_for(&self, stat: &Statx, valid_for: Duration, out: &mut Out) {
        out.put(&AttrOut {
            attr_valid: valid_for.as_secs(),
            attr_valid_nsec: valid_for.subsec_nanos(),
            dummy: 0,
            attr: attributes(stat),
        });
    }

    /// Counts a descriptor that is kept for a user. All users together may have half of those that
    /// this process may have; the others are for the tier and for calls under way. Root, or the
    /// only user of a mount, has no share.
    ///
    /// # Errors
    /// `EMFILE`: the user has its whole share.
    pub fn keep_for(&self, uid: u32) -> Result<Option<Share>, Errno> {
        if uid == 0 || !self.callers.switches() {
            return Ok(None);
        }
        let bound = Bound { all: descriptors_max() / 2, part: 2 };
        self.descriptors.take(uid, bound).map(Some).ok_or(Errno::MFILE)
    }

    /// The user who opens a file.
    ///
    /// # Errors
    /// As for [`Fs::keep_for`].
    pub fn opener(&self, uid: u32) -> Result<Opener, Errno> {
        Ok(Opener { uid, share: self.keep_for(uid)? })
    }

    /// An open file by the kernel's number.
    ///
    /// # Errors
    /// `EBADF`: it is not open. For a frozen file, what the PFS returns.
    pub fn handle(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        if is_number(number) {
            return self.real_handle(number);
        }
        self.handles.get(number).ok_or(Errno::BADF)
    }
}

/// The attributes of what is open.
///
/// # Errors
/// What the PFS returns.
pub fn stat(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, ATTRIBUTES)
}

/// A path to the open object, for calls that take paths only.
pub fn self_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Attributes in the form of the protocol.
pub fn attributes(stat: &Statx) -> Attr {
    Attr {
        ino: stat.stx_ino,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: stat.stx_atime.tv_sec,
        mtime: stat.stx_mtime.tv_sec,
        ctime: stat.stx_ctime.tv_sec,
        atimensec: stat.stx_atime.tv_nsec,
        mtimensec: stat.stx_mtime.tv_nsec,
        ctimensec: stat.stx_ctime.tv_nsec,
        mode: u32::from(stat.stx_mode),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        // The kernel's form of a device number in 32 bits.
        rdev: device_number(stat.stx_rdev_major, stat.stx_rdev_minor),
        blksize: stat.stx_blksize,
        flags: 0,
    }
}

/// A device's number in the 32 bits of the protocol.
fn device_number(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The error of the last system call of the C library.
pub fn last_error() -> Errno {
    Errno::from_raw_os_error(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// The number of an error.
pub fn number_of(e: &io::Error) -> Errno {
    Errno::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO))
}
