//! Shared memory maps: the only module that uses `mmap` and atomics in shared memory.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A shared mapping of part of a file. The file must not shrink below it while it lives; our copies
/// never shrink and our memfds are sealed against it.
#[derive(Debug)]
pub struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that stays until drop; all access through it is by atomics or
// by raw pointers handed to system calls.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes at `offset` (a multiple of the page size) of `fd`.
    ///
    /// # Errors
    /// What `mmap` returns: `ENOMEM` when the process is at its limit of maps, `EACCES` when the
    /// descriptor does not allow it.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping at an address the kernel chooses; nothing in this process refers
        // to it yet.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset)? };
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned a null address"))?;
        Ok(Map { base, len })
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if nothing is mapped; the kernel refuses such maps, so never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Writes the first `bytes` bytes to `fd` at `offset`, straight from this memory. Returns the
    /// bytes written: of a file that is shorter than the map, as far as it goes.
    ///
    /// # Errors
    /// What `pwrite` returns.
    ///
    /// # Panics
    /// `bytes` is more than is mapped.
    pub fn write_to(&self, fd: BorrowedFd<'_>, bytes: u64, offset: u64) -> io::Result<u64> {
        assert!(bytes <= self.len as u64, "{bytes} bytes of a map of {}", self.len);
        let mut done = 0;
        while done < bytes {
            let to = libc::off_t::try_from(offset + done).map_err(|_| io::ErrorKind::InvalidInput)?;
            // SAFETY: the range lies within the map. Programs may write to it or truncate it
            // meanwhile, which is why the kernel copies it and no reference to it is made.
            let written = unsafe {
                let from = self.base.as_ptr().add(done as usize).cast();
                libc::pwrite(fd.as_raw_fd(), from, (bytes - done) as usize, to)
            };
            match usize::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n as u64,
                Err(_) => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::Interrupted => {}
                    // It was truncated.
                    e if e.raw_os_error() == Some(libc::EFAULT) => break,
                    e => return Err(e),
                },
            }
        }
        Ok(done)
    }

    /// The 64-bit word at `offset` bytes.
    ///
    /// # Panics
    /// `offset` is outside of the map or not a multiple of 8.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len,
            "word at {offset} of a map of {} bytes",
            self.len
        );
        // SAFETY: in bounds and aligned by the assertion (the base is page aligned); shared memory
        // that other processes change only by atomic stores or as whole blocks before they announce
        // them.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// The 32-bit word at `offset` bytes.
    ///
    /// # Panics
    /// `offset` is outside of the map or not a multiple of 4.
    pub fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.len,
            "half at {offset} of a map of {} bytes",
            self.len
        );
        // SAFETY: as in `word`.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU32>() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the range mapped in `new`; borrows of it cannot outlive `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own map failed: {unmapped:?}");
    }
}
