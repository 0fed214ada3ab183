//! The papers' tables and figures, recomputed.
//!
//! One file per paper; each adds its part to a [`Report`]. A part is listed in [`PARTS`] and
//! nowhere else.

pub mod batch;
pub mod bb;
pub mod cooperative;
pub mod dynims;
mod dynims_reads;
pub mod eley;
pub mod fitted;
pub mod held_out;
mod io_sets;
mod prediction;
pub mod printed;
pub mod tls;
mod vas;

use std::path::Path;

use crate::error::{Error, Result};
use crate::report::Report;

/// One paper, or one group of results.
pub struct Part {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for the help text.
    pub about: &'static str,
    /// Adds its results to the report.
    pub run: fn(&mut Report) -> Result<()>,
}

/// Everything that can be reproduced, in the order of the report.
pub const PARTS: &[Part] = &[
    Part { name: "eley", about: "prefetching in waves: Tables 4 to 6, Figures 5 to 8", run: eley::run },
    Part {
        name: "io-sets",
        about: "what phases of several jobs do to each other: fair share and Set-10",
        run: io_sets::run,
    },
    Part {
        name: "bb",
        about: "shared burst buffers: W1 to W12, allocation, three jobs on Catalyst",
        run: bb::run,
    },
    Part {
        name: "cooperative",
        about: "nodes that fail: seven strategies for checkpoints, their bound, and ours",
        run: cooperative::run,
    },
    Part { name: "batch", about: "batch queues with burst buffers: EASY and plans", run: batch::run },
    Part { name: "tls", about: "two-level storage: crossovers and the storage mountain", run: tls::run },
    Part { name: "dynims", about: "memory for compute first: stability, a burst, noise", run: dynims::run },
    Part { name: "vas", about: "analytics on storage servers: locality, shuffle, isolation", run: vas::run },
    Part { name: "held-out", about: "our policies on random systems of a seed", run: held_out::run },
];

/// A report in directory `dir` on the part called `name`, or on all of them.
///
/// # Errors
/// If there is no such part, or the report cannot be written.
pub fn report(name: &str, dir: &Path) -> Result<Report> {
    let mut report = Report::new(dir, "Forebay: the papers' results, computed anew")?;
    reproduce(name, &mut report)?;
    Ok(report)
}

/// Runs the part called `name`, or all of them.
///
/// # Errors
/// If there is no such part, or the report cannot be written.
pub fn reproduce(name: &str, report: &mut Report) -> Result<()> {
    let chosen: Vec<&Part> = PARTS.iter().filter(|p| name == "all" || p.name == name).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = PARTS.iter().map(|p| p.name).collect();
        return Err(Error::Usage(format!(
            "nothing to reproduce is called '{name}'; there are {}, all",
            names.join(", ")
        )));
    }
    for part in &chosen {
        (part.run)(report)?;
    }
    let everything = chosen.len() == PARTS.len();
    if everything {
        fitted::chapter(report);
    }
    let names: Vec<&str> = chosen.iter().map(|part| part.name).collect();
    printed::chapter(report, &names, everything);
    report.write()
}
