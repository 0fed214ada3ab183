//! When the next I/O phase of a job begins: the habits that scenarios can give a job.

use forebay_model::rng::Rng;
use forebay_policy::machine::Nanos;
use serde::{Deserialize, Serialize};

/// When the phases (or steps) of a job begin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Arrivals {
    /// A phase begins a compute time after the last one ended.
    Periodic,
    /// The same, with each compute time drawn uniformly from (1 - spread) to (1 + spread) times the
    /// mean.
    Jittered {
        /// From 0 to 1.
        spread: f64,
    },
    /// Compute times are exponential.
    Poisson,
    /// Phases begin at these moments, or when the one before is over if that is later.
    Trace {
        /// In ns from the start, ascending.
        at_ns: Vec<u64>,
    },
    /// Phases of a job that was recorded, each with a compute time of its own before it. Beyond the
    /// last recorded one they are as the job's others.
    Recorded {
        /// Compute time before each phase, in ns.
        compute_ns: Vec<u64>,
        /// I/O time of each phase alone, in ns; empty where phases have one length.
        io_ns: Vec<u64>,
    },
}

impl Arrivals {
    /// When phase number `begun` (from 0) begins, if the one before it ended `now` and compute
    /// takes `mean_ns`.
    pub fn next(&self, now: Nanos, begun: u32, mean_ns: u64, rng: &mut Rng) -> Nanos {
        let mean_ns = mean_ns as f64;
        let wait_ns = match self {
            Arrivals::Periodic => mean_ns,
            Arrivals::Jittered { spread } => mean_ns * (1.0 + spread * (2.0 * rng.unit() - 1.0)),
            Arrivals::Poisson => mean_ns * rng.exponential(),
            Arrivals::Trace { at_ns } => {
                let at = at_ns.get(begun as usize).copied().unwrap_or(now.0);
                return Nanos(at.max(now.0));
            }
            Arrivals::Recorded { compute_ns, .. } => {
                return now + compute_ns.get(begun as usize).copied().unwrap_or(mean_ns as u64);
            }
        };
        now + wait_ns as u64
    }

    /// I/O time of phase number `begun` (from 0) alone, in ns, if it has a time of its own.
    pub fn io_ns(&self, begun: u32) -> Option<u64> {
        match self {
            Arrivals::Recorded { io_ns, .. } => io_ns.get(begun as usize).copied(),
            _ => None,
        }
    }

    /// When the first phase begins: a job may begin with it rather than with compute.
    pub fn first(&self, now: Nanos, io_first: bool, mean_ns: u64, rng: &mut Rng) -> Nanos {
        match self {
            Arrivals::Trace { .. } => self.next(now, 0, mean_ns, rng),
            _ if io_first => now,
            _ => self.next(now, 0, mean_ns, rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(arrivals: &Arrivals) -> (f64, u64, u64) {
        let mut rng = Rng::new(1);
        let waits: Vec<u64> =
            (0..20_000).map(|i| arrivals.next(Nanos(7), i, 1_000_000, &mut rng).0 - 7).collect();
        let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
        (mean, *waits.iter().min().expect("some"), *waits.iter().max().expect("some"))
    }

    #[test]
    fn compute_times_have_the_mean_and_range_that_they_should() {
        assert_eq!(mean(&Arrivals::Periodic), (1e6, 1_000_000, 1_000_000));
        let (jittered, least, most) = mean(&Arrivals::Jittered { spread: 0.25 });
        assert!((jittered / 1e6 - 1.0).abs() < 0.01 && least >= 750_000 && most <= 1_250_000);
        let (poisson, least, most) = mean(&Arrivals::Poisson);
        assert!((poisson / 1e6 - 1.0).abs() < 0.03 && least < 1_000 && most > 6_000_000);
    }

    #[test]
    fn recorded_phases_follow_each_other_as_they_did() {
        let recorded = Arrivals::Recorded { compute_ns: vec![5, 9], io_ns: vec![3] };
        let mut rng = Rng::new(1);
        assert_eq!(recorded.first(Nanos(2), false, 100, &mut rng), Nanos(7));
        assert_eq!(recorded.next(Nanos(12), 1, 100, &mut rng), Nanos(21));
        assert_eq!(recorded.next(Nanos(30), 2, 100, &mut rng), Nanos(130));
        assert_eq!((recorded.io_ns(0), recorded.io_ns(1)), (Some(3), None));
    }

    #[test]
    fn a_trace_is_kept_to_unless_the_job_is_late() {
        let (trace, mut rng) = (Arrivals::Trace { at_ns: vec![5, 9] }, Rng::new(1));
        assert_eq!(trace.first(Nanos(0), true, 100, &mut rng), Nanos(5));
        assert_eq!(trace.next(Nanos(12), 1, 100, &mut rng), Nanos(12));
    }
}
