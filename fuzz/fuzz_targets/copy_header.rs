//! Any bytes as the record of a copy that a new agent finds.
#![no_main]

#[path = "../bodies/copy_header.rs"]
mod body;

use std::sync::LazyLock;

static GOOD: LazyLock<Vec<u8>> = LazyLock::new(|| body::good_record(20_000));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    body::check(data);
    body::check(&body::overlaid(&GOOD, data));
    body::check(&body::labelled(data));
});
