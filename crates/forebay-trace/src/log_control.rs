//! The log of this process, and how its filter is changed while it runs.
//!
//! The program that starts a daemon installs the log, since it alone knows where messages go; an
//! agent or coordinator changes it on request.

use std::sync::OnceLock;

/// The program's functions for its log.
#[derive(Clone, Copy, Debug)]
pub struct LogControl {
    /// Logs by this filter from now on; an empty one changes nothing. Returns the filter in force.
    pub set: fn(&str) -> Result<String, String>,
    /// Returns the latest lines.
    pub latest: fn() -> String,
}

static CONTROL: OnceLock<LogControl> = OnceLock::new();

/// Installs the log. Called once, before the first thread.
pub fn install(control: LogControl) {
    // A second call would be for a second log, which no program has.
    let _is_first = CONTROL.set(control);
}

/// Changes what is logged; an empty filter only returns the current one.
///
/// # Errors
/// If it is not a filter, or this process has no log.
pub fn set(filter: &str) -> Result<String, String> {
    match CONTROL.get() {
        Some(control) => (control.set)(filter),
        None => Err("this process has no log".into()),
    }
}

/// Returns the latest lines of the log.
pub fn latest() -> String {
    CONTROL.get().map(|control| (control.latest)()).unwrap_or_default()
}
