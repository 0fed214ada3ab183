//! Which node has which file dirty, so that all others find the newest bytes.
//!
//! A node reports a file before a program gets to write it, and everything again when it has
//! joined. What was dirty on a node that is gone stays so, because nobody else has the bytes: a
//! program that opens such a file has to hear of that. A node that writes the file takes it over.
//!
//! When such a file is clean again, it is still known from which node it was taken: what that node
//! has of it is older, if it comes back.
//!
//! A file that several nodes write is dirty on none of them, even while it is still empty.
//!
//! The next of several candidates continues from what this one has stored ([`crate::stored`]), so
//! it knows of files whose node has died meanwhile.

use crate::stored::Held;
use forebay_policy::machine::Nanos;
use forebay_wire::RECENT;
use forebay_wire::cluster::{DirtyFile, SHARED};
use std::collections::{BTreeMap, BTreeSet};

/// Prefix of the name of a node that is gone: what it has of the file is void, since others have
/// written or emptied the file.
const VOID: &str = "!";

fn without_void(before: &str) -> &str {
    before.strip_prefix(VOID).unwrap_or(before)
}

/// What `node` has to know of the node before.
fn before_for(node: &str, before: &str) -> String {
    match before.strip_prefix(VOID) {
        Some(other) if other != node => String::new(),
        _ => without_void(before).to_owned(),
    }
}

/// Shared files whose time is over are forgotten each time that there are this many more.
const PRUNED_AT: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub struct DirtyFiles {
    /// By file, the node, and the one that is gone from which it has the file; without a node, the
    /// file is not dirty any more.
    holders: BTreeMap<DirtyFile, (String, String)>,
    /// Files that several nodes write, until when.
    shared: BTreeMap<DirtyFile, Nanos>,
    /// What nodes have reported that have more to report.
    reported: BTreeMap<String, Vec<DirtyFile>>,
    /// Files for which something else has to be stored; `None`: nothing is stored.
    changed: Option<BTreeSet<DirtyFile>>,
    /// What a coordinator before has stored is known.
    has_earlier: bool,
}

impl DirtyFiles {
    /// Continues from what is stored.
    pub fn from_stored(
        now: Nanos,
        stored: &BTreeMap<DirtyFile, (String, String)>,
        has_earlier: bool,
    ) -> Self {
        let mut files = DirtyFiles { changed: Some(BTreeSet::new()), has_earlier, ..DirtyFiles::default() };
        for (file, held) in stored {
            if held.0 == SHARED {
                files.shared.insert(file.clone(), now + RECENT.as_nanos() as u64);
            } else {
                files.holders.insert(file.clone(), held.clone());
            }
        }
        files
    }

    /// Whether files of nodes are known that have not joined yet.
    pub fn are_stored(&self) -> bool {
        self.has_earlier
    }

    /// What is to be stored since the last call.
    pub fn take_changes(&mut self) -> BTreeMap<DirtyFile, Held> {
        let changed = self.changed.as_mut().map(std::mem::take).unwrap_or_default();
        let held = |file: &DirtyFile| {
            let shared = || self.shared.contains_key(file).then(|| (SHARED.to_owned(), String::new()));
            self.holders.get(file).cloned().or_else(shared)
        };
        changed.into_iter().map(|file| (file.clone(), held(&file))).collect()
    }

    fn note(&mut self, file: &DirtyFile) {
        if let Some(changed) = &mut self.changed {
            changed.insert(file.clone());
        }
    }

