//! Announced pages: a job has announced when it will read them next, so the one that is read last
//! goes first.
//!
//! That is Belady's choice, which needs no counts and no guess. On a plain shuffle, where each page
//! is used once an epoch, it hits no more often than [`super::WindowedLfu`] (at most the cached
//! share of the data). Where some pages are used sooner than others, as with replacement or where
//! each rank reads its own part of each epoch, it hits up to four times as often (decision 0074).
//!
//! Announced pages are out of the policy's contest. Victims come from these, in this order:
//!
//! 1. pages whose announced uses are over while their job continues;
//! 2. all other pages, as long as announced pages hold no more than [`PLANNED_SHARE_PERCENT`] of
//!    the capacity, or if nothing but announced pages was used while one capacity of them came;
//! 3. announced pages, the latest next use first;
//! 4. the rest.
//!
//! A planned page that is also announced needs no protection of its own: its use is among the next.
//! An announced page that may not be evicted is in use for another reason, and becomes an ordinary
//! page until it is announced again.

use super::{Dump, EvictionPolicy, Fill, NextUse, PLANNED_SHARE_PERCENT, Victim};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// The place of pages whose announced uses are over: after all that have one.
const OVER: u64 = u64::MAX;

/// A policy and the announced pages beside it.
#[derive(Debug)]
pub struct Announced {
    inner: Box<dyn EvictionPolicy>,
    pages: BTreeMap<u64, Page>,
    /// Next use and key of each page.
    order: BTreeSet<(u64, u64)>,
    bytes: u64,
    /// Announced pages that have come since another page was used, in bytes.
    since_other_use_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    bytes: u32,
    next_use: u64,
    remote: bool,
}

impl Announced {
    /// A policy without announced pages.
    pub fn new(inner: Box<dyn EvictionPolicy>) -> Self {
        Announced {
            inner,
            pages: BTreeMap::new(),
            order: BTreeSet::new(),
            bytes: 0,
            since_other_use_bytes: 0,
        }
    }

    fn take_out(&mut self, key: u64) -> Option<Page> {
        let page = self.pages.remove(&key)?;
        self.order.remove(&(page.next_use, key));
        self.bytes -= u64::from(page.bytes);
        Some(page)
    }

    fn put_in(&mut self, key: u64, page: Page) {
        self.bytes += u64::from(page.bytes);
        self.order.insert((page.next_use, key));
        self.pages.insert(key, page);
    }

    /// Takes a page out of the policy's contest.
    fn take_over(&mut self, key: u64, next_use: u64) {
        let remote_bytes = self.inner.remote_page_bytes();
        let Some(bytes) = self.inner.remove(key) else { return };
        let remote = self.inner.remote_page_bytes() < remote_bytes;
        self.put_in(key, Page { bytes, next_use, remote });
        self.since_other_use_bytes = self.since_other_use_bytes.saturating_add(u64::from(bytes));
    }

    /// Gives a page back to the policy.
    fn hand_over(&mut self, key: u64) {
        if let Some(page) = self.take_out(key) {
            let fill = if page.remote { Fill::Remote } else { Fill::Demand };
            self.inner.insert(key, page.bytes, fill);
        }
    }

    /// Returns the bytes that announced pages leave to the others.
    fn others_share_bytes(&self) -> u64 {
        let capacity_bytes = self.inner.capacity_bytes();
        if self.since_other_use_bytes > capacity_bytes {
            return 0;
        }
        capacity_bytes - capacity_bytes.saturating_mul(PLANNED_SHARE_PERCENT) / 100
    }

    /// Evicts announced pages, the latest next use first and none before `from`.
    fn evict_announced(
        &mut self,
        (want_bytes, from): (u64, u64),
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        let mut freed_bytes = 0;
        while freed_bytes < want_bytes {
            let Some(&(_, key)) = self.order.last().filter(|(next_use, _)| *next_use >= from) else { break };
            if !may_evict(key) {
                self.hand_over(key);
                continue;
            }
            if let Some(Page { bytes, .. }) = self.take_out(key) {
                freed_bytes += u64::from(bytes);
                victims.push(Victim { key, bytes });
            }
        }
        freed_bytes
    }
}

impl EvictionPolicy for Announced {
    fn insert(&mut self, key: u64, bytes: u32, fill: Fill) {
        if let Some(page) = self.take_out(key) {
            return self.put_in(key, Page { bytes, ..page });
        }
        if fill == Fill::Demand {
            self.since_other_use_bytes = 0;
        }
        self.inner.insert(key, bytes, fill);
    }

    fn touch(&mut self, key: u64) {
        // The use of an announced page was expected.
        if !self.pages.contains_key(&key) {
            if self.inner.contains(key) {
                self.since_other_use_bytes = 0;
            }
            self.inner.touch(key);
        }
    }

    fn remove(&mut self, key: u64) -> Option<u32> {
        self.take_out(key).map(|page| page.bytes).or_else(|| self.inner.remove(key))
    }

    fn evict(
        &mut self,
        want_bytes: u64,
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        if self.pages.is_empty() {
            // Only once: another call for the missing bytes would evict pages that the policy wants
            // to keep.
            return self.inner.evict(want_bytes, may_evict, victims);
        }
        let mut freed_bytes = self.evict_announced((want_bytes, OVER), may_evict, victims);
        let spare_bytes = self.inner.bytes().saturating_sub(self.others_share_bytes());
        if self.pages.is_empty() || spare_bytes > 0 {
            let bound_bytes = if self.pages.is_empty() { u64::MAX } else { spare_bytes };
            let left = want_bytes.saturating_sub(freed_bytes).min(bound_bytes);
            if left > 0 {
                freed_bytes += self.inner.evict(left, may_evict, victims);
            }
        }
        let left = want_bytes.saturating_sub(freed_bytes);
        freed_bytes += self.evict_announced((left, 0), may_evict, victims);
        match want_bytes.saturating_sub(freed_bytes) {
            0 => freed_bytes,
            left => freed_bytes + self.inner.evict(left, may_evict, victims),
        }
    }

