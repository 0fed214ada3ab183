//! The node agent: one process per node that holds the RAM tier and brings pages into it.
//!
//! A read of a client that misses goes through these files in order: `connection` takes the packet,
//! `open` admits the descriptor, `read` finds or starts the page's flight, `fetch` reads the PFS,
//! `cache` finds the memory. `load`, `write` and `scratch` are the other ways in; `admin` tells and
//! changes the state of things. What is cached, and what of it goes first, is decided by the policy
//! crate.

pub mod admin;
pub mod agent;
pub mod by_path;
pub mod cache;
pub mod closer;
pub mod cluster;
pub mod config;
pub mod connection;
pub mod counters;
pub mod entry;
pub mod fetch;
pub mod fill;
pub mod jobs;
pub mod layouts;
pub mod link;
pub mod load;
pub mod memory;
pub mod mounts;
pub mod open;
pub mod orders;
pub mod peer_client;
pub mod peer_link;
pub mod peer_open;
pub mod peer_server;
pub mod read;
pub mod scratch;
pub mod seal;
pub mod shares;
pub mod stamps;
pub mod units;
pub mod write;

pub use agent::{Agent, Shared};
pub use config::{ClusterConfig, Config, MountConfig};
pub use link::Home;
