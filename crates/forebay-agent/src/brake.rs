//! The brake: whether this node may fetch what no reader waits for.
//!
//! It is on while an I/O phase of an HPC job, here or on another node, is behind
//! ([`crate::phases`]). It stops the pages of prefetch requests, loads, read-ahead and refills,
//! from the next chunk on; pages that a reader waits for go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often whoever is held up looks whether the brake is off.
pub const LOOK: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug, Default)]
pub struct Brake {
    on: AtomicBool,
    /// A phase is under way somewhere.
    phases: AtomicBool,
    /// The coordinator is silent: it does not know how the phases are.
    coordinator_silent: AtomicBool,
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
        self.phases.store(under_way, Ordering::SeqCst);
    }

    /// Whether what no reader waits for is fetched in small chunks, since it may have to stop.
    pub fn is_gentle(&self) -> bool {
        self.phases.load(Ordering::SeqCst)
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
        self.is_on() || self.is_gentle() && self.is_coordinator_silent()
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
}
