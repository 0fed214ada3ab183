//! Jobs by their traffic with the PFS, and their rate limits.
//!
//! | file | what it does |
//! | --- | --- |
//! | `account` | what one job moves, and what it has to wait for |
//! | `jobs` | the accounts of all jobs, the limits, and this node's shares of them |
//!
//! A thread that reads or writes a PFS for a job first takes the bytes from its
//! [`account::Account`]: the thread of a connection, a load, a prefetch request or a pass waits
//! there, but no thread that works for other jobs as well. A program that reads or writes a PFS by
//! itself asks its agent first while its job has a limit.

pub mod account;
pub mod jobs;
