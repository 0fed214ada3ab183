//! A scenario of a site, from what `forebay profile` measured and the decision log recorded there.
//!
//! The scenario has what happened: nodes and their tiers, the file system, HPC jobs with the times
//! of their phases, and analytics jobs with their splits. Whoever changes a value of it asks "what
//! if". How far the answers can be trusted is seen from the scenario as it is: what the simulator
//! says of it stands beside what the log says.
//!
//! | file | what it does |
//! | --- | --- |
//! | `spans` | parts of files that are in a tier |
//! | `recorded` | what the log says, job by job and phase by phase |
//! | `described` | from that the values of the scenario, each with its source |
//! | `compared` | what was recorded, beside what is simulated |

pub mod compared;
pub mod described;
pub mod recorded;
mod spans;
