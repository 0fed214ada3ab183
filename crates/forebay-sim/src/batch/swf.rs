//! Logs in the Standard Workload Format: one job per line, 18 fields, comments after `;` (Chapin et
//! al., *Benchmarks and Standards for the Evaluation of Parallel Job Schedulers*, JSSPP 1999).

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// Above every number of a log; 300 years, in seconds.
const MAX: f64 = 1e10;

/// What a log says about a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Logged {
    /// Field 1.
    pub number: u64,
    /// Field 2.
    pub submit_s: f64,
    /// Field 4.
    pub run_s: f64,
    /// Field 8, or field 5 if the log has none.
    pub nodes: u32,
    /// Field 9, or the run time if the log has none.
    pub estimate_s: f64,
    /// Field 10, memory for each node in KiB; 0 if the log has none.
    pub kib_per_node: f64,
}

/// Reads the jobs of a log, in its order. Jobs without a run time or nodes are left out.
///
/// # Errors
/// If it cannot be read, or has a line that does not belong in a log.
pub fn read(path: &Path) -> Result<Vec<Logged>> {
    let text = fs::read_to_string(path).map_err(Error::io("read the log of jobs", path))?;
    let mut jobs = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(';') {
            continue;
        }
        let fields: Option<Vec<f64>> = line.split_whitespace().map(|field| field.parse().ok()).collect();
        let fields = fields.filter(|f| f.len() >= 10 && f.iter().all(|v| v.abs() < MAX));
        let Some(f) = fields else {
            let problem = "a job in the Standard Workload Format has 18 numbers, each below 1e10".into();
            return Err(Error::Trace { file: path.into(), line: i + 1, problem });
        };
        let nodes = if f[7] > 0.0 { f[7] } else { f[4] };
        if f[3] > 0.0 && nodes >= 1.0 && f[1] >= 0.0 {
            jobs.push(Logged {
                number: f[0].max(0.0) as u64,
                submit_s: f[1],
                run_s: f[3],
                nodes: nodes as u32,
                estimate_s: if f[8] > 0.0 { f[8] } else { f[3] },
                kib_per_node: f[9].max(0.0),
            });
        }
    }
    Ok(jobs)
}
