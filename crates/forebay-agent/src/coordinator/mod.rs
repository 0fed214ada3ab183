//! The connection to the coordinator.
//!
//! | file | what it does |
//! | --- | --- |
//! | `address` | where the coordinator is |
//! | `link` | what the rest of the agent says to it |
//! | `connection` | the thread that stays connected |
//! | `answers` | whether the coordinator still answers |

pub mod address;
mod answers;
pub mod claims;
pub mod connection;
pub mod link;
