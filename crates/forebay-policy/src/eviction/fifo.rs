//! First in, first out.
//!
//! Uses are ignored. It is the bottom line of every comparison, and the cheapest order there is for
//! data that each job reads once.

use super::{Dump, EvictionKind, EvictionPolicy, Fill, Victim};
use crate::arena::{Arena, List};
use alloc::{vec, vec::Vec};

/// Pages leave in the order in which they came.
#[derive(Debug)]
pub struct Fifo {
    arena: Arena<()>,
    queue: List,
    capacity_bytes: u64,
}

impl Fifo {
    /// An empty queue.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { arena: Arena::default(), queue: List::default(), capacity_bytes }
    }
}

impl EvictionPolicy for Fifo {
    fn kind(&self) -> EvictionKind {
        EvictionKind::Fifo
    }

    fn insert(&mut self, key: u64, bytes: u32, _fill: Fill) {
        match self.arena.find(key) {
            Some(slot) => self.queue.resize(&mut self.arena, slot, bytes),
            None => {
                let slot = self.arena.add(key, bytes, ());
                self.queue.push_back(&mut self.arena, slot);
            }
        }
    }

    fn touch(&mut self, _key: u64) {}

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
    fn ignores_use() {
        let mut fifo = Fifo::new(100);
        (0..3).for_each(|key| fifo.insert(key, 10, Fill::Demand));
        fifo.touch(0);
        let mut victims = Vec::new();
        assert_eq!(fifo.evict(1, &mut |_| true, &mut victims), 10);
        assert_eq!(victims, [Victim { key: 0, bytes: 10 }]);
        assert_eq!(fifo.dump().queues, [("queue".into(), vec![1, 2])]);
    }
}
