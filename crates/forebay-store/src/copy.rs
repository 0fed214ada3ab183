//! One cached version of one file: its pages, its residency map and its label, in one tmpfs file.
//!
//! ```text
//! 0                        size   words                     path, label   header
//! [ pages, sparse           ][pad][ one 64-bit word a page ][ .......... ][ 128 bytes ]
//! ```
//! Everything about a version is in one inode, for three reasons. A client gets one descriptor, and
//! who got it may read it all. A copy of 20 KiB costs a block, not an inode, beside its data. And
//! an agent that starts anew finds the very words that clients of the old one still look at: it
//! adopts them instead of rebuilding them, so those readers need not notice. A map common to all
//! files was the alternative; it shows each user what others read, and has to be torn down when an
//! agent restarts.
//!
//! The blocks of the tail are allocated when the copy is made and never punched, so a mapping of
//! them cannot fault on a full tmpfs. Pages are written with `pwrite`, for which a full tmpfs is an
//! error and no signal.

use crate::map::Map;
use crate::tier::{HUGE_PAGE_BYTES, Tier};
use crate::word::{State, Word};
use crate::{BLOCK_BYTES, blocks_bytes};
use forebay_pfs::FileVersion;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstat, ftruncate};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

mod stream;

const HEADER_BYTES: u64 = 128;
/// An agent drops copies with another number when it starts: it unlinks them and does not punch
/// them, so their readers go on. The second layout has [`Word::mapped`]. Agents that wrote the
/// second kept pages of files that were being written, so their copies may be half old; the third
/// is laid out alike and its versions were sealed.
const MAGIC: u64 = u64::from_le_bytes(*b"fb-copy3");

/// The operator wants the whole file kept.
pub const FLAG_PINNED: u32 = 1;
/// Byte offset of the flags in the header.
const FLAGS_AT: usize = 72;
/// Byte offset of the user who has pinned the file.
const PINNED_BY_AT: usize = 76;

/// What a copy is a copy of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyIdentity {
    /// Number of the copy in this tier.
    pub copy: u64,
    /// Label of the mount.
    pub mount: String,
    /// Path at which the file was first seen.
    pub path: Vec<u8>,
    /// Owner of the file.
    pub owner_uid: u32,
    /// Version of the file.
    pub version: FileVersion,
    /// Unit of caching in bytes.
    pub page_bytes: u64,
}

/// Where things are in a copy of a file of `size` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length of the file in bytes.
    pub size: u64,
    /// Unit of caching in bytes, a power of two of at least 4 KiB.
    pub page_bytes: u64,
}

impl Geometry {
    /// Number of pages; the last may be short.
    pub fn pages(&self) -> u64 {
        self.size.div_ceil(self.page_bytes)
    }

    /// Bytes of page `page`.
    pub fn page_len(&self, page: u32) -> u64 {
        let start = u64::from(page) * self.page_bytes;
        self.size.saturating_sub(start).min(self.page_bytes)
    }

    /// Offset of the word of page 0.
    pub fn words_at(&self) -> u64 {
        self.size.next_multiple_of(8)
    }

    /// Start of the block that holds the first word: where mappings begin.
    fn map_at(&self) -> u64 {
        self.words_at() / BLOCK_BYTES * BLOCK_BYTES
    }

    fn words_end(&self) -> u64 {
        self.words_at() + self.pages() * 8
    }

    /// Bytes of memory the tail takes beside the pages: the blocks that hold anything behind the
    /// file's last byte.
    pub fn tail_bytes(&self, identity: &CopyIdentity) -> u64 {
        let end = self.words_end() + names_len(identity) + HEADER_BYTES;
        blocks_bytes(end) - self.size / BLOCK_BYTES * BLOCK_BYTES
    }
}

fn names_len(identity: &CopyIdentity) -> u64 {
    ((identity.path.len() + identity.mount.len()) as u64).next_multiple_of(8)
}

