//! How memory is released.
//!
//! The order of the steps is fixed: under the lock the policy names victims and their words are
//! withdrawn; outside of it the pages are punched and only then leave the budget.

use super::entry::{Entry, Stale};
use super::{Cache, Freed, Index};
use crate::counters::add;
use crate::lock::lock;
use forebay_policy::eviction::{Fill, Victim};
use forebay_store::blocks_bytes;
use forebay_store::ring::split_key;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Victims withdrawn under one hold of the lock; with 2 MiB pages, half a gigabyte.
const VICTIMS_PER_ROUND: u64 = 256;

/// Pages of a copy that are walked under one hold of the lock: a copy may have 16 million.
const PAGES_PER_ROUND: u32 = 16_384;

/// What is to go after one hold of the lock.
#[derive(Default)]
struct Chosen {
    victims: Vec<Withdrawn>,
    /// Superseded entries that are to be removed.
    names: Vec<Arc<Entry>>,
    /// A superseded copy has pages that were not looked at.
    has_more: bool,
}

/// Bytes over the capacity that are evicted at a time.
const SETTLE_STEP_BYTES: u64 = 64 << 20;

/// A page that readers do not see any more, and whether the disk level may have it.
type Withdrawn = (Arc<Entry>, u32, bool);

impl Cache {
    /// Evicts until the budget holds no more than its capacity, or nothing more can go: planned
    /// pages after all others, those that will be read last before those that will be read first.
    pub fn settle_excess(&self) -> Freed {
        let _settling = lock(&self.settling);
        let mut freed = Freed::default();
        while self.settle_step(&mut freed) {}
        freed
    }

    /// A part of [`Cache::settle_excess`], unless somebody does it already: the memory controller
    /// must not wait for long.
    pub fn settle_some(&self) {
        if let Ok(_settling) = self.settling.try_lock() {
            self.settle_step(&mut Freed::default());
        }
    }

    /// Evicts a step's worth; returns whether there may be more to do.
    fn settle_step(&self, freed: &mut Freed) -> bool {
        let excess = self.budget.excess_bytes();
        if excess == 0 {
            return false;
        }
        let evicted = self.evict(excess.min(SETTLE_STEP_BYTES));
        freed.add(evicted);
        let left = self.budget.excess_bytes();
        // Planned pages go only when nothing else does. Ends: each round has fewer pages.
        evicted.bytes > 0 || left < excess || self.index().policy.unplan_latest(left) > 0
    }

    /// Releases at least `want` bytes of pages and copies if there are as many that may go.
    pub fn evict(&self, want: u64) -> Freed {
        self.evict_sparing(want, 0)
    }

    /// As [`Cache::evict`], of all that may go; the disk level is empty then.
    pub fn evict_all(&self) -> Freed {
        let evict = || self.evict(u64::MAX);
        self.disk().map_or_else(evict, |disk| disk.clear_after(evict))
    }

    /// As [`Cache::evict`], but not what the load `load` has loaded.
    pub(super) fn evict_sparing(&self, want: u64, load: u64) -> Freed {
        let mut freed = Freed::default();
        let mut released = 0;
        let mut stale_too = true;
        let mut waiting = Vec::new();
        while released < want {
            let Chosen { victims, names, has_more } =
                self.withdraw_some(want - released, stale_too, &mut waiting, load);
            if victims.is_empty() && names.is_empty() && !has_more {
                break;
            }
            match self.release(&victims, &mut freed) + self.drop_entries(names) {
                0 if has_more => {}
                0 if !stale_too => break,
                // Superseded copies with pages on their way cannot go yet; that must not keep
                // others from going.
                0 => stale_too = false,
                round => released += round,
            }
        }
        if !waiting.is_empty() {
            self.index().stale.extend(waiting);
        }
        freed
    }

