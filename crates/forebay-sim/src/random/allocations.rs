//! Random workloads of [`steps`](super::steps) whose jobs request nodes from an allocator instead
//! of having them.
//!
//! A job requests as many nodes as it has in the other family. With limited clients, these can fill
//! a quarter to all of the nodes that the job requests; otherwise, the more nodes a job gets, the
//! faster it is.

use forebay_model::rng::Rng;

use super::steps::{self, Made};
use crate::arrivals::Arrivals;
use crate::burst::{Setup, simulate};
use crate::error::{Error, Result};
use crate::trace::Trace;

/// Properties common to all workloads of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// When steps come, and the seed.
    pub steps: steps::Family,
    /// Whether clients limit the jobs.
    pub limited: bool,
}

impl Family {
    /// Workload `number` under `policy`, an `ALLOCATION/ACCESS`.
    ///
    /// # Errors
    /// If the policy has another form.
    pub fn workload(&self, number: u64, policy: &str) -> Result<Setup> {
        let (allocation, access) = policy.split_once('/').ok_or_else(|| {
            Error::Usage(format!("{policy}: ALLOCATION/ACCESS is needed, such as full/sa-sjf"))
        })?;
        let mut setup = self.steps.workload(number, access);
        setup.allocation = allocation.into();
        let mut rng = Rng::new(setup.seed);
        for job in &mut setup.jobs {
            let width = job.on.take().map_or(1, |on| on.len() as u32);
            job.nodes = Some(width);
            if self.limited {
                job.client_bytes_per_s =
                    setup.node_bytes_per_s * f64::from(width) * (0.25 + 0.75 * rng.unit());
            }
            // A job requests its nodes when it arrives, not at the start of the run.
            if let Arrivals::Trace { at_ns } = &job.arrivals {
                job.starts_ns = at_ns.first().copied().unwrap_or(0);
            }
        }
        Ok(setup)
    }

    /// Runs workload `number` under `policy`.
    ///
    /// # Errors
    /// If no policy has this name.
    pub fn run(&self, number: u64, policy: &str) -> Result<Made> {
        Ok(Made::of(&simulate(&self.workload(number, policy)?, &mut Trace::off())?))
    }
}
