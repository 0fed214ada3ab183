//! The log of the daemons.

use std::io;

/// Messages go to standard error, from the level that `FOREBAY_LOG` names.
pub fn start_log() {
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_max_level(log_level()).init();
}

fn log_level() -> tracing::Level {
    std::env::var("FOREBAY_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(tracing::Level::INFO)
}
