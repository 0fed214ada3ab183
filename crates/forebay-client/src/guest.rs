//! A file that is dirty on another node, as programs of this one write and read it (a *guest*).
//!
//! Each call is a request to the agent, which passes it on. The bytes pass through a file in memory
//! that both have open. If the agent restarts, or the other node's, the call is made once more.

use crate::error::{errno, with_message};
use crate::session::{NO_AGENT_MAX, NO_AGENT_PAUSE, Session, unexpected};
use forebay_store::dirty::Words;
use forebay_wire::{Channel, GUEST_BYTES, GuestCall, GuestId, Reply, Request};
use rustix::io::{pread, pwrite};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long to wait for the agent: as long as it waits for the other node at most, and a little
/// more.
const ANSWER: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub struct GuestFile {
    session: Arc<Session>,
    /// The file on the PFS, open for reading and writing.
    pfs: OwnedFd,
    words: Arc<Words>,
    id: GuestId,
    connection: Mutex<Option<Connection>>,
}

/// Length, blocks of 512 bytes, and mtime in nanoseconds since 1970.
type Facts = (u64, u64, i64);

/// Bytes that were written or read; facts that were requested.
type Done = (u64, Option<Facts>);

#[derive(Debug)]
struct Connection {
    channel: Channel,
    buffer: OwnedFd,
}

fn welcome(
    session: &Session,
    pfs: BorrowedFd<'_>,
    (truncated, caller): (bool, u32),
    resumes: Option<GuestId>,
) -> io::Result<(GuestId, OwnedFd, Connection)> {
    let channel = session.connect(false)?;
    channel.send(&Request::GuestOpen { truncated, resumes, caller }, &[pfs, pfs])?;
    let answer = channel.recv::<Reply>(Some(Instant::now() + ANSWER))?;
    let sent: Result<[OwnedFd; 2], _> = answer.fds.try_into();
    match (answer.message, sent) {
        (Reply::Guest(id), Ok([words, buffer])) => Ok((id, words, Connection { channel, buffer })),
        (reply, _) => Err(unexpected(&reply)),
    }
}

impl GuestFile {
    /// Makes this program a guest of the node where a file is dirty; the file is open as `anew` for
    /// reading and writing. Returns also the guest's number, and the words.
    ///
    /// # Errors
    /// The program is to write to the PFS.
    pub(crate) fn open(
        session: Arc<Session>,
        anew: BorrowedFd<'_>,
        (truncated, caller): (bool, u32),
    ) -> io::Result<(Self, u64, Arc<Words>)> {
        let (id, words, connection) = welcome(&session, anew, (truncated, caller), None)?;
        let words = Arc::new(Words::received(&words)?);
        let (pfs, number) = (anew.try_clone_to_owned()?, id.number);
        let connection = Mutex::new(Some(connection));
        Ok((GuestFile { session, pfs, words: words.clone(), id, connection }, number, words))
    }

    /// Writes all of `data`, at most [`GUEST_BYTES`]; `None`: nothing was written, and the file
    /// goes to the PFS.
    ///
    /// # Errors
    /// Errors of the write; the other node is gone, or has lost what was written.
    pub fn write(&self, data: &[u8], offset: u64, appends: bool) -> io::Result<Option<usize>> {
        if appends && self.stat()?.is_none() {
            // Asked first, because an append on a connection that has ended would fail.
            return Ok(None);
        }
        let len = data.len().min(GUEST_BYTES) as u32;
        let fill = |buffer: &OwnedFd| Ok(pwrite(buffer, &data[..len as usize], 0).map(drop)?);
        let done = self.ask(GuestCall::Write { offset, len, appends }, fill, |_, _| Ok(()))?;
        Ok(done.map(|(bytes, _)| bytes as usize))
    }

