//! All together: HPC jobs that write steps to shared burst buffers, the way of these steps to a
//! parallel file system of several servers, I/O phases of HPC jobs there, and the tasks of Big Data
//! jobs that read and write there.
//!
//! This world consists of the parts that scenarios of other kinds have alone: the nodes and the
//! file system of [`crate::cluster`], the burst buffers of [`crate::burst`]. They share one queue
//! of events and one trace. What a scenario does not have makes no difference, so a scenario with a
//! single part gives the results of that part's kind.
//!
//! Two models divide bandwidth. Burst buffer nodes give all writers and readers a max-min share.
//! Servers of the file system send and take what clients have requested, in the order in which it
//! was requested: reads of tasks and prefetches, writes of tasks, phases of HPC jobs, and steps
//! that are drained. A client has a bounded number of requests pending, and so gets a share that
//! depends on them. The policy machines decide everything else.
//!
//! | file | what it models |
//! | --- | --- |
//! | `events` | a run: what happens, in which part |
//! | `hpc` | I/O phases of HPC jobs on the file system |
//! | `drain` | steps on their way from burst buffers to the file system |
//! | `memory` | compute that takes memory from tiers |
//! | `faults` | nodes that fail |
//! | `outcome`, `view` | the outcome of a run, and its form for people |

use serde::{Deserialize, Serialize};

use crate::burst::Burst;
use crate::cluster::Cluster;
use crate::colocate::HpcSpec;
use crate::colocate::observer::Observer;
use crate::driver::Record;
use crate::memory::Node;
use crate::{burst, cluster, memory as laws};

mod drain;
mod events;
mod faults;
mod hpc;
mod memory;
mod outcome;
pub mod view;

pub use events::simulate;
pub use outcome::{Outcome, Unfinished};

use hpc::Hpc;

/// A node of the cluster fails, with its tier and the tasks that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFault {
    /// The node.
    pub node: u32,
    /// When, in ns from the start.
    pub at_ns: u64,
    /// For how long, in ns; `None`: for ever. It returns empty.
    pub for_ns: Option<u64>,
}

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Nodes with a tier, the file system, and Big Data jobs.
    pub cluster: cluster::Setup,
    /// Burst buffers and the jobs that write steps there.
    pub buffers: Option<burst::Setup>,
    /// HPC jobs with I/O phases on the file system.
    pub hpc: Vec<HpcSpec>,
    /// Memory of each node: law, load and tier at the start. Their seeds follow each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<laws::Setup>,
    /// Nodes of the cluster that fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<NodeFault>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// When the run ends, in ns from the start, whatever is left to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub horizon_ns: Option<u64>,
}

impl Setup {
    /// Bandwidth of all servers together, in bytes per second.
    pub fn pfs_bytes_per_s(&self) -> f64 {
        self.cluster.serves_bytes_per_s() * f64::from(self.cluster.servers)
    }

    /// Bytes of an I/O phase that would take `io_ns` with all servers to itself.
    pub fn phase_bytes(&self, io_ns: u64) -> u64 {
        ((io_ns as f64 * 1e-9 * self.pfs_bytes_per_s()).round() as u64).max(1)
    }

    /// Name of the drain policy; empty if there are no burst buffers.
    fn drain_policy(&self) -> &str {
        let drain = self.buffers.as_ref().and_then(|buffers| buffers.drain.as_ref());
        drain.map_or("", |drain| drain.policy.as_str())
    }

    /// Name of the access policy; empty if there are no burst buffers.
    fn access_policy(&self) -> &str {
        self.buffers.as_ref().map_or("", |buffers| buffers.access.as_str())
    }
}

/// All parts.
pub(crate) struct Together<'a> {
    pub setup: &'a Setup,
    pub record: &'a Record<'a>,
    pub cluster: Cluster<'a>,
    pub buffers: Option<Burst<'a>>,
    pub hpc: Vec<Hpc>,
    pub observer: Observer,
    /// Memory of the nodes, if it changes.
    pub memory: Vec<Node>,
    /// The capacity of each of their tiers, as last reported to the stage machine.
    pub reported: Vec<u64>,
    /// Bytes of phases that servers have.
    pub phase_bytes: u64,
}

/// Events of a run, by the part in which they happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happening {
    Cluster(cluster::Happening),
    Buffers(burst::Happening),
    HpcStarts(usize),
    PhaseBegins(usize),
    /// Servers have a piece of the phase of this HPC job.
    Piece(usize),
    /// The phase of this number (from 1) reports its progress.
    PhaseReports(usize, u32),
    ObserverWakes,
    /// Memory changes on all nodes.
    MemoryStep,
    NodeFails(NodeFault),
    NodeReturns(u32),
}

impl From<cluster::Happening> for Happening {
    fn from(happening: cluster::Happening) -> Self {
        Happening::Cluster(happening)
    }
}

impl From<burst::Happening> for Happening {
    fn from(happening: burst::Happening) -> Self {
        Happening::Buffers(happening)
    }
}
