//! S3-FIFO: three first-in-first-out queues.
//!
//! Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023). Newcomers enter the
//! *small* queue (10 % of the bytes); who was used twice by the time it reaches the front moves to
//! the *main* queue, everyone else leaves and is remembered in the *ghost* queue, and enters the
//! main queue directly if it comes back soon. At the front of the main queue a page that was used
//! goes around again, with one use less. A use only raises a counter of two bits: with one
//! exclusive owner that spares no lock here, but it is the cheapest scan-resistant policy to run.

use crate::arena::{Arena, List};
use crate::eviction::{Dump, EvictionKind, EvictionPolicy, Fill, Victim};
use alloc::{vec, vec::Vec};

/// The paper's share of the small queue, in percent.
const SMALL_PERCENT: u64 = 10;
/// The paper's cap of the use counter.
const MAX_USES: u8 = 3;
/// Uses that carry a page from the small to the main queue.
const PROMOTE_USES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Small,
    Main,
    Ghost,
}

#[derive(Clone, Debug)]
struct Entry {
    place: Place,
    uses: u8,
    /// Filled ahead and not read yet: the first touch is not counted.
    unread: bool,
}

/// Three queues; see the head of the file.
#[derive(Debug)]
pub struct S3Fifo {
    arena: Arena<Entry>,
    small: List,
    main: List,
    ghosts: List,
    capacity_bytes: u64,
}

impl S3Fifo {
    /// An empty policy for a tier of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            arena: Arena::default(),
            small: List::default(),
            main: List::default(),
            ghosts: List::default(),
            capacity_bytes,
        }
    }

    fn queue(&mut self, place: Place) -> (&mut List, &mut Arena<Entry>) {
        let queue = match place {
            Place::Small => &mut self.small,
            Place::Main => &mut self.main,
            Place::Ghost => &mut self.ghosts,
        };
        (queue, &mut self.arena)
    }

    fn unlink(&mut self, slot: u32) {
        let (queue, arena) = self.queue(self.arena.at(slot).data.place);
        queue.unlink(arena, slot);
    }

    fn move_to(&mut self, slot: u32, place: Place, uses: u8) {
        self.unlink(slot);
        let entry = &mut self.arena.at_mut(slot).data;
        (entry.place, entry.uses) = (place, uses);
        let (queue, arena) = self.queue(place);
        queue.push_back(arena, slot);
    }

    fn resident(&self, key: u64) -> Option<u32> {
        self.arena.find(key).filter(|&slot| self.arena.at(slot).data.place != Place::Ghost)
    }

    /// The paper bounds the ghosts by the number of pages in the main queue; a small floor lets a
    /// small tier start.
    fn bound_ghosts(&mut self) {
        while self.ghosts.len() > self.main.len().max(64) {
            let Some(slot) = self.ghosts.front() else { return };
            self.unlink(slot);
            self.arena.discard(slot);
        }
    }

    /// Which queue gives a page now. What is freed will be filled through the small queue.
    /// `main_refuses`: all pages of the main queue have been offered in vain.
    fn turn(&self, freed_bytes: u64, main_refuses: bool) -> Option<u32> {
        let small_bytes = self.capacity_bytes / 100 * SMALL_PERCENT;
        if main_refuses || self.small.bytes() + freed_bytes >= small_bytes {
            self.small.front().or_else(|| self.main.front())
        } else {
            self.main.front().or_else(|| self.small.front())
        }
    }
}

impl EvictionPolicy for S3Fifo {
    fn kind(&self) -> EvictionKind {
        EvictionKind::S3Fifo
    }

    fn insert(&mut self, key: u64, bytes: u32, fill: Fill) {
        let unread = fill == Fill::Ahead;
        let Some(slot) = self.arena.find(key) else {
            let slot = self.arena.add(key, bytes, Entry { place: Place::Small, uses: 0, unread });
            return self.small.push_back(&mut self.arena, slot);
        };
        let (queue, arena) = self.queue(self.arena.at(slot).data.place);
        queue.resize(arena, slot, bytes);
        if self.arena.at(slot).data.place != Place::Ghost {
            return self.touch(key);
        }
        self.arena.at_mut(slot).data.unread = unread;
        self.move_to(slot, Place::Main, 0);
    }

