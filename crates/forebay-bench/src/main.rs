//! `make bench`: what Forebay costs and gains, measured beside the alternative and the physical
//! limit in the same run.
//!
//! Machines drift and neighbours disturb, so no figure stands alone: the thing and its reference
//! are measured in turn, A B A B ..., and what counts is the median of the pairwise ratios. The
//! table is printed and written to `target/bench.json` as a list of {id, value, unit, reference,
//! ratio, target, met, runs, command}; ids never change.

mod access;
mod brake;
mod console;
mod decide;
mod disk;
mod failover;
mod files;
mod hadoop;
mod measure;
mod memory;
mod others;
mod peer;
mod read;
mod rig;
mod scale;
mod sim;
mod write;

use clap::Parser;
use measure::Record;
use rig::{RampArgs, Rig};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure Forebay beside the alternative and the physical limit.
#[derive(Debug, Parser)]
struct Args {
    /// Only this group of benchmarks, or that of this figure
    #[arg(long, default_value = "")]
    only: String,
    /// Runs of each measurement
    #[arg(long, default_value_t = 9)]
    runs: usize,
    /// Small sizes, to see that everything works; the figures mean little
    #[arg(long)]
    quick: bool,
    /// Random ramps of `memory.ramps`
    #[arg(long, default_value_t = 60)]
    ramps: usize,
    /// Seed of the random ramps
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Largest control group of the random ramps, in MiB; the smallest has 256
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u64).range(256..))]
    group_max_mib: u64,
    /// Run bursts and ramps under this memory law only
    #[arg(long)]
    law: Option<String>,
    /// Be the program that takes memory: bytes, bytes a second, and how long to keep them in ms
    #[arg(long, hide = true)]
    hog: Option<String>,
    /// Where the records go
    #[arg(long, default_value = "target/bench.json")]
    out: PathBuf,
}

type Group = fn(&Rig) -> Result<Vec<Record>, String>;

const GROUPS: [(&str, Group); 25] = [
    ("read.cached", read::cached),
    ("read.cold", read::cold),
    ("read.shared", read::shared),
    ("read.disk", disk::disk),
    ("peer.page", peer::page),
    ("peer.cold", peer::cold),
    ("read.python", others::python),
    ("hadoop.read", hadoop::read),
    ("write", write::write),
    ("give_back", memory::give_back),
    ("memory.bursts", memory::bursts),
    ("memory.ramps", memory::ramps),
    ("memory.cost", memory::cost),
    ("memory.reads", memory::reads),
    ("open", files::open),
    ("agent", files::agent),
    ("hit_ratio", others::hit_ratio),
    ("cluster.scale", scale::scale),
    ("cluster.failover", failover::failover),
    ("cluster.console", console::console),
    ("phases.brake", brake::brake),
    ("decide", decide::decide),
    ("access", access::access),
    ("sim", sim::sim),
    ("peer", others::peers),
];

/// The groups whose name contains `only`, or else the one that the figure of this id belongs to.
fn wanted(only: &str) -> Vec<&'static str> {
    let names = GROUPS.iter().map(|(name, _)| *name);
    let found: Vec<_> = names.clone().filter(|name| name.contains(only)).collect();
    if !found.is_empty() {
        return found;
    }
    let has = |name: &&str| only.strip_prefix(*name).is_some_and(|rest| rest.starts_with('.'));
    names.filter(has).max_by_key(|name| name.len()).into_iter().collect()
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(order) = &args.hog {
        return match memory::hog::take(order) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::from(1)
            }
        };
    }
    let mut records = Vec::new();
    let mut failed = false;
    let wanted = wanted(&args.only);
    if wanted.is_empty() {
        let names: Vec<_> = GROUPS.iter().map(|(name, _)| *name).collect();
        eprintln!("there is no group for {:?}; there are {}", args.only, names.join(", "));
        return ExitCode::from(2);
    }
    for (name, group) in GROUPS.iter().filter(|(name, _)| wanted.contains(name)) {
        eprintln!("{name} ...");
        let ramps = RampArgs {
            count: args.ramps,
            seed: args.seed,
            group_max_bytes: args.group_max_mib << 20,
            law: args.law.clone(),
        };
        match Rig::new(args.runs, args.quick, ramps).and_then(|rig| group(&rig)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_named_by_itself_by_a_part_of_it_and_by_its_figures() {
        assert_eq!(wanted("").len(), GROUPS.len());
        assert_eq!(wanted("read.cached"), ["read.cached"]);
        assert_eq!(wanted("write.through"), ["write"]);
        assert_eq!(wanted("peer.page"), ["peer.page"]);
        assert_eq!(wanted("peer.page.streams"), ["peer.page"]);
        assert_eq!(wanted("peer.alluxio.read"), ["peer"]);
        assert!(wanted("nothing").is_empty() && wanted("writes.x").is_empty());
    }
}
