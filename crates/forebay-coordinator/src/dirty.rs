//! Which node has which file dirty, so that all others find the newest bytes.
//!
//! A node reports a file before a program gets to write it, and everything anew when it has joined.
//! What was dirty on a node that is gone stays so, because nobody else has the bytes: who opens
//! such a file is to hear of that. A node that writes the file takes it over.
//!
//! A file that several nodes write is dirty on none of them, also while it is empty still.

use forebay_policy::machine::Nanos;
use forebay_wire::RECENT;
use forebay_wire::cluster::{DirtyFile, SHARED};
use std::collections::BTreeMap;

/// After so many more shared files, those whose time is over are forgotten.
const PRUNED_AT: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub struct DirtyFiles {
    /// By file, the node, and the one that is gone from which it has the file.
    holders: BTreeMap<DirtyFile, (String, String)>,
    /// Files that several nodes write, until when.
    shared: BTreeMap<DirtyFile, Nanos>,
}

impl DirtyFiles {
    /// The file is dirty on `node`, unless it is on another already that `is_member`, or
    /// [`SHARED`]; returns the one, and the node that is gone of which it has taken the file over.
    pub fn claim(
        &mut self,
        now: Nanos,
        file: DirtyFile,
        node: &str,
        is_member: impl Fn(&str) -> bool,
    ) -> (String, String) {
        if let Some(until) = self.shared.get_mut(&file).filter(|until| **until > now) {
            *until = now + RECENT.as_nanos() as u64;
            return (SHARED.to_owned(), String::new());
        }
        let (holder, before) = self.holders.entry(file).or_insert_with(|| (node.to_owned(), String::new()));
        if !is_member(holder) {
            *before = std::mem::replace(holder, node.to_owned());
        }
        (holder.clone(), before.clone())
    }

    /// The node on which it is dirty, or nothing.
    pub fn holder(&self, file: &DirtyFile) -> &str {
        self.holders.get(file).map_or("", |(holder, _)| holder)
    }

    /// It is not dirty on `node` any more; `is_shared`: because several nodes write it.
    pub fn release(&mut self, now: Nanos, file: DirtyFile, node: &str, is_shared: bool) {
        if self.holder(&file) == node {
            self.forget(&file);
            if is_shared {
                if self.shared.len() % PRUNED_AT == PRUNED_AT - 1 {
                    self.shared.retain(|_, until| *until > now);
                }
                self.shared.insert(file, now + RECENT.as_nanos() as u64);
            }
        }
    }

    /// What was dirty of it is void.
    pub fn forget(&mut self, file: &DirtyFile) {
        self.holders.remove(file);
    }

    /// These files are dirty on `node`, and no others; not those that another node has taken over.
    pub fn replace(&mut self, node: &str, files: Vec<DirtyFile>) {
        self.holders.retain(|_, (holder, _)| holder != node);
        for file in files {
            self.holders.entry(file).or_insert_with(|| (node.to_owned(), String::new()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_dirty_on_the_first_node_that_says_so_while_that_is_there() {
        let file = |ino| DirtyFile { mount: "pfs".into(), ino };
        let mut dirty = DirtyFiles::default();
        let now = Nanos(0);
        let by = |node: &str| (node.to_owned(), String::new());
        assert_eq!(dirty.claim(now, file(1), "a", |_| true), by("a"));
        assert_eq!(dirty.holder(&file(2)), "");
        assert_eq!(dirty.claim(now, file(1), "b", |_| true), by("a"));
        dirty.release(now, file(1), "b", false);
        assert_eq!(dirty.holder(&file(1)), "a");
        assert_eq!(dirty.claim(now, file(1), "b", |node| node == "b"), ("b".into(), "a".into()), "a is gone");
        assert_eq!(dirty.claim(now, file(1), "b", |_| true), ("b".into(), "a".into()), "once more");
        dirty.release(now, file(1), "b", false);
        assert_eq!(dirty.holder(&file(1)), "");
        assert_eq!(dirty.claim(now, file(2), "b", |_| true), by("b"));
        dirty.replace("b", vec![file(3)]);
        assert_eq!((dirty.holder(&file(2)), dirty.holder(&file(3))), ("", "b"));
    }

    #[test]
    fn what_several_nodes_write_is_dirty_on_none_of_them_for_a_while() {
        let file = || DirtyFile { mount: "pfs".into(), ino: 1 };
        let mut dirty = DirtyFiles::default();
        let at = |s: u64| Nanos(s * 1_000_000_000);
        assert_eq!(dirty.claim(at(0), file(), "a", |_| true).0, "a");
        dirty.release(at(1), file(), "a", true);
        assert_eq!(dirty.claim(at(100), file(), "c", |_| true).0, SHARED);
        assert_eq!(dirty.claim(at(200), file(), "a", |_| true).0, SHARED, "the claim at 100 s counts");
        assert_eq!(dirty.holder(&file()), "");
        assert_eq!(dirty.claim(at(400), file(), "c", |_| true).0, "c");
    }
}
