//! Memory of this library, apart from the program's.
//!
//! A signal handler may read a file while the thread that it interrupts is inside `malloc`; so
//! reads must not use `malloc`. Blocks have sizes that are powers of two and are kept in lists when
//! they are freed; blocks over 32 KiB are mappings of their own. The lock is held for a few
//! instructions only, and never by a thread whose signal handler could need it: see `inside`.
//!
//! A program may use up its memory or address space (`ulimit -v`) and continue. Rust ends a process
//! whose allocation fails, so a reserve then serves the threads that are inside, and no thread
//! enters any more.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use crate::kernel;

/// Blocks have 16 bytes shifted by the number of their class.
const CLASSES: usize = 12;
const LEAST_BYTES: usize = 16;
const CHUNK_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;

/// The reserve, in bytes: a thread that is inside takes two packets of 64 KiB, and little else. It
/// costs no memory until it is used.
const RESERVE_BYTES: usize = 1 << 20;

/// Tries before a thread that waits for the lock sleeps, and for how long.
const SPINS: u32 = 100;
static SLEEP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 10_000 };

struct Lists {
    free: [*mut u8; CLASSES],
    /// Beginning and end of what is left of the newest chunk.
    chunk: (usize, usize),
}

#[repr(align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE_BYTES]>);

// SAFETY: each part is touched only by the one that it was given to.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve(UnsafeCell::new([0; RESERVE_BYTES]));
/// How much of the reserve was given.
static RESERVE_USED: AtomicUsize = AtomicUsize::new(0);

/// Whether there was no memory, and the reserve is in use.
#[cfg(not(test))]
#[inline]
pub fn is_low() -> bool {
    RESERVE_USED.load(Relaxed) > 0
}

/// New memory of some pages; null if there is none, and no reserve.
fn pages(bytes: usize) -> *mut u8 {
    let mapped = map(bytes);
    if !mapped.is_null() || bytes > RESERVE_BYTES {
        return mapped;
    }
    let at = RESERVE_USED.fetch_add(bytes, Relaxed);
    if at.saturating_add(bytes) > RESERVE_BYTES {
        return null_mut();
    }
    // SAFETY: within the reserve, of which nobody else has this part.
    unsafe { RESERVE.0.get().cast::<u8>().add(at) }
}

fn is_in_reserve(block: *mut u8) -> bool {
    (block as usize).wrapping_sub(RESERVE.0.get() as usize) < RESERVE_BYTES
}

/// An allocator; zeroed memory is a valid one.
pub struct Heap {
    is_locked: AtomicBool,
    lists: UnsafeCell<Lists>,
}

// SAFETY: the lists are touched under the lock only.
unsafe impl Sync for Heap {}

/// Frees the lock of a heap.
struct Locked<'a>(&'a Heap);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Release);
    }
}

fn class(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(LEAST_BYTES);
    let class =
        bytes.checked_next_power_of_two()?.trailing_zeros() as usize - LEAST_BYTES.trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

fn mapped_bytes(layout: Layout) -> Option<usize> {
    (layout.align() <= PAGE_BYTES).then(|| layout.size().checked_next_multiple_of(PAGE_BYTES)).flatten()
}

fn map(bytes: usize) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place of the kernel's choice.
    let at = unsafe { kernel::sys!(SYS_mmap, 0, bytes, protection, flags, -1_isize, 0) };
    if at < 0 { null_mut() } else { at as *mut u8 }
}

impl Heap {
    /// An empty heap.
    pub const fn new() -> Self {
        let lists = Lists { free: [null_mut(); CLASSES], chunk: (0, 0) };
        Heap { is_locked: AtomicBool::new(false), lists: UnsafeCell::new(lists) }
    }

    /// Whether a thread holds the lock; in a forked child, for ever.
    pub fn is_locked(&self) -> bool {
        self.is_locked.load(Relaxed)
    }

