//! Where an agent records what its machines hear and decide (`agent.decision_log`).

use forebay_trace::log_files::{Files, Recorder};
use serde::Serialize;
use std::io;
use std::path::Path;

/// Records into `files` of a directory with the name of this host, as agents of many nodes may
/// share a configuration and a file system; nothing without `dir`. `built_from` is what the machine
/// was built from.
///
/// # Errors
/// The log cannot be written.
pub fn start(dir: Option<&Path>, files: Files, built_from: &impl Serialize) -> io::Result<Recorder> {
    let Some(dir) = dir else { return Ok(Recorder::off()) };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Recorder::start(&dir.join(host), files, built_from).map_err(|e| {
        let dir = dir.display();
        let why = format!("cannot record decisions in {dir} (agent.decision_log): {e}");
        io::Error::new(e.kind(), why)
    })
}
