//! Burst buffers that hold checkpoints: which nodes a job stripes over, and which steps write when.
//! Only the simulator drives these policies as yet. How steps continue to the PFS:
//! [`crate::drain`].
//!
//! | room | what it decides |
//! | --- | --- |
//! | `allocation` | the nodes over which the files of a job are striped |
//! | `access` | which steps write to the burst buffer, and in which order |
//! | `period` | how often jobs write checkpoints |

pub mod access;
pub mod allocation;
pub mod period;
