//! What operators and the command line ask for: state, listings, pins, evictions, loads, capacity,
//! the end.

use crate::agent::Shared;
use crate::cache::entry::Entry;
use crate::cache::{Freed, NoCopy};
use crate::mounts::{Admitted, display_path};
use crate::prefetch::load::LoadJob;
use crate::serve::connection::{Answer, Connection, reply};
use crate::shares::Kind;
use crate::units::Human;
use forebay_store::budget::CLASSES;
use forebay_wire::{CachedFile, LoadProgress, MAX_PACKET_BYTES, Refusal, Reply, Status};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Failures of a load in one answer; the rest comes with the next.
const FAILURE_BYTES_MAX: usize = 32 << 10;

fn evicted(freed: Freed) -> Answer {
    reply(Reply::Evicted { bytes: freed.bytes, pages: freed.pages })
}

fn not_allowed() -> Answer {
    reply(Reply::Refused(Refusal::NotAllowed))
}

/// Keeps the whole file, or lets it go again.
pub fn pin_file(connection: &Connection, file: Admitted, fd: &OwnedFd, on: bool) -> Answer {
    let shared = &connection.shared;
    if !on {
        let entry = shared.cache.find(file.mount, &file.facts);
        return entry.map_or_else(|| reply(Reply::Done), |entry| unpin(connection, &entry));
    }
    let share = match shared.share(Kind::Held, connection.peer.uid, file.facts.version.size) {
        Ok(share) => share,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    let mount = &shared.mounts[file.mount];
    let page_bytes = mount.config.page_bytes;
    let path = || display_path(fd.as_fd());
    let pinned = shared
        .cache
        .find_or_create(file.mount, mount.label(), page_bytes, &file.facts, path, &shared.counters)
        .and_then(|entry| {
            let pinned = shared.cache.pin_entry(&entry, share);
            shared.cache.drop_if_empty(&entry);
            pinned
        });
    pin_answer(pinned)
}

/// Lets a file go that this user has pinned. Others' pins are the operator's to undo.
fn unpin(connection: &Connection, entry: &Arc<Entry>) -> Answer {
    let (shared, uid) = (&connection.shared, connection.peer.uid);
    match entry.pinned_by() {
        Some(owner) if owner != uid && !shared.is_operator(uid) => reply(Reply::Refused(Refusal::Invalid(
            format!("user {owner} has pinned it; that user, the agent's user or root can unpin it"),
        ))),
        _ => {
            let unpinned = shared.cache.unpin_entry(entry);
            shared.cache.drop_if_empty(entry);
            pin_answer(unpinned)
        }
    }
}

/// Lets a pinned copy go by its number: its file may be gone from the PFS.
pub fn unpin_copy(connection: &Connection, copy: u64) -> Answer {
    let entry = connection.shared.cache.by_copy(copy);
    entry.map_or_else(|| reply(Reply::Done), |entry| unpin(connection, &entry))
}

fn pin_answer(pinned: Result<(), NoCopy>) -> Answer {
    match pinned {
        Ok(()) => reply(Reply::Done),
        Err(NoCopy::NoRoom) => {
            reply(Reply::Refused(Refusal::TooMany("pinned bytes for this capacity".into())))
        }
        Err(NoCopy::TooLarge) => {
            reply(Reply::Refused(Refusal::Invalid("the file has too many pages".into())))
        }
        Err(NoCopy::Tier(e)) => reply(Reply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!("the tier failed: {e}"),
        }),
    }
}

/// Gives back one file.
pub fn evict_file(connection: &Connection, file: Admitted) -> Answer {
    let shared = &connection.shared;
    match shared.cache.find(file.mount, &file.facts) {
        Some(entry) if !entry.pinned.load(Ordering::Relaxed) => {
            evicted(shared.cache.evict_entry(&entry, &shared.counters))
        }
        Some(_) => reply(Reply::Refused(Refusal::Invalid("the file is pinned; unpin it first".into()))),
        None => evicted(Freed::default()),
    }
}

/// Gives back all that may go.
pub fn evict_all(connection: &Connection) -> Answer {
    let shared = &connection.shared;
    if !shared.is_operator(connection.peer.uid) {
        return not_allowed();
    }
    shared.cache.unplan(None);
    evicted(shared.cache.evict(u64::MAX, &shared.counters))
}

/// Starts a load.
pub fn load_begin(connection: &mut Connection, rate_bytes_per_s: u64) -> Answer {
    if let Some(old) = connection.load.take() {
        old.cancel();
    }
    let share = match connection.shared.share(Kind::Loads, connection.peer.uid, 1) {
        Ok(share) => share,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    match LoadJob::start(&connection.shared, rate_bytes_per_s, share) {
        Ok(job) => {
            connection.load = Some(job);
            reply(Reply::Done)
        }
        Err(e) => reply(Reply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::EAGAIN),
            message: format!("cannot start a load: {e}"),
        }),
    }
}

