//! What a leader stores in etcd for the next one: who was a member, and which files are dirty
//! where.
//!
//! Agents report everything else again. These two they cannot report: a node that died with the
//! leader reports nothing. The next leader has to know that such a node may still listen to the old
//! leader, and that the newest bytes of a file were there.
//!
//! | key | value |
//! | --- | --- |
//! | `members` | names, a JSON list |
//! | `dirty/INODE/MOUNT` | as JSON, the holder and the gone node from which it has the file |
//! | `stored` | term and number of the last transaction, so that none is made twice or too late |
//!
//! An answer that depends on a change waits until the change is stored ([`Writer`]). The changes
//! that come while a transaction is under way go with the next one.

use crate::etcd::{CHANGES_MAX, Change, Etcd, Place};
use forebay_wire::cluster::DirtyFile;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const MEMBERS: &str = "members";
const DIRTY: &str = "dirty/";
const COUNTER: &str = "stored";

/// The key below the prefix; its value is the leader's address.
pub const LEADER: &str = "leader";

/// Longest time for one attempt to store something.
const ATTEMPT: Duration = Duration::from_millis(1300);

/// An etcd that takes no changes for longer is reported.
const WARN_AFTER: Duration = Duration::from_secs(3);

/// Pause after an attempt that failed.
const AGAIN: Duration = Duration::from_millis(50);

/// A file's holder, and the node that is gone from which it has the file; or nothing.
pub type Held = Option<(String, String)>;

/// What has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The members, if they have changed.
    pub members: Option<BTreeSet<String>>,
    /// Files whose holder has changed.
    pub dirty: BTreeMap<DirtyFile, Held>,
}

/// What the leader before has stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The members.
    pub members: BTreeSet<String>,
    /// The dirty files.
    pub dirty: BTreeMap<DirtyFile, (String, String)>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        *self == Changes::default()
    }

    fn merge(&mut self, later: Changes) {
        self.members = later.members.or(self.members.take());
        self.dirty.extend(later.dirty);
    }

    fn operations(&self) -> Vec<Change> {
        let text = |value: serde_json::Value| value.to_string();
        let members = self.members.iter();
        let members = members.map(|names| Change::Put(MEMBERS.to_owned(), text(serde_json::json!(names))));
        let dirty = self.dirty.iter().map(|(file, held)| match held {
            Some(held) => Change::Put(key_of(file), text(serde_json::json!(held))),
            None => Change::Delete(key_of(file)),
        });
        members.chain(dirty).collect()
    }
}

fn key_of(file: &DirtyFile) -> String {
    format!("{DIRTY}{:016x}/{}", file.ino, file.mount)
}

fn file_of(key: &str) -> Option<DirtyFile> {
    let (ino, mount) = key.strip_prefix(DIRTY)?.split_once('/')?;
    Some(DirtyFile { mount: mount.to_owned(), ino: u64::from_str_radix(ino, 16).ok()? })
}

/// Reads what is stored. `between` is called now and then.
///
/// # Errors
/// etcd does not answer within `limit`; `between` fails; what is stored is not understood.
pub fn load(
    etcd: &mut Etcd,
    limit: Duration,
    between: impl FnMut(&mut Etcd) -> io::Result<()>,
) -> io::Result<Stored> {
    // The writer compares it, so it has to exist; without a lease.
    etcd.create(COUNTER, "", 0, Instant::now() + limit)?;
    let members = etcd.get(MEMBERS, Instant::now() + limit)?;
    let members = members.map_or(Ok(BTreeSet::new()), |entry| serde_json::from_str(&entry.value))?;
    let mut dirty = BTreeMap::new();
    for entry in etcd.list(DIRTY, limit, between)? {
        let not_understood = || io::Error::other(format!("the key {} is not understood", entry.key));
        let file = file_of(&entry.key).ok_or_else(not_understood)?;
        dirty.insert(file, serde_json::from_str(&entry.value)?);
    }
    Ok(Stored { members, dirty })
}

/// Stores the changes of one term, in their order.
pub struct Writer {
    shared: Arc<Shared>,
    /// Number of the last changes.
    given: u64,
}

