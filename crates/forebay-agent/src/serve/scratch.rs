//! Requests about memory-only files ([`crate::jobs::scratch_files`]).

use super::session::{Answer, Connection, reply};
use crate::cache::held::Held;
use crate::jobs::scratch_files::{FILE_BYTES, Job, Scratch, find};
use crate::lock::lock;
use crate::user_limits::Kind;
use forebay_store::bounded::BoundedFile;
use forebay_store::{Class, blocks_bytes};
use forebay_wire::{Refusal, Reply};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Most names in one answer to a listing.
const LIST_MAX: usize = 500;

/// Longest name of a memory-only file in bytes.
const NAME_MAX: usize = 4096;

/// Most files of one user, including those that are given up and still open.
const USER_FILES_MAX: usize = 4096;

/// A token that nobody can guess; `None` if the system has no random bytes.
pub(super) fn new_token() -> Option<String> {
    let mut random = [0u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).ok()?;
    Some(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Starts a job on this connection.
pub fn begin(connection: &mut Connection) -> Answer {
    if connection.job.is_some() {
        return reply(Reply::Refused(Refusal::Invalid("this connection has begun a job already".into())));
    }
    let Some(token) = new_token() else {
        return reply(Reply::Failed {
            errno: libc::EAGAIN,
            message: "the system has no random bytes".into(),
        });
    };
    let job = Job { uid: connection.peer.uid, files: BTreeMap::new() };
    lock(&connection.node.memory_files.by_token).insert(token.clone(), job);
    connection.job = Some(token.clone());
    reply(Reply::Job { token, outlives_exec: connection.process.is_some() })
}

/// Keeps a file of the job beyond the job, as an image.
pub fn keep_image(connection: &Connection, token: &str, name: &[u8], tree: Vec<u8>) -> Answer {
    let uid = connection.peer.uid;
    if tree.len() > NAME_MAX {
        return failed(libc::ENAMETOOLONG, "a tree's name has up to 4096 bytes", &tree);
    }
    let mut image = None;
    let answer = with_job(connection, token, |job| {
        image = job.files.remove(name);
        match image {
            Some(_) => reply(Reply::Done),
            None => failed(libc::ENOENT, "no such memory-only file", name),
        }
    });
    if let Some(image) = image {
        connection.node.memory_files.keep_image(uid, tree, image);
    }
    answer
}

/// Opens an image for reading.
pub fn open_image(connection: &Connection, tree: &[u8]) -> Answer {
    match connection.node.memory_files.open_image(connection.peer.uid, tree) {
        Some(Ok((copy, fd, size))) => Some((Reply::Scratch { copy, size }, vec![fd])),
        Some(Err(e)) => failed(e.raw_os_error().unwrap_or(libc::EIO), "cannot be opened", tree),
        None => failed(libc::ENOENT, "no image is kept", tree),
    }
}

/// Runs `act` on the job if it is the peer's own.
fn with_job(connection: &Connection, token: &str, act: impl FnOnce(&mut Job) -> Answer) -> Answer {
    let mut jobs = lock(&connection.node.memory_files.by_token);
    match jobs.get_mut(token).filter(|job| job.uid == connection.peer.uid) {
        Some(job) => act(job),
        None => reply(Reply::Failed {
            errno: libc::ENOENT,
            message: "no such job; memory-only files end with the job that began them".into(),
        }),
    }
}

fn failed(errno: i32, what: &str, name: &[u8]) -> Answer {
    reply(Reply::Failed { errno, message: format!("{}: {what}", String::from_utf8_lossy(name)) })
}

/// How long writers wait for room; they give an answer up after 30 s.
const FREEING_MAX: Duration = Duration::from_secs(20);

/// Holds room for memory-only files. If there is none, images of the user are given up, first the
/// one that was used longest ago; when none is left, map outputs of the user go to the disk.
fn hold(connection: &Connection, bytes: u64) -> Result<Held, Refusal> {
    let node = &connection.node;
    let uid = connection.peer.uid;
    let until = Instant::now() + FREEING_MAX;
    let is_possible = bytes <= node.cache.budget.capacity_bytes();
    loop {
        let room = node.cache.hold(&node.shares, uid, Class::Scratch, bytes);
        let frees = || node.memory_files.give_up_oldest_image(uid) || node.shuffles.spill_one(Some(uid));
        if room.is_ok() || !is_possible || Instant::now() >= until || !frees() {
            return room;
        }
    }
}

/// Creates or replaces a file.
pub fn create(connection: &Connection, token: &str, name: Vec<u8>, exclusive: bool) -> Answer {
    if name.is_empty() || name.len() > NAME_MAX {
        return failed(libc::EINVAL, "a name has 1 to 4096 bytes", &name);
    }
    let node = &connection.node;
    let uid = connection.peer.uid;
    if node.memory_files.files_of(uid) >= USER_FILES_MAX {
        return reply(Reply::Refused(Refusal::TooMany("memory-only files of this user".into())));
    }
    let room = hold(connection, FILE_BYTES).and_then(|room| {
        Ok((room, node.shares.share(Kind::Descriptors, uid, BoundedFile::descriptors(&node.cache.tier))?))
    });
    let (room, descriptors) = match room {
        Ok(both) => both,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    let made = BoundedFile::create(&node.cache.tier).and_then(|file| Ok((file.for_writing()?, file)));
    let (sent, file) = match made {
        Ok(pair) => pair,
        Err(e) => return failed(e.raw_os_error().unwrap_or(libc::EIO), "cannot be made", &name),
    };
    let copy = node.cache.next_copy();
    with_job(connection, token, |job| {
        if exclusive && job.files.contains_key(&name) {
            return failed(libc::EEXIST, "exists already", &name);
        }
        if let Some(replaced) =
            job.files.insert(name, Scratch { copy, file, room, descriptors, on_disk: None })
        {
            node.memory_files.give_up(uid, replaced);
        }
        Some((Reply::Scratch { copy, size: 0 }, vec![sent]))
    })
}

/// Sets the room of a file: more for it to grow, or less once it is written.
pub fn reserve(connection: &Connection, copy: u64, bytes: u64) -> Answer {
    let node = &connection.node;
    let uid = connection.peer.uid;
    let wanted = blocks_bytes(bytes).saturating_add(FILE_BYTES);
    let held = {
        let mut jobs = lock(&node.memory_files.by_token);
        match find(&mut jobs, uid, copy) {
            Some(scratch) if scratch.file.is_on_disk() => return reply(Reply::Done),
            Some(scratch) => scratch.room.bytes(),
            None => return failed(libc::ENOENT, "no such memory-only file", b"scratch"),
        }
    };
    if wanted <= held {
        if let Some(scratch) = find(&mut lock(&node.memory_files.by_token), uid, copy) {
            scratch.give_back_beyond(wanted);
        }
        return reply(Reply::Done);
    }
    // Outside of the lock: room may have to be made first.
    let more = match hold(connection, wanted - held) {
        Ok(more) => more,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    match find(&mut lock(&node.memory_files.by_token), uid, copy) {
        Some(scratch) => {
            scratch.room.merge(more);
            if let Err(e) = scratch.file.set_room(scratch.room.bytes() - FILE_BYTES) {
                return failed(e.raw_os_error().unwrap_or(libc::EIO), "its room cannot be set", b"scratch");
            }
        }
        None => return failed(libc::ENOENT, "no such memory-only file", b"scratch"),
    }
    reply(Reply::Done)
}

/// Opens a file for reading.
pub fn open(connection: &Connection, token: &str, name: &[u8]) -> Answer {
    with_job(connection, token, |job| {
        let Some(scratch) = job.files.get(name) else {
            return failed(libc::ENOENT, "no such memory-only file", name);
        };
        match scratch.file.for_reading() {
            Ok((fd, size)) => Some((Reply::Scratch { copy: scratch.copy, size }, vec![fd])),
            Err(e) => failed(e.raw_os_error().unwrap_or(libc::EIO), "cannot be opened", name),
        }
    })
}

/// Removes a file.
pub fn remove(connection: &Connection, token: &str, name: &[u8]) -> Answer {
    with_job(connection, token, |job| match job.files.remove(name) {
        Some(scratch) => {
            connection.node.memory_files.give_up(connection.peer.uid, scratch);
            reply(Reply::Done)
        }
        None => failed(libc::ENOENT, "no such memory-only file", name),
    })
}

/// Lists names and lengths.
pub fn list(connection: &Connection, token: &str, after: &[u8]) -> Answer {
    use std::ops::Bound;
    with_job(connection, token, |job| {
        let range = (
            if after.is_empty() { Bound::Unbounded } else { Bound::Excluded(after.to_vec()) },
            Bound::Unbounded,
        );
        let mut files = Vec::new();
        let mut bytes = 0;
        let mut more = false;
        for (name, scratch) in job.files.range(range) {
            // Answers must fit a packet, whatever the names.
            if files.len() == LIST_MAX || bytes + name.len() > forebay_wire::MAX_PACKET_BYTES / 2 {
                more = true;
                break;
            }
            bytes += name.len() + 16;
            files.push((name.clone(), scratch.file.size()));
        }
        reply(Reply::ScratchList { files, more })
    })
}
