//! Map outputs move to a local disk when others need their memory.
//!
//! A spilled output is a file without a name below `tier.spill`. Reducers get descriptors of it as
//! of one in memory, so nobody else knows the difference, and the kernel removes it with its last
//! descriptor, however the application or this process ends. A user whose files have no room gives
//! up own outputs; when the tier must shrink, all users do. The oldest shuffle goes first, since
//! its reducers have most probably run, and of its outputs the largest: few writes free much. If
//! the disk takes no more, outputs stay where they are, and writers are refused.

use super::Shuffles;
use crate::counters::add;
use crate::jobs::scratch_files::{FILE_BYTES, Scratch};
use crate::lock::lock;
use crate::user_limits::Kind;
use forebay_store::Class;
use forebay_store::bounded::BoundedFile;
use forebay_wire::shuffle::{is_committed, shuffle_of};
use rustix::fs::{Advice, Mode, OFlags, fadvise, fstatvfs, open, openat};
use std::cmp::Reverse;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// So often the spiller looks whether the tier has to shrink.
const LOOK: Duration = Duration::from_millis(200);

/// Where outputs are spilled to.
#[derive(Debug)]
pub struct Spill {
    directory: OwnedFd,
    /// Up to this share the disk may be filled.
    fill: f64,
    /// One output at a time: the disk is the bottleneck.
    one: Mutex<()>,
}

/// An output that may be spilled.
struct Candidate {
    token: String,
    uid: u32,
    name: Vec<u8>,
    copy: u64,
    file: OwnedFd,
    bytes: u64,
}

impl Spill {
    /// Spills into `directory` until its disk is full up to the share `fill`.
    ///
    /// # Errors
    /// It is no directory for files without a name.
    pub fn open(directory: &Path, fill: f64) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = open(directory, flags, Mode::empty())?;
        let spill = Spill { directory: opened, fill, one: Mutex::default() };
        spill.unnamed()?;
        Ok(spill)
    }

    fn unnamed(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(openat(&self.directory, ".", flags, Mode::from(0o600))?)
    }

    /// An empty file on the disk, if it has room for `bytes`.
    pub(super) fn file(&self, bytes: u64) -> io::Result<BoundedFile> {
        let disk = fstatvfs(&self.directory)?;
        let keep_free = (disk.f_blocks as f64 * (1.0 - self.fill)) as u64;
        if disk.f_bavail.saturating_sub(keep_free) < bytes.div_ceil(disk.f_frsize) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(BoundedFile::on_disk(self.unnamed()?))
    }

    fn copy(&self, from: OwnedFd, bytes: u64) -> io::Result<BoundedFile> {
        let spilled = self.file(bytes)?;
        let mut to = File::from(spilled.for_writing()?);
        if io::copy(&mut File::from(from), &mut to)? != bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The kernel begins to write, so that what it caches counts as free soon.
        fadvise(&to, 0, None, Advice::DontNeed)?;
        Ok(spilled)
    }
}

impl Shuffles {
    /// Moves one output of user `uid`, or of anybody, to the disk; `false` if no memory was freed.
    pub fn spill_one(&self, uid: Option<u32>) -> bool {
        let Some(spill) = &self.spill else { return false };
        let Ok(_one) = spill.one.try_lock() else {
            // Somebody frees memory already.
            drop(lock(&spill.one));
            return true;
        };
        let Some(Candidate { token, uid, name, copy, file, bytes }) = self.next_to_spill(uid) else {
            return false;
        };
        let file = match spill.copy(file, bytes) {
            Ok(file) => file,
            Err(e) => {
                add(&self.counters.shuffle_spills_failed_total, 1);
                tracing::debug!(bytes, error = %e, "cannot spill a map output");
                return false;
            }
        };
        let mut jobs = lock(&self.files.by_token);
        let output = jobs.get_mut(&token).and_then(|job| job.files.get_mut(&name));
        // It may have been removed or replaced meanwhile, which frees its memory as well.
        if let Some(output) = output.filter(|output| output.copy == copy) {
            let in_memory = std::mem::replace(output, self.on_disk(uid, copy, file));
            drop(jobs);
            self.files.give_up(uid, in_memory);
            add(&self.counters.shuffle_spilled_bytes, bytes);
        }
        true
    }

    /// A file on the disk, which takes no memory of the tier but its record.
    pub(super) fn on_disk(&self, uid: u32, copy: u64, file: BoundedFile) -> Scratch {
        Scratch {
            copy,
            file,
            room: self.cache.hold_existing(&self.shares, uid, Class::Scratch, FILE_BYTES),
            descriptors: self.shares.share_existing(Kind::Descriptors, uid, 1),
        }
    }

    fn next_to_spill(&self, uid: Option<u32>) -> Option<Candidate> {
        let apps = lock(&self.apps);
        let jobs = lock(&self.files.by_token);
        let mut outputs = Vec::new();
        for (token, job) in jobs.iter().filter(|(token, _)| apps.contains_key(*token)) {
            for (name, output) in job.files.iter().filter(|(_, output)| !output.file.is_on_disk()) {
                if let Some(shuffle) = shuffle_of(name).filter(|_| uid.is_none_or(|uid| job.uid == uid)) {
                    let order = (shuffle, Reverse(output.file.size()));
                    outputs.push((order, (token, job.uid, name, output)));
                }
            }
        }
        outputs.sort_unstable_by_key(|(order, _)| *order);
        outputs.into_iter().find_map(|(_, (token, uid, name, output))| {
            let (file, bytes) = output.file.for_reading().ok()?;
            let (token, name, copy) = (token.clone(), name.clone(), output.copy);
            let is_whole = is_committed(&file).unwrap_or(false);
            is_whole.then_some(Candidate { token, uid, name, copy, file, bytes })
        })
    }

    /// Spills whenever the tier takes more than it may, until the agent ends.
    pub fn spill_excess(&self) {
        while self.spill.is_some() && !self.stop.wait(LOOK) {
            self.cache.settle_some();
            while self.cache.budget.excess_bytes() > 0 && !self.stop.is_stopping() && self.spill_one(None) {}
        }
    }
}
