//! Connections between nodes: TCP, plain on loopback, otherwise with mutual TLS.
//!
//! [`Security`] says which; it makes listeners and connections, and both give the same [`Stream`].
//! The owner of a stream knows that the other end belongs to the cluster: over TLS because the
//! cluster's CA vouches for it (`tls`), in plain because the kernel says that it is a process of
//! the same user or of root (`owner`). What is left to check above is that a node uses its own
//! name: [`Stream::peer_name`].

use crate::owner;
use crate::tls::{Facts, Identity, PublicIdentity};
use crate::tls_stream::TlsStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A refusal is logged again after this long.
const SAY_AGAIN: Duration = Duration::from_secs(3600);

/// How connections prove themselves.
#[derive(Clone, Debug)]
pub enum Security {
    /// As processes of the same user or of root, on loopback addresses only.
    Loopback,
    /// With certificates of the cluster's CA.
    Tls(Arc<Identity>),
}

/// Takes connections.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    security: Security,
    refused: AtomicU64,
    /// When a refusal was logged last.
    said_at: Mutex<Option<Instant>>,
}

/// A connection to a process of the same cluster.
///
/// Blocking, it is used like a socket. In non-blocking use (an epoll loop) three things differ over
/// TLS, and code that heeds them need not know which of the two it has:
///
/// - Bytes may be held here that the socket does not announce any more: after each event, read
///   until `WouldBlock`.
/// - A write may be done for the writer and not yet for the socket: wait for `EPOLLOUT` as long as
///   [`Stream::wants_write`], and `flush` (or write more) when it comes.
/// - Reading may have something to send (an answer to a change of keys): look at
///   [`Stream::wants_write`] after reads, too.
///
/// What is held is bounded: 128 KiB each way.
#[derive(Debug)]
pub enum Stream {
    /// On this machine.
    Plain(TcpStream),
    /// Over TLS.
    Tls(TlsStream),
}

impl Security {
    /// When this node's certificate ends; nothing without one.
    pub fn expires(&self) -> Option<SystemTime> {
        match self {
            Security::Loopback => None,
            Security::Tls(identity) => Some(identity.facts().expires),
        }
    }

    /// Mutual TLS with `ca.pem`, `node.pem` and `node.key` of `directory`. The files are looked at
    /// again whenever a connection is made, and new ones are used if they are of use.
    ///
    /// # Errors
    /// Names the file and what is wrong: missing, expired, of another CA, a key that others may
    /// read.
    pub fn load(directory: &Path) -> io::Result<Self> {
        Ok(Security::Tls(Arc::new(Identity::load(directory)?)))
    }

    /// The security that `cluster.tls` configures.
    ///
    /// # Errors
    /// As [`Security::load`].
    pub fn configured(directory: Option<&Path>) -> io::Result<Self> {
        directory.map_or(Ok(Security::Loopback), Security::load)
    }

    /// The node this process's certificate names and when that ends; `None` without TLS.
    pub fn facts(&self) -> Option<Facts> {
        match self {
            Security::Loopback => None,
            Security::Tls(identity) => Some(identity.facts()),
        }
    }

    /// Memory that the buffers of a stream take, for those who keep accounts: of one that carries
    /// pages one way and messages the other.
    pub fn buffer_bytes(&self) -> u64 {
        match self {
            Security::Loopback => 0,
            Security::Tls(_) => crate::tls_stream::BUFFER_BYTES,
        }
    }

