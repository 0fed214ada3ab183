//! The lab: fixtures that stand in for machines that are not available.
//!
//! * [`cluster`]: a real parallel file system and its clients, in namespaces behind shaped links.
//! * [`slowfs`]: a striped parallel file system with a set bandwidth, in user space, over a
//!   directory.
//! * [`quantity`]: sizes, rates and durations as people write them (`1MiB`, `50MB/s`, `0.2ms`).
//! * [`cli`]: the `forebay lab ...` commands; the command line crate only forwards to [`cli::run`].
//! * [`memory_group`]: a control group with a memory limit.
//! * [`fixture`]: starts the file system as a child process and stops it on drop, for tests and
//!   benchmarks.
//!
//! Of the product, only the command line depends on this crate (tests and benchmarks do too), and
//! nothing here depends on the product: a fixture that shared code with what it tests would share
//! its mistakes.

pub mod cli;
pub mod cluster;
pub mod error;
pub mod fixture;
pub mod memory_group;
mod mountinfo;
mod print;
pub mod quantity;
pub mod slowfs;

pub use error::LabError;
