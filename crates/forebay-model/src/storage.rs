//! Throughput of storage for data-intensive computing, and what a MapReduce job pays for its I/O.
//!
//! Four kinds are compared: a distributed file system on the compute nodes' disks (HDFS), a
//! parallel file system (PFS), an in-memory file system, and a two-level storage (TLS) that has
//! memory over a PFS. All throughputs are those of one compute node while N of them read or write
//! at the same time; N times that is the aggregate. Source: TLS, dissertation, chapter 2, equations
//! re-derived.
//!
//! Rates may be in any unit of bytes per second, the same for all.

/// A cluster, with rates in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// N, compute nodes that do I/O at the same time.
    pub compute_nodes: f64,
    /// Network link of a node (rho).
    pub link: f64,
    /// Bisection of the network (Phi); infinite if it does not block.
    pub backplane: f64,
    /// Local disk of a compute node, reading (mu).
    pub disk_read: f64,
    /// Local disk of a compute node, writing.
    pub disk_write: f64,
    /// Memory of a compute node (nu).
    pub memory: f64,
    /// Aggregate rate of the data nodes of the PFS, M min(rho, mu').
    pub pfs_aggregate: f64,
}

/// Where HDFS and in-memory reads come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    /// This node.
    Local,
    /// Another node.
    Remote,
}

impl Cluster {
    fn network(&self) -> f64 {
        self.link.min(self.backplane / self.compute_nodes)
    }

    /// HDFS: the local disk, over the network if remote.
    pub fn hdfs_read(&self, from: Locality) -> f64 {
        match from {
            Locality::Local => self.disk_read,
            Locality::Remote => self.disk_read.min(self.network()),
        }
    }

    /// HDFS with three copies: two cross the network, and each disk takes three writes per byte of
    /// its node's.
    pub fn hdfs_write(&self) -> f64 {
        (self.link / 2.0).min(self.backplane / (2.0 * self.compute_nodes)).min(self.disk_write / 3.0)
    }

    /// PFS, reading or writing: an even share of the aggregate rate of its data nodes.
    pub fn pfs(&self) -> f64 {
        self.network().min(self.pfs_aggregate / self.compute_nodes)
    }

    /// In-memory file system, reading.
    pub fn memory_read(&self, from: Locality) -> f64 {
        match from {
            Locality::Local => self.memory,
            Locality::Remote => self.memory.min(self.network()),
        }
    }

    /// TLS with the share `hit` (0 to 1) of the data in local memory and the rest from the PFS.
    pub fn tls_read(&self, hit: f64) -> f64 {
        1.0 / (hit / self.memory + (1.0 - hit) / self.pfs())
    }

    /// TLS, written through to both levels.
    pub fn tls_write(&self) -> f64 {
        self.memory.min(self.pfs())
    }

    /// The same cluster with another number of compute nodes.
    pub fn with_nodes(self, compute_nodes: f64) -> Self {
        Cluster { compute_nodes, ..self }
    }

    /// The least number of compute nodes, at most `limit`, from which `a` is faster than `b`.
    pub fn crossover(
        self,
        limit: u32,
        a: impl Fn(&Cluster) -> f64,
        b: impl Fn(&Cluster) -> f64,
    ) -> Option<u32> {
        let faster = |n: u32| {
            let cluster = self.with_nodes(f64::from(n));
            a(&cluster) > b(&cluster)
        };
        (1..=limit).rev().take_while(|&n| faster(n)).last()
    }
}

/// Bytes that a MapReduce job moves per node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapReduce {
    /// Input (D).
    pub input: f64,
    /// Spilled by map tasks (I_M).
    pub spilled: f64,
    /// Shuffled (I_S): written, sent and read again.
    pub shuffled: f64,
    /// Output (O_R).
    pub output: f64,
}

/// Rates that a MapReduce job meets, in bytes per second and node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobRates {
    /// Reading the input.
    pub read: f64,
    /// Writing the output.
    pub write: f64,
    /// Intermediate data (s): the local disk on HDFS and PFS, memory on in-memory storage and TLS.
    pub intermediate: f64,
}

/// Seconds of I/O per node in each phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobCost {
    /// D/q_read + I_M/s.
    pub map_s: f64,
    /// I_S/s + I_S/s.
    pub shuffle_s: f64,
    /// I_S/s + O_R/q_write.
    pub reduce_s: f64,
}

impl MapReduce {
    /// The cost of the job's I/O; compute is not counted.
    pub fn cost(&self, rates: &JobRates) -> JobCost {
        let shuffle_s = self.shuffled / rates.intermediate;
        JobCost {
            map_s: self.input / rates.read + self.spilled / rates.intermediate,
            shuffle_s: 2.0 * shuffle_s,
            reduce_s: shuffle_s + self.output / rates.write,
        }
    }
}

/// One node that reads through TLS: the "storage mountain", throughput over data size and skip
/// size.
///
/// A program reads `access_bytes`, skips, and so on. Each level fetches through a buffer: what is
/// skipped within the buffer is moved for nothing, and a skip beyond it costs a new request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mountain {
    /// Memory tier of the node.
    pub tier_bytes: f64,
    /// Memory ridge, bytes per second.
    pub memory: f64,
    /// PFS ridge of one node, bytes per second.
    pub pfs: f64,
    /// Buffer in the client, above the memory tier.
    pub upper_buffer_bytes: f64,
    /// Buffer between the tier and the PFS.
    pub lower_buffer_bytes: f64,
    /// Read between skips.
    pub access_bytes: f64,
    /// A request to the memory tier, in seconds.
    pub memory_request_s: f64,
    /// A request to the PFS, in seconds.
    pub pfs_request_s: f64,
}

