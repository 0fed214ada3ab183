//! What is frozen of a mount: the trees, what the job has changed in them, and open files.

use super::Why;
use super::tree::{Found, Id, Kind, ROOT, Tree};
use super::walk::{Walk, Walked, look};
use crate::abi::ROOT_ID;
use crate::handles::Handle;
use forebay_client::Client;
use rustix::fs::{Mode, OFlags};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Numbers of open files that are here have this bit; those of [`crate::handles`] do not.
const NUMBERS: u64 = 1 << 63;

/// Whether a number of an open file is from here.
pub fn is_number(number: u64) -> bool {
    number & NUMBERS != 0
}

/// The frozen trees of a mount.
#[derive(Debug)]
pub struct Frozen {
    /// Their names.
    pub tree: Tree,
    images: Vec<OwnedFd>,
    /// Entries by the kernel's nodes.
    nodes: RwLock<HashMap<u64, Id>>,
    has_changes: AtomicBool,
    changes: RwLock<Changes>,
    open: Mutex<HashMap<u64, Open>>,
    last: AtomicU64,
}

/// What the job has changed.
#[derive(Debug, Default)]
struct Changes {
    attributes: HashSet<Id>,
    contents: HashSet<Id>,
    names: HashSet<(Id, Box<[u8]>)>,
}

/// An open file or directory.
#[derive(Clone, Debug)]
pub struct Open {
    /// Its node.
    pub node: u64,
    /// Its entry.
    pub id: Id,
    /// The PFS's file, once a request has needed it.
    pub real: Option<Arc<Handle>>,
}

impl Frozen {
    /// Takes the trees of these directories below `root`, the open directory `path`. Also returns
    /// what the user should know; nothing is frozen if no tree could be taken.
    pub fn take(
        root: BorrowedFd<'_>,
        path: &Path,
        dirs: &[PathBuf],
        client: &Client,
    ) -> (Option<Self>, Vec<Why>) {
        let mut words = Vec::new();
        let Ok(stat) = look(root, b"") else { return (None, words) };
        let mut frozen = Frozen {
            tree: Tree::new(stat),
            images: Vec::new(),
            nodes: RwLock::default(),
            has_changes: AtomicBool::new(false),
            changes: RwLock::default(),
            open: Mutex::default(),
            last: AtomicU64::new(0),
        };
        for dir in dirs {
            match frozen.take_one(root, path, dir, client) {
                Ok(note) => words.extend(note.map(|note| format!("{}: {note}", dir.display()))),
                Err(why) => words.push(format!(
                    "{} is not frozen, and is read from the file system: {why}",
                    dir.display()
                )),
            }
        }
        ((!frozen.images.is_empty()).then_some(frozen), words)
    }

    fn take_one(
        &mut self,
        root: BorrowedFd<'_>,
        path: &Path,
        dir: &Path,
        client: &Client,
    ) -> Result<Option<Why>, Why> {
        let below = dir.strip_prefix(path).map_err(|e| e.to_string())?;
        let name = below.file_name().ok_or("it is the root of the mount: name directories below it")?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (mut at, mut id) = (root.try_clone_to_owned().map_err(|e| e.to_string())?, ROOT);
        for part in below.parent().into_iter().flatten() {
            at = rustix::fs::openat(&at, part, flags, Mode::empty()).map_err(|e| e.to_string())?;
            id = match self.tree.find(id, part.as_bytes()) {
                Found::Entry(id) => id,
                _ => {
                    let stat = look(at.as_fd(), b"").map_err(|e| e.to_string())?;
                    let kind = Kind::Dir { names: Vec::new(), is_whole: false, is_way: true };
                    self.tree.add(id, part.as_bytes(), stat, kind)
                }
            };
            if !self.is_way(id) {
                return Err("it is within a directory that is frozen".into());
            }
        }
        if self.tree.find(id, name.as_bytes()) != Found::Unknown {
            return Err("it is named twice, or has another frozen directory in it".into());
        }
        let fd = rustix::fs::openat(&at, name, flags, Mode::empty()).map_err(|e| e.to_string())?;
        let stat = look(fd.as_fd(), b"").map_err(|e| e.to_string())?;
        let own = client.mounts().into_iter().find(|mount| mount.root == path.as_os_str().as_bytes());
        let granularity_ns = own.map_or(1_000_000_000, |mount| mount.stamp_granularity_ns);
        let walk = Walk { client, key: dir.as_os_str().as_bytes(), granularity_ns };
        let Walked { entries, image, note } = walk.take(fd, stat)?;
        let number = u16::try_from(self.images.len()).map_err(|e| e.to_string())?;
        self.images.extend(image);
        self.tree.join(id, name.as_bytes(), entries, number);
        Ok(note)
    }

