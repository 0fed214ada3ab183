//! Shared burst buffers: faults worked by hand, and what has to hold in every run of every policy.

use std::collections::BTreeMap;

use forebay_policy::burst::access::{self, Config};
use forebay_policy::burst::allocation;
use forebay_sim::arrivals::Arrivals;
use forebay_sim::burst::{
    Broken, Ended, Fault, Hold, JobSpec, Outcome, RandomFailures, Setup, Unfinished, simulate, view,
};
use forebay_sim::trace::{SharedBuffer, Trace};
use proptest::prelude::*;

mod support;

const S: u64 = 1_000_000_000;
/// Bytes that a node writes in a second.
const RATE: u64 = 100;

/// A job whose steps take `alone_s` on its nodes, due at the given moments.
fn job(name: &str, nodes: u32, alone_s: u64, at_s: &[u64]) -> JobSpec {
    let bytes = RATE * alone_s * u64::from(nodes);
    JobSpec {
        name: name.into(),
        steps: at_s.len() as u32,
        arrivals: Arrivals::Trace { at_ns: at_s.iter().map(|s| s * S).collect() },
        ..JobSpec::one_step(0, 4.0, bytes, Some(nodes), f64::INFINITY)
    }
}

fn setup(nodes: u32, access: &str, jobs: Vec<JobSpec>) -> Setup {
    let config = Config { nodes, lease_ns: 9 * S, ..Config::default() };
    Setup { config, seed: 1, ..Setup::plain(nodes, 1 << 40, RATE as f64, "striped", access, jobs) }
}

fn run(setup: &Setup) -> Outcome {
    simulate(setup, &mut Trace::off()).expect("it comes to an end")
}

fn trace_of(setup: &Setup) -> Vec<u8> {
    let buffer = SharedBuffer::default();
    let mut trace = Trace::to(Box::new(buffer.clone()), "burst-buffer", setup);
    simulate(setup, &mut trace).expect("it comes to an end");
    trace.finish().expect("a buffer can be written");
    buffer.bytes()
}

fn dies(job: usize, at_s: u64) -> Fault {
    Fault { what: Broken::Job { job }, at_ns: at_s * S, for_ns: None }
}

fn stops(job: usize, at_s: u64, for_s: u64) -> Fault {
    Fault { for_ns: Some(for_s * S), ..dies(job, at_s) }
}

fn fails(node: u32, at_s: u64, for_s: Option<u64>) -> Fault {
    Fault { what: Broken::Node { node }, at_ns: at_s * S, for_ns: for_s.map(|s| s * S) }
}

/// Job, begin and end of each hold in seconds, and how it ended.
fn holds(outcome: &Outcome) -> Vec<(usize, u64, u64, Ended)> {
    let seconds = |h: &Hold| (h.job, h.from_ns / S, h.to_ns / S, h.ended);
    outcome.holds.iter().map(seconds).collect()
}

/// It is let in at 0, renews at 3 and 6 s, and dies at 7 s; its lease runs out at 15 s, and the
/// next is let in.
#[test]
fn a_dead_holders_token_goes_to_the_next_when_its_lease_runs_out() {
    for access in ["sys-fcfs", "sys-sjf", "sa-fcfs", "sa-sjf"] {
        let mut setup = setup(2, access, vec![job("dies", 2, 20, &[0, 50]), job("waits", 2, 20, &[0])]);
        if access.ends_with("sjf") {
            setup.jobs[1].step_bytes += 2 * RATE;
        }
        setup.faults = vec![dies(0, 7)];
        let outcome = run(&setup);
        let second_ns = setup.alone_ns(1, 2);
        assert_eq!(
            holds(&outcome),
            [(0, 0, 15, Ended::Revoked), (1, 15, 15 + second_ns / S, Ended::Written)],
            "{access}"
        );
        let dead = &outcome.jobs[0];
        assert_eq!(dead.died.map(|d| (d.at_ns, d.was)), Some((7 * S, "writing")), "{access}");
        assert_eq!((dead.leases_lost, dead.end_ns, dead.steps.len()), (1, None, 0));
        // 7 of its 20 s were written, to both nodes.
        assert!((dead.wasted_bytes - 2.0 * 700.0).abs() < 1e-6, "{}", dead.wasted_bytes);
        assert_eq!(outcome.jobs[1].steps[0].granted_ns, 15 * S);
    }
}

