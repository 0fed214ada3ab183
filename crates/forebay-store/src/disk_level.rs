//! Pages of cached versions on a disk of the node, below the memory.
//!
//! A *segment* is a file that is written from its front to its end, and then only read and removed.
//! Before each page is a block with its name and the checksum of its bytes; the block has a
//! checksum too. Nothing is synced, and nothing is written in place: what a crash has truncated, or
//! a disk has damaged, is not a page. Which page is where, and which segment goes, is decided
//! elsewhere (`forebay_policy::disk_level`).
//!
//! Reads and writes bypass the kernel's page cache, where the file system can: pages would be in
//! memory twice, and the memory is compute's.

use crate::full_io::{read_exact_at, write_all_at};
use crate::state::lock_dir;
use crate::{BLOCK_BYTES, blocks_bytes};
use forebay_pfs::FileVersion;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock, fstat, openat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// The first bytes of the block before a page.
const MAGIC: &[u8; 8] = b"FBDISK01";

/// Bytes before the block's text: magic, its length, its checksum.
const HEAD_BYTES: usize = 24;

/// A page of a version of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PageName {
    /// Label of the mount.
    pub mount: String,
    /// The version.
    pub version: FileVersion,
    /// Length of its pages but the last.
    pub page_bytes: u64,
    /// The page's number.
    pub page: u32,
}

/// What the block before a page says.
#[derive(Serialize, Deserialize)]
struct Header {
    name: PageName,
    len: u64,
    checksum: u64,
}

/// Bytes that a page of `len` bytes takes in a segment.
pub fn record_bytes(len: u64) -> u64 {
    BLOCK_BYTES + blocks_bytes(len)
}

/// Memory that a disk can read into and write from without the page cache.
#[derive(Debug, Default)]
pub struct Aligned {
    bytes: Vec<u8>,
}

impl Aligned {
    /// The first `len` bytes, whatever they are.
    pub fn slice(&mut self, len: usize) -> &mut [u8] {
        let align = BLOCK_BYTES as usize;
        if self.bytes.len() < len + align {
            self.bytes = vec![0; len + align];
        }
        let start = self.bytes.as_ptr().align_offset(align);
        &mut self.bytes[start..start + len]
    }
}

/// The segments of one directory.
#[derive(Debug)]
pub struct Segments {
    dir: OwnedFd,
    /// Segments that were opened.
    open: Mutex<BTreeMap<u32, Arc<OwnedFd>>>,
}

/// Holds, in an agent's state directory, the directory of its disk level.
const NOTE: &str = "disk";

/// Notes that an agent with this state directory uses the segments in `path`, or no longer any.
///
/// # Errors
/// What writing the note returns.
pub fn note(state_dir: &Path, path: Option<&Path>) -> io::Result<()> {
    match path {
        Some(path) => std::fs::write(state_dir.join(NOTE), path.as_os_str().as_bytes()),
        None => match std::fs::remove_file(state_dir.join(NOTE)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        },
    }
}

/// Removes the segments that the last agent with this state directory has used.
///
/// # Errors
/// An agent uses them, or they cannot be removed.
pub fn drop_noted(state_dir: &Path) -> io::Result<()> {
    let path = match std::fs::read(state_dir.join(NOTE)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        path => PathBuf::from(OsString::from_vec(path?)),
    };
    if path.is_dir() {
        let segments = Segments::open(&path)?;
        segments.numbers()?.into_iter().try_for_each(|number| segments.remove(number))?;
    }
    note(state_dir, None)
}

