//! Gives programs on this node the newest bytes of files that are dirty on other nodes, and makes
//! other nodes ask about files of this one.

use super::WriteBack;
use super::dirty_file::Dirty;
use super::elsewhere::{Content, HOLDER_MAX, HOLDER_PAUSE, SILENCE_MAX};
use super::reopen::born_ns;
use crate::lock::lock;
use forebay_pfs::read::reopen_as;
use forebay_pfs::{FileFacts, Revalidate};
use forebay_store::Class;
use forebay_wire::cluster::DirtyFile;
use rustix::fs::{OFlags, Timespec, Timestamps, futimens};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// How often a holder may say that a file is not dirty there, while the coordinator says it is.
const REFUSALS_MAX: u32 = 3;

const NOW: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
    last_modification: Timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
};

/// Where the newest bytes of a file are.
#[derive(Debug)]
pub enum Newest {
    /// On the PFS.
    Pfs,
    /// In this content, of this many bytes.
    Content(u64, OwnedFd),
}

impl WriteBack {
    /// The newest bytes of a file that is not dirty here, open as `pfs`, for a program of user
    /// `uid`. May take as long as the content is long.
    ///
    /// # Errors
    /// Another node has newer bytes, and they cannot be had.
    pub fn newest(&self, uid: u32, mount: usize, pfs: &OwnedFd) -> io::Result<Newest> {
        let ino = FileFacts::of(pfs.as_fd(), Revalidate::Force)?.version.ino;
        let file = self.name_of(mount, ino);
        let mut until = Instant::now() + HOLDER_MAX;
        let mut refusals = 0;
        loop {
            let holder = self.claims.holder(&file);
            // What is here says that another node has had the file.
            if holder.is_err()
                && self.is_taken(mount, ino)
                && Instant::now() < until
                && !self.stop.is_stopping()
            {
                std::thread::sleep(HOLDER_PAUSE);
                continue;
            }
            // Without its coordinator the cluster is as many nodes that know nothing of each other.
            let Ok(Some(holder)) = holder else {
                // This node may have taken it over.
                let facts = FileFacts::of(pfs.as_fd(), Revalidate::Force)?;
                let own = self.open(mount, &facts, pfs.as_fd());
                return Ok(own.map_or(Newest::Pfs, |(_, size, content)| Newest::Content(size, content)));
            };
            let facts = FileFacts::of(pfs.as_fd(), Revalidate::Force)?;
            match self.fetch_content(uid, &holder, &file, (pfs, &facts)) {
                Ok(Fetched::Content(size, content)) => return Ok(Newest::Content(size, content)),
                // It has become clean, or was stamped again; or somebody has changed it on the PFS.
                Ok(Fetched::Refused) if refusals == REFUSALS_MAX => return Ok(Newest::Pfs),
                Ok(Fetched::Refused) => {
                    tracing::debug!(holder, ino, "a file is not dirty where the coordinator says it is");
                    refusals += 1;
                }
                Ok(Fetched::NoRoom) => {
                    // The reader waits for the PFS instead.
                    self.elsewhere.call_in(&holder, &file, false, HOLDER_MAX, false);
                    until = Instant::now() + HOLDER_MAX;
                }
                Err(e) if Instant::now() >= until || self.stop.is_stopping() => {
                    let why = format!("node {holder} has newer bytes than the file system: {e}");
                    return Err(io::Error::new(e.kind(), why));
                }
                Err(_) => {}
            }
            std::thread::sleep(HOLDER_PAUSE);
        }
    }

    /// Whether another node has taken over a file of this one.
    fn is_taken(&self, mount: usize, ino: u64) -> bool {
        let is_it =
            |file: &Dirty| file.mount == mount && file.record.ino == ino && file.record.second.is_fenced;
        self.state().files.values().any(is_it)
    }

