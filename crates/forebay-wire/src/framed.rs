//! One end of a connection that never waits: frames out of what has arrived, and a bounded heap of
//! what is still to go.
//!
//! The coordinator has a thousand of these in one loop, an agent one. Frames that say the same to
//! many (a view of the members) are encoded once and shared. A peer that does not read fills its
//! heap; at the bound the connection is given up, so that one that hangs takes a known amount of
//! memory from the others and nothing else. The owner of many connections adds up what they hold
//! ([`Framed::held_bytes`]) and bounds the sum.

use crate::frame::{FrameReader, encode};
use crate::link::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// Reads in one turn, so that a peer with much to say does not keep others waiting.
const READS_MAX: usize = 32;

/// Most bytes waiting to be sent: two of the longest frames.
const OUT_BYTES_MAX: usize = 2 * crate::frame::MAX_FRAME_BYTES;

/// A frame that may be sent to many.
pub type SharedFrame = Arc<[u8]>;

/// See the module.
#[derive(Debug)]
pub struct Framed {
    stream: Stream,
    reader: FrameReader,
    out: VecDeque<Outgoing>,
    out_bytes: usize,
    /// The part of `out_bytes` in frames that nobody else holds.
    own_bytes: usize,
    /// Bytes of the first frame that have gone.
    sent: usize,
    received_bytes: u64,
}

#[derive(Debug)]
struct Outgoing {
    frame: SharedFrame,
    /// A later replaceable frame makes this one needless.
    replaceable: bool,
}

impl Outgoing {
    /// A replaceable frame was encoded for many.
    fn own_bytes(&self) -> usize {
        if self.replaceable { 0 } else { self.frame.len() }
    }
}

/// The outcome of a turn of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// All that had arrived was read.
    All,
    /// There may be more; come back without waiting.
    MaybeMore,
    /// The other end has closed.
    Closed,
}

/// `message` as a frame for many.
///
/// # Errors
/// It is too long.
pub fn shared<T: Serialize>(message: &T) -> io::Result<SharedFrame> {
    encode(message).map(Into::into)
}

impl Framed {
    /// Takes over `stream`, which does not wait from now on.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn new(stream: Stream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Framed {
            stream,
            reader: FrameReader::default(),
            out: VecDeque::new(),
            out_bytes: 0,
            own_bytes: 0,
            sent: 0,
            received_bytes: 0,
        })
    }

    /// Takes in what has arrived.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn receive(&mut self) -> io::Result<Arrived> {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_MAX {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(Arrived::Closed),
                Ok(n) => {
                    self.reader.push(&buffer[..n]);
                    self.received_bytes += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Arrived::All),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            // No more than one long frame and a read is ever held.
            if self.reader.len() > crate::frame::MAX_FRAME_BYTES {
                break;
            }
        }
        Ok(Arrived::MaybeMore)
    }

    /// The next message that has arrived whole.
    ///
    /// # Errors
    /// Garbage.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        self.reader.next_message()
    }

    /// As [`Framed::next_message`], if its sequences take no more than `bytes` of memory: what the
    /// message takes is counted before it is built.
    ///
    /// # Errors
    /// Garbage; it would take more.
    pub fn next_message_within<T: DeserializeOwned>(&mut self, bytes: u64) -> io::Result<Option<T>> {
        let (message, too_large) = crate::counted::within(bytes, || self.reader.next_message());
        message.map_err(|e| {
            if too_large {
                io::Error::new(
                    e.kind(),
                    format!("a message that would take more than {bytes} bytes of memory"),
                )
            } else {
                e
            }
        })
    }

    /// Puts `message` on its way.
    ///
    /// # Errors
    /// It is too long, or the peer does not read: too much is waiting already.
    pub fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        self.push(Outgoing { frame: shared(message)?, replaceable: false })
    }

    /// Puts a frame on its way that makes earlier ones of this kind needless, if they have not
    /// begun to go.
    ///
    /// # Errors
    /// As [`Framed::send`].
    pub fn send_latest(&mut self, frame: SharedFrame) -> io::Result<()> {
        let begun = usize::from(self.sent > 0);
        let mut at = 0;
        let mut freed = 0;
        self.out.retain(|o| {
            at += 1;
            let keep = at <= begun || !o.replaceable;
            freed += if keep { 0 } else { o.frame.len() };
            keep
        });
        self.out_bytes -= freed;
        self.push(Outgoing { frame, replaceable: true })
    }

    fn push(&mut self, outgoing: Outgoing) -> io::Result<()> {
        if self.out_bytes + outgoing.frame.len() > OUT_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{} bytes wait to be sent and are not read", self.out_bytes),
            ));
        }
        self.out_bytes += outgoing.frame.len();
        self.own_bytes += outgoing.own_bytes();
        self.out.push_back(outgoing);
        Ok(())
    }

    /// Sends what the socket takes; true when all of it has gone.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn flush(&mut self) -> io::Result<bool> {
        while let Some(first) = self.out.front() {
            match self.stream.write(&first.frame[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if self.sent == first.frame.len() {
                self.out_bytes -= self.sent;
                self.own_bytes -= first.own_bytes();
                self.sent = 0;
                self.out.pop_front();
            }
        }
        if self.stream.wants_write() {
            match self.stream.flush() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                flushed => flushed?,
            }
        }
        Ok(!self.stream.wants_write())
    }

    /// Whether something waits for room in the socket: what was sent here, or what the stream has
    /// to say by itself.
    pub fn wants_room(&self) -> bool {
        !self.out.is_empty() || self.stream.wants_write()
    }

    /// The stream, to ask who is at its other end.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes that have arrived since the beginning: as long as they grow, the other end is alive.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Bytes of memory that this connection alone holds: what waits to be sent, but for frames that
    /// are shared, and the received part of a message that is not complete yet.
    pub fn held_bytes(&self) -> usize {
        self.own_bytes + self.reader.len()
    }

    /// Bytes waiting to be sent.
    pub fn waiting_bytes(&self) -> usize {
        self.out_bytes - self.sent
    }
}

