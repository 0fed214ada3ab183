//! Any bytes as a packet.
#![no_main]

#[path = "../bodies/wire_packet.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    body::check(data);
});
