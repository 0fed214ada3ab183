//! The tmpfs that holds the copies, and how an agent gets one.
//!
//! Huge pages are worth two to three times the bandwidth and fifty times the speed of giving memory
//! back, but the system's own `/dev/shm` rarely has them. So the tier has a tmpfs of its own,
//! mounted with `huge=within_size`:
//!
//! - *mount*: the agent may mount (root). The mount stays when the agent dies, and the next agent
//!   adopts what is in it.
//! - *namespace*: it may not, but it may make a user and mount namespace. A tiny *keeper* process
//!   lives in there, holds the mount, and hands out a descriptor of its root; the agent itself
//!   stays in the namespaces of its users, and its death does not take the cache with it.
//! - *directory*: neither; a directory on an existing tmpfs, with that tmpfs's page size.

use crate::full_io::write_all_at;
use crate::mounting::{TMPFS_MAGIC, backing_name, explain, huge_setting, is_tmpfs_mount, mount_or_resize};
use crate::{keeper, state};
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, StatVfs, flock, fstatfs, fstatvfs, mkdirat, openat, renameat,
    statat, unlinkat,
};
use rustix::mount::{UnmountFlags, unmount};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use crate::mounting::{Backing, TierOptions};
pub use crate::state::{check_own as check_own_directory, claim as claim_state_dir, mask_writers};

/// Bytes of a huge page on the usual machines.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// An open tier. While it lives, no other agent can open the same.
#[derive(Debug)]
pub struct Tier {
    copies: OwnedFd,
    root: OwnedFd,
    backing: Backing,
    place: PathBuf,
    state_dir: PathBuf,
    huge_pages: String,
    locks: [OwnedFd; 2],
    life: u64,
}

/// The notes on sets of checkpoints, and the file that is about to replace them.
const CHECKPOINTS: [&str; 2] = ["checkpoints", "checkpoints.new"];

/// The file that holds the number of the memory.
const LIFE: &str = "life";

impl Tier {
    /// Finds or makes the tmpfs and takes possession of it.
    ///
    /// # Errors
    /// Says which backings were tried and why each failed; or that another agent has the tier.
    pub fn open(options: &TierOptions) -> io::Result<Self> {
        let candidates: &[Backing] = match options.backing {
            Backing::Auto => &[Backing::Mount, Backing::Namespace, Backing::Directory],
            Backing::Mount => &[Backing::Mount],
            Backing::Namespace => &[Backing::Namespace],
            Backing::Directory => &[Backing::Directory],
        };
        state::claim(&options.state_dir)?;
        // Before anything is mounted or resized: a second agent must not change what the first one
        // uses.
        let state_lock = lock_file(CWD, &options.state_dir.join("lock"))?;
        let mut failures = String::new();
        for backing in candidates {
            match open_root(options, *backing) {
                Ok((root, place, huge_pages)) => {
                    state::record(&options.state_dir, *backing, &place)?;
                    return Self::take(&options.state_dir, state_lock, root, *backing, place, huge_pages);
                }
                Err(e) => failures.push_str(&format!("\n  {}: {e}", backing_name(*backing))),
            }
        }
        Err(io::Error::other(format!("no memory file system for the tier:{failures}")))
    }

    /// Opens the tier that an agent with this state directory has left, as it is; `None` if none
    /// has, or if it went with a restart of the machine.
    ///
    /// # Errors
    /// Another agent has the tier, or it cannot be opened.
    pub fn reopen(state_dir: &Path) -> io::Result<Option<Self>> {
        let Some((backing, place)) = state::recorded(state_dir)? else { return Ok(None) };
        let state_lock = lock_file(CWD, &state_dir.join("lock"))?;
        let root = match backing {
            Backing::Namespace => keeper::reopen(state_dir)?,
            Backing::Mount if !place.exists() || !is_tmpfs_mount(&place)? => None,
            Backing::Auto | Backing::Directory if !place.exists() => None,
            _ => Some(open_path(&place)?),
        };
        match root {
            Some(root) => Self::take(state_dir, state_lock, root, backing, place, String::new()).map(Some),
            None => state::forget(state_dir).map(|()| None),
        }
    }

