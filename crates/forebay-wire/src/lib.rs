//! The protocols between clients, agents and the coordinator.
//!
//! On one node, `message` defines the messages and `channel` carries them over a Unix socket
//! together with file descriptors. A message is one packet (`SOCK_SEQPACKET`): a packet arrives
//! whole or not at all, with its descriptors, so there is no framing to lose and a garbled packet
//! spoils nothing but itself. Between nodes, `cluster` (agent and coordinator) and `peer` (agent
//! and agent) define the messages, `frame` puts them on a byte stream, `framed` does so without
//! ever waiting, and `link` makes such streams out of connections whose other end has proved
//! itself; `proving` bounds those that are still doing so. Bodies are postcard; anything that does
//! not decode is refused, never guessed at.

pub mod channel;
pub mod cluster;
pub mod counted;
pub mod frame;
pub mod framed;
pub mod hpc;
pub mod intercepted;
pub mod link;
pub mod message;
pub mod observed;
pub mod owner;
pub mod peer;
pub mod proving;
pub mod reloaded;
pub mod shuffle;
mod sock_diag;
pub mod storage;
pub mod tls;
mod tls_stream;
pub mod traffic;

pub use channel::{Channel, MAX_FDS, MAX_PACKET_BYTES, Received};
pub use cluster::{
    ClusterView, Epoch, FileLayout, FileRef, Health, JobStatus, JobUpdate, NodeHealth, NodeInfo, NodeStatus,
    Overview, Part, Role, Sample, Split,
};
pub use hpc::{Burst, Declared, HpcPhase, HpcStatus, PlanLog, Report, StepStatus};
pub use message::*;
pub use storage::StorageHosts;
pub use traffic::{JobName, JobTraffic, Limit, ServerTraffic};
