//! Steps of published workloads, which arrive like [`steps`](super::steps) of kind `Arrivals`.
//!
//! | workload | steps | from |
//! | --- | --- | --- |
//! | `full-stripe` | J1-J3, as often as in W1-W6, on all 128 nodes | ICPP 2016, Tables II, III |
//! | `partial-stripe` | J4 to J7, as often as in W7 to W12, on 16 to 64 of 128 nodes | the same |
//! | `io-sets` | of jobs with periods of 10, 100, 1000 s, on one file system | IO-Sets, TPDS 2023 |
//! | `apex` | checkpoints of APEX at Daly's periods, on 64 nodes | Herault et al., 2018 |
//! | `batch-log` | room that longer jobs of KTH-SP2 fill, on 12 nodes | Kopanski, Rzadca, 2021 |
//!
//! APEX: EAP, LAP, Silverton and VPIC. Longer jobs: all but those of two minutes.
//! None of the papers has steps that arrive at a given load, so the arrival times are ours.

use forebay_model::rng::Rng;

use super::by_order;
use crate::batch::workload::normal;
use crate::burst::icpp;
use crate::waste::cielo::{CORES, cielo};

/// A step.
pub struct Drawn {
    /// Its nodes.
    pub on: Vec<u32>,
    /// What it takes alone, in seconds.
    pub alone_s: f64,
    /// Processes on each of its nodes.
    pub processes: f64,
}

/// A published workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// All steps on all nodes.
    FullStripe,
    /// Steps on an eighth to a half of the nodes.
    PartialStripe,
    /// Steps of jobs whose periods differ by orders of magnitude, on one node.
    IoSets,
    /// Checkpoints of four applications.
    Apex,
    /// Jobs of a batch log.
    BatchLog,
}

/// All of them, with their names.
pub const ALL: [(Workload, &str); 5] = [
    (Workload::FullStripe, "full-stripe"),
    (Workload::PartialStripe, "partial-stripe"),
    (Workload::IoSets, "io-sets"),
    (Workload::Apex, "apex"),
    (Workload::BatchLog, "batch-log"),
];

/// A kind of step: how frequent it is, and its properties.
struct Class {
    weight: f64,
    width: u32,
    alone_s: Alone,
    /// Processes on each of its nodes.
    processes: f64,
}

/// The time that a step takes alone, in seconds.
enum Alone {
    Always(f64),
    /// Log-uniform.
    Between(f64, f64),
    /// The time of a job that writes the room of its `nodes` compute nodes to `width` nodes of the
    /// burst buffer.
    Room {
        nodes: f64,
        width: f64,
    },
}

impl Alone {
    fn draw(&self, rng: &mut Rng) -> f64 {
        match *self {
            Alone::Always(seconds) => seconds,
            Alone::Between(low, high) => by_order(rng, low, high),
            Alone::Room { nodes, width } => {
                let bytes = KTH_MEDIAN * (KTH_DEVIATION * normal(rng)).exp() + KTH_SHIFT;
                let most = KTH_BUFFER / (nodes / f64::from(KTH_NODES)).ceil();
                nodes * bytes.clamp(KTH_LEAST, most) / (width * KTH_BYTES_PER_S)
            }
        }
    }
}

impl Workload {
    /// Nodes of the burst buffer.
    pub fn nodes(self) -> u32 {
        match self {
            Workload::FullStripe | Workload::PartialStripe => 128,
            Workload::IoSets => 1,
            Workload::Apex => APEX_NODES,
            Workload::BatchLog => KTH_NODES,
        }
    }

    fn classes(self) -> Vec<Class> {
        match self {
            Workload::FullStripe => of_mixes(0),
            Workload::PartialStripe => of_mixes(1),
            Workload::IoSets => PERIODS_S.iter().map(of_period).collect(),
            Workload::Apex => of_apex(),
            Workload::BatchLog => KTH_WIDTHS.iter().map(of_log).collect(),
        }
    }

    /// Draws `count` steps.
    pub fn draw(self, rng: &mut Rng, count: u64) -> Vec<Drawn> {
        let (classes, nodes) = (self.classes(), self.nodes());
        let all: f64 = classes.iter().map(|class| class.weight).sum();
        let mut turn = 0;
        let mut one = || {
            let mut at = all * rng.unit();
            let chosen = classes.iter().find(|class| {
                at -= class.weight;
                at < 0.0
            });
            let class = chosen.unwrap_or(&classes[0]);
            let mut on: Vec<u32> = (0..class.width).map(|k| (turn + k) % nodes).collect();
            turn = (turn + class.width) % nodes;
            on.sort_unstable();
            Drawn { on, alone_s: class.alone_s.draw(rng), processes: class.processes }
        };
        (0..count).map(|_| one()).collect()
    }
}

