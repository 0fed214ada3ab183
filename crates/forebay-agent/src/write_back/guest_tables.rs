//! Guests, as this node knows them: those of its files, and its programs that are guests of other
//! nodes ([`super::guests`]).

use super::elsewhere::HOLDER_MAX;
use crate::lock::lock;
use forebay_store::dirty::Words;
use forebay_wire::GuestId;
use forebay_wire::cluster::DirtyFile;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Files of other nodes that a node remembers because its programs have been guests there.
const REMEMBERED_MAX: usize = 4096;

/// Guests of this node's files, and of files of other nodes.
#[derive(Debug, Default)]
pub struct Guests {
    pub(super) here: Mutex<BTreeMap<u64, Known>>,
    pub(super) away: Mutex<BTreeMap<u64, Arc<Away>>>,
    /// Files that may be dirty on another node with bytes that programs of a user wrote here.
    written: Mutex<BTreeSet<(u32, DirtyFile)>>,
}

impl Guests {
    /// Notes that a program of user `uid` is about to write to a file of another node.
    pub(super) fn note(&self, uid: u32, file: &DirtyFile) {
        let mut written = lock(&self.written);
        if written.len() >= REMEMBERED_MAX && !written.contains(&(uid, file.clone())) {
            written.pop_first();
        }
        written.insert((uid, file.clone()));
    }

    /// Files that programs of a user have written in this way, or all.
    pub(super) fn written(&self, is_for: impl Fn(u32) -> bool) -> BTreeSet<DirtyFile> {
        lock(&self.written).iter().filter(|(uid, _)| is_for(*uid)).map(|(_, file)| file.clone()).collect()
    }

    /// Notes that the PFS has the file, which is remembered for as long as it has guests.
    pub(super) fn forget(&self, file: &DirtyFile) {
        let away = lock(&self.away);
        if away.values().all(|guest| guest.file != *file) {
            lock(&self.written).retain(|(_, other)| other != file);
        }
    }
}

/// A guest of other nodes, as its connections have it in common.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) copy: u64,
    pub(super) node: String,
    /// The number of its last connection. Held while a call is under way.
    pub(super) last: Arc<Mutex<u64>>,
}

/// A program on this node that is a guest of another one.
#[derive(Debug)]
pub struct Away {
    /// Its names.
    pub id: GuestId,
    /// The file.
    pub file: DirtyFile,
    pub(super) uid: u32,
    pub(super) born_ns: Option<i64>,
    /// What the program shares with this agent.
    pub words: Words,
    /// The thread that has opened the file.
    pub(super) caller: AtomicU32,
    /// Since when the holder has not answered.
    pub(super) silent: Mutex<Option<Instant>>,
}

impl Away {
    /// Notes that the holder has answered.
    pub(super) fn note_answer(&self) {
        *lock(&self.silent) = None;
    }

    /// Whether the holder has been silent for so long that it counts as gone.
    pub(super) fn is_given_up(&self) -> bool {
        lock(&self.silent).get_or_insert_with(Instant::now).elapsed() > HOLDER_MAX
    }

    /// The message that the holder's memory is another one.
    pub(super) fn lost(&self) -> String {
        format!("node {} has lost what was written to the file before", self.id.holder)
    }

    /// The message why its calls fail.
    pub fn silence(&self, e: &io::Error) -> String {
        format!("node {}, which has the newest bytes of the file, does not answer: {e}", self.id.holder)
    }
}
