//! Random systems on which policies are compared.
//!
//! The papers' cells are few, so a policy is easily fitted to them. Each seed gives other systems,
//! and the same seed gives the same systems again.
//!
//! | module | what is random | what is compared |
//! | --- | --- | --- |
//! | [`clusters`] | HPC jobs beside Big Data jobs | planners |
//! | [`steps`] | steps that jobs write to shared burst buffers | access policies |
//! | [`allocations`] | the same, of jobs that request their nodes | allocation policies |
//! | [`loads`] | memory that compute needs on a node | memory laws |

pub mod allocations;
pub mod clusters;
pub mod loads;
pub mod steps;