/// A step that waits while its job is dead is withdrawn when the batch system has noticed, after a
/// lease.
#[test]
fn a_dead_job_in_the_queue_is_withdrawn() {
    let jobs = vec![job("writes", 1, 40, &[0]), job("dies", 1, 10, &[1]), job("last", 1, 10, &[2])];
    let mut setup = setup(1, "sa-fcfs", jobs);
    setup.faults = vec![dies(1, 5)];
    let outcome = run(&setup);
    assert_eq!(outcome.jobs[1].died.map(|d| d.was), Some("waiting"));
    assert_eq!(holds(&outcome), [(0, 0, 40, Ended::Written), (2, 40, 50, Ended::Written)]);
    // Let in before it was noticed, it holds the node for a lease and writes nothing.
    setup.jobs[0].step_bytes = 10 * RATE;
    let outcome = run(&setup);
    assert_eq!(
        holds(&outcome),
        [(0, 0, 10, Ended::Written), (1, 10, 19, Ended::Revoked), (2, 19, 29, Ended::Written)]
    );
    assert_eq!(outcome.jobs[1].wasted_bytes, 0.0);
}

/// Shorter than what is left of the lease: it goes on where it stood. Longer: the token is gone,
/// and the step is written anew when the next is done.
#[test]
fn a_job_that_stands_still_keeps_its_token_for_a_lease() {
    let jobs = || vec![job("stops", 1, 20, &[0]), job("waits", 1, 10, &[1])];
    let mut setup = setup(1, "sa-fcfs", jobs());
    setup.faults = vec![stops(0, 5, 6)];
    let outcome = run(&setup);
    assert_eq!(holds(&outcome), [(0, 0, 26, Ended::Written), (1, 26, 36, Ended::Written)]);
    assert_eq!(outcome.jobs[0].leases_lost, 0);
    setup.faults = vec![stops(0, 5, 9)];
    let outcome = run(&setup);
    let lost = [(0, 0, 12, Ended::Revoked), (1, 12, 22, Ended::Written), (0, 22, 42, Ended::Written)];
    assert_eq!(holds(&outcome), lost);
    assert_eq!((outcome.jobs[0].leases_lost, outcome.jobs[0].steps[0].attempts), (1, 2));
    assert!((outcome.jobs[0].wasted_bytes - 500.0).abs() < 1e-6);
}

/// Two nodes of four; node 1 fails at 5 s. The step is written anew at once, on the two that are
/// next in turn.
#[test]
fn a_step_whose_node_fails_is_written_anew_elsewhere() {
    let mut setup = setup(4, "sa-fcfs", vec![job("hit", 2, 20, &[0, 100]), job("other", 1, 50, &[0])]);
    setup.faults = vec![fails(1, 5, Some(60))];
    let outcome = run(&setup);
    let hit = &outcome.jobs[0];
    assert_eq!((hit.nodes_lost, hit.steps[0].attempts, hit.steps_lost), (1, 2, 0));
    assert!((hit.wasted_bytes - 1000.0).abs() < 1e-6, "{}", hit.wasted_bytes);
    assert_eq!(outcome.down.len(), 1);
    assert_eq!((outcome.down[0].to_ns, outcome.down[0].jobs), (Some(65 * S), 1));
    let nodes: Vec<_> = outcome.holds.iter().filter(|h| h.job == 0).map(|h| h.nodes.clone()).collect();
    assert_eq!(nodes, [vec![(0, 1)], vec![(0, 0), (3, 3)], vec![(0, 0), (3, 3)]]);
    assert_eq!(hit.steps[0].end_ns, 25 * S);
    // A second failure, between its steps, costs it the step that lay there.
    setup.faults.push(fails(3, 60, Some(1)));
    let outcome = run(&setup);
    assert_eq!((outcome.jobs[0].nodes_lost, outcome.jobs[0].steps_lost), (2, 1));
}

