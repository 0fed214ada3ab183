//! What a tier asks of a PFS that it reads: one seam, so that a tier can be tested on a PFS that
//! is slow, hangs, fails or is of another kind without one of that sort.
//!
//! Files are open descriptors throughout: a caller that holds one has shown that it may read the
//! file.

use crate::layout::Layout;
use crate::lease::{self, Opened, Writers};
use crate::quirks::{self, Traits};
use crate::read::{self, PageCache, Reader};
use crate::stamps::{self, Stamps};
use crate::{FileFacts, Revalidate};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The PFS of one mount.
pub trait Source: fmt::Debug + Send + Sync {
    /// What it does differently from most. Refers to what is mounted at this moment, according to
    /// the kernel's table: no server is asked.
    fn traits(&self) -> Traits;

    /// The facts of an open file now.
    ///
    /// # Errors
    /// The PFS fails to report them.
    fn facts(&self, fd: BorrowedFd<'_>, how: Revalidate) -> io::Result<FileFacts>;

    /// Reads at `offset` until `buffer` is full or the file ends; returns the bytes read.
    /// `stripe_bytes`: after this many the file continues on another server; 0 if that is not
    /// known.
    ///
    /// # Errors
    /// What the PFS returns; interrupted reads are repeated.
    fn read_full_at(
        &self,
        fd: BorrowedFd<'_>,
        buffer: &mut [u8],
        offset: u64,
        stripe_bytes: u64,
        page_cache: PageCache,
    ) -> io::Result<usize>;

    /// The file of `fd`, opened for reading once more, with `O_DIRECT` if reads are to bypass
    /// caches.
    ///
    /// # Errors
    /// This process may not open it, or has too many files open.
    fn reopen(&self, fd: BorrowedFd<'_>, page_cache: PageCache) -> io::Result<OwnedFd>;

    /// Whether a program on this node has the file open for writing.
    fn writers(&self, fd: BorrowedFd<'_>, opened: Opened) -> Writers;

    /// Where the file is, if the PFS reports it; `with_messages`: even if a server must be asked.
    fn layout(&self, fd: BorrowedFd<'_>, with_messages: bool) -> Option<Layout>;

    /// Measures in `dir` whether time stamps follow writes ([`stamps::measure`]).
    ///
    /// # Errors
    /// A file cannot be written there.
    fn measure_stamps(&self, dir: &Path, how: Revalidate) -> io::Result<Stamps>;
}

/// Whatever is mounted on a directory.
#[derive(Debug)]
pub struct Mounted {
    root: PathBuf,
    reader: Reader,
}

impl Mounted {
    /// The PFS on `root` (absolute, symbolic links resolved), which was found on device `dev`.
    pub fn new(root: &Path, dev: u64) -> Self {
        Mounted { root: root.to_owned(), reader: Reader::new(dev) }
    }
}

impl Source for Mounted {
    fn traits(&self) -> Traits {
        Traits::of(&self.root)
    }

    fn facts(&self, fd: BorrowedFd<'_>, how: Revalidate) -> io::Result<FileFacts> {
        FileFacts::of(fd, how)
    }

    fn read_full_at(
        &self,
        fd: BorrowedFd<'_>,
        buffer: &mut [u8],
        offset: u64,
        stripe_bytes: u64,
        page_cache: PageCache,
    ) -> io::Result<usize> {
        self.reader.read_full_at(fd, buffer, offset, stripe_bytes, page_cache)
    }

    fn reopen(&self, fd: BorrowedFd<'_>, page_cache: PageCache) -> io::Result<OwnedFd> {
        if page_cache == PageCache::Bypass { read::reopen_direct(fd) } else { read::reopen(fd) }
    }

    fn writers(&self, fd: BorrowedFd<'_>, opened: Opened) -> Writers {
        lease::writers(fd, opened)
    }

    fn layout(&self, fd: BorrowedFd<'_>, with_messages: bool) -> Option<Layout> {
        quirks::layout(fd, with_messages)
    }

    fn measure_stamps(&self, dir: &Path, how: Revalidate) -> io::Result<Stamps> {
        stamps::measure(dir, dir, how)
    }
}
