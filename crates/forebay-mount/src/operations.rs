//! Dispatches the kernel's requests to the operations, and answers the first one (INIT).

use crate::abi::*;
use crate::device::DATA_BYTES;
use crate::fs::{Done, Effect, Fs, Out};
use crate::request::Request;
use rustix::io::Errno;
use std::io;
use std::sync::atomic::Ordering;

/// Background requests that the kernel may have in flight, such as read-ahead and closes. The most
/// that it can count: users share them, and one user's files may hang. This process has its own
/// limits.
const MAX_BACKGROUND: u16 = u16::MAX;

impl Fs {
    /// Serves a request that has an answer.
    ///
    /// # Errors
    /// The error to answer with.
    pub fn serve_request(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        let Some(frozen) = &self.frozen else { return self.by_pfs(request, out) };
        if let Some(done) = self.by_frozen(frozen, request, out) {
            return done;
        }
        let done = self.by_pfs(request, out);
        frozen.answered_by_pfs(&done);
        done
    }

    fn by_pfs(&self, request: &mut Request<'_>, out: &mut Out) -> Done {
        match request.header.opcode {
            LOOKUP => self.lookup(request, out),
            GETATTR => self.getattr(request, out),
            STATX => self.statx(request, out),
            SETATTR => self.setattr(request, out),
            READLINK => self.readlink(request, out),
            SYMLINK => self.symlink(request, out),
            MKNOD => self.mknod(request, out),
            MKDIR => self.mkdir(request, out),
            UNLINK => self.remove(request, false),
            RMDIR => self.remove(request, true),
            RENAME => self.rename(request),
            RENAME2 => self.rename2(request),
            LINK => self.link(request, out),
            OPEN => self.open(request, out),
            CREATE => self.create(request, out),
            TMPFILE => self.tmpfile(request, out),
            READ => self.read(request, out),
            WRITE => self.write(request, out),
            FLUSH => self.flush(request),
            RELEASE => self.release(request),
            FSYNC => self.fsync(request),
            OPENDIR => self.opendir(request, out),
            READDIR => self.readdir(request, out),
            READDIRPLUS => self.readdirplus(request, out),
            RELEASEDIR => self.releasedir(request),
            FSYNCDIR => self.fsyncdir(request),
            STATFS => self.statfs(request, out),
            SYNCFS => self.syncfs(),
            SETXATTR => self.setxattr(request),
            GETXATTR => self.getxattr(request, out),
            LISTXATTR => self.listxattr(request, out),
            REMOVEXATTR => self.removexattr(request),
            ACCESS => self.access(request),
            GETLK => self.getlk(request, out),
            SETLK => self.setlk(request, false),
            SETLKW => self.setlk(request, true),
            FALLOCATE => self.fallocate(request),
            LSEEK => self.lseek(request, out),
            COPY_FILE_RANGE => self.copy_file_range(request, out),
            IOCTL => self.ioctl(request, out),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Serves a request that has no answer.
    ///
    /// # Errors
    /// It is not understood.
    pub fn forget(&self, request: &mut Request<'_>) -> Result<(), Errno> {
        if request.header.opcode == FORGET {
            let lookups: u64 = request.arg()?;
            self.forget_node(request.header.nodeid, lookups);
            return Ok(());
        }
        let list: BatchForgetIn = request.arg()?;
        for _ in 0..list.count {
            let one: ForgetOne = request.arg()?;
            self.forget_node(one.nodeid, one.nlookup);
        }
        Ok(())
    }

    fn forget_node(&self, node: u64, lookups: u64) {
        self.nodes.forget(node, lookups);
        if let Some(frozen) = &self.frozen
            && self.nodes.file(node).is_none()
        {
            // Its number is not used again.
            frozen.forget(node);
        }
    }

    /// Undoes an operation whose caller no longer waits for the answer.
    pub fn undo(&self, effect: Effect) {
        let (node, opened) = match effect {
            Effect::Nothing => (None, None),
            Effect::LookedUp(node) => (Some(node), None),
            Effect::Opened(number) => (None, Some(number)),
            Effect::Created(node, number) => (Some(node), Some(number)),
        };
        if let (Some(number), Some(frozen)) = (opened, &self.frozen) {
            frozen.closed(number);
        }
        if let Some(number) = opened
            && let Some(handle) = self.handles.get(number)
        {
            self.close_handle(number, &handle);
        }
        if let Some(node) = node {
            self.forget_node(node, 1);
        }
    }

    /// Answers the kernel's first request, which negotiates features.
    ///
    /// # Errors
    /// The kernel is too old, or sends something else.
    pub fn begin(&self, bytes: &[u8]) -> io::Result<()> {
        let mut request = Request::new(bytes).ok_or(io::ErrorKind::InvalidData)?;
        let unique = request.header.unique;
        if request.header.opcode != INIT {
            return Err(io::Error::other("the kernel's first request is not FUSE_INIT"));
        }
        let init: InitIn = request.arg()?;
        if init.major != KERNEL_VERSION || init.minor < 36 {
            self.device.answer(unique, Err(Errno::PROTO));
            let has = format!("{}.{}", init.major, init.minor);
            return Err(io::Error::other(format!(
                "the kernel speaks FUSE {has}, and 7.36 (Linux 5.16) is needed"
            )));
        }
        let offered = u64::from(init.flags) | u64::from(init.flags2) << 32;
        let mut wanted = ASYNC_READ
            | POSIX_LOCKS
            | FLOCK_LOCKS
            | ATOMIC_O_TRUNC
            | BIG_WRITES
            | DONT_MASK
            | HAS_IOCTL_DIR
            | AUTO_INVAL_DATA
            | ASYNC_DIO
            | PARALLEL_DIROPS
            | MAX_PAGES
            | HANDLE_KILLPRIV_V2
            | INIT_EXT
            | DIRECT_IO_ALLOW_MMAP
            | NO_EXPORT_SUPPORT;
        if self.callers.switches() && !self.in_user_space {
            wanted |= PASSTHROUGH;
        }
        if self.frozen.is_some() {
            // One request for each listing in place of one for each name.
            wanted |= DO_READDIRPLUS | READDIRPLUS_AUTO;
        }
        if !self.valid_for.is_zero() {
            // The kernel checks rights itself then, so it must know ACLs.
            wanted |= DO_READDIRPLUS | READDIRPLUS_AUTO | POSIX_ACL;
        }
        let agreed = offered & wanted;
        self.passes.store(agreed & PASSTHROUGH != 0, Ordering::Relaxed);
        let answer = InitOut {
            major: KERNEL_VERSION,
            minor: KERNEL_MINOR_VERSION,
            max_readahead: init.max_readahead,
            flags: agreed as u32,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write: DATA_BYTES as u32,
            time_gran: 1,
            // Pages may have 64 KiB: the kernel would ask for more than an answer can hold.
            max_pages: (DATA_BYTES / rustix::param::page_size()).max(1) as u16,
            flags2: (agreed >> 32) as u32,
            max_stack_depth: u32::from(agreed & PASSTHROUGH != 0),
            ..InitOut::default()
        };
        match self.device.answer(unique, Ok(bytes_of(&answer))) {
            true => Ok(()),
            false => Err(io::Error::other("the kernel refuses the answer to FUSE_INIT")),
        }
    }
}
