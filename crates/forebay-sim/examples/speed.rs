//! How fast policies decide and worlds run here: `cargo run --release -p forebay-sim --example
//! speed`, or only worlds with the argument `world`.
//!
//! An example and not a test, because a result of a test must not depend on the machine.

use std::path::Path;
use std::time::Instant;

use forebay_model::rng::Rng;
use forebay_policy::burst::access::{self, Access};
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::planner::{self, Event, Planner};
use forebay_sim::kinds::Done;
use forebay_sim::reproduce::eley::system;
use forebay_sim::scenario::File;
use forebay_sim::trace::Trace;

const NODES: u64 = 576;

/// A planner in the middle of a phase, with waves that compute for longer than they take to fetch
/// and with waves that do not: how long a decision takes.
fn decisions() {
    let mut setup = system::cell("forebay", 0, 1, 0.05);
    setup.planner.learning = 0.5;
    for (waves, compute_s) in [(2, 20), (5, 20), (5, 6)] {
        setup.planner.ram_bytes = waves * 50_000_000_000;
        let rounds = 2_000;
        let mut times_s = Vec::new();
        for round in 0..rounds {
            let policy = planner::policy("forebay", &setup.planner).unwrap_or_else(|e| panic!("{e}"));
            let mut p = Planner::new(setup.planner.clone(), policy);
            let mut out = Vec::new();
            let s = 1_000_000_000;
            let joins = Event::HpcJoins {
                hpc: 0,
                io_ns: 59 * s,
                compute_ns: 70 * s,
                phases: 10,
                allowance: 0.05,
                weight: 1.0,
                first_in_ns: 0,
            };
            p.handle(Nanos(0), joins, &mut out);
            p.handle(
                Nanos(0),
                Event::JobJoins {
                    job: 0,
                    waves: 100,
                    wave_bytes: 50_000_000_000,
                    compute_ns: compute_s * s,
                    tier_read_ns: 3 * s,
                    computing_ns: None,
                },
                &mut out,
            );
            p.handle(Nanos(s), Event::Fetched { job: 0, wave: 0, resident_bytes: 0 }, &mut out);
            p.handle(Nanos(s), Event::WaveStarts { job: 0, wave: 0, compute_ns: compute_s * s }, &mut out);
            out.clear();
            // The decision: a phase begins; hulls are computed too, as nothing is cached yet.
            let begin = Instant::now();
            p.handle(
                Nanos(2 * s + round),
                Event::PhaseBegins { hpc: 0, alone_ns: 59 * s, deadline: Nanos(64 * s) },
                &mut out,
            );
            times_s.push(begin.elapsed().as_secs_f64());
            assert!(!out.is_empty(), "nothing was decided");
        }
        times_s.sort_by(f64::total_cmp);
        println!(
            "a first decision within a phase, 8 nodes x 16 threads x {waves} waves of {compute_s} s: median {:.1} us, 99 % within {:.1} us",
            times_s[times_s.len() / 2] * 1e6,
            times_s[times_s.len() * 99 / 100] * 1e6
        );
    }
}

/// The access scheduler with `pending` steps, at the moment when one that writes has ended.
fn access_decisions(name: &str, pending: u64) {
    let config = access::Config { nodes: NODES as u32, ..access::Config::default() };
    let mut rng = Rng::new(2);
    let mut times_s = Vec::new();
    for _ in 0..200 {
        let policy = access::policy(name, &config).unwrap_or_else(|e| panic!("{e}"));
        let mut machine = Access::new(policy, config.clone());
        let mut out = Vec::new();
        for step in 0..pending {
            let (first, width) = (rng.below(NODES), 16 << rng.below(3));
            let nodes: Vec<u32> = (0..width).map(|k| ((first + k) % NODES) as u32).collect();
            let alone_ns = 1_000_000_000 * (10 + rng.below(100));
            machine.handle(
                Nanos(0),
                access::Event::Arrives { step, nodes, alone_ns, period_ns: 0 },
                &mut out,
            );
        }
        machine.on_deadline(Nanos(0), &mut out);
        let token = machine.snapshot().active[0].0;
        let now = Nanos(10_000_000_000);
        let begin = Instant::now();
        machine.handle(now, access::Event::Done { token }, &mut out);
        machine.on_deadline(now, &mut out);
        times_s.push(begin.elapsed().as_secs_f64());
    }
    times_s.sort_by(f64::total_cmp);
    println!(
        "{name}, {pending} steps: median {:.1} us, 99 % within {:.1} us",
        times_s[times_s.len() / 2] * 1e6,
        times_s[times_s.len() * 99 / 100] * 1e6
    );
}

/// Events per second in a large world, with several planners.
fn worlds() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/large-world.toml");
    for policy in ["naive-bb", "no-action", "eley", "forebay"] {
        let mut file = File::read(Path::new(path)).unwrap_or_else(|e| panic!("{e}"));
        file.set("planner.policy", policy).unwrap_or_else(|e| panic!("{e}"));
        let scenario = file.scenario().unwrap_or_else(|e| panic!("{e}"));
        let begin = Instant::now();
        let done = scenario.run(&mut Trace::off()).unwrap_or_else(|e| panic!("{e}"));
        let took_s = begin.elapsed().as_secs_f64();
        let Done::World(world) = done else { panic!("{path} is no world") };
        let millions = world.events as f64 * 1e-6;
        println!(
            "a large world, {policy}: {millions:.2} million events in {took_s:.2} s, {:.2} million a second",
            millions / took_s
        );
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("world") {
        return worlds();
    }
    access_decisions("sa-sjf", 1000);
    access_decisions("coflow", 1000);
    decisions();
    worlds();
}
