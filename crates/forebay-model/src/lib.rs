//! How the users of shared storage slow each other down, as pure functions.
//!
//! The policies ask these models what would happen; the simulator asks them what does happen.
//! Nothing here depends on a clock, files or threads: numbers in, numbers out. Times are seconds in
//! `f64` (`_s`), rates bytes per second. The crate is `no_std`, so that a clock or a socket cannot
//! creep in unseen.
#![cfg_attr(not(test), no_std)]
extern crate alloc;

pub mod forecast;
pub mod overlap;
pub mod profile;
pub mod rng;
pub mod sharing;
pub mod storage;
