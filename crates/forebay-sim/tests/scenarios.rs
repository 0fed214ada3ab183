//! Random scenarios of every kind, right ones and wrong ones: each runs to its end or its horizon
//! with numbers that make sense, or is refused in one line.
//!
//! A scenario that runs is changed at one to four keys. Values are right, at the edge of what is
//! allowed, or nonsense. They are small where they are right, and there is a horizon, so that a
//! run is short. `make test-random` runs more of them, others each time.
//!
//! Numbers that make sense: none is below 0 or endless, no phase and no step is faster than alone,
//! and no byte appears or vanishes. A run that does not end within [`LIMIT`] is a failure.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use forebay_sim::burst::{self, JobSpec};
use forebay_sim::cancel::Cancel;
use forebay_sim::colocate::PhaseOutcome;
use forebay_sim::kinds::Done;
use forebay_sim::scenario::{File, Scenario};
use forebay_sim::trace::Trace;
use proptest::prelude::*;

/// Most runs take milliseconds, the longest some seconds.
const LIMIT: Duration = Duration::from_secs(600);
/// Of times of whole nanoseconds.
const ROUNDING_NS: u64 = 1_000;

const COLOCATION: &str = "
horizon_s = 400
cluster = { pfs_gb_per_s = 4, nodes = 8, ram_gb = 400 }
profile = { bytes_gb = 50, prefetch_s = 25, i_hpc = 1.3, i_bd = 1.2 }
hpc = [{ name = 'checkpoints', compute_s = 30, io_s = 10, phases = 4 }]
job = [{ name = 'sort', input_gb = 200, wave_gb = 50, compute_s = 20 }]
";

const BURST_BUFFER: &str = "
kind = 'burst-buffer'
horizon_s = 400
cluster = { nodes = 8, node_gb = 1000, node_gb_per_s = 1 }
allocation = { policy = 'striped' }
access = { policy = 'sa-sjf' }
fault = [{ node = 1, at_s = 10, for_s = 20 }]
[[job]]
name = 'step'
count = 20
interarrival_s = 2
processes = 8
nodes = 3
step_gb = 20
steps = 2
compute_s = 5
";

const CLUSTER: &str = "
kind = 'cluster'
horizon_s = 400
cluster = { nodes = 2, slots = 2, tier_bytes = 100000000, extent_bytes = 4000000, page_bytes = 1000000 }
pfs = { servers = 2, server_bytes_per_s = 1000000, stripe_bytes = 2000000 }
job = [{ name = 'words', input_bytes = 20000000, file_bytes = 4000000, task_cpu_s = 1 }]
";

const MEMORY: &str = "
kind = 'memory'
duration_s = 20
node = { memory_gb = 16, refill_gb_per_s = 1 }
memory = { policy = 'forebay' }
load = { base_gb = 4, noise_gb = 0.05 }
process = [{ name = 'burst', gb = 6, rise_gb_per_s = 2, hold_s = 3, rest_s = 2, count = 3 }]
";

const SHIPPING: &str = "
kind = 'cluster'
cluster = { nodes = 2, slots = 2, tier_bytes = 100000000, extent_bytes = 4000000 }
pfs = { servers = 3, server_bytes_per_s = 10000000, stripe_bytes = 4000000 }
shipping = { slots = 2, disk_bytes_per_s = 20000000 }
[[job]]
name = 'sort'
input_bytes = 40000000
file_bytes = 10000000
task_cpu_s = 0.5
reduce_tasks = 4
reduce_cpu_s = 0.5
spilled_bytes = 40000000
shuffled_bytes = 40000000
output_bytes = 40000000
result_bytes = 100000
";

