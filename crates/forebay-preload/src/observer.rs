//! Counts what a process writes to and reads from the PFS, in the region of its job.
//!
//! `forebay run --job` names the region in `FOREBAY_OBSERVE` and the roots of the PFS in
//! `FOREBAY_OBSERVE_ROOTS`. Without them, or if the region cannot be mapped, nothing is counted.

use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

use forebay_wire::observed::{REGION_BYTES, Region, STILL_MS, Slot};

use crate::paths::{self, MAX_ROOT_BYTES, Roots};
use crate::{descriptors, shared};

const REGION_VARIABLE: &CStr = c"FOREBAY_OBSERVE";
const ROOTS_VARIABLE: &CStr = c"FOREBAY_OBSERVE_ROOTS";

/// Reads of this many bytes or more count as calls in progress: they keep the PFS busy, and smaller
/// ones are over before anybody looks.
const LONG_READ_BYTES: usize = 64 << 10;

/// How often a writer that waits checks whether it may continue.
const LOOK_MS: u32 = 2;

/// What the agent left behind when it died, or hung, while it held the step: no writer waits for it
/// again.
static STALE: AtomicU32 = AtomicU32::new(0);

static REGION: AtomicPtr<Region> = AtomicPtr::new(null_mut());
/// This process's slot, once it has used the PFS.
static SLOT: AtomicPtr<Slot> = AtomicPtr::new(null_mut());
static PID: AtomicU32 = AtomicU32::new(0);
/// Written by [`attach`] before [`REGION`], and never again.
static mut ROOTS: Roots = Roots::NONE;

/// Maps the region. The program has not begun yet.
pub extern "C" fn attach() {
    // SAFETY: `errno` is the calling thread's; the program finds it as it was.
    let errno = unsafe { *libc::__errno_location() };
    if let Some(region) = map() {
        // SAFETY: the handler only stores to atomics.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        REGION.store(region, Release);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn map() -> Option<*mut Region> {
    // SAFETY: no other thread changes the environment yet.
    let (path, roots) = unsafe { (shared::variable(REGION_VARIABLE), shared::variable(ROOTS_VARIABLE)) };
    if path.is_null() || roots.is_null() {
        return None;
    }
    // SAFETY: the roots are a C string. No thread reads the roots before the region is stored.
    unsafe {
        let place = &raw mut ROOTS;
        (*place).set(CStr::from_ptr(roots).to_bytes());
    }
    // SAFETY: a C string.
    let region = unsafe { shared::map(path, REGION_BYTES) }?.cast::<Region>();
    // SAFETY: it is mapped for the life of the process, aligned to a page, and all its fields are
    // atomics.
    unsafe { &*region }.is_valid().then_some(region)
}

/// Runs in the child of a `fork`: it has no slot yet.
unsafe extern "C" fn forked() {
    PID.store(0, Relaxed);
    SLOT.store(null_mut(), Release);
}

/// Runs when the process ends. Its counts stay.
pub extern "C" fn detach() {
    let slot = SLOT.swap(null_mut(), Acquire);
    // SAFETY: slots are in the region, which stays mapped.
    if let Some(slot) = unsafe { slot.as_ref() } {
        slot.release(PID.load(Relaxed));
    }
}

/// Notes that the program forbids itself system calls from now on: the observer counts nothing
/// more.
pub fn restricted() {
    detach();
    REGION.store(null_mut(), Release);
}

/// Whether anything is counted.
#[inline]
pub fn is_on() -> bool {
    !REGION.load(Acquire).is_null()
}

/// Whether `fd` refers to a file of the PFS.
#[inline]
pub fn is_watched(fd: i32) -> bool {
    is_on() && descriptors::is_pfs(fd, decide)
}

/// Asks the kernel for the path of `fd`.
#[cold]
fn decide(fd: i32) -> bool {
    let mut room = [0u8; MAX_ROOT_BYTES + 12];
    let path = paths::of_descriptor(fd, &mut room);
    // SAFETY: the roots do not change after the region was stored, which `is_watched` has seen.
    unsafe {
        let roots = &raw const ROOTS;
        (*roots).cover(path)
    }
}

/// The process's slot.
#[inline]
fn slot() -> Option<&'static Slot> {
    let slot = SLOT.load(Acquire);
    if slot.is_null() {
        return claim();
    }
    // SAFETY: slots are in the region, which stays mapped.
    unsafe { slot.as_ref() }
}

