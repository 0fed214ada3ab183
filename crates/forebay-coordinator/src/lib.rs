//! The coordinator: who is in the cluster, which jobs run, and what is prefetched for them.
//!
//! There is one per cluster, in an agent's process or in its own, and nothing depends on it for
//! reading: it is off the data path and holds nothing that the agents do not report again when it
//! comes back. Of several candidates, one is elected in etcd: `election` says which leads and for
//! how long, `stored` is what the next leader has to know of nodes that died with the last one, and
//! `standby` is what the others answer. `server` is one thread that waits for all agents, and
//! `buffers` what it may hold for them. Below it everything takes the time as an argument and knows
//! no sockets: `members` is the membership, and `driver` drives the stage machine of the policy
//! crate, which decides what is prefetched; `reports` bounds what it keeps for that, `hpc` makes
//! one job of the programs of an HPC job, and `plan_log` remembers what was planned and what came
//! of it. `report` is what it says of itself, with the curves of `samples`; `recorded` makes the
//! same of a decision log, in which `note` has what machines do not hear.

mod buffers;
pub mod core;
mod dirty;
pub mod driver;
pub mod election;
pub mod etcd;
mod hpc;
mod limits;
pub mod members;
mod note;
pub mod plan_log;
pub mod recorded;
pub mod report;
mod reports;
mod samples;
pub mod server;
mod standby;
pub mod steps;
pub mod stored;
mod translate;

/// The system as it was measured.
pub use forebay_policy::stage::Profile;
/// What planners may decide.
pub use plan_log::ACTIONS;
pub use server::{Coordinator, Options, Reports};
