//! Random systems whose storage servers run tasks, on which policies decide where stages run.
//!
//! | drawn | from |
//! | --- | --- |
//! | servers, nodes | 2 to 16, 2 to 32 |
//! | disk of a server; its link | 0.2 to 4 GB/s; 0.25 to 4 times that |
//! | slots of a node, of a server | 2 to 16, 1 to 8 |
//! | a core of a server | takes 1 to 2 times as long as one of a node |
//! | part of a disk that tasks of the server may take | 0.25 to 1 |
//! | jobs | 1 to 4, which begin within a minute |
//! | input | all disks read it in 5 to 50 s; 20 to 400 tasks |
//! | compute | all nodes compute it in 0.05 to 5 times as long |
//! | result, two of three jobs | 0.001 to 1 times the input |
//! | reduce tasks, one of two jobs | 4 to 64, of 0.01 to 1 times the input |
//! | their output; their compute | 0.01 to 1 times the reduce input; 0.1 to 1 times the compute |
//! | I/O phases beside them, one of two systems | 0.1 to 0.5 of the time, of all servers |
//!
//! Where two values are given, the distribution is log-uniform, except for counts of jobs, the
//! share of disks, and phases.

use forebay_model::rng::Rng;

use super::{between, by_order};
use crate::arrivals::Arrivals;
use crate::cluster::{self, JobSpec, Placement, Reduce, Shipping, Shuffle};
use crate::colocate::HpcSpec;
use crate::colocate::knowledge::Knowledge;
use crate::error::Result;
use crate::trace::Trace;
use crate::world::{Setup, simulate};

const GB: f64 = 1e9;
const S: f64 = 1e9;
/// Requests of a task, few enough to keep a run short.
const REQUESTS: u64 = 16;

/// What a policy made of a system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Made {
    /// Number of jobs.
    pub jobs: usize,
    /// Sum of their times, in seconds.
    pub sum_s: f64,
    /// The longest of them.
    pub longest_s: f64,
    /// How many times as long as alone phases took; 1 without phases.
    pub slowdown: f64,
}

/// The system of this number of a seed, under a policy.
pub fn system(seed: u64, number: u64, policy: &str) -> Setup {
    let rng = &mut Rng::new(seed).fork(number);
    let count = |rng: &mut Rng, low, high| by_order(rng, low, high).round() as u32;
    let (servers, nodes) = (count(rng, 2.0, 16.0), count(rng, 2.0, 32.0));
    let (slots, server_slots) = (count(rng, 2.0, 16.0), count(rng, 1.0, 8.0));
    let disk = by_order(rng, 0.2, 4.0) * GB;
    let shipping = Shipping {
        policy: policy.into(),
        slots: server_slots,
        cpu_times: by_order(rng, 1.0, 2.0),
        io_share: between(rng, 0.25, 1.0),
        disk_bytes_per_s: disk,
    };
    let mut cluster = cluster::Setup {
        policy: "naive-bb".into(),
        system: None,
        nodes,
        slots,
        tier_bytes: 1,
        extent_bytes: 128 << 20,
        page_bytes: 2 << 20,
        fetch_threads: 1,
        locality_wait_ns: 0,
        servers,
        server_bytes_per_s: disk * by_order(rng, 0.25, 4.0),
        stripe_bytes: 0,
        placement: Placement::Random,
        layout_known: true,
        read_ahead_bytes: 0,
        write_bytes: 0,
        streams: false,
        shuffle: Shuffle::Files,
        shipping: Some(shipping),
        jobs: Vec::new(),
        seed: rng.next_u64(),
        horizon_ns: None,
    };
    let all = disk * f64::from(servers);
    // Stripes are splits, so jobs of a system have splits of one size.
    let split = (all * by_order(rng, 5.0, 50.0) / by_order(rng, 20.0, 400.0)) as u64;
    (cluster.stripe_bytes, cluster.read_ahead_bytes, cluster.write_bytes) =
        (split, split / REQUESTS, split / REQUESTS);
    let cores = f64::from(nodes * slots);
    cluster.jobs = (0..1 + rng.below(4)).map(|n| job(rng, n, split, all, cores)).collect();
    // Slots serve jobs in this order.
    cluster.jobs.sort_by_key(|job| job.starts_ns);
    let hpc = (rng.below(2) == 0).then(|| {
        let (period_s, busy) = (by_order(rng, 4.0, 40.0), between(rng, 0.1, 0.5));
        HpcSpec {
            name: "simulation".into(),
            compute_ns: (period_s * (1.0 - busy) * S) as u64,
            io_ns: (period_s * busy * S) as u64,
            phases: 20,
            allowance: 0.1,
            processes: 4 * servers,
            starts_ns: 0,
            io_first: false,
            arrivals: Arrivals::Periodic,
            knowledge: Knowledge::default(),
        }
    });
    let seed = rng.next_u64();
    let (hpc, faults) = (hpc.into_iter().collect(), Vec::new());
    Setup { cluster, buffers: None, hpc, memory: None, faults, seed, horizon_ns: None }
}

fn job(rng: &mut Rng, number: u64, split: u64, all: f64, cores: f64) -> JobSpec {
    let tasks = by_order(rng, 20.0, 400.0).round();
    let input = tasks * split as f64;
    let compute_s = input / all * by_order(rng, 0.05, 5.0);
    let times = |rng: &mut Rng, low| by_order(rng, low, 1.0) * input;
    let result = if rng.below(3) > 0 { times(rng, 0.001) } else { 0.0 };
    let reduce = (rng.below(2) == 0).then(|| {
        let reduce_tasks = by_order(rng, 4.0, 64.0).round();
        let cpu_s = compute_s * by_order(rng, 0.1, 1.0) * cores / reduce_tasks;
        Reduce { tasks: reduce_tasks as u32, bytes: times(rng, 0.01) as u64, task_cpu_ns: (cpu_s * S) as u64 }
    });
    let output = reduce.map_or(0.0, |reduce| reduce.bytes as f64 * by_order(rng, 0.01, 1.0));
    JobSpec {
        name: format!("job {number}"),
        input_bytes: input as u64,
        file_bytes: input as u64,
        split_bytes: split,
        task_cpu_ns: (compute_s * cores / tasks * S) as u64,
        first_task_cpu_ns: None,
        servers: None,
        starts_ns: (between(rng, 0.0, 60.0) * S) as u64,
        after: None,
        output_bytes: output as u64,
        spilled_bytes: 0,
        result_bytes: result as u64,
        reduce,
    }
}

/// Runs the system of this number of a seed under a policy.
///
/// # Errors
/// If the run does not end.
pub fn run(seed: u64, number: u64, policy: &str) -> Result<Made> {
    let outcome = simulate(&system(seed, number, policy), &mut Trace::off())?;
    let times = || outcome.cluster.jobs.iter().map(|job| job.map_ns as f64 / S);
    Ok(Made {
        jobs: outcome.cluster.jobs.len(),
        sum_s: times().sum(),
        longest_s: times().fold(0.0, f64::max),
        slowdown: 1.0 + outcome.hpc.first().map_or(0.0, |hpc| hpc.slowdown()),
    })
}

/// The better of two runs of a system.
pub fn better(a: &Made, b: &Made) -> Made {
    if a.sum_s <= b.sum_s { *a } else { *b }
}
