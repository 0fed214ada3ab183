//! What keeps pages from being evicted: whole files that the operator pins, pages that clients map, and pages that are on
//! their way to a peer.
//!
//! Each of the three has a bound of its own, a share of the capacity; over it, one more is refused and nothing breaks: a file is not
//! pinned, a client copies instead of mapping, a page is sent from a buffer.

use super::{Cache, NoCopy};
use crate::entry::Entry;
use forebay_store::State;
use forebay_store::copy::{CopyFile, FLAG_PINNED};
use forebay_store::ring::page_key;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most pages that clients may pin by mapping them, as a share of the capacity: one in four.
const CLIENT_PINS_SHARE: u64 = 4;

/// Most of the capacity that may be on its way to peers without a copy: one in four. Pages are under way for
/// milliseconds; only peers that hang hold them for their deadline.
const LENT_SHARE: u64 = 4;

/// Most of the capacity that whole files may pin: four fifths.
const FILE_PINS_SHARE: (u64, u64) = (4, 5);

/// A whole page that stays where it is for as long as this lives.
#[derive(Debug)]
pub struct Lent<'a> {
    cache: &'a Cache,
    /// The copy that holds it.
    pub file: Arc<CopyFile>,
    key: u64,
    bytes: u64,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut index = self.cache.index();
        unpin(&mut index.page_pins, self.key);
        index.lent_bytes -= self.bytes;
    }
}

fn unpin(pins: &mut HashMap<u64, u32>, key: u64) {
    if let Some(count) = pins.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            pins.remove(&key);
        }
    }
}

impl Cache {
    /// Keeps a page in place while it is sent to a peer; `None` if it is not whole, or too much is on its way already.
    pub fn lend(&self, entry: &Arc<Entry>, page: u32) -> Option<Lent<'_>> {
        let file = self.file(entry).ok()?;
        let bytes = entry.geometry().page_len(page);
        let mut index = self.index();
        let fits = index.lent_bytes + bytes <= self.budget.capacity_bytes() / LENT_SHARE;
        // Looked at under the lock: from here on nobody withdraws it.
        if !fits || file.word(page).state != State::Resident {
            return None;
        }
        let key = entry.key(page);
        *index.page_pins.entry(key).or_insert(0) += 1;
        index.lent_bytes += bytes;
        drop(index);
        Some(Lent { cache: self, file, key, bytes })
    }

    /// Pins or unpins a whole file.
    ///
    /// # Errors
    /// [`NoCopy::NoRoom`]: more than four fifths of the capacity would be pinned.
    pub fn pin_entry(&self, entry: &Arc<Entry>, on: bool) -> Result<(), NoCopy> {
        let file = self.file(entry).map_err(NoCopy::Tier)?;
        let mut index = self.index();
        let size = entry.geometry().size;
        if on == entry.pinned.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (part, whole) = FILE_PINS_SHARE;
        if on && index.pinned_bytes + size > self.budget.capacity_bytes() / whole * part {
            return Err(NoCopy::NoRoom);
        }
        index.pinned_bytes = if on { index.pinned_bytes + size } else { index.pinned_bytes - size };
        entry.pinned.store(on, Ordering::Relaxed);
        file.set_flag(FLAG_PINNED, on);
        Ok(())
    }

    /// Pins pages that a client maps; `false` if one is not resident or the bound for pins is reached.
    pub fn pin_pages(&self, entry: &Arc<Entry>, first: u32, count: u32) -> bool {
        let Ok(file) = self.file(entry) else { return false };
        let mut index = self.index();
        let bytes = u64::from(count) * entry.identity.page_bytes;
        let end = u64::from(first) + u64::from(count);
        let fits = index.client_pinned_bytes + bytes <= self.budget.capacity_bytes() / CLIENT_PINS_SHARE;
        let pages = first..first.saturating_add(count);
        if !fits
            || end > entry.geometry().pages()
            || pages.clone().any(|p| file.word(p).state != State::Resident)
        {
            return false;
        }
        for page in pages {
            *index.page_pins.entry(page_key(entry.copy(), page)).or_insert(0) += 1;
        }
        index.client_pinned_bytes += bytes;
        true
    }

    /// Undoes one [`Cache::pin_pages`].
    pub fn unpin_pages(&self, copy: u64, page_bytes: u64, first: u32, count: u32) {
        let mut index = self.index();
        for page in first..first + count {
            unpin(&mut index.page_pins, page_key(copy, page));
        }
        index.client_pinned_bytes -= u64::from(count) * page_bytes;
    }
}
