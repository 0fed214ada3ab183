//! Decisions, and nothing else.
//!
//! Every planner, scheduler, cache policy and controller of Forebay is a small machine in this
//! crate: events and `now` go in, plain actions come out. The crate is `no_std`, so there is no
//! clock, file, socket, thread or randomly seeded map to reach for; the daemons, the simulator and
//! `forebay replay` drive the very same code.
#![cfg_attr(not(test), no_std)]
extern crate alloc;

mod arena;
pub mod bandwidth;
pub mod batch_queue;
pub mod burst;
pub mod concurrency_window;
pub mod disk_level;
pub mod drain;
pub mod eviction;
pub mod fetch_order;
pub mod isolation;
pub mod job_limits;
pub mod machine;
pub mod memory;
pub mod merge_gap;
pub mod miss_ledger;
pub mod node;
pub mod phases;
pub mod placement;
pub mod planner;
pub mod preferred_nodes;
pub mod readahead;
pub mod ship;
pub mod spread;
pub mod stage;
pub mod token_bucket;
