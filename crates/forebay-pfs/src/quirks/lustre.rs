//! Lustre: stripes go round the objects of a file, each on an OST (object storage target).
//!
//! The client returns the layout as Lustre's own tools see it (`struct lov_user_md` in
//! `lustre_user.h`), little endian. Layouts of several components differ along the file, and are
//! not read.
//!
//! A new file gets its layout between its creation without objects and its first open for writing,
//! as `lfs setstripe` gives it.

use super::create::{Laid, New};
use super::{FileSystem, Traits, UNKNOWN};
use crate::ChangeStamp;
use crate::layout::hint::{ALL, Hint};
use crate::layout::{Layout, long_attribute};
use rustix::fs::OFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

pub(super) const LUSTRE: FileSystem = FileSystem {
    name: "Lustre",
    is_of: |line| line.fs_type == b"lustre",
    traits: Traits { layout_asks_servers: true, known_stamps: Some(ChangeStamp::Ctime), ..UNKNOWN.traits },
    layout: Some(|fd| parse(&long_attribute(fd, XATTR)?)),
    create: Some(create),
};

/// The attribute.
const XATTR: &str = "lustre.lov";

/// The layout without and with the name of a pool, by their first number, and where their objects
/// begin.
const KINDS: [(u32, usize); 2] = [(0x0BD1_0BD0, 32), (0x0BD3_0BD0, 48)];

/// The pattern of plain striping. Others, such as data on the metadata server or files that were
/// moved to an archive, have none.
const RAID0: u32 = 1;

/// Identifier, generation, and number of the OST.
const OBJECT_BYTES: usize = 24;

/// Creates a file without objects: `O_LOV_DELAY_CREATE`, with the two flags that older and newer
/// versions want in addition.
const DELAY_CREATE: OFlags = OFlags::from_bits_retain(0o100_000_000 | 0o400 | 0o20_000);

/// `LL_IOC_LOV_SETSTRIPE`: `_IOW('f', 154, long)`.
const SET: u32 = 0x4008_669A;

/// Longest name of a pool, and with its end.
const POOL_BYTES: usize = 15;

/// A layout with a list of objects' OSTs (`LOV_USER_MAGIC_SPECIFIC`), in the form of one with a
/// pool.
const SPECIFIC: u32 = 0x0BD5_0BD0;

/// Stripes are multiples of this.
const STRIPE_BYTES_MIN: u64 = 64 << 10;

/// The layout as [`set`] wants it.
fn user_layout(hint: &Hint) -> Result<Vec<u8>, String> {
    let bytes = hint.stripe_bytes.unwrap_or(0);
    let bytes = u32::try_from(bytes).ok().filter(|bytes| u64::from(*bytes).is_multiple_of(STRIPE_BYTES_MIN));
    let bytes = bytes.ok_or("a stripe of Lustre is a multiple of 64 KiB below 4 GiB")?;
    let pool = hint.pool.as_deref().unwrap_or("").as_bytes();
    if pool.len() > POOL_BYTES {
        return Err(format!("the name of a pool of Lustre has at most {POOL_BYTES} characters"));
    }
    let stripes = match hint.stripes {
        Some(ALL) => u16::MAX,
        // A hint has no more than 2000.
        Some(stripes) => stripes as u16,
        None => hint.servers.len() as u16,
    };
    let magic = match (hint.servers.is_empty(), pool.is_empty()) {
        (false, _) => SPECIFIC,
        (true, true) => KINDS[0].0,
        (true, false) => KINDS[1].0,
    };
    let mut layout = [magic, RAID0].map(u32::to_le_bytes).concat();
    layout.resize(24, 0);
    layout.extend(bytes.to_le_bytes());
    layout.extend(stripes.to_le_bytes());
    // The first server: any, or the first of the list.
    layout.extend(hint.servers.first().map_or(u16::MAX, |first| *first as u16).to_le_bytes());
    if magic != KINDS[0].0 {
        layout.extend(pool);
        layout.resize(KINDS[1].1, 0);
    }
    for server in &hint.servers {
        layout.extend([0; OBJECT_BYTES - 4]);
        layout.extend(server.to_le_bytes());
    }
    Ok(layout)
}

fn create(new: &mut New<'_>, hint: &Hint) -> Laid {
    let layout = user_layout(hint)?;
    let file = new.file(DELAY_CREATE)?;
    Ok(file.map(|file| set(file.as_fd(), &layout)))
}

