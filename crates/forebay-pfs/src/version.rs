//! The identity of a file's content: inode, size, mtime and ctime.
//!
//! Whatever Forebay holds belongs to one version, and bytes of two versions are never mixed within
//! one open. mtime alone is not enough (`cp -p`, `tar` and `rsync` set it back), so ctime is part
//! of the version. ctime, however, also moves when only the name, the links, the owner or the mode
//! change; [`FileFacts::difference`] distinguishes these, so that a file that is unlinked or
//! renamed while somebody reads it can still be read to its end.
//!
//! Time stamps have a granularity: two writes within it leave the same stamp.
//! [`FileFacts::is_racily_clean`] says when a version may still change without showing it; what is
//! fetched while a file is racily clean is not believed by a later open.

use rustix::fs::{AtFlags, Statx, StatxFlags, statx};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// One content of one file on one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileVersion {
    /// Inode number on the PFS.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Time of last modification, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of last change of content or attributes, nanoseconds since 1970.
    pub ctime_ns: i64,
}

impl fmt::Display for FileVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {} size {} mtime {} ctime {}", self.ino, self.size, self.mtime_ns, self.ctime_ns)
    }
}

/// A version, and the other attributes that `statx` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// The content's identity.
    pub version: FileVersion,
    /// Device number of the file system.
    pub dev: u64,
    /// Number of hard links.
    pub nlink: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// How hard to ask the file system for current attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Revalidate {
    /// Ask the servers even if this node has the attributes cached (`AT_STATX_FORCE_SYNC`). Local
    /// file systems and those with coherent attributes (Lustre, GPFS) answer without a round trip.
    #[default]
    Force,
    /// Believe the node's attribute cache, as `stat` does: cheaper, and as stale as that cache may
    /// be.
    AsStat,
}

/// The stamp that shows when a file was last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeStamp {
    /// ctime. No program can set it, where writes move it.
    Ctime,
    /// The newer of mtime and ctime: whether writes move ctime is unknown, or they do not.
    Newer,
}

/// What became of a file since its facts were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The same version.
    None,
    /// ctime moved, and links, owner or mode moved with it: an unlink, a link, a `chown`, a
    /// `chmod`. The content's own marks (inode, size, mtime) stand.
    Attributes,
    /// ctime moved alone. A rename does that; so does a write whose mtime was set back.
    CtimeOnly,
    /// Another inode, size or mtime.
    Content,
}

impl FileFacts {
    /// Reads the facts of an open file.
    ///
    /// # Errors
    /// What `statx` returns: `ESTALE`, `EIO` and the like from the PFS.
    pub fn of(fd: BorrowedFd<'_>, how: Revalidate) -> io::Result<Self> {
        let sync = match how {
            Revalidate::Force => AtFlags::STATX_FORCE_SYNC,
            Revalidate::AsStat => AtFlags::empty(),
        };
        let stat = statx(fd.as_fd(), c"", AtFlags::EMPTY_PATH | sync, StatxFlags::BASIC_STATS)?;
        Ok(Self::from_statx(&stat))
    }

