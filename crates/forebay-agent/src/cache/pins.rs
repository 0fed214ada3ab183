//! What keeps pages from being evicted: whole files that the operator pins, pages that clients map,
//! and pages that are on their way to a peer.
//!
//! Each of the three has a bound of its own, a share of the capacity; over it, one more is refused
//! and nothing breaks: a file is not pinned, a client copies instead of mapping, a page is sent
//! from a buffer.

use super::entry::Entry;
use super::mapped::{Mapped, MappedKey};
use super::{Cache, Index};
use crate::user_limits::Share;
use forebay_store::State;
use forebay_store::copy::{CopyFile, FLAG_HELD, FLAG_PINNED};
use forebay_store::ring::split_key;
use forebay_wire::Refusal;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
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

/// Why pages cannot be pinned for a mapping.
#[derive(Debug)]
pub enum NoMap {
    /// Not all of them are resident.
    Absent,
    /// The bound for all clients or the share of this one is reached, or the request is wrong.
    Refused(Refusal),
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
    /// already, that pin stays; but an operator's pin replaces a user's, and outlasts it, and a
    /// user's replaces a checkpoint's.
    ///
    /// # Errors
    /// See [`NoPin`].
    pub fn pin_entry(&self, entry: &Arc<Entry>, share: Share) -> Result<(), NoPin> {
        self.pin_for(entry, share, false)
    }

    /// Pins a file of a checkpoint, unless it is pinned already.
    ///
    /// # Errors
    /// See [`NoPin`].
    pub fn hold_entry(&self, entry: &Arc<Entry>, share: Share) -> Result<(), NoPin> {
        self.pin_for(entry, share, true)
    }

