//! Least recently used.
//!
//! Good when recently used pages are used again; on a loop larger than the tier it evicts every
//! page just before its next use and hits nothing, and one long scan empties it. Kept as the
//! papers' baseline.

use super::{Dump, EvictionPolicy, Fill, Victim};
use crate::arena::{Arena, List};
use alloc::{vec, vec::Vec};

/// Pages leave in the order of their last use.
#[derive(Debug)]
pub struct Lru {
    arena: Arena<()>,
    queue: List,
    capacity_bytes: u64,
}

impl Lru {
    /// An empty order.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { arena: Arena::default(), queue: List::default(), capacity_bytes }
    }
}

impl EvictionPolicy for Lru {
    fn insert(&mut self, key: u64, bytes: u32, _fill: Fill) {
        match self.arena.find(key) {
            Some(slot) => {
                self.queue.resize(&mut self.arena, slot, bytes);
                self.queue.move_to_back(&mut self.arena, slot);
            }
            None => {
                let slot = self.arena.add(key, bytes, ());
                self.queue.push_back(&mut self.arena, slot);
            }
        }
    }

    fn touch(&mut self, key: u64) {
        if let Some(slot) = self.arena.find(key) {
            self.queue.move_to_back(&mut self.arena, slot);
        }
    }

    fn remove(&mut self, key: u64) -> Option<u32> {
        let slot = self.arena.find(key)?;
        self.queue.unlink(&mut self.arena, slot);
        Some(self.arena.discard(slot))
    }

    fn evict(
        &mut self,
        want_bytes: u64,
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        self.queue.evict_front(&mut self.arena, want_bytes, may_evict, victims)
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
        self.queue.len()
    }

    fn bytes(&self) -> u64 {
        self.queue.bytes()
    }

    fn dump(&self) -> Dump {
        Dump { queues: vec![("queue".into(), self.queue.keys(&self.arena))] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_saves_and_refusal_postpones() {
        let mut lru = Lru::new(100);
        (0..5).for_each(|key| lru.insert(key, 10, Fill::Demand));
        lru.touch(0);
        lru.touch(77);
        let mut victims = Vec::new();
        assert_eq!(lru.evict(15, &mut |key| key != 1, &mut victims), 20);
        assert_eq!(victims, [Victim { key: 2, bytes: 10 }, Victim { key: 3, bytes: 10 }]);
        assert_eq!(lru.dump().queues, [("queue".into(), vec![4, 0, 1])]);
    }
}
