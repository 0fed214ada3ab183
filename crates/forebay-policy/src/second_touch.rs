//! Whether a page that was missed by a small random read is worth filling.
//!
//! Filling a 2 MiB page for a 4 KiB read moves 512 times the bytes; done by reflex, a random reader of a large file gets
//! a fraction of the file system's speed and empties the tier besides. So the first miss of a page is served by the file
//! system and only remembered; a second miss while the first is remembered says that the page is used again, and fills.
//!
//! The memory is the last `capacity` missed pages, first in, first out. It ages by other misses and not by time: a page
//! that came back after fewer misses than the tier has pages would have been a hit had it been filled, which is what the
//! question is about; how long that took does not matter. About 40 bytes a remembered page.

use crate::arena::{Arena, List};

/// A bounded memory of missed pages.
#[derive(Debug)]
pub struct SecondTouch {
    arena: Arena<()>,
    missed: List,
    capacity: usize,
}

impl SecondTouch {
    /// Remembers up to `capacity` pages; with 0 no page is ever filled. The number of pages in the tier is a good choice.
    pub fn new(capacity: usize) -> Self {
        Self { arena: Arena::default(), missed: List::default(), capacity }
    }

    /// Tells of a miss: `true` if the page was missed before and is to be filled now (it is then forgotten), `false` if
    /// the file system is to serve it alone.
    pub fn should_fill(&mut self, key: u64) -> bool {
        if self.forget(key) {
            return true;
        }
        if self.capacity > 0 {
            self.shrink_to(self.capacity - 1);
            let slot = self.arena.add(key, 0, ());
            self.missed.push_back(&mut self.arena, slot);
        }
        false
    }

    /// Forgets a page (its file is gone, or something else filled it). Returns whether it was remembered.
    pub fn forget(&mut self, key: u64) -> bool {
        let Some(slot) = self.arena.find(key) else { return false };
        self.missed.unlink(&mut self.arena, slot);
        self.arena.discard(slot);
        true
    }

    /// Changes the bound; the oldest pages are forgotten if it shrinks.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.shrink_to(capacity);
    }

    /// Number of pages remembered.
    pub fn len(&self) -> usize {
        self.missed.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.missed.is_empty()
    }

    fn shrink_to(&mut self, len: usize) {
        while self.missed.len() > len {
            let Some(oldest) = self.missed.front() else { return };
            self.missed.unlink(&mut self.arena, oldest);
            self.arena.discard(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_miss_fills_once() {
        let mut memory = SecondTouch::new(8);
        assert_eq!([1, 1, 1, 1].map(|key| memory.should_fill(key)), [false, true, false, true]);
        assert!(memory.is_empty());
    }

    #[test]
    fn bounded_and_ageing() {
        let mut memory = SecondTouch::new(3);
        (0..4).for_each(|key| assert!(!memory.should_fill(key)));
        assert_eq!(memory.len(), 3);
        assert!(!memory.should_fill(0), "0 is the oldest of four and forgotten");
        assert!(memory.should_fill(3));
        memory.set_capacity(1);
        assert_eq!((memory.len(), memory.should_fill(0)), (1, true));
        memory.set_capacity(0);
        assert!(!memory.should_fill(5) && !memory.should_fill(5));
    }
}
