//! The mixes W1 to W12 of [`crate::burst::icpp`], in random orders.

use forebay_model::rng::Rng;

use crate::burst::batch::{Job, Setup, lasting_leases};
use crate::burst::icpp::{JOBS, MB, NODE_BYTES_PER_S};

/// The jobs of a mix in the order of the table.
fn jobs(mix: &[usize; 7]) -> Vec<Job> {
    let one = |&(processes, mb, nodes): &(u64, u64, u32)| Job {
        arrives_ns: 0,
        processes: processes as f64,
        bytes: processes * mb * MB,
        nodes: Some(nodes),
        client_bytes_per_s: f64::INFINITY,
    };
    JOBS.iter().zip(mix).flat_map(|(j, &n)| std::iter::repeat_n(one(j), n)).collect()
}

/// The mix with its jobs in the random order `order`: all arrive together, in that order.
pub fn setup<'a>(mix: &[usize; 7], order: u64, allocation: &'a str, access: &'a str) -> Setup<'a> {
    let mut jobs = jobs(mix);
    Rng::new(order).shuffle(&mut jobs);
    Setup {
        nodes: 128,
        node_bytes: 6 << 40,
        node_bytes_per_s: NODE_BYTES_PER_S,
        jobs,
        allocation,
        access,
        config: lasting_leases(),
    }
}
