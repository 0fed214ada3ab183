//! Jobs of local programs.
//!
//! | file | what it does |
//! | --- | --- |
//! | `book` | what analytics jobs have reported, for the coordinator |
//! | `layouts` | where their files lie on the servers of the PFS |
//! | `files` | memory-only files |

pub mod book;
pub mod files;
pub mod layouts;
