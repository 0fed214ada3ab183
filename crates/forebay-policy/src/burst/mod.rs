//! Burst buffers that hold checkpoints: who stripes over which nodes, who writes when, and how fast
//! steps go on to the PFS. Only the simulator drives these policies as yet.
//!
//! | room | what it decides |
//! | --- | --- |
//! | `allocation` | the nodes over which the files of a job are striped |
//! | `access` | which steps write to the burst buffer, and in which order |
//! | `drain` | how fast steps that wait go on to the PFS |

pub mod access;
pub mod allocation;
pub mod drain;
