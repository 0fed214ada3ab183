//! Allocation policies on random workloads of shared burst buffers.
//!
//! There are no slowdowns here. They are relative to the time alone on the nodes that a job has, so
//! an allocation of fewer nodes would have lower ones.

use clap::Args;

use super::super::Output;
use super::access::{COLUMNS, ROW_COLUMNS, row, workload};
use super::{Systems, TEST};
use crate::error::Result;
use crate::random::allocations::Family;
use crate::random::steps::{self, Kind};

/// Options of `random allocation`.
#[derive(Args, Debug)]
#[command(mut_arg("policies", |policies| policies.help(POLICIES_HELP)))]
pub struct AllocationArgs {
    #[command(flatten)]
    systems: Systems,
    /// When steps arrive
    #[arg(long, value_enum, default_value = "arrivals")]
    kind: Kind,
    /// Clients fill a quarter to all of the nodes that their job requests
    #[arg(long)]
    limited: bool,
    /// What the others are compared with, as ALLOCATION/ACCESS
    #[arg(long, default_value = "full/sa-sjf")]
    against: String,
}

/// Compared by default: all pairs are too many for a table.
const POLICIES: [&str; 4] = ["striped/sa-sjf", "striped/coflow", "full/sa-sjf", "full/coflow"];
const POLICIES_HELP: &str = "Policies to compare, as ALLOCATION/ACCESS; by default striped/sa-sjf, \
     striped/coflow, full/sa-sjf and full/coflow";

pub fn allocation(args: &AllocationArgs, out: &mut Output<'_>) -> Result<()> {
    let Systems { seed, .. } = args.systems;
    let family = Family { steps: steps::Family::new(seed, args.kind), limited: args.limited };
    let names = match args.systems.policies.is_empty() {
        true => POLICIES.map(String::from).to_vec(),
        false => args.systems.policies.clone(),
    };
    let run = |policy: &str| args.systems.run(|number| family.run(number, policy));
    let base = run(&args.against)?;
    let mut rows = Vec::new();
    let mut all = args.systems.rows(&base, |number, made| workload(number, &args.against, made));
    for name in names.iter().filter(|name| **name != args.against) {
        let made = run(name)?;
        rows.push(row(name, &made, &base));
        all.extend(args.systems.rows(&made, |number, made| workload(number, name, made)));
    }
    let note = format!("seed {seed}; I/O times against '{}', geometric means", args.against);
    args.systems.publish(out, (&ROW_COLUMNS, all), (&COLUMNS, &rows), &[&note, TEST])
}
