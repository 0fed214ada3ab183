//! Isolation: how much of a storage server analytics may use beside the storage daemon.
//!
//! The daemon's clients come first. The machine receives samples of the daemon's load, and answers
//! with the share of the configured limits that analytics may use. When the daemon waits for
//! processors or its disks are slow, the share halves with each sample, down to the floor. After a
//! calm time it grows slowly. It starts at the floor, and it returns there when no sample comes:
//! what cannot be observed may be overloaded.
//!
//! Source: VAS, section 3.1. The paper isolates by virtual machines of fixed size.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Nanos};

/// What the machine receives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// The last period.
    Sample(Sample),
    /// The storage daemon cannot be observed: it is not running, or permission is missing.
    Unreadable,
}

/// A storage server in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// How long the period was.
    pub period_ns: u64,
    /// Time of all threads of the storage daemon on processors.
    pub ran_ns: u64,
    /// Time for which they could have run and waited for a processor.
    pub waited_ns: u64,
    /// How often one of them got a processor.
    pub runs: u64,
    /// Time for which some of them were stalled by I/O, where the kernel counts it for the daemon
    /// alone.
    pub stalled_ns: u64,
    /// Requests that the slowest of the daemon's disks has completed.
    pub disk_requests: u64,
    /// Sum of the times that these requests took.
    pub disk_time_ns: u64,
    /// Mean number of requests at that disk.
    pub disk_queue: f64,
}

/// What it decides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Action {
    /// Part of the configured limits that analytics may use from now on, above 0, at most 1.
    pub share: f64,
    /// Why it changed, or stays at the floor.
    pub why: Reason,
}

/// The reason for the current share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The daemon waits for processors.
    Processors,
    /// Its disks are slow, or it is stalled by I/O.
    Disks,
    /// The daemon's load is unknown.
    Unknown,
    /// The daemon has been calm for a while.
    Calm,
}

/// Configuration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The least share, above 0, at most 1.
    pub floor: f64,
    /// Part of the time in which it could run that the daemon may wait for processors. They are
    /// scarce only if both this and `wait_ns` are exceeded.
    pub waits: f64,
    /// Mean time for which its threads may wait before they run. They run for some microseconds for
    /// each request, and wait as long for a processor to wake up on an otherwise idle machine; a
    /// request of a client takes a few tenths of a millisecond.
    pub wait_ns: u64,
    /// A disk is slow if the mean time of its requests is longer.
    pub disk_slow_ns: u64,
    /// A disk is slow if the mean number of its requests is greater.
    pub disk_queue: f64,
    /// The daemon is stalled if it is stalled by I/O for more than this part of the period.
    pub stalls: f64,
    /// How long there must be no load before the share grows.
    pub calm_ns: u64,
    /// Growth of the share per second.
    pub rise_per_s: f64,
    /// How long without a sample until the share is the floor.
    pub patience_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            floor: 0.1,
            waits: 0.2,
            wait_ns: 100_000,
            disk_slow_ns: 20_000_000,
            disk_queue: 32.0,
            stalls: 0.1,
            calm_ns: 2_000_000_000,
            rise_per_s: 0.05,
            patience_ns: 2_000_000_000,
        }
    }
}

/// A daemon that could run for less than this part of a period is idle: few waits are not evidence
/// of load.
const BUSY: f64 = 0.01;
/// A daemon that has run fewer times is idle too, unless it could run for a tenth of the period.
const RUNS_MIN: u64 = 10;

/// Fewest requests from which a disk is judged.
const DISK_REQUESTS_MIN: u64 = 4;

/// The isolation controller.
#[derive(Clone, Debug)]
pub struct Isolation {
    config: Config,
    share: f64,
    /// The reason of the last action; `None` before the first.
    why: Option<Reason>,
    /// When the daemon was last loaded, or unknown, or the first event came.
    loaded_at: Option<Nanos>,
    heard_at: Option<Nanos>,
}

impl Isolation {
    /// A controller whose share is the floor.
    pub fn new(config: Config) -> Self {
        Isolation { config, share: config.floor, why: None, loaded_at: None, heard_at: None }
    }

    fn load_in(&self, sample: &Sample) -> Option<Reason> {
        let (period, config) = (sample.period_ns as f64, &self.config);
        let could_run = sample.ran_ns.saturating_add(sample.waited_ns) as f64;
        let waits_long = sample.waited_ns > config.wait_ns.saturating_mul(sample.runs);
        let is_busy = could_run > BUSY * period * if sample.runs < RUNS_MIN { 10.0 } else { 1.0 };
        if is_busy && waits_long && sample.waited_ns as f64 > config.waits * could_run {
            return Some(Reason::Processors);
        }
        let mean_ns = sample.disk_time_ns.checked_div(sample.disk_requests).unwrap_or(0);
        let is_slow = sample.disk_requests >= DISK_REQUESTS_MIN && mean_ns > config.disk_slow_ns;
        let is_stalled = sample.stalled_ns as f64 > config.stalls * period;
        (is_slow || is_stalled || sample.disk_queue > config.disk_queue).then_some(Reason::Disks)
    }

    fn set(&mut self, share: f64, why: Reason, out: &mut Vec<Action>) {
        let share = share.clamp(self.config.floor, 1.0);
        // At the floor, report why the share does not grow.
        let is_news = self.why != Some(why) && why != Reason::Calm;
        if share != self.share || is_news {
            (self.share, self.why) = (share, Some(why));
            out.push(Action { share, why });
        }
    }
}

