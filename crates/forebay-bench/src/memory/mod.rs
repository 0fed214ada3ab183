//! Memory that goes back: what it costs, how fast it is, and what it does to readers and to
//! compute.
//!
//! | file | what it measures |
//! | --- | --- |
//! | `give_back` | eviction and shrinking beside bare hole punching |
//! | `ramps` | programs that take memory beside an agent, under each law |
//! | `nodes` | the laws of many nodes, and the coordinator that hears of them |
//! | `reads` | the controller's processor time, and reads while the tier gives way |
//! | `stage` | a control group with an agent in it, whose tier fills the group |
//! | `group` | the control group, and its use over time |
//! | `hog` | the program that takes memory |
//! | `clock` | the clock that they share |
//! | `judge` | what samples of a ramp say |

mod clock;
mod give_back;
mod group;
pub mod hog;
mod judge;
mod nodes;
mod ramps;
mod reads;
mod stage;

pub use give_back::give_back;
pub use ramps::{bursts, ramps};
pub use reads::{cost, reads};
