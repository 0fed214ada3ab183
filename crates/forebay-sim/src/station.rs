//! Processor sharing on independent stations: burst buffer nodes whose bandwidth is divided evenly
//! over processes.
//!
//! A transfer of weight w (its processes on that node) gets `w / W` of the station's rate, W being
//! the sum over all transfers there. Instead of touching every transfer at every change, each
//! station keeps a *virtual clock* that advances by rate / W: a transfer of b bytes that starts at
//! virtual time v ends at v + b / w, whatever comes and goes in between (generalised processor
//! sharing). So a change costs O(log n), which is what makes ten thousand jobs on hundreds of nodes
//! a matter of seconds. Where a transfer crosses several shared resources, or has a cap of its own,
//! this trick does not hold; [`crate::maxmin`] is for those.

use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};

use forebay_policy::machine::Nanos;

use crate::transfer_ns;

/// Names a transfer; the caller chooses it, and it comes back on completion.
pub type TransferId = u64;

/// A transfer at one station, by the virtual time of its end.
#[derive(Clone, Copy, PartialEq)]
struct Pending {
    virtual_end: f64,
    id: TransferId,
    weight: f64,
}
impl Eq for Pending {}
impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Pending {
    fn cmp(&self, other: &Self) -> Ordering {
        other.virtual_end.total_cmp(&self.virtual_end).then(other.id.cmp(&self.id))
    }
}

struct Station {
    rate_bytes_per_s: f64,
    /// Bytes that one unit of weight has received since the station was last idle.
    virtual_now: f64,
    updated: Nanos,
    weight: f64,
    pending: BinaryHeap<Pending>,
    /// The moment under which the station stands in `Stations::next`.
    scheduled: Option<Nanos>,
    bytes_done: f64,
}

impl Station {
    fn advance(&mut self, now: Nanos) {
        let dt = now.saturating_since(self.updated) as f64 * 1e-9;
        self.updated = now;
        if self.weight > 0.0 {
            self.virtual_now += dt * self.rate_bytes_per_s / self.weight;
            self.bytes_done += dt * self.rate_bytes_per_s;
        }
    }

    fn next_end(&self) -> Option<Nanos> {
        let first = self.pending.peek()?;
        let bytes = (first.virtual_end - self.virtual_now) * self.weight;
        transfer_ns(bytes, self.rate_bytes_per_s).map(|ns| self.updated + ns)
    }

    /// Sums the weights anew rather than subtracting: the sum must not drift over millions of
    /// changes.
    fn reset_if_idle(&mut self) {
        if self.pending.is_empty() {
            self.weight = 0.0;
            self.virtual_now = 0.0;
        }
    }
}

/// A bank of stations, and the order in which their transfers end.
#[derive(Default)]
pub struct Stations {
    stations: Vec<Station>,
    next: BTreeSet<(Nanos, usize)>,
}

impl Stations {
    /// `count` stations of equal rate.
    pub fn uniform(count: usize, rate_bytes_per_s: f64) -> Self {
        let mut bank = Stations::default();
        for _ in 0..count {
            bank.add(rate_bytes_per_s);
        }
        bank
    }

    /// Adds a station and returns its index.
    pub fn add(&mut self, rate_bytes_per_s: f64) -> usize {
        assert!(rate_bytes_per_s >= 0.0, "a station cannot have rate {rate_bytes_per_s}");
        self.stations.push(Station {
            rate_bytes_per_s,
            virtual_now: 0.0,
            updated: Nanos(0),
            weight: 0.0,
            pending: BinaryHeap::new(),
            scheduled: None,
            bytes_done: 0.0,
        });
        self.stations.len() - 1
    }

    /// Number of stations.
    pub fn len(&self) -> usize {
        self.stations.len()
    }

    /// Whether there is no station.
    pub fn is_empty(&self) -> bool {
        self.stations.is_empty()
    }

    /// Starts moving `bytes` at `station` with `weight` processes. `id` must be unique at that
    /// station.
    pub fn start(&mut self, now: Nanos, station: usize, id: TransferId, bytes: f64, weight: f64) {
        assert!(weight > 0.0 && bytes >= 0.0, "transfer {id}: weight {weight}, {bytes} bytes");
        let s = &mut self.stations[station];
        s.advance(now);
        s.weight += weight;
        s.pending.push(Pending { virtual_end: s.virtual_now + bytes / weight, id, weight });
        self.reschedule(station);
    }

    /// Takes transfer `id` away from `station` before its end; returns the bytes that were still to
    /// move.
    pub fn abort(&mut self, now: Nanos, station: usize, id: TransferId) -> Option<f64> {
        let s = &mut self.stations[station];
        s.advance(now);
        let gone = *s.pending.iter().find(|p| p.id == id)?;
        s.pending.retain(|p| p.id != id);
        s.weight -= gone.weight;
        let left = ((gone.virtual_end - s.virtual_now) * gone.weight).max(0.0);
        s.reset_if_idle();
        self.reschedule(station);
        Some(left)
    }

    /// Changes a station's rate; 0 means it has failed, and its transfers wait.
    pub fn set_rate(&mut self, now: Nanos, station: usize, rate_bytes_per_s: f64) {
        let s = &mut self.stations[station];
        s.advance(now);
        s.rate_bytes_per_s = rate_bytes_per_s;
        self.reschedule(station);
    }