impl AsFd for Framed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.socket().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Framed, Framed) {
        let (a, b) = Stream::pair().unwrap();
        (Framed::new(a).unwrap(), Framed::new(b).unwrap())
    }

    #[test]
    fn messages_go_both_ways_and_the_end_is_seen() {
        let (mut a, mut b) = pair();
        assert_eq!(b.receive().unwrap(), Arrived::All);
        for i in 0..3u32 {
            a.send(&i).unwrap();
        }
        assert_eq!(a.held_bytes(), a.waiting_bytes());
        assert!(a.flush().unwrap() && a.held_bytes() == 0);
        assert_eq!(b.receive().unwrap(), Arrived::All);
        assert_eq!((b.held_bytes() as u64, b.received_bytes()), (b.received_bytes(), 15));
        let got: Vec<u32> = std::iter::from_fn(|| b.next_message().unwrap()).collect();
        assert_eq!(got, [0, 1, 2]);
        drop(a);
        assert_eq!(b.receive().unwrap(), Arrived::Closed);
    }

    #[test]
    fn a_message_that_would_take_too_much_memory_is_refused_before_it_is_built() {
        use crate::cluster::{JobUpdate, Split, ToCoordinator};
        let (mut a, mut b) = pair();
        let updates = vec![JobUpdate::Splits { stage: 1, splits: vec![Split::default(); 10_000] }];
        let message = ToCoordinator::Job { job: 1, uid: 1000, updates };
        for bytes in [1 << 20, 100_000] {
            a.send(&message).unwrap();
            a.flush().unwrap();
            assert_eq!(b.receive().unwrap(), Arrived::All);
            let got = b.next_message_within::<ToCoordinator>(bytes);
            match bytes > 10_000 * size_of::<Split>() as u64 {
                true => assert_eq!(got.unwrap().as_ref(), Some(&message)),
                false => assert!(got.unwrap_err().to_string().contains("100000 bytes of memory")),
            }
        }
    }

    #[test]
    fn who_does_not_read_is_given_up_and_gets_only_the_latest_of_what_is_replaced() {
        let (mut a, mut b) = pair();
        let long = |i: u8| shared(&vec![i; 1 << 20]).unwrap();
        for i in 0..200 {
            a.send_latest(long(i)).unwrap();
            a.flush().unwrap();
        }
        assert!(a.waiting_bytes() <= 2 * long(0).len());
        assert_eq!(a.held_bytes(), 0, "what is shared is nobody's own");
        let mut got: Vec<u8> = Vec::new();
        while got.last() != Some(&199) {
            b.receive().unwrap();
            got.extend(std::iter::from_fn(|| b.next_message::<Vec<u8>>().unwrap()).map(|v| v[0]));
            a.flush().unwrap();
        }
        assert!(got.len() < 10 && got.is_sorted(), "{got:?}");
        let all: io::Result<()> = (0..100).try_for_each(|_| a.send(&vec![0u8; 1 << 20]));
        assert_eq!(all.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
