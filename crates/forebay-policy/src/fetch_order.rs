//! Which page a node fetches next, and how many of its fetch threads serve the coordinator's
//! requests.
//!
//! Agents and the simulated nodes keep pages that wait in one queue for each [`Urgency`]. A thread
//! takes the next page of the first queue that has one ([`next`]). Where the client of the file
//! system reads ahead by itself, pages that readers want form streams: adjacent pages on one
//! server. Pages of a stream are fetched one after the other, in the order of the file, because a
//! client drops what it has read ahead when another place is read
//! (`docs/decisions/0017-streams.md`).

use alloc::collections::VecDeque;

use crate::stage::event::{Priority, RequestId};

/// Why a page is fetched; the more urgent goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// Number of urgencies.
pub const URGENCIES: usize = 5;

/// Whether pages of this urgency are fetched one after the other where they form streams: those of
/// readers. For requests and loads the client is kept from reading ahead, and small random reads
/// have no order.
pub fn is_in_stream(urgency: Urgency) -> bool {
    matches!(urgency, Urgency::Demand | Urgency::Ahead)
}

/// The index of the page to fetch next among those of one urgency, which wait in the order of
/// their arrival: the first whose stream is not busy, and of its stream the one with the least
/// place. `at` gives the stream and the place of a page, if it is of any.
pub fn next<T, S: PartialEq, P: Ord>(
    waiting: &VecDeque<T>,
    at: impl Fn(&T) -> Option<(S, P)>,
    is_busy: impl Fn(&S) -> bool,
) -> Option<usize> {
    let is_free = |page: &T| at(page).is_none_or(|(stream, _)| !is_busy(&stream));
    let first = waiting.iter().position(is_free)?;
    let Some((stream, _)) = at(&waiting[first]) else { return Some(first) };
    let of_stream = (first..waiting.len()).filter_map(|index| {
        let (of, place) = at(&waiting[index])?;
        (of == stream).then_some((place, index))
    });
    of_stream.min().map(|(_, index)| index)
}

/// Pages of requests that may be in flight from one mount: half of its fetch threads, so that
/// readers find a thread whatever is prefetched.
pub fn request_threads(fetch_threads: usize) -> usize {
    (fetch_threads / 2).max(1)
}

/// The order of a node's requests: those of planned waves first, then the earliest.
pub fn rank(priority: Priority, request: RequestId) -> (Priority, RequestId) {
    (priority, request)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all pages, each of which ends before the next begins but for those of busy streams.
    fn order(pages: &[(Option<u8>, u8)], busy: &[u8]) -> Vec<(Option<u8>, u8)> {
        let mut waiting: VecDeque<_> = pages.iter().copied().collect();
        let mut order = Vec::new();
        let at = |page: &(Option<u8>, u8)| Some((page.0?, page.1));
        while let Some(index) = next(&waiting, at, |stream| busy.contains(stream)) {
            order.extend(waiting.remove(index));
        }
        order
    }

    #[test]
    fn a_stream_goes_in_the_order_of_its_file_and_a_busy_one_waits() {
        let pages = [(Some(1), 5), (None, 9), (Some(2), 1), (Some(1), 4), (Some(1), 6)];
        assert_eq!(order(&pages, &[]), [(Some(1), 4), (Some(1), 5), (None, 9), (Some(2), 1), (Some(1), 6)]);
        assert_eq!(order(&pages, &[1]), [(None, 9), (Some(2), 1)]);
        assert_eq!(order(&pages, &[1, 2]), [(None, 9)]);
        assert!(order(&[], &[]).is_empty());
    }

    #[test]
    fn readers_keep_half_of_the_threads_and_planned_requests_go_first() {
        assert_eq!([0, 1, 2, 3, 8].map(request_threads), [1, 1, 1, 1, 4]);
        let mut ranks =
            [(Priority::Ahead, 1), (Priority::Planned, 7), (Priority::Ahead, 3), (Priority::Planned, 2)];
        ranks.sort_by_key(|(priority, request)| rank(*priority, *request));
        assert_eq!(ranks.map(|(_, request)| request), [2, 7, 1, 3]);
    }
}
