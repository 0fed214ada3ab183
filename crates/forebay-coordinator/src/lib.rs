//! The coordinator: who is in the cluster, which jobs run, and what is prefetched for them.
//!
//! There is one per cluster, in an agent's process or in its own, and nothing depends on it for reading: it is off the
//! data path and holds nothing that the agents do not tell it again when it comes back. `server` is one thread that waits
//! for all agents, and `buffers` what it may hold for them; below it everything takes the time as an argument and knows no sockets: `members` is the membership,
//! `jobs` what jobs have told, `waves` how their tasks are cut into waves, `lanes` the servers of the PFS,
//! `run` how far a stage and its orders are, and `pump` drives the planners of the policy crate and turns their decisions into orders.

mod buffers;
pub mod core;
pub mod jobs;
pub mod lanes;
pub mod members;
pub mod pump;
pub mod run;
pub mod server;
pub mod waves;

pub use server::{Coordinator, Options};
