//! Planned pages: fetched because a job will read them, and kept until it has.
//!
//! A page that was prefetched and is thrown out before it is read has cost the PFS a read for
//! nothing, and the task that comes for it reads the PFS once more. So planned pages stay out of
//! the policy's contest until their first touch: one prefetch never pushes out what another has
//! fetched, nor does what is read meanwhile. That promise is bounded in two ways. Together they
//! take at most [`PLANNED_SHARE_PERCENT`] of the capacity; what is beyond is an ordinary page that
//! was read ahead. And each belongs to an order, with whose end it loses the promise.
//!
//! Remote pages ([`super::RemotePages`]) may be planned too: a task is not always sent to the owner
//! of what it reads. While they are, the bound on remote pages does not count them; with their
//! first use, or the request's end, it does again.
//!
//! A wrapper around every policy, as for remote pages: what must not go does not depend on the
//! order of the rest.

use super::{Dump, EvictionKind, EvictionPolicy, Fill, PLANNED_SHARE_PERCENT, Victim};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// A policy and the planned pages beside it.
#[derive(Debug)]
pub struct Planned {
    inner: Box<dyn EvictionPolicy>,
    pages: BTreeMap<u64, Page>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    bytes: u32,
    order: u64,
    remote: bool,
}

impl Planned {
    /// No planned pages yet.
    pub fn new(inner: Box<dyn EvictionPolicy>) -> Self {
        Planned { inner, pages: BTreeMap::new(), bytes: 0 }
    }

    fn share_bytes(&self) -> u64 {
        self.inner.capacity_bytes().saturating_mul(PLANNED_SHARE_PERCENT) / 100
    }

    fn take_out(&mut self, key: u64) -> Option<Page> {
        let page = self.pages.remove(&key)?;
        self.bytes -= u64::from(page.bytes);
        Some(page)
    }

    /// Hands a page to the policy, as not used.
    fn hand_over(&mut self, key: u64, page: Page) {
        let fill = if page.remote { Fill::Remote } else { Fill::Ahead };
        self.inner.insert(key, page.bytes, fill);
    }

    fn let_go(&mut self, keys: Vec<u64>) {
        for key in keys {
            if let Some(page) = self.take_out(key) {
                self.hand_over(key, page);
            }
        }
    }
}

impl EvictionPolicy for Planned {
    fn kind(&self) -> EvictionKind {
        self.inner.kind()
    }

    fn insert(&mut self, key: u64, bytes: u32, fill: Fill) {
        self.take_out(key);
        self.inner.insert(key, bytes, fill);
    }

