//! Storage of the servers: one tmpfs of a fixed size for each, mounted inside its node.
//!
//! File systems keep deleted data for minutes. Without a bound, ten minutes of writing and deleting
//! fill the machine's memory, and the kernel kills processes of its choice. With one, programs get
//! `ENOSPC`. The mount ends with the node, whichever processes were killed.

use std::path::Path;

use rustix::mount::{MountFlags, mount};

use super::plan::Place;
use crate::LabError;
use crate::quantity::show_bytes;

/// Default for all servers together, unless that is more than [`SHARE_OF_MEMORY`] of the machine.
const DEFAULT_BYTES: u64 = 8 << 30;

/// The default takes at most this fraction of the machine's memory: a third.
const SHARE_OF_MEMORY: u64 = 3;

/// Least for one server: file systems keep some space free for themselves.
pub const SERVER_MIN_BYTES: u64 = 256 << 20;

/// Bytes of all servers together, unless the user gives a size.
pub fn default_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let memory_bytes = info.totalram * u64::from(info.mem_unit);
    DEFAULT_BYTES.min(memory_bytes / SHARE_OF_MEMORY)
}

/// The share of each of `servers`.
///
/// # Errors
/// If it is less than [`SERVER_MIN_BYTES`].
pub fn of_each(total_bytes: u64, servers: usize) -> Result<u64, LabError> {
    let bytes = total_bytes / servers.max(1) as u64;
    if bytes >= SERVER_MIN_BYTES {
        return Ok(bytes);
    }
    Err(LabError::new(format!(
        "--store {} leaves each of {servers} servers {}; each needs at least {}: raise --store or lower --servers",
        show_bytes(total_bytes),
        show_bytes(bytes),
        show_bytes(SERVER_MIN_BYTES)
    )))
}

/// Mounts the storage of `node` for the calling thread's mount namespace. The directory exists.
///
/// # Errors
/// If the kernel refuses.
pub fn attach(place: &Place, node: &str, bytes: u64) -> Result<(), LabError> {
    let target = place.store(node);
    let options = std::ffi::CString::new(format!("size={bytes},mode=0700")).unwrap_or_default();
    let source = Path::new("forebay-lab-store");
    mount(source, &target, "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, options.as_c_str()).map_err(|e| {
        LabError::io(format!("cannot mount {} of memory on {}", show_bytes(bytes), target.display()), e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_too_small_for_its_servers_is_refused() {
        assert_eq!(of_each(8 << 30, 4).unwrap(), 2 << 30);
        let message = of_each(1 << 30, 5).unwrap_err().to_string();
        assert!(message.contains("--store") && message.contains("--servers"), "{message}");
        assert!(default_bytes() > 0);
    }
}
