//! What the servers have done: counters that let a test prove that each byte was served once, or
//! that a fault struck.
//!
//! Counters are relaxed atomics, counted before the reply is sent: a client that has its answer
//! sees it counted. [`Stats`] is the contract: field names are stable, units are in them, new
//! fields are added at will.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use super::fault::Op;
use super::stripe::Share;

/// What one server has moved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// As in the layout: `server0` ...
    pub name: String,
    /// Bytes read from this server.
    pub read_bytes: u64,
    /// Bytes written to this server.
    pub written_bytes: u64,
}

/// How many operations were made to fail, hang or wait, by class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultStats {
    /// All classes.
    pub total: u64,
    /// Reads.
    pub read: u64,
    /// Writes.
    pub write: u64,
    /// Opens and creates.
    pub open: u64,
    /// Operations on names and attributes.
    pub meta: u64,
    /// fsync and flush.
    pub sync: u64,
}

/// A snapshot of all counters since the start or the last reset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Each server, in order.
    pub servers: Vec<ServerStats>,
    /// The limit of each server; null: none.
    pub rate_bytes_per_s: Option<u64>,
    /// Sum over the servers.
    pub read_bytes: u64,
    /// Sum over the servers.
    pub written_bytes: u64,
    /// Read requests served (from the kernel: up to 1 MiB each).
    pub reads: u64,
    /// Write requests served.
    pub writes: u64,
    /// Opens, creates included.
    pub opens: u64,
    /// getattr requests.
    pub getattrs: u64,
    /// lookup requests.
    pub lookups: u64,
    /// All operations on names and attributes, getattr and lookup included.
    pub meta_ops: u64,
    /// fsync and flush requests.
    pub syncs: u64,
    /// Faults injected.
    pub faults: FaultStats,
    /// Operations held by a hang right now.
    pub hung_now: u64,
    /// Files open right now.
    pub open_files_now: u64,
}

/// The live counters.
#[derive(Debug)]
pub struct Counters {
    read_bytes: Vec<AtomicU64>,
    written_bytes: Vec<AtomicU64>,
    reads: AtomicU64,
    writes: AtomicU64,
    /// Successful opens.
    pub opens: AtomicU64,
    /// getattr requests.
    pub getattrs: AtomicU64,
    /// lookup requests.
    pub lookups: AtomicU64,
    /// Operations on names and attributes.
    pub meta_ops: AtomicU64,
    /// fsync and flush requests.
    pub syncs: AtomicU64,
    faults: [AtomicU64; 5],
}

impl Counters {
    /// All zero, for `servers` servers.
    pub fn new(servers: usize) -> Self {
        let zeros = || (0..servers).map(|_| AtomicU64::new(0)).collect();
        Self {
            read_bytes: zeros(),
            written_bytes: zeros(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            opens: AtomicU64::new(0),
            getattrs: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
            meta_ops: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            faults: Default::default(),
        }
    }

    /// Counts one read request served.
    pub fn count_read(&self, share: &Share) {
        self.reads.fetch_add(1, Relaxed);
        add(&self.read_bytes, share);
    }

    /// Counts one write request served.
    pub fn count_write(&self, share: &Share) {
        self.writes.fetch_add(1, Relaxed);
        add(&self.written_bytes, share);
    }

    /// Counts one operation that a fault struck.
    pub fn count_fault(&self, op: Op) {
        self.faults[fault_index(op)].fetch_add(1, Relaxed);
    }

    /// The counters now; what is not a counter is left at its default.
    pub fn snapshot(&self) -> Stats {
        let servers = self.read_bytes.iter().zip(&self.written_bytes).enumerate();
        let servers: Vec<_> = servers
            .map(|(i, (read, written))| ServerStats {
                name: server_name(i),
                read_bytes: read.load(Relaxed),
                written_bytes: written.load(Relaxed),
            })
            .collect();
        let fault = |op| self.faults[fault_index(op)].load(Relaxed);
        Stats {
            read_bytes: servers.iter().map(|s| s.read_bytes).sum(),
            written_bytes: servers.iter().map(|s| s.written_bytes).sum(),
            servers,
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            opens: self.opens.load(Relaxed),
            getattrs: self.getattrs.load(Relaxed),
            lookups: self.lookups.load(Relaxed),
            meta_ops: self.meta_ops.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
            faults: FaultStats {
                total: self.faults.iter().map(|n| n.load(Relaxed)).sum(),
                read: fault(Op::Read),
                write: fault(Op::Write),
                open: fault(Op::Open),
                meta: fault(Op::Meta),
                sync: fault(Op::Sync),
            },
            ..Stats::default()
        }
    }

    /// Sets all to zero. Not atomic as a whole: reset while nothing runs.
    pub fn reset(&self) {
        let singles = [
            &self.reads,
            &self.writes,
            &self.opens,
            &self.getattrs,
            &self.lookups,
            &self.meta_ops,
            &self.syncs,
        ];
        let many = self.read_bytes.iter().chain(&self.written_bytes).chain(&self.faults);
        singles.into_iter().chain(many).for_each(|n| n.store(0, Relaxed));
    }
}

/// The name of a server, in the layout and in the counters.
pub fn server_name(index: usize) -> String {
    format!("server{index}")
}

fn add(counters: &[AtomicU64], share: &Share) {
    for (counter, &bytes) in counters.iter().zip(share).filter(|(_, bytes)| **bytes > 0) {
        counter.fetch_add(bytes, Relaxed);
    }
}

fn fault_index(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Open => 2,
        Op::Meta => 3,
        Op::Sync => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slowfs::stripe::SERVERS_MAX;

    #[test]
    fn counted_per_server_and_reset() {
        let counters = Counters::new(2);
        let mut share = [0; SERVERS_MAX];
        (share[0], share[1]) = (3, 4);
        counters.count_read(&share);
        counters.count_write(&share);
        counters.count_write(&share);
        counters.count_fault(Op::Sync);
        let stats = counters.snapshot();
        assert_eq!((stats.read_bytes, stats.written_bytes), (7, 14));
        assert_eq!((stats.reads, stats.writes), (1, 2));
        assert_eq!(stats.servers[1].written_bytes, 8);
        assert_eq!((stats.faults.total, stats.faults.sync), (1, 1));
        counters.reset();
        assert_eq!(counters.snapshot(), Counters::new(2).snapshot());
    }
}
