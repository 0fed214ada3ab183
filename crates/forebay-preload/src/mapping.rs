//! Mappings of whole files of the PFS, made of the tier's copies.
//!
//! A copy is byte for byte its file, so the program gets a mapping of the copy's descriptor, with
//! all else as it wanted. The client core pins all pages of the copy, whatever part is mapped, so
//! no later call (`mremap`, `remap_file_pages`, `mprotect`) can reach a page that may go. The pins
//! need no care here: they last as long as the kernel has the mapping (`forebay_client::map`).
//!
//! A mapping of the file would show later writes, and one of the copy does not. So the agent
//! refuses files that have changed lately or are being written; files that the process has locked
//! stay with the PFS; and if the process opens a file for writing, or locks it, its shared mappings
//! of the copy become mappings of the file again.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use forebay_client::FetchToMap;
use libc::{off_t, size_t};

use crate::next::Next;
use crate::served::Handle;
use crate::{kernel, own_files};

/// Largest file, in bytes, that is fetched before it is mapped, as by one read of the PFS.
const SMALL_BYTES: u64 = 4 << 20;

/// Flags that change nothing about what is mapped.
const HARMLESS: c_int = libc::MAP_TYPE
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_NORESERVE
    | libc::MAP_LOCKED
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE
    | libc::MAP_STACK;

type Mmap = unsafe extern "C-unwind" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;

// SAFETY: the types are those of the C library's declarations.
static NEXT: [Next<Mmap>; 2] = unsafe { [Next::new(c"mmap"), Next::new(c"mmap64")] };

/// Device and inode.
type Identity = (u64, u64);

/// Limit on locked files: a process that reaches it maps none of the tier any more.
const LOCKED_MAX: usize = 4096;

/// What the process has done to files, by their identities.
struct Files {
    locked: BTreeSet<Identity>,
    /// Files with the copies that were mapped in their place.
    mapped: Vec<(Identity, Identity)>,
}

impl Files {
    fn may_have_locked(&self, file: Identity) -> bool {
        self.locked.len() >= LOCKED_MAX || self.locked.contains(&file)
    }
}

static FILES: Mutex<Files> = Mutex::new(Files { locked: BTreeSet::new(), mapped: Vec::new() });
static HAS_MAPPED: AtomicBool = AtomicBool::new(false);

/// A call of `mmap`.
#[derive(Clone, Copy)]
pub struct Call {
    /// Which of the two functions.
    pub function: usize,
    /// The address.
    pub at: *mut c_void,
    /// The length.
    pub bytes: size_t,
    /// The protection.
    pub protection: c_int,
    /// The flags.
    pub flags: c_int,
    /// The descriptor.
    pub fd: c_int,
    /// The offset.
    pub offset: off_t,
}

/// Looks the next functions up. Not at the first call: allocators map memory before they work, and
/// the dynamic linker may need one.
pub fn attach() {
    NEXT.iter().for_each(|next| {
        next.get();
    });
}

impl Call {
    /// Whether a mapping of the copy would do, by what the program wants.
    #[inline]
    pub fn may_be_served(&self) -> bool {
        let is_writable = self.protection & libc::PROT_WRITE != 0;
        let is_private = self.flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
        // The PFS may forbid execution, and debuggers look for the names of programs.
        self.protection & libc::PROT_EXEC == 0
            && (is_private || !is_writable)
            && self.flags & !HARMLESS == 0
            && self.fd >= 0
            && self.offset >= 0
    }

    /// Whether stores to it reach the file.
    pub fn stores(&self) -> bool {
        self.protection & libc::PROT_WRITE != 0 && self.flags & libc::MAP_TYPE != libc::MAP_PRIVATE
    }

    /// Has the kernel map `fd`.
    ///
    /// # Safety
    /// As for `mmap`.
    pub unsafe fn of(self, fd: c_int) -> *mut c_void {
        let Call { function, at, bytes, protection, flags, fd: _, offset } = self;
        if let Some(next) = NEXT[function].known() {
            // SAFETY: the caller's promise.
            return unsafe { next(at, bytes, protection, flags, fd, offset) };
        }
        // SAFETY: the caller's promise; `errno` is the calling thread's.
        unsafe {
            let result = kernel::sys!(SYS_mmap, at, bytes, protection, flags, fd, offset);
            if (-4095..0).contains(&result) {
                *libc::__errno_location() = -result as c_int;
                return libc::MAP_FAILED;
            }
            result as *mut c_void
        }
    }