impl Segments {
    /// Opens the directory, or makes it.
    ///
    /// # Errors
    /// Another agent uses it (`WouldBlock`), or it cannot be used.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Segments { dir: lock_dir(path)?, open: Mutex::default() })
    }

    /// Lets another agent have the directory, for a process about to end.
    pub fn release(&self) {
        // If it fails the lock goes with the process.
        let _ = flock(&self.dir, FlockOperation::Unlock);
    }

    /// Numbers of the existing segments, oldest first.
    ///
    /// # Errors
    /// What reading the directory returns.
    pub fn numbers(&self) -> io::Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok().and_then(|name| name.strip_prefix("segment-"));
            numbers.extend(name.and_then(|number| number.parse::<u32>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The segment's file; only a writer makes one: a reader may come after it was removed.
    fn file(&self, segment: u32, is_made: bool) -> io::Result<Arc<OwnedFd>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&segment) {
            return Ok(file.clone());
        }
        let made = if is_made { OFlags::CREATE } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | made;
        let open_with = |flags| openat(&self.dir, name_of(segment), flags, Mode::from(0o600));
        let file = match open_with(flags | OFlags::DIRECT) {
            Err(Errno::INVAL) => open_with(flags)?,
            file => file?,
        };
        let file = Arc::new(file);
        open.insert(segment, file.clone());
        Ok(file)
    }

    /// Writes a page at `offset`.
    ///
    /// # Errors
    /// What the disk returns.
    pub fn write(
        &self,
        (segment, offset): (u32, u64),
        name: PageName,
        data: &[u8],
        buffer: &mut Aligned,
    ) -> io::Result<()> {
        let header = Header { name, len: data.len() as u64, checksum: xxh3_64(data) };
        let text = postcard::to_stdvec(&header).map_err(io::Error::other)?;
        let record = buffer.slice(record_bytes(header.len) as usize);
        let (block, bytes) = record.split_at_mut(BLOCK_BYTES as usize);
        if HEAD_BYTES + text.len() > block.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        block.fill(0);
        block[..8].copy_from_slice(MAGIC);
        block[8..16].copy_from_slice(&(text.len() as u64).to_le_bytes());
        block[16..24].copy_from_slice(&xxh3_64(&text).to_le_bytes());
        block[HEAD_BYTES..HEAD_BYTES + text.len()].copy_from_slice(&text);
        bytes[..data.len()].copy_from_slice(data);
        bytes[data.len()..].fill(0);
        write_all_at(self.file(segment, true)?.as_fd(), record, offset)
    }

    /// Reads the page at `offset`, which must be `name` with `len` bytes.
    ///
    /// # Errors
    /// `InvalidData`: it is not, or is damaged. What the disk returns.
    pub fn read<'a>(
        &self,
        (segment, offset): (u32, u64),
        (name, len): (&PageName, u64),
        buffer: &'a mut Aligned,
    ) -> io::Result<&'a [u8]> {
        let record = buffer.slice(record_bytes(len) as usize);
        read_exact_at(self.file(segment, false)?.as_fd(), record, offset)?;
        let (block, bytes) = record.split_at(BLOCK_BYTES as usize);
        let bytes = &bytes[..len as usize];
        let is_it = |header: &Header| header.name == *name && header.len == len;
        match header_in(block).filter(is_it) {
            Some(header) if header.checksum == xxh3_64(bytes) => Ok(bytes),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The pages of a segment from its front on, with offset and length, as far as they were
    /// written.
    ///
    /// # Errors
    /// What the disk returns.
    pub fn pages(&self, segment: u32, mut found: impl FnMut(PageName, u64, u64)) -> io::Result<()> {
        let file = self.file(segment, false)?;
        let size = fstat(&file)?.st_size as u64;
        let (mut buffer, mut offset) = (Aligned::default(), 0);
        while offset + BLOCK_BYTES <= size {
            let block = buffer.slice(BLOCK_BYTES as usize);
            read_exact_at(file.as_fd(), block, offset)?;
            let Some(header) = header_in(block) else { break };
            let end = offset.saturating_add(BLOCK_BYTES).saturating_add(blocks_bytes(header.len.min(size)));
            if end > size {
                break;
            }
            found(header.name, offset, header.len);
            offset = end;
        }
        Ok(())
    }

    /// Bytes of a segment.
    ///
    /// # Errors
    /// What the disk returns.
    pub fn bytes(&self, segment: u32) -> io::Result<u64> {
        Ok(fstat(&self.file(segment, false)?)?.st_size as u64)
    }

    /// Removes a segment.
    ///
    /// # Errors
    /// What `unlink` returns.
    pub fn remove(&self, segment: u32) -> io::Result<()> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&segment);
        match unlinkat(&self.dir, name_of(segment), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

fn name_of(segment: u32) -> String {
    format!("segment-{segment:010}")
}

fn header_in(block: &[u8]) -> Option<Header> {
    let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap_or_default());
    let end = usize::try_from(number(8)).ok()?.checked_add(HEAD_BYTES)?;
    let text = block.get(HEAD_BYTES..end)?;
    let is_whole = &block[..8] == MAGIC && xxh3_64(text) == number(16);
    is_whole.then(|| postcard::from_bytes(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn name(page: u32) -> PageName {
        let version = FileVersion { ino: 7, size: 1 << 30, mtime_ns: 1, ctime_ns: 2 };
        PageName { mount: "pfs".into(), version, page_bytes: 1 << 16, page }
    }

    /// Three pages of one segment, and where the second one is.
    fn written(dir: &Path) -> (Segments, Vec<(PageName, Vec<u8>, u64)>) {
        let segments = Segments::open(dir).unwrap();
        let mut buffer = Aligned::default();
        let mut offset = 0;
        let pages = [9000, 65536, 1].into_iter().enumerate().map(|(page, len)| {
            let data: Vec<u8> = (0..len).map(|i| (i * 7 + page) as u8).collect();
            segments.write((3, offset), name(page as u32), &data, &mut buffer).unwrap();
            let at = offset;
            offset += record_bytes(len as u64);
            (name(page as u32), data, at)
        });
        let pages = pages.collect();
        (segments, pages)
    }

    #[test]
    fn pages_are_read_as_they_were_written_also_by_the_next_agent() {
        let dir = tempfile::tempdir().unwrap();
        let (segments, pages) = written(dir.path());
        assert_eq!(Segments::open(dir.path()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(segments);
        let segments = Segments::open(dir.path()).unwrap();
        assert_eq!(segments.numbers().unwrap(), [3]);
        let mut buffer = Aligned::default();
        for (name, data, at) in &pages {
            let read = segments.read((3, *at), (name, data.len() as u64), &mut buffer).unwrap();
            assert!(read == data.as_slice());
        }
        let mut found = Vec::new();
        segments.pages(3, |name, offset, len| found.push((name.page, offset, len))).unwrap();
        let expected: Vec<_> = pages.iter().map(|(n, data, at)| (n.page, *at, data.len() as u64)).collect();
        assert_eq!(found, expected);
        segments.remove(3).unwrap();
        let (name, data, at) = &pages[0];
        let gone = segments.read((3, *at), (name, data.len() as u64), &mut buffer).unwrap_err();
        assert_eq!((gone.kind(), segments.numbers().unwrap().len()), (io::ErrorKind::NotFound, 0));
    }

    #[test]
    fn what_is_damaged_cut_off_or_another_page_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (segments, pages) = written(dir.path());
        let mut buffer = Aligned::default();
        let mut refused = |at: u64, name: &PageName, len: usize| {
            let read = segments.read((3, at), (name, len as u64), &mut buffer);
            read.map(<[u8]>::len).unwrap_err().kind()
        };
        let (second, third) = (&pages[1], &pages[2]);
        assert_eq!(refused(second.2, &third.0, second.1.len()), io::ErrorKind::InvalidData);
        assert_eq!(refused(second.2, &second.0, 9000), io::ErrorKind::InvalidData);
        let newer = PageName { version: FileVersion { ctime_ns: 3, ..second.0.version }, ..second.0.clone() };
        assert_eq!(refused(second.2, &newer, second.1.len()), io::ErrorKind::InvalidData);
        let file = std::fs::File::options().write(true).open(dir.path().join("segment-0000000003")).unwrap();
        file.write_all_at(b"?", second.2 + BLOCK_BYTES + 77).unwrap();
        assert_eq!(refused(second.2, &second.0, second.1.len()), io::ErrorKind::InvalidData);
        // The block before the second page: nothing behind it is found.
        file.write_all_at(b"?", second.2 + 20).unwrap();
        let count = || {
            let mut count = 0;
            segments.pages(3, |_, _, _| count += 1).unwrap();
            count
        };
        assert_eq!(count(), 1);
        file.set_len(pages[0].2 + BLOCK_BYTES).unwrap();
        assert_eq!(count(), 0, "its bytes are cut off");
        assert_eq!(refused(pages[0].2, &pages[0].0, 9000), io::ErrorKind::UnexpectedEof);
    }
}
