//! Talks to a mounted slow file system from another process, through the attributes of its root.
//!
//! Texts are parsed here first: a setxattr can only answer EINVAL, and a person needs to know what
//! was wrong.

use std::path::Path;

use rustix::fs::XattrFlags;

use super::fault::FaultSet;
use super::{FAULT_XATTR, LAYOUT_XATTR, Layout, RATE_XATTR, RESET_XATTR, STATS_XATTR, Stats};
use crate::LabError;
use crate::quantity::parse_rate;

/// Replaces the faults in force by `spec` (see [`super::fault`]); `none` clears them and lets
/// hanging operations continue.
///
/// # Errors
/// If `spec` is wrong, with the reason, or if `mount` is not the root of a slow file system.
pub fn set_fault(mount: &Path, spec: &str) -> Result<(), LabError> {
    FaultSet::parse(spec).map_err(|why| LabError::new(format!("fault `{spec}` not understood: {why}")))?;
    set(mount, FAULT_XATTR, spec)
}

/// Reads the counters.
///
/// # Errors
/// If `mount` is not the root of a slow file system.
pub fn stats(mount: &Path) -> Result<Stats, LabError> {
    get(mount, STATS_XATTR)
}

/// Sets all counters to zero.
///
/// # Errors
/// If `mount` is not the root of a slow file system.
pub fn reset(mount: &Path) -> Result<(), LabError> {
    set(mount, RESET_XATTR, "1")
}

/// Sets the rate of each server from now on: `50MB/s`, `unlimited`.
///
/// # Errors
/// If `rate` is wrong, with the reason, or if `mount` is not the root of a slow file system.
pub fn set_rate(mount: &Path, rate: &str) -> Result<(), LabError> {
    parse_rate(rate).map_err(LabError::new)?;
    set(mount, RATE_XATTR, rate)
}

/// The layout of a file on a slow file system.
///
/// # Errors
/// If `file` is not a regular file on one.
pub fn layout(file: &Path) -> Result<Layout, LabError> {
    get(file, LAYOUT_XATTR)
}

fn set(path: &Path, name: &str, value: &str) -> Result<(), LabError> {
    // A plain file system accepts an attribute of any name and does nothing with it. Only a slow
    // one has counters.
    get::<Stats>(path, STATS_XATTR)?;
    rustix::fs::setxattr(path, name, value.as_bytes(), XattrFlags::empty())
        .map_err(|error| LabError::io(format!("cannot set {name} of {}; {HINT}", path.display()), error))
}

fn get<T: serde::de::DeserializeOwned>(path: &Path, name: &str) -> Result<T, LabError> {
    let mut value = vec![0; 64 << 10]; // the most an attribute can hold; asking for the size first would race
    let len = rustix::fs::getxattr(path, name, &mut value[..])
        .map_err(|error| LabError::io(format!("cannot read {name} of {}; {HINT}", path.display()), error))?;
    serde_json::from_slice(&value[..len])
        .map_err(|error| LabError::io(format!("{name} of {} is not valid", path.display()), error))
}

const HINT: &str = "is it where `forebay lab slowfs` is mounted?";
