//! Hash tables keyed by numbers. Each event looks some up, and the standard hash, which protects
//! against keys that somebody chooses to collide, is slow.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Nothing depends on its order of iteration.
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Numbers>>;

/// Hashes numbers.
#[derive(Default)]
pub(super) struct Numbers(u64);

impl Hasher for Numbers {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    /// Folds the product, as in wyhash: the low half of it is poor, and so is the high one.
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
