//! Which page a node fetches next, and how many of its fetch threads serve the coordinator's
//! requests.
//!
//! Agents and the simulated nodes keep waiting pages in one queue for each [`Urgency`]
//! (`node/task_queue.rs`). A thread takes the next page of the first queue that has one. Where the
//! client of the file system reads ahead by itself, a page that a reader wants waits for the page
//! before it in its file ([`precedes`]): read in order and by one descriptor, pages come as fast as
//! the client reads ahead, and a client drops what it has read ahead when another place is read
//! (`docs/decisions/0016-opportunistic-prefetch.md`).

use crate::stage::event::{Priority, RequestId};
use serde::{Deserialize, Serialize};

/// Why a page is fetched; the more urgent goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// A reader waits for it.
    Demand,
    /// A sequential reader will probably read it.
    Ahead,
    /// A job will read it: a request of the coordinator.
    Plan,
    /// A load of a whole file.
    Load,
    /// Small random reads would profit.
    Refill,
}

impl Urgency {
    /// Every urgency, the most urgent first.
    pub const ALL: [Urgency; 5] =
        [Urgency::Demand, Urgency::Ahead, Urgency::Plan, Urgency::Load, Urgency::Refill];
}

/// Returns whether pages of this urgency are fetched in the order of their file where the client
/// reads ahead: those of readers. For requests and loads the client is kept from reading ahead, and
/// small random reads have no order.
pub fn is_in_order(urgency: Urgency) -> bool {
    matches!(urgency, Urgency::Demand | Urgency::Ahead)
}

/// Returns whether a page of `urgency` waits for the page before it in its file, of urgency
/// `before`, which is under way or waits for a thread itself. No page waits for one that is less
/// urgent and has not begun.
pub fn precedes(before: Urgency, is_under_way: bool, urgency: Urgency) -> bool {
    is_in_order(before) && is_in_order(urgency) && (is_under_way || before <= urgency)
}

/// Number of chunks whose pages a load takes in turn.
const CHUNKS_IN_TURN: u64 = 4;

/// Returns all pages of a file in the order in which a load fetches them, where a file is in chunks
/// of `chunk_pages` on one server each: of four chunks in turn, so that several servers send at a
/// time.
pub fn load_order(pages: u32, chunk_pages: u32) -> impl Iterator<Item = u32> {
    let (pages, chunk_pages) = (u64::from(pages), u64::from(chunk_pages.max(1)));
    let groups = (0..pages).step_by((CHUNKS_IN_TURN * chunk_pages) as usize);
    let firsts = groups.flat_map(move |group| group..(group + chunk_pages).min(pages));
    let in_turn = firsts.flat_map(move |first| (0..CHUNKS_IN_TURN).map(move |n| first + n * chunk_pages));
    in_turn.filter(move |page| *page < pages).map(|page| page as u32)
}

/// Pages of requests that may be in flight from one mount: half of its fetch threads, so that
/// readers find a thread whatever is prefetched.
pub fn request_threads(fetch_threads: usize) -> usize {
    (fetch_threads / 2).max(1)
}

/// Short reads of requests, such as those of columns, that may be in flight from one mount if they
/// have no more bytes than pages may have: three quarters of its fetch threads. A reader waits for
/// the end of a short one no longer than for a part of a page.
pub fn short_request_threads(fetch_threads: usize) -> usize {
    (fetch_threads * 3 / 4).max(request_threads(fetch_threads))
}

/// Short reads that may be in flight for a request whose limit is `pages` pages in flight.
pub fn short_reads(pages: usize) -> usize {
    pages + pages.div_ceil(2)
}