/// Both on one node: 3 of 4 processes get three quarters.
#[test]
fn unscheduled_steps_share_by_processes() {
    let step = |processes, alone_s, nodes| {
        JobSpec::one_step(0, processes, RATE * alone_s, Some(nodes), f64::INFINITY)
    };
    let outcome = run(&setup(2, "none", vec![step(3.0, 6, 1), step(2.0, 4, 2)]));
    // Node 0: 6 s of work at 3/4 and 2 at 1/4 end together at 8 s; node 1 has its 2 at 2 s.
    assert!(outcome.jobs.iter().all(|job| (job.io_s() - 8.0).abs() < 1e-6), "{:?}", outcome.jobs);
}

/// All nodes are taken and one fails for good: who held it is without nodes until the other job
/// gives its own back.
#[test]
fn a_job_without_nodes_waits_until_some_are_given_back() {
    let mut setup = setup(2, "sa-fcfs", vec![job("hit", 1, 20, &[0]), job("holds", 1, 30, &[0])]);
    setup.node_bytes = 30 * RATE;
    setup.faults = vec![fails(0, 5, None)];
    let outcome = run(&setup);
    assert!(outcome.refusals >= 1);
    assert_eq!(
        holds(&outcome),
        [(0, 0, 5, Ended::NodeLost), (1, 0, 30, Ended::Written), (0, 30, 50, Ended::Written)]
    );
    // If nothing is ever released, the outcome says who was left over.
    setup.faults.push(fails(1, 6, None));
    let outcome = simulate(&setup, &mut Trace::off()).expect("it runs");
    assert!(outcome.jobs.iter().all(|job| job.without_nodes && job.steps.is_empty() && job.end_ns.is_none()));
    let ends = view::rows(&setup, &outcome).into_iter().filter_map(|mut row| row.pop());
    assert_eq!(ends.collect::<Vec<_>>(), ["no nodes left", "no nodes left", "0 died, 2 without nodes"]);
}

/// A node fails under a job that stands still: it hears of it when it goes on.
#[test]
fn a_loss_that_a_job_slept_through_is_noticed_when_it_goes_on() {
    let mut setup = setup(3, "sa-fcfs", vec![job("sleeps", 1, 20, &[0, 60])]);
    setup.faults = vec![stops(0, 5, 3), fails(0, 6, None)];
    let outcome = run(&setup);
    assert_eq!(outcome.jobs[0].nodes_lost, 1);
    assert_eq!(holds(&outcome)[..2], [(0, 0, 8, Ended::NodeLost), (0, 8, 28, Ended::Written)]);
    // A step that was due while it stood still is asked for when it goes on.
    setup.faults = vec![stops(0, 50, 30)];
    assert_eq!(holds(&run(&setup))[1], (0, 80, 100, Ended::Written));
}

/// The first step ends in time; the second is being written, and the other job has not begun.
#[test]
fn a_horizon_says_what_it_cut() {
    let mut setup = setup(2, "sa-fcfs", vec![job("two", 2, 10, &[0, 20]), job("late", 1, 10, &[100])]);
    let whole = run(&setup);
    assert_eq!(whole.unfinished, None);
    setup.horizon_ns = Some(25 * S);
    let outcome = run(&setup);
    assert_eq!(outcome.unfinished, Some(Unfinished { horizon_ns: 25 * S, jobs: 2, steps: 2 }));
    assert_eq!(holds(&outcome), [(0, 0, 10, Ended::Written), (0, 20, 25, Ended::Open)]);
    assert_eq!(outcome.jobs[0].steps, whole.jobs[0].steps[..1]);
    assert!(outcome.jobs.iter().all(|job| job.unfinished && job.end_ns.is_none()));
    // A horizon after the end changes nothing.
    setup.horizon_ns = Some(1000 * S);
    assert_eq!(run(&setup), whole);
    // One so shortly after it that a renewal of a lease is still due leaves nothing unfinished.
    setup.horizon_ns = Some(111 * S);
    let outcome = run(&setup);
    assert!(outcome.events < whole.events, "nothing was due after the horizon");
    assert_eq!((outcome.jobs, outcome.unfinished), (whole.jobs, None));
}

