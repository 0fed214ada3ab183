//! The node agent: one process per node that holds the RAM tier and fetches pages into it.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `agent` | start, housekeeping and end; builds all the rooms |
//! | `serve` | connections of local programs, and a file for each kind of request |
//! | `peers` | connections of other nodes, which request pages |
//! | `coordinator` | the connection to the coordinator |
//! | `phases` | I/O phases of HPC jobs: the board of this node, and news from and to others |
//! | `shuffle` | map outputs of Spark and MapReduce, in memory-only files |
//! | `write_back` | files that programs write to the tier first, on their way to the PFS |
//! | `jobs` | what jobs of local programs report, and where their files lie |
//! | `prefetch` | loads, and requests of the coordinator |
//! | `fetch` | what a miss does: a page comes from the peer that owns it, or from the PFS |
//! | `scheduler` | drives the node machine: what is fetched, and when |
//! | `memory_control` | the memory controller: the tier gives way to compute |
//! | `cache` | cached versions and their pages, pins, and eviction |
//! | `cluster` | the members, and who owns which extent |
//! | `user_limits` | what one user may hold |
//! | `traffic` | what jobs move from and to the PFS, and their rate limits |
//! | `mounts` | the PFS mounts: which files they serve, and whether a version is settled |
//! | `config`, `counters`, `audit`, `decision_log`, `stop`, `lock`, `units`, `memory` | what all rooms use |
//!
//! The table is in order: a room imports rooms below it and none above. A read that misses goes
//! through `serve/connection`, `serve/miss`, `fetch`, `cache`. What is cached, and what of it is
//! evicted first, is decided by the policy crate.

pub mod agent;
pub mod audit;
pub mod cache;
pub mod cluster;
pub mod config;
pub mod coordinator;
pub mod counters;
mod decision_log;
pub mod fetch;
pub mod jobs;
pub mod lock;
pub mod memory;
pub mod memory_control;
pub mod mounts;
pub mod peers;
pub mod phases;
pub mod prefetch;
pub mod scheduler;
pub mod serve;
pub mod shuffle;
pub mod stop;
pub mod traffic;
pub mod units;
pub mod user_limits;
pub mod write_back;

pub use agent::Agent;
pub use config::{ClusterConfig, Config, MountConfig};
pub use coordinator::address::CoordinatorAddress;
pub use serve::closer::Closer;
