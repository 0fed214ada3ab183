//! `forebay model`: quick questions to the models, answered without a scenario.

use clap::{Args, Subcommand};
use forebay_model::overlap::{self, Flow};
use forebay_model::storage::{Cluster, JobRates, Locality, MapReduce};

use super::{Output, objects, say, table};
use crate::error::{Error, Result};
use crate::report::number;

/// The models that can be asked.
#[derive(Subcommand, Debug)]
pub enum ModelCommand {
    /// Effect of each action on one HPC phase and one prefetch requested at the same moment
    Interference(InterferenceArgs),
    /// Throughput of HDFS, a parallel file system, memory, and memory over a parallel file system
    Tls(ClusterArgs),
    /// I/O cost of a MapReduce job on each of them
    Mapreduce(MapReduceArgs),
}

/// A cluster; the defaults are those of the TLS paper.
#[derive(Args, Debug)]
pub struct ClusterArgs {
    /// Compute nodes
    #[arg(long, value_name = "N")]
    nodes: f64,
    /// Total bandwidth of the parallel file system, in MB/s
    #[arg(long, value_name = "MB/S")]
    pfs: f64,
    /// Share of the data in memory, 0 to 1
    #[arg(long, value_name = "F", default_value_t = 0.5)]
    hit: f64,
    /// Network link of a node, in MB/s
    #[arg(long, value_name = "MB/S", default_value_t = 1170.0)]
    link: f64,
    /// Bisection of the network, in MB/s; unlimited by default
    #[arg(long, value_name = "MB/S", default_value_t = f64::INFINITY, hide_default_value = true)]
    backplane: f64,
    /// Local disk, reading, in MB/s
    #[arg(long, value_name = "MB/S", default_value_t = 237.0)]
    disk_read: f64,
    /// Local disk, writing, in MB/s
    #[arg(long, value_name = "MB/S", default_value_t = 116.0)]
    disk_write: f64,
    /// Memory, in MB/s
    #[arg(long, value_name = "MB/S", default_value_t = 6267.0)]
    memory: f64,
}

/// Options of `mapreduce`.
#[derive(Args, Debug)]
pub struct MapReduceArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Input per node, in MB
    #[arg(long, value_name = "MB")]
    input: f64,
    /// Spilled by map tasks per node, in MB
    #[arg(long, value_name = "MB", default_value_t = 0.0)]
    spilled: f64,
    /// Shuffled per node, in MB
    #[arg(long, value_name = "MB", default_value_t = 0.0)]
    shuffled: f64,
    /// Output per node, in MB
    #[arg(long, value_name = "MB", default_value_t = 0.0)]
    output: f64,
}

/// Options of `interference`.
#[derive(Args, Debug)]
pub struct InterferenceArgs {
    /// I/O time of the phase alone, in seconds
    #[arg(long, value_name = "S")]
    io: f64,
    /// Time of the prefetch alone, in seconds
    #[arg(long, value_name = "S")]
    prefetch: f64,
    /// Compute that hides the prefetch, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    compute: f64,
    /// Factor by which the prefetch lengthens the phase
    #[arg(long, value_name = "I")]
    i_hpc: f64,
    /// Factor by which the phase lengthens the prefetch
    #[arg(long, value_name = "I")]
    i_bd: f64,
    /// Deadline of the phase, in percent beyond its time alone
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    qos: f64,
}

pub fn model(command: &ModelCommand, out: &mut Output<'_>) -> Result<()> {
    match command {
        ModelCommand::Interference(args) => interference(args, out),
        ModelCommand::Tls(args) => tls(args, out),
        ModelCommand::Mapreduce(args) => mapreduce(args, out),
    }
}

/// Bounds on what can be asked. They only catch typing errors, and keep every result a finite
/// number.
const LEAST: f64 = 1e-9;
const MOST: f64 = 1e12;

/// Returns an error unless the value of `option` is a number from `least` to `most`.
fn within(option: &str, value: f64, least: f64, most: f64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Usage(format!("{option} {value}: a number from {least} to {most} is needed")))
}