    fn changes(&self) -> RwLockReadGuard<'_, Changes> {
        self.changes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Changes> {
        self.has_changes.store(true, Ordering::Release);
        self.changes.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, change: impl FnOnce(&Changes) -> bool) -> bool {
        self.has_changes.load(Ordering::Acquire) && change(&self.changes())
    }

    /// The entry of a node.
    pub fn entry(&self, node: u64) -> Option<Id> {
        if node == ROOT_ID {
            return Some(ROOT);
        }
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).get(&node).copied()
    }

    /// Notes that the kernel knows an entry by this node.
    pub fn note(&self, node: u64, id: Id) {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner).insert(node, id);
    }

    /// Notes that the kernel no longer knows the node.
    pub fn forget(&self, node: u64) {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner).remove(&node);
    }

    /// Whether it only leads to a tree.
    pub fn is_way(&self, id: Id) -> bool {
        matches!(self.tree.get(id).kind, Kind::Dir { is_way: true, .. })
    }

    /// What `name` in a directory is.
    pub fn find(&self, dir: Id, name: &[u8]) -> Found {
        if self.has(|changes| changes.names.contains(&(dir, name.into()))) {
            return Found::Unknown;
        }
        self.tree.find(dir, name)
    }

    /// Whether the attributes of an entry, and the names in a directory, are as they were taken.
    pub fn has_attributes(&self, id: Id) -> bool {
        !self.is_way(id) && !self.has(|changes| changes.attributes.contains(&id))
    }

    /// The image with the content of a file, and where it is there.
    pub fn content(&self, id: Id) -> Option<(BorrowedFd<'_>, u64)> {
        let Kind::File { at: Some((image, at)) } = self.tree.get(id).kind else { return None };
        if self.has(|changes| changes.contents.contains(&id)) {
            return None;
        }
        Some((self.images.get(usize::from(image))?.as_fd(), at))
    }

    /// All names of a file.
    fn same(&self, id: Id) -> Vec<Id> {
        let ino = self.tree.get(id).stat.stx_ino;
        self.tree.linked.get(&ino).cloned().unwrap_or_else(|| vec![id])
    }

    /// Notes that the job may change the attributes of an entry.
    pub fn changes_attributes(&self, id: Id) {
        self.change().attributes.extend(self.same(id));
    }

    /// Notes that the job may change the content of a file.
    pub fn changes_content(&self, id: Id) {
        self.changes_attributes(id);
        self.change().contents.extend(self.same(id));
    }

    /// Notes that the job may change what a name in a directory is.
    pub fn changes_name(&self, dir: Id, name: &[u8]) {
        if let Found::Entry(id) = self.find(dir, name) {
            self.changes_attributes(id);
        }
        self.changes_attributes(dir);
        self.change().names.insert((dir, name.into()));
    }

    fn open_files(&self) -> MutexGuard<'_, HashMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an open file; returns its number.
    pub fn opened(&self, node: u64, id: Id) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) | NUMBERS;
        self.open_files().insert(number, Open { node, id, real: None });
        number
    }

    /// An open file.
    pub fn opened_as(&self, number: u64) -> Option<Open> {
        self.open_files().get(&number).cloned()
    }

    /// Notes the PFS's file for an open file, and returns it, or the one that another thread has
    /// noted first.
    pub fn has_real(&self, number: u64, handle: Arc<Handle>) -> Arc<Handle> {
        match self.open_files().get_mut(&number) {
            Some(open) => open.real.get_or_insert(handle).clone(),
            None => handle,
        }
    }

    /// Forgets an open file.
    pub fn closed(&self, number: u64) -> Option<Open> {
        self.open_files().remove(&number)
    }
}
