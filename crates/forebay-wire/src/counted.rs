//! Decodes messages, and counts the memory of each part before it builds it.
//!
//! Two bytes of a packet can be a split of 48 bytes in memory, so the length of a packet bounds
//! nothing. Sequences in messages are decoded by [`sequence`], which takes the size of all its
//! elements out of an allowance first; [`within`] sets the allowance. Without one nothing is
//! refused: what an agent gets from its coordinator or a peer is bounded by its frame.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

thread_local! {
    static LEFT_BYTES: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Message of the error that [`sequence`] returns when the allowance is spent.
pub const TOO_LARGE: &str = "it takes too much memory when decoded";

/// Runs `decode`, whose sequences may take `bytes` in all. The second value says whether they
/// would have taken more.
pub fn within<T>(bytes: u64, decode: impl FnOnce() -> T) -> (T, bool) {
    LEFT_BYTES.set(Some(bytes));
    let decoded = decode();
    (decoded, LEFT_BYTES.take().is_none())
}

/// For `#[serde(deserialize_with)]` on every vector of a message whose elements may be larger than
/// their encoding. [`crate::Declared`] has a bound of its own.
///
/// # Errors
/// The allowance is spent; errors of the elements.
pub fn sequence<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(Elements(PhantomData))
}

struct Elements<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let Some(count) = elements.size_hint() else {
            // Text, which is not a message.
            return collect(elements);
        };
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        match LEFT_BYTES.get() {
            None => {}
            Some(left) if bytes <= left => LEFT_BYTES.set(Some(left - bytes)),
            Some(_) => {
                LEFT_BYTES.set(None);
                return Err(A::Error::custom(TOO_LARGE));
            }
        }
        let mut all = Vec::with_capacity(count);
        while all.len() < count
            && let Some(element) = elements.next_element()?
        {
            all.push(element);
        }
        Ok(all)
    }
}

/// All elements of a sequence whose length is not known before; only where nothing is counted.
fn collect<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(mut elements: A) -> Result<Vec<T>, A::Error> {
    if LEFT_BYTES.get().is_some() {
        return Err(A::Error::custom("a sequence without its length"));
    }
    let mut all = Vec::new();
    while let Some(element) = elements.next_element()? {
        all.push(element);
    }
    Ok(all)
}

/// Bytes of memory of one block of `len` bytes: the allocator rounds up, and has a header.
pub fn block_bytes(len: usize) -> u64 {
    if len == 0 { 0 } else { len.next_multiple_of(16) as u64 + 16 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JobUpdate, Request, Split};

    #[test]
    fn what_would_take_more_than_its_allowance_is_refused_before_it_is_built() {
        let splits = JobUpdate::Splits { stage: 1, splits: vec![Split::default(); 1000] };
        let packet = postcard::to_stdvec(&Request::JobUpdates(vec![splits.clone()])).unwrap();
        assert!(packet.len() < 2100);
        let decode = || postcard::from_bytes::<Request>(&packet);
        let (refused, too_large) = within(40_000, decode);
        assert!(refused.is_err() && too_large);
        let (decoded, too_large) = within(49_000, decode);
        assert!(decoded.unwrap() == Request::JobUpdates(vec![splits]) && !too_large);
        assert!(decode().is_ok(), "no allowance, no bound");
    }
}
