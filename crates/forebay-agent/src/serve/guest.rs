//! A program of this node writes a file that is dirty on another node: its requests go on to that
//! node ([`crate::write_back::guests`]).

use super::session::{Answer, Connection, refuse, reply};
use crate::fetch::peer_link::Link;
use crate::mounts::admit::Admitted;
use crate::write_back::WriteBack;
use crate::write_back::guests::{Away, NoGuest};
use forebay_store::dirty::guest_buffer;
use forebay_wire::peer::{PeerReply, PeerRequest};
use forebay_wire::{GUEST_BYTES, GuestId, Refusal, Reply};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Without a byte for so long, the other node counts as gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// A guest, as its connection has it.
#[derive(Debug)]
pub struct Guest {
    write_back: Arc<WriteBack>,
    away: Arc<Away>,
    link: Option<Link>,
    buffer: OwnedFd,
    /// Why its calls fail.
    broken: Option<String>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.write_back.forget_guest(&self.away);
    }
}

/// The program becomes a guest of the node where the file is dirty.
pub fn open(
    connection: &mut Connection,
    file: &Admitted,
    pfs: &OwnedFd,
    truncated: bool,
    resumes: Option<GuestId>,
) -> Answer {
    let write_back = &connection.node.write_back;
    let buffer = match guest_buffer(GUEST_BYTES as u64) {
        Ok(buffer) => buffer,
        Err(e) => return refuse(Refusal::Invalid(format!("no memory: {e}"))),
    };
    let opened = (file.mount, &file.facts, pfs.as_fd());
    match write_back.become_guest(connection.peer.uid, opened, truncated, resumes) {
        Ok((away, link)) => {
            let fds = away.words.fd().and_then(|words| words.try_clone_to_owned().ok());
            let (Some(words), Ok(shared)) = (fds, buffer.try_clone()) else {
                return refuse(Refusal::Invalid("no descriptors left".into()));
            };
            let (id, write_back) = (away.id, write_back.clone());
            connection.guest = Some(Guest { write_back, away, link: Some(link), buffer, broken: None });
            Some((Reply::Guest(id), vec![words, shared]))
        }
        // The PFS has all that it wrote.
        Err(NoGuest::Refused(_)) if resumes.is_some() => reply(Reply::GuestLeft),
        Err(NoGuest::Refused(why)) => refuse(Refusal::Invalid(why)),
        Err(NoGuest::Silent(e)) if resumes.is_some() => failed(libc::EAGAIN, e.to_string()),
        Err(NoGuest::Silent(e)) => refuse(Refusal::Invalid(e.to_string())),
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
        // If it does not arrive, the set of the file counts as not closed.
        let _ = guest.link.as_mut().map(|link| link.ask_as_guest(request, &guest.buffer, PATIENCE));
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

impl Guest {
    fn ask(&mut self, request: &PeerRequest) -> Result<PeerReply, String> {
        // Twice would be two appends.
        let is_once = matches!(request, PeerRequest::GuestWrite { appends: true, .. });
        loop {
            if let Some(why) = &self.broken {
                return Err(why.clone());
            }
            let mut link = match self.link.take() {
                Some(link) => link,
                None => match self.write_back.reconnect(&self.away) {
                    Ok(link) => link,
                    // All that it wrote is on the PFS.
                    Err(NoGuest::Refused(_)) => return Ok(PeerReply::GuestLeft),
                    Err(NoGuest::Silent(e)) => return Err(self.away.silence(&e)),
                    Err(NoGuest::Lost(why)) => {
                        self.broken = Some(why);
                        continue;
                    }
                },
            };
            match link.ask_as_guest(request, &self.buffer, PATIENCE) {
                Ok(answer) => {
                    self.link = Some(link);
                    return Ok(answer);
                }
                Err(e) if is_once => return Err(format!("an append may have been done or not: {e}")),
                Err(e) => tracing::debug!(error = %e, home = self.away.home, "a guest connects again"),
            }
        }
    }
}
