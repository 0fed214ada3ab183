//! One cached version of one file, in two files on the tmpfs: the copy itself and its record.
//!
//! The *copy* is byte for byte its file, sparse where pages are absent, and has exactly its size.
//! So a mapping of it, or a kernel that reads it for a program, sees the file and nothing else. The
//! *record* (`record.rs`) holds a residency word for each page, the names and the version.
//!
//! Each version has files of its own, for two reasons. A client gets descriptors of one copy and of
//! its record, and whoever may read the file may read all that is in them. And an agent that
//! restarts finds the very words that clients of the old one still look at: it adopts them instead
//! of rebuilding them, so those readers need not notice. A map common to all files was the
//! alternative; it shows each user what others read, and has to be torn down when an agent
//! restarts.
//!
//! Either of the two without the other is not a copy, and an agent that starts removes it. The
//! record is finished last, so a copy that its agent did not finish has none. What clients write
//! through goes into copies only, so none of it is ever mistaken for a record.
//!
//! Pages are written with `pwrite`, for which a full tmpfs is an error and no signal.

use crate::full_io::{read_exact_at, write_all_at};
use crate::tier::{HUGE_PAGE_BYTES, Tier};
use crate::word::{State, Word};
use crate::{BLOCK_BYTES, blocks_bytes};
use record::{Record, damaged};
use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

mod map_locks;
mod record;
mod stream;

pub use record::{CopyIdentity, FLAG_HELD, FLAG_PINNED, Geometry};

/// The agent's end of a copy.
#[derive(Debug)]
pub struct CopyFile {
    file: OwnedFd,
    record: Record,
    geometry: Geometry,
}

impl CopyFile {
    /// Makes an empty copy in `tier`.
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full. Nothing is left behind.
    pub fn create(tier: &Tier, identity: &CopyIdentity) -> io::Result<Self> {
        let file = tier.create_copy(identity.copy)?;
        Self::finish(tier, file, identity).inspect_err(|_| {
            // The names are all that could be left; a failed unlink is found and removed at the
            // next start.
            let _ = tier.remove_copy(identity.copy);
        })
    }

    /// Makes a copy of `file` ([`Tier::create_copy`]), whose pages may have been written before its
    /// length was known: gives it its length and a record. The words are all absent; the caller
    /// marks what it wrote.
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full. The caller removes the copy.
    pub fn finish(tier: &Tier, file: OwnedFd, identity: &CopyIdentity) -> io::Result<Self> {
        ftruncate(&file, identity.version.size)?;
        let record = Record::create(tier, identity)?;
        Ok(CopyFile { file, record, geometry: identity.geometry() })
    }

    /// Opens the copy with number `copy` and reads its record.
    ///
    /// # Errors
    /// `InvalidData`: not a whole copy (its agent died while making it).
    pub fn open(tier: &Tier, copy: u64) -> io::Result<(CopyIdentity, Self)> {
        let (identity, record) = Record::open(tier, copy)?;
        let (file, geometry) = (tier.open_copy(copy, true)?, identity.geometry());
        if fstat(&file)?.st_size as u64 != geometry.size {
            return Err(damaged("it has not the size of its file"));
        }
        Ok((identity, CopyFile { file, record, geometry }))
    }

    /// The pages of its file.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The word of `page`.
    ///
    /// # Panics
    /// There is no such page.
    pub fn word(&self, page: u32) -> Word {
        Word::unpack(self.record.word(page).load(Ordering::Acquire))
    }

