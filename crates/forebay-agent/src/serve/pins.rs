//! Pins: whole files that users keep in the tier, and pages that programs map.

use super::closer::Sent;
use super::session::{Answer, Connection, PagePins, refuse, reply};
use crate::cache::NoPin;
use crate::cache::entry::Entry;
use crate::mounts::admit::Admitted;
use crate::user_limits::Kind;
use forebay_wire::{Refusal, Reply};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Keeps the whole file, or lets it go again.
pub fn pin_file(connection: &Connection, file: Admitted, fd: &OwnedFd, on: bool) -> Answer {
    let node = &connection.node;
    if !on {
        let entry = node.cache.find(file.mount, &file.facts);
        return entry.map_or_else(|| reply(Reply::Done), |entry| unpin(connection, &entry));
    }
    let share = match node.shares.share(Kind::Held, connection.peer.uid, file.facts.version.size) {
        Ok(share) => share,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    let entry = match node.fetch.entry(&file, fd.as_fd()) {
        Ok(entry) => entry,
        Err(why) => return reply(why.reply()),
    };
    let pinned = node.cache.pin_entry(&entry, share);
    node.cache.drop_if_empty(&entry);
    pin_answer(pinned)
}

/// Lets a file go that this user has pinned. Others' pins are the operator's to undo.
fn unpin(connection: &Connection, entry: &Arc<Entry>) -> Answer {
    let (node, uid) = (&connection.node, connection.peer.uid);
    match entry.pinned_by() {
        Some(owner) if owner != uid && !node.shares.is_operator(uid) => {
            reply(Reply::Refused(Refusal::Invalid(format!(
                "user {owner} has pinned it; that user, the agent's user or root can unpin it"
            ))))
        }
        _ => {
            let unpinned = node.cache.unpin_entry(entry);
            node.cache.drop_if_empty(entry);
            pin_answer(unpinned)
        }
    }
}

/// Lets a pinned copy go by its number: its file may be gone from the PFS.
pub fn unpin_copy(connection: &Connection, copy: u64) -> Answer {
    let entry = connection.node.cache.by_copy(copy);
    entry.map_or_else(|| reply(Reply::Done), |entry| unpin(connection, &entry))
}

fn pin_answer(pinned: Result<(), NoPin>) -> Answer {
    match pinned {
        Ok(()) => reply(Reply::Done),
        Err(NoPin::TooMuch) => refuse(Refusal::TooMany("pinned bytes for this capacity".into())),
        Err(NoPin::Superseded) => {
            refuse(Refusal::Invalid("the file has changed in this moment; pin it again".into()))
        }
        Err(NoPin::Tier(e)) => reply(Reply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!("the tier failed: {e}"),
        }),
    }
}

/// Pins pages that the client maps, if it shows the copy.
pub fn pin_pages(connection: &mut Connection, fds: &[Sent], copy: u64, first: u32, pages: u32) -> Answer {
    let Some(entry) = connection.node.cache.by_copy(copy) else {
        return reply(Reply::Refused(Refusal::Invalid("no such copy any more".into())));
    };
    // Only who was given the copy may hold its pages; and a copy of an earlier agent may have had
    // the same number.
    let held = connection.node.cache.file(&entry);
    if !matches!((fds, held), ([shown], Ok(copy)) if copy.is_same_file(shown.fd.as_fd())) {
        return reply(Reply::Refused(Refusal::NoDescriptor));
    }
    let page_bytes = entry.identity.page_bytes;
    let share = match connection.node.shares.share(
        Kind::Mapped,
        connection.peer.uid,
        u64::from(pages).saturating_mul(page_bytes),
    ) {
        Ok(share) => share,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    if pages == 0 || !connection.node.cache.pin_pages(&entry, first, pages) {
        return reply(Reply::Refused(Refusal::TooMany("pinned pages, or they are not all resident".into())));
    }
    connection.pins.push(PagePins { copy, page_bytes, first, count: pages, share });
    reply(Reply::Done)
}

/// Undoes one pin of this connection; others are ignored.
pub fn unpin_pages(connection: &mut Connection, copy: u64, first: u32, pages: u32) {
    let found = connection.pins.iter().position(|p| (p.copy, p.first, p.count) == (copy, first, pages));
    if let Some(pins) = found.map(|i| connection.pins.swap_remove(i)) {
        connection.node.cache.unpin_pages(copy, pins.page_bytes, first, pages);
    }
}