struct Shared {
    waiting: Mutex<(Changes, u64)>,
    more: Condvar,
    stored: AtomicU64,
    is_over: AtomicBool,
    call: Box<dyn Fn() + Send + Sync>,
}

impl Writer {
    /// Starts the writer of the leader of `term`, which calls `call` when something is stored.
    ///
    /// # Errors
    /// No thread.
    pub fn start(place: Place, term: u64, call: Box<dyn Fn() + Send + Sync>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            more: Condvar::new(),
            stored: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            call,
        });
        let its = shared.clone();
        std::thread::Builder::new()
            .name("stored".into())
            .spawn(move || its.run(&mut Etcd::new(place), term))?;
        Ok(Writer { shared, given: 0 })
    }

    /// Hands over changes to store. They are stored when [`Writer::stored`] has reached the number
    /// that this returns.
    pub fn give(&mut self, changes: Changes) -> u64 {
        if !changes.is_empty() {
            self.given += 1;
            let mut waiting = self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.0.merge(changes);
            waiting.1 = self.given;
            self.shared.more.notify_all();
        }
        self.given
    }

    /// Number of the last changes that were given.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Number of the next changes.
    pub fn next(&self) -> u64 {
        self.given + 1
    }

    /// Number of the last changes that are stored.
    pub fn stored(&self) -> u64 {
        self.shared.stored.load(Ordering::Acquire)
    }

    /// Whether another leads: then nothing more is stored.
    pub fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.more.notify_all();
    }
}

impl Shared {
    fn run(&self, etcd: &mut Etcd, term: u64) {
        let mut count = 0u64;
        while let Some((changes, number)) = self.take() {
            for operations in changes.operations().chunks(CHANGES_MAX) {
                count += 1;
                if !self.store(etcd, term, count, operations) {
                    return;
                }
            }
            self.stored.store(number, Ordering::Release);
            (self.call)();
        }
    }

    /// Waits for changes; `None` at the end.
    fn take(&self) -> Option<(Changes, u64)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while waiting.0.is_empty() {
            if self.is_over.load(Ordering::Acquire) {
                return None;
            }
            let woken = self.more.wait_timeout(waiting, Duration::from_secs(1));
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Some((std::mem::take(&mut waiting.0), waiting.1))
    }

    /// Stores some changes; `false` if the term is over.
    fn store(&self, etcd: &mut Etcd, term: u64, count: u64, operations: &[Change]) -> bool {
        // Compared as texts.
        let count = format!("{term:020}.{count:020}");
        let mut began = Some(Instant::now());
        while !self.is_over.load(Ordering::Acquire) {
            match etcd.change_if((LEADER, term), (COUNTER, &count), operations, Instant::now() + ATTEMPT) {
                Ok(true) => return true,
                Ok(false) => {
                    self.is_over.store(true, Ordering::Release);
                    (self.call)();
                }
                Err(e) => {
                    if began.take_if(|began| began.elapsed() > WARN_AFTER).is_some() {
                        tracing::warn!(error = %e, "etcd takes no changes; new files go to the PFS, and nodes cannot join");
                    }
                    std::thread::sleep(AGAIN);
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_changes_of_a_file_replace_earlier_ones_and_keys_name_their_files() {
        let file = |ino| DirtyFile { mount: "a/b".into(), ino };
        let held = |node: &str| Some((node.to_owned(), String::new()));
        let mut changes = Changes { members: Some(["n1".to_owned()].into()), ..Changes::default() };
        changes.merge(Changes {
            dirty: [(file(1), held("n1")), (file(2), held("n1"))].into(),
            ..Changes::default()
        });
        changes.merge(Changes { dirty: [(file(1), None)].into(), ..Changes::default() });
        let operations = changes.operations();
        assert_eq!(operations.len(), 3, "one for each key: {operations:?}");
        assert_eq!(operations[0], Change::Put("members".into(), r#"["n1"]"#.into()));
        let Change::Delete(key) = &operations[1] else { panic!("{operations:?}") };
        assert_eq!(file_of(key), Some(file(1)));
        assert_eq!(operations[2], Change::Put(key_of(&file(2)), r#"["n1",""]"#.into()));
    }
}
