//! The I/O phases of HPC jobs as the agent of their node sees them: how far each should be, whether
//! it is behind, and whether prefetches must stop for it.
//!
//! [`Board`] is the machine. It receives what programs declare, how many bytes their phases have
//! moved, and what the boards of other nodes report; it decides when this node brakes, what is
//! reported to the coordinator, and which phase is cut off because it never ended. It works without
//! the coordinator: the brake must hold when that is down.
//!
//! | file | contents |
//! | --- | --- |
//! | `allowance` | how long the brake, and phases of unknown length, may last |
//! | `board` | the machine |
//! | `doubt` | jobs whose declared phases are not believed |
//! | `job` | one HPC job of this node and its phase |
//! | `line` | the line that the progress of a phase is compared with |
//! | `alone` | what is learnt about a job's I/O without interference |
//! | `bursts` | finds the phases of a job that declares none, in the progress of its bytes |
//! | `predict` | predicts its next phase from those |
//! | `watch` | turns bursts that are observed into phases |

mod allowance;
mod alone;
mod board;
pub mod bursts;
mod doubt;
mod job;
mod line;
pub mod predict;
#[cfg(test)]
mod tests;
mod watch;

pub use alone::Alone;
pub use board::{Action, Board, Config, Event, HpcPhase, JobStatus, Report};
pub use job::{Declared, EARLIER_MAX, Expected, Refused};
pub use line::{Line, kept_ns};
pub use watch::{LEAST_BYTES, Seen, Watch};

/// Names an HPC job of this node: a connection of a program.
pub type JobKey = u64;

/// Limit on times that are reported, 30 days: longer ones are implausible.
pub const LONGEST_NS: u64 = 30 * 86_400 * 1_000_000_000;

/// Limit on the bytes of a phase.
pub const BYTES_MAX: u64 = 1 << 60;