    /// Chooses victims and withdraws their pages from readers. Superseded versions of which clients
    /// map a part are `waiting` from now on: each is walked once in an eviction.
    fn withdraw_some(&self, want: u64, stale_too: bool, waiting: &mut Vec<Stale>, load: u64) -> Chosen {
        let mut index = self.index();
        let mut chosen = Chosen::default();
        let (mut covered, mut pages_left) = (0, PAGES_PER_ROUND);
        while stale_too && covered < want && (chosen.victims.len() as u64) < VICTIMS_PER_ROUND {
            let Some(mut stale) = index.stale.pop_front() else { break };
            let (entry, first) = (stale.entry.clone(), stale.next);
            let geometry = entry.geometry();
            let resident_bytes = entry.resident_bytes.load(Ordering::Relaxed);
            let end = first.saturating_add(pages_left).min(geometry.pages() as u32);
            let pages = self.withdraw_in(&entry, &mut index, first..end);
            let bytes: u64 = pages.iter().map(|page| blocks_bytes(geometry.page_len(*page))).sum();
            covered += bytes;
            chosen.victims.extend(pages.into_iter().map(|page| (entry.clone(), page, false)));
            pages_left -= end - first;
            if resident_bytes <= bytes {
                covered += entry.metadata_bytes;
                chosen.names.push(entry);
            } else if end < geometry.pages() as u32 {
                stale.next = end;
                index.stale.push_front(stale);
                chosen.has_more = true;
                break;
            } else {
                // Clients map the rest.
                waiting.push(Stale::new(entry));
            }
        }
        if covered < want && !chosen.has_more {
            self.withdraw_by_policy(&mut index, want - covered, load, &mut chosen.victims);
        }
        chosen
    }

    fn withdraw_by_policy(&self, index: &mut Index, want: u64, load: u64, victims: &mut Vec<Withdrawn>) {
        let Index { policy, by_copy, page_pins, .. } = index;
        let bound = want.min(VICTIMS_PER_ROUND * (2 << 20));
        let mut may_go = |key: u64| {
            let entry = by_copy.get(&split_key(key).0);
            !page_pins.contains_key(&key) && entry.is_none_or(|e| e.may_go(load))
        };
        let mut chosen: Vec<Victim> = Vec::new();
        policy.evict(bound, &mut may_go, &mut chosen);
        for victim in chosen {
            let (copy, page) = split_key(victim.key);
            let Some(entry) = by_copy.get(&copy) else { continue };
            match self.file(entry) {
                Ok(file) => {
                    // The disk level need not have a remote page: its owner has it.
                    let is_own = !file.word(page).remote;
                    if file.withdraw(page) {
                        victims.push((entry.clone(), page, is_own));
                    }
                }
                Err(e) => {
                    tracing::warn!(copy, error = %e, "cannot open a copy to evict from it");
                    policy.insert(victim.key, victim.bytes, Fill::Demand);
                }
            }
        }
    }

    /// Withdraws those of `pages` of `entry` that nobody has mapped; the policy forgets them.
    fn withdraw_in(&self, entry: &Arc<Entry>, index: &mut Index, pages: Range<u32>) -> Vec<u32> {
        let Ok(file) = self.file(entry) else { return Vec::new() };
        let Index { policy, page_pins, .. } = index;
        let withdrawn = pages.filter(|page| {
            let key = entry.key(*page);
            let goes = !page_pins.contains_key(&key) && file.withdraw(*page);
            if goes {
                policy.remove(key);
            }
            goes
        });
        withdrawn.collect()
    }

    /// Punches withdrawn pages, and removes copies that have none left. Returns the bytes that left
    /// the budget.
    fn release(&self, victims: &[Withdrawn], freed: &mut Freed) -> u64 {
        if let Some(disk) = self.disk() {
            for (entry, page, _) in
                victims.iter().filter(|(entry, _, may_stay)| *may_stay && entry.is_sealed())
            {
                if let Ok(file) = self.file(entry) {
                    disk.take(entry, &file, *page);
                }
            }
        }
        let mut sorted: Vec<_> = victims.iter().collect();
        sorted.sort_by_key(|(entry, page, _)| (entry.copy(), *page));
        let mut released = 0;
        let mut at = 0;
        while at < sorted.len() {
            let (entry, first) = (&sorted[at].0, sorted[at].1);
            let run = sorted[at..]
                .iter()
                .enumerate()
                .take_while(|(i, (e, page, _))| Arc::ptr_eq(e, entry) && *page == first + *i as u32)
                .count();
            released += self.punch(entry, first, run as u32, freed);
            at += run;
        }
        released
    }

