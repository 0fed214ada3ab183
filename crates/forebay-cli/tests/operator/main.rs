//! What an operator queries on a node and does to running jobs and daemons.
//!
//! | file | what is tested |
//! | --- | --- |
//! | `status` | `status` as JSON, and commands that have none |
//! | `doctor` | what `doctor` finds on this machine, and the remedies |
//! | `capacity` | capacities that fit, and those that do not |
//! | `limits` | rate limits of jobs, on a node and in a cluster; who may set them; the audit log |
//! | `support` | what is logged, and the bundle for a report |
//! | `batch` | the scripts of batch systems |

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

#[path = "../kit/mod.rs"]
mod kit;

mod batch;
mod capacity;
mod doctor;
mod limits;
mod status;
mod support;

use kit::{Random, succeeded};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of random content.
fn make(path: &Path, bytes: u64) -> PathBuf {
    let mut random = Random(bytes);
    let content: Vec<u8> = (0..bytes / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    std::fs::write(path, content).unwrap();
    path.to_owned()
}

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&succeeded(command)).unwrap()
}
