//! Tables II and III of *Managing I/O Interference in a Shared Burst Buffer System*, ICPP 2016: the
//! jobs J1 to J7, and the mixes W1 to W12.

/// Megabytes and gigabytes of the table are binary; so is the nodes' bandwidth, since 32 GB per
/// node at 5 GB/s are 6.4 s.
pub const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;
/// Bandwidth of a node of the burst buffer.
pub const NODE_BYTES_PER_S: f64 = (5 * GB) as f64;

/// Processes, data per process, burst buffer nodes of J1 to J7. The published values of J4 and J5
/// contradict themselves (the data per node are exchanged); processes times data per process is
/// used.
pub const JOBS: [(u64, u64, u32); 7] = [
    (4096, 1024, 128),
    (16384, 512, 128),
    (65536, 128, 128),
    (4096, 1024, 16),
    (4096, 2048, 16),
    (16384, 512, 32),
    (65536, 512, 64),
];

/// How many of J1 to J7 are in W1 to W12. Each of the first six mixes uses all nodes.
pub const MIXES: [[usize; 7]; 12] = [
    [1, 1, 1, 0, 0, 0, 0],
    [2, 2, 2, 0, 0, 0, 0],
    [0, 2, 4, 0, 0, 0, 0],
    [2, 4, 0, 0, 0, 0, 0],
    [10, 2, 1, 0, 0, 0, 0],
    [2, 10, 0, 0, 0, 0, 0],
    [0, 0, 0, 1, 1, 1, 2],
    [0, 0, 0, 10, 1, 1, 1],
    [0, 0, 0, 1, 10, 1, 1],
    [0, 0, 0, 1, 1, 5, 1],
    [0, 0, 0, 0, 10, 0, 2],
    [0, 0, 0, 10, 10, 2, 1],
];
