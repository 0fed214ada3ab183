//! Which file systems a lab can have.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The file system of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PfsKind {
    /// MooseFS: a metadata server on the head, files in chunks of 64 MiB, one copy of each
    Moosefs,
    /// GlusterFS: no metadata server, each file on one of the servers
    Glusterfs,
    /// CephFS: a metadata server on the head, files in objects of 4 MiB over all servers, one copy
    /// of each
    Cephfs,
}
