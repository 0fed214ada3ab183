//! How much of a page is read at a time.
//!
//! A page is fetched in chunks; readers see each as soon as it has come, and what no reader waits
//! for can stop between two of them.

use crate::fetch_order::Urgency;

/// First chunk of a page: small, since a reader may be waiting for the page's first bytes.
pub const FIRST_BYTES: usize = 256 << 10;

/// Later chunks of a page that a reader waits for.
pub const DEMAND_BYTES: usize = 1 << 20;

/// Chunks of other pages: a page of 2 MiB in one read, so that the file system asks all the servers
/// it is striped over at the same time.
pub const MAX_BYTES: usize = 2 << 20;

/// Chunks of a page that only random reads want: small, so that one of them waits little behind it
/// at its server.
const REFILL_BYTES: usize = 64 << 10;

/// Limit on the time of a chunk, in ns, where the file system is busy: a reader that begins to wait
/// for the page, here or on another node, sees that it is coming.
const CHUNK_NS: u64 = 500_000_000;

/// A page of which the next chunk is to be read.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Why its fetch was started.
    pub urgency: Urgency,
    /// Whether a reader has begun to wait for it since.
    pub is_demanded: bool,
    /// Number of its bytes that have been read.
    pub done: u64,
    /// Recent time of whole pages, in ns.
    pub page_ns: u64,
}

/// Limit on its next chunk, in bytes; `gentle` as the node machine has decided
/// ([`super::Action::Gentle`]).
pub fn bound(page: Page, gentle: bool) -> usize {
    let Page { urgency, is_demanded, done, page_ns } = page;
    let bound = match urgency {
        _ if is_demanded && done == 0 => return FIRST_BYTES,
        Urgency::Refill if !is_demanded => return REFILL_BYTES,
        _ if is_demanded => DEMAND_BYTES,
        _ if gentle => return FIRST_BYTES,
        _ => MAX_BYTES,
    };
    // Divided by the factor by which a page takes longer, as a power of two.
    let times = page_ns / CHUNK_NS;
    (bound as u64 / (times + 1).next_power_of_two()).max(FIRST_BYTES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_large_as_they_may_be_for_whoever_waits_by_then() {
        let of = |urgency, is_demanded, done, gentle| {
            bound(Page { urgency, is_demanded, done, page_ns: CHUNK_NS / 2 }, gentle)
        };
        assert_eq!(of(Urgency::Demand, true, 0, true), FIRST_BYTES);
        assert_eq!(of(Urgency::Ahead, true, 0, false), FIRST_BYTES, "a reader has come up to it");
        assert_eq!(of(Urgency::Refill, true, 64 << 10, true), DEMAND_BYTES);
        assert_eq!(of(Urgency::Ahead, false, 0, false), MAX_BYTES);
        assert_eq!(of(Urgency::Ahead, false, 0, true), FIRST_BYTES);
        assert_eq!(of(Urgency::Refill, false, 0, true), REFILL_BYTES);
    }

    #[test]
    fn chunks_of_pages_that_take_long_are_small_enough_to_show_that_they_come() {
        let of = |page_ms: u64, is_demanded, done| {
            let page_ns = page_ms * 1_000_000;
            bound(Page { urgency: Urgency::Plan, is_demanded, done, page_ns }, false)
        };
        let bounds = [0, 499, 500, 1200, 8000].map(|page_ms| of(page_ms, false, 0) >> 10);
        assert_eq!(bounds, [2048, 2048, 1024, 512, 256]);
        assert_eq!(of(1000, true, 256 << 10), FIRST_BYTES);
    }
}