impl Mountain {
    /// Bytes per second that the program gets, skipped bytes not counted. The tier holds as much of
    /// the data as fits.
    pub fn read(&self, data_bytes: f64, skip_bytes: f64) -> f64 {
        let hit = (self.tier_bytes / data_bytes).min(1.0);
        let level = |rate: f64, buffer_bytes: f64, request_s: f64| {
            let moved = (self.access_bytes + skip_bytes).min(buffer_bytes.max(self.access_bytes));
            let requests = if skip_bytes >= buffer_bytes { 1.0 } else { moved / buffer_bytes };
            // Without skips the requests are pipelined and the measured ridge contains them.
            moved / rate + if skip_bytes > 0.0 { requests * request_s } else { 0.0 }
        };
        let memory_s = level(self.memory, self.upper_buffer_bytes, self.memory_request_s);
        let pfs_s = level(self.pfs, self.lower_buffer_bytes, self.pfs_request_s);
        self.access_bytes / (hit * memory_s + (1.0 - hit) * pfs_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn palmetto(nodes: f64, pfs_aggregate: f64) -> Cluster {
        Cluster {
            compute_nodes: nodes,
            link: 1170.0,
            backplane: f64::INFINITY,
            disk_read: 237.0,
            disk_write: 116.0,
            memory: 6267.0,
            pfs_aggregate,
        }
    }

    #[test]
    fn throughputs_by_hand() {
        let c = Cluster { backplane: 8000.0, ..palmetto(16.0, 10_000.0) };
        assert_eq!((c.hdfs_read(Locality::Local), c.hdfs_read(Locality::Remote)), (237.0, 237.0));
        assert_eq!((c.memory_read(Locality::Local), c.memory_read(Locality::Remote)), (6267.0, 500.0));
        assert_eq!((c.hdfs_write(), c.pfs(), c.tls_write()), (116.0 / 3.0, 500.0, 500.0));
        assert_eq!(palmetto(4.0, 10_000.0).pfs(), 1170.0);
        assert_eq!(palmetto(16.0, 10_000.0).tls_read(0.0), 625.0);
    }

    #[test]
    fn crossover_is_the_first_of_the_lasting_ones() {
        let c = palmetto(1.0, 10_000.0);
        let hdfs = |c: &Cluster| c.hdfs_read(Locality::Local);
        assert_eq!(c.crossover(10_000, hdfs, Cluster::pfs), Some(43));
        assert_eq!(c.crossover(40, hdfs, Cluster::pfs), None);
    }

    #[test]
    fn a_job_by_hand() {
        let job = MapReduce { input: 100.0, spilled: 50.0, shuffled: 20.0, output: 30.0 };
        let cost = job.cost(&JobRates { read: 10.0, write: 5.0, intermediate: 2.0 });
        assert_eq!(cost, JobCost { map_s: 35.0, shuffle_s: 20.0, reduce_s: 16.0 });
    }

    const GB: f64 = 1e9;
    const MB: f64 = 1e6;
    const MOUNTAIN: Mountain = Mountain {
        tier_bytes: 16.0 * GB,
        memory: 13.2 * GB,
        pfs: 0.5 * GB,
        upper_buffer_bytes: MB,
        lower_buffer_bytes: 4.0 * MB,
        access_bytes: MB,
        memory_request_s: 1e-4,
        pfs_request_s: 5e-3,
    };

    #[test]
    fn the_mountain_has_its_ridges_and_cliffs() {
        assert!((MOUNTAIN.read(8.0 * GB, 0.0) - 13.2 * GB).abs() < 1.0);
        assert!(MOUNTAIN.read(32.0 * GB, 0.0) < GB);
        // Beyond the lower buffer more skipping costs nothing further.
        assert_eq!(MOUNTAIN.read(64.0 * GB, 8.0 * MB), MOUNTAIN.read(64.0 * GB, 64.0 * MB));
    }

    proptest! {
        /// More in memory never hurts, more nodes never help a node, TLS is between its levels.
        #[test]
        fn monotone(nodes in 1.0f64..2000.0, pfs in 100.0f64..1e5, a in 0.0f64..1.0, b in 0.0f64..1.0) {
            let c = palmetto(nodes, pfs);
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(c.tls_read(low) <= c.tls_read(high) * (1.0 + 1e-12));
            prop_assert!(c.with_nodes(nodes + 1.0).tls_read(a) <= c.tls_read(a) * (1.0 + 1e-12));
            prop_assert!(c.tls_read(a) >= c.pfs() * (1.0 - 1e-12) && c.tls_read(a) <= c.memory * (1.0 + 1e-12));
        }

        #[test]
        fn the_mountain_falls_with_size_and_skip(size in 1.0f64..256.0, skip in 0.0f64..64.0, more in 0.0f64..64.0) {
            let at = |size: f64, skip: f64| MOUNTAIN.read(size * GB, skip * MB);
            prop_assert!(at(size + more, skip) <= at(size, skip) * (1.0 + 1e-12));
            prop_assert!(at(size, skip + more) <= at(size, skip) * (1.0 + 1e-12));
        }
    }
}
