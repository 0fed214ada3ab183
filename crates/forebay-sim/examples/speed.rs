//! How fast the planner decides here: `cargo run --release -p forebay-sim --example speed`.
//!
//! An example and not a test, because a result of a test must not depend on the machine.

use std::time::Instant;

use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::planner::{self, Event, Planner};
use forebay_sim::reproduce::eley::system;

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

fn main() {
    decisions();
}