/// Name, read, write and intermediate rate of each kind of storage, in MB/s per node.
fn storages(a: &ClusterArgs) -> Result<[(&'static str, JobRates); 4]> {
    within("--nodes", a.nodes, 1.0, MOST)?;
    within("--hit", a.hit, 0.0, 1.0)?;
    let rates = [
        ("--pfs", a.pfs),
        ("--link", a.link),
        ("--disk-read", a.disk_read),
        ("--disk-write", a.disk_write),
        ("--memory", a.memory),
    ];
    rates.iter().try_for_each(|&(option, rate)| within(option, rate, LEAST, MOST))?;
    if a.backplane != f64::INFINITY {
        within("--backplane", a.backplane, LEAST, MOST)?;
    }
    let cluster = Cluster {
        compute_nodes: a.nodes,
        link: a.link,
        backplane: a.backplane,
        disk_read: a.disk_read,
        disk_write: a.disk_write,
        memory: a.memory,
        pfs_aggregate: a.pfs,
    };
    let rates = |read, write, intermediate| JobRates { read, write, intermediate };
    let local = Locality::Local;
    Ok([
        ("HDFS, local", rates(cluster.hdfs_read(local), cluster.hdfs_write(), a.disk_read)),
        ("PFS", rates(cluster.pfs(), cluster.pfs(), a.disk_read)),
        ("memory, local", rates(cluster.memory_read(local), a.memory, a.memory)),
        ("TLS", rates(cluster.tls_read(a.hit), cluster.tls_write(), a.memory)),
    ])
}

fn tls(a: &ClusterArgs, out: &mut Output<'_>) -> Result<()> {
    let row = |(name, r): &(&str, JobRates)| {
        let all = |rate: f64| number(rate * a.nodes / 1000.0);
        vec![name.to_string(), number(r.read), number(r.write), all(r.read), all(r.write)]
    };
    let rows: Vec<Vec<String>> = storages(a)?.iter().map(row).collect();
    let header =
        ["storage", "read_mb_per_s_node", "write_mb_per_s_node", "read_gb_per_s_all", "write_gb_per_s_all"];
    table(out, &header, &rows)
}

fn mapreduce(a: &MapReduceArgs, out: &mut Output<'_>) -> Result<()> {
    let amounts =
        [("--input", a.input), ("--spilled", a.spilled), ("--shuffled", a.shuffled), ("--output", a.output)];
    amounts.iter().try_for_each(|&(option, amount)| within(option, amount, 0.0, MOST))?;
    let job = MapReduce { input: a.input, spilled: a.spilled, shuffled: a.shuffled, output: a.output };
    let row = |(name, rates): &(&str, JobRates)| {
        let c = job.cost(rates);
        let sum = c.map_s + c.shuffle_s + c.reduce_s;
        vec![name.to_string(), number(c.map_s), number(c.shuffle_s), number(c.reduce_s), number(sum)]
    };
    let rows: Vec<Vec<String>> = storages(&a.cluster)?.iter().map(row).collect();
    table(out, &["storage", "map_s", "shuffle_s", "reduce_s", "io_s"], &rows)
}

fn interference(a: &InterferenceArgs, out: &mut Output<'_>) -> Result<()> {
    within("--io", a.io, LEAST, MOST)?;
    within("--prefetch", a.prefetch, LEAST, MOST)?;
    within("--compute", a.compute, 0.0, MOST)?;
    within("--qos", a.qos, 0.0, MOST)?;
    within("--i-hpc", a.i_hpc, 1.0, MOST)?;
    within("--i-bd", a.i_bd, 1.0, MOST)?;
    let deadline_s = a.io * (1.0 + a.qos / 100.0);
    let ends = |delay_s: f64| {
        overlap::integrate(
            Flow { start_s: 0.0, alone_s: a.io, factor: a.i_hpc },
            Flow { start_s: delay_s, alone_s: a.prefetch, factor: a.i_bd },
        )
    };
    // The end of the phase falls as the delay grows, so the least delay that is in time is found by
    // bisection.
    let (mut early_s, mut late_s) = (0.0, a.io);
    for _ in 0..60 {
        let middle_s = 0.5 * (early_s + late_s);
        if ends(middle_s).0 <= deadline_s { late_s = middle_s } else { early_s = middle_s }
    }
    let row = |name: &str, delay_s: f64| {
        let (io_s, prefetch_s) = ends(delay_s);
        let met = if io_s <= deadline_s * (1.0 + 1e-12) { "yes" } else { "no" };
        let cost_s = overlap::cost_s(prefetch_s, a.compute);
        vec![name.into(), number(delay_s), number(io_s), number(prefetch_s), number(cost_s), met.into()]
    };
    let rows = [row("No Action", 0.0), row("Full Delay", a.io), row("Partial Delay", late_s)];
    let header = ["action", "delay_s", "phase_ends_s", "prefetch_ends_s", "cost_s", "in_time"];
    if out.json {
        let actions = objects(&header, &rows);
        return out.value(&serde_json::json!({ "deadline_s": deadline_s, "actions": actions }));
    }
    say(out, &format!("deadline of the phase: {} s", number(deadline_s)))?;
    table(out, &header, &rows)
}
