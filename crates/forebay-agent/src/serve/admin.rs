//! What operators and the command line ask for: state, listings, evictions, capacity, the end.

use super::session::{Answer, Connection, Node, reply};
use crate::cache::Freed;
use crate::mounts::admit::Admitted;
use crate::units::Human;
use forebay_store::budget::CLASSES;
use forebay_wire::{CachedFile, MAX_PACKET_BYTES, Refusal, Reply, Status};
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::SystemTime;

fn evicted(freed: Freed) -> Answer {
    reply(Reply::Evicted { bytes: freed.bytes, pages: freed.pages })
}

fn not_allowed() -> Answer {
    reply(Reply::Refused(Refusal::NotAllowed))
}

/// Releases one file.
pub fn evict_file(connection: &Connection, file: Admitted) -> Answer {
    let answer = evict_one(connection, file);
    if let Some((Reply::Evicted { bytes, .. }, _)) = &answer {
        connection.node.audit.note_evicted(connection.peer, *bytes);
    }
    answer
}

fn evict_one(connection: &Connection, file: Admitted) -> Answer {
    let node = &connection.node;
    node.cache.release_unmapped();
    match node.cache.find(file.mount, &file.facts) {
        Some(entry) if !entry.pinned.load(Ordering::Relaxed) => {
            node.cache.disk().iter().for_each(|disk| disk.forget(&entry));
            evicted(node.cache.evict_entry(&entry))
        }
        Some(_) => reply(Reply::Refused(Refusal::Invalid("the file is pinned; unpin it first".into()))),
        None => evicted(Freed::default()),
    }
}

/// Releases all that may go.
pub fn evict_all(connection: &Connection) -> Answer {
    let node = &connection.node;
    if !node.shares.is_operator(connection.peer.uid) {
        return not_allowed();
    }
    node.cache.unplan(None);
    node.cache.release_unmapped();
    node.memory_files.give_up_images(Duration::ZERO);
    evicted(node.cache.evict_all())
}

/// Lists cached files; names of other users' files are for the operator only.
pub fn list(connection: &Connection, after: u64) -> Answer {
    let node = &connection.node;
    let operator = node.shares.is_operator(connection.peer.uid);
    let mut files = Vec::new();
    let mut bytes = 0;
    let mut last = after;
    loop {
        let entries = node.cache.list(last, 256);
        if entries.is_empty() {
            return reply(Reply::List { files, more: false });
        }
        for entry in entries {
            let identity = &entry.identity;
            let uid = connection.peer.uid;
            if operator || identity.owner_uid == uid || entry.pinned_by() == Some(uid) {
                bytes += identity.path.len() + identity.mount.len() + 128;
                if bytes > MAX_PACKET_BYTES / 2 {
                    return reply(Reply::List { files, more: true });
                }
                files.push(CachedFile {
                    copy: entry.copy(),
                    mount: identity.mount.clone(),
                    path: identity.path.clone(),
                    version: identity.version,
                    resident_bytes: entry.resident_bytes.load(Ordering::Relaxed),
                    pinned: entry.pinned.load(Ordering::Relaxed),
                    stale: entry.stale.load(Ordering::Relaxed),
                });
            }
            last = entry.copy();
        }
    }
}

/// State and counters.
pub fn status(node: &Node) -> Status {
    let totals = node.cache.totals();
    let mut counters = node.counters.list();
    counters.push(("remote_page_bytes".into(), totals.remote_page_bytes));
    counters.push(("lent_bytes".into(), totals.lent_bytes));
    counters.push(("planned_bytes".into(), totals.planned_bytes));
    counters.push(("announced_bytes".into(), totals.announced_bytes));
    counters.push(("client_pinned_bytes".into(), totals.client_pinned_bytes));
    counters.push(("closes_waiting".into(), node.closer.waiting(None) as u64));
    let (dirty_files, dirty_bytes) = node.write_back.totals();
    counters.extend([("dirty_files".into(), dirty_files), ("dirty_bytes".into(), dirty_bytes)]);
    let (parked_files, oldest) = node.write_back.neglected();
    counters
        .extend([("parked_files".into(), parked_files), ("oldest_dirty_seconds".into(), oldest.as_secs())]);
    let ends = node.security.expires().and_then(|ends| ends.duration_since(SystemTime::UNIX_EPOCH).ok());
    counters.extend(ends.map(|ends| ("certificate_expires_timestamp_seconds".into(), ends.as_secs())));
    counters.push(("held_files".into(), node.cache.mapped_files()));
    if let Ok((free, total)) = node.cache.tier.free_and_total_bytes() {
        counters.push(("tmpfs_free_bytes".into(), free));
        counters.push(("tmpfs_total_bytes".into(), total));
    }
    let mounts = node.mounts.iter().enumerate();
    let resident = node.cache.budget.class_bytes(forebay_store::Class::Pages);
    let (memory_places, memory_alarms) = node.control.sources();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_ms: node.started.elapsed().as_millis() as u64,
        tier: node.cache.tier.description(),
        huge_pages: node.cache.tier.huge_pages().to_owned(),
        eviction: node.config.eviction.to_string(),
        capacity_bytes: node.cache.budget.capacity_bytes(),
        used_bytes: CLASSES
            .map(|(class, name)| (name.to_owned(), node.cache.budget.class_bytes(class)))
            .into(),
        resident_bytes: resident,
        pinned_bytes: totals.pinned_bytes,
        files: totals.files,
        scratch_files: node.memory_files.files(),
        connections: node.connections.load(Ordering::Relaxed) as u64,
        memory_problems: node.control.problems(),
        memory_places,
        memory_alarms,
        cluster: node.cluster.status(),
        counters,
        mounts: mounts.map(|(number, mount)| mount.status(node.fetch.pfs.load(number))).collect(),
        traffic: node.fetch.traffic.status(),
    }
}

/// Changes the capacity.
pub fn set_capacity(connection: &Connection, bytes: u64) -> Answer {
    let node = &connection.node;
    if !node.shares.is_operator(connection.peer.uid) {
        return not_allowed();
    }
    match change_capacity(node, bytes) {
        Ok(freed) => evicted(freed),
        Err(e) => reply(Reply::Refused(Refusal::Invalid(e))),
    }
}

/// Sets the most that the tier may have.
///
/// # Errors
/// The node or the tier's file system cannot hold it; says both numbers.
pub fn change_capacity(node: &Node, bytes: u64) -> Result<Freed, String> {
    let usable = crate::memory::usable_bytes();
    if bytes > usable {
        return Err(format!(
            "{bytes} bytes ({}) are more than this node or its control group allows the agent: {usable} ({}); choose less",
            Human(bytes),
            Human(usable)
        ));
    }
    match node.cache.tier.free_and_total_bytes() {
        Ok((_, total)) if bytes > total => Err(format!(
            "{bytes} bytes ({}) are more than the tier's memory file system can hold: {total} ({}); raise tier.limit and restart",
            Human(bytes),
            Human(total)
        )),
        _ => {
            node.cache.release_unmapped();
            Ok(node.control.set_max(bytes))
        }
    }
}

/// Ends the agent once the answer is on its way: an idle agent would be gone before its last
/// packet.
pub fn shutdown(connection: &mut Connection) -> Answer {
    if !connection.node.shares.is_operator(connection.peer.uid) {
        return not_allowed();
    }
    connection.ends_agent = true;
    reply(Reply::Done)
}
