//! Pins: whole files that users keep in the tier, and pages that programs map.

use super::closer::Sent;
use super::session::{Answer, Connection, refuse, reply};
use crate::cache::entry::Entry;
use crate::cache::{NoMap, NoPin};
use crate::mounts::admit::{Admitted, NoFile, admit_at};
use crate::user_limits::Kind;
use forebay_pfs::lease::{Opened, Writers};
use forebay_wire::{Refusal, Reply};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Pins the whole file, or unpins it again.
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

/// Unpins a file that this user has pinned. Others' pins are the operator's to undo.
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

/// Unpins a pinned copy by its number: its file may be gone from the PFS.
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

/// Pins pages that the client maps, if it shows the copy. If it shows the file as well, only while
/// nobody writes that.
pub fn pin_pages(connection: &Connection, mut fds: Vec<Sent>, copy: u64, first: u32, pages: u32) -> Answer {
    let (node, uid) = (&connection.node, connection.peer.uid);
    let Some(entry) = node.cache.by_copy(copy) else {
        return refuse(Refusal::Invalid("no such copy any more".into()));
    };
    let replaced = if fds.len() == 2 { fds.pop() } else { None };
    // Only a client that was given the copy may hold its pages; and a copy of an earlier agent may
    // have had the same number.
    let held = node.cache.file(&entry);
    if !matches!((&fds[..], held), ([shown], Ok(copy)) if copy.is_same_file(shown.fd.as_fd())) {
        return refuse(Refusal::NoDescriptor);
    }
    if let Some(file) = replaced
        && let Err(refusal) = require_rest(connection, &entry, &file)
    {
        return refuse(refusal);
    }
    let take = |bytes| node.shares.share(Kind::Mapped, uid, bytes);
    match node.cache.pin_pages(&entry, first..first.saturating_add(pages), uid, take) {
        Ok(to_map) => Some((Reply::Done, vec![to_map])),
        Err(NoMap::Absent) => reply(Reply::Waits),
        Err(NoMap::Refused(refusal)) => refuse(refusal),
    }
}

/// Checks that a mapping of the copy may take the place of one of the file, which would show later
/// writes: the file has this version, has not changed for a while, and nobody on this node has it
/// open for writing.
fn require_rest(connection: &Connection, entry: &Entry, file: &Sent) -> Result<(), Refusal> {
    let mounts = &connection.node.mounts;
    let admitted = admit_at(mounts, file.fd.as_fd(), &file.place).map_err(|no| match no {
        NoFile::Refused(refusal) => refusal,
        NoFile::Pfs(e) => Refusal::Invalid(format!("the file system did not return its attributes: {e}")),
    })?;
    if (admitted.mount, admitted.facts.version) != (entry.mount, entry.identity.version) {
        return Err(Refusal::Invalid("the copy is of another version of the file".into()));
    }
    let mount = &mounts[admitted.mount];
    if mount.is_unchanging() {
        return Ok(());
    }
    if !mount.has_rested(&admitted.facts) {
        return Err(Refusal::RacilyClean);
    }
    match mount.source.writers(file.fd.as_fd(), Opened::Elsewhere) {
        Writers::Some => Err(Refusal::BeingWritten),
        Writers::None | Writers::Unknown => Ok(()),
    }
}
