//! Maps the kernel's node numbers to files of the PFS.
//!
//! A node stores the name under which the file was last looked up, not a descriptor, because the
//! kernel may know more files than this process may open. A file that has no name any more but that
//! the kernel still knows keeps a descriptor (`orphan`).
//!
//! A file has one node.

use crate::abi::ROOT_ID;
use crate::caller::Identity;
use crate::content::Content;
use crate::handles::Handle;
use crate::lock::lock;
use crate::shares::Kept;
use forebay_pfs::FileVersion;
use rustix::fs::{Statx, StatxFlags};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A file of the PFS.
#[derive(Clone, Copy, Debug)]
pub struct FileId {
    dev: u64,
    ino: u64,
    /// An inode number that is reused for a file of another type is another file.
    kind: u16,
    /// When it was created, in nanoseconds; 0 if that is not known.
    born: i64,
}

/// Compares without the birth time: see [`FileId::is`].
impl PartialEq for FileId {
    fn eq(&self, other: &Self) -> bool {
        (self.dev, self.ino, self.kind) == (other.dev, other.ino, other.kind)
    }
}

impl Eq for FileId {}

impl std::hash::Hash for FileId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.dev, self.ino, self.kind).hash(state);
    }
}

impl FileId {
    /// The file with these attributes.
    pub fn of(stat: &Statx) -> Self {
        let dev = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
        let born = match stat.stx_mask & StatxFlags::BTIME.bits() {
            0 => 0,
            _ => stat.stx_btime.tv_sec.wrapping_mul(1_000_000_000) + i64::from(stat.stx_btime.tv_nsec),
        };
        FileId { dev, ino: stat.stx_ino, kind: stat.stx_mode & libc::S_IFMT as u16, born }
    }

    /// Device and inode, as `stat` reports them.
    pub fn identity(&self) -> (u64, u64) {
        (rustix::fs::makedev((self.dev >> 32) as u32, self.dev as u32), self.ino)
    }

    /// Whether both are one file, and not one that got the other's inode number later.
    pub fn is(&self, other: &FileId) -> bool {
        self == other && (self.born == other.born || self.born == 0 || other.born == 0)
    }
}

/// A file of the PFS to which the kernel passes reads and writes of a node's open files.
#[derive(Debug)]
pub struct Backing {
    /// The kernel's number.
    pub id: u32,
    /// The identity with whose rights the kernel uses it.
    pub who: Identity,
}

#[derive(Debug)]
struct Node {
    parent: u64,
    name: Box<[u8]>,
    file: FileId,
    lookups: u64,
    handles: Vec<Arc<Handle>>,
    orphan: Option<Kept>,
    /// The same for all open files, or none.
    backing: Option<Arc<Backing>>,
    /// The version of all pages that the kernel keeps.
    kept: Option<FileVersion>,
    /// The version that the last look at the attributes showed, of a file whose pages the kernel
    /// keeps.
    seen: Option<FileVersion>,
}

impl Node {
    /// Decides whether the kernel keeps pages of one more open file.
    fn keep(&mut self, version: Option<FileVersion>, handle: &Handle) -> Keeping {
        let fits = |other: &Arc<Handle>| {
            !other.is_writable()
                && (other.served.has_left() || other.kept().is_none_or(|kept| Some(kept) == version))
        };
        let may = self.backing.is_none() && self.handles.iter().all(fits);
        let Some(version) = version.filter(|_| may) else {
            // The kernel drops the pages at this open.
            self.kept = None;
            if version.is_some() {
                // Another open file has another version, and nobody knows which is older.
                handle.served.leave();
                self.handles.iter().for_each(|other| other.served.doubt());
            }
            return Keeping::Nothing;
        };
        handle.keep(version);
        self.seen = Some(version);
        if self.kept == Some(version) { Keeping::All } else { Keeping::FromNowOn }
    }
}

/// Whether the kernel keeps the pages of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// Each read is a request.
    Nothing,
    /// The pages that it reads from now on.
    FromNowOn,
    /// The pages that it already has, too.
    All,
}

/// What a look at the attributes of a node has shown, compared with the last one.
#[derive(Debug)]
pub struct Look {
    /// The version is another.
    pub has_moved: bool,
    /// The length is the same.
    pub keeps_size: bool,
    /// The node's open files.
    pub handles: Vec<Arc<Handle>>,
}

/// Where the file of a node is.
#[derive(Debug)]
pub enum Whereabouts {
    /// The root of the mount.
    Root,
    /// It is open.
    Open(Arc<Handle>),
    /// It has no name.
    Orphan(Kept),
    /// At this path below the root, if that is still the file.
    Path(Vec<u8>, FileId),
}

/// Tables that have had no more nodes than this since they last shrank keep their memory.
const FEW: usize = 4096;

