//! How I/O phases of recorded jobs vary, for HPC jobs of random clusters.
//!
//! A cluster draws the means of its jobs. A log gives the bytes of each phase and each compute time
//! as multiples of their means, in the order in which they were recorded.

use std::path::Path;

use crate::arrivals::Arrivals;
use crate::error::Result;
use crate::scenario::logs::Job;

/// Phases of the traces in FTIO's repository (BSD 3-Clause) and of Darshan's sample logs that have
/// at least five: `bench/predict.py --logs scenarios/phases --ftio CLONE` writes them.
const RECORDED: [(&str, &str); 6] = [
    ("ftio-ior-384-writes", include_str!("../../../../scenarios/phases/ftio-ior-384-writes.txt")),
    ("ftio-ior-384-reads", include_str!("../../../../scenarios/phases/ftio-ior-384-reads.txt")),
    ("ftio-tmio-8-reads", include_str!("../../../../scenarios/phases/ftio-tmio-8-reads.txt")),
    ("ftio-gekkofs-writes", include_str!("../../../../scenarios/phases/ftio-gekkofs-writes.txt")),
    ("darshan-dxt-reads", include_str!("../../../../scenarios/phases/darshan-dxt-reads.txt")),
    ("darshan-dxt-writes", include_str!("../../../../scenarios/phases/darshan-dxt-writes.txt")),
];

/// How the phases of a log vary.
#[derive(Clone, Debug, PartialEq)]
pub struct Rhythm {
    /// Compute before each phase, as multiples of the mean.
    compute: Vec<f64>,
    /// Bytes of each phase, as multiples of the mean.
    io: Vec<f64>,
}

impl Rhythm {
    /// Reads the rhythm of a log, as text of Darshan's tools.
    ///
    /// # Errors
    /// If it is not such a log, or has no phases.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self::of(&Job::of_file(path)?))
    }

    /// The rhythms of the logs of FTIO and Darshan, with their names.
    ///
    /// # Errors
    /// None: they are logs.
    pub fn recorded() -> Result<Vec<(&'static str, Self)>> {
        RECORDED.map(|(name, text)| Ok((name, Self::of(&Job::of_text(name, text)?)))).into_iter().collect()
    }

    fn of(job: &Job) -> Self {
        let parts = |all: Vec<f64>| {
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            all.into_iter().map(|one| if mean > 0.0 { one / mean } else { 1.0 }).collect()
        };
        let compute = job.compute_ns().into_iter().map(|ns| ns as f64).collect();
        Rhythm { compute: parts(compute), io: parts(job.phases.iter().map(|phase| phase.bytes).collect()) }
    }

    /// Number of phases.
    pub fn phases(&self) -> u32 {
        self.io.len() as u32
    }

    /// Phases with these means, in ns.
    pub fn arrivals(&self, compute_ns: u64, io_ns: u64) -> Arrivals {
        let times = |parts: &[f64], mean_ns: u64| -> Vec<u64> {
            parts.iter().map(|part| ((part * mean_ns as f64).round() as u64).max(1)).collect()
        };
        Arrivals::Recorded { compute_ns: times(&self.compute, compute_ns), io_ns: times(&self.io, io_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_vary_as_recorded_around_the_means() {
        let text = "# darshan log version: 3.41\n X_POSIX 0 write 0 0 100 4.0 5.0\n\
                    X_POSIX 0 write 1 0 300 7.0 9.0\n";
        let rhythm = Rhythm::of(&Job::of_text("a", text).expect("a log"));
        let Arrivals::Recorded { compute_ns, io_ns } = rhythm.arrivals(30, 8) else { panic!("recorded") };
        assert_eq!((rhythm.phases(), compute_ns, io_ns), (2, vec![40, 20], vec![4, 12]));
    }

    #[test]
    fn every_recorded_trace_has_phases_for_a_prediction() {
        for (name, rhythm) in Rhythm::recorded().expect("logs") {
            assert!(rhythm.phases() >= 5 && rhythm.compute.len() == rhythm.io.len(), "{name}");
        }
    }
}