#[cold]
fn claim() -> Option<&'static Slot> {
    // SAFETY: the region stays mapped.
    let region = unsafe { REGION.load(Acquire).as_ref() }?;
    // SAFETY: no argument, no failure.
    let pid = unsafe { libc::getpid() }.unsigned_abs();
    PID.store(pid, Relaxed);
    let slot = region.claim(pid);
    SLOT.store(core::ptr::from_ref(slot).cast_mut(), Release);
    Some(slot)
}

/// Now, without a system call: the kernel's clock as of its last tick.
#[inline]
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Waits while the agent holds the job's step ([`Region::hold`]).
#[cold]
fn wait_while_held(region: &Region) {
    let (mut seen, mut still_ms) = (region.held(), 0);
    while seen != 0 && seen != STALE.load(Relaxed) {
        if still_ms >= STILL_MS {
            STALE.store(seen, Relaxed);
            return;
        }
        let pause = libc::timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_MS) * 1_000_000 };
        // SAFETY: a time, and no place for what a signal leaves of it.
        unsafe { libc::nanosleep(&pause, null_mut()) };
        let now = region.held();
        still_ms = if now == seen { still_ms + LOOK_MS } else { 0 };
        seen = now;
    }
}

/// A write begins.
#[inline]
fn begin_write(slot: &Slot) {
    slot.begin(now_ns());
    // SAFETY: the region stays mapped.
    if let Some(region) = unsafe { REGION.load(Acquire).as_ref() }
        && region.held() != 0
    {
        // SAFETY: `errno` is the calling thread's; the program finds it as it was.
        let errno = unsafe { *libc::__errno_location() };
        wait_while_held(region);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
}

/// Runs a call that writes to `fd`. `written` says how many bytes its result stands for.
#[inline]
pub fn write<R: Copy>(fd: i32, call: impl FnOnce() -> R, written: impl FnOnce(R) -> u64) -> R {
    match is_watched(fd).then(slot).flatten() {
        None => call(),
        Some(slot) => {
            begin_write(slot);
            let result = call();
            let bytes = written(result);
            if bytes > 0 {
                slot.written(bytes);
            }
            slot.end(now_ns());
            result
        }
    }
}

/// Runs a call that reads up to `wanted` bytes from `fd`.
#[inline]
pub fn read<R: Copy>(fd: i32, wanted: usize, call: impl FnOnce() -> R, got: impl FnOnce(R) -> u64) -> R {
    match is_watched(fd).then(slot).flatten() {
        None => call(),
        Some(slot) => {
            let is_long = wanted >= LONG_READ_BYTES;
            if is_long {
                slot.begin(now_ns());
            }
            let result = call();
            let bytes = got(result);
            let now_ns = now_ns();
            if bytes > 0 {
                slot.read(bytes, now_ns);
            }
            if is_long {
                slot.end(now_ns);
            }
            result
        }
    }
}

/// Runs a call that waits for the storage of `fd`.
pub fn sync<R: Copy>(fd: i32, call: impl FnOnce() -> R) -> R {
    wait(is_watched(fd), call)
}

/// Runs a call that hands buffered bytes to `fd`; for a descriptor that nobody has written to, it
/// hands over nothing.
pub fn flush<R: Copy>(fd: i32, call: impl FnOnce() -> R) -> R {
    wait(descriptors::is_known_pfs(fd), call)
}

/// Runs a call that closes `fd`, which waits for the storage on some file systems. The number is
/// forgotten first: once it is closed, another thread may get it.
pub fn close<R: Copy>(fd: i32, call: impl FnOnce() -> R) -> R {
    let is_known = descriptors::is_known_pfs(fd);
    descriptors::forget(fd);
    wait(is_known, call)
}

fn wait<R: Copy>(is_watched: bool, call: impl FnOnce() -> R) -> R {
    match is_watched.then(slot).flatten() {
        None => call(),
        Some(slot) => {
            slot.begin(now_ns());
            let result = call();
            slot.synced();
            slot.end(now_ns());
            result
        }
    }
}
