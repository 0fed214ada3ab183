//! Files and directories that programs have open.

use crate::caller::Identity;
use crate::directory::Stream;
use crate::served::Served;
use crate::shares::Share;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Who has opened a file.
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
    /// Who has opened it.
    pub owner: u32,
    _share: Option<Share>,
    /// Its node.
    pub node: u64,
    /// The flags with which the program has opened it.
    pub flags: i32,
    fd: OwnedFd,
    /// Who may write through it.
    pub writer: Option<Box<Identity>>,
    /// Whether the tier serves its reads.
    pub served: Served,
    /// Position in the listing of a directory.
    pub stream: Option<Box<Mutex<Stream>>>,
    /// Bytes that were in the file were overwritten.
    overwrote: AtomicBool,
    /// As far as the file has grown by it since it was opened.
    grown_to: AtomicU64,
    /// Whether the descriptor has `O_DIRECT` now. Held while it is read or written.
    is_direct: RwLock<bool>,
}

impl Handle {
    /// Of a file that is open on the PFS.
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
            stream,
            overwrote: AtomicBool::new(false),
            grown_to: AtomicU64::new(0),
            is_direct: RwLock::new(flags & libc::O_DIRECT != 0),
        }
    }

    /// Of a directory that is open on the PFS.
    pub fn directory(node: u64, fd: OwnedFd, opener: Opener) -> Arc<Self> {
        let stream = Some(Box::new(Mutex::new(Stream::default())));
        Arc::new(Handle::new(node, libc::O_RDONLY, fd, Served::never(), opener, stream))
    }

    /// Reads or writes by the program's current flags. It may have cleared `O_DIRECT` of a file
    /// that it has opened with it, and the write-back of a mapping never has the flag.
    ///
    /// # Errors
    /// Those of `work`, and of `fcntl`.
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
