//! The handle that serves the reads of each descriptor.
//!
//! An entry is one word: the handle's address, and a count that increases whenever the descriptor
//! gets another meaning, so a handle made for a file that was closed meanwhile is not stored.
//! A reader registers in the entry before it loads the address; a handle that was taken out is
//! freed once its entry has no readers. No thread waits for another.
//!
//! If a descriptor with a handle is left to the kernel, the handle stays in its entry until the
//! program closes the number. The handle holds a duplicate, and a process that closes any
//! descriptor of a file loses its POSIX locks on it, so the library must not choose the moment.

use core::ops::Deref;
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Descriptors from this number on are left to the kernel.
pub const MAX_DESCRIPTORS: usize = 1 << 16;

/// The address's part of an entry's word. Addresses of programs have 47 bits, or 48.
const ADDRESS: u64 = (1 << 48) - 1;
/// The descriptor is left to the kernel. No address has this bit, so a handle may be there as well.
const FOREIGN: u64 = 1;
/// With [`FOREIGN`]: not a file, but a channel through which other processes send.
const CHANNEL: u64 = 2;
const FLAGS: u64 = FOREIGN | CHANNEL;
const _: () = assert!(align_of::<Node<u8>>() > FLAGS as usize);

/// One descriptor number.
struct Entry {
    word: AtomicU64,
    readers: AtomicU32,
    /// The program has opened it for writing.
    is_writable: AtomicU32,
}

impl Entry {
    const fn new() -> Self {
        Entry { word: AtomicU64::new(0), readers: AtomicU32::new(0), is_writable: AtomicU32::new(0) }
    }
}

/// Handles of descriptors.
pub struct Handles<T> {
    entries: [Entry; MAX_DESCRIPTORS],
    retired: AtomicPtr<Node<T>>,
    /// Handles in entries.
    count: AtomicU32,
    /// Higher than every number that ever had an entry in use.
    end: AtomicU32,
}

struct Node<T> {
    fd: usize,
    value: T,
    next: *mut Node<T>,
}

/// A handle that is not freed while this value lives.
pub struct Pinned<'a, T> {
    entry: &'a Entry,
    node: &'a Node<T>,
}

/// What is known of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is still to be examined. Has the word, which [`Handles::put`] compares.
    No(u64),
    /// It is left to the kernel.
    Foreign,
    /// It is left to the kernel, and is a pipe, a socket or the like.
    Channel,
    /// It has a handle.
    Served,
}

impl<T> Deref for Pinned<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.node.value
    }
}

impl<T> Drop for Pinned<'_, T> {
    fn drop(&mut self) {
        self.entry.readers.fetch_sub(1, SeqCst);
    }
}

fn index(fd: i32) -> Option<usize> {
    usize::try_from(fd).ok().filter(|fd| *fd < MAX_DESCRIPTORS)
}

impl<T> Handles<T> {
    /// A table in which nothing is known of any descriptor.
    pub const fn new() -> Self {
        Handles {
            entries: [const { Entry::new() }; MAX_DESCRIPTORS],
            retired: AtomicPtr::new(null_mut()),
            count: AtomicU32::new(0),
            end: AtomicU32::new(0),
        }
    }

    /// What is known of `fd`.
    #[inline]
    pub fn known(&self, fd: i32) -> Known {
        let Some(at) = index(fd) else { return Known::Foreign };
        let word = self.entries[at].word.load(Acquire);
        match word & ADDRESS {
            0 => Known::No(word),
            address if address & CHANNEL != 0 => Known::Channel,
            address if address & FOREIGN != 0 => Known::Foreign,
            _ => Known::Served,
        }
    }

    /// Whether `fd` has a handle, served or not.
    #[inline]
    pub fn has_handle(&self, fd: i32) -> bool {
        index(fd).is_some_and(|at| self.entries[at].word.load(Acquire) & ADDRESS & !FLAGS != 0)
    }

