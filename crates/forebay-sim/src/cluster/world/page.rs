//! A page of a file: its name, and the waiters for it.

use forebay_policy::node::ReadId;
use forebay_policy::stage::event::RequestId;

use crate::cluster::Setup;

/// A page: its job, file and number.
pub type Page = (usize, u32, u64);

/// What continues when a page is there.
#[derive(Clone, Copy)]
pub(super) enum Waiter {
    Slot(usize),
    Request { id: RequestId, node: usize, read: ReadId, bytes: u64 },
}

/// The bytes of its file that a page has.
pub(super) fn page_range(setup: &Setup, (job, file, number): Page) -> (u64, u64) {
    let from = number * setup.page_bytes;
    (from, (from + setup.page_bytes).min(setup.jobs[job].bytes_of(file)))
}
