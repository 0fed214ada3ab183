//! What a miss does: a page comes into the tier from the peer that owns it, or from the PFS.

pub mod peer_link;
pub mod peers;
pub mod pfs;
