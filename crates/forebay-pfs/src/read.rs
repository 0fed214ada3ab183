//! Reads ranges of a PFS file without leaving a second copy in the page cache.
//!
//! The tier keeps what it fetched, so the kernel's copy would only take memory twice. Kernels since
//! 6.14 can drop what a read itself has left there (`RWF_DONTCACHE`) on the file systems that
//! support it; elsewhere the range is advised away after it was read. Pages that others had cached
//! before stay with `RWF_DONTCACHE` and may go with the advice; a mount can turn either off.
//!
//! With [`PageCache::Bypass`] the descriptors are opened with `O_DIRECT` ([`reopen_direct`]): the
//! kernel's copy is neither used nor made, and neither is that of a file system's client that sees
//! the flag at the open.
//!
//! One read of 2 MiB is not one request: where the kernel reads ahead little (128 KiB is the
//! default of FUSE and NFS), it asks for piece after piece, each of one server, and waits for each.
//! So where a range is striped over several servers all pieces are announced first; then the file
//! system asks these servers at the same time. Only there: a client that drops its cache when
//! somebody opens the file (MooseFS has been seen to) would fetch twice what was announced and not
//! read yet.

use rustix::fs::{Advice, Mode, OFlags, fadvise, major, minor, open};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// `RWF_DONTCACHE` of linux/fs.h.
const RWF_DONTCACHE: libc::c_int = 0x80;

/// What the kernel asks for at a time where nothing else is known: `VM_READAHEAD_PAGES`.
const DEFAULT_PIECE_BYTES: u64 = 128 << 10;

/// What reads do with the kernel's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCache {
    /// Use it and drop what a read has added.
    Drop,
    /// Use it and leave it alone.
    Keep,
    /// Neither use it nor add to it: descriptors are open with `O_DIRECT`. For file systems that
    /// take such reads at any alignment, as all of FUSE do.
    Bypass,
}

/// The file behind `fd`, opened again with `O_DIRECT`. Setting the flag later would inform the
/// kernel alone, and not the file system's client, which may have a cache of its own.
///
/// # Errors
/// What the file system returns for the open; there may be no `/proc`.
pub fn reopen_direct(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    reopen_as(fd, OFlags::DIRECT)
}

/// The file of `fd`, opened for reading once more: a PFS's client knows of the new descriptor
/// nothing that it has learned of the other.
///
/// # Errors
/// The process may not open it, or has too many files open.
pub fn reopen(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    reopen_as(fd, OFlags::empty())
}

/// The file of `fd`, opened once more with `flags`.
///
/// # Errors
/// As [`reopen`].
pub fn reopen_as(fd: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(open(path, OFlags::CLOEXEC | flags, Mode::empty())?)
}

/// How fetched ranges are read.
#[derive(Debug)]
pub struct Reader {
    /// Most that the kernel asks the file system for before it waits.
    piece_bytes: u64,
    /// The file system refused `RWF_DONTCACHE` once; it is not asked again.
    dontcache_refused: AtomicBool,
}

impl Reader {
    /// A reader for files of the device `dev`.
    pub fn new(dev: u64) -> Self {
        let piece_bytes = read_ahead_bytes(dev).unwrap_or(0).max(DEFAULT_PIECE_BYTES);
        Reader { piece_bytes, dontcache_refused: AtomicBool::new(false) }
    }

    /// Reads at `offset` until `buffer` is full or the file ends; returns the bytes read.
    /// `stripe_bytes`: after this many the file continues on another server; 0 if that is not
    /// known.
    ///
    /// # Errors
    /// What the PFS returns; interrupted reads are repeated.
    pub fn read_full_at(
        &self,
        fd: BorrowedFd<'_>,
        buffer: &mut [u8],
        offset: u64,
        stripe_bytes: u64,
        page_cache: PageCache,
    ) -> io::Result<usize> {
        if (1..buffer.len() as u64).contains(&stripe_bytes) {
            self.announce(fd, offset, buffer.len() as u64, page_cache);
        }
        let mut done = 0;
        while done < buffer.len() {
            match self.read_once(fd, &mut buffer[done..], offset + done as u64, page_cache) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if page_cache == PageCache::Drop && self.dontcache_refused.load(Ordering::Relaxed) {
            // Advice is best effort: a file system that ignores it only costs memory.
            let _ = NonZeroU64::new(done as u64).map(|len| fadvise(fd, offset, Some(len), Advice::DontNeed));
        }
        Ok(done)
    }

    /// Has the kernel ask for all of a range at the same time. Not where it drops by itself what a
    /// read has cached: it would not drop what came through the announcement, and such file systems
    /// are local.
    fn announce(&self, fd: BorrowedFd<'_>, offset: u64, len: u64, page_cache: PageCache) {
        let caches = match page_cache {
            PageCache::Keep => true,
            PageCache::Drop => self.dontcache_refused.load(Ordering::Relaxed),
            PageCache::Bypass => false,
        };
        if len <= self.piece_bytes || !caches {
            return;
        }
        for at in (offset..offset + len).step_by(self.piece_bytes as usize) {
            let piece = NonZeroU64::new(self.piece_bytes.min(offset + len - at));
            // Advice, as above.
            let _ = fadvise(fd, at, piece, Advice::WillNeed);
        }
    }

    fn read_once(
        &self,
        fd: BorrowedFd<'_>,
        buffer: &mut [u8],
        offset: u64,
        page_cache: PageCache,
    ) -> io::Result<usize> {
        if page_cache == PageCache::Drop && !self.dontcache_refused.load(Ordering::Relaxed) {
            match preadv2(fd, buffer, offset, RWF_DONTCACHE) {
                Err(e)
                    if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)) =>
                {
                    self.dontcache_refused.store(true, Ordering::Relaxed);
                }
                other => return other,
            }
        }
        Ok(rustix::io::pread(fd, buffer, offset)?)
    }
}

/// The read-ahead of the device, as the kernel shows it; `None` if it does not.
fn read_ahead_bytes(dev: u64) -> Option<u64> {
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", major(dev), minor(dev));
    let kib: u64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn preadv2(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64, flags: libc::c_int) -> io::Result<usize> {
    let iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let offset = libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: `iov` describes `buffer`, which is borrowed mutably for the whole call.
    let n = unsafe { libc::preadv2(fd.as_raw_fd(), &raw const iov, 1, offset, flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn reads_to_the_end_and_not_beyond() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let content: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        for page_cache in [PageCache::Drop, PageCache::Keep, PageCache::Bypass] {
            let reader = Reader::new(0);
            let mut buffer = vec![0; 400_000];
            for stripe_bytes in [0, 65_536] {
                buffer.fill(0);
                let got =
                    reader.read_full_at(file.as_fd(), &mut buffer, 4096, stripe_bytes, page_cache).unwrap();
                assert_eq!(got, 300_000 - 4096);
                assert_eq!(&buffer[..got], &content[4096..]);
                let at_end =
                    reader.read_full_at(file.as_fd(), &mut buffer, 300_000, stripe_bytes, page_cache);
                assert_eq!(at_end.unwrap(), 0);
            }
        }
    }
}
