//! A client has opened a file.

use super::session::{Answer, Connection, reply};
use crate::counters::add;
use crate::mounts::admit::Admitted;
use forebay_wire::Reply;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Answers the client what the PFS says about the file now, and hands out the cached copy if there
/// is one.
pub fn open(connection: &Connection, file: Admitted, fd: &OwnedFd) -> Answer {
    let node = &connection.node;
    let counters = &node.counters;
    add(&counters.opens_total, 1);
    if let Some((copy, size, content)) = node.write_back.open(file.mount, &file.facts, fd.as_fd()) {
        return Some((Reply::Dirty { copy, size }, vec![content]));
    }
    let opened = |copy, page_bytes, pinned| Reply::Opened {
        mount: file.mount as u32,
        facts: file.facts,
        copy,
        page_bytes,
        pinned,
    };
    let is_believed = node.mounts[file.mount].is_believed();
    let entry = node.cache.find(file.mount, &file.facts).filter(|_| is_believed);
    let shared_copy = entry.and_then(|entry| {
        let copy = node.cache.file(&entry).and_then(|c| c.share(&node.cache.tier, entry.copy())).ok()?;
        Some((entry, copy))
    });
    match shared_copy {
        None => reply(opened(
            0,
            node.mounts[file.mount].page_bytes_of(fd.as_fd(), file.facts.version.size),
            false,
        )),
        Some((entry, fds)) => {
            add(&counters.opens_cached_total, 1);
            let pinned = entry.pinned.load(Ordering::Relaxed);
            Some((opened(entry.copy(), entry.identity.page_bytes, pinned), fds.into()))
        }
    }
}
