//! The staging buffer: puts pages that a client writes to the PFS into the tier as well.
//!
//! The writer must not be given the cached copy itself: it could change "cached" bytes after it has
//! closed the file, for all who may read it. So it fills slots of a small shared buffer, and the
//! agent copies each into a file of its own. A writer that finds no free slot for a moment leaves
//! the page out; it is not cached.

use crate::map::Map;
use crate::ring::{give_back, sealed_memfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Bytes before the first slot; slot `i` has its busy word at `4 * i`.
pub const HEAD_BYTES: u64 = 4096;

/// One end of a staging buffer.
#[derive(Debug)]
pub struct Staging {
    file: OwnedFd,
    head: Map,
    slots: u32,
    page_bytes: u64,
    /// The agent's end, whose drop frees the memory.
    is_agents: bool,
}

impl Staging {
    /// Makes a buffer of `slots` pages.
    ///
    /// # Errors
    /// No memory, or no descriptors left.
    pub fn create(slots: u32, page_bytes: u64) -> io::Result<Self> {
        let file = sealed_memfd(c"forebay-staging", Self::bytes(slots, page_bytes))?;
        let mut made = Self::over(file, slots, page_bytes)?;
        made.is_agents = true;
        Ok(made)
    }

    /// Maps a buffer received from the agent.
    ///
    /// # Errors
    /// It is not as large as expected, or `mmap` failed.
    pub fn over(file: OwnedFd, slots: u32, page_bytes: u64) -> io::Result<Self> {
        let size = rustix::fs::fstat(&file)?.st_size as u64;
        if slots == 0 || u64::from(slots) * 4 > HEAD_BYTES || size != Self::bytes(slots, page_bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a staging buffer"));
        }
        let head = Map::new(file.as_fd(), 0, HEAD_BYTES as usize, true)?;
        Ok(Staging { file, head, slots, page_bytes, is_agents: false })
    }

    /// Bytes of a buffer of `slots` pages.
    pub fn bytes(slots: u32, page_bytes: u64) -> u64 {
        HEAD_BYTES + u64::from(slots) * page_bytes
    }

    /// The memory, to send to the client.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Writer: takes a free slot, if there is one.
    pub fn take(&self) -> Option<u32> {
        (0..self.slots).find(|slot| {
            let busy = self.head.half(*slot as usize * 4);
            busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// Agent: the slot may be used again. Writer: it was not sent after all.
    pub fn release(&self, slot: u32) {
        if slot < self.slots {
            self.head.half(slot as usize * 4).store(0, Ordering::Release);
        }
    }

    /// Writer: stores `data` at `offset` of `slot`.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` when memory is short.
    ///
    /// # Panics
    /// The range leaves the slot.
    pub fn fill(&self, slot: u32, data: &[u8], offset: u64) -> io::Result<()> {
        assert!(
            slot < self.slots && offset + data.len() as u64 <= self.page_bytes,
            "a write outside of slot {slot}"
        );
        crate::full_io::write_all_at(
            self.file.as_fd(),
            data,
            HEAD_BYTES + u64::from(slot) * self.page_bytes + offset,
        )
    }

    /// Agent: writes the first `len` bytes of `slot` to `target` at `offset`, straight from the
    /// shared memory and in one call, so that a whole page of a tmpfs with huge pages becomes one.
    ///
    /// # Errors
    /// `InvalidInput`: no such slot, or more bytes than a slot has. `ENOSPC`: the tmpfs is full.
    pub fn store(&self, slot: u32, len: u64, target: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        if slot >= self.slots || len > self.page_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = HEAD_BYTES + u64::from(slot) * self.page_bytes;
        let map = Map::new(self.file.as_fd(), at, self.page_bytes as usize, false)?;
        if map.write_to(target, len, offset)? < len {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.is_agents {
            give_back(self.file.as_fd(), Self::bytes(self.slots, self.page_bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_filled_read_and_released() {
        let agent = Staging::create(2, 8192).unwrap();
        let writer = Staging::over(agent.fd().try_clone_to_owned().unwrap(), 2, 8192).unwrap();
        let (a, b) = (writer.take().unwrap(), writer.take().unwrap());
        assert_eq!((a, b, writer.take()), (0, 1, None));
        writer.fill(b, &[5; 100], 8000).unwrap();
        let target = std::fs::File::from(sealed_memfd(c"target", 3 * 8192).unwrap());
        agent.store(b, 8100, target.as_fd(), 8192).unwrap();
        let mut page = vec![0; 8100];
        std::os::unix::fs::FileExt::read_exact_at(&target, &mut page, 8192).unwrap();
        assert_eq!(&page[8000..], [5; 100]);
        agent.release(a);
        assert_eq!(writer.take(), Some(0));
        assert!(agent.store(2, 1, target.as_fd(), 0).is_err());
        assert!(agent.store(0, 8193, target.as_fd(), 0).is_err());
    }

    #[test]
    fn a_buffer_of_another_size_is_refused() {
        let agent = Staging::create(2, 8192).unwrap();
        assert!(Staging::over(agent.fd().try_clone_to_owned().unwrap(), 3, 8192).is_err());
        assert!(Staging::over(agent.fd().try_clone_to_owned().unwrap(), 0, 8192).is_err());
    }
}
