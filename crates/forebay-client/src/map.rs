//! Maps bytes of the tier into the program's own address space, without a copy.
//!
//! A mapping does not check the residency words, so its pages must stay: the agent pins them,
//! within a bound, for as long as this process's connection lives. A shared lock on the copy's file
//! makes the next agent, which does not know the pin, keep the mapped pages.

use crate::session::{Client, lock};
use forebay_store::copy::CopyView;
use forebay_store::map::Map;
use forebay_wire::{Channel, Reply, Request};
use rustix::fs::{FlockOperation, flock};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A range of a cached file, mapped. Reads like a slice of bytes.
#[derive(Debug)]
pub struct MappedRange {
    /// The connection that holds the pin; kept, since the pin ends with it.
    anchor: Arc<Mutex<Channel>>,
    view: Arc<CopyView>,
    map: Map,
    /// Bytes of the map before the range.
    lead: usize,
    len: usize,
    first_page: u32,
    pages: u32,
    /// The process that holds the pin; a forked child has the memory, but must not give up its
    /// parent's pin.
    pid: u32,
}

impl MappedRange {
    pub(crate) fn new(client: &Client, view: Arc<CopyView>, offset: u64, len: u64) -> Option<Self> {
        let geometry = view.geometry();
        let end = offset.checked_add(len).filter(|end| len > 0 && *end <= geometry.size)?;
        let first_page = (offset / geometry.page_bytes) as u32;
        let pages = ((end - 1) / geometry.page_bytes) as u32 - first_page + 1;
        flock(view.file(), FlockOperation::NonBlockingLockShared).ok()?;
        let anchor = pin(client, &view, first_page, pages)?;
        // The agent has pinned its own copy of that number; this one may be of an earlier agent,
        // and empty by now.
        if !(first_page..first_page + pages).all(|page| view.is_resident(page)) {
            unpin(&anchor, view.copy(), first_page, pages);
            return None;
        }
        let block = forebay_store::BLOCK_BYTES;
        let start = offset / block * block;
        match Map::new(view.file(), start, (end - start) as usize, false) {
            Ok(map) => Some(MappedRange {
                anchor,
                view,
                map,
                lead: (offset - start) as usize,
                len: len as usize,
                first_page,
                pages,
                pid: std::process::id(),
            }),
            Err(_) => {
                unpin(&anchor, view.copy(), first_page, pages);
                None
            }
        }
    }
}

fn pin(client: &Client, view: &CopyView, first_page: u32, pages: u32) -> Option<Arc<Mutex<Channel>>> {
    let (session, copy) = (&client.session, view.copy());
    let anchor = session.unless_left_alone(|| session.anchor()).ok()?;
    let answer = {
        // Held until a failure is noted: who waits for it then asks nothing, and does not take a
        // late answer for its own.
        let channel = lock(&anchor);
        session.unless_left_alone(|| {
            // The copy itself is the proof that its pages may be held.
            channel.send(&Request::PinPages { copy, first_page, pages }, &[view.file()])?;
            channel.recv::<Reply>(Some(Instant::now() + session.config.deadline))
        })
    };
    match answer {
        Ok(answer) => (answer.message == Reply::Done).then_some(anchor),
        Err(_) => {
            // Dead, or late: its answer would be taken for that of the next pin.
            session.drop_anchor(&anchor);
            None
        }
    }
}

fn unpin(anchor: &Mutex<Channel>, copy: u64, first_page: u32, pages: u32) {
    // Waits if many go at a time, within the send timeout. If it cannot be sent the agent is gone,
    // and the pin with it.
    let _ = lock(anchor).send(&Request::UnpinPages { copy, first_page, pages }, &[]);
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

impl Drop for MappedRange {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            unpin(&self.anchor, self.view.copy(), self.first_page, self.pages);
        }
    }
}