/// Random failures come, hit, and end with the jobs.
#[test]
fn nodes_fail_by_chance() {
    let mut setup = setup(8, "sa-sjf", vec![job("a", 4, 10, &[0; 30]), job("b", 4, 7, &[0; 30])]);
    setup.random = Some(RandomFailures { node_mean_ns: 300 * S, node_down_ns: 20 * S });
    let outcome = run(&setup);
    let hit: u32 = outcome.jobs.iter().map(|j| j.nodes_lost).sum();
    assert!(outcome.down.len() > 5 && hit > 2, "{} failures, {hit} hit a job", outcome.down.len());
    assert!(outcome.jobs.iter().all(|j| j.steps.len() == 30));
    let wasted: f64 = outcome.jobs.iter().map(|j| j.wasted_bytes).sum();
    assert!(wasted > 0.0, "no failure hit a job that wrote");
    // The mean is what was asked for: expected are 8 nodes times the run over the time between
    // failures.
    let expected = 8.0 * outcome.end_s() / 320.0;
    let got = outcome.down.len() as f64;
    assert!((got / expected - 1.0).abs() < 0.6, "{got} failures, expected {expected}");
}

/// Any scenario: jobs, allocation, access, and faults that are over some time.
fn scenarios() -> impl Strategy<Value = Setup> {
    let shape = (1u32..10, any::<prop::sample::Index>(), any::<prop::sample::Index>(), 2u64..30, 0u64..1000);
    let jobs = prop::collection::vec(
        (0u32..14, 1u64..200, 1u32..5, 0u64..60, 0usize..4, 0u64..100, any::<bool>()),
        1..8,
    );
    let faults = prop::collection::vec((any::<bool>(), 0usize..16, 0u64..300, 1u64..60, 0u32..4), 0..6);
    let waits = (prop::option::of(0u64..120), 0.0f64..2.0);
    (shape, jobs, faults, waits).prop_map(|((nodes, place, order, lease_s, seed), jobs, faults, waits)| {
        let specs = jobs.into_iter().enumerate().map(
            |(i, (width, alone_s, steps, compute_s, kind, starts_s, capped))| {
                let width = width.min(nodes);
                JobSpec {
                    nodes: (width > 0).then_some(width),
                    client_bytes_per_s: if capped { RATE as f64 * 0.7 } else { f64::INFINITY },
                    steps,
                    step_bytes: RATE * alone_s * u64::from(width.max(1)),
                    processes: 1.0 + alone_s as f64,
                    compute_ns: compute_s * S,
                    starts_ns: starts_s * S,
                    io_first: i % 2 == 0,
                    arrivals: [
                        Arrivals::Periodic,
                        Arrivals::Jittered { spread: 0.5 },
                        Arrivals::Poisson,
                        Arrivals::Trace { at_ns: (0..5).map(|k| k * 40 * S).collect() },
                    ][kind]
                        .clone(),
                    ..job(&format!("job {i}"), 1, 1, &[0])
                }
            },
        );
        let mut setup = setup(nodes, order.get(access::POLICIES).0, specs.collect());
        setup.allocation = place.get(allocation::POLICIES).0.into();
        // Everyone fits by itself, but not all together.
        let most = |j: &JobSpec| (2 * j.step_bytes).div_ceil(u64::from(j.nodes.unwrap_or(nodes).min(nodes)));
        setup.node_bytes = setup.jobs.iter().map(most).max().unwrap_or(1);
        setup.seed = seed;
        setup.config.lease_ns = lease_s * S;
        setup.config.patience_ns = waits.0.map_or(u64::MAX, |s| s * S);
        setup.config.ageing = waits.1;
        let fault = |(is_node, which, at_s, for_s, dead): (bool, usize, u64, u64, u32)| {
            if is_node {
                fails(which as u32 % nodes, at_s, Some(for_s))
            } else if dead == 0 {
                dies(which % setup.jobs.len(), at_s)
            } else {
                stops(which % setup.jobs.len(), at_s, for_s)
            }
        };
        setup.faults = faults.into_iter().map(fault).collect();
        setup
    })
}