/// Reads of the PFS that are in flight for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Number of reads.
    pub reads: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl InFlight {
    /// Returns whether one of `bytes` may start beside them, where `pages` of `page_bytes` may be
    /// in flight, or `reads` that have no more bytes than these: short reads keep fewer servers
    /// busy.
    pub fn has_room(&self, bytes: u64, pages: usize, page_bytes: u64, reads: usize) -> bool {
        let fits = || self.bytes.saturating_add(bytes) <= pages as u64 * page_bytes;
        self.reads < pages || (self.reads < reads && fits())
    }

    /// Records the start of a read of `bytes`.
    pub fn begin(&mut self, bytes: u64) {
        self.reads += 1;
        self.bytes += bytes;
    }

    /// Records the end of a read of `bytes`.
    pub fn end(&mut self, bytes: u64) {
        self.reads = self.reads.saturating_sub(1);
        self.bytes = if self.reads == 0 { 0 } else { self.bytes.saturating_sub(bytes) };
    }
}

/// The order of a node's requests: those of planned waves first, then the earliest.
pub fn rank(priority: Priority, request: RequestId) -> (Priority, RequestId) {
    (priority, request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_s_page_waits_for_the_one_before_unless_that_is_less_urgent_and_has_not_begun() {
        use Urgency::{Ahead, Demand, Load, Plan};
        let waiting = [(Demand, Demand), (Demand, Ahead), (Ahead, Demand), (Ahead, Ahead)];
        let precede = |is_under_way| waiting.map(|(before, page)| precedes(before, is_under_way, page));
        assert_eq!(precede(false), [true, true, false, true]);
        assert_eq!(precede(true), [true; 4]);
        for other in [Plan, Load, Urgency::Refill] {
            assert!(!precedes(other, true, Demand) && !precedes(Demand, true, other));
        }
    }

    #[test]
    fn a_load_fetches_each_page_once_and_of_four_chunks_in_turn() {
        assert_eq!(load_order(7, 2).collect::<Vec<_>>(), [0, 2, 4, 6, 1, 3, 5]);
        assert_eq!(load_order(10, 1).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        for (pages, chunk_pages) in [(0, 32), (1, 32), (31, 32), (32, 32), (33, 32), (300, 32), (5, 1)] {
            let mut order: Vec<u32> = load_order(pages, chunk_pages).collect();
            order.sort_unstable();
            assert_eq!(order, (0..pages).collect::<Vec<_>>(), "{pages} in chunks of {chunk_pages}");
        }
    }

    #[test]
    fn of_short_reads_as_many_bytes_are_in_flight_as_of_pages() {
        let mut in_flight = InFlight::default();
        assert!(!in_flight.has_room(0, 0, 100, short_reads(0)), "a request that rests");
        (0..4).for_each(|_| {
            assert!(in_flight.has_room(100, 4, 100, 4));
            in_flight.begin(100);
        });
        assert!(!in_flight.has_room(0, 4, 100, 4) && !in_flight.has_room(1, 4, 100, 6), "pages");
        (0..4).for_each(|_| in_flight.end(100));
        assert_eq!(in_flight, InFlight::default());
        (0..6).for_each(|_| {
            assert!(in_flight.has_room(40, 4, 100, 6));
            in_flight.begin(40);
        });
        assert!(!in_flight.has_room(40, 4, 100, 6), "six reads");
        in_flight.end(40);
        assert!(in_flight.has_room(200, 4, 100, 6) && !in_flight.has_room(201, 4, 100, 6), "their bytes");
        assert!(!in_flight.has_room(40, 4, 100, 4), "not beside so many");
    }

    #[test]
    fn readers_keep_half_of_the_threads_and_planned_requests_go_first() {
        assert_eq!([0, 1, 2, 3, 8].map(request_threads), [1, 1, 1, 1, 4]);
        assert_eq!([0, 1, 2, 3, 4, 8, 16].map(short_request_threads), [1, 1, 1, 2, 3, 6, 12]);
        assert_eq!([0, 1, 2, 4, 8].map(short_reads), [0, 2, 3, 6, 12]);
        let mut ranks =
            [(Priority::Ahead, 1), (Priority::Planned, 7), (Priority::Ahead, 3), (Priority::Planned, 2)];
        ranks.sort_by_key(|(priority, request)| rank(*priority, *request));
        assert_eq!(ranks.map(|(_, request)| request), [2, 7, 1, 3]);
    }
}
