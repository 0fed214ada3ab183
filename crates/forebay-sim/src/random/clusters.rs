//! Random clusters of HPC jobs and Big Data jobs, and planners compared on them.
//!
//! | drawn | from |
//! | --- | --- |
//! | bandwidth of the PFS | 2 to 8 GB/s |
//! | a prefetch with the default setting, alone | 0.3 to 0.7 of the PFS |
//! | direct reads of one job, alone | 0.125 to 1 of the PFS |
//! | I_hpc - 1 of a prefetch, default setting | 0.1 to 0.5; grows with nodes to the power 1 to 6 |
//! | I_bd of a prefetch | 1.1 to 1.5 |
//! | HPC jobs | 1 to 4, of 10 phases of 5 to 60 s, 1, 2 or 4 processes |
//! | time that phases need together, alone | 0.1 to 0.6 of all time |
//! | Big Data jobs | 1 to 4, of 5 to 24 waves of 10 to 50 GB and 5 to 120 s of compute |
//! | begin of a job | within 100 s |
//! | memory of the tier | 1 to 3 times two waves of every job |
//!
//! Threads of a node and the time to read a wave from the tier are those of the Eley system.

use forebay_model::forecast::Division;
use forebay_model::profile::{Curve, Profile, Separable, Setting};
use forebay_model::rng::Rng;
use forebay_policy::planner::{Config, DirectStrain};

use super::rhythm::Rhythm;
use super::{between, by_order};
use crate::colocate::knowledge::Knowledge;
use crate::colocate::{Arrivals, FetchSpan, HpcSpec, JobSpec, Outcome, PhaseOutcome, Setup, simulate};
use crate::error::Result;
use crate::estimate::Estimate;
use crate::trace::Trace;

const GB: f64 = 1e9;

/// Sums of map times that differ by less than this fraction are equal: events have whole
/// nanoseconds, and the planner treats times as equal that are a millisecond apart.
pub const EQUAL: f64 = 1e-5;

/// Properties common to all clusters of a comparison.
#[derive(Clone, Debug)]
pub struct Family {
    /// Seed of all clusters.
    pub seed: u64,
    /// How much longer than alone a phase may take: 0.05 for 5 %.
    pub allowance: f64,
    /// How phases divide the file system.
    pub bandwidth: String,
    /// Each compute time differs from the mean by up to this fraction, uniformly: 0.11 for 11 %.
    pub period_error: f64,
    /// Phases vary like the phases of these recorded jobs instead, one job after the other.
    pub rhythms: Vec<Rhythm>,
    /// What planners know about phases.
    pub knowledge: Knowledge,
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

impl Family {
    /// Clusters whose phases come as declared and share the file system fairly.
    pub fn new(seed: u64, allowance: f64) -> Self {
        let (bandwidth, knowledge) = ("fair-share".into(), Knowledge::default());
        Family { seed, allowance, bandwidth, period_error: 0.0, rhythms: Vec::new(), knowledge }
    }

    /// Cluster `number` under `policy`.
    pub fn cluster(&self, number: u64, policy: &str) -> Setup {
        let mut rng = Rng::new(self.seed).fork(number);
        let pfs_bytes_per_s = by_order(&mut rng, 2.0, 8.0) * GB;
        let profile = profile(&mut rng, pfs_bytes_per_s);
        let direct = DirectStrain {
            speed_bytes_per_s: pfs_bytes_per_s * by_order(&mut rng, 0.125, 1.0),
            i_hpc: 2.0,
            i_bd: 2.2,
            with_compute: false,
        };
        let load = between(&mut rng, 0.1, 0.6);
        let parts: Vec<f64> = (0..1 + rng.below(4)).map(|_| between(&mut rng, 0.5, 1.5)).collect();
        let all: f64 = parts.iter().sum();
        let hpc = |(i, part)| {
            let mut spec = self.hpc(&mut rng, i, load * part / all);
            if let Some(rhythm) = self.rhythms.get((number + i) as usize % self.rhythms.len().max(1)) {
                (spec.phases, spec.arrivals) =
                    (rhythm.phases(), rhythm.arrivals(spec.compute_ns, spec.io_ns));
            }
            spec
        };
        let hpc = (0..).zip(&parts).map(hpc).collect();
        let jobs: Vec<JobSpec> = (0..1 + rng.below(4)).map(|i| job(&mut rng, i)).collect();
        let two_waves: u64 = jobs.iter().map(|job| 2 * job.wave_bytes).sum();
        let ram_bytes = (two_waves as f64 * between(&mut rng, 1.0, 3.0)).ceil() as u64;
        Setup {
            policy: policy.into(),
            bandwidth: self.bandwidth.clone(),
            planner: Config {
                profile: profile.clone(),
                default_setting: Setting::new(NODES, 1),
                direct,
                pfs_bytes_per_s,
                ram_bytes,
                learning: 0.0,
                division: Division::default(),
                reaction_s: 0.0,
            },
            truth: profile,
            true_direct: direct,
            hpc,
            jobs,
            memory: Vec::new(),
            faults: Vec::new(),
            seed: rng.next_u64(),
            horizon_ns: None,
        }
    }