impl Machine for Isolation {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        let elapsed_ns = self.heard_at.map_or(0, |at| now.saturating_since(at));
        self.heard_at = Some(now);
        let load = match event {
            Event::Sample(sample) => self.load_in(&sample),
            Event::Unreadable => Some(Reason::Unknown),
        };
        let loaded_at = *self.loaded_at.get_or_insert(now);
        match load {
            Some(why) => {
                self.loaded_at = Some(now);
                let share = if why == Reason::Unknown { self.config.floor } else { self.share / 2.0 };
                self.set(share, why, out);
            }
            None if now.saturating_since(loaded_at) >= self.config.calm_ns => {
                // What happened in a gap is unknown.
                let known_ns = elapsed_ns.min(self.config.patience_ns);
                let rise = self.config.rise_per_s * known_ns as f64 / 1e9;
                self.set(self.share + rise, Reason::Calm, out);
            }
            None => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let at_floor = self.share <= self.config.floor;
        self.heard_at.filter(|_| !at_floor).map(|at| at + self.config.patience_ns)
    }

    fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Action>) {
        if self.next_deadline().is_some_and(|deadline| now >= deadline) {
            self.loaded_at = Some(now);
            self.set(self.config.floor, Reason::Unknown, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 250_000_000;

    fn calm() -> Sample {
        Sample {
            period_ns: PERIOD_NS,
            ran_ns: 100_000_000,
            waited_ns: 1_000_000,
            runs: 100,
            ..Sample::default()
        }
    }

    /// Feeds `sample` for `periods`; returns the actions.
    fn feed(machine: &mut Isolation, now: &mut u64, sample: Sample, periods: u64) -> Vec<Action> {
        let mut out = Vec::new();
        for _ in 0..periods {
            *now += PERIOD_NS;
            machine.handle(Nanos(*now), Event::Sample(sample), &mut out);
        }
        out
    }

    fn at_full() -> (Isolation, u64) {
        let (mut machine, mut now) = (Isolation::new(Config::default()), 0);
        feed(&mut machine, &mut now, calm(), 100);
        assert_eq!(machine.share, 1.0);
        (machine, now)
    }

    #[test]
    fn the_share_starts_at_the_floor_and_grows_slowly_after_a_calm_time() {
        let (mut machine, mut now) = (Isolation::new(Config::default()), 0);
        // The first event begins the calm time, and eight periods are two seconds.
        assert_eq!(feed(&mut machine, &mut now, calm(), 8), []);
        let out = feed(&mut machine, &mut now, calm(), 4);
        assert_eq!(out.len(), 4);
        assert!((out[3].share - 0.15).abs() < 1e-9 && out[3].why == Reason::Calm, "{out:?}");
    }

    #[test]
    fn load_halves_the_share_at_once_and_the_calm_time_begins_anew() {
        let (mut machine, mut now) = at_full();
        let waits = Sample { waited_ns: 50_000_000, ..calm() };
        let out = feed(&mut machine, &mut now, waits, 5);
        let shares: Vec<f64> = out.iter().map(|action| action.share).collect();
        assert_eq!(shares, [0.5, 0.25, 0.125, 0.1]);
        assert!(out.iter().all(|action| action.why == Reason::Processors));
        assert_eq!(feed(&mut machine, &mut now, calm(), 7), []);
        assert_eq!(feed(&mut machine, &mut now, calm(), 1).len(), 1);
    }

    #[test]
    fn each_sign_of_load_counts_and_few_requests_or_runs_do_not() {
        let slow = Sample { disk_requests: 10, disk_time_ns: 210_000_000, ..calm() };
        let few = Sample { disk_requests: 3, disk_time_ns: 900_000_000, ..calm() };
        let signs = [
            (slow, Some(Reason::Disks)),
            (Sample { disk_queue: 33.0, ..calm() }, Some(Reason::Disks)),
            (Sample { stalled_ns: 26_000_000, ..calm() }, Some(Reason::Disks)),
            (few, None),
            (Sample { ran_ns: 1_000_000, waited_ns: 9_000_000, runs: 9, ..calm() }, None),
            (Sample { ran_ns: 100_000, waited_ns: 2_000_000, runs: 12, ..calm() }, None),
            (Sample { ran_ns: 1_000, waited_ns: 240_000_000, runs: 1, ..calm() }, Some(Reason::Processors)),
            (Sample { ran_ns: 8_000_000, waited_ns: 9_000_000, ..calm() }, None),
        ];
        for (sample, why) in signs {
            let (mut machine, mut now) = at_full();
            let out = feed(&mut machine, &mut now, sample, 1);
            assert_eq!(out.first().map(|action| action.why), why, "{sample:?}");
        }
    }

    #[test]
    fn it_says_why_it_stays_at_the_floor() {
        let (mut machine, mut now) = (Isolation::new(Config::default()), 0);
        let waits = Sample { waited_ns: 50_000_000, ..calm() };
        let out = feed(&mut machine, &mut now, waits, 5);
        assert_eq!(out, [Action { share: 0.1, why: Reason::Processors }]);
    }

    #[test]
    fn what_cannot_be_observed_is_at_the_floor() {
        let (mut machine, now) = at_full();
        let mut out = Vec::new();
        machine.handle(Nanos(now + 1), Event::Unreadable, &mut out);
        assert_eq!(out, [Action { share: 0.1, why: Reason::Unknown }]);

        let (mut machine, now) = at_full();
        let deadline = machine.next_deadline().unwrap();
        assert_eq!(deadline, Nanos(now + 2_000_000_000));
        let mut out = Vec::new();
        machine.on_deadline(Nanos(deadline.0 - 1), &mut out);
        assert_eq!(out, []);
        machine.on_deadline(deadline, &mut out);
        assert_eq!(out, [Action { share: 0.1, why: Reason::Unknown }]);
        assert_eq!(machine.next_deadline(), None, "it cannot fall any further");
    }
}
