//! The memory in which the observer library counts the I/O of an HPC job's programs, as the agent
//! reads it.
//!
//! A sealed memory file, so that no program can take it away under the agent. Whatever a program
//! writes there only changes what is believed of its own job.

use forebay_policy::machine::Nanos;
use forebay_policy::phases::{Seen, Watch};
use forebay_store::map::Map;
use forebay_store::ring::sealed_memfd;
use forebay_wire::observed::{REGION_BYTES, Region};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

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

impl Observed {
    /// New memory, and the descriptor for the program.
    ///
    /// # Errors
    /// Out of memory or descriptors.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let fd = sealed_memfd(c"forebay-observed", REGION_BYTES as u64)?;
        let map = Map::new(fd.as_fd(), 0, REGION_BYTES, true)?;
        let observed = Observed { map, watch: Watch::new(), polls: 0, most_bytes: 0 };
        observed.region().init();
        Ok((observed, fd))
    }

    fn region(&self) -> &Region {
        // SAFETY: page-aligned memory of a region's length, mapped until `self` ends; all fields
        // are atomics, and any content is valid.
        unsafe { &*self.map.as_ptr().cast() }
    }

    /// What has happened since the last look.
    pub fn look(&mut self, now: Nanos) -> Vec<Seen> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(RELEASE_EVERY) {
            self.region().release(is_alive);
        }
        let progress = self.region().progress();
        self.most_bytes = self.most_bytes.max(progress.written_bytes.saturating_add(progress.read_bytes));
        self.watch.look(now, self.most_bytes, progress.in_progress > 0)
    }

    /// Lets the writers of the programs wait, until the next call or for a moment, or lets them
    /// continue.
    pub fn hold(&self, on: bool) {
        self.region().hold(on);
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
/// same while others continue.
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
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert!(observed.look(Nanos(1)).is_empty());
        let slot = observed.region().claim(std::process::id());
        slot.written(4 << 20);
        let seen = observed.look(Nanos(50_000_000));
        assert_eq!(seen, [Seen::Begins { at: Nanos(1), bytes: 0 }, Seen::Progress { bytes: 4 << 20 }]);
        assert!(observed.is_in_phase());
    }
}