    fn pin_for(&self, entry: &Arc<Entry>, share: Share, is_checkpoint: bool) -> Result<(), NoPin> {
        let file = self.file(entry).map_err(NoPin::Tier)?;
        let mut index = self.index();
        // Looked at under the lock: what is superseded is evicted, and unpinned for that.
        if entry.stale.load(Ordering::Relaxed) {
            return Err(NoPin::Superseded);
        }
        if entry.pinned.load(Ordering::Relaxed) {
            let was_held = file.flags() & FLAG_HELD != 0;
            if share.is_of_operator() || was_held && !is_checkpoint {
                file.set_pinned_by(share.uid());
                entry.set_pin(share);
            }
            if !is_checkpoint {
                file.set_flag(FLAG_HELD, false);
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
        // First, so that no crash leaves a pin that nobody releases.
        file.set_flag(FLAG_HELD, is_checkpoint);
        file.set_flag(FLAG_PINNED, true);
        entry.set_pin(share);
        Ok(())
    }

    /// Pinned files of checkpoints.
    pub fn held(&self) -> Vec<Arc<Entry>> {
        let index = self.index();
        let pinned = index.by_copy.values().filter(|entry| entry.pinned.load(Ordering::Relaxed));
        let pinned: Vec<_> = pinned.cloned().collect();
        drop(index);
        pinned.into_iter().filter(|entry| self.is_held(entry)).collect()
    }

    fn is_held(&self, entry: &Arc<Entry>) -> bool {
        self.file(entry).is_ok_and(|file| file.flags() & FLAG_HELD != 0)
    }

    /// Unpins a file of a checkpoint, unless somebody else has pinned it since.
    ///
    /// # Errors
    /// The copy cannot be opened.
    pub fn release_entry(&self, entry: &Arc<Entry>) -> Result<(), NoPin> {
        if self.is_held(entry) { self.unpin_entry(entry) } else { Ok(()) }
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
            file.set_flag(FLAG_PINNED | FLAG_HELD, false);
            entry.forget_pin();
        }
        Ok(())
    }

    /// Calls `act` with each pinned file, the user who has pinned it and its size.
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

    /// Pins pages that a program of user `uid` maps, and returns the descriptor for that. They stay
    /// pinned until nobody has the descriptor or a mapping made of it. `take` takes bytes of the
    /// user's share.
    ///
    /// # Errors
    /// See [`NoMap`].
    pub fn pin_pages(
        &self,
        entry: &Arc<Entry>,
        pages: Range<u32>,
        uid: u32,
        take: impl Fn(u64) -> Result<Share, Refusal>,
    ) -> Result<OwnedFd, NoMap> {
        let refused = |why: &str| NoMap::Refused(Refusal::Invalid(why.into()));
        if pages.is_empty() || u64::from(pages.end) > entry.geometry().pages() {
            return Err(refused("the copy has no such pages"));
        }
        let file = self.file(entry).map_err(|_| refused("the tier has no such copy"))?;
        // Locked first: a thread that finds the pages among the mapped ones finds them locked.
        let shared = file.share_to_map(&self.tier, entry.copy(), pages.clone());
        let shared = shared.map_err(|_| refused("the agent has too many open files"))?;
        let noted = self.note_mapped(entry, &file, pages.clone(), (uid, &take)).or_else(|no| {
            // What was unmapped since the last look may make room.
            self.release_unmapped();
            match no {
                NoMap::Refused(_) => self.note_mapped(entry, &file, pages, (uid, &take)),
                NoMap::Absent => Err(no),
            }
        });
        noted.map(|()| shared)
    }

    fn note_mapped(
        &self,
        entry: &Arc<Entry>,
        file: &CopyFile,
        pages: Range<u32>,
        (uid, take): (u32, &dyn Fn(u64) -> Result<Share, Refusal>),
    ) -> Result<(), NoMap> {
        let mut index = self.index();
        if pages.clone().any(|page| file.word(page).state != State::Resident) {
            return Err(NoMap::Absent);
        }
        let key = (entry.copy(), Some(uid));
        let known = index.mapped.get(&key).map(|mapped| &mapped.pages);
        let new: Vec<u32> = pages.filter(|page| known.is_none_or(|known| !known.contains(page))).collect();
        let bytes = new.len() as u64 * entry.identity.page_bytes;
        if index.client_pinned_bytes + bytes > self.budget.capacity_bytes() / CLIENT_PINS_SHARE {
            return Err(NoMap::Refused(Refusal::TooMany("pinned pages".into())));
        }
        let share = take(bytes).map_err(NoMap::Refused)?;
        index.note_mapped(entry, file, Some(uid), (new, Some(share)));
        Ok(())
    }

    /// Keeps `pages` of an adopted copy until [`Cache::release_unmapped`] finds that nobody maps
    /// them. They count as mapped: the bound holds for one agent after the other.
    pub(super) fn adopt_mapped(&self, entry: &Arc<Entry>, file: &CopyFile, pages: BTreeSet<u32>) {
        if !pages.is_empty() {
            self.index().note_mapped(entry, file, None, (pages.into_iter().collect(), None));
        }
    }

    /// Releases what no program maps any more. Called when there is time, and before memory is
    /// released by a user's request.
    pub fn release_unmapped(&self) {
        let mapped: Vec<_> = self.index().mapped.iter().map(|(key, of)| (*key, of.entry.clone())).collect();
        for (key, entry) in mapped {
            // A copy that cannot be opened now, for want of descriptors for example, may be mapped
            // all the same.
            if let Ok(file) = self.file(&entry) {
                // Under the lock: a page that gets a lock meanwhile must not be mistaken for a free
                // one.
                self.index().release_unmapped(key, &file);
            }
        }
    }

    /// Number of copies that programs map.
    pub fn mapped_files(&self) -> u64 {
        let index = self.index();
        index.mapped.keys().map(|(copy, _)| copy).collect::<BTreeSet<_>>().len() as u64
    }
}

impl Index {
    fn note_mapped(
        &mut self,
        entry: &Arc<Entry>,
        file: &CopyFile,
        uid: Option<u32>,
        (pages, share): (Vec<u32>, Option<Share>),
    ) {
        self.client_pinned_bytes += pages.len() as u64 * entry.identity.page_bytes;
        for page in &pages {
            *self.page_pins.entry(entry.key(*page)).or_insert(0) += 1;
            file.set_mapped(*page, true);
        }
        let new = || Mapped::none_of(entry);
        let mapped = self.mapped.entry((entry.copy(), uid)).or_insert_with(new);
        mapped.pages.extend(pages);
        match (&mut mapped.share, share) {
            (Some(all), Some(more)) => all.merge(more),
            (all, more) => *all = more,
        }
    }

    /// Releases those of the pages that nobody has locked.
    fn release_unmapped(&mut self, key: MappedKey, file: &CopyFile) {
        let Some(mapped) = self.mapped.get_mut(&key) else { return };
        let Some((first, last)) = mapped.ends() else { return };
        let (entry, mut bytes) = (mapped.entry.clone(), 0);
        for page in file.unmapped(first..last + 1).unwrap_or_default().into_iter().flatten() {
            if !mapped.pages.remove(&page) {
                continue;
            }
            bytes += entry.identity.page_bytes;
            if unpin(&mut self.page_pins, entry.key(page)) {
                file.set_mapped(page, false);
            }
        }
        self.client_pinned_bytes -= bytes;
        if let Some(share) = &mut mapped.share {
            share.shrink(bytes);
        }
        if mapped.pages.is_empty() {
            self.mapped.remove(&key);
        }
    }
}
