//! CephFS, through the kernel's client or `ceph-fuse`.

use super::create::{Laid, New};
use super::{FileSystem, Traits, UNKNOWN};
use crate::ChangeStamp;
use crate::layout::hint::{ALL, Hint};
use crate::layout::{Layout, attribute};
use crate::mount::MountLine;
use rustix::fs::{OFlags, XattrFlags, fsetxattr};
use std::io;
use std::os::fd::BorrowedFd;

pub(super) const KERNEL: FileSystem = FileSystem {
    name: "CephFS",
    is_of: |line| line.fs_type == b"ceph",
    traits: Traits { known_stamps: Some(ChangeStamp::Ctime), ..UNKNOWN.traits },
    layout: Some(layout),
    create: Some(create),
};

/// Its client drops the kernel's pages some time after it has given up the right to cache them.
pub(super) const FUSE: FileSystem = FileSystem {
    name: "CephFS through ceph-fuse",
    is_of: is_fuse,
    traits: Traits { keeps_old_pages: true, ..KERNEL.traits },
    // The attribute is the same one.
    layout: None,
    create: Some(create),
};

const XATTR: &str = "ceph.file.layout";

fn is_fuse(line: &MountLine) -> bool {
    [&b"fuse.ceph-fuse"[..], b"fuse.ceph"].contains(&&line.fs_type[..])
        || (line.fs_type == b"fuse" && line.source == b"ceph-fuse")
}

/// `stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=...`; objects are placed by hash,
/// so the file shows the unit but not the servers.
fn layout(fd: BorrowedFd<'_>) -> Option<Layout> {
    parse(&String::from_utf8(attribute(fd, XATTR)?).ok()?)
}

fn parse(text: &str) -> Option<Layout> {
    let unit = text.split_whitespace().find_map(|field| field.strip_prefix("stripe_unit="))?;
    Some(Layout { stripe_bytes: unit.parse().ok()?, servers: Vec::new(), first_server: 0 })
}

/// It takes a layout as long as the file is empty.
fn create(new: &mut New<'_>, hint: &Hint) -> Laid {
    let layout = layout_of(hint)?;
    let Some(file) = new.file(OFlags::empty())? else { return Ok(None) };
    Ok(Some(fsetxattr(&file, XATTR, layout.as_bytes(), XattrFlags::empty()).map_err(io::Error::from)))
}

/// An object if the hint does not need another size.
const OBJECT_BYTES: u64 = 4 << 20;

/// It takes all of it at once, so that no part contradicts another meanwhile. An object holds whole
/// stripes.
fn layout_of(hint: &Hint) -> Result<String, String> {
    if !hint.servers.is_empty() {
        return Err("CephFS places objects by itself: it takes no list of servers".into());
    }
    let mut parts = Vec::new();
    match hint.stripes {
        Some(ALL) => return Err("CephFS wants a number of stripes".into()),
        Some(stripes) => parts.push(format!("stripe_count={stripes}")),
        None => {}
    }
    if let Some(bytes) = hint.stripe_bytes {
        if bytes % (64 << 10) != 0 {
            return Err("a stripe of CephFS is a multiple of 64 KiB".into());
        }
        let object_bytes = (OBJECT_BYTES / bytes * bytes).max(bytes);
        parts.push(format!("stripe_unit={bytes} object_size={object_bytes}"));
    }
    parts.extend(hint.pool.as_ref().map(|pool| format!("pool={pool}")));
    Ok(parts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reports_the_unit_only() {
        let layout = parse("stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=data").unwrap();
        assert_eq!((layout.stripe_bytes, layout.server_of(0)), (4_194_304, None));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn objects_hold_whole_stripes() {
        let layout = |text: &str| layout_of(&text.parse().unwrap());
        assert_eq!(
            layout("stripes:8,size:1MiB").unwrap(),
            "stripe_count=8 stripe_unit=1048576 object_size=4194304"
        );
        assert_eq!(layout("size:3MiB").unwrap(), "stripe_unit=3145728 object_size=3145728");
        assert_eq!(layout("size:8MiB,pool:ssd").unwrap(), "stripe_unit=8388608 object_size=8388608 pool=ssd");
        for text in ["servers:1", "stripes:all", "size:1000"] {
            assert!(layout(text).is_err(), "{text}");
        }
    }
}
