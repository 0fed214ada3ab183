//! The head of a request, as far as it matters here.

use forebay_wire::link::Stream;
use std::io::{self, Read};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// A request without a body.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// The path, without what follows a question mark.
    pub path: String,
    /// What follows the question mark.
    pub query: String,
    /// The header `Accept`, in lower case.
    pub accept: String,
    /// The token of the header `Authorization`.
    pub bearer: Option<String>,
    /// The header `Host`.
    pub host: String,
    /// A browser says that a page of another site asks (`Sec-Fetch-Site`): it cannot read the
    /// answer, but it could make the server work.
    pub is_cross_site: bool,
    /// Another request may follow on the connection.
    pub keep_alive: bool,
}

impl Request {
    /// The next request; `None` if the peer has closed. `unread` holds bytes after the last one.
    pub fn read(stream: &mut Stream, unread: &mut Vec<u8>, patience: Duration) -> io::Result<Option<Self>> {
        let deadline = Instant::now() + patience;
        let mut part = [0; 2048];
        loop {
            if let Some(end) = unread.windows(4).position(|end| end == b"\r\n\r\n") {
                let rest = unread.split_off(end + 4);
                let head = std::mem::replace(unread, rest);
                return Ok(Some(Self::parse(&String::from_utf8_lossy(&head))));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || unread.len() > HEAD_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "no end of the request"));
            }
            stream.set_timeout(Some(left))?;
            match stream.read(&mut part)? {
                0 if unread.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => unread.extend_from_slice(&part[..n]),
            }
        }
    }

    fn parse(head: &str) -> Self {
        let mut lines = head.lines();
        let mut words = lines.next().unwrap_or_default().split_whitespace();
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request =
            Request { method, path: path.to_owned(), query: query.to_owned(), ..Request::default() };
        let mut has_body = false;
        request.keep_alive = words.next() == Some("HTTP/1.1");
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "accept" => request.accept = value.to_ascii_lowercase(),
                "host" => value.clone_into(&mut request.host),
                "sec-fetch-site" => {
                    request.is_cross_site =
                        ["cross-site", "same-site"].contains(&value) && request.path.starts_with("/api/");
                }
                "connection" => request.keep_alive &= !value.eq_ignore_ascii_case("close"),
                "content-length" => has_body |= value != "0",
                "transfer-encoding" => has_body = true,
                "authorization" => {
                    let (scheme, token) = value.split_once(' ').unwrap_or_default();
                    if scheme.eq_ignore_ascii_case("bearer") {
                        request.bearer = Some(token.trim().to_owned());
                    }
                }
                _ => {}
            }
        }
        // Nobody reads the body, so no request can follow it.
        request.keep_alive &= !has_body;
        request
    }

    /// A number of the query.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.parse().ok()
    }

    /// A text of the query, percent-decoded; `None` if it is not UTF-8.
    pub fn text(&self, name: &str) -> Option<String> {
        let mut parts = self.value(name)?.split('%');
        let mut bytes = parts.next()?.as_bytes().to_vec();
        for part in parts {
            bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
            bytes.extend_from_slice(&part.as_bytes()[2..]);
        }
        String::from_utf8(bytes).ok()
    }

    fn value(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Whether the host is an IP address or `localhost`, or is not named.
    pub fn is_for_an_address(&self) -> bool {
        let (host, port) = match self.host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').unwrap_or((rest, "no end")),
            None => self.host.split_at(self.host.find(':').unwrap_or(self.host.len())),
        };
        let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok());
        let is_address =
            host.is_empty() || host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok();
        is_address && is_port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read() {
        let head = "GET /a/b?x=1&sample=77 HTTP/1.1\r\nHost: [::1]:90\r\nAUTHORIZATION: bearer t0k\r\naccept: A/B\r\n\r\n";
        let request = Request::parse(head);
        assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", "/a/b"));
        assert_eq!((request.number("sample"), request.number("y")), (Some(77), None));
        assert_eq!((request.bearer.as_deref(), request.accept.as_str()), (Some("t0k"), "a/b"));
        assert!(request.keep_alive && request.is_for_an_address());
        let named = |query| Request::parse(&format!("GET /?node={query} HTTP/1.1\r\n\r\n")).text("node");
        assert_eq!(named("a%20%C3%A4%26b").as_deref(), Some("a ä&b"));
        assert!(["%", "%C", "%ä", "%FF"].into_iter().all(|query| named(query).is_none()));
        let other = Request::parse("POST / HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 3\r\n\r\n");
        assert!(!other.keep_alive && !other.is_for_an_address());
        for (host, is) in [
            ("[::1].evil", false),
            ("[::1", false),
            ("[::1]evil", false),
            ("[evil]", false),
            ("127.0.0.1.evil:80", false),
            ("localhost:evil", false),
            ("[::1]", true),
            ("127.0.0.1:80", true),
            ("LOCALHOST", true),
        ] {
            let request = Request::parse(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(request.is_for_an_address(), is, "{host}");
        }
        assert!(!Request::parse("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n").keep_alive);
        assert!(!Request::parse("GET / HTTP/1.0\r\n\r\n").keep_alive);
        assert_eq!(Request::parse("").method, "");
    }
}
