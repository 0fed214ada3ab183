//! One HTTP/1.1 connection to a member of etcd: a request, its answer, and a deadline for both.
//!
//! etcd's gateway speaks JSON over plain HTTP, and a candidate asks it a few questions a second.
//! That takes one method, two ways to say how long a body is, and no redirects, so a library for
//! HTTP would be longer than this file.

use forebay_wire::reloaded::Reloaded;
use forebay_wire::tls::{CA_FILE, CERTIFICATE_FILE, KEY_FILE, read_certificates, read_key};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest answer: a page of stored files is far below it.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// Longest line of an answer's head, and most lines.
const LINE_BYTES_MAX: u64 = 16 << 10;
const LINES_MAX: usize = 100;

/// Where a member of etcd serves its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `HOST:PORT`.
    address: String,
    is_tls: bool,
}

/// How members of etcd are verified, and what this side shows them.
#[derive(Clone, Debug)]
pub struct Tls(Arc<Reloaded<ClientConfig>>);

/// See the module.
pub struct Connection {
    stream: BufReader<Box<dyn Duplex>>,
    /// The socket, to set its timeouts.
    socket: TcpStream,
    host: String,
}

trait Duplex: Read + Write + Send {}

impl<T: Read + Write + Send> Duplex for T {}

impl Endpoint {
    /// Reads `http://HOST:PORT` or `https://HOST:PORT`.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (is_tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(format!("{text:?}: write http://HOST:PORT or https://HOST:PORT")),
        };
        let address = rest.strip_suffix('/').unwrap_or(rest);
        match address.rsplit_once(':') {
            // Such an address would be shown to everybody, with the password.
            _ if address.contains('@') => Err("an address of etcd with a user: use cluster.etcd_tls".into()),
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Endpoint { address: address.to_owned(), is_tls })
            }
            _ => Err(format!("{text:?}: the port is missing, as in http://HOST:2379")),
        }
    }

    /// Whether what is sent there is encrypted.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The host alone.
    pub fn host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.address)
    }
}

impl Tls {
    /// Members whose certificates `ca.pem` of `directory` vouches for. `node.pem` and `node.key`
    /// are shown to them if they are there.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn load(directory: &Path) -> io::Result<Self> {
        let files = &[CA_FILE, CERTIFICATE_FILE, KEY_FILE];
        Ok(Tls(Arc::new(Reloaded::new(directory, files, client_config)?)))
    }
}

fn client_config(directory: &Path) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(&directory.join(CA_FILE))? {
        roots.add(certificate).map_err(io::Error::other)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let own = directory.join(CERTIFICATE_FILE);
    if !own.exists() {
        return Ok(config.with_no_client_auth());
    }
    let (chain, key) = (read_certificates(&own)?, read_key(&directory.join(KEY_FILE))?);
    let in_file = |e| io::Error::other(format!("{}: {e}", own.display()));
    config.with_client_auth_cert(chain, key).map_err(in_file)
}

