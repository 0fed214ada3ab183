//! Maps the kernel's node numbers to files of the PFS.
//!
//! A node stores the name under which the file was last looked up, not a descriptor, because the
//! kernel may know more files than this process may open. A file that has no name any more but that
//! the kernel still knows keeps a descriptor (`orphan`).
//!
//! A file usually has one node. It gets a second one while the kernel passes reads of the first to
//! another file than the next open needs (`io`): all opens of one node must pass to the same file.

use crate::abi::ROOT_ID;
use crate::caller::Identity;
use crate::handles::Handle;
use rustix::fs::Statx;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file of the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    dev: u64,
    ino: u64,
    /// An inode number that is reused for a file of another type is another file.
    kind: u16,
}

impl FileId {
    /// Of these attributes.
    pub fn of(stat: &Statx) -> Self {
        let dev = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
        FileId { dev, ino: stat.stx_ino, kind: stat.stx_mode & libc::S_IFMT as u16 }
    }
}

/// How the kernel serves the open files of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Io {
    /// None is open.
    Closed,
    /// Each read and write is a request.
    Requests,
    /// The kernel passes them to a backing file: its number, and the identity that registered it.
    Passed(u32, Identity),
}

#[derive(Debug)]
struct Node {
    parent: u64,
    name: Box<[u8]>,
    file: FileId,
    lookups: u64,
    handles: Vec<Arc<Handle>>,
    orphan: Option<Arc<OwnedFd>>,
    io: Io,
}

/// Where the file of a node is.
#[derive(Debug)]
pub enum Whereabouts {
    /// The root of the mount.
    Root,
    /// It is open.
    Open(Arc<Handle>),
    /// It has no name.
    Orphan(Arc<OwnedFd>),
    /// At this path below the root, if that is the file still.
    Path(Vec<u8>, FileId),
}

/// All nodes that the kernel knows.
#[derive(Debug, Default)]
pub struct Nodes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    nodes: HashMap<u64, Node>,
    by_file: HashMap<FileId, u64>,
    /// Nodes of files that have a newer one.
    superseded: HashMap<FileId, Vec<u64>>,
    last: u64,
}

impl Nodes {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the kernel has looked up `name` and learns of the file; returns its node.
    pub fn looked_up(&self, parent: u64, name: &[u8], file: FileId) -> u64 {
        let mut table = self.lock();
        if let Some(&id) = table.by_file.get(&file)
            && let Some(node) = table.nodes.get_mut(&id)
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
        let node = Node { parent, name, file, lookups: 1, handles: Vec::new(), orphan: None, io: Io::Closed };
        table.nodes.insert(id, node);
        table.by_file.insert(file, id);
        id
    }

    /// The kernel forgets this many of its lookups.
    pub fn forget(&self, id: u64, lookups: u64) {
        let mut table = self.lock();
        let Some(node) = table.nodes.get_mut(&id) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 {
            let file = node.file;
            let node = table.nodes.remove(&id);
            if table.by_file.get(&file) == Some(&id) {
                table.by_file.remove(&file);
            }
            if let Some(others) = table.superseded.get_mut(&file) {
                others.retain(|other| *other != id);
                if others.is_empty() {
                    table.superseded.remove(&file);
                }
            }
            drop(table);
            // Its descriptor closes here, which may ask the PFS.
            drop(node);
        }
    }

    /// Where the file of a node is; `None` if that is not known any more.
    pub fn find(&self, id: u64) -> Option<Whereabouts> {
        if id == ROOT_ID {
            return Some(Whereabouts::Root);
        }
        let table = self.lock();
        let node = table.nodes.get(&id)?;
        if let Some(handle) = node.handles.last() {
            return Some(Whereabouts::Open(handle.clone()));
        }
        if let Some(orphan) = &node.orphan {
            return Some(Whereabouts::Orphan(orphan.clone()));
        }
        let mut parts = vec![&*node.name];
        let mut at = node.parent;
        while at != ROOT_ID {
            let parent = table.nodes.get(&at)?;
            parts.push(&parent.name);
            at = parent.parent;
            // Renames on other nodes may have left a cycle in the names that are known here.
            if parts.len() > table.nodes.len() {
                return None;
            }
        }
        parts.reverse();
        Some(Whereabouts::Path(parts.join(&b'/'), node.file))
    }

