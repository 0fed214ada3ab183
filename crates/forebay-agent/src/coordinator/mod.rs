//! The connection to the coordinator.

pub mod link;
