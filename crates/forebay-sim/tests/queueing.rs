//! Scenarios of kind `burst-buffer` against queueing theory: the engine, the access policies and
//! the arrivals that users run.
//!
//! A node of 1 GB/s serves steps of 1 GB on average, which arrive as a Poisson process. With mean
//! service S, load r < 1 and c servers:
//!
//! - first come, first served (Pollaczek and Khinchine): mean wait = r S (1 + v^2) / (2 (1 - r)), v
//!   being the coefficient of variation of the service, 1 if exponential (M/M/1) and 0 if constant
//!   (M/D/1);
//! - processor sharing: mean time in system = S / (1 - r), whatever the distribution;
//! - c servers: mean time in system = S + C S / (c (1 - r)), with C by Erlang. Here: a node as fast
//!   as c clients, each of which sends at most 1 GB/s.
//!
//! 100,000 steps leave a statistical error of about 2 % at r = 0.7; the seeds are fixed, so the
//! errors are too.

use std::path::Path;

use forebay_sim::burst::{Outcome, StepOutcome, simulate};
use forebay_sim::scenario::{File, Scenario};
use forebay_sim::trace::Trace;

const LOAD: f64 = 0.7;
const STEPS: u32 = 100_000;

/// Steps that arrive at a node of `gb_per_s` GB/s.
fn run(access: &str, sizes: &str, gb_per_s: u32) -> Outcome {
    let interarrival_s = 1.0 / (LOAD * f64::from(gb_per_s));
    let text = format!(
        "
        kind = 'burst-buffer'
        [cluster]
        nodes = 1
        node_gb = 1e9
        node_gb_per_s = {gb_per_s}
        [access]
        policy = '{access}'
        lease_s = 1e6
        [[job]]
        name = 'step'
        count = {STEPS}
        interarrival_s = {interarrival_s}
        sizes = '{sizes}'
        processes = 1
        step_gb = 1
        client_gb_per_s = 1
        io_first = true
        "
    );
    let scenario = File::parse(Path::new("queue.toml"), &text).and_then(|file| file.scenario());
    let Ok(Scenario::BurstBuffer(setup)) = scenario else { panic!("{:?}", scenario.err()) };
    simulate(&setup, &mut Trace::off()).expect("it comes to an end")
}

fn mean_s(outcome: &Outcome, of: fn(&StepOutcome) -> f64) -> f64 {
    outcome.jobs.iter().map(|job| of(&job.steps[0])).sum::<f64>() / f64::from(STEPS)
}

fn assert_near(got: f64, theory: f64, percent: f64) {
    let error = 100.0 * (got / theory - 1.0);
    assert!(error.abs() < percent, "simulated {got}, theory {theory}, error {error:.2} %");
}

#[test]
fn m_m_1_first_come_first_served() {
    for access in ["sys-fcfs", "sa-fcfs"] {
        let outcome = run(access, "exponential", 1);
        assert_near(mean_s(&outcome, StepOutcome::wait_s), LOAD / (1.0 - LOAD), 4.0);
        assert_near(mean_s(&outcome, StepOutcome::io_s), 1.0 / (1.0 - LOAD), 3.0);
    }
}

#[test]
fn m_d_1_first_come_first_served() {
    let outcome = run("sa-fcfs", "fixed", 1);
    assert_near(mean_s(&outcome, StepOutcome::wait_s), 0.5 * LOAD / (1.0 - LOAD), 3.0);
}

#[test]
fn processor_sharing_depends_on_the_mean_alone() {
    for sizes in ["exponential", "fixed"] {
        assert_near(mean_s(&run("none", sizes, 1), StepOutcome::io_s), 1.0 / (1.0 - LOAD), 3.0);
    }
}

/// The probability that an arrival finds all of `servers` busy.
fn erlang_c(servers: u32, load: f64) -> f64 {
    let offered = load * f64::from(servers);
    // Erlang B by its recursion.
    let blocked = (1..=servers).fold(1.0, |b, k| offered * b / (f64::from(k) + offered * b));
    blocked / (1.0 - load * (1.0 - blocked))
}

#[test]
fn m_m_c_as_clients_with_caps() {
    for servers in [2, 8] {
        let waits = erlang_c(servers, LOAD) / (f64::from(servers) * (1.0 - LOAD));
        let outcome = run("none", "exponential", servers);
        assert_near(mean_s(&outcome, StepOutcome::io_s), 1.0 + waits, 2.0);
    }
}
