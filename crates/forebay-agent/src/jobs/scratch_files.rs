//! Memory-only files: a job's scratch space.
//!
//! They are files without a name on the tier's tmpfs, known by (job, name) to this agent only. The
//! promise: they live in the memory of this node until the job ends, that is, until the connection
//! that began it closes; they never reach the PFS, and they are lost if the node or the agent dies.
//! Room is reserved in the budget before it is written, so a job that wants too much gets an error
//! and nobody else suffers.
//!
//! An *image* is a memory-only file that outlives its job: a user's own copy of a tree that the
//! user's jobs declare unchanging. It is kept until nobody has used it for [`IMAGE_LIFE`], until
//! the same user's files need the room, or until the operator evicts all.

use crate::cache::held::Held;
use crate::lock::lock;
use crate::user_limits::Share;
use forebay_store::bounded::{BoundedFile, Remains};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What a file costs besides its bytes: its name, its record, and its file system. The block that
/// it may have before it has any room is in it.
pub const FILE_BYTES: u64 = 16 << 10;

/// How long an image is kept after a run last opened it.
pub const IMAGE_LIFE: Duration = Duration::from_secs(3600);

/// Jobs and their files.
#[derive(Debug, Default)]
pub struct Jobs {
    /// By the token that names a job to its programs.
    pub by_token: Mutex<BTreeMap<String, Job>>,
    /// Files that are given up and that programs may still have open, with the room that they take
    /// until then.
    remains: Mutex<Vec<(u32, Remains, Held, Share)>>,
    /// By user and tree.
    images: Mutex<BTreeMap<(u32, Vec<u8>), Image>>,
}

/// A file that outlives its job.
#[derive(Debug)]
struct Image {
    scratch: Scratch,
    used: Instant,
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
    /// Its descriptors, in its user's share.
    pub descriptors: Share,
    /// What it takes of its user's share of the disk, if it is there.
    pub on_disk: Option<Share>,
}

impl Jobs {
    /// Ends the job: its files are removed, and their memory is freed with the last open
    /// descriptor.
    pub fn end(&self, token: &str) {
        let job = lock(&self.by_token).remove(token);
        for (uid, scratch) in
            job.into_iter().flat_map(|job| job.files.into_values().map(move |s| (job.uid, s)))
        {
            self.give_up(uid, scratch);
        }
    }

    /// Gives a file up. Its room is released when its memory is free; returns whether it is.
    pub fn give_up(&self, uid: u32, scratch: Scratch) -> bool {
        let Some(remains) = scratch.file.give_up().filter(|remains| !remains.are_gone()) else { return true };
        lock(&self.remains).push((uid, remains, scratch.room, scratch.descriptors));
        false
    }

    /// Keeps a file as the image of `tree`, in place of an older one.
    pub fn keep_image(&self, uid: u32, tree: Vec<u8>, scratch: Scratch) {
        let image = Image { scratch, used: Instant::now() };
        let replaced = lock(&self.images).insert((uid, tree), image);
        if let Some(replaced) = replaced {
            self.give_up(uid, replaced.scratch);
        }
    }

    /// The number of an image, a descriptor for a reader, and the length.
    pub fn open_image(&self, uid: u32, tree: &[u8]) -> Option<io::Result<(u64, OwnedFd, u64)>> {
        let mut images = lock(&self.images);
        let image = images.get_mut(&(uid, tree.to_vec()))?;
        image.used = Instant::now();
        let copy = image.scratch.copy;
        Some(image.scratch.file.for_reading().map(|(fd, size)| (copy, fd, size)))
    }

    /// Gives up the image of user `uid` that was used longest ago; false if there is none.
    pub fn give_up_oldest_image(&self, uid: u32) -> bool {
        let mut images = lock(&self.images);
        let of_user = images.iter().filter(|((owner, _), _)| *owner == uid);
        let Some(oldest) = of_user.min_by_key(|(_, image)| image.used).map(|(key, _)| key.clone()) else {
            return false;
        };
        let image = images.remove(&oldest);
        drop(images);
        if let Some(image) = image {
            self.give_up(uid, image.scratch);
        }
        true
    }

    /// Gives up the images that were not used within `life`.
    pub fn give_up_images(&self, life: Duration) {
        let mut images = lock(&self.images);
        let is_old = |image: &Image| image.used.elapsed() >= life;
        let keys: Vec<_> = images.iter().filter(|(_, i)| is_old(i)).map(|(key, _)| key.clone()).collect();
        let old: Vec<_> = keys.into_iter().filter_map(|key| images.remove_entry(&key)).collect();
        drop(images);
        for ((uid, _), image) in old {
            self.give_up(uid, image.scratch);
        }
    }

    /// Releases the room of what programs have closed since, and of images that nobody uses.
    pub fn keep_house(&self) {
        self.give_up_images(IMAGE_LIFE);
        lock(&self.remains).retain(|(_, remains, ..)| !remains.are_gone());
    }

    /// Files of user `uid` that are given up, and that somebody still has open.
    pub fn remains_of(&self, uid: u32) -> usize {
        lock(&self.remains).iter().filter(|(owner, ..)| *owner == uid).count()
    }

    /// Files of user `uid`, and what remains of them.
    pub fn files_of(&self, uid: u32) -> usize {
        let remains = self.remains_of(uid);
        let images = lock(&self.images).keys().filter(|(owner, _)| *owner == uid).count();
        let jobs = lock(&self.by_token);
        remains
            + images
            + jobs.values().filter(|job| job.uid == uid).map(|job| job.files.len()).sum::<usize>()
    }

    /// Number of memory-only files.
    pub fn files(&self) -> u64 {
        let images = lock(&self.images).len() as u64;
        images + lock(&self.by_token).values().map(|job| job.files.len() as u64).sum::<u64>()
    }
}

impl Scratch {
    /// Releases what a writer that is done asked for and did not use, but never what the file
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
