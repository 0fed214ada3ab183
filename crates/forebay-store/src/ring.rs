//! The touch ring: a client that never calls the agent reports here which pages it reads.
//!
//! A local cached read never leaves the client's process, yet eviction needs to know what is in
//! use. So each process shares one small ring with the agent: it stores the key of a page when a
//! handle moves on to it, the agent drains the ring when it likes. The ring is lossy by design,
//! overwriting the oldest; a lost touch costs a little accuracy, a full ring must never cost the
//! reader a wait. The agent believes nothing in it: a key it does not know is skipped.
//!
//! The memfd is sealed against shrinking, so that no client can make the agent fault on memory that
//! is gone.

use crate::map::Map;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Where the agent says that the process's job has a rate limit, in the head.
const LIMITED_AT: usize = 64;

/// Slots of the ring. 4096 pages of 2 MiB are 8 GiB of reading between two drains.
pub const RING_SLOTS: u64 = 4096;

/// Bytes of the head: one block, so that the slots start on their own cache line and page.
const HEAD_BYTES: usize = 4096;

/// Bytes of the whole ring.
pub const RING_BYTES: usize = HEAD_BYTES + RING_SLOTS as usize * 8;

/// Pages a key leaves room for; a copy with more is not cached.
pub const PAGES_MAX: u64 = 1 << 24;

/// Key of a page: the copy above, the page below. Copies are numbered from 1, so no key is 0.
pub fn page_key(copy: u64, page: u32) -> u64 {
    debug_assert!(
        copy < 1 << 40 && u64::from(page) < PAGES_MAX,
        "copy {copy} page {page} does not fit a key"
    );
    copy << 24 | u64::from(page)
}

/// The copy and page of a key.
pub fn split_key(key: u64) -> (u64, u32) {
    (key >> 24, (key & (PAGES_MAX - 1)) as u32)
}

/// Makes the memory of a ring, for the agent to keep and to send to the client.
///
/// # Errors
/// No memory, or no descriptors left.
pub fn create() -> io::Result<OwnedFd> {
    sealed_memfd(c"forebay-ring", RING_BYTES as u64)
}

/// A memfd of fixed size.
///
/// # Errors
/// As [`create`].
pub fn sealed_memfd(name: &std::ffi::CStr, bytes: u64) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// The client's end.
#[derive(Debug)]
pub struct RingWriter {
    map: Map,
}

impl RingWriter {
    /// Maps a ring received from the agent.
    ///
    /// # Errors
    /// It is not a ring, or `mmap` failed.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        if rustix::fs::fstat(fd)?.st_size as usize != RING_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a touch ring"));
        }
        Ok(RingWriter { map: Map::new(fd, 0, RING_BYTES, true)? })
    }

    /// Whether the job of this process has a rate limit: it asks before it reads or writes the PFS
    /// by itself.
    pub fn is_limited(&self) -> bool {
        self.map.word(LIMITED_AT).load(Ordering::Relaxed) != 0
    }

    /// Reports that the page with `key` is in use.
    pub fn touch(&self, key: u64) {
        let slot = self.map.word(0).fetch_add(1, Ordering::Relaxed) % RING_SLOTS;
        self.map.word(HEAD_BYTES + slot as usize * 8).store(key, Ordering::Relaxed);
    }
}

/// The agent's end.
#[derive(Debug)]
pub struct RingReader {
    map: Map,
    fd: OwnedFd,
    seen: u64,
}

impl RingReader {
    /// Maps a ring made by [`create`].
    ///
    /// # Errors
    /// `mmap` failed.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let map = Map::new(fd.as_fd(), 0, RING_BYTES, true)?;
        Ok(RingReader { map, fd, seen: 0 })
    }

    /// Says whether the job of the client has a rate limit.
    pub fn set_limited(&self, is_limited: bool) {
        let word = self.map.word(LIMITED_AT);
        if (word.load(Ordering::Relaxed) != 0) != is_limited {
            word.store(u64::from(is_limited), Ordering::Relaxed);
        }
    }

    /// The memory, to send to the client.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Appends the keys stored since the last call, at most [`RING_SLOTS`] of them, in order.
    pub fn drain(&mut self, keys: &mut Vec<u64>) {
        let head = self.map.word(0).load(Ordering::Acquire);
        // A client may set the head to anything; what it says decides only how many of its own
        // slots are looked at.
        let first =
            if head.wrapping_sub(self.seen) > RING_SLOTS { head.wrapping_sub(RING_SLOTS) } else { self.seen };
        let mut at = first;
        while at != head {
            let key = self.map.word(HEAD_BYTES + (at % RING_SLOTS) as usize * 8).load(Ordering::Relaxed);
            if key != 0 {
                keys.push(key);
            }
            at = at.wrapping_add(1);
        }
        self.seen = head;
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        give_back(self.fd.as_fd(), RING_BYTES as u64);
    }
}

/// Frees the memory of a memfd that a client may keep open for as long as it likes. What it stores
/// there after this is its own memory.
pub(crate) fn give_back(fd: BorrowedFd<'_>, bytes: u64) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // It fails only if the client has sealed the file against writes, which it cannot: `SEAL` is
    // set.
    let _ = fallocate(fd, flags, 0, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_a_client_keeps_takes_no_memory_after_its_connection() {
        let mut reader = RingReader::new(create().unwrap()).unwrap();
        let writer = RingWriter::new(reader.fd()).unwrap();
        let kept = std::fs::File::from(reader.fd().try_clone_to_owned().unwrap());
        (0..RING_SLOTS).for_each(|page| writer.touch(page_key(1, page as u32)));
        reader.drain(&mut Vec::new());
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&kept.metadata().unwrap());
        assert!(blocks() * 512 >= RING_BYTES as u64);
        drop(reader);
        assert_eq!(blocks(), 0);
        writer.touch(page_key(1, 1));
    }

    #[test]
    fn touches_arrive_in_order_and_the_oldest_are_lost_first() {
        let mut reader = RingReader::new(create().unwrap()).unwrap();
        let writer = RingWriter::new(reader.fd()).unwrap();
        let mut keys = Vec::new();
        writer.touch(page_key(1, 2));
        reader.set_limited(true);
        assert!(writer.is_limited());
        reader.set_limited(false);
        assert!(!writer.is_limited());
        writer.touch(page_key(1, 3));
        reader.drain(&mut keys);
        assert_eq!(keys.iter().map(|k| split_key(*k)).collect::<Vec<_>>(), [(1, 2), (1, 3)]);
        keys.clear();
        for i in 0..RING_SLOTS + 10 {
            writer.touch(i + 1);
        }
        reader.drain(&mut keys);
        assert_eq!((keys.len() as u64, keys[0]), (RING_SLOTS, 11));
        keys.clear();
        reader.drain(&mut keys);
        assert!(keys.is_empty());
    }

    #[test]
    fn a_client_that_lies_about_the_head_harms_nobody() {
        let mut reader = RingReader::new(create().unwrap()).unwrap();
        let writer = RingWriter::new(reader.fd()).unwrap();
        let mut keys = Vec::new();
        writer.map.word(0).store(u64::MAX - 3, Ordering::Relaxed);
        reader.drain(&mut keys);
        writer.map.word(0).store(5, Ordering::Relaxed);
        reader.drain(&mut keys);
        assert!(keys.len() as u64 <= 2 * RING_SLOTS);
        assert!(ftruncate(reader.fd(), 0).is_err(), "the ring is sealed against shrinking");
    }
}