/// The agent's end of a copy.
#[derive(Debug)]
pub struct CopyFile {
    file: OwnedFd,
    map: Map,
    geometry: Geometry,
    /// Offset of the header within the map.
    header_at: usize,
}

impl CopyFile {
    /// Makes an empty copy in `tier`.
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full. Nothing is left behind.
    pub fn create(tier: &Tier, identity: &CopyIdentity) -> io::Result<Self> {
        let file = tier.create_copy(identity.copy)?;
        Self::finish(file, identity).inspect_err(|_| {
            // The name is all that could be left; a failed unlink is found and removed at the next
            // start.
            let _ = tier.remove_copy(identity.copy);
        })
    }

    /// Turns a file whose pages were written before its length was known into a copy: adds the
    /// tail. The words are all absent, whatever was written where they are now; the caller marks
    /// what it wrote.
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full.
    pub fn finish(file: OwnedFd, identity: &CopyIdentity) -> io::Result<Self> {
        let geometry = Geometry { size: identity.version.size, page_bytes: identity.page_bytes };
        let names_at = geometry.words_end();
        let header_at = names_at + names_len(identity);
        let end = header_at + HEADER_BYTES;
        ftruncate(&file, geometry.size)?;
        ftruncate(&file, end)?;
        let tail = geometry.map_at();
        fallocate(&file, FallocateFlags::empty(), tail, end - tail)?;
        let mut names = identity.path.clone();
        names.extend_from_slice(identity.mount.as_bytes());
        write_all_at(file.as_fd(), &names, names_at)?;
        write_all_at(file.as_fd(), &encode_header(identity), header_at)?;
        Self::map(file, geometry, header_at)
    }

    /// Opens the copy with number `copy` and reads its label.
    ///
    /// # Errors
    /// `InvalidData`: not a whole copy (its agent died while making it).
    pub fn open(tier: &Tier, copy: u64) -> io::Result<(CopyIdentity, Self)> {
        let file = tier.open_copy(copy, true)?;
        let len = fstat(&file)?.st_size as u64;
        let header_at = len.checked_sub(HEADER_BYTES).ok_or_else(|| damaged("too short"))?;
        let mut header = [0u8; HEADER_BYTES as usize];
        read_exact_at(file.as_fd(), &mut header, header_at)?;
        let (mut identity, path_len, mount_len) = decode_header(&header)?;
        let geometry = Geometry { size: identity.version.size, page_bytes: identity.page_bytes };
        if identity.copy != copy
            || !geometry.page_bytes.is_power_of_two()
            || geometry.page_bytes < BLOCK_BYTES
        {
            return Err(damaged("the header belongs to another copy"));
        }
        // First of all, so that no sum below can overflow.
        if geometry.size > header_at {
            return Err(damaged("it ends before the last page"));
        }
        let names_at = geometry.words_end();
        if names_at + (path_len as u64 + mount_len as u64).next_multiple_of(8) != header_at {
            return Err(damaged("the lengths do not add up"));
        }
        let mut names = vec![0; path_len + mount_len];
        read_exact_at(file.as_fd(), &mut names, names_at)?;
        let mount =
            String::from_utf8(names.split_off(path_len)).map_err(|_| damaged("the label is not text"))?;
        identity.path = names;
        identity.mount = mount;
        Ok((identity, Self::map(file, geometry, header_at)?))
    }

    fn map(file: OwnedFd, geometry: Geometry, header_at: u64) -> io::Result<Self> {
        let start = geometry.map_at();
        let len = (header_at + HEADER_BYTES - start) as usize;
        let map = Map::new(file.as_fd(), start, len, true)?;
        Ok(CopyFile { file, map, geometry, header_at: (header_at - start) as usize })
    }

