//! What other programs measure: Python, the eviction policies, the peers.

use crate::measure::Record;
use crate::rig::Rig;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs a program that prints a JSON list of records, and takes them over.
fn run(command: &mut Command) -> Result<Vec<Value>, String> {
    let output = command.output().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("{:?}: {e}", command.get_program()))
}
