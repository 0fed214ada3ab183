//! SIEVE: one queue, one bit, one hand.
//!
//! Zhang et al., "SIEVE is simpler than LRU" (NSDI 2024). A use sets the page's bit and moves
//! nothing. The hand walks from the oldest page to the newest: it clears the bits it meets and
//! evicts the first page without one, staying where it is rather than going back, so that newcomers
//! are sifted soon and used pages keep their place.

use crate::arena::{Arena, List};
use crate::eviction::{Dump, EvictionKind, EvictionPolicy, Fill, Victim};
use alloc::{vec, vec::Vec};

#[derive(Clone, Debug)]
struct Entry {
    used: bool,
    /// Filled ahead and not read yet: the first touch sets no bit.
    unread: bool,
}

/// One queue in the order of arrival, and a hand.
#[derive(Debug)]
pub struct Sieve {
    arena: Arena<Entry>,
    queue: List,
    /// The page the hand is at; `None`: the oldest.
    hand: Option<u32>,
    capacity_bytes: u64,
}

impl Sieve {
    /// An empty policy for a tier of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { arena: Arena::default(), queue: List::default(), hand: None, capacity_bytes }
    }

    fn take_out(&mut self, slot: u32) -> u32 {
        if self.hand == Some(slot) {
            self.hand = self.queue.after(&self.arena, slot);
        }
        self.queue.unlink(&mut self.arena, slot);
        self.arena.discard(slot)
    }
}

impl EvictionPolicy for Sieve {
    fn kind(&self) -> EvictionKind {
        EvictionKind::Sieve
    }

    fn insert(&mut self, key: u64, bytes: u32, fill: Fill) {
        match self.arena.find(key) {
            Some(slot) => {
                self.queue.resize(&mut self.arena, slot, bytes);
                self.touch(key);
            }
            None => {
                let slot = self.arena.add(key, bytes, Entry { used: false, unread: fill == Fill::Ahead });
                self.queue.push_back(&mut self.arena, slot);
            }
        }
    }

    fn touch(&mut self, key: u64) {
        if let Some(slot) = self.arena.find(key) {
            let entry = &mut self.arena.at_mut(slot).data;
            entry.used |= !core::mem::take(&mut entry.unread);
        }
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
        // Two rounds: one may only clear bits, in the second every page is offered.
        for _ in 0..2 * self.queue.len() {
            let Some(slot) = self.hand.or(self.queue.front()).filter(|_| freed_bytes < want_bytes) else {
                break;
            };
            let key = self.arena.at(slot).key;
            if core::mem::take(&mut self.arena.at_mut(slot).data.used) || !may_evict(key) {
                self.hand = self.queue.after(&self.arena, slot);
                continue;
            }
            self.hand = Some(slot);
            let bytes = self.take_out(slot);
            freed_bytes += u64::from(bytes);
            victims.push(Victim { key, bytes });
        }
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
        self.queue.len()
    }

    fn bytes(&self) -> u64 {
        self.queue.bytes()
    }

    fn dump(&self) -> Dump {
        let hand = self.hand.map(|slot| self.arena.at(slot).key).into_iter().collect();
        Dump { queues: vec![("queue".into(), self.queue.keys(&self.arena)), ("hand".into(), hand)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_keeps_its_place() {
        let mut sieve = Sieve::new(100);
        (0..4).for_each(|key| sieve.insert(key, 10, Fill::Demand));
        [0, 2].into_iter().for_each(|key| sieve.touch(key));
        let mut victims = Vec::new();
        sieve.evict(10, &mut |_| true, &mut victims);
        assert_eq!(victims, [Victim { key: 1, bytes: 10 }]);
        assert_eq!(sieve.dump().queues, [("queue".into(), vec![0, 2, 3]), ("hand".into(), vec![2])]);
        sieve.remove(2);
        sieve.evict(20, &mut |_| true, &mut victims);
        assert_eq!(victims.iter().map(|victim| victim.key).collect::<Vec<_>>(), [1, 3, 0]);
        assert!(sieve.is_empty() && sieve.hand.is_none());
    }
}