    /// When the next transfer of any station ends.
    pub fn next_end(&self) -> Option<Nanos> {
        self.next.first().map(|&(at, _)| at)
    }

    /// Completes the transfer that `next_end` announced: its station and id.
    pub fn pop_end(&mut self) -> Option<(Nanos, usize, TransferId)> {
        let (at, station) = self.next.pop_first()?;
        let s = &mut self.stations[station];
        s.scheduled = None;
        s.advance(at);
        let done = s.pending.pop()?;
        s.weight -= done.weight;
        s.reset_if_idle();
        self.reschedule(station);
        Some((at, station, done.id))
    }

    /// Bytes that `station` has moved up to its last change. For checks of work conservation and
    /// for utilisation.
    pub fn bytes_done(&self, station: usize) -> f64 {
        self.stations[station].bytes_done
    }

    /// Processes active at `station` now.
    pub fn weight(&self, station: usize) -> f64 {
        self.stations[station].weight
    }

    fn reschedule(&mut self, station: usize) {
        let s = &mut self.stations[station];
        let next = s.next_end();
        if next == s.scheduled {
            return;
        }
        if let Some(old) = s.scheduled.take() {
            self.next.remove(&(old, station));
        }
        if let Some(at) = next {
            self.next.insert((at, station));
        }
        s.scheduled = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends(bank: &mut Stations) -> Vec<(f64, TransferId)> {
        std::iter::from_fn(|| bank.pop_end()).map(|(at, _, id)| (at.as_secs_f64(), id)).collect()
    }

    /// 32, 64 and 64 GB with 32, 128 and 512 processes at 5 GB/s: worked by hand.
    #[test]
    fn three_jobs_of_w1_on_one_node_by_hand() {
        let mut bank = Stations::uniform(1, 5e9);
        for (id, gb, procs) in [(1, 32e9, 32.0), (2, 64e9, 128.0), (3, 64e9, 512.0)] {
            bank.start(Nanos(0), 0, id, gb, procs);
        }
        // Job 3 has 512/672 of 5 GB/s: 16.8 s. Then job 2 has 128/160 of it, 48 GB to go: 12 s.
        // Then job 1 alone.
        let got = ends(&mut bank);
        let want = [(16.8, 3), (28.8, 2), (32.0, 1)];
        for (g, w) in got.iter().zip(want) {
            assert!((g.0 - w.0).abs() < 1e-6 && g.1 == w.1, "{got:?}");
        }
        // The sum, 77.6 s, is what the specification of the workload W1 names for no scheduling.
    }

    #[test]
    fn a_failed_station_waits_and_goes_on() {
        let mut bank = Stations::uniform(1, 1e9);
        bank.start(Nanos(0), 0, 7, 2e9, 1.0);
        bank.set_rate(Nanos::from_secs_f64(1.0), 0, 0.0);
        assert_eq!(bank.next_end(), None);
        bank.set_rate(Nanos::from_secs_f64(11.0), 0, 1e9);
        assert_eq!(bank.next_end(), Some(Nanos::from_secs_f64(12.0)));
    }

    #[test]
    fn an_aborted_transfer_says_what_was_left() {
        let mut bank = Stations::uniform(1, 1e9);
        bank.start(Nanos(0), 0, 1, 4e9, 1.0);
        bank.start(Nanos(0), 0, 2, 4e9, 1.0);
        let left = bank.abort(Nanos::from_secs_f64(2.0), 0, 1).expect("it was there");
        assert!((left - 3e9).abs() < 1.0, "{left}");
        assert_eq!(bank.next_end(), Some(Nanos::from_secs_f64(5.0)));
        assert_eq!(bank.abort(Nanos::from_secs_f64(2.0), 0, 1), None);
    }

    proptest! {
        /// Work conservation: however transfers arrive, a station that is never idle ends when
        /// total bytes / rate have passed, to a nanosecond a transfer.
        #[test]
        fn a_busy_station_ends_when_the_bytes_are_moved(
            jobs in prop::collection::vec((1u64..1_000_000_000, 1u32..600, 0u64..900_000_000), 1..40)
        ) {
            let mut bank = Stations::uniform(1, 1e9);
            let mut arrivals: Vec<_> = jobs.iter().enumerate()
                .map(|(i, &(bytes, weight, at))| (Nanos(at), i as u64, bytes as f64, f64::from(weight))).collect();
            // One long transfer from the start keeps it busy.
            arrivals.push((Nanos(0), 1000, 1e12, 1.0));
            arrivals.sort_by_key(|a| (a.0, a.1));
            let total: f64 = arrivals.iter().map(|a| a.2).sum();
            let mut last = Nanos(0);
            for (at, id, bytes, weight) in arrivals {
                while bank.next_end().is_some_and(|end| end <= at) {
                    bank.pop_end();
                }
                bank.start(at, 0, id, bytes, weight);
            }
            while let Some((at, _, _)) = bank.pop_end() {
                prop_assert!(at >= last);
                last = at;
            }
            prop_assert!((last.as_secs_f64() - total / 1e9).abs() < 1e-6, "{} {}", last.as_secs_f64(), total / 1e9);
        }
    }
}
