//! The policy machines of a run, with their configuration: for the world, and for a replay.

use forebay_policy::burst::access::{self, Access};
use forebay_policy::burst::allocation::{self, Allocator};

use super::Setup;
use crate::error::Result;

/// Builds the access scheduler and the allocator.
///
/// # Errors
/// If a policy does not exist.
pub fn machines(setup: &Setup) -> Result<(Access, Allocator)> {
    let config = access::Config { nodes: setup.nodes, ..setup.config.clone() };
    let access = access::policy(&setup.access, &config)?;
    let allocation = allocation::policy(&setup.allocation)?;
    let allocator = Allocator::new(allocation, setup.nodes, setup.node_bytes);
    Ok((Access::new(access, config), allocator))
}
