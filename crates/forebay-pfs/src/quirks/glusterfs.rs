//! GlusterFS: each file on one brick, or on several that have a copy each; the path of a file
//! through its volume says which.

use super::{FileSystem, Traits, UNKNOWN};
use crate::ChangeStamp;
use crate::layout::{Layout, long_attribute};

pub(super) const GLUSTERFS: FileSystem = FileSystem {
    name: "GlusterFS",
    is_of: |line| line.fs_type == b"fuse.glusterfs",
    traits: Traits { layout_asks_servers: true, known_stamps: Some(ChangeStamp::Ctime), ..UNKNOWN.traits },
    layout: Some(|fd| parse(&XATTRS.iter().find_map(|name| long_attribute(fd, name))?)),
    create: None,
};

/// Attributes in which its client reports that path: to root, and to everybody.
const XATTRS: [&str; 2] = ["trusted.glusterfs.pathinfo", "glusterfs.pathinfo"];

/// Translators that spread each file over all that is below them.
const SPREADING: [&str; 3] = ["<STRIPE:", "<DISPERSE:", "<EC:"];

/// Reads `(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-0> <POSIX(/b1):host1:/b1/f>
/// <POSIX(/b2):host2:/b2/f>))`, which ends with a zero byte. Of several copies it takes the first.
/// A spread file is on no server more than on another, so no server is reported.
fn parse(value: &[u8]) -> Option<Layout> {
    let text = String::from_utf8_lossy(value);
    // What is before the first brick is the volume's; behind it are names of files, which may be
    // anything.
    let (above, brick) = text.split_once("<POSIX(")?;
    if SPREADING.iter().any(|tag| above.contains(tag)) {
        return Some(Layout { stripe_bytes: 0, servers: Vec::new(), first_server: 0 });
    }
    let (dir, rest) = brick.split_once("):")?;
    let (host, _) = rest.split_once(':')?;
    if host.is_empty() {
        return None;
    }
    Some(Layout { stripe_bytes: u64::MAX, servers: vec![format!("{host}:{dir}")], first_server: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[u8] = b"(<DISTRIBUTE:distribute> <POSIX(/data/brick):pfs-s2:/data/brick/big>)\0";
    const COPIES: &[u8] =
        b"(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-0> <POSIX(/b1):host1:/b1/f> <POSIX(/b2):host2:/b2/f>))\0";
    const SPREAD: &[u8] =
        b"(<DISTRIBUTE:v-dht> (<EC:v-disperse-0> { <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f> }))\0";

    fn servers(value: &[u8]) -> Option<Vec<String>> {
        parse(value).map(|layout| layout.servers)
    }

    #[test]
    fn the_first_brick_has_the_file() {
        assert_eq!(servers(ONE).unwrap(), ["pfs-s2:/data/brick"]);
        assert_eq!(parse(ONE).unwrap().server_of(1 << 50), Some("pfs-s2:/data/brick"));
        assert_eq!(servers(COPIES).unwrap(), ["host1:/b1"]);
        let odd_name = b"(<DISTRIBUTE:d> <POSIX(/b):h:/b/<EC:x> <POSIX(/c):i:/c/\xff>)\0";
        assert_eq!(servers(odd_name).unwrap(), ["h:/b"], "a file may be called anything");
    }

    #[test]
    fn what_is_spread_over_bricks_is_on_no_server() {
        assert_eq!(parse(SPREAD).unwrap().server_of(0), None);
        for tag in ["STRIPE", "DISPERSE"] {
            let value = format!("(<{tag}:v-0> <POSIX(/b1):h1:/b1/f> <POSIX(/b2):h2:/b2/f>)\0");
            assert_eq!(servers(value.as_bytes()).unwrap(), [""; 0], "{tag}");
        }
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_not_believed() {
        for value in [ONE, COPIES, SPREAD] {
            for len in 0..value.len() {
                // Whatever is left of it: no panic, and no other server than the one it names.
                let names = servers(&value[..len]).unwrap_or_default();
                assert!(names.is_empty() || Some(names) == servers(value), "{len}");
            }
        }
        for other in ["", "\0", "(<DISTRIBUTE:d> )", "<POSIX(/b)::/b/f>", "<POSIX(/b)", "<POSIX(/b):h"] {
            assert_eq!(parse(other.as_bytes()), None, "{other}");
        }
    }
}
