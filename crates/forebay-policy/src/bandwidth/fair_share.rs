//! `fair-share`: every process of every job gets the same, as in a file system that does not
//! distinguish jobs.

use alloc::vec::Vec;

use forebay_model::forecast::Division;
use forebay_model::sharing;

use super::{Active, Policy};

/// Divides in proportion to processes.
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
