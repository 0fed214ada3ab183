//! The least sum of map times for planners that keep deadlines: planners under which every phase is
//! in time beside which any byte is moved. A phase that is late because of other HPC jobs has
//! nothing beside it.
//!
//! **What a phase takes away.** Let a phase of A seconds of work lose e seconds for each second of
//! work, on average at most its allowance a. In its part of the file system's time, A (1 + e), at
//! most A f(e) bytes are moved, where f(e) = (1 + e) v(e) and v is the best speed at that excess,
//! of as many streams as there are jobs. Between phases it would have been F (1 + e) A. So the
//! phase takes at least A (F - max f(e) + F e) bytes, over all mixes with a mean e of at most a.
//! The maximum has the bound `max over e of (f(e) - (F + l) e) + l a` for any l >= 0; the least one
//! is taken. Phases of several HPC jobs divide the time of the file system, so what they take adds
//! up.
//!
//! **When it takes it.** A phase in time ends within its allowance; a late one is held up by
//! nothing but the work of the other HPC jobs' phases, which can have begun by then. That gives
//! each phase a latest end. Up to any moment, no more bytes come than F for all of the time, less
//! what is taken by phases that begin after the job does, at the earliest, and have ended by then,
//! at the latest.

use forebay_policy::planner::SpeedCurve;

use super::bound::{self, least_sum_s};
use crate::arrivals::Arrivals;
use crate::colocate::{HpcSpec, JobSpec, Setup};

/// Number of samples of speeds over the excess of phases, and the most excess for each stream:
/// twice what any setting of the random clusters costs.
const SAMPLES: u32 = 256;
const MOST_EXCESS: f64 = 2.5;

fn seconds(ns: u64) -> f64 {
    ns as f64 * 1e-9
}

/// The least sum of map times, in seconds.
pub fn map_s(setup: &Setup) -> f64 {
    let fetch = SpeedCurve::between_phases(&setup.planner).at(0.0);
    let pfs = setup.planner.pfs_bytes_per_s;
    let alone = Supply::new(setup, fetch.max(setup.planner.direct.speed_bytes_per_s).min(pfs), 1);
    let shared = Supply::new(setup, pfs, setup.jobs.len());
    let alone_s: Vec<f64> = setup.jobs.iter().map(|job| alone_s(setup, &alone, job)).collect();
    let starts_s = setup.jobs.iter().map(|job| seconds(job.starts_ns));
    let first_s = starts_s.clone().fold(f64::INFINITY, f64::min);
    let compute_s = setup.jobs.iter().map(|job| seconds(job.compute_ns)).fold(f64::INFINITY, f64::min);
    let mut bytes: Vec<f64> =
        setup.jobs.iter().map(|job| f64::from(job.waves) * job.wave_bytes as f64).collect();
    bytes.sort_by(f64::total_cmp);
    let mut all = 0.0;
    let mut earliest_s = |bytes: &f64| {
        all += bytes;
        shared.there_s(first_s, all) + compute_s
    };
    let earliest_s: Vec<f64> = bytes.iter().map(&mut earliest_s).collect();
    (least_sum_s(&earliest_s, alone_s) - starts_s.sum::<f64>()).max(bound::map_s(setup))
}

/// A phase: its earliest begin, its latest end, and the bytes that it takes away.
#[derive(Clone, Copy, Debug)]
struct Taken {
    from_s: f64,
    by_s: f64,
    bytes: f64,
}

/// How fast bytes may come to a number of jobs.
struct Supply {
    /// Between phases, in bytes per second.
    free: f64,
    /// Phases by latest end.
    taken: Vec<Taken>,
}

impl Supply {
    fn new(setup: &Setup, free: f64, streams: usize) -> Self {
        let curve = SpeedCurve::beside_one_phase(&setup.planner);
        let most = setup.planner.pfs_bytes_per_s.min(free);
        let mut taken = Vec::new();
        for (h, hpc) in setup.hpc.iter().enumerate() {
            if hpc.arrivals != Arrivals::Periodic {
                continue;
            }
            let bytes = seconds(hpc.io_ns) * taken_bytes_per_s(&curve, free, most, streams, hpc.allowance);
            let phase = |i| Taken { from_s: begins_s(hpc, i), by_s: ends_by_s(&setup.hpc, h, i), bytes };
            taken.extend((0..hpc.phases).map(phase));
        }
        taken.sort_by(|a, b| a.by_s.total_cmp(&b.by_s));
        Supply { free, taken }
    }

    /// When a job that begins at `from_s` may have `bytes` at the earliest: after the last moment
    /// at which it cannot.
    fn there_s(&self, from_s: f64, bytes: f64) -> f64 {
        let taken: Vec<&Taken> = self.taken.iter().filter(|taken| taken.from_s >= from_s).collect();
        let mut gone: f64 = taken.iter().map(|taken| taken.bytes).sum();
        for last in taken.iter().rev() {
            let there_s = from_s + (bytes + gone) / self.free;
            if there_s > last.by_s {
                return there_s;
            }
            gone -= last.bytes;
        }
        from_s + bytes / self.free
    }
}

