//! `none`: no scheduling. Every step writes at once, and the nodes divide their bandwidth over all
//! processes.

use super::{Policy, Scope};
use crate::machine::Nanos;

/// Lets everything in.
pub struct NoScheduling;

impl Policy for NoScheduling {
    fn scope(&self) -> Scope {
        Scope::Everything
    }

    fn key(&self, arrived: Nanos, _alone_ns: u64) -> u64 {
        arrived.0
    }
}