    fn plan(&mut self, key: u64, order: u64) -> bool {
        self.pages.contains_key(&key) || self.inner.plan(key, order)
    }

    fn unplan(&mut self, orders: Option<&BTreeSet<u64>>) {
        self.inner.unplan(orders);
    }

    fn unplan_latest(&mut self, bytes: u64) -> u64 {
        self.inner.unplan_latest(bytes)
    }

    fn planned_bytes(&self) -> u64 {
        self.inner.planned_bytes()
    }

    fn announce(&mut self, key: u64, next_use: NextUse) {
        let next_use = match next_use {
            NextUse::Unknown => return self.hand_over(key),
            NextUse::At(place) => place.min(OVER - 1),
            NextUse::Over => OVER,
        };
        match self.take_out(key) {
            Some(page) => self.put_in(key, Page { next_use, ..page }),
            // A page that was never announced is not worse for that.
            None if next_use == OVER => {}
            None => self.take_over(key, next_use),
        }
    }

    fn announced_bytes(&self) -> u64 {
        self.bytes
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.inner.set_capacity(capacity_bytes);
    }

    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn contains(&self, key: u64) -> bool {
        self.pages.contains_key(&key) || self.inner.contains(key)
    }

    fn len(&self) -> usize {
        self.pages.len() + self.inner.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes + self.inner.bytes()
    }

    fn remote_page_bytes(&self) -> u64 {
        self.inner.remote_page_bytes()
    }

    fn dump(&self) -> Dump {
        let mut dump = self.inner.dump();
        // Most tiers have none; then the dump is the policy's own.
        if !self.pages.is_empty() {
            let keys = self.order.iter().rev().map(|(_, key)| *key).collect();
            dump.queues.insert(0, ("announced".into(), keys));
        }
        dump
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::{Lru, Planned, RemotePages};
    use alloc::vec;

    fn policy(capacity_bytes: u64) -> Announced {
        let inner = RemotePages::new(Box::new(Lru::new(capacity_bytes)));
        Announced::new(Box::new(Planned::new(Box::new(inner))))
    }

    fn evict(policy: &mut Announced, bytes: u64) -> Vec<u64> {
        let mut victims = Vec::new();
        policy.evict(bytes, &mut |_| true, &mut victims);
        victims.iter().map(|victim| victim.key).collect()
    }

    #[test]
    fn what_is_over_goes_first_and_then_what_is_used_last() {
        let mut policy = policy(100);
        (0..10).for_each(|key| policy.insert(key, 10, Fill::Ahead));
        (0..8).for_each(|key| policy.announce(key, NextUse::At(100 - key)));
        policy.announce(5, NextUse::Over);
        policy.announce(9, NextUse::Over);
        assert_eq!((policy.announced_bytes(), policy.bytes()), (80, 100));
        // 8 and 9 are others: they hold less than their quarter.
        assert_eq!(evict(&mut policy, 30), [5, 0, 1]);
        policy.announce(2, NextUse::At(1));
        assert_eq!(evict(&mut policy, 10), [3]);
        assert_eq!(evict(&mut policy, 100), [4, 6, 7, 2, 8, 9]);
    }

    #[test]
    fn others_keep_a_quarter_as_long_as_they_are_used() {
        let mut policy = policy(100);
        (0..10).for_each(|key| policy.insert(key, 10, Fill::Demand));
        (5..10).for_each(|key| policy.announce(key, NextUse::At(key)));
        assert_eq!(evict(&mut policy, 20), [0, 1], "down to their quarter, and the page that crosses it");
        (10..12).for_each(|key| {
            policy.insert(key, 10, Fill::Ahead);
            policy.announce(key, NextUse::At(key));
        });
        policy.touch(2);
        assert_eq!(evict(&mut policy, 10), [3]);
        assert_eq!(evict(&mut policy, 10), [11]);
        // They are not used while a whole tier of announced pages comes.
        for key in 20..31 {
            policy.insert(key, 10, Fill::Ahead);
            policy.announce(key, NextUse::At(key));
        }
        assert_eq!(evict(&mut policy, 20), [4, 2]);
    }

    #[test]
    fn the_end_of_an_order_returns_pages_as_what_they_were() {
        let mut policy = policy(800);
        policy.insert(1, 10, Fill::Remote);
        policy.insert(2, 10, Fill::Demand);
        assert!(policy.plan(2, 7));
        [1, 2].into_iter().for_each(|key| policy.announce(key, NextUse::At(5)));
        assert_eq!((policy.remote_page_bytes(), policy.planned_bytes()), (0, 0));
        assert!(policy.plan(1, 7), "it needs no other protection");
        [1, 2, 3].into_iter().for_each(|key| policy.announce(key, NextUse::Unknown));
        assert_eq!((policy.remote_page_bytes(), policy.announced_bytes(), policy.len()), (10, 0, 2));
    }

    #[test]
    fn a_page_that_may_not_go_becomes_ordinary() {
        let mut policy = policy(100);
        (0..3).for_each(|key| policy.insert(key, 10, Fill::Demand));
        (0..3).for_each(|key| policy.announce(key, NextUse::At(key)));
        let mut victims = Vec::new();
        assert_eq!(policy.evict(10, &mut |key| key != 2, &mut victims), 10);
        assert_eq!(victims, [Victim { key: 1, bytes: 10 }]);
        assert_eq!((policy.announced_bytes(), policy.bytes()), (10, 20));
        assert_eq!(policy.dump().queues[0].1, vec![0]);
    }
}
