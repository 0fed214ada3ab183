//! The section `[memory]`: how the tier gives way to compute.

use crate::units::Amount;
use forebay_policy::memory;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// How the tier gives way to compute, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// Name of the law.
    pub policy: String,
    /// Share of the memory that may be in use.
    pub target: f64,
    /// What the tier keeps.
    pub min: Amount,
    /// Between two looks.
    pub period: Duration,
    /// Directory of the decision log, if there is to be one.
    pub decision_log: Option<PathBuf>,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig {
            policy: "forebay".into(),
            target: 0.95,
            min: Amount::Bytes(0),
            period: Duration::from_millis(100),
            decision_log: None,
        }
    }
}

/// The section as written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMemory {
    policy: Option<String>,
    target: Option<String>,
    min: Option<String>,
    period_ms: Option<u64>,
    decision_log: Option<PathBuf>,
}

impl MemoryConfig {
    /// Takes what is written over the defaults.
    ///
    /// # Errors
    /// Names the key, its value and what is allowed.
    pub(super) fn take(&mut self, raw: RawMemory) -> Result<(), String> {
        if let Some(name) = raw.policy {
            memory::policy(&name).map_err(|e| format!("memory.policy: {e}"))?;
            self.policy = name;
        }
        if let Some(text) = raw.target {
            self.target = match Amount::parse(&text).map_err(|e| format!("memory.target: {e}"))? {
                Amount::Percent(percent) if (50.0..=99.0).contains(&percent) => percent / 100.0,
                _ => return Err(format!("memory.target = {text:?} must be a share from 50% to 99%")),
            };
        }
        if let Some(text) = raw.min {
            self.min = Amount::parse(&text).map_err(|e| format!("memory.min: {e}"))?;
        }
        if let Some(ms) = raw.period_ms {
            if !(10..=1000).contains(&ms) {
                return Err(format!("memory.period_ms = {ms} must be from 10 to 1000"));
            }
            self.period = Duration::from_millis(ms);
        }
        self.decision_log = raw.decision_log.filter(|dir| !dir.as_os_str().is_empty());
        Ok(())
    }
}
