//! Where tasks that read a file should run: at the storage servers that hold it.
//!
//! The file is divided into blocks: its stripes if they are long enough for a task, else extents. A
//! block is at the host of the server that holds most of it, if that is at least half; where no
//! server does, tasks run where the tier has the block.
//!
//! Each process asks the PFS itself, with the rights of its user, and remembers the answers for a
//! while: schedulers ask for the size of a block and for its place one after the other.

use crate::job::Location;
use crate::session::{Client, lock};
use forebay_pfs::layout::{self, Layout};
use forebay_wire::{ClusterView, FileRef, MountInfo, Reply, Request, Role, StorageHosts};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest stripe that is a block by itself: a task that reads less costs more to start than
/// to run.
const BLOCK_BYTES_MIN: u64 = 16 << 20;

/// How long the tool of a PFS may take to answer for one file.
const TOOL_TIME: Duration = Duration::from_secs(1);

/// How long answers are believed.
const LAYOUT_LIFE: Duration = Duration::from_secs(30);

/// Answers that are remembered; beyond that all are forgotten.
const LAYOUTS_MAX: usize = 16_384;

impl Client {
    /// Where tasks that read `len` bytes from `offset` of the file at `path` should run, block by
    /// block: the host of the storage server that holds the block, where one does. Where that is
    /// not known the hosts are those of [`Client::preferred_nodes`], which come second where
    /// the storage server runs no agent.
    ///
    /// # Errors
    /// As [`Client::file_ref`].
    pub fn storage_nodes(&self, path: impl AsRef<Path>, offset: u64, len: u64) -> io::Result<Vec<Location>> {
        let file = self.file_ref(path)?;
        self.storage_nodes_ref(&file, offset, len)
    }

    /// As [`Client::storage_nodes`], for a file that has been named already.
    ///
    /// # Errors
    /// The mount is not served any more; no agent.
    pub fn storage_nodes_ref(&self, file: &FileRef, offset: u64, len: u64) -> io::Result<Vec<Location>> {
        let mount = self.mount_called(&file.mount)?;
        let layout = self.layout_of(&mount, file);
        let hosts = self.storage_hosts()?;
        let end = offset.saturating_add(len).min(file.version.size);
        let members = self.with_view(ClusterView::clone)?;
        let block_bytes = block_bytes(layout.as_deref(), mount.extent_bytes);
        let mut found = Vec::new();
        let mut at = offset;
        while at < end {
            let block = at / block_bytes;
            let (first, last) = (block * block_bytes, (block + 1).saturating_mul(block_bytes));
            let bytes = last.min(file.version.size) - first;
            let server = layout.as_deref().and_then(|layout| most_of(layout, first, bytes));
            let host = server.and_then(|server| hosts.host_of(server, &members.nodes));
            let mut names: Vec<String> = host.into_iter().map(str::to_owned).collect();
            if !names.iter().any(|host| runs_tasks(&members, host)) {
                // Of two names, a scheduler takes the one at which it has executors.
                let of_tier = self.preferred_nodes_ref(file, first, bytes)?;
                names.extend(of_tier.into_iter().next().into_iter().flat_map(|part| part.hosts));
                names.dedup();
            }
            let next = last.min(end);
            found.push(Location { offset: at, len: next - at, hosts: names });
            at = next;
        }
        Ok(found)
    }

    fn storage_hosts(&self) -> io::Result<Arc<StorageHosts>> {
        let mut known = lock(&self.session.storage.hosts);
        if let Some((at, hosts)) = &*known
            && at.elapsed() < LAYOUT_LIFE
        {
            return Ok(hosts.clone());
        }
        let asked = Instant::now();
        let hosts = match self.session.unless_left_alone(|| self.ask_aside(&Request::StorageHosts))? {
            Reply::StorageHosts(hosts) => Arc::new(hosts),
            reply => return Err(crate::session::unexpected(&reply)),
        };
        *known = Some((asked, hosts.clone()));
        Ok(hosts)
    }

