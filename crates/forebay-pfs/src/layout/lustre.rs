//! Lustre: stripes go round the objects of a file, each on an OST (object storage target).
//!
//! The client returns the layout as Lustre's own tools see it (`struct lov_user_md` in
//! `lustre_user.h`), little endian. Layouts of several components differ along the file, and are
//! not read.

use super::Layout;

/// The attribute.
pub(super) const XATTR: &str = "lustre.lov";

/// The layout without and with the name of a pool, by their first number, and where their objects
/// begin.
const KINDS: [(u32, usize); 2] = [(0x0BD1_0BD0, 32), (0x0BD3_0BD0, 48)];

/// The pattern of plain striping. Others, as data on the metadata server or files that were moved
/// to an archive, have none.
const RAID0: u32 = 1;

/// Identifier, generation, and number of the OST.
const OBJECT_BYTES: usize = 24;

/// Reads a plain layout.
pub(super) fn parse(value: &[u8]) -> Option<Layout> {
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
