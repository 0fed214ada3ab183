//! One world: what only one part does gives that part's results, no byte is lost, and runs repeat.

use std::path::Path;

use forebay_sim::kinds::Done;
use forebay_sim::scenario::{File, Scenario};
use forebay_sim::trace::{SharedBuffer, Trace};
use forebay_sim::world::{Outcome, Setup};
use forebay_sim::{burst, cluster, memory, world};
use proptest::prelude::*;

const GB: u64 = 1_000_000_000;

/// Burst buffers of 8 nodes, two jobs that write three steps each, and drains.
const BUFFERS: &str = "
[allocation]
policy = 'striped'
[access]
policy = 'sa-sjf'
[CHECKPOINT]
name = 'a'
processes = 64
nodes = 8
step_gb = 16
steps = 3
compute_s = 9
[CHECKPOINT]
name = 'b'
processes = 16
nodes = 4
step_gb = 8
steps = 3
compute_s = 6
starts_s = 1
";

const NODES: &str = "nodes = 8\nnode_gb = 100\nnode_gb_per_s = 0.5\n";

const CLUSTER: &str = "
[cluster]
nodes = 3
slots = 2
tier_bytes = 400000000
extent_bytes = 8000000
page_bytes = 1000000
[pfs]
servers = 4
server_bytes_per_s = 25000000
stripe_bytes = 2000000
write_bytes = 1000000
";

const JOBS: &str = "
[[job]]
name = 'words'
input_bytes = 300000000
file_bytes = 30000000
task_cpu_s = 0.5
output_bytes = 50000001
[[job]]
name = 'sort'
input_bytes = 100000000
file_bytes = 30000000
task_cpu_s = 0.2
starts_s = 3
";

