//! The log of the daemons: to standard error, with the latest lines in memory for a support bundle,
//! and a filter that changes while they run.

use forebay_trace::log_control::{LogControl, install};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// Bytes of the latest lines that are kept.
const LATEST_BYTES: usize = 128 << 10;

/// Lines of the log, the oldest first.
#[derive(Default)]
struct Latest {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
}

static LATEST: Mutex<Latest> = Mutex::new(Latest { lines: VecDeque::new(), bytes: 0 });

static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Writes each message to standard error, and keeps it for a while.
struct Tee;

impl Write for Tee {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
        latest.bytes += message.len();
        latest.lines.push_back(message.to_vec());
        while latest.bytes > LATEST_BYTES
            && let Some(oldest) = latest.lines.pop_front()
        {
            latest.bytes -= oldest.len();
        }
        drop(latest);
        io::stderr().write_all(message)?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Messages go to standard error, those that the filter in `FOREBAY_LOG` lets through: a level, or
/// modules with their levels.
pub fn start_log() {
    let given = std::env::var("FOREBAY_LOG").ok().and_then(|text| filter(&text).ok());
    let first = given.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let (first, handle) = reload::Layer::new(first);
    tracing_subscriber::registry().with(first).with(fmt::layer().with_writer(|| Tee).with_ansi(false)).init();
    // Nobody else starts a log in this process.
    let _is_first = FILTER.set(handle);
    install(LogControl { set, latest });
}

/// Reads a filter: `debug`, or `info,forebay_agent::fetch=debug`. A word that is not a level would
/// name a module, all of which is logged then: it is refused, since it is more likely a mistake.
fn filter(text: &str) -> Result<Targets, String> {
    let not =
        |part: &str| format!("{part:?} is no level (error, warn, info, debug, trace, off), nor MODULE=LEVEL");
    for part in text.split(',').map(str::trim) {
        let level = part.rsplit('=').next().unwrap_or(part);
        if LevelFilter::from_str(level).is_err() || level.is_empty() {
            return Err(not(part));
        }
    }
    text.to_ascii_lowercase().parse().map_err(|_| not(text))
}

fn set(text: &str) -> Result<String, String> {
    let handle = FILTER.get().ok_or("this process has no log")?;
    let failed = |e: reload::Error| format!("the log cannot be changed: {e}");
    if !text.is_empty() {
        handle.reload(filter(text)?).map_err(failed)?;
        tracing::info!(filter = text, "what is logged has changed");
    }
    handle.with_current(ToString::to_string).map_err(failed)
}

fn latest() -> String {
    let latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = latest.lines.iter().flatten().copied().collect::<Vec<u8>>();
    String::from_utf8_lossy(&lines).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_modules_with_levels() {
        for good in ["debug", "info,forebay_agent::fetch=trace", "OFF", "forebay_agent=warn"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["", "loud", "forebay_agent", "info,", "forebay_agent=loud"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