    fn punch(&self, entry: &Arc<Entry>, first: u32, count: u32, freed: &mut Freed) -> u64 {
        let geometry = entry.geometry();
        let bytes: u64 = (first..first + count).map(|p| blocks_bytes(geometry.page_len(p))).sum();
        // Nobody removes the copy while these pages count; afterwards the thread that releases its
        // last ones does, and a copy whose descriptor had been closed could no longer be opened.
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
                0 => self.index().stale.push_back(Stale::new(entry)),
                bytes => released += bytes,
            }
        }
        released
    }

    /// Releases every page of one file.
    pub fn evict_entry(&self, entry: &Arc<Entry>) -> Freed {
        let mut freed = Freed::default();
        let (mut first, pages) = (0, entry.geometry().pages() as u32);
        // The lock is free between steps; a page that comes behind them stays, as one that comes
        // after all of this would.
        while first < pages && entry.resident_bytes.load(Ordering::Relaxed) > 0 {
            let end = first.saturating_add(PAGES_PER_ROUND).min(pages);
            let withdrawn = self.withdraw_in(entry, &mut self.index(), first..end);
            let victims: Vec<_> = withdrawn.into_iter().map(|page| (entry.clone(), page, false)).collect();
            self.release(&victims, &mut freed);
            first = end;
        }
        self.drop_if_empty(entry);
        freed
    }

    /// Marks all versions of files of the mount as superseded.
    pub fn forget_mount(&self, mount: usize) {
        let mut index = self.index();
        let of_mount = index.newest.extract_if(|(of, _), _| *of == mount);
        let entries: Vec<_> = of_mount.map(|(_, entry)| entry).collect();
        entries.into_iter().for_each(|entry| index.overtake(entry));
    }

    /// Releases versions that were superseded. Called when there is time.
    pub fn sweep_stale(&self) {
        let superseded: Vec<_> = self.index().stale.drain(..).collect();
        for Stale { entry, .. } in superseded {
            self.evict_entry(&entry);
            self.drop_entries(vec![entry]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pfs::FileVersion;
    use forebay_store::copy::{CopyFile, CopyIdentity};
    use forebay_store::{Class, State, Word};
    use std::sync::Barrier;

    const PAGE: u64 = 16 << 10;

    /// Enters a version of file 7 with this number of pages, of which `resident` are resident.
    fn enter(cache: &Cache, pages: u64, resident: &[u32]) -> Arc<Entry> {
        let copy = cache.next_copy();
        let identity = CopyIdentity {
            copy,
            mount: "pfs".into(),
            path: b"f".to_vec(),
            owner_uid: 0,
            version: FileVersion { ino: 7, size: pages * PAGE, mtime_ns: copy as i64, ctime_ns: 0 },
            page_bytes: PAGE,
        };
        let metadata = cache.reserve_metadata(&identity).unwrap();
        let file = CopyFile::create(&cache.tier, &identity).unwrap();
        let entry = cache.insert_entry(identity, 0, metadata, file);
        let file = cache.file(&entry).unwrap();
        for page in resident {
            cache.keep_pages(cache.reserve(Class::Pages, PAGE).unwrap());
            let whole = Word { state: State::Resident, valid_blocks: 4, ..Word::ABSENT };
            assert!(cache.note_resident(&entry, &file, *page, (Word::ABSENT, whole), Fill::Demand));
        }
        entry
    }

    #[test]
    fn a_superseded_copy_of_very_many_pages_is_walked_in_steps() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let cache = Cache::for_tests(dir.path(), 1 << 30);
        let pages = 10 * PAGES_PER_ROUND;
        let old = enter(&cache, u64::from(pages), &[0, 5 * PAGES_PER_ROUND, pages - 1]);
        enter(&cache, 1, &[0]);
        assert!(old.stale.load(Ordering::Relaxed));
        assert_eq!(cache.index().policy.len(), 4, "pages were walked while the index was locked");
        let (mut waiting, mut freed) = (Vec::new(), Freed::default());
        let step = cache.withdraw_some(1 << 20, true, &mut waiting, 0);
        assert!(step.has_more && step.victims.len() == 1, "{}", step.victims.len());
        assert_eq!(cache.index().stale.front().unwrap().next, PAGES_PER_ROUND);
        cache.release(&step.victims, &mut freed);
        // The two others go before the page of the newer version.
        assert_eq!(cache.evict(2 * PAGE), Freed { bytes: 2 * PAGE, pages: 2 });
        assert_eq!(cache.index().policy.len(), 1);
        assert_eq!(cache.totals().files, 1);
    }

    #[test]
    fn planned_pages_stay_while_others_go_in_several_steps() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let cache = Cache::for_tests(dir.path(), 1 << 30);
        // Superseded pages that fill the first step together with the memory of their copy, and not
        // alone.
        let step = (SETTLE_STEP_BYTES / PAGE) as u32;
        enter(&cache, u64::from(step), &(0..step - 1).collect::<Vec<_>>());
        let newer = enter(&cache, u64::from(3 * step), &(0..3 * step).collect::<Vec<_>>());
        (0..step).for_each(|page| cache.plan(newer.key(page), 7));
        let planned = cache.index().policy.planned_bytes();
        assert!(planned > 0);
        // The superseded ones, and half of those that are not planned.
        let unplanned = u64::from(3 * step) * PAGE - planned;
        let gone = u64::from(step - 1) * PAGE + unplanned / 2;
        cache.budget.set_capacity_bytes(cache.budget.used_bytes() - gone);
        assert!(cache.settle_excess().bytes >= gone - PAGE * 8);
        assert_eq!(cache.budget.excess_bytes(), 0);
        assert_eq!(cache.index().policy.planned_bytes(), planned);
    }

    #[test]
    fn two_that_settle_the_same_excess_evict_it_once() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let cache = Cache::for_tests(dir.path(), 1 << 30);
        // Not adjacent, so that each page takes a system call to release.
        let pages: Vec<u32> = (0..4096).step_by(2).collect();
        for _ in 0..8 {
            let entry = enter(&cache, 4096, &pages);
            cache.budget.set_capacity_bytes(cache.budget.used_bytes() - 1024 * PAGE);
            let begin = Barrier::new(2);
            let freed = std::thread::scope(|threads| {
                let settle = || {
                    begin.wait();
                    cache.settle_excess().pages
                };
                let (one, other) = (threads.spawn(settle), threads.spawn(settle));
                one.join().unwrap() + other.join().unwrap()
            });
            assert_eq!(freed, 1024);
            assert_eq!(entry.resident_bytes.load(Ordering::Relaxed), 1024 * PAGE);
            cache.budget.set_capacity_bytes(u64::MAX);
            cache.evict(u64::MAX);
        }
    }

    #[test]
    fn the_sweep_walks_all_of_a_superseded_copy_but_what_is_mapped() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let cache = Cache::for_tests(dir.path(), 1 << 30);
        let pages = 3 * PAGES_PER_ROUND;
        let old = enter(&cache, u64::from(pages), &[0, 1, pages - 1]);
        let key = old.key(1);
        cache.index().page_pins.insert(key, 1);
        enter(&cache, 1, &[0]);
        cache.sweep_stale();
        assert_eq!(old.resident_bytes.load(Ordering::Relaxed), PAGE);
        assert_eq!(cache.evict(64 << 20).pages, 1, "of the newer version");
        assert_eq!(old.resident_bytes.load(Ordering::Relaxed), PAGE);
        cache.index().page_pins.remove(&key);
        cache.sweep_stale();
        assert_eq!((cache.totals().files, cache.index().policy.len()), (0, 0));
    }
}