    fn take(
        state_dir: &Path,
        state_lock: OwnedFd,
        root: OwnedFd,
        backing: Backing,
        place: PathBuf,
        huge_pages: String,
    ) -> io::Result<Self> {
        // Two state directories may name the same directory on a tmpfs.
        let root_lock = lock_file(&root, Path::new("lock"))?;
        let copies = open_dir(&root, "copies")?;
        let life = life_of(&root)?;
        let state_dir = state_dir.to_owned();
        Ok(Tier { copies, root, backing, place, state_dir, huge_pages, locks: [state_lock, root_lock], life })
    }

    /// Where the tmpfs is, for people.
    pub fn description(&self) -> String {
        match self.backing {
            Backing::Namespace => format!("{} (in a user namespace)", self.place.display()),
            _ => self.place.display().to_string(),
        }
    }

    /// Its device number.
    ///
    /// # Errors
    /// What `fstat` returns.
    pub fn device(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.root)?.st_dev)
    }

    /// Number of this memory: another memory, even on the same node, has another number.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Which backing was taken.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// The tmpfs's setting for huge pages: `within_size`, `never` ...
    pub fn huge_pages(&self) -> &str {
        &self.huge_pages
    }

    /// Free and total bytes of the tmpfs.
    ///
    /// # Errors
    /// What `statvfs` returns.
    pub fn free_and_total_bytes(&self) -> io::Result<(u64, u64)> {
        let StatVfs { f_bavail, f_blocks, f_frsize, .. } = fstatvfs(&self.root)?;
        Ok((f_bavail * f_frsize, f_blocks * f_frsize))
    }

    /// Makes the file of a copy, empty. No agent adopts it until it has a record
    /// ([`crate::CopyFile::finish`]).
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full.
    pub fn create_copy(&self, copy: u64) -> io::Result<OwnedFd> {
        self.create_named(&copy_name(copy))
    }

    pub(crate) fn create_record(&self, copy: u64) -> io::Result<OwnedFd> {
        self.create_named(&record_name(copy))
    }

    fn create_named(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(openat(&self.copies, name, flags, Mode::from(0o600))?)
    }

    pub(crate) fn open_copy(&self, copy: u64, writable: bool) -> io::Result<OwnedFd> {
        self.open_named(&copy_name(copy), writable)
    }

    pub(crate) fn open_record(&self, copy: u64, writable: bool) -> io::Result<OwnedFd> {
        self.open_named(&record_name(copy), writable)
    }

    fn open_named(&self, name: &str, writable: bool) -> io::Result<OwnedFd> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let open = |more| openat(&self.copies, name, access | more | OFlags::CLOEXEC, Mode::empty());
        // Updates of the access time would take a twentieth of a read of 4 KiB. Only the owner may
        // do without.
        match open(OFlags::NOATIME) {
            Err(rustix::io::Errno::PERM) => Ok(open(OFlags::empty())?),
            opened => Ok(opened?),
        }
    }

    /// A descriptor of the content of a dirty file, which is a copy without a record
    /// ([`crate::dirty`]), for a program that has opened its file with `flags`.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn open_dirty(&self, copy: u64, flags: OFlags) -> io::Result<OwnedFd> {
        Ok(openat(&self.copies, copy_name(copy), flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    pub(crate) fn open_dirty_record(&self, copy: u64) -> io::Result<OwnedFd> {
        self.open_named(&dirty_name(copy), false)
    }

    /// Replaces the record of a dirty file with what `write` writes, as a whole.
    pub(crate) fn replace_dirty_record(
        &self,
        copy: u64,
        write: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let new = format!("{}.new", dirty_name(copy));
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(&self.copies, &new, flags, Mode::from(0o600))?;
        write(file.as_fd())?;
        Ok(renameat(&self.copies, &new, &self.copies, dirty_name(copy))?)
    }

    /// Removes the record of a file that is no longer dirty, not the content.
    ///
    /// # Errors
    /// What `unlink` returns.
    pub fn forget_dirty(&self, copy: u64) -> io::Result<()> {
        self.remove_if_there(&dirty_name(copy))
    }

    fn remove_if_there(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.copies, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes a copy and its record, if it has one; its memory goes when the last client has
    /// closed it.
    ///
    /// # Errors
    /// What `unlink` returns.
    pub fn remove_copy(&self, copy: u64) -> io::Result<()> {
        self.remove_if_there(&record_name(copy))?;
        Ok(unlinkat(&self.copies, copy_name(copy), AtFlags::empty())?)
    }

    /// Numbers of all copies that have a record, in ascending order. Anything else is removed:
    /// copies without a record, records without a copy, and strangers.
    ///
    /// # Errors
    /// What reading the directory and `unlink` return.
    pub fn list_copies(&self) -> io::Result<Vec<u64>> {
        self.list().map(|(copies, _)| copies)
    }

    /// Numbers of all dirty files, in ascending order; removes what [`Tier::list_copies`] does.
    ///
    /// # Errors
    /// As [`Tier::list_copies`].
    pub fn list_dirty(&self) -> io::Result<Vec<u64>> {
        self.list().map(|(_, dirty)| dirty)
    }

    fn list(&self) -> io::Result<(Vec<u64>, Vec<u64>)> {
        let (mut copies, mut records, mut dirty) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for entry in rustix::fs::Dir::read_from(&self.copies)? {
            let entry = entry?;
            match entry.file_name().to_bytes() {
                b"." | b".." => {}
                name => match [copy_name, record_name, dirty_name].map(|named| number_of(name, named)) {
                    [Some(copy), ..] => _ = copies.insert(copy),
                    [_, Some(copy), _] => _ = records.insert(copy),
                    [.., Some(copy)] => _ = dirty.insert(copy),
                    [None, None, None] => unlinkat(&self.copies, entry.file_name(), AtFlags::empty())?,
                },
            }
        }
        for copy in copies.iter().filter(|copy| !records.contains(copy) && !dirty.contains(copy)) {
            unlinkat(&self.copies, copy_name(*copy), AtFlags::empty())?;
        }
        for copy in records.difference(&copies) {
            unlinkat(&self.copies, record_name(*copy), AtFlags::empty())?;
        }
        // One that has a copy's record too was clean by then.
        for copy in dirty.iter().filter(|copy| !copies.contains(copy) || records.contains(copy)) {
            unlinkat(&self.copies, dirty_name(*copy), AtFlags::empty())?;
        }
        let is_copy = |copy: &u64| records.contains(copy);
        Ok(copies.into_iter().filter(|copy| is_copy(copy) || dirty.contains(copy)).partition(is_copy))
    }

    /// Replaces what is noted of sets of checkpoints, as a whole.
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full.
    pub fn store_checkpoints(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(&self.root, CHECKPOINTS[1], flags, Mode::from(0o600))?;
        write_all_at(file.as_fd(), bytes, 0)?;
        Ok(renameat(&self.root, CHECKPOINTS[1], &self.root, CHECKPOINTS[0])?)
    }

    /// What is noted of sets of checkpoints; empty if nothing is.
    ///
    /// # Errors
    /// What the tmpfs returns.
    pub fn load_checkpoints(&self) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut bytes = Vec::new();
        match openat(&self.root, CHECKPOINTS[0], flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => {}
            file => _ = std::io::Read::read_to_end(&mut std::fs::File::from(file?), &mut bytes)?,
        }
        Ok(bytes)
    }

    /// A file without a name: memory-only data, gone with its last descriptor.
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full.
    pub fn create_unnamed(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(openat(&self.root, ".", flags, Mode::from(0o600))?)
    }

    /// Whether a page of `page_bytes` takes no more memory than that: where the tmpfs has huge
    /// pages, some kernels fill a file with huge pages only.
    ///
    /// # Errors
    /// What the tmpfs returns: it may be full.
    pub fn holds_pages_of(&self, page_bytes: u64) -> io::Result<bool> {
        let file = self.create_unnamed()?;
        rustix::fs::ftruncate(&file, 2 * HUGE_PAGE_BYTES.max(page_bytes))?;
        rustix::io::pwrite(&file, &vec![1; page_bytes as usize], HUGE_PAGE_BYTES)?;
        Ok(rustix::fs::fstat(&file)?.st_blocks as u64 * 512 <= page_bytes)
    }

    /// Lets another agent have the tier, for a process about to end: a thread that hangs in the PFS
    /// keeps the process's descriptors open, and with them its locks, until the PFS answers.
    pub fn release(&self) {
        for lock in &self.locks {
            // If it fails they go with the process.
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }

    /// Gives up the tmpfs and all that is in it: unmounts it, ends its keeper, or empties the
    /// directory. The disk level goes with it.
    ///
    /// # Errors
    /// What the unmount returns; clients that still have copies open keep their memory until they
    /// close.
    pub fn destroy(self) -> io::Result<()> {
        crate::disk_level::drop_noted(&self.state_dir)?;
        let (copies, dirty) = self.list()?;
        for copy in copies.into_iter().chain(dirty) {
            self.forget_dirty(copy)?;
            self.remove_copy(copy)?;
        }
        match self.backing {
            Backing::Mount => unmount(&self.place, UnmountFlags::DETACH)?,
            Backing::Namespace => keeper::quit(&self.state_dir)?,
            Backing::Auto | Backing::Directory => {
                unlinkat(&self.root, "copies", AtFlags::REMOVEDIR)?;
                for name in CHECKPOINTS.into_iter().chain([LIFE]) {
                    // Most tiers have none.
                    let _ = unlinkat(&self.root, name, AtFlags::empty());
                }
                unlinkat(&self.root, "lock", AtFlags::empty())?;
                std::fs::remove_dir(&self.place)?;
            }
        }
        state::forget(&self.state_dir)
    }

    /// A tier in a fresh directory, for tests of this and other crates. The directory goes with the
    /// guard.
    #[doc(hidden)]
    pub fn for_tests() -> (TestDir, Tier) {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(format!("/dev/shm/forebay-test-{}-{number}", std::process::id()));
        let options = TierOptions {
            state_dir: dir.clone(),
            backing: Backing::Directory,
            directory: Some(dir.join("tier")),
            limit_bytes: u64::MAX,
            huge_pages: false,
            program: None,
        };
        match Tier::open(&options) {
            Ok(tier) => (TestDir(dir), tier),
            Err(e) => panic!("no tier for a test in {}: {e}", dir.display()),
        }
    }
}

/// The directory of a tier made for a test; removed on drop.
#[doc(hidden)]
#[derive(Debug)]
pub struct TestDir(PathBuf);

impl std::ops::Deref for TestDir {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The number of the memory below `root`, made by its first agent.
fn life_of(root: &OwnedFd) -> io::Result<u64> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(root, LIFE, flags, Mode::from(0o600))?;
    let mut bytes = [0; 8];
    if rustix::io::pread(&file, &mut bytes, 0)? < bytes.len() {
        // Its keys are random.
        bytes = RandomState::new().hash_one(0).to_le_bytes();
        write_all_at(file.as_fd(), &bytes, 0)?;
    }
    Ok(u64::from_le_bytes(bytes))
}

fn copy_name(copy: u64) -> String {
    format!("{copy:016x}")
}

fn record_name(copy: u64) -> String {
    format!("{copy:016x}.record")
}

fn dirty_name(copy: u64) -> String {
    format!("{copy:016x}.dirty")
}

/// The copy that `name_of` calls `name`.
fn number_of(name: &[u8], name_of: fn(u64) -> String) -> Option<u64> {
    let digits = std::str::from_utf8(name.get(..16)?).ok()?;
    u64::from_str_radix(digits, 16).ok().filter(|copy| name_of(*copy).as_bytes() == name)
}

fn open_root(options: &TierOptions, backing: Backing) -> io::Result<(OwnedFd, PathBuf, String)> {
    match backing {
        Backing::Mount => open_mount(options),
        Backing::Namespace => keeper::open(options),
        Backing::Auto | Backing::Directory => open_directory(options),
    }
}

fn open_mount(options: &TierOptions) -> io::Result<(OwnedFd, PathBuf, String)> {
    let place = options.state_dir.join("tier");
    std::fs::create_dir_all(&place)?;
    mount_or_resize(&place, options.limit_bytes, options.huge_pages)?;
    let huge = huge_setting(&place)?;
    Ok((open_path(&place)?, place, huge))
}

fn open_directory(options: &TierOptions) -> io::Result<(OwnedFd, PathBuf, String)> {
    let uid = rustix::process::geteuid().as_raw();
    let place = options.directory.clone().unwrap_or_else(|| PathBuf::from(format!("/dev/shm/forebay-{uid}")));
    match std::fs::DirBuilder::new().recursive(false).create(&place) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(explain(e, format!("cannot make {}", place.display())));
        }
        _ => {}
    }
    let root = open_path(&place)?;
    let stat = statat(CWD, &place, AtFlags::SYMLINK_NOFOLLOW)?;
    if stat.st_uid != uid {
        return Err(io::Error::other(format!("{} belongs to user {}", place.display(), stat.st_uid)));
    }
    rustix::fs::fchmod(&root, Mode::from(0o700))?;
    if fstatfs(&root)?.f_type as i64 != TMPFS_MAGIC {
        return Err(io::Error::other(format!("{} is not on a tmpfs", place.display())));
    }
    Ok((root, place, "as its tmpfs".to_owned()))
}