    /// The facts in these attributes.
    pub fn from_statx(stat: &Statx) -> Self {
        let nanos = |sec: i64, nsec: u32| sec.saturating_mul(1_000_000_000).saturating_add(i64::from(nsec));
        FileFacts {
            version: FileVersion {
                ino: stat.stx_ino,
                size: stat.stx_size,
                mtime_ns: nanos(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
                ctime_ns: nanos(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
            },
            dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            nlink: stat.stx_nlink,
            mode: u32::from(stat.stx_mode),
            uid: stat.stx_uid,
            gid: stat.stx_gid,
        }
    }

    /// True for a regular file, the only kind that is ever cached.
    pub fn is_regular(&self) -> bool {
        rustix::fs::FileType::from_raw_mode(self.mode) == rustix::fs::FileType::RegularFile
    }

    /// How `now` differs from these facts, taken earlier from the same descriptor.
    pub fn difference(&self, now: &FileFacts) -> Difference {
        let (then, new) = (&self.version, &now.version);
        if then == new {
            Difference::None
        } else if (then.ino, then.size, then.mtime_ns) != (new.ino, new.size, new.mtime_ns) {
            Difference::Content
        } else if (self.nlink, self.mode, self.uid, self.gid) != (now.nlink, now.mode, now.uid, now.gid) {
            Difference::Attributes
        } else {
            Difference::CtimeOnly
        }
    }

    /// When the file was last changed, nanoseconds since 1970.
    pub fn changed_ns(&self, by: ChangeStamp) -> i64 {
        match by {
            ChangeStamp::Ctime => self.version.ctime_ns,
            ChangeStamp::Newer => self.version.mtime_ns.max(self.version.ctime_ns),
        }
    }

    /// True if the file was changed less than [`FileFacts::granularity_ns`] before `now_ns` (both
    /// by the wall clock, as time stamps are), so that another write may yet leave the very same
    /// stamps. A change in the future counts as racily clean.
    pub fn is_racily_clean(&self, now_ns: i64, granularity_ns: i64, by: ChangeStamp) -> bool {
        self.changed_ns(by) > now_ns.saturating_sub(self.granularity_ns(granularity_ns, by))
    }

    /// How far two changes of this file must be apart for their stamps to differ, where nothing is
    /// known of its file system but `configured_ns`. A stamp without a fraction is a whole second,
    /// taken some time before the write is complete: two seconds at least. Zero stays zero: an
    /// operator who configures that wants every stamp believed.
    pub fn granularity_ns(&self, configured_ns: i64, by: ChangeStamp) -> i64 {
        const SECOND_NS: i64 = 1_000_000_000;
        let whole = self.changed_ns(by) % SECOND_NS == 0;
        if whole && configured_ns > 0 { configured_ns.max(2 * SECOND_NS) } else { configured_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::ChangeStamp::{Ctime, Newer};
    use super::*;

    fn facts() -> FileFacts {
        FileFacts {
            version: FileVersion { ino: 7, size: 100, mtime_ns: 1_000, ctime_ns: 1_000 },
            dev: 1,
            nlink: 1,
            mode: 0o100_644,
            uid: 1,
            gid: 1,
        }
    }

    #[test]
    fn a_write_with_mtime_set_back_is_not_taken_for_an_attribute_change() {
        let mut now = facts();
        now.version.ctime_ns = 2_000;
        assert_eq!(facts().difference(&now), Difference::CtimeOnly);
        now.nlink = 0;
        assert_eq!(facts().difference(&now), Difference::Attributes);
        now.version.size = 99;
        assert_eq!(facts().difference(&now), Difference::Content);
        assert_eq!(facts().difference(&facts()), Difference::None);
    }

    #[test]
    fn the_newest_stamp_says_whether_a_file_is_racily_clean() {
        let mut f = facts();
        let racy = |f: &FileFacts, now| [Ctime, Newer].map(|by| f.is_racily_clean(now, 20, by));
        assert_eq!([1_000 + 20, 1_000 + 19].map(|now| racy(&f, now)), [[false; 2], [true; 2]]);
        f.version.ctime_ns = 5_000;
        assert_eq!(racy(&f, 4_000), [true; 2], "a change in the future is racily clean");
        (f.version.mtime_ns, f.version.ctime_ns) = (5_000, 1_000);
        assert_eq!(racy(&f, 4_000), [false, true], "an mtime that somebody has set is no change");
    }

    #[test]
    fn stamps_of_whole_seconds_are_racy_for_two_seconds() {
        let second = 1_000_000_000;
        let mut f = facts();
        (f.version.mtime_ns, f.version.ctime_ns) = (10 * second, 10 * second);
        for by in [Ctime, Newer] {
            assert!(f.is_racily_clean(12 * second - 1, 20, by) && !f.is_racily_clean(12 * second, 20, by));
            assert!(f.is_racily_clean(14 * second, 5 * second, by), "what is configured may be more");
            assert!(!f.is_racily_clean(10 * second, 0, by), "or nothing at all");
        }
        // A file whose mtime was set to a whole second on a file system that has fractions.
        f.version.ctime_ns += 1;
        assert!(!f.is_racily_clean(10 * second + 21, 20, Ctime));
    }

    #[test]
    fn facts_of_a_real_file_follow_its_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"one").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let before = FileFacts::of(file.as_fd(), Revalidate::Force).unwrap();
        assert!(before.is_regular());
        assert_eq!(before.version.size, 3);
        std::fs::write(&path, b"three").unwrap();
        let after = FileFacts::of(file.as_fd(), Revalidate::Force).unwrap();
        assert_eq!(before.difference(&after), Difference::Content);
        std::fs::remove_file(&path).unwrap();
        let unlinked = FileFacts::of(file.as_fd(), Revalidate::Force).unwrap();
        assert_eq!(after.difference(&unlinked), Difference::Attributes);
    }
}
