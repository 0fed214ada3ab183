//! How a file is striped over the servers of a PFS, where the PFS tells.
//!
//! One probe per kind of PFS, tried in turn; a file system that answers none has no known layout, which is no error.

use rustix::fs::fgetxattr;
use serde::{Deserialize, Serialize};
use std::os::fd::BorrowedFd;

/// Stripe layout of one file: stripe `i` (of `stripe_bytes`) lives on server `(first_server + i) % servers.len()`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes of one stripe.
    pub stripe_bytes: u64,
    /// Names of the servers, in stripe order.
    pub servers: Vec<String>,
    /// Index of the server that holds stripe 0.
    pub first_server: usize,
}

impl Layout {
    /// The server that holds the byte at `offset`, or `None` if the layout names no server.
    pub fn server_of(&self, offset: u64) -> Option<&str> {
        let count = self.servers.len() as u64;
        if count == 0 || self.stripe_bytes == 0 {
            return None;
        }
        let index = (offset / self.stripe_bytes + self.first_server as u64) % count;
        self.servers.get(index as usize).map(String::as_str)
    }
}

/// Extended attribute by which the lab's slow file system tells its layout, as JSON.
pub const LAYOUT_XATTR: &str = "user.forebay.layout";

/// Asks the PFS for the layout of an open file; `None` where it does not tell.
pub fn probe(fd: BorrowedFd<'_>) -> Option<Layout> {
    probe_json(fd).or_else(|| probe_ceph(fd))
}

fn probe_json(fd: BorrowedFd<'_>) -> Option<Layout> {
    serde_json::from_slice(&xattr(fd, LAYOUT_XATTR)?).ok()
}

/// CephFS: `stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=...`; objects are placed by hash, so the file
/// tells the unit but not the servers.
fn probe_ceph(fd: BorrowedFd<'_>) -> Option<Layout> {
    let text = String::from_utf8(xattr(fd, "ceph.file.layout")?).ok()?;
    parse_ceph(&text)
}

fn parse_ceph(text: &str) -> Option<Layout> {
    let unit = text.split_whitespace().find_map(|field| field.strip_prefix("stripe_unit="))?;
    Some(Layout { stripe_bytes: unit.parse().ok()?, servers: Vec::new(), first_server: 0 })
}

fn xattr(fd: BorrowedFd<'_>, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0u8; 4096];
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
    }

    #[test]
    fn ceph_tells_the_unit_only() {
        let layout = parse_ceph("stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=data").unwrap();
        assert_eq!((layout.stripe_bytes, layout.server_of(0)), (4_194_304, None));
        assert_eq!(parse_ceph("nonsense"), None);
    }
}
