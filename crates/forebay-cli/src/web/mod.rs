//! A small HTTP server for metrics and the console: plain or over TLS, with or without a token.
//!
//! Each connection has a thread, a bounded number of them: a scrape comes every few seconds and a
//! page asks ten times a second, and neither port may become a way to load a node. When all slots
//! are taken, a new connection displaces the oldest one of the address (on this machine, of the
//! user) that has most. Every wait has a deadline, and every request a bounded size.

mod request;

pub use request::Request;

use forebay_agent::config::WebConfig;
use forebay_wire::link::{Stream, serve_anyone};
use forebay_wire::proving::Proving;
use forebay_wire::tls::{PublicIdentity, read_secret};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for a handshake, for the next request, and for an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest time for an answer to be taken as a whole: a reader that takes it byte by byte holds a
/// place.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// An answer is sent in parts of this many bytes, with a look at the clock between them.
const PART_BYTES: usize = 64 << 10;

/// Connections at a time.
const CONNECTIONS_MAX: usize = 32;

/// A connection ends after this many requests, so that a renewed certificate comes into use.
const REQUESTS_MAX: usize = 10_000;

/// The shortest token that is accepted.
const TOKEN_CHARS_MIN: usize = 16;

/// An answer.
pub struct Response {
    /// The status, such as `200 OK`.
    pub status: &'static str,
    /// The value of the header `Content-Type`.
    pub kind: &'static str,
    /// Shared: many may take a long one at the same time, and slowly.
    pub body: Arc<Vec<u8>>,
}

impl Response {
    pub fn ok(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Response { status: "200 OK", kind, body: Arc::new(body.into()) }
    }

    pub fn text(status: &'static str, text: impl Into<String>) -> Self {
        Response {
            status,
            kind: "text/plain; charset=utf-8",
            body: Arc::new((text.into() + "\n").into_bytes()),
        }
    }
}

/// Answers GET requests. `needs_token` says which paths are protected if there is a token.
pub trait Service: Send + Sync + 'static {
    /// Its table in the configuration.
    const TABLE: &'static str;
    fn needs_token(&self, path: &str) -> bool;
    fn answer(&self, request: &Request) -> Response;
}

/// A token in a file, which is read again for each request: a new one needs no restart.
struct Token {
    file: PathBuf,
    /// What was read last.
    text: Mutex<String>,
}

impl Token {
    fn read(file: &Path) -> Result<Self, String> {
        Ok(Token { file: file.to_owned(), text: Mutex::new(read_token(file)?) })
    }

    /// Whether `given` is what the file has now, or had before it could not be read. No token is
    /// right while the file is gone.
    fn is(&self, given: &str) -> bool {
        if !self.file.try_exists().unwrap_or(true) {
            return false;
        }
        let now = read_token(&self.file);
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        match now {
            Ok(now) => *text = now,
            Err(error) => tracing::debug!("the token of before stays in use: {error}"),
        }
        is_same(given, &text)
    }
}

struct Server<S> {
    service: S,
    identity: Option<PublicIdentity>,
    token: Option<Token>,
    places: Proving,
    open: AtomicUsize,
}

