//! The memory of this node: what the agent may plan with, where it may run short, and what says so.
//!
//! | file | what it does |
//! | --- | --- |
//! | `limit` | physical memory, and the limit of the agent's control group |
//! | `memory_place` | what is in use on the node and in each group that has a limit |
//! | `alarm` | events of the kernel: stalls, thresholds of use, limits that were reached |
//! | `parts` | what use consists of, for display |
//! | `service` | events of a service manager, such as systemd |

pub mod alarm;
pub mod limit;
pub mod memory_place;
pub mod parts;
mod service;

pub use limit::{GroupLimit, group_limit, total_bytes, usable_bytes};
pub use service::{Asked, asked};
