//! Random numbers that determine the whole run: the same seed gives the same decisions on every
//! machine.

/// Splitmix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A separate stream for each purpose, so that drawing one more number for this purpose changes
    /// nothing for another.
    pub fn new(seed: u64, purpose: &str, number: u64) -> Self {
        let mut state = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in purpose.bytes() {
            state = Random(state ^ u64::from(byte)).next();
        }
        Random(state)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 for 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    /// A number from `low` to below `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low))
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Draws one of these, as often as its weight says.
    pub fn weighted<T: Copy>(&mut self, of: &[(u64, T)]) -> T {
        let mut at = self.below(of.iter().map(|(weight, _)| weight).sum());
        for (weight, what) in of {
            if at < *weight {
                return *what;
            }
            at -= weight;
        }
        of[0].1
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_and_a_purpose_are_one_stream() {
        let take = |seed, purpose| {
            let mut random = Random::new(seed, purpose, 3);
            (0..4).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(take(1, "writer"), take(1, "writer"));
        assert_ne!(take(1, "writer"), take(1, "reader"));
        assert_ne!(take(1, "writer"), take(2, "writer"));
    }
}