/// Bytes that a second of a phase's work takes away from other transfers.
fn taken_bytes_per_s(curve: &SpeedCurve, free: f64, most: f64, streams: usize, allowance: f64) -> f64 {
    let streams = streams as f64;
    let step = streams * MOST_EXCESS / f64::from(SAMPLES);
    // The speed of the sample after: between two of them it is no greater.
    let speed = |k: u32| {
        let each = step * f64::from(k + 1) / streams;
        (streams * curve.at(each / (1.0 + each))).min(most)
    };
    let beside: Vec<(f64, f64)> = (0..SAMPLES)
        .map(|k| {
            let excess = step * f64::from(k);
            (excess, (1.0 + excess + step) * speed(k))
        })
        .collect();
    let gain = |price: f64| {
        let net = beside.iter().map(|(excess, bytes)| bytes - (free + price) * excess);
        net.fold(0.0, f64::max) + price * allowance
    };
    // The bound is convex in the price.
    let (mut low, mut high) = (0.0, 1e3 * free);
    for _ in 0..100 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        *(if gain(a) <= gain(b) { &mut high } else { &mut low }) = if gain(a) <= gain(b) { b } else { a };
    }
    (free - gain(low).min(gain(high))).max(0.0)
}

/// When phase `i` begins if nothing holds up the job.
fn begins_s(hpc: &HpcSpec, i: u32) -> f64 {
    let first_s = seconds(hpc.starts_ns) + if hpc.io_first { 0.0 } else { seconds(hpc.compute_ns) };
    first_s + f64::from(i) * seconds(hpc.io_ns + hpc.compute_ns)
}

/// The latest end of phase `i` of job `h`.
fn ends_by_s(all: &[HpcSpec], h: usize, i: u32) -> f64 {
    let hpc = &all[h];
    let stretched_s = f64::from(i + 1) * hpc.allowance * seconds(hpc.io_ns);
    let in_time_s = begins_s(hpc, i) + seconds(hpc.io_ns) + stretched_s;
    let others = || all.iter().enumerate().filter(|(other, _)| *other != h);
    let mut by_s = in_time_s;
    loop {
        let begun_s = |other: &HpcSpec| {
            let begun = (0..other.phases).filter(|&k| begins_s(other, k) < by_s).count();
            begun as f64 * seconds(other.io_ns)
        };
        let later_s = in_time_s + others().map(|(_, other)| begun_s(other)).sum::<f64>();
        if later_s <= by_s {
            return by_s;
        }
        by_s = later_s;
    }
}

/// When a job ends at the earliest, from the start of the run: see [`bound::map_s`].
fn alone_s(setup: &Setup, supply: &Supply, job: &JobSpec) -> f64 {
    let (compute_s, wave_bytes) = (seconds(job.compute_ns), job.wave_bytes as f64);
    let read_s = seconds(job.tier_read_ns).min(wave_bytes / setup.planner.direct.speed_bytes_per_s);
    let end_s = |waves: u32| {
        let there_s = supply.there_s(seconds(job.starts_ns), f64::from(waves) * wave_bytes);
        there_s + compute_s + f64::from(job.waves - waves) * (compute_s + read_s)
    };
    (1..=job.waves).map(end_s).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::colocate::knowledge::Knowledge;

    #[test]
    fn bytes_come_after_the_last_phase_that_takes_them() {
        let taken = |from_s: f64, by_s: f64| Taken { from_s, by_s, bytes: 10.0 };
        let supply = Supply { free: 1.0, taken: vec![taken(5.0, 20.0), taken(30.0, 45.0)] };
        // 4 bytes may be there before any phase has certainly ended, but 12 may not: at 20 s there
        // are 10 again.
        assert_eq!(supply.there_s(0.0, 4.0), 4.0);
        assert_eq!(supply.there_s(0.0, 12.0), 22.0);
        assert_eq!(supply.there_s(0.0, 30.0), 50.0);
        // The first phase may have begun before the job.
        assert_eq!(supply.there_s(6.0, 12.0), 18.0);
    }

    #[test]
    fn a_phase_ends_late_by_no_more_than_the_others_work() {
        let hpc = |compute_s: u64, io_s: u64| HpcSpec {
            name: "hpc".into(),
            compute_ns: compute_s * 1_000_000_000,
            io_ns: io_s * 1_000_000_000,
            phases: 2,
            allowance: 0.1,
            processes: 1,
            starts_ns: 0,
            io_first: false,
            arrivals: Arrivals::Periodic,
            knowledge: Knowledge::default(),
        };
        let all = [hpc(90, 10), hpc(1000, 7)];
        assert!((ends_by_s(&all, 0, 0) - 101.0).abs() < 1e-9);
        assert!((ends_by_s(&all, 0, 1) - 202.0).abs() < 1e-9);
        // Both phases of the first job may have held it up.
        assert!((ends_by_s(&all, 1, 0) - (1007.7 + 20.0)).abs() < 1e-9);
    }
}