    /// Makes the file dirty on `node`, unless it is dirty on another one already that `is_member`,
    /// or [`SHARED`]. Returns on which node it is dirty then, or [`SHARED`], and the node, now
    /// gone, from which the file was taken over. If that is `node` itself, another one has had the
    /// file meanwhile.
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
        let held = match self.holders.get(&file) {
            Some((nobody, before)) if nobody.is_empty() => (node.to_owned(), before.clone()),
            Some((holder, before)) if is_member(holder) => return (holder.clone(), before_for(node, before)),
            Some((gone, before)) if without_void(before) == gone => (node.to_owned(), before.clone()),
            Some((gone, _)) => (node.to_owned(), gone.clone()),
            None => (node.to_owned(), String::new()),
        };
        self.note(&file);
        let before = before_for(node, &held.1);
        self.holders.insert(file, held);
        (node.to_owned(), before)
    }

    /// The node on which it is dirty, or nothing.
    pub fn holder(&self, file: &DirtyFile) -> &str {
        self.holders.get(file).map_or("", |(holder, _)| holder)
    }

    /// Notes that it is no longer dirty on `node`; `is_shared`: because several nodes write it.
    pub fn release(&mut self, now: Nanos, file: DirtyFile, node: &str, is_shared: bool) {
        if self.holder(&file) == node {
            let before = self.holders.get(&file).map(|(_, before)| without_void(before).to_owned());
            self.forget(&file);
            if let Some(before) = before.filter(|before| !before.is_empty() && before != node) {
                self.holders.insert(file.clone(), (String::new(), format!("{VOID}{before}")));
            }
            if is_shared {
                if self.shared.len() % PRUNED_AT == PRUNED_AT - 1 {
                    self.prune(now);
                }
                self.shared.insert(file, now + RECENT.as_nanos() as u64);
            }
        }
    }

    fn prune(&mut self, now: Nanos) {
        let (lasting, over) =
            std::mem::take(&mut self.shared).into_iter().partition(|(_, until)| *until > now);
        self.shared = lasting;
        let over: BTreeMap<DirtyFile, Nanos> = over;
        over.keys().for_each(|file| self.note(file));
    }

    /// Notes that a program has emptied it: the content on a node that is gone is void.
    pub fn empty(&mut self, file: &DirtyFile) {
        if let Some((holder, _)) = self.holders.get(file).filter(|(holder, _)| !holder.is_empty()).cloned() {
            self.note(file);
            self.holders.insert(file.clone(), (String::new(), format!("{VOID}{holder}")));
        }
    }

    /// Notes that programs of `node` write it to the PFS, past the node that has it: that node has
    /// to compare what it has, should its agent have restarted.
    pub fn written(&mut self, file: &DirtyFile, node: &str) {
        if let Some((holder, _)) = self.holders.get(file).cloned()
            && !holder.is_empty()
            && holder != node
        {
            self.note(file);
            let void = format!("{VOID}{holder}");
            self.holders.insert(file.clone(), (holder, void));
        }
    }

    fn forget(&mut self, file: &DirtyFile) {
        if self.holders.remove(file).is_some() {
            self.note(file);
        }
    }

    /// Notes that `node` has joined, and will report its files.
    pub fn joined(&mut self, node: &str) {
        self.reported.remove(node);
    }

    /// Notes that these files are dirty on `node`, besides those reported before; `is_last`: and no
    /// others. Not those that another node has taken over.
    pub fn report(&mut self, node: &str, mut files: Vec<DirtyFile>, is_last: bool) {
        let mut all = self.reported.remove(node).unwrap_or_default();
        all.append(&mut files);
        match is_last {
            true => self.replace(node, all),
            false => drop(self.reported.insert(node.to_owned(), all)),
        }
    }

    fn replace(&mut self, node: &str, files: Vec<DirtyFile>) {
        let reported: BTreeSet<&DirtyFile> = files.iter().collect();
        let is_over = |(file, (holder, before)): &(&DirtyFile, &(String, String))| {
            (holder == node || holder.is_empty() && without_void(before) == node) && !reported.contains(file)
        };
        let over: Vec<DirtyFile> =
            self.holders.iter().filter(is_over).map(|(file, _)| file.clone()).collect();
        over.iter().for_each(|file| self.forget(file));
        for file in files {
            let before = match self.holders.get(&file) {
                None => String::new(),
                Some((nobody, before)) if nobody.is_empty() && without_void(before) != node => before.clone(),
                Some(_) => continue,
            };
            self.note(&file);
            self.holders.insert(file, (node.to_owned(), before));
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
    fn a_node_that_comes_back_hears_that_another_one_has_had_its_file() {
        let file = |ino| DirtyFile { mount: "pfs".into(), ino };
        let (mut dirty, now) = (DirtyFiles::default(), Nanos(0));
        let claim = |dirty: &mut DirtyFiles, ino, node: &str, members: &[&str]| {
            dirty.claim(now, file(ino), node, |node| members.contains(&node))
        };
        for ino in [1, 2, 3] {
            claim(&mut dirty, ino, "a", &["a", "b"]);
        }
        claim(&mut dirty, 1, "b", &["b"]);
        dirty.release(now, file(1), "b", false);
        dirty.empty(&file(2));
        assert_eq!([dirty.holder(&file(1)), dirty.holder(&file(2)), dirty.holder(&file(3))], ["", "", "a"]);
        dirty.replace("a", vec![file(1), file(2), file(3)]);
        let own = |before: &str| ("a".to_owned(), before.to_owned());
        assert_eq!(claim(&mut dirty, 1, "a", &["a", "b"]), own("a"));
        assert_eq!(claim(&mut dirty, 2, "a", &["a", "b"]), own("a"));
        assert_eq!(claim(&mut dirty, 3, "a", &["a", "b"]), own(""));
        for ino in [1, 2, 3] {
            dirty.release(now, file(ino), "a", false);
        }
        assert!(dirty.holders.is_empty(), "{:?}", dirty.holders);
        claim(&mut dirty, 6, "a", &["a"]);
        dirty.written(&file(6), "a");
        assert_eq!(claim(&mut dirty, 6, "a", &["a"]), own(""));
        dirty.written(&file(6), "b");
        assert_eq!(dirty.holder(&file(6)), "a");
        assert_eq!(claim(&mut dirty, 6, "a", &["a"]), own("a"));
        assert_eq!(
            claim(&mut dirty, 6, "b", &["b"]),
            ("b".into(), String::new()),
            "it has newer bytes than a"
        );
        dirty.release(now, file(6), "b", false);
        dirty.release(now, file(6), "a", false);
        assert_eq!(claim(&mut dirty, 6, "a", &["a"]), own("a"));
        dirty.release(now, file(6), "a", false);
        claim(&mut dirty, 5, "a", &["a"]);
        dirty.empty(&file(5));
        assert_eq!(claim(&mut dirty, 5, "b", &["b"]), ("b".into(), String::new()), "nothing of a counts");
        assert_eq!(claim(&mut dirty, 5, "b", &["b"]), ("b".into(), String::new()), "once more");
        dirty.release(now, file(5), "b", false);
        assert_eq!(claim(&mut dirty, 5, "a", &["a"]), own("a"));
        dirty.release(now, file(5), "a", false);
        claim(&mut dirty, 4, "a", &["a"]);
        claim(&mut dirty, 4, "b", &["b"]);
        dirty.release(now, file(4), "b", false);
        dirty.replace("a", vec![]);
        assert!(dirty.holders.is_empty(), "a has lost its memory: {:?}", dirty.holders);
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
