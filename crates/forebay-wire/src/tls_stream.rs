//! A TLS session over a socket, which is read and written like the socket itself.
//!
//! Two things are between it and the socket. Bytes that arrived but are not a whole record yet, or
//! were not asked for yet, are held here; and so are records that the socket does not take yet.
//! What a poller has to do about it is described at [`crate::link::Stream`]. Records of 16 KiB are
//! read and written many at a time: the system call, not the cipher, would be what costs otherwise.

use crate::tls::in_words;
use rustls::Connection;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most bytes taken from the socket at once. A stream starts with a small buffer that grows when it
/// is filled, since a coordinator has a thousand connections on which little is said.
const RECEIVE_BYTES_MAX: usize = 128 << 10;
const RECEIVE_BYTES_MIN: usize = 4 << 10;

/// Most plain bytes sealed ahead of the socket.
const SEND_BYTES_MAX: usize = 128 << 10;

/// What a stream on which pages go one way holds at most.
pub(crate) const BUFFER_BYTES: u64 = (RECEIVE_BYTES_MIN + RECEIVE_BYTES_MAX) as u64;

/// What the listening side says first: it has seen the other's certificate and is content. In TLS
/// 1.3 the connecting side would otherwise believe itself connected before it is, and learn of a
/// refusal only when it reads.
const ACCEPTED: u8 = b'F';

/// Both ends have proved themselves.
#[derive(Debug)]
pub struct TlsStream {
    socket: TcpStream,
    session: Box<Connection>,
    peer: String,
    received: Vec<u8>,
    start: usize,
    end: usize,
    nonblocking: AtomicBool,
    /// Bound of a read or a write in nanoseconds; 0 for none.
    limit_ns: AtomicU64,
}

impl TlsStream {
    /// Shakes hands over `socket`, at the latest at `deadline`.
    pub(crate) fn establish(socket: TcpStream, session: Connection, deadline: Instant) -> io::Result<Self> {
        let mut stream = TlsStream::new(socket, session);
        stream.shake_hands(deadline).map_err(|e| match e.kind() {
            ErrorKind::WouldBlock => io::Error::new(ErrorKind::TimedOut, "the other end did not continue in time"),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => io::Error::new(
                e.kind(),
                "the other end closed the connection instead of authenticating itself; if it uses no TLS, set cluster.tls there",
            ),
            _ => e,
        })?;
        stream.socket.set_read_timeout(None)?;
        stream.socket.set_write_timeout(None)?;
        Ok(stream)
    }

    /// As [`TlsStream::establish`], with another end that does not say who it is: a browser, or
    /// whatever collects metrics.
    pub(crate) fn establish_with_anyone(
        socket: TcpStream,
        session: Connection,
        deadline: Instant,
    ) -> io::Result<Self> {
        let mut stream = TlsStream::new(socket, session);
        stream.agree_on_keys(deadline)?;
        Ok(stream)
    }

    fn new(socket: TcpStream, session: Connection) -> Self {
        let mut stream = TlsStream {
            socket,
            session: Box::new(session),
            peer: String::new(),
            received: vec![0; RECEIVE_BYTES_MIN],
            start: 0,
            end: 0,
            nonblocking: AtomicBool::new(false),
            limit_ns: AtomicU64::new(0),
        };
        stream.session.set_buffer_limit(Some(SEND_BYTES_MAX));
        stream
    }

    fn shake_hands(&mut self, deadline: Instant) -> io::Result<()> {
        self.agree_on_keys(deadline)?;
        let certificates = self.session.peer_certificates().unwrap_or_default();
        self.peer = crate::tls::node_name(certificates)?;
        match *self.session {
            Connection::Server(_) => {
                self.session.writer().write_all(&[ACCEPTED])?;
                self.push(Some(deadline))
            }
            Connection::Client(_) => self.await_acceptance(deadline),
        }
    }