/// Adds files to the load.
pub fn load_files(connection: &Connection, first_index: u64, fds: Vec<OwnedFd>) -> Answer {
    let Some(job) = &connection.load else {
        return reply(Reply::Refused(Refusal::Invalid("no load was begun".into())));
    };
    let keep = |fd| connection.shared.keep_file(connection.peer.uid, fd);
    match fds.into_iter().map(keep).collect() {
        Ok(files) => match job.add(first_index, files) {
            true => reply(Reply::Done),
            false => reply(Reply::Refused(Refusal::TooMany("files waiting in this load".into()))),
        },
        Err(refusal) => reply(Reply::Refused(refusal)),
    }
}

/// Tells how far the load is.
pub fn load_poll(connection: &Connection, wait_ms: u32) -> Answer {
    match &connection.load {
        None => reply(Reply::Refused(Refusal::Invalid("no load was begun".into()))),
        Some(job) => {
            let wait = Duration::from_millis(u64::from(wait_ms.min(10_000)));
            reply(Reply::Load(fit(job.poll(wait))))
        }
    }
}

/// Cuts what would not fit a packet; a count in place of the rest.
fn fit(mut progress: LoadProgress) -> LoadProgress {
    let mut bytes = 0;
    let fits = progress.failures.iter().take_while(|(_, _, message)| {
        bytes += message.len() + 16;
        bytes <= FAILURE_BYTES_MAX
    });
    let keep = fits.count();
    let cut = progress.failures.len() - keep;
    progress.failures.truncate(keep);
    if cut > 0 {
        progress.failures.push((u64::MAX, 0, format!("and {cut} more files")));
    }
    progress
}

/// Ends the load.
pub fn load_cancel(connection: &mut Connection) -> Answer {
    match connection.load.take() {
        None => reply(Reply::Refused(Refusal::Invalid("no load was begun".into()))),
        Some(job) => {
            job.cancel();
            reply(Reply::Load(fit(job.poll(Duration::ZERO))))
        }
    }
}

/// Lists cached files; names of other users' files are for the operator only.
pub fn list(connection: &Connection, after: u64) -> Answer {
    let shared = &connection.shared;
    let operator = shared.is_operator(connection.peer.uid);
    let mut files = Vec::new();
    let mut bytes = 0;
    let mut last = after;
    loop {
        let entries = shared.cache.list(last, 256);
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
pub fn status(shared: &Shared) -> Status {
    let totals = shared.cache.totals();
    let mut counters = shared.counters.list();
    counters.push(("guest_bytes".into(), totals.guest_bytes));
    counters.push(("lent_bytes".into(), totals.lent_bytes));
    counters.push(("planned_bytes".into(), totals.planned_bytes));
    counters.push(("client_pinned_bytes".into(), totals.client_pinned_bytes));
    counters.push(("closes_waiting".into(), shared.closer.waiting(None) as u64));
    counters.push(("held_files".into(), shared.cache.held_files()));
    if let Ok((free, total)) = shared.cache.tier.free_and_total_bytes() {
        counters.push(("tmpfs_free_bytes".into(), free));
        counters.push(("tmpfs_total_bytes".into(), total));
    }
    let resident = shared.budget.class_bytes(forebay_store::Class::Pages);
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_ms: shared.started.elapsed().as_millis() as u64,
        tier: shared.cache.tier.description(),
        huge_pages: shared.cache.tier.huge_pages().to_owned(),
        eviction: shared.config.eviction.to_string(),
        capacity_bytes: shared.budget.capacity_bytes(),
        used_bytes: CLASSES.map(|(class, name)| (name.to_owned(), shared.budget.class_bytes(class))).into(),
        resident_bytes: resident,
        pinned_bytes: totals.pinned_bytes,
        files: totals.files,
        scratch_files: shared.jobs.files(),
        connections: shared.connections.load(Ordering::Relaxed) as u64,
        cluster: shared.cluster.status(),
        counters,
        mounts: shared.mounts.iter().map(|m| m.status()).collect(),
    }
}

/// Changes the capacity.
pub fn set_capacity(connection: &Connection, bytes: u64) -> Answer {
    let shared = &connection.shared;
    if !shared.is_operator(connection.peer.uid) {
        return not_allowed();
    }
    let usable = crate::memory::usable_bytes();
    if bytes > usable {
        return reply(Reply::Refused(Refusal::Invalid(format!(
            "{bytes} bytes ({}) are more than this node or its control group allows the agent: {usable} ({}); choose less",
            Human(bytes),
            Human(usable)
        ))));
    }
    match shared.cache.tier.free_and_total_bytes() {
        Ok((_, total)) if bytes > total => reply(Reply::Refused(Refusal::Invalid(format!(
            "{bytes} bytes ({}) are more than the tier's memory file system can hold: {total} ({}); raise tier.limit and restart",
            Human(bytes),
            Human(total)
        )))),
        _ => evicted(shared.cache.set_capacity(bytes, &shared.counters)),
    }
}

/// Ends the agent, once the answer is on its way: an idle agent is gone faster than its last
/// packet.
pub fn shutdown(connection: &mut Connection) -> Answer {
    if !connection.shared.is_operator(connection.peer.uid) {
        return not_allowed();
    }
    connection.ends_agent = true;
    reply(Reply::Done)
}
