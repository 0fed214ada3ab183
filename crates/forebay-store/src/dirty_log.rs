//! Dirty files on a disk of the node: what was synced survives a restart of the node.
//!
//! One file of the log is one dirty file as it was at its last `fsync` or `close`: its content,
//! with its holes, and behind it the record of where the bytes belong. A new one replaces the one
//! before by a rename, once it is on the disk. Concurrent writers share the commits of the disk's
//! own file system.

use crate::BLOCK_BYTES;
use crate::dirty::{DirtyRecord, only_mtime};
use crate::full_io::{read_exact_at, write_all_at};
use crate::state::lock_dir;
use rustix::fs::{
    Advice, AtFlags, Dir, FlockOperation, Mode, OFlags, fadvise, fdatasync, flock, fstat, fsync, ftruncate,
    futimens, openat, renameat, sendfile, unlinkat,
};
use serde::{Deserialize, Serialize};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The last bytes of each file.
const MAGIC: &[u8; 8] = b"FBLOG001";

/// Length of what is behind the content, without its own end.
const END_BYTES: u64 = 4 + MAGIC.len() as u64;

/// A record longer than this is not one.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// Bytes handed to the disk at a time, so that it works while the next part is copied.
const PART_BYTES: u64 = 8 << 20;

/// The log's directory.
#[derive(Debug)]
pub struct DirtyLog {
    dir: OwnedFd,
    /// Numbers of files that are being written.
    writes: AtomicU64,
    /// The number of the next file.
    next: AtomicU64,
}

/// What follows the content of a file of the log.
#[derive(Debug, Serialize, Deserialize)]
struct Behind {
    record: DirtyRecord,
    size: u64,
    mtime_ns: i64,
    ranges: Vec<(u64, u64)>,
}

/// A dirty file as the log has it.
#[derive(Debug)]
pub struct Logged {
    number: u64,
    behind: Behind,
    file: OwnedFd,
}

impl DirtyLog {
    /// Opens the directory, or makes it. Removes what no `fsync` has waited for to its end.
    ///
    /// # Errors
    /// Another agent uses it (`WouldBlock`), or it cannot be used.
    pub fn open(path: &Path) -> io::Result<Self> {
        let dir = lock_dir(path)?;
        let log = DirtyLog { dir, writes: AtomicU64::new(0), next: AtomicU64::new(0) };
        let names = log.names()?;
        for name in names.iter().filter(|name| name.ends_with(".new")) {
            unlinkat(&log.dir, name.as_str(), AtFlags::empty())?;
        }
        let last = names.iter().filter_map(|name| number_of(name)).max();
        log.next.store(last.map_or(0, |last| last.saturating_add(1)), Relaxed);
        Ok(log)
    }

    /// Lets another agent have the directory, for a process about to end.
    pub fn release(&self) {
        // If it fails the lock goes with the process.
        let _ = flock(&self.dir, FlockOperation::Unlock);
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            if let Ok(name) = entry?.file_name().to_str()
                && !name.starts_with('.')
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// A number that no other file has, or has had since the log has been in use.
    pub fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Writes a file of the tier in place of what the log has as number `number`: `content`, of
    /// `size` bytes, last written at `mtime_ns`, of which `ranges` are not holes. It is on the disk
    /// at the end.
    ///
    /// # Errors
    /// The disk's; `UnexpectedEof` if the content has become shorter meanwhile.
    pub fn write(
        &self,
        (number, record): (u64, &DirtyRecord),
        content: BorrowedFd<'_>,
        (size, mtime_ns): (u64, i64),
        ranges: &[(u64, u64)],
    ) -> io::Result<()> {
        let new = format!("{}.new", self.writes.fetch_add(1, Relaxed));
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(&self.dir, &new, flags, Mode::from(0o600))?;
        let behind = Behind { record: record.clone(), size, mtime_ns, ranges: ranges.to_vec() };
        let written = copy_ranges(content, &file, ranges)
            .and_then(|()| behind.write_to(&file))
            .and_then(|()| Ok(fdatasync(&file)?))
            .and_then(|()| Ok(renameat(&self.dir, &new, &self.dir, name_of(number))?))
            .and_then(|()| Ok(fsync(&self.dir)?));
        if written.is_err() {
            // The name is gone if only the last step has failed.
            let _ = unlinkat(&self.dir, &new, AtFlags::empty());
        }
        // Its pages are in the tier already.
        let _is_a_hint = fadvise(&file, 0, None, Advice::DontNeed);
        written
    }

    /// Removes a file, if it exists.
    ///
    /// # Errors
    /// The disk's.
    pub fn remove(&self, number: u64) -> io::Result<()> {
        match unlinkat(&self.dir, name_of(number), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// All files of the log, the newest first; of one that cannot be read, its name and why.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn files(&self) -> io::Result<Vec<Result<Logged, (String, io::Error)>>> {
        let mut names = self.names()?;
        names.sort_unstable_by_key(|name| std::cmp::Reverse(number_of(name)));
        Ok(names.into_iter().map(|name| self.read(&name).map_err(|e| (name, e))).collect())
    }

    fn read(&self, name: &str) -> io::Result<Logged> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "not a file of a log");
        let number = number_of(name).ok_or_else(invalid)?;
        let file = openat(&self.dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Logged { number, behind: Behind::read_from(&file)?, file })
    }
}

impl Logged {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where it belongs.
    pub fn record(&self) -> &DirtyRecord {
        &self.behind.record
    }

    /// Bytes of it that are not holes.
    pub fn bytes(&self) -> u64 {
        self.behind.ranges.iter().map(|(from, to)| to - from).sum()
    }