/// Returns to the system what the allocator keeps for later.
fn release_memory() {
    // SAFETY: no pointers.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// All nodes that the kernel knows.
#[derive(Debug)]
pub struct Nodes {
    table: Mutex<Table>,
    /// The birth time of a file never changes.
    has_births: bool,
}

#[derive(Debug, Default)]
struct Table {
    /// Most nodes since memory was released.
    most: usize,
    nodes: HashMap<u64, Node>,
    by_file: HashMap<FileId, u64>,
    last: u64,
}

impl Table {
    /// Releases the room of nodes that the kernel has forgotten, now and then.
    fn shrink(&mut self) -> bool {
        let has_few = self.most > FEW && self.nodes.len() < self.most / 4;
        if has_few {
            self.nodes.shrink_to_fit();
            self.by_file.shrink_to_fit();
            self.most = self.nodes.len();
        }
        has_few
    }

    fn path(&self, node: &Node) -> Option<Vec<u8>> {
        let mut parts = vec![&*node.name];
        let mut at = node.parent;
        while at != ROOT_ID {
            let parent = self.nodes.get(&at)?;
            parts.push(&parent.name);
            at = parent.parent;
            // Renames on other nodes may have left a cycle in the names that are known here.
            if parts.len() > self.nodes.len() {
                return None;
            }
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }
}

impl Nodes {
    /// An empty table. `has_births`: the birth time of a file never changes.
    pub fn new(has_births: bool) -> Self {
        Nodes { table: Mutex::default(), has_births }
    }

    /// Notes that the kernel has looked up `name` and learns of the file; returns its node.
    pub fn looked_up(&self, parent: u64, name: &[u8], file: FileId) -> u64 {
        let file = FileId { born: if self.has_births { file.born } else { 0 }, ..file };
        let mut table = lock(&self.table);
        if let Some(&id) = table.by_file.get(&file)
            && let Some(node) = table.nodes.get_mut(&id)
            && node.file.is(&file)
        {
            node.lookups += 1;
            if node.parent != parent || *node.name != *name {
                (node.parent, node.name) = (parent, name.into());
            }
            node.orphan = None;
            return id;
        }
        table.last = table.last.max(ROOT_ID) + 1;
        let id = table.last;
        let name = name.into();
        let node = Node {
            parent,
            name,
            file,
            lookups: 1,
            handles: Vec::new(),
            orphan: None,
            backing: None,
            kept: None,
            seen: None,
        };
        table.nodes.insert(id, node);
        table.by_file.insert(file, id);
        table.most = table.most.max(table.nodes.len());
        id
    }

    /// Notes that the kernel forgets this many of its lookups.
    pub fn forget(&self, id: u64, lookups: u64) {
        let mut table = lock(&self.table);
        let Some(node) = table.nodes.get_mut(&id) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 {
            let file = node.file;
            let node = table.nodes.remove(&id);
            if table.by_file.get(&file) == Some(&id) {
                table.by_file.remove(&file);
            }
            let has_shrunk = table.shrink();
            drop(table);
            // Its descriptor closes here, which may ask the PFS.
            drop(node);
            if has_shrunk {
                release_memory();
            }
        }
    }

    /// Where the file of a node is; `None` if that is not known any more.
    pub fn find(&self, id: u64) -> Option<Whereabouts> {
        if id == ROOT_ID {
            return Some(Whereabouts::Root);
        }
        let table = lock(&self.table);
        let node = table.nodes.get(&id)?;
        if let Some(handle) = node.handles.last() {
            return Some(Whereabouts::Open(handle.clone()));
        }
        if let Some(orphan) = &node.orphan {
            return Some(Whereabouts::Orphan(orphan.clone()));
        }
        Some(Whereabouts::Path(table.path(node)?, node.file))
    }

    /// The path of a node below the root as it was last looked up, even while the file is open;
    /// `None` if that is not known or it has no name.
    pub fn path(&self, id: u64) -> Option<Vec<u8>> {
        let table = lock(&self.table);
        let node = table.nodes.get(&id).filter(|node| node.orphan.is_none())?;
        table.path(node)
    }

    /// Whether `file` is known under `name`, without an open file.
    pub fn needs_descriptor(&self, parent: u64, name: &[u8], file: FileId) -> bool {
        let table = lock(&self.table);
        let node = table.by_file.get(&file).and_then(|id| table.nodes.get(id));
        node.is_some_and(|n| n.parent == parent && *n.name == *name && n.orphan.is_none())
    }

    /// Notes that the name of the file is gone; it is reached by this descriptor from now on.
    pub fn unnamed(&self, file: FileId, descriptor: Kept) {
        let mut table = lock(&self.table);
        if let Some(&id) = table.by_file.get(&file)
            && let Some(node) = table.nodes.get_mut(&id)
        {
            node.orphan = Some(descriptor);
        }
    }

    /// Notes that the file has a new name.
    pub fn renamed(&self, file: FileId, parent: u64, name: &[u8]) {
        let mut table = lock(&self.table);
        if let Some(&id) = table.by_file.get(&file)
            && let Some(node) = table.nodes.get_mut(&id)
        {
            (node.parent, node.name, node.orphan) = (parent, name.into(), None);
        }
    }

    /// The file for which the node stands.
    pub fn file(&self, id: u64) -> Option<FileId> {
        lock(&self.table).nodes.get(&id).map(|node| node.file)
    }

    /// Whether the next open file of the node may have a backing file.
    pub fn may_have_backing(&self, id: u64) -> bool {
        lock(&self.table).nodes.get(&id).is_some_and(|node| node.handles.is_empty() || node.backing.is_some())
    }

    /// Notes an open file. `backing` is used if no other file of the node is open; returns the one
    /// that the node has. `version`: the kernel may keep pages of this version.
    pub fn opened(
        &self,
        id: u64,
        handle: &Arc<Handle>,
        backing: Option<Arc<Backing>>,
        version: Option<FileVersion>,
    ) -> (Option<Arc<Backing>>, Keeping) {
        let mut table = lock(&self.table);
        // It is known: the kernel keeps the node whose file it opens.
        let Some(node) = table.nodes.get_mut(&id) else { return (None, Keeping::Nothing) };
        if node.handles.is_empty() {
            node.backing = backing;
            // Most files are open once, and there may be many.
            node.handles.reserve_exact(1);
        }
        let keeping = node.keep(version, handle);
        node.handles.push(handle.clone());
        (node.backing.clone(), keeping)
    }

    /// The version of all pages that the kernel keeps.
    pub fn kept(&self, id: u64) -> Option<FileVersion> {
        lock(&self.table).nodes.get(&id)?.kept
    }

    /// Notes that a request through an open file shows that its open has ended, and that the kernel
    /// has dropped the pages that it had before.
    pub fn used(&self, handle: &Handle) {
        let Some(version) = handle.kept().filter(|_| handle.is_first_use()) else { return };
        if let Some(node) = lock(&self.table).nodes.get_mut(&handle.node)
            && node.seen == Some(version)
        {
            node.kept = Some(version);
        }
    }

    /// Notes the version that a look at the attributes has shown; `None` if the kernel keeps no
    /// pages of the node.
    pub fn looked(&self, id: u64, now: FileVersion) -> Option<Look> {
        let mut table = lock(&self.table);
        let node = table.nodes.get_mut(&id)?;
        let seen = node.seen.replace(now);
        let Some(seen) = seen else {
            node.seen = None;
            return None;
        };
        if seen != now {
            node.kept = None;
        }
        Some(Look {
            has_moved: seen != now,
            keeps_size: seen.size == now.size,
            handles: node.handles.clone(),
        })
    }

    /// The version that the last look has shown, of a node whose pages the kernel keeps.
    pub fn seen(&self, id: u64) -> Option<FileVersion> {
        lock(&self.table).nodes.get(&id)?.seen
    }

    /// Forgets an open file. Returns the backing file to unregister, if it was the last that used
    /// it.
    pub fn closed(&self, id: u64, handle: &Arc<Handle>) -> Option<u32> {
        let mut table = lock(&self.table);
        let node = table.nodes.get_mut(&id)?;
        node.handles.retain(|other| !Arc::ptr_eq(other, handle));
        if !node.handles.is_empty() {
            return None;
        }
        node.handles.shrink_to_fit();
        node.backing.take().map(|backing| backing.id)
    }

    /// The contents that open files of the node have.
    pub fn contents(&self, id: u64) -> Vec<Arc<Content>> {
        let table = lock(&self.table);
        table
            .nodes
            .get(&id)
            .map_or(Vec::new(), |node| node.handles.iter().filter_map(|h| h.content()).collect())
    }

    /// Whether the content of the node may be written elsewhere than to the PFS: all who write it
    /// through this mount do so.
    pub fn may_be_absorbed(&self, id: u64) -> bool {
        let table = lock(&self.table);
        table.nodes.get(&id).is_none_or(|node| {
            let goes_to_pfs = |handle: &Arc<Handle>| handle.is_writable() && handle.content().is_none();
            node.backing.is_none() && !node.handles.iter().any(goes_to_pfs)
        })
    }

    /// The open files of the node.
    pub fn handles(&self, id: u64) -> Vec<Arc<Handle>> {
        lock(&self.table).nodes.get(&id).map_or(Vec::new(), |node| node.handles.clone())
    }
}
