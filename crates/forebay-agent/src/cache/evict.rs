//! How memory is released.
//!
//! The order of the steps is fixed: under the lock the policy names victims and their words are
//! withdrawn; outside of it the pages are punched and only then leave the budget.

use super::entry::Entry;
use super::{Cache, Freed, Index};
use crate::counters::add;
use crate::lock::lock;
use forebay_policy::eviction::{Fill, Victim};
use forebay_store::blocks_bytes;
use forebay_store::ring::split_key;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Victims withdrawn under one hold of the lock; with 2 MiB pages, half a gigabyte.
const VICTIMS_PER_ROUND: u64 = 256;

/// A page that readers do not see any more.
type Withdrawn = (Arc<Entry>, u32);

impl Cache {
    /// Evicts until the budget holds no more than its capacity, or nothing more can go: planned
    /// pages after all others, those that will be read last before those that will be read first.
    pub fn settle_excess(&self) -> Freed {
        let mut freed = Freed::default();
        loop {
            match self.budget.excess_bytes() {
                0 => return freed,
                excess => freed.add(self.evict(excess)),
            }
            let excess = self.budget.excess_bytes();
            // Ends: each round has fewer planned pages.
            if excess == 0 || self.index().policy.unplan_latest(excess) == 0 {
                return freed;
            }
        }
    }

    /// Releases at least `want` bytes of pages and copies if there are as many that may go.
    pub fn evict(&self, want: u64) -> Freed {
        let mut freed = Freed::default();
        let mut released = 0;
        let mut stale_too = true;
        while released < want {
            let (victims, names) = self.withdraw_some(want - released, stale_too);
            if victims.is_empty() && names.is_empty() {
                break;
            }
            match self.release(&victims, &mut freed) + self.drop_entries(names) {
                0 if !stale_too => break,
                // Superseded copies with pages on their way cannot go yet; that must not keep
                // others from going.
                0 => stale_too = false,
                round => released += round,
            }
        }
        freed
    }

    /// Chooses victims and withdraws their pages from readers. Also returns superseded entries that
    /// are to be removed.
    fn withdraw_some(&self, want: u64, stale_too: bool) -> (Vec<Withdrawn>, Vec<Arc<Entry>>) {
        let mut index = self.index();
        let mut victims = Vec::new();
        let mut names = Vec::new();
        let mut waiting = Vec::new();
        let mut covered = 0;
        while stale_too && covered < want && (victims.len() as u64) < VICTIMS_PER_ROUND {
            let Some(entry) = index.stale.pop_front() else { break };
            let pages = self.withdraw_all(&entry, &index);
            let bytes: u64 = pages.iter().map(|page| blocks_bytes(entry.geometry().page_len(*page))).sum();
            covered += bytes;
            victims.extend(pages.into_iter().map(|page| (entry.clone(), page)));
            if entry.resident_bytes.load(Ordering::Relaxed) > bytes {
                // Clients map the rest.
                waiting.push(entry);
            } else {
                covered += entry.metadata_bytes;
                names.push(entry);
            }
        }
        index.stale.extend(waiting);
        if covered < want {
            self.withdraw_by_policy(&mut index, want - covered, &mut victims);
        }
        (victims, names)
    }

    fn withdraw_by_policy(&self, index: &mut Index, want: u64, victims: &mut Vec<(Arc<Entry>, u32)>) {
        let Index { policy, by_copy, page_pins, .. } = index;
        let bound = want.min(VICTIMS_PER_ROUND * (2 << 20));
        let mut may_go = |key: u64| {
            let entry = by_copy.get(&split_key(key).0);
            !page_pins.contains_key(&key) && entry.is_none_or(|e| e.may_go())
        };
        let mut chosen: Vec<Victim> = Vec::new();
        policy.evict(bound, &mut may_go, &mut chosen);
        for victim in chosen {
            let (copy, page) = split_key(victim.key);
            let Some(entry) = by_copy.get(&copy) else { continue };
            match self.file(entry) {
                Ok(file) => {
                    if file.withdraw(page) {
                        victims.push((entry.clone(), page));
                    }
                }
                Err(e) => {
                    tracing::warn!(copy, error = %e, "cannot open a copy to evict from it");
                    policy.insert(victim.key, victim.bytes, Fill::Demand);
                }
            }
        }
    }

    /// Withdraws every page of `entry` that nobody has mapped; the policy forgets them.
    fn withdraw_all(&self, entry: &Arc<Entry>, index: &Index) -> Vec<u32> {
        let Ok(file) = self.file(entry) else { return Vec::new() };
        (0..entry.geometry().pages() as u32)
            .filter(|page| !index.page_pins.contains_key(&entry.key(*page)) && file.withdraw(*page))
            .collect()
    }

