//! A client has opened a file.

use crate::counters::add;
use crate::mounts::Admitted;
use crate::serve::connection::{Answer, Connection, reply};
use forebay_wire::Reply;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// Tells the client what the PFS says about the file now, and hands out the cached copy if there is
/// one.
pub fn open(connection: &Connection, file: Admitted, _fd: &OwnedFd) -> Answer {
    let shared = &connection.shared;
    let counters = &shared.counters;
    add(&counters.opens_total, 1);
    let page_bytes = shared.mounts[file.mount].config.page_bytes;
    let opened = |copy, page_bytes, pinned| Reply::Opened {
        mount: file.mount as u32,
        facts: file.facts,
        copy,
        page_bytes,
        pinned,
    };
    let is_believed = shared.mounts[file.mount].is_believed();
    let entry = shared.cache.find(file.mount, &file.facts).filter(|_| is_believed);
    let shared_copy = entry.and_then(|entry| {
        let copy = shared.cache.file(&entry).and_then(|c| c.share(&shared.cache.tier, entry.copy())).ok()?;
        Some((entry, copy))
    });
    match shared_copy {
        None => reply(opened(0, page_bytes, false)),
        Some((entry, fd)) => {
            add(&counters.opens_cached_total, 1);
            let pinned = entry.pinned.load(Ordering::Relaxed);
            Some((opened(entry.copy(), entry.identity.page_bytes, pinned), vec![fd]))
        }
    }
}