    fn touch(&mut self, key: u64) {
        match self.take_out(key) {
            // Its first use, for which it was fetched.
            Some(page) if page.remote => {
                self.hand_over(key, page);
                self.inner.touch(key);
            }
            Some(page) => self.inner.insert(key, page.bytes, Fill::Demand),
            None => self.inner.touch(key),
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
        self.inner.evict(want_bytes, may_evict, victims)
    }

    fn plan(&mut self, key: u64, order: u64) -> bool {
        if let Some(page) = self.pages.get_mut(&key) {
            page.order = order;
            return true;
        }
        let remote_bytes = self.inner.remote_page_bytes();
        let Some(bytes) = self.inner.remove(key) else { return false };
        let page = Page { bytes, order, remote: self.inner.remote_page_bytes() < remote_bytes };
        if self.bytes + u64::from(bytes) > self.share_bytes() {
            self.hand_over(key, page);
            return false;
        }
        self.bytes += u64::from(bytes);
        self.pages.insert(key, page);
        true
    }

    fn unplan(&mut self, orders: Option<&BTreeSet<u64>>) {
        let of = |page: &Page| orders.is_none_or(|orders| orders.contains(&page.order));
        let keys = self.pages.iter().filter(|(_, page)| of(page)).map(|(key, _)| *key).collect();
        self.let_go(keys);
    }

    fn planned_bytes(&self) -> u64 {
        self.bytes
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.inner.set_capacity(capacity_bytes);
        let mut over = self.bytes.saturating_sub(self.share_bytes());
        // A controller may call this a hundred times a second.
        if over == 0 {
            return;
        }
        let mut keys = Vec::new();
        // The latest orders are those that are read last.
        let mut latest: Vec<_> =
            self.pages.iter().map(|(key, page)| (page.order, *key, page.bytes)).collect();
        latest.sort_unstable();
        while let Some((_, key, bytes)) = latest.pop().filter(|_| over > 0) {
            over = over.saturating_sub(u64::from(bytes));
            keys.push(key);
        }
        self.let_go(keys);
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
            dump.queues.push(("planned".into(), self.pages.keys().copied().collect()));
        }
        dump
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::{Lru, RemotePages};
    use proptest::prelude::*;

    fn policy(capacity_bytes: u64) -> Planned {
        Planned::new(Box::new(Lru::new(capacity_bytes)))
    }

    fn evict_all(policy: &mut Planned) -> Vec<u64> {
        let mut victims = Vec::new();
        policy.evict(u64::MAX, &mut |_| true, &mut victims);
        victims.iter().map(|v| v.key).collect()
    }

    #[test]
    fn planned_pages_stay_until_they_are_used_or_their_order_ends() {
        let mut policy = policy(100);
        (0..5).for_each(|key| policy.insert(key, 10, Fill::Ahead));
        assert!(policy.plan(1, 7) && policy.plan(2, 7) && policy.plan(3, 8));
        assert!(!policy.plan(99, 7), "not resident");
        assert_eq!(evict_all(&mut policy), [0, 4]);
        policy.touch(1);
        assert_eq!((policy.planned_bytes(), policy.bytes(), evict_all(&mut policy)), (20, 30, [1].into()));
        // The later order is the one that counts.
        assert!(policy.plan(2, 8));
        policy.unplan(Some(&BTreeSet::from([7])));
        assert!(evict_all(&mut policy).is_empty());
        policy.unplan(Some(&BTreeSet::from([8])));
        assert_eq!((evict_all(&mut policy), policy.len()), ([2, 3].into(), 0));
    }

    #[test]
    fn the_share_is_kept_when_planning_and_when_shrinking() {
        let mut policy = policy(100);
        (0..10).for_each(|key| policy.insert(key, 10, Fill::Ahead));
        let planned: Vec<u64> = (0..10).filter(|key| policy.plan(*key, *key)).collect();
        assert_eq!(planned, [0, 1, 2, 3, 4, 5, 6]);
        policy.set_capacity(40);
        assert_eq!((policy.planned_bytes(), policy.bytes()), (30, 100));
        assert_eq!(evict_all(&mut policy).len(), 7);
        assert!([0, 1, 2].iter().all(|key| policy.contains(*key)), "what is read first is kept");
    }

    #[test]
    fn a_planned_remote_page_is_protected_until_its_use_only() {
        let mut policy = Planned::new(Box::new(RemotePages::new(Box::new(Lru::new(100)))));
        policy.insert(0, 10, Fill::Demand);
        (1..5).for_each(|key| policy.insert(key, 10, Fill::Remote));
        assert!(policy.plan(1, 7) && policy.plan(2, 7) && policy.plan(3, 8));
        assert_eq!(
            (policy.remote_page_bytes(), policy.planned_bytes()),
            (10, 30),
            "no remote pages for the bound on them"
        );
        let mut victims = Vec::new();
        policy.evict(10, &mut |_| true, &mut victims);
        assert_eq!(victims.pop().map(|v| v.key), Some(0), "an unread remote page goes after what is ours");
        // Read once: first to go. Its order has ended without a use: a remote page that nobody has
        // read.
        policy.touch(1);
        policy.unplan(Some(&BTreeSet::from([8])));
        assert_eq!((policy.remote_page_bytes(), policy.planned_bytes()), (30, 10));
        assert_eq!(evict_all(&mut policy), [1, 4, 3]);
        assert!(policy.contains(2) && policy.len() == 1);
    }

    proptest! {
        /// Whatever is done, the books balance, the share is kept, and no planned page is ever a
        /// victim.
        #[test]
        fn books_balance(ops in prop::collection::vec((0u8..7, 0u64..20, 0u64..4), 0..300)) {
            let mut policy = policy(1000);
            let mut planned: BTreeMap<u64, u64> = BTreeMap::new();
            for (op, key, order) in ops {
                match op {
                    0 | 1 => {
                        policy.insert(key, 100, Fill::Ahead);
                        planned.remove(&key);
                    }
                    2 | 3 => {
                        if policy.plan(key, order) {
                            planned.insert(key, order);
                        }
                    }
                    4 => {
                        policy.touch(key);
                        planned.remove(&key);
                    }
                    5 => {
                        policy.unplan(Some(&BTreeSet::from([order])));
                        planned.retain(|_, o| *o != order);
                    }
                    _ => {
                        let mut victims = Vec::new();
                        policy.evict(key * 50, &mut |_| true, &mut victims);
                        prop_assert!(victims.iter().all(|v| !planned.contains_key(&v.key)));
                    }
                }
                prop_assert_eq!(policy.planned_bytes(), planned.len() as u64 * 100);
                prop_assert!(policy.planned_bytes() <= 750);
                prop_assert_eq!(policy.bytes(), policy.len() as u64 * 100);
                prop_assert!(planned.keys().all(|key| policy.contains(*key)));
            }
        }
    }
}
