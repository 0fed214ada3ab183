//! `sys-fcfs`, `sa-fcfs`: first come, first served.

use super::{Policy, Scope};
use crate::machine::Nanos;

/// In order of arrival.
pub struct Fcfs {
    pub scope: Scope,
}

impl Policy for Fcfs {
    fn scope(&self) -> Scope {
        self.scope
    }

    fn key(&self, arrived: Nanos, _alone_ns: u64) -> u64 {
        arrived.0
    }
}
