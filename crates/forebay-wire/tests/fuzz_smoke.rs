//! The fuzzer's body (`fuzz/`) over a fixed set of inputs, so that every run of the tests covers
//! some of its ground.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

#[path = "../../../fuzz/bodies/wire_packet.rs"]
mod body;

use forebay_pfs::{FileFacts, FileVersion};
use forebay_wire::{Hello, LoadProgress, MAGIC, MAX_PACKET_BYTES, PageRun, Refusal, Reply, Request, Welcome};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn good_packets() -> Vec<Vec<u8>> {
    let version = FileVersion { ino: 7, size: 1 << 40, mtime_ns: -1, ctime_ns: i64::MAX };
    let facts = FileFacts { version, dev: 3, nlink: 1, mode: 0o100_644, uid: 1000, gid: 1000 };
    let progress = LoadProgress { failures: vec![(3, 5, "why".into())], ..LoadProgress::default() };
    let requests = [
        Request::Fetch {
            version,
            copy: 9,
            offset: 1 << 33,
            len: 4096,
            deadline_ms: 10_000,
            ahead: vec![PageRun { first_page: 4097, pages: 8 }],
        },
        Request::ScratchCreate { job: "job".into(), name: b"\xff\n".to_vec(), exclusive: true },
        Request::LoadPoll { wait_ms: 0 },
    ];
    let replies = [
        Reply::Changed(facts),
        Reply::Refused(Refusal::TooMany("things".into())),
        Reply::Load(progress),
        Reply::ScratchList { files: vec![(b"a".to_vec(), 1)], more: false },
        Reply::Status(Box::default()),
        Reply::Memory(Box::default()),
    ];
    let mut packets = vec![
        postcard::to_stdvec(&Hello { magic: MAGIC, protocol: 1, want_ring: true }).unwrap(),
        postcard::to_stdvec(&Welcome { protocol: 1, protocol_fits: true, message: "m".into() }).unwrap(),
    ];
    packets.extend(requests.iter().map(|r| postcard::to_stdvec(r).unwrap()));
    packets.extend(replies.iter().map(|r| postcard::to_stdvec(r).unwrap()));
    packets
}

#[test]
fn good_packets_are_understood_and_every_cut_or_flipped_one_is_survived() {
    let mut understood = 0;
    for packet in good_packets() {
        assert!(body::check(&packet) > 0, "not understood: {packet:?}");
        for len in 0..packet.len() {
            body::check(&packet[..len]);
            for bit in 0..8 {
                let mut flipped = packet.clone();
                flipped[len] ^= 1 << bit;
                understood += body::check(&flipped);
            }
        }
    }
    assert!(understood > 100, "nearly nothing was decoded, so nearly nothing was tried: {understood}");
}

#[test]
fn a_length_that_promises_more_than_the_packet_holds_costs_nothing() {
    // A list, a name or a text whose length fills the varint: the decoder must not reserve room for
    // it.
    for filler in [0xff, 0x80, 0x7f, 0x00] {
        for first in 0..=40 {
            let mut packet = vec![filler; MAX_PACKET_BYTES];
            packet[0] = first;
            body::check(&packet);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_bytes_after_any_variant_are_survived(variant in 0u8..64, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        body::check(&[&[variant][..], &bytes].concat());
    }
}
