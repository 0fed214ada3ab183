//! `verify`: the cached bytes against those of the PFS.

use crate::Outcome;
use crate::cli::{Global, PathsArgs};
use crate::files::list_files;
use crate::out::{no_agent, print};
use forebay_agent::units::Human;
use forebay_client::{Client, File, ReadMode};
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Bytes compared at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Compares every resident byte of `path` with the PFS; returns how many there were.
///
/// # Errors
/// A sentence: where they differ, or what could not be read.
pub fn compare(client: &Client, path: &Path) -> Result<u64, String> {
    let io = |e: io::Error| e.to_string();
    let cached = match client.open_with(path, ReadMode::TierOnly) {
        Err(e) if e.kind() == io::ErrorKind::NotConnected => return Ok(0),
        other => other.map_err(io)?,
    };
    let direct = client.open_with(path, ReadMode::PfsOnly).map_err(io)?;
    let version = cached.version();
    let mut compared = 0;
    let (mut left, mut right) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    let size = cached.size().map_err(io)?;
    let mut offset = 0;
    while offset < size {
        let len = (size - offset).min(BUFFER_BYTES as u64) as usize;
        if cached.read_at(&mut left[..len], offset).is_ok_and(|n| n == len) {
            compare_block(&direct, &left[..len], &mut right[..len], offset)?;
            compared += len as u64;
        }
        offset += len as u64;
    }
    // A file that was changed meanwhile differs rightly.
    let now = client.open(path).map_err(io)?.version();
    if now != version {
        return Err("was changed while it was compared; compare it again".into());
    }
    Ok(compared)
}

fn compare_block(direct: &File, cached: &[u8], buffer: &mut [u8], offset: u64) -> Result<(), String> {
    let n = direct.read_at(buffer, offset).map_err(|e| format!("the PFS at {offset}: {e}"))?;
    match cached.iter().zip(&buffer[..n]).position(|(a, b)| a != b) {
        Some(at) => Err(format!("DIFFERS at byte {}: evict it, and report this", offset + at as u64)),
        None if n < cached.len() => Err(format!("the PFS has only {} bytes", offset + n as u64)),
        None => Ok(()),
    }
}

/// Verifies what the user named.
pub fn verify(global: &Global, args: &PathsArgs) -> Outcome {
    let client = global.client();
    client.admin().status().map_err(|e| no_agent(global, &e))?;
    let (files, failures) = list_files(&args.paths, args.recursive);
    let mut bad: Vec<_> = failures.into_iter().map(|(path, e)| (path, e.to_string())).collect();
    let mut bytes = 0;
    let count = files.len();
    for path in files {
        match compare(&client, &path) {
            Ok(n) => bytes += n,
            Err(e) => bad.push((path, e)),
        }
    }
    let json = serde_json::json!({ "files": count, "compared_bytes": bytes, "bad": bad });
    print(global, &json, |out| {
        for (path, e) in &bad {
            writeln!(out, "{}: {e}", path.display())?;
        }
        writeln!(out, "compared {} of {count} files with the PFS; {} bad", Human(bytes), bad.len())
    })?;
    Ok(if bad.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
