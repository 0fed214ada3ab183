//! Attributes, extended attributes and the state of the whole file system.

use crate::abi::{
    FATTR_ATIME, FATTR_ATIME_NOW, FATTR_FH, FATTR_GID, FATTR_MODE, FATTR_MTIME, FATTR_MTIME_NOW, FATTR_SIZE,
    FATTR_UID, GETATTR_FH, GetattrIn, GetxattrIn, GetxattrOut, SetattrIn, SetxattrIn, StatfsOut, StatxAttr,
    StatxIn, StatxOut, SxTime,
};
use crate::content::identity;
use crate::fs::{Done, Effect, Fs, Located, Out, last_error, self_path, stat};
use crate::request::Request;
use rustix::fs::{
    AtFlags, Gid, Mode, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};

/// Longest value of an extended attribute (the kernel's XATTR_SIZE_MAX).
const XATTR_BYTES: u32 = 64 << 10;

/// The flags of statx that say whether the servers are to be asked.
const AT_STATX_SYNC_TYPE: u32 = 0x6000;

impl Fs {
    /// Serves GETATTR.
    ///
    /// # Errors
    /// What the PFS returns, as for all operations.
    pub fn getattr(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: GetattrIn = request.arg()?;
        let file = self.file_of(request, arg.flags, arg.fh)?;
        match &file {
            Located::Open(handle) if arg.flags & GETATTR_FH != 0 && handle.kept().is_some() => {
                self.put_fresh_attributes(handle, out)?;
            }
            Located::Named(_, stat) => self.put_attributes(request.header.nodeid, stat, out),
            file => self.put_attributes(request.header.nodeid, &stat(file.as_fd())?, out),
        }
        Ok(Effect::Nothing)
    }

    /// Serves STATX: attributes with the birth time, which programs seldom ask for.
    ///
    /// # Errors
    /// As for all operations.
    pub fn statx(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: StatxIn = request.arg()?;
        let file = self.file_of(request, arg.getattr_flags, arg.fh)?;
        let how = AtFlags::from_bits_retain(arg.sx_flags & AT_STATX_SYNC_TYPE) | AtFlags::EMPTY_PATH;
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = rustix::fs::statx(file.as_fd(), c"", how, mask)?;
        let (attr_valid, attr_valid_nsec) = (self.valid_for.as_secs(), self.valid_for.subsec_nanos());
        out.put(&StatxOut {
            attr_valid,
            attr_valid_nsec,
            stat: statx_attributes(&self.newest(request.header.nodeid, &stat)),
            ..StatxOut::default()
        });
        Ok(Effect::Nothing)
    }

    /// The file whose attributes are wanted: an open one, or one that the caller reaches by name.
    fn file_of(&self, request: &Request<'_>, flags: u32, handle: u64) -> Result<Located, Errno> {
        if flags & GETATTR_FH != 0 {
            return self.handle(handle).map(Located::Open);
        }
        self.callers.act_as_caller(&request.header)?;
        self.locate(request.header.nodeid)
    }