impl Connection {
    /// Connects, at the latest at `deadline`.
    ///
    /// # Errors
    /// Nobody listens there, or not in time.
    pub fn open(endpoint: &Endpoint, tls: Option<&Tls>, deadline: Instant) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in endpoint.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, left(deadline)?) {
                Ok(socket) => return Self::over(socket, endpoint, tls),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn over(socket: TcpStream, endpoint: &Endpoint, tls: Option<&Tls>) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let plain = socket.try_clone()?;
        let stream: Box<dyn Duplex> = match tls.filter(|_| endpoint.is_tls) {
            None => Box::new(plain),
            Some(tls) => {
                let name = ServerName::try_from(endpoint.host().to_owned()).map_err(io::Error::other)?;
                let session = ClientConnection::new(tls.0.get(), name).map_err(io::Error::other)?;
                Box::new(StreamOwned::new(session, plain))
            }
        };
        Ok(Connection { stream: BufReader::new(stream), socket, host: endpoint.address.clone() })
    }

    /// Posts `body` to `path`; returns the status and the body of the answer. After an error the
    /// connection is of no use.
    ///
    /// # Errors
    /// No whole answer by `deadline`.
    pub fn post(&mut self, path: &str, body: &[u8], deadline: Instant) -> io::Result<(u16, Vec<u8>)> {
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.socket.set_write_timeout(Some(left(deadline)?))?;
        // The first write of a TLS connection reads as well.
        self.socket.set_read_timeout(Some(left(deadline)?))?;
        self.stream.get_mut().write_all(&request)?;
        self.stream.get_mut().flush()?;
        let head = self.line(deadline)?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| garbled(&head))?;
        let mut answer = Vec::new();
        match self.body_length(deadline)? {
            Some(bytes) => self.take(bytes, &mut answer, deadline)?,
            None => self.take_chunks(&mut answer, deadline)?,
        }
        Ok((status, answer))
    }

    /// Reads the head to its end. `None`: the body comes in chunks.
    fn body_length(&mut self, deadline: Instant) -> io::Result<Option<u64>> {
        let mut length = None;
        for _ in 0..LINES_MAX {
            let line = self.line(deadline)?;
            if line.is_empty() {
                return Ok(length);
            }
            let (name, value) = line.split_once(':').ok_or_else(|| garbled(&line))?;
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse().map_err(|_| garbled(&line))?);
            }
        }
        Err(garbled("a head without end"))
    }

    fn take_chunks(&mut self, answer: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        loop {
            let line = self.line(deadline)?;
            let bytes = u64::from_str_radix(line.trim(), 16).map_err(|_| garbled(&line))?;
            self.take(bytes, answer, deadline)?;
            self.line(deadline)?;
            if bytes == 0 {
                return Ok(());
            }
        }
    }

    fn take(&mut self, bytes: u64, answer: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        if answer.len() as u64 + bytes > BODY_BYTES_MAX {
            return Err(garbled("an answer that is too long"));
        }
        let end = answer.len() + bytes as usize;
        while answer.len() < end {
            self.socket.set_read_timeout(Some(left(deadline)?))?;
            let got = self.stream.fill_buf()?;
            let taken = got.len().min(end - answer.len());
            if taken == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&got[..taken]);
            self.stream.consume(taken);
        }
        Ok(())
    }

    fn line(&mut self, deadline: Instant) -> io::Result<String> {
        self.socket.set_read_timeout(Some(left(deadline)?))?;
        let mut line = String::new();
        (&mut self.stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.trim_end_matches('\r').to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")) } else { Ok(left) }
}

fn garbled(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this is no answer of etcd: {what:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that answers each request with the next of these.
    fn serve(answers: &'static [&'static str]) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(socket.try_clone().unwrap());
            for answer in answers {
                let mut line = String::new();
                while line.trim_start() != "{}" {
                    line.clear();
                    let mut byte = [0];
                    while !line.ends_with("\r\n") && line != "{}" && reader.read(&mut byte).unwrap() == 1 {
                        line.push(byte[0] as char);
                    }
                }
                (&socket).write_all(answer.as_bytes()).unwrap();
            }
            // Open, and silent.
            let _ = reader.read(&mut [0]);
        });
        Endpoint::parse(&format!("http://{address}")).unwrap()
    }

    #[test]
    fn both_ways_to_state_the_length_of_a_body_are_understood_on_one_connection() {
        let endpoint = serve(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        ]);
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut connection = Connection::open(&endpoint, None, deadline).unwrap();
        assert_eq!(connection.post("/x", b"{}", deadline).unwrap(), (200, b"hello".to_vec()));
        assert_eq!(connection.post("/y", b"{}", deadline).unwrap(), (503, b"abcde".to_vec()));
        let soon = Instant::now() + Duration::from_millis(50);
        assert!(connection.post("/z", b"{}", soon).is_err(), "nothing more comes");
    }

    #[test]
    fn an_endpoint_has_a_scheme_and_a_port() {
        let endpoint = Endpoint::parse("https://[::1]:2379/").unwrap();
        assert_eq!((endpoint.host(), endpoint.is_tls()), ("::1", true));
        for wrong in ["n1:2379", "http://n1", "http://:1", "http://n1:port"] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong}");
        }
    }
}
