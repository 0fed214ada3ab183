//! Looks up, creates, renames and removes names.

use crate::abi::{InHeader, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn};
use crate::caller::use_umask;
use crate::fs::{Done, Effect, Fs, Out, last_error, self_path};
use crate::nodes::FileId;
use crate::request::Request;
use crate::shares::Kept;
use rustix::fs::{AtFlags, Dev, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

/// It fails if the new name exists.
const NOREPLACE: u32 = 1;

/// Both files exist and are exchanged.
const EXCHANGE: u32 = 1 << 1;

impl Fs {
    /// Serves LOOKUP.
    ///
    /// # Errors
    /// What the PFS returns, as for all operations.
    pub fn lookup(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let name = request.name()?;
        self.callers.act_as_caller(&request.header)?;
        let dir = self.locate(request.header.nodeid)?;
        self.enter(request.header.nodeid, dir.as_fd(), name, out)
    }

    /// Serves READLINK.
    ///
    /// # Errors
    /// As for all operations.
    pub fn readlink(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        self.callers.act_as_caller(&request.header)?;
        let link = self.locate(request.header.nodeid)?;
        out.bytes = rustix::fs::readlinkat(link.as_fd(), c"", Vec::new())?.into_bytes();
        Ok(Effect::Nothing)
    }

    /// Serves MKDIR.
    ///
    /// # Errors
    /// As for all operations.
    pub fn mkdir(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: MkdirIn = request.arg()?;
        let name = request.name()?;
        self.callers.act_as_caller(&request.header)?;
        let dir = self.locate(request.header.nodeid)?;
        use_umask(arg.umask);
        rustix::fs::mkdirat(dir.as_fd(), name, Mode::from_raw_mode(arg.mode & 0o7777))?;
        self.enter(request.header.nodeid, dir.as_fd(), name, out)
    }

    /// Serves MKNOD: files, pipes, sockets and devices.
    ///
    /// # Errors
    /// As for all operations.
    pub fn mknod(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: MknodIn = request.arg()?;
        let name = request.name()?;
        self.callers.act_as_caller(&request.header)?;
        let dir = self.locate(request.header.nodeid)?;
        use_umask(arg.umask);
        let (kind, mode) = (FileType::from_raw_mode(arg.mode), Mode::from_raw_mode(arg.mode & 0o7777));
        // A device number in 32 bits, in the kernel's encoding.
        let rdev = u64::from(arg.rdev);
        let (major, minor) = ((rdev >> 8 & 0xfff) as u32, (rdev & 0xff | rdev >> 12 & 0xf_ff00) as u32);
        rustix::fs::mknodat(dir.as_fd(), name, kind, mode, rustix::fs::makedev(major, minor) as Dev)?;
        self.enter(request.header.nodeid, dir.as_fd(), name, out)
    }

    /// Serves SYMLINK.
    ///
    /// # Errors
    /// As for all operations.
    pub fn symlink(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let (name, target) = (request.name()?, request.name()?);
        self.callers.act_as_caller(&request.header)?;
        let dir = self.locate(request.header.nodeid)?;
        rustix::fs::symlinkat(target, dir.as_fd(), name)?;
        self.enter(request.header.nodeid, dir.as_fd(), name, out)
    }

    /// Serves LINK.
    ///
    /// # Errors
    /// As for all operations.
    pub fn link(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let arg: LinkIn = request.arg()?;
        let name = request.name()?;
        self.callers.act_as_caller(&request.header)?;
        let (file, dir) = (self.locate(arg.oldnodeid)?, self.locate(request.header.nodeid)?);
        let path = self_path(file.as_fd());
        rustix::fs::linkat(rustix::fs::CWD, path, dir.as_fd(), name, AtFlags::SYMLINK_FOLLOW)?;
        self.enter(request.header.nodeid, dir.as_fd(), name, out)
    }

    /// Serves UNLINK and RMDIR.
    ///
    /// # Errors
    /// As for all operations.
    pub fn remove(&self, request: &mut Request<'_>, is_dir: bool) -> Done {
        let name = request.name()?;
        self.callers.act_as_caller(&request.header)?;
        let dir = self.locate(request.header.nodeid)?;
        if !is_dir {
            self.refuse_to_remove(&request.header, name)?;
        }
        let last = self.last_way(&request.header, request.header.nodeid, dir.as_fd(), name);
        rustix::fs::unlinkat(dir.as_fd(), name, if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() })?;
        if let Some((file, descriptor)) = last {
            self.nodes.unnamed(file, descriptor);
        }
        Ok(Effect::Nothing)
    }

    /// A descriptor of the file `name`, if the kernel knows it only by this name: the file may stay
    /// in use after the name is removed.
    fn last_way(
        &self,
        caller: &InHeader,
        parent: u64,
        dir: BorrowedFd<'_>,
        name: &CStr,
    ) -> Option<(FileId, Kept)> {
        let file = FileId::of(&self.stat_name(dir, name).ok()?);
        if !self.nodes.needs_descriptor(parent, name.to_bytes(), file) {
            return None;
        }
        let share = self.keep_for(caller.uid).ok()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(dir, name, flags, Mode::empty()).ok()?;
        Some((file, Kept::new(descriptor, share)))
    }

    /// Serves RENAME.
    ///
    /// # Errors
    /// As for all operations.
    pub fn rename(&self, request: &mut Request<'_>) -> Done {
        let arg: RenameIn = request.arg()?;
        self.rename_to(request, arg.newdir, 0)
    }

    /// Serves RENAME2: with flags.
    ///
    /// # Errors
    /// As for all operations.
    pub fn rename2(&self, request: &mut Request<'_>) -> Done {
        let arg: Rename2In = request.arg()?;
        self.rename_to(request, arg.newdir, arg.flags)
    }

    fn rename_to(&self, request: &mut Request<'_>, to_node: u64, flags: u32) -> Done {
        let (from_name, to_name) = (request.name()?, request.name()?);
        let from_node = request.header.nodeid;
        self.callers.act_as_caller(&request.header)?;
        let (from, to) = (self.locate(from_node)?, self.locate(to_node)?);
        if flags & NOREPLACE == 0 {
            self.wait_for_pass(&request.header, (from.as_fd(), from_name), (to.as_fd(), to_name))?;
        }
        let moved = self.stat_name(from.as_fd(), from_name).ok().map(|stat| FileId::of(&stat));
        let replaced = match flags & EXCHANGE {
            0 => self.last_way(&request.header, to_node, to.as_fd(), to_name),
            _ => None,
        };
        let exchanged = match flags & EXCHANGE {
            0 => None,
            _ => self.stat_name(to.as_fd(), to_name).ok().map(|stat| FileId::of(&stat)),
        };
        // Includes the flags that the kernel knows and `rustix` does not.
        let flags = RenameFlags::from_bits_retain(flags);
        rustix::fs::renameat_with(from.as_fd(), from_name, to.as_fd(), to_name, flags)?;
        if let Some((file, descriptor)) = replaced
            && moved != Some(file)
        {
            self.nodes.unnamed(file, descriptor);
        }
        if let Some(file) = exchanged {
            self.nodes.renamed(file, from_node, from_name.to_bytes());
        }
        if let Some(file) = moved {
            self.nodes.renamed(file, to_node, to_name.to_bytes());
        }
        Ok(Effect::Nothing)
    }

    /// Serves ACCESS: asks for the real user.
    ///
    /// # Errors
    /// As for all operations.
    pub fn access(&self, request: &mut Request<'_>) -> Done {
        let arg: crate::abi::AccessIn = request.arg()?;
        self.callers.act_as_real_caller(&request.header)?;
        let file = self.locate(request.header.nodeid)?;
        self.may(file.as_fd(), arg.mask)
    }

    /// Whether the user that this thread acts as has these rights (`R_OK`, `W_OK`, `X_OK`).
    ///
    /// # Errors
    /// `EACCES` and others.
    pub fn may(&self, file: BorrowedFd<'_>, mask: i32) -> Done {
        let Ok(path) = std::ffi::CString::new(self_path(file)) else { return Err(Errno::INVAL) };
        // SAFETY: a C string. With AT_EACCESS the kernel judges by the credentials of the call.
        let done = unsafe {
            libc::syscall(libc::SYS_faccessat2, libc::AT_FDCWD, path.as_ptr(), mask, libc::AT_EACCESS)
        };
        if done == 0 { Ok(Effect::Nothing) } else { Err(last_error()) }
    }
}