    /// Where things are.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn word_of(&self, page: u32) -> &std::sync::atomic::AtomicU64 {
        assert!(u64::from(page) < self.geometry.pages(), "page {page} of {}", self.geometry.pages());
        self.map.word((self.geometry.words_at() - self.geometry.map_at()) as usize + page as usize * 8)
    }

    /// The word of `page`.
    ///
    /// # Panics
    /// There is no such page.
    pub fn word(&self, page: u32) -> Word {
        Word::unpack(self.word_of(page).load(Ordering::Acquire))
    }

    /// Replaces the word of `page` if it is still `from`; tells whether it was.
    pub fn change(&self, page: u32, from: Word, to: Word) -> bool {
        let (from, to) = (from.pack(), to.pack());
        self.word_of(page).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Withdraws `page` from readers if it is [`State::Resident`]; its memory is still there until
    /// [`CopyFile::punch`].
    pub fn withdraw(&self, page: u32) -> bool {
        let word = self.word(page);
        word.state == State::Resident && self.change(page, word, word.withdrawn(State::Leaving))
    }

    /// Notes in the word of a resident `page` whether a client may map it.
    pub fn set_mapped(&self, page: u32, mapped: bool) {
        loop {
            let word = self.word(page);
            let done = word.mapped == mapped || word.state != State::Resident;
            if done || self.change(page, word, Word { mapped, ..word }) {
                return;
            }
        }
    }

    /// Releases the memory of `count` withdrawn pages from `first` and marks them absent.
    ///
    /// # Errors
    /// What `fallocate` returns; the pages stay withdrawn.
    pub fn punch(&self, first: u32, count: u32) -> io::Result<()> {
        let start = u64::from(first) * self.geometry.page_bytes;
        let end = (start + u64::from(count) * self.geometry.page_bytes).min(self.geometry.size);
        // The words were changed before; readers that looked at them earlier will look again and
        // see it.
        fence(Ordering::SeqCst);
        self.punch_bytes(start, end - start)?;
        for page in first..first + count {
            let word = self.word(page);
            if word.state == State::Leaving {
                self.change(page, word, Word { state: State::Absent, ..word });
            }
        }
        Ok(())
    }

    /// Releases what the tmpfs has allocated for absent pages beside `count` pages from `first`,
    /// which were written: where it has huge pages, a small write may take a whole one.
    ///
    /// Each absent page is withdrawn before it is punched, as in an eviction, so that nobody fills
    /// it meanwhile.
    ///
    /// # Errors
    /// What `fallocate` returns; some pages stay withdrawn.
    pub fn trim_around(&self, first: u32, count: u32) -> io::Result<()> {
        let page_bytes = self.geometry.page_bytes;
        if page_bytes >= HUGE_PAGE_BYTES {
            return Ok(());
        }
        let pages_each = (HUGE_PAGE_BYTES / page_bytes) as u32;
        let written = first..first + count;
        let end = written.end.next_multiple_of(pages_each).min(self.geometry.pages() as u32);
        let mut claimed = 0;
        for page in first / pages_each * pages_each..end {
            let word = self.word(page);
            let is_ours = !written.contains(&page)
                && word.state == State::Absent
                && self.change(page, word, word.withdrawn(State::Leaving));
            if is_ours {
                claimed += 1;
            } else if claimed > 0 {
                self.punch(page - claimed, claimed)?;
                claimed = 0;
            }
        }
        if claimed > 0 {
            self.punch(end - claimed, claimed)?;
        }
        Ok(())
    }

    fn punch_bytes(&self, offset: u64, len: u64) -> io::Result<()> {
        release_bytes(self.file.as_fd(), offset, len)
    }

    /// Drops what a dead agent left half done: pages being filled or released become absent and
    /// lose their memory.
    ///
    /// # Errors
    /// What `fallocate` returns.
    pub fn settle(&self) -> io::Result<()> {
        for page in 0..self.geometry.pages() as u32 {
            let word = self.word(page);
            if matches!(word.state, State::Filling | State::Leaving) {
                self.change(page, word, word.withdrawn(State::Leaving));
                self.punch(page, 1)?;
            }
        }
        Ok(())
    }

    /// Stores bytes of the file at `offset` without telling readers.
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full.
    ///
    /// # Panics
    /// The range leaves the file.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        assert!(offset + data.len() as u64 <= self.geometry.size, "a write at {offset} would reach the tail");
        write_all_at(self.file.as_fd(), data, offset)
    }

    /// A descriptor of the copy to send to a client: read-only, its own file description.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn share(&self, tier: &Tier, copy: u64) -> io::Result<OwnedFd> {
        tier.open_copy(copy, false)
    }

    /// Whether anybody holds a lock on the copy, as clients do that map pages of it. Any reader can
    /// take one, so it says something only of pages that are [`Word::mapped`]. The answer is for a
    /// moment when no new locks are expected; the lock taken to find out is released at once.
    ///
    /// # Errors
    /// What `flock` returns.
    pub fn is_locked_by_others(&self) -> io::Result<bool> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(flock(&self.file, FlockOperation::Unlock).map(|()| false)?),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }

    /// Releases the memory of a page that was written but is not to be marked.
    ///
    /// # Errors
    /// What `fallocate` returns.
    pub fn discard(&self, page: u32) -> io::Result<()> {
        self.punch_bytes(u64::from(page) * self.geometry.page_bytes, self.geometry.page_len(page))
    }

    /// True if `other` is a descriptor of this very copy.
    pub fn is_same_file(&self, other: BorrowedFd<'_>) -> bool {
        match (fstat(&self.file), fstat(other)) {
            (Ok(own), Ok(other)) => (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino),
            _ => false,
        }
    }

    /// The flags ([`FLAG_PINNED`]).
    pub fn flags(&self) -> u32 {
        self.map.half(self.header_at + FLAGS_AT).load(Ordering::Relaxed)
    }

    /// The user who has pinned the file, if it is pinned; 0 in copies that tell nothing of it.
    pub fn pinned_by(&self) -> u32 {
        self.map.half(self.header_at + PINNED_BY_AT).load(Ordering::Relaxed)
    }

    /// Notes the user who pins the file.
    pub fn set_pinned_by(&self, uid: u32) {
        self.map.half(self.header_at + PINNED_BY_AT).store(uid, Ordering::Relaxed);
    }

    /// Sets or clears a flag.
    pub fn set_flag(&self, flag: u32, on: bool) {
        let flags = self.map.half(self.header_at + FLAGS_AT);
        if on {
            flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }
}