    /// Job `job` of a cluster alone, on a system that is its equal share: of the bandwidth, of the
    /// speed of prefetches and direct reads, and of the memory, as long as two waves have room.
    pub fn equal_share(setup: &Setup, job: usize) -> Setup {
        let (jobs, spec) = (setup.jobs.len() as f64, setup.jobs[job].clone());
        let mut share = setup.clone();
        share.planner.pfs_bytes_per_s /= jobs;
        share.planner.direct.speed_bytes_per_s /= jobs;
        share.planner.profile.prefetch_s.at_one *= jobs;
        share.planner.ram_bytes = ((setup.planner.ram_bytes as f64 / jobs) as u64).max(2 * spec.wave_bytes);
        share.truth = share.planner.profile.clone();
        share.true_direct = share.planner.direct;
        share.jobs = vec![spec];
        share
    }

    /// An HPC job whose phases need the fraction `load` of its time, alone.
    fn hpc(&self, rng: &mut Rng, number: u64, load: f64) -> HpcSpec {
        let io_s = by_order(rng, 5.0, 60.0);
        HpcSpec {
            name: format!("hpc {number}"),
            compute_ns: ns(io_s * (1.0 / load - 1.0)),
            io_ns: ns(io_s),
            phases: 10,
            allowance: self.allowance,
            processes: 1 << rng.below(3),
            starts_ns: ns(between(rng, 0.0, 100.0)),
            io_first: false,
            arrivals: match self.period_error {
                0.0 => Arrivals::Periodic,
                spread => Arrivals::Jittered { spread },
            },
            knowledge: self.knowledge,
        }
    }
}

fn job(rng: &mut Rng, number: u64) -> JobSpec {
    let wave_bytes = between(rng, 10.0, 50.0) * GB;
    JobSpec {
        name: format!("job {number}"),
        waves: 5 + rng.below(20) as u32,
        wave_bytes: wave_bytes as u64,
        compute_ns: ns(by_order(rng, 5.0, 120.0)),
        tier_read_ns: ns(wave_bytes / (50.0 * GB / 3.0)),
        starts_ns: ns(between(rng, 0.0, 100.0)),
    }
}

const NODES: u16 = 8;

fn profile(rng: &mut Rng, pfs_bytes_per_s: f64) -> Profile {
    let curve = |points: &[(u16, f64)]| Curve::relative(points).expect("counts ascend, values are positive");
    let by_node = |value: &dyn Fn(f64) -> f64| -> Vec<(u16, f64)> {
        (1..=NODES).map(|n| (n, value(f64::from(n)))).collect()
    };
    let all = f64::from(NODES);
    let wave_bytes = 50.0 * GB;
    let default_s = wave_bytes / (pfs_bytes_per_s * between(rng, 0.3, 0.7));
    let (excess, power) = (between(rng, 0.1, 0.5), 1 + rng.below(6) as i32);
    let i_hpc = |n: f64| 1.0 + excess * (n / all).powi(power);
    Profile {
        prefetch_s: Separable {
            at_one: default_s * all,
            nodes: curve(&by_node(&|n| 1.0 / n)),
            threads: curve(&[(1, 1.0), (2, 0.92), (4, 0.85)]),
        },
        wave_bytes,
        i_hpc: Separable {
            at_one: i_hpc(1.0),
            nodes: curve(&by_node(&i_hpc)),
            threads: curve(&[(1, 1.0), (2, 1.15), (4, 1.3), (16, 1.5)]),
        },
        i_bd: Separable {
            at_one: between(rng, 1.1, 1.5),
            nodes: curve(&[(1, 1.0)]),
            threads: curve(&[(1, 1.0), (2, 1.25), (4, 1.45), (16, 1.7)]),
        },
        max_nodes: NODES,
        max_threads: 16,
    }
}

/// What a planner made of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// Map times, in seconds, in the order of the jobs.
    pub map_s: Vec<f64>,
    /// Number of phases.
    pub phases: usize,
    /// Deadlines missed.
    pub missed: usize,
    /// Deadlines missed by phases beside which something was fetched.
    pub missed_beside: usize,
}