/// The nodes of a hold.
fn members(hold: &Hold) -> impl Iterator<Item = u32> + '_ {
    hold.nodes.iter().flat_map(|&(a, b)| a..=b)
}

fn no_node_is_held_twice(outcome: &Outcome) -> bool {
    let mut on_node: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for hold in outcome.holds.iter().filter(|h| h.to_ns > h.from_ns) {
        members(hold).for_each(|n| on_node.entry(n).or_default().push((hold.from_ns, hold.to_ns)));
    }
    on_node.values_mut().all(|held| {
        held.sort_unstable();
        held.windows(2).all(|w| w[0].1 <= w[1].0)
    })
}

/// Policies under which steps share nodes; `set-10` excludes by sets of jobs.
const SHARE: [&str; 3] = ["none", "coflow", "set-10"];

/// Whether one step writes at a time, on whatever nodes.
fn is_one_at_a_time(name: &str) -> bool {
    access::SIMULATED_ONLY.contains(&name)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is asked for, whatever breaks: tokens never overlap on a node, one at a time is one
    /// at a time, no node is used that is down, none is given out beyond its space, nothing is
    /// written faster than alone, and every job writes all of its steps or dies.
    #[test]
    fn what_holds_in_every_run(setup in scenarios()) {
        let outcome = run(&setup);
        if !SHARE.contains(&setup.access.as_str()) {
            prop_assert!(no_node_is_held_twice(&outcome));
        }
        if is_one_at_a_time(&setup.access) {
            prop_assert!(outcome.holds.windows(2).all(|w| w[0].to_ns <= w[1].from_ns));
        }
        for down in &outcome.down {
            let to_ns = down.to_ns.unwrap_or(u64::MAX);
            for hold in outcome.holds.iter().filter(|h| members(h).any(|n| n == down.node)) {
                // Whoever is silent cannot let go.
                let silent = hold.silent_ns.is_some() || hold.ended == Ended::Revoked || hold.ended == Ended::NodeLost;
                let apart = hold.to_ns <= down.from_ns || hold.from_ns >= to_ns;
                prop_assert!(apart || silent, "{:?} on {:?}", hold, down);
            }
        }
        prop_assert!(outcome.peak_reserved_bytes <= setup.node_bytes);
        for (spec, job) in setup.jobs.iter().zip(&outcome.jobs) {
            prop_assert_eq!(job.died.is_none(), job.end_ns.is_some());
            prop_assert_eq!(job.end_ns.is_some(), job.steps.len() == spec.steps as usize);
            for step in &job.steps {
                // To a nanosecond, for both are rounded up.
                prop_assert!(step.end_ns + 1 >= step.granted_ns + step.alone_ns, "{:?} {:?}", step, spec);
                prop_assert!(step.granted_ns >= step.due_ns);
            }
        }
        prop_assert!(outcome.holds.iter().all(|h| h.ended != Ended::Open));
    }

    /// A fault that was asked for has happened, unless the job was over by then.
    #[test]
    fn faults_happen(setup in scenarios()) {
        let outcome = run(&setup);
        for fault in &setup.faults {
            match fault.what {
                Broken::Node { node } => {
                    let covers = |d: &&forebay_sim::burst::NodeOutcome| {
                        d.node == node && d.from_ns <= fault.at_ns && d.to_ns.is_none_or(|to| to > fault.at_ns)
                    };
                    prop_assert!(outcome.down.iter().any(|d| covers(&d)), "{:?}", fault);
                }
                Broken::Job { job } if fault.for_ns.is_none() => {
                    let died = outcome.jobs[job].died.map(|d| d.at_ns);
                    let over = outcome.jobs[job].end_ns.is_some_and(|at| at <= fault.at_ns);
                    prop_assert!(died.is_some_and(|at| at <= fault.at_ns) || over, "{:?}", fault);
                }
                Broken::Job { .. } => {}
            }
        }
    }

    /// Without faults: a holder has its nodes to itself, and while a step waits somebody holds one
    /// of its nodes (work conservation; with patience nodes may be kept free).
    #[test]
    fn work_is_conserved(mut setup in scenarios()) {
        setup.faults.clear();
        setup.config.patience_ns = u64::MAX;
        let outcome = run(&setup);
        prop_assert!(outcome.jobs.iter().all(|j| j.wasted_bytes == 0.0 && j.leases_lost == 0));
        if SHARE.contains(&setup.access.as_str()) {
            return Ok(());
        }
        for hold in &outcome.holds {
            let alone_ns = outcome.jobs[hold.job].steps[hold.index as usize].alone_ns as f64;
            // Both are rounded up.
            let held_ns = (hold.to_ns - hold.from_ns) as f64;
            prop_assert!(held_ns <= alone_ns + 3.0, "{} {:?}", alone_ns, hold);
            let asks_ns = |h: &Hold| {
                let job = &outcome.jobs[h.job];
                job.steps[h.index as usize].due_ns.max(job.room_ns.unwrap_or(0))
            };
            let shares = |a: &Hold, b: &Hold| {
                is_one_at_a_time(&setup.access) || members(a).any(|n| members(b).any(|m| m == n))
            };
            let held_until = |of: &Hold, t: u64| {
                let holds = outcome.holds.iter().filter(|h| h.from_ns <= t && t < h.to_ns && shares(h, of));
                holds.map(|h| h.to_ns).max()
            };
            let mut t = asks_ns(hold);
            while t < hold.from_ns {
                let until = held_until(hold, t);
                prop_assert!(until.is_some(), "{:?} waits at {} though its nodes are free", hold, t);
                t = until.unwrap_or(u64::MAX);
            }
        }
    }

    /// One step a job at fixed moments, nodes given by hand. Faster nodes never make any step end
    /// later: unscheduled, where all share, and first come first served, one at a time or all on
    /// the same nodes. (With other orders and overlaps it is not so: a step that ends earlier can
    /// let in another that then holds up a third.)
    #[test]
    fn more_bandwidth_makes_nothing_later(
        access in prop::sample::select(vec!["none", "sys-fcfs", "sa-fcfs"]),
        jobs in prop::collection::vec((prop::collection::btree_set(0u32..6, 1..6), 1u64..50, 0u64..200, 1u32..9, any::<bool>()), 1..10),
        faster in 1.0f64..4.0
    ) {
        let specs = jobs.into_iter().enumerate().map(|(i, (on, alone_s, at_s, processes, capped))| {
            let on: Vec<u32> = if access == "sa-fcfs" { (0..6).collect() } else { on.into_iter().collect() };
            JobSpec {
                processes: f64::from(processes),
                client_bytes_per_s: if capped { RATE as f64 } else { f64::INFINITY },
                nodes: None,
                step_bytes: alone_s * RATE * on.len() as u64,
                on: Some(on),
                ..job(&format!("job {i}"), 1, 1, &[at_s])
            }
        });
        let mut setup = setup(6, access, specs.collect());
        let before = run(&setup);
        setup.node_bytes_per_s *= faster;
        let after = run(&setup);
        for (a, b) in after.jobs.iter().zip(&before.jobs) {
            // A nanosecond of rounding for each change on the way.
            prop_assert!(a.steps[0].end_ns <= b.steps[0].end_ns + 50, "{:?} {:?}", a, b);
        }
        prop_assert!(after.aggregate_s() <= before.aggregate_s() + 1e-6);
    }
}

proptest! {
    // Fewer, since each writes a trace of thousands of lines and reads it twice.
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The bytes of a trace depend on nothing but the scenario, and machines that receive what was
    /// recorded decide the same.
    #[test]
    fn traces_are_identical_and_replay(setup in scenarios()) {
        let trace = trace_of(&setup);
        prop_assert!(trace == trace_of(&setup));
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), &trace).expect("it can be written");
        let said = support::cli(&["replay", file.path().to_str().expect("UTF-8")], false);
        let decides = String::from_utf8_lossy(&trace).contains("\"action\":");
        let is_same = said.as_ref().is_ok_and(|s| s.contains("actions are the same"));
        // One who is alone and unscheduled, and gone before it asks, is no case for a machine.
        let is_empty = said.as_ref().is_err_and(|s| s.contains("there is nothing to check"));
        prop_assert!(if decides { is_same } else { is_empty }, "{:?}", said);
    }
}
