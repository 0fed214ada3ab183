//! The memory that the observer and the agent share: what the processes of an HPC job have written
//! to the PFS so far.
//!
//! The agent makes the region, a sealed memory file, and reads sums from it at every poll. The
//! library `libforebay_preload.so` in each process of the job adds to it. One addition to an atomic
//! counter takes the place of a message, so a write costs the job no system call and no lock, and a
//! process that is killed at any instruction leaves the region valid.
//!
//! Each process has a slot, so that processes do not contend for a cache line. Counters of a slot
//! only grow, even when another process takes over the slot, so sums never decrease. A process that
//! finds no free slot shares one.
//!
//! The agent trusts nothing in the region: a job can write any number there, and harms only what is
//! predicted of itself. This file uses `core` alone, because the preloaded library, which must not
//! fetch dependencies into foreign programs, includes it as source.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of the region.
pub const REGION_BYTES: usize = size_of::<Region>();

const SLOTS: usize = 256;
const MAGIC: u64 = u64::from_ne_bytes(*b"FBOBSERV");
const VERSION: u32 = 2;

/// A waiting writer continues if the agent has not said for this many milliseconds that it must
/// wait: the agent is dead, or hangs.
pub const STILL_MS: u32 = 2000;

/// The region. All fields are atomics, so a shared reference to shared memory is sound, and any
/// content is a valid one.
#[repr(C, align(4096))]
pub struct Region {
    header: Header,
    slots: [Slot; SLOTS],
}

#[repr(C, align(4096))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    /// Not 0: the step has to wait. The agent keeps changing it as long as this is so.
    held: AtomicU32,
}

/// The counters of one process: two cache lines, since processors fetch lines in pairs.
#[repr(C, align(128))]
pub struct Slot {
    /// Its process, or 0.
    owner: AtomicU32,
    in_progress: AtomicU32,
    written_bytes: AtomicU64,
    read_bytes: AtomicU64,
    write_calls: AtomicU64,
    read_calls: AtomicU64,
    sync_calls: AtomicU64,
    last_activity_ns: AtomicU64,
}

/// Sums over all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Written to files of the PFS.
    pub written_bytes: u64,
    /// Read from files of the PFS.
    pub read_bytes: u64,
    /// Calls that wrote.
    pub write_calls: u64,
    /// Calls that read.
    pub read_calls: u64,
    /// Calls that wait for the storage: fsync, fdatasync, and close of a written file.
    pub sync_calls: u64,
    /// Calls that have begun and not returned.
    pub in_progress: u32,
    /// Time of the last call's begin or end, of the clock `CLOCK_MONOTONIC`; 0 if there was none.
    pub last_activity_ns: u64,
    /// Processes with a slot.
    pub processes: u32,
}

impl Region {
    /// Makes a region of zeroed memory usable.
    pub fn init(&self) {
        self.header.version.store(VERSION, Relaxed);
        self.header.magic.store(MAGIC, Release);
    }

    /// Holds the step, or lets it continue. The agent has to repeat a hold again and again: after
    /// [`STILL_MS`] without a change no writer waits any more.
    pub fn hold(&self, on: bool) {
        let next = self.header.held.load(Relaxed).wrapping_add(1).max(1);
        self.header.held.store(if on { next } else { 0 }, Release);
    }

    /// Returns 0 if a writer may continue; else it waits, and looks again.
    pub fn held(&self) -> u32 {
        self.header.held.load(Acquire)
    }

    /// Whether [`Region::init`] of this version made it.
    pub fn is_valid(&self) -> bool {
        self.header.magic.load(Acquire) == MAGIC && self.header.version.load(Relaxed) == VERSION
    }

    /// The slot for the process `pid`: the one it had before it called `execve`, a free one, or, if
    /// all are taken, one that it shares.
    pub fn claim(&self, pid: u32) -> &Slot {
        let first = pid as usize % SLOTS;
        let around = || self.slots[first..].iter().chain(&self.slots[..first]);
        if let Some(own) = around().find(|slot| slot.owner.load(Relaxed) == pid) {
            // Threads that were in a call when another one called `execve` never return.
            own.in_progress.store(0, Relaxed);
            return own;
        }
        around()
            .find(|slot| slot.owner.compare_exchange(0, pid, AcqRel, Relaxed).is_ok())
            .unwrap_or(&self.slots[first])
    }