    fn agree_on_keys(&mut self, deadline: Instant) -> io::Result<()> {
        while self.session.is_handshaking() || self.session.wants_write() {
            self.push(Some(deadline))?;
            if self.session.is_handshaking() {
                self.pull(Some(deadline))?;
            }
        }
        Ok(())
    }

    fn await_acceptance(&mut self, deadline: Instant) -> io::Result<()> {
        let mut word = [0];
        loop {
            match self.session.reader().read(&mut word) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.pull(Some(deadline))?,
                Err(e) => return Err(e),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) if word == [ACCEPTED] => return Ok(()),
                Ok(_) => return Err(io::Error::new(ErrorKind::InvalidData, "the other end is not Forebay")),
            }
        }
    }

    /// Name of the node at the other end, out of its certificate.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn set_limit(&self, limit: Option<Duration>) {
        let ns = limit.map_or(0, |l| u64::try_from(l.as_nanos()).unwrap_or(u64::MAX));
        self.limit_ns.store(ns, Ordering::Relaxed);
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    /// Whether sealed bytes wait for the socket.
    pub(crate) fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// When a read or write that begins now has to be over. The socket's own bound restarts with
    /// every byte that drips in.
    fn deadline(&self) -> Option<Instant> {
        match self.limit_ns.load(Ordering::Relaxed) {
            _ if self.nonblocking.load(Ordering::Relaxed) => None,
            0 => None,
            ns => Instant::now().checked_add(Duration::from_nanos(ns)),
        }
    }

    /// Takes what the socket has, at most what fits, and opens it. `WouldBlock`: nothing (more) by
    /// the deadline.
    fn pull(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        if self.start == self.end {
            if let Some(deadline) = deadline {
                self.socket.set_read_timeout(Some(time_left(deadline)?))?;
            }
            if self.end == self.received.len() && self.end < RECEIVE_BYTES_MAX {
                self.received = vec![0; RECEIVE_BYTES_MAX.min(self.end * 8)];
            }
            (self.start, self.end) = (0, 0);
            self.end = retry(|| (&self.socket).read(&mut self.received))?;
        }
        let mut held = &self.received[self.start..self.end];
        self.start += self.session.read_tls(&mut held)?;
        if self.end == 0 && self.session.is_handshaking() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if let Err(e) = self.session.process_new_packets() {
            // The other end gets the reason, if its socket takes it.
            let _ = self.session.write_tls(&mut &self.socket);
            return Err(in_words(&e));
        }
        Ok(())
    }

    /// Gives the socket what is sealed. `WouldBlock`: some of it is left.
    fn push(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        while self.session.wants_write() {
            if let Some(deadline) = deadline {
                self.socket.set_write_timeout(Some(time_left(deadline)?))?;
            }
            if retry(|| self.session.write_tls(&mut &self.socket))? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::WouldBlock.into()) } else { Ok(left) }
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn unless_blocked(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|e| if e.kind() == ErrorKind::WouldBlock { Ok(()) } else { Err(e) })
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut deadline = None;
        loop {
            match self.session.reader().read(buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            if deadline.is_none() {
                deadline = self.deadline();
            }
            if self.session.wants_write() {
                // A reader that waits for an answer has its question on the way.
                unless_blocked(self.push(deadline))?;
            }
            self.pull(deadline)?;
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let deadline = self.deadline();
        self.push(deadline)?;
        let taken = self.session.writer().write(bytes)?;
        match self.push(deadline) {
            // What is sealed is sent by the next write, read or flush.
            Err(e) if e.kind() == ErrorKind::WouldBlock && self.nonblocking.load(Ordering::Relaxed) => {}
            result => result?,
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        let deadline = self.deadline();
        self.push(deadline)
    }
}

impl Drop for TlsStream {
    /// Says good-bye, so that the other end can distinguish a regular end from an interruption; it
    /// does not wait for it.
    fn drop(&mut self) {
        if !self.session.is_handshaking() && self.socket.set_nonblocking(true).is_ok() {
            self.session.send_close_notify();
            let _ = self.push(None);
        }
    }
}
