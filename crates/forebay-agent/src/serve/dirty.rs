//! Requests about files that are written back ([`crate::write_back`]).

use super::closer::Sent;
use super::session::{Answer, Connection, refuse, reply};
use crate::mounts::admit::Admitted;
use crate::write_back::newest::Newest;
use crate::write_back::{Drained, Opening, Taken, WriteBack};
use forebay_wire::traffic::is_job_name;
use forebay_wire::{GuestMode, Refusal, Reply, SecondPlace};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

const STACK_BYTES: usize = 256 << 10;

/// A restarted agent learns of guests by their next call.
const NO_GUEST: &str = "the guest has to connect again";

/// How long the answer to one question is waited for.
const ANSWER: Duration = Duration::from_secs(1);

/// Takes a file that a program has opened for writing; `pfs` is open for writing anywhere in it.
pub fn absorb(
    connection: &Connection,
    file: &Admitted,
    pfs: OwnedFd,
    (owner, job): (Option<u32>, Option<&str>),
    is_wanted: bool,
    opening: Opening,
) -> Answer {
    let sender = connection.peer.uid;
    let owner = owner.filter(|_| connection.node.shares.is_operator(sender)).unwrap_or(sender);
    let again = connection.node.cluster.has_others().then(|| pfs.try_clone());
    // An operator's mount says for whom it has opened the file, and perhaps for which job.
    let account = match job.filter(|job| is_job_name(job)) {
        None if owner == sender => connection.account.clone(),
        job => connection.node.fetch.traffic.account(owner, job.unwrap_or_default()),
    };
    match connection.node.write_back.absorb((job, account), file, pfs, is_wanted, opening) {
        Ok(Taken::Here(got)) => {
            Some((Reply::Dirty { copy: got.copy, size: got.size }, vec![got.content, got.words]))
        }
        Ok(Taken::Elsewhere) if opening.guest == GuestMode::Descriptor => {
            let node = &connection.node;
            let on = (&*node.write_back, node.mounts[file.mount].root());
            let again = again.unwrap_or_else(|| Err(std::io::ErrorKind::NotFound.into()));
            let opened = again.and_then(|pfs| node.guest_mounts.open(on, file, &pfs, &opening));
            match opened {
                Ok((copy, content, words)) => Some((Reply::Dirty { copy, size: 0 }, vec![content, words])),
                Err(e) => {
                    connection.node.write_back.refuse_guest(file, opening.truncated);
                    refuse(Refusal::Invalid(format!(
                        "programs of another node write the file, and this one cannot: {e}"
                    )))
                }
            }
        }
        Ok(Taken::Elsewhere) => reply(Reply::Elsewhere),
        Err(refusal) => refuse(refusal),
    }
}

/// Makes room for a write.
pub fn make_room(connection: &Connection, copy: u64, bytes: u64) -> Answer {
    match connection.node.write_back.make_room(connection.peer.uid, copy, bytes) {
        Ok(()) => reply(Reply::Done),
        Err(refusal) => refuse(refusal),
    }
}

fn drained(drained: Drained) -> Answer {
    reply(match drained {
        Drained::Yes => Reply::Done,
        Drained::NotYet => Reply::Waits,
        Drained::Failed(errno, message) => Reply::Failed { errno, message },
    })
}

/// Makes a writer continue at the PFS.
pub fn call_in(connection: &Connection, copy: u64) -> Answer {
    if WriteBack::is_guest(copy) && connection.node.write_back.guest_away(copy).is_none() {
        return refuse(Refusal::Invalid(NO_GUEST.into()));
    }
    drained(connection.node.write_back.call_in(connection.peer.uid, copy))
}

/// Waits until the PFS has one file, or all that the user's programs have written on this node. The
/// first question says which, the others repeat it.
pub fn sync(connection: &mut Connection, fds: Vec<Sent>) -> Answer {
    let (write_back, uid) = (connection.node.write_back.clone(), connection.peer.uid);
    let one = match fds.first() {
        None => None,
        Some(Sent { place, .. }) => match place.mount {
            Some(mount) => Some((mount, place.ino)),
            None => return refuse(Refusal::NotOnMount),
        },
    };
    let mut elsewhere = std::mem::take(&mut connection.syncing_elsewhere);
    let mut here = connection.syncing.take().unwrap_or_else(|| {
        elsewhere = write_back.to_sync_elsewhere(uid, one);
        write_back.to_sync(uid, one)
    });
    let answer = match write_back.sync(&mut here) {
        Drained::Yes => write_back.sync_elsewhere(&mut elsewhere),
        other => other,
    };
    if answer == Drained::NotYet {
        (connection.syncing, connection.syncing_elsewhere) = (Some(here), elsewhere);
    }
    drained(answer)
}

