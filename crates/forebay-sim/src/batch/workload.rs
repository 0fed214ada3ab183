//! Jobs of given distributions, and the room that jobs of a log ask for.

use forebay_model::rng::Rng;

use super::JobSpec;
use super::swf::Logged;

/// The least fraction of a log's run time that is computing.
const COMPUTES_LEAST: f64 = 0.05;

/// How much room each node of a job asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// As much as the log states for its memory.
    Memory,
    /// Log-normal: `median * exp(sigma * z) + shift` bytes with a standard normal z.
    LogNormal {
        /// In bytes.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// In bytes.
        shift: f64,
    },
}

/// The room that jobs ask for, which they fill when they begin and empty when they end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rooms {
    /// Room for each node.
    pub size: Size,
    /// The least room, in bytes.
    pub least: f64,
    /// Jobs with this estimate or a shorter one, in seconds, ask for `short` bytes instead.
    pub short_s: f64,
    /// In bytes.
    pub short: f64,
    /// Fraction of it that is staged in, and out.
    pub staged: f64,
    /// A log's run time includes moving the room this many times, at the bandwidth of a burst
    /// buffer.
    pub moves: f64,
}

/// The burst buffers that have to hold it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buffers {
    /// Number of them.
    pub count: u32,
    /// Room on each.
    pub bytes: u64,
    /// Bandwidth of each.
    pub bytes_per_s: f64,
}

/// How often jobs come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrives {
    /// The fraction of the nodes that they would keep busy while they arrive.
    Load(f64),
    /// The number of jobs per day.
    PerDay(f64),
}

/// Distributions of jobs. Each list has quantiles at equal distances of probability; values between
/// them are interpolated on a logarithmic scale of 1 + value.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Number of jobs.
    pub jobs: u32,
    /// Time from one submission to the next, up to a factor.
    pub interarrival_s: Vec<f64>,
    /// What sets the factor.
    pub arrives: Arrives,
    /// Estimate, in seconds.
    pub estimate_s: Vec<f64>,
    /// Run time by estimate.
    pub accuracy: Vec<f64>,
    /// (nodes, weight).
    pub nodes: Vec<(u16, f64)>,
}

impl Shape {
    /// Draws jobs as a log of a system with `nodes` nodes would have them.
    pub fn draw(&self, nodes: u32, seed: u64) -> Vec<Logged> {
        let mut rng = Rng::new(seed);
        let weights: f64 = self.nodes.iter().map(|n| n.1).sum();
        let mut submit_s = 0.0;
        let mut job = |number: u32| {
            submit_s += quantile(&self.interarrival_s, rng.unit());
            let mut left = rng.unit() * weights;
            let size = self.nodes.iter().find(|(_, weight)| {
                left -= weight;
                left < 0.0
            });
            let estimate_s = quantile(&self.estimate_s, rng.unit()).max(1.0);
            Logged {
                number: number.into(),
                submit_s,
                run_s: (estimate_s * quantile(&self.accuracy, rng.unit())).max(1.0),
                nodes: size.or(self.nodes.last()).map_or(1, |n| n.0.into()),
                estimate_s,
                kib_per_node: 0.0,
            }
        };
        let mut jobs: Vec<Logged> = (1..=self.jobs).map(&mut job).collect();
        let work_s: f64 = jobs.iter().map(|job| job.run_s * f64::from(job.nodes)).sum();
        let all_s = match self.arrives {
            Arrives::Load(load) => work_s / (f64::from(nodes) * load),
            Arrives::PerDay(count) => f64::from(self.jobs) / count * 86_400.0,
        };
        if submit_s > 0.0 {
            let factor = all_s / submit_s;
            jobs.iter_mut().for_each(|job| job.submit_s *= factor);
        }
        jobs
    }
}

/// The value at this probability.
fn quantile(quantiles: &[f64], probability: f64) -> f64 {
    let at = probability * quantiles.len().saturating_sub(1) as f64;
    let (below, part) = (quantiles[at as usize], at.fract());
    let above = quantiles.get(at as usize + 1).copied().unwrap_or(below);
    (1.0 + below).powf(1.0 - part) * (1.0 + above).powf(part) - 1.0
}

/// A standard normal number (Box and Muller).
pub fn normal(rng: &mut Rng) -> f64 {
    (2.0 * rng.exponential()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos()
}

impl Rooms {
    /// The jobs with room, by time of submission. A request for more than all burst buffers have
    /// together is reduced to that.
    pub fn furnish(&self, logged: &[Logged], buffers: Buffers, seed: u64) -> Vec<JobSpec> {
        let mut rng = Rng::new(seed).fork(1);
        let first_s = logged.iter().map(|job| job.submit_s).fold(f64::INFINITY, f64::min);
        let ns = |s: f64| (s * 1e9).round() as u64;
        let mut spec = |job: &Logged| {
            let bytes = self.bytes(job, buffers, &mut rng);
            let moves_s = self.moves * bytes as f64 / buffers.bytes_per_s;
            let staged_bytes = (self.staged * bytes as f64) as u64;
            JobSpec {
                name: job.number.to_string(),
                submit_ns: ns(job.submit_s - first_s),
                nodes: job.nodes,
                run_ns: ns((job.run_s - moves_s).max(job.run_s * COMPUTES_LEAST)),
                estimate_ns: ns(job.estimate_s),
                bytes_per_node: bytes,
                stage_in_bytes: staged_bytes,
                stage_out_bytes: staged_bytes,
            }
        };
        let mut jobs: Vec<JobSpec> = logged.iter().map(&mut spec).collect();
        jobs.sort_by_key(|job| job.submit_ns);
        jobs
    }

    fn bytes(&self, job: &Logged, buffers: Buffers, rng: &mut Rng) -> u64 {
        let bytes = match self.size {
            Size::Memory => job.kib_per_node * 1024.0,
            Size::LogNormal { median, sigma, shift } => median * (sigma * normal(rng)).exp() + shift,
        };
        if buffers.count == 0 {
            return 0;
        }
        let bytes = if job.estimate_s <= self.short_s { self.short } else { bytes.max(self.least) };
        let of_all = buffers.bytes / u64::from(job.nodes.div_ceil(buffers.count).max(1));
        (bytes as u64).min(of_all)
    }
}