    fn lock(&self) -> Locked<'_> {
        let mut tries = 0;
        while self.is_locked.swap(true, Acquire) {
            tries += 1;
            if tries > SPINS {
                // SAFETY: a time, and no place for the rest of it.
                unsafe { kernel::sys!(SYS_nanosleep, &raw const SLEEP, 0) };
            }
        }
        Locked(self)
    }

    /// A block of `class`, or null if there is no memory.
    pub fn take(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(layout) else {
            return mapped_bytes(layout).map_or(null_mut(), pages);
        };
        let bytes = LEAST_BYTES << class;
        let _locked = self.lock();
        // SAFETY: under the lock; blocks in a list are free, hold the next one's address, and are
        // in chunks that are never unmapped.
        unsafe {
            let lists = &mut *self.lists.get();
            let first = lists.free[class];
            if !first.is_null() {
                lists.free[class] = first.cast::<*mut u8>().read();
                return first;
            }
            let at = lists.chunk.0.next_multiple_of(bytes);
            if at + bytes <= lists.chunk.1 {
                lists.chunk.0 = at + bytes;
                return at as *mut u8;
            }
            // The rest of the old chunk is lost: it is smaller than a block of the class.
            let (mut chunk, mut chunk_bytes) = (map(CHUNK_BYTES), CHUNK_BYTES);
            if chunk.is_null() {
                // The block may have to begin at a multiple of its size.
                chunk_bytes = (2 * bytes).max(PAGE_BYTES);
                chunk = pages(chunk_bytes);
            }
            if chunk.is_null() {
                return chunk;
            }
            let start = (chunk as usize).next_multiple_of(bytes);
            lists.chunk = (start + bytes, chunk as usize + chunk_bytes);
            start as *mut u8
        }
    }

    /// # Safety
    /// `block` came from [`Heap::take`] with the same layout and is not used any more.
    pub unsafe fn release(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class(layout) else {
            if is_in_reserve(block) {
                return;
            }
            // SAFETY: a mapping of that length, by the caller's promise.
            unsafe { kernel::sys!(SYS_munmap, block, mapped_bytes(layout).unwrap_or(0)) };
            return;
        };
        let _locked = self.lock();
        // SAFETY: under the lock; the block is free and has room for an address.
        unsafe {
            let lists = &mut *self.lists.get();
            block.cast::<*mut u8>().write(lists.free[class]);
            lists.free[class] = block;
        }
    }
}

/// Where all Rust code in this library takes its memory from.
#[cfg(not(test))]
pub static HEAP: Heap = Heap::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_do_not_overlap_and_are_used_again() {
        let heap = Heap::new();
        let layouts =
            [(1, 1), (16, 8), (17, 1), (24, 64), (4096, 4096), (32 << 10, 8), (40 << 10, 16), (1 << 20, 8)];
        let mut taken = Vec::new();
        for round in 0..40_u8 {
            for (size, align) in layouts {
                let layout = Layout::from_size_align(size, align).unwrap();
                let block = heap.take(layout);
                assert!(!block.is_null() && (block as usize).is_multiple_of(align));
                // SAFETY: the block has that size.
                unsafe { block.write_bytes(round, size) };
                taken.push((block, layout, round));
            }
        }
        for (block, layout, round) in &taken {
            // SAFETY: the block has that size and was written.
            let bytes = unsafe { std::slice::from_raw_parts(*block, layout.size()) };
            assert!(bytes.iter().all(|byte| byte == round), "{layout:?}");
        }
        let small: Vec<_> = taken.iter().filter(|(_, layout, _)| layout.size() == 17).collect();
        for (block, layout, _) in &small {
            // SAFETY: taken above, once.
            unsafe { heap.release(*block, *layout) };
        }
        let again = heap.take(small[0].1);
        assert!(small.iter().any(|(block, ..)| *block == again));
        assert!(!heap.is_locked());
    }

    #[test]
    fn what_is_larger_than_memory_is_null() {
        let heap = Heap::new();
        assert!(heap.take(Layout::from_size_align(1 << 60, 8).unwrap()).is_null());
        assert!(heap.take(Layout::from_size_align(8, 1 << 20).unwrap()).is_null(), "no such alignment");
    }

    #[test]
    fn threads_share_it() {
        let heap = Heap::new();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let heap = &heap;
                scope.spawn(move || {
                    for round in 0..20_000_usize {
                        let layout = Layout::from_size_align(1 << (round % 10), 1).unwrap();
                        let block = heap.take(layout);
                        // SAFETY: the block has that size, and is released once.
                        unsafe {
                            block.write_bytes(thread, layout.size());
                            assert_eq!(block.add(layout.size() - 1).read(), thread);
                            heap.release(block, layout);
                        }
                    }
                });
            }
        });
    }
}