    /// Reads as much as there is, at most [`GUEST_BYTES`]; `None`: from the PFS.
    ///
    /// # Errors
    /// As [`GuestFile::write`].
    pub fn read(&self, room: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let len = room.len().min(GUEST_BYTES) as u32;
        let take = |buffer: &OwnedFd, bytes: u64| {
            let bytes = bytes.min(u64::from(len)) as usize;
            Ok(pread(buffer, &mut room[..bytes], 0).map(drop)?)
        };
        let done = self.ask(GuestCall::Read { offset, len }, |_| Ok(()), take)?;
        Ok(done.map(|(bytes, _)| bytes as usize))
    }

    /// Truncates or extends the file; `None`: on the PFS.
    ///
    /// # Errors
    /// As [`GuestFile::write`].
    pub fn set_len(&self, size: u64) -> io::Result<Option<()>> {
        Ok(self.ask(GuestCall::Cut(size), |_| Ok(()), |_, _| Ok(()))?.map(drop))
    }

    /// Length, blocks of 512 bytes, and mtime in nanoseconds since 1970; `None`: those of the PFS.
    ///
    /// # Errors
    /// As [`GuestFile::write`].
    pub fn stat(&self) -> io::Result<Option<(u64, u64, i64)>> {
        let done = self.ask(GuestCall::Stat, |_| Ok(()), |_, _| Ok(()))?;
        Ok(done.and_then(|(_, stat)| stat))
    }

    fn ask(
        &self,
        call: GuestCall,
        fill: impl Fn(&OwnedFd) -> io::Result<()>,
        mut take: impl FnMut(&OwnedFd, u64) -> io::Result<()>,
    ) -> io::Result<Option<Done>> {
        // Twice would be two appends.
        let is_once = matches!(call, GuestCall::Write { appends: true, .. });
        let mut current = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + NO_AGENT_MAX;
        loop {
            let connection = match current.take() {
                Some(connection) => connection,
                None => match welcome(&self.session, self.pfs.as_fd(), (false, 0), Some(self.id.clone())) {
                    Ok((_, _, connection)) => connection,
                    Err(e) if errno(&e) == libc::EIO => return Err(e),
                    Err(e) if Instant::now() >= until => return Err(with_message(libc::EIO, e.to_string())),
                    Err(_) => {
                        std::thread::sleep(NO_AGENT_PAUSE);
                        continue;
                    }
                },
            };
            fill(&connection.buffer)?;
            let sent = connection.channel.send(&Request::GuestCall(call), &[]);
            match sent.and_then(|()| connection.channel.recv::<Reply>(Some(Instant::now() + ANSWER))) {
                Ok(answer) => {
                    let done = match answer.message {
                        Reply::GuestDone(bytes) => {
                            take(&connection.buffer, bytes).map(|()| Some((bytes, None)))
                        }
                        Reply::DirtyStat { size, blocks, mtime_ns, .. } => {
                            Ok(Some((0, Some((size, blocks, mtime_ns)))))
                        }
                        Reply::GuestLeft => self.leave(),
                        reply => Err(unexpected(&reply)),
                    };
                    *current = Some(connection);
                    return done;
                }
                Err(e) if is_once => {
                    return Err(with_message(libc::EIO, format!("an append may have been done or not: {e}")));
                }
                Err(e) if Instant::now() >= until => return Err(with_message(libc::EIO, e.to_string())),
                Err(_) => {}
            }
        }
    }

    /// Notes in the words, for all that share them, that the file goes to the PFS.
    fn leave<R>(&self) -> io::Result<Option<R>> {
        self.words.call_in();
        Ok(None)
    }
}

impl Drop for GuestFile {
    fn drop(&mut self) {
        if self.words.closes() > 0
            && let Some(connection) = self.connection.get_mut().unwrap_or_else(PoisonError::into_inner)
        {
            // If it does not arrive, the set of the file counts as not closed.
            let _ = connection.channel.send(&Request::GuestCall(GuestCall::Close), &[]);
        }
    }
}