const WORLD: &str = "
kind = 'world'
horizon_s = 400
duration_s = 20
node = { memory_gb = 0.1 }
memory = { policy = 'forebay' }
load = { base_gb = 0.02 }
process = [{ name = 'burst', gb = 0.08, rise_gb_per_s = 0.02, hold_s = 1, count = 5 }]
cluster = { nodes = 2, slots = 2, tier_bytes = 100000000, extent_bytes = 4000000, page_bytes = 1000000 }
pfs = { servers = 2, server_bytes_per_s = 1000000, stripe_bytes = 2000000, write_bytes = 500000 }
hpc = [{ name = 'phases', compute_s = 4, io_gb = 0.01, phases = 3, processes = 3 }]
buffers = { nodes = 4, node_gb = 1, node_gb_per_s = 0.01 }
drain = { policy = 'yield' }
fault = [{ buffer = 1, at_s = 10, for_s = 20 }, { node = 1, at_s = 7, for_s = 5 }]
[[job]]
name = 'words'
input_bytes = 20000000
file_bytes = 4000000
task_cpu_s = 1
output_bytes = 3000000
[[checkpoint]]
name = 'step'
count = 4
interarrival_s = 2
processes = 8
nodes = 2
step_gb = 0.02
steps = 3
compute_s = 5
";

const FACILITY: &str = "
kind = 'facility'
horizon_s = 4000
cluster = { nodes = 9, node_gb = 30, link_gb_per_s = 10 }
pfs = { servers = 4, server_gb_per_s = 1 }
tier = { node_gb = 16, gb_per_s = 2, share = 0.6 }
steps = { every_s = 7, whole_every = 3, part = 0.2 }
access = { policy = 'sa-sjf' }
[generate]
jobs = 12
per_day = 5000
interarrival_s = [1, 30]
estimate_s = [20, 400]
accuracy = [0.3, 1]
nodes = [[1, 1], [2, 1], [5, 1]]
";