/// Waits until the second place or the PFS has one file, or all of the user's. The first question
/// says which, the others repeat it.
pub fn keep(connection: &mut Connection, copy: Option<u64>, second: SecondPlace) -> Answer {
    let write_back = &connection.node.write_back;
    if let Some(number) = copy.filter(|copy| WriteBack::is_guest(*copy)) {
        return match write_back.guest_away(number) {
            Some(away) => drained(write_back.keep_for_guest(&away, second)),
            None => refuse(Refusal::Invalid(NO_GUEST.into())),
        };
    }
    let mut wanted = match connection.keeping.take() {
        Some(wanted) => wanted,
        None => match write_back.to_keep(connection.peer.uid, copy, second) {
            Ok(wanted) => wanted,
            Err(refusal) => return refuse(refusal),
        },
    };
    let answer = write_back.wait_for_copies(&mut wanted);
    if answer == Drained::NotYet {
        connection.keeping = Some(wanted);
    }
    drained(answer)
}

/// Has the newest content of a file sent here, if another node has it.
pub fn open_newest(connection: &mut Connection, file: &Admitted, fd: OwnedFd) -> Answer {
    let (mount, facts) = (file.mount, file.facts);
    if let Some((copy, size, content)) = connection.node.write_back.open(mount, &facts, fd.as_fd()) {
        return Some((Reply::Dirty { copy, size }, vec![content]));
    }
    let (newest, coming) = channel();
    let (write_back, uid) = (connection.node.write_back.clone(), connection.peer.uid);
    let body = move || {
        // The asker may be gone.
        let _ = newest.send(write_back.newest(uid, mount, &fd));
    };
    if let Err(e) = std::thread::Builder::new().name("newest".into()).stack_size(STACK_BYTES).spawn(body) {
        return refuse(Refusal::Invalid(format!("no thread: {e}")));
    }
    connection.coming = Some(coming);
    wait_for_newest(connection)
}

/// Waits a while for the content that another node sends.
pub fn wait_for_newest(connection: &mut Connection) -> Answer {
    let Some(coming) = connection.coming.take() else {
        return refuse(Refusal::Invalid("nothing is on its way".into()));
    };
    match coming.recv_timeout(ANSWER) {
        Ok(Ok(Newest::Pfs)) => reply(Reply::Done),
        Ok(Ok(Newest::Content(size, content))) => Some((Reply::Dirty { copy: 0, size }, vec![content])),
        Ok(Err(e)) => {
            reply(Reply::Failed { errno: e.raw_os_error().unwrap_or(libc::EIO), message: e.to_string() })
        }
        Err(RecvTimeoutError::Timeout) => {
            connection.coming = Some(coming);
            reply(Reply::Waits)
        }
        Err(RecvTimeoutError::Disconnected) => refuse(Refusal::Invalid("the agent failed".into())),
    }
}

/// What a program that asks for attributes has to know.
pub fn stat(connection: &Connection, dev: u64, ino: u64) -> Answer {
    match connection.node.write_back.stat(dev, ino) {
        Some((size, blocks, mtime_ns, left_mtime_ns)) => {
            reply(Reply::DirtyStat { size, blocks, mtime_ns, left_mtime_ns })
        }
        None => refuse(Refusal::Invalid("not dirty".into())),
    }
}

/// Notes that a program sets the times of a file on the PFS.
pub fn note_times(connection: &Connection, (dev, ino): (u64, u64), mtime_ns: Option<i64>) -> Answer {
    match connection.node.write_back.note_times(connection.peer.uid, (dev, ino), mtime_ns) {
        true => reply(Reply::Done),
        false => refuse(Refusal::Invalid("not dirty".into())),
    }
}

/// Lists dirty files.
pub fn list(connection: &Connection, after: u64) -> Answer {
    let (files, more) = connection.node.write_back.list(connection.peer.uid, after);
    reply(Reply::DirtyList { files, more })
}

/// Hands out the content of a dirty file.
pub fn export(connection: &Connection, copy: u64) -> Answer {
    match connection.node.write_back.export(connection.peer.uid, copy) {
        Some((size, content)) => Some((Reply::Dirty { copy, size }, vec![content])),
        None => refuse(Refusal::Invalid("no such dirty file".into())),
    }
}

/// Gives up a parked file.
pub fn discard(connection: &Connection, copy: u64) -> Answer {
    match connection.node.write_back.discard(connection.peer.uid, copy) {
        Ok(()) => reply(Reply::Done),
        Err(refusal) => refuse(refusal),
    }
}
