//! The brake: whether this node may fetch what no reader waits for.
//!
//! It is on while an I/O phase of an HPC job, here or on another node, is behind
//! ([`crate::phases`]). It stops the pages of prefetch requests, loads, read-ahead and refills,
//! from the next chunk on; pages that a reader waits for go on. When the coordinator pauses all
//! prefetch requests of this node, their pages stop in the same way.

use crate::lock::lock;
use forebay_policy::fetch_order::Urgency;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often whoever is held up looks whether the brake is off.
pub const LOOK: Duration = Duration::from_millis(20);

/// How long after a phase the next one may begin at any time: what it would have to wait for is
/// short then.
const PHASES_REMEMBERED: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Debug, Default)]
pub struct Brake {
    on: AtomicBool,
    /// A phase is under way somewhere.
    phases: AtomicBool,
    /// When one was last.
    last_phase: Mutex<Option<Instant>>,
    /// All prefetch requests of the coordinator are paused.
    requests_rest: AtomicBool,
    /// The coordinator is silent: it does not know how the phases are.
    coordinator_silent: AtomicBool,
    /// When this node has last read from the PFS.
    last_read: Mutex<Option<Instant>>,
}

impl Brake {
    /// On or off.
    pub fn set(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }

    /// Whether what no reader waits for stops.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }

    /// Whether any phase is under way.
    pub fn set_phases(&self, under_way: bool) {
        if self.phases.swap(under_way, Ordering::SeqCst) || under_way {
            *lock(&self.last_phase) = Some(Instant::now());
        }
    }

    /// The coordinator has paused all of its requests, or wants one of them to go on.
    pub fn set_requests_rest(&self, rest: bool) {
        self.requests_rest.store(rest, Ordering::SeqCst);
    }

    /// Whether the pages of the coordinator's requests stop.
    pub fn do_requests_rest(&self) -> bool {
        self.requests_rest.load(Ordering::SeqCst)
    }

    /// Whether a page for which no reader waits stops at the end of its chunk.
    pub fn stops(&self, urgency: Urgency) -> bool {
        self.is_on() || urgency == Urgency::Plan && self.do_requests_rest()
    }

    /// Whether what no reader waits for is fetched in small chunks, since it may have to stop: a
    /// phase is under way, or may begin.
    pub fn is_gentle(&self) -> bool {
        self.phases.load(Ordering::SeqCst)
            || lock(&self.last_phase).is_some_and(|at| at.elapsed() < PHASES_REMEMBERED)
    }

    /// This node has read from the PFS, whoever wanted it.
    pub fn note_read(&self) {
        *lock(&self.last_read) = Some(Instant::now());
    }

    /// Time since it last did; `None` if it never has.
    pub fn since_read(&self) -> Option<Duration> {
        lock(&self.last_read).map(|at| at.elapsed())
    }

    /// The coordinator has been silent for its lease, or is heard again.
    pub fn set_coordinator_silent(&self, silent: bool) {
        self.coordinator_silent.store(silent, Ordering::SeqCst);
    }

    /// Whether the coordinator is silent.
    pub fn is_coordinator_silent(&self) -> bool {
        self.coordinator_silent.load(Ordering::SeqCst)
    }

    /// Whether the coordinator's prefetch requests stop: also if it cannot follow the phases.
    pub fn holds_orders(&self) -> bool {
        self.is_on() || self.phases.load(Ordering::SeqCst) && self.is_coordinator_silent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_coordinator_stops_its_requests_only_while_there_are_phases() {
        let brake = Brake::default();
        brake.set_coordinator_silent(true);
        assert!(!brake.holds_orders() && !brake.is_on());
        brake.set_phases(true);
        assert!(brake.holds_orders() && !brake.is_on());
        brake.set_coordinator_silent(false);
        assert!(!brake.holds_orders() && brake.is_gentle());
        brake.set(true);
        assert!(brake.holds_orders() && brake.is_on());
    }

    #[test]
    fn paused_requests_stop_alone_and_chunks_stay_small_after_a_phase() {
        let brake = Brake::default();
        brake.set_phases(false);
        assert!(!brake.is_gentle(), "there was no phase yet");
        brake.set_requests_rest(true);
        let stopped = |brake: &Brake| [Urgency::Ahead, Urgency::Plan, Urgency::Load].map(|u| brake.stops(u));
        assert_eq!(stopped(&brake), [false, true, false]);
        brake.set(true);
        assert_eq!(stopped(&brake), [true; 3]);
        brake.set_phases(true);
        brake.set_phases(false);
        brake.set_coordinator_silent(true);
        brake.set(false);
        assert!(brake.is_gentle() && !brake.holds_orders());
    }
}
