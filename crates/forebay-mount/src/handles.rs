//! Files and directories that programs have open.

use crate::caller::Identity;
use crate::content::Content;
use crate::directory::Stream;
use crate::served::Served;
use crate::shares::Share;
use forebay_pfs::FileVersion;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// The user who has opened a file.
#[derive(Debug)]
pub struct Opener {
    /// The user.
    pub uid: u32,
    /// What the descriptor takes of the user's share.
    pub share: Option<Share>,
}

/// An open file or directory.
#[derive(Debug)]
pub struct Handle {
    /// The user who has opened it.
    pub owner: u32,
    _share: Option<Share>,
    /// Its node.
    pub node: u64,
    /// The flags with which the program has opened it.
    pub flags: i32,
    fd: OwnedFd,
    /// The identity that may write through it.
    pub writer: Option<Box<Identity>>,
    /// Whether the tier serves its reads.
    pub served: Served,
    /// Its newest bytes, if the PFS does not have them.
    content: RwLock<Option<Arc<Content>>>,
    /// The version of which the kernel keeps pages that it has read through this file.
    kept: OnceLock<FileVersion>,
    /// The kernel has used it since it was opened.
    was_used: AtomicBool,
    /// The next look at the attributes asks the servers.
    asks_servers: AtomicBool,
    /// Position in the listing of a directory.
    pub stream: Option<Box<Mutex<Stream>>>,
    /// Bytes that were in the file were overwritten.
    overwrote: AtomicBool,
    /// How far the file has grown through it since it was opened.
    grown_to: AtomicU64,
    /// Whether the descriptor has `O_DIRECT` now. Held while it is read or written.
    is_direct: RwLock<bool>,
}

impl Handle {
    /// A file that is open on the PFS.
    pub fn file(
        node: u64,
        flags: i32,
        fd: OwnedFd,
        served: Served,
        opener: Opener,
        writer: Option<Identity>,
    ) -> Arc<Self> {
        let mut handle = Handle::new(node, flags, fd, served, opener, None);
        handle.writer = writer.filter(|_| handle.is_writable()).map(Box::new);
        Arc::new(handle)
    }

    fn new(
        node: u64,
        flags: i32,
        fd: OwnedFd,
        served: Served,
        opener: Opener,
        stream: Option<Box<Mutex<Stream>>>,
    ) -> Self {
        Handle {
            owner: opener.uid,
            _share: opener.share,
            node,
            flags,
            fd,
            writer: None,
            served,
            content: RwLock::new(None),
            kept: OnceLock::new(),
            was_used: AtomicBool::new(false),
            asks_servers: AtomicBool::new(false),
            stream,
            overwrote: AtomicBool::new(false),
            grown_to: AtomicU64::new(0),
            is_direct: RwLock::new(flags & libc::O_DIRECT != 0),
        }
    }

    /// A directory that is open on the PFS.
    pub fn directory(node: u64, fd: OwnedFd, opener: Opener) -> Arc<Self> {
        let stream = Some(Box::new(Mutex::new(Stream::default())));
        Arc::new(Handle::new(node, libc::O_RDONLY, fd, Served::never(), opener, stream))
    }

    /// Reads or writes with the program's current flags. The program may have cleared `O_DIRECT` of
    /// a file that it has opened with it, and the write-back of a mapping never has the flag.
    ///
    /// # Errors
    /// The errors of `work` and of `fcntl`.
    pub fn with_flags<R>(&self, flags: i32, work: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        if self.flags & libc::O_DIRECT == 0 {
            return work();
        }
        let wanted = flags & libc::O_DIRECT != 0;
        loop {
            let is_direct = self.is_direct.read().unwrap_or_else(PoisonError::into_inner);
            if *is_direct == wanted {
                return work();
            }
            drop(is_direct);
            let mut is_direct = self.is_direct.write().unwrap_or_else(PoisonError::into_inner);
            if *is_direct != wanted {
                let own = rustix::fs::fcntl_getfl(&self.fd)?;
                rustix::fs::fcntl_setfl(&self.fd, own ^ OFlags::DIRECT)?;
                *is_direct = wanted;
            }
        }
    }

    /// Sets the content that has its newest bytes from now on.
    pub fn put_content(&self, content: Content) {
        *self.content.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(content));
    }

    /// Where its newest bytes are, if not on the PFS.
    pub fn content(&self) -> Option<Arc<Content>> {
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
        content.as_ref().filter(|content| !content.has_left()).cloned()
    }

    /// Number of the content that it has, or had last.
    pub fn last_copy(&self) -> Option<u64> {
        self.content.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|content| content.copy)
    }

    /// Notes that the kernel keeps the pages that it reads through this file, which are of this
    /// version.
    pub fn keep(&self, version: FileVersion) {
        // It is set once, while the file is opened.
        let _ = self.kept.set(version);
    }

    /// The version whose pages the kernel keeps; `None` if each read is a request.
    pub fn kept(&self) -> Option<FileVersion> {
        self.kept.get().copied()
    }

    /// Whether this is the first use since it was opened.
    pub fn is_first_use(&self) -> bool {
        !self.was_used.load(Ordering::Relaxed) && !self.was_used.swap(true, Ordering::AcqRel)
    }

    /// Notes that others may have changed the file, and that the program expects to see the change.
    pub fn doubt(&self) {
        self.asks_servers.store(true, Ordering::Release);
        self.served.doubt();
    }

    /// Whether the next look at the attributes is to ask the servers.
    pub fn asks_servers(&self) -> bool {
        self.asks_servers.swap(false, Ordering::AcqRel)
    }

    /// Notes that bytes were written.
    pub fn wrote(&self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes);
        let grows = match self.flags & (libc::O_APPEND | libc::O_TRUNC) {
            0 => false,
            libc::O_TRUNC => offset >= self.grown_to.fetch_max(end, Ordering::AcqRel),
            _ => true,
        };
        if !grows {
            self.overwrote.store(true, Ordering::Release);
        }
    }

    /// Whether bytes were overwritten since this was last asked.
    pub fn has_overwritten(&self) -> bool {
        self.overwrote.swap(false, Ordering::AcqRel)
    }

    /// Whether programs may write through it.
    pub fn is_writable(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The open files by the number that the kernel uses.
#[derive(Debug, Default)]
pub struct Handles(RwLock<Slots>);

#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Option<Arc<Handle>>>,
    free: Vec<u32>,
}

impl Handles {
    /// Gives a number to an open file.
    pub fn add(&self, handle: Arc<Handle>) -> u64 {
        let mut slots = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match slots.free.pop() {
            Some(free) => {
                slots.slots[free as usize] = Some(handle);
                u64::from(free)
            }
            None => {
                slots.slots.push(Some(handle));
                slots.slots.len() as u64 - 1
            }
        }
    }

    /// The open file of this number.
    pub fn get(&self, number: u64) -> Option<Arc<Handle>> {
        let slots = self.0.read().unwrap_or_else(PoisonError::into_inner);
        slots.slots.get(usize::try_from(number).ok()?)?.clone()
    }

    /// Frees the number.
    pub fn remove(&self, number: u64) -> Option<Arc<Handle>> {
        let mut slots = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let handle = slots.slots.get_mut(usize::try_from(number).ok()?)?.take();
        if handle.is_some() {
            slots.free.push(number as u32);
        }
        handle
    }
}
