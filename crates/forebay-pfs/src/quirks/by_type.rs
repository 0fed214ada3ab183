//! What the type of a file system says by itself.

use super::Traits;
use crate::ChangeStamp;

/// File systems that only this node can write, and where a lease shows every writer on this node.
/// Not overlay: it gives a shared mapping the file below, so once the descriptor is closed a lease
/// does not see the mapping.
const LOCAL: [&[u8]; 13] = [
    b"ext2",
    b"ext3",
    b"ext4",
    b"xfs",
    b"btrfs",
    b"f2fs",
    b"bcachefs",
    b"zfs",
    b"jfs",
    b"tmpfs",
    b"ramfs",
    b"vfat",
    b"exfat",
];

/// Of these, those that keep no ctime of their own.
const WITHOUT_CTIME: [&[u8]; 2] = [b"vfat", b"exfat"];

/// Other file systems whose time stamps are known to follow writes: from their documentation, or
/// measured.
const STAMPED: [&[u8]; 4] = [b"overlay", b"gpfs", b"nfs", b"nfs4"];

/// File systems that nobody can write, on any node: images that are complete when they are made. A
/// read-only mount of any other type proves nothing about other mounts of the same files.
const UNCHANGING: [&str; 7] =
    ["squashfs", "iso9660", "erofs", "cramfs", "romfs", "fuse.squashfuse", "fuse.squashfuse_ll"];

/// Whether only this node has the files: true even of overlays, such as a container's root.
pub(super) fn is_of_one_node(fs_type: &[u8]) -> bool {
    LOCAL.contains(&fs_type) || [&b"overlay"[..], b"rootfs", b"devtmpfs"].contains(&fs_type)
}

/// `traits` of a file system of this type.
pub(super) fn of_type(fs_type: &[u8], traits: Traits) -> Traits {
    let is_local = LOCAL.contains(&fs_type);
    let by = if WITHOUT_CTIME.contains(&fs_type) { ChangeStamp::Newer } else { ChangeStamp::Ctime };
    let known_stamps = traits.known_stamps.or((is_local || STAMPED.contains(&fs_type)).then_some(by));
    let unchanging = UNCHANGING.into_iter().find(|of| of.as_bytes() == fs_type);
    Traits { is_local, unchanging, known_stamps, ..traits }
}