    /// Stamps the dirty file `copy` on the PFS again, which has an older content, or a part of it:
    /// other nodes ask about recent files only.
    pub(super) fn stamp_again(&self, copy: u64) {
        let of_file = |file: &Dirty| Some((file.mount, file.pfs.clone()?));
        let Some((mount, pfs)) = self.state().files.get(&copy).and_then(of_file) else { return };
        if !self.claims.are_others() {
            return;
        }
        let _stamping = lock(&self.stamping[mount]);
        let is_meant = |file: &&mut Dirty| {
            let is_between = file.is_draining && !file.record.is_draining;
            file.is_dirty() && file.is_listed && !file.is_foreign && !is_between
        };
        let Ok(facts) = FileFacts::of(pfs.as_fd(), Revalidate::Force) else { return };
        // Otherwise somebody else has written to it there, which its pass has to find.
        let is_as_left = |file: &&mut Dirty| {
            let known = [Some(file.record.left), file.record.leaves].into_iter().flatten();
            file.is_draining
                || file.record.is_draining
                || known.map(|left| left.0).any(|size| size == facts.version.size)
        };
        if self.state().files.get_mut(&copy).filter(is_meant).filter(is_as_left).is_none()
            || futimens(&pfs, &NOW).is_err()
        {
            return;
        }
        let Ok(facts) = FileFacts::of(pfs.as_fd(), Revalidate::Force) else { return };
        if let Some(file) =
            self.state().files.get_mut(&copy).filter(is_meant).filter(|file| !file.is_draining)
        {
            file.record.left = (facts.version.size, facts.version.mtime_ns);
            // The next agent would go over it all the same.
            let _is_tried_again = file.record.store(&self.cache.tier, copy);
        }
    }

    /// As [`WriteBack::stamp_again`], for all that the PFS has a part of.
    pub(super) fn stamp_all_again(&self) {
        let is_partly_there = |file: &Dirty| file.is_draining || file.record.left.0 > 0;
        let copies: Vec<u64> = {
            let state = self.state();
            state.files.iter().filter(|(_, file)| is_partly_there(file)).map(|(copy, _)| *copy).collect()
        };
        copies.into_iter().for_each(|copy| self.stamp_again(copy));
    }

    /// Its name, as all nodes know it.
    pub(super) fn name_of(&self, mount: usize, ino: u64) -> DirtyFile {
        DirtyFile { mount: self.mounts[mount].label().to_owned(), ino }
    }

    fn fetch_content(
        &self,
        uid: u32,
        holder: &str,
        file: &DirtyFile,
        (pfs, facts): (&OwnedFd, &FileFacts),
    ) -> io::Result<Fetched> {
        let contents = lock(&self.elsewhere.contents).entry(file.clone()).or_default().clone();
        // One at a time: the others find what it has fetched.
        let mut contents = lock(&contents);
        let mut link = self.elsewhere.connect(holder, Instant::now() + SILENCE_MAX)?;
        let shown = ((facts.version.size, facts.version.mtime_ns), born_ns(pfs.as_fd()));
        let known = contents.last().and_then(|content| content.stamp);
        let Some(sent) = link.dirty(file, shown, known, Instant::now() + SILENCE_MAX)? else {
            return Ok(Fetched::Refused);
        };
        if !sent.is_known {
            let Ok(room) = self.cache.hold(&self.shares, uid, Class::Dirty, sent.size) else {
                return Ok(Fetched::NoRoom);
            };
            let copy = self.cache.next_copy();
            let fd = self.cache.tier.create_copy(copy)?;
            // Nobody else is to find it, and it goes with its readers.
            self.cache.tier.remove_copy(copy)?;
            link.content(&fd, sent.size, SILENCE_MAX)?;
            let fd = again(&fd)?;
            let stamp = sent.is_settled.then_some((sent.size, sent.mtime_ns));
            contents.push(Content { fd, stamp, used: Instant::now(), _room: room });
        }
        let newest = contents.last_mut().ok_or(io::ErrorKind::NotFound)?;
        newest.used = Instant::now();
        Ok(Fetched::Content(sent.size, again(&newest.fd)?))
    }
}

/// What came of asking a holder.
enum Fetched {
    /// This content, of this many bytes.
    Content(u64, OwnedFd),
    /// It is not dirty there, or not this file.
    Refused,
    /// No room in the tier.
    NoRoom,
}

/// The same file, open for reading.
fn again(fd: &OwnedFd) -> io::Result<OwnedFd> {
    reopen_as(fd.as_fd(), OFlags::RDONLY | OFlags::NOATIME)
}