    /// Punches withdrawn pages, and removes copies that have none left. Returns the bytes that left
    /// the budget.
    fn release(&self, victims: &[(Arc<Entry>, u32)], freed: &mut Freed) -> u64 {
        let mut sorted: Vec<_> = victims.iter().collect();
        sorted.sort_by_key(|(entry, page)| (entry.copy(), *page));
        let mut released = 0;
        let mut at = 0;
        while at < sorted.len() {
            let (entry, first) = (&sorted[at].0, sorted[at].1);
            let run = sorted[at..]
                .iter()
                .enumerate()
                .take_while(|(i, (e, page))| Arc::ptr_eq(e, entry) && *page == first + *i as u32)
                .count();
            released += self.punch(entry, first, run as u32, freed);
            at += run;
        }
        released
    }

    fn punch(&self, entry: &Arc<Entry>, first: u32, count: u32, freed: &mut Freed) -> u64 {
        let geometry = entry.geometry();
        let bytes: u64 = (first..first + count).map(|p| blocks_bytes(geometry.page_len(p))).sum();
        // As long as these pages count nobody removes the copy; afterwards whoever releases its
        // last ones does, and one whose descriptor had been closed could not be opened any more.
        let file = self.file(entry);
        let left = entry.resident_bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        freed.bytes += bytes;
        freed.pages += u64::from(count);
        add(&self.counters.evicted_pages_total, u64::from(count));
        add(&self.counters.evicted_bytes, bytes);
        // Punched even if the whole copy goes: a client that has it open would keep the memory of
        // an unlinked file.
        if let Err(e) = file.and_then(|file| file.punch(first, count)) {
            // The pages stay withdrawn and counted: wrong by too much, never by too little.
            tracing::error!(copy = entry.copy(), error = %e, "cannot release pages of the tier");
            return 0;
        }
        lock(&self.pages).shrink(bytes);
        if left == 0 { bytes + self.drop_if_empty(entry) } else { bytes }
    }

    /// Removes a copy that has no pages, none on their way, and no pin that waits for them; returns
    /// the bytes that left the budget.
    pub fn drop_if_empty(&self, entry: &Arc<Entry>) -> u64 {
        if entry.resident_bytes.load(Ordering::Relaxed) == 0 && self.forget(entry) {
            self.unlink(entry.copy());
            return entry.metadata_bytes;
        }
        0
    }

    /// Takes an entry without pages out of the index, unless pages are on their way into it.
    /// Whether there are pages is looked at under the lock: one may have landed since the caller
    /// looked.
    fn forget(&self, entry: &Arc<Entry>) -> bool {
        let mut index = self.index();
        let empty =
            entry.resident_bytes.load(Ordering::Relaxed) == 0 && !entry.pinned.load(Ordering::Relaxed);
        if !empty || !entry.try_remove() || index.by_copy.remove(&entry.copy()).is_none() {
            return false;
        }
        lock(&self.metadata).shrink(entry.metadata_bytes);
        let key = (entry.mount, entry.identity.version.ino);
        if index.newest.get(&key).is_some_and(|e| Arc::ptr_eq(e, entry)) {
            index.newest.remove(&key);
        }
        true
    }

    /// Removes superseded entries whose pages are gone; those with pages mapped or under way wait
    /// their turn again.
    fn drop_entries(&self, entries: Vec<Arc<Entry>>) -> u64 {
        let mut released = 0;
        for entry in entries {
            if self.by_copy(entry.copy()).is_none() {
                continue;
            }
            match self.drop_if_empty(&entry) {
                0 => self.index().stale.push_back(entry),
                bytes => released += bytes,
            }
        }
        released
    }

    /// Releases every page of one file.
    pub fn evict_entry(&self, entry: &Arc<Entry>) -> Freed {
        let mut freed = Freed::default();
        let mut index = self.index();
        let victims: Vec<_> =
            self.withdraw_all(entry, &index).into_iter().map(|page| (entry.clone(), page)).collect();
        for (entry, page) in &victims {
            index.policy.remove(entry.key(*page));
        }
        drop(index);
        self.release(&victims, &mut freed);
        self.drop_if_empty(entry);
        freed
    }

    /// Releases versions that were superseded. Called when there is time.
    pub fn sweep_stale(&self) {
        let entries: Vec<_> = self.index().stale.drain(..).collect();
        for entry in entries {
            self.evict_entry(&entry);
            self.drop_entries(vec![entry]);
        }
    }
}
