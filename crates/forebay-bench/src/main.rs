//! `make bench`: what Forebay costs and gains, measured beside the alternative and the physical limit in the same run.
//!
//! Machines drift and neighbours disturb, so no figure stands alone: the thing and its reference are measured in turn,
//! A B A B ..., and what counts is the median of the pairwise ratios. The table is printed and written to
//! `target/bench.json` as a list of {id, value, unit, reference, ratio, target, met, runs, command}; ids never change.

mod files;
mod hadoop;
mod measure;
mod memory;
mod others;
mod peer;
mod read;
mod rig;
mod scale;
mod write;

use clap::Parser;
use measure::Record;
use rig::Rig;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure Forebay beside the alternative and the physical limit.
#[derive(Debug, Parser)]
struct Args {
    /// Only benchmarks whose group contains this text
    #[arg(long, default_value = "")]
    only: String,
    /// Runs of each measurement
    #[arg(long, default_value_t = 9)]
    runs: usize,
    /// Small sizes, to see that everything works; the figures mean little
    #[arg(long)]
    quick: bool,
    /// Where the records go
    #[arg(long, default_value = "target/bench.json")]
    out: PathBuf,
}

type Group = fn(&Rig) -> Result<Vec<Record>, String>;

const GROUPS: [(&str, Group); 13] = [
    ("read.cached", read::cached),
    ("read.cold", read::cold),
    ("read.shared", read::shared),
    ("peer.page", peer::page),
    ("peer.cold", peer::cold),
    ("read.python", others::python),
    ("hadoop.read", hadoop::read),
    ("write", write::write),
    ("give_back", memory::give_back),
    ("open", files::open),
    ("agent", files::agent),
    ("hit_ratio", others::hit_ratio),
    ("cluster.scale", scale::scale),
];

fn main() -> ExitCode {
    let args = Args::parse();
    let mut records = Vec::new();
    let mut failed = false;
    for (name, group) in GROUPS.iter().chain(&[("peer", others::peers as Group)]) {
        if !name.contains(args.only.as_str()) {
            continue;
        }
        eprintln!("{name} ...");
        match Rig::new(args.runs, args.quick).and_then(|rig| group(&rig)) {
            Ok(more) => {
                more.iter().for_each(|r| eprintln!("  {}", r.line()));
                records.extend(more);
            }
            Err(e) => {
                eprintln!("  {name} failed: {e}");
                failed = true;
            }
        }
    }
    println!("{}", measure::table(&records));
    if let Err(e) = measure::write(&args.out, &records) {
        eprintln!("{e}");
        failed = true;
    }
    if failed { ExitCode::from(1) } else { ExitCode::SUCCESS }
}
