//! A program on this node writes a file that is dirty on another node: its requests are passed on
//! to that node ([`crate::write_back::guests`]).

use super::guest_connection::Guest;
use super::session::{Answer, Connection, refuse, reply};
use crate::mounts::admit::Admitted;
use crate::write_back::guests::NoGuest;
use forebay_store::Class;
use forebay_store::dirty::guest_buffer;
use forebay_wire::peer::PeerReply;
use forebay_wire::{GUEST_BYTES, GuestCall, GuestId, Refusal, Reply};
use std::os::fd::{AsFd, OwnedFd};

/// Makes the program a guest of the node where the file is dirty.
pub fn open(
    connection: &mut Connection,
    file: &Admitted,
    pfs: &OwnedFd,
    (truncated, caller): (bool, u32),
    resumes: Option<GuestId>,
) -> Answer {
    let invalid = |e: &dyn std::fmt::Display| refuse(Refusal::Invalid(e.to_string()));
    let write_back = connection.node.write_back.clone();
    let (buffer, shared) = match guest_buffer(GUEST_BYTES as u64).and_then(|b| Ok((b.try_clone()?, b))) {
        Ok(buffers) => buffers,
        Err(e) => return invalid(&e),
    };
    // A guest that continues has had its room.
    let (cache, bytes) = (&connection.node.cache, GUEST_BYTES as u64);
    let existing = || cache.budget.reserve_existing(Class::Clients, bytes);
    let room = cache.reserve(Class::Clients, bytes).or_else(|| resumes.is_some().then(existing));
    let Some(room) = room else { return refuse(Refusal::NoRoom) };
    let (opened, is_resumed) = ((file.mount, &file.facts, pfs.as_fd()), resumes.is_some());
    match write_back.become_guest(connection.peer.uid, opened, (truncated, caller), resumes) {
        Ok((away, link)) => {
            let (id, words) = (away.id.clone(), away.words.fd().and_then(|fd| fd.try_clone_to_owned().ok()));
            connection.guest = Some(Guest::new(write_back, away, link, (buffer, room)));
            let Some(words) = words else { return invalid(&"no descriptors left") };
            Some((Reply::Guest(id), vec![words, shared]))
        }
        Err(NoGuest::OnPfs) => invalid(&"it is not dirty on another node"),
        Err(NoGuest::Refused(why)) => invalid(&why),
        Err(NoGuest::Silent(e)) if is_resumed => failed(libc::EAGAIN, e.to_string()),
        Err(NoGuest::Silent(e)) => invalid(&e),
        Err(NoGuest::Lost(why)) => failed(libc::EIO, why),
    }
}

fn failed(errno: i32, message: String) -> Answer {
    reply(Reply::Failed { errno, message })
}

/// Makes one of the guest's calls.
pub fn call(connection: &mut Connection, call: GuestCall) -> Answer {
    let Some(guest) = &mut connection.guest else {
        return refuse(Refusal::Invalid("not a guest".into()));
    };
    match call {
        GuestCall::Write { len, .. } | GuestCall::Read { len, .. } if len as usize > GUEST_BYTES => {
            return refuse(Refusal::Invalid(format!("at most {GUEST_BYTES} bytes at a time")));
        }
        GuestCall::Close => {
            guest.close();
            return None;
        }
        _ => {}
    }
    match guest.call(call) {
        Ok(PeerReply::GuestDone(bytes)) => reply(Reply::GuestDone(bytes)),
        Ok(PeerReply::GuestLeft) => reply(Reply::GuestLeft),
        Ok(PeerReply::GuestStat { size, blocks, mtime_ns }) => {
            reply(Reply::DirtyStat { size, blocks, mtime_ns, left_mtime_ns: 0 })
        }
        Ok(PeerReply::Failed { errno, message }) => failed(errno, message),
        Ok(other) => failed(libc::EIO, format!("{other:?} in answer to a guest")),
        Err(why) => failed(libc::EIO, why),
    }
}
