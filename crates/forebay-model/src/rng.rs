//! Random numbers that are the same on every machine and in every year.
//!
//! xoshiro256** (Blackman and Vigna, 2018), seeded through splitmix64 so that neighbouring seeds
//! give unrelated streams. Not a crate from outside, because those keep the right to change a
//! stream between versions, and a trace has to be reproducible byte for byte long after it was
//! recorded.

/// A stream of pseudo-random numbers; equal seeds give equal streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of splitmix64: advances `state` and returns the next output.
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut s = seed;
        Rng { state: [splitmix64(&mut s), splitmix64(&mut s), splitmix64(&mut s), splitmix64(&mut s)] }
    }

    /// An independent stream for the part `label` of a run, so that drawing more in one part never
    /// shifts another.
    pub fn fork(&self, label: u64) -> Self {
        let mut s = self.state[0] ^ label.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Rng::new(splitmix64(&mut s))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Exponentially distributed with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Uniform in 0..`n`, without bias (Lemire's multiply and reject). `n` must be positive.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "a random number below 0 does not exist");
        let reject = n.wrapping_neg() % n;
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(n);
            if wide as u64 >= reject {
                return (wide >> 64) as u64;
            }
        }
    }

    /// Puts `items` in random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First outputs of the reference C code of splitmix64 for seed 1234567.
    #[test]
    fn splitmix_matches_the_reference() {
        let mut s = 1_234_567;
        let got: Vec<u64> = (0..3).map(|_| splitmix64(&mut s)).collect();
        assert_eq!(got, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    /// First outputs of the reference C code of xoshiro256** for the state 1, 2, 3, 4.
    #[test]
    fn xoshiro_matches_the_reference() {
        let mut r = Rng { state: [1, 2, 3, 4] };
        let got: Vec<u64> = (0..4).map(|_| r.next_u64()).collect();
        assert_eq!(got, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn below_is_even_and_unit_stays_in_range() {
        let mut r = Rng::new(7);
        let mut seen = [0u32; 6];
        for _ in 0..60_000 {
            seen[r.below(6) as usize] += 1;
            assert!((0.0..1.0).contains(&r.unit()));
        }
        // Binomial with mean 10,000 and deviation 91: five deviations.
        assert!(seen.iter().all(|&n| (9_544..=10_456).contains(&n)), "{seen:?}");
    }

    #[test]
    fn forks_differ_and_leave_the_parent_alone() {
        let parent = Rng::new(1);
        let (mut a, mut b) = (parent.fork(1), parent.fork(2));
        assert_ne!(a.next_u64(), b.next_u64());
        assert_eq!(parent, Rng::new(1));
    }
}