impl Made {
    /// Runs a cluster.
    ///
    /// # Errors
    /// If the run does not end.
    pub fn of(setup: &Setup) -> Result<Self> {
        let outcome = simulate(setup, &mut Trace::off())?;
        Ok(Made {
            map_s: outcome.jobs.iter().map(|job| job.map_ns as f64 * 1e-9).collect(),
            phases: outcome.hpc.iter().map(|hpc| hpc.phases.len()).sum(),
            missed: outcome.missed(),
            missed_beside: missed_beside(&outcome),
        })
    }

    /// The greatest of the map times as a multiple of `alone_s`, each job's on its equal share.
    pub fn stretch(&self, alone_s: &[f64]) -> f64 {
        self.map_s.iter().zip(alone_s).map(|(s, alone_s)| s / alone_s).fold(0.0, f64::max)
    }

    /// The sum of the map times.
    pub fn sum_s(&self) -> f64 {
        self.map_s.iter().sum()
    }
}

/// Among `others` that miss no more deadlines than `own`, the one with the least map times; if
/// `in_time`, only among those that make no more phases late that they fetch beside.
pub fn best<'a>(own: &Made, others: impl Iterator<Item = &'a Made>, in_time: bool) -> Option<&'a Made> {
    let as_many = others.filter(|other| other.missed <= own.missed);
    let beside = as_many.filter(|other| !in_time || other.missed_beside <= own.missed_beside);
    beside.min_by(|a, b| a.sum_s().total_cmp(&b.sum_s()))
}

/// The map time of each job of a cluster on its equal share under the same policy, in seconds.
///
/// # Errors
/// If a run does not end.
pub fn equal_shares_s(setup: &Setup) -> Result<Vec<f64>> {
    let alone = |job| Ok(Made::of(&Family::equal_share(setup, job))?.sum_s());
    (0..setup.jobs.len()).map(alone).collect()
}

/// Number of phases that were late, and beside which anything was fetched.
pub fn missed_beside(outcome: &Outcome) -> usize {
    let overlap = |p: &PhaseOutcome, f: &FetchSpan| f.from_ns < p.end_ns && f.to_ns > p.begin_ns;
    let beside = |p: &&PhaseOutcome| outcome.fetches.iter().any(|f| overlap(p, f));
    outcome.hpc.iter().flat_map(|hpc| &hpc.phases).filter(|p| p.missed()).filter(beside).count()
}

/// One planner against another on many clusters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Against {
    /// Ratios of the sums of map times.
    ratios: Vec<f64>,
    /// Numbers of the clusters in which it was slower.
    pub slower: Vec<u64>,
    /// Numbers of the clusters among these in which it missed no fewer deadlines.
    pub slower_for_nothing: Vec<u64>,
    /// The greatest ratio, and its cluster.
    pub worst: Option<(f64, u64)>,
    /// The greatest ratio where it missed no fewer deadlines, and its cluster.
    pub worst_for_nothing: Option<(f64, u64)>,
}

impl Against {
    /// Adds a cluster.
    pub fn add(&mut self, number: u64, ours: &Made, other: &Made) {
        let ratio = ours.sum_s() / other.sum_s();
        let no_fewer = ours.missed >= other.missed;
        self.ratios.push(ratio);
        raise(&mut self.worst, ratio, number);
        if no_fewer {
            raise(&mut self.worst_for_nothing, ratio, number);
        }
        if ratio > 1.0 + EQUAL {
            self.slower.push(number);
            self.slower_for_nothing.extend(no_fewer.then_some(number));
        }
    }

    /// The geometric mean of the ratios, as a change in percent.
    pub fn change_percent(&self) -> Estimate {
        Estimate::change_percent(&self.ratios)
    }
}

fn raise(worst: &mut Option<(f64, u64)>, ratio: f64, number: u64) {
    if worst.is_none_or(|(before, _)| ratio > before) {
        *worst = Some((ratio, number));
    }
}
