//! `evict`, `pin`, `unpin` and `capacity`: what stays and what goes.

use crate::Outcome;
use crate::cli::{CapacityArgs, EvictArgs, Global, PathsArgs};
use crate::files::list_files;
use crate::out::{no_agent, print};
use forebay_agent::memory;
use forebay_agent::units::Human;
use std::process::ExitCode;

/// Gives back memory.
pub fn evict(global: &Global, args: &EvictArgs) -> Outcome {
    let client = global.client();
    let mut failed = 0;
    let bytes = if args.all {
        client.admin().evict_all().map_err(|e| no_agent(global, &e))?
    } else {
        client.admin().status().map_err(|e| no_agent(global, &e))?;
        let (files, failures) = list_files(&args.paths, true);
        let mut bytes = 0;
        for (path, e) in failures {
            eprintln!("forebay: {}: {e}", path.display());
            failed += 1;
        }
        for path in files {
            match client.admin().evict(&path) {
                Ok(freed) => bytes += freed,
                Err(e) => {
                    eprintln!("forebay: {}: {e}", path.display());
                    failed += 1;
                }
            }
        }
        bytes
    };
    print(global, &serde_json::json!({ "evicted_bytes": bytes, "failed": failed }), |out| {
        writeln!(out, "released {}", Human(bytes))
    })?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Pins or unpins files.
pub fn pin(global: &Global, args: &PathsArgs, on: bool) -> Outcome {
    let client = global.client();
    client.admin().status().map_err(|e| no_agent(global, &e))?;
    let (files, failures) = list_files(&args.paths, args.recursive);
    let mut failed = failures.len();
    for (path, e) in failures {
        eprintln!("forebay: {}: {e}", path.display());
    }
    let mut done = 0;
    for path in files {
        match client.admin().pin(&path, on) {
            Ok(()) => done += 1,
            Err(e) => {
                eprintln!("forebay: {}: {e}", path.display());
                failed += 1;
            }
        }
    }
    let what = if on { "pinned" } else { "unpinned" };
    print(global, &serde_json::json!({ what: done, "failed": failed }), |out| {
        writeln!(out, "{what} {done} files")
    })?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Shows or changes the capacity.
pub fn capacity(global: &Global, args: &CapacityArgs) -> Outcome {
    let client = global.client();
    let given_back = match args.amount {
        Some(amount) => {
            let bytes = amount.of(memory::usable_bytes());
            Some(client.admin().set_capacity(bytes).map_err(|e| no_agent(global, &e))?)
        }
        None => None,
    };
    let status = client.admin().status().map_err(|e| no_agent(global, &e))?;
    let used: u64 = status.used_bytes.iter().map(|(_, bytes)| bytes).sum();
    let json = serde_json::json!({
        "capacity_bytes": status.capacity_bytes, "used_bytes": used, "given_back_bytes": given_back,
    });
    print(global, &json, |out| {
        writeln!(out, "capacity {}, in use {}", Human(status.capacity_bytes), Human(used))?;
        match given_back {
            Some(bytes) if bytes > 0 => writeln!(out, "released {}", Human(bytes)),
            _ => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
