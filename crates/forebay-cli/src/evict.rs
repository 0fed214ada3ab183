//! `evict`, `pin`, `unpin` and `capacity`: decide what stays in the tier.

use crate::Outcome;
use crate::cli::{CapacityArgs, EvictArgs, Global, PathsArgs};
use crate::files::list_files;
use crate::out::{complain, no_agent, print};
use forebay_agent::memory;
use forebay_agent::units::Human;
use forebay_client::Client;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Releases memory.
pub fn evict(global: &Global, args: &EvictArgs) -> Outcome {
    let client = global.client();
    let (mut bytes, mut failures) = (0, Vec::new());
    if args.all {
        bytes = client.admin().evict_all().map_err(|e| no_agent(global, &e))?;
    } else {
        client.admin().status().map_err(|e| no_agent(global, &e))?;
        let files;
        (files, failures) = list_files(&args.paths, true);
        for path in files {
            match client.admin().evict(&path) {
                Ok(freed) => bytes += freed,
                Err(e) => failures.push((path, e)),
            }
        }
    }
    let code = complain(&failures);
    print(global, &serde_json::json!({ "evicted_bytes": bytes, "failed": failures.len() }), |out| {
        writeln!(out, "released {}", Human(bytes))
    })?;
    Ok(code)
}

/// Pins or unpins files.
pub fn pin(global: &Global, args: &PathsArgs, on: bool) -> Outcome {
    let client = global.client();
    client.admin().status().map_err(|e| no_agent(global, &e))?;
    let (files, mut failures) = list_files(&args.paths, args.recursive);
    let mut done = BTreeSet::new();
    if !on {
        unpin_copies(&client, args, &mut done, &mut failures)?;
        // What was deleted or replaced can be unpinned all the same.
        failures.retain(|(path, e)| e.kind() != io::ErrorKind::NotFound || !is_any_below(&done, path));
    }
    for path in files {
        match client.admin().pin(&path, on) {
            Ok(()) => drop(done.insert(absolute(&path))),
            Err(e) => failures.push((path, e)),
        }
    }
    let code = complain(&failures);
    let (done, failed) = (done.len(), failures.len());
    let what = if on { "pinned" } else { "unpinned" };
    print(global, &serde_json::json!({ what: done, "failed": failed }), |out| {
        writeln!(out, "{what} {done} files")
    })?;
    Ok(code)
}

/// Unpins the copies that `forebay ls` shows at the paths, or below them with `--recursive`,
/// including older versions and files that are gone.
fn unpin_copies(
    client: &Client,
    args: &PathsArgs,
    done: &mut BTreeSet<PathBuf>,
    failures: &mut Vec<(PathBuf, io::Error)>,
) -> Result<(), String> {
    let copies = client.admin().list().map_err(|e| format!("cannot list the pinned files: {e}"))?;
    let named: Vec<PathBuf> = args.paths.iter().map(|path| absolute(path)).collect();
    for copy in copies.into_iter().filter(|copy| copy.pinned) {
        let path = PathBuf::from(OsString::from_vec(copy.path));
        let is_named = |named: &PathBuf| path == *named || args.recursive && path.starts_with(named);
        if named.iter().any(is_named) {
            match client.admin().unpin_copy(copy.copy) {
                Ok(()) => drop(done.insert(path)),
                Err(e) => failures.push((path, e)),
            }
        }
    }
    Ok(())
}

/// The path as `forebay ls` shows it. One that cannot be made absolute names nothing in the list.
fn absolute(path: &Path) -> PathBuf {
    // The directory may be reached by links; the file itself may be gone.
    let (parent, name) = (path.parent(), path.file_name());
    let parent = parent.map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
    match (path.canonicalize(), parent.and_then(|p| p.canonicalize().ok()), name) {
        (Ok(path), ..) => path,
        (Err(_), Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

fn is_any_below(done: &BTreeSet<PathBuf>, path: &Path) -> bool {
    let path = absolute(path);
    done.iter().any(|done| done.starts_with(&path))
}

/// Shows or changes the capacity.
pub fn capacity(global: &Global, args: &CapacityArgs) -> Outcome {
    let client = global.client();
    let released = match args.amount {
        Some(amount) => {
            let bytes = amount.of(memory::usable_bytes());
            Some(client.admin().set_capacity(bytes).map_err(|e| no_agent(global, &e))?)
        }
        None => None,
    };
    let status = client.admin().status().map_err(|e| no_agent(global, &e))?;
    let most_bytes = client.admin().memory().map_err(|e| no_agent(global, &e))?.max_bytes;
    let used: u64 = status.used_bytes.iter().map(|(_, bytes)| bytes).sum();
    let json = serde_json::json!({
        "capacity_bytes": status.capacity_bytes, "most_bytes": most_bytes, "used_bytes": used, "released_bytes": released,
    });
    print(global, &json, |out| {
        writeln!(out, "capacity {}, in use {}", Human(most_bytes), Human(used))?;
        if status.capacity_bytes < most_bytes {
            writeln!(out, "now      {}: programs need the memory", Human(status.capacity_bytes))?;
        }
        match released {
            Some(bytes) if bytes > 0 => writeln!(out, "released {}", Human(bytes)),
            _ => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
