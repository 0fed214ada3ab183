//! A file that is being written through: its pages gather in a file of the tier that nobody can
//! read yet. It becomes a copy when it gets its record ([`CopyFile::finish`]).

use crate::cache::Cache;
use crate::cache::held::Held;
use crate::counters::{Counters, add};
use crate::user_limits::{Kind, Share, Shares};
use forebay_policy::eviction::Fill;
use forebay_store::copy::{CopyFile, CopyIdentity, Geometry};
use forebay_store::staging::Staging;
use forebay_store::tier::HUGE_PAGE_BYTES;
use forebay_store::{BLOCK_BYTES, Class, State, Word, blocks_bytes};
use forebay_wire::Refusal;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Slots of a staging buffer: one being filled, one being taken over, two to even out.
pub const SLOTS: u32 = 4;

/// Descriptors of a stage: of the buffer and of the file.
const STAGE_DESCRIPTORS: u64 = 2;

/// A file being written through on one connection.
pub struct Stage {
    buffer: Staging,
    file: OwnedFd,
    /// Number of the copy.
    pub copy: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of each page that was staged.
    pub pages: BTreeMap<u32, u64>,
    room: Held,
    _buffer_room: Held,
    _descriptors: Share,
    uid: u32,
    cache: Arc<Cache>,
    counters: Arc<Counters>,
    shares: Arc<Shares>,
    committed: bool,
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.committed {
            // What is left of a copy that was never made: its names. The next start sweeps them if
            // this fails.
            let _ = self.cache.tier.remove_copy(self.copy);
        }
    }
}

/// Why there is no staging buffer.
#[derive(Debug)]
pub enum NoStage {
    /// The user may have none, or there is no room.
    Refused(Refusal),
    /// The tier failed.
    Tier(io::Error),
}

impl From<Refusal> for NoStage {
    fn from(refusal: Refusal) -> Self {
        NoStage::Refused(refusal)
    }
}

impl From<io::Error> for NoStage {
    fn from(e: io::Error) -> Self {
        NoStage::Tier(e)
    }
}

impl Stage {
    /// A stage of user `uid`, and the descriptor of its buffer. Pages have `page_bytes`.
    ///
    /// # Errors
    /// See [`NoStage`].
    pub fn new(
        cache: &Arc<Cache>,
        shares: &Arc<Shares>,
        counters: &Arc<Counters>,
        uid: u32,
        page_bytes: u64,
    ) -> Result<(Self, OwnedFd), NoStage> {
        let bytes = Staging::bytes(SLOTS, page_bytes);
        let buffer_room = cache.hold(shares, uid, Class::Clients, bytes)?;
        let room = cache.hold(shares, uid, Class::Pages, 0)?;
        let descriptors = shares.share(Kind::Descriptors, uid, STAGE_DESCRIPTORS)?;
        let buffer = Staging::create(SLOTS, page_bytes)?;
        let fd = buffer.fd().try_clone_to_owned()?;
        let copy = cache.next_copy();
        let file = cache.tier.create_copy(copy)?;
        let stage = Stage {
            buffer,
            file,
            copy,
            page_bytes,
            pages: BTreeMap::new(),
            room,
            _buffer_room: buffer_room,
            _descriptors: descriptors,
            uid,
            cache: cache.clone(),
            counters: counters.clone(),
            shares: shares.clone(),
            committed: false,
        };
        Ok((stage, fd))
    }

    /// Takes over one page from the buffer. A page that cannot be taken over does not count: it may
    /// be half there.
    pub fn page(&mut self, slot: u32, page: u32, len: u64) {
        if self.take_over(slot, page, len).is_err() {
            self.pages.remove(&page);
        }
        self.buffer.release(slot);
    }

    fn take_over(&mut self, slot: u32, page: u32, len: u64) -> io::Result<()> {
        if len == 0 || len > self.page_bytes || u64::from(page) >= forebay_store::ring::PAGES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let held = self.pages.get(&page).map_or(0, |old| blocks_bytes(*old));
        if blocks_bytes(len) > held {
            let more = blocks_bytes(len) - held;
            let room = self.cache.hold(&self.shares, self.uid, Class::Pages, more);
            self.room.merge(room.map_err(|_| io::ErrorKind::StorageFull)?);
        }
        self.buffer.store(slot, len, self.file.as_fd(), u64::from(page) * self.page_bytes)?;
        self.pages.insert(page, len);
        self.trim(page);
        Ok(())
    }