    /// Listens on `address`; port 0 picks a free one.
    ///
    /// # Errors
    /// The address is in use, not this machine's, or open to other machines without TLS.
    pub fn listen(&self, address: &str) -> io::Result<Listener> {
        let failed = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}"));
        // Looked at before it is bound: not for a moment is a port open that must not be.
        for resolved in address.to_socket_addrs().map_err(failed)? {
            self.allows(resolved, "listen on")?;
        }
        let socket = TcpListener::bind(address).map_err(|e| match (e.kind(), address.rsplit_once(':')) {
            (io::ErrorKind::AddrInUse, Some((_, port))) => {
                failed(io::Error::new(e.kind(), format!("{e}; `ss -ltnp sport = :{port}` names the process")))
            }
            _ => failed(e),
        })?;
        Ok(Listener { socket, security: self.clone(), refused: AtomicU64::new(0), said_at: Mutex::default() })
    }

    /// Connects to `address` (`HOST:PORT`), at the latest at `deadline`.
    ///
    /// # Errors
    /// Nobody listens there, it is not of this cluster, or the deadline has passed.
    pub fn connect(&self, address: &str, deadline: Instant) -> io::Result<Stream> {
        let failed = |e: io::Error| io::Error::new(e.kind(), format!("cannot connect to {address}: {e}"));
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for resolved in address.to_socket_addrs().map_err(failed)? {
            self.allows(resolved, "connect to")?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                last = io::ErrorKind::TimedOut.into();
                break;
            }
            match TcpStream::connect_timeout(&resolved, left) {
                // A node that answers but is not of the cluster is not tried at its other
                // addresses.
                Ok(socket) => return self.meet(socket, deadline).map_err(failed),
                Err(e) => last = e,
            }
        }
        Err(failed(last))
    }

    /// Authenticates to the listening side, and authenticates that side.
    fn meet(&self, socket: TcpStream, deadline: Instant) -> io::Result<Stream> {
        socket.set_nodelay(true)?;
        match self {
            Security::Loopback => {
                owner::check_listener(&socket)?;
                Ok(Stream::Plain(socket))
            }
            Security::Tls(identity) => {
                // Not sent, not compared; rustls wants one.
                let name = ServerName::try_from("forebay").map_err(io::Error::other)?;
                let session = ClientConnection::new(identity.material().client.clone(), name);
                let session = session.map_err(|e| crate::tls::in_words(&e))?;
                TlsStream::establish(socket, session.into(), deadline).map(Stream::Tls)
            }
        }
    }

    fn allows(&self, address: SocketAddr, what: &str) -> io::Result<()> {
        if matches!(self, Security::Tls(_)) || address.ip().is_loopback() {
            return Ok(());
        }
        let text = format!(
            "cannot {what} {address}: without TLS only loopback addresses are used (see cluster.tls)"
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
}

/// Serves a connection from a browser or a collector of metrics: over TLS if there is a certificate
/// to show. The caller has to find out who the other end is.
///
/// # Errors
/// The other end speaks no TLS 1.3, or does not continue by `deadline`.
pub fn serve_anyone(
    socket: TcpStream,
    identity: Option<&PublicIdentity>,
    deadline: Instant,
) -> io::Result<Stream> {
    socket.set_nodelay(true)?;
    let Some(identity) = identity else { return Ok(Stream::Plain(socket)) };
    let session = ServerConnection::new(identity.config()).map_err(|e| crate::tls::in_words(&e))?;
    TlsStream::establish_with_anyone(socket, session.into(), deadline).map(Stream::Tls)
}

impl Listener {
    /// Where it listens.
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for a connection. Its proof is taken by [`Listener::prove`], in a thread of its own
    /// unless [`Listener::proves_at_once`]: one that stalls must not keep others waiting.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn accept(&self) -> io::Result<TcpStream> {
        Ok(self.socket.accept()?.0)
    }

    /// Makes sure that the other end belongs to the cluster, at the latest at `deadline`, whatever
    /// it does. One refusal an hour is logged, all are counted: a scanner of ports must not fill
    /// the disk, and a certificate that has expired must be noticed.
    ///
    /// # Errors
    /// It does not, or not in time.
    pub fn prove(&self, socket: TcpStream, deadline: Instant) -> io::Result<Stream> {
        let from = socket.peer_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string());
        self.judge(socket, deadline).map_err(|e| {
            let e = io::Error::new(e.kind(), format!("refused a connection from {from}: {e}"));
            let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
            let mut said_at = self.said_at.lock().unwrap_or_else(PoisonError::into_inner);
            if said_at.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
                *said_at = Some(Instant::now());
                tracing::warn!(refused, "{e} (one an hour is logged)");
            }
            e
        })
    }

    fn judge(&self, socket: TcpStream, deadline: Instant) -> io::Result<Stream> {
        // Whether an accepted socket inherits this differs between systems.
        socket.set_nonblocking(false)?;
        socket.set_nodelay(true)?;
        match &self.security {
            Security::Loopback => {
                if let Err(e) = owner::check_connector(&socket) {
                    // Reset instead of closed: the kernel would remember each of them for a minute.
                    let _ = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
                    return Err(e);
                }
                Ok(Stream::Plain(socket))
            }
            Security::Tls(identity) => {
                let session = ServerConnection::new(identity.material().server.clone());
                let session = session.map_err(|e| crate::tls::in_words(&e))?;
                TlsStream::establish(socket, session.into(), deadline).map(Stream::Tls)
            }
        }
    }

    /// Whether [`Listener::prove`] decides by itself and immediately: the other end cannot hold it
    /// up. Then it needs no thread, and each of a flood of strangers costs one question to the
    /// kernel.
    pub fn proves_at_once(&self) -> bool {
        matches!(self.security, Security::Loopback)
    }

    /// Connections refused so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl AsFd for Listener {
    /// The listening socket, to be waited for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream {
    /// The node at the other end, as its certificate names it: a peer that speaks for another node
    /// has to be refused. `None` without TLS, where all processes of the user are equal.
    pub fn peer_name(&self) -> Option<&str> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(stream) => Some(stream.peer()),
        }
    }

    /// Whether the other end may speak for the node `name`. Case does not matter, as in host names.
    pub fn may_speak_for(&self, name: &str) -> bool {
        self.peer_name().is_none_or(|own| own.eq_ignore_ascii_case(name))
    }

    /// Two ends within this process: an agent that keeps its coordinator in its own process speaks
    /// to it as to any other. A pair of Unix sockets, which read and write like the others; nothing
    /// of TCP is asked of them.
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
            Stream::Tls(_) => None,
        }
    }

    /// The socket, to be waited for or shut down.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => stream.socket(),
        }
    }

    /// Whether bytes that were written wait for the socket: only in non-blocking use, and only over
    /// TLS.
    pub fn wants_write(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(stream) => stream.wants_write(),
        }
    }

    /// Bounds every read and every write; `None` waits for ever. What takes longer gives
    /// `WouldBlock`.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        if let Stream::Tls(stream) = self {
            stream.set_limit(limit);
        }
        self.socket().set_read_timeout(limit)?;
        self.socket().set_write_timeout(limit)
    }

    /// From now on reads and writes give `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        if let Stream::Tls(stream) = self {
            stream.set_nonblocking(on);
        }
        self.socket().set_nonblocking(on)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(stream) => stream.flush(),
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
