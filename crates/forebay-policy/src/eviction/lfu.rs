//! Least frequently used.
//!
//! The policy of DynIMS (Xuan et al., DynIMS: A Dynamic Memory Controller for In-memory Storage on
//! HPC Systems): the page used least often since it came in leaves first; among equals the one
//! whose last use is longest ago. A page that has left is forgotten: it starts at one use again.
//!
//! Pages with the same count share a bucket, and the buckets are linked by ascending count, so that
//! a use moves a page from its bucket to the next one in O(1). A heap would need O(log n) and
//! scatter its writes.
//!
//! Plain LFU never lets go of what was popular once. [`Lfu::with_ageing`] halves all counts after
//! so many counted uses; off by default, because the baseline is the paper's. Halving touches every
//! page: O(n) once in `ageing_uses`.

use crate::arena::{Arena, List, NIL};
use crate::eviction::{Dump, EvictionKind, EvictionPolicy, Fill, Victim};
use alloc::{format, vec::Vec};

/// Pages leave in the order of their use counts.
#[derive(Debug)]
pub struct Lfu {
    arena: Arena<Entry>,
    buckets: Vec<Bucket>,
    free: Vec<u32>,
    /// The bucket with the lowest count.
    lowest: u32,
    bytes: u64,
    capacity_bytes: u64,
    ageing_uses: Option<u64>,
    uses_since_ageing: u64,
    refused: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    bucket: u32,
    /// Filled ahead and not read yet: the first touch is not counted.
    unread: bool,
}

#[derive(Debug)]
struct Bucket {
    uses: u32,
    pages: List,
    lower: u32,
    higher: u32,
}

impl Lfu {
    /// Counts that never age.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            arena: Arena::default(),
            buckets: Vec::new(),
            free: Vec::new(),
            lowest: NIL,
            bytes: 0,
            capacity_bytes,
            ageing_uses: None,
            uses_since_ageing: 0,
            refused: Vec::new(),
        }
    }

    /// Halves all counts each `ageing_uses` counted uses.
    pub fn with_ageing(capacity_bytes: u64, ageing_uses: u64) -> Self {
        Self { ageing_uses: Some(ageing_uses.max(1)), ..Self::new(capacity_bytes) }
    }

    /// The number of uses counted for a resident page.
    pub fn uses(&self, key: u64) -> Option<u32> {
        self.arena.find(key).map(|slot| self.buckets[self.arena.at(slot).data.bucket as usize].uses)
    }

    /// The bucket for `uses` right above `lower` (`NIL`: at the low end), made if there is none.
    fn bucket_above(&mut self, lower: u32, uses: u32) -> u32 {
        let higher = if lower == NIL { self.lowest } else { self.buckets[lower as usize].higher };
        if higher != NIL && self.buckets[higher as usize].uses == uses {
            return higher;
        }
        let bucket = Bucket { uses, pages: List::default(), lower, higher };
        let index = match self.free.pop() {
            Some(index) => {
                self.buckets[index as usize] = bucket;
                index
            }
            None => {
                self.buckets.push(bucket);
                (self.buckets.len() - 1) as u32
            }
        };
        match lower {
            NIL => self.lowest = index,
            lower => self.buckets[lower as usize].higher = index,
        }
        if higher != NIL {
            self.buckets[higher as usize].lower = index;
        }
        index
    }

    fn drop_if_empty(&mut self, index: u32) {
        let bucket = &self.buckets[index as usize];
        if !bucket.pages.is_empty() {
            return;
        }
        let (lower, higher) = (bucket.lower, bucket.higher);
        match lower {
            NIL => self.lowest = higher,
            lower => self.buckets[lower as usize].higher = higher,
        }
        if higher != NIL {
            self.buckets[higher as usize].lower = lower;
        }
        self.free.push(index);
    }

    /// Counts one use.
    fn promote(&mut self, slot: u32) {
        let from = self.arena.at(slot).data.bucket;
        let uses = self.buckets[from as usize].uses.saturating_add(1);
        if uses == self.buckets[from as usize].uses {
            return;
        }
        let to = self.bucket_above(from, uses);
        self.buckets[from as usize].pages.unlink(&mut self.arena, slot);
        self.buckets[to as usize].pages.push_back(&mut self.arena, slot);
        self.arena.at_mut(slot).data.bucket = to;
        self.drop_if_empty(from);
    }

    fn take_out(&mut self, slot: u32) -> u32 {
        let index = self.arena.at(slot).data.bucket;
        self.buckets[index as usize].pages.unlink(&mut self.arena, slot);
        self.drop_if_empty(index);
        let bytes = self.arena.discard(slot);
        self.bytes -= u64::from(bytes);
        bytes
    }

    /// The entry after `slot` in the order of eviction.
    fn following(&self, slot: u32) -> Option<u32> {
        let bucket = &self.buckets[self.arena.at(slot).data.bucket as usize];
        bucket.pages.after(&self.arena, slot).or_else(|| match bucket.higher {
            NIL => None,
            higher => self.buckets[higher as usize].pages.front(),
        })
    }

    fn age_if_due(&mut self) {
        self.uses_since_ageing += 1;
        if self.ageing_uses.is_none_or(|due| self.uses_since_ageing < due) {
            return;
        }
        self.uses_since_ageing = 0;
        let mut index = self.lowest;
        while index != NIL {
            self.buckets[index as usize].uses = (self.buckets[index as usize].uses / 2).max(1);
            let lower = self.buckets[index as usize].lower;
            let higher = self.buckets[index as usize].higher;
            if lower != NIL && self.buckets[lower as usize].uses == self.buckets[index as usize].uses {
                self.merge(lower, index);
            }
            index = higher;
        }
    }

    /// Puts the pages of `from` behind those of `into`.
    fn merge(&mut self, into: u32, from: u32) {
        let pages = core::mem::take(&mut self.buckets[from as usize].pages);
        let mut next = pages.front();
        while let Some(slot) = next {
            self.arena.at_mut(slot).data.bucket = into;
            next = pages.after(&self.arena, slot);
        }
        self.buckets[into as usize].pages.append(&mut self.arena, pages);
        self.drop_if_empty(from);
    }
}

