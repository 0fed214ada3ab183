//! A program on this node that writes a file of another node, as its connection has it.

use crate::fetch::peer_link::Link;
use crate::write_back::WriteBack;
use crate::write_back::guest_tables::Away;
use crate::write_back::guests::NoGuest;
use forebay_store::Reservation;
use forebay_wire::GuestCall;
use forebay_wire::peer::PeerReply;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the other node may send nothing before it counts as gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longest time for all attempts of one call together.
const ANSWER_MAX: Duration = Duration::from_secs(40);

/// A guest, as its connection has it.
#[derive(Debug)]
pub struct Guest {
    write_back: Arc<WriteBack>,
    away: Arc<Away>,
    link: Option<Link>,
    /// What the bytes pass through.
    buffer: OwnedFd,
    /// Why its calls fail.
    broken: Option<String>,
    /// Memory of the buffer.
    _room: Reservation,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.write_back.forget_guest(&self.away);
    }
}

impl Guest {
    /// A guest that has this `link`, or makes one when it is needed.
    pub fn new(
        write_back: Arc<WriteBack>,
        away: Arc<Away>,
        link: Option<Link>,
        (buffer, room): (OwnedFd, Reservation),
    ) -> Self {
        Guest { write_back, away, link, buffer, broken: None, _room: room }
    }

    /// Reports that the program has closed the file.
    pub fn close(&mut self) {
        // If it does not arrive, the set of the file counts as not closed.
        let _ = self.link.as_mut().map(|link| link.call_as_guest(GuestCall::Close, &self.buffer, PATIENCE));
    }

    /// Makes a call on the other node, which may be restarting.
    ///
    /// # Errors
    /// Why it fails.
    pub fn call(&mut self, call: GuestCall) -> Result<PeerReply, String> {
        // Twice would be two appends.
        let is_once = matches!(call, GuestCall::Write { appends: true, .. });
        // The program waits a little longer.
        let until = Instant::now() + ANSWER_MAX;
        loop {
            if let Some(why) = &self.broken {
                return Err(why.clone());
            }
            let mut link = match self.link.take() {
                Some(link) => link,
                None => match self.write_back.reconnect(&self.away) {
                    Ok(link) => link,
                    // All that it wrote is on the PFS, or gets there once it asks for that.
                    Err(NoGuest::OnPfs | NoGuest::Refused(_)) => return Ok(PeerReply::GuestLeft),
                    Err(NoGuest::Silent(e)) => return Err(self.away.silence(&e)),
                    Err(NoGuest::Lost(why)) => {
                        self.broken = Some(why);
                        continue;
                    }
                },
            };
            match link.call_as_guest(call, &self.buffer, PATIENCE) {
                Ok(PeerReply::GuestReplaced) if Instant::now() < until => {}
                Ok(answer) => {
                    self.link = Some(link);
                    return Ok(answer);
                }
                Err(e) if is_once => return Err(format!("an append may have been done or not: {e}")),
                Err(e) if Instant::now() >= until => return Err(self.away.silence(&e)),
                Err(e) => tracing::debug!(error = %e, holder = self.away.id.holder, "a guest connects again"),
            }
        }
    }
}