/// Serves `service` until the process ends. Returns the address.
///
/// # Errors
/// The address, the certificate or the token cannot be used.
pub fn start<S: Service>(config: &WebConfig, service: S) -> Result<Option<SocketAddr>, String> {
    let Some(listen) = config.listen else { return Ok(None) };
    let table = S::TABLE;
    let failed = |e: io::Error| format!("{table}.listen = \"{listen}\": {e}");
    let identity = config.tls.as_deref().map(PublicIdentity::load).transpose();
    let identity = identity.map_err(|e| format!("{table}.tls: {e}"))?;
    let token = config.token_file.as_deref().map(Token::read).transpose();
    let token = token.map_err(|e| format!("{table}.token_file: {e}"))?;
    let listener = TcpListener::bind(listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let places = Proving::new(CONNECTIONS_MAX);
    let server = Arc::new(Server { service, identity, token, places, open: AtomicUsize::new(0) });
    std::thread::Builder::new()
        .name(table.into())
        .spawn(move || accept(&server, &listener))
        .map_err(failed)?;
    tracing::info!(%address, "{table} {} served", if table == "metrics" { "are" } else { "is" });
    Ok(Some(address))
}

fn read_token(path: &Path) -> Result<String, String> {
    let text = read_secret(path).map_err(|e| e.to_string())?;
    let token = String::from_utf8(text).map_err(|_| format!("{}: not UTF-8 text", path.display()))?;
    let token = token.trim().to_owned();
    if token.len() < TOKEN_CHARS_MIN || token.contains(|c: char| !c.is_ascii_graphic()) {
        return Err(format!(
            "{}: a token has at least {TOKEN_CHARS_MIN} characters and no space; `openssl rand -hex 32` makes one",
            path.display()
        ));
    }
    Ok(token)
}

fn accept<S: Service>(server: &Arc<Server<S>>, listener: &TcpListener) {
    loop {
        let taken = listener.accept().and_then(|(socket, _)| Ok((server.places.enter(&socket)?, socket)));
        let (place, socket) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                tracing::debug!(%error, "a connection was not served");
                // Out of descriptors, for example: no busy loop.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        // Displaced connections end by themselves, immediately.
        while server.open.load(Ordering::Acquire) >= 2 * CONNECTIONS_MAX {
            std::thread::sleep(Duration::from_millis(2));
        }
        server.open.fetch_add(1, Ordering::AcqRel);
        let of_thread = server.clone();
        let spawned = std::thread::Builder::new().name(S::TABLE.into()).spawn(move || {
            if let Err(error) = of_thread.serve(socket) {
                tracing::debug!(%error, "a connection has ended");
            }
            drop(place);
            of_thread.open.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = spawned {
            server.open.fetch_sub(1, Ordering::AcqRel);
            tracing::debug!(%error, "no thread for a connection");
        }
    }
}

impl<S: Service> Server<S> {
    fn serve(&self, socket: TcpStream) -> io::Result<()> {
        let mut stream = serve_anyone(socket, self.identity.as_ref(), Instant::now() + PATIENCE)?;
        let mut unread = Vec::new();
        for _ in 0..REQUESTS_MAX {
            let Some(request) = Request::read(&mut stream, &mut unread, PATIENCE)? else { break };
            let response = self.judge(&request);
            let goes_on = request.keep_alive;
            send(&mut stream, &request, &response)?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    fn judge(&self, request: &Request) -> Response {
        if !["GET", "HEAD"].contains(&request.method.as_str()) {
            return Response::text("405 Method Not Allowed", "only GET is answered");
        }
        let has = |token: &Token| request.bearer.as_deref().is_some_and(|given| token.is(given));
        match &self.token {
            Some(token) if self.service.needs_token(&request.path) && !has(token) => {
                return Response::text(
                    "401 Unauthorized",
                    "the header Authorization does not have the right token",
                );
            }
            Some(_) => {}
            None if request.is_cross_site => {
                return Response::text("403 Forbidden", "a page of another site has asked");
            }
            // A page of another site, whose name leads to this machine, must not read what is
            // served. A certificate does not have that name.
            None if self.identity.is_none() && !request.is_for_an_address() => {
                return Response::text("403 Forbidden", "use an IP address or localhost as the host");
            }
            None => {}
        }
        self.service.answer(request)
    }
}

/// Compares all bytes, so that the time taken reveals nothing.
fn is_same(given: &str, token: &str) -> bool {
    let differs = given.bytes().zip(token.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    given.len() == token.len() && differs == 0
}

fn send(stream: &mut Stream, request: &Request, response: &Response) -> io::Result<()> {
    let Response { status, kind, body } = response;
    let connection = if request.keep_alive { "keep-alive" } else { "close" };
    let challenge = if status.starts_with("401") { "WWW-Authenticate: Bearer\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: {connection}\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Content-Security-Policy: default-src 'self'; frame-ancestors 'none'\r\n{challenge}\r\n",
        body.len()
    );
    let body: &[u8] = if request.method == "HEAD" { &[] } else { body };
    let deadline = Instant::now() + ANSWER_TIME;
    for part in std::iter::once(head.as_bytes()).chain(body.chunks(PART_BYTES)) {
        let left = deadline.saturating_duration_since(Instant::now()).min(PATIENCE);
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_timeout(Some(left))?;
        stream.write_all(part)?;
    }
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole() {
        assert!(is_same("abc", "abc"));
        assert!(
            !is_same("abc", "abd") && !is_same("ab", "abc") && !is_same("abcd", "abc") && !is_same("", "a")
        );
    }

    #[test]
    fn a_token_that_others_read_or_guess_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let put = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            read_token(&path)
        };
        assert_eq!(put("0123456789abcdef\n", 0o600).unwrap(), "0123456789abcdef");
        assert!(put("0123456789abcdef\n", 0o644).unwrap_err().contains("chmod 600"));
        assert!(put("short\n", 0o600).unwrap_err().contains("at least 16"));
    }
}
