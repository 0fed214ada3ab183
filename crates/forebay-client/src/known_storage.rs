//! What a client remembers of storage servers ([`crate::storage`]).

use forebay_pfs::layout::Layout;
use forebay_wire::StorageHosts;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Layouts of files by mount, inode and size, and when the PFS was asked.
pub(crate) type Layouts = BTreeMap<(String, u64, u64), (Instant, Option<Arc<Layout>>)>;

/// What a client knows of storage servers.
#[derive(Debug, Default)]
pub(crate) struct KnownStorage {
    pub(crate) hosts: Mutex<Option<(Instant, Arc<StorageHosts>)>>,
    pub(crate) layouts: Mutex<Layouts>,
}