    /// Maps the copy if the mapping ends with the file. One that ends earlier would pin pages that
    /// it does not show; one that ends later shows what is appended.
    pub fn of_copy(self, handle: &Handle) -> Option<*mut c_void> {
        let page_bytes = page_bytes();
        let (offset, size) = (self.offset.unsigned_abs(), handle.size());
        let end = offset.checked_add(self.bytes as u64)?.checked_next_multiple_of(page_bytes)?;
        let is_whole = self.bytes > 0
            && offset < size
            && offset.is_multiple_of(page_bytes)
            && end == size.next_multiple_of(page_bytes);
        if !is_whole || files().may_have_locked(handle.identity()) {
            return None;
        }
        let missing = match offset {
            _ if size <= SMALL_BYTES || self.flags & libc::MAP_POPULATE != 0 => FetchToMap::Now,
            0 => FetchToMap::Ahead,
            _ => FetchToMap::Nothing,
        };
        let copy = handle.copy_to_map(missing)?;
        // SAFETY: the program's own arguments, for a file with the same bytes.
        let at = unsafe { self.of(copy.as_raw_fd()) };
        if at == libc::MAP_FAILED {
            return None;
        }
        if self.flags & libc::MAP_TYPE != libc::MAP_PRIVATE {
            let pair = (handle.identity(), own_files::identity(copy.as_raw_fd())?);
            let mut files = files();
            if !files.mapped.contains(&pair) {
                files.mapped.push(pair);
            }
            HAS_MAPPED.store(true, Release);
        }
        Some(at)
    }
}

fn files() -> std::sync::MutexGuard<'static, Files> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn page_bytes() -> u64 {
    // SAFETY: it reads what the kernel has passed to the program.
    unsafe { libc::getauxval(libc::AT_PAGESZ) }.max(1)
}

/// Whether the process may have shared mappings of copies.
#[inline]
pub fn has_mapped() -> bool {
    HAS_MAPPED.load(Acquire)
}

/// Notes that the process locks `fd`, and expects to see what others have written before.
pub fn locked(fd: c_int) {
    let Some(identity) = own_files::identity(fd) else { return };
    let mut files = files();
    if files.locked.len() < LOCKED_MAX {
        files.locked.insert(identity);
    }
    drop(files);
    return_to_file(fd, identity);
}

/// Replaces the shared mappings of copies of this file, which `fd` is open on, with mappings of the
/// file itself.
pub fn return_to_file(fd: c_int, file: Identity) {
    let is_of_file = |(of, _): &(Identity, Identity)| *of == file;
    let copies: Vec<_> = files().mapped.extract_if(.., |pair| is_of_file(pair)).map(|pair| pair.1).collect();
    if copies.is_empty() {
        return;
    }
    let path = format!("/proc/self/fd/{fd}\0");
    // SAFETY: a C string and flags; the kernel has just handed the descriptor out.
    let anew = unsafe {
        let anew = kernel::sys!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if anew < 0 {
            return;
        }
        own_files::place(OwnedFd::from_raw_fd(anew as c_int))
    };
    for area in Area::all().filter(|area| area.is_shared && copies.contains(&area.identity)) {
        area.map(anew.as_raw_fd());
    }
}

/// A part of this process's address space with a file behind it.
struct Area {
    start: usize,
    bytes: usize,
    protection: c_int,
    is_shared: bool,
    offset: u64,
    identity: Identity,
}

impl Area {
    fn all() -> impl Iterator<Item = Area> {
        let table = std::fs::read("/proc/self/maps").unwrap_or_default();
        let areas: Vec<_> = table.split(|byte| *byte == b'\n').filter_map(Area::of).collect();
        areas.into_iter()
    }

    /// From a line of the kernel's table: `start-end rwxs offset major:minor inode path`.
    fn of(line: &[u8]) -> Option<Area> {
        let mut words = line.split(|byte| *byte == b' ').filter_map(|word| str::from_utf8(word).ok());
        let (start, end) = words.next()?.split_once('-')?;
        let (rights, offset) = (words.next()?.as_bytes(), words.next()?);
        let (major, minor) = words.next()?.split_once(':')?;
        let hex = |word| u64::from_str_radix(word, 16).ok();
        let may = |at: usize, sign, flag| if rights.get(at) == Some(&sign) { flag } else { 0 };
        let start = hex(start)? as usize;
        Some(Area {
            start,
            bytes: hex(end)? as usize - start,
            protection: may(0, b'r', libc::PROT_READ) | may(2, b'x', libc::PROT_EXEC),
            is_shared: rights.get(3) == Some(&b's'),
            offset: hex(offset)?,
            identity: (libc::makedev(hex(major)? as u32, hex(minor)? as u32), words.next()?.parse().ok()?),
        })
    }

    /// Maps `fd` in its place, in one step for other threads.
    fn map(&self, fd: c_int) {
        // SAFETY: a new mapping, then moved to where one of the same bytes is.
        unsafe {
            let new = kernel::sys!(
                SYS_mmap,
                null_mut::<c_void>(),
                self.bytes,
                self.protection,
                libc::MAP_SHARED,
                fd,
                self.offset
            );
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            if !(-4095..0).contains(&new)
                && (-4095..0)
                    .contains(&kernel::sys!(SYS_mremap, new, self.bytes, self.bytes, flags, self.start))
            {
                kernel::sys!(SYS_munmap, new, self.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_table_is_understood() {
        let line = b"7f00000000-7f00003000 r--s 00001000 00:2a 1234                       /copies/0 7";
        let area = Area::of(line).unwrap();
        assert_eq!((area.start, area.bytes, area.offset), (0x7f_0000_0000, 0x3000, 0x1000));
        assert_eq!((area.protection, area.is_shared), (libc::PROT_READ, true));
        assert_eq!(area.identity, (libc::makedev(0, 0x2a), 1234));
        assert!(Area::of(b"").is_none());
    }
}