/// Keys of each kind, and some that no kind has.
const KEYS: [(&str, &[&str]); 7] = [
    (
        FACILITY,
        &[
            "cluster.nodes",
            "cluster.node_gb",
            "cluster.link_gb_per_s",
            "pfs.servers",
            "pfs.server_gb_per_s",
            "pfs.stripes",
            "tier.node_gb",
            "tier.gb_per_s",
            "tier.share",
            "tier.keeps",
            "drain.policy",
            "drain.age_max_s",
            "access.policy",
            "access.servers",
            "access.wait_s",
            "steps.every_s",
            "steps.whole_every",
            "steps.part",
            "queue.policy",
            "queue.sample_s",
            "reports.heartbeat_s",
            "reports.health_s",
            "reports.traffic_s",
            "reports.files",
            "checkpoint.median_gb",
            "checkpoint.staged",
            "checkpoint.moves",
            "generate.load",
            "generate.per_day",
        ],
    ),
    (
        COLOCATION,
        &[
            "cluster.pfs_gb_per_s",
            "cluster.nodes",
            "cluster.max_threads",
            "cluster.ram_gb",
            "planner.policy",
            "planner.learning",
            "bandwidth.policy",
            "profile.bytes_gb",
            "profile.prefetch_s",
            "profile.i_hpc",
            "profile.i_bd",
            "profile.direct_gb_per_s",
            "profile.default_nodes",
            "truth.i_hpc_times",
            "truth.speed_times",
            "hpc.0.compute_s",
            "hpc.0.io_s",
            "hpc.0.phases",
            "hpc.0.allowance_percent",
            "hpc.0.starts_s",
            "hpc.0.io_first",
            "hpc.0.arrivals",
            "hpc.0.spread",
            "job.0.input_gb",
            "job.0.wave_gb",
            "job.0.compute_s",
            "job.0.tier_read_s",
            "job.0.starts_s",
        ],
    ),
    (
        BURST_BUFFER,
        &[
            "shuffle",
            "cluster.nodes",
            "cluster.node_gb",
            "cluster.node_gb_per_s",
            "allocation.policy",
            "access.policy",
            "access.ageing",
            "access.patience_s",
            "access.lease_s",
            "failures.node_mean_s",
            "failures.node_down_s",
            "job.0.count",
            "job.0.interarrival_s",
            "job.0.sizes",
            "job.0.processes",
            "job.0.step_gb",
            "job.0.process_gb",
            "job.0.nodes",
            "job.0.on",
            "job.0.client_gb_per_s",
            "job.0.steps",
            "job.0.compute_s",
            "job.0.starts_s",
            "job.0.io_first",
            "job.0.arrivals",
            "job.0.spread",
            "job.0.at_s",
            "fault.0.node",
            "fault.0.job",
            "fault.0.at_s",
            "fault.0.for_s",
        ],
    ),
    (
        CLUSTER,
        &[
            "cluster.nodes",
            "cluster.slots",
            "cluster.tier_bytes",
            "cluster.extent_bytes",
            "cluster.page_bytes",
            "cluster.fetch_threads",
            "cluster.locality_wait_s",
            "planner.policy",
            "pfs.servers",
            "pfs.server_bytes_per_s",
            "pfs.stripe_bytes",
            "pfs.placement",
            "pfs.layout_known",
            "pfs.read_ahead_bytes",
            "pfs.streams",
            "job.0.input_bytes",
            "job.0.file_bytes",
            "job.0.split_bytes",
            "job.0.task_cpu_s",
            "job.0.first_task_cpu_s",
            "job.0.starts_s",
            "job.0.servers",
        ],
    ),
    (
        SHIPPING,
        &[
            "cluster.nodes",
            "cluster.shuffle",
            "planner.policy",
            "pfs.servers",
            "pfs.stripe_bytes",
            "pfs.placement",
            "pfs.layout_known",
            "pfs.write_bytes",
            "shipping.policy",
            "shipping.slots",
            "shipping.cpu_times",
            "shipping.io_share",
            "shipping.disk_bytes_per_s",
            "job.0.input_bytes",
            "job.0.output_bytes",
            "job.0.spilled_bytes",
            "job.0.result_bytes",
            "job.0.reduce_tasks",
            "job.0.shuffled_bytes",
            "job.0.reduce_cpu_s",
        ],
    ),
    (
        MEMORY,
        &[
            "duration_s",
            "node.memory_gb",
            "node.refill_gb_per_s",
            "node.release_gb_per_s",
            "memory.policy",
            "memory.target",
            "memory.gain",
            "memory.block_bytes",
            "memory.min_gb",
            "memory.max_gb",
            "memory.start_gb",
            "memory.period_s",
            "memory.fast_period_s",
            "memory.alarm",
            "load.base_gb",
            "load.noise_gb",
            "load.noise_every_s",
            "load.trace",
            "process.0.gb",
            "process.0.rise_gb_per_s",
            "process.0.fall_gb_per_s",
            "process.0.hold_s",
            "process.0.rest_s",
            "process.0.count",
            "process.0.jitter",
            "process.0.starts_s",
        ],
    ),
    (
        WORLD,
        &[
            "shuffle",
            "cluster.nodes",
            "cluster.slots",
            "cluster.tier_bytes",
            "cluster.page_bytes",
            "planner.policy",
            "pfs.servers",
            "pfs.server_bytes_per_s",
            "pfs.stripe_bytes",
            "pfs.write_bytes",
            "job.0.input_bytes",
            "job.0.file_bytes",
            "job.0.task_cpu_s",
            "job.0.output_bytes",
            "hpc.0.compute_s",
            "hpc.0.io_gb",
            "hpc.0.io_s",
            "hpc.0.phases",
            "hpc.0.processes",
            "hpc.0.arrivals",
            "buffers.nodes",
            "buffers.node_gb",
            "buffers.node_gb_per_s",
            "access.policy",
            "access.lease_s",
            "allocation.policy",
            "failures.node_mean_s",
            "failures.node_down_s",
            "drain.policy",
            "drain.gb_per_s",
            "drain.age_max_s",
            "drain.keeps",
            "checkpoint.0.count",
            "checkpoint.0.interarrival_s",
            "checkpoint.0.processes",
            "checkpoint.0.step_gb",
            "checkpoint.0.nodes",
            "checkpoint.0.client_gb_per_s",
            "checkpoint.0.steps",
            "checkpoint.0.compute_s",
            "checkpoint.0.starts_s",
            "duration_s",
            "node.memory_gb",
            "node.refill_gb_per_s",
            "memory.policy",
            "memory.max_gb",
            "memory.block_bytes",
            "load.base_gb",
            "process.0.gb",
            "process.0.count",
            "fault.1.node",
            "fault.1.at_s",
            "fault.1.for_s",
            "fault.0.buffer",
            "fault.0.node",
            "fault.0.job",
            "fault.0.at_s",
            "fault.0.for_s",
        ],
    ),
];