fn open_path(place: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(CWD, place, flags, Mode::empty())
        .map_err(|e| explain(e.into(), format!("cannot open {}", place.display())))
}

fn open_dir(root: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(root, name, Mode::from(0o700)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(openat(root.as_fd(), name, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn lock_file(dir: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = openat(dir, path, flags, Mode::from(0o600))?;
    take_lock(&lock)?;
    Ok(lock)
}

/// An agent that was just killed may still be going away; a living one does not.
fn take_lock(lock: &OwnedFd) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(3);
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another agent has this tier; end it with `forebay down`, or give this one its own --state-dir",
                ));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_agent_has_a_tier_and_strangers_are_swept_out() {
        let (dir, tier) = Tier::for_tests();
        for copy in [3, 4] {
            tier.create_copy(copy).unwrap();
        }
        for record in [3, 5] {
            tier.create_record(record).unwrap();
        }
        for stranger in ["stranger", "7", "unfinished-8", "0000000000000009.records"] {
            std::fs::write(dir.join("tier/copies").join(stranger), b"x").unwrap();
        }
        assert_eq!(tier.list_copies().unwrap(), [3]);
        let left = std::fs::read_dir(dir.join("tier/copies")).unwrap().map(|file| file.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["0000000000000003", "0000000000000003.record"]);
        let second = openat(&tier.root, "lock", OFlags::RDWR, Mode::empty()).unwrap();
        assert!(flock(&second, FlockOperation::NonBlockingLockExclusive).is_err());
        tier.destroy().unwrap();
        assert!(!dir.join("tier").exists());
    }

    #[test]
    fn reads_of_a_copy_leave_its_access_time_alone() {
        let (_dir, tier) = Tier::for_tests();
        tier.create_copy(3).unwrap();
        let copy = tier.open_copy(3, false).unwrap();
        let plain = openat(&tier.copies, copy_name(3), OFlags::RDONLY, Mode::empty()).unwrap();
        let long_ago = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: long_ago, last_modification: long_ago };
        rustix::fs::futimens(&copy, &times).unwrap();
        rustix::io::pwrite(tier.open_copy(3, true).unwrap(), b"x", 0).unwrap();
        assert_eq!(rustix::io::pread(&copy, &mut [0_u8; 1][..], 0), Ok(1));
        assert_eq!(rustix::fs::fstat(&copy).unwrap().st_atime, 1);
        assert_eq!(rustix::io::pread(&plain, &mut [0_u8; 1][..], 0), Ok(1));
        assert_ne!(rustix::fs::fstat(&copy).unwrap().st_atime, 1, "this tmpfs updates none by itself");
        tier.destroy().unwrap();
    }

    #[test]
    fn a_directory_off_tmpfs_is_refused() {
        let dir = tempfile::tempdir_in("/").unwrap();
        let options = TierOptions {
            state_dir: dir.path().into(),
            backing: Backing::Directory,
            directory: Some(dir.path().join("tier")),
            limit_bytes: 1,
            huge_pages: true,
            program: None,
        };
        let message = Tier::open(&options).unwrap_err().to_string();
        assert!(message.contains("is not on a tmpfs"), "{message}");
    }
}
