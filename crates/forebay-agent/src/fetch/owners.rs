//! Who is asked for a page: the peer that owns it, or the PFS.

use crate::cache::entry::{Entry, Task};
use crate::cluster::{Cluster, Owner};
use crate::lock::lock;
use crate::mounts::MountState;
use crate::mounts::opened_path::opened_path;
use forebay_pfs::FileVersion;
use forebay_pfs::layout;
use forebay_wire::NodeInfo;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a peer is not asked again for a file that it would not serve.
const DECLINED: Duration = Duration::from_secs(5);

/// How long the tool of a PFS may take to report a file's layout.
const ASK_TIME: Duration = Duration::from_secs(1);

/// Most files remembered as declined; beyond that the memory starts over.
const DECLINED_MAX: usize = 4096;

/// Finds the owners of pages.
#[derive(Debug)]
pub struct Owners {
    mounts: Arc<[MountState]>,
    cluster: Arc<Cluster>,
    /// Files that a peer would not serve, and until when that is believed.
    declined: Mutex<BTreeMap<(String, FileVersion), Instant>>,
}

impl Owners {
    /// Owners of the pages of files on `mounts`. No peer has declined yet.
    pub fn new(mounts: Arc<[MountState]>, cluster: Arc<Cluster>) -> Self {
        Owners { mounts, cluster, declined: Mutex::default() }
    }

    /// The peer that `task` should be asked of; `None` for the PFS.
    pub fn route(&self, task: &Task) -> Option<Arc<NodeInfo>> {
        if task.page_fetch.is_kept_from_peers() {
            return None;
        }
        self.source_of(&task.entry, task.page_fetch.page)
    }

    /// As [`Owners::owner_of`], but none for what a storage server of this host has: it would cross
    /// the network to its owner and back.
    pub fn source_of(&self, entry: &Entry, page: u32) -> Option<Arc<NodeInfo>> {
        let is_here = entry.is_stored_here(u64::from(page) * entry.identity.page_bytes);
        if is_here { None } else { self.owner_of(entry, page) }
    }

    /// The peer that owns a page and would serve it.
    pub fn owner_of(&self, entry: &Entry, page: u32) -> Option<Arc<NodeInfo>> {
        let (version, config) = (&entry.identity.version, &self.mounts[entry.mount].config);
        let offset = u64::from(page) * entry.identity.page_bytes;
        match self.cluster.owner(&config.label, config.extent_bytes, version.ino, offset) {
            Owner::Here => None,
            Owner::Peer(node) if self.has_declined(&node.name, version) => None,
            Owner::Peer(node) => Some(node),
        }
    }

    /// Asks the PFS, once for each copy, what of the file a storage server of this host has, if
    /// there is one. `fd` is the file.
    pub fn learn_own_stripes(&self, entry: &Entry, fd: BorrowedFd<'_>) {
        let mount = &self.mounts[entry.mount];
        if !mount.config.layout || !self.cluster.is_storage_host() {
            return;
        }
        let path = opened_path(fd);
        let path = Path::new(OsStr::from_bytes(&path));
        let found =
            layout::of_file(path, entry.identity.version.size, Instant::now() + ASK_TIME, || Some(fd));
        if let Some(own) = found.and_then(|layout| self.cluster.own_stripes(layout)) {
            entry.set_own_stripes(own);
        }
    }

    /// Bytes of pages of the mount that the tiers of all nodes that keep them can hold; `None` if
    /// this node keeps all.
    pub fn room_bytes(&self, mount_label: &str) -> Option<u64> {
        self.cluster.capacity_bytes(mount_label)
    }

    fn has_declined(&self, peer: &str, version: &FileVersion) -> bool {
        let declined = lock(&self.declined);
        !declined.is_empty()
            && declined.get(&(peer.to_owned(), *version)).is_some_and(|until| Instant::now() < *until)
    }

    /// Records that the peer would not serve this version: it is not asked for it for a while.
    pub fn decline(&self, peer: &str, version: &FileVersion) {
        let mut declined = lock(&self.declined);
        if declined.len() >= DECLINED_MAX {
            declined.clear();
        }
        declined.insert((peer.to_owned(), *version), Instant::now() + DECLINED);
    }

    /// Forgets what has expired. Called when there is time.
    pub fn keep_house(&self) {
        let now = Instant::now();
        lock(&self.declined).retain(|_, until| now < *until);
    }
}