    /// How many descriptors have handles, served or not.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// The handle of `fd`.
    pub fn pin(&self, fd: i32) -> Option<Pinned<'_, T>> {
        let entry = &self.entries[index(fd)?];
        entry.readers.fetch_add(1, SeqCst);
        // Where the order of the two matters, other threads run in tests.
        #[cfg(test)]
        std::thread::yield_now();
        let address = entry.word.load(SeqCst) & ADDRESS;
        if address == 0 || address & FOREIGN != 0 {
            entry.readers.fetch_sub(1, SeqCst);
            return None;
        }
        // SAFETY: the entry has a reader since before it was loaded, so `free_retired` leaves it.
        Some(Pinned { entry, node: unsafe { &*(address as *const Node<T>) } })
    }

    /// Gives `fd` a handle, unless its meaning has changed since it was [`Known::No`] with `seen`.
    /// If it `is_foreign`, the handle is only kept.
    pub fn put(&self, fd: i32, seen: u64, value: T, is_foreign: bool) {
        let Some(at) = index(fd) else { return };
        let node = Box::into_raw(Box::new(Node { fd: at, value, next: null_mut() }));
        let word = (seen & !ADDRESS) | node as u64 | if is_foreign { FOREIGN } else { 0 };
        if node as u64 & !ADDRESS != 0
            || self.entries[at].word.compare_exchange(seen, word, SeqCst, Relaxed).is_err()
        {
            // SAFETY: made above, and nobody has seen it.
            drop(unsafe { Box::from_raw(node) });
            return;
        }
        self.count.fetch_add(1, Relaxed);
        self.end.fetch_max(at as u32 + 1, Relaxed);
    }

    /// Leaves `fd` to the kernel, unless its meaning has changed since.
    pub fn put_foreign(&self, fd: i32, seen: u64, is_channel: bool) {
        if let Some(at) = index(fd) {
            let word = (seen & !ADDRESS) | FOREIGN | if is_channel { CHANNEL } else { 0 };
            self.end.fetch_max(at as u32 + 1, Relaxed);
            let _others_know_more = self.entries[at].word.compare_exchange(seen, word, SeqCst, Relaxed);
        }
    }

    /// Takes the handle of `fd` out. The number stands for another file from now on, or, if it
    /// `is_foreign`, for the same, left to the kernel.
    #[inline]
    pub fn forget(&self, fd: i32, is_foreign: bool) {
        let Some(at) = index(fd) else { return };
        let entry = &self.entries[at];
        let mut word = entry.word.load(Relaxed);
        loop {
            let next = (word & !ADDRESS).wrapping_add(ADDRESS + 1) | if is_foreign { FOREIGN } else { 0 };
            match entry.word.compare_exchange_weak(word, next, SeqCst, Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if !is_foreign {
            entry.is_writable.store(0, Relaxed);
        }
        let address = word & ADDRESS & !FLAGS;
        if address != 0 {
            self.count.fetch_sub(1, Relaxed);
            // SAFETY: it is out of its entry, and in no list yet: only this thread may link it.
            unsafe { self.retire(address as *mut Node<T>) };
        }
    }

    /// Leaves `fd`, which has a handle, to the kernel; the handle stays until [`Handles::forget`].
    pub fn leave(&self, fd: i32) {
        let Some(at) = index(fd) else { return };
        let is_served = |word: u64| word & ADDRESS != 0 && word & FOREIGN == 0;
        let leave = |word: u64| is_served(word).then_some(word | FOREIGN);
        let _is_left_already = self.entries[at].word.fetch_update(SeqCst, Relaxed, leave);
    }

    /// # Safety
    /// `node` is in no entry and no list.
    unsafe fn retire(&self, node: *mut Node<T>) {
        let mut head = self.retired.load(Relaxed);
        loop {
            // SAFETY: the caller's promise; readers do not look at `next`.
            unsafe { (&raw mut (*node).next).write(head) };
            match self.retired.compare_exchange_weak(head, node, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Frees handles that were taken out and have no readers.
    pub fn free_retired(&self) {
        if self.retired.load(Relaxed).is_null() {
            return;
        }
        let mut node = self.retired.swap(null_mut(), AcqRel);
        while !node.is_null() {
            // SAFETY: the list is this thread's alone since the swap.
            let (next, at) = unsafe { ((*node).next, (*node).fd) };
            if self.entries[at].readers.load(SeqCst) == 0 {
                // SAFETY: a reader announces itself before it loads the address; nobody has, and
                // the entry does not hold it any more.
                drop(unsafe { Box::from_raw(node) });
            } else {
                // SAFETY: taken from the list above.
                unsafe { self.retire(node) };
            }
            node = next;
        }
    }

    /// Notes that the program has `fd` open for writing.
    pub fn note_writable(&self, fd: i32) {
        if let Some(at) = index(fd) {
            self.entries[at].is_writable.store(1, Relaxed);
            self.end.fetch_max(at as u32 + 1, Relaxed);
        }
    }

    /// Whether the program has opened `fd` for writing.
    pub fn is_writable(&self, fd: i32) -> bool {
        index(fd).is_some_and(|at| self.entries[at].is_writable.load(Relaxed) != 0)
    }

    /// The number from which on nothing is known of any descriptor.
    pub fn end(&self) -> i32 {
        self.end.load(Relaxed) as i32
    }

    /// Descriptors that the program has opened for writing.
    pub fn writable(&self) -> impl Iterator<Item = i32> {
        (0..self.end()).filter(|fd| self.is_writable(*fd))
    }

    /// Descriptors with handles.
    pub fn served(&self) -> impl Iterator<Item = i32> {
        (0..self.end()).filter(|fd| self.known(*fd) == Known::Served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn seen<T>(handles: &Handles<T>, fd: i32) -> u64 {
        match handles.known(fd) {
            Known::No(word) => word,
            other => panic!("{other:?}"),
        }
    }

    static PLAIN: Handles<Arc<u32>> = Handles::new();

    #[test]
    fn a_handle_lives_until_its_last_reader_has_gone() {
        let value = Arc::new(7);
        PLAIN.put(5, seen(&PLAIN, 5), value.clone(), false);
        assert_eq!((PLAIN.known(5), PLAIN.count()), (Known::Served, 1));
        let pinned = PLAIN.pin(5).unwrap();
        PLAIN.forget(5, false);
        PLAIN.free_retired();
        assert_eq!((**pinned, Arc::strong_count(&value)), (7, 2));
        assert!(PLAIN.pin(5).is_none());
        drop(pinned);
        PLAIN.free_retired();
        assert_eq!((PLAIN.count(), Arc::strong_count(&value)), (0, 1));
    }

    static REUSED: Handles<u32> = Handles::new();

    #[test]
    fn a_handle_of_a_number_that_was_closed_meanwhile_finds_no_place() {
        let before = seen(&REUSED, 9);
        REUSED.forget(9, false);
        REUSED.put(9, before, 1, false);
        REUSED.put_foreign(9, before, false);
        assert!(matches!(REUSED.known(9), Known::No(_)));
        REUSED.put_foreign(9, seen(&REUSED, 9), true);
        assert_eq!((REUSED.known(9), REUSED.has_handle(9)), (Known::Channel, false));
        REUSED.forget(9, false);
        REUSED.put_foreign(9, seen(&REUSED, 9), false);
        assert_eq!(REUSED.known(9), Known::Foreign);
        REUSED.forget(9, false);
        REUSED.put(9, seen(&REUSED, 9), 2, false);
        assert_eq!((REUSED.pin(9).map(|p| *p), REUSED.served().collect::<Vec<_>>()), (Some(2), vec![9]));
        REUSED.forget(9, true);
        assert_eq!(REUSED.known(9), Known::Foreign);
    }

    static LEFT: Handles<Arc<u32>> = Handles::new();

    #[test]
    fn a_handle_that_is_left_to_the_kernel_lives_until_the_number_is_closed() {
        let (served, kept) = (Arc::new(1), Arc::new(2));
        LEFT.put(3, seen(&LEFT, 3), served.clone(), false);
        LEFT.put(4, seen(&LEFT, 4), kept.clone(), true);
        let pinned = LEFT.pin(3).unwrap();
        LEFT.leave(3);
        LEFT.leave(3);
        drop(pinned);
        LEFT.leave(5);
        assert!(matches!(LEFT.known(5), Known::No(_)));
        assert!(LEFT.has_handle(3) && LEFT.has_handle(4) && !LEFT.has_handle(5));
        for (fd, value) in [(3, &served), (4, &kept)] {
            LEFT.free_retired();
            assert_eq!((LEFT.known(fd), LEFT.pin(fd).is_none()), (Known::Foreign, true));
            assert_eq!((LEFT.count(), Arc::strong_count(value)), (if fd == 3 { 2 } else { 1 }, 2));
            LEFT.forget(fd, false);
            LEFT.free_retired();
            assert_eq!(Arc::strong_count(value), 1);
            assert!(matches!(LEFT.known(fd), Known::No(_)));
        }
        assert_eq!(LEFT.count(), 0);
    }

    static WRITABLE: Handles<u32> = Handles::new();

    #[test]
    fn numbers_out_of_range_are_the_kernels_and_closing_ends_writing() {
        for fd in [-1, i32::MIN, MAX_DESCRIPTORS as i32, i32::MAX] {
            assert_eq!(WRITABLE.known(fd), Known::Foreign);
            assert!(WRITABLE.pin(fd).is_none());
            WRITABLE.forget(fd, false);
            WRITABLE.note_writable(fd);
        }
        WRITABLE.note_writable(3);
        assert_eq!(WRITABLE.writable().collect::<Vec<_>>(), [3]);
        WRITABLE.forget(3, false);
        assert_eq!(WRITABLE.writable().count(), 0);
    }

    static SHARED: Handles<Box<u64>> = Handles::new();

    #[test]
    fn readers_and_closers_do_not_see_freed_handles() {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut found = 0_u64;
                    while !is_over.load(SeqCst) || found == 0 {
                        if let Some(pinned) = SHARED.pin(1) {
                            // The closer frees it now, if ever.
                            std::thread::yield_now();
                            assert_eq!(**pinned, 0x5eed);
                            found += 1;
                        }
                    }
                });
            }
            for _ in 0..5_000 {
                SHARED.put(1, seen(&SHARED, 1), Box::new(0x5eed), false);
                std::thread::yield_now();
                SHARED.forget(1, false);
                SHARED.free_retired();
            }
            SHARED.put(1, seen(&SHARED, 1), Box::new(0x5eed), false);
            is_over.store(true, SeqCst);
        });
    }
}
