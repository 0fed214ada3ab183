//! The connection to the coordinator.
//!
//! | file | what it does |
//! | --- | --- |
//! | `home` | where the coordinator is |
//! | `link` | what the rest of the agent says to it |
//! | `connection` | the thread that stays connected |
//! | `answers` | whether the coordinator still answers |

mod answers;
pub mod connection;
pub mod home;
pub mod link;
