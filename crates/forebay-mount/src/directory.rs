//! Lists a directory: entries of the PFS in the kernel's format.
//!
//! The offsets are those of the PFS, so a program may store one and seek to it later, even after
//! the directory has changed.

use crate::abi::{Dirent, bytes_of};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of a directory that are read at a time.
const READ_BYTES: usize = 32 << 10;

/// Bytes before the name in an entry of `getdents64`: inode, offset, length, type.
const ENTRY_HEADER_BYTES: usize = 19;

/// Entries that were read from a directory and not yet listed.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    at: usize,
    /// The offset of the first of them.
    offset: i64,
}

/// An entry.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its inode.
    pub ino: u64,
    /// Offset of the next entry.
    pub next: i64,
    /// Type, as in `d_type`.
    pub kind: u8,
    /// Name.
    pub name: &'a [u8],
}

impl Stream {
    /// Passes the entries from `offset` on to `take`, until it refuses one or no more are left.
    ///
    /// # Errors
    /// What the PFS returns, for the first entry; and what `take` returns.
    pub fn list(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: i64,
        mut take: impl FnMut(Entry<'_>) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        if offset != self.offset || offset == 0 {
            rustix::fs::seek(fd, SeekFrom::Start(offset as u64))?;
            (self.offset, self.at) = (offset, 0);
            self.bytes.clear();
        }
        let mut listed = 0;
        loop {
            let entry = match self.peek(fd) {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(e) if listed == 0 => return Err(e),
                // The next request returns the error again.
                Err(_) => break,
            };
            let (next, len) = (entry.next, entry.name.len());
            if !take(entry)? {
                break;
            }
            listed += 1;
            self.offset = next;
            self.at += (ENTRY_HEADER_BYTES + len + 1).next_multiple_of(8);
        }
        if self.at >= self.bytes.len() {
            self.bytes = Vec::new();
            self.at = 0;
        }
        Ok(())
    }

    fn peek(&mut self, fd: BorrowedFd<'_>) -> Result<Option<Entry<'_>>, Errno> {
        if self.at >= self.bytes.len() {
            self.bytes.resize(READ_BYTES, 0);
            self.at = 0;
            let room = self.bytes.as_mut_ptr();
            // SAFETY: there is room for this many bytes.
            let n = unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), room, READ_BYTES) };
            self.bytes.truncate(usize::try_from(n).unwrap_or(0));
            if n < 0 {
                let e = std::io::Error::last_os_error().raw_os_error();
                return Err(Errno::from_raw_os_error(e.unwrap_or(libc::EIO)));
            }
        }
        let bytes = &self.bytes[self.at..];
        if bytes.is_empty() {
            return Ok(None);
        }
        parse(bytes).map(Some).ok_or(Errno::IO)
    }
}

fn parse(bytes: &[u8]) -> Option<Entry<'_>> {
    let number = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_ne_bytes);
    let name = bytes.get(ENTRY_HEADER_BYTES..)?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some(Entry {
        ino: number(0)?,
        next: number(8)? as i64,
        kind: *bytes.get(ENTRY_HEADER_BYTES - 1)?,
        name: &name[..end],
    })
}

/// Appends an entry in the kernel's format to `out`, which may hold `room` bytes. False if the
/// entry does not fit.
pub fn append(out: &mut Vec<u8>, room: usize, before: &[u8], entry: Entry<'_>) -> bool {
    let len = (before.len() + size_of::<Dirent>() + entry.name.len()).next_multiple_of(8);
    if out.len() + len > room {
        return false;
    }
    let header = Dirent {
        ino: entry.ino,
        off: entry.next as u64,
        namelen: entry.name.len() as u32,
        kind: u32::from(entry.kind),
    };
    let end = out.len() + len;
    out.extend_from_slice(before);
    out.extend_from_slice(bytes_of(&header));
    out.extend_from_slice(entry.name);
    out.resize(end, 0);
    true
}
