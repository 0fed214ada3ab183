//! The section `[memory]`: how the tier gives way to compute.

use crate::units::Amount;
use forebay_policy::memory;
use serde::Deserialize;
use std::time::Duration;

/// How the tier gives way to compute, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// Name of the law.
    pub policy: String,
    /// Share of the memory that may be in use.
    pub target: f64,
    /// Gain of the law `dynims`.
    pub gain: f64,
    /// What the tier keeps.
    pub min: Amount,
    /// Between two looks.
    pub period: Duration,
    /// Control groups whose limits also bind the tier.
    pub watch: Vec<String>,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig {
            policy: "forebay".into(),
            target: 0.95,
            gain: 0.5,
            min: Amount::Bytes(0),
            period: Duration::from_millis(100),
            watch: Vec::new(),
        }
    }
}

/// The section as written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMemory {
    policy: Option<String>,
    target: Option<String>,
    gain: Option<f64>,
    min: Option<String>,
    period_ms: Option<u64>,
    watch: Option<Vec<String>>,
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
        if let Some(gain) = raw.gain {
            if !(gain > 0.0 && gain <= 10.0) {
                return Err(format!("memory.gain = {gain} must be above 0 and at most 10"));
            }
            self.gain = gain;
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
        if let Some(watch) = raw.watch {
            self.watch = groups(watch)?;
        }
        Ok(())
    }
}

/// Control groups that are watched at most; each is read at every sample.
const GROUPS_MAX: usize = 16;

fn groups(names: Vec<String>) -> Result<Vec<String>, String> {
    if names.len() > GROUPS_MAX {
        return Err(format!("memory.watch has {} groups; at most {GROUPS_MAX} can be watched", names.len()));
    }
    let is_path = |name: &&String| {
        let mut parts = name.strip_prefix('/').unwrap_or("").split('/');
        !parts.any(|part| part.is_empty() || part == "." || part == "..")
    };
    match names.iter().find(|name| !is_path(name)) {
        Some(name) => Err(format!(
            "memory.watch: {name:?} is not the path of a control group below the top one, such as \
             \"/system.slice/foo.slice\""
        )),
        None => Ok(names),
    }
}
