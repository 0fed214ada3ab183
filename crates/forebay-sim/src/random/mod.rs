//! Random systems on which policies are compared.
//!
//! The papers' cells are few, so a policy is easily fitted to them. Each seed gives different
//! systems, and the same seed gives the same systems again.
//!
//! | module | what is random | what is compared |
//! | --- | --- | --- |
//! | [`clusters`] | HPC jobs beside Big Data jobs | planners |
//! | [`rhythm`] | the same, with the rhythm of recorded jobs | planners |
//! | [`steps`] | steps that jobs write to shared burst buffers | access policies |
//! | [`published`] | the same, as published in papers | access policies |
//! | [`allocations`] | the same, of jobs that request their nodes | allocation policies |
//! | [`loads`] | memory that compute needs on a node | memory laws |
//! | [`ships`] | storage servers that run tasks of jobs | which stages run there |
//! | [`platforms`] | nodes that fail, and jobs that share a PFS | periods, order of checkpoints |

pub mod allocations;
pub mod bound;
pub mod clusters;
pub mod deadline_bound;
pub mod loads;
pub mod platforms;
pub mod published;
pub mod rhythm;
pub mod ships;
mod step_bound;
pub mod steps;

use forebay_model::rng::Rng;

/// Uniform from `low` to `high`.
fn between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.unit()
}

/// Log-uniform: as likely between 1 and 2 as between 2 and 4.
fn by_order(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low * (high / low).powf(rng.unit())
}