    /// Whether `file` is known under `name`, without an open file.
    pub fn needs_descriptor(&self, parent: u64, name: &[u8], file: FileId) -> bool {
        let table = self.lock();
        let node = table.by_file.get(&file).and_then(|id| table.nodes.get(id));
        node.is_some_and(|n| n.parent == parent && *n.name == *name && n.orphan.is_none())
    }

    /// The name of the file is gone; it is reached by this descriptor from now on.
    pub fn unnamed(&self, file: FileId, descriptor: OwnedFd) {
        let mut table = self.lock();
        if let Some(&id) = table.by_file.get(&file)
            && let Some(node) = table.nodes.get_mut(&id)
        {
            node.orphan = Some(Arc::new(descriptor));
        }
    }

    /// The file has a new name.
    pub fn renamed(&self, file: FileId, parent: u64, name: &[u8]) {
        let mut table = self.lock();
        if let Some(&id) = table.by_file.get(&file)
            && let Some(node) = table.nodes.get_mut(&id)
        {
            (node.parent, node.name, node.orphan) = (parent, name.into(), None);
        }
    }

    /// The file for which the node stands.
    pub fn file(&self, id: u64) -> Option<FileId> {
        self.lock().nodes.get(&id).map(|node| node.file)
    }

    /// How the kernel serves the open files of the node.
    pub fn io(&self, id: u64) -> Option<Io> {
        self.lock().nodes.get(&id).map(|node| node.io.clone())
    }

    /// The next lookup of the file makes a new node; this one stays for what is open.
    pub fn supersede(&self, id: u64) {
        let mut table = self.lock();
        if let Some(file) = table.nodes.get(&id).map(|node| node.file)
            && table.by_file.get(&file) == Some(&id)
        {
            table.by_file.remove(&file);
            table.superseded.entry(file).or_default().push(id);
        }
    }

    /// Notes an open file that is served as `io` says; a backing file `is_new` if no other open
    /// uses it. False, and nothing is noted, if the open files of the node are served otherwise.
    pub fn opened(&self, id: u64, handle: &Arc<Handle>, io: &Io, is_new: bool) -> bool {
        let mut table = self.lock();
        // It is known: the kernel keeps the node whose file it opens.
        let Some(node) = table.nodes.get_mut(&id) else { return false };
        let fits = match io {
            Io::Closed => true,
            Io::Passed(..) if node.io == Io::Closed => is_new,
            Io::Requests if node.io == Io::Closed => true,
            io => node.io == *io,
        };
        if fits {
            if *io != Io::Closed {
                node.io = io.clone();
            }
            node.handles.push(handle.clone());
        }
        fits
    }

    /// Forgets an open file. The backing file to unregister, if it was the last that used it.
    pub fn closed(&self, id: u64, handle: &Arc<Handle>) -> Option<u32> {
        let mut table = self.lock();
        let node = table.nodes.get_mut(&id)?;
        node.handles.retain(|other| !Arc::ptr_eq(other, handle));
        if !node.handles.is_empty() {
            return None;
        }
        node.handles.shrink_to_fit();
        match std::mem::replace(&mut node.io, Io::Closed) {
            Io::Passed(backing, _) => Some(backing),
            _ => None,
        }
    }

    /// All open files of the file for which this node stands, whichever node they have.
    pub fn handles_of_file(&self, id: u64) -> Vec<Arc<Handle>> {
        let table = self.lock();
        let Some(file) = table.nodes.get(&id).map(|node| node.file) else { return Vec::new() };
        let others = table.superseded.get(&file).into_iter().flatten().chain(table.by_file.get(&file));
        let nodes = others.filter_map(|id| table.nodes.get(id));
        nodes.flat_map(|node| &node.handles).cloned().collect()
    }
}
