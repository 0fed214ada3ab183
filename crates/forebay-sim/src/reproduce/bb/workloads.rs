//! The mixes W1 to W12 of [`crate::burst::icpp`], in random orders.

use forebay_model::rng::Rng;

use crate::burst::icpp::{JOBS, MB, NODE_BYTES_PER_S};
use crate::burst::{JobSpec, Setup};

/// The jobs of a mix in the order of the table.
fn jobs(mix: &[usize; 7]) -> Vec<JobSpec> {
    let one = |&(processes, mb, nodes): &(u64, u64, u32)| {
        JobSpec::one_step(0, processes as f64, processes * mb * MB, Some(nodes), f64::INFINITY)
    };
    JOBS.iter().zip(mix).flat_map(|(j, &n)| std::iter::repeat_n(one(j), n)).collect()
}

/// The mix with its jobs in the random order `order`: all arrive together, in that order.
pub fn setup(mix: &[usize; 7], order: u64, allocation: &str, access: &str) -> Setup {
    let mut jobs = jobs(mix);
    Rng::new(order).shuffle(&mut jobs);
    Setup::plain(128, 6 << 40, NODE_BYTES_PER_S, allocation, access, jobs)
}