/// Gives a file without objects its layout.
fn set(file: BorrowedFd<'_>, layout: &[u8]) -> io::Result<()> {
    // SAFETY: the call reads the layout, whose length its first number and its count say.
    match unsafe { libc::ioctl(file.as_raw_fd(), SET.into(), layout.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads a plain layout.
fn parse(value: &[u8]) -> Option<Layout> {
    let magic = u32_at(value, 0)?;
    let (_, objects_at) = KINDS.iter().find(|(number, _)| *number == magic)?;
    let (pattern, stripe_bytes) = (u32_at(value, 4)?, u32_at(value, 24)?);
    let stripes = usize::from(u16::from_le_bytes(*value.get(28..)?.first_chunk()?));
    if pattern != RAID0 || stripe_bytes == 0 || stripes == 0 {
        return None;
    }
    let objects = value.get(*objects_at..)?.get(..stripes * OBJECT_BYTES)?;
    let name = |object: &[u8]| Some(format!("OST{:04x}", u32_at(object, 20)?));
    let servers = objects.chunks_exact(OBJECT_BYTES).map(name).collect::<Option<Vec<_>>>()?;
    Some(Layout { stripe_bytes: stripe_bytes.into(), servers, first_server: 0 })
}

fn u32_at(value: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*value.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: u32 = 0x0BD1_0BD0;
    const V3: u32 = 0x0BD3_0BD0;
    const COMPOSITE: u32 = 0x0BD6_0BD0;

    fn value(magic: u32, pattern: u32, stripe_bytes: u32, osts: &[u32]) -> Vec<u8> {
        let mut value: Vec<u8> = Vec::new();
        value.extend(magic.to_le_bytes());
        value.extend(pattern.to_le_bytes());
        value.extend([0x11u8; 16]);
        value.extend(stripe_bytes.to_le_bytes());
        value.extend((osts.len() as u16).to_le_bytes());
        value.extend(3u16.to_le_bytes());
        if magic == V3 {
            value.extend(*b"flash\0\0\0\0\0\0\0\0\0\0\0");
        }
        for ost in osts {
            value.extend([0x22u8; 16]);
            value.extend(7u32.to_le_bytes());
            value.extend(ost.to_le_bytes());
        }
        value
    }

    #[test]
    fn stripes_are_on_the_osts_of_their_objects() {
        for magic in [V1, V3] {
            let layout = parse(&value(magic, RAID0, 1 << 20, &[2, 0x1f, 0])).unwrap();
            assert_eq!((layout.stripe_bytes, layout.first_server), (1 << 20, 0));
            assert_eq!(layout.servers, ["OST0002", "OST001f", "OST0000"]);
            assert_eq!(layout.server_of((4 << 20) + 5), Some("OST001f"));
        }
    }

    #[test]
    fn a_hint_is_what_lfs_setstripe_passes() {
        let layout = |text: &str| user_layout(&text.parse().unwrap());
        let plain = layout("stripes:8,size:4MiB").unwrap();
        let recorded =
            [&[0xD0, 0x0B, 0xD1, 0x0B, 1, 0, 0, 0][..], &[0; 16], &[0, 0, 0x40, 0, 8, 0, 0xFF, 0xFF]];
        assert_eq!(plain, recorded.concat());
        let pool = layout("stripes:all,pool:flash").unwrap();
        assert_eq!((pool.len(), &pool[..4], &pool[28..30]), (48, &V3.to_le_bytes()[..], &[0xFF, 0xFF][..]));
        assert_eq!(&pool[32..], b"flash\0\0\0\0\0\0\0\0\0\0\0");
        let listed = layout("servers:2+31,size:1MiB").unwrap();
        assert_eq!((listed.len(), &listed[..4]), (48 + 2 * 24, &SPECIFIC.to_le_bytes()[..]));
        assert_eq!(
            (&listed[28..32], &listed[68..72], &listed[92..]),
            (&[2, 0, 2, 0][..], &[2, 0, 0, 0][..], &[31, 0, 0, 0][..])
        );
        // What Lustre then returns of the same file has other magic, and the same places.
        let mut returned = listed;
        returned[..4].copy_from_slice(&V3.to_le_bytes());
        assert_eq!(parse(&returned).unwrap().servers, ["OST0002", "OST001f"]);
        for text in ["size:1000", "size:4GiB", "pool:a-name-that-is-too-long"] {
            assert!(layout(text).is_err(), "{text}");
        }
    }

    #[test]
    fn other_layouts_are_not_known() {
        assert_eq!(parse(&value(COMPOSITE, RAID0, 1 << 20, &[1])), None);
        assert_eq!(parse(&value(V1, 0x100, 1 << 20, &[1])), None, "data on the metadata server");
        assert_eq!(parse(&value(V1, 0x8000_0001, 1 << 20, &[1])), None, "in the archive");
        assert_eq!(parse(&value(V1, RAID0, 0, &[1])), None);
        assert_eq!(parse(&value(V1, RAID0, 1 << 20, &[])), None, "an empty file may have no objects");
    }

    #[test]
    fn what_is_cut_off_is_not_believed() {
        for magic in [V1, V3, COMPOSITE] {
            let whole = value(magic, RAID0, 1 << 20, &[1, 2, 3]);
            assert_eq!(parse(&whole).is_some(), magic != COMPOSITE);
            for len in 0..whole.len() {
                assert_eq!(parse(&whole[..len]), None, "{magic:x} {len}");
            }
        }
    }
}
