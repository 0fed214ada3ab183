//! Measures whether a file system's time stamps follow writes, by writing a small file.
//!
//! A version is known by its stamps. Some file systems do not move them: OrangeFS through pvfs2fuse
//! for no write at all. On such a file system no cache can distinguish old content from new.

use crate::{FileFacts, Revalidate};
use rustix::fs::OFlags;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Prefix of the names of probe files.
pub const PROBE_PREFIX: &str = ".forebay-probe-";

/// Times between two writes that are tried in turn until the stamps of the second differ: more than
/// one tick of a kernel with 100 a second, some ticks, and more than one and two whole seconds.
const WAITS: [Duration; 4] = [
    Duration::from_millis(12),
    Duration::from_millis(25),
    Duration::from_millis(1_050),
    Duration::from_millis(2_100),
];

const BLOCK: usize = 4096;

/// A probe of that age is not in use: its agent was killed.
const LEFT: Duration = Duration::from_secs(3600);

/// Most entries of a directory that are looked at for probes that were left.
const ENTRIES_MAX: usize = 10_000;

/// What can be done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its bytes are overwritten, its length stays.
    Overwrite,
    /// It gets longer.
    Append,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::Overwrite => "an overwrite in place",
            Change::Append => "an append",
        })
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamps {
    /// Every write moves them, if the one before is long enough ago.
    Follow {
        /// How long ago that is.
        within: Duration,
        /// A write moves ctime, so ctime alone shows when a file was changed.
        ctime: bool,
    },
    /// This change does not move them, however long after the last.
    Rest(Change),
}

/// Writes a small file in `dir`, changes it through one path and reads its stamps through
/// `seen_in`, another mount of the same directory or `dir` itself. Takes 25 to 50 ms on most file
/// systems, 2 to 6 s where stamps are whole seconds or rest.
///
/// # Errors
/// The file cannot be created, written or read.
pub fn measure(dir: &Path, seen_in: &Path, how: Revalidate) -> io::Result<Stamps> {
    remove_left(dir, LEFT);
    let probe = Probe::create(dir, seen_in)?;
    let (mut within, mut ctime) = (Duration::ZERO, true);
    for change in [Change::Overwrite, Change::Append] {
        match probe.moves_on(change, how)? {
            Some((wait, moves_ctime)) => (within, ctime) = (within.max(wait), ctime && moves_ctime),
            None => return Ok(Stamps::Rest(change)),
        }
    }
    Ok(Stamps::Follow { within, ctime })
}

/// Removes this user's probes that are `age` old or older.
fn remove_left(dir: &Path, age: Duration) {
    let own = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten().take(ENTRIES_MAX) {
        let is_old = |meta: std::fs::Metadata| {
            let changed = meta.modified().ok().and_then(|at| at.elapsed().ok());
            meta.is_file() && meta.uid() == own && changed.is_some_and(|passed| passed >= age)
        };
        if entry.file_name().as_bytes().starts_with(PROBE_PREFIX.as_bytes())
            && entry.metadata().is_ok_and(is_old)
        {
            // Another agent may have done it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// A small file that is removed at the end.
pub(crate) struct Probe {
    /// Where it is changed.
    path: PathBuf,
    /// The path through which it is read.
    seen: PathBuf,
    /// Inode of the file that was made.
    ino: u64,
}

impl Probe {
    pub(crate) fn create(dir: &Path, seen_in: &Path) -> io::Result<Self> {
        let name = format!("{PROBE_PREFIX}{:016x}", RandomState::new().hash_one(std::process::id()));
        let path = dir.join(&name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let mut probe = Probe { path, seen: seen_in.join(name), ino: 0 };
        probe.ino = file.metadata()?.ino();
        file.write_all_at(&[0; BLOCK], 0)?;
        Ok(probe)
    }

    /// The pause after which the change moves the stamps, and whether ctime is one of them; `None`
    /// if after none.
    fn moves_on(&self, change: Change, how: Revalidate) -> io::Result<Option<(Duration, bool)>> {
        let mut before = self.stamps(how)?;
        for (round, wait) in WAITS.into_iter().enumerate() {
            sleep(wait);
            // Closed each time: many file systems report a change to their servers only then.
            let file = self.writer()?;
            let offset = match change {
                Change::Overwrite => 0,
                Change::Append => file.metadata()?.len(),
            };
            file.write_all_at(&[round as u8 + 1; BLOCK], offset)?;
            drop(file);
            let now = self.stamps(how)?;
            if now != before {
                return Ok(Some((wait, now.1 != before.1)));
            }
            before = now;
        }
        Ok(None)
    }

    /// Opens it for writing, where it is changed.
    pub(crate) fn writer(&self) -> io::Result<File> {
        self.open(&self.path, OpenOptions::new().write(true))
    }

    /// Opens it for reading the stamps.
    pub(crate) fn reader(&self) -> io::Result<File> {
        self.open(&self.seen, OpenOptions::new().read(true))
    }

    /// Opens the file that was made and no other. The owner of the directory could put a link in
    /// its place, and root would write where that leads.
    fn open(&self, path: &Path, options: &mut OpenOptions) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = options.custom_flags(flags.bits() as i32).open(path)?;
        match file.metadata()? {
            meta if meta.is_file() && meta.ino() == self.ino => Ok(file),
            _ => Err(io::Error::other(format!("{}: somebody has replaced it", path.display()))),
        }
    }

    fn stamps(&self, how: Revalidate) -> io::Result<(i64, i64)> {
        let file = self.reader()?;
        let version = FileFacts::of(file.as_fd(), how)?.version;
        Ok((version.mtime_ns, version.ctime_ns))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // What is left behind at worst is a hidden file of a few blocks, which a later measurement
        // removes.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_a_directory_of_tests_follow_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let found = measure(dir.path(), dir.path(), Revalidate::Force).unwrap();
        let quick = |within| within <= WAITS[1];
        assert!(matches!(found, Stamps::Follow { within, ctime: true } if quick(within)), "{found:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let left = [PROBE_PREFIX.to_owned() + "1", "data".to_owned()].map(|name| dir.path().join(name));
        left.iter().for_each(|path| std::fs::write(path, b"x").unwrap());
        remove_left(dir.path(), LEFT);
        assert!(left[0].exists(), "it may be in use");
        remove_left(dir.path(), Duration::ZERO);
        assert_eq!(left.map(|path| path.exists()), [false, true]);
        assert!(measure(&dir.path().join("none"), dir.path(), Revalidate::Force).is_err());
    }
}
