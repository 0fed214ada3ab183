//! `sys-fcfs`, `sa-fcfs`: first come, first served; and `none`: every step writes at once, and the
//! nodes divide their bandwidth over all processes.

use super::{Policy, Scope};

/// In order of arrival.
pub struct Fcfs {
    /// What may run side by side.
    pub scope: Scope,
}

impl Policy for Fcfs {
    fn scope(&self) -> Scope {
        self.scope
    }
}