/// J1 to J7 as often as in the first (0) or the last (1) six mixes.
fn of_mixes(half: usize) -> Vec<Class> {
    let often = |job: usize| icpp::MIXES[6 * half..][..6].iter().map(|mix| mix[job]).sum::<usize>();
    let class = |(job, &(processes, mb, width)): (usize, &(u64, u64, u32))| {
        let alone_s = (processes * mb * icpp::MB) as f64 / (f64::from(width) * icpp::NODE_BYTES_PER_S);
        let processes = processes as f64 / f64::from(width);
        Class { weight: often(job) as f64, width, alone_s: Alone::Always(alone_s), processes }
    };
    icpp::JOBS.iter().enumerate().map(class).filter(|class| class.weight > 0.0).collect()
}

const PERIODS_S: [f64; 3] = [10.0, 100.0, 1000.0];

/// Roughly as in `reproduce io-sets`: four jobs of each period, together 0.8 of the time.
fn of_period(period_s: &f64) -> Class {
    let mean_s = 0.8 * period_s / 12.0;
    let alone_s = Alone::Between(0.4 * mean_s, 1.9 * mean_s);
    Class { weight: 1.0 / period_s, width: 1, alone_s, processes: 1.0 }
}

const APEX_NODES: u32 = 64;
/// Bandwidth of a node of the burst buffer.
const APEX_BYTES_PER_S: f64 = 5e9;

/// Each job has nodes of the burst buffer in proportion to its own, and writes at Daly's period.
fn of_apex() -> Vec<Class> {
    let platform = cielo(160.0, 10.0);
    let part = f64::from(APEX_NODES) / f64::from(platform.nodes);
    let class = |job: &crate::waste::Class| {
        let nodes = f64::from(job.nodes);
        let width = (nodes * part).ceil();
        let alone_s = job.checkpoint_bytes / (width * APEX_BYTES_PER_S);
        let period_s = (2.0 * alone_s * platform.node_fails_s / nodes).sqrt();
        let jobs = job.share / nodes;
        let processes = f64::from(CORES) * nodes / width;
        let weight = jobs / period_s;
        Class { weight, width: width as u32, alone_s: Alone::Always(alone_s), processes }
    };
    platform.classes.iter().map(class).collect()
}

const KTH_NODES: u32 = 12;
const KTH_BYTES_PER_S: f64 = 1.25e9;
/// Compute nodes per node of the burst buffer.
const KTH_SHARE: f64 = 8.0;
/// Compute nodes of a job, and percent of the jobs: as in `scenarios/batch-queue.toml`, rounded to
/// powers of two.
const KTH_WIDTHS: [(f64, f64); 7] =
    [(1.0, 32.9), (2.0, 13.4), (4.0, 19.1), (8.0, 18.1), (16.0, 8.8), (32.0, 5.0), (64.0, 2.6)];
/// Room of a compute node in bytes, as in the paper: log-normal and a shift, and a least value.
const KTH_MEDIAN: f64 = 2.779e9;
const KTH_DEVIATION: f64 = 1.097;
const KTH_SHIFT: f64 = -0.154e9;
const KTH_LEAST: f64 = 0.1e9;
/// Bandwidth of a node of the burst buffer.
const KTH_BUFFER: f64 = 40e9;

/// A job writes the room that it has asked for.
fn of_log(&(nodes, weight): &(f64, f64)) -> Class {
    let width = (nodes / KTH_SHARE).ceil();
    Class { weight, width: width as u32, alone_s: Alone::Room { nodes, width }, processes: nodes / width }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_the_papers() {
        for (workload, name) in ALL {
            let drawn = workload.draw(&mut Rng::new(7), 2000);
            let widest = drawn.iter().map(|step| step.on.len()).max();
            assert!(widest <= Some(workload.nodes() as usize), "{name}");
            assert!(drawn.iter().all(|step| step.alone_s > 0.0 && step.processes >= 1.0), "{name}");
        }
        // Table II: 512 GB on each of 64 nodes of 5 GB/s.
        let j7 = Workload::PartialStripe.draw(&mut Rng::new(7), 200);
        assert!(j7.iter().any(|step| step.on.len() == 64 && (step.alone_s - 102.4).abs() < 1e-9));
        // Nine in ten steps are of jobs with a period of ten seconds.
        let short = Workload::IoSets.draw(&mut Rng::new(7), 2000);
        let short = short.iter().filter(|step| step.alone_s < 2.0).count();
        assert!((1700..1900).contains(&short), "{short}");
    }
}
