//! Memory-only files: a job's scratch space.
//!
//! They are files without a name on the tier's tmpfs, known by (job, name) to this agent only. The
//! promise: they live in the memory of this node until the job ends, that is, until the connection
//! that began it closes; they never reach the PFS, and they are lost if the node or the agent dies.
//! Room is reserved in the budget before it is written, so a job that wants too much gets an error
//! and nobody else suffers.

use crate::cache::held::Held;
use crate::lock::lock;
use crate::user_limits::Share;
use forebay_store::bounded::{BoundedFile, Remains};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// What a file costs besides its bytes: its name, its record, and its file system. The block that
/// it may have before it has any room is in it.
pub const FILE_BYTES: u64 = 16 << 10;

/// Jobs and their files.
#[derive(Debug, Default)]
pub struct Jobs {
    /// By what names a job to its programs.
    pub by_token: Mutex<BTreeMap<String, Job>>,
    /// Files that are given up and that programs may still have open, with the room that they take
    /// until then.
    remains: Mutex<Vec<(u32, Remains, Held, Share)>>,
}

/// One job.
#[derive(Debug)]
pub struct Job {
    /// Whose it is.
    pub uid: u32,
    /// By name.
    pub files: BTreeMap<Vec<u8>, Scratch>,
}

/// A memory-only file.
#[derive(Debug)]
pub struct Scratch {
    /// Its number.
    pub copy: u64,
    /// Its bytes.
    pub file: BoundedFile,
    /// What it takes.
    pub room: Held,
    /// Of its user's share.
    pub descriptors: Share,
}

impl Jobs {
    /// The job has ended: its files go, and with the last open descriptor their memory.
    pub fn end(&self, token: &str) {
        let job = lock(&self.by_token).remove(token);
        for (uid, scratch) in
            job.into_iter().flat_map(|job| job.files.into_values().map(move |s| (job.uid, s)))
        {
            self.give_up(uid, scratch);
        }
    }

    /// Its room is released when its memory is free.
    pub fn give_up(&self, uid: u32, scratch: Scratch) {
        if let Some(remains) = scratch.file.give_up().filter(|remains| !remains.are_gone()) {
            lock(&self.remains).push((uid, remains, scratch.room, scratch.descriptors));
        }
    }

    /// Releases the room of what programs have closed since.
    pub fn keep_house(&self) {
        lock(&self.remains).retain(|(_, remains, ..)| !remains.are_gone());
    }

    /// Files of user `uid`, and what remains of them.
    pub fn files_of(&self, uid: u32) -> usize {
        let remains = lock(&self.remains).iter().filter(|(owner, ..)| *owner == uid).count();
        let jobs = lock(&self.by_token);
        remains + jobs.values().filter(|job| job.uid == uid).map(|job| job.files.len()).sum::<usize>()
    }

    /// Number of memory-only files.
    pub fn files(&self) -> u64 {
        lock(&self.by_token).values().map(|job| job.files.len() as u64).sum()
    }
}

impl Scratch {
    /// A writer that is done releases what it asked for and did not use, but never what the file
    /// takes.
    pub fn give_back_beyond(&mut self, wanted: u64) {
        if self.room.bytes() > wanted && self.file.set_room(wanted - FILE_BYTES).unwrap_or(false) {
            self.room.shrink(self.room.bytes() - wanted);
        }
    }
}

/// The file with number `copy`, if it is of user `uid`.
pub fn find(jobs: &mut BTreeMap<String, Job>, uid: u32, copy: u64) -> Option<&mut Scratch> {
    jobs.values_mut()
        .filter(|job| job.uid == uid)
        .flat_map(|job| job.files.values_mut())
        .find(|s| s.copy == copy)
}
