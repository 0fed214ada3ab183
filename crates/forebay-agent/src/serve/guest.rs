//! A program of this node writes a file that is dirty on another node: its requests go on to that
//! node ([`crate::write_back::guests`]).

use super::guest_connection::Guest;
use super::session::{Answer, Connection, refuse, reply};
use crate::mounts::admit::Admitted;
use crate::write_back::guests::NoGuest;
use forebay_store::dirty::guest_buffer;
use forebay_wire::peer::{PeerReply, PeerRequest};
use forebay_wire::{GUEST_BYTES, GuestId, Refusal, Reply};
use std::os::fd::{AsFd, OwnedFd};

/// The program becomes a guest of the node where the file is dirty.
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
    let (opened, is_resumed) = ((file.mount, &file.facts, pfs.as_fd()), resumes.is_some());
    match write_back.become_guest(connection.peer.uid, opened, (truncated, caller), resumes) {
        Ok((away, link)) => {
            let (id, words) = (away.id.clone(), away.words.fd().and_then(|fd| fd.try_clone_to_owned().ok()));
            connection.guest = Some(Guest::new(write_back, away, link, buffer));
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

/// One of the guest's calls.
pub fn ask(connection: &mut Connection, request: &PeerRequest) -> Answer {
    let Some(guest) = &mut connection.guest else {
        return refuse(Refusal::Invalid("not a guest".into()));
    };
    if let PeerRequest::GuestWrite { len, .. } | PeerRequest::GuestRead { len, .. } = request
        && *len as usize > GUEST_BYTES
    {
        return refuse(Refusal::Invalid(format!("at most {GUEST_BYTES} bytes at a time")));
    }
    if *request == PeerRequest::GuestClose {
        guest.close();
        return None;
    }
    match guest.ask(request) {
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
