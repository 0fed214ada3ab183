//! What programs of other nodes do to files that are dirty on this one, by their agents
//! ([`crate::write_back::guests`]).

use super::server::{HELLO_TIME, Serving};
use crate::write_back::Drained;
use crate::write_back::copies::Wanted;
use forebay_wire::cluster::DirtyFile;
use forebay_wire::peer::{GuestOpening, PeerReply};
use forebay_wire::{GUEST_BYTES, SecondPlace, frame};
use std::collections::BTreeMap;
use std::io;

/// What a question about second copies or passes waits for; the next one goes on with it.
pub(super) enum Waits {
    Copy(Wanted),
    Pass(BTreeMap<u64, u64>),
}

impl Serving<'_> {
    /// A program of the node at the other end becomes a guest.
    pub(super) fn welcome(&mut self, opening: &GuestOpening) -> io::Result<()> {
        // An earlier one of this connection has gone.
        self.guest = None;
        let write_back = &self.server.write_back;
        let refusal = match write_back.welcome(&self.node, opening) {
            Ok(guest) => {
                self.guest = Some(guest);
                String::new()
            }
            Err(why) => why,
        };
        frame::send(&mut self.stream, &PeerReply::Guest { life: write_back.life(), refusal })
    }

    pub(super) fn guest_write(&mut self, offset: u64, len: u32, appends: bool) -> io::Result<()> {
        if len as usize > GUEST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.stream.set_timeout(Some(HELLO_TIME))?;
        self.buffer.resize(len as usize, 0);
        io::Read::read_exact(&mut self.stream, &mut self.buffer)?;
        let write_back = &self.server.write_back;
        let done =
            self.guest.as_ref().map(|guest| write_back.write_for(guest, &self.buffer, offset, appends));
        frame::send(&mut self.stream, &done_for_guest(done))
    }

    pub(super) fn guest_read(&mut self, offset: u64, len: u32) -> io::Result<()> {
        self.buffer.resize((len as usize).min(GUEST_BYTES), 0);
        match self.guest.as_ref().map(|guest| guest.read(&mut self.buffer, offset)) {
            Some(Ok(Some(read))) => {
                frame::send(&mut self.stream, &PeerReply::Piece { len: read as u64 })?;
                io::Write::write_all(&mut self.stream, &self.buffer[..read])
            }
            other => frame::send(&mut self.stream, &done_for_guest(other.map(|done| done.map(|_| None)))),
        }
    }

    /// Waits a while until the second place has a file of this node, or the PFS.
    pub(super) fn keep_dirty(
        &mut self,
        file: &DirtyFile,
        life: Option<u64>,
        second: Option<SecondPlace>,
    ) -> Drained {
        let write_back = &self.server.write_back;
        if let Err((errno, message)) = write_back.is_same_life(life) {
            return Drained::Failed(errno, message);
        }
        let uid = rustix::process::geteuid().as_raw();
        let mut waits = match (self.waits.take(), write_back.find(file)) {
            (Some(waits), _) => waits,
            (None, None) => return Drained::Yes,
            (None, Some((key, copy))) => match second {
                None => Waits::Pass(write_back.to_sync(uid, Some(key))),
                Some(second) => match write_back.to_keep(uid, Some(copy), second) {
                    Ok(wanted) => Waits::Copy(wanted),
                    Err(refusal) => return Drained::Failed(libc::EIO, refusal.to_string()),
                },
            },
        };
        let answer = match &mut waits {
            Waits::Copy(wanted) => write_back.wait_for_copies(wanted),
            Waits::Pass(wanted) => write_back.sync(wanted),
        };
        self.waits = (answer == Drained::NotYet).then_some(waits);
        answer
    }
}

/// The answer to what a peer waits for.
pub(super) fn drained(drained: Drained) -> PeerReply {
    match drained {
        Drained::Yes => PeerReply::Fetched { fetched_bytes: 0 },
        Drained::NotYet => PeerReply::NotYet,
        Drained::Failed(errno, message) => PeerReply::Failed { errno, message },
    }
}

/// The answer to a call of a guest; `None`: there is none.
pub(super) fn done_for_guest(done: Option<io::Result<Option<u64>>>) -> PeerReply {
    match done {
        Some(Ok(Some(bytes))) => PeerReply::GuestDone(bytes),
        Some(Ok(None)) => PeerReply::GuestLeft,
        Some(Err(e)) => {
            PeerReply::Failed { errno: e.raw_os_error().unwrap_or(libc::EIO), message: e.to_string() }
        }
        None => PeerReply::Failed { errno: libc::EINVAL, message: "not a guest".into() },
    }
}
