//! Scenarios of kind `memory`.

use std::fs;
use std::path::Path;

use forebay_policy::memory::{self, Config};

use super::reader::Section;
use super::{GB, MAX_GB, MAX_S, ns};
use crate::error::{Error, Result};
use crate::memory::{Load, Noise, Pulse, Setup};

/// Every millisecond of a run costs memory.
const MAX_DURATION_S: f64 = 1e4;
/// The least amount and the least rate, in GB and GB/s: a byte.
const LEAST_GB: f64 = 1e-9;

/// Reads the whole file.
pub fn read(root: &Section<'_>) -> Result<Setup> {
    let setup = node(root)?;
    root.complete(setup)
}

/// The node, its law and its load.
pub fn node(root: &Section<'_>) -> Result<Setup> {
    let seed = root.whole("seed", 0, i64::MAX as u64, Some(0))?;
    let duration_ns = ns(root.number("duration_s", 0.001, MAX_DURATION_S, None)?);
    let node = root.need("node")?;
    let memory_gb = node.number("memory_gb", LEAST_GB, MAX_GB, None)?;
    let rate = |key| -> Result<Option<f64>> {
        Ok(node.number_if(key, LEAST_GB, MAX_GB)?.map(|gb_per_s| gb_per_s * GB))
    };
    let (refill, release) = (rate("refill_gb_per_s")?, rate("release_gb_per_s")?);
    node.done()?;
    let law = root.need("memory")?;
    let mut setup = Setup {
        policy: law.policy(memory::POLICIES, "forebay")?,
        config: config(&law, memory_gb)?,
        start_bytes: 0,
        refill_bytes_per_s: refill,
        release_bytes_per_s: release,
        has_alarm: law.flag("alarm", true)?,
        load: load(root)?,
        duration_ns,
        seed,
    };
    if !setup.has_alarm {
        setup.config.alarm = memory::Alarm::None;
    }
    setup.start_full();
    if law.has("start_gb") {
        let (least, most) = (setup.config.min_bytes as f64 / GB, setup.config.max_bytes as f64 / GB);
        setup.start_bytes = (law.number("start_gb", least, most, None)? * GB) as u64;
    }
    law.complete(setup)
}

fn config(s: &Section<'_>, memory_gb: f64) -> Result<Config> {
    let memory_bytes = (memory_gb * GB).round() as u64;
    let defaults = Config::default();
    let max_gb = s.number("max_gb", 0.0, memory_gb, Some(memory_gb))?;
    let period_ns = ns(s.number("period_s", 0.001, MAX_S, Some(defaults.period_ns as f64 * 1e-9))?);
    let fast_s = (period_ns.min(defaults.fast_period_ns)) as f64 * 1e-9;
    Ok(Config {
        memory_bytes,
        target: s.number("target", 0.01, 0.99, Some(defaults.target))?,
        gain: s.number("gain", 0.0, 10.0, Some(defaults.gain))?,
        block_bytes: s.whole("block_bytes", 1, memory_bytes, Some((memory_bytes / 1000).max(1)))?,
        min_bytes: (s.number("min_gb", 0.0, max_gb, Some(0.0))? * GB) as u64,
        max_bytes: (max_gb * GB).round() as u64,
        period_ns,
        fast_period_ns: ns(s.number("fast_period_s", 0.001, period_ns as f64 * 1e-9, Some(fast_s))?),
        alarm: memory::Alarm::Threshold,
    })
}

fn load(root: &Section<'_>) -> Result<Load> {
    let s = root.need("load")?;
    let base_bytes = s.number("base_gb", 0.0, MAX_GB, Some(0.0))? * GB;
    let trace = match s.has("trace") {
        true => trace(&s.beside(&s.text("trace", None)?))?,
        false => Vec::new(),
    };
    let deviation_gb = s.number("noise_gb", 0.0, MAX_GB, Some(0.0))?;
    let every_s = s.number("noise_every_s", 0.001, MAX_S, Some(0.1))?;
    s.done()?;
    let noise =
        (deviation_gb > 0.0).then(|| Noise { deviation_bytes: deviation_gb * GB, every_ns: ns(every_s) });
    let pulses = root.list("process")?.iter().map(pulse).collect::<Result<_>>()?;
    Ok(Load { base_bytes, pulses, noise, trace })
}

fn pulse(s: &Section<'_>) -> Result<Pulse> {
    let bytes = s.number("gb", LEAST_GB, MAX_GB, None)? * GB;
    let pulse = Pulse {
        name: s.text("name", None)?,
        bytes,
        rise_bytes_per_s: s.number("rise_gb_per_s", LEAST_GB, MAX_GB, None)? * GB,
        fall_bytes_per_s: s.number("fall_gb_per_s", LEAST_GB, MAX_GB, Some(50.0))? * GB,
        hold_s: s.number("hold_s", 0.0, MAX_S, Some(0.0))?,
        rest_s: s.number("rest_s", 0.0, MAX_S, Some(0.0))?,
        count: s.whole("count", 1, u64::from(u32::MAX), Some(1))? as u32,
        jitter: s.number("jitter", 0.0, 1.0, Some(0.0))?,
        starts_s: s.number("starts_s", 0.0, MAX_S, Some(0.0))?,
    };
    // Each repetition costs memory, and a run of no more than 10,000 s has no more of them.
    let once_s =
        bytes / pulse.rise_bytes_per_s + bytes / pulse.fall_bytes_per_s + pulse.hold_s + pulse.rest_s;
    if once_s < 0.001 {
        return Err(s.error("gb", "rise, hold, fall and rest have to take a millisecond together"));
    }
    s.complete(pulse)
}

/// Lines of `seconds,bytes`.
fn trace(path: &Path) -> Result<Vec<(u64, u64)>> {
    let text = fs::read_to_string(path).map_err(Error::io("read the trace of memory", path))?;
    let mut points: Vec<(u64, u64)> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let pair = line.split_once(',').and_then(|(at, bytes)| {
            let at_s = at.trim().parse::<f64>().ok().filter(|s| (0.0..=MAX_S).contains(s))?;
            let bytes = bytes.trim().parse::<u64>().ok().filter(|&b| b as f64 <= MAX_GB * GB)?;
            Some((ns(at_s), bytes))
        });
        match pair {
            Some(point) if points.last().is_none_or(|last| last.0 < point.0) => points.push(point),
            _ => {
                let problem = "SECONDS,BYTES is needed, with seconds from 0 in ascending order, such as \
                               0.5,1073741824"
                    .into();
                return Err(Error::Trace { file: path.into(), line: i + 1, problem });
            }
        }
    }
    if points.is_empty() {
        return Err(Error::Trace { file: path.into(), line: 1, problem: "it has no points".into() });
    }
    Ok(points)
}
