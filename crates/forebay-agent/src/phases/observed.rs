//! The memory in which the observer library counts the I/O of an HPC job's programs, as the agent
//! reads it.
//!
//! A sealed memory file, so that no program can take it away under the agent. Whatever a program
//! writes there changes what is believed of its own job only.

use forebay_policy::machine::Nanos;
use forebay_policy::phases::{Seen, Watch};
use forebay_wire::observed::{REGION_BYTES, Region};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// Fields of `/proc/PID/stat` between the state and the number of threads.
const THREADS_AFTER_STATE: usize = 16;

/// Polls after which slots of dead programs are looked for.
const RELEASE_EVERY: u32 = 20;

/// See the module.
#[derive(Debug)]
pub struct Observed {
    map: Map,
    watch: Watch,
    polls: u32,
    most_bytes: u64,
}

#[derive(Debug)]
struct Map(NonNull<Region>);

// SAFETY: the region is memory shared between processes, and all its fields are atomics.
unsafe impl Send for Map {}

impl Map {
    fn region(&self) -> &Region {
        // SAFETY: mapped until drop, as long as a region, and any content of it is valid.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `Observed::new` with this length, and nobody refers to it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), REGION_BYTES) };
    }
}

impl Observed {
    /// New memory, and the descriptor for the program.
    ///
    /// # Errors
    /// Out of memory or descriptors.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create("forebay-observed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, REGION_BYTES as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new map of a file that cannot shrink.
        let start =
            unsafe { mmap(std::ptr::null_mut(), REGION_BYTES, protection, MapFlags::SHARED, &fd, 0) }?;
        let map = Map(NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?);
        map.region().init();
        Ok((Observed { map, watch: Watch::new(), polls: 0, most_bytes: 0 }, fd))
    }

    /// What has happened since the last look.
    pub fn look(&mut self, now: Nanos) -> Vec<Seen> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(RELEASE_EVERY) {
            self.map.region().release(is_alive);
        }
        let progress = self.map.region().progress();
        self.most_bytes = self.most_bytes.max(progress.written_bytes.saturating_add(progress.read_bytes));
        self.watch.look(now, self.most_bytes, progress.in_progress > 0)
    }

    /// Lets the writers of the programs wait, until the next call or for a moment, or lets them go
    /// on.
    pub fn hold(&self, on: bool) {
        self.map.region().hold(on);
    }

    /// Whether a phase is under way.
    pub fn is_in_phase(&self) -> bool {
        self.watch.is_in_phase()
    }
}

/// Whether the process can still make progress. What cannot be found out counts as alive: a slot
/// that is freed too late costs a phase its end, one that is freed too early loses counts.
fn is_alive(pid: u32) -> bool {
    match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => !has_ended(&stat),
        Err(e) => !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
    }
}

/// Whether all threads of a process have ended. One that was killed keeps its number until its
/// parent asks for its exit code, which may be never; but a first thread that has ended looks the
/// same while others go on.
fn has_ended(stat: &[u8]) -> bool {
    // The name before the last bracket may contain any bytes.
    let Some(end) = stat.iter().rposition(|byte| *byte == b')') else { return false };
    let fields = String::from_utf8_lossy(&stat[end + 1..]);
    let mut fields = fields.split_whitespace();
    match fields.next() {
        Some("Z") => fields.nth(THREADS_AFTER_STATE).is_none_or(|threads| matches!(threads, "0" | "1")),
        Some(state) => state == "X",
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_when_its_last_thread_has_whatever_its_name() {
        let stat = |name: &[u8], state: &str, threads: u32| {
            let rest = format!(") {state} 1 2 3 0 -1 4227084 67 0 0 0 0 0 0 0 20 0 {threads} 0 99");
            has_ended(&[b"7 (", name, rest.as_bytes()].concat())
        };
        for name in [&b"dd"[..], b"a) Z 1", b"\xc3", b""] {
            assert!(stat(name, "Z", 1) && stat(name, "X", 1), "{name:?}");
            assert!(!stat(name, "Z", 2) && !stat(name, "S", 1) && !stat(name, "D", 9), "{name:?}");
        }
        assert!(!has_ended(b"") && !has_ended(b"7 (dd)"));
        assert!(is_alive(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn what_is_counted_there_becomes_a_phase_and_the_memory_cannot_shrink() {
        let (mut observed, fd) = Observed::new().unwrap();
        assert!(ftruncate(&fd, 0).is_err());
        assert!(observed.look(Nanos(1)).is_empty());
        let slot = observed.map.region().claim(std::process::id());
        slot.written(4 << 20);
        let seen = observed.look(Nanos(50_000_000));
        assert_eq!(seen, [Seen::Begins { at: Nanos(1), bytes: 0 }, Seen::Progress { bytes: 4 << 20 }]);
        assert!(observed.is_in_phase());
    }
}