    /// Where the file is; `None` if its PFS does not report it.
    fn layout_of(&self, mount: &MountInfo, file: &FileRef) -> Option<Arc<Layout>> {
        let key = (file.mount.clone(), file.version.ino, file.version.size);
        let known = lock(&self.session.storage.layouts).get(&key).cloned();
        if let Some((at, layout)) = known
            && at.elapsed() < LAYOUT_LIFE
        {
            return layout;
        }
        let asked = Instant::now();
        let path = Path::new(OsStr::from_bytes(&mount.root)).join(OsStr::from_bytes(&file.path));
        let open = || {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            rustix::fs::open(&path, flags, Mode::empty()).ok()
        };
        let layout = layout::of_file(&path, file.version.size, asked + TOOL_TIME, open).map(Arc::new);
        let mut layouts = lock(&self.session.storage.layouts);
        if layouts.len() >= LAYOUTS_MAX {
            layouts.clear();
        }
        layouts.insert(key, (asked, layout.clone()));
        layout
    }
}

/// The unit in which tasks read a file.
fn block_bytes(layout: Option<&Layout>, extent_bytes: u64) -> u64 {
    let stripe_bytes = layout.filter(|layout| !layout.servers.is_empty()).map_or(0, |l| l.stripe_bytes);
    if (BLOCK_BYTES_MIN..extent_bytes).contains(&stripe_bytes) { stripe_bytes } else { extent_bytes }
}

/// The server that holds at least half of `bytes` from `offset` on.
fn most_of(layout: &Layout, offset: u64, bytes: u64) -> Option<&str> {
    let end = offset.saturating_add(bytes);
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    let mut at = offset;
    while at < end {
        let next = match layout.stripe_bytes {
            0 => end,
            stripe_bytes => (at / stripe_bytes + 1).saturating_mul(stripe_bytes).min(end),
        };
        if let Some(server) = layout.server_of(at) {
            *held.entry(server).or_default() += next - at;
        }
        at = next;
    }
    // Of two halves, the first one by name.
    let (server, most) = held.into_iter().rev().max_by_key(|(_, held)| *held)?;
    (2 * most >= bytes).then_some(server)
}

/// Whether an agent on that host says that tasks run there.
fn runs_tasks(view: &ClusterView, host: &str) -> bool {
    view.nodes.iter().any(|node| node.host == host && node.role == Role::CoLocated)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn layout(stripe_bytes: u64, servers: &[&str], first_server: usize) -> Layout {
        let servers = servers.iter().map(|name| (*name).to_owned()).collect();
        Layout { stripe_bytes, servers, first_server }
    }

    #[test]
    fn a_block_is_a_stripe_if_a_task_is_worth_it() {
        let extent = 128 * MIB;
        for (stripe_bytes, block) in
            [(64 * MIB, 64 * MIB), (MIB, extent), (u64::MAX, extent), (512 * MIB, extent), (0, extent)]
        {
            assert_eq!(block_bytes(Some(&layout(stripe_bytes, &["a"], 0)), extent), block, "{stripe_bytes}");
        }
        assert_eq!(block_bytes(Some(&layout(64 * MIB, &[], 0)), extent), extent, "no server is named");
        assert_eq!(block_bytes(None, extent), extent);
    }

    #[test]
    fn a_block_is_where_at_least_half_of_it_lies() {
        let chunks = layout(64 * MIB, &["a", "b", ""], 0);
        assert_eq!(most_of(&chunks, 0, 64 * MIB), Some("a"));
        assert_eq!(most_of(&chunks, 64 * MIB, 5), Some("b"));
        assert_eq!(most_of(&chunks, 128 * MIB, 64 * MIB), None, "not known");
        assert_eq!(most_of(&chunks, 0, 128 * MIB), Some("a"), "of two halves, the first by name");
        let fine = layout(MIB, &["a", "b", "c", "d"], 2);
        assert_eq!(most_of(&fine, 0, 128 * MIB), None, "on all servers alike");
        assert_eq!(most_of(&fine, 0, MIB), Some("c"));
        assert_eq!(most_of(&layout(u64::MAX, &["a"], 0), 1 << 40, 128 * MIB), Some("a"));
        assert_eq!(most_of(&layout(0, &["a"], 0), 0, MIB), None);
    }
}
