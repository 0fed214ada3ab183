//! A client writes a file through: to the PFS itself, and to the tier through a staging buffer.
//!
//! The pages gather in a file of the tier that nobody can read yet. When the writer is done it
//! reports which version it has left on the PFS; only if the PFS says the same now do the pages
//! become that version's copy. Whatever goes wrong before costs the copy and nothing else: the PFS
//! has the data.

use super::session::{Answer, Connection, refuse, reply};
use super::write_staging::{NoStage, SLOTS, Stage};
use crate::mounts::COARSE;
use crate::mounts::admit::Admitted;
use crate::mounts::opened_path::opened_path;
use forebay_pfs::FileVersion;
use forebay_store::copy::CopyIdentity;
use forebay_store::staging::HEAD_BYTES;
use forebay_wire::{Refusal, Reply};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Lends a staging buffer.
pub fn begin(connection: &mut Connection) -> Answer {
    connection.stage = None;
    let (node, uid) = (&connection.node, connection.peer.uid);
    if node.mounts.iter().all(|mount| mount.is_coarse.load(Ordering::Relaxed)) {
        return refuse(Refusal::NoRoom);
    }
    // Pages are as large as on the mount with the largest ones: which mount it will be is known
    // only at the end.
    let page_bytes = node.mounts.iter().map(|m| m.config.page_bytes).max().unwrap_or(2 << 20);
    match Stage::new(&node.cache, &node.shares, &node.counters, uid, page_bytes) {
        Ok((stage, fd)) => {
            let answer =
                Reply::Staging { head_bytes: HEAD_BYTES, slots: SLOTS, page_bytes: stage.page_bytes };
            connection.stage = Some(stage);
            Some((answer, vec![fd]))
        }
        Err(NoStage::Refused(refusal)) => refuse(refusal),
        Err(NoStage::Tier(e)) => reply(Reply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!("cannot make a staging buffer: {e}"),
        }),
    }
}

/// Takes over one page from the buffer.
pub fn page(connection: &mut Connection, slot: u32, page: u32, len: u64) {
    if let Some(stage) = &mut connection.stage {
        stage.page(slot, page, len);
    }
}

/// Makes a copy of what was staged, if the PFS has exactly the version that the writer left.
pub fn commit(connection: &mut Connection, file: Admitted, fd: &OwnedFd, version: &FileVersion) -> Answer {
    let Some(stage) = &mut connection.stage else {
        return refuse(Refusal::Invalid("nothing is staged".into()));
    };
    let facts = file.facts;
    if facts.version != *version {
        return reply(Reply::Changed(facts));
    }
    let mount = &connection.node.mounts[file.mount];
    if mount.racy_for(&facts) >= COARSE && mount.is_racily_clean(&facts) {
        // A program that writes it again in the same second, here or elsewhere, leaves the same
        // stamps. The next file need not be staged.
        mount.is_coarse.store(true, Ordering::Relaxed);
        return refuse(Refusal::RacilyClean);
    }
    if !mount.is_believed() {
        return refuse(Refusal::StampsUnproved);
    }
    if stage.page_bytes != mount.config.page_bytes || stage.pages.is_empty() || facts.version.size == 0 {
        return refuse(Refusal::Invalid("nothing of it can be kept".into()));
    }
    let identity = CopyIdentity {
        copy: stage.copy,
        mount: mount.label().to_owned(),
        path: opened_path(fd.as_fd()),
        owner_uid: facts.uid,
        version: facts.version,
        page_bytes: mount.page_bytes_of(fd.as_fd(), facts.version.size),
    };
    match stage.finish(identity, file.mount) {
        Ok(()) => reply(Reply::Done),
        Err(e) => reply(Reply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::ENOSPC),
            message: format!("the written file cannot be kept in the tier: {e}"),
        }),
    }
}
