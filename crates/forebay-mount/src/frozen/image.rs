//! An image: the contents of a tree's files one after the other, the index, and where that is.
//!
//! The index has what a later walk cannot see: with which attributes names and contents were taken.
//! The attributes that programs get are always those of their own run's walk.

use super::tree::{Entry, Id, Kind};
use forebay_pfs::FileFacts;
use rustix::fs::Statx;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::BorrowedFd;

/// Identifies an image, and the version of this format.
const MAGIC: u64 = u64::from_le_bytes(*b"fbimage\x01");
const FOOTER_BYTES: u64 = 24;
/// Longest index that is read.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// The rights with which a tree was walked: another group may be able to read more.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Rights {
    /// The rights of this process.
    pub fn own() -> Self {
        let mut groups: Vec<u32> = rustix::process::getgroups()
            .map(|groups| groups.into_iter().map(|group| group.as_raw()).collect())
            .unwrap_or_default();
        groups.sort_unstable();
        Rights { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), groups }
    }
}

/// What distinguishes a version; numbers of devices differ between nodes.
pub fn version(stat: &Statx) -> FileFacts {
    FileFacts { dev: 0, ..FileFacts::from_statx(stat) }
}

/// An index.
#[derive(Debug, Serialize, Deserialize)]
pub struct Index {
    rights: Rights,
    entries: Vec<Saved>,
}

/// An entry of an index.
#[derive(Debug, Serialize, Deserialize)]
pub struct Saved {
    /// Its version then.
    pub version: FileFacts,
    /// It may have changed since without a trace.
    pub is_racily_clean: bool,
    /// What it was.
    pub kind: SavedKind,
}

/// What a saved entry was.
#[derive(Debug, Serialize, Deserialize)]
pub enum SavedKind {
    /// A directory, and its names, sorted, if all are known.
    Dir(Option<Vec<(Box<[u8]>, Id)>>),
    /// A file, and where its content is.
    File(Option<u64>),
    /// A link, and where it leads.
    Link(Box<[u8]>),
    /// Anything else.
    Unknown,
}

impl Index {
    /// The index of a walked tree.
    pub fn of(entries: &[Entry]) -> Self {
        let entries = entries.iter().map(|entry| Saved {
            version: version(&entry.stat),
            is_racily_clean: entry.is_racily_clean,
            kind: match &entry.kind {
                Kind::Dir { names, is_whole, .. } => SavedKind::Dir(is_whole.then(|| sorted(names))),
                Kind::File { at } => SavedKind::File(at.map(|(_, at)| at)),
                Kind::Link { target } => SavedKind::Link(target.clone()),
                Kind::Unknown => SavedKind::Unknown,
            },
        });
        Index { rights: Rights::own(), entries: entries.collect() }
    }

    /// The index and what follows it, for the end of an image whose contents end at `end`.
    ///
    /// # Errors
    /// None that is known.
    pub fn to_bytes(&self, end: u64) -> Result<Vec<u8>, postcard::Error> {
        let mut bytes = postcard::to_stdvec(self)?;
        let len = bytes.len() as u64;
        [end, len, MAGIC].into_iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        Ok(bytes)
    }

    /// Reads the index of an image; `None` if it is of another format or was made with other
    /// rights.
    ///
    /// # Errors
    /// Reading fails.
    pub fn read(image: BorrowedFd<'_>, size: u64) -> io::Result<Option<Self>> {
        let Some(at) = size.checked_sub(FOOTER_BYTES) else { return Ok(None) };
        let mut footer = [0; FOOTER_BYTES as usize];
        read_exactly(image, &mut footer, at)?;
        let word = |at: usize| footer[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let (end, len) = (word(0), word(8));
        if word(16) != MAGIC || len > INDEX_BYTES_MAX || end.checked_add(len) != Some(at) {
            return Ok(None);
        }
        let mut bytes = vec![0; len as usize];
        read_exactly(image, &mut bytes, end)?;
        let index: Option<Index> = postcard::from_bytes(&bytes).ok();
        Ok(index.filter(|index| index.rights == Rights::own() && index.is_sound(end)))
    }

    /// Whether every number leads to an entry, and every content is in the image.
    fn is_sound(&self, end: u64) -> bool {
        let count = self.entries.len() as Id;
        self.entries.iter().all(|entry| match &entry.kind {
            SavedKind::Dir(Some(names)) => names.iter().all(|(_, id)| *id < count),
            SavedKind::File(Some(at)) => at.checked_add(entry.version.version.size).is_some_and(|e| e <= end),
            _ => true,
        }) && count > 0
    }

    /// An entry.
    pub fn get(&self, id: Id) -> &Saved {
        &self.entries[id as usize]
    }
}

fn sorted(names: &[(Box<[u8]>, Id)]) -> Vec<(Box<[u8]>, Id)> {
    let mut names = names.to_vec();
    names.sort_unstable();
    names
}

/// Fills the buffer.
///
/// # Errors
/// What the file system returns, or the file ends.
pub fn read_exactly(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    match crate::served::read_pfs(fd, buffer, offset, true)? {
        n if n == buffer.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
