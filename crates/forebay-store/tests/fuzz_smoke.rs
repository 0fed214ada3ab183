//! The fuzzer's body (`fuzz/`) over a fixed set of inputs, so that every run of the tests covers
//! some of its ground.

#[path = "../../../fuzz/bodies/copy_header.rs"]
mod body;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The fields of the header.
const FIELDS: std::ops::Range<usize> = 0..72;

#[test]
fn a_good_record_is_adopted_and_a_cut_one_is_not() {
    for size in [0, 1, 4096, 8192, 8193, 30_000] {
        let good = body::good_record(size);
        assert!(body::check(&good), "size {size}");
        assert!(body::check(&body::overlaid(&good, &[0; 50])));
        for cut in [1, 8, good.len() - 128, good.len() - 127, good.len()] {
            assert!(!body::check(&good[..good.len() - cut]), "size {size}, {cut} bytes cut off");
        }
    }
}

#[test]
fn every_field_of_the_header_may_hold_anything() {
    let good = body::good_record(20_000);
    let extremes = [0, 1, 7, 4095, 4097, 1 << 20, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX - 7, u64::MAX];
    let mut refused = 0;
    for field in FIELDS.step_by(8) {
        for value in extremes {
            let mut bad = good.clone();
            bad[field..field + 8].copy_from_slice(&u64::to_le_bytes(value));
            refused += usize::from(!body::check(&bad));
        }
    }
    assert!(refused >= 50, "only {refused} were refused");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_bits_of_the_header_and_the_words_may_be_flipped(
        size in 0u64..40_000,
        flips in proptest::collection::vec((0usize..300, 0u8..8), 1..20),
    ) {
        let mut overlay = [0; 300];
        flips.iter().for_each(|(at, bit)| overlay[*at] ^= 1 << bit);
        body::check(&body::overlaid(&body::good_record(size), &overlay));
    }

    #[test]
    fn any_bytes_with_the_right_marks_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        body::check(&bytes);
        body::check(&body::labelled(&bytes));
    }
}
