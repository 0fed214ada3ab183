//! What `doctor` finds.

use serde::Serialize;

/// How many days before its end a certificate should be renewed: a month, since the person who does
/// it may be on holiday.
pub const EXPIRY_WARNING_DAYS: u64 = 30;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Good,
    Warning,
    Bad,
}

/// What was found of one thing, and what to do.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub level: Level,
    pub found: String,
    pub remedy: String,
}

pub fn good(what: &'static str, found: String) -> Finding {
    Finding { what, level: Level::Good, found, remedy: String::new() }
}

pub fn warn(what: &'static str, found: String, remedy: &str) -> Finding {
    Finding { what, level: Level::Warning, found, remedy: remedy.to_owned() }
}

pub fn bad(what: &'static str, found: String, remedy: &str) -> Finding {
    Finding { what, level: Level::Bad, found, remedy: remedy.to_owned() }
}
