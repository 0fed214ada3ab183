//! The names of a tree, with attributes, in one list.

use rustix::fs::Statx;
use std::collections::HashMap;

/// Number of an entry.
pub type Id = u32;

/// The root of the mount.
pub const ROOT: Id = 0;

/// For longer names the PFS has an error of its own.
const NAME_MAX: usize = 255;

/// A file, directory or anything else with a name.
#[derive(Debug)]
pub struct Entry {
    /// The directory that has it.
    pub parent: Id,
    /// Its name there.
    pub name: Box<[u8]>,
    /// Its attributes.
    pub stat: Statx,
    /// What it is.
    pub kind: Kind,
    /// It has changed so shortly before that a later change may not show.
    pub is_racily_clean: bool,
}

/// What an entry is.
#[derive(Debug)]
pub enum Kind {
    /// A directory.
    Dir {
        /// Its names, sorted once the walk is over. The PFS lists them in the order of the numbers.
        names: Vec<(Box<[u8]>, Id)>,
        /// All names are known.
        is_whole: bool,
        /// Only on the way to a tree: the PFS is asked for its attributes and other names.
        is_way: bool,
    },
    /// A regular file.
    File {
        /// Where its content is, in the image of this number.
        at: Option<(u16, u64)>,
    },
    /// A symbolic link.
    Link {
        /// Where it leads.
        target: Box<[u8]>,
    },
    /// The PFS answers.
    Unknown,
}

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is this entry.
    Entry(Id),
    /// Nothing has this name.
    Nothing,
    /// The PFS knows.
    Unknown,
}

/// All frozen trees below the root of a mount, and the directories that lead to them.
#[derive(Debug)]
pub struct Tree {
    /// All entries, by number.
    pub entries: Vec<Entry>,
    /// Entries of files that have several names, by inode number.
    pub linked: HashMap<u64, Vec<Id>>,
}

impl Tree {
    /// A tree of only the root.
    pub fn new(stat: Statx) -> Self {
        let kind = Kind::Dir { names: Vec::new(), is_whole: false, is_way: true };
        let root = Entry { parent: ROOT, name: Box::default(), stat, kind, is_racily_clean: false };
        Tree { entries: vec![root], linked: HashMap::new() }
    }

    /// The entry of a number.
    pub fn get(&self, id: Id) -> &Entry {
        &self.entries[id as usize]
    }

    /// What `name` is in a directory.
    pub fn find(&self, dir: Id, name: &[u8]) -> Found {
        let Kind::Dir { names, is_whole, .. } = &self.get(dir).kind else { return Found::Unknown };
        if name.len() > NAME_MAX {
            return Found::Unknown;
        }
        match names.binary_search_by(|(other, _)| (**other).cmp(name)) {
            Ok(at) if matches!(self.get(names[at].1).kind, Kind::Unknown) => Found::Unknown,
            Ok(at) => Found::Entry(names[at].1),
            Err(_) if *is_whole => Found::Nothing,
            Err(_) => Found::Unknown,
        }
    }

    /// The names of a directory in the order in which the PFS lists them.
    pub fn listed(&self, dir: Id) -> Vec<Id> {
        let Kind::Dir { names, .. } = &self.get(dir).kind else { return Vec::new() };
        let mut listed: Vec<Id> = names.iter().map(|(_, id)| *id).collect();
        listed.sort_unstable();
        listed
    }

    /// Adds an entry; its directory names it.
    pub fn add(&mut self, parent: Id, name: &[u8], stat: Statx, kind: Kind) -> Id {
        let id = self.entries.len() as Id;
        self.entries.push(Entry { parent, name: name.into(), stat, kind, is_racily_clean: false });
        if let Kind::Dir { names, .. } = &mut self.entries[parent as usize].kind {
            let at = names.partition_point(|(other, _)| **other < *name);
            names.insert(at, (name.into(), id));
        }
        id
    }

    /// Takes in a tree that was walked, as `name` in `parent`. `image` is the number of its image.
    pub fn join(&mut self, parent: Id, name: &[u8], walked: Vec<Entry>, image: u16) {
        let first = self.entries.len() as Id;
        for (number, mut entry) in walked.into_iter().enumerate() {
            entry.parent = if number == 0 { parent } else { entry.parent + first };
            match &mut entry.kind {
                Kind::Dir { names, .. } => {
                    names.iter_mut().for_each(|(_, id)| *id += first);
                    names.sort_unstable();
                }
                Kind::File { at: Some((number, _)) } => *number = image,
                Kind::File { .. } | Kind::Link { .. } | Kind::Unknown => {}
            }
            if entry.stat.stx_nlink > 1 && matches!(entry.kind, Kind::File { .. }) {
                let id = first + number as Id;
                self.linked.entry(entry.stat.stx_ino).or_default().push(id);
            }
            self.entries.push(entry);
        }
        if let Kind::Dir { names, .. } = &mut self.entries[parent as usize].kind {
            let at = names.partition_point(|(other, _)| **other < *name);
            names.insert(at, (name.into(), first));
        }
    }
}
