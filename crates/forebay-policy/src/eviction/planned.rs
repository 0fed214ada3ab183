//! Planned pages: fetched because a job will read them, and kept until it has.
//!
//! A page that was prefetched and is evicted before it is read has cost the PFS a read for nothing,
//! and the task that needs it reads the PFS once more. So planned pages stay out of the policy's
//! contest until their first touch: one prefetch never pushes out what another has fetched, nor
//! does what is read meanwhile. That promise is bounded in two ways. Together they take at most
//! [`PLANNED_SHARE_PERCENT`] of the capacity; what is beyond is an ordinary page that was read
//! ahead. And each belongs to a request, at whose end it loses the promise.
//!
//! A tier that has to become smaller breaks the promise when nothing else can be evicted, for the
//! pages that will be read last ([`EvictionPolicy::unplan_latest`]).
//!
//! Remote pages ([`super::RemotePages`]) may be planned too: a task is not always sent to the owner
//! of what it reads. While they are planned, the bound on remote pages does not count them; after
//! their first use, or the request's end, it does again.
//!
//! A wrapper around every policy, as for remote pages: what must not go does not depend on the
//! order of the rest.

use super::{Dump, EvictionPolicy, Fill, PLANNED_SHARE_PERCENT, Victim};
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

    fn unplan_latest(&mut self, bytes: u64) -> u64 {
        // A controller may set the capacity a hundred times per second.
        if bytes == 0 || self.pages.is_empty() {
            return 0;
        }
        let mut keys = Vec::new();
        // The latest requests are those that are read last.
        let mut latest: Vec<_> =
            self.pages.iter().map(|(key, page)| (page.order, *key, page.bytes)).collect();
        latest.sort_unstable();
        let mut found = 0;
        while let Some((_, key, bytes)) = latest.pop().filter(|_| found < bytes) {
            found += u64::from(bytes);
            keys.push(key);
        }
        self.let_go(keys);
        found
    }

    fn planned_bytes(&self) -> u64 {
        self.bytes
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.inner.set_capacity(capacity_bytes);
        self.unplan_latest(self.bytes.saturating_sub(self.share_bytes()));
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

    impl Planned {
        fn is_planned(&self, key: u64) -> bool {
            self.pages.contains_key(&key)
        }
    }

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
        // The later request counts.
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
    fn the_latest_planned_pages_go_when_nothing_else_is_left() {
        let mut policy = policy(100);
        (0..5).for_each(|key| policy.insert(key, 10, Fill::Ahead));
        // Page 0 is read last, and page 4 is not planned.
        [(0, 9), (1, 7), (2, 8), (3, 8)].iter().for_each(|(key, order)| assert!(policy.plan(*key, *order)));
        assert_eq!((evict_all(&mut policy), policy.planned_bytes()), (vec![4], 40));
        assert_eq!((policy.unplan_latest(0), policy.planned_bytes()), (0, 40));
        assert_eq!((policy.unplan_latest(11), evict_all(&mut policy)), (20, vec![0, 3]));
        assert_eq!((policy.unplan_latest(u64::MAX), policy.planned_bytes()), (20, 0));
        assert_eq!((evict_all(&mut policy).len(), policy.unplan_latest(1)), (2, 0));
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
        // Read once: first to go. The other's request has ended without a use: a remote page that
        // was never read.
        policy.touch(1);
        policy.unplan(Some(&BTreeSet::from([8])));
        assert_eq!((policy.remote_page_bytes(), policy.planned_bytes()), (30, 10));
        assert_eq!(evict_all(&mut policy), [1, 4, 3]);
        assert!(policy.contains(2) && policy.len() == 1);
    }

    proptest! {
        /// A tier that shrinks as the agent does it is within its capacity, or only what is refused
        /// is left; and no planned page goes while a later one that may go stays.
        #[test]
        fn a_smaller_tier_keeps_what_is_read_first(
            pages in prop::collection::vec((0u8..4, 0u64..5, 0u8..4), 1..40),
            steps in prop::collection::vec(0u64..4500, 1..5),
        ) {
            let mut policy = Planned::new(Box::new(RemotePages::new(Box::new(Lru::new(4000)))));
            let mut orders = BTreeMap::new();
            let mut pinned = BTreeSet::new();
            for (key, (kind, order, pin)) in (0..).zip(pages) {
                policy.insert(key, 100, if kind == 3 { Fill::Remote } else { Fill::Ahead });
                if kind > 0 && policy.plan(key, order) {
                    orders.insert(key, order);
                }
                if pin == 0 {
                    pinned.insert(key);
                }
            }
            for capacity in steps {
                policy.set_capacity(capacity);
                let (mut victims, mut left) = (Vec::new(), policy.bytes().saturating_sub(capacity));
                loop {
                    left -= policy.evict(left, &mut |key| !pinned.contains(&key), &mut victims).min(left);
                    if left == 0 || policy.unplan_latest(left) == 0 {
                        break;
                    }
                }
                let may_go = |key: &u64| policy.contains(*key) && !pinned.contains(key);
                let stay: Vec<u64> = (0..40).filter(may_go).collect();
                prop_assert!(policy.bytes() <= capacity || stay.is_empty());
                let gone = victims.iter().filter_map(|victim| orders.get(&victim.key)).min();
                let kept = stay.iter().filter(|key| policy.is_planned(**key)).filter_map(|key| orders.get(key));
                prop_assert!(gone.is_none_or(|gone| kept.max().is_none_or(|kept| kept <= gone)));
            }
        }

        /// After any operations the books balance, the share is kept, and no planned page is ever a
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
