//! The record of a copy: its residency words, names and version, in a file next to it.
//!
//! ```text
//! 0          128
//! [ header ][ one 64-bit word per page ][ path, label ]
//! ```
//! The blocks are allocated when the record is made and never punched, so a mapping of them cannot
//! fault on a full tmpfs. The header is written last: without one a file is not a record.
//!
//! Nobody keeps a descriptor of a record: the mapping is enough.

use crate::full_io::{read_exact_at, write_all_at};
use crate::map::Map;
use crate::tier::Tier;
use crate::word::VALID_BLOCKS_MAX;
use crate::{BLOCK_BYTES, blocks_bytes};
use forebay_pfs::FileVersion;
use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

const HEADER_BYTES: u64 = 128;
/// An agent drops copies with another number when it starts: it unlinks them and does not punch
/// them, so their readers continue. The second layout has [`crate::Word::mapped`]. Agents that
/// wrote the second kept pages of files that were being written, so their copies may be half old;
/// the third is laid out alike and its versions were sealed. Up to the third, all of this followed
/// the pages in the copy itself.
const MAGIC: u64 = u64::from_le_bytes(*b"fb-copy4");

/// The operator wants the whole file kept.
pub const FLAG_PINNED: u32 = 1;
/// It is pinned for a checkpoint, until that is released.
pub const FLAG_HELD: u32 = 2;
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

impl CopyIdentity {
    /// The pages of the copy.
    pub fn geometry(&self) -> Geometry {
        Geometry { size: self.version.size, page_bytes: self.page_bytes }
    }

    /// Bytes of memory that the record takes.
    pub fn record_bytes(&self) -> u64 {
        blocks_bytes(len(self))
    }
}

/// The pages of a file of `size` bytes.
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
}

/// Offset of what follows the words.
fn words_end(geometry: Geometry) -> u64 {
    HEADER_BYTES + geometry.pages() * 8
}

/// Length of the record of `identity` in bytes.
fn len(identity: &CopyIdentity) -> u64 {
    words_end(identity.geometry()) + (identity.path.len() + identity.mount.len()) as u64
}

/// A mapped record.
#[derive(Debug)]
pub(super) struct Record {
    map: Map,
    pages: u64,
}

impl Record {
    /// Makes the record of a new copy; all pages are absent.
    ///
    /// # Errors
    /// `ENOSPC`: the tmpfs is full.
    pub(super) fn create(tier: &Tier, identity: &CopyIdentity) -> io::Result<Self> {
        let file = tier.create_record(identity.copy)?;
        let (geometry, len) = (identity.geometry(), len(identity));
        ftruncate(&file, len)?;
        fallocate(&file, FallocateFlags::empty(), 0, len)?;
        let mut names = identity.path.clone();
        names.extend_from_slice(identity.mount.as_bytes());
        write_all_at(file.as_fd(), &names, words_end(geometry))?;
        write_all_at(file.as_fd(), &encode_header(identity), 0)?;
        Self::map(&file, geometry, true)
    }

    /// Opens the record of copy `copy`.
    ///
    /// # Errors
    /// `InvalidData`: not a whole record.
    pub(super) fn open(tier: &Tier, copy: u64) -> io::Result<(CopyIdentity, Self)> {
        let file = tier.open_record(copy, true)?;
        let len = fstat(&file)?.st_size as u64;
        if len < HEADER_BYTES {
            return Err(damaged("no header"));
        }
        let mut header = [0u8; HEADER_BYTES as usize];
        read_exact_at(file.as_fd(), &mut header, 0)?;
        let (mut identity, path_len, mount_len) = decode_header(&header)?;
        let page_bytes = identity.page_bytes;
        if identity.copy != copy
            || !page_bytes.is_power_of_two()
            || page_bytes < BLOCK_BYTES
            || page_bytes / BLOCK_BYTES > VALID_BLOCKS_MAX.into()
        {
            return Err(damaged("the header belongs to another copy"));
        }
        let names_at = words_end(identity.geometry());
        if names_at + (path_len + mount_len) as u64 != len {
            return Err(damaged("the lengths do not add up"));
        }
        let mut names = vec![0; path_len + mount_len];
        read_exact_at(file.as_fd(), &mut names, names_at)?;
        let mount =
            String::from_utf8(names.split_off(path_len)).map_err(|_| damaged("the label is not text"))?;
        identity.path = names;
        identity.mount = mount;
        let record = Self::map(&file, identity.geometry(), true)?;
        Ok((identity, record))
    }

    /// Maps a record received from the agent, for reading.
    ///
    /// # Errors
    /// It is not a record of this many pages, or `mmap` failed.
    pub(super) fn received(file: &OwnedFd, geometry: Geometry) -> io::Result<Self> {
        // Reads of a mapping behind the end of its file would end the program.
        if (fstat(file)?.st_size as u64) < words_end(geometry) {
            return Err(damaged("its record is too short"));
        }
        Self::map(file, geometry, false)
    }

    fn map(file: &OwnedFd, geometry: Geometry, writable: bool) -> io::Result<Self> {
        let map = Map::new(file.as_fd(), 0, words_end(geometry) as usize, writable)?;
        Ok(Record { map, pages: geometry.pages() })
    }

    /// The word of `page`.
    ///
    /// # Panics
    /// There is no such page.
    pub(super) fn word(&self, page: u32) -> &AtomicU64 {
        assert!(u64::from(page) < self.pages, "page {page} of {}", self.pages);
        self.map.word(HEADER_BYTES as usize + page as usize * 8)
    }

    /// The flags ([`FLAG_PINNED`]).
    pub(super) fn flags(&self) -> &AtomicU32 {
        self.map.half(FLAGS_AT)
    }

    /// The user who has pinned the file.
    pub(super) fn pinned_by(&self) -> &AtomicU32 {
        self.map.half(PINNED_BY_AT)
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
    // At the very end, so that a header that was not finished is not mistaken for one.
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

pub(super) fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a whole copy: {why}"))
}