    /// Sums over all slots.
    pub fn progress(&self) -> Progress {
        let mut sum = Progress::default();
        for slot in &self.slots {
            let add = |to: &mut u64, from: &AtomicU64| *to = to.saturating_add(from.load(Relaxed));
            add(&mut sum.written_bytes, &slot.written_bytes);
            add(&mut sum.read_bytes, &slot.read_bytes);
            add(&mut sum.write_calls, &slot.write_calls);
            add(&mut sum.read_calls, &slot.read_calls);
            add(&mut sum.sync_calls, &slot.sync_calls);
            sum.last_activity_ns = sum.last_activity_ns.max(slot.last_activity_ns.load(Relaxed));
            sum.in_progress = sum.in_progress.saturating_add(slot.in_progress.load(Relaxed));
            sum.processes += u32::from(slot.owner.load(Relaxed) != 0);
        }
        sum
    }

    /// Frees the slots of processes that have died, with the calls that they were in.
    pub fn release(&self, is_alive: impl Fn(u32) -> bool) {
        for slot in &self.slots {
            let owner = slot.owner.load(Relaxed);
            if owner != 0 && !is_alive(owner) {
                slot.in_progress.store(0, Relaxed);
                slot.release(owner);
            }
        }
    }
}

impl Slot {
    /// Notes that a call begins that may keep the PFS busy.
    pub fn begin(&self, now_ns: u64) {
        self.in_progress.fetch_add(1, Relaxed);
        self.last_activity_ns.store(now_ns, Relaxed);
    }

    /// Notes that a call has returned.
    pub fn end(&self, now_ns: u64) {
        // Not below zero, if the count was reset under the call.
        let _ = self.in_progress.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        self.last_activity_ns.store(now_ns, Relaxed);
    }

    /// Counts a call that has written.
    pub fn written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Relaxed);
        self.write_calls.fetch_add(1, Relaxed);
    }

    /// Counts a call that has read.
    pub fn read(&self, bytes: u64, now_ns: u64) {
        self.read_bytes.fetch_add(bytes, Relaxed);
        self.read_calls.fetch_add(1, Relaxed);
        self.last_activity_ns.store(now_ns, Relaxed);
    }

    /// Counts a call that has waited for the storage.
    pub fn synced(&self) {
        self.sync_calls.fetch_add(1, Relaxed);
    }

    /// Frees the slot of the process `pid`, which ends. Its counts stay.
    pub fn release(&self, pid: u32) {
        let _ = self.owner.compare_exchange(pid, 0, AcqRel, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Box<Region> {
        // SAFETY: all fields are atomic integers, for which zero is valid; it is `Region`'s layout.
        let region = unsafe {
            Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<Region>()).cast::<Region>())
        };
        region.init();
        region
    }

    #[test]
    fn the_layout_is_the_one_of_version_2() {
        assert_eq!((REGION_BYTES, size_of::<Slot>()), (4096 + 256 * 128, 128));
    }

    #[test]
    fn what_is_held_changes_until_it_is_free() {
        let region = region();
        assert_eq!(region.held(), 0);
        region.header.held.store(u32::MAX, Relaxed);
        region.hold(true);
        let first = region.held();
        region.hold(true);
        assert!(first != 0 && region.held() != 0 && region.held() != first);
        region.hold(false);
        assert_eq!(region.held(), 0);
    }

    #[test]
    fn zeroed_memory_is_not_valid_before_init() {
        assert!(region().is_valid());
        region().header.version.store(VERSION + 1, Relaxed);
        let other = region();
        other.header.version.store(VERSION + 1, Relaxed);
        assert!(!other.is_valid());
    }

    #[test]
    fn sums_survive_the_end_of_processes_and_never_go_back() {
        let region = region();
        for pid in 1..=1_000 {
            let slot = region.claim(pid);
            slot.begin(pid.into());
            slot.written(10);
            slot.end(pid.into());
            if pid % 3 == 0 {
                slot.release(pid);
            }
            assert_eq!(region.progress().written_bytes, u64::from(pid) * 10);
        }
        let progress = region.progress();
        assert_eq!((progress.write_calls, progress.in_progress), (1_000, 0));
        assert_eq!(progress.processes, SLOTS as u32, "more processes than slots share them");
        region.release(|_| false);
        assert_eq!(Progress { processes: SLOTS as u32, ..region.progress() }, progress);
    }

    #[test]
    fn calls_of_dead_processes_are_not_in_progress() {
        let region = region();
        region.claim(7).begin(1);
        region.claim(8).begin(2);
        region.release(|pid| pid == 8);
        let progress = region.progress();
        assert_eq!((progress.in_progress, progress.processes, progress.last_activity_ns), (1, 1, 2));
        // A process that replaces its program keeps its slot, and its calls are over.
        region.claim(8);
        assert_eq!(region.progress().in_progress, 0);
    }
}
