//! The connection to the kernel: requests are read from `/dev/fuse`, and answers are written to it.

use crate::abi::{BackingMap, NOTIFY_INVAL_INODE, NotifyInvalInodeOut, OutHeader, bytes_of};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Longest data of one read or write.
pub const DATA_BYTES: usize = 1 << 20;

/// Header and arguments of a write, which precede its data.
const BEFORE_DATA_BYTES: usize = 80;

const PAGE_BYTES: usize = 4096;

/// `_IOW(229, number, bytes)`.
const fn write_ioctl(number: u32, bytes: usize) -> libc::Ioctl {
    (1 << 30 | (bytes as u32) << 16 | 229 << 8 | number) as libc::Ioctl
}

const BACKING_OPEN: libc::Ioctl = write_ioctl(1, size_of::<BackingMap>());
const BACKING_CLOSE: libc::Ioctl = write_ioctl(2, size_of::<u32>());

/// Descriptors that the kernel allows this process. Asked each time: the administrator may change
/// it.
pub fn descriptors_max() -> usize {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20) as usize
}

/// Memory for the data of requests, aligned for direct I/O of the PFS.
#[derive(Debug)]
pub struct Buffer {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Allocates at least this many bytes. Pages that are never touched take no memory.
    ///
    /// # Errors
    /// No memory.
    pub fn new(bytes: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Ok(Buffer { at: at.cast(), bytes })
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, of this length, and borrowed as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }

    /// The buffer for a request: in it, the data of a write begins at a page boundary.
    pub fn request(&mut self) -> &mut [u8] {
        &mut self.bytes()[PAGE_BYTES - BEFORE_DATA_BYTES..]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not borrowed any more.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.bytes) };
    }
}

/// The bytes that a buffer for requests has.
pub const REQUEST_BYTES: usize = PAGE_BYTES + DATA_BYTES + PAGE_BYTES;

/// An open connection.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

impl Device {
    /// A connection that is mounted, or about to be.
    pub fn new(fd: OwnedFd) -> Self {
        Device { fd }
    }

    /// The next request, or `None` if the file system is not mounted any more.
    ///
    /// # Errors
    /// The kernel has ended the connection otherwise.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a mut [u8]>> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(n) => return Ok(Some(&mut buffer[..n])),
                // ENOENT: the caller has gone before its request was read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Answers a request. False if the caller no longer waits for the answer.
    pub fn answer(&self, unique: u64, result: Result<&[u8], Errno>) -> bool {
        let (error, body) = match result {
            Ok(body) => (0, body),
            Err(e) => (-e.raw_os_error(), &[][..]),
        };
        let header = OutHeader { len: (size_of::<OutHeader>() + body.len()) as u32, error, unique };
        let parts = [IoSlice::new(bytes_of(&header)), IoSlice::new(body)];
        let parts = if body.is_empty() { &parts[..1] } else { &parts[..] };
        rustix::io::writev(&self.fd, parts).is_ok()
    }

    /// Makes the kernel forget the attributes and the content of a node. Waits for reads of it that
    /// are under way. The kernel takes no length from an answer with attributes that it gets before
    /// the next request.
    pub fn forget_content(&self, node: u64) {
        self.notify(NotifyInvalInodeOut { ino: node, off: 0, len: 0 });
    }

    fn notify(&self, body: NotifyInvalInodeOut) {
        let len = (size_of::<OutHeader>() + size_of::<NotifyInvalInodeOut>()) as u32;
        let header = OutHeader { len, error: NOTIFY_INVAL_INODE, unique: 0 };
        // An error says that the kernel does not know the node any more.
        let _ =
            rustix::io::writev(&self.fd, &[IoSlice::new(bytes_of(&header)), IoSlice::new(bytes_of(&body))]);
    }

    /// Makes the kernel forget the attributes of a node. Waits for nothing.
    pub fn forget_attributes(&self, node: u64) {
        self.notify(NotifyInvalInodeOut { ino: node, off: -1, len: 0 });
    }

    /// Registers a backing file, to which the kernel passes reads and writes of a file.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN.
    pub fn open_backing(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        let map = BackingMap { fd: file.as_raw_fd(), ..BackingMap::default() };
        // SAFETY: the request of this number reads one `BackingMap`.
        let id = unsafe { libc::ioctl(self.fd.as_raw_fd(), BACKING_OPEN, &raw const map) };
        if id <= 0 { Err(io::Error::last_os_error()) } else { Ok(id as u32) }
    }

    /// Ends a registration; files that are open keep it.
    pub fn close_backing(&self, id: u32) {
        // SAFETY: the request of this number reads one `u32`.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), BACKING_CLOSE, &raw const id) };
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
