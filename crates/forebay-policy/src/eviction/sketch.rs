//! How often a key was seen lately, in a few bits a key.
//!
//! A count-min sketch of 4-bit counters behind a doorkeeper, as in TinyLFU (Einziger, Friedman,
//! Manes, ACM ToS 2017, section 3): the first sighting only sets a bit in a Bloom filter; from the
//! second on four counters are raised, and their minimum is the estimate, never too low by more
//! than ageing takes. After `10 x width` sightings all counters are halved and the doorkeeper is
//! emptied.

use crate::arena::spread;
use alloc::{vec, vec::Vec};

const ROWS: u32 = 4;
/// Sightings per column between two halvings (the paper's W / C).
const SAMPLE_PER_COLUMN: u64 = 10;
const EVERY_LOW_HALF: u64 = 0x7777_7777_7777_7777;

/// A frequency sketch for about `width` keys: 4 bytes of counters and doorkeeper a key.
#[derive(Clone, Debug)]
pub(super) struct Sketch {
    /// Sixteen counters a word; row after row.
    words: Vec<u64>,
    doorkeeper: Vec<u64>,
    /// Columns of a row, less one; a power of two less one.
    mask: u64,
    sightings: u64,
}

impl Sketch {
    /// For `keys` keys, rounded up to a power of two.
    pub fn new(keys: usize) -> Self {
        let width = keys.next_power_of_two().max(256);
        let words = width / 16 * ROWS as usize;
        Self { words: vec![0; words], doorkeeper: vec![0; width / 8], mask: width as u64 - 1, sightings: 0 }
    }

    /// The number of keys it is made for.
    pub fn width(&self) -> usize {
        self.mask as usize + 1
    }

    /// Counts one sighting.
    pub fn add(&mut self, key: u64) {
        self.sightings += 1;
        if self.sightings >= SAMPLE_PER_COLUMN * (self.mask + 1) {
            self.age();
        }
        if !self.pass_door(key) {
            return;
        }
        for row in 0..ROWS {
            let (word, shift) = self.counter(key, row);
            if (self.words[word] >> shift) & 15 < 15 {
                self.words[word] += 1 << shift;
            }
        }
    }

    /// The estimated number of sightings since the counters were last empty, aged.
    pub fn estimate(&self, key: u64) -> u32 {
        let counted = (0..ROWS)
            .map(|row| {
                let (word, shift) = self.counter(key, row);
                ((self.words[word] >> shift) & 15) as u32
            })
            .min();
        let seen = self.door_bits(key).iter().all(|&(word, bit)| self.doorkeeper[word] & bit != 0);
        counted.unwrap_or(0) + u32::from(seen)
    }

    fn counter(&self, key: u64, row: u32) -> (usize, u32) {
        let column = spread(key.wrapping_add(u64::from(row + 1) << 56)) & self.mask;
        let index = u64::from(row) * (self.mask + 1) + column;
        ((index / 16) as usize, (index % 16) as u32 * 4)
    }

    /// Two bits of eight per key: about 5 % of the strangers pass as known when the filter is full.
    fn door_bits(&self, key: u64) -> [(usize, u64); 2] {
        let hash = spread(!key);
        [hash, hash >> 32].map(|half| {
            let bit = (half & 0xffff_ffff) % (8 * (self.mask + 1));
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    /// Whether the key had been seen; it has been now.
    fn pass_door(&mut self, key: u64) -> bool {
        let mut seen = true;
        for (word, bit) in self.door_bits(key) {
            seen &= self.doorkeeper[word] & bit != 0;
            self.doorkeeper[word] |= bit;
        }
        seen
    }

    fn age(&mut self) {
        self.sightings /= 2;
        self.words.iter_mut().for_each(|word| *word = (*word >> 1) & EVERY_LOW_HALF);
        self.doorkeeper.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_up_to_sixteen_and_never_too_low() {
        let mut sketch = Sketch::new(1024);
        for key in 0..200u64 {
            (0..key % 20).for_each(|_| sketch.add(key));
        }
        for key in 0..200u64 {
            assert!(sketch.estimate(key) >= (key % 20).min(16) as u32, "key {key}");
        }
        let strangers = (1_000..2_000u64).filter(|&key| sketch.estimate(key) > 0).count();
        assert!(strangers < 50, "{strangers} of 1000 strangers look known");
    }

    #[test]
    fn ages() {
        let mut sketch = Sketch::new(256);
        (0..9).for_each(|_| sketch.add(1));
        assert_eq!(sketch.estimate(1), 9);
        (0..2_551u64).for_each(|key| sketch.add(1_000 + key % 3));
        assert!((4..=5).contains(&sketch.estimate(1)), "{}", sketch.estimate(1));
    }
}