    /// Releases what the tmpfs has allocated besides what is staged in the same huge page: it would
    /// not be counted.
    fn trim(&self, page: u32) {
        let pages_each = (HUGE_PAGE_BYTES / self.page_bytes).max(1);
        let first = u64::from(page) / pages_each * pages_each;
        let mut free_from = first * self.page_bytes;
        let end = (first + pages_each) * self.page_bytes;
        for (page, len) in
            self.pages.range(first as u32..).take_while(|(page, _)| u64::from(**page) < first + pages_each)
        {
            let start = u64::from(*page) * self.page_bytes;
            self.cache.trim_unfinished(self.file.as_fd(), free_from..start);
            free_from = start + blocks_bytes(*len);
        }
        self.cache.trim_unfinished(self.file.as_fd(), free_from..end);
    }

    /// Makes a copy of what was staged. Pages of `identity` may be smaller than those that were
    /// staged.
    ///
    /// # Errors
    /// No room, or the tier failed.
    pub fn finish(&mut self, identity: CopyIdentity, mount: usize) -> io::Result<()> {
        let cache = self.cache.clone();
        let metadata = cache
            .reserve_metadata(&identity)
            .map_err(|_| io::Error::new(io::ErrorKind::StorageFull, "no room"))?;
        let copy = CopyFile::finish(&cache.tier, self.file.try_clone()?, &identity)?;
        let geometry = copy.geometry();
        let (whole, parts) = divided(&self.pages, self.page_bytes, geometry);
        for page in parts {
            copy.discard(page)?;
        }
        let bytes_of = |page: u32| blocks_bytes(geometry.page_len(page));
        let kept: u64 = whole.iter().map(|page| bytes_of(*page)).sum();
        self.committed = true;
        let entry = cache.insert_entry(identity, mount, metadata, copy);
        if entry.copy() != self.copy {
            return Ok(()); // Somebody has fetched the same version already; theirs stays.
        }
        let file = cache.file(&entry)?;
        self.room.shrink(self.room.bytes() - kept);
        cache.keep_pages(self.room.let_go());
        for page in &whole {
            let absent = Word::ABSENT;
            let valid_blocks = geometry.page_len(*page).div_ceil(BLOCK_BYTES) as u32;
            let resident = Word { valid_blocks, state: State::Resident, ..absent };
            if !cache.note_resident(&entry, &file, *page, (absent, resident), Fill::Demand) {
                // A reader was faster, and its fetch fetches the same bytes and counts them.
                cache.release_pages(bytes_of(*page));
            }
        }
        add(&self.counters.pages_written_total, whole.len() as u64);
        Ok(())
    }
}

/// The pages of a copy that were staged whole, and those staged in part, from the bytes of each
/// page of `staged_bytes` that were staged.
fn divided(staged: &BTreeMap<u32, u64>, staged_bytes: u64, geometry: Geometry) -> (Vec<u32>, Vec<u32>) {
    let pages_each = (staged_bytes / geometry.page_bytes).max(1);
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    for (staged_page, len) in staged {
        let first = u64::from(*staged_page) * pages_each;
        // A write beyond the end of the file shows that its end is not what was staged.
        let is_beyond = first * geometry.page_bytes + len > geometry.size;
        for page in (first..first + pages_each).take_while(|page| *page < geometry.pages()) {
            let has = len.saturating_sub((page - first) * geometry.page_bytes);
            if has >= geometry.page_len(page as u32) && !is_beyond {
                whole.push(page as u32);
            } else if has > 0 {
                parts.push(page as u32);
            }
        }
    }
    (whole, parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_pages_become_small_ones() {
        let staged: BTreeMap<u32, u64> = [(0, 8192), (1, 5000), (3, 100)].into();
        let small = Geometry { size: 8192 * 3 + 100, page_bytes: 4096 };
        assert_eq!(divided(&staged, 8192, small), (vec![0, 1, 2, 6], vec![3]));
        let same = Geometry { size: 8192 * 3 + 100, page_bytes: 8192 };
        assert_eq!(divided(&staged, 8192, same), (vec![0, 3], vec![1]));
        let shorter = Geometry { size: 4097, page_bytes: 8192 };
        assert_eq!(divided(&staged, 8192, shorter), (vec![], vec![0]), "what is behind the end is not known");
    }
}
