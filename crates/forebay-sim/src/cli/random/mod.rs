//! `sim random`: policies compared on random systems.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Output, say, table};
use crate::csv;
use crate::error::{Error, Result};

mod access;
mod allocation;
mod memory;
mod planners;
mod shipping;
mod waste;

/// Options of `random`.
#[derive(Args, Debug)]
pub struct RandomArgs {
    #[command(subcommand)]
    what: What,
}

/// What is compared.
#[derive(Subcommand, Debug)]
enum What {
    /// Planners, on clusters with HPC jobs beside Big Data jobs
    Planners(planners::PlannersArgs),
    /// Access policies, on steps that jobs write to shared burst buffers
    Access(access::AccessArgs),
    /// Allocation policies with access policies, on the same steps
    Allocation(allocation::AllocationArgs),
    /// Memory laws, on random loads of a node; compared with a law that knows the future
    Memory(memory::MemoryArgs),
    /// Which stages run on the storage servers, on systems with jobs of one or two stages
    Shipping(shipping::ShippingArgs),
    /// Strategies for checkpoints, on platforms whose nodes fail; compared with the least waste
    Waste(waste::WasteArgs),
}

/// Note below every table of changes.
const TEST: &str = "low, high: 95 % confidence interval over the systems; difference: paired t test on the logarithms of the ratios, 5 %";

/// Which random systems, and where the rows go.
#[derive(Args, Debug)]
struct Systems {
    /// Policies to compare; all of them by default
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
    /// How many systems
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Number of the first system
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Seed of all systems
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of threads; as many as there are cores by default
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Write one row per system and policy as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the table of all systems together, with its intervals, as CSV
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
}

pub fn random(args: &RandomArgs, out: &mut Output<'_>) -> Result<()> {
    match &args.what {
        What::Planners(a) => planners::planners(a, out),
        What::Access(a) => access::access(a, out),
        What::Allocation(a) => allocation::allocation(a, out),
        What::Memory(a) => memory::memory(a, out),
        What::Shipping(a) => shipping::shipping(a, out),
        What::Waste(a) => waste::waste(a, out),
    }
}

impl Systems {
    /// The policies requested, out of `all`.
    fn policies(&self, all: &[&str]) -> Result<Vec<String>> {
        match self.policies.iter().find(|name| !all.contains(&name.as_str())) {
            Some(name) => {
                Err(Error::Usage(format!("no policy is called '{name}'; there are {}", all.join(", "))))
            }
            None if self.policies.is_empty() => Ok(all.iter().map(|name| name.to_string()).collect()),
            None => Ok(self.policies.clone()),
        }
    }

    fn numbers(&self) -> Range<u64> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Runs `of` for each system, in their order.
    fn run<T: Send>(&self, of: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
        let numbers = self.numbers();
        let count = usize::try_from(numbers.end - numbers.start).unwrap_or(usize::MAX);
        let threads = crate::parallel::threads(self.threads);
        let each = |i: usize| of(numbers.start + i as u64);
        crate::parallel::in_parallel(count, threads, each).into_iter().collect()
    }

    /// A row for each system.
    fn rows<T>(&self, made: &[T], row: impl Fn(u64, &T) -> Vec<String>) -> Vec<Vec<String>> {
        self.numbers().zip(made).map(|(number, made)| row(number, made)).collect()
    }

    /// Writes the rows and the table to the files that are named for them, and shows the table with
    /// notes for people.
    fn publish(
        &self,
        out: &mut Output<'_>,
        (row_columns, rows): (&[&str], Vec<Vec<String>>),
        (columns, all): (&[&str], &[Vec<String>]),
        notes: &[&str],
    ) -> Result<()> {
        if let Some(path) = &self.csv {
            csv::write(path, "write the rows to", row_columns, &rows)?;
        }
        if let Some(path) = &self.summary {
            csv::write(path, "write the summary to", columns, all)?;
        }
        table(out, columns, all)?;
        let notes = if out.json { &[] } else { notes };
        notes.iter().try_for_each(|note| say(out, note))
    }
}
