//! The lab's slow file system reports its layout as JSON, and is otherwise like most.

use super::{FileSystem, UNKNOWN};
use crate::layout::attribute;

/// Extended attribute with the layout.
pub const LAYOUT_XATTR: &str = "user.forebay.layout";

pub(super) const SLOWFS: FileSystem = FileSystem {
    name: "the lab's slow file system",
    is_of: |line| line.fs_type == b"fuse.forebay-slowfs",
    layout: Some(|fd| serde_json::from_slice(&attribute(fd, LAYOUT_XATTR)?).ok()),
    ..UNKNOWN
};