fn encode_header(identity: &CopyIdentity) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0u8; HEADER_BYTES as usize];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        header[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    let v = &identity.version;
    put(&identity.copy.to_le_bytes());
    put(&v.ino.to_le_bytes());
    put(&v.size.to_le_bytes());
    put(&v.mtime_ns.to_le_bytes());
    put(&v.ctime_ns.to_le_bytes());
    put(&identity.page_bytes.to_le_bytes());
    put(&(identity.path.len() as u64).to_le_bytes());
    put(&(identity.mount.len() as u64).to_le_bytes());
    put(&identity.owner_uid.to_le_bytes());
    assert!(at <= FLAGS_AT, "the header's fields reach into the flags");
    // Last, at the very end, so that a copy that was not finished is not taken for one.
    header[HEADER_BYTES as usize - 8..].copy_from_slice(&MAGIC.to_le_bytes());
    header
}

fn decode_header(header: &[u8; HEADER_BYTES as usize]) -> io::Result<(CopyIdentity, usize, usize)> {
    let u64_at = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    if u64_at(HEADER_BYTES as usize - 8) != MAGIC {
        return Err(damaged("no header"));
    }
    let (path_len, mount_len) = (u64_at(48) as usize, u64_at(56) as usize);
    if path_len > 1 << 16 || mount_len > 1 << 10 {
        return Err(damaged("impossible names"));
    }
    let version = FileVersion {
        ino: u64_at(8),
        size: u64_at(16),
        mtime_ns: u64_at(24) as i64,
        ctime_ns: u64_at(32) as i64,
    };
    let identity = CopyIdentity {
        copy: u64_at(0),
        mount: String::new(),
        path: Vec::new(),
        owner_uid: u64_at(64) as u32,
        version,
        page_bytes: u64_at(40),
    };
    Ok((identity, path_len, mount_len))
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a whole copy: {why}"))
}