impl EvictionPolicy for Lfu {
    fn kind(&self) -> EvictionKind {
        EvictionKind::Lfu
    }

    fn insert(&mut self, key: u64, bytes: u32, fill: Fill) {
        if let Some(slot) = self.arena.find(key) {
            let bucket = self.arena.at(slot).data.bucket;
            self.bytes = self.bytes - u64::from(self.arena.at(slot).bytes) + u64::from(bytes);
            self.buckets[bucket as usize].pages.resize(&mut self.arena, slot, bytes);
            return self.touch(key);
        }
        let bucket = self.bucket_above(NIL, 1);
        let slot = self.arena.add(key, bytes, Entry { bucket, unread: fill == Fill::Ahead });
        self.buckets[bucket as usize].pages.push_back(&mut self.arena, slot);
        self.bytes += u64::from(bytes);
        self.age_if_due();
    }

    fn touch(&mut self, key: u64) {
        let Some(slot) = self.arena.find(key) else { return };
        if core::mem::take(&mut self.arena.at_mut(slot).data.unread) {
            let bucket = self.arena.at(slot).data.bucket;
            return self.buckets[bucket as usize].pages.move_to_back(&mut self.arena, slot);
        }
        self.promote(slot);
        self.age_if_due();
    }

    fn remove(&mut self, key: u64) -> Option<u32> {
        self.arena.find(key).map(|slot| self.take_out(slot))
    }

    fn evict(
        &mut self,
        want_bytes: u64,
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        let mut freed_bytes = 0;
        let mut refused = core::mem::take(&mut self.refused);
        let mut next = match self.lowest {
            NIL => None,
            lowest => self.buckets[lowest as usize].pages.front(),
        };
        while let Some(slot) = next.filter(|_| freed_bytes < want_bytes) {
            next = self.following(slot);
            let key = self.arena.at(slot).key;
            if may_evict(key) {
                let bytes = self.take_out(slot);
                freed_bytes += u64::from(bytes);
                victims.push(Victim { key, bytes });
            } else {
                refused.push(slot);
            }
        }
        // Counted as used, else every later call would walk over the same pinned pages again.
        refused.drain(..).for_each(|slot| self.promote(slot));
        self.refused = refused;
        freed_bytes
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn contains(&self, key: u64) -> bool {
        self.arena.find(key).is_some()
    }

    fn len(&self) -> usize {
        self.arena.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn dump(&self) -> Dump {
        let mut queues = Vec::new();
        let mut index = self.lowest;
        while index != NIL {
            let bucket = &self.buckets[index as usize];
            queues.push((format!("uses {}", bucket.uses), bucket.pages.keys(&self.arena)));
            index = bucket.higher;
        }
        Dump { queues }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::String, vec};

    fn queues(lfu: &Lfu) -> Vec<(&'static str, Vec<u64>)> {
        let name =
            |uses: String| ["uses 1", "uses 2", "uses 3", "uses 4"].into_iter().find(|n| *n == uses).unwrap();
        lfu.dump().queues.into_iter().map(|(uses, keys)| (name(uses), keys)).collect()
    }

    #[test]
    fn buckets_follow_the_counts() {
        let mut lfu = Lfu::new(100);
        (0..4).for_each(|key| lfu.insert(key, 10, Fill::Demand));
        [1, 1, 3, 0, 1, 77].into_iter().for_each(|key| lfu.touch(key));
        assert_eq!(queues(&lfu), [("uses 1", vec![2]), ("uses 2", vec![3, 0]), ("uses 4", vec![1])]);
        let mut victims = Vec::new();
        assert_eq!(lfu.evict(11, &mut |key| key != 2, &mut victims), 20);
        assert_eq!(victims.iter().map(|victim| victim.key).collect::<Vec<_>>(), [3, 0]);
        assert_eq!(queues(&lfu), [("uses 2", vec![2]), ("uses 4", vec![1])], "a refusal counts as a use");
        assert_eq!((lfu.remove(1), lfu.len(), lfu.bytes()), (Some(10), 1, 10));
    }

    #[test]
    fn first_read_of_a_page_filled_ahead_is_no_reuse() {
        let mut lfu = Lfu::new(100);
        (0..2).for_each(|key| lfu.insert(key, 10, Fill::Ahead));
        [0, 1, 1].into_iter().for_each(|key| lfu.touch(key));
        assert_eq!((lfu.uses(0), lfu.uses(1)), (Some(1), Some(2)));
    }

    #[test]
    fn ageing_halves_and_keeps_order() {
        let mut lfu = Lfu::with_ageing(100, 9);
        (0..3).for_each(|key| lfu.insert(key, 10, Fill::Demand));
        [0, 0, 0, 1, 1, 2].into_iter().for_each(|key| lfu.touch(key));
        assert_eq!(queues(&lfu), [("uses 1", vec![2, 1]), ("uses 2", vec![0])]);
    }
}
