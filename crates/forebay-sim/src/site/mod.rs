//! A scenario of a site, from what `forebay profile` measured and the decision log recorded there.
//!
//! The scenario has what happened: nodes and their tiers, the file system, HPC jobs with the times
//! of their phases, and analytics jobs with their splits. Changing a value asks "what if". How far
//! the answers can be trusted is seen from the unchanged scenario: what the simulator says about it
//! is shown beside what the log says.
//!
//! | file | what it does |
//! | --- | --- |
//! | `spans` | parts of files that are in a tier |
//! | `recorded` | what the log says, job by job and phase by phase |
//! | `described` | the values of the scenario from that, each with its source |
//! | `compared` | what was recorded, beside what is simulated |

pub mod compared;
pub mod described;
pub mod recorded;
mod spans;
