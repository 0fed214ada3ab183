//! A cluster with a real parallel file system, on one machine: `forebay lab up`, `down`, `run`,
//! `status`.
//!
//! Every machine of the cluster is a set of namespaces (network, mounts, host name) that a sleeping
//! process holds open. The servers of the file system, its clients and Forebay's agents are the
//! programs one would run on real machines, started inside; they are connected by pairs of virtual
//! links on a bridge, and the links of the servers are shaped to a set rate.
//!
//! ```text
//!            c1        c2        c3        c4      head      c1 to c4: PFS client, agent, Spark
//!             |         |         |         |       |        worker; head: metadata server,
//!             |         |         |         |       |        coordinator, Spark master; unshaped
//!          ===+=========+=========+=========+=======+==+===  bridge in a namespace of its own
//!             |         |         |         |          |
//!          pfs-s1    pfs-s2    pfs-s3    pfs-s4     the host  80 MB/s each way for each server
//! ```
//!
//! Not containers, for they need a daemon and images that the lab has no use for; and not one
//! machine with many ports, for then every path and host name would exist once and links could not
//! be shaped one by one.
//!
//! What the lab leaves in the kernel can be found again without any record of it: names of network
//! namespaces begin with `forebay-LAB-`, its control group is `forebay-LAB`, and every process of
//! the lab is in one of these. So `down` works after any crash, see [`down`].
//!
//! | what | where |
//! | --- | --- |
//! | the kinds of file system | [`kind`] |
//! | names, addresses, paths; pure | [`plan`] |
//! | the record of a lab below `/run` | [`state`] |
//! | locks of labs, packages and addresses | [`lock`] |
//! | the directory of a lab, and whose it is | [`directory`] |
//! | making nodes and entering them | [`space`] |
//! | storage of the servers, and its bound | [`store`] |
//! | FUSE connections, and their abort | [`fuse`] |
//! | bridge, links, rates, counters | [`net`] |
//! | cores of the compute nodes | [`cpu`] |
//! | processes, and which belong to a lab | [`process`] |
//! | starting and watching what runs | [`service`] |
//! | the file systems | [`pfs`], [`moosefs`], [`glusterfs`], [`cephfs`] |
//! | what runs on the nodes | [`agents`], [`spark`] |
//! | the commands | [`up`], [`down`], [`mod@run`], [`status`] |
//! | what has to be installed | [`packages`] |

pub mod agents;
pub mod cephfs;
pub mod cpu;
pub mod directory;
pub mod down;
pub mod fuse;
pub mod glusterfs;
pub mod kind;
pub mod lock;
pub mod moosefs;
pub mod net;
pub mod packages;
pub mod pfs;
pub mod plan;
pub mod process;
mod root;
pub mod run;
pub mod service;
pub mod space;
pub mod spark;
pub mod state;
pub mod status;
pub mod store;
pub mod up;

use std::time::Duration;

/// Longest wait for servers to come up, and for a mount.
const PATIENCE: Duration = Duration::from_secs(30);
