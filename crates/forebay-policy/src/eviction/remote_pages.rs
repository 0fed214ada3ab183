//! Remote pages: they belong to another node of the cluster and are here because a program here has
//! read them.
//!
//! Losing a remote page costs a transfer from its owner's memory, losing a page of one's own a read
//! of the PFS. So remote pages are the first to go, whatever the policy's order of the rest, and
//! they never take part in its contest. A remote page that is used a second time counts as an own
//! page: it enters the policy as any page does (a hot page may well be in the memory of every node
//! that reads it).
//!
//! Remote pages that have not been read yet are the read-ahead of a reader at work; evicting them
//! for each new page would fetch them twice. So up to [`UNREAD_DIVISOR`]th of the capacity they go
//! last instead of first.
//!
//! One wrapper around every policy, rather than a case in each: what "first" means does not depend
//! on the order of the rest, and the policies stay as their papers describe them.

use super::{Dump, EvictionPolicy, Fill, Victim};
use crate::arena::{Arena, List};
use alloc::{boxed::Box, vec::Vec};

/// Remote pages not yet read may hold this part of the capacity, an eighth, before they are the
/// first to go.
const UNREAD_DIVISOR: u64 = 8;

/// A policy and the remote pages beside it.
#[derive(Debug)]
pub struct RemotePages {
    inner: Box<dyn EvictionPolicy>,
    /// `true`: read once.
    arena: Arena<bool>,
    /// Pages not read yet, in the order of arrival.
    unread: List,
    /// Pages read once, in the order of that use.
    read: List,
}

impl RemotePages {
    /// A policy without remote pages.
    pub fn new(inner: Box<dyn EvictionPolicy>) -> Self {
        RemotePages { inner, arena: Arena::default(), unread: List::default(), read: List::default() }
    }

    fn take_out(&mut self, slot: u32) -> u32 {
        let list = if self.arena.at(slot).data { &mut self.read } else { &mut self.unread };
        list.unlink(&mut self.arena, slot);
        self.arena.discard(slot)
    }

    /// Turns a remote page into an ordinary page.
    fn settle(&mut self, slot: u32) {
        let key = self.arena.at(slot).key;
        let bytes = self.take_out(slot);
        self.inner.insert(key, bytes, Fill::Demand);
    }

    /// Evicts remote pages from the front of one list until `want_bytes` are covered or no more
    /// than `keep_bytes` are left. One that is refused is in use here: it settles, so that no later
    /// call meets it again.
    fn evict_remote_pages(
        &mut self,
        read: bool,
        (want_bytes, keep_bytes): (u64, u64),
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        let mut freed_bytes = 0;
        loop {
            let list = if read { &self.read } else { &self.unread };
            let Some(slot) = list.front().filter(|_| freed_bytes < want_bytes && list.bytes() > keep_bytes)
            else {
                return freed_bytes;
            };
            let key = self.arena.at(slot).key;
            if may_evict(key) {
                let bytes = self.take_out(slot);
                freed_bytes += u64::from(bytes);
                victims.push(Victim { key, bytes });
            } else {
                self.settle(slot);
            }
        }
    }
}

impl EvictionPolicy for RemotePages {
    fn insert(&mut self, key: u64, bytes: u32, fill: Fill) {
        if let Some(slot) = self.arena.find(key) {
            let list = if self.arena.at(slot).data { &mut self.read } else { &mut self.unread };
            list.resize(&mut self.arena, slot, bytes);
            return self.touch(key);
        }
        if fill != Fill::Remote || self.inner.contains(key) {
            let fill = if fill == Fill::Remote { Fill::Demand } else { fill };
            return self.inner.insert(key, bytes, fill);
        }
        let slot = self.arena.add(key, bytes, false);
        self.unread.push_back(&mut self.arena, slot);
    }

    fn touch(&mut self, key: u64) {
        match self.arena.find(key) {
            None => self.inner.touch(key),
            Some(slot) if self.arena.at(slot).data => self.settle(slot),
            Some(slot) => {
                self.unread.unlink(&mut self.arena, slot);
                self.arena.at_mut(slot).data = true;
                self.read.push_back(&mut self.arena, slot);
            }
        }
    }

