//! W-TinyLFU, as published.
//!
//! Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy" (ACM ToS 2017):
//! an LRU window of 1 %, a main part of segmented LRU (a fifth on probation, the rest protected),
//! and a sketch of recent frequencies which decides whether the page that drops out of the window
//! may replace the one next to leave the main part. The window is fixed; [`super::WindowedLfu`] is
//! what came of making it follow the load.

use super::sketch::Sketch;
use crate::arena::{Arena, List};
use crate::eviction::{Dump, EvictionKind, EvictionPolicy, Fill, Victim};
use alloc::{vec, vec::Vec};

const WINDOW_PERCENT: u64 = 1;
const PROTECTED_PERCENT: u64 = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Window,
    Probation,
    Protected,
}

#[derive(Clone, Debug)]
struct Entry {
    place: Place,
    /// Filled ahead and not read yet: the first touch is not counted.
    unread: bool,
}

/// W-TinyLFU; see the head of the file.
#[derive(Debug)]
pub struct WTinyLfu {
    arena: Arena<Entry>,
    window: List,
    probation: List,
    protected: List,
    sketch: Sketch,
    capacity_bytes: u64,
}

impl WTinyLfu {
    /// An empty policy for a tier of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            arena: Arena::default(),
            window: List::default(),
            probation: List::default(),
            protected: List::default(),
            sketch: Sketch::new(0),
            capacity_bytes,
        }
    }

    fn window_target_bytes(&self) -> u64 {
        self.capacity_bytes / 100 * WINDOW_PERCENT
    }

    fn list(&mut self, place: Place) -> (&mut List, &mut Arena<Entry>) {
        let list = match place {
            Place::Window => &mut self.window,
            Place::Probation => &mut self.probation,
            Place::Protected => &mut self.protected,
        };
        (list, &mut self.arena)
    }

    fn unlink(&mut self, slot: u32) {
        let (list, arena) = self.list(self.arena.at(slot).data.place);
        list.unlink(arena, slot);
    }

    fn link(&mut self, slot: u32, place: Place) {
        self.arena.at_mut(slot).data.place = place;
        let (list, arena) = self.list(place);
        list.push_back(arena, slot);
    }

    /// A sketch that is too narrow for the pages takes all for popular. It is replaced by an empty
    /// one of twice the size.
    fn widen_sketch(&mut self) {
        if self.arena.len() > self.sketch.width() {
            self.sketch = Sketch::new(2 * self.arena.len());
        }
    }

    fn settle(&mut self) {
        let room_bytes = self.capacity_bytes - self.window_target_bytes();
        while self.window.bytes() > self.window_target_bytes() && self.window.len() > 1 {
            let Some(slot) = self.window.front() else { return };
            let main_bytes = self.probation.bytes() + self.protected.bytes();
            if main_bytes + u64::from(self.arena.at(slot).bytes) > room_bytes {
                return;
            }
            self.unlink(slot);
            self.link(slot, Place::Probation);
        }
    }

    fn bound_protected(&mut self) {
        let bound_bytes = (self.capacity_bytes - self.window_target_bytes()) / 100 * PROTECTED_PERCENT;
        while self.protected.bytes() > bound_bytes {
            let Some(slot) = self.protected.front() else { return };
            self.unlink(slot);
            self.link(slot, Place::Probation);
        }
    }

    /// The next to leave the window and the main part.
    fn fronts(&self) -> (Option<u32>, Option<u32>) {
        (self.window.front(), self.probation.front().or(self.protected.front()))
    }

    fn frequency(&self, slot: u32) -> u32 {
        self.sketch.estimate(self.arena.at(slot).key)
    }
}

impl EvictionPolicy for WTinyLfu {
    fn kind(&self) -> EvictionKind {
        EvictionKind::WTinyLfu
    }

    fn insert(&mut self, key: u64, bytes: u32, fill: Fill) {
        if let Some(slot) = self.arena.find(key) {
            let (list, arena) = self.list(self.arena.at(slot).data.place);
            list.resize(arena, slot, bytes);
            return self.touch(key);
        }
        self.widen_sketch();
        self.sketch.add(key);
        let slot = self.arena.add(key, bytes, Entry { place: Place::Window, unread: fill == Fill::Ahead });
        self.window.push_back(&mut self.arena, slot);
        self.settle();
    }

    fn touch(&mut self, key: u64) {
        let Some(slot) = self.arena.find(key) else { return };
        if core::mem::take(&mut self.arena.at_mut(slot).data.unread) {
            let (list, arena) = self.list(self.arena.at(slot).data.place);
            return list.move_to_back(arena, slot);
        }
        self.sketch.add(key);
        self.unlink(slot);
        match self.arena.at(slot).data.place {
            Place::Window => self.link(slot, Place::Window),
            Place::Probation | Place::Protected => {
                self.link(slot, Place::Protected);
                self.bound_protected();
            }
        }
    }

    fn remove(&mut self, key: u64) -> Option<u32> {
        let slot = self.arena.find(key)?;
        self.unlink(slot);
        Some(self.arena.discard(slot))
    }

    fn evict(
        &mut self,
        want_bytes: u64,
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        let mut freed_bytes = 0;
        // A page that refuses goes to the back of the protected part. After as many refusals as the
        // main part has pages all of them have been offered, and only the window is left; it drains
        // into the main part as it refuses.
        let mut main_left = self.len() - self.window.len();
        while freed_bytes < want_bytes && (main_left > 0 || !self.window.is_empty()) {
            let due = self.window.bytes() + freed_bytes >= self.window_target_bytes();
            let (slot, winner) = match self.fronts() {
                (None, None) => break,
                (Some(newcomer), None) => (newcomer, None),
                (Some(newcomer), _) if main_left == 0 => (newcomer, None),
                (Some(newcomer), Some(weakest)) if due => {
                    let wins = self.frequency(newcomer) > self.frequency(weakest);
                    if wins { (weakest, Some(newcomer)) } else { (newcomer, None) }
                }
                (_, Some(weakest)) => (weakest, None),
            };
            let key = self.arena.at(slot).key;
            main_left -= usize::from(self.arena.at(slot).data.place != Place::Window);
            self.unlink(slot);
            if !may_evict(key) {
                self.link(slot, Place::Protected);
                continue;
            }
            let bytes = self.arena.discard(slot);
            freed_bytes += u64::from(bytes);
            victims.push(Victim { key, bytes });
            if let Some(winner) = winner {
                self.unlink(winner);
                self.link(winner, Place::Probation);
                main_left += 1;
            }
        }
        self.bound_protected();
        freed_bytes
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
        self.settle();
        self.bound_protected();
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
        self.window.bytes() + self.probation.bytes() + self.protected.bytes()
    }

    fn dump(&self) -> Dump {
        Dump {
            queues: vec![
                ("window".into(), self.window.keys(&self.arena)),
                ("probation".into(), self.probation.keys(&self.arena)),
                ("protected".into(), self.protected.keys(&self.arena)),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_does_not_replace_what_is_used() {
        let mut policy = WTinyLfu::new(100);
        (0..10).for_each(|key| policy.insert(key, 10, Fill::Demand));
        (0..9).for_each(|key| policy.touch(key));
        let mut victims = Vec::new();
        for key in 10..14 {
            policy.evict(10, &mut |_| true, &mut victims);
            policy.insert(key, 10, Fill::Demand);
        }
        assert_eq!(victims.iter().map(|victim| victim.key).collect::<Vec<_>>(), [9, 10, 11, 12]);
        assert_eq!(policy.dump().queues[0].1, [13]);
    }
}
