//! Access to the parallel file system (PFS): the identity of a file, its mount, how it is
//! striped, and its bytes.
//!
//! The PFS is the namespace and the truth. Nothing here depends on a cache; the crate turns
//! descriptors into identities (`version`), paths into mounts (`mount`), attributes into stripe
//! layouts (`layout`) and ranges into bytes (`read`), knows what each file system does differently
//! from most (`quirks`), and finds out which pages are holes (`holes`), who writes a file (`lease`)
//! and whether time stamps follow writes (`stamps`).

pub mod holes;
pub mod layout;
pub mod lease;
pub mod long_write;
pub mod mount;
mod quirks;
pub mod read;
pub mod source;
pub mod stamps;
pub mod version;

pub use mount::{Mount, find_mount};
pub use quirks::{Traits, local_directory, name_of};
pub use source::{Mounted, Source};
pub use version::{ChangeStamp, Difference, FileFacts, FileVersion, Revalidate};
