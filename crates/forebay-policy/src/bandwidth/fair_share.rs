//! `fair-share`: every process of every job gets the same, which is what a file system does that
//! knows no jobs.

use alloc::vec::Vec;

use forebay_model::forecast::Division;
use forebay_model::sharing;

use super::{Active, Policy};

/// In proportion to processes.
pub struct FairShare;

impl Policy for FairShare {
    fn division(&self) -> Division {
        Division::FairShare
    }

    fn shares(&self, active: &[Active]) -> Vec<f64> {
        let weights: Vec<f64> = active.iter().map(|a| a.weight).collect();
        sharing::fair_shares(&weights)
    }
}
