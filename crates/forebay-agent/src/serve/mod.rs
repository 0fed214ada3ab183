//! Serving the programs on this node.
//!
//! | file | what it does |
//! | --- | --- |
//! | `connection` | takes packets of a client, and sends answers |
//! | `requests` | which file answers which request |
//! | `open`, `miss`, `write`, `pins` | files of the PFS: opened, read, written through, pinned |
//! | `dirty` | files that are written back |
//! | `guest`, `guest_connection`, `guest_mount` | such files of other nodes |
//! | `checkpoints` | sets of such files |
//! | `layout` | layouts that only a tool of the PFS can set |
//! | `loads` | the load of a connection |
//! | `scratch` | memory-only files |
//! | `shuffle` | map outputs |
//! | `jobs` | what jobs report; questions to the coordinator |
//! | `phases` | what HPC jobs report of their I/O phases |
//! | `traffic` | jobs and their rate limits; the log |
//! | `health` | how this node is, for the coordinator and `doctor --cluster` |
//! | `admin` | what operators and the command line request |
//! | `session`, `write_staging` | what a client has here while it is connected |
//! | `closer` | closes descriptors that may hang |

pub mod admin;
pub mod checkpoints;
pub mod closer;
pub mod connection;
pub mod dirty;
pub mod guest;
pub mod guest_connection;
pub mod guest_mount;
pub mod health;
pub mod jobs;
pub mod layout;
pub mod loads;
pub mod miss;
pub mod open;
pub mod phases;
pub mod pins;
pub mod requests;
pub mod scratch;
pub mod session;
pub mod shuffle;
pub mod traffic;
pub mod write;
pub mod write_staging;
