//! The simulated system of the Eley paper (FGCS 2018, section 6.2), and the constants that it does
//! not publish.
//!
//! Published: the PFS at 4 GB/s, 50 GB per wave, 8 burst buffer nodes, Tables 2 and 3, 25 s to
//! prefetch a wave with 8 nodes of one thread, 12.5 s to read it directly by all compute nodes.
//!
//! Fitted, one set for everything (the paper used profiles of its own cluster, which it does not
//! publish):
//!
//! | constant | value | from |
//! | --- | --- | --- |
//! | direct reads: I_hpc, I_bd | 2.0, 2.2 | NaiveBB column of Table 5 |
//! | prefetch, 8 nodes of 1 thread: I_hpc, I_bd | 1.3, 1.2 | NoAction column of Table 5 |
//! | reading a wave out of the tier | 3 s | NoAction column of Table 5, applications 5 to 7 |
//! | node level: I_hpc(n, 1) | 1 + 0.3 (n / 8)^6 | Table 6, and gains of application 2; see below |
//! | node level: T(n, 1), I_bd | 25 s * 8 / n, constant | each node adds its own 250 MB/s |
//! | thread level: T(8, t) | 25, 23, 21.25 s at 1, 2, 4 and more | see below |
//! | thread level: I_hpc | x 1, 1.15, 1.3, 1.5 at 1, 2, 4, 16 | see below |
//! | thread level: I_bd | x 1, 1.25, 1.45, 1.7 at 1, 2, 4, 16 | see below |
//! | HPC jobs begin with compute | | NaiveBB column of Table 5, application 1 |
//! | the last wave counts as a whole one | | application 4: 2018 s exceeds 8 * 236 s, 7.1 waves |
//!
//! I_hpc(n, 1): at 5 %, *Scale Down* meets the deadline of Table 6 at a cost of 6 s or less, which
//! needs I_hpc(5, 1) <= 1.05, so an exponent above 3.8. Application 2 gains 19 % and 30 % with Eley
//! at 5 and 15 %, to which exponents of 6 and 7 come closest, and with 7 nothing would be left of
//! the cost in Table 6.
//!
//! T(8, t): applications 3 and 8 hardly gain from Eley, and in Table 4 *Scale Up* reduces Sort's
//! 16 s to its 12 s of compute and reading the tier. Factors at the thread level: 8 nodes of 16
//! threads disturb about as much as direct reads.

use forebay_model::forecast::Division;
use forebay_model::profile::{Curve, Profile, Separable, Setting};
use forebay_policy::planner::{Config, DirectStrain};

use crate::colocate::knowledge::Knowledge;
use crate::colocate::{Arrivals, HpcSpec, JobSpec, Setup};

/// Bytes in a gigabyte, as the paper counts.
pub const GB: f64 = 1e9;
/// Table 2: name, compute (s), I/O volume (GB).
pub const HPC: [(&str, f64, f64); 3] = [("T1", 70.0, 128.2), ("T2", 1.2, 235.8), ("AP", 240.0, 423.4)];
/// Table 3: compute per wave (s), input (GB). Application 1 is at index 0.
pub const APPLICATIONS: [(f64, f64); 8] = [
    (20.0, 195.0),
    (24.0, 860.0),
    (12.0, 600.0),
    (236.0, 355.0),
    (29.0, 662.0),
    (43.0, 799.0),
    (41.5, 1300.0),
    (9.5, 13000.0),
];
/// The QoS levels of section 7.2.2.
pub const ALLOWANCES: [f64; 3] = [0.05, 0.15, 0.30];

const PFS_BYTES_PER_S: f64 = 4.0 * GB;
const WAVE_BYTES: f64 = 50.0 * GB;
const HPC_ITERATIONS: u32 = 10;
/// 32 GB on each of 8 nodes, as on the real cluster (section 6.1.1).
const RAM_BYTES: u64 = 256_000_000_000;

fn curve(points: &[(u16, f64)]) -> Curve {
    Curve::new(points.to_vec()).unwrap_or_else(|why| panic!("a constant of the Eley system is wrong: {why}"))
}

/// Prefetch times of `wave_bytes` that take `default_s` with 8 nodes of one thread, and their
/// interference.
pub fn profile(wave_bytes: f64, default_s: f64) -> Profile {
    let per_node = |f: &dyn Fn(f64) -> f64| -> Vec<(u16, f64)> {
        (1..=8).map(|n| (n, f(f64::from(n)) / f(1.0))).collect()
    };
    let i_hpc = |n: f64| 1.0 + 0.3 * (n / 8.0).powi(6);
    Profile {
        prefetch_s: Separable {
            at_one: default_s * 8.0,
            nodes: curve(&per_node(&|n| 1.0 / n)),
            threads: curve(&[(1, 1.0), (2, 0.92), (4, 0.85)]),
        },
        wave_bytes,
        i_hpc: Separable {
            at_one: i_hpc(1.0),
            nodes: curve(&per_node(&i_hpc)),
            threads: curve(&[(1, 1.0), (2, 1.15), (4, 1.3), (16, 1.5)]),
        },
        i_bd: Separable {
            at_one: 1.2,
            nodes: curve(&[(1, 1.0)]),
            threads: curve(&[(1, 1.0), (2, 1.25), (4, 1.45), (16, 1.7)]),
        },
        max_nodes: 8,
        max_threads: 16,
    }
}

/// HPC application `hpc` (an index into [`HPC`]) with deadlines `allowance` above its time alone,
/// beside application `app` (an index into [`APPLICATIONS`]) under `policy`.
pub fn cell(policy: &str, hpc: usize, app: usize, allowance: f64) -> Setup {
    let (name, compute_s, volume_gb) = HPC[hpc];
    let (app_compute_s, input_gb) = APPLICATIONS[app];
    let ns = |seconds: f64| (seconds * 1e9).round() as u64;
    let profile = profile(WAVE_BYTES, 25.0);
    let direct =
        DirectStrain { speed_bytes_per_s: PFS_BYTES_PER_S, i_hpc: 2.0, i_bd: 2.2, with_compute: false };
    Setup {
        policy: policy.into(),
        bandwidth: "fair-share".into(),
        planner: Config {
            profile: profile.clone(),
            default_setting: Setting::new(8, 1),
            direct,
            pfs_bytes_per_s: PFS_BYTES_PER_S,
            ram_bytes: RAM_BYTES,
            learning: 0.0,
            division: Division::default(),
            reaction_s: 0.0,
        },
        truth: profile,
        true_direct: direct,
        hpc: vec![HpcSpec {
            name: name.into(),
            compute_ns: ns(compute_s),
            io_ns: ns(volume_gb * GB / PFS_BYTES_PER_S),
            phases: HPC_ITERATIONS,
            allowance,
            processes: 1,
            starts_ns: 0,
            io_first: false,
            arrivals: Arrivals::Periodic,
            knowledge: Knowledge::default(),
        }],
        jobs: vec![JobSpec {
            name: format!("application {}", app + 1),
            waves: (input_gb * GB / WAVE_BYTES).ceil() as u32,
            wave_bytes: WAVE_BYTES as u64,
            compute_ns: ns(app_compute_s),
            tier_read_ns: ns(3.0),
            starts_ns: 0,
        }],
        memory: Vec::new(),
        faults: Vec::new(),
        seed: 0,
        horizon_ns: None,
    }
}
