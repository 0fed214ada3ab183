//! What keeps pages from being evicted: whole files that the operator pins, pages that clients map,
//! and pages that are on their way to a peer.
//!
//! Each of the three has a bound of its own, a share of the capacity; over it, one more is refused
//! and nothing breaks: a file is not pinned, a client copies instead of mapping, a page is sent
//! from a buffer.

use super::Cache;
use super::entry::Entry;
use crate::user_limits::Share;
use forebay_store::State;
use forebay_store::copy::{CopyFile, FLAG_PINNED};
use forebay_store::ring::{page_key, split_key};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most pages that clients may pin by mapping them, as a share of the capacity: one in four.
const CLIENT_PINS_SHARE: u64 = 4;

/// Most of the capacity that may be on its way to peers without a copy: one in four. Pages are
/// under way for milliseconds; only peers that hang hold them for their deadline.
const LENT_SHARE: u64 = 4;

/// Most of the capacity that whole files may pin: four fifths.
const FILE_PINS_SHARE: (u64, u64) = (4, 5);

/// Why a file cannot be pinned, or its pin not undone.
#[derive(Debug)]
pub enum NoPin {
    /// More than four fifths of the capacity would be pinned.
    TooMuch,
    /// The file has changed since.
    Superseded,
    /// The tier failed.
    Tier(io::Error),
}

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
        if unpin(&mut index.page_pins, self.key) {
            self.file.set_mapped(split_key(self.key).1, false);
        }
        index.lent_bytes -= self.bytes;
    }
}

/// Undoes one pin; true if it was the last.
fn unpin(pins: &mut HashMap<u64, u32>, key: u64) -> bool {
    let Some(count) = pins.get_mut(&key) else { return false };
    *count -= 1;
    *count == 0 && pins.remove(&key).is_some()
}

/// The pages of an adopted copy that a client may still map: those that the earlier agent let one
/// map, as long as somebody has a lock on the copy. Of the others the mark goes.
pub(super) fn held_pages(file: &CopyFile, resident: &[u32]) -> Vec<u32> {
    let mapped: Vec<u32> = resident.iter().copied().filter(|page| file.word(*page).mapped).collect();
    if mapped.is_empty() || file.is_locked_by_others().unwrap_or(true) {
        return mapped;
    }
    mapped.into_iter().for_each(|page| file.set_mapped(page, false));
    Vec::new()
}

impl Cache {
    /// Keeps a page in place while it is sent to a peer; `None` if it is not whole, or too much is
    /// on its way already.
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

    /// Pins a whole file; `share` is its size in the share of the user who asks. If it is pinned
    /// already, that pin stays; but the operator's takes the place of a user's, and outlasts it.
    ///
    /// # Errors
    /// See [`NoPin`].
    pub fn pin_entry(&self, entry: &Arc<Entry>, share: Share) -> Result<(), NoPin> {
        let file = self.file(entry).map_err(NoPin::Tier)?;
        let mut index = self.index();
        // Looked at under the lock: what is superseded is evicted, and unpinned for that.
        if entry.stale.load(Ordering::Relaxed) {
            return Err(NoPin::Superseded);
        }
        if entry.pinned.load(Ordering::Relaxed) {
            if share.is_of_operator() {
                file.set_pinned_by(share.uid());
                entry.set_pin(share);
            }
            return Ok(());
        }
        let (part, whole) = FILE_PINS_SHARE;
        let size = entry.geometry().size;
        if index.pinned_bytes + size > self.budget.capacity_bytes() / whole * part {
            return Err(NoPin::TooMuch);
        }
        index.pinned_bytes += size;
        entry.pinned.store(true, Ordering::Relaxed);
        file.set_pinned_by(share.uid());
        file.set_flag(FLAG_PINNED, true);
        entry.set_pin(share);
        Ok(())
    }

    /// Unpins a whole file.
    ///
    /// # Errors
    /// The copy cannot be opened.
    pub fn unpin_entry(&self, entry: &Arc<Entry>) -> Result<(), NoPin> {
        let file = self.file(entry).map_err(NoPin::Tier)?;
        let mut index = self.index();
        if entry.pinned.swap(false, Ordering::Relaxed) {
            index.pinned_bytes -= entry.geometry().size;
            file.set_flag(FLAG_PINNED, false);
            entry.forget_pin();
        }
        Ok(())
    }

    /// Gives `act` each pinned file, with the user who has pinned it and its size.
    pub fn for_pinned(&self, act: impl Fn(&Entry, u32, u64)) {
        let pinned: Vec<_> = {
            let index = self.index();
            index.by_copy.values().filter(|entry| entry.pinned.load(Ordering::Relaxed)).cloned().collect()
        };
        for entry in pinned {
            let pinned_by = self.file(&entry).map_or(0, |file| file.pinned_by());
            act(&entry, pinned_by, entry.geometry().size);
        }
    }

    /// Pins pages that a client maps; `false` if one is not resident or the bound for pins is
    /// reached.
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
            file.set_mapped(page, true);
        }
        index.client_pinned_bytes += bytes;
        true
    }

    /// Keeps `pages` of an adopted copy until [`Cache::retest_held`] finds that nobody maps them.
    /// They count as mapped, so the bound of mapped pages holds for one agent after the other.
    pub(super) fn hold_mapped(&self, entry: &Arc<Entry>, pages: Vec<u32>) {
        if pages.is_empty() {
            return;
        }
        let mut index = self.index();
        for page in &pages {
            *index.page_pins.entry(entry.key(*page)).or_insert(0) += 1;
        }
        index.client_pinned_bytes += pages.len() as u64 * entry.identity.page_bytes;
        index.held.push((entry.clone(), pages));
    }

    /// Lets go of adopted copies that no client maps any more. Called when there is time.
    pub fn retest_held(&self) {
        let held = self.index().held.clone();
        for (entry, pages) in held {
            // A copy that cannot be opened now, for want of descriptors for example, may be mapped
            // all the same.
            if self.file(&entry).is_ok_and(|file| !file.is_locked_by_others().unwrap_or(true)) {
                self.index().held.retain(|(e, _)| !Arc::ptr_eq(e, &entry));
                for page in pages {
                    self.unpin_pages(entry.copy(), entry.identity.page_bytes, page, 1);
                }
            }
        }
    }

    /// Number of adopted copies that clients of the earlier agent may still map.
    pub fn held_files(&self) -> u64 {
        self.index().held.len() as u64
    }

    /// Undoes one [`Cache::pin_pages`].
    pub fn unpin_pages(&self, copy: u64, page_bytes: u64, first: u32, count: u32) {
        let file = self.by_copy(copy).and_then(|entry| self.file(&entry).ok());
        let mut index = self.index();
        for page in first..first + count {
            if unpin(&mut index.page_pins, page_key(copy, page))
                && let Some(file) = &file
            {
                file.set_mapped(page, false);
            }
        }
        index.client_pinned_bytes -= u64::from(count) * page_bytes;
    }
}
