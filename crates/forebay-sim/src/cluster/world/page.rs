//! A page of a file: its name, and who waits for it.

use forebay_policy::node::ReadId;
use forebay_policy::stage::event::RequestId;

/// A page: its job, file and number.
pub type Page = (usize, u32, u64);

/// What goes on when a page is there.
#[derive(Clone, Copy)]
pub(super) enum Waiter {
    Slot(usize),
    Request { id: RequestId, node: usize, read: ReadId, bytes: u64 },
}
