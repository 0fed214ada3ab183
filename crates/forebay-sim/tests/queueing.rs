//! The simulator against queueing theory: event queue, random arrivals, stations and the run loop
//! together.
//!
//! With Poisson arrivals at rate l, service of mean S and load r = l S < 1:
//!
//! - first come, first served (Pollaczek and Khinchine): mean wait = r S (1 + c^2) / (2 (1 - r)), c
//!   being the coefficient of variation of the service, 1 if exponential (M/M/1) and 0 if constant
//!   (M/D/1);
//! - processor sharing: mean time in system = S / (1 - r), whatever the distribution.
//!
//! 400,000 jobs leave a statistical error of about 1 % at r = 0.7; the seeds are fixed, so the
//! errors are too.

use std::collections::VecDeque;

use forebay_model::rng::Rng;
use forebay_policy::machine::Nanos;
use forebay_sim::queue::EventQueue;
use forebay_sim::run::{World, run};
use forebay_sim::station::Stations;

const JOBS: u64 = 400_000;
const LOAD: f64 = 0.7;
/// Mean service of a second at a byte per nanosecond.
const MEAN_BYTES: f64 = 1e9;

struct Queue {
    station: Stations,
    rng: Rng,
    exponential: bool,
    /// Serve one at a time, in order; otherwise all share.
    serial: bool,
    waiting: VecDeque<(u64, f64)>,
    busy: bool,
    arrived: Vec<Nanos>,
    wait_s: f64,
    in_system_s: f64,
}

impl Queue {
    fn new(exponential: bool, serial: bool) -> Self {
        Queue {
            station: Stations::uniform(1, 1e9),
            rng: Rng::new(42),
            exponential,
            serial,
            waiting: VecDeque::new(),
            busy: false,
            arrived: Vec::new(),
            wait_s: 0.0,
            in_system_s: 0.0,
        }
    }

    fn exponential(&mut self) -> f64 {
        -(1.0 - self.rng.unit()).ln()
    }

    fn start(&mut self, now: Nanos, id: u64, bytes: f64) {
        self.busy = true;
        self.wait_s += (now.0 - self.arrived[id as usize].0) as f64 * 1e-9;
        self.station.start(now, 0, id, bytes, 1.0);
    }
}

impl World for Queue {
    type Event = ();

    fn on_event(&mut self, now: Nanos, (): (), queue: &mut EventQueue<()>) {
        let id = self.arrived.len() as u64;
        self.arrived.push(now);
        let bytes = if self.exponential { MEAN_BYTES * self.exponential() } else { MEAN_BYTES };
        if self.serial && self.busy {
            self.waiting.push_back((id, bytes));
        } else {
            self.start(now, id, bytes);
        }
        if id + 1 < JOBS {
            let gap_ns = self.exponential() / LOAD * 1e9;
            queue.after(gap_ns as u64, ());
        }
    }

    fn next_completion(&self) -> Option<Nanos> {
        self.station.next_end()
    }

    fn on_completion(&mut self, _: Nanos, _: &mut EventQueue<()>) {
        let (now, _, id) = self.station.pop_end().expect("one was announced");
        self.in_system_s += (now.0 - self.arrived[id as usize].0) as f64 * 1e-9;
        self.busy = false;
        if let Some((id, bytes)) = self.waiting.pop_front() {
            self.start(now, id, bytes);
        }
    }
}

/// Mean wait and mean time in system, in seconds.
fn simulate(exponential: bool, serial: bool) -> (f64, f64) {
    let mut world = Queue::new(exponential, serial);
    let mut queue = EventQueue::new();
    queue.at(Nanos(0), ());
    let stats = run(&mut world, &mut queue, 10 * JOBS);
    assert_eq!(stats.events, 2 * JOBS);
    (world.wait_s / JOBS as f64, world.in_system_s / JOBS as f64)
}

fn assert_near(got: f64, theory: f64, percent: f64) {
    let error = 100.0 * (got / theory - 1.0);
    assert!(error.abs() < percent, "simulated {got}, theory {theory}, error {error:.2} %");
}

#[test]
fn m_m_1_first_come_first_served() {
    let (wait_s, in_system_s) = simulate(true, true);
    assert_near(wait_s, LOAD / (1.0 - LOAD), 2.5);
    assert_near(in_system_s, 1.0 / (1.0 - LOAD), 2.0);
}

#[test]
fn m_d_1_first_come_first_served() {
    let (wait_s, _) = simulate(false, true);
    assert_near(wait_s, 0.5 * LOAD / (1.0 - LOAD), 2.0);
}

#[test]
fn processor_sharing_depends_on_the_mean_alone() {
    assert_near(simulate(true, false).1, 1.0 / (1.0 - LOAD), 2.0);
    assert_near(simulate(false, false).1, 1.0 / (1.0 - LOAD), 2.0);
}