fn read(text: &str) -> Scenario {
    let scenario = File::parse(Path::new("a.toml"), text).and_then(|file| file.scenario());
    scenario.unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn setup(text: &str) -> Setup {
    match read(&format!("kind = 'world'\n{text}")) {
        Scenario::World(setup) => *setup,
        _ => panic!("another kind"),
    }
}

fn run(setup: &Setup) -> Outcome {
    world::simulate(setup, &mut Trace::off()).expect("it comes to an end")
}

/// Steps in burst buffers before a file system that keeps up with them, with this drain policy.
fn buffers(policy: &str) -> String {
    let checkpoints = BUFFERS.replace("CHECKPOINT", "[checkpoint]");
    let drain = format!("[drain]\npolicy = '{policy}'\n");
    format!("{}\n[buffers]\n{NODES}{drain}{checkpoints}", CLUSTER.replace("25000000", "1000000000"))
}

#[test]
fn a_world_of_big_data_jobs_is_a_cluster() {
    for policy in ["naive-bb", "no-action", "forebay"] {
        let planner = format!("[planner]\npolicy = '{policy}'\n");
        let text = format!("{planner}{CLUSTER}{JOBS}");
        let Scenario::Cluster(alone) = read(&format!("kind = 'cluster'\n{text}")) else {
            panic!("a cluster")
        };
        let alone = cluster::simulate(&alone, &mut Trace::off()).expect("it comes to an end");
        assert_eq!(run(&setup(&text)).cluster, alone, "{policy}");
    }
}

#[test]
fn a_world_of_burst_buffers_that_do_not_drain_is_a_burst_buffer() {
    for (policy, fault) in [("sa-sjf", ""), ("coflow", "[[fault]]\nNODE = 3\nat_s = 12\nfor_s = 20\n")] {
        let jobs = BUFFERS.replace("sa-sjf", policy);
        let alone = format!(
            "kind = 'burst-buffer'\n[cluster]\n{NODES}{}{}",
            jobs.replace("CHECKPOINT", "[job]"),
            fault.replace("NODE", "node")
        );
        let together = format!(
            "{CLUSTER}[buffers]\n{NODES}{}{}",
            jobs.replace("CHECKPOINT", "[checkpoint]"),
            fault.replace("NODE", "buffer")
        );
        let Scenario::BurstBuffer(alone) = read(&alone) else { panic!("burst buffers") };
        let alone = burst::simulate(&alone, &mut Trace::off()).expect("it comes to an end");
        let buffers = run(&setup(&together)).buffers.expect("it has burst buffers");
        assert_eq!(burst::Outcome { events: alone.events, ..buffers }, alone, "{policy}");
    }
}

/// 160 pieces of 1 MB, 40 for each of four servers of 25 MB/s: 1.6 s.
#[test]
fn a_phase_alone_takes_as_long_as_its_servers_need() {
    let hpc = "[[hpc]]\nname = 'a'\ncompute_s = 2\nio_gb = 0.16\nphases = 3\nprocesses = 9\n";
    let outcome = run(&setup(&format!("{CLUSTER}{hpc}")));
    let phases: Vec<(u64, u64)> =
        outcome.hpc[0].phases.iter().map(|p| (p.begin_ns / 1_000_000, p.end_ns / 1_000_000)).collect();
    assert_eq!(phases, [(2_000, 3_600), (5_600, 7_200), (9_200, 10_800)]);
    assert!(outcome.hpc[0].slowdown().abs() < 1e-9, "{outcome:?}");
    assert_eq!(outcome.phase_bytes, 480_000_000);
}

/// A step of 16 GB on 8 nodes of 0.5 GB/s is written within 4 s, and read within as many.
#[test]
fn a_step_drains_at_the_speed_of_its_nodes() {
    let all = buffers("at-once");
    let one = all.rsplit_once("[[checkpoint]]").expect("there are two").0;
    let outcome = run(&setup(one));
    let buffers = outcome.buffers.expect("it has burst buffers");
    for drain in &buffers.drains {
        let took_s = (drain.to_ns - drain.from_ns) as f64 * 1e-9;
        assert!((4.0..4.1).contains(&took_s), "{took_s} s: {buffers:?}");
    }
    assert_eq!((buffers.drains.len(), buffers.drained_bytes), (3, 48 * GB));
    assert_eq!(outcome.written_bytes, 48 * GB);
}

/// Beside a phase that takes 30 s alone, steps drain only when a job with room for two has a third
/// one, or soon would.
#[test]
fn drains_yield_to_phases_unless_a_job_waits_for_room() {
    let phase = "[[hpc]]\nname = 'c'\ncompute_s = 1\nio_gb = 120\nphases = 1\nprocesses = 8\n";
    let outcome = |policy: &str| {
        let outcome = run(&setup(&format!("{}{phase}", buffers(policy))));
        (outcome.hpc[0].slowdown(), outcome.buffers.expect("it has burst buffers"))
    };
    let ((greedy, at_once), (polite, slowly)) = (outcome("at-once"), outcome("yield"));
    assert!(greedy > 1.2 * polite && polite > 0.0, "{greedy} {polite}");
    let first_s = |buffers: &burst::Outcome| buffers.drains[0].to_ns as f64 * 1e-9;
    assert!(first_s(&slowly) > first_s(&at_once) + 1.0, "{} {}", first_s(&at_once), first_s(&slowly));
    assert_eq!((slowly.drains.len(), slowly.undrained_bytes), (6, 0));
}

/// Drains and prefetches share the servers, and the phases with them.
#[test]
fn parts_disturb_each_other() {
    let alone = run(&setup(&format!("{CLUSTER}{JOBS}")));
    let phase = "[[hpc]]\nname = 'c'\ncompute_s = 1\nio_gb = 0.4\nphases = 3\nprocesses = 8\n";
    let beside = run(&setup(&format!("{CLUSTER}{JOBS}{phase}")));
    assert!(beside.cluster.jobs[0].map_ns > alone.cluster.jobs[0].map_ns + GB, "{beside:?}");
    assert!(beside.hpc[0].slowdown() > 0.1, "{:?}", beside.hpc);
    let inputs = |outcome: &Outcome| (outcome.cluster.served_bytes, outcome.cluster.output_bytes);
    assert_eq!(inputs(&beside), (400_000_000, 50_000_001));
    assert_eq!(inputs(&alone), inputs(&beside));
    assert_eq!(beside.written_bytes, 50_000_001 + beside.phase_bytes);
}

/// A node of the burst buffers goes away while steps are drained: what was written is drained or
/// lost.
#[test]
fn a_lost_node_takes_undrained_steps_with_it() {
    let fault = "[[fault]]\nbuffer = 2\nat_s = 14\nfor_s = 5\n";
    let outcome = run(&setup(&format!("{}{fault}", buffers("at-once"))));
    let buffers = outcome.buffers.expect("it has burst buffers");
    assert!(buffers.lost_bytes > 0 && buffers.jobs.iter().any(|j| j.steps_lost > 0), "{buffers:?}");
    assert_eq!(buffers.drained_bytes + buffers.lost_bytes, 72 * GB);
}

#[test]
fn a_trace_has_the_same_bytes_again() {
    let text = format!("{}{JOBS}[[hpc]]\nname = 'c'\ncompute_s = 1\nio_gb = 4\n", buffers("yield"));
    let scenario = read(&format!("kind = 'world'\n{text}"));
    let bytes = || {
        let buffer = SharedBuffer::default();
        let mut trace = scenario.trace(Box::new(buffer.clone()));
        let done = scenario.run(&mut trace).expect("it comes to an end");
        trace.finish().expect("a buffer can be written");
        assert!(matches!(done, Done::World(_)));
        buffer.bytes()
    };
    let first = bytes();
    assert!(first.len() > 10_000 && first == bytes());
}

/// A node of 16 GB whose compute takes up to 11 GB, again and again.
const MEMORY: &str = "
duration_s = 20
[node]
memory_gb = 16
refill_gb_per_s = 1
[memory]
policy = 'POLICY'
[load]
base_gb = 4
noise_gb = 0.05
[[process]]
name = 'burst'
gb = 7
rise_gb_per_s = 2
hold_s = 3
rest_s = 2
count = 3
jitter = 0.3
";

#[test]
fn a_world_of_memory_is_a_node_of_kind_memory_each() {
    for policy in ["forebay", "dynims", "static"] {
        let memory = MEMORY.replace("POLICY", policy);
        let outcome = run(&setup(&format!("seed = 5\n{memory}{CLUSTER}")));
        assert_eq!(outcome.memory.len(), 3);
        let Scenario::Memory(alone) = read(&format!("kind = 'memory'\nseed = 5\n{memory}")) else {
            panic!("memory")
        };
        for (node, together) in (0..).zip(&outcome.memory) {
            let alone = memory::Setup { seed: 5 + node, ..*alone.clone() };
            let alone = memory::simulate(&alone, &mut Trace::off()).expect("it comes to an end");
            assert_eq!(together, &alone, "{policy}, node {node}");
        }
    }
}

/// Compute takes nearly all memory of the nodes while tasks read: pages are evicted, and read again
/// when a task comes for them.
#[test]
fn tiers_give_pages_back_to_compute() {
    let memory = "
        duration_s = 30
        [node]
        memory_gb = 0.4
        [memory]
        policy = 'forebay'
        block_bytes = 1000000
        [load]
        base_gb = 0.1
        [[process]]
        name = 'burst'
        gb = 0.27
        rise_gb_per_s = 0.1
        hold_s = 3
        rest_s = 2
        count = 5
    ";
    let planner = "[planner]\npolicy = 'no-action'\n";
    let outcome = run(&setup(&format!("{memory}{planner}{CLUSTER}{JOBS}")));
    assert!(outcome.memory.iter().all(|node| node.resizes.len() > 5), "{:?}", outcome.memory);
    assert!(outcome.cluster.evicted_bytes > 0, "{:?}", outcome.cluster);
    assert!(outcome.cluster.served_bytes >= 400_000_000);
    assert!(outcome.cluster.served_bytes <= 400_000_000 + outcome.cluster.evicted_bytes);
    assert_eq!(outcome.cluster.jobs.iter().map(|job| job.tasks).sum::<u32>(), 54);
}

/// A node fails at 2 s, with the two tasks that it runs, and returns at 6 s.
#[test]
fn tasks_of_a_failed_node_run_again() {
    for policy in ["naive-bb", "no-action", "forebay"] {
        let fault = "[[fault]]\nnode = 1\nat_s = 2\nfor_s = 4\n";
        let planner = format!("[planner]\npolicy = '{policy}'\n");
        let outcome = run(&setup(&format!("{planner}{CLUSTER}{JOBS}{fault}")));
        let jobs = &outcome.cluster.jobs;
        assert_eq!(jobs.iter().map(|job| job.died).sum::<u32>(), 2, "{policy}: {jobs:?}");
        assert_eq!(jobs.iter().map(|job| job.ran.len()).sum::<usize>(), 54);
        let on_it =
            |&&(slot, begin, end): &&(usize, u64, u64)| slot % 3 == 1 && begin < 6 * GB && end > 2 * GB;
        let ran: Vec<_> = jobs.iter().flat_map(|job| &job.ran).filter(on_it).collect();
        assert!(ran.is_empty(), "{policy}: it is down: {ran:?}");
        assert!(outcome.cluster.served_bytes > 400_000_000, "{policy}: what was lost is read again");
    }
}

/// A scenario with parts of all sizes.
fn any_world() -> impl Strategy<Value = String> {
    let policies = (
        prop::sample::select(vec!["naive-bb", "no-action", "full-delay", "eley", "forebay"]),
        prop::sample::select(vec!["at-once", "yield"]),
        prop::sample::select(vec!["none", "sys-fcfs", "sa-sjf", "coflow"]),
    );
    let sizes = (1u32..4, 1u32..5, 1u64..60, 0u64..30, 0u64..4000, 1u32..20);
    let steps = (1u32..5, 1u64..40, 0u64..20, 1u32..3, 0u64..40);
    let rest =
        (0u64..1000, prop::option::of(1u64..60), any::<bool>(), prop::option::of(0u64..30), any::<bool>());
    (policies, sizes, steps, rest).prop_map(
        |((planner, drain, access), (nodes, servers, mb, output_mb, cpu_ms, processes), steps, rest)| {
            let (nodes_each, step_mb, compute_s, keeps, fault_s) = steps;
            let (seed, horizon_s, has_fault, node_fault_s, has_memory) = rest;
            let output_bytes = output_mb * 100_003;
            let horizon = horizon_s.map_or(String::new(), |s| format!("horizon_s = {s}\n"));
            let mut fault = match has_fault {
                true => format!("[[fault]]\nbuffer = 1\nat_s = {fault_s}\nfor_s = 7\n"),
                false => String::new(),
            };
            if let Some(at_s) = node_fault_s {
                fault += &format!("[[fault]]\nnode = 0\nat_s = {at_s}\nfor_s = 3\n");
            }
            let memory = match has_memory {
                true => "duration_s = 12\n[node]\nmemory_gb = 0.1\n[memory]\npolicy = 'forebay'\n[load]\nbase_gb = 0.02\n\
                         [[process]]\nname = 'p'\ngb = 0.08\nrise_gb_per_s = 0.02\nhold_s = 1\nrest_s = 1\ncount = 3\n",
                false => "",
            };
            format!(
                "{horizon}seed = {seed}\n{memory}[planner]\npolicy = '{planner}'\n\
                 [cluster]\nnodes = {nodes}\nslots = 2\ntier_bytes = 100000000\nextent_bytes = 4000000\npage_bytes = 1000000\n\
                 [pfs]\nservers = {servers}\nserver_bytes_per_s = 10000000\nstripe_bytes = 3000000\nwrite_bytes = 1000000\n\
                 [[job]]\nname = 'j'\ninput_bytes = {mb}000000\nfile_bytes = 9000000\ntask_cpu_s = {cpu_ms}e-3\noutput_bytes = {output_bytes}\n\
                 [[hpc]]\nname = 'h'\ncompute_s = 2\nio_gb = 0.0{mb}\nphases = 3\nprocesses = {processes}\narrivals = 'poisson'\n\
                 [buffers]\nnodes = 4\nnode_gb = 1\nnode_gb_per_s = 0.02\n\
                 [allocation]\npolicy = 'striped'\n[access]\npolicy = '{access}'\n\
                 [drain]\npolicy = '{drain}'\ngb_per_s = 0.02\nkeeps = {keeps}\n\
                 [[checkpoint]]\nname = 'c'\ncount = 3\ninterarrival_s = 4\nprocesses = {processes}\nnodes = {nodes_each}\n\
                 step_gb = 0.0{step_mb}\nsteps = 3\ncompute_s = {compute_s}\narrivals = 'jittered'\nspread = 0.5\n{fault}"
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Whatever happens at once: what was written to burst buffers is drained, lost or still there,
    /// servers have all that was sent to them, and the same scenario is the same run.
    #[test]
    fn no_byte_is_lost_unseen(text in any_world()) {
        let setup = setup(&text);
        let outcome = run(&setup);
        let buffers = outcome.buffers.as_ref().expect("it has burst buffers");
        let jobs = buffers.jobs.iter().zip(&setup.buffers.as_ref().expect("it has").jobs);
        let written: u64 = jobs.map(|(job, spec)| job.steps.len() as u64 * spec.step_bytes).sum();
        prop_assert_eq!(buffers.drained_bytes + buffers.lost_bytes + buffers.undrained_bytes, written);
        let there = outcome.cluster.output_bytes + outcome.phase_bytes + buffers.drained_bytes;
        prop_assert!(outcome.written_bytes >= there);
        if setup.horizon_ns.is_none() {
            let (cluster, job) = (&outcome.cluster, &setup.cluster.jobs[0]);
            prop_assert_eq!(cluster.jobs[0].ran.len() as u32, cluster.jobs[0].tasks);
            if cluster.jobs[0].died == 0 {
                prop_assert_eq!(outcome.written_bytes, there);
                prop_assert_eq!(cluster.output_bytes, job.output_bytes);
            }
            prop_assert!(cluster.served_bytes >= job.input_bytes);
            if setup.faults.is_empty() {
                prop_assert!(cluster.served_bytes <= job.input_bytes + cluster.evicted_bytes);
            }
            prop_assert_eq!((buffers.undrained_bytes, outcome.unfinished), (0, None));
            prop_assert_eq!(outcome.hpc[0].phases.len(), 3);
        }
        for phase in &outcome.hpc[0].phases {
            prop_assert!(phase.end_ns + 1000 >= phase.begin_ns + phase.alone_ns, "{:?}", phase);
        }
        prop_assert_eq!(&run(&setup), &outcome);
    }
}