    /// Serves SETATTR: mode, owner, length and times.
    ///
    /// # Errors
    /// As for all operations.
    pub fn setattr(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: SetattrIn = request.arg()?;
        let node = request.header.nodeid;
        self.callers.act_as_caller(&request.header)?;
        let file = match arg.valid & FATTR_FH {
            0 => self.locate(node)?,
            _ => Located::Open(self.handle(arg.fh)?),
        };
        if arg.valid & FATTR_SIZE != 0 {
            self.refuse_to_cut(&request.header, file.as_fd(), arg.size)?;
        }
        if arg.valid & FATTR_MODE != 0 {
            rustix::fs::chmod(self_path(file.as_fd()), Mode::from_raw_mode(arg.mode & 0o7777))?;
            self.nodes.contents(node).iter().for_each(|content| content.has_new_mode());
        }
        if arg.valid & (FATTR_UID | FATTR_GID) != 0 {
            let uid = (arg.valid & FATTR_UID != 0).then(|| Uid::from_raw(arg.uid));
            let gid = (arg.valid & FATTR_GID != 0).then(|| Gid::from_raw(arg.gid));
            rustix::fs::chownat(file.as_fd(), c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if arg.valid & FATTR_SIZE != 0 {
            let by_handle = arg.valid & FATTR_FH != 0;
            let is_done = self.set_size_of_content(request, &file, by_handle, arg.size)?;
            if !is_done && self.client.any_may_be_dirty() {
                Self::refuse_to_the_dead(&request.header)?;
            }
            let done = if is_done { Ok(()) } else { set_size(&file, by_handle, arg.size) };
            // Afterwards: a reader that opened the file meanwhile may have registered its old
            // content. A program that may not truncate the file changes nothing for its readers.
            if !matches!(done, Err(Errno::ACCESS | Errno::PERM | Errno::ROFS)) {
                self.nodes.handles(node).iter().for_each(|handle| handle.served.leave());
            }
            done?;
        }
        if let Some(mtime_ns) = mtime_to_set(&arg)
            && self.client.any_may_be_dirty()
            && let Ok(stat) = stat(file.as_fd())
            && self.client.may_be_dirty(identity(&stat))
            && [0, stat.stx_uid].contains(&request.header.uid)
        {
            self.as_daemon(|| self.client.note_times(identity(&stat), mtime_ns));
            Self::refuse_to_the_dead(&request.header)?;
        }
        set_times(file.as_fd(), &arg)?;
        if arg.valid & FATTR_MTIME != 0 {
            // The servers know these times immediately, and they are to stay.
            self.nodes.handles(node).iter().for_each(|handle| {
                handle.has_overwritten();
            });
        }
        self.put_attributes(node, &stat(file.as_fd())?, out);
        Ok(Effect::Nothing)
    }

    /// Serves STATFS.
    ///
    /// # Errors
    /// As for all operations.
    pub fn statfs(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        self.callers.act_as_caller(&request.header)?;
        let stat = rustix::fs::fstatvfs(self.locate(request.header.nodeid)?.as_fd())?;
        out.put(&StatfsOut {
            blocks: stat.f_blocks,
            bfree: stat.f_bfree,
            bavail: stat.f_bavail,
            files: stat.f_files,
            ffree: stat.f_ffree,
            bsize: stat.f_bsize as u32,
            namelen: stat.f_namemax as u32,
            frsize: stat.f_frsize as u32,
            ..StatfsOut::default()
        });
        Ok(Effect::Nothing)
    }

    /// Serves SETXATTR.
    ///
    /// # Errors
    /// As for all operations.
    pub fn setxattr(&self, request: &mut Request<'_>) -> Done {
        let arg: SetxattrIn = request.arg()?;
        let name = request.name()?;
        let value = request.bytes(arg.size)?;
        self.callers.act_as_caller(&request.header)?;
        let file = self.locate(request.header.nodeid)?;
        let flags = XattrFlags::from_bits_retain(arg.flags as u32);
        rustix::fs::setxattr(self_path(file.as_fd()), name, value, flags)?;
        Ok(Effect::Nothing)
    }

    /// Serves GETXATTR: a value, or its length.
    ///
    /// # Errors
    /// As for all operations.
    pub fn getxattr(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: GetxattrIn = request.arg()?;
        let name = request.name()?;
        self.callers.act_as_caller(&request.header)?;
        let file = self.locate(request.header.nodeid)?;
        let path = self_path(file.as_fd());
        if arg.size == 0 {
            return put_length(out, rustix::fs::getxattr_query(&path, name)?);
        }
        put_bytes(out, arg.size, |room| rustix::fs::getxattr(&path, name, room))
    }

    /// Serves LISTXATTR: the names, or their length.
    ///
    /// # Errors
    /// As for all operations.
    pub fn listxattr(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: GetxattrIn = request.arg()?;
        self.callers.act_as_caller(&request.header)?;
        let file = self.locate(request.header.nodeid)?;
        let path = self_path(file.as_fd());
        if arg.size == 0 {
            return put_length(out, rustix::fs::listxattr_query(&path)?);
        }
        put_bytes(out, arg.size, |room| rustix::fs::listxattr(&path, room))
    }

    /// Serves REMOVEXATTR.
    ///
    /// # Errors
    /// As for all operations.
    pub fn removexattr(&self, request: &mut Request<'_>) -> Done {
        let name = request.name()?;
        self.callers.act_as_caller(&request.header)?;
        let file = self.locate(request.header.nodeid)?;
        rustix::fs::removexattr(self_path(file.as_fd()), name)?;
        Ok(Effect::Nothing)
    }
}

/// Attributes with the birth time.
pub fn statx_attributes(stat: &Statx) -> StatxAttr {
    let time = |time: &StatxTimestamp| SxTime { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec, reserved: 0 };
    StatxAttr {
        mask: stat.stx_mask,
        blksize: stat.stx_blksize,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        mode: stat.stx_mode,
        ino: stat.stx_ino,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(&stat.stx_atime),
        btime: time(&stat.stx_btime),
        ctime: time(&stat.stx_ctime),
        mtime: time(&stat.stx_mtime),
        rdev_major: stat.stx_rdev_major,
        rdev_minor: stat.stx_rdev_minor,
        ..StatxAttr::default()
    }
}

/// Answers a caller who has no room with the length.
fn put_length(out: &mut Out, bytes: usize) -> Done {
    out.put(&GetxattrOut { size: bytes as u32, padding: 0 });
    Ok(Effect::Nothing)
}

/// Answers with at most `size` bytes. For an empty buffer, `get` returns nothing, not the length.
fn put_bytes(out: &mut Out, size: u32, get: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Done {
    out.bytes.resize(size.min(XATTR_BYTES) as usize, 0);
    let n = get(&mut out.bytes)?;
    out.bytes.truncate(n);
    Ok(Effect::Nothing)
}

/// Sets the length. `by_handle`: through a file that the caller has open, which was checked when it
/// was opened. By name, the PFS checks the caller, even if others have the file open for writing.
fn set_size(file: &Located, by_handle: bool, size: u64) -> Result<(), Errno> {
    match file {
        Located::Open(handle) if by_handle && handle.is_writable() => {
            rustix::fs::ftruncate(handle.as_fd(), size)
        }
        file => {
            let path = CString::new(self_path(file.as_fd())).map_err(|_| Errno::INVAL)?;
            let size = libc::off_t::try_from(size).map_err(|_| Errno::FBIG)?;
            // SAFETY: a C string.
            if unsafe { libc::truncate(path.as_ptr(), size) } == 0 { Ok(()) } else { Err(last_error()) }
        }
    }
}

/// The mtime to set, in nanoseconds since 1970; `Some(None)`: now.
fn mtime_to_set(arg: &SetattrIn) -> Option<Option<i64>> {
    match (arg.valid & FATTR_MTIME, arg.valid & FATTR_MTIME_NOW) {
        (0, _) => None,
        (_, 0) => Some(Some(arg.mtime.saturating_mul(1_000_000_000).saturating_add(arg.mtimensec.into()))),
        _ => Some(None),
    }
}

fn set_times(file: BorrowedFd<'_>, arg: &SetattrIn) -> Result<(), Errno> {
    if arg.valid & (FATTR_ATIME | FATTR_MTIME) == 0 {
        return Ok(());
    }
    let time = |is_set: u32, is_now: u32, seconds: i64, nanoseconds: u32| Timespec {
        tv_sec: seconds,
        tv_nsec: match (arg.valid & is_set, arg.valid & is_now) {
            (0, _) => rustix::fs::UTIME_OMIT,
            (_, 0) => i64::from(nanoseconds),
            _ => rustix::fs::UTIME_NOW,
        },
    };
    let times = Timestamps {
        last_access: time(FATTR_ATIME, FATTR_ATIME_NOW, arg.atime, arg.atimensec),
        last_modification: time(FATTR_MTIME, FATTR_MTIME_NOW, arg.mtime, arg.mtimensec),
    };
    rustix::fs::utimensat(file, c"", &times, AtFlags::EMPTY_PATH)
}