/// Releases the memory of `len` bytes of a file of the tier from `offset` on.
///
/// # Errors
/// What `fallocate` returns.
pub fn release_bytes(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
}

pub(crate) fn write_all_at(fd: BorrowedFd<'_>, mut data: &[u8], mut offset: u64) -> io::Result<()> {
    while !data.is_empty() {
        match rustix::io::pwrite(fd, data, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                data = &data[n..];
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn read_exact_at(fd: BorrowedFd<'_>, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match rustix::io::pread(fd, &mut *buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Pages that one call copies from: 2 MiB in pages of 16 KiB.
const RUN_PAGES: usize = 128;

/// A client's end of a copy: read-only, lock-free.
#[derive(Debug)]
pub struct CopyView {
    file: OwnedFd,
    /// `None` for an empty file, which has no pages.
    map: Option<Map>,
    geometry: Geometry,
    copy: u64,
}

impl CopyView {
    /// Maps a copy received from the agent.
    ///
    /// # Errors
    /// The descriptor is not a copy of a file of this size, or `mmap` failed.
    pub fn new(file: OwnedFd, copy: u64, geometry: Geometry) -> io::Result<Self> {
        if (fstat(&file)?.st_size as u64) < geometry.words_end() + HEADER_BYTES {
            return Err(damaged("shorter than the file it stands for"));
        }
        let len = (geometry.words_end() - geometry.map_at()) as usize;
        let map = (geometry.pages() > 0).then(|| Map::new(file.as_fd(), geometry.map_at(), len, false));
        Ok(CopyView { map: map.transpose()?, file, geometry, copy })
    }

    /// Number of the copy.
    pub fn copy(&self) -> u64 {
        self.copy
    }

    /// Where things are.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The copy's file, for mapping pinned pages.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The word of `page`.
    ///
    /// # Panics
    /// There is no such page.
    pub fn word(&self, page: u32) -> Word {
        assert!(u64::from(page) < self.geometry.pages(), "page {page} of {}", self.geometry.pages());
        let at = (self.geometry.words_at() - self.geometry.map_at()) as usize + page as usize * 8;
        match &self.map {
            Some(map) => Word::unpack(map.word(at).load(Ordering::Acquire)),
            None => Word::unpack(0),
        }
    }

    /// True if the whole page can be read.
    pub fn is_resident(&self, page: u32) -> bool {
        self.word(page).covers(self.geometry.page_len(page))
    }

    /// Bytes valid from the start of `page`.
    pub fn valid_bytes(&self, page: u32) -> u64 {
        (u64::from(self.word(page).valid_blocks) * BLOCK_BYTES).min(self.geometry.page_len(page))
    }

    /// Copies bytes at `offset` into `buffer` as far as they are resident without a gap; returns
    /// how many. 0 means that the page at `offset` is missing (or that `offset` is at or behind the
    /// end).
    ///
    /// # Errors
    /// What `pread` on the tmpfs returns.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let n = self.read_run(&mut buffer[done..], offset + done as u64)?;
            if n == 0 {
                break;
            }
            done += n;
        }
        Ok(done)
    }

    /// Copies from the page at `offset` and from those behind it that are resident too, with one
    /// call: small pages would otherwise cost one each.
    fn read_run(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let Geometry { size, page_bytes } = self.geometry;
        if offset >= size {
            return Ok(0);
        }
        let first = (offset / page_bytes) as u32;
        let wanted_end = offset.saturating_add(buffer.len() as u64).min(size);
        let mut generations = [0; RUN_PAGES];
        let (mut pages, mut end) = (0, offset);
        while pages < RUN_PAGES && end < wanted_end {
            let page = first + pages as u32;
            let word = self.word(page);
            let start = u64::from(page) * page_bytes;
            let page_len = self.geometry.page_len(page);
            let valid = (u64::from(word.valid_blocks) * BLOCK_BYTES).min(page_len);
            if start + valid <= end {
                break;
            }
            generations[pages] = word.generation;
            pages += 1;
            end = (start + valid).min(wanted_end);
            if valid < page_len {
                break;
            }
        }
        if pages == 0 {
            return Ok(0);
        }
        let want = (end - offset) as usize;
        let got = loop {
            match rustix::io::pread(&self.file, &mut buffer[..want], offset) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        fence(Ordering::SeqCst);
        let is_same = |page: &usize| self.word(first + *page as u32).generation == generations[*page];
        let same_pages = (0..pages).take_while(is_same).count() as u64;
        let same_end = (u64::from(first) + same_pages) * page_bytes;
        Ok((same_end.saturating_sub(offset) as usize).min(got))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(size: u64) -> CopyIdentity {
        CopyIdentity {
            copy: 5,
            mount: "scratch".into(),
            path: b"dir/with\nnewline\xff".to_vec(),
            owner_uid: 1000,
            version: FileVersion { ino: 9, size, mtime_ns: -3, ctime_ns: 4 },
            page_bytes: 8192,
        }
    }

    fn fill(copy: &CopyFile, page: u32, byte: u8) {
        let len = copy.geometry().page_len(page);
        let word = copy.word(page);
        assert_eq!(word.state, State::Absent);
        assert!(copy.change(page, word, Word { state: State::Filling, ..word }));
        copy.write_at(&vec![byte; len as usize], u64::from(page) * 8192).unwrap();
        let blocks = len.div_ceil(BLOCK_BYTES) as u32;
        let now = copy.word(page);
        assert!(copy.change(page, now, Word { valid_blocks: blocks, state: State::Resident, ..now }));
    }

    fn view(tier: &Tier, copy: &CopyFile) -> CopyView {
        CopyView::new(copy.share(tier, 5).unwrap(), 5, copy.geometry()).unwrap()
    }

    #[test]
    fn a_reader_sees_resident_pages_and_nothing_else() {
        let (_dir, tier) = Tier::for_tests();
        for size in [1, 8, 4096, 8191, 8192, 8193, 20_000] {
            let copy = CopyFile::create(&tier, &identity(size)).unwrap();
            let reader = view(&tier, &copy);
            let mut buffer = vec![0xEE; size as usize + 10];
            assert_eq!(reader.read_at(&mut buffer, 0).unwrap(), 0);
            for page in 0..copy.geometry().pages() as u32 {
                fill(&copy, page, page as u8 + 1);
            }
            assert_eq!(reader.read_at(&mut buffer, 0).unwrap() as u64, size);
            for (at, byte) in buffer[..size as usize].iter().enumerate() {
                assert_eq!(u64::from(*byte), at as u64 / 8192 + 1, "size {size} offset {at}");
            }
            assert!(copy.withdraw(0));
            assert_eq!(reader.read_at(&mut buffer, 0).unwrap(), 0);
            copy.punch(0, 1).unwrap();
            assert_eq!(copy.word(0).state, State::Absent);
            for page in 1..copy.geometry().pages() as u32 {
                assert!(reader.is_resident(page), "punching page 0 must not touch the words of size {size}");
            }
            tier.remove_copy(5).unwrap();
        }
    }

    #[test]
    fn a_read_stops_at_the_first_gap() {
        let (_dir, tier) = Tier::for_tests();
        let copy = CopyFile::create(&tier, &identity(3 * 8192)).unwrap();
        fill(&copy, 0, 1);
        fill(&copy, 2, 3);
        let reader = view(&tier, &copy);
        let mut buffer = vec![0; 3 * 8192];
        assert_eq!(reader.read_at(&mut buffer, 100).unwrap(), 8192 - 100);
        assert_eq!(reader.read_at(&mut buffer, 8192).unwrap(), 0);
        assert_eq!(reader.read_at(&mut buffer, 2 * 8192 + 1).unwrap(), 8191);
        assert_eq!(reader.read_at(&mut buffer, 3 * 8192).unwrap(), 0);
    }

    #[test]
    fn the_front_of_a_page_can_be_read_while_its_end_is_fetched() {
        let (_dir, tier) = Tier::for_tests();
        let copy = CopyFile::create(&tier, &identity(8192)).unwrap();
        let reader = view(&tier, &copy);
        let absent = copy.word(0);
        copy.write_at(&[7; 4096], 0).unwrap();
        assert!(copy.change(0, absent, Word { valid_blocks: 1, state: State::Filling, ..absent }));
        let mut buffer = [0; 8192];
        assert_eq!(reader.read_at(&mut buffer, 0).unwrap(), 4096);
        assert_eq!(reader.read_at(&mut buffer, 4096).unwrap(), 0);
        assert!(!copy.withdraw(0), "a page being filled is not withdrawn");
    }

    #[test]
    fn a_new_agent_finds_label_flags_and_words() {
        let (_dir, tier) = Tier::for_tests();
        let copy = CopyFile::create(&tier, &identity(20_000)).unwrap();
        fill(&copy, 1, 9);
        let filling = copy.word(2);
        assert!(copy.change(2, filling, Word { state: State::Filling, valid_blocks: 1, ..filling }));
        copy.set_flag(FLAG_PINNED, true);
        copy.set_pinned_by(1000);
        let reader = view(&tier, &copy);
        drop(copy);
        let (found, adopted) = CopyFile::open(&tier, 5).unwrap();
        assert_eq!(found, identity(20_000));
        adopted.settle().unwrap();
        assert_eq!((adopted.flags(), adopted.pinned_by()), (FLAG_PINNED, 1000));
        assert_eq!(adopted.word(1).state, State::Resident);
        assert_eq!(adopted.word(2).state, State::Absent);
        assert!(adopted.withdraw(1));
        assert_eq!(reader.read_at(&mut [0; 10], 8192).unwrap(), 0, "old readers see what the new agent does");
    }

    #[test]
    fn trimming_around_a_page_leaves_what_others_have_written() {
        let (_dir, tier) = Tier::for_tests();
        let copy = CopyFile::create(&tier, &identity(5 << 20)).unwrap();
        for page in [3, 5, 300] {
            fill(&copy, page, page as u8);
        }
        let filling = copy.word(7);
        assert!(copy.change(7, filling, Word { state: State::Filling, ..filling }));
        let stray = [9; 8192];
        // As a huge page would: memory of pages that nobody has filled.
        for page in [4u64, 6, 8, 255, 256] {
            copy.write_at(&stray, page * 8192).unwrap();
        }
        let before = fstat(&copy.file).unwrap().st_blocks;
        copy.trim_around(5, 1).unwrap();
        let after = fstat(&copy.file).unwrap().st_blocks;
        assert_eq!((before - after) * 512, 4 * 8192, "all in the same 2 MiB, and page 256 is not");
        assert_eq!([3, 5, 300].map(|page| copy.word(page).state), [State::Resident; 3]);
        assert_eq!(copy.word(7).state, State::Filling);
        assert_eq!((copy.word(4).state, copy.word(4).generation), (State::Absent, 1));
        let mut bytes = [0; 8192];
        for page in [3u64, 5, 300] {
            assert_eq!(view(&tier, &copy).read_at(&mut bytes, page * 8192).unwrap(), 8192);
            assert_eq!(bytes, [page as u8; 8192]);
        }
    }

    #[test]
    fn a_copy_that_was_not_finished_is_refused() {
        let (_dir, tier) = Tier::for_tests();
        let file = tier.create_copy(5).unwrap();
        assert_eq!(CopyFile::open(&tier, 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
        ftruncate(&file, 10_000).unwrap();
        assert_eq!(CopyFile::open(&tier, 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
