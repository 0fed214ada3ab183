//! Maps bytes of the tier into the program's own address space, without a copy.
//!
//! A mapping does not check the residency words, so its pages must stay: the agent pins them,
//! within a bound. It sends a descriptor of the copy with a lock on these pages, which the kernel
//! keeps as long as anybody has a mapping that was made of it. So the agent, and the next one, know
//! what is mapped, even by forked children, and nobody has to report the end.

use crate::session::{Client, unexpected};
use forebay_store::copy::CopyView;
use forebay_store::map::Map;
use forebay_wire::{Reply, Request};
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A range of a cached file, mapped. Reads like a slice of bytes.
#[derive(Debug)]
pub struct MappedRange {
    map: Map,
    /// Bytes of the map before the range.
    lead: usize,
    len: usize,
}

impl MappedRange {
    pub(crate) fn new(client: &Client, view: &CopyView, offset: u64, len: u64) -> Option<Self> {
        let geometry = view.geometry();
        let end = offset.checked_add(len).filter(|end| len > 0 && *end <= geometry.size)?;
        let pages = (offset / geometry.page_bytes) as u32..((end - 1) / geometry.page_bytes) as u32 + 1;
        let copy = pin(client, view, pages, None).ok()?;
        let block = forebay_store::BLOCK_BYTES;
        let start = offset / block * block;
        let map = Map::new(copy.as_fd(), start, (end - start) as usize, false).ok()?;
        Some(MappedRange { map, lead: (offset - start) as usize, len: len as usize })
    }
}

/// Pins pages of the copy. They stay as long as anybody has the descriptor or a mapping made of it.
/// With `file`, the mapping takes the place of one of the file.
///
/// # Errors
/// The agent does not pin them, or is not there.
pub(crate) fn pin(
    client: &Client,
    view: &CopyView,
    pages: Range<u32>,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let request =
        Request::PinPages { copy: view.copy(), first_page: pages.start, pages: pages.end - pages.start };
    // The copy itself is the proof that its pages may be held.
    let shown: Vec<_> = [view.file()].into_iter().chain(file).collect();
    let answer = client.session.call(&request, &shown, client.session.config.deadline)?;
    match (&answer.message, answer.fds.into_iter().next()) {
        (Reply::Done, Some(copy)) => Ok(copy),
        (other, _) => Err(unexpected(other)),
    }
}

impl Deref for MappedRange {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the map, which lives as long as `self`; its pages are
        // resident and pinned, so nobody changes or takes them away, and a page of a version is
        // never rewritten.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.lead), self.len) }
    }
}