    fn touch(&mut self, key: u64) {
        if let Some(slot) = self.resident(key) {
            let entry = &mut self.arena.at_mut(slot).data;
            if !core::mem::take(&mut entry.unread) {
                entry.uses = (entry.uses + 1).min(MAX_USES);
            }
        }
    }

    fn remove(&mut self, key: u64) -> Option<u32> {
        let slot = self.arena.find(key)?;
        let resident = self.arena.at(slot).data.place != Place::Ghost;
        self.unlink(slot);
        let bytes = self.arena.discard(slot);
        resident.then_some(bytes)
    }

    fn evict(
        &mut self,
        want_bytes: u64,
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        let mut freed_bytes = 0;
        // A page of the main queue goes around once per use before it is offered, so after so many
        // refusals all of them have been; then the small queue is left, whose pages move on to the
        // main queue when they refuse.
        let (mut main_refusals, rounds) = (0, usize::from(MAX_USES) + 1);
        let mut patience = (rounds + 1) * self.len();
        while freed_bytes < want_bytes && patience > 0 {
            let main_refuses = main_refusals >= rounds * self.main.len();
            let Some(slot) = self.turn(freed_bytes, main_refuses) else { break };
            let (key, bytes) = (self.arena.at(slot).key, self.arena.at(slot).bytes);
            let (place, uses) = (self.arena.at(slot).data.place, self.arena.at(slot).data.uses);
            match place {
                Place::Small if uses >= PROMOTE_USES => self.move_to(slot, Place::Main, 0),
                Place::Main if uses > 0 => self.move_to(slot, Place::Main, uses - 1),
                _ if may_evict(key) => {
                    self.move_to(slot, Place::Ghost, 0);
                    freed_bytes += u64::from(bytes);
                    victims.push(Victim { key, bytes });
                }
                // Refused pages gather in the main queue: they would fill the small one, and it is
                // the main one that is walked least.
                _ => {
                    main_refusals += usize::from(place == Place::Main);
                    self.move_to(slot, Place::Main, 0);
                    patience -= 1;
                }
            }
        }
        self.bound_ghosts();
        freed_bytes
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn contains(&self, key: u64) -> bool {
        self.resident(key).is_some()
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn bytes(&self) -> u64 {
        self.small.bytes() + self.main.bytes()
    }

    fn dump(&self) -> Dump {
        Dump {
            queues: vec![
                ("small".into(), self.small.keys(&self.arena)),
                ("main".into(), self.main.keys(&self.arena)),
                ("ghosts".into(), self.ghosts.keys(&self.arena)),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(policy: &S3Fifo) -> [Vec<u64>; 3] {
        let dump = policy.dump();
        [0, 1, 2].map(|queue| dump.queues[queue].1.clone())
    }

    #[test]
    fn two_uses_promote_and_ghosts_come_back_to_main() {
        let mut policy = S3Fifo::new(100);
        (0..4).for_each(|key| policy.insert(key, 10, Fill::Demand));
        [0, 0, 1].into_iter().for_each(|key| policy.touch(key));
        let mut victims = Vec::new();
        assert_eq!(policy.evict(10, &mut |_| true, &mut victims), 10);
        assert_eq!(victims, [Victim { key: 1, bytes: 10 }]);
        assert_eq!(queues(&policy), [vec![2, 3], vec![0], vec![1]]);
        policy.insert(1, 10, Fill::Demand);
        assert_eq!(queues(&policy), [vec![2, 3], vec![0, 1], vec![]]);
    }

    #[test]
    fn a_used_page_goes_around_once_per_use() {
        let mut policy = S3Fifo::new(1_000);
        (0..3).for_each(|key| policy.insert(key, 10, Fill::Demand));
        let mut victims = Vec::new();
        policy.evict(30, &mut |_| true, &mut victims);
        (0..3).for_each(|key| policy.insert(key, 10, Fill::Demand));
        [0, 0, 1].into_iter().for_each(|key| policy.touch(key));
        victims.clear();
        policy.evict(30, &mut |_| true, &mut victims);
        assert_eq!(victims.iter().map(|victim| victim.key).collect::<Vec<_>>(), [2, 1, 0]);
    }
}