    /// Replaces the word of `page` if it is still `from`; returns whether it was.
    pub fn change(&self, page: u32, from: Word, to: Word) -> bool {
        let (from, to) = (from.pack(), to.pack());
        self.record.word(page).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
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

    /// Releases what the tmpfs has allocated for absent pages around `count` pages from `first`,
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
        // The kernel keeps the memory of a block that is released in part.
        release_bytes(self.file.as_fd(), offset, blocks_bytes(len))
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

    /// The bytes of a withdrawn page, before its memory is released.
    ///
    /// # Errors
    /// What `pread` on the tmpfs returns.
    pub fn read_withdrawn(&self, page: u32, buffer: &mut [u8]) -> io::Result<()> {
        read_exact_at(self.file.as_fd(), buffer, u64::from(page) * self.geometry.page_bytes)
    }

    /// Stores bytes of the file at `offset` without a notice to readers.
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full.
    ///
    /// # Panics
    /// The range leaves the file.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        assert!(offset + data.len() as u64 <= self.geometry.size, "a write at {offset} would leave the file");
        write_all_at(self.file.as_fd(), data, offset)
    }

    /// Descriptors of the copy and of its record to send to a client: read-only, their own file
    /// descriptions.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn share(&self, tier: &Tier, copy: u64) -> io::Result<[OwnedFd; 2]> {
        Ok([tier.open_copy(copy, false)?, tier.open_record(copy, false)?])
    }

    /// A descriptor of the copy for a program that maps these pages: read-only, and with a lock on
    /// them that lasts as long as anybody has the descriptor or a mapping made of it.
    ///
    /// # Errors
    /// No descriptors or locks left.
    pub fn share_to_map(&self, tier: &Tier, copy: u64, pages: Range<u32>) -> io::Result<OwnedFd> {
        let shared = tier.open_copy(copy, false)?;
        map_locks::lock(shared.as_fd(), &self.bytes_of(pages))?;
        Ok(shared)
    }

    /// Runs of those `pages` that nobody maps, in no particular order. Any reader can lock a page,
    /// so a lock means something only for pages that are [`Word::mapped`].
    ///
    /// # Errors
    /// What `fcntl` returns.
    pub fn unmapped(&self, pages: Range<u32>) -> io::Result<Vec<Range<u32>>> {
        let page_bytes = self.geometry.page_bytes;
        let free = map_locks::unlocked(self.file.as_fd(), self.bytes_of(pages))?;
        // A lock of part of a page is a stranger's, and holds the page.
        let whole =
            |bytes: Range<u64>| (bytes.start.div_ceil(page_bytes) as u32)..((bytes.end / page_bytes) as u32);
        Ok(free.into_iter().map(whole).filter(|run| !run.is_empty()).collect())
    }

    fn bytes_of(&self, pages: Range<u32>) -> Range<u64> {
        let page_bytes = self.geometry.page_bytes;
        u64::from(pages.start) * page_bytes..u64::from(pages.end) * page_bytes
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

    /// The flags ([`FLAG_PINNED`], [`FLAG_HELD`]).
    pub fn flags(&self) -> u32 {
        self.record.flags().load(Ordering::Relaxed)
    }

    /// The user who has pinned the file, if it is pinned; 0 in copies that say nothing of it.
    pub fn pinned_by(&self) -> u32 {
        self.record.pinned_by().load(Ordering::Relaxed)
    }

    /// Notes the user who pins the file.
    pub fn set_pinned_by(&self, uid: u32) {
        self.record.pinned_by().store(uid, Ordering::Relaxed);
    }

    /// Sets or clears a flag.
    pub fn set_flag(&self, flag: u32, on: bool) {
        let flags = self.record.flags();
        if on {
            flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }
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

/// Pages that one call copies from: 2 MiB in pages of 16 KiB.
const RUN_PAGES: usize = 128;

/// A client's end of a copy: read-only, lock-free.
#[derive(Debug)]
pub struct CopyView {
    file: OwnedFd,
    record: Record,
    geometry: Geometry,
    copy: u64,
}

impl CopyView {
    /// Takes a copy and its record, as received from the agent ([`CopyFile::share`]). The record is
    /// mapped and closed.
    ///
    /// # Errors
    /// The descriptors are not a copy of a file of this size and its record, or `mmap` failed.
    pub fn new([file, record]: [OwnedFd; 2], copy: u64, geometry: Geometry) -> io::Result<Self> {
        if fstat(&file)?.st_size as u64 != geometry.size {
            return Err(damaged("it has not the size of its file"));
        }
        Ok(CopyView { file, record: Record::received(&record, geometry)?, geometry, copy })
    }

    /// Number of the copy.
    pub fn copy(&self) -> u64 {
        self.copy
    }

    /// The pages of its file.
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
        Word::unpack(self.record.word(page).load(Ordering::Acquire))
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
    use crate::map::Map;
    use forebay_pfs::FileVersion;

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

    /// What a program sees that maps all blocks of a file of `size` bytes.
    fn mapping(file: &OwnedFd, size: u64) -> Vec<u8> {
        if size == 0 {
            return Vec::new();
        }
        let map = Map::new(file.as_fd(), 0, blocks_bytes(size) as usize, false).unwrap();
        let words = (0..map.len()).step_by(8).map(|at| map.word(at).load(Ordering::Relaxed));
        words.flat_map(u64::to_ne_bytes).collect()
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
                assert!(reader.is_resident(page), "punching page 0 must not touch the others of size {size}");
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
    fn a_whole_copy_is_byte_for_byte_its_file() {
        let (_dir, tier) = Tier::for_tests();
        for size in [0, 1, 4095, 4096, 8192, 8193, 20_000] {
            let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8 + 1).collect();
            let copy = CopyFile::create(&tier, &identity(size)).unwrap();
            for page in 0..copy.geometry().pages() as u32 {
                fill(&copy, page, 0xEE);
            }
            copy.write_at(&content, 0).unwrap();
            let [shared, record] = copy.share(&tier, 5).unwrap();
            assert_eq!(fstat(&shared).unwrap().st_size as u64, size);
            let mut read = vec![0; size as usize + 4096];
            assert_eq!(rustix::io::pread(&shared, &mut read[..], 0), Ok(size as usize));
            assert_eq!(read[..size as usize], content);
            for fd in [&shared, &record] {
                assert_eq!(rustix::io::pwrite(fd, b"x", 0), Err(Errno::BADF), "a client may only read");
            }
            let mut mapped = content;
            mapped.resize(blocks_bytes(size) as usize, 0);
            assert_eq!(mapping(&shared, size), mapped, "the last block of size {size} ends with zeros");
            tier.remove_copy(5).unwrap();
        }
    }

    #[test]
    fn a_page_is_locked_as_long_as_a_mapping_of_it_lives() {
        let (_dir, tier) = Tier::for_tests();
        let copy = CopyFile::create(&tier, &identity(10 * 8192 - 1)).unwrap();
        let unmapped = || {
            let mut pages: Vec<u32> = copy.unmapped(0..10).unwrap().into_iter().flatten().collect();
            pages.sort_unstable();
            pages
        };
        let map = |pages: Range<u32>| {
            let shared = copy.share_to_map(&tier, 5, pages).unwrap();
            Map::new(shared.as_fd(), 0, 4096, false).unwrap()
        };
        assert_eq!(unmapped().len(), 10);
        let (front, middle, again) = (map(0..2), map(4..6), map(5..8));
        assert_eq!(unmapped(), [2, 3, 8, 9]);
        drop(middle);
        assert_eq!(unmapped(), [2, 3, 4, 8, 9]);
        drop((front, again));
        assert_eq!(unmapped().len(), 10);
    }

    #[test]
    fn what_was_written_through_behind_the_end_is_no_part_of_the_copy() {
        let (_dir, tier) = Tier::for_tests();
        for size in [0, 100, 4096] {
            let file = tier.create_copy(5).unwrap();
            write_all_at(file.as_fd(), &[0xEE; 10_000], 0).unwrap();
            let copy = CopyFile::finish(&tier, file, &identity(size)).unwrap();
            assert!((0..copy.geometry().pages() as u32).all(|page| copy.word(page) == Word::ABSENT));
            let [shared, _] = copy.share(&tier, 5).unwrap();
            let stat = fstat(&shared).unwrap();
            assert_eq!((stat.st_size as u64, stat.st_blocks as u64 * 512), (size, blocks_bytes(size)));
            let mut mapped = vec![0xEE; size as usize];
            mapped.resize(blocks_bytes(size) as usize, 0);
            assert_eq!(mapping(&shared, size), mapped);
            tier.remove_copy(5).unwrap();
        }
    }

    #[test]
    fn the_last_block_is_released_with_its_page_and_the_record_never() {
        let (_dir, tier) = Tier::for_tests();
        let copy = CopyFile::create(&tier, &identity(20_000)).unwrap();
        let blocks = |file: &OwnedFd| fstat(file).unwrap().st_blocks as u64 * 512;
        let [shared, record] = copy.share(&tier, 5).unwrap();
        let allocated = blocks(&record);
        assert_eq!((blocks(&shared), allocated), (0, identity(20_000).record_bytes()));
        (0..3).for_each(|page| fill(&copy, page, 1));
        assert_eq!(blocks(&shared), blocks_bytes(20_000));
        for page in 0..3 {
            assert!(copy.withdraw(page));
            copy.punch(page, 1).unwrap();
        }
        copy.write_at(&[1; 3_616], 16_384).unwrap();
        copy.discard(2).unwrap();
        assert_eq!((blocks(&shared), blocks(&record)), (0, allocated));
    }

    /// Whatever is there when an agent is killed while it makes or removes a copy.
    #[test]
    fn a_copy_that_was_not_finished_is_refused() {
        let (dir, tier) = Tier::for_tests();
        let record = dir.join("tier/copies/0000000000000005.record");
        let opened = || CopyFile::open(&tier, 5).map(|_| ()).map_err(|e| e.kind());
        let refused = Err(io::ErrorKind::InvalidData);

        let file = tier.create_copy(5).unwrap();
        assert_eq!(opened(), Err(io::ErrorKind::NotFound), "no record yet");
        assert_eq!(tier.list_copies().unwrap(), [0; 0]);
        assert_eq!(fstat(&file).unwrap().st_nlink, 0, "it is swept out");

        drop(CopyFile::create(&tier, &identity(20_000)).unwrap());
        assert_eq!((opened(), tier.list_copies().unwrap()), (Ok(()), vec![5]));
        let whole = std::fs::read(&record).unwrap();
        let mut headless = whole.clone();
        headless[..128].fill(0);
        for unfinished in [&[][..], &whole[..127], &whole[..whole.len() - 1], &headless] {
            std::fs::write(&record, unfinished).unwrap();
            assert_eq!(opened(), refused, "{} bytes of {}", unfinished.len(), whole.len());
        }
        std::fs::write(&record, &whole).unwrap();
        assert_eq!(opened(), Ok(()));
        for size in [0, 19_999, 20_001] {
            ftruncate(tier.open_copy(5, true).unwrap(), size).unwrap();
            assert_eq!(opened(), refused, "a copy of {size} bytes");
        }
        std::fs::remove_file(dir.join("tier/copies/0000000000000005")).unwrap();
        assert_eq!(opened(), Err(io::ErrorKind::NotFound), "a record alone");
        assert_eq!(tier.list_copies().unwrap(), [0; 0]);
        assert!(!record.exists(), "it is swept out");
    }

    #[test]
    fn a_client_refuses_what_is_not_a_copy_and_its_record() {
        let (_dir, tier) = Tier::for_tests();
        let copy = CopyFile::create(&tier, &identity(20_000)).unwrap();
        let shared = || copy.share(&tier, 5).unwrap();
        let view = |fds, size| CopyView::new(fds, 5, Geometry { size, page_bytes: 8192 });
        assert!(view(shared(), 20_000).is_ok());
        assert!(view(shared(), 19_999).is_err());
        let [file, record] = shared();
        assert!(view([record, file], 20_000).is_err());
        ftruncate(tier.open_record(5, true).unwrap(), 128 + 2 * 8).unwrap();
        assert!(view(shared(), 20_000).is_err(), "a read of the last word would end the program");
    }
}
