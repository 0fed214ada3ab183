//! Connections between nodes: TCP, plain on loopback, otherwise with mutual TLS.
//!
//! [`Security`] says which; it makes listeners and connections, and both give the same [`Stream`]. Whoever has a stream
//! knows that the other end belongs to the cluster: there is nothing more to check above.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How connections prove themselves.
#[derive(Clone, Debug)]
pub enum Security {
    /// Not at all beyond the machine: loopback addresses only.
    Loopback,
}

/// Takes connections.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    security: Security,
}

/// A connection to a process of the same cluster.
#[derive(Debug)]
pub enum Stream {
    /// On this machine.
    Plain(TcpStream),
}

impl Security {
    /// What `cluster.tls` asks for.
    ///
    /// # Errors
    /// A directory is given: there is no TLS in this build.
    pub fn configured(directory: Option<&Path>) -> io::Result<Self> {
        match directory {
            None => Ok(Security::Loopback),
            Some(directory) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("cluster.tls = {}: this build has no TLS", directory.display()),
            )),
        }
    }

    /// Listens on `address`; port 0 picks a free one.
    ///
    /// # Errors
    /// The address is in use, not this machine's, or open to other machines without TLS.
    pub fn listen(&self, address: &str) -> io::Result<Listener> {
        let socket = TcpListener::bind(address)
            .map_err(|e| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}")))?;
        require_loopback(socket.local_addr()?, "listen on")?;
        Ok(Listener { socket, security: self.clone() })
    }

    /// Connects to `address` (`HOST:PORT`), at the latest at `deadline`.
    ///
    /// # Errors
    /// Nobody listens there, it is not of this cluster, or the deadline has passed.
    pub fn connect(&self, address: &str, deadline: Instant) -> io::Result<Stream> {
        let failed = |e: io::Error| io::Error::new(e.kind(), format!("cannot connect to {address}: {e}"));
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for resolved in address.to_socket_addrs().map_err(failed)? {
            require_loopback(resolved, "connect to")?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                last = io::ErrorKind::TimedOut.into();
                break;
            }
            match TcpStream::connect_timeout(&resolved, left) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    return Ok(Stream::Plain(socket));
                }
                Err(e) => last = e,
            }
        }
        Err(failed(last))
    }
}

fn require_loopback(address: SocketAddr, what: &str) -> io::Result<()> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    let text =
        format!("cannot {what} {address}: without TLS only loopback addresses are used (see cluster.tls)");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

impl Listener {
    /// Where it listens.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for a connection. Its proof is taken by [`Listener::prove`], in a thread of its own: one that does not go on
    /// must not keep others waiting.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn accept(&self) -> io::Result<TcpStream> {
        Ok(self.socket.accept()?.0)
    }

    /// Makes sure that the other end belongs to the cluster, at the latest at `deadline`.
    ///
    /// # Errors
    /// It does not, or not in time.
    pub fn prove(&self, socket: TcpStream, _deadline: Instant) -> io::Result<Stream> {
        match &self.security {
            Security::Loopback => {
                socket.set_nodelay(true)?;
                Ok(Stream::Plain(socket))
            }
        }
    }
}

impl Stream {
    /// Two ends within this process: who keeps its coordinator in its own process speaks to it as to any other. A pair of
    /// Unix sockets, which read and write like the others; nothing of TCP is asked of them.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn pair() -> io::Result<(Stream, Stream)> {
        let (one, other) = UnixStream::pair()?;
        let end = |socket: UnixStream| Stream::Plain(TcpStream::from(OwnedFd::from(socket)));
        Ok((end(one), end(other)))
    }

    /// The socket, if what is written to it arrives as it is: then `sendfile` may be used.
    pub fn plain(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Stream::Plain(socket) => Some(socket.as_fd()),
        }
    }

    /// The socket, to be waited for.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
        }
    }

    /// Bounds every read and every write; `None` waits for ever.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket().set_read_timeout(limit)?;
        self.socket().set_write_timeout(limit)
    }

    /// From now on reads and writes give `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.socket().set_nonblocking(on)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    #[test]
    fn plain_connections_stay_on_this_machine() {
        let away = Security::Loopback.connect("192.0.2.1:1", Instant::now() + Duration::from_secs(1));
        assert_eq!(away.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(Security::Loopback.listen("0.0.0.0:0").is_err());
    }

    #[test]
    fn a_message_arrives() {
        let listener = Security::Loopback.listen("127.0.0.1:0").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let address = listener.address().unwrap().to_string();
        let mut one = Security::Loopback.connect(&address, deadline).unwrap();
        let mut other = listener.prove(listener.accept().unwrap(), deadline).unwrap();
        frame::send(&mut one, &7u32).unwrap();
        assert_eq!(frame::receive::<u32>(&mut other).unwrap(), 7);
        drop(one);
        assert_eq!(frame::receive::<u32>(&mut other).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
