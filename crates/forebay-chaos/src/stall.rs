//! A single `write` that takes as long as we like, and stores to a shared mapping.
//!
//! The kernel takes the time stamps of a write when it begins and copies page by page. A source
//! that is missing in its middle (`userfaultfd`) holds it there, as a slow source, a busy machine
//! or a very long write do, without moving gigabytes. Where that is not permitted, the write is an
//! ordinary one.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::mm::{
    Advice, MapFlags, ProtFlags, UserfaultfdFlags, madvise, mmap, mmap_anonymous, munmap, userfaultfd,
};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const PAGE: usize = 4096;

// From <linux/userfaultfd.h>; the libc crate does not have them.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
const REGISTER_MISSING: u64 = 1;

/// Anonymous or shared memory, unmapped when this is dropped.
struct Memory {
    start: *mut c_void,
    len: usize,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by its maker, and nobody keeps a reference into it.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

/// Writes `bytes` at `offset` in one call, which waits in its middle for `stall`.
pub fn write_stalled(file: &File, bytes: &[u8], offset: u64, stall: Duration) -> io::Result<()> {
    let half = bytes.len() / 2 / PAGE * PAGE;
    let len = bytes.len().next_multiple_of(PAGE);
    // SAFETY: a fresh mapping at no given address.
    let start = unsafe {
        mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
    };
    let memory = Memory { start, len };
    let Ok(fault) = hold_back(&memory, half) else { return file.write_all_at(bytes, offset) };
    // SAFETY: the first half is ordinary memory of this mapping, which nobody else has.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.cast(), half) };
    let mut rest = bytes[half..].to_vec();
    rest.resize(len - half, 0);
    let target = start as usize + half;
    std::thread::scope(|scope| {
        let given = scope.spawn(move || {
            std::thread::sleep(stall);
            give(&fault, target, &rest)
        });
        // With the system call itself: nothing in this program may read what is not there yet.
        let written = write_once(file, start, bytes.len(), offset);
        given.join().map_err(|_| io::Error::other("the thread that gives the source has ended"))??;
        written
    })
}

/// From `from` on, every access to the memory waits until its bytes are given.
fn hold_back(memory: &Memory, from: usize) -> io::Result<OwnedFd> {
    // SAFETY: only the range registered below is concerned, which is ours.
    let fault = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC)? };
    let mut api = [UFFD_API, 0, 0];
    request(&fault, UFFDIO_API, &mut api)?;
    let start = (memory.start as usize + from) as u64;
    let mut register = [start, (memory.len - from) as u64, REGISTER_MISSING, 0];
    request(&fault, UFFDIO_REGISTER, &mut register)?;
    Ok(fault)
}

fn give(fault: &OwnedFd, target: usize, rest: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < rest.len() {
        let from = rest.as_ptr() as usize + done;
        let mut copy = [(target + done) as u64, from as u64, (rest.len() - done) as u64, 0, 0];
        let result = request(fault, UFFDIO_COPY, &mut copy);
        // The fifth word is what was copied, or an error; the rest of a short copy is requested
        // again.
        match (result, copy[4] as i64) {
            (_, copied) if copied > 0 => done += copied as usize,
            (Err(e), _) if e.raw_os_error() != Some(libc::EAGAIN) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn request(fault: &OwnedFd, what: libc::c_ulong, words: &mut [u64]) -> io::Result<()> {
    // SAFETY: each request takes a structure of exactly these words, which the callers lay out as
    // the header does.
    let result = unsafe { libc::ioctl(fault.as_raw_fd(), what, words.as_mut_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn write_once(file: &File, start: *mut c_void, len: usize, offset: u64) -> io::Result<()> {
    // SAFETY: `start` begins a mapping of at least `len` bytes, which outlives the call.
    let n = unsafe { libc::pwrite(file.as_raw_fd(), start, len, offset as libc::off_t) };
    match usize::try_from(n) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(n) if n < len => Err(io::ErrorKind::WriteZero.into()),
        Ok(_) => Ok(()),
    }
}

/// Stores `bytes` at `offset` of a shared mapping of the file, and unmaps it. The range must exist.
pub fn store_mapped(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let from = offset / PAGE as u64 * PAGE as u64;
    let lead = (offset - from) as usize;
    let len = lead + bytes.len();
    // SAFETY: a fresh shared mapping of a file that only this writer changes.
    let start = unsafe {
        mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, from)?
    };
    let memory = Memory { start, len };
    // Each page is stored to twice: the second time does not move the stamps any more.
    let pages = bytes.chunks(PAGE).enumerate();
    for (i, page) in pages.clone().map(|(i, page)| (i, &page[..page.len() / 2])).chain(pages) {
        // SAFETY: within the mapping.
        let target = unsafe { memory.start.cast::<u8>().add(lead + i * PAGE) };
        make_writable(target, page.len())?;
        // SAFETY: within the mapping, and its pages are there, so no signal comes.
        unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), target, page.len()) };
        // Other processes read in between.
        if i % 16 == 15 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// Makes pages writable first: a store that the file system does not take, such as a full one,
/// would raise a signal that ends the writer. This returns an error instead.
fn make_writable(target: *mut u8, len: usize) -> io::Result<()> {
    let lead = target.addr() % PAGE;
    // SAFETY: the range is in a mapping of the caller's; nothing in it changes.
    match unsafe { madvise(target.sub(lead).cast(), lead + len, Advice::LinuxPopulateWrite) } {
        // The kernel is older than 5.14.
        Err(rustix::io::Errno::INVAL) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_stalled_write_takes_its_time_and_writes_all() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..70_000u32).map(|i| i as u8).collect();
        let started = Instant::now();
        write_stalled(&file, &bytes, 100, Duration::from_millis(30)).unwrap();
        store_mapped(&file, b"across", 8190).unwrap();
        let mut back = vec![0; bytes.len()];
        file.read_exact_at(&mut back, 100).unwrap();
        assert_eq!(&back[8090..8096], b"across");
        back[8090..8096].copy_from_slice(&bytes[8090..8096]);
        assert!(back == bytes);
        // Not permitted in some containers.
        eprintln!("the write took {:?}", started.elapsed());
    }
}