const ANY_KIND: [&str; 6] = ["seed", "horizon_s", "kind", "no_such_key", "job.0.no_such_key", "cluster"];

fn value() -> impl Strategy<Value = String> {
    let known = [
        "none",
        "sys-fcfs",
        "sys-sjf",
        "sa-fcfs",
        "sa-sjf",
        "coflow",
        "forebay",
        "striped",
        "full",
        "1x",
        "2x",
        "naive-bb",
        "no-action",
        "full-delay",
        "eley",
        "eley-direct",
        "fair-share",
        "set-10",
        "static",
        "dynims",
        "periodic",
        "jittered",
        "poisson",
        "trace",
        "fixed",
        "exponential",
        "in-turn",
        "random",
        "fetch",
        "files",
        "never",
        "always",
        "estimate",
        "step#1",
        "memory",
        "cluster",
        "world",
        "at-once",
        "yield",
    ];
    let odd = [
        "-1",
        "1e300",
        "nan",
        "inf",
        "-inf",
        "9223372036854775807",
        "''",
        "[]",
        "{}",
        "[0, 1]",
        "[1, 0]",
        "[[0], [1]]",
        "true",
        "false",
        "'../x'",
    ];
    prop_oneof![
        3 => (0u32..40).prop_map(|n| n.to_string()),
        3 => (0.001f64..40.0).prop_map(|x| x.to_string()),
        1 => prop::sample::select(vec!["4096", "65536", "1000000"]).prop_map(str::to_owned),
        3 => prop::sample::select(known.to_vec()).prop_map(|word| format!("'{word}'")),
        2 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned),
    ]
}

/// The text of a scenario, and what is changed in it.
fn scenarios() -> impl Strategy<Value = (&'static str, Vec<(&'static str, String)>)> {
    prop::sample::select(KEYS.to_vec()).prop_flat_map(|(text, keys)| {
        let key = prop_oneof![6 => prop::sample::select(keys.to_vec()), 1 => prop::sample::select(ANY_KIND.to_vec())];
        (Just(text), prop::collection::vec((key, value()), 0..=4))
    })
}

