//! `sys-fcfs`, `sa-fcfs`: first come, first served; and `none`: all steps write at the same time,
//! and the nodes divide their bandwidth over all processes.

use super::{Policy, Scope};

/// Orders steps by arrival.
pub struct Fcfs {
    /// What may run side by side.
    pub scope: Scope,
}

impl Policy for Fcfs {
    fn scope(&self) -> Scope {
        self.scope
    }
}
