//! How a file is striped over the servers of a PFS, if the PFS reports it.
//!
//! One probe per kind of PFS, tried in turn; a file system that answers none has no known layout,
//! which is not an error. What can be asked while pages are fetched is in [`probe`];
//! [`probe_servers`] asks more, and each question may be a message to a server. MooseFS has no
//! attribute: [`probe_paths`].

pub mod hint;

pub use crate::quirks::create;
pub use crate::quirks::{LAYOUT_XATTR, of_file, probe, probe_paths, probe_servers, set_class};

use rustix::fs::fgetxattr;
use serde::{Deserialize, Serialize};
use std::os::fd::BorrowedFd;

/// Stripe layout of one file: stripe `i` (of `stripe_bytes`) lives on server `(first_server + i) %
/// servers.len()`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes of one stripe; `u64::MAX` for a file that is on one server as a whole, 0 if it is not
    /// known.
    pub stripe_bytes: u64,
    /// Names of the servers, in stripe order; none if the PFS does not report them. An empty name
    /// stands for one that is not known.
    pub servers: Vec<String>,
    /// Index of the server that holds stripe 0.
    pub first_server: usize,
}

impl Layout {
    /// The servers that hold the first `bytes` of the file, in stripe order; all if that is 0 or
    /// the stripes are not known. An empty name stands for one that is not known.
    pub fn servers_of(&self, bytes: u64) -> impl Iterator<Item = &str> {
        let count = self.servers.len();
        let stripes = match self.stripe_bytes {
            0 => count,
            _ if bytes == 0 => count,
            stripe_bytes => usize::try_from(bytes.div_ceil(stripe_bytes)).unwrap_or(count).min(count),
        };
        (0..stripes).map(move |i| self.servers[(self.first_server % count + i) % count].as_str())
    }

    /// The servers of `len` bytes from `offset` on, each with its bytes there; an empty name stands
    /// for one that is not known.
    pub fn bytes_by_server(&self, offset: u64, len: u64) -> Vec<(&str, u64)> {
        let mut parts: Vec<(&str, u64)> = Vec::new();
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let to_end = self.stripe_bytes - at.checked_rem(self.stripe_bytes).unwrap_or(0);
            let is_last = self.stripe_bytes == 0 || parts.len() >= self.servers.len().max(1);
            let bytes = if is_last { end - at } else { to_end.min(end - at) };
            let server = self.server_of(at).unwrap_or_default();
            match parts.iter_mut().find(|part| part.0 == server) {
                Some(part) => part.1 += bytes,
                None => parts.push((server, bytes)),
            }
            at += bytes;
        }
        parts
    }

    /// The server that holds the byte at `offset`, or `None` if the layout names no server.
    pub fn server_of(&self, offset: u64) -> Option<&str> {
        let count = self.servers.len() as u64;
        if count == 0 || self.stripe_bytes == 0 {
            return None;
        }
        let index = (offset / self.stripe_bytes % count + self.first_server as u64 % count) % count;
        self.servers.get(index as usize).map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// The machine in a server's name, which may be followed by a port or a directory:
/// `10.77.0.14:9422`, `pfs-s2:/data/brick`, `[fd00::1]:9422`.
pub fn machine(server: &str) -> &str {
    if let Some((address, _)) = server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match server.split_once(':') {
        // An address of version 6 without brackets has nothing behind it.
        Some((_, rest)) if rest.contains(':') && !rest.starts_with('/') => server,
        Some((machine, _)) => machine,
        None => server,
    }
}

/// Longest value of an extended attribute in Linux.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// An attribute of a few words.
pub(crate) fn attribute(fd: BorrowedFd<'_>, name: &str) -> Option<Vec<u8>> {
    attribute_up_to(fd, name, 4096)
}

/// An attribute of any length.
pub(crate) fn long_attribute(fd: BorrowedFd<'_>, name: &str) -> Option<Vec<u8>> {
    attribute_up_to(fd, name, XATTR_BYTES_MAX)
}

/// With room for the longest value, one call returns it; to ask for its length first would be one
/// message more.
fn attribute_up_to(fd: BorrowedFd<'_>, name: &str, bytes_max: usize) -> Option<Vec<u8>> {
    let mut value = vec![0u8; bytes_max];
    let len = fgetxattr(fd, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_go_round_the_servers() {
        let layout =
            Layout { stripe_bytes: 10, servers: vec!["a".into(), "b".into(), "c".into()], first_server: 1 };
        assert_eq!(layout.server_of(0), Some("b"));
        assert_eq!(layout.server_of(10), Some("c"));
        assert_eq!(layout.server_of(29), Some("a"));
        assert_eq!(layout.server_of(30), Some("b"));
        let servers = |bytes| layout.servers_of(bytes).collect::<Vec<_>>();
        assert_eq!((servers(10), servers(11)), (vec!["b"], vec!["b", "c"]));
        assert_eq!((servers(1000), servers(0)), (vec!["b", "c", "a"], vec!["b", "c", "a"]));
    }

    #[test]
    fn a_servers_name_begins_with_its_machine() {
        for (server, expected) in [
            ("10.77.0.14:9422", "10.77.0.14"),
            ("pfs-s2:/data/a:b:c", "pfs-s2"),
            ("[fd00::1]:9422", "fd00::1"),
            ("fd00::1", "fd00::1"),
            ("OST0003", "OST0003"),
            ("", ""),
        ] {
            assert_eq!(machine(server), expected);
        }
    }

    #[test]
    fn bytes_are_counted_for_their_servers() {
        let servers = ["a", "b", "c"].map(String::from).to_vec();
        let layout = Layout { stripe_bytes: 10, servers, first_server: 0 };
        assert_eq!(layout.bytes_by_server(5, 10), [("a", 5), ("b", 5)]);
        assert_eq!(layout.bytes_by_server(20, 1), [("c", 1)]);
        let all = layout.bytes_by_server(0, 1000);
        assert_eq!(all.iter().map(|(_, bytes)| bytes).sum::<u64>(), 1000);
        assert_eq!(all.len(), 3);
        let unknown = Layout { stripe_bytes: 0, servers: Vec::new(), first_server: 0 };
        assert_eq!(unknown.bytes_by_server(3, 4), [("", 4)]);
    }

    #[test]
    fn whole_files_and_odd_layouts_name_a_server_or_none() {
        let whole = Layout { stripe_bytes: u64::MAX, servers: vec!["a".into()], first_server: 0 };
        for offset in [0, 1 << 40, u64::MAX] {
            assert_eq!(whole.server_of(offset), Some("a"));
        }
        let far = Layout { stripe_bytes: 1, servers: vec!["a".into(), "".into()], first_server: usize::MAX };
        assert_eq!((far.server_of(0), far.server_of(u64::MAX)), (None, Some("a")));
        assert_eq!(Layout { stripe_bytes: 0, ..whole }.server_of(0), None);
    }
}
