//! The Python module `forebay._core`: a thin binding on the client core, and on the simulator.
//!
//! Nothing is decided here. Each class holds one handle of the core; each method turns arguments
//! into Rust, lets other Python threads run (`py.detach`) while the core works, and turns the
//! answer back. Bytes go straight between the tier and the caller's memory: `readinto` and `write`
//! take any contiguous buffer, `map` gives a `memoryview` of the tier itself. What a Python program
//! expects of a file (position, lines, text, fsspec) is written in Python, above this.
//!
//! Handles are behind locks of their own, taken only while detached: a thread that waits for a lock
//! while it holds the interpreter could wait for ever.

mod buffer;
mod client;
mod convert;
mod error;
mod file;
mod hpc;
mod load;
mod names;
mod order;
mod sim;
mod writer;

use pyo3::prelude::*;

/// The binding on Forebay's client core. Use the package `forebay`, which is built on it.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::file::{File, Mapping};
    #[pymodule_export]
    use super::hpc::HpcJob;
    #[pymodule_export]
    use super::names::same_file;
    #[pymodule_export]
    use super::order::Order;
    #[pymodule_export]
    use super::sim::{SimRun, SimScenario, SimulationError, sim_reproduce};
    #[pymodule_export]
    use super::writer::{Writer, stamp_written};

    /// Unit of placement in bytes: what one entry of `File.extents()` covers.
    #[pymodule_export]
    const EXTENT_BYTES: u64 = forebay_client::EXTENT_BYTES;
}