/// What nothing can be: faster than alone, or bytes from nowhere.
fn check(scenario: &Scenario, done: &Done) {
    match (scenario, done) {
        (Scenario::Colocation(setup), Done::Colocation(outcome)) => {
            outcome.hpc.iter().for_each(|hpc| phases(&hpc.phases));
            for (job, spec) in outcome.jobs.iter().zip(&setup.jobs) {
                let computed = job.waves.len() as u64 - u64::from(job.waves_left);
                assert!(job.waves_left > 0 || job.map_ns >= computed * spec.compute_ns, "{job:?}");
                let most = spec.wave_bytes as f64 * (1.0 + 1e-9) + 1.0;
                assert!(job.waves.iter().all(|wave| wave.direct_bytes <= most), "{job:?}");
            }
        }
        (Scenario::BurstBuffer(setup), Done::BurstBuffer(outcome)) => steps(&setup.jobs, outcome),
        (Scenario::Cluster(setup), Done::Cluster(outcome)) => {
            let wanted: u64 = setup.jobs.iter().map(|job| job.input_bytes).sum();
            let served = outcome.served_bytes;
            assert!(outcome.tasks_left() > 0 || served >= wanted, "{served} of {wanted} bytes were read");
        }
        (Scenario::World(_), Done::World(outcome)) => {
            outcome.hpc.iter().for_each(|hpc| phases(&hpc.phases));
            let drained = outcome.buffers.as_ref().map_or(0, |buffers| buffers.drained_bytes);
            let sent = outcome.cluster.output_bytes + outcome.phase_bytes + drained;
            assert!(outcome.written_bytes >= sent, "{} of {sent} bytes arrived", outcome.written_bytes);
        }
        (Scenario::Facility(setup), Done::Facility(outcome)) => {
            assert_eq!(outcome.jobs + outcome.unfinished, setup.jobs.len() as u64);
        }
        // A tier that gives memory back slowly is above its capacity meanwhile.
        (Scenario::Memory(setup), Done::Memory(outcome)) => {
            for point in outcome.points.iter().filter(|_| setup.release_bytes_per_s.is_none()) {
                assert!(point.tier_bytes <= point.capacity_bytes as f64 + 1.0, "{point:?}");
            }
        }
        _ => panic!("a run of another kind"),
    }
}

fn phases(phases: &[PhaseOutcome]) {
    for p in phases {
        assert!(p.end_ns + ROUNDING_NS >= p.begin_ns + p.alone_ns, "faster than alone: {p:?}");
    }
    assert!(phases.windows(2).all(|pair| pair[0].end_ns <= pair[1].begin_ns), "{phases:?}");
}

fn steps(jobs: &[JobSpec], outcome: &burst::Outcome) {
    for (job, spec) in outcome.jobs.iter().zip(jobs) {
        assert!(job.steps.len() <= spec.steps as usize, "{job:?}");
        for step in &job.steps {
            assert!(step.end_ns + ROUNDING_NS >= step.due_ns + step.alone_ns, "faster than alone: {step:?}");
        }
    }
}

/// The rows of a run, or its refusal.
fn run(text: &str, changes: &[(&str, String)]) -> forebay_sim::error::Result<Vec<Vec<String>>> {
    let mut file = File::parse(Path::new("random.toml"), text)?;
    for (key, value) in changes {
        file.set(key, value)?;
    }
    let scenario = file.scenario()?;
    let done = in_time(|| scenario.run(&mut Trace::off()))?;
    check(&scenario, &done);
    Ok(scenario.rows(&done))
}

/// What `work` makes, unless it takes too long.
fn in_time<T>(work: impl FnOnce() -> T) -> T {
    let cancel = Cancel::default();
    let (over, waits) = mpsc::channel::<()>();
    let limit = cancel.clone();
    let watch = std::thread::spawn(move || {
        if waits.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            limit.cancel();
        }
    });
    let made = cancel.watch(work);
    drop(over);
    watch.join().expect("it only waits");
    assert!(!cancel.is_cancelled(), "it did not end within {LIMIT:?}");
    made
}

#[test]
fn all_run_as_they_are() {
    for (text, _) in KEYS {
        run(text, &[]).unwrap_or_else(|e| panic!("{e}: {text}"));
    }
}

proptest! {
    #[test]
    fn a_scenario_runs_or_is_refused_in_one_line((text, changes) in scenarios()) {
        match run(text, &changes) {
            Ok(rows) => {
                for cell in rows.iter().flatten() {
                    // Names may be read as numbers, but none of these is called nan or inf.
                    if let Ok(number) = cell.parse::<f64>() {
                        prop_assert!(number.is_finite() && number >= 0.0, "{} in {:?}", cell, rows);
                    }
                }
            }
            Err(e) => {
                let message = e.to_string();
                prop_assert!(!message.is_empty() && !message.contains('\n'), "{}", message);
            }
        }
    }
}