    fn remove(&mut self, key: u64) -> Option<u32> {
        match self.arena.find(key) {
            Some(slot) => Some(self.take_out(slot)),
            None => self.inner.remove(key),
        }
    }

    fn evict(
        &mut self,
        want_bytes: u64,
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        let unread_bytes = self.inner.capacity_bytes() / UNREAD_DIVISOR;
        let mut freed_bytes = self.evict_remote_pages(true, (want_bytes, 0), may_evict, victims);
        let left = want_bytes.saturating_sub(freed_bytes);
        freed_bytes += self.evict_remote_pages(false, (left, unread_bytes), may_evict, victims);
        if freed_bytes < want_bytes {
            freed_bytes += self.inner.evict(want_bytes - freed_bytes, may_evict, victims);
        }
        let left = want_bytes.saturating_sub(freed_bytes);
        freed_bytes + self.evict_remote_pages(false, (left, 0), may_evict, victims)
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.inner.set_capacity(capacity_bytes);
    }

    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn contains(&self, key: u64) -> bool {
        self.arena.find(key).is_some() || self.inner.contains(key)
    }

    fn len(&self) -> usize {
        self.arena.len() + self.inner.len()
    }

    fn bytes(&self) -> u64 {
        self.remote_page_bytes() + self.inner.bytes()
    }

    fn remote_page_bytes(&self) -> u64 {
        self.read.bytes() + self.unread.bytes()
    }

    fn dump(&self) -> Dump {
        let mut dump = self.inner.dump();
        // Most tiers have none; then the dump is the policy's own.
        if self.arena.len() > 0 {
            dump.queues.insert(0, ("remote pages unread".into(), self.unread.keys(&self.arena)));
            dump.queues.insert(0, ("remote pages read".into(), self.read.keys(&self.arena)));
        }
        dump
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::Lru;
    use alloc::{boxed::Box, vec};

    fn policy(capacity_bytes: u64) -> RemotePages {
        RemotePages::new(Box::new(Lru::new(capacity_bytes)))
    }

    fn keys(victims: &[Victim]) -> Vec<u64> {
        victims.iter().map(|v| v.key).collect()
    }

    #[test]
    fn remote_pages_go_first_and_a_second_use_makes_them_ordinary() {
        let mut policy = policy(800);
        (0..3).for_each(|key| policy.insert(key, 10, Fill::Demand));
        (10..14).for_each(|key| policy.insert(key, 10, Fill::Remote));
        [10, 11, 12, 11].into_iter().for_each(|key| policy.touch(key));
        assert_eq!((policy.remote_page_bytes(), policy.bytes()), (30, 70));
        let mut victims = Vec::new();
        assert_eq!(policy.evict(30, &mut |_| true, &mut victims), 30);
        // The two that were read once, then the policy's own oldest; the one not yet read stays.
        assert_eq!(keys(&victims), [10, 12, 0]);
        assert_eq!(policy.evict(40, &mut |_| true, &mut victims), 40);
        assert_eq!(keys(&victims[3..]), [1, 2, 11, 13]);
        assert!(policy.is_empty());
    }

    #[test]
    fn unread_remote_pages_do_not_evict_own_pages_for_long() {
        let mut policy = policy(800);
        (0..3).for_each(|key| policy.insert(key, 10, Fill::Demand));
        (10..30).for_each(|key| policy.insert(key, 10, Fill::Remote));
        let mut victims = Vec::new();
        // An eighth of the capacity is 100 bytes: ten of the twenty go before anything of ours.
        policy.evict(110, &mut |_| true, &mut victims);
        assert_eq!(keys(&victims), (10..20).chain([0]).collect::<Vec<_>>());
    }

    #[test]
    fn a_refused_remote_page_settles() {
        let mut policy = policy(800);
        [1, 2].into_iter().for_each(|key| policy.insert(key, 10, Fill::Remote));
        [1, 2].into_iter().for_each(|key| policy.touch(key));
        let mut victims = Vec::new();
        assert_eq!(policy.evict(20, &mut |key| key != 1, &mut victims), 10);
        assert_eq!((keys(&victims), policy.remote_page_bytes(), policy.bytes()), (vec![2], 0, 10));
        assert_eq!(policy.remove(1), Some(10));
    }
}
