//! Jobs of local programs.
//!
//! | file | what it does |
//! | --- | --- |
//! | `job_state` | what analytics jobs have reported, for the coordinator |
//! | `layouts` | where their files lie on the servers of the PFS |
//! | `orders` | the orders in which they will read, for the tier |
//! | `scratch_files` | memory-only files |
//! | `task_questions` | tasks that ask the coordinator whether they may read |

pub mod job_state;
pub mod layouts;
pub mod orders;
pub mod scratch_files;
pub mod task_questions;
