//! The section `[phases]`: how I/O phases of HPC jobs are guarded.

use forebay_policy::phases::Config;
use serde::Deserialize;
use std::time::Duration;

/// How I/O phases of HPC jobs are guarded, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct PhasesConfig {
    /// A phase is cut off after so many times the time to its deadline.
    pub cut_off_factor: f64,
    /// News of phases is valid for so long.
    pub brake_lease: Duration,
}

impl Default for PhasesConfig {
    fn default() -> Self {
        PhasesConfig { cut_off_factor: 3.0, brake_lease: Duration::from_secs(1) }
    }
}

/// The section as written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPhases {
    cut_off_factor: Option<f64>,
    brake_lease_ms: Option<u64>,
}

impl PhasesConfig {
    /// Takes what is written over the defaults.
    ///
    /// # Errors
    /// Names the key, its value and what is allowed.
    pub(super) fn take(&mut self, raw: RawPhases) -> Result<(), String> {
        if let Some(factor) = raw.cut_off_factor {
            if !(1.0..=100.0).contains(&factor) {
                return Err(format!("phases.cut_off_factor = {factor} must be from 1 to 100"));
            }
            self.cut_off_factor = factor;
        }
        if let Some(ms) = raw.brake_lease_ms {
            if !(100..=10_000).contains(&ms) {
                return Err(format!("phases.brake_lease_ms = {ms} must be from 100 to 10000"));
            }
            self.brake_lease = Duration::from_millis(ms);
        }
        Ok(())
    }

    /// What the board is built from.
    pub fn board(&self) -> Config {
        Config { cut_off_factor: self.cut_off_factor, lease_ns: self.brake_lease.as_nanos() as u64 }
    }
}
