//! Which threads are inside this library's own code.
//!
//! The client core takes locks and allocates memory. Three rules make this safe in a preloaded
//! library:
//!
//! - *A thread is inside once.* Calls that it makes there, and calls of a signal handler that
//!   interrupts it there, go to the kernel. So a thread never waits for a lock that it holds.
//! - *No thread is inside while the process forks.* Calls of other threads go to the kernel; the
//!   fork waits briefly for threads that are inside. If one remains, the child leaves everything to
//!   the kernel, like a child of a bare `clone`.
//! - *A thread is not cancelled inside*, but before it enters.
//!
//! A signal handler that leaves by `longjmp` leaves its thread inside for ever, with the locks that
//! it holds: the tier is then switched off.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU32};

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::heap::{self, HEAP};
use crate::kernel;

const PAGE_BYTES: usize = 4096;

/// A fork waits this many times, for this long each, until no thread is inside: 20 ms in all.
const FORK_WAITS: u32 = 200;
static FORK_WAIT: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };

/// Threads inside.
static THREADS: AtomicU32 = AtomicU32::new(0);
/// Threads that are forking.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The process whose table of descriptors is known, in a page that the kernel clears in each child
/// which has memory of its own. Null: the tier is off.
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

unsafe extern "C" {
    /// This thread's depth (thread.c).
    fn forebay_preload_depth() -> *mut c_int;
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// A thread is inside until this is dropped.
pub struct Inside {
    cancel: c_int,
}

/// As [`Inside`], for a piece of work that takes no descriptor into account and may be within one.
pub struct Stay {
    is_outermost: bool,
}

fn depth() -> *mut c_int {
    // SAFETY: it returns the address of a variable of this thread.
    unsafe { forebay_preload_depth() }
}

/// Whether this thread is inside.
#[inline]
pub fn is_inside() -> bool {
    // SAFETY: this thread's variable.
    unsafe { *depth() != 0 }
}

/// Whether the tier is on in this process.
#[inline]
pub fn is_on() -> bool {
    // SAFETY: the page stays mapped.
    unsafe { OWNER.load(Acquire).as_ref() }.is_some_and(|owner| owner.load(Relaxed) != 0)
}

/// Whether this process owns the table of descriptors. The child of a `vfork` has its parent's
/// memory and descriptors of its own.
pub fn is_owner() -> bool {
    // SAFETY: the page stays mapped; `getpid` has no arguments.
    unsafe {
        OWNER.load(Acquire).as_ref().is_some_and(|owner| owner.load(Relaxed) == libc::getpid().unsigned_abs())
    }
}

/// ID of this process, if the tier is on.
pub fn process() -> u32 {
    // SAFETY: the page stays mapped.
    unsafe { OWNER.load(Acquire).as_ref() }.map_or(0, |owner| owner.load(Relaxed))
}

/// Turns the tier on in this process, if its children can be recognized.
pub fn turn_on() {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which stays; the handlers below touch atomics only.
    unsafe {
        let page = libc::mmap(null_mut(), PAGE_BYTES, protection, flags, -1, 0);
        if page == libc::MAP_FAILED
            || libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) != 0
            || libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) != 0
        {
            return;
        }
        let owner = page.cast::<AtomicU32>();
        (*owner).store(libc::getpid().unsigned_abs(), Relaxed);
        OWNER.store(owner, Release);
    }
}

/// Turns the tier off for the rest of this process.
pub fn turn_off() {
    OWNER.store(null_mut(), Release);
}

/// Notes that the thread jumps to an earlier place in the program. If it leaves this library's code
/// in that way, the locks that it holds there are never released.
#[inline]
pub fn jumps() {
    if is_inside() {
        turn_off();
    }
}

/// Ends the thread if another has cancelled it, as the C library's reads do.
///
/// # Safety
/// The thread has not entered, and its callers up to the program have nothing to drop.
#[inline]
pub unsafe fn cancellation_point() {
    // SAFETY: it may unwind this thread, and the caller has nothing to drop.
    unsafe { pthread_testcancel() };
}

/// Enters; `None` if the kernel has to serve the call.
pub fn enter() -> Option<Inside> {
    if is_inside() {
        return None;
    }
    let mut cancel = 0;
    // SAFETY: a place for the old state.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut cancel) };
    // The depth first: a signal handler that runs in between leaves its calls to the kernel.
    // SAFETY: this thread's variable.
    unsafe { *depth() = 1 };
    THREADS.fetch_add(1, SeqCst);
    let inside = Inside { cancel };
    if heap::is_low() {
        // There is no more memory for this library.
        turn_off();
    }
    (FORKS.load(SeqCst) == 0 && is_on()).then_some(inside)
}

/// Runs `work` with `errno` as it was, and without a panic: after one the tier is off.
pub fn guarded<R>(_inside: &Inside, work: impl FnOnce() -> Option<R>) -> Option<R> {
    // SAFETY: `errno` is the calling thread's.
    let errno = unsafe { *libc::__errno_location() };
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        turn_off();
        None
    });
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// Is inside for a moment, even if the tier is off: for the allocator, which the end of a thread
/// uses as well.
pub fn stay() -> Stay {
    let is_outermost = !is_inside();
    if is_outermost {
        // SAFETY: this thread's variable.
        unsafe { *depth() = 1 };
        THREADS.fetch_add(1, SeqCst);
    }
    Stay { is_outermost }
}

fn leave() {
    THREADS.fetch_sub(1, SeqCst);
    // SAFETY: this thread's variable.
    unsafe { *depth() = 0 };
}

impl Drop for Inside {
    fn drop(&mut self) {
        leave();
        let mut old = 0;
        // SAFETY: a place for the old state, which is known.
        unsafe { pthread_setcancelstate(self.cancel, &mut old) };
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        if self.is_outermost {
            leave();
        }
    }
}

unsafe extern "C" fn before_fork() {
    FORKS.fetch_add(1, SeqCst);
    // A signal handler may fork while its own thread is inside: waiting for that would not end.
    let waits = if is_on() && !is_inside() { FORK_WAITS } else { 0 };
    for _ in 0..waits {
        if THREADS.load(SeqCst) == 0 {
            return;
        }
        // SAFETY: a time, and no place for the rest of it.
        unsafe { kernel::sys!(SYS_nanosleep, &raw const FORK_WAIT, 0) };
    }
}

unsafe extern "C" fn after_fork() {
    FORKS.fetch_sub(1, SeqCst);
}

/// The child has one thread. Its page was cleared, so everything was left to the kernel so far.
unsafe extern "C" fn in_child() {
    FORKS.store(0, SeqCst);
    let is_empty = THREADS.swap(0, SeqCst) == 0 && !HEAP.is_locked();
    // SAFETY: the page stays mapped; `getpid` has no arguments.
    unsafe {
        if let Some(owner) = OWNER.load(Acquire).as_ref()
            && is_empty
        {
            owner.store(libc::getpid().unsigned_abs(), Release);
        }
    }
}
