//! What programs on other nodes do to files that are dirty on this one, through their agents
//! ([`crate::write_back::guests`]).

use super::server::{HELLO_TIME, Serving, drained};
use crate::write_back::Drained;
use crate::write_back::guests::{Guest, Waits, is_replaced};
use forebay_wire::cluster::DirtyFile;
use forebay_wire::peer::{GuestOpening, PeerReply, PeerRequest, Welcomed};
use forebay_wire::{GUEST_BYTES, GuestCall, SecondPlace, frame};
use std::io;

impl Serving<'_> {
    /// Answers a request about a file that is dirty here; false if it is another request.
    pub(super) fn answer_guest(&mut self, request: &PeerRequest) -> io::Result<bool> {
        let reply = match request {
            PeerRequest::Guest(opening) => self.welcome(opening),
            PeerRequest::GuestCall(call) => match self.call(*call)? {
                Some(reply) => reply,
                None => return Ok(true),
            },
            PeerRequest::SyncDirty(file) => drained(self.sync_dirty(file)),
            PeerRequest::KeepForGuest { file, life, copy, second } => {
                drained(self.keep_for_guest((file, *life, *copy), *second))
            }
            PeerRequest::CallInForGuest { file, life, copy } => {
                drained(self.call_in_for_guest((file, *life, *copy)))
            }
            _ => return Ok(false),
        };
        frame::send(&mut self.stream, &reply)?;
        Ok(true)
    }

    /// Makes a program on the node at the other end a guest.
    fn welcome(&mut self, opening: &GuestOpening) -> PeerReply {
        // An earlier one of this connection has gone.
        self.guest = None;
        let write_back = &self.server.write_back;
        let welcomed = match write_back.welcome(&self.node, opening) {
            Ok(guest) => Welcomed::Yes(self.guest.insert(guest).copy()),
            Err(why) => why,
        };
        PeerReply::Guest { life: write_back.life(), welcomed }
    }

    /// Makes a guest's call; `None`: it is answered, or has no answer.
    fn call(&mut self, call: GuestCall) -> io::Result<Option<PeerReply>> {
        let write_back = &self.server.write_back;
        Ok(Some(match call {
            GuestCall::Write { offset, len, appends } => self.guest_write(offset, len, appends)?,
            GuestCall::Read { offset, len } => return self.guest_read(offset, len).map(|()| None),
            GuestCall::Cut(size) => {
                done_for_guest(self.guest.as_ref().map(|guest| write_back.cut_for(guest, size)))
            }
            GuestCall::Stat => match self.guest.as_ref().map(Guest::stat) {
                Some(Ok(Some((size, blocks, mtime_ns)))) => PeerReply::GuestStat { size, blocks, mtime_ns },
                other => done_for_guest(other.map(|done| done.map(|_| None))),
            },
            GuestCall::Close => {
                self.guest.iter_mut().for_each(Guest::close);
                return Ok(None);
            }
        }))
    }

    fn guest_write(&mut self, offset: u64, len: u32, appends: bool) -> io::Result<PeerReply> {
        if len as usize > GUEST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.stream.set_timeout(Some(HELLO_TIME))?;
        self.buffer.resize(len as usize, 0);
        io::Read::read_exact(&mut self.stream, &mut self.buffer)?;
        let write_back = &self.server.write_back;
        let done =
            self.guest.as_ref().map(|guest| write_back.write_for(guest, &self.buffer, offset, appends));
        Ok(done_for_guest(done))
    }

    fn guest_read(&mut self, offset: u64, len: u32) -> io::Result<()> {
        self.buffer.resize((len as usize).min(GUEST_BYTES), 0);
        match self.guest.as_ref().map(|guest| guest.read(&mut self.buffer, offset)) {
            Some(Ok(Some(read))) => {
                frame::send(&mut self.stream, &PeerReply::Piece { len: read as u64 })?;
                io::Write::write_all(&mut self.stream, &self.buffer[..read])
            }
            other => frame::send(&mut self.stream, &done_for_guest(other.map(|done| done.map(|_| None)))),
        }
    }

    /// Waits a while until the PFS has a file of this node.
    fn sync_dirty(&mut self, file: &DirtyFile) -> Drained {
        let write_back = &self.server.write_back;
        let waits = match (self.waits.take(), write_back.find(file)) {
            (Some(waits), _) => waits,
            (None, None) => return Drained::Yes,
            (None, Some(key)) => Waits::Pass(write_back.to_sync(own_uid(), Some(key))),
        };
        self.wait(waits)
    }

    /// Waits a while until the second place has what a guest wrote; its file is given by name and
    /// numbers.
    fn keep_for_guest(&mut self, (file, life, copy): (&DirtyFile, u64, u64), second: SecondPlace) -> Drained {
        let write_back = &self.server.write_back;
        let waits = match (self.waits.take(), write_back.has_for_guest(file, life, copy)) {
            (_, Err((errno, message))) => return Drained::Failed(errno, message),
            (Some(waits), Ok(_)) => waits,
            (None, Ok(false)) => return Drained::Yes,
            (None, Ok(true)) => match write_back.to_keep(own_uid(), Some(copy), second) {
                Ok(wanted) => Waits::Copy(wanted),
                Err(refusal) => return Drained::Failed(libc::EIO, refusal.to_string()),
            },
        };
        self.wait(waits)
    }

    fn wait(&mut self, mut waits: Waits) -> Drained {
        let write_back = &self.server.write_back;
        let answer = match &mut waits {
            Waits::Copy(wanted) => write_back.wait_for_copies(wanted),
            Waits::Pass(wanted) => write_back.sync(wanted),
        };
        self.waits = (answer == Drained::NotYet).then_some(waits);
        answer
    }

    /// Calls a guest's file in.
    fn call_in_for_guest(&self, (file, life, copy): (&DirtyFile, u64, u64)) -> Drained {
        let write_back = &self.server.write_back;
        match write_back.has_for_guest(file, life, copy) {
            Ok(true) => write_back.call_in(own_uid(), copy),
            Ok(false) => Drained::Yes,
            Err((errno, message)) => Drained::Failed(errno, message),
        }
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The answer to a call of a guest; `None`: there is none.
fn done_for_guest(done: Option<io::Result<Option<u64>>>) -> PeerReply {
    match done {
        Some(Ok(Some(bytes))) => PeerReply::GuestDone(bytes),
        Some(Ok(None)) => PeerReply::GuestLeft,
        Some(Err(e)) if is_replaced(&e) => PeerReply::GuestReplaced,
        Some(Err(e)) => {
            PeerReply::Failed { errno: e.raw_os_error().unwrap_or(libc::EIO), message: e.to_string() }
        }
        None => PeerReply::Failed { errno: libc::EINVAL, message: "not a guest".into() },
    }
}