    /// Writes it to an empty file of the tier.
    ///
    /// # Errors
    /// Errors of both ends.
    pub fn restore(&self, content: &OwnedFd) -> io::Result<()> {
        copy_ranges(self.file.as_fd(), content, &self.behind.ranges)?;
        ftruncate(content, self.behind.size)?;
        Ok(futimens(content, &only_mtime(self.behind.mtime_ns))?)
    }
}

impl Behind {
    fn write_to(&self, file: &OwnedFd) -> io::Result<()> {
        let mut bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(MAGIC);
        write_all_at(file.as_fd(), &bytes, crate::blocks_bytes(self.size))
    }

    fn read_from(file: &OwnedFd) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "not a file of a log, or damaged");
        let total = fstat(file)?.st_size as u64;
        let mut end = [0; END_BYTES as usize];
        let end_at = total.checked_sub(END_BYTES).ok_or_else(invalid)?;
        read_exact_at(file.as_fd(), &mut end, end_at)?;
        let (len, magic) = end.split_at(4);
        let len = u64::from(u32::from_le_bytes(len.try_into().map_err(|_| invalid())?));
        if magic != MAGIC || len > RECORD_BYTES_MAX {
            return Err(invalid());
        }
        let mut bytes = vec![0; len as usize];
        read_exact_at(file.as_fd(), &mut bytes, end_at.checked_sub(len).ok_or_else(invalid)?)?;
        let behind: Behind = postcard::from_bytes(&bytes).map_err(|_| invalid())?;
        let is_within = |(from, to): &(u64, u64)| from <= to && *to <= behind.size;
        let is_whole =
            behind.ranges.iter().all(is_within) && end_at - len == behind.size.next_multiple_of(BLOCK_BYTES);
        if is_whole { Ok(behind) } else { Err(invalid()) }
    }
}

fn name_of(number: u64) -> String {
    format!("{number:016x}")
}

fn number_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name, 16).ok().filter(|number| name_of(*number) == name)
}

fn copy_ranges(from: BorrowedFd<'_>, to: &OwnedFd, ranges: &[(u64, u64)]) -> io::Result<()> {
    for &(start, end) in ranges {
        let mut at = start;
        rustix::fs::seek(to, rustix::fs::SeekFrom::Start(start))?;
        while at < end {
            let part = at;
            let part_end = end.min(at + PART_BYTES);
            while at < part_end {
                let left = (part_end - at) as usize;
                if sendfile(to, from, Some(&mut at), left)? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            begin_writeback(to, part, part_end - part);
        }
    }
    Ok(())
}

/// Has the disk begin; a file system that cannot begins at the sync.
fn begin_writeback(file: &OwnedFd, at: u64, bytes: u64) {
    let Some(bytes) = NonZeroU64::new(bytes) else { return };
    // SAFETY: no memory is passed.
    let _is_a_hint = unsafe {
        libc::sync_file_range(
            file.as_raw_fd(),
            at as libc::off64_t,
            bytes.get() as libc::off64_t,
            libc::SYNC_FILE_RANGE_WRITE,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tier;

    fn record(ino: u64) -> DirtyRecord {
        DirtyRecord { ino, ..crate::dirty::record_for_tests() }
    }

    fn bytes_of(file: &OwnedFd) -> Vec<u8> {
        let mut bytes = vec![0; fstat(file).unwrap().st_size as usize];
        read_exact_at(file.as_fd(), &mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn the_last_whole_write_comes_back_with_its_holes_and_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let (_tier_dir, tier) = Tier::for_tests();
        let content = tier.create_copy(1).unwrap();
        write_all_at(content.as_fd(), &[7; 5000], 0).unwrap();
        write_all_at(content.as_fd(), &[9; 11], 1 << 20).unwrap();
        let size = (1 << 20) + 11;
        {
            let log = DirtyLog::open(dir.path()).unwrap();
            let whole = [(0, 5000)];
            log.write((1, &record(1)), content.as_fd(), (5000, 3), &whole).unwrap();
            let ranges = [(0, 8192), (1 << 20, size)];
            log.write((1, &record(1)), content.as_fd(), (size, -5), &ranges).unwrap();
            log.write((2, &record(2)), content.as_fd(), (5000, 3), &whole).unwrap();
            log.remove(2).unwrap();
            log.remove(2).unwrap();
            // The content has been truncated.
            let cut = log.write((1, &record(1)), content.as_fd(), (2 * size, 0), &[(0, 2 * size)]);
            assert_eq!(cut.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(DirtyLog::open(dir.path()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        std::fs::write(dir.path().join("4.new"), "half").unwrap();
        std::fs::write(dir.path().join(name_of(9)), [0; 100]).unwrap();
        let log = DirtyLog::open(dir.path()).unwrap();
        let (files, others): (Vec<_>, Vec<_>) = log.files().unwrap().into_iter().partition(Result::is_ok);
        let [Ok(logged)] = &files[..] else { panic!("{files:?}") };
        assert_eq!(others.len(), 1, "{others:?}");
        assert_eq!(log.next_number(), 10);
        assert_eq!((logged.record(), logged.bytes()), (&record(1), 8192 + 11));
        let restored = tier.create_copy(2).unwrap();
        logged.restore(&restored).unwrap();
        assert!(bytes_of(&restored) == bytes_of(&content));
        let stat = fstat(&restored).unwrap();
        assert_eq!((stat.st_mtime, stat.st_mtime_nsec), (-1, 999_999_995));
        assert!(stat.st_blocks < 100, "the hole is none any more");
    }
}
