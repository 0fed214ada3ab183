//! What this process gained from the tier, in memory that `forebay run --report` reads.

use core::ffi::c_char;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64};

use forebay_client::Served;
use forebay_wire::intercepted::{REGION_BYTES, Region, Slot};

use crate::{inside, shared};

static REPORT: AtomicPtr<Region> = AtomicPtr::new(null_mut());

/// Maps the memory at `path`.
///
/// # Safety
/// `path` is a C string.
pub unsafe fn attach(path: *const c_char) {
    // SAFETY: the caller's promise; the region stays mapped, and all its fields are atomics.
    unsafe {
        if let Some(region) = shared::map(path, REGION_BYTES)
            && (*region.cast::<Region>()).is_valid()
        {
            REPORT.store(region.cast(), Release);
        }
    }
}

/// Whether `forebay run` wants a report.
#[inline]
pub fn is_wanted() -> bool {
    !REPORT.load(Relaxed).is_null()
}

/// Counts one more in the report, if there is one.
pub fn count(sum: impl FnOnce(&Slot) -> &AtomicU64) {
    if let Some(slot) = slot() {
        sum(slot).fetch_add(1, Relaxed);
    }
}

/// This process's part of the report, if there is one.
fn slot() -> Option<&'static Slot> {
    // SAFETY: the region stays mapped, and all its fields are atomics.
    unsafe { REPORT.load(Acquire).as_ref() }.map(|region| region.slot(inside::process()))
}

/// Counts a read that was served.
pub fn note(bytes: u64, served: &Served, ns: u64) {
    let Some(slot) = slot() else { return };
    slot.reads.fetch_add(1, Relaxed);
    let is_hit = served.pfs_bytes == 0 && served.fetches == 0;
    let (of_bytes, of_ns) = match is_hit {
        true => (&slot.hit_bytes, &slot.hit_ns),
        false => (&slot.miss_bytes, &slot.miss_ns),
    };
    slot.come_bytes.fetch_add(served.fetched_bytes + served.pfs_bytes as u64, Relaxed);
    slot.hits.fetch_add(u64::from(is_hit), Relaxed);
    of_bytes.fetch_add(bytes, Relaxed);
    of_ns.fetch_add(ns, Relaxed);
}
