//! Which inode numbers the kernel knows, and under which names they were found.
//!
//! FUSE names files by a number, the backing directory by path. The number given to the kernel is
//! the backing file's own `st_ino`, so that a file's identity (inode, size, mtime, ctime) is the
//! same here and there and survives a remount. For the way back, each known inode keeps the names
//! under which it was last looked up, and the files open on it.
//!
//! Not one `O_PATH` descriptor per inode, the usual way: the kernel may know hundreds of thousands
//! of inodes, and descriptors are limited to some 20,000. A name can go stale (a rename behind our
//! back), so code that follows it compares the inode number; the kernel looks names up again at
//! each use (entry lifetime 0), which renews them. An unlinked file has no name but lives on
//! through its open descriptor.
//!
//! Memory: one entry per inode the kernel holds, released when it forgets.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::handles::OpenFile;

/// The number by which FUSE calls the root, whatever its backing inode.
pub const ROOT: u64 = 1;

/// Most names kept per inode; hard links beyond are found again by their next lookup.
const NAMES_MAX: usize = 8;
/// Longest walk upwards, deeper than any path that `PATH_MAX` allows: ends a walk in a tree that is
/// being renamed into a circle.
const DEPTH_MAX: usize = 2048;

#[derive(Default)]
struct Node {
    lookups: u64,
    /// (parent inode, name), the most recent last.
    names: Vec<(u64, OsString)>,
    open: Vec<Arc<OpenFile>>,
}

/// The table of known inodes.
#[derive(Default)]
pub struct Nodes {
    table: Mutex<HashMap<u64, Node>>,
}

impl Nodes {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Node>> {
        // No code that can panic runs under the lock with the table half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the kernel gets `ino` under this name once more.
    pub fn remember(&self, ino: u64, parent: u64, name: &OsStr) {
        let mut table = self.lock();
        let node = table.entry(ino).or_default();
        node.lookups += 1;
        node.named(parent, name);
    }

    /// Notes that the kernel has dropped `lookups` of its references.
    pub fn forget(&self, ino: u64, lookups: u64) {
        let mut table = self.lock();
        if let Some(node) = table.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 && node.open.is_empty() {
                table.remove(&ino);
            }
        }
    }

    /// Notes that a known inode has got another name (rename).
    pub fn renamed(&self, ino: u64, parent: u64, name: &OsStr) {
        if let Some(node) = self.lock().get_mut(&ino) {
            node.named(parent, name);
        }
    }

    /// Notes that a file was opened. Returns whether another open of the same version is still
    /// valid, so that the cached content is good.
    pub fn opened(&self, file: &Arc<OpenFile>) -> bool {
        let mut table = self.lock();
        let open = &mut table.entry(file.ino()).or_default().open;
        let cached_is_good = open.iter().any(|other| other.vouches_for(file));
        open.push(file.clone());
        cached_is_good
    }

    /// Notes that a file was closed for good.
    pub fn closed(&self, file: &Arc<OpenFile>) {
        let mut table = self.lock();
        if let Some(node) = table.get_mut(&file.ino()) {
            node.open.retain(|other| !Arc::ptr_eq(other, file));
            if node.lookups == 0 && node.open.is_empty() {
                table.remove(&file.ino());
            }
        }
    }

    /// An open file of this inode; one that can be written, if there is one and `writable` is set.
    pub fn open_file(&self, ino: u64, writable: bool) -> Option<Arc<OpenFile>> {
        let table = self.lock();
        let open = &table.get(&ino)?.open;
        open.iter().find(|file| !writable || file.writable()).cloned()
    }

    /// The paths under which `ino` may be found, relative to the root without a leading slash, the
    /// likeliest first.
    pub fn paths(&self, ino: u64) -> Vec<Vec<u8>> {
        let table = self.lock();
        let Some(node) = table.get(&ino) else { return Vec::new() };
        node.names.iter().rev().filter_map(|(parent, name)| join_upwards(&table, *parent, name)).collect()
    }

    /// The likeliest path of `name` in `parent`, for messages and fault patterns; the bare name if
    /// unknown.
    pub fn child_path(&self, parent: u64, name: &OsStr) -> Vec<u8> {
        join_upwards(&self.lock(), parent, name).unwrap_or_else(|| name.as_bytes().to_vec())
    }

    /// How many inodes are known.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }
}

impl Node {
    fn named(&mut self, parent: u64, name: &OsStr) {
        if self.names.last().is_some_and(|(p, n)| *p == parent && n == name) {
            return;
        }
        self.names.retain(|(p, n)| !(*p == parent && n == name));
        if self.names.len() == NAMES_MAX {
            self.names.remove(0);
        }
        self.names.push((parent, name.to_owned()));
    }
}

fn join_upwards(table: &HashMap<u64, Node>, parent: u64, name: &OsStr) -> Option<Vec<u8>> {
    let (mut parts, mut at) = (vec![name], parent);
    while at != ROOT {
        let (up, name) = table.get(&at)?.names.last()?;
        parts.push(name);
        at = *up;
        if parts.len() > DEPTH_MAX {
            return None;
        }
    }
    let parts: Vec<&[u8]> = parts.iter().rev().map(|part| part.as_bytes()).collect();
    Some(parts.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(nodes: &Nodes, ino: u64) -> Vec<String> {
        nodes.paths(ino).into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    }

    #[test]
    fn paths_follow_the_directories() {
        let nodes = Nodes::default();
        nodes.remember(10, ROOT, OsStr::new("d"));
        nodes.remember(11, 10, OsStr::new("f"));
        assert_eq!(paths(&nodes, 11), ["d/f"]);
        nodes.renamed(10, ROOT, OsStr::new("e"));
        assert_eq!(paths(&nodes, 11), ["e/f"]);
        nodes.remember(11, ROOT, OsStr::new("hard"));
        assert_eq!(paths(&nodes, 11), ["hard", "e/f"]);
        assert_eq!(nodes.child_path(10, OsStr::new("x")), b"e/x");
    }

    #[test]
    fn forgotten_when_the_last_reference_goes() {
        let nodes = Nodes::default();
        nodes.remember(10, ROOT, OsStr::new("a"));
        nodes.remember(10, ROOT, OsStr::new("a"));
        nodes.forget(10, 1);
        assert_eq!(nodes.len(), 1);
        nodes.forget(10, 1);
        assert_eq!(nodes.len(), 0);
        nodes.forget(10, 1);
    }

    #[test]
    fn many_links_and_circles_are_bounded() {
        let nodes = Nodes::default();
        for i in 0..100 {
            nodes.remember(10, ROOT, OsStr::new(&format!("link{i}")));
        }
        assert_eq!(nodes.paths(10).len(), NAMES_MAX);
        nodes.remember(20, 21, OsStr::new("a"));
        nodes.remember(21, 20, OsStr::new("b"));
        assert!(nodes.paths(20).is_empty());
    }
}
