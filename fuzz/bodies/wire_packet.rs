//! Packets come from whoever can connect to the agent's socket: whatever arrives is decoded or
//! refused, and what is decoded has one meaning. Shared by the fuzzer and the ordinary tests of
//! `forebay-wire`.

use forebay_wire::channel::decode;
use forebay_wire::{Hello, Reply, Request, Welcome};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Decodes `data` as every kind of message; returns how many it was.
pub fn check(data: &[u8]) -> usize {
    let kinds = [one::<Hello>(data), one::<Welcome>(data), one::<Request>(data), one::<Reply>(data)];
    kinds.into_iter().filter(|is| *is).count()
}

fn one<T: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) -> bool {
    let Ok(message) = decode::<T>(data) else { return false };
    let again = postcard::to_stdvec(&message).expect("what was decoded can be encoded");
    let same = decode::<T>(&again).expect("what was encoded can be decoded");
    assert_eq!(same, message, "a message changed on its way");
    true
}
